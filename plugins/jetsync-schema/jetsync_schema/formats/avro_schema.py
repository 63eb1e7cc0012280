"""
Contracts in Avro. Payloads contain no schema; the header ``Schema-Id`` names the writer's schema.

By default, the id is the fingerprint that Avro defines for this use (CRC-64-AVRO of the parsing
canonical form), in 16 hexadecimal digits. It is the same everywhere and needs no schema registry.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Final

import attrs

from jetsync_schema.contract import Contract
from jetsync_schema.errors import DefinitionError, MismatchError, Violation, missing, reason_of
from jetsync_schema.formats.avro_values import Resolution, ValueWalk
from jetsync_schema.formats.avro_walk import (
    BEYOND_PYTHON,
    DECIMAL,
    DEEPEST,
    ByteWalk,
    check_sizes,
    has_ints,
    has_logical,
    is_recursive,
    is_too_deep,
    named_types,
    without_logical,
)

__all__ = ["AvroSchema"]

SOURCE: Final = "Avro"

LONG: Final = re.compile(rb"[\x80-\xff]{4}")
"""The start of every encoded integer of more than 32 bits."""

SINGLE_OBJECT: Final = b"\xc3\x01"
"""
The start of a document in Avro's single-object encoding. The fingerprint of its schema follows, in
8 bytes, little-endian.
"""

PREFIX_SIZE: Final = len(SINGLE_OBJECT) + 8

Versions = Sequence[Any] | Mapping[str, Any]


@attrs.frozen
class _Writer:
    """
    A schema that may have written a document.
    """

    parsed: Any
    names: dict[str, Any]
    recursive: bool
    ints: bool
    """Whether the schema contains an int. fastavro treats it as a long."""

    decimals: bool
    """Whether the schema contains a decimal. fastavro rounds decimals with too many digits."""

    plain: Any
    """The schema with numbers for dates and times; None if it has neither."""


@attrs.frozen(repr=False)
class AvroSchema(Contract):
    """
    A contract in Avro.

    Published messages must be encoded with *schema*, or with the schema in *versions* whose id is
    in their header ``Schema-Id``. Received messages may be encoded with any of these schemas. They
    are converted to *schema* by Avro's rules for schema evolution. A message without the header
    counts as encoded with *schema*. If it is published, the plugin adds the header.

    Args:
        schema: The schema, as `json.loads` returns it.
        versions: Earlier schemas, or later ones that other publishers already use: a sequence, or
            a mapping by id. *schema* must be able to read data of all of them.
        id: The id of *schema*; None uses its fingerprint.

    Raises:
        DefinitionError: A schema is invalid, or *schema* cannot read one of the versions.
        ConfigurationError: fastavro is not installed.
    """

    kind: ClassVar[str] = "avro"

    schema: Any
    versions: Versions = attrs.field(default=(), kw_only=True)
    id: str | None = attrs.field(default=None, kw_only=True)
    _library: ModuleType = attrs.field(init=False, eq=False)
    _own_id: str = attrs.field(init=False, eq=False)
    _own: _Writer = attrs.field(init=False, eq=False)
    _writers: dict[str, _Writer] = attrs.field(init=False, eq=False)
    _ids: dict[bytes, str] = attrs.field(init=False, eq=False)
    """The ids of the schemas by the starts of their values in buckets; that of *schema* first."""

    def __attrs_post_init__(self) -> None:
        library = _fastavro()
        own = _parsed(library, self.schema)
        own_id = fingerprint(library, self.schema) if self.id is None else self.id
        writers = {own_id: own}
        ids = {_prefix(library, self.schema): own_id}
        for each_id, schema in _by_id(library, self.versions):
            writer = _parsed(library, schema)
            problem = Resolution(writer.names, own.names).problem(writer.parsed, own.parsed)
            if problem is not None:
                raise DefinitionError(SOURCE, f"version {each_id} cannot be read: {problem}")
            writers.setdefault(each_id, writer)
            ids.setdefault(_prefix(library, schema), each_id)
        given: list[Any] = list(writers)
        for each in given:
            if not isinstance(each, str) or not each.strip():
                raise DefinitionError(SOURCE, f"an id must be text, not {each!r}")
        for name, value in (
            ("_library", library),
            ("_own_id", own_id),
            ("_own", own),
            ("_writers", writers),
            ("_ids", ids),
        ):
            object.__setattr__(self, name, value)

    @property
    def schema_id(self) -> str:
        """
        The id of *schema*, as in the header.
        """
        return self._own_id

    @property
    def known_ids(self) -> list[str]:
        """
        The ids of all schemas that can be read; the id of *schema* comes first.
        """
        return list(self._writers)

    def load(self, data: bytes | bytearray, schema_id: str | None = None) -> Any:
        """
        Return the document. Records are dictionaries, as in fastavro.
        """
        writer = self._own if schema_id is None else self._writers.get(schema_id)
        if writer is None:
            known = ", ".join(self._writers)
            reason = f"Schema-Id {schema_id!r} is unknown; known ids: {known}"
            raise MismatchError(Violation("$", reason))
        document = self._document(writer, data)
        if writer is self._own:
            return document
        return self._read(writer, data, self._own.parsed)

    def dump(self, document: Any) -> bytes:
        """
        Encode a document with *schema*. Fields with a default may be left out.
        """
        if is_too_deep(document):
            raise MismatchError(Violation("$", f"it is nested more than {DEEPEST} levels deep"))
        own = self._own
        try:
            data = self._written(own, document)
        except Exception as error:  # noqa: BLE001 - invalid values can raise nearly anything
            kind = type(error).__name__
        else:
            if own.decimals:
                self._walk(own, data)
            if not own.ints or LONG.search(data) is None or self._fits(document, own.parsed):
                return data
            kind = ""
        found = ValueWalk(own.names, self._fits).find(own.parsed, document, [])
        if kind or found is not None:
            # Does not quote the library's error, because that contains values.
            raise MismatchError(found or Violation("$", f"cannot be written: {kind}"))
        return data

    def encode(self, key: str, value: Any) -> bytes:  # noqa: ARG002
        """
        Convert a document to the value of a key, in Avro's single-object encoding.

        A codec sees no headers, so the fingerprint of the schema is in the value.
        """
        return next(iter(self._ids)) + self.dump(value)

    def decode(self, key: str, value: bytes) -> Any:  # noqa: ARG002
        """
        Convert the value of a key, written with any of the schemas, to a document of *schema*.
        """
        if not value.startswith(SINGLE_OBJECT) or len(value) < PREFIX_SIZE:
            raise MismatchError(Violation("$", "it is not in Avro's single-object encoding"))
        prefix = value[:PREFIX_SIZE]
        schema_id = self._ids.get(prefix)
        if schema_id is None:
            found = prefix[:1:-1].hex()
            raise MismatchError(Violation("$", f"no schema has its fingerprint {found}"))
        return self.load(value[PREFIX_SIZE:], schema_id)

    def describe(self) -> dict[str, Any]:
        """
        Return the fields of a definition of this contract.
        """
        found: dict[str, Any] = {"kind": self.kind, "schema": self.schema}
        if self.versions:
            found["versions"] = self.versions
        if self.id is not None:
            found["id"] = self.id
        return found

    def _document(self, writer: _Writer, data: bytes | bytearray) -> Any:
        """Return the document, or raise if a byte violates the Avro specification."""
        if writer.recursive or writer.decimals:
            self._walk(writer, data)
            return self._read(writer, data)
        document = self._read(writer, data)
        # fastavro also accepts invalid bytes: branch -1 of a union, symbol -1 of an enum, any byte
        # as a boolean. If it writes the document as the same bytes, they are valid. If not, they
        # may still be valid, and the walk checks them.
        try:
            again = self._written(writer, document)
        except Exception:  # noqa: BLE001 - as in _read
            again = None
        same = again == data
        if same and writer.ints and LONG.search(data) is not None:
            same = self._fits(document, writer.parsed)
        if not same:
            self._walk(writer, data)
        return document

    def _read(self, writer: _Writer, data: bytes | bytearray, reader: Any = None) -> Any:
        try:
            return self._library.schemaless_reader(io.BytesIO(data), writer.parsed, reader)
        except Exception as error:  # noqa: BLE001 - invalid bytes can raise nearly anything
            kind = type(error).__name__
        self._walk(writer, data)
        if writer.plain is not None:
            # Avro supports dates and times that Python does not.
            with contextlib.suppress(Exception):
                return self._library.schemaless_reader(io.BytesIO(data), writer.plain, reader)
        # Neither chains nor quotes the library's error, because that contains values.
        raise MismatchError(Violation("$", f"cannot be read: {kind}"))

    def _written(self, writer: _Writer, document: Any) -> bytes:
        target = io.BytesIO()
        self._library.schemaless_writer(target, writer.parsed, document, strict_allow_default=True)
        return target.getvalue()

    def _walk(self, writer: _Writer, data: bytes | bytearray) -> None:
        found = ByteWalk(data, writer.names).run(writer.parsed)
        if found is not None:
            raise MismatchError(found)

    def _fits(self, value: Any, schema: Any) -> bool:
        try:
            return bool(self._library.validate(value, schema, raise_errors=False))
        except Exception:  # noqa: BLE001 - a value that cannot be validated does not fit
            return False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.schema, self.versions, self.id)

    def __repr__(self) -> str:
        return f"<AvroSchema {self._own_id}>"


def _rebuild(schema: Any, versions: Versions, own_id: str | None) -> AvroSchema:
    return AvroSchema(schema, versions=versions, id=own_id)


def fingerprint(library: ModuleType, schema: Any) -> str:
    """
    Return the CRC-64-AVRO fingerprint of a schema. Equivalent schemas have the same fingerprint.
    """
    try:
        canonical = library.schema.to_parsing_canonical_form(copy.deepcopy(schema))
        said = library.schema.fingerprint(canonical, "CRC-64-AVRO")
        # fastavro returns the bytes in little-endian order. The usual notation is big-endian.
        return bytes.fromhex(said)[::-1].hex()
    except Exception as error:
        # A broken schema can make fastavro raise any exception.
        raise DefinitionError(SOURCE, reason_of(error)) from error


def _prefix(library: ModuleType, schema: Any) -> bytes:
    return SINGLE_OBJECT + bytes.fromhex(fingerprint(library, schema))[::-1]


def _fastavro() -> ModuleType:
    try:
        library = importlib.import_module("fastavro")
    except ImportError as error:
        raise missing("avro", "fastavro", error) from error
    return library


def _by_id(library: ModuleType, versions: Versions) -> list[tuple[str, Any]]:
    if isinstance(versions, Mapping):
        return list(versions.items())
    if isinstance(versions, str) or not isinstance(versions, Sequence):
        raise DefinitionError(SOURCE, "versions must be a list of schemas, or a mapping by id")
    return [(fingerprint(library, schema), schema) for schema in versions]


def _parsed(library: ModuleType, schema: Any) -> _Writer:
    try:
        parsed = library.parse_schema(copy.deepcopy(schema))
        names = named_types(parsed)
        check_sizes(parsed, names)
        plain = None
        if has_logical(parsed, BEYOND_PYTHON):
            plain = library.parse_schema(without_logical(copy.deepcopy(schema), BEYOND_PYTHON))
        return _Writer(
            parsed,
            names,
            is_recursive(parsed, names),
            has_ints(parsed),
            has_logical(parsed, DECIMAL),
            plain,
        )
    except DefinitionError:
        raise
    except Exception as error:
        # As above.
        raise DefinitionError(SOURCE, reason_of(error)) from error
