r"""
Contracts in JSON Schema, checked by jsonschema-rs.

It is the fastest validator for Python that knows all drafts in use, checks against the official
test suite, and has one wheel per platform for all interpreters.

Differences from the reference implementation in Python, all on purpose:

- a document is JSON as RFC 8259 has it: UTF-8, no ``NaN`` and no ``Infinity``, no number that no
  float can hold, no half of a surrogate pair;
- ``multipleOf`` counts in decimals, so that 19.99 is a multiple of 0.01;
- patterns are ECMA-262 as JSON Schema asks for: ``$`` does not match before a line end, ``\d`` are
  ten digits;
- a ``$ref`` to another document is never fetched: it has to be given along.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import attrs

from jetsync_schema.contract import Contract
from jetsync_schema.errors import (
    DefinitionError,
    MismatchError,
    Violation,
    missing,
    path_of,
    reason_of,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["JsonSchema"]

MOST: Final = 10
"""Violations of one document that are told."""

LONGEST_LOOK: Final = 1000
"""Errors of alternatives that are looked at to find the one that was meant."""

DRAFTS: Final = {
    "4": "Draft4Validator",
    "6": "Draft6Validator",
    "7": "Draft7Validator",
    "2019-09": "Draft201909Validator",
    "2020-12": "Draft202012Validator",
}

SOURCE: Final = "JSON Schema"

OWN_ADDRESS: Final = "json-schema:///"
"""What the library puts before the name of a document that has no address of its own."""


class _Validator(Protocol):
    """What is used of the library's validators."""

    def is_valid(self, instance: Any) -> bool: ...

    def iter_errors(self, instance: Any) -> Iterator[Any]: ...


