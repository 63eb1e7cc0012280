"""
The futures that a publisher returns, and their delivery reports.

There is one future per message, so a future has to be cheap. All futures of a publisher use its
turn, and a future gets a notifier only if a thread waits for it. Only the publisher uses the
attributes that have no docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.failures import raise_failure
from jetsync._base.html import html_table
from jetsync._base.locks import Notifier
from jetsync.errors import InvalidTypeError, WaitTimeoutError
from jetsync.values.outbound import OutboundMessage, coerce_outbound
from jetsync.values.pub_acks import PubAck

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds
    from jetsync._base.locks import Signal


@attrs.frozen
class DeliveryReport:
    """
    The outcome of one message.
    """

    # For notebooks.
    _repr_html_ = html_table

    message: OutboundMessage
    """The message that was published."""

    ack: PubAck | None
    """The stream's acknowledgement; None if the message failed."""

    error: Exception | None
    """The error if the message failed, the same as from ``JetStream.publish``; None otherwise."""


@attrs.define(eq=False)
class FutureOwner:
    """
    The shared state of all futures of a publisher.
    """

    # Calls a function in the turn of the publisher.
    run: Callable[[Callable[[], bool]], bool]
    # Writes staged messages, then waits until the first argument returns true or the deadline
    # expires. The outcome of the future wakes it. The text names for an error what it waits for.
    wait: Callable[[Callable[[], bool], PublishFuture, Deadline, str], object]
    # Returns the ack. For a plain ack, only its sequence was kept.
    full_ack: Callable[[PubAck | int], PubAck]


class PendingMessage:
    """
    The state of one message, which its publisher keeps until the outcome is known.
    """

    __slots__ = ("callbacks", "item", "notifier", "observed", "outcome")

    # An `OutboundMessage` or a tuple.
    item: Any
    # None while the outcome is unknown. Of a plain ack, only the sequence is kept.
    outcome: PubAck | Exception | int | None
    # Wakes the threads that wait for the outcome.
    notifier: Notifier | None
    # The callbacks to call. None are added once the outcome is known.
    callbacks: list[Callable[[PublishFuture], object]] | None
    # Whether your code has asked for the outcome.
    observed: bool


class PublishFuture(PendingMessage):
    """
    The outcome of one message, which may not be known yet. Thread-safe.
    """

    __slots__ = ("_owner",)

    def __init__(self, owner: FutureOwner, item: Any) -> None:
        self._owner = owner
        self.item = item
        self.outcome = self.notifier = self.callbacks = None
        self.observed = False

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
        """The message, including the changes that plugins made to it."""
        return coerce_outbound(self.item)

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self.outcome is not None

    def result(self, timeout: Seconds | None = None) -> PubAck:
        """
        Wait for the acknowledgement and return it, or raise the error of the message.

        Args:
            timeout: Seconds to wait. None waits until the outcome is known. The publisher's
                ``ack_timeout`` limits that wait.

        Raises:
            WaitTimeoutError: The outcome is not known in time. In a callback, the call raises this
                error without waiting, because the thread of the callback also completes the future.
            PublishError, ApiError, DisconnectedError: As for ``JetStream.publish``.
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

        def is_over() -> bool:
            if self.outcome is not None:
                return True
            if self.callbacks is None:
                self.callbacks = []
            self.callbacks.append(callback)
            return False

        if self._owner.run(is_over):
            callback(self)

    def listen(self) -> Signal:
        """Return a signal that is set once the outcome is known. In the turn."""
        self.notifier = self.notifier or Notifier()
        return self.notifier.listen()

    def report(self) -> DeliveryReport:
        """Return the outcome as a report, without marking it as observed."""
        ack, error = None, self.outcome
        if not isinstance(error, Exception):
            assert error is not None
            ack, error = self._owner.full_ack(error), None
        return DeliveryReport(self.message, ack, error)

    def _wait(self, timeout: Seconds | None) -> PubAck | Exception | int:
        self.observed = True
        deadline = FOREVER if timeout is None else Deadline.after(timeout)
        if self.outcome is None:
            self._owner.wait(self.done, self, deadline, "the acknowledgement")
        if self.outcome is None:
            raise WaitTimeoutError("the acknowledgement", deadline.total)
        return self.outcome
