"""
Walk through Avro schemas, encoded bytes and values.

This module finds where and why bytes or a value do not fit a schema. fastavro does not report that.
It also finds schemas that are unsafe to read with. It uses no reader or writer of fastavro, no
socket and no threads.

All schemas here are results of ``fastavro.parse_schema``. They use full names, and define a named
type once and refer to it by name after that. `named_types` returns the definitions.
"""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any, Final

from jetsync_schema.errors import DefinitionError, Violation, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

DEEPEST: Final = 128
"""
The most levels of nested records, arrays and maps in a document.

fastavro uses a C stack frame for each level and does not check the depth. A few thousand levels of
one byte each crash the process (seen with 1.13.1). 500 levels worked.
"""

MOST_EMPTY: Final = 1000
"""
The most parts of a value that take no bytes, such as nulls. Each of them costs time and memory, and
a document of a few bytes could have any number of them.
"""

LONGEST: Final = 10
"""The most bytes of an integer: 64 bits, seven in each byte."""

SIZES: Final = {"float": 4, "double": 8}
"""The types of fixed size, and their bytes."""

PARTS: Final = frozenset({"type", "fields", "items", "values"})
"""The keys of a schema that contain other schemas."""

DECIMAL: Final = frozenset({"decimal"})

BEYOND_PYTHON: Final = frozenset(
    {
        "date",
        "timestamp-millis",
        "timestamp-micros",
        "local-timestamp-millis",
        "local-timestamp-micros",
    }
)
"""Logical types that allow years before 1 and after 9999, which Python does not support."""

Step = str | int


class Misfit(Exception):  # noqa: N818 - it ends the walk and never reaches a caller
    """
    A part that does not fit, with its path.
    """

    def __init__(self, way: list[Step], reason: str) -> None:
        super().__init__(reason)
        self.violation = Violation(path_of(way), reason)


def type_of(schema: Any) -> str:
    """
    Return the type of a schema as a word: a primitive type, a complex type, or a name.
    """
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, dict):
        inner = schema["type"]
        return inner if isinstance(inner, str) else type_of(inner)
    return str(schema)


def named_types(schema: Any) -> dict[str, Any]:
    """
    Return the records, enums and fixed types of a schema by their names.
    """
    return {
        each["name"]: each
        for each in _parts(schema)
        if isinstance(each, dict) and each["type"] in {"record", "error", "enum", "fixed"}
    }


def _parts(schema: Any) -> Iterator[Any]:
    """Yield a schema and all schemas in it."""
    yield schema
    for inner in _inner(schema):
        yield from _parts(inner)


def _inner(schema: Any) -> list[Any]:
    """Return the direct sub-schemas of a schema."""
    if not isinstance(schema, dict):
        return schema if isinstance(schema, list) else []
    kind = schema["type"]
    if kind in {"record", "error"}:
        return [field["type"] for field in schema["fields"]]
    if kind == "array":
        return [schema["items"]]
    if kind == "map":
        return [schema["values"]]
    return [] if isinstance(kind, str) else [kind]


def is_recursive(schema: Any, names: dict[str, Any]) -> bool:
    """
    Return whether a type of the schema can contain itself, so that documents can have any depth.
    """
    done: set[str] = set()
    """Records that were already checked. Each record is checked only once."""

    def visit(schema: Any, above: frozenset[str]) -> bool:
        if isinstance(schema, list):
            return any(visit(branch, above) for branch in schema)
        name = schema if isinstance(schema, str) else schema.get("name")
        if name in above:
            return True
        if name in done or (isinstance(schema, str) and schema not in names):
            return False
        found = names.get(name, schema)
        inside = above | {name} if name in names else above
        if any(visit(inner, inside) for inner in _inner(found)):
            return True
        if name in names:
            done.add(name)
        return False

    return visit(schema, frozenset())


def has_ints(schema: Any) -> bool:
    """
    Return whether a schema contains an int (32 bits).
    """
    return any(type_of(each) == "int" for each in _parts(schema))


def has_logical(schema: Any, kinds: frozenset[str]) -> bool:
    """
    Return whether a schema contains one of these logical types.
    """
    return any(
        isinstance(each, dict) and each.get("logicalType") in kinds for each in _parts(schema)
    )


def without_logical(schema: Any, kinds: frozenset[str]) -> Any:
    """
    Return the schema with these logical types replaced by their underlying types.
    """
    if isinstance(schema, list):
        return [without_logical(each, kinds) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_logical(value, kinds) if key in PARTS else value
        for key, value in schema.items()
        if key != "logicalType" or value not in kinds
    }


def check_sizes(schema: Any, names: dict[str, Any]) -> None:
    """
    Refuse arrays whose items take no bytes, because ten bytes could announce any number of them,
    and values with too many parts that take no bytes.

    Raises:
        DefinitionError: The schema contains such an array or value.
    """
    nothing = _records_of_nothing(names)
    _count_nothing(schema, nothing)
    for each in _parts(schema):
        is_array = isinstance(each, dict) and each["type"] == "array"
        if is_array and _takes_nothing(each["items"], nothing):
            raise DefinitionError("Avro", "an array of items that take no bytes could be endless")


def _records_of_nothing(names: dict[str, Any]) -> set[str]:
    """
    Return the names of types that take no bytes.

    Types that take bytes are removed until nothing changes. So a record that contains only itself
    stays in the result, and fastavro would never finish reading it either.
    """
    nothing = {
        name
        for name, schema in names.items()
        if schema["type"] in {"record", "error"} or schema.get("size") == 0
    }
    while True:
        wrong = {
            name
            for name in nothing
            for field in names[name].get("fields", ())
            if not _takes_nothing(field["type"], nothing)
        }
        if not wrong:
            return nothing
        nothing -= wrong


