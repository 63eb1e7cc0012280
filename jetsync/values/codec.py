"""
Convert attrs models to the JSON of the JetStream API and back.

Durations are integer nanoseconds on the wire. Times are RFC 3339 with up to nine digits of
fraction. A field that is None is not sent. An explicit ``False``, ``0`` or ``[]`` is sent.

An update replaces the whole configuration, so a server must get back what it sent. A model keeps
the fields that it does not know in ``extra``, and remembers how the others were received. A field
that still has the value that was received is sent exactly as it was received. A float or a
``datetime`` would lose the last nanoseconds.
"""

from __future__ import annotations

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

from jetsync._base.deadline import MAX_SECONDS, ServerSeconds, as_seconds
from jetsync._base.fields import LARGEST_COUNT, Choice, aware, known_or_new, whole_number
from jetsync._base.html import html_table
from jetsync._base.reprs import tolerant_repr
from jetsync.errors import InvalidArgumentError, ProtocolError

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds

_M = TypeVar("_M", bound="WireModel")

_NS_PER_SECOND: Final = 1_000_000_000
_UTC: Final = dt.timezone.utc
# The smallest and the largest integer that servers accept in a field. Most fields are SIGNED. The
# others name their range in the metadata of the attribute.
SIGNED: Final = (-(1 << 63), LARGEST_COUNT)
SIGNED_32: Final = {"range": (-(1 << 31), (1 << 31) - 1)}
UNSIGNED: Final = {"range": (0, (1 << 64) - 1)}
COUNT: Final = {"range": (0, LARGEST_COUNT)}

# Integers in this range are seconds, milliseconds or microseconds of a time since 1973.
_OTHER_UNITS: Final = range(10**8, 10**17)

UNIX_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=_UTC)

_RFC3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-]\d\d:\d\d))"
)


# --------------------------------------------------------------------------------------------------
# Durations and times


