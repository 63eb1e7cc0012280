"""
What the engines of reads share: the messages that wait to be taken, and how a read ends.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from jetsync._proto.dead_letters import is_last
from jetsync.values.ack_subject import parse_ack_reply
from jetsync.values.frame import message_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._proto.consumer_probe import ConsumerProbe
    from jetsync.values.frame import Frame


class Buffered(ABC):
    """
    The messages that arrived and were not taken, and whether more are wanted.

    Args:
        probe: The questions whether the consumer still exists.
        stop_after: How many messages are wanted; None for no limit.
        max_deliver: The consumer's limit of deliveries, if a handler takes the messages; 0 if not.
    """

    #: Whether it is a fetch, which ends by itself, and not a consumption. As `Bounded` of `judge`.
    is_bounded: ClassVar[bool] = False

    def __init__(self, probe: ConsumerProbe, stop_after: int | None, max_deliver: int = 0) -> None:
        #: The questions whether the consumer still exists.
        self.probe: ConsumerProbe = probe
        self.stop_after = stop_after
        self._max_deliver = max_deliver
        # The messages that arrived and were not taken, oldest first. Any thread takes them by the
        # deque's own `popleft`, because every message goes through it.
        self.buffer: deque[Frame] = deque()
        # Messages that were taken out of the buffer and still count as if they were in it.
        self.parked = 0
        self.parked_bytes = 0
        # The handler's threads, except those that wait for a message. Each counts as one message.
        self.busy: set[int] = set()
        # Messages that arrived beyond `stop_after`, or without a pull, to be given back.
        self.refused: list[Frame] = []
        self.error: BaseException | None = None
        # Whether no more messages are wanted, so it ends once those in the buffer are taken.
        self.is_ending = False
        # How many messages have arrived in the buffer so far.
        self.admitted: int = 0
        # How often two heartbeats in a row were missed, and how often the connection was lost.
        self.misses: int = 0
        self.losses: int = 0
        # When the last thread stopped driving; None before the first one began.
        self._left: float | None = None
        # Seconds of silence that were reported already.
        self.silent_before: float = 0.0
        # Whether silence was ignored since the last frame, because no thread was driving.
        self.excused: bool = False
        # If nothing can be sent until then, the read fails. `wait` is the whole time in seconds,
        # for the error.
        self.send_until: float = math.inf
        self.wait: float = math.inf

    @property
    @abstractmethod
    def heartbeat(self) -> float:
        """Seconds between the server's heartbeats; 0 without any."""

    @property
    def patience(self) -> float:
        """Seconds without a thread that drives, after which earlier silence does not count."""
        return self.heartbeat

    def probe_due(self, now: float) -> bytes | None:
        """Return the reply subject of the probe to send now, or None."""
        return None if not self.probe.wanted or self.is_ending else self.probe.due(now)

    @abstractmethod
    def look(self, now: float) -> float | None:
        """Check for silence; return its seconds if two heartbeats were missed."""

    @abstractmethod
    def next_look(self) -> float | None:
        """Return when to look and to send again; None for no such moment."""

    @abstractmethod
    def low_mark(self) -> int:
        """Return at how many buffered messages something may have to be sent; -1 for none."""

    @abstractmethod
    def heard_now(self, now: float) -> None:
        """Count silence from now on."""

    def leave(self, now: float) -> None:
        """Note that no thread drives from now on, so frames stay unread until :meth:`back`."""
        self._left = now

    def back(self, now: float) -> None:
        """
        Note that a thread begins to drive.

        If none was driving for long, silence counts from now on, because frames may have arrived
        that are still unread. This is done once until the next frame. Otherwise a thread that
        drives now and then would never notice a lost pull.
        """
        if self._left is None or self.excused:
            return
        if 0.0 < self.patience < now - self._left:
            self.excused = True
            self.silent_before = 0.0
            self.heard_now(now)

    def lost(self, epoch: int, now: float) -> None:  # noqa: ARG002 - used by its subclasses.
        """Note that the connections up to *epoch* are lost, with what was sent on them."""
        self.losses += 1
        self.probe.lost()
        self.silent_before = 0.0
        self.excused = False

    def admit(self, messages: Sequence[Frame]) -> None:
        """Put messages into the buffer, and those beyond ``stop_after`` aside."""
        limit = self.stop_after
        if limit is not None and self.admitted + len(messages) >= limit:
            room = limit - self.admitted
            self.refused.extend(messages[room:])
            messages = messages[:room]
            self.is_ending = True
        self.admitted += len(messages)
        self.buffer.extend(messages)

    def put_back(self, frame: Frame) -> None:
        """Put a message that was taken back, as the next one; any thread."""
        self.buffer.appendleft(frame)

    def drain(self) -> None:
        """Want no more messages."""
        self.is_ending = True

    def park(self, frame: Frame) -> None:
        """Count a message that was taken as if it were in the buffer; one thread at a time."""
        self.parked += 1
        self.parked_bytes += message_size(frame)

    def unpark(self, frame: Frame) -> None:
        """No longer count a parked message; one thread at a time."""
        self.parked -= 1
        self.parked_bytes -= message_size(frame)

    def note_busy(self, worker: int) -> None:
        """Note that a thread of the handler is about to take a message; any thread."""
        self.busy.add(worker)

    def note_idle(self, worker: int) -> None:
        """Note that a thread of the handler has no message and waits for one; any thread."""
        self.busy.discard(worker)

    def must_finish(self, frame: Frame) -> bool:
        """
        Return whether a message must be handled even if the consumption is being closed.

        If a message on its last delivery were given back, the server would give it up, although no
        handler has failed.
        """
        if self.error is not None or not self._max_deliver:
            return False
        said = parse_ack_reply(frame[1])
        return said is not None and is_last(said.delivered, self._max_deliver)

    def take_all(self) -> list[Frame]:
        """
        Take the refused messages and those in the buffer; other threads may take some, too.

        Messages that must be finished stay in the buffer.
        """
        taken, self.refused = self.refused, []
        waiting: list[Frame] = []
        with contextlib.suppress(IndexError):  # None is left.
            waiting.extend(iter(self.buffer.popleft, None))
        if not self._max_deliver:
            return taken + waiting
        for frame in waiting:
            (self.buffer if self.must_finish(frame) else taken).append(frame)
        return taken

    def take_refused(self) -> list[Frame]:
        """Take the messages that arrived and are not wanted."""
        refused, self.refused = self.refused, []
        return refused

    def fail(self, error: BaseException) -> None:
        """End with *error*, unless it has ended with another error."""
        if self.error is None:
            self.error = error
        self.is_ending = True

    def interrupted(self, error: BaseException) -> None:
        """End with *error*, because a step was interrupted: messages may still arrive."""
        self.fail(error)

    def after_fork(self, error: BaseException) -> None:
        """
        End with *error* in a forked child, without the messages: they belong to the parent.

        The deque is replaced, because a thread that does not exist here may have locked it.
        """
        self.buffer = deque()
        self.fail(error)

    def snapshot(self, most: int | None = None) -> list[Frame]:
        """Return the oldest messages in the buffer, while other threads may take some."""
        while True:
            with contextlib.suppress(RuntimeError):  # Another thread took one.
                return list(islice(self.buffer, most))
