"""
The future of a message of a publisher, and its delivery report.

There is one future per message, so futures are light: all futures of a publisher share one lock,
and a future gets a notifier only if a thread waits for it. Attributes without a docstring belong to
the publisher.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from jetsync._base.deadline import as_seconds
from jetsync._base.locks import refuse_reentry
from jetsync._io.mailbox import Notifier
from jetsync._io.outbox import raise_failure
from jetsync.errors import InvalidTypeError, WaitTimeoutError
from jetsync.values.outbound import OutboundMessage, PubAck, coerce_outbound

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds
    from jetsync._io.mailbox import Signal
    from jetsync.publish.encode import Encoded
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
    The shared state of all futures of a publisher.
    """

    lock: threading.RLock
    # Writes staged messages and waits up to so many seconds for the outcome of a future.
    wait: Callable[[PublishFuture, float | None], object]
    # Turns the sequence of a plain ack into the ack.
    full_ack: Callable[[PubAck | int], PubAck]


class PublishFuture:
    """
    The future outcome of one message. Any thread.
    """

    __slots__ = (
        "_owner", "callbacks", "encoded", "hooked", "item", "notifier", "observed", "outcome",
    )  # fmt: skip

    def __init__(self, owner: FutureOwner, item: Any, hooked: HookedWindow | None = None) -> None:
        self._owner = owner
        # An `OutboundMessage` or a tuple.
        self.item: Any = item
        # The encoded message; None for plain pairs, which are encoded when they are written.
        self.encoded: Encoded | None = None
        # None while it is not known, and the sequence of a plain ack.
        self.outcome: PubAck | Exception | int | None = None
        # Wakes the threads that wait.
        self.notifier: Notifier | None = None
        # The callbacks; complete once the outcome is known.
        self.callbacks: list[Callable[[PublishFuture], object]] | None = None
        # The message's window, if plugins wrap it.
        self.hooked: HookedWindow | None = hooked
        # Whether your code has asked for the outcome.
        self.observed: bool = False

    def __reduce__(self) -> NoReturn:
        raise InvalidTypeError(
            "PublishFuture objects cannot be pickled or copied: wait for result() and pass that on"
        )

    def __repr__(self) -> str:
        outcome = self.outcome
        state = "failed" if isinstance(outcome, Exception) else "stored" if outcome else "pending"
        return f"<PublishFuture {self.message.subject} {state}>"

    @property
    def message(self) -> OutboundMessage:
        """The message, as the plugins left it."""
        return coerce_outbound(self.item)

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self.outcome is not None

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
        return self._owner.full_ack(outcome)

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
            if self.outcome is None:
                if self.callbacks is None:
                    self.callbacks = []
                self.callbacks.append(callback)
                return
        callback(self)

    def listen(self) -> Signal:
        """Return what is set once the outcome is known; the caller holds the publisher's lock."""
        self.notifier = self.notifier or Notifier()
        return self.notifier.listen()

    def report(self) -> DeliveryReport:
        """Return the outcome as a report; this does not count as observing it."""
        ack, error = None, self.outcome
        if not isinstance(error, Exception):
            assert error is not None
            ack, error = self._owner.full_ack(error), None
        return DeliveryReport(self.message, ack, error)

    def _wait(self, timeout: Seconds | None) -> PubAck | Exception | int:
        self.observed = True
        seconds = None if timeout is None else as_seconds(timeout)
        if self.outcome is None:
            self._owner.wait(self, seconds)
        if self.outcome is None:
            raise WaitTimeoutError("the acknowledgement", seconds or 0.0)
        return self.outcome