def seconds_to_ns(value: Seconds, name: str = "duration") -> int:
    """
    Return a duration as whole nanoseconds; decimal fractions are exact.

    Args:
        value: Seconds as a number, or a ``timedelta``.
        name: The argument or field, for the error.

    Raises:
        InvalidTypeError, InvalidArgumentError: As for :func:`as_seconds`, or 64 bits cannot hold
            *value* because it is longer than 292 years.
    """
    seconds = as_seconds(value, name)
    if isinstance(value, dt.timedelta):
        found = (value // dt.timedelta(microseconds=1)) * 1000
    else:
        # From the text of the float, because 0.1 s means 100,000,000 ns. A product of floats would
        # be inexact beyond 104 days.
        scaled = decimal.Decimal(repr(seconds)) * _NS_PER_SECOND
        found = int(scaled.to_integral_value(decimal.ROUND_HALF_EVEN))
    if found >= 1 << 63:
        raise InvalidArgumentError(f"{name} must be less than 292 years", argument=name)
    return found


def parse_time_ns(text: str) -> int:
    """
    Return an RFC 3339 time as nanoseconds since the Unix epoch, with all nine digits.

    Raises:
        ProtocolError: The text is not such a time.
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
    Return an RFC 3339 time as an aware UTC ``datetime``, rounded down to microseconds.

    Raises:
        ProtocolError: The text is not such a time, or ``datetime`` cannot hold it.
    """
    microseconds = parse_time_ns(text) // 1000
    try:
        return UNIX_EPOCH + dt.timedelta(microseconds=microseconds)
    except OverflowError as error:
        raise ProtocolError(f"the time {text!r} is out of range") from error


def time_ns(moment: dt.datetime | int, name: str) -> int:
    """
    Return an aware ``datetime``, or nanoseconds since the Unix epoch, as the latter.

    Args:
        moment: The time.
        name: The argument, for the error.

    Raises:
        InvalidTypeError: It is neither.
        InvalidArgumentError: The ``datetime`` is naive, or the number is out of range.
    """
    if isinstance(moment, int) and not isinstance(moment, bool):
        if moment in _OTHER_UNITS or moment > LARGEST_COUNT:
            problem = "looks like another unit" if moment in _OTHER_UNITS else "is after 2262"
            raise InvalidArgumentError(
                f"{name} must be nanoseconds since 1970 or a datetime, and {moment} {problem}",
                argument=name,
            )
        return moment
    since = aware(moment, name) - UNIX_EPOCH  # type: ignore[arg-type]
    seconds = since.days * 86400 + since.seconds
    return seconds * _NS_PER_SECOND + since.microseconds * 1000


def format_time(moment: dt.datetime | int, name: str = "time") -> str:
    """
    Return a time as RFC 3339 in UTC, within the range of the clock of servers.

    That clock counts nanoseconds in 64 bits and overflows, so that a time after April 2262 would be
    before all messages, and one before September 1677 after them. Such a time becomes the end of
    the range, which is on the same side of all messages. Servers omit trailing zeros of the
    fraction, and so does this.

    Args, Raises: as for :func:`time_ns`.
    """
    least, most = SIGNED
    seconds, fraction = divmod(min(max(time_ns(moment, name), least), most), _NS_PER_SECOND)
    whole = (UNIX_EPOCH + dt.timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{whole}{digits}Z"


# --------------------------------------------------------------------------------------------------
# Models


@attrs.define(kw_only=True)
class WireModel:
    """
    The base of all models.
    """

    # For notebooks.
    _repr_html_ = html_table

    extra: dict[str, Any] = attrs.field(factory=dict, repr=False)
    """
    Fields that the server sent and jetsync does not know. An update of a configuration sends them
    back unchanged.
    """

    _home: ClassVar[str]
    """The module that resolves the annotations; ``__module__`` of public classes is ``jetsync``."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._home = cls.__module__


@tolerant_repr
@attrs.define(kw_only=True, repr=False)
class ConfigModel(WireModel):
    """
    The base of models that are sent back to servers. They remember how they were received.
    """

    _received: Mapping[str, Any] = attrs.field(factory=dict, alias="_received", eq=False)

    def __repr__(self) -> str:
        # A configuration has some fifty fields, and most of them are None.
        named = {item.name: getattr(self, item.name) for item in attrs.fields(type(self))}
        del named["_received"]
        if not self.extra:
            del named["extra"]
        shown = ", ".join(f"{name}={value!r}" for name, value in named.items() if value is not None)
        return f"{type(self).__name__}({shown})"


@attrs.frozen
class _WireField:
    """
    How one attribute is sent and received.
    """

    name: str
    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any]


def _encode(value: Any) -> Any:
    """
    Return the JSON form of a value.
    """
    if isinstance(value, WireModel):
        return to_wire(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dt.datetime):
        return format_time(value)
    if isinstance(value, (str, bool, int, float)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    return [_encode(item) for item in value]


def _integer(value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 64:
        raise TypeError("not a 64-bit integer")
    return value


def _number(value: Any) -> float:
    if type(value) is not float:
        value = _integer(value)
    return float(value)


def _exact(kind: type[Any]) -> Callable[[Any], Any]:
    """Return a function that accepts only one JSON type."""

    def take(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"not a JSON {kind.__name__}")
        return value

    return take


def _time(value: str) -> dt.datetime | None:
    # Go writes the zero time for "no time".
    return None if value.startswith("0001-01-01T00:00:00") else parse_time(value)


# How values of plain types are read.
_READERS: Final[dict[Any, Callable[[Any], Any]]] = {
    Any: lambda value: value,
    str: _exact(str),
    bool: _exact(bool),
    int: _integer,
    float: _number,
    dt.datetime: _time,
}


def _decode_duration(value: Any) -> float | None:
    # Servers send -1 for "never", for example as the idle time of a source that was never active.
    return None if value is None or _integer(value) < 0 else _seconds(value)


def _seconds(nanoseconds: int) -> float:
    seconds = nanoseconds / _NS_PER_SECOND
    return seconds if seconds < MAX_SECONDS else ServerSeconds(seconds)


def _wire_field(attribute: attrs.Attribute[Any]) -> _WireField:
    # Every `float | None` is a duration: seconds here, integer nanoseconds on the wire. A plain
    # `float` is a number in a server's report.
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
    encode = _encode
    # Configurations declare `int | None`. Counts of servers are plain integers and not checked:
    # server 2.10 may report a reservation as 2**64 - 3.
    if {int, type(None)} <= {*parts}:
        least, most = attribute.metadata.get("range", SIGNED)
        encode = functools.partial(whole_number, attribute.name, least=least, most=most)
    read = _reader(wanted)
    # Counters default to 0, because servers omit them. Only limits may be negative.
    counts = wanted is int and attribute.default == 0

    def decode(value: Any) -> Any:
        if counts and value < 0:
            raise TypeError("it is negative")
        return read(value)

    return _WireField(attribute.name, decode, encode)


def _reader(wanted: Any) -> Callable[[Any], Any]:
    """
    Return the function that reads the JSON value of an annotated type, which is not ``null``.

    It raises TypeError if the value has another type.
    """
    if wanted in _READERS:
        return _READERS[wanted]
    kind, parts = get_origin(wanted), get_args(wanted)
    if type(None) in parts:
        return _reader(next(part for part in parts if part is not type(None)))
    if kind in {list, dict}:
        take, read = _exact(kind), _reader(parts[-1])
        if kind is list:
            return lambda value: [read(item) for item in take(value)]
        return lambda value: {key: read(item) for key, item in take(value).items()}
    if issubclass(wanted, Choice):
        return lambda value: known_or_new(wanted, _READERS[str](value))
    return functools.partial(from_wire, wanted)


_fields_by_class: Final[dict[type, Mapping[str, _WireField]]] = {}


def _wire_fields(cls: type[WireModel]) -> Mapping[str, _WireField]:
    found = _fields_by_class.get(cls)
    if found is None:
        attrs.resolve_types(cls, {**globals(), **vars(sys.modules[cls._home])})
        own = [item for item in attrs.fields(cls) if item.name not in {"extra", "_received"}]
        # Two threads may do this at the same time, with the same result.
        found = _fields_by_class[cls] = {item.name: _wire_field(item) for item in own}
    return found


def from_wire(cls: type[_M], data: Mapping[str, Any]) -> _M:
    """
    Make a model from a decoded JSON object.

    Unknown keys are kept in ``extra``. A field that is missing or ``null`` gets its default.

    Raises:
        ProtocolError: A value does not have the type that the protocol requires.
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
    Return the JSON object of a model: the fields that are not None, and ``extra``.

    Raises:
        InvalidArgumentError, InvalidTypeError: A value cannot be sent.
    """
    # The attribute belongs to this module. Users should not see it.
    received = model._received if isinstance(model, ConfigModel) else {}  # noqa: SLF001
    wire: dict[str, Any] = {}
    for name, field in _wire_fields(type(model)).items():
        value = getattr(model, name)
        before = received.get(name)
        if name in received and value == (None if before is None else field.decode(before)):
            wire[name] = before
        elif value is not None:
            wire[name] = field.encode(value)
    wire.update(model.extra)
    return wire
