"""
The JSON documents of discovery, in the form of nats.go.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any, Final, TypeVar

import attrs

import jetsync

__all__ = ["EndpointInfo", "EndpointStats", "ServiceInfo", "ServicePing", "ServiceStats"]

T = TypeVar("T", bound=attrs.AttrsInstance)

PING_TYPE: Final = "io.nats.micro.v1.ping_response"
INFO_TYPE: Final = "io.nats.micro.v1.info_response"
STATS_TYPE: Final = "io.nats.micro.v1.stats_response"

# The encoder of Go writes these so, for the sake of browsers.
_ESCAPED: Final = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}

_FRACTION: Final = re.compile(r"\.([0-9]+)")


def _moment(value: Any) -> dt.datetime:
    """Read a time of RFC 3339 with any number of digits; Go writes up to nine."""
    if isinstance(value, dt.datetime):
        return value
    text = _FRACTION.sub(lambda found: f".{found[1][:6]:0<6}", str(value))
    # Python 3.10 knows a zone of Z by this name only.
    moment = dt.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)


_is_text: Final = attrs.validators.instance_of(str)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _metadata(value: Any) -> dict[str, str]:
    # nats.go writes null for an endpoint without metadata.
    return {str(key): str(entry) for key, entry in (value or {}).items()}


@attrs.frozen(kw_only=True)
class EndpointInfo:
    """
    An endpoint, as its service describes it.
    """

    name: str
    """The name, which several endpoints may share."""

    subject: str
    """The subject of its requests."""

    queue_group: str = attrs.field(default="", converter=_text)
    """The queue group; ``""`` if it has none, so that each instance gets each request."""

    metadata: dict[str, str] = attrs.field(factory=dict, converter=_metadata)
    """What the service says about the endpoint."""


@attrs.frozen(kw_only=True)
class EndpointStats:
    """
    The counts of an endpoint since its service has started or was reset.
    """

    name: str
    """The name, which several endpoints may share."""

    subject: str
    """The subject of its requests."""

    queue_group: str = attrs.field(default="", converter=_text)
    """The queue group; ``""`` if it has none."""

    num_requests: int = attrs.field(default=0, converter=int)
    """How many requests were answered, or handled without an answer."""

    num_errors: int = attrs.field(default=0, converter=int)
    """How many of them failed."""

    last_error: str = attrs.field(default="", converter=_text)
    """The last error, as in ``"404:no such item"``."""

    processing_time: int = attrs.field(default=0, converter=int)
    """The time in handlers, in nanoseconds."""

    average_processing_time: int = attrs.field(default=0, converter=int)
    """The time in handlers per request, in nanoseconds."""

    data: Any = None
    """What the service adds, if it has such a function."""


@attrs.frozen(kw_only=True)
class ServicePing:
    """
    The identity of an instance of a service.
    """

    name: str = attrs.field(validator=_is_text)
    """The name, which all instances share."""

    id: str = attrs.field(validator=_is_text)
    """The id of the instance."""

    version: str
    """The version, as of semver.org."""

    metadata: dict[str, str] = attrs.field(factory=dict, converter=_metadata)
    """What the service says about itself."""

    type: str = PING_TYPE
    """The type of the document."""


def _infos(value: Any) -> tuple[EndpointInfo, ...]:
    return tuple(
        each if isinstance(each, EndpointInfo) else _read(EndpointInfo, each)
        for each in value or ()
    )


def _stats(value: Any) -> tuple[EndpointStats, ...]:
    return tuple(
        each if isinstance(each, EndpointStats) else _read(EndpointStats, each)
        for each in value or ()
    )


@attrs.frozen(kw_only=True)
class ServiceInfo(ServicePing):
    """
    An instance of a service, with its endpoints.
    """

    type: str = INFO_TYPE
    """The type of the document."""

    description: str = attrs.field(default="", converter=_text)
    """What the service does."""

    endpoints: tuple[EndpointInfo, ...] = attrs.field(default=(), converter=_infos)
    """The endpoints, in the order in which they were added."""


@attrs.frozen(kw_only=True)
class ServiceStats(ServicePing):
    """
    The counts of an instance of a service.
    """

    type: str = STATS_TYPE
    """The type of the document."""

    started: dt.datetime = attrs.field(converter=_moment)
    """When the instance was started or reset, in UTC."""

    endpoints: tuple[EndpointStats, ...] = attrs.field(default=(), converter=_stats)
    """The endpoints, in the order in which they were added."""


def encode(value: Any) -> bytes:
    """
    Return a value as JSON, in the bytes that nats.go would write.

    Raises:
        TypeError, ValueError: The value has no JSON.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPED).encode()


def encode_document(document: ServicePing) -> bytes:
    """
    Return the bytes of a document.
    """
    return encode(as_json(document))


def as_json(value: Any) -> Any:
    """
    Return a document, or a part of one, as values of JSON.
    """
    if isinstance(value, dt.datetime):
        # nats-py cannot read the nine digits of Go.
        return value.astimezone(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if attrs.has(type(value)):
        fields = {
            each.name: as_json(getattr(value, each.name)) for each in attrs.fields(type(value))
        }
        if fields.get("data", 0) is None:
            del fields["data"]
        if "metadata" in fields:
            # As Go does.
            fields["metadata"] = dict(sorted(fields["metadata"].items()))
        return fields
    return [as_json(each) for each in value] if isinstance(value, tuple) else value


def decode(kind: type[T], message: jetsync.Message) -> T:
    """
    Read a document, and ignore fields that are unknown.

    Raises:
        jetsync.DecodeError: It is not such a document.
    """
    try:
        return _read(kind, message.json())
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise jetsync.DecodeError(
            kind.__name__, f"{type(error).__name__}: {error}", subject=message.subject
        ) from error


def _read(kind: type[T], value: Any) -> T:
    names = {each.name for each in attrs.fields(kind)}
    return kind(**{name: each for name, each in value.items() if name in names})
