"""
Read one stored message: by a direct get (ADR-31), which any replica answers, or from the leader.

A direct get is faster and may be a moment behind. The leader always knows the last message.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import reprlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jetsync import errors
from jetsync._api.mirrors import TRANSIENT, may_answer
from jetsync._api.repeats import connected
from jetsync._base.integers import read_count
from jetsync._io.requests import Request
from jetsync._proto.direct import STREAM, status_error
from jetsync._proto.late_answers import LATE
from jetsync.values.codec import parse_time_ns
from jetsync.values.headers import FIRST_LINE, find_last, is_status, parse_status
from jetsync.values.server_info import decode_json, encode_json
from jetsync.values.stored import StoredMessage
from jetsync.values.subjects import has_wildcard

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

    from jetsync._api.context import Context
    from jetsync._api.mirrors import Reading
    from jetsync._base.deadline import Deadline
    from jetsync.values.stream_info import StreamState

# The code of a read that finds no message.
NO_MESSAGE: Final = 10037

# Seconds before another direct get if no server answered one; doubled each time up to the limit.
RETRY_WAIT: Final = 0.05
RETRY_WAIT_LIMIT: Final = 0.5

# Seconds to wait for the stream's info in between. Without a leader, it is not answered either.
INFO_TIMEOUT: Final = 1.0


def leader_get(
    context: Context,
    stream: str,
    request: Mapping[str, Any],
    deadline: Deadline,
) -> StoredMessage:
    """
    Ask the stream's leader for one message.

    Raises:
        MessageNotFoundError: There is no such message.
        StreamNotFoundError: The stream does not exist.
    """
    try:
        answer = context.api(f"STREAM.MSG.GET.{stream}", request, deadline, stream=stream)
    except errors.MessageNotFoundError:
        raise _not_found(stream, request) from None
    return _message_of(stream, answer)


def _message_of(stream: str, answer: dict[str, Any]) -> StoredMessage:
    message = answer.get("message")
    if not isinstance(message, dict):
        raise errors.ProtocolError(f"the answer has no message: {reprlib.repr(answer)}")
    subject = message.get("subject")
    if not isinstance(subject, str):
        raise errors.ProtocolError("the answer's message has no subject")
    try:
        return StoredMessage(
            stream,
            subject,
            read_count(message.get("seq"), "the sequence of a message"),
            parse_time_ns(message["time"]),
            data=binascii.a2b_base64(message.get("data") or b""),
            raw_headers=binascii.a2b_base64(message.get("hdrs") or b"") or None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise errors.ProtocolError(
            f"a message of stream {stream!r} cannot be read: {error!r}"
        ) from error


def begin_get(context: Context, stream: str, last: str) -> Request:
    """
    Return a request of :func:`leader_get` for the last message of the subject *last*.

    The caller sends it in front of another request, and has to end it.
    """
    subject = f"{context.prefix}.STREAM.MSG.GET.{stream}".encode()
    payload = encode_json({"last_by_subj": last})
    begun = Request(context.connection.session, subject)
    # No call may follow in which Ctrl-C could strike: the caller has to end the request.
    begun.payload = payload
    return begun


def begun_get(
    context: Context, stream: str, last: str, begun: Request, deadline: Deadline
) -> StoredMessage | None:
    """
    Return the last message of the subject *last*, or None if there is none.

    If *begun*, a request of :func:`begin_get`, gets no such answer, this asks again.
    """
    if not begun.ready:
        context.lane.wait(begun, deadline, time.monotonic() + LATE)
    frame = begun.reply
    answer = decode_json(frame[3]) if frame is not None and frame[3] else {}
    if "message" in answer:
        return _message_of(stream, answer)
    error = answer.get("error")
    if isinstance(error, dict) and error.get("err_code") == NO_MESSAGE:
        return None
    read = partial(leader_get, context, stream, {"last_by_subj": last})
    try:
        return connected(context, read, deadline)
    except errors.MessageNotFoundError:
        return None


def is_another(
    context: Context,
    stream: str,
    state: StreamState,
    deadline: Deadline,
    *,
    last: int,
    stored: dt.datetime,
    is_exact: bool = True,
) -> bool:
    """
    Return whether a stream that seems to be created later is another one than before.

    The time of creation does not decide: servers before 2.14 change it if a stream is updated
    between two restarts. The messages up to sequence *last* decide. If none of them is left, a read
    that continues after *last* skips no message, and this returns False.

    Args:
        context: The context of the request.
        stream: The name of the stream.
        state: The stream's state now.
        deadline: The deadline of the request.
        last: A sequence that the stream had before.
        stored: When that message was stored.
        is_exact: Whether *stored* is the time of that message, and not a later time.
    """
    first = state.first_ts
    if state.last_seq < last:
        return True
    if first is None or state.first_seq > last:
        return False
    try:
        found = leader_get(context, stream, {"seq": last}, deadline).timestamp
    except (errors.MessageNotFoundError, errors.PermissionDeniedError):
        # Streams store messages in the order of their times.
        return first > stored
    return found > stored or (is_exact and found != stored)


def direct_get(
    context: Context, stream: str, request: Mapping[str, Any], deadline: Deadline
) -> StoredMessage:
    """
    Ask any replica of a stream, or of its mirrors, for one message.

    If no server answers, the stream may have no leader for a moment, so jetsync repeats the request
    until the deadline. No server answers either if the stream does not allow direct gets, so
    jetsync also fetches its configuration.

    Raises:
        MessageNotFoundError: The server that answered has no such message.
        DirectNotSupportedError: The stream does not allow direct gets.
        RequestTimeoutError: No server answered before the deadline.
        StreamNotFoundError: The stream does not exist.
    """
    wait, refused = RETRY_WAIT, ""
    while True:
        try:
            return _ask_any(context, stream, request, deadline)[0]
        except errors.NoRespondersError as error:
            refused = error.subject
        except errors.RequestTimeoutError:
            if not refused:
                raise
            raise no_server(stream, refused, deadline.total) from None
        with contextlib.suppress(*TRANSIENT):
            known = context.streams.named(stream, deadline.at_most(INFO_TIMEOUT), fresh=True)
            if not known.config.allow_direct:
                raise errors.DirectNotSupportedError(stream)
        if deadline.remaining() <= wait:
            raise no_server(stream, refused, deadline.total)
        # If the client is closed meanwhile, the next request raises.
        context.connection.closing.wait(wait)
        wait = min(2.0 * wait, RETRY_WAIT_LIMIT)


def no_server(stream: str, subject: str, seconds: float) -> errors.RequestTimeoutError:
    """Return the error of a read that no server answered, perhaps because there is no leader."""
    what = f"no server that stores stream {stream!r} answered"
    return errors.RequestTimeoutError(subject, seconds, what=what)


def _ask_any(
    context: Context, stream: str, request: Mapping[str, Any], deadline: Deadline
) -> tuple[StoredMessage, bool]:
    """
    Send one direct get and return the message, and whether the stream itself sent it.

    Raises:
        NoRespondersError: No server answers.
    """
    subject = request.get("last_by_subj")
    exchange = context.connection.exchange
    where = f"{context.prefix}.DIRECT.GET.{stream}".encode()
    if subject is None:
        frame = exchange(where, None, json.dumps(request).encode(), deadline, late=LATE)
    else:
        try:
            # The short form needs no JSON, and permissions can be bound to the subject.
            frame = exchange(b"%b.%b" % (where, subject.encode()), None, b"", deadline, late=LATE)
        except errors.MaxControlLineError:
            # The subject is too long for the API subject, so send it in the body.
            frame = exchange(where, None, json.dumps(request).encode(), deadline, late=LATE)
    block = frame[2]
    if block is None:
        raise errors.ProtocolError("an answer to a direct get has no headers")
    if block.startswith(FIRST_LINE) or not is_status(block):
        is_own = find_last(block, STREAM) == stream.encode()
        return StoredMessage.from_direct(block, frame[3]), is_own
    status = parse_status(block)
    raise _not_found(stream, request) if status[0] == 404 else status_error(status, stream)


def _not_found(stream: str, request: Mapping[str, Any]) -> errors.MessageNotFoundError:
    """Return the error for a request without a result, which says what was looked for."""
    sequence, last, following = map(request.get, ("seq", "last_by_subj", "next_by_subj"))
    if last is not None:
        text = f"no message on subject {last!r}"
    elif following is not None:
        text = f"no message on subject {following!r} from sequence {sequence or 1}"
    elif sequence is not None:
        text = f"message {sequence} not found"
    else:
        text = f"no message since {request.get('start_time')}"
    return errors.MessageNotFoundError(description=text, stream=stream)


def confirmed_get(
    context: Context, stream: str, request: Mapping[str, Any], deadline: Deadline
) -> StoredMessage:
    """
    Read one message by a direct get, and ask the leader if the answer does not count.

    :mod:`jetsync._api.mirrors` has the rule. The server that answered may also lag behind.

    Raises:
        MessageNotFoundError: There is no such message.
    """
    message: StoredMessage | None = None
    nothing: errors.MessageNotFoundError | None = None
    try:
        message, is_own = _ask_any(context, stream, request, deadline)
        if is_own or may_answer(context, message.stream, stream, _reading(request), deadline):
            return message
    except errors.NoRespondersError:
        pass
    except errors.MessageNotFoundError as error:
        nothing = error
    try:
        return leader_get(context, stream, request, deadline)
    except errors.PermissionDeniedError:
        if message is not None and _reading(request) == "message":
            return message
        if nothing is not None:
            raise nothing from None
        raise
    finally:
        # Its traceback holds this frame.
        nothing = None


def last_of_all(
    get: Callable[[Context, str, Mapping[str, Any], Deadline], StoredMessage],
    context: Context,
    stream: str,
    request: Mapping[str, Any],
    deadline: Deadline,
) -> StoredMessage:
    """
    Return the last message of a stream, whose subject in *request* is ``>``.

    For this subject, servers look only at the last sequence. If that message was removed, they find
    nothing (seen up to 2.15.1), but for other wildcards they find the last message that is left.
    """
    try:
        return get(context, stream, request, deadline)
    except errors.MessageNotFoundError:
        found: list[StoredMessage] = []
        # One of them matches each subject.
        for subject in ("*", "*.>"):
            with contextlib.suppress(errors.MessageNotFoundError):
                found.append(get(context, stream, {"last_by_subj": subject}, deadline))
        if not found:
            raise
        return max(found, key=lambda message: message.sequence)


def _reading(request: Mapping[str, Any]) -> Reading:
    """Return what is read, which decides the mirrors that may answer."""
    subject = request.get("last_by_subj")
    if subject is not None:
        return "last" if has_wildcard(subject) else "message"
    return "history" if "next_by_subj" in request or "start_time" in request else "message"


def shown_by(context: Context) -> Callable[[StoredMessage], StoredMessage] | None:
    """
    Return a function that passes messages through the plugins, None if no plugin wants them.
    """
    plugins = context.plugins
    received, marked = plugins.received, plugins.ttl_marker
    if received is None and marked is None:
        return None

    def show(message: StoredMessage) -> StoredMessage:
        if marked is not None:
            reason = message.marker
            if reason is not None:
                marked(message, reason)
        return message if received is None else received(message)

    return show
