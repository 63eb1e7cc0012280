"""
Messages as Arrow record batches.

Spark requires exactly the expected schema: ``binary`` and not ``large_binary``, times in
microseconds and UTC, and the columns in the order of the reader's schema. A user may select fewer
columns in another order.
"""

from __future__ import annotations

import functools
from array import array
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import jetsync
from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.headers import LEDGER, LEDGER_START, SERVER_PREFIX
from jetsync_spark.common.names import find_name
from jetsync_spark.read.documents import documents_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql.types import StructType

__all__ = ["BUCKET_COLUMNS", "STREAM_COLUMNS", "Table", "schema_text", "without_ledger"]

_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.map_(pa.string(), pa.list_(pa.string()))
# Not `pa.array` and `pa.scalar`, which import pandas if it is installed. That takes a worker 0.5 s.
_ZERO: Final = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(bytes(4))])

STREAM_COLUMNS: Final = {
    "subject": "string",
    "data": "binary",
    "headers": "map<string,array<string>>",
    "stream": "string",
    "sequence": "bigint",
    "timestamp": "timestamp",
    "timestamp_ns": "bigint",
    "server_headers": "map<string,array<string>>",
    "json": "struct",
}
"""The columns of a stream with their Spark types. The schema of a query says the fields of JSON."""

BUCKET_COLUMNS: Final = {
    "key": "string",
    "value": "binary",
    "revision": "bigint",
    "created": "timestamp",
    "operation": "string",
}
"""The columns of a bucket with their Spark types."""

_ARROW: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "map<string,array<string>>": _HEADERS,
    "bigint": pa.int64(),
    "timestamp": _TIME,
}


# The columns of jetsync that columns are made from. No column needs an object for each message.
_OF_PAGES: Final = {
    "subject": "subject",
    "data": "data",
    "headers": "headers",
    "server_headers": "headers",
    "sequence": "sequence",
    "timestamp": "timestamp",
    "timestamp_ns": "timestamp",
}


def schema_text(columns: Mapping[str, str], without: Iterable[str] = ()) -> str:
    """
    Return the schema as Spark DDL, without some columns.
    """
    left = set(without)
    return ", ".join(f"{name} {kind}" for name, kind in columns.items() if name not in left)


