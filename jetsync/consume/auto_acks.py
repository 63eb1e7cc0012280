"""
The acks, naks and progress reports that jetsync sends on behalf of the application. Sending one
never waits.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync._io.outbox import LaneState
from jetsync._proto.frames import ack_block
from jetsync.values.ack_subject import ACK_PREFIX
from jetsync.values.message import IN_PROGRESS, NAK, SharedAcker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jetsync._base.locks import Latch
    from jetsync._io.lane import Lane
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

# Seconds for which acks are kept for the next connection. An ack is never too late: the message
# was handled, even if it was redelivered meanwhile.
KEEP_ACKS: Final = 3600.0

# Seconds for which naks are kept for the next connection. This is the default `ack_wait` of
# servers, after which they redeliver a message anyway.
KEEP_NAKS: Final = 30.0

LONGEST_NAK_DELAY: Final = 30.0
"""The longest pause before a message that keeps failing is redelivered, in seconds."""

# Messages are kept alive after 3 of the 8 steps of each ack wait. So two progress reports fit into
# one ack wait, and one of them may be late.
KEEP_ALIVE_STEPS: Final = 8
KEEP_ALIVE_AFTER: Final = 3


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


def keep_alive(
    lane: Lane, ack_wait: float, replies: Callable[[], Sequence[bytes]], done: Latch
) -> None:
    """
    Restart the ack wait of messages, often enough that none runs out; until *done*.

    The ack wait begins with the delivery, so it must also be restarted for messages that no handler
    has begun with. After a reconnect it is restarted at once.

    Args:
        lane: Where to send the progress reports.
        ack_wait: The ack wait of the consumer in seconds.
        replies: Returns the reply subjects of the messages.
        done: Ends it.
    """
    pause = ack_wait / KEEP_ALIVE_STEPS
    epoch, restarted = lane.epoch, time.monotonic()
    while not done.wait(pause):
        # The time is measured, because on a busy machine a step takes longer than the pause.
        early = time.monotonic() - restarted < KEEP_ALIVE_AFTER * pause
        if early and epoch == lane.epoch:
            continue
        epoch, restarted = lane.epoch, time.monotonic()
        waiting = replies()
        if waiting:
            lane.post_nowait(ack_block(waiting, IN_PROGRESS))
