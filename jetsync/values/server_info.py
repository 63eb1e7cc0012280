"""
The server's INFO, and the statistics of a client.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import attrs

from jetsync._base.html import html_table
from jetsync.errors import ProtocolError
from jetsync.errors.texts import redact_url

__all__ = ["PoolServer", "ServerInfo", "Statistics"]

LARGEST_PAYLOAD: Final = (1 << 31) - 1
"""The largest valid ``max_payload``: servers store it in 32 bits."""


@attrs.frozen(kw_only=True)
class ServerInfo:
    """
    The connected server's description of itself.
    """

    # For notebooks.
    _repr_html_ = html_table

    version: str = "0.0.0"
    """The server's version, such as ``2.15.1``."""

    api_level: int = 0
    """
    The JetStream API level; 0 before server 2.12, because older servers do not send it when a
    client connects.
    """

    max_payload: int = 1 << 20
    """The most bytes that one message may have, headers and payload together."""

    server_id: str = ""
    """The id that the server creates when it starts."""

    server_name: str = ""
    """The name from the server's configuration; its id if it has none."""

    cluster: str | None = None
    """The cluster's name; ``None`` if there is none."""

    url: str | None = None
    """The address that the client is connected to, without user name and password."""

    client_id: int | None = None
    """The number of this connection on that server."""

    headers: bool = True
    """Whether the server supports headers, which JetStream needs."""

    jetstream: bool = False
    """Whether this server runs JetStream. Other servers of its cluster may run it too."""

    domain: str | None = None
    """The server's JetStream domain."""

    lame_duck: bool = False
    """Whether the server is about to shut down."""

    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """All fields that the server sent, unchanged."""

    @property
    def version_tuple(self) -> tuple[int, ...]:
        """
        The version as numbers, for comparisons: ``(2, 15, 1)``. A pre-release suffix is left out.
        """
        return version_numbers(self.version)


@attrs.frozen(kw_only=True)
class PoolServer:
    """
    A server that a client may connect to.
    """

    url: str = attrs.field(repr=lambda url: repr(redact_url(url)))
    """Its address, without user name and password."""

    attempts: int = 0
    """Attempts to connect to it since the last connection."""

    is_discovered: bool = False
    """Whether another server has announced it, as a member of its cluster."""


@attrs.frozen(kw_only=True)
class Statistics:
    """
    The traffic of a client since it was created, over all connections.
    """

    # For notebooks.
    _repr_html_ = html_table

    bytes_in: int
    """Bytes received."""

    bytes_out: int
    """Bytes sent."""

    reconnects: int
    """How often the client has reconnected."""

    requests_in_flight: int
    """Requests and single publishes that are waiting for their answer."""

    subscriptions: int
    """
    Open subscriptions, including the one for the replies to requests. The one that all atomic
    batches of a client use is not counted.
    """

    strays: int
    """Messages that arrived for subscriptions that were already closed."""


def version_numbers(version: str) -> tuple[int, ...]:
    """
    Return a version such as ``2.12.0-RC.3`` as numbers, without the suffix of a pre-release.
    """
    numbers = version.partition("-")[0].split(".")
    return tuple(int(number[:9]) for number in numbers if number.isdecimal())


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


# Without these functions, Python would accept NaN and Infinity, and read 1e400 as infinity.
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)

# Made once, because `json.dumps` makes one for each call, which takes as long as the rest.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def encode_json(value: object) -> bytes:
    """Return a value as compact JSON."""
    return _ENCODER.encode(value).encode()


def decode_json(data: bytes) -> dict[str, Any]:
    """Return a JSON object from a server, or raise ProtocolError."""
    try:
        text = data.decode()
        # Without white space around the object, `decode` would look for it for nothing.
        if text[:1] == "{":
            value, end = _DECODER.raw_decode(text)
            if end == len(text):
                return value  # type: ignore[no-any-return]
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the answer is not JSON: {bytes(data[:80])!r}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"the answer is not a JSON object: {bytes(data[:80])!r}")
    return value


_INFO_TYPES: Final = {
    **dict.fromkeys(("version", "server_id", "server_name", "cluster", "domain"), str),
    **dict.fromkeys(("api_lvl", "max_payload", "client_id"), int),
    **dict.fromkeys(("headers", "jetstream", "ldm"), bool),
}
_RENAMED: Final = {"api_lvl": "api_level", "ldm": "lame_duck"}


def parse_info(line: bytes, url: str | None) -> ServerInfo:
    """
    Read an ``INFO`` line.

    Raises:
        ProtocolError: It is not a JSON object, or a field has a wrong type.
    """
    raw = decode_json(line[4:])
    known: dict[str, Any] = {}
    for name, kind in _INFO_TYPES.items():
        value = raw.get(name)
        if value is None:
            continue
        if type(value) is not kind:
            raise ProtocolError(f"INFO: {name} has a wrong type: {reprlib.repr(value)}")
        known[_RENAMED.get(name, name)] = value
    for name in ("cluster", "domain"):
        known[name] = known.get(name) or None
    server = ServerInfo(**{"headers": False, **known}, url=url, raw=raw)
    if not 0 <= server.max_payload <= LARGEST_PAYLOAD:
        raise ProtocolError(f"INFO: max_payload is {server.max_payload}")
    return server


def clean_info(line: bytes, url: str | None) -> tuple[dict[str, Any], ServerInfo]:
    """
    Read the ``INFO`` line of the server at *url*.

    Returns two values: the fields that nats-py needs, and all fields.

    nats-py does not check the types of the fields, and an error there would end its reconnects. It
    gets no nonce, because jetsync adds the login. It gets only valid server addresses.

    Raises:
        ProtocolError: The line is not a JSON object, or a field has the wrong type.
    """
    server = parse_info(line, url)
    raw = server.raw
    if not isinstance(raw.get("nonce") or "", str):
        raise ProtocolError("the nonce of INFO is not text")
    info = {name: raw[name] for name in _PASSED_ON if raw.get(name) is not None}
    urls = raw.get("connect_urls") or []
    if isinstance(urls, list):
        info["connect_urls"] = [url for url in urls if _can_be_dialled(url)]
    for flag in ("tls_required", "ldm"):
        info[flag] = raw.get(flag) is True
    return info, server


_PASSED_ON: Final = ("server_id", "version", "max_payload", "headers", "client_id")


def _can_be_dialled(url: object) -> bool:
    """Return whether *url* is ``host:port``, the form in which servers announce each other."""
    if not isinstance(url, str) or any(letter in url for letter in "/?#@ "):
        return False
    try:
        parts = urlsplit(f"//{url}")
        return bool(parts.hostname) and bool(parts.port)
    except ValueError:
        return False
