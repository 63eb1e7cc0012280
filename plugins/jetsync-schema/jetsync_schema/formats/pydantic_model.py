"""
Contracts that are pydantic models, or any other type that pydantic can read JSON as.
"""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any, ClassVar, Final, get_origin

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
from jetsync_schema.formats.json_schema import MOST, finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["PydanticModel"]

SOURCE: Final = "pydantic model"

SHAPE: Final = bytes.maketrans(b"123456789E", b"000000000e")
"""Replaces all digits by ``0``, and ``E`` by ``e``."""

LARGE: Final = (b"0e000", b"0" * 210)
"""
After that replacement, a number too large for a float contains one of these: an exponent of three
digits, or so many digits that an exponent of two digits is enough.
"""


@attrs.frozen(repr=False)
class PydanticModel(Contract):
    """
    A contract that is a pydantic model (version 2), a dataclass, or another type for `TypeAdapter`.

    Args:
        model: The type.
        strict: Whether values must have the right type, so that pydantic does not convert ``"3"``
            to a number. None uses the model's setting.

    Raises:
        DefinitionError: pydantic does not support the type.
        ConfigurationError: pydantic 2 is not installed.
    """

    kind: ClassVar[str] = "pydantic"

    model: Any
    strict: bool | None = None
    _adapter: Any = attrs.field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_adapter", _adapter_of(self.model))

    def load(self, data: bytes | bytearray, schema_id: str | None = None) -> Any:  # noqa: ARG002
        """
        Return an object of the model.
        """
        # Faster than one regular expression.
        shape = data.translate(SHAPE, b"+")
        if b"NaN" in data or b"Infinity" in data or LARGE[0] in shape or LARGE[1] in shape:
            _check_numbers(data)
        return self._read(data)

    def dump(self, document: Any) -> bytes:
        """
        Encode an object of the model as JSON, with aliases.
        """
        data = self._written(document)
        self.load(data)
        return data

    def describe(self) -> dict[str, Any]:
        """
        Return the fields of a definition of this contract, with the name of the model.
        """
        return {
            "kind": self.kind,
            "model": _name_of(self.model),
            **state_of(strict=self.strict),
        }

    def _written(self, document: Any) -> bytes:
        from pydantic_core import PydanticSerializationError

        try:
            data: bytes = self._adapter.dump_json(document, by_alias=True, warnings="error")
        except PydanticSerializationError:
            # The error and its text contain values, so they are neither quoted nor chained.
            reason = f"{type(document).__name__}, or a value in it, does not fit"
        except Exception as error:  # noqa: BLE001 - a model's own serializers raise anything
            reason = f"it cannot be written: {type(error).__name__}"
        else:
            return data
        raise MismatchError(Violation("$", f"not a {_name_of(self.model)}: {reason}"))

    def _read(self, data: bytes | bytearray) -> Any:
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(data, strict=self.strict)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            document = _plain(data)
            violations = [
                Violation(path_of(_way(each, document)), _reason(each)) for each in found[:MOST]
            ]
        raise MismatchError(*violations) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return PydanticModel, (self.model, self.strict)

    def __repr__(self) -> str:
        return f"<PydanticModel {_name_of(self.model)}>"


def model_by_name(name: object) -> Any:
    """
    Import a model by its name, ``package.module:Name``.

    Raises:
        DefinitionError: The name is invalid, or the model cannot be imported.
    """
    module, colon, attribute = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not (module and colon and attribute):
        raise DefinitionError(SOURCE, f"a model must be package.module:Name, not {name!r}")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        # Importing a module can raise anything.
        raise DefinitionError(SOURCE, f"{name}: {reason_of(error)}") from error
    return found


def _name_of(model: object) -> str:
    # The __name__ of a generic type such as list[int] is only "list".
    plain = isinstance(model, type) and get_origin(model) is None
    return str(getattr(model, "__name__", model)) if plain else repr(model)


def _adapter_of(model: object) -> Any:
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise missing("pydantic", "pydantic", error) from error
    try:
        return TypeAdapter(model)
    except Exception as error:
        # The errors for unresolved annotations and invalid schemas have no common base class.
        raise DefinitionError(SOURCE, f"{_name_of(model)}: {reason_of(error)}") from error


def _check_numbers(data: bytes | bytearray) -> None:
    """
    Refuse ``NaN`` and ``Infinity`` outside of texts, and numbers that pydantic reads as infinite.

    JSON does not allow them.
    """
    import pydantic_core

    try:
        pydantic_core.from_json(bytes(data), allow_inf_nan=False)
        json.loads(data, parse_float=finite, parse_int=str)
    except ValueError as error:
        raise MismatchError(Violation("$", f"not JSON: {reason_of(error)}")) from None


def _plain(data: bytes | bytearray) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _reason(error: Mapping[str, Any]) -> str:
    """
    Return the reason of an error without the value, which one of pydantic's texts contains.
    """
    if error["type"] == "union_tag_invalid":
        return "the tag matches no alternative"
    return str(error["msg"])


def _way(error: Mapping[str, Any], document: Any) -> list[str | int]:
    """
    Return the path of an error in the document.

    pydantic's own path also contains the names of the alternatives that it tried.
    """
    found: list[str | int] = []
    location: Sequence[str | int] = error["loc"]
    for place, step in enumerate(location):
        below: Any = None
        is_item = isinstance(document, list) and isinstance(step, int) and step < len(document)
        if is_item or (isinstance(document, dict) and step in document):
            below = document[step]
        elif error["type"] != "missing" or place < len(location) - 1:
            continue
        found.append(step)
        document = below
    return found
