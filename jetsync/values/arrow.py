"""
Stored messages as Arrow record batches, with the extra ``arrow``.

Arrow splits the header blocks of a whole page itself, without an object for each message. In us per
message of 128 bytes, with the default columns: 0.4, and 1.6 from lists of Python objects.
"""

from __future__ import annotations

import functools
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from jetsync.errors import ConfigurationError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from jetsync.values.frame import FrameRun
    from jetsync.values.stored import StoredPage

DEFAULT_COLUMNS: Final = ("subject", "data", "sequence", "timestamp")
COLUMNS: Final = (*DEFAULT_COLUMNS, "headers")

# The last lines of a header block are those of the server, then there are two empty ones. The name
# of each column's line, and its place counted from the end.
_LINES: Final = {
    "subject": (b"Nats-Subject: ", 7),
    "sequence": (b"Nats-Sequence: ", 6),
    "timestamp": (b"Nats-Time-Stamp: ", 5),
}


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
        import pyarrow.compute

        self._pa: Any = pa
        self._compute: Any = pyarrow.compute
        types = {
            "subject": pa.string(),
            "data": pa.binary(),
            "sequence": pa.int64(),
            "timestamp": pa.timestamp("ns", tz="UTC"),
            "headers": pa.map_(pa.string(), pa.list_(pa.string())),
        }
        self.schema: pa.Schema = pa.schema([(name, types[name]) for name in names])
        # 0, 3, 6 and so on, for the largest page so far.
        self._thirds: pa.Array = pa.array([], pa.int32())

    def batch(self, page: StoredPage, run: FrameRun | None) -> pa.RecordBatch:
        """Return the messages of a page; *run* has all of them, if they came from a server."""
        quick = {} if run is None else self._quick_columns(run)
        arrays = [
            quick[field.name] if field.name in quick else self._column(field, page)
            for field in self.schema
        ]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def reader(self, pages: Iterable[StoredPage]) -> pa.RecordBatchReader:
        """Return a reader with one record batch for each page."""
        # Not a generator: a second call that the pages refuse would end it.
        batches = map(methodcaller("to_arrow", self.schema.names), pages)
        return self._pa.RecordBatchReader.from_batches(self.schema, batches)

    def _quick_columns(self, run: FrameRun) -> dict[str, pa.Array]:
        """Return columns made from the bytes; none if a header block is not as servers make it."""
        pa, compute = self._pa, self._compute
        bounds = run.bounds
        # Three parts for each message: its headers, its payload, and the bytes up to the next one.
        parts = pa.Array.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(run.data)]
        )
        thirds = self._thirds
        if len(thirds) < len(run):
            self._thirds = thirds = pa.array(range(0, len(bounds), 3), pa.int32())
        thirds = thirds[: len(run)]
        found = {}
        if "data" in self.schema.names:
            found["data"] = parts[1:].take(thirds)
        wanted = [name for name in _LINES if name in self.schema.names]
        if not wanted:
            return found
        lines = compute.split_pattern(parts.take(thirds), b"\r\n")
        try:
            for name in wanted:
                title, place = _LINES[name]
                places = compute.subtract(lines.offsets[1:], place)
                column = lines.values.take(places)
                if not compute.all(compute.starts_with(column, title)).as_py():
                    return {}
                values = compute.binary_replace_slice(column, 0, len(title), b"")
                found[name] = values.cast(pa.string()).cast(self.schema.field(name).type)
        except (pa.ArrowInvalid, pa.ArrowIndexError):
            # A subject that is not UTF-8, a leap second, or something that no server sends.
            return {}
        return found

    def _column(self, field: pa.Field, page: StoredPage) -> pa.Array:
        """Return a column made from Python objects."""
        if field.name == "headers":
            return self._headers(page)
        if field.name == "subject":
            return self._texts(page.subjects)
        values: list[Any]
        if field.name == "data":
            values = page.data
        else:
            values = page.sequences if field.name == "sequence" else page.timestamps_ns
        return self._pa.array(values, field.type)

    def _texts(self, values: Sequence[str]) -> pa.Array:
        try:
            return self._pa.array(values, self._pa.string())
        except UnicodeEncodeError:
            # Servers accept subjects and headers that are not valid UTF-8. Arrow does not.
            raw = [each.encode("utf-8", "surrogateescape") for each in values]
            shown = [each.decode("utf-8", "replace") for each in raw]
            return self._pa.array(shown, self._pa.string())

    def _headers(self, page: StoredPage) -> pa.Array:
        """Return maps from header names to lists of values, in the order of the message."""
        pa = self._pa
        ends, names, values, value_ends = [0], [], [], [0]
        for message in page:
            for name, its_values in message.headers.to_dict().items():
                names.append(name)
                values += its_values
                value_ends.append(len(values))
            ends.append(len(names))
        lists = pa.ListArray.from_arrays(pa.array(value_ends, pa.int32()), self._texts(values))
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), self._texts(names), lists)


# Kept, because a program reads many pages with the same columns.
_made = functools.lru_cache(maxsize=8)(ArrowColumns)
