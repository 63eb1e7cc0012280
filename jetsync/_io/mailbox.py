"""
The queue of a subscription, from the thread that reads the socket to the thread that waits.

Delivering never blocks and never runs code of the application. The reading thread wakes a receiver
once for each block of frames that it read, not once for each frame. A mailbox has no limit of its
own. A pull limits the messages that the server sends, and a window limits the acks.
"""

from __future__ import annotations

from collections import deque
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any, Final

from jetsync._base.locks import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync.errors import PermissionDeniedError
    from jetsync.values.frame import Frame

# Each publisher gets the refused publishes of all publishers of its client. So this limit is higher
# than the default size of a window.
KEPT_DENIALS: Final = 8192


class Mailbox:
    """
    The queue of one subscription.

    Threads: the reading thread pushes and wakes, the owner waits and drains in one thread at a
    time, and the loop thread reports losses and refusals.
    Locks: none; the queues change by single calls into C.

    Args:
        interest: The subject that is subscribed to. If the server refuses it, the mailbox fails.
        collect_denials: Whether to keep the publishes that the server refuses, for an owner who
            knows which of them are its own.
        while_closing: Whether a client that closes lets the owner finish before it ends the wait.
        sink: Gets each frame instead of the queue; the reading thread calls it.
        into: The mailbox that gets the frames instead. Its owner is woken.
    """

    def __init__(
        self,
        interest: bytes = b"",
        *,
        collect_denials: bool = False,
        while_closing: bool = False,
        sink: Callable[[Any], object] | None = None,
        into: Mailbox | None = None,
    ) -> None:
        self.interest: bytes = interest
        self.signal: Signal = Signal() if into is None else into.signal
        self.frames: deque[Frame] = deque() if into is None else into.frames
        # No method, which would cost more for each frame than the rest of its delivery.
        self.push: Final[Callable[[Any], object]] = sink or self.frames.append
        # The owner sets it to get frames of a known shape in runs, which :meth:`drain` returns.
        self.express: Callable[[bytes, int], int] | None = None
        self.while_closing: bool = while_closing
        # Set once: after that, nothing arrives any more.
        self.failure: Exception | None = None
        # Called after each failure, in any thread. It must not block.
        self.on_failure: Callable[[Exception], object] | None = None
        # The highest connection epoch that was lost, and the highest that the owner has seen.
        self.lost_epoch: int = 0
        self._seen_epoch = 0
        # Whether the owner has something else to do; the owner clears it.
        self.interrupted: bool = False
        self._denials: deque[Any] = deque(maxlen=KEPT_DENIALS if collect_denials else 0)
        # Returns the numbers of the messages to a subject that wait for acks; any thread. It must
        # not refer to the owner.
        self.find_messages: Callable[[bytes], list[int]] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.interest.decode()} frames={len(self.frames)}>"

    @property
    def ready(self) -> bool:
        """Whether a wait is over."""
        return bool(
            self.frames
            or self.lost_epoch > self._seen_epoch
            or self._denials
            or self.interrupted
            or self.failure is not None
        )

    def wake(self) -> None:
        """Wake the waiting thread; called after frames were pushed."""
        self.signal.set()

    def interrupt(self) -> None:
        """
        End the wait because the owner has something else to do; any thread.

        Call :meth:`jetsync._io.lane.Lane.interrupt` if the owner may be reading the socket.
        """
        self.interrupted = True
        self.wake()

    def lost(self, epoch: int) -> None:
        """Record that connection *epoch* is gone with everything that was in flight on it."""
        self.lost_epoch = epoch
        self.wake()

    def take_lost(self) -> int:
        """Return the epoch of the last loss, or 0 if there was none since the last call."""
        if self.lost_epoch > self._seen_epoch:
            self._seen_epoch = self.lost_epoch
            return self.lost_epoch
        return 0

    def fail(self, error: Exception) -> None:
        """End every wait, now and later, with *error*; the first error stays."""
        # If two threads do this at the same moment, either error may stay.
        if self.failure is None:
            self.failure = error
        self.wake()
        if self.on_failure is not None:
            self.on_failure(error)

    def denied(self, operation: str, subject: bytes, error: Exception) -> bool:
        """
        Record that the server refused *subject* to this connection; return whether that ends a
        wait.

        A refused subscription ends its mailbox. A refused publish is kept if the owner wants that.
        """
        if operation == "subscribe":
            if subject == self.interest:
                self.fail(error)
                return True
        elif self._denials.maxlen and self.find_messages is None:
            # The owner knows whether it has published to that subject.
            self.refuse(subject, error)
        return False

    def in_flight(self, subject: bytes) -> list[int]:
        """Return the numbers of the messages to *subject* that wait for acks."""
        return [] if self.find_messages is None else self.find_messages(subject)

    def refuse(self, concerned: bytes | list[int], error: Exception) -> None:
        """Record that the server refused a subject or, if they are known, messages."""
        self._denials.append((concerned, error))
        self.wake()

    def take_denials(self) -> list[tuple[Any, PermissionDeniedError]]:
        """Take the refused publishes: their subject, or the numbers of the messages."""
        return take_all(self._denials) if self._denials else []

    def drain(self) -> list[Any]:
        """Take all frames, and the runs of ``express``, oldest first; never blocks."""
        return take_all(self.frames)


def take_all(queue: deque[Any]) -> list[Any]:
    """Take everything out of *queue*, while other threads may append or take; never blocks."""
    taken: list[Any] = []
    # Not contextlib.suppress, which costs more than the rest.
    try:  # noqa: SIM105
        # Only as many as are there now, because another thread may append all the time. `starmap`
        # takes half the time of `iter(queue.popleft, None)`, which compares each item with None.
        taken.extend(starmap(queue.popleft, repeat((), len(queue))))
    except IndexError:  # Another thread has taken some. The list keeps what it got.
        pass
    return taken
