"""
The batch reader: a stream between two places, in parts.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

import jetsync
from jetsync_spark.common.clients import lend
from jetsync_spark.common.errors import OptionError, explain
from jetsync_spark.common.retry import patiently
from jetsync_spark.common.task import application, this_task
from jetsync_spark.read.options import EARLIEST, LATEST
from jetsync_spark.read.origin import (
    Loss,
    check_filters,
    look,
    matching,
    place_of,
    time_of,
)
from jetsync_spark.read.range_reader import RangeReader
from jetsync_spark.read.ranges import cut, parts_for
from jetsync_spark.read.tables import STREAM_COLUMNS, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetsync_spark.common.options import ConnectSettings
    from jetsync_spark.read.options import ReadOptions
    from jetsync_spark.read.origin import Origin
    from jetsync_spark.read.ranges import Range

__all__ = ["StreamBatchReader", "read_part"]

COLLECTED: Final = 50_000
"""How many objects may pile up before Python looks for garbage among them, while a part is read."""

_logger = jetsync.get_logger("jetsync.spark.reader")


def read_part(
    settings: ConnectSettings, options: ReadOptions, table: Table, part: Range
) -> Iterator[pa.RecordBatch]:
    """
    Yield the rows of one part of a stream, with the connection of this worker.

    Repeated calls give the same rows. Whoever stops early leaves nothing behind.
    """
    task = this_task()
    name = f"jetsync-spark-{task.query or application()}-{task.partition}"
    with contextlib.ExitStack() as stack, _fewer_collections():
        client = patiently(
            lambda: stack.enter_context(lend(settings, name)),
            options.retry_timeout,
            "reading failed",
            part.stream,
        )
        for page in RangeReader(client.jetstream(), part, options).pages():
            yield table.of_page(page, part.stream)


@contextlib.contextmanager
def _fewer_collections() -> Iterator[None]:
    """
    Look for cyclic garbage less often in the block.

    A page is thousands of objects that live as long as it, none of them in a cycle. To Python they
    look like garbage that piles up, and it looks through all that is loaded again and again: a
    third of the time of reading. A worker runs one task at a time.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], COLLECTED) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class StreamBatchReader(DataSourceReader):
    """
    Reads a stream between two places that are fixed when the query is planned.

    Spark pickles it and calls :meth:`read` in its workers. It has no ``pushFilters``: Spark keeps
    what was pushed with the DataFrame and uses it for the next query, too.
    """

    def __init__(self, settings: ConnectSettings, options: ReadOptions, schema: StructType) -> None:
        options.for_batch()
        self._settings = settings
        self._options = options
        self._table = Table(schema, STREAM_COLUMNS)

    def partitions(self) -> list[InputPartition]:
        """
        Return the parts of the stream as it is now.
        """
        stream = self._options.source
        parts = patiently(
            self._plan, self._options.retry_timeout, "planning to read failed", stream
        )
        _logger.info("batch_planned", stream=stream, parts=len(parts))
        # Spark asks for one partition at least.
        return [InputPartition(part) for part in parts] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of one part.
        """
        if partition.value is not None:
            yield from read_part(self._settings, self._options, self._table, partition.value)

    def _plan(self) -> list[Range]:
        with lend(self._settings, f"jetsync-spark-plan-{self._options.source}") as client:
            return self._parts(client.jetstream())

    def _parts(self, js: jetsync.JetStream) -> list[Range]:
        options = self._options
        origin = look(js, options.source)
        check_filters(js, origin, options.subject_filter)
        start = place_of(options, js, origin, default=EARLIEST)
        end = self._end(js, origin)
        if end < start and options.has_start and options.has_end:
            raise OptionError(
                f"the batch begins at sequence {start} of stream {origin.stream}, behind its end, "
                f"sequence {end}",
                cure="give an earlier start or a later end",
            )
        if start < origin.first:
            Loss(options).gone(origin, start, origin.first)
            start = origin.first
        messages = None
        if options.subject_filter and start < end:
            messages = self._count(js, origin, start)
        parts = parts_for(
            end - start,
            messages=messages,
            least=options.min_partitions,
            most_each=options.max_records_per_partition,
        )
        return cut(origin.stream, origin.created, start, end, parts)

    def _end(self, js: jetsync.JetStream, origin: Origin) -> int:
        options = self._options
        if options.ending_timestamp is not None:
            found = time_of(js, origin, options.ending_timestamp)
            return origin.next if found is None else found
        asked = options.ending_offsets
        if asked is None or asked == LATEST:
            return origin.next
        if int(asked) > origin.next:
            raise OptionError(
                f"stream {origin.stream} ends at sequence {origin.next - 1}, before endingOffsets "
                f"{asked}, which is exclusive",
                option="endingOffsets",
                cure="give a sequence that it has come to, or latest",
            )
        return int(asked)

    def _count(self, js: jetsync.JetStream, origin: Origin, start: int) -> int | None:
        try:
            return matching(js, origin, start, self._options.subject_filter)
        except jetsync.NotSupportedError:
            # It is only for the number of parts, and the stream has no direct gets.
            return None
        except jetsync.InvalidSubjectError as error:
            raise explain(error, "option subjectFilter can not be used") from error
