"""
Turn the errors of nats-py, sockets and TLS into those of jetsync.

Errors of nats-py are recognised by their module and text, so that it need not be imported here.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

from jetsync.errors import AuthenticationError, ConnectError, ConnectionClosedError
from jetsync.errors.texts import redact_text

if TYPE_CHECKING:
    from collections.abc import Sequence

# Texts of those -ERR lines after which the server keeps the connection.
_HARMLESS: Final = (
    "permissions violation",
    "maximum subscriptions",
    "invalid subject",
    "invalid publish subject",
)

# What may help, by words of OpenSSL's reason.
_TLS_HINTS: Final = {
    "mismatch": "if its certificate has another name, give that as tls_hostname",
    "issuer certificate": "give the authority of its certificate as tls_ca",
    "self-signed": "give the authority of its certificate as tls_ca",
    "self signed": "give the authority of its certificate as tls_ca",
    "certificate required": "the server requires a client certificate: give tls_cert and tls_key",
    "bad certificate": "the server refuses the client certificate: check tls_cert and tls_key",
    "handshake failure": "the server may require a client certificate: give tls_cert and tls_key",
    "wrong version": "the server does not speak TLS here: check the port, and tls_first if given",
    "record layer": "the server does not speak TLS here: check the port, and tls_first if given",
}

_DENIED: Final = re.compile(r'Permissions Violation for (\w+) to "([^"]*)"')

_AUTH_WORDS: Final = ("authorization", "authentication", "nkey", "jwt", "credentials")

# As on Linux. On Windows, `os.strerror` knows none of them.
_SOCKET_ERRORS: Final = {
    errno.ECONNABORTED: "software caused connection abort",
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset by peer",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network is unreachable",
    errno.ETIMEDOUT: "connection timed out",
}


def translate_connect_error(error: Exception, *, server: str | None = None) -> ConnectError:
    """Return the error of jetsync for one of nats-py, the socket or TLS while connecting."""
    if isinstance(error, ConnectError):
        if server is None or type(error) not in {ConnectError, AuthenticationError}:
            return error
        return type(error)(error.reason, server=server)
    text = _text_of(error)
    theirs = type(error).__module__.partition(".")[0] == "nats"
    if theirs and any(word in text.lower() for word in _AUTH_WORDS):
        return AuthenticationError(text.strip("'"), server=server)
    return ConnectError(text, server=server)


def shown_cause(error: Exception) -> BaseException | None:
    """
    Return what the ConnectError for *error* is raised from.

    The frames of nats-py and asyncio do not help users, so the traceback is removed. If *error* is
    already a ConnectError, its cause is returned, because the same text would appear twice.
    """
    return error.__cause__ if isinstance(error, ConnectError) else error.with_traceback(None)


def tls_reason(error: BaseException) -> str | None:
    """
    Return what failed in TLS, and what may help. Return None if *error* is not about TLS.

    aiohttp wraps the errors of TLS, sometimes as the cause of its own.
    """
    nested = (getattr(error, name, None) for name in ("certificate_error", "os_error", "__cause__"))
    found = next((one for one in (*nested, error) if isinstance(one, ssl.SSLError)), None)
    if found is None or isinstance(error, ConnectError):
        return None
    # Only errors about certificates have verify_message.
    text = getattr(found, "verify_message", None) or getattr(found, "reason", None)
    text = (text or str(found)).replace("_", " ").rstrip(".").lower()
    hint = next((hint for words, hint in _TLS_HINTS.items() if words in text), None)
    return f"TLS handshake failed: {text}" + (f"; {hint}" if hint else "")


def no_server_error(failures: Sequence[tuple[str | None, Exception]]) -> ConnectError:
    """
    Return the error of a connect that failed at each of several servers, with a reason for each.

    A refused login decides the class, because it is more specific than a server that is down.
    """
    errors = [translate_connect_error(error, server=server) for server, error in failures]
    if len(errors) == 1:
        if errors[0].reason == _SOCKET_ERRORS[errno.ECONNREFUSED]:
            errors[0].args = (f"{errors[0]}; is a server running there?",)
        return errors[0]
    refused = any(isinstance(error, AuthenticationError) for error in errors)
    kind = AuthenticationError if refused else ConnectError
    return kind("no server could be used: " + "; ".join(map(str, errors)))


def translate_closed(cause: Exception | None) -> ConnectionClosedError:
    """Return the error of calls on a closed client."""
    if cause is None:
        return ConnectionClosedError()
    error = ConnectionClosedError(f"the client is closed: {_text_of(cause)}")
    error.__cause__ = cause
    return error


def is_refused_login(reason: str) -> bool:
    """Return whether the text of an ``-ERR`` line refuses the login."""
    text = reason.lower()
    return "timeout" not in text and ("authorization" in text or "authentication" in text)


def ends_connection(reason: str) -> bool:
    """Return whether the server ends the connection after an ``-ERR`` line with this text."""
    text = reason.lower()
    return not any(words in text for words in _HARMLESS)


def parse_denied(text: str) -> tuple[Any, str] | None:
    """
    Return operation and subject of a server's permission error, or None for another error.

    The texts are ``-ERR 'Permissions Violation for Publish to "subject"'`` and ``... Subscription
    to "subject"``, to which the server may add `` using queue "name"``.
    """
    found = _DENIED.search(text)
    if found is None:
        return None
    return ("publish" if found[1] == "Publish" else "subscribe"), found[2]


def _text_of(error: Exception) -> str:
    """Return the text of an error without prefixes, numbers and secrets."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        # asyncio adds the address to the text.
        if type(error).__module__ == "builtins":
            return _SOCKET_ERRORS.get(error.errno) or os.strerror(error.errno).lower()
    elif isinstance(error, socket.gaierror):
        return str(error.strerror).lower()
    return redact_text(str(error) or type(error).__name__).removeprefix("nats: ")
