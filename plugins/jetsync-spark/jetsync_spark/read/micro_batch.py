"""
The streaming reader: micro-batches of one stream or several.

One reader plans for as long as a query runs, in a process of its own. Pickled copies of it read in
the workers. An offset holds for each stream the sequence after the last one of its batch
(:mod:`jetsync_spark.read.offsets`). A batch that is planned again after a failure has the same
ranges of the streams, in the same parts.

The planner decides (:mod:`jetsync_spark.read.planner`), and the reader sends its requests.

PySpark 4.0 and 4.1 have no admission control, so this reader limits a batch itself, counted from
the end of the last batch. The first batch of a run has no limit, because its start is not yet known
when Spark asks for its end. ``availableNow`` is one batch.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.retry import ask_with_retry
from jetsync_spark.read.batch import read_ranges
from jetsync_spark.read.idle import IdleQuery
from jetsync_spark.read.moves import Moves
from jetsync_spark.read.options import LATEST
from jetsync_spark.read.origin import (
    check_filters,
    first_after,
    readable_origin_of,
    start_of,
    time_of,
)
from jetsync_spark.read.planner import Planner
from jetsync_spark.read.planning import AGAIN, Limit
from jetsync_spark.read.ranges import default_parts
from jetsync_spark.read.states import StreamStates
from jetsync_spark.read.tables import STREAM_COLUMNS, Table
from jetsync_spark.read.triggers import SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetsync_spark.common.options import ConnectSettings
    from jetsync_spark.read.offsets import Offset
    from jetsync_spark.read.options import ReadOptions
    from jetsync_spark.read.planning import Compare, Look
    from jetsync_spark.read.states import Found

__all__ = ["StreamMicroBatchReader"]

T = TypeVar("T")

CATCH_UP_PAUSE: Final = 0.1
"""Seconds between two requests for a stream that lags."""

BYTES_PER_CORE: Final = 128 << 20
"""
Default maximum bytes of a micro-batch for each task that runs at once: a micro-batch that is kept
in memory fits an executor of 1 GB with up to four cores.
"""

CORES: Final = 2
"""Tasks that run at once, if that is not known."""

_logger = jetsync.get_logger("jetsync.spark.stream_reader")


class StreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Plans and reads micro-batches of streams.

    Spark does not say when a query ends. The consumers that wait for new messages are therefore
    such that the server deletes them by itself. Spark calls the reader from one thread at a time.

    Args:
        settings: How to connect.
        options: What to read.
        schema: The columns.
        parallelism: How many tasks the cluster runs at once. None if that is not known.
    """

    def __init__(
        self,
        settings: ConnectSettings,
        options: ReadOptions,
        schema: StructType,
        parallelism: int | None = None,
    ) -> None:
        options.for_streaming()
        self._settings = settings
        self._options = options
        self._table = Table(schema, STREAM_COLUMNS)
        self._connection = f"jetsync-spark-plan-{options.source}"
        self._moves = Moves(options)
        self._planner = Planner(options, default_parts(parallelism), self._moves)
        self._limit = Limit(options.max_offsets_per_trigger, options.max_bytes_per_trigger)
        if self._limit == Limit():
            self._limit = Limit(bytes=BYTES_PER_CORE * (parallelism or CORES))
        self._states = StreamStates(options)
        self._idle = IdleQuery(settings, self._connection, options, self._states)
        self._start_error: JetStreamSparkError | None = None
        """Why the first end was planned without the start of the query."""

    # Planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the names are Spark's.
        """
        Return the start of the query. Repeated calls return the same offset.
        """
        initial = self._planner.initial
        if self._start_error is not None:
            # The first batch would begin somewhere else.
            raise self._start_error
        if initial is None:
            initial = self._planner.begins(self._ask(self._starts))
            for stream, place in initial.places.items():
                _logger.info("query_begins", stream=stream, sequence=place.next)
        return initial.to_json()

    def latestOffset(  # noqa: N802 - as above.
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """
        Return the end of the next batch, or *start* if there are no new messages.

        Args:
            start: The start of the batch. None before PySpark 4.2.
            limit: The limit of the batch. None before PySpark 4.2.
        """
        planner = self._planner
        begin = planner.begin_of_next(start)
        if begin is None:
            return self._first_end().to_json()
        end = None
        if planner.has_end or self._idle.may_have_news():
            end = self._plan(begin, self._limit if start is None else self._limit_of(limit))
            if end is None:
                self._idle.expects(planner.awaited)
            else:
                self._idle.ends()
        self._idle.asked()
        if end is None:
            return begin.to_json() if start is None else start
        return end.to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - as above.
        """
        Return the limit of a batch if the trigger has none.
        """
        from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

        if self._limit.sequences is not None:
            return ReadMaxRows(self._limit.sequences)
        return ReadMaxBytes(self._limit.bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as above.
        """
        Fix the end of the query at the current ends of the streams.
        """
        self._look()
        self._planner.fix_end()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - as above.
        """
        Return the last known ends of the streams for the query's progress, without a request.
        """
        latest = self._planner.latest
        return None if latest is None else latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """
        Return the parts of a batch. They stay the same if the batch is planned again.
        """
        planner = self._planner
        first, last = self._moves.parsed(start), self._moves.parsed(end)
        if planner.needs_states(first, last):
            self._look(last)
            while planner.waits_for_missing(last, time.monotonic()):
                time.sleep(CATCH_UP_PAUSE)
                self._look(last)
        if last.guessed:
            # If this run planned the end, it belongs to the present stream, and would vouch for the
            # start if it were compared first.
            self._compare(first)
        self._compare(last)
        self._idle.ends()
        return [InputPartition(each) for each in planner.parts(first, last)]

    def commit(self, end: dict[str, Any]) -> None:  # noqa: ARG002 - Spark's.
        """
        Note that the query has read a batch, perhaps of another source. The checkpoint holds the
        offset.
        """
        self._idle.ends()

    def stop(self) -> None:
        """
        Do nothing, because nothing outlives the process.
        """

    # Reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of one part.
        """
        return read_ranges(self._settings, self._options, self._table, partition.value)

    # Requests of the planner

    def _limit_of(self, given: object) -> Limit:
        """Return the limit of a batch for what Spark says."""
        sequences, size = getattr(given, "max_rows", None), getattr(given, "max_bytes", None)
        if sequences is None and size is None:
            # A trigger that runs once reads everything.
            return Limit()
        return Limit(sequences, self._limit.bytes if size is None else size)

    def _plan(self, begin: Offset, limit: Limit) -> Offset | None:
        """Return the end of the next batch, or None if there is none yet."""
        self._look(begin)
        begin = self._placed(self._moves.with_returned(begin))
        while True:
            step = self._planner.plan(begin, limit, time.monotonic())
            if step is AGAIN:
                time.sleep(CATCH_UP_PAUSE)
                self._look(begin)
                begin = self._placed(self._moves.with_returned(begin))
            elif isinstance(step, tuple):
                for look in step:
                    self._planner.found(look, self._ask(partial(self._find, look)))
            else:
                return step

    def _first_end(self) -> Offset:
        """Return the end of a run's first batch. A restart may find nothing new several times."""
        # PySpark 4.0 and 4.1 do not say whether this is a new query or a restart.
        planner = self._planner
        end = planner.guessed
        if end is None or self._idle.may_have_news():
            self._look()
            self._start_error = None
            try:
                self.initialOffset()
            except JetStreamSparkError as error:
                # If this is the first batch, Spark calls initialOffset and gets the error.
                self._start_error = error
                _logger.debug("start_not_known", reason=str(error))
            end = planner.guess(time.monotonic())
            self._idle.expects(planner.awaited)
        self._idle.asked()
        return end

    def _starts(self, js: jetsync.JetStream) -> dict[str, int]:
        """Return where to start each stream."""
        options = self._options
        streams = self._saw(js, strict=True).streams
        if not streams:
            _logger.warning("no_stream_matches", pattern=options.source)
        origins = [readable_origin_of(stream.cached_info) for stream in streams.values()]
        check_filters(streams, origins, options.subject_filter)
        return {
            origin.stream: start_of(options, streams[origin.stream], origin, default=LATEST)
            for origin in origins
        }

    def _look(self, begin: Offset | None = None) -> None:
        """Tell the planner the states of the streams, including those of an offset."""
        self._ask(lambda js: self._saw(js, begin))
        self._idle.requested()

    def _placed(self, offset: Offset) -> Offset:
        """Return an offset with positions in the present streams."""
        self._compare(offset)
        return self._moves.placed(offset)

    def _compare(self, offset: Offset) -> None:
        """Compare positions with streams that may be others."""
        moves, waits_for = self._moves, self._planner.waits_for
        while (
            doubts := moves.doubts(offset, lambda name: waits_for(name, time.monotonic()))
        ) is AGAIN:
            time.sleep(CATCH_UP_PAUSE)
            self._look(offset)
        for about in doubts:
            moves.compared(about, *self._ask(partial(self._found, about)))

    def _found(self, about: Compare, js: jetsync.JetStream) -> tuple[str | None, int | None]:
        """Return what tells whether a stream continues the sequences of a position."""
        if about.last is None:
            return None, None
        stream = self._states.handle(js, about.stream)
        found = time_of(stream, about.last.sequence)
        if not self._moves.wants_newer(about, found):
            return found, None
        return found, first_after(stream, readable_origin_of(stream.cached_info), about.last.time)

    def _saw(
        self, js: jetsync.JetStream, begin: Offset | None = None, *, strict: bool = False
    ) -> Found:
        now = time.monotonic()
        wanted = self._planner.wants(begin, now)
        found = self._states.ask(js, wanted.streams, discover=wanted.discover, strict=strict)
        origins = {
            name: readable_origin_of(each.cached_info) for name, each in found.streams.items()
        }
        self._planner.saw(origins, found.matched, now)
        return found

    def _find(self, look: Look, js: jetsync.JetStream) -> int | None:
        """Return the sequence of the first message that matches a filter."""
        stream = self._states.handle(js, look.stream)
        found = []
        for each in self._options.subject_filter:
            try:
                found.append(stream.get_next(each, look.start, direct=False).sequence)
            except jetsync.MessageNotFoundError:
                continue
            except jetsync.PermissionDeniedError:
                # Without permission to ask the leader, any message may match.
                return look.start
        return min(found, default=None)

    def _ask(self, call: Callable[[jetsync.JetStream], T]) -> T:
        return ask_with_retry(
            self._settings,
            self._connection,
            call,
            self._options.retry_timeout,
            "planning to read failed",
            self._options.source,
        )
