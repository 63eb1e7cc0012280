"""
Stored messages as Arrow record batches, with the extra ``arrow``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from jetsync.errors import ConfigurationError, InvalidArgumentError
from jetsync.values.page_columns import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from jetsync.values.frame import FrameRun
    from jetsync.values.headers import Headers

DEFAULT_COLUMNS: Final = ("subject", "data", "sequence", "timestamp")
COLUMNS: Final = (*DEFAULT_COLUMNS, "headers")


def arrow_columns(columns: Iterable[str]) -> ArrowColumns:
    """
    Return what makes record batches with these columns, in this order.

    Raises:
        ConfigurationError: pyarrow is not installed.
        InvalidArgumentError: A name is unknown or given twice, or there is none.
    """
    names = () if isinstance(columns, str) else tuple(columns)
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names or len(set(names)) < len(names):
        reason = f"there is no column {unknown[0]!r}" if unknown else "name each column once"
        raise InvalidArgumentError(
            f"columns: {reason}; the columns are {', '.join(COLUMNS)}", argument="columns"
        )
    try:
        return _made(names)
    except ImportError as error:
        raise ConfigurationError(
            "Arrow tables need the extra: pip install 'jetsync[arrow]'"
        ) from error


class ArrowColumns:
    """
    Makes record batches with some columns; any thread.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        import pyarrow as pa

        self._pa: Any = pa
        types = {
            "subject": pa.string(),
            "data": pa.binary(),
            "sequence": pa.int64(),
            "timestamp": pa.timestamp("ns", tz="UTC"),
            "headers": pa.map_(pa.string(), pa.list_(pa.string())),
        }
        self.schema: pa.Schema = pa.schema([(name, types[name]) for name in names])

    def batch(
        self, count: int, runs: Sequence[FrameRun], values: Callable[[str], Sequence[Any]]
    ) -> pa.RecordBatch:
        """
        Return the record batch of some messages.

        Args:
            count: How many there are.
            runs: All of them, if they came from a server.
            values: Returns the value that each message has in a column.
        """
        quick = columns(runs, self.schema.names) if runs else {}
        arrays = [
            self._quick_column(field, count, quick[field.name])
            if field.name in quick
            else self._column(field, values(field.name))
            for field in self.schema
        ]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def reader(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
        """Return a reader of record batches that :meth:`batch` has made."""
        return self._pa.RecordBatchReader.from_batches(self.schema, batches)

    def _quick_column(self, field: pa.Field, count: int, buffers: tuple[Any, ...]) -> pa.Array:
        """Return a column of *count* rows made from the buffers of :func:`columns`."""
        if field.name != "headers":
            return self._from_buffers(field.type, count, *buffers)
        map_ends, name_ends, names, list_ends, value_ends, values = buffers
        name_count = _number(map_ends, count)
        value_count = _number(list_ends, name_count)
        return self._maps(
            self._from_buffers(self._pa.int32(), count + 1, map_ends),
            self._from_buffers(self._pa.string(), name_count, name_ends, names),
            self._from_buffers(self._pa.int32(), name_count + 1, list_ends),
            self._from_buffers(self._pa.string(), value_count, value_ends, values),
        )

    def _from_buffers(self, kind: pa.DataType, count: int, *buffers: Any) -> pa.Array:
        """Return an array without null values."""
        found = [None, *map(self._pa.py_buffer, buffers)]
        return self._pa.Array.from_buffers(kind, count, found)

    def _maps(
        self, map_ends: pa.Array, names: pa.Array, list_ends: pa.Array, values: pa.Array
    ) -> pa.Array:
        """Return maps from names to lists of values."""
        lists = self._pa.ListArray.from_arrays(list_ends, values)
        return self._pa.MapArray.from_arrays(map_ends, names, lists)

    def _column(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        """Return a column made from Python objects."""
        if field.name == "headers":
            return self._headers(values)
        if field.name == "subject":
            return self._texts(values)
        return self._pa.array(values, field.type)

    def _texts(self, values: Sequence[str]) -> pa.Array:
        try:
            return self._pa.array(values, self._pa.string())
        except UnicodeEncodeError:
            # Servers accept subjects and headers that are not valid UTF-8. Arrow does not.
            raw = [each.encode("utf-8", "surrogateescape") for each in values]
            shown = [each.decode("utf-8", "replace") for each in raw]
            return self._pa.array(shown, self._pa.string())

    def _headers(self, headers: Sequence[Headers]) -> pa.Array:
        """Return maps from header names to lists of values, in the order of the message."""
        pa = self._pa
        ends, names, values, value_ends = [0], [], [], [0]
        for each in headers:
            for name, its_values in each.to_dict().items():
                names.append(name)
                values += its_values
                value_ends.append(len(values))
            ends.append(len(names))
        return self._maps(
            pa.array(ends, pa.int32()),
            self._texts(names),
            pa.array(value_ends, pa.int32()),
            self._texts(values),
        )


def _number(buffer: Any, place: int) -> int:
    """Return one C int of a buffer."""
    return int(memoryview(buffer).cast("B").cast("i")[place])


# Kept, because a program reads many pages with the same columns.
_made = functools.lru_cache(maxsize=8)(ArrowColumns)
