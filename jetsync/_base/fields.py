"""
Converters and checks for the fields of models.

A model raises an error for a wrong value when the value is set. So the traceback points at the line
with the mistake, and nothing has been sent. Examples are one string for a list of subjects, a naive
``datetime`` and an unknown policy.
"""

from __future__ import annotations

import ast
import datetime as dt
import difflib
import enum
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeVar, cast

import attrs

from jetsync._base.deadline import ServerSeconds, as_seconds
from jetsync.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds

_C = TypeVar("_C", bound="Choice")
_Config = TypeVar("_Config", bound=attrs.AttrsInstance)

# Servers keep most numbers in 64 bits with a sign.
LARGEST_COUNT: Final = (1 << 63) - 1


class Choice(str, enum.Enum):
    """
    A value from a fixed set of words. Each member is the plain string that is sent to the server.

    An unknown word from a newer server becomes an extra member, so that it can be shown and sent
    back. Users can only create known members.
    """

    def __str__(self) -> str:
        return str(self.value)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return known_or_new, (type(self), self.value)


def known_or_new(cls: type[_C], value: str) -> _C:
    """
    Return the member for a word. For a word that this version does not know, create a member.
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
    Return a ``datetime`` that has a time zone.

    Raises:
        InvalidTypeError: It is not a ``datetime``.
        InvalidArgumentError: It has no time zone.
    """
    given: object = moment
    if not isinstance(given, dt.datetime):
        raise wrong_type(name, "an aware datetime", given)
    if moment.utcoffset() is None:
        raise InvalidArgumentError(
            f"{name} needs a time zone: a naive datetime is a different time on another machine",
            argument=name,
        )
    return moment


def duration(value: Seconds | None) -> float | None:
    """
    Convert seconds or a ``timedelta`` to float seconds.
    """
    # The caller adds the name of the field to an error.
    return value if value is None or isinstance(value, ServerSeconds) else as_seconds(value, "")


def durations(value: Iterable[Seconds] | None) -> list[float] | None:
    """
    Convert any iterable of seconds or ``timedelta`` to a list of float seconds.
    """
    if value is None:
        return None
    found = map(duration, _items(value, "durations"))
    return [item for item in found if item is not None]


def choose(cls: type[_C], value: _C | str | None) -> _C | None:
    """
    Convert a plain string to its member of a :class:`Choice`; members stay as they are.
    """
    if value is None or isinstance(value, cls):
        return value
    if not isinstance(value, str):
        raise InvalidTypeError(f"must be {cls.__name__} or its string, not {type(value).__name__}")
    try:
        return cls(value)
    except ValueError:
        words = ", ".join(repr(str(member)) for member in cls)
        raise InvalidArgumentError(
            f"{value!r} is not a valid {cls.__name__}: use one of {words}"
        ) from None


def _items(value: Any, what: str) -> Iterable[Any]:
    # A string is an iterable of letters too, but that is never what the caller means.
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidTypeError(f"must be a list of {what}, not {type(value).__name__}")
    return value


def instance_of(words: str, *kinds: Any) -> Callable[[Any], Any]:
    """Return a check that accepts only some types. *words* name them in the error."""

    def check(value: Any) -> Any:
        # An error does not show the value, which may be a password.
        if isinstance(value, kinds):
            return value
        raise InvalidTypeError(f"must be {words}, not {type(value).__name__}")

    return check


_text: Final = instance_of("text", str)


