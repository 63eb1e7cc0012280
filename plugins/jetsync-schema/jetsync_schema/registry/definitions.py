"""
Read the definitions of contracts: JSON in the files of a directory or the keys of a bucket.

A definition is an object with ``subjects`` (a pattern or a list of them), ``kind`` (``"json"``,
``"avro"`` or ``"pydantic"``), an optional ``name``, and the arguments of its kind. Write access to
a bucket must not allow running code. So only definitions in a directory can have models imported.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

import jetsync
from jetsync_schema.contract import Contract
from jetsync_schema.errors import DefinitionError, MismatchError, Violation, reason_of
from jetsync_schema.formats.avro_schema import AvroSchema
from jetsync_schema.formats.json_schema import JsonSchema, read_json
from jetsync_schema.formats.pydantic_model import PydanticModel, model_by_name
from jetsync_schema.registry.patterns import check_pattern

if TYPE_CHECKING:
    from collections.abc import Callable

INDEX: Final = "index.json"
"""The file of a directory that lists its contracts."""

COMMON: Final = {"subjects", "kind", "name"}

FIELDS: Final = {
    "json": {"schema", "draft", "formats", "documents"},
    "avro": {"schema", "versions", "id"},
    "pydantic": {"model", "strict"},
}
"""The fields of each kind, in addition to the common ones."""

NEEDED: Final = {"json": "schema", "avro": "schema", "pydantic": "model"}


@attrs.frozen
class Definition:
    """
    A contract with its name and subjects.
    """

    name: str
    subjects: tuple[str, ...]
    contract: Contract


@attrs.frozen
class Surroundings:
    """
    The models and files that a definition may refer to.
    """

    models: Mapping[str, Any] = attrs.field(factory=dict)
    """Models by the names that definitions use."""

    imports: bool = False
    """Whether models of the form ``package.module:Name`` are imported."""

    directory: Path | None = None
    """The directory of schema files. If it is None, a definition cannot name files."""

    def model(self, name: object) -> Any:
        """
        Return a model by its name.
        """
        if isinstance(name, str) and name in self.models:
            return self.models[name]
        if self.imports:
            return model_by_name(name)
        known = ", ".join(sorted(self.models)) or "none"
        raise DefinitionError("pydantic model", f"unknown model {name!r}; known models: {known}")

    def schema(self, said: object) -> Any:
        """
        Return the schema in a definition, or in the file that the definition names.
        """
        if self.directory is None or not isinstance(said, str):
            return said
        return read_file(self.directory, said)

    def documents(self, schema: object, given: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return the documents that a JSON Schema refers to, by name: *given* and files.
        """
        found = dict(given)
        if self.directory is None:
            return found
        missing = references(schema)
        while missing:
            name = missing.pop()
            if name not in found:
                found[name] = read_file(self.directory, name)
                missing |= references(found[name])
        return found


def references(schema: object) -> set[str]:
    """
    Return the names of other documents that a JSON Schema refers to. URLs are ignored.
    """
    if isinstance(schema, list):
        return {name for each in schema for name in references(each)}
    if not isinstance(schema, dict):
        return set()
    found = {name for each in schema.values() for name in references(each)}
    said = schema.get("$ref")
    if isinstance(said, str):
        name = said.partition("#")[0]
        if name and ":" not in name:
            found.add(name)
    return found


def read_file(directory: Path, name: str) -> Any:
    """
    Read a JSON file in the directory.

    Raises:
        DefinitionError: The file does not exist, is not JSON, or is outside the directory.
    """
    try:
        path = (directory / name).resolve()
        if not path.is_relative_to(directory.resolve()):
            raise DefinitionError(str(directory / name), "it is outside the directory")
        return read_json(path.read_bytes())
    except (OSError, MismatchError) as error:
        raise DefinitionError(str(directory / name), str(error)) from error


