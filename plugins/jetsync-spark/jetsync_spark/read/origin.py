"""
The state of streams: which ones there are, whether they can be read, from where to where, and
whether messages are missing.

The leaders of the streams answer all requests of this module.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

import attrs

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.subjects import overlap
from jetsync_spark.read.offsets import Stored
from jetsync_spark.read.options import EARLIEST, LARGEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from jetsync_spark.read.options import ReadOptions

__all__ = [
    "Loss",
    "Origin",
    "check_filters",
    "first_after",
    "matching",
    "mean_size",
    "origin_of",
    "readable_origin_of",
    "sequence_at",
    "start_of",
    "time_of",
]

LENIENT: Final = "set failOnDataLoss to false to continue with the messages that are left"
"""The advice for a query that lost messages."""

RUN_AGAIN: Final = "run it again: a streaming query continues if the sequences of the stream do"
"""The advice if a stream was replaced while a task read it."""

SAMPLES: Final = 8
"""Messages of a range that are read to estimate its size, and the rest of a division."""

_logger = jetsync.get_logger("jetsync.spark.reading")


@attrs.frozen
class Origin:
    """
    The state of a stream.
    """

    stream: str
    """Its name."""

    created: str
    """When it was created."""

    first: int
    """The first stored sequence, or ``next`` if the stream is empty."""

    next: int
    """The sequence after the last one."""

    drops_old: bool
    """Whether it limits the messages per subject."""

    subjects: tuple[str, ...] = ()
    """
    Its subjects. Empty if it may hold messages with other subjects (mirror, source, transform).
    """

    messages: int = 0
    """The number of stored messages."""

    bytes: int = 0
    """Their size, as the server counts it."""

    last: Stored | None = None
    """The last message, even if it was removed. None if the stream never had one."""


def readable_origin_of(info: jetsync.StreamInfo) -> Origin:
    """
    Return the state of a stream that can be read by sequence.

    Raises:
        JetStreamSparkError: It cannot.
    """
    policy = info.config.retention
    if policy is not None and policy.value != "limits":
        raise JetStreamSparkError(
            f"a stream of retention {policy.value} cannot be read by sequence: it removes "
            "acknowledged messages, so a task that runs again could read other rows",
            stream=str(info.config.name),
            cure="read it with spark.readStream and option consumer, or read a stream of retention "
            "limits that has this one as its source",
        )
    return origin_of(info)


def origin_of(info: jetsync.StreamInfo) -> Origin:
    """
    Return the state of a stream.

    Raises:
        JetStreamSparkError: Its sequences exceed Spark's long.
    """
    config = info.config
    name = str(config.name)
    state = info.state
    if state.last_seq >= LARGEST:
        raise JetStreamSparkError(
            f"the last sequence is {state.last_seq}, which exceeds Spark's long",
            stream=name,
            cure="read a stream whose sequences are less than 2^63 - 1",
        )
    return Origin(
        name,
        "" if info.created is None else info.created.isoformat(),
        max(1, state.first_seq),
        state.last_seq + 1,
        (config.max_msgs_per_subject or 0) > 0,
        ()
        if config.mirror or config.sources or config.subject_transform
        else tuple(config.subjects or ()),
        state.messages,
        state.bytes,
        None if state.last_ts is None else Stored(state.last_seq, state.last_ts.isoformat()),
    )


def start_of(options: ReadOptions, stream: jetsync.Stream, origin: Origin, *, default: str) -> int:
    """
    Return the sequence at which a read starts.

    Args:
        options: The options of the read.
        stream: The stream, which is asked for the sequence of a time.
        origin: Its state.
        default: The start if the options set none.

    Raises:
        OptionError: The start does not exist.
    """
    if options.starting_timestamp is not None:
        found = sequence_at(stream, options.starting_timestamp)
        if found is None and options.timestamp_strategy == "error":
            raise OptionError(
                f"stream {origin.stream} has no message since startingTimestamp "
                f"{options.starting_timestamp}",
                option="startingTimestamp",
                cure="give an earlier time, or startingOffsetsByTimestampStrategy latest",
            )
        return origin.next if found is None else found
    asked = options.start_of(origin.stream) or default
    if asked == EARLIEST:
        return origin.first
    if asked == LATEST:
        return origin.next
    if int(asked) > origin.next:
        raise OptionError(
            f"stream {origin.stream} ends at sequence {origin.next - 1}, before startingOffsets "
            f"{asked}",
            option="startingOffsets",
            cure="give an existing sequence, or earliest",
        )
    return int(asked)


def check_filters(
    streams: Mapping[str, jetsync.Stream], origins: Collection[Origin], filters: tuple[str, ...]
) -> None:
    """
    Reject filters that match neither the subjects of a stream nor its messages.

    Args:
        streams: The streams by name.
        origins: Their states.
        filters: The filters.

    Raises:
        OptionError: A filter would never match a message.
    """
    if not origins:
        return
    subjects = [subject for origin in origins for subject in origin.subjects]
    shown = ", ".join(origin.stream for origin in origins)
    for each in filters:
        if any(overlap(each, subject) for subject in subjects):
            continue
        if any(
            streams[origin.stream].info(subjects_filter=each).state.subjects for origin in origins
        ):
            # Stored before the stream's subjects were changed.
            continue
        if all(origin.subjects for origin in origins):
            raise OptionError(
                f"subjectFilter {each} matches no subject and no message of stream {shown}",
                option="subjectFilter",
                cure=f"correct it: the stream has {', '.join(subjects)}",
            )
        _logger.warning("nothing_of_filter", stream=shown, filter=each)


def sequence_at(stream: jetsync.Stream, moment: dt.datetime) -> int | None:
    """
    Return the sequence of the first message that was stored at or after a time.
    """
    try:
        # Ask the leader, because a replica may lag.
        return stream.get_at(moment, direct=False).sequence
    except jetsync.MessageNotFoundError:
        return None


def time_of(stream: jetsync.Stream, sequence: int) -> str | None:
    """
    Return when a message was stored. None if there is none.
    """
    try:
        return _by_leader(lambda direct: stream.get_message(sequence, direct=direct))[1]
    except (
        jetsync.DirectNotSupportedError,
        jetsync.MessageNotFoundError,
        jetsync.PermissionDeniedError,
    ):
        return None


def first_after(stream: jetsync.Stream, origin: Origin, time: str) -> int:
    """
    Return the sequence of the first message that was stored after a time, or ``origin.next``.

    It asks for about as many messages as the number of sequences has bits. Servers before 2.11 have
    no request for it.
    """
    low, high = origin.first, origin.next
    while low < high:
        middle = (low + high) // 2
        try:
            sequence, stored = _by_leader(
                lambda direct: stream.get_next(">", middle, direct=direct)  # noqa: B023 - called at once.
            )
        except jetsync.MessageNotFoundError:
            high = middle
            continue
        if dt.datetime.fromisoformat(stored) > dt.datetime.fromisoformat(time):
            high = middle
        else:
            low = sequence + 1
    return low


def _by_leader(get: Callable[[bool], jetsync.StoredMessage]) -> tuple[int, str]:
    """Return the sequence and the time of a message. A replica, which may lag, answers at need."""
    try:
        found = get(False)
    except jetsync.PermissionDeniedError:
        found = get(True)
    return found.sequence, found.timestamp.isoformat()


def matching(stream: jetsync.Stream, start: int, end: int, filters: tuple[str, ...]) -> int:
    """
    Estimate how many messages from *start* to before *end* match some filters.

    It may be too high if messages are stored meanwhile.
    """

    def follow(sequence: int, subject: str) -> int:
        batch = stream.get_batch(1, sequence=sequence, subject=subject)
        return len(list(batch)) + (batch.pending or 0)

    def between(subject: str) -> int:
        after = follow(end, subject)
        return follow(start, subject) - after

    # A replica that lags may count too few.
    return max(0, min(end - start, sum(map(between, filters))))


def mean_size(stream: jetsync.Stream, start: int, end: int) -> float:
    """
    Estimate the bytes of a message from *start* to before *end* by reading a few of them.

    If no messages were removed, repeated calls return the same, so that a batch that runs again has
    the same partitions. The mean of all messages of the stream would change as it grows.
    """
    found = []
    for position in range(start, end, max(1, (end - start) // SAMPLES)):
        try:
            message = stream.get_next(">", position)
        except jetsync.MessageNotFoundError:
            break
        if message.sequence < end:
            found.append(len(message.subject) + len(message.data))
    return sum(found) / max(1, len(found))


class Loss:
    """
    Reports messages that were removed before a query read them.

    Args:
        options: They say whether the query fails (``failOnDataLoss``).
    """

    def __init__(self, options: ReadOptions) -> None:
        self._wanted = options.fail_on_data_loss

    def fails(self, origin: Origin) -> bool:
        """
        Return whether a query of this stream fails if messages are missing.
        """
        return not origin.drops_old if self._wanted is None else self._wanted

    def gone(self, origin: Origin, start: int, end: int) -> None:
        """
        Report that the sequences from *start* to before *end* were removed before they were read.

        Raises:
            JetStreamSparkError: The query fails.
        """
        self._noted(
            origin,
            f"messages were removed before they were read: sequences {start} to {end - 1} are "
            f"missing, and the stream begins at {origin.first}",
        )

    def missing(self, origin: Origin, start: int, end: int, count: int) -> None:
        """
        Report that messages of a consumer were removed between their delivery and the read.

        Args:
            origin: The stream.
            start: The first sequence that was read.
            end: The sequence after the last one.
            count: How many messages are missing.

        Raises:
            JetStreamSparkError: The query fails.
        """
        self._noted(
            origin,
            f"{count} messages between sequences {start} and {end - 1} were removed before they "
            "were read: a limit or a purge removed them, or another client of the consumer "
            "acknowledged them",
        )

    def recreated(self, origin: Origin, consumer: str) -> None:
        """
        Report that the consumer of a query was deleted and created again.

        Raises:
            JetStreamSparkError: The query fails.
        """
        self._noted(
            origin,
            f"consumer {consumer} was created again, so messages may be missing or be read twice",
        )

    def replaced(
        self, origin: Origin, created: str, why: str = "", *, cure: str = RUN_AGAIN
    ) -> None:
        """
        Report that the stream was deleted and created again, or went back to older messages.

        The query fails unless an option says otherwise, also if the stream removes old messages
        regularly: this is not what such a stream does.

        Args:
            origin: The stream.
            created: When the stream that the query reads was created.
            why: How its messages differ.
            cure: What the user can do.

        Raises:
            JetStreamSparkError: The query fails.
        """
        if created == origin.created:
            what = f"the stream went back: {why}"
        else:
            what = (
                f"the stream was created again or restored: it is from {origin.created}, and the "
                f"query reads the one from {created}" + (f"; {why}" if why else "")
            )
        self._reported(origin.stream, what, fails=self._wanted is not False, cure=cure)

    def behind(self, origin: Origin, wanted: int) -> None:
        """
        Report that the stream ends before the query's offset.

        Raises:
            JetStreamSparkError: The query fails.
        """
        self._noted(
            origin,
            f"the stream went back: the query has read up to sequence {wanted - 1}, and the stream "
            f"ends at {origin.next - 1}",
        )

    def deleted(self, stream: str) -> None:
        """
        Report that a stream that the query reads was deleted.

        Raises:
            JetStreamSparkError: The query fails.
        """
        self._reported(stream, "the stream was deleted", fails=self._wanted is not False)

    def unlisted(self, stream: str) -> None:
        """
        Report that the checkpoint has an offset of a stream that the options no longer name.

        Raises:
            JetStreamSparkError: The query fails.
        """
        self._reported(
            stream,
            "the checkpoint has an offset of this stream, and option stream does not name it",
            fails=self._wanted is not False,
            cure="name it, or the stream that continues it in movedStreams, or set failOnDataLoss "
            "to false to continue with the other streams",
        )

    def _noted(self, origin: Origin, what: str) -> None:
        self._reported(origin.stream, what, fails=self.fails(origin))

    @staticmethod
    def _reported(stream: str, what: str, *, fails: bool, cure: str = LENIENT) -> None:
        if fails:
            raise JetStreamSparkError(what, stream=stream, cure=cure)
        _logger.warning("data_loss", stream=stream, what=what)
