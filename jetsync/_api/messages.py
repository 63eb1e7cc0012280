"""
Read one stored message: by a direct get, which any replica answers, or over the leader's API.

A direct get (ADR-31) is faster and may be a moment behind; the leader's API always knows the last
message. Both end in the same :class:`StoredMessage`, whatever the payload: an empty one is ``b""``.
"""

from __future__ import annotations

import base64
import json
import reprlib
from typing import TYPE_CHECKING, Any

from jetsync._api.mirrors import may_answer
from jetsync._api.requests import call
from jetsync._base.integers import read_count
from jetsync.errors import (
    BadDirectRequestError,
    DirectNotSupportedError,
    MaxControlLineError,
    MessageNotFoundError,
    NoRespondersError,
    PermissionDeniedError,
    ProtocolError,
    RequiredApiLevelError,
    UnknownStatusError,
)
from jetsync.values.codec import parse_time_ns
from jetsync.values.headers import Headers, parse_status
from jetsync.values.stored import StoredMessage
from jetsync.values.subjects import has_wildcard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jetsync._api.context import Context
    from jetsync._api.mirrors import Reading
    from jetsync._base.deadline import Deadline
    from jetsync.values.frame import Frame

__all__ = ["direct_get", "leader_get", "observed", "read_direct", "read_one", "shown_by"]


def leader_get(
    context: Context, stream: str, request: Mapping[str, Any], deadline: Deadline
) -> StoredMessage:
    """
    Ask the stream's leader for one message.

    Raises:
        MessageNotFoundError: there is none.
        StreamNotFoundError: the stream does not exist.
    """
    answer = call(context, f"STREAM.MSG.GET.{stream}", request, deadline, stream=stream)
    message = answer.get("message")
    if not isinstance(message, dict):
        raise ProtocolError(f"the answer has no message: {reprlib.repr(answer)}")
    subject = message.get("subject")
    if not isinstance(subject, str):
        raise ProtocolError("the answer's message has no subject")
    try:
        headers = base64.b64decode(message.get("hdrs") or b"")
        data = base64.b64decode(message.get("data") or b"")
        return StoredMessage(
            stream,
            subject,
            read_count(message.get("seq"), "the sequence of a message"),
            parse_time_ns(message["time"]),
            Headers.parse(headers)[2] if headers else None,
            data,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the message can not be read: {error!r}") from error


def direct_get(
    context: Context,
    stream: str,
    request: bytes,
    deadline: Deadline,
    *,
    subject: str | None = None,
) -> StoredMessage:
    """
    Ask any replica of a stream, or of its mirrors, for one message.

    Args:
        context: Where to ask.
        stream: The stream.
        request: The JSON request; empty where ``subject`` is given.
        deadline: Of the call that this is a part of.
        subject: Ask for the last message of this subject in the short form, which needs no JSON and
            can be allowed or denied by subject.

    Raises:
        MessageNotFoundError: there is none.
        DirectNotSupportedError: the stream does not allow it, or nobody answers at the moment.
    """
    where = f"{context.prefix}.DIRECT.GET.{stream}"
    try:
        if subject is None:
            frame = context.request(where, request, deadline)
        else:
            try:
                frame = context.request(f"{where}.{subject}", request, deadline)
            except MaxControlLineError:
                # The subject is too long for the API subject, so send it in the body.
                body = json.dumps({"last_by_subj": subject}).encode()
                frame = context.request(where, body, deadline)
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


def read_one(
    context: Context,
    stream: str,
    request: Mapping[str, Any],
    deadline: Deadline,
    *,
    direct: bool | None,
) -> StoredMessage:
    """
    Read one message by a direct get, and from the leader where the answer may be wrong.

    A message of the stream itself is taken as it is. That there is none is asked of the leader, as
    a replica may be behind and a mirror may have less; so is what a mirror has answered that may
    have less. Who may not ask the leader has to take the first answer.

    Args:
        context: Where to ask.
        stream: The stream.
        request: What to ask the leader.
        deadline: Of the whole call.
        direct: True to take any direct answer; None to ask the leader where it is not enough.

    Raises:
        MessageNotFoundError: there is none.
        DirectNotSupportedError: with *direct*, where nobody answers.
    """
    subject = request.get("last_by_subj")
    body = b"" if subject is not None else json.dumps(request).encode()
    message: StoredMessage | None = None
    nothing: MessageNotFoundError | None = None
    try:
        message = direct_get(context, stream, body, deadline, subject=subject)
        origin = message.stream
        if direct or origin == stream:
            return message
        if may_answer(context, origin, stream, _reading(request), deadline):
            return message
    except DirectNotSupportedError:
        if direct:
            raise
    except MessageNotFoundError as error:
        if direct:
            raise
        nothing = error
    try:
        return leader_get(context, stream, request, deadline)
    except PermissionDeniedError:
        if message is not None and _reading(request) == "message":
            return message
        if nothing is not None:
            raise nothing from None
        raise
    finally:
        # Its traceback holds this frame.
        nothing = None


def _reading(request: Mapping[str, Any]) -> Reading:
    """Return what a mirror needs to have for this request."""
    subject = request.get("last_by_subj")
    if subject is not None:
        return "last" if has_wildcard(subject) else "message"
    return "history" if "next_by_subj" in request or "start_time" in request else "message"


def observed(context: Context, message: StoredMessage) -> StoredMessage:
    """
    Show a message to the plugins that look at what is handed out; return what they leave of it.
    """
    show = shown_by(context)
    return message if show is None else show(message)


def shown_by(context: Context) -> Callable[[StoredMessage], StoredMessage] | None:
    """
    Return what shows messages to the plugins that look at them, ``None`` if no plugin does.
    """
    received, marked = context.plugins.received, context.plugins.ttl_marker
    if received is None and marked is None:
        return None

    def show(message: StoredMessage) -> StoredMessage:
        if marked is not None:
            reason = message.marker
            if reason is not None:
                marked(message, reason)
        return message if received is None else received(message)

    return show
