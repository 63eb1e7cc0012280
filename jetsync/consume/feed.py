"""
The common part of the feeds: a feed sends what its engine asks for, and receives what that brings.

If a feed ends while messages may still arrive, it naks them. So the server redelivers them at once,
and not only after the consumer's ``ack_wait``.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from jetsync import errors
from jetsync._base.deadline import Deadline
from jetsync._base.log import get_logger
from jetsync._io.mailbox import Mailbox, take_all
from jetsync._io.outbox import LaneState
from jetsync._proto.buffered import Buffered
from jetsync.values.frame import message_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync._io.lane import Lane
    from jetsync._io.listener import Listener
    from jetsync.consume.target import PullTarget
    from jetsync.values.frame import Frame

# Longest wait for a connection, in seconds, before the reader checks for the end again.
CONNECTION_WAIT: Final = 0.1

# Seconds for which an abandoned mailbox still gives back messages that arrive.
LATE_MESSAGES: Final = 5.0

# How many frames may wait in a mailbox, and how many bytes may arrive, before it looks which of
# them were asked for. Both are above what one read of the socket returns.
SIFTED_FRAMES: Final = 4096
SIFTED_BYTES: Final = 16 << 20

E = TypeVar("E", bound=Buffered)

_logger = get_logger("jetsync.consume")


class SiftedMailbox(Mailbox):
    """
    The frames of a consumer that no thread has received yet.

    If more than :data:`SIFTED_FRAMES` frames or :data:`SIFTED_BYTES` bytes wait, it drops those
    that are not wanted. So a flood does not fill the memory while the program is busy.

    Threads: the one that reads the socket pushes and wakes. The owner takes.
    Locks: none; the queues change by single calls into C.

    Args:
        interest: The subject that is subscribed to.
        sift: Returns the wanted ones of some frames; the thread that reads calls it.
        lane: The lane that the frames arrive on.
        sink: As for :class:`Mailbox`.
    """

    def __init__(
        self,
        interest: bytes,
        sift: Callable[[list[Frame]], list[Frame]],
        lane: Lane,
        sink: Callable[[Frame], None] | None = None,
    ) -> None:
        super().__init__(interest, collect_denials=True, sink=sink)
        self._choose = sift
        self._lane = lane
        # Sifted if more frames wait, or once the connection has received more bytes in all.
        self._most_frames = SIFTED_FRAMES
        self._most_bytes = lane.bytes_in + SIFTED_BYTES

    def wake(self) -> None:
        """Drop what is not wanted if too much waits, and wake the thread."""
        if len(self.frames) > self._most_frames or self._lane.bytes_in > self._most_bytes:
            self.sift()
        self.signal.set()

    def sift(self) -> None:
        """Drop what is not wanted; only the thread that reads."""
        arrived: list[Frame] = []
        # From the right, because the owner may take from the left at the same time.
        with contextlib.suppress(IndexError):
            while True:
                arrived.append(self.frames.pop())
        arrived.reverse()
        kept = self._choose(arrived)
        self.frames.extend(kept)
        # Doubled, so that wanted frames are not sifted again and again.
        self._most_frames = max(SIFTED_FRAMES, 2 * len(kept))
        size = sum(map(message_size, kept))
        self._most_bytes = self._lane.bytes_in + max(SIFTED_BYTES, size)


class Feed(ABC, Generic[E]):
    """
    Passes commands and frames between an engine and the server.

    A reader calls :meth:`step` to act, and :meth:`wait` until there is something to do. A feed
    waits only in :meth:`wait`.

    Threads: the one that drives the read. Any thread and any signal handler may call
    ``interrupt``.
    Locks: none; the owner lets in one thread at a time.

    Args:
        lane: Where it sends.
        box: The mailbox of the messages and of all answers.
    """

    # The consumer, and what decides what to send and what the answers mean. Set by :meth:`begin`.
    target: PullTarget
    engine: E

    def __init__(self, lane: Lane, box: Mailbox) -> None:
        self.lane: Final = lane
        self.box: Final = box

    def begin(self, target: PullTarget, engine: E) -> None:
        """Begin to serve *engine*, which reads from the consumer *target*."""
        self.target, self.engine = target, engine
        # Whether nothing can be sent at the moment.
        self.blocked: bool = False

    def step(self, now: float) -> bool:
        """Take what has arrived, and send what is due; return whether messages were buffered."""
        engine = self.engine
        if self.box.ready:
            self._take_news(now)
        had_messages = bool(engine.buffer)
        self.blocked = self.lane.outbox.state is not LaneState.OPEN
        if not (self.blocked or engine.is_ending):
            silent_for = engine.look(now)
            if silent_for is not None:
                self._report_silence(silent_for)
            self.blocked = not self.send(now)
        if self.blocked and now >= engine.send_until:
            # The time is over, so this does not wait: it raises the reason.
            try:
                self.lane.outbox.wait_open(Deadline(engine.send_until, engine.wait))
            except errors.TransportError as error:
                engine.fail(error)
        return had_messages

    def wait(self, deadline: Deadline) -> None:
        """Wait until there is something to do, at most until *deadline*."""
        box = self.box
        if self.blocked:
            # The lane wakes writers as soon as there is a connection, and room to write.
            if not box.ready:
                latest = time.monotonic() + CONNECTION_WAIT
                until = min(deadline.at, self.engine.send_until, latest)
                with contextlib.suppress(errors.TransportError):
                    self.lane.outbox.wait_open(Deadline(until, CONNECTION_WAIT))
            return
        self.lane.wait(box, deadline, self.engine.next_look())

    def interrupt(self) -> None:
        """End a :meth:`wait`, of another thread or of the call that this handler interrupted."""
        self.lane.interrupt(self.box)

    @abstractmethod
    def end(self, *, closing: bool) -> None:
        """
        Send no more, unsubscribe, and give back what will not be taken.

        Unless it is closing, the messages that have arrived can still be taken.
        """

    def return_to_pool(self) -> None:
        """Let another read have this feed after its end, if it can serve one."""

    @abstractmethod
    def receive(self, now: float) -> None:
        """Pass the frames in the mailbox to the engine, and report what is wrong."""

    @abstractmethod
    def send(self, now: float) -> bool:
        """Send what is due; return False if nothing can be sent now."""

    def lost(self, epoch: int, now: float) -> None:
        """Report to the engine that the connections up to *epoch* are lost."""
        self.engine.lost(epoch, now)

    def _take_news(self, now: float) -> None:
        """Take frames, losses and refusals out of the mailbox."""
        box, engine = self.box, self.engine
        # Cleared first: an interruption after this must end the next wait.
        box.interrupted = False
        self.receive(now)
        if not box.ready:
            # The usual case: only frames have arrived.
            return
        lost = box.take_lost()
        if lost:
            self.lost(lost, now)
        for subject, denial in box.take_denials():
            if subject == self.target.subject:
                engine.fail(denial)
        if box.failure is not None:
            engine.fail(box.failure)

    def _report_silence(self, silent_for: float) -> None:
        target, heartbeat = self.target, self.engine.heartbeat
        target.context.connection.probe()
        _logger.warning(
            "heartbeat_missed",
            stream=target.stream,
            consumer=target.consumer,
            silent_for=round(silent_for, 3),
        )
        target.report_silence(heartbeat, silent_for)


def abandon(
    box: Mailbox,
    listener: Listener,
    unused: Iterable[Frame],
    give: Callable[[Iterable[Frame]], None],
) -> None:
    """
    Unsubscribe and call *give* with *unused* and with all frames that still arrive; never waits.

    *give* must not refer to the owner of the mailbox.
    """
    arrived = box.frames
    # The reading thread calls it after it has added frames. So each frame is found, either here or
    # by that thread.
    box.wake = lambda: give(take_all(arrived))  # type: ignore[method-assign]
    # Unsubscribed before the naks: the server would redeliver the messages to this very client.
    listener.end(grace=LATE_MESSAGES)
    give(unused)
    box.wake()
