"""
The pull engine: one machine behind fetch, next and consume.

What lives here: which pulls are open, how many messages and bytes each of them still may bring,
what the frames that come mean for them, and when to ask again. What may not: the socket, the
clock, threads.

Theory of operation. A pull is a request for so many messages, perhaps so many bytes, for so long.
It is published with a reply subject of its own, ``<inbox>.<number>``, below the one subscription
that all pulls of an engine share. Messages come with the *stream's* subject, so only the
subscription ties them to the engine, and
servers serve several waiting pulls of one inbox in turn, one message each: which pull a message was
for cannot be told. It is counted against the oldest open pull that still has room. Statuses come on
the pull's own reply subject, so they end exactly the pull they answer, and a late second status of
a finished pull is noise.

What all pulls together still may bring is exact; how it is spread over them is a guess, which a
status with the server's own count puts right: the difference moves to the other pulls. So a pull
that is full by our count is remembered for as long as others have room, as it may be another one
that is full in truth. Once nothing is left to bring, all of them are. Servers send no status for a
pull that is full, and for one that they dropped (a leader that went away) neither: those are struck
out some time after they expired.

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
from jetsync._proto.status import HEARTBEAT_CODE, Effect, Status, read_status
from jetsync.values.frame import Frame

NANOSECONDS: Final = 1_000_000_000

UNBOUNDED_BATCH: Final = 1_000_000
"""How many messages a pull asks for that is only bounded by bytes."""

GRACE: Final = 2.0
"""
Seconds after its time for which a pull is still believed in, and waited for.

A server ends a pull up to 3 ms after its time, and its word has to travel: giving up at the same
moment would lose the message that is on its way.
"""

RETRY_WAIT: Final = 0.1
"""Seconds before another pull follows after a status that passes; doubled each time."""

RETRY_WAIT_LIMIT: Final = 1.0

FULL_KEPT: Final = 1024
"""
How many pulls that are full by our count are remembered.

