"""
What a client knows of its server and of its own traffic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from jetsync.errors import ProtocolError

__all__ = ["ServerInfo", "Statistics"]


@attrs.frozen(kw_only=True)
class ServerInfo:
    """
    What the server that the client is connected to said about itself.
    """

    version: str = "0.0.0"
    """The server's version, such as ``2.15.1``."""

    api_level: int = 0
    """The JetStream API level it announces; 0 before server 2.12, which does not say."""

    max_payload: int = 1 << 20
    """The most bytes that headers and payload of one message may have together."""

    server_id: str = ""
    server_name: str = ""

    cluster: str | None = None
    """The cluster's name, where there is one."""

    url: str | None = None
    """The address that the client is connected to, without user name and password."""

    client_id: int | None = None
    """The number of this connection on that server."""

    headers: bool = True
    """Whether the server has headers, and with them JetStream statuses."""

    jetstream: bool = False
    """Whether the server itself runs JetStream; in a cluster others may."""

    domain: str | None = None
    """The server's JetStream domain."""

    lame_duck: bool = False
    """Whether the server is about to go away."""

    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """All that the server said, as it came."""

    @property
    def version_tuple(self) -> tuple[int, ...]:
        """
        The version as numbers, to compare with: ``(2, 15, 1)``. A pre-release suffix is left out.
        """
        numbers = self.version.partition("-")[0].split(".")
        return tuple(int(number) for number in numbers if number.isdigit())


@attrs.frozen(kw_only=True)
class Statistics:
    """
    What went over a client's connections since it was made.
    """

    bytes_in: int
    bytes_out: int
    reconnects: int

    requests_in_flight: int
    """Requests and single publishes that wait for their answer now."""

    subscriptions: int
    """Subscriptions that are open now, jetsync's own reply subscription included."""

    strays: int
    """Frames that came for subscriptions that had been left."""


def decode_json(data: bytes) -> dict[str, Any]:
    """Return a JSON object, or raise ProtocolError."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ProtocolError(f"the answer is no JSON: {bytes(data[:80])!r}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"the answer is no JSON object: {bytes(data[:80])!r}")
    return value


def parse_info(line: bytes, url: str | None) -> ServerInfo:
    """Read an ``INFO`` line."""
    raw = decode_json(line[4:])
    return ServerInfo(
        version=raw.get("version", "0.0.0"),
        api_level=raw.get("api_lvl", 0),
        max_payload=raw.get("max_payload", 1 << 20),
        server_id=raw.get("server_id", ""),
        server_name=raw.get("server_name", ""),
        cluster=raw.get("cluster"),
        url=url,
        client_id=raw.get("client_id"),
        headers=raw.get("headers", False),
        jetstream=raw.get("jetstream", False),
        domain=raw.get("domain"),
        lame_duck=raw.get("ldm", False),
        raw=raw,
    )


def clean_info(line: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    Check an ``INFO`` line; return what nats-py needs of it, and all of it.

    nats-py trusts the types of what it reads, and an error there would end its reconnects. It gets
    no nonce, because jetsync adds the login, and only server addresses that can be dialled.

    Raises:
        ProtocolError: The line is no JSON object, or a field has the wrong type.
    """
    raw = decode_json(line[4:])
    parse_info(line, None)
    info = {name: raw[name] for name in _PASSED_ON if raw.get(name) is not None}
    urls = raw.get("connect_urls") or []
    if isinstance(urls, list):
        info["connect_urls"] = [url for url in urls if _can_be_dialled(url)]
    for flag in ("tls_required", "ldm"):
        info[flag] = raw.get(flag) is True
    return info, raw


_PASSED_ON: Final = ("server_id", "version", "max_payload", "headers", "client_id")


def _can_be_dialled(url: object) -> bool:
    """Return whether *url* is ``host:port``, as servers announce each other."""
    if not isinstance(url, str) or any(letter in url for letter in "/?#@ "):
        return False
    try:
        parts = urlsplit(f"//{url}")
        return bool(parts.hostname) and bool(parts.port)
    except ValueError:
        return False
