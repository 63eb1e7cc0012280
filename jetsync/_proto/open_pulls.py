"""
The engine that tracks the open pulls of fetch, next and consume.

The engine knows which pulls are open, how many messages and bytes each of them may still deliver,
and what incoming frames mean for them. It uses no sockets, clocks or threads.

Each pull is published with a reply subject of its own, ``<inbox>.<number>``. All pulls of an engine
share one subscription. Messages arrive with the *stream's* subject, and servers serve several
waiting pulls of one inbox in turn, one message each. So the engine cannot tell which pull a message
is for, and counts it against the oldest open pull that has room. A status arrives on the reply
subject of its pull and ends that pull. The engine ignores a second status of a finished pull.

The total of what all pulls may still deliver is exact. How it is divided among the pulls is a
guess. A status with the server's own count corrects it: the engine moves the difference to the
other pulls. If the engine has counted a message against the wrong pull, it takes that pull for full
while the server still keeps it open. So the engine remembers full pulls until nothing is left to
deliver.

Servers send no status for a full pull, nor for one that they dropped, for example when a leader
stepped down. The engine removes such pulls some time after they expired.

The engine hands out no more than the pulls asked for, and only messages of its consumer. It sets
other messages of the consumer aside as *surplus*, and drops foreign frames (see `origin.py`). A
pull that ended without a status, such as one of a lost connection, may still be served. So the
engine accepts as many messages in excess as all such pulls could still deliver.

Implements ADR-37. Sizes are counted as servers do for ``max_bytes``: subject, reply subject, header
block and payload.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from jetsync._proto.consumer_probe import ConsumerProbe
from jetsync._proto.origin import Strays, are_own
from jetsync._proto.pins import PIN_HEADER
from jetsync._proto.pull_request import Pull
from jetsync._proto.status import HEARTBEAT_CODE, Effect, Status, read_status
from jetsync.errors import InvalidGroupError
from jetsync.values.frame import message_size
from jetsync.values.headers import FIRST_LINE, find_last

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._proto.origin import Origin, StrayReason
    from jetsync._proto.pull_request import PullRequest
    from jetsync.values.frame import Frame

# Seconds to wait for the end of a pull whose time is over. A server ends a pull up to 3 ms
# late, and its status has to travel. Giving up at once would lose a message that is in flight.
GRACE: Final = 2.0

# Seconds after the end of a pull without a status for which its messages may arrive: those of a
# silent connection, which is dropped earlier.
LATE_KEPT: Final = 60.0

# How many full pulls are remembered. A consumer has at most 512 waiting pulls, unless it was
# created with another `max_waiting`.
FULL_KEPT: Final = 1024

# How many statuses and answers of a flooded inbox are kept, and how many bytes of them.
STATUSES_KEPT: Final = 1000
STATUS_BYTES_KEPT: Final = 1 << 20

# How each status line begins. A block without it is no answer of a server.
_STATUS_START: Final = b"NATS/"

# The size of a block without headers.
_NO_HEADERS: Final = len(FIRST_LINE) + 2


class Received(NamedTuple):
    """The meaning of a block of frames."""

    messages: Sequence[Frame]
    # Each status, except heartbeats, with the pull that it ended. The pull is None if the status
    # only informs, or if the pull had ended before.
    statuses: Sequence[tuple[Status, Pull | None]] = ()
    # Messages of the consumer that no pull had asked for.
    surplus: Sequence[Frame] = ()
    # Whether the consumer's server sent any of the frames, by their form.
    alive: bool = True


class OpenPulls:
    """
    Track the pulls of one inbox.

    Args:
        inbox: The subject below which each pull gets its reply subject.
        origin: Recognises the messages of the consumer.
    """

    def __init__(self, inbox: bytes, origin: Origin) -> None:
        # How the reply subjects of its pulls start.
        self.prefix: bytes = inbox + b"."
        self._origin = origin
        self.names: tuple[str, str] = origin.names
        # Its questions have numbers of their own, so that a late answer is recognised.
        self.probe: ConsumerProbe = ConsumerProbe(self.prefix + b"i")
        # What was not handed out: by the thread that receives, and by the one that reads the
        # socket.
        self.strays: Strays = Strays()
        self.sifted: Strays = Strays()
        # The pulls that ended without a status and may still be served, oldest first.
        self._late: list[Pull] = []
        self.opened: int = 0
        # The pulls that may deliver something, by our count, oldest first.
        self._open: dict[bytes, Pull] = {}
        # Those that are full by our count, as long as others are open.
        self._full: dict[bytes, Pull] = {}
        # Whether one of them has a limit of bytes.
        self._sized = False
        # Seconds between the heartbeats that the last pull asked for; 0 without any.
        self.heartbeat: float = 0.0
        # When the last frame arrived, or when silence began to count.
        self.heard: float = 0.0

    def __repr__(self) -> str:
        return (
            f"<OpenPulls open={len(self._open)} messages={self.pending_messages} "
            f"bytes={self.pending_bytes}>"
        )

    def __contains__(self, subject: bytes) -> bool:
        return subject in self._open or subject in self._full

    @property
    def pending_messages(self) -> int:
        """How many messages the open pulls may still deliver; thread-safe."""
        pending = 0
        for pull in list(self._open.values()):
            pending += pull.messages
        return pending

    @property
    def pending_bytes(self) -> int:
        """How many bytes the open pulls with a limit may still deliver; thread-safe."""
        return sum([pull.size or 0 for pull in list(self._open.values())])

    @property
    def is_idle(self) -> bool:
        """Whether no pull is open, so that nothing can arrive."""
        return not self._open

    def open(self, request: PullRequest, now: float) -> Pull:
        """Open a pull. The caller publishes its request with ``pull.subject`` as reply subject."""
        if self._late:
            begin = now - LATE_KEPT
            self._late = [one for one in self._late if one.opened + one.request.expires > begin]
        self.opened += 1
        subject = b"%b%d" % (self.prefix, self.opened)
        pull = Pull(subject, request, self.opened, now, request.max_messages, request.max_bytes)
        self._sized = request.max_bytes is not None or (self._sized and bool(self._open))
        self._open[subject] = pull
        self.heartbeat, self.heard = request.heartbeat or 0.0, now
        return pull

    def sent(self, pull: Pull, epoch: int) -> None:
        """Note the connection that a pull was sent on, by its number."""
        pull.epoch = epoch

    def next_miss(self) -> float | None:
        """Return when two heartbeats in a row will have been missed; None without heartbeats."""
        return self.heard + 2.0 * self.heartbeat if self.heartbeat else None

    def missed(self, now: float) -> bool:
        """Return whether two heartbeats in a row were missed (ADR-37)."""
        due = self.next_miss()
        return due is not None and now >= due

    def remove(self, *pulls: Pull) -> None:
        """Remove pulls that were not sent, or that the server no longer knows."""
        for pull in pulls:
            self._open.pop(pull.subject, None)
            self._full.pop(pull.subject, None)
        if not self._open:
            self._full.clear()

    def lost(self, epoch: int) -> list[Pull]:
        """
        Remove the pulls that were sent on connections up to *epoch*, which are lost.

        Return those that were not full.
        """
        dead = [pull for pull in self._pulls() if 0 < pull.epoch <= epoch]
        self._expect_late(dead)
        self.remove(*dead)
        return [pull for pull in dead if not pull.is_full]

    def expire(self, now: float) -> list[Pull]:
        """Remove and return the pulls whose time is long over without a status."""
        dead = []
        for pull in self._open.values():
            expires = pull.request.expires
            if not expires or now < pull.opened + expires + GRACE:
                break
            dead.append(pull)
        if dead:
            self._expect_late(dead)
            self.remove(*dead)
        return dead

    def next_expiry(self) -> float | None:
        """Return when :meth:`expire` removes the oldest pull; None if no pull expires."""
        for pull in self._open.values():
            if pull.request.expires:
                return pull.opened + pull.request.expires + GRACE
        return None

    def clear(self) -> None:
        """Remove all pulls, because the server no longer knows them."""
        self._expect_late([*self._open.values()])
        self._open.clear()
        self._full.clear()

    def receive(self, frames: Sequence[Frame], now: float) -> Received:
        """Count the messages in a block of frames, and end the pulls that its statuses name."""
        # Statuses and foreign frames are rare, so one check of the block recognises plain messages.
        if not are_own(frames, self._origin.prefix):
            return self._receive_mixed(frames, now)
        self.heard = now
        wanted = self._count(frames)
        if wanted == len(frames):
            return Received(frames)
        surplus = frames[wanted:]
        self.strays.note("surplus", surplus)
        return Received(frames[:wanted], (), surplus)

    def _receive_mixed(self, frames: Sequence[Frame], now: float) -> Received:
        """Do as :meth:`receive` for a block with statuses. Frames are counted in their order."""
        messages: list[Frame] = []
        waiting: list[Frame] = []
        surplus: list[Frame] = []
        foreign: list[Frame] = []
        statuses: list[tuple[Status, Pull | None]] = []

        def count() -> None:
            wanted = self._count(waiting)
            messages.extend(waiting[:wanted])
            surplus.extend(waiting[wanted:])
            waiting.clear()

        for frame in frames:
            if self._origin.sends(frame[1]):
                waiting.append(frame)
                continue
            status = self._status_of(frame)
            if status is None:
                foreign.append(frame)
                continue
            count()
            pull = self._open.get(frame[0]) or self._full.get(frame[0])
            if status.effect is Effect.ALIVE:
                pull = None
            if pull is not None:
                self._end(pull, status)
            if status.code != HEARTBEAT_CODE:
                statuses.append((status, pull))
        count()
        self.strays.note("surplus", surplus)
        self.strays.note("foreign", foreign)
        alive = len(foreign) < len(frames)
        if alive:
            self.heard = now
        return Received(messages, statuses, surplus, alive)

    def _status_of(self, frame: Frame) -> Status | None:
        """Return the status in a frame that is no message of the consumer; None for others."""
        subject, _, block, _ = frame
        if block is None or not subject.startswith(self.prefix):
            return None
        return read_status(block) if block.startswith(_STATUS_START) else None

    def sift(self, frames: Sequence[Frame]) -> list[Frame]:
        """
        Return the frames that may be answers to the open pulls, for an inbox that fills up.

        Any thread may call it while another one receives. Only what it drops is counted.
        """
        kept: list[Frame] = []
        dropped: dict[StrayReason, list[Frame]] = {"foreign": [], "surplus": []}
        found: set[tuple[bytes, bytes | None]] = set()
        status_room = STATUS_BYTES_KEPT
        room = self.pending_messages + sum([pull.messages for pull in self._late])
        byte_room = sys.maxsize
        if self._sized:
            byte_room = self.pending_bytes + sum([pull.size or 0 for pull in self._late])
        for frame in frames:
            if self._origin.sends(frame[1]):
                room -= 1
                byte_room -= counted_size(frame)
                (kept if room >= 0 and byte_room >= 0 else dropped["surplus"]).append(frame)
                continue
            key, size = (frame[0], frame[2]), message_size(frame)
            may_count = self._may_count(frame) and size <= status_room
            if may_count and key not in found and len(found) < STATUSES_KEPT:
                found.add(key)
                status_room -= size
                kept.append(frame)
            else:
                dropped["foreign"].append(frame)
        for reason, those in dropped.items():
            self.sifted.note(reason, those)
        return kept

    def _may_count(self, frame: Frame) -> bool:
        """Return whether a frame may be a status, or an answer to a question about the consumer."""
        subject, _, block, _ = frame
        if not subject.startswith(self.prefix):
            return False
        is_answer = subject.startswith(b"i", len(self.prefix))
        return is_answer or (block is not None and block.startswith(_STATUS_START))

    def _count(self, messages: Sequence[Frame]) -> int:
        """
        Count messages against the oldest pulls that have room.

        Return how many of them were asked for. Those after them are surplus.
        """
        if not messages:
            return 0
        if not self._sized:
            left = self._charge(len(messages), 0)
            return len(messages) - (left and self._charge_late(left, 0))
        for place, message in enumerate(messages):
            size = counted_size(message)
            if self._charge(1, size) and self._charge_late(1, size):
                return place
        return len(messages)

    def _expect_late(self, pulls: Sequence[Pull]) -> None:
        """Accept what these pulls may still deliver although they are removed."""
        self._late += [pull for pull in pulls if not pull.is_full]

    def _charge_late(self, messages: int, size: int) -> int:
        """
        Count messages against the pulls that were removed; with a size, it is one message.

        Return how many messages are left without a pull.
        """
        for pull in self._late:
            if pull.is_full or (pull.size is not None and size > pull.size):
                continue
            if pull.size is not None:
                pull.size -= size
            taken = min(messages, pull.messages)
            pull.messages -= taken
            messages -= taken
            if not messages:
                break
        return messages

    def _charge(self, messages: int, size: int) -> int:
        """
        Count messages and bytes against the oldest pulls that have room.

        Return how many messages are left without a pull.
        """
        for pull in list(self._open.values()):
            taken = min(messages, pull.messages)
            pull.messages -= taken
            messages -= taken
            if pull.size is not None:
                taken = min(size, pull.size)
                pull.size -= taken
                size -= taken
            if pull.is_full:
                # Remembered, unless nothing is left to deliver.
                del self._open[pull.subject]
                if not self._open:
                    self._full.clear()
                    return messages
                self._full[pull.subject] = pull
                if len(self._full) > FULL_KEPT:
                    del self._full[next(iter(self._full))]
            if messages <= 0 and (size <= 0 or pull.size is None):
                break
        return messages

    def _restore(self, messages: int, size: int) -> None:
        """Undo the counting of messages that were for a pull that has ended."""
        pulls = sorted(self._pulls(), key=operator.attrgetter("number"))
        for pull in reversed(pulls):
            request = pull.request
            given = min(messages, request.max_messages - pull.messages)
            pull.messages += given
            messages -= given
            if pull.size is not None and request.max_bytes is not None:
                given = min(size, request.max_bytes - pull.size)
                pull.size += given
                size -= given
        self._open = {pull.subject: pull for pull in pulls if not pull.is_full}
        self._full = {pull.subject: pull for pull in pulls if pull.is_full}

    def _end(self, pull: Pull, status: Status) -> None:
        """Remove the pull that a status ended, and correct the others by the server's count."""
        self._open.pop(pull.subject, None)
        self._full.pop(pull.subject, None)
        request = pull.request
        if status.rule.error is InvalidGroupError:
            # Servers before 2.14 refuse a pull for its group and still serve it (seen on 2.11.11
            # and 2.12.8).
            self._expect_late([pull])
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

    def _pulls(self) -> list[Pull]:
        return [*self._full.values(), *self._open.values()]


def counted_size(frame: Frame) -> int:
    """
    Return the size of a message as servers count it for a pull with ``max_bytes``.

    They add the header with the pin id later (measured on 2.15.1).
    """
    size, header = message_size(frame), frame[2]
    pin = None if header is None else find_last(header, PIN_HEADER)
    if header is None or pin is None:
        return size
    added = len(PIN_HEADER) + len(pin) + len(b": \r\n")
    return size - (len(header) if len(header) - added == _NO_HEADERS else added)
