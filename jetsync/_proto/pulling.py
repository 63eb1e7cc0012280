"""
The common part of the engines that pull: what arrives, questions about the consumer, and pauses.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync._proto.buffered import Buffered
from jetsync._proto.consumer_probe import read_gone
from jetsync._proto.frames import SERVER_BUFFER
from jetsync._proto.ordered import MissingMessages
from jetsync.events import PullOutcome
from jetsync.values.ack_subject import parse_ack_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._proto.open_pulls import OpenPulls
    from jetsync._proto.ordered import OrderedCursor
    from jetsync._proto.pins import Pins
    from jetsync._proto.pull_request import Pull, PullRequest
    from jetsync._proto.status import Status
    from jetsync.values.frame import Frame


# Seconds before another pull follows after a temporary status; doubled each time up to the limit.
PULL_RETRY_WAIT: Final = 0.1
PULL_RETRY_WAIT_LIMIT: Final = 1.0


class Pulling(Buffered):
    """
    Decide which pulls to send, and what their answers mean.

    Args:
        pulls: Tracks its pulls.
        pins: The pin ids of the consumer's groups, shared with other users of the consumer.
        stop_after: How many messages are wanted; None for no limit.
        max_deliver: The consumer's limit of deliveries, if a handler takes the messages; 0 if not.
        order: The order in which messages have to arrive, for an ordered consumer. If some are
            missing, the connection is lost or two heartbeats are missed, the read of this consumer
            ends.
    """

    def __init__(
        self,
        pulls: OpenPulls,
        pins: Pins,
        *,
        stop_after: int | None,
        max_deliver: int = 0,
        order: OrderedCursor | None = None,
    ) -> None:
        super().__init__(pulls.probe, stop_after, max_deliver)
        self.stream, self.consumer = pulls.names
        self.pulls = pulls
        self.pins = pins
        self.order = order
        # How many pulls in a row were refused or not answered.
        self.refusals: int = 0
        # No pull is sent before this moment; 0 for no such moment.
        self.not_before: float = 0.0
        self._pause = PULL_RETRY_WAIT
        # Whether an open pull was given up, for example with its connection. The server may keep it
        # until it expires, and then serves it as well, because the inbox is subscribed again.
        self.gave_up: bool = False
        # The reply subject and the payload size of the last message that arrived.
        self._last_reply = b""
        self._last_size = 0
        # Whether `overload` has been reported.
        self._was_overloaded = False

    @property
    def may_be_served(self) -> bool:
        """Whether the server may still have messages for a pull."""
        # Servers before 2.14 refuse a pull for its group and still serve it (seen on 2.11.11 and
        # 2.12.8).
        refused = isinstance(self.error, errors.InvalidGroupError)
        # A call that was interrupted may have removed a pull without noting that it was given up.
        interrupted = not self.is_ending
        return self.gave_up or refused or interrupted or not self.pulls.is_idle

    @abstractmethod
    def next_pull(self, now: float) -> PullRequest | None:
        """Return the pull to send now, or None. The caller opens it with ``pulls.open``."""

    @abstractmethod
    def hear(self, messages: Sequence[Frame], now: float) -> None:
        """Take what the consumer's server has sent, at least a heartbeat."""

    @abstractmethod
    def follow(self, status: Status, pull: Pull, now: float) -> PullOutcome:
        """Act on a status that ended *pull*."""

    @abstractmethod
    def exists(self, answer: bytes, now: float) -> None:
        """Act on the newest answer to the probe, which says that the consumer exists."""

    @abstractmethod
    def lacks_messages(self, now: float) -> bool:
        """Return whether messages are missing, and there is time to ask for them."""

    def restart(self, pulls: OpenPulls, now: float) -> None:  # noqa: ARG002 - for its subclasses.
        """Continue with the next consumer of an ordered read, after the last one was lost."""
        self.pulls, self.probe = pulls, pulls.probe
        self.stream, self.consumer = pulls.names
        self.error, self.is_ending, self.gave_up = None, False, False
        self.losses = self.refusals = 0
        self.silent_before, self.excused = 0.0, False
        self.resume()

    def receive(self, frames: Sequence[Frame], now: float) -> list[tuple[Status, PullOutcome]]:
        """Put the messages of *frames* into the buffer; return each status and its outcome."""
        answers: Sequence[tuple[Frame, bool]] = ()
        if self.probe.asked:
            frames, answers = self.probe.take(frames)
        found: list[tuple[Status, PullOutcome]] = []
        if frames:
            received = self.pulls.receive(frames, now)
            self.refused.extend(received.surplus)
            if received.alive:
                messages = received.messages
                if self.order is not None and messages:
                    # After an interruption, the cursor may have counted messages that are lost.
                    messages = self.order.admit(messages) if self.error is None else ()
                    if self.order.has_gap:
                        self.fail(MissingMessages())
                if messages:
                    _, self._last_reply, _, payload = messages[-1]
                    self._last_size = len(payload)
                self.hear(messages, now)
                for status, pull in received.statuses:
                    outcome = PullOutcome.IGNORED
                    if pull is not None:
                        outcome = self.follow(status, pull, now)
                    found.append((status, outcome))
        if answers:
            self._hear_probe(answers, now)
        return found

    def _hear_probe(self, answers: Sequence[tuple[Frame, bool]], now: float) -> None:
        """Act on the answers to the probe, and whether each is the newest one."""
        for answer, is_last in answers:
            gone = read_gone(answer[3], self.stream, self.consumer)
            if gone is not None:
                self.fail(gone)
            elif is_last and answer[2] is None:
                self.exists(answer[3], now)

    def awaited(self) -> tuple[int, int]:
        """
        Return how many bytes the server may have for the open pulls, and the size of one message.

        Both are estimates, from the messages in the buffer and the one that arrived last.
        """
        last = parse_ack_reply(self._last_reply)
        if last is None:
            return 0, 0
        sizes = [self._last_size, *(len(payload) for *_, payload in self.snapshot())]
        size = sum(sizes) // len(sizes)
        messages = self.pulls.pending_messages
        if last.delivered == 1:
            # No more are left in the stream. The server does not count those to be redelivered.
            messages = min(messages, last.pending)
        awaited = size * messages
        # 0 if the pulls have no limit in bytes.
        return min(awaited, self.pulls.pending_bytes or awaited), size

    def overload(self) -> tuple[int, int] | None:
        """
        Return :meth:`awaited` if the server may have dropped this client as too slow; else None.

        Call it when the connection is lost. It reports this once.
        """
        if self._was_overloaded:
            return None
        awaited = self.awaited()
        self._was_overloaded = awaited[0] > SERVER_BUFFER
        return awaited if self._was_overloaded else None

    def heard_now(self, now: float) -> None:
        """Count silence from now on."""
        self.pulls.heard = now

    def interrupted(self, error: BaseException) -> None:
        """End with *error*, because a step was interrupted: messages may still arrive."""
        # The step may have removed a pull without noting that it was given up.
        self.gave_up = True
        self.fail(error)

    def back_off(self, now: float) -> None:
        """Send no pull for a while. Several statuses at once count as one."""
        self.refusals += 1
        if now >= self.not_before:
            self.not_before = now + self._pause
            self._pause = min(2.0 * self._pause, PULL_RETRY_WAIT_LIMIT)

    def accepted(self) -> None:
        """Note that a pull was served, so the next pause is short."""
        self._pause, self.refusals = PULL_RETRY_WAIT, 0

    def give_up(self) -> None:
        """Note that an open pull was given up."""
        self.gave_up = True

    def resume(self) -> None:
        """End a pause, because there is another connection."""
        self._pause, self.not_before = PULL_RETRY_WAIT, 0.0

    def fail_silent(self) -> None:
        """End it: two heartbeats were missed, or an ordered consumer lost its connection."""
        self.fail(errors.NoHeartbeatError(consumer=self.consumer, stream=self.stream))
