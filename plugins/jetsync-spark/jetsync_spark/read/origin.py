"""
The state of a stream: whether it can be read, from where to where, and whether messages are
missing.

The stream's leader answers all requests of this module.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import attrs

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.subjects import overlap
from jetsync_spark.read.options import EARLIEST, LARGEST, LATEST

if TYPE_CHECKING:
    from jetsync_spark.read.options import ReadOptions

__all__ = [
    "Loss",
    "Origin",
    "check_filters",
    "inspect_stream",
    "matching",
    "sequence_at",
    "start_of",
]

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


def inspect_stream(js: jetsync.JetStream, name: str) -> Origin:
    """
    Request the state of a stream.

    Raises:
        JetStreamSparkError: The stream cannot be read by sequence.
        JetSyncError: The stream does not exist, or the request failed.
    """
    info = js.stream(name).cached_info
    config = info.config
    policy = config.retention
    if policy is not None and policy.value != "limits":
        raise JetStreamSparkError(
            f"a stream of retention {policy.value} cannot be read by sequence: it removes messages "
            "when its consumers have acknowledged them, and this reader is not a consumer",
            stream=name,
            cure="read a stream of retention limits, such as one that has this one as its source",
        )
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
    )


def start_of(options: ReadOptions, js: jetsync.JetStream, origin: Origin, *, default: str) -> int:
    """
    Return the sequence at which a read starts.

    Args:
        options: The options of the read.
        js: Used to find the sequence of a time.
        origin: The stream.
        default: The start if the options set none.

    Raises:
        OptionError: The start does not exist.
    """
    if options.starting_timestamp is not None:
        found = sequence_at(js.stream(origin.stream), options.starting_timestamp)
        if found is None and options.timestamp_strategy == "error":
            raise OptionError(
                f"stream {origin.stream} has no message since startingTimestamp "
                f"{options.starting_timestamp}",
                option="startingTimestamp",
                cure="give an earlier time, or startingOffsetsByTimestampStrategy latest",
            )
        return origin.next if found is None else found
    asked = options.starting_offsets or default
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


def check_filters(js: jetsync.JetStream, origin: Origin, filters: tuple[str, ...]) -> None:
    """
    Reject filters that match neither the stream's subjects nor its messages.

    Raises:
        OptionError: A filter would never match a message.
    """
    for each in filters:
        if any(overlap(each, subject) for subject in origin.subjects):
            continue
        if js.stream(origin.stream).info(subjects_filter=each).state.subjects:
            # Stored before the stream's subjects were changed.
            continue
        if origin.subjects:
            raise OptionError(
                f"subjectFilter {each} matches no subject and no message of stream {origin.stream}",
                option="subjectFilter",
                cure=f"correct it: the stream has {', '.join(origin.subjects)}",
            )
        _logger.warning("nothing_of_filter", stream=origin.stream, filter=each)


def sequence_at(stream: jetsync.Stream, milliseconds: int) -> int | None:
    """
    Return the sequence of the first message that was stored at or after a time since 1970.
    """
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(
        milliseconds=milliseconds
    )
    try:
        # Ask the leader, because a replica may lag.
        return stream.get_at(moment, direct=False).sequence
    except jetsync.MessageNotFoundError:
        return None


def matching(js: jetsync.JetStream, origin: Origin, start: int, filters: tuple[str, ...]) -> int:
    """
    Estimate how many messages from a sequence on match some filters. It may be too high.
    """
    found = 0
    stream = js.stream(origin.stream)
    for each in filters:
        batch = stream.get_batch(1, sequence=start, subject=each)
        found += len(list(batch)) + (batch.pending or 0)
    return found


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

    def replaced(self, origin: Origin, created: str) -> None:
        """
        Report that the stream was deleted and created again.

        Raises:
            JetStreamSparkError: The query fails.
        """
        self._noted(
            origin,
            f"the stream was created again: it is from {origin.created}, and the query reads the "
            f"one from {created}",
        )

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

    def _noted(self, origin: Origin, what: str) -> None:
        if self.fails(origin):
            raise JetStreamSparkError(
                what,
                stream=origin.stream,
                cure="set failOnDataLoss to false to continue with the messages that are left",
            )
        _logger.warning("data_loss", stream=origin.stream, what=what)
