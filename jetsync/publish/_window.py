"""
A window of publishes in flight: what ``publish_many`` and a publisher have in common.

The window owns a reply subscription, the books of what is in flight, and the rule for messages that
no stream took. It makes no threads and takes no locks: its owner brings them.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync import events
from jetsync._deadline import Deadline
from jetsync._handoff import AckMailbox
from jetsync._proto.pipeline import Pipeline
from jetsync.errors import (
    ConnectionClosedError,
    DisconnectedError,
    JetSyncError,
    NoStreamResponseError,
    ProtocolError,
    PublishOutcomeUnknownError,
)
from jetsync.outbound import OutboundMessage, coerce_outbound
from jetsync.publish._encode import Encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._session import JetStreamSession

DEFAULT_WINDOW: Final = 4096
"""
Messages in flight at most: enough to hide a round trip, few enough to settle soon after a loss.
"""

NEVER: Final = 1 << 62
"""An epoch above every other: all that is in flight is lost."""


@attrs.frozen(kw_only=True)
class WindowOptions:
    """
    How a window behaves.
    """

    size: int = DEFAULT_WINDOW
    ack_timeout: float
    """Seconds to wait for each ack, and for a connection."""

    retries: int = 2
    """How often a message that no stream took is sent again."""

    retry_wait: float = 0.25
    """Seconds before each of these."""


class Window:
    """
    What is in flight, and its way out; not synchronised.

    Items are what stands for a message: an ``OutboundMessage`` or a tuple.
    """

    def __init__(
        self, session: JetStreamSession, options: WindowOptions, *, keep_acks: bool
    ) -> None:
        core = session.core
        self.options = options
        self._plugins = session.plugins
        self._lane = core.lane
        inbox = core.new_inbox().encode()
        self.prefix = inbox + b"."
        self.box = AckMailbox(inbox + b".*")
        self._sid, self._line = core.open_box(self.box.interest, self.box)
        self.pipeline: Pipeline[Any] = Pipeline(self.prefix, options.size, keep_acks=keep_acks)
        self.encoder = Encoder(core)
        self._plain = b""
        self.failures: list[tuple[int, Any, Exception]] = []
        """Messages that ended badly, with the reason; the owner empties it."""

        self._again: deque[tuple[float, int, Any]] = deque()
        """What no stream took: when to send it again, its number, its item."""

        self._attempts: dict[int, int] = {}

    @property
    def unsettled(self) -> int:
        """How many messages have not ended yet."""
        return len(self.pipeline.flying) + len(self._again)

    @property
    def room(self) -> int:
        """How many more messages may be sent now."""
        return self.options.size - self.unsettled

    def close(self) -> None:
        """Leave the reply subscription."""
        self._lane.leave(self._sid)

    @property
    def prepares(self) -> bool:
        """Whether plugins look at each message."""
        return self._plugins.prepare is not None

    def prepared(self, item: Any) -> Any:
        """Return the item as the plugins leave it; raises PluginError on a veto."""
        if self._plugins.prepare is None:
            return item
        return self._plugins.prepare(coerce_outbound(item))

    def enter(self, number: int, item: Any) -> bytes:
        """
        Take a message into the books and return its block, which has to be written next.

        Raises what the encoder does; the message is not in the books then.
        """
        block = self.encoder.encode(item, self.prefix, number)
        self.pipeline.flying[number] = item
        return block

    def write(self, block: bytes, numbers: Sequence[int]) -> None:
        """
        Write the blocks of *numbers*, joined.

        Raises:
            DisconnectedError, ConnectionClosedError: Nothing was sent; the messages have failed
                with it.
        """
        try:
            epoch = self._lane.write(self._line + block, Deadline.after(self.options.ack_timeout))
        except (DisconnectedError, ConnectionClosedError) as error:
            self.fail_unsent(numbers, error)
            raise
        except BaseException as interrupt:
            self.fail_unsent(numbers, DisconnectedError(reason=f"interrupted by {interrupt!r}"))
            raise
        self.written(numbers, epoch)

    def open(self) -> None:
        """
        Subscribe to the acks now, for an owner that does not use :meth:`write`.
        """
        self._lane.write(self._line, Deadline.after(self.options.ack_timeout))
        self._line = b""

    def written(self, numbers: Sequence[int], epoch: int) -> None:
        """Note that messages went out on the connection *epoch*."""
        self._line = b""
        self.pipeline.sent(numbers, epoch, time.monotonic() + self.options.ack_timeout)
        if self._lane.lost_epoch >= epoch:
            self.box.lost(self._lane.lost_epoch)

    def fail_unsent(self, numbers: Sequence[int], error: Exception) -> None:
        """Fail messages of which nothing was sent."""
        flying = self.pipeline.flying
        for number in numbers:
            if number in flying:
                self.failures.append((number, flying.pop(number), error))

    def due(self) -> float | None:
        """Return the moment at which :meth:`settle` has something to do even if nothing comes."""
        due = self.pipeline.due()
        if self._again and (due is None or self._again[0][0] < due):
            due = self._again[0][0]
        return due

    def settle(self) -> None:
        """
        Account for all that has come or come to nothing, and send again what is due.
        """
        box, pipeline = self.box, self.pipeline
        for run in box.drain_runs():
            pipeline.settle_run(run)
        frames = box.drain()
        if frames:
            pipeline.settle(frames)
            if pipeline.plain != self._plain:
                self._plain = pipeline.plain
                box.learn(self._sid, self._plain)
        for subject, denial in box.take_denials():
            pipeline.deny(subject.decode(), denial, subject_of)
        lost = box.take_lost()
        if lost:
            pipeline.lost(lost)
        if box.failure is not None:
            pipeline.lost(NEVER)
        pipeline.expire(time.monotonic())
        if pipeline.refused:
            self._on_refused()
        if pipeline.failed:
            self._on_failed(lost=bool(lost))
        if self._again:
            self._send_again()

    def _on_refused(self) -> None:
        """Schedule what no stream took, or fail it."""
        now = time.monotonic()
        for number, item in self.pipeline.refused:
            attempts = self._attempts[number] = self._attempts.get(number, 0) + 1
            error = NoStreamResponseError(subject_of(item), attempts=attempts)
            try:
                delay = self._delay(error, attempts)
            except JetSyncError as veto:
                self.failures.append((number, item, veto))
                continue
            if delay is None or self.box.failure is not None:
                del self._attempts[number]
                self.failures.append((number, item, error))
            else:
                self._again.append((now + delay, number, item))
        self.pipeline.refused.clear()

    def _delay(self, error: NoStreamResponseError, attempts: int) -> float | None:
        """Return the seconds until a refused message is sent again, None to give up."""
        options = self.options
        if self._plugins.retry is None:
            return options.retry_wait if attempts <= options.retries else None
        operation = events.PublishOperation(
            subject=error.subject, window=options.size, timeout=options.ack_timeout
        )
        return self._plugins.retry(operation, error, attempts)

    def _send_again(self) -> None:
        now = time.monotonic()
        # A plugin may choose other delays than the built-in rule, so the queue is not in order of
        # time.
        waiting = [entry for entry in self._again if entry[0] > now]
        due = [entry for entry in self._again if entry[0] <= now]
        self._again = deque(sorted(waiting, key=lambda entry: entry[0]))
        for _, number, item in due:
            try:
                block = self.encoder.encode(item, self.prefix, number)
                epoch = self._lane.post(block, self.options.ack_timeout)
            except JetSyncError as error:
                self.failures.append((number, item, error))
            else:
                self.pipeline.again(number, item, epoch, now + self.options.ack_timeout)

    def _on_failed(self, *, lost: bool) -> None:
        """Give each failure its error."""
        for number, item, error in self.pipeline.failed:
            if error is None or isinstance(error, ProtocolError):
                message = coerce_outbound(item)
                reason = "the connection was lost" if lost else None
                if self.box.failure is not None:
                    reason = str(self.box.failure)
                unknown = PublishOutcomeUnknownError(
                    message.subject,
                    msg_id=message.msg_id,
                    timeout=None if reason or error else self.options.ack_timeout,
                    reason=reason if error is None else str(error),
                )
                unknown.__cause__ = error or self.box.failure
                self.failures.append((number, item, unknown))
            else:
                self.failures.append((number, item, error))
        self.pipeline.failed.clear()


def subject_of(item: Any) -> str:
    """Return the subject of what stands for a message."""
    return item[0] if isinstance(item, tuple) else coerce_outbound(item).subject


def message_of(item: Any) -> OutboundMessage:
    """Return what stands for a message as one, also if it never could be."""
    try:
        return coerce_outbound(item)
    except JetSyncError:
        return OutboundMessage(subject="")
