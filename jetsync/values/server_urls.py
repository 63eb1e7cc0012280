"""
Server URLs: reading the option ``servers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from jetsync.errors import InvalidArgumentError, InvalidTypeError
from jetsync.errors.texts import redact_url

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_DEFAULT_PORTS: Final = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
WEBSOCKET_SCHEMES: Final = frozenset({"ws", "wss"})

_BAD_PORT: Final = "the port must be a number from 1 to 65535"


def read_servers(servers: str | Sequence[str]) -> list[str]:
    """
    Return server URLs with scheme and port, in the order given and without repetition.

    Args:
        servers: One URL, several separated by commas, or a sequence of these. ``host`` and
            ``host:port`` suffice.

    Raises:
        InvalidTypeError: *servers* is neither a str nor a sequence of str.
        InvalidArgumentError: There is no URL, a URL is invalid, or WebSocket and plain URLs are
            mixed.
    """
    value: object = [servers] if isinstance(servers, str) else servers
    if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise InvalidTypeError("servers must be a str or a list of str", argument="servers")
    given: Sequence[str] = value
    # A comma in a password splits the URL here, so errors show the whole redacted text.
    shown = redact_url(",".join(given))
    urls = [
        _complete(piece, one, shown) for one in given for piece in one.split(",") if piece.strip()
    ]
    if not urls:
        raise InvalidArgumentError(
            "servers is empty: give at least one address", argument="servers"
        )
    if len({is_websocket([url]) for url in urls}) > 1:
        raise InvalidArgumentError(
            f"WebSocket and plain servers cannot be mixed: {shown}", argument="servers"
        )
    return list(dict.fromkeys(urls))


def _complete(piece: str, whole: str, shown: str) -> str:
    text = piece.strip()
    url = text if "://" in text else f"nats://{text}"
    # These errors contain the URL with its password, so they are not kept as a cause.
    try:
        parts = urlsplit(url)
        user_info(url)
        problem = _problem(parts, text)
    except UnicodeDecodeError:
        problem = "the percent-encoding of user and password is not UTF-8"
    except ValueError:
        problem = "not a URL with a host and a port"
    # The apparent host may be part of a login, unless the URL is only host and port.
    if problem == _BAD_PORT and set("@,?#").isdisjoint(whole):
        problem = problem.replace("the port", f"the port of host {parts.hostname!r}")
        if shown in {"***", f"{parts.scheme}://***"}:
            # A text instead of a port may be a password whose host was forgotten.
            shown = shown.replace("***", parts.netloc.rpartition(":")[0] + ":***")
    if problem is not None:
        if "@" in whole:
            problem += "; percent-encode special characters of the password (urllib.parse.quote)"
        raise InvalidArgumentError(f"bad server in {shown!r}: {problem}", argument="servers")
    if parts.port is not None:
        return url
    netloc = f"{parts.netloc.rstrip(':')}:{_DEFAULT_PORTS[parts.scheme]}"
    return parts._replace(netloc=netloc).geturl()


def _problem(parts: SplitResult, text: str) -> str | None:
    """Return what is wrong with a URL; None if nothing is."""
    is_plain = parts.scheme not in WEBSOCKET_SCHEMES
    if parts.scheme not in _DEFAULT_PORTS:
        return "the scheme must be nats, tls, ws or wss"
    if not parts.hostname or " " in text or not text.isprintable():
        return "it has no host, or a space or control character in it"
    if "@" in parts.path + parts.fragment or (is_plain and "@" in parts.query):
        # The part before it would be taken for the host and sent to a name server.
        return "it has a special character in user or password"
    try:
        if parts.port == 0:
            return _BAD_PORT
    except ValueError:
        return _BAD_PORT
    return "only WebSocket URLs have a path" if is_plain and parts.path not in {"", "/"} else None


def user_info(url: str) -> tuple[str, str | None] | None:
    """
    Return user and password of a URL, decoded. Return ``None`` if there is no user.

    Without a password, the user is a token.
    """
    parts = urlsplit(url)
    if parts.username is None or (not parts.username and parts.password is None):
        return None
    password = parts.password
    return (
        unquote(parts.username, errors="strict"),
        None if password is None else unquote(password, errors="strict"),
    )


def is_websocket(urls: Sequence[str]) -> bool:
    """
    Return whether the servers speak WebSocket. All of a list do, or none.
    """
    return urlsplit(urls[0]).scheme in WEBSOCKET_SCHEMES


def wants_tls(urls: Sequence[str]) -> bool:
    """
    Return whether the scheme of one of the URLs asks for TLS.
    """
    return any(urlsplit(url).scheme in {"tls", "wss"} for url in urls)


def address(url: str) -> str:
    """
    Return host and port of a URL.
    """
    return urlsplit(url).netloc.rpartition("@")[2]


def without_login(url: str) -> str:
    """
    Return the URL without user name, password and token.
    """
    return urlsplit(url)._replace(netloc=address(url)).geturl()
