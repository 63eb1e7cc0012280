"""
Acknowledge many messages in one write, and give back those that were not taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from jetsync import errors, events
from jetsync._base.log import get_logger
from jetsync._io.connection import Connection
from jetsync._io.outbox import LaneState
from jetsync._proto.frames import ack_block
from jetsync.values.ack_subject import ACK_PREFIX
from jetsync.values.message import ACK, IN_PROGRESS, NAK, Message, SharedAcker

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds
    from jetsync._io.lane import Lane
    from jetsync.values.frame import Frame
    from jetsync.values.message import Acker

__all__ = ["ack_many"]

# Seconds for which acks are kept for the next connection. An ack is never too late: the message
# was handled, even if it was redelivered meanwhile.
KEEP_ACKS: Final = 3600.0

# Seconds for which naks are kept for the next connection. This is the default `ack_wait` of
# servers, after which they redeliver a message anyway.
KEEP_NAKS: Final = 30.0

_logger = get_logger("jetsync.acks")

LONGEST_NAK_DELAY: Final = 30.0
"""The longest pause before a message that keeps failing is redelivered, in seconds."""


def ack_many(messages: Iterable[Message], *, timeout: Seconds | None = None) -> int:
    """
    Acknowledge messages, in one write per client, and return their number.

    The messages may belong to several consumers and several clients. Like ``Message.ack``, this
    call does not wait for the servers' confirmation. Thread-safe: if several threads acknowledge
    the same message, one of them succeeds and the others get ``MessageAlreadyAckedError``.

    Args:
        messages: The messages. An iterable is read to its end before anything is sent.
        timeout: Seconds to wait for connections, for all clients together. Default: the client's
            ``request_timeout``.

    Raises:
        NotJetStreamMessageError, MessageAlreadyAckedError, AcksNotWantedError: One of the messages
            cannot be acknowledged. Nothing was sent, and the others can still be acknowledged.
        InvalidTypeError: An item is not a Message. Nothing was sent.
        DisconnectedError, ConnectionClosedError: A client had no connection or is closed. After
            DisconnectedError its messages can still be acknowledged. With several clients, check
            ``Message.is_acked`` of each message.
    """
    if not isinstance(messages, Iterable):
        raise errors.InvalidTypeError(
            f"messages must be a list of Message objects, not {type(messages).__name__}",
            argument="messages",
        )
    return acknowledge_all(messages, timeout, skip_acked=False)


def acknowledge_all(
    messages: Iterable[Message],
    timeout: Seconds | None,
    *,
    skip_acked: bool,
    ack_all: bool = False,
) -> int:
    """
    Acknowledge messages as :func:`ack_many` does.

    Args:
        messages: As for ``ack_many``.
        timeout: As for ``ack_many``.
        skip_acked: Leave out messages that were acknowledged before.
        ack_all: The messages are of one consumer, and each ack covers all earlier messages.
    """
    # Keyed by id, because ackers of the application's own need not be hashable.
    groups: dict[int, tuple[Acker, list[Message]]] = {}
    try:
        last: Acker | None = None
        for message in messages:
            if not isinstance(message, Message):
                raise errors.InvalidTypeError(
                    f"messages must be Message objects, not {type(message).__name__}",
                    argument="messages",
                )
            try:
                acker = message._take_acker()  # noqa: SLF001
                if acker is not last and last_acker(acker) is None:
                    raise errors.MessageAlreadyAckedError(message.subject, message.reply)
            except errors.MessageAlreadyAckedError:
                if not skip_acked:
                    raise
                continue
            # Messages come in runs of one acker. One lookup per run is measurably cheaper.
            if acker is not last:
                last, group = acker, groups.setdefault(id(acker), (acker, []))[1]
            group.append(message)
        count = sum(len(group) for _, group in groups.values())
        # All errors that do not depend on the connection are raised before the first write.
        for acker, group in groups.values():
            _check(last_acker(acker), group[0])
        deadline = None
        for acker, group in list(groups.values()):
            if isinstance(acker, Connection):
                deadline = deadline or acker.deadline(timeout)
                sent = [max(group, key=_sequence)] if ack_all else group
                block = ack_block([message.raw_reply for message in sent], ACK)
                acker.lane.write(block, deadline, while_closing=True)
            else:
                # An acker of the application's own only knows single messages.
                for message in group:
                    acker.acknowledge(message, ACK)
            del groups[id(acker)]
    finally:
        # Also after Ctrl-C: nothing was written for the messages that are left.
        for acker, group in groups.values():
            for message in group:
                message._acker = acker  # noqa: SLF001
    return count


def _check(acker: Acker | None, message: Message) -> None:
    """Raise if an acker cannot acknowledge its messages."""
    if isinstance(acker, UnwantedAcks):
        raise acker.error(message)
    if isinstance(acker, Connection):
        # Also while the client closes, so that threads can finish their messages.
        acker.check(while_closing=True)


def last_acker(acker: Acker) -> Acker | None:
    """Return the acker of the original, if a plugin has replaced the message."""
    found: Acker | None = acker
    while isinstance(found, SharedAcker):
        found = getattr(found.original, "_acker", None)
    return found


def _sequence(message: Message) -> int:
    return message.sequence


def answer_soon(lane: Lane, message: Message, body: bytes) -> None:
    """
    Acknowledge a message on behalf of the application, unless the application did so; never waits.

    The ack is sent together with others, or on the next connection.
    """
    try:
        if lane.state is LaneState.OPEN:
            message._finish(body)  # noqa: SLF001
            return
    except (errors.DisconnectedError, errors.CallInSignalHandlerError):
        # The connection was lost, or is in use by the call that this signal handler interrupted.
        pass
    except (
        errors.MessageAlreadyAckedError,
        errors.NotJetStreamMessageError,
        errors.TransportError,
    ):
        return
    with contextlib.suppress(errors.MessageAlreadyAckedError, errors.NotJetStreamMessageError):
        acker = message._take_acker()  # noqa: SLF001
        while isinstance(acker, SharedAcker):
            acker = acker.original._take_acker()  # noqa: SLF001
        lane.post_nowait(ack_block([message.raw_reply], body), keep=KEEP_ACKS)


def give_back(lane: Lane, frames: Iterable[Frame]) -> None:
    """
    Nak messages that were not taken, so that the server redelivers them at once; never waits.

    Without a connection the naks are sent on the next one, within :data:`KEEP_NAKS` seconds.
    """
    block = ack_block([frame[1] for frame in frames if frame[1].startswith(ACK_PREFIX)], NAK)
    if block:
        lane.post_nowait(block, keep=KEEP_NAKS)


def nak_body(delivered: int) -> bytes:
    """
    Return the body that naks a message whose handler or plugin failed on delivery *delivered*.

    The first redelivery is immediate. Later ones are delayed, so that a message that always fails
    does not keep the consumer busy.
    """
    if delivered < 2:
        return NAK
    delay = min(2.0 ** min(delivered - 2, 10), LONGEST_NAK_DELAY)
    return b'%b {"delay": %d}' % (NAK, round(delay * 1e9))


class UnwantedAcks:
    """
    The acker of messages whose consumer has ``ack_policy`` none.

    Servers treat such a message as acknowledged when they have sent it. An ``ack()`` does no harm,
    but waiting for a confirmation would always time out, and a ``nak()`` has no effect.

    Threads: any.
    Locks: none; if two threads ack at the same moment, both may report.
    """

    __slots__ = ("_connection", "_is_reported")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_reported = False

    def acknowledge(self, message: Message, body: bytes) -> None:
        """Send the ack, which the server ignores, and report that once."""
        self._connection.acknowledge(message, body)
        self.report(self.error(message))

    def report(self, error: errors.AcksNotWantedError) -> None:
        """Report, once, that acks have no effect."""
        if not self._is_reported:
            self._is_reported = True
            _logger.warning("ack_ignored", consumer=error.consumer, stream=error.stream)
            self._connection.emit(events.AsyncErrorEvent(error=error))

    def acknowledge_sync(
        self,
        message: Message,
        body: bytes,  # noqa: ARG002 - required by the Acker protocol.
        timeout: Seconds | None,  # noqa: ARG002 - likewise.
    ) -> None:
        """Raise, because the server would not confirm it."""
        raise self.error(message)

    def error(self, message: Message) -> errors.AcksNotWantedError:
        """Return the error that names the consumer."""
        metadata = message.metadata
        return errors.AcksNotWantedError(metadata.consumer, stream=metadata.stream)


class PluginAcks:
    """
    The acker that plugins see on messages of a consumer with ``ack_policy`` all.

    Each ack there covers all earlier messages, so a plugin must not acknowledge: it would
    acknowledge messages that other threads are still handling.

    Threads: any.
    Locks: none; the only field never changes.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def acknowledge(self, message: Message, body: bytes) -> None:
        """Send naks and progress reports; raise for acknowledgements that end a message."""
        if not body.startswith((NAK, IN_PROGRESS)):
            raise errors.ConflictingUseError(
                f"a plugin cannot end a message of consumer {message.metadata.consumer!r}: its "
                "ack_policy is 'all', so that would also end all earlier messages"
            )
        self._connection.acknowledge(message, body)

    def acknowledge_sync(
        self,
        message: Message,
        body: bytes,
        timeout: Seconds | None,  # noqa: ARG002 - required by the Acker protocol.
    ) -> None:
        """Raise as :meth:`acknowledge`."""
        self.acknowledge(message, body)
