r"""
Contracts in JSON Schema, checked by jsonschema-rs.

It is the fastest validator for Python that supports all drafts in use and passes the official test
suite. It has one wheel per platform for all interpreters.

These differences from the reference implementation in Python are intended:

- A document must be JSON as in RFC 8259: UTF-8, no ``NaN``, no ``Infinity``, no number too large
  for a float, no half of a surrogate pair.
- ``multipleOf`` uses decimals, so that 19.99 is a multiple of 0.01.
- Patterns follow ECMA-262, as JSON Schema requires: ``$`` does not match before a line end, and
  ``\d`` matches ten digits.
- A ``$ref`` to another document is never fetched. That document must be passed as an argument.
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
from jetsync_schema.formats.json_cost import MOST_EVALUATIONS, evaluations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["JsonSchema"]

MOST: Final = 10
"""The most violations that are reported for one document."""

LONGEST_LOOK: Final = 1000
"""The most errors of alternatives that are searched for the closest alternative."""

DRAFTS: Final = {
    "4": "Draft4Validator",
    "6": "Draft6Validator",
    "7": "Draft7Validator",
    "2019-09": "Draft201909Validator",
    "2020-12": "Draft202012Validator",
}

SOURCE: Final = "JSON Schema"

OWN_ADDRESS: Final = "json-schema:///"
"""The prefix that jsonschema-rs gives to the name of a document without its own address."""


class _Validator(Protocol):
    """The part of the validators of jsonschema-rs that this module uses."""

    def is_valid(self, instance: Any) -> bool: ...

    def iter_errors(self, instance: Any) -> Iterator[Any]: ...


def finite(text: str) -> float:
    """Convert a text to a float, and raise if the number is too large."""
    value = float(text)
    if value - value:
        raise ValueError("a number is too large")
    return value


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""The escape of a surrogate, which may be half of a pair."""

HALF_A_PAIR: Final = "a text contains half of a surrogate pair"

DECODER: Final = json.JSONDecoder(parse_float=finite, parse_constant=_refuse)


def read_json(data: bytes | bytearray) -> Any:
    """
    Parse a payload as JSON.

    Raises:
        MismatchError: The payload is not JSON.
    """
    try:
        document = DECODER.decode(data.decode())
        if _HALF.search(data) is not None:
            # A text with half of a pair has no UTF-8 form, so readers could not forward it.
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
    # Not chained to the error, because that contains the whole document.
    raise MismatchError(Violation("$", f"not JSON: {reason}"))


def _written(document: Any) -> bytes:
    try:
        return json.dumps(
            document, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()
    except UnicodeEncodeError:
        reason = HALF_A_PAIR
    except (TypeError, ValueError, RecursionError) as error:
        # The error's text names types, and for a number also the value, which is cut off here.
        reason = reason_of(error).partition(": ")[0]
    # As above.
    raise MismatchError(Violation("$", f"not JSON: {reason}"))


@attrs.frozen(repr=False)
class JsonSchema(Contract):
    """
    A contract in JSON Schema: drafts 4, 6, 7, 2019-09 and 2020-12.

    Args:
        schema: The schema, as `json.loads` returns it.
        draft: ``"4"``, ``"6"``, ``"7"``, ``"2019-09"`` or ``"2020-12"``. None uses the draft that
            ``$schema`` names, or 2020-12 if it names none.
        formats: Whether to check ``format``, which is optional in the drafts.
        documents: Other schemas that ``$ref`` refers to, by name. A reference to an unknown schema
            is an error. The schemas of the drafts are known.

    Raises:
        DefinitionError: The schema is invalid, refers to an unknown document, or is so nested that
            the check of one document could take hours.
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
        Return the document, as `json.loads` returns it.
        """
        document = read_json(data)
        self._check(document)
        return document

    def dump(self, document: Any) -> bytes:
        """
        Return the document as JSON in UTF-8.
        """
        data = _written(document)
        # Check what readers will see: tuples become lists, and keys become text.
        self.load(data)
        return data

    def describe(self) -> dict[str, Any]:
        """
        Return the fields of a definition of this contract.
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
            found = [Violation("$", f"cannot be checked: {reason_of(error)}")]
        raise MismatchError(*found or [Violation("$", "not valid")])

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.schema, self.draft, self.formats, dict(self.documents))

    def __repr__(self) -> str:
        return f"<JsonSchema {self.draft or 'draft as it says'}>"


def _rebuild(schema: Any, draft: str | None, formats: Any, documents: Any) -> JsonSchema:
    return JsonSchema(schema, draft, formats=formats, documents=documents)


def _compiled(contract: JsonSchema) -> _Validator:
    """
    Compile the schema of a contract.
    """
    try:
        import jsonschema_rs
    except ImportError as error:
        raise missing("json", "jsonschema_rs", error) from error
    schema, draft, documents = contract.schema, contract.draft, contract.documents
    if not isinstance(schema, (dict, bool)):
        raise DefinitionError(SOURCE, "a schema must be an object, true or false")
    if draft is not None and draft not in DRAFTS:
        raise DefinitionError(SOURCE, f"draft must be one of {', '.join(DRAFTS)}, not {draft!r}")

    try:
        cost = evaluations(schema, documents)
    except (RecursionError, ValueError) as error:
        raise DefinitionError(SOURCE, reason_of(error)) from error
    if cost > MOST_EVALUATIONS:
        raise DefinitionError(
            SOURCE,
            f"a small document could take more than {MOST_EVALUATIONS:,} evaluations, because"
            " definitions use others several times: let each of them use another one only once",
        )

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
    Convert an error. For alternatives, add the error of the alternative that matched best.
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
    Yield the steps of a path, and convert numbers back to text if they are keys of an object.
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