def _count_nothing(schema: Any, nothing: set[str]) -> None:
    """
    Refuse values with too many parts that take no bytes.

    22 records, each of which contains the next one twice, end in millions of nulls.
    """
    known: dict[str, int] = {}

    def count(schema: Any) -> int:
        if isinstance(schema, list):
            # The index of the branch takes a byte.
            for branch in schema:
                count(branch)
            return 0
        name = schema if isinstance(schema, str) else schema.get("name")
        if name in known:
            return known[name]
        if isinstance(schema, str):
            return int(schema == "null")
        kind = schema["type"]
        if kind in {"array", "map"}:
            # The number of its items takes a byte.
            count(_inner(schema)[0])
            return 0
        if name is None:
            return count(kind)
        # For a record that contains itself.
        known[name] = 0
        known[name] = sum(map(count, _inner(schema))) + (name in nothing)
        if known[name] > MOST_EMPTY:
            raise DefinitionError(
                "Avro",
                f"a value of {name} has more than {MOST_EMPTY:,} parts that take no bytes, so a"
                " document of a few bytes could take hours: leave out fields of type null",
            )
        return known[name]

    count(schema)


def _takes_nothing(schema: Any, nothing: set[str]) -> bool:
    if isinstance(schema, dict) and "name" not in schema:
        return _takes_nothing(schema["type"], nothing)
    name = schema["name"] if isinstance(schema, dict) else schema
    return name == "null" or (isinstance(name, str) and name in nothing)


class ByteWalk:
    """
    Check the bytes of one document.
    """

    def __init__(self, data: bytes | bytearray, names: dict[str, Any]) -> None:
        self._data = data
        self._names = names
        self._at = 0
        self._way: list[Step] = []

    def run(self, schema: Any) -> Violation | None:
        """
        Return the first part that does not fit; None if all fit.
        """
        try:
            self._walk(schema)
            if self._at != len(self._data):
                raise Misfit([], f"{len(self._data) - self._at} bytes follow the end")
        except Misfit as found:
            return found.violation
        except RecursionError:
            # The caller's own stack is already deep.
            return self._too_deep().violation
        return None

    def _too_deep(self) -> Misfit:
        return Misfit(self._way[:10], f"it is nested more than {DEEPEST} levels deep")

    def _walk(self, schema: Any) -> None:
        kind = type_of(schema)
        if kind in self._names:
            schema = self._names[kind]
            kind = type_of(schema)
        if kind == "union":
            self._walk(schema[self._index(len(schema), "branches")])
        elif kind in {"record", "error"}:
            for field in schema["fields"]:
                self._step(field["name"], field["type"])
        elif kind == "array":
            self._blocks(schema["items"], of_map=False)
        elif kind == "map":
            self._blocks(schema["values"], of_map=True)
        elif kind == "enum":
            self._index(len(schema["symbols"]), "symbols")
        elif kind == "fixed":
            self._check_digits(schema, self._take(schema["size"]))
        elif isinstance(schema, dict) and not isinstance(schema["type"], str):
            self._walk(schema["type"])
        elif kind == "bytes":
            self._check_digits(schema, self._take(self._integer()))
        else:
            self._primitive(kind)

    def _check_digits(self, schema: Any, raw: bytes) -> None:
        """Refuse a decimal with more digits than its schema allows. Ignore other types."""
        if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
            number = decimal.Decimal(int.from_bytes(raw, "big", signed=True))
            precision = schema.get("precision")
            if precision and number.adjusted() >= precision:
                raise Misfit(self._way, f"a decimal has more than {precision} digits")

    def _step(self, step: Step, schema: Any) -> None:
        if len(self._way) == DEEPEST:
            raise self._too_deep()
        self._way.append(step)
        self._walk(schema)
        self._way.pop()

    def _blocks(self, schema: Any, *, of_map: bool) -> None:
        place = 0
        while count := self._integer():
            # The size of the block in bytes follows, for readers that skip the block.
            size = self._integer() if count < 0 else None
            begin = self._at
            for _ in range(abs(count)):
                self._step(self._text() if of_map else place, schema)
                place += 1
            if size is not None and size != self._at - begin:
                raise Misfit(
                    self._way, f"a block has {self._at - begin} bytes instead of its stated {size}"
                )

    def _primitive(self, kind: str) -> None:
        if kind == "long":
            self._integer()
        elif kind == "int":
            if not -(2**31) <= self._integer() < 2**31:
                raise Misfit(self._way, "an int takes more than 32 bits")
        elif kind == "boolean":
            if self._take(1)[0] > 1:
                raise Misfit(self._way, "a boolean is neither 0 nor 1")
        elif kind == "string":
            self._text()
        else:
            self._take(SIZES.get(kind, 0))

    def _index(self, count: int, what: str) -> int:
        index = self._integer()
        if not 0 <= index < count:
            raise Misfit(self._way, f"index {index} is invalid: there are {count} {what}")
        return index

    def _text(self) -> str:
        raw = self._take(self._integer())
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise Misfit(self._way, "the text is not UTF-8") from None

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0:
            raise Misfit(self._way, f"its size is negative: {size} bytes")
        if end > len(self._data):
            raise Misfit(
                self._way,
                f"it ends too early: it needs {size} bytes, and {len(self._data) - self._at}"
                " are left",
            )
        found = bytes(self._data[self._at : end])
        self._at = end
        return found

    def _integer(self) -> int:
        value = shift = 0
        for _ in range(LONGEST):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80 and value < 2**64:
                return (value >> 1) ^ -(value & 1)
        raise Misfit(self._way, "an integer takes more than 64 bits")


def is_too_deep(value: Any) -> bool:
    """
    Return whether a value has more levels than jetsync-schema writes.
    """
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list, tuple))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True
