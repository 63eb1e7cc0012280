"""
Errors of the connection and of core NATS.
"""

from __future__ import annotations

from jetsync.errors.base import JetSyncError
from jetsync.errors.texts import redact_url as _redact_url
from jetsync.errors.texts import shown_seconds as _shown_seconds


class TransportError(JetSyncError):
    """
    The base class of errors of the connection and of core NATS (subscriptions, permissions).

    RequestTimeoutError is not a subclass of it.
    """


class ConnectError(TransportError, ConnectionError):
    """
    jetsync could not connect to any server.

    ``server`` is the URL without secrets, if one server is to blame.
    """

    def __init__(self, reason: str, *, server: str | None = None) -> None:
        self.server: str | None = None if server is None else _redact_url(server)
        super().__init__(reason if self.server is None else f"{reason} ({self.server})")
        self.reason = reason


class ConnectTimeoutError(ConnectError, TimeoutError):
    """
    jetsync could not connect within ``connect_timeout``, which covers all servers and attempts.

    ``timeout`` is in seconds.
    """

    def __init__(
        self, timeout: float, *, server: str | None = None, reason: str | None = None
    ) -> None:
        text = f"no connection within {_shown_seconds(timeout)}"
        super().__init__(text if reason is None else f"{text}: {reason}", server=server)
        self.timeout = timeout


class AuthenticationError(ConnectError):
    """
    The server rejected the credentials, they have expired, or jetsync could not load them.
    """


class ConnectionClosedError(TransportError, ConnectionError):
    """
    The client was closed before or during this call.

    ``sent`` is true if it was closed after the call had sent its request.
    """

    _default_text = "the client is closed"

    def __init__(self, message: str | None = None, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class DisconnectedError(TransportError, ConnectionError, TimeoutError):
    """
    The client was disconnected until the deadline passed.

    A call that makes one request has sent nothing. A fetch or an ``add_many`` may have sent
    requests or messages before. ``timeout`` is in seconds.
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
            text += f" within {_shown_seconds(timeout)}"
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
    The connection was lost before the reply to a request arrived.

    Requests that only read are sent again within their deadline instead. The server may have
    processed any other request. If it may have stored a message, the call raises
    PublishOutcomeUnknownError instead. After ConnectionLostError you can repeat the call, unless
    its description says otherwise. ``sent`` is false if the server certainly has not processed the
    request, usually because the connection was lost before the request was sent. ``reason`` is the
    server's reason for ending the connection, if it is known.
    """

    def __init__(
        self, *, subject: str | None = None, reason: str | None = None, sent: bool = True
    ) -> None:
        to = "" if subject is None else f" to {subject!r}"
        text = f"the connection was lost before the reply{to} arrived"
        if not sent:
            text = f"the connection was lost before the request{to} was sent"
        super().__init__(text if reason is None else f"{text}: {reason}")
        self.subject = subject
        self.reason = reason
        self.sent = sent


class NoRespondersError(TransportError):
    """
    No server or client is subscribed to the subject of a request.
    """

    def __init__(self, subject: str, text: str | None = None) -> None:
        super().__init__(text or f"no responders on {subject!r}")
        self.subject = subject


class NotSystemAccountError(NoRespondersError):
    """
    Servers answer this request only to users of the system account.
    """

    def __init__(self, subject: str) -> None:
        super().__init__(
            subject,
            f"no server answers {subject!r} to this user: connect as a user of the system account,"
            " which is $SYS unless system_account in the server's configuration names another one",
        )


class ServerNotFoundError(NoRespondersError):
    """
    No server with this id can be reached. A server gets another id when it restarts.
    """

    def __init__(self, server_id: str, subject: str) -> None:
        super().__init__(
            subject,
            f"no server has the id {server_id!r}, or it cannot be reached;"
            " a server that restarts gets another id",
        )
        self.server_id = server_id


class PermissionDeniedError(TransportError, PermissionError):
    """
    The user has no permission to publish to the subject, or to subscribe to it.

    ``sent`` is true if a request was sent and the server may have processed it. Either the user may
    not subscribe to the subject of its reply. Or several messages to one subject were in flight,
    and the server refused one of them without saying which. If it may have stored a message, the
    call raises PublishOutcomeUnknownError instead, with this error as its ``__cause__``.
    """

    def __init__(self, subject: str, operation: str, *, sent: bool = False) -> None:
        text = f"permission denied: may not {operation} to {subject!r}"
        if sent and operation == "publish":
            text += ", but the server does not say which of several messages it refused"
        elif sent:
            text += ", so the reply to the request is lost"
        super().__init__(text)
        self.subject = subject
        self.operation = operation
        self.sent = sent


class SlowConsumerError(TransportError):
    """
    The buffer was full and messages were dropped.

    A subscription and a request with many answers stay open, and ``dropped`` is the number of
    messages dropped since the last such error. A consumption from a push consumer without flow
    control ends, and ``consumer`` is the consumer's name. If the consumer wants acks, the server
    redelivers the dropped messages.
    """

    def __init__(
        self, subject: str, dropped: int, *, consumer: str | None = None, is_request: bool = False
    ) -> None:
        if is_request:
            text = f"{dropped} answers to {subject!r} were dropped; take answers faster"
        elif consumer is None:
            text = (
                f"the subscription to {subject!r} dropped {dropped} messages;"
                " take messages faster, or raise max_pending and max_pending_bytes"
            )
        else:
            text = (
                f"the consumption from push consumer {consumer!r} dropped {dropped} messages;"
                " create the consumer with flow_control and idle_heartbeat, lower its"
                " max_ack_pending, or raise max_messages and max_bytes"
            )
        super().__init__(f"slow consumer: {text}")
        self.subject = subject
        self.dropped = dropped
        self.consumer = consumer


class ForkedProcessError(TransportError, RuntimeError):
    """
    The client or the handle was created before this process was forked.

    Create a new one in the child process. With ``after_fork="reconnect"``, a client of the parent
    connects again in the child.
    """

    _default_text = (
        "this client or handle belongs to the parent process: make a new one in the child;"
        " a client with after_fork='reconnect' connects there by itself"
    )


class SubscriptionLimitError(TransportError):
    """
    The server rejected a subscription because the connection or account has too many subscriptions.
    """

    def __init__(self, subject: str) -> None:
        super().__init__(
            f"the server rejected the subscription to {subject!r}: maximum subscriptions exceeded"
        )
        self.subject = subject


class RequestTimeoutError(JetSyncError, TimeoutError):
    """
    The reply to a request did not arrive in time.

    The server may have processed the request. If it may have stored a message, the call raises
    PublishOutcomeUnknownError instead. ``timeout`` is in seconds.
    """

    def __init__(self, subject: str, timeout: float, *, what: str | None = None) -> None:
        super().__init__(f"{what or f'no answer on {subject!r}'} within {_shown_seconds(timeout)}")
        self.subject = subject
        self.timeout = timeout


class ProtocolError(JetSyncError):
    """
    The server sent something that jetsync cannot parse.
    """
