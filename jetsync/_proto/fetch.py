"""
The fetch engine: it reads a bounded number of messages, with one pull at a time.

A fetch ends when all messages that it asked for have arrived, when its time is over, or at a
status that :func:`jetsync._proto.status.judge` takes for the end. If a pull ends for a temporary
reason, or with its connection, another one asks for the rest within the time that is left.

A pull that was given up may still be served. The messages beyond what the fetch asked for are
refused. If the consumer wants no acks, they could not be given back, so the fetch keeps them.

The engine uses no sockets, clocks or threads. Implements ADR-37, "Fetch".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from jetsync import errors
from jetsync._proto.open_pulls import GRACE, counted_size
from jetsync._proto.pins import drop_pin, learn_pin
from jetsync._proto.pull_size import rest_of, room_for
from jetsync._proto.pulling import Pulling
from jetsync._proto.status import Bounded, Effect, Verdict, is_stale_pin, judge
from jetsync.events import PullOutcome
from jetsync.values.codec import from_wire
from jetsync.values.consumer_info import ConsumerInfo
from jetsync.values.server_info import decode_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._proto.open_pulls import OpenPulls
    from jetsync._proto.ordered import OrderedCursor
    from jetsync._proto.pins import Pins
    from jetsync._proto.pull_request import Pull, PullRequest
    from jetsync._proto.status import Status
    from jetsync.values.frame import Frame

# Seconds of silence after which a fetch with `no_wait` asks for the consumer's info. Servers answer
# such a pull within a millisecond, unless `max_ack_pending` is reached. Then they keep the pull and
# send nothing.
NO_WAIT_SILENCE: Final = 0.05

# If the first pull of a fetch with `no_wait` finds nothing, a second one waits this many seconds.
# Servers acknowledge a publish shortly before its consumers know of the message. Measured on
# 2.10.26, 2.11.11, 2.12.8, 2.14.6 and 2.15.1, with a pull right after each ack. Without a second
# pull, 0.4 to 2 of 100 messages were missed on an idle machine, and up to 7 on a busy one. With 1
# or 2 ms, at most 1 in 500 was missed. With 5 ms, none of 10,000 were missed.
SECOND_PULL: Final = 0.005

# How many pulls in a row no server answers before an ordered consumer is replaced. One whose server
# was killed has no other leader, while the stream has one.
ORDERED_REFUSALS: Final = 3


class FetchEngine(Pulling):
    """
    Ask for a number of messages until they are there, or until the time is over.

    The caller sends ``request``. :meth:`next_pull` returns the pulls after it.

    Args:
        pulls: Tracks its pulls.
        request: What to ask for.
        pins: The pin ids of the consumer's groups, shared with other users of the consumer.
        now: The time.
        wait: Seconds for which pulls are sent.
        subject: The subject that pulls are published to, for errors.
        acked: Whether the consumer wants acks, so that messages can be given back.
        order: The order in which messages have to arrive, for an ordered consumer.
    """

    is_bounded: ClassVar[bool] = True

    def __init__(
        self,
        pulls: OpenPulls,
        request: PullRequest,
        pins: Pins,
        *,
        now: float,
        wait: float,
        subject: bytes,
        acked: bool = True,
        order: OrderedCursor | None = None,
    ) -> None:
        super().__init__(pulls, pins, stop_after=None, order=order)
        group = request.priorities.group
        if group is not None:
            request = attrs.evolve(request, pin_id=pins.get(group))
        self.request = request
        self.send_until, self.wait = now + wait, wait
        self._subject = subject
        # The status that ended the last pull; None while it is open, or if none was needed.
        self.status: Status | None = None
        # Why the next pull is sent.
        self._why = Verdict.AGAIN
        self._acked = acked
        # The bytes of the messages that have arrived, if they are limited.
        self.size: int = 0
        # Which pull of a fetch with `no_wait` this is, see `judge`.
        self._attempt = 1
        # Since when a pull with `no_wait` is not answered, and when the server was asked why.
        self._quiet = self._asked = now

    @property
    def heartbeat(self) -> float:
        """Seconds between the server's heartbeats; 0 without any."""
        return self.request.heartbeat or 0.0

    @property
    def is_full(self) -> bool:
        """Whether all messages have arrived that it asked for."""
        return self.admitted >= self.request.max_messages

    @property
    def is_due(self) -> bool:
        """Whether a pull has to be sent."""
        return self.pulls.is_idle and not self.is_ending

    def lacks_messages(self, now: float) -> bool:
        """Return whether messages are missing, and there is time to ask for them."""
        return self.rest(now) is not None

    def restart(self, pulls: OpenPulls, now: float) -> None:
        """Continue with the next consumer of an ordered read."""
        super().restart(pulls, now)
        self.status, self._why, self._attempt = None, Verdict.AGAIN, 1
        self._quiet = self._asked = now

    def next_pull(self, now: float) -> PullRequest | None:
        """Return the pull to send now, or None. The caller opens it with ``pulls.open``."""
        if not self.is_due or now < min(self.not_before, self.send_until):
            return None
        rest = self.rest(now)
        status, self.status, self._quiet = self.status, None, now
        if rest is None:
            self.drain()
            self.status = status
            if status is not None and self._why is Verdict.PROBE:
                self.fail(status.error(self.stream, self.consumer))
        return rest

    def look(self, now: float) -> float | None:
        """
        Check for silence, and for the end of the time; return the seconds of missed heartbeats.
        """
        pulls = self.pulls
        if pulls.is_idle:
            return None
        if pulls.missed(now):
            self.misses += 1
            self.fail_silent()
            return now - pulls.heard
        if now >= self.send_until + GRACE:
            self.fail(errors.RequestTimeoutError(self._subject.decode(), self.wait + GRACE))
        elif self.request.no_wait and now >= self._quiet + NO_WAIT_SILENCE:
            self._quiet = self._asked = now
            self.probe.want()
        return None

    def next_look(self) -> float | None:
        """Return when to call :meth:`look` and :meth:`next_pull` again."""
        moment, pulls = self.send_until + GRACE, self.pulls
        if pulls.is_idle:
            return min(self.send_until, self.not_before)
        miss = pulls.next_miss()
        if miss is not None:
            moment = min(moment, miss)
        if self.request.no_wait:
            moment = min(moment, self._quiet + NO_WAIT_SILENCE)
        return moment

    def low_mark(self) -> int:
        """Return -1: a pull is due when another one has ended, however many messages are left."""
        return -1

    def hear(self, messages: Sequence[Frame], now: float) -> None:
        """Take messages up to what was asked for, and refuse the others."""
        self._quiet = now
        self.excused = False
        if not messages:
            return
        request = self.request
        if self.refusals:
            self.accepted()
        if self.gave_up and self._acked:
            sizes = map(counted_size, messages)
            room = room_for(request, self.admitted, self.size, sizes)
            if room < len(messages):
                self.refused.extend(messages[room:])
                messages = messages[:room]
                self.drain()
        if request.priorities.group is not None:
            learn_pin(self.pins, request.priorities.group, messages)
        self.admit(messages)
        limit = request.max_bytes
        if limit is not None:
            self.size += sum(map(counted_size, messages))
        if self.is_full or (limit is not None and self.size >= limit):
            self.drain()

    def lost(self, epoch: int, now: float) -> None:
        """Note that the connections up to *epoch* are lost, with the pull if it was sent on one."""
        super().lost(epoch, now)
        if self.pulls.lost(epoch):
            self.gave_up = True
        if self.is_due and self.order is not None:
            self.fail_silent()

    def follow(self, status: Status, pull: Pull, now: float) -> PullOutcome:
        """Act on a status that ended *pull*."""
        self.status = status
        want = Bounded(self.rest(now) is not None, self.admitted > 0, self._attempt)
        verdict = judge(status, pull, want, now)
        if verdict is Verdict.FAIL:
            self.fail(status.error(self.stream, self.consumer))
            return PullOutcome.FAILED
        if verdict is Verdict.END:
            self.drain()
            return PullOutcome.ENDED
        self._why = verdict
        if status.effect is Effect.ENDED:
            self._attempt += 1
            return PullOutcome.RETRIED
        if is_stale_pin(status, pull):
            drop_pin(self.pins, pull.request)
        if verdict is not Verdict.AGAIN:
            self.back_off(now)
        if verdict is Verdict.PROBE:
            self.probe.want()
            if self.order is not None and self.refusals >= ORDERED_REFUSALS:
                self.fail(status.error(self.stream, self.consumer))
                return PullOutcome.FAILED
        return PullOutcome.RETRIED

    def exists(self, answer: bytes, now: float) -> None:
        """
        End a fetch with ``no_wait`` if its consumer cannot deliver now, or pull again.

        The server answers in order, so all messages of the pull have arrived before this answer.
        """
        if not self.request.no_wait or self.pulls.is_idle or self.pulls.heard > self._asked:
            return
        found = decode_json(answer) if answer else {}
        if not found or "error" in found:
            return
        try:
            info = from_wire(ConsumerInfo, found)
        except errors.ProtocolError as broken:
            self.fail(broken)
            return
        limit = info.config.max_ack_pending or 0
        if (
            not info.num_pending
            or 0 < limit <= info.num_ack_pending
            or info.paused
            or self.request.priorities.group is not None
        ):
            self.drain()
        elif not info.num_waiting and self.rest(now) is not None:
            # A leader that has just stepped down drops pulls without a status.
            # A busy server may also not have looked at this one yet, and serves it later.
            self.gave_up = True
            self.pulls.clear()

    def rest(self, now: float) -> PullRequest | None:
        """Return a pull for the messages that are left; None if none are left, or no time."""
        rest = rest_of(self.request, self.admitted, self.size, self.send_until - now)
        if rest is None or not (rest.no_wait or rest.priorities.group):
            return rest
        return attrs.evolve(
            rest,
            pin_id=self.pins.get(rest.priorities.group),
            expires=(SECOND_PULL if self._attempt == 2 else 0.0) if rest.no_wait else rest.expires,
        )
