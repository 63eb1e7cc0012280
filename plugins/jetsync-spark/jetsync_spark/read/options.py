"""
Options of readers: the stream or bucket, the range, and the number of parts.

Options that Kafka's source also has keep its names and meanings. Ends are exclusive.
:meth:`ReadOptions.for_batch` and :meth:`ReadOptions.for_streaming` reject options that only the
other one accepts.
"""

from __future__ import annotations

import json
from typing import Final, Literal, TypeAlias

import attrs

from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.options import (
    choice,
    count,
    duration,
    flag,
    milliseconds,
    names,
    option,
    text,
)
from jetsync_spark.common.subjects import bad_filter

__all__ = ["EARLIEST", "LARGEST", "LATEST", "Offset", "ReadOptions"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

LARGEST: Final = (1 << 63) - 1
"""The largest value of Spark's long."""

Offset: TypeAlias = int | Literal["earliest", "latest"]


def _offset(name: str, value: str) -> Offset:
    """Parse earliest, latest or a sequence such as {"seq": 5}."""
    low = value.strip().lower()
    if low in {EARLIEST, LATEST}:
        return low  # type: ignore[return-value]
    try:
        given = json.loads(value)
        sequence = given["seq"] if set(given) == {"seq"} else None
    except (ValueError, TypeError, KeyError):
        sequence = None
    if type(sequence) is not int or not 1 <= sequence <= LARGEST:
        raise OptionError(
            f"option {name} is {value!r}",
            option=name,
            cure='give earliest, latest or a sequence from 1 up, such as {"seq": 5}',
        )
    return sequence


_time = count(0, LARGEST // 1_000_000)
"""Milliseconds since 1970. The limit is what a server's nanoseconds can hold."""


@attrs.frozen(kw_only=True)
class ReadOptions:
    """
    The stream or bucket to read, and the range.
    """

    stream: str | None = option("stream", text)
    """Name of the stream."""

    subject_filter: tuple[str, ...] = option("subjectFilter", names, ())
    """Read only messages that match these filters. Empty for all."""

    starting_offsets: Offset | None = option("startingOffsets", _offset)  # noqa: RUF009 - as the others
    """The start. None means earliest for batches and latest for streaming."""

    ending_offsets: Offset | None = option("endingOffsets", _offset)  # noqa: RUF009 - as the others
    """The end of a batch, exclusive. None means latest."""

    starting_timestamp: int | None = option("startingTimestamp", _time)
    """The start in milliseconds since 1970, inclusive. It takes precedence over the offset."""

    ending_timestamp: int | None = option("endingTimestamp", _time)
    """The end in milliseconds since 1970, exclusive. It takes precedence over the offset."""

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

    min_partitions: int | None = option("minPartitions", count())
    """Minimum partitions, if there are as many sequences."""

    max_records_per_partition: int | None = option("maxRecordsPerPartition", count())
    """Maximum sequences per partition."""

    fail_on_data_loss: bool | None = option("failOnDataLoss", flag)
    """
    Whether a query fails if messages were removed before it read them. None means yes, unless the
    stream limits the messages per subject and therefore regularly removes old ones.
    """

    include_headers: bool = option("includeHeaders", flag, default=False)
    """Whether to add a column ``headers``."""

    include_ledger: bool = option("includeLedger", flag, default=False)
    """Whether to include the ledger messages of mode ``exactlyonce``."""

    timestamp_nanos: bool = option("timestampNanos", flag, default=False)
    """Whether to add a column ``timestamp_ns`` (long), as Spark timestamps have microseconds."""

    fetch_batch: int = option("fetchBatch", count(1, 10_000), 2000)
    """Maximum messages per request and rows per Arrow batch."""

    fetch_max_bytes: int = option("fetchMaxBytes", count(1, 32 << 20), 2 << 20)
    """Bytes per request. The message that exceeds the limit is included."""

    retry_timeout: float = option("retryTimeoutMs", milliseconds, 30.0)
    """Seconds for which a reader retries while servers or leaders are unavailable."""

    bucket: str | None = option("bucket", text)
    """Name of a key-value bucket to read instead of a stream."""

    keys: tuple[str, ...] = option("keys", names, ())
    """Read only keys that match these patterns. Empty for all."""

    at_revision: int | None = option("atRevision", count(1, LARGEST))
    """Read the snapshot at this revision, inclusive. None means now."""

    at_timestamp: int | None = option("atTimestamp", _time)
    """Read the snapshot before this time, in milliseconds since 1970. None means now."""

    def __attrs_post_init__(self) -> None:
        if (self.stream is None) == (self.bucket is None):
            raise OptionError(
                "option stream is missing"
                if self.stream is None
                else "both stream and bucket are given",
                option="stream",
                cure="name the stream to read, or the key-value bucket",
            )
        if self.bucket is not None:
            self._refuse(
                "a bucket",
                subjectFilter=self.subject_filter or None,
                includeHeaders=self.include_headers or None,
                includeLedger=self.include_ledger or None,
                timestampNanos=self.timestamp_nanos or None,
                **self._positions(),
                **self._sizes(),
            )
        else:
            self._refuse(
                "a stream",
                keys=self.keys or None,
                atRevision=self.at_revision,
                atTimestamp=self.at_timestamp,
            )
        for each in self.subject_filter:
            bad = bad_filter(each)
            if bad is not None:
                raise OptionError(
                    f"option subjectFilter: in {each!r} a token {bad}",
                    option="subjectFilter",
                    cure="give subjects and wildcards such as orders.*.new or orders.>, with "
                    "commas between them",
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
        The name of the stream or bucket.
        """
        return self.stream or self.bucket or ""

    @property
    def has_start(self) -> bool:
        """
        Whether the options set a start.
        """
        return self.starting_timestamp is not None or isinstance(self.starting_offsets, int)

    @property
    def has_end(self) -> bool:
        """
        Whether the options set an end.
        """
        return self.ending_timestamp is not None or isinstance(self.ending_offsets, int)

    def for_batch(self) -> None:
        """
        Raise OptionError if the options are not valid for a batch.
        """
        self._refuse("a batch", **self._triggers())
        if self.starting_offsets == LATEST and self.starting_timestamp is None:
            raise OptionError(
                "a batch from startingOffsets latest is empty",
                option="startingOffsets",
                cure='give earliest or a sequence such as {"seq": 5}',
            )
        if self.ending_offsets == EARLIEST and self.ending_timestamp is None:
            raise OptionError(
                "a batch up to endingOffsets earliest is empty",
                option="endingOffsets",
                cure='give latest or a sequence such as {"seq": 5}',
            )
        times = (self.starting_timestamp, self.ending_timestamp)
        places = (self.starting_offsets, self.ending_offsets)
        if times == (None, None):
            self._in_order("startingOffsets", "endingOffsets", *places)
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
        self._refuse(
            "streaming",
            endingOffsets=self.ending_offsets,
            endingTimestamp=self.ending_timestamp,
        )
        if self.max_trigger_delay is not None and self.min_offsets_per_trigger is None:
            raise OptionError(
                "maxTriggerDelay applies only with minOffsetsPerTrigger",
                option="maxTriggerDelay",
                cure="give minOffsetsPerTrigger too, or leave it out",
            )
        self._in_order(
            "minOffsetsPerTrigger",
            "maxOffsetsPerTrigger",
            self.min_offsets_per_trigger,
            self.max_offsets_per_trigger,
            "greater than",
        )

    @staticmethod
    def _in_order(
        start: str, end: str, first: object, last: object, relation: str = "after"
    ) -> None:
        if isinstance(first, int) and isinstance(last, int) and first > last:
            raise OptionError(
                f"{start} {first} is {relation} {end} {last}",
                option=start,
                cure="exchange them, or leave one of them out",
            )

    def _positions(self) -> dict[str, object]:
        return {
            "startingOffsets": self.starting_offsets,
            "endingOffsets": self.ending_offsets,
            "startingTimestamp": self.starting_timestamp,
            "endingTimestamp": self.ending_timestamp,
        }

    def _triggers(self) -> dict[str, object]:
        return {
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            "minOffsetsPerTrigger": self.min_offsets_per_trigger,
            "maxTriggerDelay": self.max_trigger_delay,
        }

    def _sizes(self) -> dict[str, object]:
        return {
            **self._triggers(),
            "minPartitions": self.min_partitions,
            "maxRecordsPerPartition": self.max_records_per_partition,
            "failOnDataLoss": self.fail_on_data_loss,
        }

    @staticmethod
    def _refuse(what: str, **given: object) -> None:
        """Reject options that do not apply. None means that an option is not given."""
        for name, value in given.items():
            if value is not None:
                raise OptionError(
                    f"option {name} does not apply to {what}", option=name, cure="leave it out"
                )
