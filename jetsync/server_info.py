"""
What a client knows of its server and of its own traffic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from jetsync.errors import ConnectError, ProtocolError

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


def requiring_tls(line: bytes) -> bytes:
    """
    Return an INFO line with which nats-py puts TLS on the connection.

    It does so where the server insists, and would go on in the clear where the server only offers
    TLS, or has none. Raises ConnectError in the last case.
    """
    info = json.loads(line[5:])
    if info.get("tls_required"):
        return line
    if not info.get("tls_available"):
        raise ConnectError("the server offers no TLS, which the options ask for")
    return b"INFO %b\r\n" % json.dumps({**info, "tls_required": True}).encode()
