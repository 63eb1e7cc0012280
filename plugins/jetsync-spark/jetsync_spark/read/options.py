"""
What a reader is told: of which stream or bucket, from where to where, in how many parts.

Names and meanings are Kafka's where there is such an option. Ends are exclusive. What is asked for
is checked as far as it can be without a server: :meth:`ReadOptions.for_batch` and
:meth:`ReadOptions.for_streaming` refuse what only the other one takes.
"""

from __future__ import annotations

import json
from typing import Final, Literal, TypeAlias

import attrs

from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.options import choice, count, flag, milliseconds, names, option, text
from jetsync_spark.common.subjects import bad_filter

__all__ = ["EARLIEST", "LARGEST", "LATEST", "Offset", "ReadOptions"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

LARGEST: Final = (1 << 63) - 1
"""What Spark's long holds."""

Offset: TypeAlias = int | Literal["earliest", "latest"]


def _offset(name: str, value: str) -> Offset:
    """Read earliest, latest or a sequence such as {"seq": 5}."""
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
"""Milliseconds since 1970; a server counts nanoseconds."""


@attrs.frozen(kw_only=True)
class ReadOptions:
    """
    What to read of which stream or bucket.
    """

    stream: str | None = option("stream", text)
    """Name of the stream."""

    subject_filter: tuple[str, ...] = option("subjectFilter", names, ())
    """Only messages of these subjects and wildcards; empty for all."""

    starting_offsets: Offset | None = option("startingOffsets", _offset)  # noqa: RUF009 - as the others
    """Where to begin: None is the earliest for batches and the latest for streaming."""

    ending_offsets: Offset | None = option("endingOffsets", _offset)  # noqa: RUF009 - as the others
    """Where a batch ends, exclusive; None is the latest."""

    starting_timestamp: int | None = option("startingTimestamp", _time)
    """When to begin, in milliseconds since 1970, inclusive; goes before the offset."""

    ending_timestamp: int | None = option("endingTimestamp", _time)
    """When a batch ends, in milliseconds since 1970, exclusive; goes before the offset."""

    timestamp_strategy: str = option(
        "startingOffsetsByTimestampStrategy", choice("error", LATEST), "error"
    )
    """What to do when nothing was stored since the starting time."""

    max_offsets_per_trigger: int | None = option("maxOffsetsPerTrigger", count())
    """Sequences in one micro-batch at most."""

    min_partitions: int | None = option("minPartitions", count())
    """How many partitions there are at least, where there are as many sequences."""

    max_records_per_partition: int | None = option("maxRecordsPerPartition", count())
    """Sequences in one partition at most."""

    fail_on_data_loss: bool | None = option("failOnDataLoss", flag)
    """
    Whether a query ends when messages that it was to read are gone; None for yes, unless the stream
    drops old messages of a subject when new ones come, where that is to be expected.
    """

    include_headers: bool = option("includeHeaders", flag, default=False)
    """Whether there is a column ``headers``."""

    include_ledger: bool = option("includeLedger", flag, default=False)
    """Whether there are rows for the messages in which ``exactlyonce`` keeps its ledger."""

    timestamp_nanos: bool = option("timestampNanos", flag, default=False)
    """Whether there is a column ``timestamp_ns``, a long, as timestamps end at microseconds."""

    fetch_batch: int = option("fetchBatch", count(1, 10_000), 2000)
    """Messages of one request, and rows of one Arrow batch, at most."""

    fetch_max_bytes: int = option("fetchMaxBytes", count(1, 32 << 20), 2 << 20)
    """Bytes of one request, which ends behind the message that reaches them."""

    retry_timeout: float = option("retryTimeoutMs", milliseconds, 30.0)
    """Seconds for which a reader goes on trying while servers or leaders are away."""

    bucket: str | None = option("bucket", text)
    """Name of a key-value bucket, in place of a stream."""

    keys: tuple[str, ...] = option("keys", names, ())
    """Only these keys and patterns of a bucket; empty for all."""

    at_revision: int | None = option("atRevision", count(1, LARGEST))
    """The bucket as it was at this revision, that one included; None for now."""

    at_timestamp: int | None = option("atTimestamp", _time)
    """The bucket as it was right before this time, in milliseconds since 1970; None for now."""

    def __attrs_post_init__(self) -> None:
        if (self.stream is None) == (self.bucket is None):
            raise OptionError(
                "option stream is missing" if self.stream is None else "both stream and bucket",
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
        The stream or bucket, for errors and names.
        """
        return self.stream or self.bucket or ""

    @property
    def has_start(self) -> bool:
        """
        Whether it is said at which message to begin.
        """
        return self.starting_timestamp is not None or isinstance(self.starting_offsets, int)

    @property
    def has_end(self) -> bool:
        """
        Whether it is said at which message to end.
        """
        return self.ending_timestamp is not None or isinstance(self.ending_offsets, int)

    def for_batch(self) -> None:
        """
        Raise OptionError unless a batch can be read so.
        """
        self._refuse("a batch", maxOffsetsPerTrigger=self.max_offsets_per_trigger)
        if self.starting_offsets == LATEST and self.starting_timestamp is None:
            raise OptionError(
                "startingOffsets latest leaves a batch nothing to read",
                option="startingOffsets",
                cure='give earliest or a sequence such as {"seq": 5}',
            )
        if self.ending_offsets == EARLIEST and self.ending_timestamp is None:
            raise OptionError(
                "endingOffsets earliest leaves a batch nothing to read",
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
        Raise OptionError unless a streaming query can read so.
        """
        if self.bucket is not None:
            raise OptionError(
                "a bucket is read as a table, not as a stream of rows",
                option="bucket",
                cure=f"use spark.read, or readStream with stream KV_{self.bucket}",
            )
        self._refuse(
            "streaming",
            endingOffsets=self.ending_offsets,
            endingTimestamp=self.ending_timestamp,
        )

    @staticmethod
    def _in_order(start: str, end: str, first: object, last: object) -> None:
        if isinstance(first, int) and isinstance(last, int) and first > last:
            raise OptionError(
                f"{start} {first} comes behind {end} {last}",
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

    def _sizes(self) -> dict[str, object]:
        return {
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            "minPartitions": self.min_partitions,
            "maxRecordsPerPartition": self.max_records_per_partition,
            "failOnDataLoss": self.fail_on_data_loss,
        }

    @staticmethod
    def _refuse(what: str, **given: object) -> None:
        """Refuse options that do not go with what is read; those that are None are not given."""
        for name, value in given.items():
            if value is not None:
                raise OptionError(
                    f"option {name} does not go with {what}", option=name, cure="leave it out"
                )
