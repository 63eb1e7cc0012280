"""
The pull engine: one machine behind fetch, next and consume.

What lives here: which pulls are open, how many messages and bytes each of them still may bring,
what the frames that come mean for them, and when to ask again. What may not: the socket, the
clock, threads.

Theory of operation. A pull is a request for so many messages, perhaps so many bytes, for so long.
It is published with a reply subject of its own, ``<inbox>.<number>``, below the one subscription
that all pulls of an engine share. Messages come with the *stream's* subject, so only the
subscription ties them to the engine, and
servers serve several waiting pulls of one inbox in turn: a message is counted against the oldest
open pull that still has room. Statuses come on the pull's own reply subject, so they end
exactly the pull they answer, and a late second status of a finished pull is noise.

Every pull is counted by itself, because many terminal statuses do not say how much was outstanding,
and a pull that is filled to the exact byte gets no status at all.

Implements ADR-37; sizes as servers count them for ``max_bytes``: subject, reply subject, header
block and payload.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, Final

import attrs

from jetsync._proto.heartbeat import HeartbeatWatch
from jetsync._proto.status import Effect, Status, read_status
from jetsync.typing import Frame

NANOSECONDS: Final = 1_000_000_000

UNBOUNDED_BATCH: Final = 1_000_000
"""How many messages a pull asks for that is only bounded by bytes."""


@attrs.frozen(kw_only=True, slots=False)
class PullRequest:
    """
    What one pull asks for; the only place that knows how it looks on the wire.
    """

    max_messages: int
    expires: float
    """Seconds that the server keeps the pull; 0 for one that is answered at once."""

    max_bytes: int | None = None
    heartbeat: float | None = None
    """Seconds between signs of life, at most half of ``expires``."""

    no_wait: bool = False
    group: str | None = None
    min_pending: int | None = None
    min_ack_pending: int | None = None
    priority: int | None = None
    pin_id: str | None = None

    @functools.cached_property
    def wire(self) -> bytes:
        """
        The request's JSON; only what is set is in it. Made once, as the same pull is sent often.
        """
        body: dict[str, Any] = {"batch": self.max_messages}
        if self.expires:
            body["expires"] = round(self.expires * NANOSECONDS)
        if self.max_bytes is not None:
            body["max_bytes"] = self.max_bytes
        if self.no_wait:
            body["no_wait"] = True
        if self.heartbeat:
            body["idle_heartbeat"] = round(self.heartbeat * NANOSECONDS)
        rest = {
            "group": self.group,
            "min_pending": self.min_pending,
            "min_ack_pending": self.min_ack_pending,
            "priority": self.priority,
            "id": self.pin_id,
        }
        body.update({name: value for name, value in rest.items() if value is not None})
        return json.dumps(body, separators=(",", ":")).encode()


@attrs.define
class Pull:
    """
    One pull that the server has, or should have.
    """

    subject: bytes
    """Its reply subject."""

    request: PullRequest
    messages: int
    """How many more it may bring."""

    size: int | None
    """How many more bytes it may bring, None without a bound."""

    epoch: int = 0
    """The number of the connection that it was sent on; 0 until it was sent."""

    @property
    def is_full(self) -> bool:
        """Whether it has brought all it was for; the server sends no status for an exact fit."""
        return self.messages <= 0 or (self.size is not None and self.size <= 0)


@attrs.frozen
class Received:
    """
    What a block of frames meant.
    """

    messages: Sequence[Frame]
    """The messages in it, in order."""

    statuses: Sequence[Status] = ()
    """The statuses of open pulls in it, in order; heartbeats are left out."""


class PullEngine:
    """
    Keep the books of the pulls below one inbox.

    Args:
        inbox: The subject below which each pull gets its reply subject.
    """

    def __init__(self, inbox: bytes) -> None:
        self._prefix = inbox + b"."
        self._number = 0
        self._open: dict[bytes, Pull] = {}
        self.heartbeat = HeartbeatWatch(None, 0.0)
        self.unexpected = 0
        """How many messages came while no pull was open for them."""

    def __repr__(self) -> str:
        return (
            f"<PullEngine open={len(self._open)} messages={self.pending_messages} "
            f"bytes={self.pending_bytes}>"
        )

    @property
    def pending_messages(self) -> int:
        """How many messages the open pulls may still bring."""
        return sum(pull.messages for pull in self._open.values())

    @property
    def pending_bytes(self) -> int:
        """How many bytes the open pulls may still bring, of those with a bound."""
        return sum(pull.size or 0 for pull in self._open.values())

    @property
    def is_idle(self) -> bool:
        """Whether no pull is open: nothing can come any more."""
        return not self._open

    def open(self, request: PullRequest, now: float) -> Pull:
        """
        Enter a pull into the books; the caller publishes ``pull.request`` with ``pull.subject`` as
        reply.
        """
        self._number += 1
        pull = Pull(
            b"%b%d" % (self._prefix, self._number),
            request,
            request.max_messages,
            request.max_bytes,
        )
        self._open[pull.subject] = pull
        self.heartbeat = HeartbeatWatch(request.heartbeat, now)
        return pull

    def cancel(self, pull: Pull) -> None:
        """Strike a pull out that was never sent, or that nobody waits for any more."""
        self._open.pop(pull.subject, None)

    def lost(self, epoch: int) -> list[Pull]:
        """
        Strike out and return the pulls that were sent on connections up to *epoch*: they died with
        it.
        """
        dead = [pull for pull in self._open.values() if 0 < pull.epoch <= epoch]
        for pull in dead:
            del self._open[pull.subject]
        return dead

    def receive(self, frames: Sequence[Frame], now: float) -> Received:
        """
        Take a block of frames and say what it meant.
        """
        self.heartbeat.beat(now)
        prefix = self._prefix
        # Statuses are rare and have a header, so a block of plain messages is told by one look at
        # each.
        for frame in frames:
            if frame[2] is not None and frame[0].startswith(prefix):
                return self._receive_mixed(frames)
        self._count(frames)
        return Received(frames)

    def _receive_mixed(self, frames: Sequence[Frame]) -> Received:
        """Take a block with statuses in it: what came before a status is counted before it."""
        messages: list[Frame] = []
        statuses: list[Status] = []
        counted = 0
        for frame in frames:
            status = None
            if frame[2] is not None and frame[0].startswith(self._prefix):
                status = read_status(frame[2])
            if status is None:
                messages.append(frame)
                continue
            self._count(messages[counted:])
            counted = len(messages)
            if frame[0] not in self._open or status.effect is Effect.ALIVE:
                continue
            del self._open[frame[0]]
            statuses.append(status)
        self._count(messages[counted:])
        return Received(messages, statuses)

    def _count(self, messages: Sequence[Frame]) -> None:
        """Count messages against the oldest pulls that have room."""
        if not messages:
            return
        pulls = self._open
        if len(pulls) == 1:
            # The common case by far: one fetch, one pull.
            (pull,) = pulls.values()
            if pull.size is None and pull.messages > len(messages):
                pull.messages -= len(messages)
                return
        for message in messages:
            oldest = next(iter(pulls.values()), None)
            if oldest is None:
                self.unexpected += 1
                continue
            oldest.messages -= 1
            if oldest.size is not None:
                oldest.size -= message_size(message)
            if oldest.is_full:
                del pulls[oldest.subject]


def message_size(frame: Frame) -> int:
    """Return a message's size as servers count it against ``max_bytes``."""
    subject, reply, header, data = frame
    return len(subject) + len(reply) + (len(header) if header is not None else 0) + len(data)
