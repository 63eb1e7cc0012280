"""
The consume engine: it keeps a buffer full by sending pulls, for as long as messages are taken.

The engine decides when to pull; `pull_size.py` decides how much each pull asks for. The engine
interprets statuses and silence, and says when it has to look again. It uses no sockets, clocks or
threads.

The engine owns the buffer of messages that arrived and were not taken. The buffer and the messages
that open pulls may still deliver never exceed the limit together. Once they have fallen to the
threshold, the engine sends a pull for everything that is missing. So the server never sends more
than the limit to a slow application. While the buffer is full, no pull is open, and silence means
nothing.

A status ends one pull. Usually another pull follows: at once, or after a growing pause if the
reason is temporary. If a pull is not answered or heartbeats are missed, the engine asks for the
consumer's info (a *probe*). If the consumer is gone, the consumption ends. If the consumer exists
while its pulls are silent, the server has lost the pulls, and the engine removes them.

Implements ADR-37, "Consume". Where servers differ from the ADR, their behaviour was measured.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from jetsync import errors
from jetsync._proto.pull import (
    NO_PRIORITIES,
    PULL_RETRY_WAIT,
    PULL_RETRY_WAIT_LIMIT,
    Pins,
    Priorities,
    PullEngine,
    PullRequest,
    drop_pin,
    learn_pin,
    message_size,
)
from jetsync._proto.pull_size import pull_size
from jetsync._proto.status import Effect, Status
from jetsync.errors.answers import from_api_error
from jetsync.events import PullOutcome
from jetsync.values.server_info import decode_json
from jetsync.values.ttl import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jetsync._proto.pull import Pull
    from jetsync.errors import JetSyncError
    from jetsync.values.frame import Frame

# If a pull ends empty before this fraction of its `expires`, the next one waits. Otherwise a
# consumer that refuses pulls without saying so would be asked in a tight loop.
QUICK: Final = 0.5

# Seconds without an answer after which a probe is repeated.
PROBE_INTERVAL: Final = 1.0

# Seconds for which pulls may stay silent after the probe has shown that their consumer exists.
LOST_WAIT: Final = 1.0

CONCLUDING: Final = (
    errors.ConsumerDeletedError,
    errors.NotPullConsumerError,
    errors.BadPullRequestError,
    errors.RequiredApiLevelError,
)
"""
The faults that end a consumption, because every pull would fail the same way.

