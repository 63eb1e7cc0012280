"""
Publish one message and wait for its acknowledgement.

A 503 means that no stream took the message, which also happens while a stream has no leader. The
message is certainly not stored, so it is sent again within the deadline of the call. Any other
failure after the message was sent leaves its outcome unknown. If a plugin then has it sent again
and that attempt fails, the outcome stays unknown: the second answer says nothing about the first
attempt.
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
from jetsync.publish.retry import ask_retry, is_repeatable, report_retry, still_unknown
from jetsync.publish.ttl_floor import report_raised_ttl
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


PUBLISH_RETRIES: Final = 2
"""How often a message that no stream took is sent again by default."""

PUBLISH_RETRY_WAIT: Final = 0.25
"""Seconds before each of these attempts by default."""


def publish_one(
    context: Context,
    message: OutboundMessage,
    deadline: Deadline,
    *,
    retries: int = PUBLISH_RETRIES,
    retry_wait: float = PUBLISH_RETRY_WAIT,
    operation: events.PublishOperation | None = None,
) -> PubAck:
    """
    Publish as described at :meth:`jetsync.JetStream.publish`.

    Inside the plugins' wrappers, *operation* is the operation that they wrap.
    """
    plugins = context.plugins
    wrap = plugins.wrap_publish
    if operation is None and (wrap is not None or plugins.retry is not None):
        operation = begun = events.PublishOperation(
            subject=message.subject,
            stream=None if message.expect is None else message.expect.stream,
            timeout=deadline.total,
            has_message_ids=message.msg_id is not None,
        )
        if wrap is not None:
            return wrap(
                begun,
                lambda: publish_one(
                    context,
                    message,
                    deadline,
                    retries=retries,
                    retry_wait=retry_wait,
                    operation=begun,
                ),
            )
    if operation is not None and plugins.shared_headers is not None:
        shared = plugins.shared_headers(operation)
        if shared is not None:
            message = with_shared(message, shared)
    if plugins.prepare is not None:
        message = plugins.prepare(message)
    return _send(context, message, deadline, retries, retry_wait, operation)


def _send(  # noqa: PLR0917 - the second half of publish_one.
    context: Context,
    message: OutboundMessage,
    deadline: Deadline,
    retries: int,
    retry_wait: float,
    operation: events.PublishOperation | None,
) -> PubAck:
    """Send a message that plugins have prepared, again if no stream took it."""
    connection, plugins = context.connection, context.plugins
    subject = validate_subject(message.subject).encode()
    header, _ = encode_message_headers(message, connection)
    payload = message.data if type(message.data) is bytes else payload_bytes(message.data)
    attempt = 1
    unknown: PublishOutcomeUnknownError | None = None
    while True:
        error: PublishError
        try:
            ack = parse_ack(connection.exchange(subject, header, payload, deadline)[3])
            if isinstance(ack, ApiError):
                raise ack
            if message.ttl is not None:
                known = context.streams.kept(message.subject, context.lane.epoch)
                if known is not None:
                    report_raised_ttl(context, known.config, message.subject, message.ttl)
            return ack
        except NoRespondersError:
            error = NoStreamResponseError(message.subject, attempts=attempt)
            if unknown is not None:
                error = unknown = still_unknown(message, error)
        except ProtocolError as failure:
            raise _unknown(message, deadline, failure) from failure
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
                delay = ask_retry(plugins.retry, operation, error, attempt)
            elif unknown is None and attempt <= retries:
                delay = retry_wait
        if delay is None or delay >= deadline.remaining():
            raise error
        report_retry(plugins, "publish", message.subject, error, attempts=attempt, delay=delay)
        time.sleep(delay)
        attempt += 1


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
