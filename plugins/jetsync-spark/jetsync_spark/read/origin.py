"""
A stream as something to read from: whether it can be, from where to where, and whether it is whole.

What is asked here is answered by the stream's leader.
"""

from __future__ import annotations

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
    "look",
    "matching",
    "place_of",
    "time_of",
]

_logger = jetsync.get_logger("jetsync.spark.reading")


@attrs.frozen
class Origin:
    """
    A stream at one moment.
    """

    stream: str
    """Its name."""

    created: str
    """When it was made."""

    first: int
    """The first sequence that it has; that behind the last one if it is empty."""

    next: int
    """The sequence behind the last one."""

    drops_old: bool
    """Whether it drops old messages of a subject when new ones come."""

    subjects: tuple[str, ...] = ()
    """What it takes; nothing where its messages may have others: copied ones, or transformed."""


def look(js: jetsync.JetStream, name: str) -> Origin:
    """
    Ask for a stream and return what there is to read.

    Raises:
        JetStreamSparkError: it can not be read by sequences.
        JetSyncError: it is not there, or nobody answers.
    """
    info = js.stream(name).cached_info
    config = info.config
    policy = config.retention
    if policy is not None and policy.value != "limits":
        raise JetStreamSparkError(
            f"a stream of retention {policy.value} is not read by sequences: it drops messages "
            "when its consumers have them, and this reader is none",
            stream=name,
            cure="read a stream of retention limits, such as one that has this one as its source",
        )
    state = info.state
    if state.last_seq >= LARGEST:
        raise JetStreamSparkError(
            f"the last sequence is {state.last_seq}, which Spark's long does not hold",
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


def place_of(options: ReadOptions, js: jetsync.JetStream, origin: Origin, *, default: str) -> int:
    """
    Return the sequence at which to begin.

    Args:
        options: What is asked for.
        js: Where to ask for a time.
        origin: The stream.
        default: Where to begin if nothing is asked for.

    Raises:
        OptionError: there is no such place.
    """
    if options.starting_timestamp is not None:
        found = time_of(js, origin, options.starting_timestamp)
        if found is None and options.timestamp_strategy == "error":
            raise OptionError(
                f"stream {origin.stream} has nothing from startingTimestamp "
                f"{options.starting_timestamp} on",
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
            cure="give a sequence that it has, or earliest",
        )
    return int(asked)


def check_filters(js: jetsync.JetStream, origin: Origin, filters: tuple[str, ...]) -> None:
    """
    Refuse filters of subjects that the stream neither takes nor has.

    Raises:
        OptionError: nothing would ever be read.
    """
    for each in filters:
        if any(overlap(each, subject) for subject in origin.subjects):
            continue
        if js.stream(origin.stream).info(subjects_filter=each).state.subjects:
            # From when its subjects were others.
            continue
        if origin.subjects:
            raise OptionError(
                f"stream {origin.stream} takes no subjects of subjectFilter {each}, and has none",
                option="subjectFilter",
                cure=f"correct it: the stream has {', '.join(origin.subjects)}",
            )
        _logger.warning("nothing_of_filter", stream=origin.stream, filter=each)


def time_of(js: jetsync.JetStream, origin: Origin, milliseconds: int) -> int | None:
    """
    Return the sequence of the first message that was stored at a time or after it.
    """
    try:
        # Of the leader: a replica may not have it yet.
        found = js.stream(origin.stream).get_at(milliseconds * 1_000_000, direct=False)
    except jetsync.MessageNotFoundError:
        return None
    return found.sequence


def matching(js: jetsync.JetStream, origin: Origin, start: int, filters: tuple[str, ...]) -> int:
    """
    Return about how many messages from a sequence on are of some subjects; more at most.
    """
    found = 0
    stream = js.stream(origin.stream)
    for each in filters:
        batch = stream.get_batch(1, sequence=start, subject=each)
        found += len(list(batch)) + (batch.pending or 0)
    return found


class Loss:
    """
    What to do about messages that a query was to read and that are gone.

    Args:
        options: Say whether that is a failure.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._wanted = options.fail_on_data_loss

    def fails(self, origin: Origin) -> bool:
        """
        Return whether a query of this stream is to end.
        """
        return not origin.drops_old if self._wanted is None else self._wanted

    def gone(self, origin: Origin, start: int, end: int) -> None:
        """
        Note that the sequences from *start* to before *end* were removed before they were read.

        Raises:
            JetStreamSparkError: that is a failure.
        """
        self._noted(
            origin,
            f"messages were removed before they were read: sequences {start} to {end - 1} are "
            f"wanted, and the stream begins at {origin.first}",
        )

    def replaced(self, origin: Origin, created: str) -> None:
        """
        Note that the stream is not the one that was planned to be read.

        Raises:
            JetStreamSparkError: that is a failure.
        """
        self._noted(
            origin,
            f"the stream was made again: it is from {origin.created}, and the one to be read from "
            f"{created}",
        )

    def behind(self, origin: Origin, wanted: int) -> None:
        """
        Note that the stream ends before a place that the query has come to.

        Raises:
            JetStreamSparkError: that is a failure.
        """
        self._noted(
            origin,
            f"the stream went back: the query has come to sequence {wanted - 1}, and the stream "
            f"ends at {origin.next - 1}",
        )

    def _noted(self, origin: Origin, what: str) -> None:
        if self.fails(origin):
            raise JetStreamSparkError(
                what,
                stream=origin.stream,
                cure="set failOnDataLoss to false to go on with what there is",
            )
        _logger.warning("data_loss", stream=origin.stream, what=what)
