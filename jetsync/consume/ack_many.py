"""
Acknowledge many messages in one write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from jetsync import errors
from jetsync._io.connection import Connection
from jetsync._proto.frames import ack_block
from jetsync.consume.unwanted_acks import UnwantedAcks
from jetsync.values.message import ACK, Message, SharedAcker

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds
    from jetsync.values.message import Acker

__all__ = ["ack_many"]

# By id, because ackers of the application's own need not be hashable.
Groups: TypeAlias = "dict[int, tuple[Acker, list[Message]]]"


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
    groups: Groups = {}
    try:
        _take_ackers(messages, groups, skip_acked=skip_acked)
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


def _take_ackers(messages: Iterable[Message], groups: Groups, *, skip_acked: bool) -> None:
    """Take the acker of each message, and group the messages by it."""
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