def finite(text: str) -> float:
    """Return the number that a text is, unless it is too large for a float."""
    value = float(text)
    if value - value:
        raise ValueError("a number is too large")
    return value


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""What may be half of a surrogate pair."""

HALF_A_PAIR: Final = "a text has half of a surrogate pair in it"

DECODER: Final = json.JSONDecoder(parse_float=finite, parse_constant=_refuse)


def read_json(data: bytes | bytearray) -> Any:
    """
    Return the document that a payload is.

    Raises:
        MismatchError: It is not JSON.
    """
    try:
        document = DECODER.decode(data.decode())
        if _HALF.search(data) is not None:
            # A text with half of a pair in it has no UTF-8 form: nobody could pass it on.
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except RecursionError:
        reason = "it is nested too deeply"
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno} column {error.colno}"
    except UnicodeEncodeError:
        reason = HALF_A_PAIR
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not UTF-8"
    except ValueError as error:
        reason = reason_of(error)
    # Not from the error, which has the whole document in it.
    raise MismatchError(Violation("$", f"not JSON: {reason}"))


def _written(document: Any) -> bytes:
    try:
        return json.dumps(
            document, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()
    except UnicodeEncodeError:
        reason = HALF_A_PAIR
    except (TypeError, ValueError, RecursionError) as error:
        # Its own words are about types; of a number they also say which one it was.
        reason = reason_of(error).partition(": ")[0]
    # As above.
    raise MismatchError(Violation("$", f"not JSON: {reason}"))


@attrs.frozen(repr=False)
class JsonSchema(Contract):
    """
    A contract in JSON Schema: drafts 4, 6, 7, 2019-09 and 2020-12.

    Args:
        schema: The schema, as `json.loads` returns it.
        draft: ``"4"``, ``"6"``, ``"7"``, ``"2019-09"`` or ``"2020-12"``; None for the one that
            ``$schema`` names, and 2020-12 where there is none.
        formats: Whether ``format`` is checked, too; the drafts leave that open.
        documents: Other schemas that ``$ref`` may name, by those names. Nothing else is read or
            fetched, whatever a schema says.

    Raises:
        DefinitionError: The schema is broken, or refers to a document that is not there.
        ConfigurationError: jsonschema-rs is not installed.
    """

    kind: ClassVar[str] = "json"

    schema: dict[str, Any] | bool
    draft: str | None = None
    formats: bool = attrs.field(default=False, kw_only=True)
    documents: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)
    _validator: _Validator = attrs.field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_validator", _compiled(self))

    def load(self, data: bytes | bytearray, schema_id: str | None = None) -> Any:  # noqa: ARG002
        """
        Return the document, as `json.loads` would.
        """
        document = read_json(data)
        self._check(document)
        return document

    def dump(self, document: Any) -> bytes:
        """
        Return the document as JSON in UTF-8.
        """
        data = _written(document)
        # As the other side sees it: tuples are lists there, and keys are text.
        self.load(data)
        return data

    def describe(self) -> dict[str, Any]:
        """
        Return what a definition says about it.
        """
        return {
            "kind": self.kind,
            "schema": self.schema,
            **state_of(draft=self.draft, formats=self.formats),
            **({"documents": dict(self.documents)} if self.documents else {}),
        }

    def _check(self, document: Any) -> None:
        try:
            if self._validator.is_valid(document):
                return
            found = _violations(self._validator.iter_errors(document), document)
        except (ValueError, RecursionError) as error:
            found = [Violation("$", f"can not be checked: {reason_of(error)}")]
        raise MismatchError(*found or [Violation("$", "not valid")])

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.schema, self.draft, self.formats, dict(self.documents))

    def __repr__(self) -> str:
        return f"<JsonSchema {self.draft or 'draft as it says'}>"


def _rebuild(schema: Any, draft: str | None, formats: Any, documents: Any) -> JsonSchema:
    return JsonSchema(schema, draft, formats=formats, documents=documents)


def _compiled(contract: JsonSchema) -> _Validator:
    """
    Return what checks documents.
    """
    try:
        import jsonschema_rs
    except ImportError as error:
        raise missing("json", "jsonschema_rs", error) from error
    schema, draft, documents = contract.schema, contract.draft, contract.documents
    if not isinstance(schema, (dict, bool)):
        raise DefinitionError(SOURCE, "a schema is an object, true or false")
    if draft is not None and draft not in DRAFTS:
        raise DefinitionError(SOURCE, f"there is no draft {draft!r}, only {', '.join(DRAFTS)}")

    def document(address: str) -> Any:
        name = address.removeprefix(OWN_ADDRESS)
        if name not in documents:
            raise ValueError(f"there is no document {name!r}")
        return documents[name]

    make = jsonschema_rs.validator_for if draft is None else getattr(jsonschema_rs, DRAFTS[draft])
    try:
        made: _Validator = make(
            schema, validate_formats=contract.formats, retriever=document, mask="the value"
        )
    except jsonschema_rs.ValidationError as error:
        where = path_of(error.instance_path)
        raise DefinitionError(SOURCE, f"{where}: {error.message}") from error
    except (ValueError, TypeError, RecursionError, jsonschema_rs.ReferencingError) as error:
        raise DefinitionError(SOURCE, reason_of(error)) from error
    return made


def _violations(errors: Iterable[Any], document: Any) -> list[Violation]:
    return [_violation(error, document) for error in itertools.islice(errors, MOST)]


def _violation(error: Any, document: Any) -> Violation:
    """
    Return what an error says; of alternatives, what is wrong with the one that came furthest.
    """
    reason = str(error.message)
    alternatives = getattr(error.kind, "context", None)
    if alternatives:
        inner = [each for branch in alternatives for each in branch][:LONGEST_LOOK]
        deepest = max(inner, key=lambda each: len(each.instance_path), default=None)
        if deepest is not None and len(deepest.instance_path) > len(error.instance_path):
            where = path_of(_way(deepest.instance_path, document))
            reason = f"{reason}; closest: {where}: {deepest.message}"
    return Violation(path_of(_way(error.instance_path, document)), reason)


def _way(said: Iterable[str | int], document: Any) -> Iterator[str | int]:
    """
    Give the steps that the library says, with names that look like numbers as names.
    """
    for step in said:
        if isinstance(document, dict):
            found = step
            if isinstance(step, int):
                found = next((key for key in document if key.isdigit() and int(key) == step), step)
            document = document.get(found)
            yield found
        else:
            within = isinstance(document, list) and isinstance(step, int) and step < len(document)
            document = document[step] if within else None
            yield step
