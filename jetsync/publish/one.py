"""
Publish one message and wait for its acknowledgement.

A 503 means that no stream took the message, which also happens while a stream has no leader. The
message is certainly not stored, so it is sent again within the deadline of the call.
``_proto/outcome.py`` says what follows from this and from every other failure. An ack that is late
is a failure for plugins, but it still counts if it comes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import attrs

from jetsync import errors, events
from jetsync._proto.late_answers import LATE
from jetsync._proto.outcome import Again, Cause, Ending, cause_of, outcome_of
from jetsync._proto.puback import parse_ack
from jetsync.publish.encode import KNOWN_SUBJECTS, encode_message_headers
from jetsync.publish.retry import error_of, is_safe_to_retry, next_delay
from jetsync.publish.ttl_floor import report_raised_ttl
from jetsync.values.headers import Headers
from jetsync.values.outbound import OutboundMessage, payload_bytes, with_shared
from jetsync.values.subjects import validate_subject

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync.values.pub_acks import PubAck
    from jetsync.values.stream_config import StreamConfig


PUBLISH_RETRIES: Final = 2
"""How often a message that no stream took is sent again by default."""

PUBLISH_RETRY_WAIT: Final = 0.25
"""Seconds before each of these attempts by default."""


@functools.lru_cache(KNOWN_SUBJECTS)
def _encode_subject(subject: str) -> bytes:
    """Return a valid subject as bytes. Most programs publish to few subjects."""
    return validate_subject(subject).encode()


def publish_one(
    context: Context,
    message: OutboundMessage,
    deadline: Deadline,
    *,
    retries: int = PUBLISH_RETRIES,
    retry_wait: float = PUBLISH_RETRY_WAIT,
    config: StreamConfig | None = None,
    operation: events.PublishOperation | None = None,
    prepare: bool = True,
) -> PubAck:
    """
    Publish as described at :meth:`jetsync.JetStream.publish`.

    Inside the plugins' wrappers, *operation* is the operation that they wrap. *config* is that of
    the stream if the caller knows it. Without *prepare*, plugins do not prepare the message.
    """
    connection, plugins = context.connection, context.plugins
    if operation is None and plugins.enter_publish is not None:
        operation = _operation(message, deadline)
        if not prepare:
            headers = tuple(Headers(message.headers).items())
            operation = attrs.evolve(operation, dead_letter_headers=headers)
        publish = functools.partial(
            publish_one,
            context,
            message,
            deadline,
            retries=retries,
            retry_wait=retry_wait,
            config=config,
            operation=operation,
            prepare=prepare,
        )
        return plugins.enter_publish(operation).run(publish)
    if operation is not None and plugins.shared_headers is not None:
        shared = plugins.shared_headers(operation)
        if shared is not None:
            message = with_shared(message, shared)
    if prepare and plugins.prepare is not None:
        message = plugins.prepare(message)
    name = message.subject
    subject = _encode_subject(name) if type(name) is str else validate_subject(name).encode()
    header, _ = encode_message_headers(message, connection)
    payload = message.data if type(message.data) is bytes else payload_bytes(message.data)
    attempts = late = ask = None
    if plugins.retry is not None:
        attempts = _Attempts(context, message, deadline, retries, retry_wait)
        if is_safe_to_retry(message):
            late, ask = LATE, attempts.late
    while True:
        try:
            answer = connection.exchange(subject, header, payload, deadline, late=late, ask=ask)
            ack = parse_ack(answer[3])
            if isinstance(ack, errors.ApiError):
                raise ack
            if message.ttl is not None:
                report_raised_ttl(context, config, message.subject, message.ttl)
            return ack
        except errors.JetSyncError as failure:
            attempts = attempts or _Attempts(context, message, deadline, retries, retry_wait)
            error = attempts.failed(failure)
        attempts.wait(error)


def _operation(message: OutboundMessage, deadline: Deadline) -> events.PublishOperation:
    return events.PublishOperation(
        subject=message.subject,
        stream=None if message.expect is None else message.expect.stream,
        timeout=deadline.total,
        has_message_ids=message.msg_id is not None,
    )


class _Attempts:
    """
    The attempts to store one message, in one thread.
    """

    def __init__(
        self,
        context: Context,
        message: OutboundMessage,
        deadline: Deadline,
        retries: int,
        retry_wait: float,
    ) -> None:
        self._context = context
        self._message = message
        self._deadline = deadline
        self._retries = retries
        self._retry_wait = retry_wait
        self._number = 1
        # Whether an earlier attempt may have been stored.
        self._unknown = False
        # Whether plugins want no other attempt although the ack is late.
        self._ended = False
        # Whether the options say how often the message is sent again.
        self._counts = False

    def late(self) -> float | None:
        """
        Return the seconds until the message is sent again, because its ack is late.

        Returns None if the plugins want no other attempt. The ack may still come.
        """
        waited = self._deadline.total - self._deadline.remaining()
        rule = outcome_of(Cause.SILENT, sent=True, safe=True)
        delay = self._next_delay(error_of(rule, self._message, None, round(waited, 3)), None)
        if delay is None:
            self._ended = True
        else:
            self._unknown = True
            self._number += 1
        return delay

    def failed(self, failure: errors.JetSyncError) -> Exception:
        """Return the error of a failed attempt if another one may follow; raise it if not."""
        message = self._message
        cause, sent = cause_of(failure)
        rule = outcome_of(cause, sent=sent, earlier=self._unknown, safe=is_safe_to_retry(message))
        if cause is Cause.NO_STREAM:
            failure = errors.NoStreamResponseError(message.subject, attempts=self._number)
        error = error_of(rule, message, failure, self._deadline.total)
        self._unknown = rule.ending is Ending.UNKNOWN
        self._counts = rule.again is Again.COUNTED
        if not rule.may_repeat_message or (self._ended and cause is Cause.SILENT):
            # In the second case, the plugins have decided already.
            raise error
        return error

    def wait(self, error: Exception) -> None:
        """Wait before another attempt, or raise *error* if there is none."""
        may_count = self._counts and self._number <= self._retries
        built_in = self._retry_wait if may_count else None
        delay = self._next_delay(error, built_in)
        if delay is None:
            raise error
        self._number += 1
        # If the client is closed meanwhile, the next attempt raises.
        self._context.connection.closing.wait(delay)

    def _next_delay(self, error: Exception, built_in: float | None) -> float | None:
        # Described again, because plugins may have given the message an id.
        operation = _operation(self._message, self._deadline)
        return next_delay(
            self._context,
            operation,
            error,
            self._deadline,
            attempt=self._number,
            delay=built_in,
        )
