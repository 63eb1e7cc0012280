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
"""Makes all digits alike, and both spellings of an exponent."""

LARGE: Final = (b"0e000", b"0" * 210)
"""
What a number of such a shape has in it where it is too large for a float: three digits of an
exponent, or so many that the largest one of two digits is enough.
"""


@attrs.frozen(repr=False)
class PydanticModel(Contract):
    """
    A contract that is a pydantic model (version 2), a dataclass, or another type for `TypeAdapter`.

    Args:
        model: The type.
        strict: Whether values have to be of their type, where pydantic would convert them: ``"3"``
            is no number then. None is as the model says.

    Raises:
        DefinitionError: pydantic can do nothing with the type.
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
        Return the model's object.
        """
        # Faster than one regular expression.
        shape = data.translate(SHAPE, b"+")
        if b"NaN" in data or b"Infinity" in data or LARGE[0] in shape or LARGE[1] in shape:
            _check_numbers(data)
        return self._read(data)

    def dump(self, document: Any) -> bytes:
        """
        Return the JSON that an object of the model is written as, with aliases.
        """
        data = self._written(document)
        self.load(data)
        return data

    def describe(self) -> dict[str, Any]:
        """
        Return what a definition says about it: the name under which the readers know the model.
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
            # Its words have the values in them, and so has it: neither is passed on.
            reason = f"{type(document).__name__}, or a value in it, does not fit"
        except Exception as error:  # noqa: BLE001 - a model's own serializers raise anything
            reason = f"it can not be written: {type(error).__name__}"
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
    Import the model that ``package.module:Name`` stands for.

    Raises:
        DefinitionError: There is none.
    """
    module, colon, attribute = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not (module and colon and attribute):
        raise DefinitionError(SOURCE, f"a model is package.module:Name, not {name!r}")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        # A module may raise anything while it is imported.
        raise DefinitionError(SOURCE, f"{name}: {reason_of(error)}") from error
    return found


def _name_of(model: object) -> str:
    # A generic type such as list[int] has the name of what it is made of.
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
        # Annotations that do not resolve and schemas that make no sense have no common base.
        raise DefinitionError(SOURCE, f"{_name_of(model)}: {reason_of(error)}") from error


def _check_numbers(data: bytes | bytearray) -> None:
    """
    Refuse ``NaN`` and ``Infinity`` outside of texts, and what pydantic would read as infinite: JSON
    does not have them.
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
    Return what is wrong, without the value: of pydantic's own texts one has it.
    """
    if error["type"] == "union_tag_invalid":
        return "no alternative has the tag that is there"
    return str(error["msg"])


def _way(error: Mapping[str, Any], document: Any) -> list[str | int]:
    """
    Return the way through the document that pydantic means.

    Its own also has the names of the alternatives that it tried, which are no part of a document.
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
