"""
Many acknowledgements in one write.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from jetsync._io.connection import Connection
from jetsync._io.outbox import LaneState
from jetsync._proto import frames
from jetsync.consume.inbox import UnwantedAcks
from jetsync.errors import (
    CallInSignalHandlerError,
    DisconnectedError,
    MessageAlreadyAckedError,
    NotJetStreamMessageError,
    TransportError,
)
from jetsync.values.message import ACK, AckClaim

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync._base.deadline import Seconds
    from jetsync._io.lane import Lane
    from jetsync.values.message import Message

__all__ = ["ack_many"]

LATE_ANSWER: Final = 3600.0
"""
Seconds for which acknowledgements wait for a connection. They are never too late: that a message
was handled stays true, whoever has it by then.
"""


def ack_many(messages: Iterable[Message], *, timeout: Seconds | None = None) -> int:
    """
    Acknowledge messages, all of one client in one write; return how many they were.

    They may be of several consumers, and of several clients. Returns without the servers'
    confirmation, as ``Message.ack`` does. Any thread; of several that acknowledge the same message
    one does so, and the others get the error.

    Args:
        messages: What to acknowledge; an iterable is taken as a whole before anything is sent.
        timeout: Seconds to wait for connections, all together; None is the client's default.

    Raises:
        NotJetStreamMessageError, MessageAlreadyAckedError, AcksNotWantedError: One of the messages
            can not be acknowledged. Nothing was sent, and the others still can be.
        InvalidTypeError: There is something else than a message among them; nothing was sent.
        DisconnectedError, ConnectionClosedError: A client had no connection. Its messages can still
            be acknowledged; ``Message.is_acked`` tells which were, if there are several clients.
    """
    return write_claim(AckClaim(messages, whole=True), timeout)


def answer_soon(lane: Lane, message: Message, body: bytes) -> None:
    """
    Acknowledge, or refuse, a message for its user, unless that was done.

    Sent soon and together with others; without a connection, on the next one. Never waits for it.
    """
    try:
        if lane.state is LaneState.OPEN:
            message._finish(body)  # noqa: SLF001 - as its methods do.
            return
    except (DisconnectedError, CallInSignalHandlerError):
        # Lost in between and not back in time, or in use by the call that was interrupted.
        pass
    except (MessageAlreadyAckedError, NotJetStreamMessageError, TransportError):
        return
    with contextlib.suppress(NotJetStreamMessageError):
        replies = AckClaim([message]).replies
        lane.post_nowait(
            b"".join([frames.pub(reply, b"", body) for reply in replies]), keep=LATE_ANSWER
        )


def write_claim(claim: AckClaim, timeout: Seconds | None) -> int:
    """Acknowledge what was claimed, and give back what could not be; return how many were."""
    count = len(claim)
    try:
        groups = claim.by_acker()
        # All that can go wrong without a connection does so before the first write.
        for acker, messages in groups:
            if isinstance(acker, UnwantedAcks):
                raise acker.error(messages[0])
            if isinstance(acker, Connection):
                acker.check()
        deadline = None
        for acker, messages in groups:
            if isinstance(acker, Connection):
                deadline = deadline or acker.deadline(timeout)
                replies = [message.raw_reply for message in messages]
                block = b"".join([frames.pub(reply, b"", ACK) for reply in replies])
                acker.lane.write(block, deadline)
            else:
                # Somebody's own, who knows of single messages only.
                for message in messages:
                    acker.acknowledge(message, ACK)
            claim.written(acker)
    except BaseException:
        claim.release()
        raise
    return count
