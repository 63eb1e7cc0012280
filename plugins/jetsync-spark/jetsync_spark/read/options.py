"""
Options of readers: the streams or the bucket, the range, and the number of parts.

Options that Kafka's source also has keep its names and meanings. Ends are exclusive.
:meth:`ReadOptions.for_batch` and :meth:`ReadOptions.for_streaming` reject options that only the
other one accepts.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Final, Literal, TypeAlias

import attrs

from jetsync_spark.common.dead_letters import FAIL, check_policy, policy
from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.options import (
    choice,
    count,
    duration,
    flag,
    given_options,
    milliseconds,
    names,
    option,
    size,
    text,
)
from jetsync_spark.common.subjects import bad_filter
from jetsync_spark.read.times import moment

__all__ = [
    "CONTINUE",
    "EARLIEST",
    "FAIL",
    "LARGEST",
    "LATEST",
    "NEWER",
    "RESTART",
    "Offset",
    "Offsets",
    "ReadOptions",
    "matches",
]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

CONTINUE: Final = "continue"
NEWER: Final = "newer"
RESTART: Final = "restart"

LARGEST: Final = (1 << 63) - 1
"""The largest value of Spark's long."""

Offset: TypeAlias = int | Literal["earliest", "latest"]

Offsets: TypeAlias = Offset | tuple[tuple[str, Offset], ...]
"""One offset for all streams, or pairs of a stream and its offset."""


def _offset(given: object) -> Offset:
    """Convert earliest, latest or {"seq": 5}."""
    if isinstance(given, str) and given.strip().lower() in {EARLIEST, LATEST}:
        return given.strip().lower()  # type: ignore[return-value]
    sequence = given["seq"] if isinstance(given, dict) and set(given) == {"seq"} else None
    if type(sequence) is not int or not 1 <= sequence <= LARGEST:
        raise ValueError(given)
    return sequence


def _offsets(name: str, value: str) -> Offsets:
    """Parse an offset for all streams, or an object with one for each."""
    try:
        given = value if value.strip().lower() in {EARLIEST, LATEST} else json.loads(value)
        if not isinstance(given, dict) or (set(given) == {"seq"} and type(given["seq"]) is int):
            return _offset(given)
        if not given:
            raise ValueError(given)
        return tuple((stream, _offset(each)) for stream, each in sorted(given.items()))
    except (ValueError, TypeError):
        raise OptionError(
            f"option {name} is {value!r}",
            option=name,
            cure='give earliest, latest or a sequence from 1 up, such as {"seq": 5}, or one of '
            'these for each stream, such as {"ORDERS": {"seq": 5}, "PAYMENTS": "earliest"}',
        ) from None


def _streams(name: str, value: str) -> tuple[str, ...]:
    """Parse names and patterns of streams."""
    found = tuple(dict.fromkeys(names(name, value)))
    for each in found:
        if "*" in each and re.search(r"[\s.>/\\]", each):
            raise OptionError(
                f"option {name}: the pattern {each!r} matches no stream",
                option=name,
                cure="give a pattern such as ORDERS_*. Names of streams have no dots and no spaces",
            )
    return found


def _moved(name: str, value: str) -> tuple[tuple[str, str], ...]:
    """Parse an object with the new name of each moved stream."""
    try:
        given = json.loads(value)
        pairs = tuple(sorted(given.items()))
        if not pairs or not all(new and isinstance(new, str) for _, new in pairs):
            raise ValueError(given)
    except (AttributeError, ValueError):
        raise OptionError(
            f"option {name} is {value!r}",
            option=name,
            cure="give a JSON object, with the name in the checkpoint and the present name of each "
            'moved stream, such as {"ORDERS": "ORDERS_2"}',
        ) from None
    return pairs


def _consumer(name: str, value: str) -> str:
    """Parse the name of a consumer."""
    found = text(name, value)
    if re.search(r"[\s.*>/\\]", found):
        raise OptionError(
            f"option {name}: {found!r} is not the name of a consumer",
            option=name,
            cure="give a name without dots, spaces, wildcards and slashes",
        )
    return found


