"""
The consume engine: a buffer that is kept full by pulls, for as long as somebody takes from it.

What lives here: when the next pull is due and what it asks for, what statuses and silences mean for
a consumption, when to look again. What may not: the socket, the clock, threads.

Theory of operation. The engine owns the buffer of messages that have come and were not taken. What
is buffered and what open pulls may still bring is together never more than the limit; once it is
down to the threshold, a pull is due that asks for all that is missing. So a user who is slower than
the server is never sent more than the limit, and silence then means nothing.

A status ends one pull, and mostly another one follows: at once, or after a pause that grows if the
reason is one that passes. Where nobody answers a pull, and where heartbeats fail to come, the
consumer is asked after (a *probe*, answered below the same inbox): one that is gone ends the
consumption; one that is well while our pulls are silent has lost them, so they are struck out.

Implements ADR-37, "Consume". Where servers do otherwise than the ADR says, what they do was
measured.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from jetsync._proto.pins import Pins
from jetsync._proto.pull import (
    RETRY_WAIT,
    RETRY_WAIT_LIMIT,
    UNBOUNDED_BATCH,
    PullEngine,
    PullRequest,
    message_size,
)
from jetsync._proto.status import Effect, Status
from jetsync.errors import (
    BadPullRequestError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    MaxRequestBatchError,
    MaxRequestExpiresError,
    MaxRequestMaxBytesError,
    MessageSizeExceedsMaxBytesError,
    NotPullConsumerError,
    PinIdMismatchError,
    ProtocolError,
    RequiredApiLevelError,
    StreamNotFoundError,
    from_api_error,
)
from jetsync.events import PullOutcome
from jetsync.values.server_info import decode_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._proto.pull import Pull
    from jetsync.errors import JetSyncError
    from jetsync.values.frame import Frame

QUICK: Final = 0.5
"""
The part of its time before which no pull ends with nothing, unless something is wrong.
"""

PROBE_WAIT: Final = 1.0
"""Seconds after which the consumer is asked after once more, if there was no answer."""

STRIKE_WAIT: Final = 1.0
"""Seconds for which pulls may still be silent once their consumer is known to be well."""

CONCLUDING: Final = (
    ConsumerDeletedError,
    NotPullConsumerError,
    BadPullRequestError,
    RequiredApiLevelError,
)
"""
The faults that end a consumption, as the same pull would meet them for ever.

