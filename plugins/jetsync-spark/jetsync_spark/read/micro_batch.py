"""
The streaming reader: micro-batches of a stream.

One reader plans for as long as a query runs, in a process of its own. Pickled copies of it read in
the workers. An offset is the sequence after the last one of its batch
(:mod:`jetsync_spark.read.offsets`). A batch that is planned again after a failure is the same range
of the stream.

PySpark 4.0 and 4.1 have no admission control, so this reader limits a batch itself, counted from
the end of the last batch. The first batch of a run has no limit, because its start is not yet known
when Spark asks for its end. ``availableNow`` is one batch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.retry import ask_with_retry
from jetsync_spark.read.batch import read_part
from jetsync_spark.read.offsets import Offset, span
from jetsync_spark.read.options import LATEST
from jetsync_spark.read.origin import Loss, Origin, check_filters, inspect_stream, start_of
from jetsync_spark.read.ranges import cut, parts_for
from jetsync_spark.read.tables import STREAM_COLUMNS, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetsync_spark.common.options import ConnectSettings
    from jetsync_spark.read.options import ReadOptions

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # PySpark before 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Placeholder for the class of PySpark 4.2."""


__all__ = ["StreamMicroBatchReader"]

POLL: Final = 0.2
"""
Seconds for which the stream's state is cached. Spark asks about ninety times a second while idle.
"""

CATCHING_UP: Final = 5.0
"""Seconds to wait for a stream that ends before the query's offset, as a new leader may lag."""

CATCH_UP_PAUSE: Final = 0.1
"""Seconds between two checks of such a stream."""

TRIGGER_DELAY: Final = 900.0
"""Seconds after which a batch is planned that has fewer sequences than asked for: 15 minutes."""

_logger = jetsync.get_logger("jetsync.spark.stream_reader")


class StreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Plans and reads micro-batches of a stream.

    It creates nothing on the server, because Spark does not say when a query ends. Spark calls it
    from one thread at a time.
    """

    def __init__(self, settings: ConnectSettings, options: ReadOptions, schema: StructType) -> None:
        options.for_streaming()
        self._settings = settings
        self._options = options
        self._table = Table(schema, STREAM_COLUMNS)
        self._loss = Loss(options)
        self._initial: Offset | None = None
        self._reached: Offset | None = None
        """The end of the last planned batch, as PySpark before 4.2 does not pass the next start."""

        self._target: int | None = None
        """The sequence after the last one to read, if the query has a fixed end."""

        self._seen: Origin | None = None
        self._seen_at = 0.0
        self._behind_since: float | None = None
        self._planned_at: float | None = None
        """When the last batch was planned."""

        self._searched = ("", 0)
        """
        When the stream was created, and a sequence. No message between the last batch and this
        sequence matches a filter.
        """

    # Planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the names are Spark's.
        """
        Return the start of the query. Repeated calls return the same offset.
        """
        if self._initial is None:
            self._initial = self._ask(self._first)
            _logger.info("query_begins", stream=self._initial.stream, sequence=self._initial.next)
        return self._initial.to_json()

    def latestOffset(  # noqa: N802 - as above.
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """
        Return the end of the next batch, or *start* if there are no new messages.

        Args:
            start: The start of the batch. None before PySpark 4.2.
            limit: The limit of the batch. None before PySpark 4.2.
        """
        stream = self._options.source
        if start is not None:
            begin: Offset | None = Offset.from_json(start, stream)
        else:
            begin = self._reached or self._initial
        origin = self._now()
        if self._target is not None and begin is not None:
            origin = self._caught_up(begin, origin)
        if begin is None:
            # PySpark 4.0 and 4.1 do not say whether this is a new query or a restart.
            return Offset(stream, origin.created, origin.next, self._guess(), True).to_json()
        begins = self._begin_of_next(begin, origin)
        end = origin.next if self._target is None else min(origin.next, self._target)
        first: int | None = begins
        if begins == begin.next and origin.created == begin.created:
            early = self._is_too_early(end - begins)
            first = None if early else self._first_match(origin.created, begins, end)
        else:
            # A stream that lost messages may use their sequences again.
            self._searched = ("", 0)
        if first is None:
            return begin.to_json() if start is None else start
        most = self._most(limit, told=start is not None)
        if most is not None:
            end = min(end, first + most)
        self._planned_at = time.monotonic()
        return Offset(stream, origin.created, max(begins, end), begins).to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - as above.
        """
        Return the limit of a batch if the trigger has none.
        """
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as above.
        """
        Fix the end of the query at the current end of the stream.
        """
        self._target = self._now(fresh=True).next

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - as above.
        """
        Return the last known end of the stream for the query's progress, without a request.
        """
        seen = self._seen
        if seen is None:
            return None
        return Offset(seen.stream, seen.created, seen.next, seen.first).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """
        Return the parts of a batch. They stay the same if the batch is planned again.
        """
        options = self._options
        first = Offset.from_json(start, options.source)
        last = Offset.from_json(end, options.source)
        if last.guessed and not first.initial and first.created != last.created:
            self._loss.replaced(self._now(), first.created)
        what = span(first, last)
        self._reached = last
        length = what.end - what.start
        parts = parts_for(
            length, least=options.min_partitions, most_each=options.max_records_per_partition
        )
        ranges = cut(options.source, what.created, what.start, what.end, parts)
        return [InputPartition(each) for each in ranges]

    def commit(self, end: dict[str, Any]) -> None:
        """
        Do nothing, because the checkpoint holds the offset.
        """

    def stop(self) -> None:
        """
        Do nothing, because nothing outlives the process.
        """

    # Reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of one part.
        """
        return read_part(self._settings, self._options, self._table, partition.value)

    def _first(self, js: jetsync.JetStream) -> Offset:
        options = self._options
        origin = inspect_stream(js, options.source)
        check_filters(js, origin, options.subject_filter)
        place = start_of(options, js, origin, default=LATEST)
        if place < origin.first:
            self._loss.gone(origin, place, origin.first)
            place = origin.first
        return Offset(origin.stream, origin.created, place)

    def _guess(self) -> int:
        """Return the start of the next batch if it is the first batch of the query."""
        try:
            return Offset.from_json(self.initialOffset(), self._options.source).next
        except JetStreamSparkError:
            # If this is the first batch, Spark calls initialOffset and gets the error.
            return 1

    def _begin_of_next(self, begin: Offset, origin: Origin) -> int:
        """
        Return where the next batch begins. It moves only if messages were lost.

        Raises:
            JetStreamSparkError: Messages were lost and failOnDataLoss applies.
        """
        if origin.created != begin.created:
            self._loss.replaced(origin, begin.created)
            return origin.first
        if origin.next < begin.next:
            now = time.monotonic()
            if self._behind_since is None:
                self._behind_since = now
            if self._target is None and now - self._behind_since < CATCHING_UP:
                return begin.next
            self._loss.behind(origin, begin.next)
            return origin.next
        self._behind_since = None
        if origin.first > begin.next:
            self._loss.gone(origin, begin.next, origin.first)
            return origin.first
        return begin.next

    def _is_too_early(self, sequences: int) -> bool:
        """Return whether a batch has to wait for more messages. The first one never does."""
        options = self._options
        least = options.min_offsets_per_trigger
        if least is None or sequences >= least or self._target is not None:
            return False
        delay = TRIGGER_DELAY if options.max_trigger_delay is None else options.max_trigger_delay
        return self._planned_at is not None and time.monotonic() < self._planned_at + delay

    def _first_match(self, created: str, begins: int, end: int) -> int | None:
        """
        Return the sequence of the first message of a span that matches a filter, or None.

        A span without such a message is not a batch. It becomes part of the next one.
        """
        filters = self._options.subject_filter
        if not filters or end <= begins:
            return begins if end > begins else None
        start = max(begins, self._searched[1]) if self._searched[0] == created else begins

        def look(js: jetsync.JetStream) -> list[int]:
            stream = js.stream(self._options.source)
            found = []
            for each in filters:
                try:
                    found.append(stream.get_next(each, start, direct=False).sequence)
                except jetsync.MessageNotFoundError:
                    continue
                except jetsync.PermissionDeniedError:
                    # Without permission to ask the leader, any message may match.
                    return [start]
            return found

        found = self._ask(look) if start < end else []
        first: int = min(found, default=end)
        self._searched = (created, first)
        return first if first < end else None

    def _caught_up(self, begin: Offset, origin: Origin) -> Origin:
        """Wait for a stream that lags, because a run to a fixed end checks only once."""
        end = time.monotonic() + CATCHING_UP
        while origin.created == begin.created and origin.next < begin.next:
            if time.monotonic() >= end:
                break
            time.sleep(CATCH_UP_PAUSE)
            origin = self._now(fresh=True)
        return origin

    def _most(self, limit: object, *, told: bool) -> int | None:
        """Return the maximum sequences of the next batch, or None for no limit."""
        if not told:
            return self._options.max_offsets_per_trigger
        return getattr(limit, "max_rows", None)

    def _now(self, *, fresh: bool = False) -> Origin:
        """Return the stream's state, which may be up to POLL seconds old."""
        now = time.monotonic()
        if self._seen is None or fresh or now >= self._seen_at + POLL:
            self._seen = self._ask(lambda js: inspect_stream(js, self._options.source))
            self._seen_at = time.monotonic()
        return self._seen

    def _ask(self, call: Callable[[jetsync.JetStream], Any]) -> Any:
        stream = self._options.source
        return ask_with_retry(
            self._settings,
            f"jetsync-spark-plan-{stream}",
            call,
            self._options.retry_timeout,
            "planning to read failed",
            stream,
        )
