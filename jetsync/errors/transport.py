"""
Errors of the connection and of core NATS.
"""

from __future__ import annotations

import re

from jetsync.errors.base import JetSyncError

_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
_NEXT_URL = re.compile(r",(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)")
_QUERY = re.compile("[?#]")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]*)(?::\d{0,5})?/?")
_HOST_AND_PATH = re.compile(rf"{_HOST.pattern}(?:(?<=/)[^:]*)?")
_LIKE_URL = re.compile(
    # A URL without the punctuation behind it, or a word with an "@".
    r"[A-Za-z][A-Za-z0-9+.-]*://\S*?(?=[)'\",;:.]*(?:\s|$))|(?:(?!://)\S)*@\S*"
)


def redact_url(url: str) -> str:
    """
    Return the URL, or comma-separated URLs, without secrets, so that it may be shown or logged.

    User name, password and token become ``***``, and so do query and fragment. Only what is
    certainly a host, a port or the path of a WebSocket URL is kept. Of a URL that cannot be
    divided safely only the scheme is kept.
    """
    return ",".join(_redact_one(one) for one in _NEXT_URL.split(url))


def _redact_one(url: str) -> str:
    found = _SCHEME.match(url)
    scheme = "" if found is None else found[0]
    login, at, rest = url[len(scheme) :].rpartition("@")
    found = _QUERY.search(rest)
    hosts, mark = (rest, "") if found is None else (rest[: found.start()], found[0])
    # Other schemes have no path, so a "/" is part of a token.
    shape = _HOST_AND_PATH if scheme.strip().lower() in {"ws://", "wss://"} else _HOST
    # With a "?" before the "@", the "@" may be part of the query, and what follows it of a secret.
    if _QUERY.search(login) or not all(shape.fullmatch(host.strip()) for host in hosts.split(",")):
        return f"{scheme}***"
    shown = f"{scheme}***@{hosts}" if at else f"{scheme}{hosts}"
    return f"{shown}{mark}***" if mark else shown


def redact_text(text: str) -> str:
    """
    Return a text in which :func:`redact_url` was applied to each word that may be a URL.
    """
    return _LIKE_URL.sub(lambda found: redact_url(found[0]), text)


class TransportError(JetSyncError):
    """
    Something is wrong with the connection or with core NATS; JetStream was not reached.
    """


class ConnectError(TransportError, ConnectionError):
    """
    No connection could be made.
    """

    def __init__(self, reason: str = "can not connect", *, server: str | None = None) -> None:
        self.server = None if server is None else redact_url(server)
        super().__init__(reason if self.server is None else f"{reason} ({self.server})")
        self.reason = reason


class ConnectTimeoutError(ConnectError, TimeoutError):
    """
    No connection could be made within ``connect_timeout``, which is a total over all servers and
    tries.
    """

    def __init__(
        self, timeout: float, *, server: str | None = None, reason: str | None = None
    ) -> None:
        text = f"no connection within {timeout:g} s"
        super().__init__(text if reason is None else f"{text}: {reason}", server=server)
        self.timeout = timeout


class AuthenticationError(ConnectError):
    """
    The server refused the login or let it expire, or jetsync could not make the login.
    """


class ConnectionClosedError(TransportError, ConnectionError):
    """
    The client was closed, before or during this call.
    """

    def __init__(self, message: str = "the client is closed") -> None:
        super().__init__(message)


class DisconnectedError(TransportError, ConnectionError, TimeoutError):
    """
    There was no connection until the deadline passed; nothing of this call was sent.
    """

    def __init__(
        self,
        *,
        timeout: float | None = None,
        subject: str | None = None,
        reason: str | None = None,
        last_attempt: str | None = None,
    ) -> None:
        text = "disconnected: " + (reason or "no connection to a server")
        if timeout is not None:
            text += f" within {timeout:g} s"
        if subject is not None:
            text += f" (subject {subject!r})"
        if last_attempt is not None:
            text += f"; the last attempt to connect failed: {last_attempt}"
        super().__init__(f"{text}; nothing was sent")
        self.timeout = timeout
        self.subject = subject
        self.reason = reason
        self.last_attempt = last_attempt


class ConnectionLostError(TransportError, ConnectionError):
    """
    The connection was lost while this call waited for its answer; the call stores nothing and may
    be repeated.
    """

    def __init__(self, *, subject: str | None = None, reason: str | None = None) -> None:
        text = "the connection was lost while waiting for the answer"
        if subject is not None:
            text += f" to a request on {subject!r}"
        super().__init__(text if reason is None else f"{text}: {reason}")
        self.subject = subject
        self.reason = reason


class NoRespondersError(TransportError):
    """
    Nobody listens on the subject of a request.
    """

    def __init__(self, subject: str) -> None:
        super().__init__(f"no responders on {subject!r}")
        self.subject = subject


class PermissionDeniedError(TransportError, PermissionError):
    """
    The server does not let this user publish or subscribe to the subject.
    """

    def __init__(self, subject: str, operation: str) -> None:
        super().__init__(f"permission denied: may not {operation} to {subject!r}")
        self.subject = subject
        self.operation = operation


class SlowConsumerError(TransportError):
    """
    A subscription dropped messages because its buffer was full; it stays open.

    ``dropped`` is how many messages it dropped since the last such error.
    """

    def __init__(self, subject: str, dropped: int) -> None:
        super().__init__(
            f"slow consumer: the subscription to {subject!r} dropped {dropped} messages;"
            " take messages faster, or raise max_pending and max_pending_bytes"
        )
        self.subject = subject
        self.dropped = dropped


class ForkedProcessError(TransportError, RuntimeError):
    """
    A client is used in a process forked from the one that made it; connect again in the child.
    """

    def __init__(
        self, message: str = "this client belongs to the parent process: connect again in the child"
    ) -> None:
        super().__init__(message)


class SubscriptionLimitError(TransportError):
    """
    The server refused a subscription because the connection or the account has too many.
    """

    def __init__(self, subject: str, reason: str = "maximum subscriptions exceeded") -> None:
        super().__init__(f"the server refused the subscription to {subject!r}: {reason}")
        self.subject = subject
        self.reason = reason


class RequestTimeoutError(JetSyncError, TimeoutError):
    """
    No answer came within the deadline to a request that stores nothing.
    """

    def __init__(self, subject: str, timeout: float, *, what: str | None = None) -> None:
        super().__init__(f"{what or f'no answer on {subject!r}'} within {timeout:g} s")
        self.subject = subject
        self.timeout = timeout


class ProtocolError(JetSyncError):
    """
    A server or a header block said something that can not be understood.
    """
