"""
The common part of the feeds: a feed sends what its engine asks for, and receives what that brings.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from jetsync import errors
from jetsync._base.deadline import Deadline
from jetsync._base.log import get_logger
from jetsync._io.outbox import LaneState
from jetsync._proto.buffered import Buffered

if TYPE_CHECKING:
    from jetsync._io.mailbox import Mailbox
    from jetsync.consume.target import PullTarget

# Longest wait for a connection, in seconds, before the reader checks for the end again.
CONNECTION_WAIT: Final = 0.1

E = TypeVar("E", bound=Buffered)

_logger = get_logger("jetsync.consume")


class Feed(ABC, Generic[E]):
    """
    The connection between one engine and the server.

    A reader calls :meth:`step` to act, and :meth:`wait` until there is something to do. A feed
    waits only in :meth:`wait`.

    Threads: the one that drives the read. Any thread and any signal handler may call
    ``interrupt``.
    Locks: none; the owner lets in one thread at a time.

    Args:
        target: The consumer.
        engine: Decides what to send, and what the answers mean.
        box: The mailbox of the messages and of all answers.
    """

    def __init__(self, target: PullTarget, engine: E, box: Mailbox) -> None:
        self.target = target
        self.lane = target.lane
        self.engine: Final = engine
        self.box: Final = box
        # How often the connection was lost.
        self.losses: int = 0
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
        return had_messages

    def wait(self, deadline: Deadline) -> None:
        """Wait until there is something to do, at most until *deadline*."""
        box = self.box
        if self.blocked:
            # The lane wakes writers as soon as there is a connection, and room to write.
            if not box.ready:
                with contextlib.suppress(errors.TransportError):
                    self.lane.outbox.wait_open(deadline.at_most(CONNECTION_WAIT))
            return
        due = self.engine.next_look()
        if due is not None and due < deadline.at:
            deadline = Deadline(due, deadline.total)
        self.lane.wait(box, deadline)

    def interrupt(self) -> None:
        """End a :meth:`wait`, of another thread or of the call that this handler interrupted."""
        self.lane.interrupt(self.box)

    @abstractmethod
    def end(self, *, closing: bool) -> None:
        """
        Send no more, unsubscribe, and give back what will not be taken.

        Unless it is closing, the messages that have arrived can still be taken.
        """

    @abstractmethod
    def receive(self, now: float) -> None:
        """Pass the frames in the mailbox to the engine, and report what is wrong."""

    @abstractmethod
    def send(self, now: float) -> bool:
        """Send what is due; return False if nothing can be sent now."""

    def _take_news(self, now: float) -> None:
        """Take frames, losses and refusals out of the mailbox."""
        box, engine = self.box, self.engine
        # Cleared first: an interruption after this must end the next wait.
        box.interrupted = False
        self.receive(now)
        lost = box.take_lost()
        if lost:
            engine.lost(lost, now)
            self.losses += 1
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
