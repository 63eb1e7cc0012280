"""
Convert record batches to messages by column, for Arrow writers.

This is the hot path. Each row needs only its payload and a pair. Subjects are built and checked
once per distinct value.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from jetsync_spark.common.errors import OptionError
from jetsync_spark.write.columns import OPTIONAL
from jetsync_spark.write.rows import Subjects, message_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jetsync_spark.write.columns import Columns
    from jetsync_spark.write.rows import Checks

__all__ = ["batch_messages"]


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
            maker = _Maker(columns.within(batch.schema.names), checks)
        if batch.num_rows:
            yield maker.messages(batch, first)
        first += batch.num_rows


class _Maker:
    """
    Converts record batches with the same columns.
    """

    def __init__(self, columns: Columns, checks: Checks) -> None:
        self._columns = columns
        self._checks = checks
        self._constant: str | None = None
        self._filled: Subjects | None = None
        if columns.constant is not None:
            self._constant = checks.subject(columns.constant, 0, None)
        elif columns.template is not None:
            self._filled = Subjects(columns.template, checks)

    def messages(self, batch: pa.RecordBatch, first: int) -> Iterable[Any]:
        """Convert a batch. *first* is the number of its first row."""
        columns = self._columns
        subjects = self._subjects(batch, first)
        payloads = binary_values(batch.column(columns.data))
        if columns.plain:
            return zip(subjects, payloads, strict=False)
        parts = [
            repeat(None) if name is None else batch.column(name).to_pylist()
            for name in (getattr(columns, part) for part in OPTIONAL)
        ]
        return self._whole(zip(subjects, payloads, *parts, strict=False), first)

    def _whole(self, rows: Iterable[tuple[Any, ...]], first: int) -> Iterator[Any]:
        for number, row in enumerate(rows, first):
            try:
                yield message_of(*row)
            except (ValueError, TypeError) as error:
                raise self._checks.bad_value(error, number) from error

    def _subjects(self, batch: pa.RecordBatch, first: int) -> Iterable[str]:
        if self._constant is not None:
            return repeat(self._constant, batch.num_rows)
        if self._filled is not None:
            return self._template_subjects(batch, first)
        name = self._columns.subject
        assert name is not None
        column = batch.column(name)
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

    def _template_subjects(self, batch: pa.RecordBatch, first: int) -> Iterable[str]:
        assert self._filled is not None
        assert self._columns.template is not None
        known, make = self._filled.known, self._filled.make
        parts = []
        for name in self._columns.template.columns:
            places, values = _encoded(batch.column(name))
            parts.append([values[place] for place in places])
        found = []
        for number, key in enumerate(zip(*parts, strict=True), first):
            subject = known.get(key)
            found.append(make(key, number) if subject is None else subject)
        return found


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
