"""
The outcome of one message of a publisher, and the report of it.

Futures are made per message, so they are light: all futures of a publisher share one lock, and
something to wait for is only made where somebody waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from jetsync._base.deadline import as_seconds
from jetsync._base.locks import refuse_reentry
from jetsync._io.connection import raise_failure
from jetsync._io.mailbox import Notifier
from jetsync.errors import WaitTimeoutError
from jetsync.values.outbound import OutboundMessage, PubAck, coerce_outbound

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds
    from jetsync.publish.hooks import HookedWindow


@attrs.frozen
class DeliveryReport:
    """
    How the publishing of one message ended.
    """

    message: OutboundMessage
    ack: PubAck | None
    """The stream's acknowledgement; None when there is none."""

    error: Exception | None
    """Why there is none: the same errors as of a single publish."""


@attrs.define(eq=False)
class FutureOwner:
    """
    What the futures of one publisher share.
    """

    lock: threading.RLock
    flush: Callable[[], None]
    """Writes what is collected; called with the lock, as somebody waits for an outcome."""

    refuse_wait: Callable[[], object]
    """Raises in a signal handler whose own thread would have to read the acks."""

    thread: int = 0
    """The thread that completes them, and so cannot wait for them."""

    def check_thread(self, what: str) -> None:
        """Raise if this is the thread that would have to bring about what it is to wait for."""
        if threading.get_ident() == self.thread:
            raise WaitTimeoutError(f"{what}, which only this thread can bring about", 0.0)


class PublishFuture:
    """
    The outcome of one message, once it is known. Any thread.
    """

    __slots__ = ("_item", "_notifier", "_outcome", "_owner", "callbacks", "hooked", "observed")

    def __init__(self, owner: FutureOwner, item: Any, hooked: HookedWindow | None = None) -> None:
        self.observed: bool = False
        """Whether anybody has asked for the outcome."""

        self._owner = owner
        self._item = item
        self._outcome: PubAck | Exception | None = None
        self._notifier: Notifier | None = None
        self.callbacks: list[Callable[[PublishFuture], object]] | None = None
        """What to call with the outcome; whole as soon as that is known."""

        self.hooked: HookedWindow | None = hooked
        """The message's window, if plugins wrap it."""

    def __repr__(self) -> str:
        outcome = self._outcome
        state = "stored" if isinstance(outcome, PubAck) else "failed" if outcome else "pending"
        return f"<PublishFuture {self.message.subject} {state}>"

    @property
    def message(self) -> OutboundMessage:
        """The message, as the plugins left it."""
        return coerce_outbound(self._item)

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._outcome is not None

    def result(self, timeout: Seconds | None = None) -> PubAck:
        """
        Wait for the acknowledgement and return it, or raise why there is none.

        Args:
            timeout: Seconds to wait; None waits until the outcome is known, which the publisher's
                ``ack_timeout`` bounds.

        Raises:
            WaitTimeoutError: The outcome is not known yet; at once in the publisher's own thread,
                in which it will not become known while a callback runs.
            PublishError, ApiError, DisconnectedError: As of a single publish.
        """
        outcome = self._wait(timeout)
        if isinstance(outcome, Exception):
            raise_failure(outcome)
        return outcome

    def exception(self, timeout: Seconds | None = None) -> Exception | None:
        """
        Wait for the outcome and return the error, None if the message is stored.

        Args:
            timeout: As for :meth:`result`.

        Raises:
            WaitTimeoutError: As for :meth:`result`.
        """
        outcome = self._wait(timeout)
        return outcome if isinstance(outcome, Exception) else None

    def add_done_callback(self, callback: Callable[[PublishFuture], object]) -> None:
        """
        Have *callback* called with this future once the outcome is known.

        It runs in the publisher's thread, or at once in this one if the outcome is known already.
        What it raises in the publisher's thread is logged and counted.
        """
        self.observed = True
        refuse_reentry(self._owner.lock)
        with self._owner.lock:
            if self._outcome is None:
                if self.callbacks is None:
                    self.callbacks = []
                self.callbacks.append(callback)
                return
        callback(self)

    def settle_nowait(self, outcome: PubAck | Exception) -> None:
        """Set the outcome; the publisher holds its lock."""
        self._outcome = outcome
        if self._notifier is not None:
            self._notifier.notify()

    def report(self) -> DeliveryReport:
        """Return the outcome as a report, which does not count as asking for it."""
        outcome = self._outcome
        if isinstance(outcome, Exception):
            return DeliveryReport(self.message, None, outcome)
        return DeliveryReport(self.message, outcome, None)

    def _wait(self, timeout: Seconds | None) -> PubAck | Exception:
        self.observed = True
        seconds = None if timeout is None else as_seconds(timeout)
        if self._outcome is None:
            self._owner.check_thread("the acknowledgement")
            self._owner.refuse_wait()
            signal = None
            refuse_reentry(self._owner.lock)
            with self._owner.lock:
                if self._outcome is None:
                    self._owner.flush()
                # Who has no time does not listen: polling would leave a signal behind each time.
                if not self.done() and (seconds is None or seconds > 0.0):
                    self._notifier = self._notifier or Notifier()
                    signal = self._notifier.listen()
            if signal is not None:
                signal.wait(threading.TIMEOUT_MAX if seconds is None else seconds)
        outcome = self._outcome
        if outcome is None:
            raise WaitTimeoutError("the acknowledgement", seconds or 0.0)
        return outcome