A consumer has 512 waiting pulls at most, unless it was made with another ``max_waiting``.
"""


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

    opened: float = 0.0
    """When it was entered."""

    number: int = 0

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

    pulls: Sequence[Pull] = ()
    """The pulls that the statuses ended, one for each."""

    others: Sequence[Status] = ()
    """Statuses that ended none: of pulls that had all they asked for, and notes of any kind."""


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
        """The pulls that may bring something, by our count, oldest first."""

        self._full: dict[bytes, Pull] = {}
        """Those that are full by our count, while there are others."""

        self.heartbeat = HeartbeatWatch(None, 0.0)

    def __repr__(self) -> str:
        return (
            f"<PullEngine open={len(self._open)} messages={self.pending_messages} "
            f"bytes={self.pending_bytes}>"
        )

    def __contains__(self, subject: bytes) -> bool:
        return subject in self._open or subject in self._full

    @property
    def prefix(self) -> bytes:
        """How the reply subjects of its pulls start."""
        return self._prefix

    @property
    def pending_messages(self) -> int:
        """How many messages the open pulls may still bring; any thread may ask."""
        return sum([pull.messages for pull in list(self._open.values())])

    @property
    def pending_bytes(self) -> int:
        """How many bytes the open pulls may still bring, of those with a bound."""
        return sum([pull.size or 0 for pull in list(self._open.values())])

    @property
    def is_idle(self) -> bool:
        """Whether no pull is open: nothing can come any more."""
        return not self._open

    @property
    def opened(self) -> int:
        """How many pulls were entered so far."""
        return self._number

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
            opened=now,
            number=self._number,
        )
        self._open[pull.subject] = pull
        self.heartbeat = HeartbeatWatch(request.heartbeat, now)
        return pull

    def cancel(self, pull: Pull) -> None:
        """Strike a pull out that was never sent, or that nobody waits for any more."""
        self._strike([pull])

    def lost(self, epoch: int) -> list[Pull]:
        """
        Strike out and return the pulls that were sent on connections up to *epoch*: they died with
        it.
        """
        dead = [pull for pull in self._pulls() if 0 < pull.epoch <= epoch]
        self._strike(dead)
        return [pull for pull in dead if not pull.is_full]

    def expire(self, now: float) -> list[Pull]:
        """
        Strike out and return the pulls whose time is long over and of which nothing was heard.
        """
        dead = []
        for pull in self._open.values():
            expires = pull.request.expires
            if not expires or now < pull.opened + expires + GRACE:
                break
            dead.append(pull)
        self._strike(dead)
        return dead

    def next_expiry(self) -> float | None:
        """Return when the oldest pull has to be struck out, None if none has a time."""
        for pull in self._open.values():
            if pull.request.expires:
                return pull.opened + pull.request.expires + GRACE
        return None

    def clear(self) -> list[Pull]:
        """Strike out and return all pulls: the server does not know them any more."""
        dead = list(self._open.values())
        self._strike(dead)
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
        ended: list[Pull] = []
        others: list[Status] = []
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
            pull = self._open.get(frame[0]) or self._full.get(frame[0])
            if pull is None or status.effect is Effect.ALIVE:
                if status.code != HEARTBEAT_CODE:
                    others.append(status)
                continue
            self._end(pull, status)
            statuses.append(status)
            ended.append(pull)
        self._count(messages[counted:])
        return Received(messages, statuses, ended, others)

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
        left = len(messages)
        while left and pulls:
            pull = next(iter(pulls.values()))
            if pull.size is not None:
                break
            taken = min(left, pull.messages)
            pull.messages -= taken
            left -= taken
            if not pull.messages:
                self._fill(pull)
        for message in messages[len(messages) - left :]:
            if not pulls:
                break
            self._charge(1, message_size(message))

    def _charge(self, messages: int, size: int) -> None:
        """Count so many messages and bytes against the oldest pulls that have room."""
        for pull in list(self._open.values()):
            taken = min(messages, pull.messages)
            pull.messages -= taken
            messages -= taken
            if pull.size is not None:
                taken = min(size, pull.size)
                pull.size -= taken
                size -= taken
            if pull.is_full:
                self._fill(pull)
            if messages <= 0 and (size <= 0 or pull.size is None):
                return

    def _restore(self, messages: int, size: int) -> None:
        """Undo as much: what was counted against these pulls was for one that has ended."""
        for pull in sorted(self._pulls(), key=_by_number, reverse=True):
            request = pull.request
            given = min(messages, request.max_messages - pull.messages)
            pull.messages += given
            messages -= given
            if pull.size is not None and request.max_bytes is not None:
                given = min(size, request.max_bytes - pull.size)
                pull.size += given
                size -= given
        both = sorted(self._pulls(), key=_by_number)
        self._open = {pull.subject: pull for pull in both if not pull.is_full}
        self._full = {pull.subject: pull for pull in both if pull.is_full}

    def _fill(self, pull: Pull) -> None:
        """Move a pull to those that are full by our count."""
        del self._open[pull.subject]
        full = self._full
        if not self._open:
            full.clear()
            return
        full[pull.subject] = pull
        if len(full) > FULL_KEPT:
            del full[next(iter(full))]

    def _end(self, pull: Pull, status: Status) -> None:
        """Strike out the pull that a status ended, and correct the others by what it says."""
        self._open.pop(pull.subject, None)
        self._full.pop(pull.subject, None)
        request = pull.request
        if not self._open and not self._full:
            return
        if status.rule.turned_away:
            messages, size = request.max_messages, request.max_bytes or 0
        elif status.pending_messages is not None and status.pending_bytes is not None:
            messages = min(status.pending_messages, request.max_messages)
            size = min(status.pending_bytes, request.max_bytes or 0)
        else:
            messages, size = pull.messages, pull.size or 0
        more, larger = messages - pull.messages, size - (pull.size or 0)
        if more > 0 or larger > 0:
            self._charge(max(more, 0), max(larger, 0))
        if more < 0 or larger < 0:
            self._restore(max(-more, 0), max(-larger, 0))
        if not self._open:
            self._full.clear()

    def _strike(self, pulls: Sequence[Pull]) -> None:
        for pull in pulls:
            self._open.pop(pull.subject, None)
            self._full.pop(pull.subject, None)
        if not self._open:
            self._full.clear()

    def _pulls(self) -> list[Pull]:
        return [*self._full.values(), *self._open.values()]


def _by_number(pull: Pull) -> int:
    return pull.number


def message_size(frame: Frame) -> int:
    """Return a message's size as servers count it against ``max_bytes``."""
    subject, reply, header, data = frame
    return len(subject) + len(reply) + (len(header) if header is not None else 0) + len(data)
