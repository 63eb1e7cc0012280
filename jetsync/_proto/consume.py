"""
The consume engine: it keeps a buffer full by sending pulls, for as long as messages are taken.

The engine decides when to pull; `pull_size.py` decides how much each pull asks for. The engine
interprets statuses and silence, and says when it has to look again. It uses no sockets, clocks or
threads.

The engine owns the buffer of messages that arrived and were not taken. The buffer and the messages
that open pulls may still deliver never exceed the limit together. If the limit is in messages and a
handler takes them, it also counts those that are being handled. Once they have fallen to the
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

import functools
from typing import TYPE_CHECKING, Final

import attrs

from jetsync import errors
from jetsync._proto.pins import drop_pin, learn_pin
from jetsync._proto.pull_request import PullRequest
from jetsync._proto.pull_size import pull_size
from jetsync._proto.pulling import Pulling
from jetsync._proto.status import Effect, Endless, Status, Verdict, is_stale_pin, judge
from jetsync.events import PullOutcome
from jetsync.values.frame import message_size
from jetsync.values.ttl import parse_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._proto.open_pulls import OpenPulls
    from jetsync._proto.ordered import OrderedCursor
    from jetsync._proto.pins import Pins
    from jetsync._proto.pull_request import ConsumeOptions, Pull
    from jetsync.values.frame import Frame

# Seconds for which pulls may stay silent after the probe has shown that their consumer exists.
LOST_WAIT: Final = 1.0

# Most pulls of a consumption ask for the same, and the JSON of one request is made once.
_request = functools.lru_cache(maxsize=16)(PullRequest)


class ConsumeEngine(Pulling):
    """
    Keep a buffer filled.

    Args:
        pulls: Tracks its pulls.
        options: What to pull.
        pins: The pin ids of the consumer's groups, shared with other users of the consumer.
        order: The order in which messages have to arrive, for an ordered consumer.
    """

    def __init__(
        self,
        pulls: OpenPulls,
        options: ConsumeOptions,
        pins: Pins | None = None,
        *,
        order: OrderedCursor | None = None,
    ) -> None:
        super().__init__(
            pulls,
            {} if pins is None else pins,
            stop_after=options.stop_after,
            max_deliver=options.max_deliver,
            order=order,
        )
        # Changed if a status names a limit of the consumer.
        self.options: ConsumeOptions = options
        # How many pulls others had sent from the inbox.
        self._pulled_before = pulls.opened
        # How many bytes the next pull has to ask for, because the next message did not fit.
        self._least_bytes = 0
        # When silent pulls count as lost, because their consumer exists.
        self._lost_at: float | None = None

    @property
    def heartbeat(self) -> float:
        """Seconds between the server's heartbeats."""
        return self.options.heartbeat

    @property
    def pulled(self) -> int:
        """How many pulls were sent."""
        return self.pulls.opened - self._pulled_before

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
            return max(options.threshold - len(self.busy) - self.parked - pending, -1)
        left = self._most_held(options.max_bytes) - self.parked_bytes - self.pulls.pending_bytes
        count = -1 if left < 0 else 0
        for frame in reversed(self.snapshot()):
            left -= message_size(frame)
            if left < 0:
                break
            count += 1
        return count

    def next_pull(self, now: float) -> PullRequest | None:
        """Return the pull to send now, or None. The caller opens it with ``pulls.open``."""
        if self.is_ending or now < self.not_before:
            return None
        options, pulls = self.options, self.pulls
        pending, most = pulls.pending_messages, options.threshold
        if options.max_bytes is None:
            # The buffer first: a thread is busy before it takes a message out of the buffer, so no
            # message is missing in the sum.
            held = len(self.buffer) + len(self.busy) + self.parked + pending
        else:
            held = sum(map(message_size, self.snapshot()), self.parked_bytes) + pulls.pending_bytes
            most = self._most_held(options.max_bytes)
        if held > most:
            return None
        messages, size = pull_size(options, held, self.admitted + pending)
        if not messages:
            return None
        return _request(
            max_messages=messages,
            max_bytes=size,
            expires=options.expires,
            heartbeat=options.heartbeat,
            priorities=options.priorities,
            pin_id=self.pins.get(options.priorities.group),
        )

    def lacks_messages(self, now: float) -> bool:  # noqa: ARG002 - as in `Pulling`.
        """Return whether fewer messages than ``stop_after`` have arrived."""
        return self.stop_after is None or self.admitted < self.stop_after

    def restart(self, pulls: OpenPulls, now: float) -> None:
        """Continue with the next consumer of an ordered read."""
        super().restart(pulls, now)
        self._pulled_before, self._least_bytes, self._lost_at = pulls.opened, 0, None

    def next_look(self) -> float | None:
        """Return when to call :meth:`look` and :meth:`next_pull` again; None for no such moment."""
        pulls, probe = self.pulls, self.probe
        moments = [self._lost_at, self.not_before, pulls.next_expiry()]
        if probe.wanted:
            moments.append(probe.next_due())
        if not pulls.is_idle:
            moments.append(pulls.next_miss())
        return min(filter(None, moments), default=None)

    def hear(self, messages: Sequence[Frame], now: float) -> None:  # noqa: ARG002 - as in `Pulling`.
        """Take messages into the buffer, and begin to count silence."""
        self.silent_before = 0.0
        self.excused = False
        self._lost_at = None
        if messages:
            self.accepted()
            self._least_bytes = 0
            if self.options.priorities.group is not None:
                learn_pin(self.pins, self.options.priorities.group, messages)
            self.admit(messages)

    def look(self, now: float) -> float | None:
        """
        Check for silence; return its seconds if two heartbeats were missed.
        """
        if now >= self.not_before:
            self.not_before = 0.0
        pulls = self.pulls
        pulls.expire(now)
        if self._lost_at is not None and now >= self._lost_at:
            self._lost_at = None
            pulls.clear()
        if pulls.is_idle or not pulls.missed(now):
            return None
        self.silent_before += now - pulls.heard
        pulls.heard = now
        self.misses += 1
        if self.order is not None:
            self.fail_silent()
        self.probe.want()
        return self.silent_before

    def lost(self, epoch: int, now: float) -> None:
        """Remove the pulls that were sent on connections up to *epoch*, which are lost."""
        super().lost(epoch, now)
        self.pulls.lost(epoch)
        self._lost_at = None
        self.resume()
        self.pulls.heard = now
        if self.order is not None:
            self.fail_silent()

    def follow(self, status: Status, pull: Pull, now: float) -> PullOutcome:
        """Act on a status that ended *pull*."""
        options = self.options
        most = options.max_bytes
        if most is not None and options.max_batch_bytes is not None:
            most = min(most, options.max_batch_bytes)
        verdict = judge(status, pull, Endless(most), now)
        if verdict is Verdict.FAIL:
            self.fail(status.error(self.stream, self.consumer))
            return PullOutcome.FAILED
        if is_stale_pin(status, pull):
            drop_pin(self.pins, pull.request)
        elif verdict is Verdict.END:
            self.accepted()
            if status.rule.error is errors.MessageSizeExceedsMaxBytesError and most is not None:
                rest, asked = status.pending_bytes, pull.request.max_bytes or 0
                # A pull that delivered nothing is not repeated with a few bytes more.
                self._least_bytes = most if rest is None or rest >= asked else rest + 1
        else:
            self._learn_limit(status)
            if verdict is Verdict.PROBE:
                self.probe.want()
            self.back_off(now)
        return PullOutcome.ENDED if status.effect is Effect.ENDED else PullOutcome.RETRIED

    def exists(self, answer: bytes, now: float) -> None:  # noqa: ARG002 - as in `Pulling`.
        """Count silent pulls as lost soon, because their consumer exists."""
        if self.silent_before > 0.0 and not self.pulls.is_idle:
            # It would have sent heartbeats for pulls that it knows. If it was suspended, they
            # arrive soon after its answer.
            self._lost_at = now + min(self.options.heartbeat, LOST_WAIT)

    def _most_held(self, max_bytes: int) -> int:
        """Return with how many bytes in the buffer a pull may be sent."""
        return min(self.options.threshold, max_bytes - self._least_bytes)

    def _learn_limit(self, status: Status) -> None:
        """Keep to the limit of the consumer that a status names, if it names one."""
        error = status.error(self.stream, self.consumer)
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
