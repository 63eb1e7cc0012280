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
from jetsync_spark.common.clients import lend
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.retry import patiently
from jetsync_spark.read.batch import read_part
from jetsync_spark.read.offsets import Offset, span
from jetsync_spark.read.options import LATEST
from jetsync_spark.read.origin import Loss, Origin, check_filters, look, place_of
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
        """What stands in for Spark's class of that name."""


__all__ = ["StreamMicroBatchReader"]

POLL: Final = 0.2
"""
Seconds for which an answer about the stream serves. Spark asks some ninety times a second while
there is nothing to do.
"""

CATCHING_UP: Final = 5.0
"""Seconds that a stream may end before where a query has come to: a new leader may be behind."""

LOOKING: Final = 0.1
"""Seconds between two looks at such a stream, where Spark does not ask again."""

_logger = jetsync.get_logger("jetsync.spark.stream_reader")


class StreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Plans and reads micro-batches of a stream.

    It leaves nothing on the server. Spark calls it from one thread at a time, and does not say when
    a query ends.
    """

    def __init__(self, settings: ConnectSettings, options: ReadOptions, schema: StructType) -> None:
        options.for_streaming()
        self._settings = settings
        self._options = options
        self._table = Table(schema, STREAM_COLUMNS)
        self._loss = Loss(options)
        self._initial: Offset | None = None
        self._reached: Offset | None = None
        """Where the last planned batch ends, for Sparks that do not say where the next begins."""

        self._target: int | None = None
        """The sequence behind the last one that is read, if the query is to end there."""

        self._seen: Origin | None = None
        self._seen_at = 0.0
        self._behind_since: float | None = None

    # Planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the names are Spark's.
        """
        Return where the query begins; the same however often it is asked for.
        """
        if self._initial is None:
            self._initial = self._patiently(self._first)
            _logger.info("query_begins", stream=self._initial.stream, sequence=self._initial.next)
        return self._initial.to_json()

    def latestOffset(  # noqa: N802 - as above.
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """
        Return where the next batch ends: *start* itself if there is nothing new.

        Args:
            start: Where it begins; None before PySpark 4.2.
            limit: What the query may take; None before PySpark 4.2.
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
            # PySpark 4.0 or 4.1: is this a new query or a restart? Only Spark knows.
            return Offset(stream, origin.created, origin.next, self._guess(), True).to_json()
        begins = self._begin_of_next(begin, origin)
        end = origin.next if self._target is None else min(origin.next, self._target)
        most = self._most(limit, told=start is not None)
        if most is not None:
            end = min(end, begins + most)
        if begins == begin.next and end <= begins and origin.created == begin.created:
            return begin.to_json() if start is None else start
        return Offset(stream, origin.created, max(begins, end), begins).to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - as above.
        """
        Return what a batch takes unless the trigger says otherwise.
        """
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as above.
        """
        Fix where the query ends: at what the stream has now.
        """
        self._target = self._now(fresh=True).next

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - as above.
        """
        Return how far the stream has come, for the progress of the query; asks nothing.
        """
        seen = self._seen
        if seen is None:
            return None
        return Offset(seen.stream, seen.created, seen.next, seen.first).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """
        Return the parts of a batch, which are the same when it is planned again.
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
        Do nothing: the checkpoint knows where the query is.
        """

    def stop(self) -> None:
        """
        Do nothing: there is nothing that outlives the process.
        """

    # Reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of one part.
        """
        return read_part(self._settings, self._options, self._table, partition.value)

    def _first(self, js: jetsync.JetStream) -> Offset:
        options = self._options
        origin = look(js, options.source)
        check_filters(js, origin, options.subject_filter)
        place = place_of(options, js, origin, default=LATEST)
        if place < origin.first:
            self._loss.gone(origin, place, origin.first)
            place = origin.first
        return Offset(origin.stream, origin.created, place)

    def _guess(self) -> int:
        """Return where the next batch begins if it is the first one of all."""
        try:
            return Offset.from_json(self.initialOffset(), self._options.source).next
        except JetStreamSparkError:
            # If it is the first one, Spark asks for this itself, and gets the error.
            return 1

    def _begin_of_next(self, begin: Offset, origin: Origin) -> int:
        """
        Return where to go on, which is elsewhere only if messages were lost.

        Raises:
            JetStreamSparkError: they were, and that is a failure.
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

    def _caught_up(self, begin: Offset, origin: Origin) -> Origin:
        """Wait for a stream that is behind: a run to a fixed end does not come back to look."""
        end = time.monotonic() + CATCHING_UP
        while origin.created == begin.created and origin.next < begin.next:
            if time.monotonic() >= end:
                break
            time.sleep(LOOKING)
            origin = self._now(fresh=True)
        return origin

    def _most(self, limit: object, *, told: bool) -> int | None:
        """Return how many sequences the next batch may have; None for any number."""
        if not told:
            return self._options.max_offsets_per_trigger
        return getattr(limit, "max_rows", None)

    def _now(self, *, fresh: bool = False) -> Origin:
        """Return the stream as it is, or was a moment ago."""
        now = time.monotonic()
        if self._seen is None or fresh or now >= self._seen_at + POLL:
            self._seen = self._patiently(lambda js: look(js, self._options.source))
            self._seen_at = time.monotonic()
        return self._seen

    def _patiently(self, call: Callable[[jetsync.JetStream], Any]) -> Any:
        stream = self._options.source

        def connected() -> Any:
            with lend(self._settings, f"jetsync-spark-plan-{stream}") as client:
                return call(client.jetstream())

        return patiently(connected, self._options.retry_timeout, "planning to read failed", stream)