def read_directory(directory: Path, models: Mapping[str, Any]) -> list[Definition]:
    """
    Return the definitions in the index of a directory.

    Raises:
        DefinitionError: A definition is invalid. In that case none of them is used.
    """
    index = read_file(directory, INDEX)
    source = str(directory / INDEX)
    said = index.get("contracts") if isinstance(index, dict) else None
    if not isinstance(said, list):
        raise DefinitionError(source, 'it must be an object with a list "contracts"')
    around = Surroundings(models, imports=True, directory=directory)
    found = []
    for place, each in enumerate(said):
        try:
            found.append(read_definition(each, None, around))
        except jetsync.JetSyncError as error:
            raise DefinitionError(f"{source}: contract {place}", str(error)) from error
    return found


def parse_definition(data: bytes, name: str, around: Surroundings) -> Definition:
    """
    Read the definition in the value of a key.

    Raises:
        JetSyncError: The definition is invalid.
    """
    return read_definition(read_json(data), name, around)


def read_definition(said: object, name: str | None, around: Surroundings) -> Definition:
    """
    Create the contract of a definition.

    Args:
        said: The definition, parsed from JSON.
        name: The name if the definition has none; None uses its first pattern.
        around: The models and files that it may refer to.

    Raises:
        JetSyncError: The definition is invalid.
    """
    if not isinstance(said, dict):
        raise DefinitionError("definition", "it must be an object")
    kind = said.get("kind", "json")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise DefinitionError(
            "definition", f"kind must be one of {', '.join(FIELDS)}, not {kind!r}"
        )
    for field in said:
        if field not in COMMON | FIELDS[kind]:
            near = difflib.get_close_matches(field, COMMON | FIELDS[kind], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DefinitionError("definition", f"{kind} has no field {field!r}{hint}")
    if NEEDED[kind] not in said:
        raise DefinitionError("definition", f"{kind} needs {NEEDED[kind]!r}")
    patterns = said.get("subjects")
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(patterns, list) or not patterns:
        raise DefinitionError("definition", '"subjects" must be a pattern or a list of patterns')
    subjects = tuple(map(check_pattern, patterns))
    own_name = said.get("name", name or subjects[0])
    if not isinstance(own_name, str) or not own_name:
        raise DefinitionError("definition", f"a name must be text, not {own_name!r}")
    return Definition(own_name, subjects, MAKERS[kind](said, around))


def _json(said: dict[str, Any], around: Surroundings) -> Contract:
    schema = around.schema(said["schema"])
    given = said.get("documents", {})
    if not isinstance(given, dict):
        raise DefinitionError("definition", '"documents" must be an object')
    return JsonSchema(
        schema,
        _checked(said, "draft", str),
        formats=_checked(said, "formats", bool) or False,
        documents=around.documents(schema, given),
    )


def _avro(said: dict[str, Any], around: Surroundings) -> Contract:
    versions = said.get("versions", [])
    if isinstance(versions, dict):
        versions = {key: around.schema(each) for key, each in versions.items()}
    elif isinstance(versions, list):
        versions = [around.schema(each) for each in versions]
    return AvroSchema(
        around.schema(said["schema"]), versions=versions, id=_checked(said, "id", str)
    )


def _pydantic(said: dict[str, Any], around: Surroundings) -> Contract:
    return PydanticModel(around.model(said["model"]), _checked(said, "strict", bool))


MAKERS: Final[dict[str, Callable[[dict[str, Any], Surroundings], Contract]]] = {
    "json": _json,
    "avro": _avro,
    "pydantic": _pydantic,
}


def _checked(said: dict[str, Any], field: str, kind: type) -> Any:
    value = said.get(field)
    if value is not None and not isinstance(value, kind):
        shown = json.dumps(value)[:40]
        raise DefinitionError("definition", f"{field!r} must be {kind.__name__}, not {shown}")
    return value


class DefinitionContract(Contract):
    """
    The contract for definitions themselves. It keeps invalid definitions out of a bucket.
    """

    kind = "definition"

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def load(self, data: bytes | bytearray, schema_id: str | None = None) -> Definition:  # noqa: ARG002
        """
        Return the definition.
        """
        try:
            return parse_definition(bytes(data), "key", self._around)
        except MismatchError:
            raise
        except jetsync.JetSyncError as error:
            raise MismatchError(Violation("$", reason_of(error))) from error

    def dump(self, document: Any) -> bytes:
        """
        Return a definition as JSON.
        """
        data = json.dumps(document).encode()
        self.load(data)
        return data