def _text_map(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidTypeError(f"must be a mapping of strings, not {type(value).__name__}")
    return {_text(key): _text(item) for key, item in value.items()}


def _model(value: Any, wanted: str) -> Any:
    if wanted not in [cls.__name__ for cls in type(value).__mro__]:
        raise InvalidTypeError(f"must be a {wanted}, not {type(value).__name__}")
    return value


_BY_ANNOTATION: Final[Mapping[str, Callable[[Any], Any]]] = {
    "str": _text,
    "bool": instance_of("True or False", bool),
    # Without limits, because it also checks values from servers. `to_wire` checks what is sent.
    "int": lambda value: whole_number("", value, -math.inf, math.inf),
    "list[str]": lambda value: [_text(item) for item in _items(value, "str")],
    "dict[str, str]": _text_map,
    "dt.datetime": lambda value: aware(value, ""),
}


def checked(
    _: type,
    fields: list[attrs.Attribute[Any]],
    checks: Mapping[str, Callable[[Any], Any]] = _BY_ANNOTATION,
) -> list[attrs.Attribute[Any]]:
    """
    Add type checks to the fields of a class; use it as the ``field_transformer``.

    Fields with a converter keep it. The other fields get the check for their annotation, and accept
    None if it ends with ``| None``. Every error names the field. The checks run in the constructor
    and on assignment.

    Args:
        fields: The fields.
        checks: Converters by annotation without ``| None``. They extend or replace the usual ones.
    """
    by_annotation = {**_BY_ANNOTATION, **checks}
    return [_with_check(field, by_annotation) for field in fields]


def _with_check(
    field: attrs.Attribute[Any], checks: Mapping[str, Callable[[Any], Any]]
) -> attrs.Attribute[Any]:
    if field.name in {"extra", "_received"}:
        return field
    # The annotation is text, such as "list[StreamSource] | None".
    annotation = str(field.type).removesuffix(" | None")
    is_optional = field.converter is None and annotation != str(field.type)
    wanted = annotation.removeprefix("list[").removesuffix("]").rpartition(".")[2]
    is_literal = annotation.startswith("Literal[")
    words = ast.literal_eval(annotation.removeprefix("Literal")) if is_literal else []

    def other(value: Any) -> Any:
        if is_literal:
            if value in words:
                return value
            known = ", ".join(map(repr, words))
            raise InvalidArgumentError(f"must be one of {known}, not {value!r}")
        if annotation.startswith("list["):
            return [_model(item, wanted) for item in _items(value, f"{wanted} objects")]
        return _model(value, wanted)

    convert = cast("Callable[[Any], Any]", field.converter or checks.get(annotation, other))

    def named(value: Any) -> Any:
        if value is None and is_optional:
            return None
        try:
            return convert(value)
        except (InvalidArgumentError, InvalidTypeError) as error:
            if type(error) not in {InvalidArgumentError, InvalidTypeError}:
                # A more specific error, such as one about a name, already says what is wrong.
                raise
            kind, text = type(error), str(error).strip()
        # Raised here, so that the error has no context.
        gap = " " if text.startswith(("must ", "needs ")) else ": "
        raise kind(f"{field.name}{gap}{text}", argument=field.name)

    if field.converter is not None:
        # __init__ keeps the annotation of the converter.
        functools.update_wrapper(named, convert)
    return field.evolve(converter=named)


def wrong_type(
    name: str, wanted: str, value: object, argument: str | None = None
) -> InvalidTypeError:
    """Return the error for a value of a wrong type. *argument* is *name* by default."""
    text = f"{name} must be {wanted}, not {type(value).__name__}"
    return InvalidTypeError(text, argument=argument or name)


def check_exclusive(**given: object) -> None:
    """Raise if two of these arguments are not None."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidArgumentError(
            f"{names[0]} and {names[1]} exclude each other: give one of them", argument=names[1]
        )


def whole_number(name: str, value: object, least: float = 1, most: float = LARGEST_COUNT) -> int:
    """
    Return a sequence or a count as an int.

    Raises:
        InvalidTypeError: *value* is no integer.
        InvalidArgumentError: It is less than *least* or more than *most*.
    """
    # Accepts every type with __index__, such as numpy's integers, but neither 5.0 nor True.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong_type(name, "a whole number", value)
    number = operator.index(cast("SupportsIndex", value))
    if number < least:
        raise InvalidArgumentError(f"{name} must be at least {least}, not {number}", argument=name)
    if number > most:
        raise InvalidArgumentError(f"{name} must be at most {most}, not {number}", argument=name)
    return number


def check_count(name: str, value: object, least: int, most: int = LARGEST_COUNT) -> None:
    """Raise unless *value* is an int from *least* to *most*."""
    if not isinstance(value, int):
        raise wrong_type(name, "a whole number", value)
    whole_number(name, value, least, most)


def check_function(name: str, value: object) -> None:
    """
    Raise unless *value* is None or a plain function, neither async nor a generator.

    Use this in plugins that are given functions. The call of an async function or of a generator
    runs none of its code, and raises no error. Any thread may call this.

    Args:
        name: The argument, for the error.
        value: The function.

    Raises:
        InvalidTypeError: It is no such function.
    """
    if value is None:
        return
    if not callable(value):
        raise wrong_type(name, "a function", value)
    for body in (value, getattr(value, "__call__", None)):  # noqa: B004 - its code, not whether.
        if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
            raise InvalidTypeError(f"{name} must be a plain function, not async", argument=name)
        if inspect.isgeneratorfunction(body):
            raise InvalidTypeError(f"{name} must be a function without yield", argument=name)


# Keywords of other clients, and what they are called here. By spelling alone, jetsync would suggest
# a wrong field or none.
_MEANT: Final[Mapping[str, str]] = {
    "timeout": "connect_timeout",
    "url": "servers",
    "urls": "servers",
    "host": "servers",
    "reconnect": "max_reconnects",
    "allow_reconnect": "max_reconnects",
    "reconnect_time_wait": "reconnect_wait",
}


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
            meant = _MEANT.get(name)
            near = [meant] if meant in known else difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(known)}"
            raise InvalidTypeError(f"{what} has no argument {name!r}; {hint}", argument=name)


def config_of(
    cls: type[_Config],
    given: str | _Config,
    fields: Mapping[str, Any],
    what: str,
    *,
    key: str = "name",
) -> _Config:
    """
    Return the configuration given to a call as a name or an object, with keywords that override it.

    An object is copied, never changed.

    Args:
        cls: The class of the configuration.
        given: The first argument of the call: the value of the field *key*, or an object.
        fields: The keywords.
        what: The public call, for the error.
        key: The field that holds the name.

    Raises:
        InvalidTypeError: *given* is neither, a field is unknown, or a value has a wrong type.
        InvalidArgumentError: A value is out of range.
    """
    check_fields(cls, fields, what)
    if isinstance(given, cls):
        # mypy knows evolve only for concrete classes.
        return cast("_Config", attrs.evolve(cast("Any", given), **fields))
    if not isinstance(given, str):
        raise InvalidTypeError(
            f"{what} takes a name or a {cls.__name__}, not {type(given).__name__}", argument=key
        )
    if key in fields:
        raise InvalidTypeError(
            f"{what} was given {key} twice: as the first argument and as a keyword", argument=key
        )
    return cls(**{key: given}, **fields)
