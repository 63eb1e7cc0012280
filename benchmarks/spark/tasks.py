"""
What runs in Spark's tasks beside jetsync-spark: Spark's own ceilings, and nats-py row by row.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import nats
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql.types import StructType

__all__ = ["Ceiling", "count_batches", "count_rows", "publish_with_nats_py"]

BATCH = 10_000
"""Rows of a record batch, as jetsync-spark's reader makes them."""


def publish_with_nats_py(url: str) -> Callable[[Iterable[Any]], None]:
    """
    Return what users write today: publish a row, wait for its ack, take the next.
    """

    def partition(rows: Iterable[Any]) -> None:
        async def publish() -> None:
            client = await nats.connect(url)
            js = client.jetstream()
            for row in rows:
                await js.publish(row.subject, bytes(row.data))
            await client.close()

        asyncio.run(publish())

    return partition


def count_rows(rows: Iterable[Any]) -> None:
    """
    Look at both columns of each row of a partition.
    """
    for row in rows:
        _ = row.subject, row.data


def count_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Look at both columns of each batch of a partition.
    """
    rows = 0
    for batch in batches:
        rows += len(list(zip(*(column.to_pylist() for column in batch.columns), strict=True)))
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})


class Ceiling(DataSource):
    """
    ``format("ceiling")``: record batches that are ready, and a writer that looks at its columns.

    Options ``rows``, ``partitions`` and ``size``. ``form`` is ``batches``, ``columns`` to make each
    batch of Python lists, or ``rows`` for a list of values for each row.
    """

    @classmethod
    def name(cls) -> str:
        """
        Return the name of the format.
        """
        return "ceiling"

    def schema(self) -> str:
        """
        Return the columns that jetsync-spark has, too.
        """
        return "subject string, data binary, stream string, sequence bigint, timestamp timestamp"

    def reader(self, schema: StructType) -> CeilingReader:  # noqa: ARG002 - Spark's signature
        """
        Return what reads.
        """
        options = (int(self.options[name]) for name in ("rows", "partitions", "size"))
        return CeilingReader(*options, form=self.options.get("form", "batches"))

    def streamReader(self, schema: StructType) -> CeilingStreamReader:  # noqa: N802 - as above
        """
        Return what reads the same rows as one micro-batch.
        """
        return CeilingStreamReader(self.reader(schema))

    def writer(self, schema: StructType, overwrite: bool) -> CeilingWriter:  # noqa: ARG002, FBT001
        """
        Return what writes nothing.
        """
        return CeilingWriter()


class CeilingReader(DataSourceReader):
    """
    Gives the same record batch again and again, or one made of the same lists, or these lists.
    """

    def __init__(self, rows: int, partitions: int, size: int, *, form: str) -> None:
        self._form = form
        self._rows = rows // partitions
        self._partitions = partitions
        self._size = size

    def partitions(self) -> list[InputPartition]:
        """
        Return as many partitions as were asked for.
        """
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch] | Iterator[list[Any]]:  # noqa: ARG002
        """
        Yield the batch, or its rows.
        """
        columns = {
            "subject": (["bench.0"] * BATCH, pa.string()),
            "data": ([b"x" * self._size] * BATCH, pa.binary()),
            "stream": (["BENCH"] * BATCH, pa.string()),
            "sequence": (list(range(BATCH)), pa.int64()),
            "timestamp": (list(range(BATCH)), pa.timestamp("us", "UTC")),
        }

        def made() -> pa.RecordBatch:
            arrays = {name: pa.array(values, kind) for name, (values, kind) in columns.items()}
            return pa.RecordBatch.from_pydict(arrays)

        batch, form = made(), self._form
        # Making these takes a twentieth of a second for each partition.
        rows = batch.to_pydict() if form == "rows" else {}
        for left in range(self._rows, 0, -BATCH):
            if form == "rows":
                yield from map(list, itertools.islice(zip(*rows.values(), strict=True), left))
            else:
                yield (made() if form == "columns" else batch).slice(0, min(left, BATCH))


class CeilingStreamReader(DataSourceStreamReader):
    """
    Reads the rows of a batch as the only micro-batch of a query.
    """

    def __init__(self, reader: CeilingReader) -> None:
        self._reader = reader

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - the names are Spark's
        """
        Return the start of the only micro-batch.
        """
        return {"batches": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:  # noqa: N802 - as above
        """
        Return its end.
        """
        return {"batches": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """
        Return its partitions.
        """
        return self._reader.partitions() if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch] | Iterator[list[Any]]:
        """
        Yield the rows of one partition.
        """
        return self._reader.read(partition)


class CeilingWriter(DataSourceArrowWriter):
    """
    Makes Python objects of the columns, and forgets them.
    """

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """
        Take a partition.
        """
        for _ in count_batches(iterator):
            pass
        return WriterCommitMessage()