class Table:
    """
    The columns that a query reads.

    Args:
        schema: The schema that Spark expects, possibly from the user.
        known: The available columns with their types.

    Raises:
        OptionError: A column does not exist or has another type.
    """

    def __init__(self, schema: StructType, known: Mapping[str, str]) -> None:
        names: list[str] = []
        self.documents: pa.StructType | None = None
        """The type of the documents in the payloads, if they are read."""

        for field in schema.fields:
            kind = field.dataType.simpleString()
            name = find_name(field.name, known)
            if name is None:
                raise OptionError(
                    f"there is no column {field.name}",
                    option=field.name,
                    cure=f"leave out the schema, or take some of {', '.join(known)}",
                )
            names.append(name)
            if name == "json" and field.dataType.typeName() == "struct":
                self.documents = documents_type(field.dataType, field.name)
            elif kind != known[name]:
                raise OptionError(
                    f"the column {field.name} is {known[name]}, not {kind}",
                    option=field.name,
                    cure="leave out the schema, and cast the column",
                )
        if not schema.fields:
            raise OptionError(
                "the schema has no columns",
                cure=f"leave it out, or take some of {', '.join(known)}",
            )
        # The schema may have the names in another case.
        self.names: Final = tuple(names)
        kinds = [self.documents if name == "json" else _ARROW[known[name]] for name in names]
        self._arrow = pa.schema(list(zip(schema.fieldNames(), kinds, strict=True)))
        self._of_pages = tuple({_OF_PAGES[name] for name in names if name in _OF_PAGES})

    def batch(
        self, columns: Mapping[str, Callable[[], Sequence[Any] | pa.Array]]
    ) -> pa.RecordBatch:
        """
        Build a record batch from the selected columns.
        """
        arrays = []
        for name, kind in zip(self.names, self._arrow.types, strict=True):
            made = columns[name]()
            arrays.append(made if isinstance(made, pa.Array) else pa.array(made, kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def of_page(
        self,
        page: jetsync.StoredPage,
        stream: str,
        documents: pa.Array | None = None,
        *,
        ledger: bool = True,
    ) -> pa.RecordBatch | None:
        """
        Convert a page of messages.

        Args:
            page: The messages.
            stream: The stream that they were read from.
            documents: The column of the documents, if it is read.
            ledger: Whether to convert ledger messages. Without them, the documents must be None.

        Returns:
            The rows. None if all messages are left out.
        """
        read: dict[str, pa.Array] = {}
        if self._of_pages:
            read.update(zip(self._of_pages, page.to_arrow(self._of_pages).columns, strict=True))
        if not ledger:
            # The column of the payloads is made once for both.
            left = without_ledger(page, read.get("data"))
            if left is not page:
                return self.of_page(left, stream) if left else None
        return self.batch(
            {
                "subject": lambda: read["subject"],
                "data": lambda: read["data"],
                "headers": lambda: _some_headers(read["headers"], servers=False),
                "stream": lambda: pa.repeat(_scalar(stream), len(page)),
                "sequence": lambda: read["sequence"],
                # Spark's times have no nanoseconds.
                "timestamp": lambda: read["timestamp"].cast(_TIME, safe=False),
                "timestamp_ns": lambda: read["timestamp"].cast(pa.int64()),
                "server_headers": lambda: _some_headers(read["headers"], servers=True),
                "json": lambda: documents,
            }
        )

    def of_entries(self, entries: Sequence[jetsync.Entry]) -> pa.RecordBatch:
        """
        Convert entries of a bucket.
        """
        return self.batch(
            {
                "key": lambda: _texts([entry.key for entry in entries]),
                "value": lambda: [entry.value for entry in entries],
                "revision": lambda: [entry.revision for entry in entries],
                "created": lambda: [entry.created for entry in entries],
                "operation": lambda: [entry.operation.name for entry in entries],
            }
        )


def without_ledger(
    page: jetsync.StoredPage, payloads: pa.Array | None = None
) -> jetsync.StoredPage:
    """
    Return a page without the ledger messages in it, or the page itself if it has none.

    Args:
        page: The messages.
        payloads: The column of their payloads, if it is made already.
    """
    # Making messages and parsing headers is slow, so the payloads are checked first.
    if payloads is None:
        (payloads,) = page.to_arrow(["data"]).columns
    if not pc.any(pc.starts_with(payloads, LEDGER_START)).as_py():
        return page
    left = [
        message
        for message in page
        if not message.data.startswith(LEDGER_START) or LEDGER not in message.headers
    ]
    return jetsync.StoredPage(left)


def _texts(values: list[str]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        # Servers accept subjects and headers that are not valid UTF-8. Spark does not.
        return pa.array([_shown(value) for value in values], pa.string())


def _shown(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@functools.lru_cache(maxsize=16)
def _scalar(text: str) -> pa.StringScalar:
    data = text.encode()
    ends = array("i", [0, len(data)])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), 1, buffers)[0]


def _some_headers(maps: pa.MapArray, *, servers: bool) -> pa.MapArray:
    """
    Return maps with the headers for servers, or with the others.

    Headers for servers are kept apart, because a copy of the message would repeat their effect.
    """
    is_wanted = pc.starts_with(maps.keys, SERVER_PREFIX)
    if not servers:
        is_wanted = pc.invert(is_wanted)
    if pc.all(is_wanted).as_py():
        # Most streams have no headers for servers, and the steps below cost more than all others.
        return maps
    # How many of the headers before each position are wanted.
    passed = pa.concat_arrays([_ZERO, pc.cumulative_sum(is_wanted.cast(pa.int32()))])
    return pa.MapArray.from_arrays(
        passed.take(maps.offsets), maps.keys.filter(is_wanted), maps.items.filter(is_wanted)
    )
