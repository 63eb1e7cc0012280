"""
Find the value that does not fit an Avro schema, and check whether one schema can read another.

Both follow the Avro specification. This module reads no bytes, and uses no socket and no threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jetsync_schema.errors import Violation, path_of
from jetsync_schema.formats.avro_walk import type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync_schema.formats.avro_walk import Step

CONTAINERS: Final = frozenset({"record", "error", "array", "map"})

PROMOTIONS: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""The types as which a value may be read, by the type as which it was written."""


class ValueWalk:
    """
    Find the part of a value that could not be written.

    Args:
        names: The named types of the schema.
        fits: Returns whether a value fits a schema that contains no other schemas.
    """

    def __init__(self, names: dict[str, Any], fits: Callable[[Any, Any], bool]) -> None:
        self._names = names
        self._fits = fits

    def find(self, schema: Any, value: Any, way: list[Step]) -> Violation | None:
        """
        Return the first innermost value that does not fit; None if all fit.
        """
        kind = type_of(schema)
        if kind in self._names:
            schema = self._names[kind]
            kind = type_of(schema)
        if kind == "union":
            return self._in_union(schema, value, way)
        if kind in {"record", "error"} and isinstance(value, dict):
            return self._in_record(schema, value, way)
        if kind == "array" and isinstance(value, (list, tuple)):
            return self._first(
                ((index, schema["items"], item) for index, item in enumerate(value)), way
            )
        if kind == "map" and isinstance(value, dict):
            return self._first(((key, schema["values"], item) for key, item in value.items()), way)
        if kind not in CONTAINERS and self._fits(value, schema):
            return None
        return self._misfit(schema, value, way)

    def _in_union(self, schema: Any, value: Any, way: list[Step]) -> Violation | None:
        found = [self.find(branch, value, way) for branch in schema if type_of(branch) != "null"]
        if not all(found) or (value is None and len(found) < len(schema)):
            return None
        if len(found) == 1 and value is not None:
            # The union is an optional value, so the problem is in its only type.
            return found[0]
        return self._misfit(schema, value, way)

    def _misfit(self, schema: Any, value: Any, way: list[Step]) -> Violation:
        given, wanted = type(value).__name__, self._name(schema)
        # The type may be right and the value wrong: an Avro int has 32 bits.
        own = given in wanted.split()
        reason = (
            f"the value is not a valid Avro {wanted}" if own else f"expected {wanted}, not {given}"
        )
        return Violation(path_of(way), reason)

    def _in_record(self, schema: Any, value: dict[str, Any], way: list[Step]) -> Violation | None:
        fields = {field["name"]: field for field in schema["fields"]}
        for name, field in fields.items():
            if name not in value and "default" not in field:
                return Violation(path_of(way), f"field {name!r} is missing")
        for name in value:
            if name not in fields:
                return Violation(path_of(way), f"the schema has no field {name!r}")
        named = (
            (name, each["type"], value[name]) for name, each in fields.items() if name in value
        )
        return self._first(named, way)

    def _first(self, parts: Iterable[tuple[Step, Any, Any]], way: list[Step]) -> Violation | None:
        found = (self.find(schema, value, [*way, step]) for step, schema, value in parts)
        return next(filter(None, found), None)

    def _name(self, schema: Any) -> str:
        if isinstance(schema, list):
            return " or ".join(self._name(branch) for branch in schema)
        if isinstance(schema, dict):
            return str(schema.get("name") or schema.get("logicalType") or type_of(schema))
        return str(schema)


class Resolution:
    """
    Check whether one schema can read another schema's documents, by Avro's rules.

    Args:
        written: The named types of the writer's schema.
        read: The named types of the reader's schema.
    """

    def __init__(self, written: dict[str, Any], read: dict[str, Any]) -> None:
        self._written = written
        self._read = read
        self._seen: set[tuple[str, str]] = set()
        """Pairs of records that were already checked, so that recursive schemas terminate."""

    def problem(self, writer: Any, reader: Any, way: tuple[Step, ...] = ()) -> Violation | None:
        """
        Return the first part that cannot be read; None if everything can.
        """
        writer, wrote = self._resolved(writer, self._written)
        reader, reads = self._resolved(reader, self._read)
        if wrote == "union":
            # The writer may have used any branch.
            return next(filter(None, (self.problem(each, reader, way) for each in writer)), None)
        if reads == "union":
            problems = [self.problem(writer, branch, way) for branch in reader]
            if any(each is None for each in problems):
                return None
            return Violation(path_of(way), f"{wrote} cannot be read as any type of the union")
        if wrote != reads:
            if reads in PROMOTIONS.get(wrote, ()):
                return None
            return Violation(path_of(way), f"{wrote} cannot be read as {reads}")
        return self._of_one_kind(wrote, writer, reader, way)

    def _of_one_kind(
        self, kind: str, writer: Any, reader: Any, way: tuple[Step, ...]
    ) -> Violation | None:
        if kind == "array":
            return self.problem(writer["items"], reader["items"], (*way, 0))
        if kind == "map":
            return self.problem(writer["values"], reader["values"], (*way, "*"))
        if kind not in {"record", "error", "enum", "fixed"}:
            return None
        name = writer["name"].rpartition(".")[2]
        known = {reader["name"].rpartition(".")[2], *map(_last, reader.get("aliases", ()))}
        if name not in known:
            return Violation(path_of(way), f"{name} is not {_last(reader['name'])}")
        if kind == "fixed" and writer["size"] != reader["size"]:
            return Violation(path_of(way), f"{name} has another size")
        if kind == "enum":
            gone = set(writer["symbols"]) - set(reader["symbols"])
            if gone and "default" not in reader:
                return Violation(path_of(way), f"symbol {min(gone)!r} was removed")
        return None if kind in {"fixed", "enum"} else self._records(writer, reader, way)

    def _records(self, writer: Any, reader: Any, way: tuple[Step, ...]) -> Violation | None:
        pair = (writer["name"], reader["name"])
        if pair in self._seen:
            return None
        self._seen.add(pair)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            found = next((written[name] for name in names if name in written), None)
            if found is not None:
                problem = self.problem(found["type"], field["type"], (*way, field["name"]))
                if problem is not None:
                    return problem
            elif "default" not in field:
                where = path_of((*way, field["name"]))
                return Violation(where, "the writer's schema lacks it, and it has no default")
        return None

    def _resolved(self, schema: Any, names: dict[str, Any]) -> tuple[Any, str]:
        while True:
            kind = type_of(schema)
            if isinstance(schema, str) and schema in names:
                schema = names[schema]
            elif isinstance(schema, dict) and not isinstance(schema["type"], str):
                schema = schema["type"]
            else:
                return schema, kind


def _last(name: str) -> str:
    return name.rpartition(".")[2]