The ADR treats the limits of a consumer as warnings: another pull follows after a pause.
"""


@attrs.frozen(kw_only=True)
class ConsumeOptions:
    """How a consumption pulls; checked and complete."""

    stream: str
    consumer: str
    # The limit of the buffer in messages; unused with `max_bytes`.
    max_messages: int
    # The limit of the buffer in bytes; None if messages are counted.
    max_bytes: int | None
    # The next pull is due when this many messages, or bytes, are left.
    threshold: int
    expires: float
    heartbeat: float
    stop_after: int | None = None
    # What the consumer allows a single pull to ask for.
    max_batch: int | None = None
    max_batch_bytes: int | None = None
    priorities: Priorities = NO_PRIORITIES
    # Seconds without pulls after which the server deletes the consumer; None if it never does.
    inactive_threshold: float | None = None


class ConsumeEngine:
    """
    Keep a buffer filled.

    Args:
        pulls: Tracks its pulls.
        options: What to pull.
        pins: The pin ids of the consumer's groups, shared with other users of the consumer.
    """

    def __init__(
        self, pulls: PullEngine, options: ConsumeOptions, pins: Pins | None = None
    ) -> None:
        self.pulls = pulls
        # Changed if a status names a limit of the consumer.
        self.options: ConsumeOptions = options
        self._pins: Pins = {} if pins is None else pins
        # The messages that arrived and were not taken, oldest first.
        self.buffer: deque[Frame] = deque()
        # Takes the oldest message, or raises IndexError; any thread. It is the deque's own method,
        # because every message goes through it.
        self.take_first: Callable[[], Frame] = self.buffer.popleft
        # Messages that were taken out of the buffer and still count as if they were in it.
        self.parked = 0
        self.parked_bytes = 0
        # Messages that arrived beyond `stop_after`, to be given back.
        self.refused: list[Frame] = []
        # The fault that ended it.
        self.error: BaseException | None = None
        # Whether no more pulls are sent.
        self.draining = False
        # How many messages have arrived in the buffer so far.
        self.admitted: int = 0
        # How often two heartbeats in a row were missed.
        self.misses: int = 0
        # How many pulls in a row were refused or not answered.
        self.refusals: int = 0
        # No pull is sent before this moment; 0 for no such moment.
        self._not_before = 0.0
        self._wait = PULL_RETRY_WAIT
        # Whether the next message only fits into an empty buffer.
        self._until_empty = False
        # Seconds of silence that were reported already.
        self._silent_before = 0.0
        # When the last thread stopped driving; None before the first one began.
        self._left: float | None = None
        # Whether silence was ignored since the last frame, because no thread was driving.
        self._excused = False
        self._wants_probe = False
        self._probe: bytes | None = None
        self._probes = 0
        self._probe_again = 0.0
        # When silent pulls count as lost, because their consumer exists.
        self._lost_at: float | None = None

    @property
    def is_ending(self) -> bool:
        """Whether no more messages are wanted."""
        limit = self.options.stop_after
        return (
            self.draining
            or self.error is not None
            or (limit is not None and self.admitted >= limit)
        )

    def low_mark(self) -> int:
        """
        Return at how many buffered messages :meth:`next_pull` may have a pull; -1 for none.

        It applies the rule of :meth:`next_pull`, so that a thread that takes a message compares two
        numbers. Change both together.
        """
        if self.is_ending:
            # The thread that takes the last message notices the end.
            return 0
        options = self.options
        pending = self.pulls.pending_messages
        if options.stop_after is not None and self.admitted + pending >= options.stop_after:
            return -1
        if options.max_bytes is None:
            return max(options.threshold - self.parked - pending, -1)
        left = options.threshold - self.parked_bytes - self.pulls.pending_bytes
        if self._until_empty:
            left = min(left, 0)
        count = -1 if left < 0 else 0
        for frame in reversed(self.snapshot()):
            left -= message_size(frame)
            if left < 0:
                break
            count += 1
        return count

    def next_pull(self, now: float) -> PullRequest | None:
        """Return the pull to send now, or None. The caller opens it with ``pulls.open``."""
        if self.is_ending or now < self._not_before:
            return None
        options, pulls = self.options, self.pulls
        pending = pulls.pending_messages
        if options.max_bytes is None:
            held = len(self.buffer) + self.parked + pending
        else:
            held = sum(map(message_size, self.snapshot()), self.parked_bytes) + pulls.pending_bytes
            if held and self._until_empty:
                return None
        if held > options.threshold:
            return None
        messages, size = pull_size(options, held, self.admitted + pending)
        if not messages:
            return None
        return PullRequest(
            max_messages=messages,
            max_bytes=size,
            expires=options.expires,
            heartbeat=options.heartbeat,
            priorities=options.priorities,
            pin_id=self._pins.get(options.priorities.group),
        )

    def probe_due(self, now: float) -> bytes | None:
        """Return the reply subject of the probe to send now, or None."""
        if not self._wants_probe or self.is_ending:
            return None
        if self._probe is not None and now < self._probe_again:
            return None
        self._wants_probe = False
        self._probes += 1
        self._probe = b"%bi%d" % (self.pulls.prefix, self._probes)
        self._probe_again = now + PROBE_INTERVAL
        return self._probe

    def next_look(self) -> float | None:
        """Return when to call :meth:`look` and :meth:`next_pull` again; None for no such moment."""
        moments = [self._lost_at, self._not_before, self.pulls.next_expiry()]
        if self._wants_probe and self._probe is not None:
            moments.append(self._probe_again)
        if not self.pulls.is_idle:
            moments.append(self.pulls.next_miss())
        return min(filter(None, moments), default=None)

    def receive(self, frames: Sequence[Frame], now: float) -> list[tuple[Status, PullOutcome]]:
        """Put the messages of *frames* into the buffer; return each status and its outcome."""
        if self._probes:
            frames = self._take_answers(frames, now)
        if not frames:
            return []
        self._silent_before = 0.0
        self._excused = False
        self._lost_at = None
        received = self.pulls.receive(frames, now)
        if received.messages:
            self._admit(received.messages)
        return [
            (status, PullOutcome.IGNORED if pull is None else self._judge(status, pull, now))
            for status, pull in received.statuses
        ]

    def look(self, now: float) -> float | None:
        """
        Check for silence; return its seconds if two heartbeats were missed.
        """
        if now >= self._not_before:
            self._not_before = 0.0
        pulls = self.pulls
        pulls.expire(now)
        if self._lost_at is not None and now >= self._lost_at:
            self._lost_at = None
            pulls.clear()
        if pulls.is_idle or not pulls.missed(now):
            return None
        self._silent_before += now - pulls.heard
        pulls.heard = now
        self.misses += 1
        self._wants_probe = True
        return self._silent_before

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
        if self._left is None or self._excused:
            return
        if now - self._left > self.options.heartbeat:
            self._excused = True
            self._silent_before = 0.0
            self.pulls.heard = now

    def drain(self) -> None:
        """Send no more pulls."""
        self.draining = True

    def park(self, frame: Frame) -> None:
        """Count a message that was taken as if it were in the buffer; one thread at a time."""
        self.parked += 1
        self.parked_bytes += message_size(frame)

    def unpark(self, frame: Frame) -> None:
        """No longer count a parked message; one thread at a time."""
        self.parked -= 1
        self.parked_bytes -= message_size(frame)

    def take_all(self) -> list[Frame]:
        """Take the refused messages and those in the buffer; other threads may take some, too."""
        taken, self.refused = self.refused, []
        with contextlib.suppress(IndexError):  # None is left.
            taken.extend(iter(self.take_first, None))
        return taken

    def take_refused(self) -> list[Frame]:
        """Take the messages that arrived beyond ``stop_after``."""
        refused, self.refused = self.refused, []
        return refused

    def lost(self, epoch: int, now: float) -> None:
        """Remove the pulls that were sent on connections up to *epoch*, which are lost."""
        self.pulls.lost(epoch)
        self._probe = None
        self._lost_at = None
        self._silent_before = 0.0
        self._excused = False
        self._not_before = 0.0
        self._wait = PULL_RETRY_WAIT
        self.pulls.heard = now

    def fail(self, error: BaseException) -> None:
        """End with *error*, unless it has ended with another error."""
        if self.error is None:
            self.error = error

    def after_fork(self, error: BaseException) -> None:
        """
        End with *error* in a forked child, without the messages: they belong to the parent.

        The deque is replaced, because a thread that does not exist here may have locked it.
        """
        self.buffer = deque()
        self.take_first = self.buffer.popleft
        self.fail(error)

    def snapshot(self) -> list[Frame]:
        """Return the messages in the buffer, while other threads may take some."""
        while True:
            with contextlib.suppress(RuntimeError):  # Another thread took one.
                return list(self.buffer)

    def _admit(self, messages: Sequence[Frame]) -> None:
        limit = self.options.stop_after
        if limit is not None and self.admitted + len(messages) > limit:
            room = limit - self.admitted
            self.refused.extend(messages[room:])
            messages = messages[:room]
        self.admitted += len(messages)
        self._wait = PULL_RETRY_WAIT
        self.refusals = 0
        self._until_empty = False
        if self.options.priorities.group is not None:
            learn_pin(self._pins, self.options.priorities.group, messages)
        self.buffer.extend(messages)

    def _judge(self, status: Status, pull: Pull, now: float) -> PullOutcome:
        """Act on a status that ended *pull*."""
        kind, asked = status.rule.error, pull.request
        if kind is errors.MessageSizeExceedsMaxBytesError:
            # A pull that asked for as many bytes as possible ended empty, so every pull will.
            options = self.options
            most = options.max_bytes
            if most is not None and options.max_batch_bytes is not None:
                most = min(most, options.max_batch_bytes)
            if asked.max_bytes == most and status.pending_bytes in {None, most}:
                return self._conclude(status)
            self._until_empty = True
            return PullOutcome.ENDED
        if status.effect is Effect.ENDED:
            if status.pending_messages == asked.max_messages and now < (
                pull.opened + QUICK * asked.expires
            ):
                # It ended early and empty. If the next one does too, this would be a tight loop.
                self._back_off(now)
            else:
                self._wait = PULL_RETRY_WAIT
                self.refusals = 0
            return PullOutcome.ENDED
        if kind is not None and issubclass(kind, CONCLUDING):
            return self._conclude(status)
        if kind is errors.PinIdMismatchError and asked.pin_id is not None:
            # Another client is pinned, or this client was given a new id meanwhile.
            drop_pin(self._pins, asked)
            return PullOutcome.RETRIED
        self._learn_limit(status)
        self.refusals += 1
        if status.effect is Effect.ABSENT:
            self._wants_probe = True
        self._back_off(now)
        return PullOutcome.RETRIED

    def _back_off(self, now: float) -> None:
        """Send no pull for a while. Several statuses at once count as one."""
        if now >= self._not_before:
            self._not_before = now + self._wait
            self._wait = min(2.0 * self._wait, PULL_RETRY_WAIT_LIMIT)

    def _conclude(self, status: Status) -> PullOutcome:
        self.fail(status.error(self.options.stream, self.options.consumer))
        return PullOutcome.FAILED

    def _learn_limit(self, status: Status) -> None:
        """Keep to the limit of the consumer that a status names, if it names one."""
        error = status.error(self.options.stream, self.options.consumer)
        if isinstance(error, errors.MaxRequestBatchError) and error.limit:
            self.options = attrs.evolve(self.options, max_batch=error.limit)
        elif isinstance(error, errors.MaxRequestMaxBytesError) and error.limit:
            self.options = attrs.evolve(self.options, max_batch_bytes=error.limit)
        elif isinstance(error, errors.MaxRequestExpiresError):
            longest = parse_duration(error.limit or "")
            if longest:
                expires = min(self.options.expires, longest)
                beat = min(self.options.heartbeat, expires / 2.0)
                self.options = attrs.evolve(self.options, expires=expires, heartbeat=beat)

    def _take_answers(self, frames: Sequence[Frame], now: float) -> Sequence[Frame]:
        """Take the answers to probes, including late ones, out of a block of frames."""
        prefix = self.pulls.prefix + b"i"
        answers = [frame for frame in frames if frame[0].startswith(prefix)]
        if not answers:
            return frames
        for answer in answers:
            gone = read_gone(answer[3], self.options.stream, self.options.consumer)
            if gone is not None:
                self.fail(gone)
            if answer[0] == self._probe:
                self._probe = None
                silent = self._silent_before > 0.0 and not self.pulls.is_idle
                if answer[2] is None and gone is None and silent:
                    # The consumer exists, and would have sent heartbeats for pulls that it knows.
                    # If it was suspended, they arrive soon after its answer.
                    self._lost_at = now + min(self.options.heartbeat, LOST_WAIT)
        return [frame for frame in frames if not frame[0].startswith(prefix)]


def read_gone(
    answer: bytes, stream: str | None = None, consumer: str | None = None
) -> JetSyncError | None:
    """Return the error in a consumer info reply, or ProtocolError if the reply is malformed."""
    if not answer:
        return None
    try:
        found = decode_json(answer).get("error")
        error = None if found is None else from_api_error(found, stream, consumer)
    except errors.ProtocolError as broken:
        return broken
    return (
        error
        if isinstance(error, (errors.ConsumerNotFoundError, errors.StreamNotFoundError))
        else None
    )
