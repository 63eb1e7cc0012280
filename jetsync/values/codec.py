"""
attrs models to and from the JSON of the JetStream API.

The rules are those of the protocol, not of JSON: durations are integer nanoseconds, times are
RFC 3339 with up to nine digits of fraction, binary data is base64, and a field that is not set is
not sent, while an explicit ``False``, ``0`` or ``[]`` is.

An update replaces the whole configuration, so what came from a server must go back as it came. A
model keeps the fields it does not know in ``extra`` and remembers the wire form of the others: a
field that still has the value it was read with is sent in exactly the form it was read in, down to
the last nanosecond that a float or a ``datetime`` cannot hold.

No I/O and no clock in here.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import enum
import functools
import re
import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, get_args, get_origin

import attrs
import cattrs

from jetsync._base.deadline import MAX_SECONDS, ServerSeconds, as_seconds
from jetsync._base.fields import Choice, aware, known_or_new
from jetsync.errors import InvalidArgumentError, InvalidTypeError, ProtocolError

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds

_M = TypeVar("_M", bound="WireModel")

_NS_PER_SECOND: Final = 1_000_000_000
_UTC: Final = dt.timezone.utc
UNIX_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=_UTC)

_RFC3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-]\d\d:\d\d))"
)


# --------------------------------------------------------------------------------------------------
# Durations and times


def seconds_to_ns(value: Seconds, name: str = "duration") -> int:
    """
    Return a duration as whole nanoseconds, exactly if the value can be written in decimals.

    Args:
        value: Seconds as a number, or a ``timedelta``.
        name: The argument or field, for the error.

    Raises:
        InvalidTypeError, InvalidArgumentError: As :func:`as_seconds`, or *value* is longer than 292
            years, which 64 bits cannot hold.
    """
    seconds = as_seconds(value, name)
    if isinstance(value, dt.timedelta):
        found = (value // dt.timedelta(microseconds=1)) * 1000
    else:
        # The shortest text of a float is what its writer meant: 0.1 s is 100,000,000 ns. A product
        # of floats would lose digits beyond 104 days.
        scaled = decimal.Decimal(repr(seconds)) * _NS_PER_SECOND
        found = int(scaled.to_integral_value(decimal.ROUND_HALF_EVEN))
    if found >= 1 << 63:
        raise InvalidArgumentError(f"{name} must be less than 292 years", argument=name)
    return found


def parse_time_ns(text: str) -> int:
    """
    Return an RFC 3339 time as nanoseconds since the Unix epoch, none of its nine digits lost.

    Raises:
        ProtocolError: the text is no such time.
    """
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ProtocolError(f"not an RFC 3339 time: {text!r}")
    day, minute, second, fraction, offset = found.groups()
    try:
        # Seconds are added, not parsed: a leap second is 60.
        moment = dt.datetime.fromisoformat(f"{day}T{minute}{offset or '+00:00'}")
    except ValueError as error:
        raise ProtocolError(f"not an RFC 3339 time: {text!r}") from error
    since = moment - UNIX_EPOCH
    seconds = since.days * 86400 + since.seconds + int(second)
    return seconds * _NS_PER_SECOND + int((fraction or "")[:9].ljust(9, "0"))


def parse_time(text: str) -> dt.datetime:
    """
    Return an RFC 3339 time as an aware UTC ``datetime``; nanoseconds are cut to microseconds.

    Raises:
        ProtocolError: the text is no such time.
    """
    microseconds = parse_time_ns(text) // 1000
    try:
        return UNIX_EPOCH + dt.timedelta(microseconds=microseconds)
    except OverflowError as error:
        raise ProtocolError(f"the time {text!r} is out of range") from error


def format_time(moment: dt.datetime | int) -> str:
    """
    Return an aware ``datetime``, or nanoseconds since the Unix epoch, as RFC 3339 in UTC.

    Trailing zeros of the fraction are cut, as servers do.

    Raises:
        InvalidArgumentError: the ``datetime`` is naive, or the number is out of range.
    """
    if isinstance(moment, dt.datetime):
        since = aware(moment, "time") - UNIX_EPOCH
        seconds = since.days * 86400 + since.seconds
        fraction = since.microseconds * 1000
    else:
        seconds, fraction = divmod(moment, _NS_PER_SECOND)
    try:
        whole = (UNIX_EPOCH + dt.timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()
    except OverflowError as error:
        raise InvalidArgumentError(f"the time {moment!r} is out of range") from error
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{whole}{digits}Z"


def time_text(moment: dt.datetime | int, name: str) -> str:
    """
    Return a time as servers read it, from an aware datetime or from nanoseconds since 1970.

    Raises:
        InvalidTypeError: It is neither.
        InvalidArgumentError: It is naive or out of range.
    """
    if isinstance(moment, bool) or not isinstance(moment, (dt.datetime, int)):
        raise InvalidTypeError(
            f"{name} must be an aware datetime or nanoseconds, not {type(moment).__name__}",
            argument=name,
        )
    if isinstance(moment, dt.datetime) and moment.utcoffset() is None:
        raise InvalidArgumentError(
            f"{name} has no time zone: use datetime(..., tzinfo=timezone.utc)", argument=name
        )
    return format_time(moment)


# --------------------------------------------------------------------------------------------------
# Models


@attrs.define(kw_only=True)
class WireModel:
    """
    The base of everything that has a JSON form.
    """

    extra: dict[str, Any] = attrs.field(factory=dict, repr=False)
    """Fields that a server sent and this version has no name for; they are sent back unchanged."""

    _home: ClassVar[str]
    """Module whose names the annotations use; the facade gives classes another ``__module__``."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._home = cls.__module__


