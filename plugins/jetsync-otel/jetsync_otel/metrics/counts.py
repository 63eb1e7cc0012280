"""
Counts of delivered messages, at minimal cost per message.

Each thread has its own tally per consumer, so counting needs no lock. A reader takes the counts of
all threads and remembers what it has taken. A message is inspected only if its consumer, its
delivery count or its context differs from the message before.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import attrs

import jetsync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Source = tuple[str, str]
    """A stream and a consumer."""

NEVER: Final = b"\0"
"""A prefix that matches no reply, so that the next message is inspected."""

MANY: Final = 64
"""Number of consumers above which unused tallies are dropped."""

TRACEPARENT: Final = (b"\r\ntraceparent:", b"\r\nTraceparent:")
"""Start of the header line that identifies a context, in the common spellings."""


class Tally:
    """
    The counts of one thread for one consumer. Only that thread writes them.
    """

    __slots__ = (
        "_taken_count",
        "_taken_redelivered",
        "block",
        "blocks",
        "count",
        "first_ns",
        "key",
        "lock",
        "prefix",
        "redelivered",
        "reply",
        "source",
        "thread",
    )

    def __init__(self, source: Source) -> None:
        self.source = source
        self.thread = threading.current_thread()
        self.lock = jetsync.interrupt_safe_lock()
        """Guards the results of inspecting a message, which is rare."""

        self.prefix = NEVER
        """Prefix of the replies of this consumer's first deliveries."""

        self.reply = b""
        """The last reply."""

        self.count = 0
        self.redelivered = 0
        self.block: bytes | None = None
        """The headers of the last inspected message."""

        self.key = b""
        """The key of its context."""

        self.blocks: dict[bytes, bytes] = {}
        """One header block per context since the last :meth:`take`."""

        self.first_ns = 0
        """When the first message since then was delivered."""

        self._taken_count = 0
        self._taken_redelivered = 0

    @property
    def is_spent(self) -> bool:
        """
        Whether all of its counts were taken.
        """
        return self.count == self._taken_count

    def take(self) -> Deliveries | None:
        """
        Return the deliveries since the last call, or None. Thread-safe.
        """
        with self.lock:
            count, redelivered = self.count, self.redelivered
            if count == self._taken_count:
                return None
            deliveries = Deliveries(
                count - self._taken_count,
                redelivered - self._taken_redelivered,
                # 0 if messages were counted while the last call ran.
                self.first_ns or time.time_ns(),
                self.reply,
                list(self.blocks.values()),
            )
            self._taken_count, self._taken_redelivered = count, redelivered
            self.blocks = {}
            self.block, self.key = None, b""
            self.first_ns = 0
            self.prefix = NEVER
        return deliveries


@attrs.define
class Deliveries:
    """
    Messages delivered since the last :meth:`Tally.take`.
    """

    count: int
    redelivered: int
    first_ns: int
    """When the first one was delivered, in nanoseconds since 1970."""

    reply: bytes
    """The reply of the last message."""

    blocks: list[bytes]
    """Header blocks of their contexts."""

    def add(self, other: Deliveries) -> None:
        """Add the deliveries of another thread."""
        self.count += other.count
        self.redelivered += other.redelivered
        self.first_ns = min(self.first_ns, other.first_ns)
        self.blocks += other.blocks
        if sequences(other.reply)[2] > sequences(self.reply)[2]:
            self.reply = other.reply


