"""
Contracts in Avro: bytes without a schema in them, whose header says which schema wrote them.

The header ``Schema-Id`` is by default the fingerprint that Avro itself defines for such uses
(CRC-64-AVRO of the parsing canonical form), in 16 hexadecimal digits: it is the same everywhere,
with no registry to ask.
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
"""What every integer that takes more than 32 bits begins with."""

Versions = Sequence[Any] | Mapping[str, Any]


@attrs.frozen
class _Writer:
    """
    A schema that documents may have been written by.
    """

    parsed: Any
    names: dict[str, Any]
    recursive: bool
    ints: bool
    """Whether there is an int in it: the library takes it for a long."""

    decimals: bool
    """Whether there is a decimal in it: the library rounds one that has too many digits."""

    plain: Any
    """The schema with numbers for dates and times; None if there are none."""


@attrs.frozen(repr=False)
class AvroSchema(Contract):
    """
    A contract in Avro.

    What is published is written by *schema*, or by one of *versions* if its header says so. What is
    read may be written by any of them and is read as *schema* has it, by Avro's rules for schemas
    that changed. A message without the header counts as written by *schema*; one that is published
    gets it.

    Args:
        schema: The schema, as `json.loads` returns it.
        versions: Earlier schemas, or later ones that others write by already: a sequence, or a
            mapping by id. *schema* has to be able to read all of them.
        id: The header of what is written by *schema*; None for its fingerprint.

    Raises:
        DefinitionError: A schema is broken, or can not read what another one wrote.
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

    def __attrs_post_init__(self) -> None:
        library = _fastavro()
        own = _parsed(library, self.schema)
        own_id = fingerprint(library, self.schema) if self.id is None else self.id
        writers = {own_id: own}
        for each_id, schema in _by_id(library, self.versions):
            writer = _parsed(library, schema)
            problem = Resolution(writer.names, own.names).problem(writer.parsed, own.parsed)
            if problem is not None:
                raise DefinitionError(SOURCE, f"version {each_id} can not be read: {problem}")
            writers.setdefault(each_id, writer)
        given: list[Any] = list(writers)
        for each in given:
            if not isinstance(each, str) or not each.strip():
                raise DefinitionError(SOURCE, f"an id is text, not {each!r}")
        for name, value in (
            ("_library", library),
            ("_own_id", own_id),
            ("_own", own),
            ("_writers", writers),
        ):
            object.__setattr__(self, name, value)

    @property
    def schema_id(self) -> str:
        """
        The header of what is written by *schema*.
        """
        return self._own_id

    @property
    def known_ids(self) -> list[str]:
        """
        The headers of all that can be read, that of *schema* first.
        """
        return list(self._writers)

    def load(self, data: bytes | bytearray, schema_id: str | None = None) -> Any:
        """
        Return the document as fastavro does: records are dictionaries.
        """
        writer = self._own if schema_id is None else self._writers.get(schema_id)
        if writer is None:
            known = ", ".join(self._writers)
            reason = f"Schema-Id {schema_id!r} is not known, only {known}"
            raise MismatchError(Violation("$", reason))
        document = self._document(writer, data)
        if writer is self._own:
            return document
        return self._read(writer, data, self._own.parsed)

    def dump(self, document: Any) -> bytes:
        """
        Return the bytes of a document by *schema*; a field with a default may be left out.
        """
        if is_too_deep(document):
            raise MismatchError(Violation("$", f"it is nested more than {DEEPEST} levels deep"))
        own = self._own
        try:
            data = self._written(own, document)
        except Exception as error:  # noqa: BLE001 - values of all kinds make it raise nearly anything
            kind = type(error).__name__
        else:
            if own.decimals:
                self._walk(own, data)
            if not own.ints or LONG.search(data) is None or self._fits(document, own.parsed):
                return data
            kind = ""
        found = ValueWalk(own.names, self._fits).find(own.parsed, document, [])
        if kind or found is not None:
            # Not from the library's error: it tells values.
            raise MismatchError(found or Violation("$", f"can not be written: {kind}"))
        return data

    def describe(self) -> dict[str, Any]:
        """
        Return what a definition says about it.
        """
        found: dict[str, Any] = {"kind": self.kind, "schema": self.schema}
        if self.versions:
            found["versions"] = self.versions
        if self.id is not None:
            found["id"] = self.id
        return found

    def _document(self, writer: _Writer, data: bytes | bytearray) -> Any:
        """Return what was written, where each byte of it is as the specification says."""
        if writer.recursive or writer.decimals:
            self._walk(writer, data)
            return self._read(writer, data)
        document = self._read(writer, data)
        # The library also takes what is nothing of the kind: a union's branch -1, an enum's symbol
        # -1, any byte as a boolean. What it writes as those very bytes is fine; anything else may
        # be, and is gone through.
        try:
            again = self._written(writer, document)
        except Exception:  # noqa: BLE001 - as where it is read
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
        except Exception as error:  # noqa: BLE001 - bytes at random make it raise nearly anything
            kind = type(error).__name__
        self._walk(writer, data)
        if writer.plain is not None:
            # Perhaps a date or a time that Avro has, and Python has not.
            with contextlib.suppress(Exception):
                return self._library.schemaless_reader(io.BytesIO(data), writer.plain, reader)
        # Not from the library's error, and without its words: both tell values.
        raise MismatchError(Violation("$", f"can not be read: {kind}"))

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
        except Exception:  # noqa: BLE001 - what can not even be looked at does not fit
            return False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.schema, self.versions, self.id)

    def __repr__(self) -> str:
        return f"<AvroSchema {self._own_id}>"


def _rebuild(schema: Any, versions: Versions, own_id: str | None) -> AvroSchema:
    return AvroSchema(schema, versions=versions, id=own_id)


def fingerprint(library: ModuleType, schema: Any) -> str:
    """
    Return the CRC-64-AVRO fingerprint of a schema, which is the same for all that read alike.
    """
    try:
        canonical = library.schema.to_parsing_canonical_form(copy.deepcopy(schema))
        said = library.schema.fingerprint(canonical, "CRC-64-AVRO")
        # The library gives the bytes in the order of the wire; the number is told the other way.
        return bytes.fromhex(said)[::-1].hex()
    except Exception as error:
        # The library raises whatever a broken schema leads to.
        raise DefinitionError(SOURCE, reason_of(error)) from error


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
        raise DefinitionError(SOURCE, "versions are a list of schemas, or schemas by their ids")
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
