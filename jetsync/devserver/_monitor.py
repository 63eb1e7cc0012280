"""
Ask a running server for its state, over its client port and its monitoring port. It needs
no JetStream client.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "127.0.0.1"

# The parts of a server that listen, by their names in a configuration: the part of `/varz` that
# says where, and the names of the host and the port in it.
_LISTENERS: Final = (
    ("port", "", "host", "port"),
    ("http", "", "http_host", "http_port"),
    ("cluster", "cluster", "addr", "cluster_port"),
    ("gateway", "gateway", "host", "port"),
    ("leafnodes", "leaf", "host", "port"),
    ("mqtt", "mqtt", "host", "port"),
    ("websocket", "websocket", "host", "port"),
)

# The answer is a message, also if no server has JetStream.
_REQUEST: Final = (
    b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
    b"SUB _INBOX.ready 1\r\n"
    b"PUB $JS.API.INFO _INBOX.ready 0\r\n\r\n"
)


def read_info(port: int, timeout: float = 1.0) -> dict[str, Any] | None:
    """
    Return the INFO that a server sends first.

    Args:
        port: The client port.
        timeout: Seconds.

    Returns:
        The decoded INFO; an empty dictionary if the server accepts the connection and waits for a
        TLS handshake; ``None`` if it does not accept connections.
    """
    line = b""
    try:
        with socket.create_connection((HOST, port), timeout) as connection:
            while not line.endswith(b"\r\n"):
                data = connection.recv(65536)
                if not data:
                    return None
                line += data
    except TimeoutError:
        return {}
    except OSError:
        return None
    if not line.startswith(b"INFO "):
        return {}
    info: dict[str, Any] = json.loads(line.split(b"\r\n", 1)[0][5:])
    return info


def answers_requests(port: int) -> bool:
    """
    Return whether JetStream answers a request that is sent to this server.

    Also true if the server asks for a login or for TLS, or refuses the request, because then
    nothing can be asked.
    """
    info = read_info(port)
    if not info or info.get("auth_required") or info.get("tls_required"):
        return info is not None
    try:
        with socket.create_connection((HOST, port), 1.0) as connection:
            connection.sendall(_REQUEST)
            with connection.makefile("rb") as lines:
                return any(line.startswith((b"MSG ", b"HMSG ", b"-ERR ")) for line in lines)
    except OSError:
        return False


def get_json(port: int, path: str, timeout: float = 5.0) -> dict[str, Any]:
    """
    Return the JSON answer of a monitoring request.

    Args:
        port: The monitoring port.
        path: Such as ``"/varz"`` or ``"jsz?streams=true"``.
        timeout: Seconds.

    Raises:
        OSError: The server does not answer.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request("GET", "/" + path.lstrip("/"))
        body = connection.getresponse().read()
    except http.client.HTTPException as error:
        raise ConnectionError(
            f"the monitoring port {port} gave no HTTP answer: {error!r}"
        ) from error
    finally:
        connection.close()
    try:
        answer: dict[str, Any] = json.loads(body)
    except (ValueError, RecursionError):
        answer = {"text": body.decode(errors="replace")}
    return answer


def ask(port: int, path: str) -> dict[str, Any]:
    """
    Return the JSON answer of a monitoring request; empty if the server does not answer in time.
    """
    try:
        return get_json(port, path, timeout=2.0)
    except OSError:
        return {}


def healthy(port: int, query: str = "") -> bool:
    """
    Return whether ``/healthz`` says that the server and its JetStream are in order.
    """
    return ask(port, f"/healthz{query}").get("status") == "ok"


def meta_view(port: int) -> dict[str, Any]:
    """
    Return what one server of a cluster knows about the meta group, empty when it cannot say.
    """
    return ask(port, "/jsz").get("meta_cluster") or {}


def led_streams(port: int, server_name: str) -> set[tuple[str, str]]:
    """
    Return (account, stream) of every stream that the server on *port* leads.

    A stream without a cluster block is on a single server, which leads it.
    """
    led = set()
    answer = ask(port, "/jsz?accounts=true&streams=true")
    for account in answer.get("account_details") or ():
        for stream in account.get("stream_detail") or ():
            cluster = stream.get("cluster")
            if not cluster or cluster.get("leader") == server_name:
                led.add((account.get("name", ""), stream.get("name", "")))
    return led


def addresses(varz: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the host on which each part of a server listens, from its ``/varz``.
    """
    found = {}
    for block, part, host, port in _LISTENERS:
        said = (varz.get(part) or {}) if part else varz
        if said.get(port):
            found[block] = str(said.get(host))
    return found


def is_loopback(host: str) -> bool:
    """
    Return whether only this machine reaches a host.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
