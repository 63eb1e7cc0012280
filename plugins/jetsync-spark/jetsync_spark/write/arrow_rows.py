"""
Convert record batches to messages by column, for Arrow writers.

This is the hot path. Each row needs only its payload and a pair. Subjects are built and checked
once per distinct value.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from jetsync_spark.common.errors import OptionError, RowError
from jetsync_spark.write.columns import no_field
from jetsync_spark.write.rows import Maker, RowMaker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jetsync_spark.write.checks import Checks
    from jetsync_spark.write.columns import Columns

__all__ = ["batch_messages"]

FEW: Final = 64
"""Rows of a batch with invalid rows that are converted one by one."""


def batch_messages(
    batches: Iterable[pa.RecordBatch], columns: Columns, checks: Checks
) -> Iterator[Any]:
    """
    Yield a message for each row of record batches.

    Args:
        batches: From Spark. ``large_string`` and ``large_binary`` are supported.
        columns: The columns of the message parts. Optional ones are used if they exist.
        checks: The checks of the partition.

    Raises:
        RowError: A row cannot be converted to a message.
        OptionError: A column is missing.
    """
    return chain.from_iterable(_each_batch(batches, columns, checks))


def _each_batch(
    batches: Iterable[pa.RecordBatch], columns: Columns, checks: Checks
) -> Iterator[Iterable[Any]]:
    maker = None
    first = 0
    for batch in batches:
        if maker is None:
            maker = _ArrowMaker(columns.within(batch.schema.names), checks)
        if batch.num_rows:
            yield maker.valid(batch, first, batch.num_rows)
        first += batch.num_rows


class _ArrowMaker(Maker):
    """
    Converts record batches.
    """

    def valid(self, block: Any, first: int, count: int) -> Iterable[Any]:
        template = self._columns.template
        nested = template is not None and any(len(path) > 1 for path in template.paths)
        if self._checks.invalid is None or count > FEW or nested:
            return super().valid(block, first, count)
        try:
            return list(self.messages(block, first))
        except RowError:
            # Converting a record batch with one row takes ten times as long as a row of Spark.
            maker = RowMaker(self._columns, block.schema.names, self._checks)
            values = [column.to_pylist() for column in block.columns]
            return maker.valid(list(zip(*values, strict=True)), first, count)

    def _values(self, block: Any, name: str) -> Sequence[Any]:
        return block.column(name).to_pylist()  # type: ignore[no-any-return]

    def _leaves(self, block: Any, path: tuple[str, ...]) -> Sequence[Any]:
        column = block.column(path[0])
        for depth, name in enumerate(path[1:], 1):
            kind = column.type
            # Not `names`, which PyArrow has since version 18.
            fields = [field.name for field in kind] if pa.types.is_struct(kind) else []
            if name not in fields:
                raise no_field(".".join(path[:depth]), name, fields)
            # A field of a null struct is null.
            # In a list, as PyArrow before version 11 wants it.
            column = pc.struct_field(column, [fields.index(name)])
        places, values = _encoded(column)
        return [values[place] for place in places]

    def _own_subjects(self, block: Any, name: str, first: int) -> Iterable[str]:
        column = block.column(name)
        if column.null_count:
            row = first + pc.index(column.is_null(), value=True).as_py()
            raise self._checks.null_subject(row, name)
        places, values = _encoded(column)
        good = self._checks.subjects.known
        for value in values:
            if value not in good and not self._checks.subjects.takes(value):
                # Raises, and names the row.
                row = first + pc.index(column, value=pa.scalar(value, column.type)).as_py()
                self._checks.subject(value, row, name)
        if len(values) == len(places):
            return values
        return [values[place] for place in places]

    def _payloads(self, block: Any, name: str, first: int) -> Iterable[Any]:
        column = block.column(name)
        values = binary_values(column)
        # If all payloads together are small enough, each one is.
        if column.nbytes > self._checks.largest:
            largest = pc.max(pc.binary_length(column)).as_py() or 0
            if largest > self._checks.largest:
                self._checks.sizes((len(value) for value in values), first, name)
        return values

    def _nulls(self, block: Any, name: str) -> Sequence[bool] | None:
        column = block.column(name)
        return column.is_null().to_pylist() if column.null_count else None

    def _part(self, block: Any, start: int, end: int) -> Any:
        return block.slice(start, end - start)

    def _row(self, block: Any) -> dict[str, Any]:
        return block.to_pylist()[0]  # type: ignore[no-any-return]


def _encoded(column: Any) -> tuple[Sequence[int], list[Any]]:
    """
    Return the index of each row's value, and the distinct values of a column.
    """
    encoded = column.dictionary_encode("encode")
    return encoded.indices.to_pylist(), encoded.dictionary.to_pylist()


def binary_values(column: Any) -> Iterable[bytes]:
    """
    Return the payloads of a column of strings or bytes. Null becomes an empty payload.

    Raises:
        OptionError: The column has another type.
    """
    kind = column.type
    if pa.types.is_string(kind):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    elif not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise OptionError(
            f"the payloads have the type {kind}",
            option="data",
            cure="make them binary or strings, for example with to_json(struct('*'))",
        )
    values: list[bytes | None] = column.to_pylist()
    if column.null_count:
        return [b"" if value is None else value for value in values]
    return cast("list[bytes]", values)