class Tallies:
    """
    The tallies of one plugin. Thread-safe.

    Args:
        keep: Maximum contexts to keep per tally.
        fields: The headers that the propagator uses.
        on_first: Called for the first message since the last take, with its consumer and the time
            at which it was stored.
        report: Called with errors.
    """

    def __init__(
        self,
        keep: int,
        fields: set[str],
        on_first: Callable[[Source, int], None],
        report: Callable[[str, Exception], None],
    ) -> None:
        self._keep = keep
        self._report = report
        self._on_first = on_first
        self._by_line = fields <= {"traceparent", "tracestate", "baggage"}
        self._lock = jetsync.interrupt_safe_lock()
        self._all: dict[Source, list[Tally]] = {}
        self._look_at = MANY
        """Number of consumers above which tallies of ended threads are dropped."""

        self._local = threading.local()

    def hook(self) -> Callable[[jetsync.Message | jetsync.StoredMessage], None]:
        """
        Return the function that counts a message.
        """
        local, look, kind, report = self._local, self._look, jetsync.Message, self._report

        def received(message: jetsync.Message | jetsync.StoredMessage) -> None:
            try:
                reply = message.raw_reply  # type: ignore[union-attr]
                tally: Tally = local.tally
                if reply.startswith(tally.prefix) and message.raw_headers == tally.block:
                    tally.count += 1
                    tally.reply = reply
                    return
            except AttributeError:
                # A direct read, or the first message of this thread.
                pass
            try:
                if isinstance(message, kind):
                    look(message)
            except Exception as error:  # noqa: BLE001 - raising would veto the message
                report("message_received", error)

        return received

    def _look(self, message: jetsync.Message) -> None:
        """Count a message that differs from the one before."""
        reply = message.raw_reply
        tally: Tally | None = getattr(self._local, "tally", None)
        if tally is not None and reply.startswith(tally.prefix):
            # The usual case if headers differ from message to message.
            tally.count += 1
            tally.reply = reply
        else:
            tally = self._look_at_reply(reply)
        block = message.raw_headers
        if block != tally.block:
            self._look_at_headers(tally, block)

    def _look_at_reply(self, reply: bytes) -> Tally:
        """Count a message of another consumer, a redelivery, or the first since a take."""
        tokens = reply.split(b".")
        first = 2 if len(tokens) == 9 else 4
        if len(tokens) < 9 or not reply.startswith(b"$JS.ACK."):
            raise ValueError(f"not a reply subject of a consumer: {reply!r}")
        stream, consumer, delivered = tokens[first : first + 3]
        stored_ns = int(tokens[first + 5])
        tally = self._of_this_thread(
            (stream.decode("utf-8", "replace"), consumer.decode("utf-8", "replace"))
        )
        with tally.lock:
            tally.reply = reply
            tally.count += 1
            fresh = not tally.first_ns
            if fresh:
                tally.first_ns = time.time_ns()
            if delivered == b"1":
                tally.prefix = b".".join(tokens[: first + 3]) + b"."
            else:
                tally.redelivered += 1
                tally.prefix = NEVER
        if fresh:
            self._on_first(tally.source, stored_ns)
        return tally

    def _of_this_thread(self, source: Source) -> Tally:
        """Return this thread's tally of a consumer, and cache it for the next message."""
        mine: dict[Source, Tally] = self._local.__dict__.setdefault("tallies", {})
        tally = mine.get(source)
        if tally is None:
            if len(mine) >= MANY:
                self._forget(mine)
            tally = mine[source] = Tally(source)
            with self._lock:
                if len(self._all) >= self._look_at:
                    self._forget_threads()
                self._all[source] = [*_in_use(self._all.get(source, ())), tally]
        self._local.tally = tally
        return tally

    def _forget_threads(self) -> None:
        """Drop fully taken tallies of ended threads. The lock is held."""
        kept = {source: _in_use(tallies) for source, tallies in list(self._all.items())}
        self._all = {source: tallies for source, tallies in kept.items() if tallies}
        self._look_at = max(MANY, 2 * len(self._all))

    def _forget(self, mine: dict[Source, Tally]) -> None:
        """Drop fully taken tallies of this thread, whose consumers may be deleted."""
        for source in [source for source, tally in mine.items() if tally.is_spent]:
            tally = mine.pop(source)
            with self._lock:
                rest = [each for each in self._all.get(source, []) if each is not tally]
                self._all[source] = rest
                if not rest:
                    self._all.pop(source, None)

    def _look_at_headers(self, tally: Tally, block: bytes | None) -> None:
        """Keep the headers of a message if its context is new."""
        key = b"" if block is None else self._key(block)
        with tally.lock:
            tally.block = block
            if block is not None and key and key != tally.key:
                tally.key = key
                if len(tally.blocks) < self._keep:
                    tally.blocks.setdefault(key, block)

    def _key(self, block: bytes) -> bytes:
        if not self._by_line:
            return block
        line, large = TRACEPARENT
        start = block.find(line)
        if start < 0:
            start = block.find(large)
        if start < 0:
            start = block.lower().find(line)
        if start < 0:
            return b""
        start += len(line)
        return block[start : block.find(b"\r\n", start)].strip()

    def of_thread(self, source: Source) -> Deliveries | None:
        """
        Return this thread's deliveries from a consumer since the last call.
        """
        mine: dict[Source, Tally] = self._local.__dict__.get("tallies", {})
        tally = mine.get(source)
        return None if tally is None else tally.take()

    def of_all(self, source: Source) -> Deliveries | None:
        """
        Return all threads' deliveries from a consumer since the last call.
        """
        with self._lock:
            tallies = self._all.get(source, [])
            # Before taking the counts, so that the last counts of an ended thread are taken too.
            alive = [tally for tally in tallies if tally.thread.is_alive()]
            if len(alive) < len(tallies):
                self._all[source] = alive
            if not alive:
                self._all.pop(source, None)
        deliveries: Deliveries | None = None
        for tally in tallies:
            taken = tally.take()
            if taken is not None and deliveries is None:
                deliveries = taken
            elif taken is not None and deliveries is not None:
                deliveries.add(taken)
        return deliveries

    def sources(self) -> list[Source]:
        """
        Return all consumers with tallies.
        """
        with self._lock:
            return list(self._all)


def _in_use(tallies: Iterable[Tally]) -> list[Tally]:
    """Return tallies of running threads, and those that are not fully taken."""
    return [each for each in tallies if each.thread.is_alive() or not each.is_spent]


def sequences(reply: bytes) -> tuple[int, int, int]:
    """
    Return the pending count, the stream sequence and the consumer sequence of a reply subject.
    """
    tokens = reply.split(b".")
    first = 4 if len(tokens) == 9 else 6
    return int(tokens[first + 4]), int(tokens[first + 1]), int(tokens[first + 2])