_POSITIONS: Final = ("starting_offsets", "ending_offsets", "starting_timestamp", "ending_timestamp")

_TRIGGERS: Final = (
    *("max_offsets_per_trigger", "max_bytes_per_trigger"),
    *("min_offsets_per_trigger", "max_trigger_delay"),
)

_MOVES: Final = ("moved_streams", "on_replaced_stream")

_NOT_OF_BUCKETS: Final = (
    *("subject_filter", "include_headers", "include_ledger", "timestamp_nanos"),
    *("consumer", "create_consumer", "ack_wait", "on_invalid_message", "dead_letter_subject"),
    *_POSITIONS,
    *_TRIGGERS,
    *_MOVES,
    *("min_partitions", "max_records_per_partition", "max_bytes_per_partition"),
    "fail_on_data_loss",
)


@attrs.frozen(kw_only=True)
class ReadOptions:
    """
    The streams or the bucket to read, and the range.
    """

    streams: tuple[str, ...] = option("stream", _streams, ())
    """Names of streams. In a name, ``*`` stands for any number of characters."""

    subject_filter: tuple[str, ...] = option("subjectFilter", names, ())
    """Read only messages that match these filters. Empty for all."""

    starting_offsets: Offsets | None = option("startingOffsets", _offsets)  # noqa: RUF009 - as the others
    """The start. None means earliest for batches and latest for streaming."""

    ending_offsets: Offsets | None = option("endingOffsets", _offsets)  # noqa: RUF009 - as the others
    """The end of a batch, exclusive. None means latest."""

    starting_timestamp: dt.datetime | None = option("startingTimestamp", moment)  # noqa: RUF009 - as the others
    """The time of the start, inclusive. It takes precedence over the offset."""

    ending_timestamp: dt.datetime | None = option("endingTimestamp", moment)  # noqa: RUF009 - as the others
    """The time of the end, exclusive. It takes precedence over the offset."""

    timestamp_strategy: str = option(
        "startingOffsetsByTimestampStrategy", choice("error", LATEST), "error"
    )
    """What to do if no message was stored since the starting time."""

    max_offsets_per_trigger: int | None = option("maxOffsetsPerTrigger", count())
    """Maximum sequences per micro-batch."""

    min_offsets_per_trigger: int | None = option("minOffsetsPerTrigger", count())
    """Minimum sequences per micro-batch. The query waits for them."""

    max_trigger_delay: float | None = option("maxTriggerDelay", duration)
    """Seconds after which a smaller micro-batch is read. None means 15 minutes."""

    max_bytes_per_trigger: int | None = option("maxBytesPerTrigger", size)
    """
    Maximum bytes per micro-batch, as estimated from what servers report. None means 128 MiB per
    core, or no limit if :attr:`max_offsets_per_trigger` is given.
    """

    consumer: str | None = option("consumer", _consumer)
    """
    Name of a durable consumer. A streaming query reads through it and acknowledges the messages.
    """

    create_consumer: bool | None = option("createConsumer", flag)
    """Whether a new query creates the consumer if it does not exist. None means yes."""

    ack_wait: float | None = option("ackWait", duration)
    """
    Seconds until the server redelivers a message that is not acknowledged. None means one minute
    for a new consumer, and what the consumer has if it exists.
    """

    min_partitions: int | None = option("minPartitions", count())
    """Minimum partitions, if there are as many sequences."""

    max_records_per_partition: int | None = option("maxRecordsPerPartition", count())
    """Maximum sequences per partition."""

    max_bytes_per_partition: int | None = option("maxBytesPerPartition", size)
    """Maximum bytes per partition. None means 128 MiB for streaming, and no limit for batches."""

    fail_on_data_loss: bool | None = option("failOnDataLoss", flag)
    """
    Whether a query fails if messages were removed before it read them. None means yes, unless the
    stream limits the messages per subject and therefore regularly removes old ones.
    """

    on_replaced_stream: str = option(
        "onReplacedStream", choice(FAIL, NEWER, CONTINUE, RESTART), FAIL
    )
    """
    What a streaming query does if a stream was created again or restored, and its sequences do not
    provably continue: ``fail``, continue at the first message that is ``newer`` than those it saw,
    ``continue`` at the position, or ``restart`` at the first message.
    """

    moved_streams: tuple[tuple[str, str], ...] = option("movedStreams", _moved, ())
    """Names of streams in the checkpoint, and the names of the streams that continue them."""

    include_headers: bool = option("includeHeaders", flag, default=False)
    """Whether to add a column ``headers``."""

    include_ledger: bool = option("includeLedger", flag, default=False)
    """Whether to include the ledger messages of mode ``exactlyonce``."""

    timestamp_nanos: bool = option("timestampNanos", flag, default=False)
    """Whether to add a column ``timestamp_ns`` (long), as Spark timestamps have microseconds."""

    fetch_batch: int = option("fetchBatch", count(1, 10_000), 10_000)
    """Maximum messages per request and rows per Arrow batch."""

    fetch_max_bytes: int = option("fetchMaxBytes", count(1, 32 << 20), 8 << 20)
    """Bytes per request. The message that exceeds the limit is included."""

    retry_timeout: float = option("retryTimeoutMs", milliseconds, 30.0)
    """Seconds for which a reader retries while servers or leaders are unavailable."""

    on_invalid_message: str = option("onInvalidMessage", policy, FAIL)
    """What happens to a message that cannot be decoded: ``fail``, ``skip`` or ``deadletter``."""

    dead_letter_subject: str | None = option("deadLetterSubject", text)
    """The subject of the dead letters."""

    bucket: str | None = option("bucket", text)
    """Name of a key-value bucket to read instead of a stream."""

    keys: tuple[str, ...] = option("keys", names, ())
    """Read only keys that match these patterns. Empty for all."""

    at_revision: int | None = option("atRevision", count(1, LARGEST))
    """Read the snapshot at this revision, inclusive. None means now."""

    at_timestamp: dt.datetime | None = option("atTimestamp", moment)  # noqa: RUF009 - as the others
    """Read the snapshot before this time. None means now."""

    def __attrs_post_init__(self) -> None:
        if bool(self.streams) == (self.bucket is not None):
            raise OptionError(
                "both stream and bucket are given" if self.streams else "option stream is missing",
                option="stream",
                cure="name the stream to read, or the key-value bucket",
            )
        if self.bucket is not None:
            # These options suggest that the changes are wanted, not the table.
            changes = f"leave it out, or read the changes with stream KV_{self.bucket} instead"
            self._refuse("a bucket", *_POSITIONS, *_TRIGGERS, cure=changes)
            self._refuse("a bucket", *_NOT_OF_BUCKETS)
        else:
            table = "leave it out, or give bucket instead of stream"
            self._refuse("a stream", "keys", "at_revision", "at_timestamp", cure=table)
        self._check_consumer()
        self._check_moves()
        check_policy("onInvalidMessage", self.on_invalid_message, self.dead_letter_subject)
        for name, given in given_options(self, "starting_offsets", "ending_offsets"):
            self._check_streams(name, given)
        for name, what, filters in (
            ("subjectFilter", "subjects", self.subject_filter),
            ("keys", "keys", self.keys),
        ):
            for each in filters:
                bad = bad_filter(each)
                if bad is not None:
                    raise OptionError(
                        f"option {name}: in {each!r} a token {bad}",
                        option=name,
                        cure=f"give {what} and wildcards such as orders.*.new or orders.>, with "
                        "commas between them",
                    )
        # Spark creates these options for load(), before the query starts.
        self._in_order(
            "minOffsetsPerTrigger",
            "maxOffsetsPerTrigger",
            self.min_offsets_per_trigger,
            self.max_offsets_per_trigger,
            "greater than",
        )
        if self.at_revision is not None and self.at_timestamp is not None:
            raise OptionError(
                "both atRevision and atTimestamp are given",
                option="atTimestamp",
                cure="give one of them",
            )

    @property
    def source(self) -> str:
        """
        The names of the streams, or the name of the bucket.
        """
        return self.bucket or ",".join(self.streams)

    @property
    def only_stream(self) -> str | None:
        """
        The stream, if the options name exactly one.
        """
        (first, *more) = self.streams or ("*",)
        return None if more or "*" in first else first

    @property
    def named(self) -> tuple[str, ...]:
        """
        The names of streams that are no patterns.
        """
        return tuple(each for each in self.streams if "*" not in each)

    @property
    def patterns(self) -> tuple[str, ...]:
        """
        The patterns among the names of the streams.
        """
        return tuple(each for each in self.streams if "*" in each)

    def names_stream(self, stream: str) -> bool:
        """
        Return whether the options name a stream, or have a pattern that matches it.
        """
        return any(matches(each, stream) for each in self.streams)

    def start_of(self, stream: str) -> Offset | None:
        """
        Return the offset at which to start a stream, or None if the options do not say.

        Raises:
            OptionError: The options have offsets of other streams only.
        """
        return _one_of("startingOffsets", self.starting_offsets, stream)

    def end_of(self, stream: str) -> Offset | None:
        """
        Return the offset at which to end a stream, or None if the options do not say.

        Raises: as :meth:`start_of`.
        """
        return _one_of("endingOffsets", self.ending_offsets, stream)

    def has_range(self, stream: str) -> bool:
        """
        Return whether the options set a start and an end.
        """
        return (self.starting_timestamp is not None or isinstance(self.start_of(stream), int)) and (
            self.ending_timestamp is not None or isinstance(self.end_of(stream), int)
        )

    def for_batch(self) -> None:
        """
        Raise OptionError if the options are not valid for a batch.
        """
        if self.consumer is not None:
            raise OptionError(
                "a batch read cannot acknowledge messages, because Spark may repeat it at any time",
                option="consumer",
                cure="use spark.readStream with trigger(availableNow=True), which reads what is "
                "there, acknowledges it and ends",
            )
        self._refuse("a batch", *_TRIGGERS, *_MOVES)
        if LATEST in _all(self.starting_offsets) and self.starting_timestamp is None:
            raise OptionError(
                "a batch from startingOffsets latest is empty",
                option="startingOffsets",
                cure='give earliest or a sequence such as {"seq": 5}',
            )
        if EARLIEST in _all(self.ending_offsets) and self.ending_timestamp is None:
            raise OptionError(
                "a batch up to endingOffsets earliest is empty",
                option="endingOffsets",
                cure='give latest or a sequence such as {"seq": 5}',
            )
        times = (self.starting_timestamp, self.ending_timestamp)
        places = (self.starting_offsets, self.ending_offsets)
        if times == (None, None):
            for stream in _streams_of(places[0]) or _streams_of(places[1]) or [""]:
                start, end = (
                    dict(each).get(stream) if isinstance(each, tuple) else each for each in places
                )
                self._in_order("startingOffsets", "endingOffsets", start, end)
        else:
            self._in_order("startingTimestamp", "endingTimestamp", *times)

    def for_streaming(self) -> None:
        """
        Raise OptionError if the options are not valid for a streaming query.
        """
        if self.bucket is not None:
            raise OptionError(
                "a bucket can only be read as a table",
                option="bucket",
                cure=f"use spark.read, or readStream with stream KV_{self.bucket}",
            )
        self._refuse("streaming", "ending_offsets", "ending_timestamp")
        if self.max_trigger_delay is not None and self.min_offsets_per_trigger is None:
            raise OptionError(
                "maxTriggerDelay applies only with minOffsetsPerTrigger",
                option="maxTriggerDelay",
                cure="give minOffsetsPerTrigger too, or leave it out",
            )

    def _check_consumer(self) -> None:
        """Reject options that have no meaning with a consumer, or without one."""
        if self.consumer is None:
            for name, _ in given_options(self, "create_consumer", "ack_wait"):
                raise OptionError(
                    f"option {name} applies only with consumer",
                    option=name,
                    cure="name the consumer, or leave it out",
                )
            return
        if self.only_stream is None:
            raise OptionError(
                f"option consumer needs one stream, and stream is {self.source or 'missing'}",
                option="consumer",
                cure="name the stream of the consumer, and use a query for each stream",
            )
        self._refuse(
            "a query with a consumer, because the server knows what the consumer has delivered",
            *_POSITIONS,
        )
        self._refuse("a query with a consumer", "min_offsets_per_trigger", "max_trigger_delay")
        self._refuse("a query with a consumer, whose position the server knows", *_MOVES)
        self._refuse(
            "a query with a consumer, which does not know the sizes of messages",
            "max_bytes_per_trigger",
            "max_bytes_per_partition",
        )
        if self.ack_wait is not None and self.ack_wait < 1:
            raise OptionError(
                f"ackWait is {self.ack_wait} s",
                option="ackWait",
                cure="give at least 1s, because the query restarts this wait while a batch runs",
            )

    def _check_moves(self) -> None:
        """Reject moves to streams that are not read, and of two streams to one."""
        names = [new for _, new in self.moved_streams]
        for old, new in self.moved_streams:
            if old == new or names.count(new) > 1 or "*" in new or not self.names_stream(new):
                raise OptionError(
                    f"option movedStreams moves {old} to {new}, which is "
                    + (
                        "the same name"
                        if old == new
                        else "a pattern"
                        if "*" in new
                        else "not read"
                        if not self.names_stream(new)
                        else "the new name of several streams"
                    ),
                    option="movedStreams",
                    cure="give the name in the checkpoint first and then a name of option stream; "
                    "a stream that keeps its name, also on another cluster, needs no move",
                )

    def _check_streams(self, name: str, given: Offsets) -> None:
        """Reject offsets that do not belong to the streams."""
        if given in {EARLIEST, LATEST}:
            return
        example = f'{{"{next(iter(self.streams), "ORDERS")}": {{"seq": 5}}}}'.replace("*", "1")
        if isinstance(given, int):
            if self.only_stream is None:
                raise OptionError(
                    f"option {name} has one sequence for several streams",
                    option=name,
                    cure=f"give one for each stream, such as {example}, or a time",
                )
            return
        for stream in _streams_of(given):
            if not self.names_stream(stream):
                raise OptionError(
                    f"option {name} has an offset for stream {stream}, which is not read",
                    option=name,
                    cure="correct the name, or add it to option stream",
                )
        for stream in self.streams:
            if "*" not in stream and stream not in _streams_of(given):
                raise OptionError(
                    f"option {name} has no offset for stream {stream}",
                    option=name,
                    cure="give one for each stream",
                )

    @staticmethod
    def _in_order(
        start: str, end: str, first: object, last: object, relation: str = "after"
    ) -> None:
        if (isinstance(first, int) and isinstance(last, int) and first > last) or (
            isinstance(first, dt.datetime) and isinstance(last, dt.datetime) and first > last
        ):
            raise OptionError(
                f"{start} {first} is {relation} {end} {last}",
                option=start,
                cure="exchange them, or leave one of them out",
            )

    def _refuse(self, what: str, *fields: str, cure: str = "leave it out") -> None:
        """Reject options that do not apply."""
        for name, _ in given_options(self, *fields):
            raise OptionError(f"option {name} does not apply to {what}", option=name, cure=cure)


def matches(pattern: str, stream: str) -> bool:
    """
    Return whether a stream has a name, or a name that matches a pattern.
    """
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), stream) is not None


def _streams_of(given: Offsets | None) -> list[str]:
    return [stream for stream, _ in given] if isinstance(given, tuple) else []


def _all(given: Offsets | None) -> list[Offset | None]:
    return [each for _, each in given] if isinstance(given, tuple) else [given]


def _one_of(name: str, given: Offsets | None, stream: str) -> Offset | None:
    if not isinstance(given, tuple):
        return given
    if stream not in _streams_of(given):
        raise OptionError(
            f"option {name} has no offset for stream {stream}, which the pattern matches",
            option=name,
            cure="give one for each stream",
        )
    return dict(given)[stream]