@attrs.define(kw_only=True, repr=False)
class ConfigModel(WireModel):
    """
    The base of what is sent back to servers, and therefore remembers how it was received.
    """

    _received: Mapping[str, Any] = attrs.field(factory=dict, alias="_received", eq=False)

    def __repr__(self) -> str:
        # A configuration has some fifty fields, of which most are not set.
        named = {item.name: getattr(self, item.name) for item in attrs.fields(type(self))}
        del named["_received"]
        if not self.extra:
            del named["extra"]
        shown = ", ".join(f"{name}={value!r}" for name, value in named.items() if value is not None)
        return f"{type(self).__name__}({shown})"


@attrs.frozen
class _WireField:
    """
    How one attribute crosses the wire.
    """

    name: str
    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any]


def _encode(value: Any) -> Any:
    """
    Return the JSON form of a value by its own type.
    """
    if isinstance(value, WireModel):
        return to_wire(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dt.datetime):
        return format_time(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (str, bool, int, float)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    return [_encode(item) for item in value]


def _integer(value: Any, _: Any = None) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 64:
        raise TypeError("not a 64-bit integer")
    return value


def _exact(kind: type[Any]) -> Callable[[Any, Any], Any]:
    """Return a hook that takes JSON values of one type only: ``str`` would take anything."""

    def take(value: Any, _: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"not a JSON {kind.__name__}")
        return value

    return take


def _decode_duration(value: Any) -> float | None:
    # Servers say -1 for "never", as in the time since a source that was never seen was last active.
    return None if value is None or _integer(value) < 0 else _seconds(value)


def _seconds(nanoseconds: int) -> float:
    seconds = nanoseconds / _NS_PER_SECOND
    return seconds if seconds < MAX_SECONDS else ServerSeconds(seconds)


def _wire_field(attribute: attrs.Attribute[Any]) -> _WireField:
    # Every float is a duration: seconds here, integer nanoseconds on the wire.
    parts = get_args(attribute.type)
    if float in parts:
        return _WireField(
            attribute.name, _decode_duration, functools.partial(seconds_to_ns, name=attribute.name)
        )
    if list[float] in parts:
        return _WireField(
            attribute.name,
            lambda value: None if value is None else [_seconds(_integer(item)) for item in value],
            lambda value: [seconds_to_ns(item, attribute.name) for item in value],
        )
    wanted = attribute.type
    structure = _converter().get_structure_hook(wanted)
    shape = _shape(wanted)
    # Servers omit counters that are 0. Limits are None or -1.
    counts = wanted is int and attribute.default == 0

    def decode(value: Any) -> Any:
        if not isinstance(value, shape) or (counts and value < 0):
            raise TypeError("it has a wrong type or is negative")
        return structure(value, wanted)

    return _WireField(attribute.name, decode, _encode)


def _shape(wanted: Any) -> type[Any]:
    """Return the type that JSON has for lists and objects, which cattrs makes of any iterable."""
    parts = get_args(wanted) if type(None) in get_args(wanted) else (wanted,)
    kinds = {get_origin(part) for part in parts}
    return next((kind for kind in (list, dict) if kind in kinds), object)


_fields_by_class: Final[dict[type, Mapping[str, _WireField]]] = {}


def _wire_fields(cls: type[WireModel]) -> Mapping[str, _WireField]:
    found = _fields_by_class.get(cls)
    if found is None:
        attrs.resolve_types(cls, {**globals(), **vars(sys.modules[cls._home])})
        own = [item for item in attrs.fields(cls) if item.name not in {"extra", "_received"}]
        # Two threads may both come here; they write the same.
        found = _fields_by_class[cls] = {item.name: _wire_field(item) for item in own}
    return found


def from_wire(cls: type[_M], data: Mapping[str, Any]) -> _M:
    """
    Make a model from a decoded JSON object.

    Unknown keys are kept in ``extra``. A missing key, and a ``null`` where the model has another
    default, leaves that default.

    Raises:
        ProtocolError: a value has not the type that the protocol says.
    """
    if not isinstance(data, Mapping):
        raise ProtocolError(f"{cls.__name__} is a JSON object, not {type(data).__name__}")
    fields = _wire_fields(cls)
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in data.items():
        field = fields.get(key)
        if field is None:
            extra[key] = value
        elif value is not None:
            try:
                known[key] = field.decode(value)
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                raise ProtocolError(
                    f"{cls.__name__}.{key} cannot be read from {reprlib.repr(value)}: {error}"
                ) from error
    if issubclass(cls, ConfigModel):
        known["_received"] = data
    return cls(**known, extra=extra)


def to_wire(model: WireModel) -> dict[str, Any]:
    """
    Return the JSON object of a model: the fields that are set, and what ``extra`` holds.

    Raises:
        InvalidArgumentError, InvalidTypeError: a value has no wire form.
    """
    # This module owns the attribute; it is private to keep it out of users' sight.
    received = model._received if isinstance(model, ConfigModel) else {}  # noqa: SLF001
    wire: dict[str, Any] = {}
    for name, field in _wire_fields(type(model)).items():
        value = getattr(model, name)
        if name in received and _unchanged(field, received[name], value):
            wire[name] = received[name]
        elif value is not None:
            wire[name] = field.encode(value)
    wire.update(model.extra)
    return wire


def _unchanged(field: _WireField, received: Any, value: Any) -> bool:
    """
    Return whether an attribute still has the value that was read from the wire.
    """
    if received is None:
        return value is None
    return bool(field.decode(received) == value)


def _structure_time(value: str, _: Any) -> dt.datetime | None:
    # A Go program writes year 1 for "no time at all".
    if value.startswith("0001-01-01T00:00:00"):
        return None
    return parse_time(value)


def _structure_bytes(value: Any, _: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ProtocolError(f"not base64: {value[:40]!r}") from error


@functools.cache
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    take_text = _exact(str)
    converter.register_structure_hook(WireModel, lambda value, wanted: from_wire(wanted, value))
    converter.register_structure_hook(
        Choice, lambda value, wanted: known_or_new(wanted, take_text(value, str))
    )
    converter.register_structure_hook(str, take_text)
    converter.register_structure_hook(bool, _exact(bool))
    converter.register_structure_hook(int, _integer)
    converter.register_structure_hook(dt.datetime, _structure_time)
    converter.register_structure_hook(bytes, _structure_bytes)
    return converter