The limits of a consumer are warnings to the ADR: another pull follows, after a pause.
"""


DURATION_UNITS: Final = {
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ns": 1e-9,
}


@attrs.frozen(kw_only=True)
class ConsumeOptions:
    """
    How a consumption pulls, checked and complete.
    """

    stream: str
    consumer: str
    max_messages: int
    """Messages in the buffer at most; the batch of a pull that is bounded by bytes."""

    max_bytes: int | None
    """Bytes in the buffer at most; None if messages are counted."""

    threshold: int
    """How many messages, or bytes, may be left when the next pull is due."""

    expires: float
    heartbeat: float
    stop_after: int | None = None
    max_batch: int | None = None
    """What the consumer allows a single pull to ask for."""

    max_batch_bytes: int | None = None
    group: str | None = None
    min_pending: int | None = None
    min_ack_pending: int | None = None
    priority: int | None = None


@attrs.frozen
class StatusNote:
    """A status that ended a pull, and what follows."""

    status: Status
    outcome: PullOutcome


@attrs.frozen
class SilenceNote:
    """Two heartbeats failed to come."""

    silent_for: float


class ConsumeEngine:
    """
    Keep a buffer filled.

    Args:
        pulls: The books of its pulls.
        options: What to pull.
        pins: The pins of the consumer's groups, shared with others that pull from it.
    """

    def __init__(
        self, pulls: PullEngine, options: ConsumeOptions, pins: Pins | None = None
    ) -> None:
        self.pulls = pulls
        self.options = options
        self.buffer: deque[Frame] = deque()
        """What has come and was not taken yet, oldest first."""

        self.aside = 0
        """How many messages were taken out of the buffer, and still count as if they were in it."""

        self.aside_bytes = 0
        self.refused: list[Frame] = []
        """What came beyond ``stop_after``, to be given back."""

        self.error: BaseException | None = None
        """Why it has ended, if it was a fault."""

        self.draining = False
        """Whether no more pulls are sent."""

        self.pins = Pins() if pins is None else pins
        self.admitted = 0
        """How many messages have come into the buffer so far."""

        self.misses = 0
        self._max_batch = options.max_batch
        self._max_batch_bytes = options.max_batch_bytes
        self._expires = options.expires
        self._heartbeat = options.heartbeat
        self.refusals = 0
        """How many pulls in a row were refused, or not answered by anybody."""

        self._not_before = 0.0
        self._wait = RETRY_WAIT
        self._until_empty = False
        """Whether the next message only fits into an empty buffer."""

        self._silent_before = 0.0
        """Seconds of silence that were told of already."""

        self._left: float | None = None
        """When the driver went away; None before it was there."""

        self._excused = False
        """Whether silence was forgiven since the last sign of life, as the driver was away."""

        self._wants_probe = False
        self._probe: bytes | None = None
        self._probes = 0
        self._probe_again = 0.0
        self._strike_at: float | None = None
        """When silent pulls are struck out, as the consumer is well."""

    def __repr__(self) -> str:
        return (
            f"<ConsumeEngine buffered={len(self.buffer)} pending={self.pulls.pending_messages} "
            f"admitted={self.admitted}>"
        )

    # What is held.

    @property
    def is_complete(self) -> bool:
        """Whether all messages that were wanted have come."""
        limit = self.options.stop_after
        return limit is not None and self.admitted >= limit

    @property
    def is_ending(self) -> bool:
        """Whether nothing more is to come."""
        return self.draining or self.error is not None or self.is_complete

    def buffered_bytes(self) -> int:
        """Return the size of what is in the buffer, as servers count it."""
        return self.aside_bytes + sum(map(message_size, self.snapshot()))

    def low_mark(self) -> int:
        """
        Return at how many messages in the buffer :meth:`due` has to be asked again, -1 for never.
        """
        if self.is_ending:
            return 0
        if self._asks_no_more():
            return -1
        limit = self.options.max_bytes
        if limit is None:
            held = self.aside + self.pulls.pending_messages
            return max(self.options.threshold - held, -1)
        left = self.options.threshold - self.aside_bytes - self.pulls.pending_bytes
        if self._until_empty:
            left = min(left, 0)
        count = -1 if left < 0 else 0
        for frame in reversed(self.snapshot()):
            left -= message_size(frame)
            if left < 0:
                break
            count += 1
        return count

    # What is due.

    def due(self, now: float) -> PullRequest | None:
        """Return the pull to send now, None if there is none; enter it with ``pulls.open``."""
        if self.is_ending or now < self._not_before:
            return None
        options, pulls = self.options, self.pulls
        size: int | None = None
        if options.max_bytes is None:
            held = len(self.buffer) + self.aside + pulls.pending_messages
            if held > options.threshold:
                return None
            messages = options.max_messages - held
        else:
            bound = self.buffered_bytes() + pulls.pending_bytes
            if bound > options.threshold or (bound and self._until_empty):
                return None
            messages, size = UNBOUNDED_BATCH, options.max_bytes - bound
            if self._max_batch_bytes is not None:
                size = min(size, self._max_batch_bytes)
            if size <= 0:
                return None
        if options.stop_after is not None:
            messages = min(messages, options.stop_after - self.admitted - pulls.pending_messages)
        if self._max_batch is not None:
            messages = min(messages, self._max_batch)
        if messages <= 0:
            return None
        return PullRequest(
            max_messages=messages,
            max_bytes=size,
            expires=self._expires,
            heartbeat=self._heartbeat,
            group=options.group,
            min_pending=options.min_pending,
            min_ack_pending=options.min_ack_pending,
            priority=options.priority,
            pin_id=self.pins.get(options.group),
        )

    def probe_due(self, now: float) -> bytes | None:
        """Return the reply subject for a question after the consumer, None if none is due."""
        if not self._wants_probe or self.is_ending:
            return None
        if self._probe is not None and now < self._probe_again:
            return None
        self._wants_probe = False
        self._probes += 1
        self._probe = b"%bi%d" % (self.pulls.prefix, self._probes)
        self._probe_again = now + PROBE_WAIT
        return self._probe

    def next_look(self) -> float | None:
        """Return the moment at which :meth:`look` or :meth:`due` has something, None for never."""
        moments = [self._strike_at, self.pulls.next_expiry()]
        if self._not_before:
            moments.append(self._not_before)
        if self._wants_probe and self._probe is not None:
            moments.append(self._probe_again)
        if not self.pulls.is_idle:
            moments.append(self.pulls.heartbeat.due())
        return min((moment for moment in moments if moment is not None), default=None)

    # What happens.

    def receive(self, frames: Sequence[Frame], now: float) -> list[StatusNote]:
        """
        Take a block of frames: fill the buffer, and return what its statuses mean.
        """
        if self._probes:
            frames = self._take_answers(frames, now)
        if not frames:
            return []
        self._silent_before = 0.0
        self._excused = False
        self._strike_at = None
        received = self.pulls.receive(frames, now)
        if received.messages:
            self._admit(received.messages)
        if not received.statuses and not received.others:
            return []
        return [
            *(StatusNote(status, PullOutcome.IGNORED) for status in received.others),
            *(
                StatusNote(status, self._judge(status, pull, now))
                for status, pull in zip(received.statuses, received.pulls, strict=True)
            ),
        ]

    def look(self, now: float) -> SilenceNote | None:
        """Notice what did not happen: pulls that were forgotten, heartbeats that did not come."""
        if self._not_before and now >= self._not_before:
            self._not_before = 0.0
        pulls = self.pulls
        pulls.expire(now)
        if self._strike_at is not None and now >= self._strike_at:
            self._strike_at = None
            pulls.clear()
        if pulls.is_idle or not pulls.heartbeat.missed(now):
            return None
        self._silent_before += pulls.heartbeat.silence(now)
        pulls.heartbeat.restart(now)
        self.misses += 1
        self._wants_probe = True
        return SilenceNote(self._silent_before)

    def leave(self, now: float) -> None:
        """Note that the driver goes away: what comes now is only seen when it is back."""
        self._left = now

    def back(self, now: float) -> None:
        """
        Note that the driver is back.

        After a long time away silence counts from now on: what has come meanwhile may still be on
        its way through this process. Only once for each sign of life, though: a pull that was lost
        has to be noticed also by a driver that comes back now and then.
        """
        if self._left is None or self._excused:
            return
        if now - self._left > self._heartbeat:
            self._excused = True
            self._silent_before = 0.0
            self.pulls.heartbeat.restart(now)

    def lost(self, epoch: int, now: float) -> int:
        """Strike out the pulls that died with their connection; return how many those were."""
        dead = self.pulls.lost(epoch)
        self._probe = None
        self._strike_at = None
        self._silent_before = 0.0
        self._excused = False
        self._not_before = 0.0
        self._wait = RETRY_WAIT
        self.pulls.heartbeat.restart(now)
        return len(dead)

    def fail(self, error: BaseException) -> None:
        """End with *error*; the first one stays."""
        if self.error is None:
            self.error = error

    def snapshot(self) -> list[Frame]:
        """Return what is in the buffer while other threads may take from it."""
        while True:
            with contextlib.suppress(RuntimeError):  # Changed under our eyes.
                return list(self.buffer)

    def _asks_no_more(self) -> bool:
        """Whether all that is wanted has been asked for."""
        limit = self.options.stop_after
        return limit is not None and self.admitted + self.pulls.pending_messages >= limit

    def _admit(self, messages: Sequence[Frame]) -> None:
        limit = self.options.stop_after
        if limit is not None and self.admitted + len(messages) > limit:
            room = limit - self.admitted
            self.refused.extend(messages[room:])
            messages = messages[:room]
        self.admitted += len(messages)
        self._wait = RETRY_WAIT
        self.refusals = 0
        self._until_empty = False
        if self.options.group is not None:
            self.pins.learn(self.options.group, messages)
        self.buffer.extend(messages)

    def _judge(self, status: Status, pull: Pull, now: float) -> PullOutcome:
        """Act on a status that ended *pull*."""
        kind, asked = status.rule.error, pull.request
        if kind is MessageSizeExceedsMaxBytesError:
            # Nothing came for a pull that asked for as much as it ever may: nothing ever will.
            most = min(self.options.max_bytes or 0, self._max_batch_bytes or UNBOUNDED_BATCH**2)
            if asked.max_bytes == most and status.pending_bytes in {None, most}:
                return self._conclude(status)
            self._until_empty = True
            return PullOutcome.ENDED
        if status.effect is Effect.ENDED:
            if status.pending_messages == asked.max_messages and now < (
                pull.opened + QUICK * asked.expires
            ):
                # It ended before its time and brought nothing; at once again would be a storm.
                self._back_off(now)
            else:
                self._wait = RETRY_WAIT
                self.refusals = 0
            return PullOutcome.ENDED
        if kind is not None and issubclass(kind, CONCLUDING):
            return self._conclude(status)
        if kind is PinIdMismatchError and asked.pin_id is not None:
            # Another client is pinned; ours was perhaps given a new id meanwhile.
            self.pins.drop(asked.group, asked.pin_id)
            return PullOutcome.RETRIED
        self._learn_limit(status)
        self.refusals += 1
        if status.effect is Effect.ABSENT:
            self._wants_probe = True
        self._back_off(now)
        return PullOutcome.RETRIED

    def _back_off(self, now: float) -> None:
        """Send no pull for a while; statuses of several pulls at once count as one."""
        if now >= self._not_before:
            self._not_before = now + self._wait
            self._wait = min(2.0 * self._wait, RETRY_WAIT_LIMIT)

    def _conclude(self, status: Status) -> PullOutcome:
        self.fail(status.error(self.options.stream, self.options.consumer))
        return PullOutcome.FAILED

    def _learn_limit(self, status: Status) -> None:
        """Ask for no more than the consumer allows, where its status says how much that is."""
        error = status.error(self.options.stream, self.options.consumer)
        if isinstance(error, MaxRequestBatchError) and error.limit:
            self._max_batch = error.limit
        elif isinstance(error, MaxRequestMaxBytesError) and error.limit:
            self._max_batch_bytes = error.limit
        elif isinstance(error, MaxRequestExpiresError):
            longest = read_duration(error.limit or "")
            if longest:
                self._expires = min(self._expires, longest)
                self._heartbeat = min(self._heartbeat, self._expires / 2.0)

    def _take_answers(self, frames: Sequence[Frame], now: float) -> Sequence[Frame]:
        """Take the answers to probes, late ones too, out of a block of frames."""
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
                    # It is well, and pulls that it knows would have given a sign of life by now.
                    # If it stood still, its heartbeats are on their way with its answer.
                    self._strike_at = now + min(self._heartbeat, STRIKE_WAIT)
        return [frame for frame in frames if not frame[0].startswith(prefix)]


def read_duration(text: str) -> float | None:
    """Return the seconds of a duration as servers write it, ``1m30s``; None if it is none."""
    parts = re.findall(r"([0-9.]+)([a-zµμ]+)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    with contextlib.suppress(ValueError, KeyError):
        return sum(float(number) * DURATION_UNITS[unit] for number, unit in parts)
    return None


def read_gone(
    answer: bytes, stream: str | None = None, consumer: str | None = None
) -> JetSyncError | None:
    """Return the error in a consumer info reply, or ProtocolError if the reply is malformed."""
    if not answer:
        return None
    try:
        found = decode_json(answer).get("error")
        error = None if found is None else from_api_error(found, stream, consumer)
    except ProtocolError as broken:
        return broken
    return error if isinstance(error, (ConsumerNotFoundError, StreamNotFoundError)) else None
