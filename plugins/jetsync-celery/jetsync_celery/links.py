"""
URLs and options, as options of ``jetsync.connect``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

import attrs

import jetsync

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import kombu

DEFAULT_PORT: Final = 4222
DEFAULT_PREFIX: Final = "celery"
SECURE: Final = "jetstreams"
"""The scheme that turns TLS on."""

RECONNECT: Final[dict[str, float]] = {"reconnect_wait": 0.1, "max_reconnect_wait": 0.2}
"""
How often to try to reconnect, unless ``connect`` says something else. A server that starts again
waits from 0.5 to 1.5 s for the workers of earlier tasks. After that, it gives them to others.
"""
QUOTE: Final = "quote special characters of the password with urllib.parse.quote(password, safe='')"

_PREFIX = re.compile(r"[A-Za-z0-9_-]+")
_SSL: Final = {"ca_certs": "tls_ca", "certfile": "tls_cert", "keyfile": "tls_key"}
_SSL_IGNORED: Final = {"cert_reqs", "check_hostname"}


@attrs.frozen
class Link:
    """
    How to connect, and under which prefix everything is stored.
    """

    options: jetsync.ConnectOptions
    """The options of the connection."""

    prefix: str = DEFAULT_PREFIX
    """The path of the URL, or ``celery``."""


def of_connection(connection: kombu.Connection, extra: Mapping[str, Any]) -> Link:
    """
    Return the link to the current URL of a connection of kombu.

    Args:
        connection: kombu's connection.
        extra: Further keywords of ``jetsync.connect``.

    Raises:
        ValueError: The URL or an option is invalid.
    """
    secure = bool(connection.ssl) or connection.transport_cls == SECURE
    host = connection.hostname or "127.0.0.1"
    fields: dict[str, Any] = {
        "servers": _server(host, connection.port or DEFAULT_PORT, secure=secure),
        "connect_timeout": connection.connect_timeout or 5.0,
        "name": "celery",
        **_waits(extra),
        **_login(connection.userid, connection.password),
        **_tls(connection.ssl),
        **extra,
    }
    paths = [urlsplit(url).path for url in connection.alt if "://" in url]
    return Link(jetsync.ConnectOptions(**fields), _only_prefix([*paths, connection.virtual_host]))


def of_url(url: str, extra: Mapping[str, Any]) -> Link:
    """
    Return the link to the servers of a URL, or of several with semicolons or commas between them.

    Args:
        url: For example ``jetstream://:token@a:4222/shop;jetstream://:token@b:4222/shop``.
        extra: Further keywords of ``jetsync.connect``.

    Raises:
        ValueError: The URL or an option is invalid.
    """
    servers: Any = []
    fields: dict[str, Any] = {}
    paths: list[str] = []
    scheme = ""
    for each in re.split(r"[;,]", url):
        text = each if "://" in each else f"{scheme or 'jetstream'}://{each}"
        try:
            parts = urlsplit(text)
            port = parts.port or DEFAULT_PORT
        except ValueError:
            # Its text may be a part of the password.
            raise ValueError(f"the URL {without_password(url)!r} is invalid: {QUOTE}") from None
        scheme = parts.scheme
        host = unquote(parts.hostname or "127.0.0.1")
        servers.append(_server(host, port, secure=scheme == SECURE))
        fields.update(
            _login(
                unquote(parts.username) if parts.username else None,
                unquote(parts.password) if parts.password else None,
            )
        )
        if "://" in each or parts.path:
            paths.append(parts.path)
    if len(servers) == 1:
        # As `of_connection`, so that both share a client.
        servers = servers[0]
    given = {"servers": servers, "name": "celery", **_waits(extra), **fields, **extra}
    return Link(jetsync.ConnectOptions(**given), _only_prefix(paths))


def without_password(url: str) -> str:
    """
    Return a URL for display, with the passwords replaced.
    """
    shown = re.sub(r"((?:://|[;,])[^:@/;,]*):[^@/;,]*@", r"\1:**@", url)
    if "@" in shown.replace(":**@", ""):
        # A password that is not quoted, or what looks like one.
        return f"{url.partition('://')[0]}://**"
    return shown


def prefix_of(path: str | None) -> str:
    """
    Return the prefix that a URL's path names.

    Raises:
        ValueError: The path has other characters than letters, digits, ``-`` and ``_``.
    """
    prefix = (path or "").strip("/") or DEFAULT_PREFIX
    if "@" in prefix:
        raise ValueError(f"the path of the URL has the character @: {QUOTE}")
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(
            f"the path of the URL is the prefix of the queues: letters, digits, - and _, not "
            f"{prefix!r}"
        )
    return prefix


def _only_prefix(paths: Sequence[str | None]) -> str:
    prefixes = sorted(set(map(prefix_of, paths)))
    if len(prefixes) > 1:
        raise ValueError(f"all URLs need the same path, not {' and '.join(prefixes)}")
    return prefixes[0]


def _server(host: str, port: int, *, secure: bool) -> str:
    name = f"[{host}]" if ":" in host else quote(host)
    return f"{'tls' if secure else 'nats'}://{name}:{port}"


def _waits(extra: Mapping[str, Any]) -> dict[str, float]:
    return {} if RECONNECT.keys() & extra.keys() else RECONNECT


def _login(user: str | None, password: str | None) -> dict[str, str]:
    if user and not password:
        # Celery and kombu show users in logs and in the answers of workers.
        raise ValueError(
            "the URL has a user and no password; write a token as jetstream://:TOKEN@host"
        )
    if user and password:
        return {"user": user, "password": password}
    return {"token": password} if password else {}


def _tls(given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        return {}
    names = {name.removeprefix("ssl_"): value for name, value in given.items()}
    if unknown := set(names) - set(_SSL) - _SSL_IGNORED:
        raise ValueError(
            f"broker_use_ssl has {', '.join(sorted(unknown))}; known are {', '.join(_SSL)}. Give "
            f"other settings as broker_transport_options={{'connect': {{'tls': SSLContext}}}}"
        )
    if names.get("cert_reqs") == 0 or names.get("check_hostname") is False:
        raise ValueError("jetsync always checks the certificate of the server")
    return {_SSL[name]: value for name, value in names.items() if name in _SSL and value}
