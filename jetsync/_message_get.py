"""
Read one stored message: by a direct get, which any replica answers, or over the leader's API.

A direct get (ADR-31) is faster and may be a moment behind; the leader's API always knows the last
message. Both end in the same :class:`StoredMessage`, whatever the payload: an empty one is ``b""``.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from jetsync._codec import parse_time_ns
from jetsync._management import call
from jetsync.errors import (
    BadDirectRequestError,
    DirectNotSupportedError,
    MessageNotFoundError,
    NoRespondersError,
    ProtocolError,
    RequiredApiLevelError,
    UnknownStatusError,
)
from jetsync.headers import Headers, parse_status
from jetsync.stored import StoredMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jetsync._deadline import Deadline
    from jetsync._session import JetStreamSession
    from jetsync.typing import Frame

__all__ = ["direct_get", "leader_get", "observed", "read_direct", "shown_by"]


def leader_get(
    session: JetStreamSession, stream: str, request: Mapping[str, Any], deadline: Deadline
) -> StoredMessage:
    """
    Ask the stream's leader for one message.

    Raises:
        MessageNotFoundError: there is none.
        StreamNotFoundError: the stream does not exist.
    """
    answer = call(session, f"STREAM.MSG.GET.{stream}", request, deadline, stream=stream)
    message = answer.get("message")
    if not isinstance(message, dict):
        raise ProtocolError(f"the answer has no message: {answer!r:.80}")
    try:
        headers = base64.b64decode(message.get("hdrs") or b"")
        data = base64.b64decode(message.get("data") or b"")
        return StoredMessage(
            stream,
            message["subject"],
            int(message["seq"]),
            parse_time_ns(message["time"]),
            Headers.parse(headers)[2] if headers else None,
            data,
        )
    except (KeyError, TypeError, binascii.Error) as error:
        raise ProtocolError(f"the message can not be read: {error!r}") from error


def direct_get(
    session: JetStreamSession,
    stream: str,
    request: bytes,
    deadline: Deadline,
    *,
    subject: str | None = None,
) -> StoredMessage:
    """
    Ask any replica of a stream, or of its mirrors, for one message.

    Args:
        session: Where to ask.
        stream: The stream.
        request: The JSON request; empty where ``subject`` is given.
        deadline: Of the call that this is a part of.
        subject: Ask for the last message of this subject in the short form, which needs no JSON and
            can be allowed or denied by subject.

    Raises:
        MessageNotFoundError: there is none.
        DirectNotSupportedError: the stream does not allow it, or nobody answers at the moment.
    """
    where = f"{session.prefix}.DIRECT.GET.{stream}"
    try:
        frame = session.request(
            where if subject is None else f"{where}.{subject}", request, deadline
        )
    except NoRespondersError as error:
        raise DirectNotSupportedError(stream) from error
    return read_direct(stream, frame)


def read_direct(stream: str, frame: Frame) -> StoredMessage:
    """
    Return the message in the answer to a direct get, or raise what its status says.
    """
    block = frame[2]
    if block is None:
        raise ProtocolError("an answer to a direct get has no headers")
    code, description = parse_status(block)
    if not code:
        return StoredMessage.from_direct(block, frame[3])
    if code == 404:
        raise MessageNotFoundError(description=description or None, stream=stream)
    if code == 503:
        raise DirectNotSupportedError(stream)
    by_code = {408: BadDirectRequestError, 412: RequiredApiLevelError}
    raise by_code.get(code, UnknownStatusError)(code=code, description=description, stream=stream)


def observed(session: JetStreamSession, message: StoredMessage) -> StoredMessage:
    """
    Show a message to the plugins that look at what is handed out; return what they leave of it.
    """
    show = shown_by(session)
    return message if show is None else show(message)


def shown_by(session: JetStreamSession) -> Callable[[StoredMessage], StoredMessage] | None:
    """
    Return what shows messages to the plugins that look at them, ``None`` if no plugin does.
    """
    received, marked = session.plugins.received, session.plugins.ttl_marker
    if received is None and marked is None:
        return None

    def show(message: StoredMessage) -> StoredMessage:
        if marked is not None:
            reason = message.marker
            if reason is not None:
                marked(message, reason)
        return message if received is None else received(message)

    return show
