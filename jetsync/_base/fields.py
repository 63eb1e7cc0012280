"""
What the fields of models take from users and what they hold.

A model refuses a value of a wrong type where it is written, so that the error points at the line
that is wrong and nothing has been sent: a lone string in the place of a list of subjects, a naive
``datetime``, a word that is no policy.
"""

from __future__ import annotations

import datetime as dt
import difflib
import enum
import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import attrs

from jetsync._base.deadline import ServerSeconds, as_seconds
from jetsync.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds

__all__ = [
    "Choice",
    "aware",
    "check_count",
    "check_fields",
    "checked",
    "choose",
    "duration",
    "durations",
    "known_or_new",
]

_C = TypeVar("_C", bound="Choice")


class Choice(str, enum.Enum):
    """
    A value from a fixed set of words, which is also the plain string that goes over the wire.

    A word that a newer server sends is kept as a member without a name of its own, so that it can
    be shown and sent back. Making one by hand from an unknown word is an error.
    """

    def __str__(self) -> str:
        return str(self.value)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return known_or_new, (type(self), self.value)


def known_or_new(cls: type[_C], value: str) -> _C:
    """
    Return the member for a word, made up on the spot where this version does not know it.
    """
    known = cls._value2member_map_.get(value)
    if known is not None:
        return cast("_C", known)
    unknown = str.__new__(cls, value)
    unknown._name_ = value
    unknown._value_ = value
    return unknown


def aware(moment: dt.datetime, name: str) -> dt.datetime:
    """
    Return a ``datetime`` that has a time zone, or raise InvalidArgumentError.
    """
    if moment.utcoffset() is None:
        raise InvalidArgumentError(
            f"{name} needs a time zone: a naive datetime means another moment on another machine",
            argument=name,
        )
    return moment


def duration(value: Seconds | None) -> float | None:
    """
    Take seconds or a ``timedelta``; hold float seconds.
    """
    return (
        value
        if value is None or isinstance(value, ServerSeconds)
        else as_seconds(value, "a duration")
    )


def durations(value: Iterable[Seconds] | None) -> list[float] | None:
    """
    Take any iterable of seconds or ``timedelta``; hold a list of float seconds.
    """
    if value is None:
        return None
    found = map(duration, _items(value, "durations"))
    return [item for item in found if item is not None]


def aware_time(value: dt.datetime | None) -> dt.datetime | None:
    """
    Take an aware ``datetime``; a naive one is refused, and so is anything else.
    """
    if value is None:
        return None
    if not isinstance(value, dt.datetime):
        raise InvalidTypeError(f"an aware datetime is needed, not {type(value).__name__}")
    return aware(value, "a time")


def choose(cls: type[_C], value: _C | str | None) -> _C | None:
    """
    Take a member of a :class:`Choice` or its plain string; hold the member.
    """
    if value is None or isinstance(value, cls):
        return value
    if not isinstance(value, str):
        raise InvalidTypeError(
            f"{cls.__name__} or its string is needed, not {type(value).__name__}"
        )
    try:
        return cls(value)
    except ValueError:
        words = ", ".join(repr(str(member)) for member in cls)
        raise InvalidArgumentError(f"{value!r} is no {cls.__name__}: use one of {words}") from None


def _items(value: Any, what: str) -> Iterable[Any]:
    # A lone string is an iterable too, of letters: never what was meant.
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidTypeError(f"a list of {what} is needed, not {type(value).__name__}")
    return value


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidTypeError(f"a string is needed, not {type(value).__name__}")
    return value


def _texts(value: Any) -> list[str | None] | None:
    return None if value is None else [_text(item) for item in _items(value, "strings")]


def _flag(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InvalidTypeError(f"a bool is needed, not {type(value).__name__}")
    return value


def _whole(value: Any) -> int | None:
    if value is None:
        return None
    # What can stand as an index is an integer, those of numpy too; 5.0 and True are not.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidTypeError(f"an int is needed, not {type(value).__name__}")
    return operator.index(value)


def _text_map(value: Any) -> dict[str | None, str | None] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidTypeError(f"a mapping of strings is needed, not {type(value).__name__}")
    return {_text(key): _text(item) for key, item in value.items()}


def _model(value: Any) -> Any:
    if value is not None and not attrs.has(type(value)):
        raise InvalidTypeError(f"a model is needed, not {type(value).__name__}")
    return value


def _models(value: Any) -> list[Any] | None:
    return None if value is None else [_model(item) for item in _items(value, "models")]


_BY_ANNOTATION: Final[Mapping[str, Callable[[Any], Any]]] = {
    "str | None": _text,
    "list[str] | None": _texts,
    "bool | None": _flag,
    "int | None": _whole,
    "dict[str, str] | None": _text_map,
    "dt.datetime | None": aware_time,
}


def checked(_: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """
    Check the type of every value that a user puts into a model; the ``field_transformer`` of those.

    Fields that have a converter keep it; the others get the check that their annotation asks for.
    Every error names the field. It works on assignment too, not only in the constructor.
    """
    return [_with_check(field) for field in fields]


def _with_check(field: attrs.Attribute[Any]) -> attrs.Attribute[Any]:
    if field.name in {"extra", "_received"}:
        return field
    annotation = str(field.type)
    nested = _models if annotation.startswith("list[") else _model
    found = field.converter or _BY_ANNOTATION.get(annotation, nested)
    convert = cast("Callable[[Any], Any]", found)

    # wraps: __init__ keeps the annotation of the converter.
    @functools.wraps(convert)
    def named(value: Any) -> Any:
        try:
            return convert(value)
        except (InvalidArgumentError, InvalidTypeError) as error:
            if type(error) not in {InvalidArgumentError, InvalidTypeError}:
                # It says what is wrong with what, as one about a name does.
                raise
            raise type(error)(f"{field.name}: {error}", argument=field.name) from None

    return field.evolve(converter=named)


def check_count(name: str, value: object, least: int) -> None:
    """Raise unless *value* is a whole number of at least *least*."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidTypeError(f"{name} must be a whole number", argument=name)
    if value < least:
        raise InvalidArgumentError(f"{name} must be at least {least}, not {value}", argument=name)


def check_fields(cls: type[attrs.AttrsInstance], names: Iterable[str], what: str) -> None:
    """
    Raise InvalidTypeError unless every name is a field of a public attrs class.

    Args:
        cls: The class.
        names: The keywords of a call.
        what: The public call, for the error.
    """
    known = [item.name for item in attrs.fields(cls) if not item.name.startswith("_")]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(known)}"
            raise InvalidTypeError(f"{what} has no argument {name!r}; {hint}", argument=name)
