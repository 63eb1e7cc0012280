"""
Foreign errors of the connection, and what they are to users.

Told by what they are and by what they say, so that nothing foreign has to be imported here.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

from jetsync.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionClosedError,
    redact_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_HARMLESS: Final = (
    "permissions violation",
    "maximum subscriptions",
    "invalid subject",
    "invalid publish subject",
)
"""What the texts of those ``-ERR`` lines contain after which the server keeps the connection."""

_AUTH_WORDS: Final = ("authorization", "authentication", "nkey", "jwt", "credentials")


def translate_connect_error(error: Exception, *, server: str | None = None) -> ConnectError:
    """Return our error for one of nats-py's, the socket's or TLS's while connecting."""
    if isinstance(error, ConnectError):
        if server is None or type(error) not in {ConnectError, AuthenticationError}:
            return error
        return type(error)(error.reason, server=server)
    text = _text_of(error)
    theirs = type(error).__module__.partition(".")[0] == "nats"
    if theirs and any(word in text.lower() for word in _AUTH_WORDS):
        return AuthenticationError(text.strip("'"), server=server)
    return ConnectError(text, server=server)


def no_server_error(failures: Sequence[tuple[str | None, Exception]]) -> ConnectError:
    """
    Return the error of a connect that failed at each of several servers, with a reason for each.

    That one server refused the login says more than that another is down, and decides the class.
    """
    errors = [translate_connect_error(error, server=server) for server, error in failures]
    if len(errors) == 1:
        return errors[0]
    kind = AuthenticationError if _has_refusal(errors) else ConnectError
    return kind("no server could be used: " + "; ".join(map(str, errors)))


def translate_closed(cause: Exception | None) -> ConnectionClosedError:
    """Return the error that calls on a closed client end with."""
    if cause is None:
        return ConnectionClosedError()
    error = ConnectionClosedError(f"the client is closed: {_text_of(cause)}")
    error.__cause__ = cause
    return error


def is_refused_login(reason: str) -> bool:
    """Return whether the text of an ``-ERR`` line says that the login is not accepted."""
    text = reason.lower()
    return "timeout" not in text and ("authorization" in text or "authentication" in text)


def ends_connection(reason: str) -> bool:
    """Return whether the server ends the connection after an ``-ERR`` line with this text."""
    text = reason.lower()
    return not any(words in text for words in _HARMLESS)


def _has_refusal(errors: Sequence[ConnectError]) -> bool:
    return any(isinstance(error, AuthenticationError) for error in errors)


def _text_of(error: Exception) -> str:
    """Return what went wrong in plain words: without prefixes, numbers and secrets."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        # asyncio puts the address into the text in a form of its own.
        if type(error).__module__ == "builtins":
            return os.strerror(error.errno).lower()
    elif isinstance(error, socket.gaierror):
        return str(error.strerror).lower()
    return redact_text(str(error) or type(error).__name__).removeprefix("nats: ")
