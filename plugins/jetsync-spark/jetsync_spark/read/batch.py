"""
The batch reader, which reads a range of a stream in parts.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

import jetsync
from jetsync_spark.common.clients import context_of
from jetsync_spark.common.dead_letters import FAIL
from jetsync_spark.common.errors import OptionError, explain
from jetsync_spark.common.retry import Retry, ask_with_retry, lend_with_retry
from jetsync_spark.common.task import application, this_task
from jetsync_spark.read.documents import MARKING, Documents
from jetsync_spark.read.options import EARLIEST, LATEST
from jetsync_spark.read.origin import (
    Loss,
    check_filters,
    matching,
    mean_size,
    readable_origin_of,
    sequence_at,
    start_of,
)
from jetsync_spark.read.range_reader import RangeReader
from jetsync_spark.read.ranges import cut, divide, group
from jetsync_spark.read.states import StreamStates
from jetsync_spark.read.tables import STREAM_COLUMNS, Table, without_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetsync_spark.common.options import ConnectSettings
    from jetsync_spark.read.options import ReadOptions
    from jetsync_spark.read.origin import Origin
    from jetsync_spark.read.queue_offsets import QueuePart
    from jetsync_spark.read.ranges import Range, TaskRanges

__all__ = ["StreamBatchReader", "part_in_task", "read_ranges", "stream_in_task"]

_logger = jetsync.get_logger("jetsync.spark.reader")


def read_ranges(
    settings: ConnectSettings, options: ReadOptions, table: Table, ranges: TaskRanges
) -> Iterator[pa.RecordBatch]:
    """
    Yield the rows that one task reads, over the connection of this worker.

    Repeated calls yield the same rows. The caller may stop early.
    """
    for part in ranges:
        with part_in_task(settings, options, table, part) as (stream, rows_of):
            for page in RangeReader(stream, part, options).pages():
                rows = rows_of(page)
                if rows is not None:
                    yield rows


@contextlib.contextmanager
def part_in_task(
    settings: ConnectSettings, options: ReadOptions, table: Table, part: Range | QueuePart
) -> Iterator[tuple[jetsync.Stream, Callable[[jetsync.StoredPage], pa.RecordBatch | None]]]:
    """
    Lend a task the stream of its part, and a function that makes the rows of a page.

    The function leaves out invalid messages, and those of ledgers unless they are requested. It
    returns None if no message is left.
    """
    with stream_in_task(settings, options, part.stream) as (client, stream):
        marks = options.on_invalid_message != FAIL and MARKING in settings.plugins
        if table.documents is None and not marks:
            ledger = options.include_ledger
            yield stream, lambda page: table.of_page(page, part.stream, ledger=ledger)
            return
        js = context_of(settings, client)
        documents = Documents(
            client, js, options, part, this_task(), kind=table.documents, marks=marks
        )

        def rows_of(page: jetsync.StoredPage) -> pa.RecordBatch | None:
            kept = page if options.include_ledger else without_ledger(page)
            if not kept:
                return None
            valid, column = documents.take(kept)
            return table.of_page(valid, part.stream, column) if valid else None

        yield stream, rows_of
        documents.log()


@contextlib.contextmanager
def stream_in_task(
    settings: ConnectSettings, options: ReadOptions, name: str
) -> Iterator[tuple[jetsync.Client, jetsync.Stream]]:
    """
    Lend a task the client of this worker, and a stream, whose state is not known yet.
    """
    task = this_task()
    connection = f"jetsync-spark-{task.query or application()}-{task.partition}"
    with lend_with_retry(settings, connection, Retry(options.retry_timeout)) as client:
        # Each read begins with a request for the state of its stream.
        yield client, context_of(settings, client).stream(name, lookup=False)


class StreamBatchReader(DataSourceReader):
    """
    Reads ranges of streams that are fixed when the query is planned.

    Spark pickles it and calls :meth:`read` in its workers. There is no ``pushFilters``, because
    Spark keeps pushed filters with the DataFrame and applies them to the next query too.
    """

    def __init__(self, settings: ConnectSettings, options: ReadOptions, schema: StructType) -> None:
        options.for_batch()
        self._settings = settings
        self._options = options
        self._table = Table(schema, STREAM_COLUMNS)

    def partitions(self) -> list[InputPartition]:
        """
        Return what each task reads.
        """
        stream = self._options.source
        parts = ask_with_retry(
            self._settings,
            f"jetsync-spark-plan-{stream}",
            self._parts,
            self._options.retry_timeout,
            "planning to read failed",
            stream,
            keep=False,
        )
        _logger.info("batch_planned", stream=stream, parts=len(parts))
        # Spark needs at least one partition.
        return [InputPartition(part) for part in parts] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of one part.
        """
        if partition.value is not None:
            yield from read_ranges(self._settings, self._options, self._table, partition.value)

    def _parts(self, js: jetsync.JetStream) -> list[TaskRanges]:
        options = self._options
        states = StreamStates(options)
        streams = states.ask(
            js, options.named, discover=bool(options.patterns), strict=True
        ).streams
        if not streams:
            raise OptionError(
                f"no stream matches {options.source}",
                option="stream",
                cure="correct the pattern, in which * stands for any characters",
            )
        origins = [readable_origin_of(stream.cached_info) for stream in streams.values()]
        check_filters(streams, origins, options.subject_filter)
        bounds = [self._bounds(streams[origin.stream], origin) for origin in origins]
        counts = [
            self._count(streams[origin.stream], start, end) if start < end else 0
            for origin, (start, end) in zip(origins, bounds, strict=True)
        ]
        lengths = [end - start for start, end in bounds]
        rows = [
            length if count is None else count
            for length, count in zip(lengths, counts, strict=True)
        ]
        most_bytes = options.max_bytes_per_partition
        sizes = None
        if most_bytes is not None:
            sizes = [
                count * mean_size(streams[origin.stream], start, end)
                for origin, (start, end), count in zip(origins, bounds, rows, strict=True)
            ]
        parts, tasks = divide(
            lengths,
            messages=rows,
            sizes=sizes,
            least=options.min_partitions,
            most_each=options.max_records_per_partition,
            most_bytes_each=most_bytes or math.inf,
        )
        # In the order of the names, so that a repeated query has the same partitions.
        ranges = [
            part
            for origin, (start, end), count in zip(origins, bounds, parts, strict=True)
            for part in cut(origin.stream, origin.created, start, end, count)
        ]
        return group(ranges, tasks)

    def _bounds(self, stream: jetsync.Stream, origin: Origin) -> tuple[int, int]:
        options = self._options
        start = start_of(options, stream, origin, default=EARLIEST)
        end = self._end(stream, origin)
        if end < start and options.has_range(origin.stream):
            raise OptionError(
                f"the batch begins at sequence {start} of stream {origin.stream}, after its end, "
                f"sequence {end}",
                cure="give an earlier start or a later end",
            )
        if start < origin.first:
            Loss(options).gone(origin, start, origin.first)
            start = origin.first
        return start, end

    def _end(self, stream: jetsync.Stream, origin: Origin) -> int:
        options = self._options
        if options.ending_timestamp is not None:
            found = sequence_at(stream, options.ending_timestamp)
            return origin.next if found is None else found
        asked = options.end_of(origin.stream)
        if asked is None or asked == LATEST:
            return origin.next
        if int(asked) > origin.next:
            raise OptionError(
                f"stream {origin.stream} ends at sequence {origin.next - 1}, before endingOffsets "
                f"{asked}, which is exclusive",
                option="endingOffsets",
                cure="give an existing sequence, or latest",
            )
        return int(asked)

    def _count(self, stream: jetsync.Stream, start: int, end: int) -> int | None:
        if not self._options.subject_filter:
            return None
        try:
            return matching(stream, start, end, self._options.subject_filter)
        except jetsync.NotSupportedError:
            # The stream has no direct gets. The count only improves the number of parts.
            return None
        except jetsync.InvalidSubjectError as error:
            raise explain(error, "option subjectFilter is invalid") from error
