"""
Publish one message and wait for its acknowledgement.

A 503 says that no stream took the message, which also happens while a stream has no leader; it is
certain that nothing was stored, so the message is sent again, within the one deadline of the call.
Whatever else goes wrong after the message was sent leaves its outcome unknown, and is reported as
that. Where a plugin has such a message sent again and that attempt is refused, the outcome is still
unknown: a refusal says nothing of the attempt before.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import attrs

from jetsync import events
from jetsync._io.connection import was_sent
from jetsync._proto.puback import parse_ack
from jetsync.errors import (
    ApiError,
    JetSyncError,
    NoRespondersError,
    NoStreamResponseError,
    ProtocolError,
    PublishError,
    PublishOutcomeUnknownError,
    RequestTimeoutError,
)
from jetsync.publish.encode import encode_message_headers
from jetsync.publish.retry import ask_retry, is_repeatable, still_unknown, tell_retry
from jetsync.publish.ttl_floor import tell_if_raised
from jetsync.values.outbound import (
    OutboundMessage,
    PubAck,
    payload_bytes,
    with_shared,
)
from jetsync.values.subjects import validate_subject

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync._hooks.manager import Plugins


RETRIES: Final = 2
"""How often a message that no stream took is sent again, unless told otherwise."""

RETRY_WAIT: Final = 0.25
"""Seconds before each of these."""


def publish_one(
    context: Context,
    message: OutboundMessage,
    deadline: Deadline,
    *,
    retries: int = RETRIES,
    retry_wait: float = RETRY_WAIT,
) -> PubAck:
    """Publish with hooks around it; see :meth:`jetsync.JetStream.publish` for the contract."""
    wrap = context.plugins.wrap_publish
    if wrap is None and context.plugins.retry is None:
        return _attempts(context, message, deadline, None, retries, retry_wait)
    operation = events.PublishOperation(
        subject=message.subject,
        stream=None if message.expect is None else message.expect.stream,
        timeout=deadline.total,
        has_message_ids=message.msg_id is not None,
    )
    if wrap is None:
        return _attempts(context, message, deadline, operation, retries, retry_wait)
    return wrap(
        operation, lambda: _attempts(context, message, deadline, operation, retries, retry_wait)
    )


def _attempts(  # noqa: PLR0917 - one private step of publish_one.
    context: Context,
    message: OutboundMessage,
    deadline: Deadline,
    operation: events.PublishOperation | None,
    retries: int,
    retry_wait: float,
) -> PubAck:
    connection, plugins = context.connection, context.plugins
    if operation is not None and plugins.shared_headers is not None:
        shared = plugins.shared_headers(operation)
        if shared is not None:
            message = with_shared(message, shared)
    if plugins.prepare is not None:
        message = plugins.prepare(message)
    validate_subject(message.subject)
    header, _ = encode_message_headers(message, connection)
    payload = payload_bytes(message.data)
    subject = message.subject.encode()
    attempt = 1
    unknown: PublishOutcomeUnknownError | None = None
    while True:
        error: PublishError
        try:
            frame = connection.exchange(subject, header, payload, deadline)
            ack = _read(frame[3], message)
            if message.ttl is not None:
                _look_at_ttl(context, message)
            return ack
        except NoRespondersError:
            error = NoStreamResponseError(message.subject, attempts=attempt)
            if unknown is not None:
                error = unknown = still_unknown(message, error)
        except JetSyncError as failure:
            if was_sent(failure):
                error = unknown = _unknown(message, deadline, failure)
            elif unknown is None:
                raise
            else:
                raise still_unknown(message, failure) from failure
        delay = None
        if unknown is None or is_repeatable(message):
            if operation is not None and plugins.retry is not None:
                # Plugins may have given the message an id.
                operation = attrs.evolve(
                    operation,
                    elapsed=deadline.total - deadline.remaining(),
                    has_message_ids=message.msg_id is not None,
                )
            delay = _delay(plugins, operation, error, attempt, retries, retry_wait)
        if delay is None or delay >= deadline.remaining():
            raise error
        tell_retry(plugins, "publish", message.subject, error, attempts=attempt, delay=delay)
        time.sleep(delay)
        attempt += 1


def _delay(  # noqa: PLR0917 - one private step of publish_one.
    plugins: Plugins,
    operation: events.PublishOperation | None,
    error: PublishError,
    attempt: int,
    retries: int,
    retry_wait: float,
) -> float | None:
    """
    Return the seconds until the next attempt, None to give up.

    After an outcome that is unknown, only a plugin asks for another attempt.
    """
    if operation is not None and plugins.retry is not None:
        return ask_retry(plugins.retry, operation, error, attempt)
    if isinstance(error, NoStreamResponseError) and attempt <= retries:
        return retry_wait
    return None


def _look_at_ttl(context: Context, message: OutboundMessage) -> None:
    """Warn of a time-to-live that the stream raises, if the stream is known already."""
    known = context.streams.kept(message.subject, context.lane.epoch)
    if known is not None:
        tell_if_raised(context, known.config, message.subject, message.ttl)


def _unknown(
    message: OutboundMessage, deadline: Deadline, cause: Exception
) -> PublishOutcomeUnknownError:
    timed_out = isinstance(cause, RequestTimeoutError)
    error = PublishOutcomeUnknownError(
        message.subject,
        msg_id=message.msg_id,
        timeout=deadline.total if timed_out else None,
        reason=None if timed_out else str(cause),
    )
    error.__cause__ = cause
    return error


def _read(data: bytes, message: OutboundMessage) -> PubAck:
    """Return the ack, or raise the error that came in its place."""
    try:
        ack = parse_ack(data)
    except ProtocolError as error:
        raise PublishOutcomeUnknownError(
            message.subject, msg_id=message.msg_id, reason=str(error)
        ) from error
    if isinstance(ack, ApiError):
        raise ack
    return ack
