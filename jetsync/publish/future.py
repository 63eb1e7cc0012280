"""
The future of a message of a publisher, and its delivery report.

There is one future per message, so futures are light: all futures of a publisher share one lock,
and a future creates its signal only if a thread waits for it.
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
    The outcome of one message.
    """

    message: OutboundMessage
    ack: PubAck | None
    """The stream's acknowledgement; None if the message failed."""

    error: Exception | None
    """Why the message failed: the same errors as for a single publish."""


@attrs.define(eq=False)
class FutureOwner:
    """
    The state that all futures of a publisher share.
    """

    lock: threading.RLock
    # Writes the staged messages because a thread waits for an outcome. Called with the lock.
    flush: Callable[[], None]
    # Raises in a signal handler whose own thread would have to read the acks.
    refuse_wait: Callable[[], object]
    # The thread that completes futures, and so cannot wait for them.
    thread: int = 0

    def check_thread(self, what: str) -> None:
        """Raise if this thread would wait for itself."""
        if threading.get_ident() == self.thread:
            raise WaitTimeoutError(f"{what}, which only this thread can provide", 0.0)


class PublishFuture:
    """
    The future outcome of one message. Any thread.
    """

    __slots__ = ("_item", "_notifier", "_outcome", "_owner", "callbacks", "hooked", "observed")

    def __init__(self, owner: FutureOwner, item: Any, hooked: HookedWindow | None = None) -> None:
        # Whether your code has asked for the outcome.
        self.observed: bool = False

        self._owner = owner
        self._item = item
        self._outcome: PubAck | Exception | None = None
        self._notifier: Notifier | None = None
        self.callbacks: list[Callable[[PublishFuture], object]] | None = None
        """The callbacks; complete once the outcome is known."""

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
        Wait for the acknowledgement and return it, or raise why the message failed.

        Args:
            timeout: Seconds to wait. None waits until the outcome is known, at most the
                publisher's ``ack_timeout``.

        Raises:
            WaitTimeoutError: The outcome is not known in time. Raised at once in a callback, which
                runs in the thread that would have to complete the future.
            PublishError, ApiError, DisconnectedError: As for a single publish.
        """
        outcome = self._wait(timeout)
        if isinstance(outcome, Exception):
            raise_failure(outcome)
        return outcome

    def exception(self, timeout: Seconds | None = None) -> Exception | None:
        """
        Wait for the outcome and return the error; None if the message is stored.

        Args:
            timeout: As for :meth:`result`.

        Raises:
            WaitTimeoutError: As for :meth:`result`.
        """
        outcome = self._wait(timeout)
        return outcome if isinstance(outcome, Exception) else None

    def add_done_callback(self, callback: Callable[[PublishFuture], object]) -> None:
        """
        Call *callback* with this future once the outcome is known.

        It runs in the publisher's thread, or immediately in this thread if the outcome is already
        known. Errors that it raises in the publisher's thread are logged and counted.
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
        """Set the outcome; the caller holds the publisher's lock."""
        self._outcome = outcome
        if self._notifier is not None:
            self._notifier.notify()

    def report(self) -> DeliveryReport:
        """Return the outcome as a report; this does not count as observing it."""
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
                # Without time left no signal is added: polling would leave one behind each time.
                if not self.done() and (seconds is None or seconds > 0.0):
                    self._notifier = self._notifier or Notifier()
                    signal = self._notifier.listen()
            if signal is not None:
                signal.wait(threading.TIMEOUT_MAX if seconds is None else seconds)
        outcome = self._outcome
        if outcome is None:
            raise WaitTimeoutError("the acknowledgement", seconds or 0.0)
        return outcome
