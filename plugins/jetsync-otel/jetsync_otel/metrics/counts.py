"""
What was handed to the application, counted at the least cost there is per message.

Each thread has a tally of its own for each consumer, so that counting takes no lock: whoever wants
to know reads them all and remembers what it has been told. What is in a message is looked at only
where it differs from the message before: its consumer, whether it was delivered before, and the
context it carries.
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
"""A prefix that no reply has: the next message is looked at."""

MANY: Final = 64
"""Of how many consumers there are tallies before it is looked which ones are of use."""

TRACEPARENT: Final = (b"\r\ntraceparent:", b"\r\nTraceparent:")
"""How the line begins that tells contexts apart; some clients write it large, others anyhow."""


class Tally:
    """
    What one thread was handed of one consumer's messages; written by that thread alone.
    """

    __slots__ = (
        "_told_count",
        "_told_redelivered",
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
        self.lock = threading.RLock()
        """For what follows a look at a message, which is rare."""

        self.prefix = NEVER
        """How replies begin of messages of this consumer that were not delivered before."""

        self.reply = b""
        """The last one."""

        self.count = 0
        self.redelivered = 0
        self.block: bytes | None = None
        """The headers of the last message that was looked at for its context."""

        self.key = b""
        """What tells its context apart."""

        self.blocks: dict[bytes, bytes] = {}
        """One header block for each context since the last time somebody asked."""

        self.first_ns = 0
        """When the first message since then was handed over."""

        self._told_count = 0
        self._told_redelivered = 0

    @property
    def is_spent(self) -> bool:
        """
        Whether all that it has counted was told.
        """
        return self.count == self._told_count

    def take(self) -> Handed | None:
        """
        Return what has come since the last time; ``None`` if nothing has. Any thread.
        """
        with self.lock:
            count, redelivered = self.count, self.redelivered
            if count == self._told_count:
                return None
            handed = Handed(
                count - self._told_count,
                redelivered - self._told_redelivered,
                # None was looked at where they came just as the last answer was given.
                self.first_ns or time.time_ns(),
                self.reply,
                list(self.blocks.values()),
            )
            self._told_count, self._told_redelivered = count, redelivered
            self.blocks = {}
            self.block, self.key = None, b""
            self.first_ns = 0
            self.prefix = NEVER
        return handed


@attrs.define
class Handed:
    """
    What was handed over since somebody asked the last time.
    """

    count: int
    redelivered: int
    first_ns: int
    """When the first one was, in nanoseconds since 1970."""

    reply: bytes
    """The reply of the last one."""

    blocks: list[bytes]
    """Header blocks of the contexts that they carry."""

    def add(self, other: Handed) -> None:
        """Add what another thread was handed."""
        self.count += other.count
        self.redelivered += other.redelivered
        self.first_ns = min(self.first_ns, other.first_ns)
        self.blocks += other.blocks
        if sequences(other.reply)[2] > sequences(self.reply)[2]:
            self.reply = other.reply


class Tallies:
    """
    The tallies of one plugin; any thread.

    Args:
        keep: How many contexts are kept for each question.
        fields: The headers that the propagator uses.
        on_first: Told a consumer and the time that a message of it was stored, for the first
            message since somebody asked.
        report: Told what went wrong.
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
        self._lock = threading.RLock()
        self._all: dict[Source, list[Tally]] = {}
        self._look_at = MANY
        """Of how many consumers there are tallies before the threads are looked at."""

        self._local = threading.local()

    def hook(self) -> Callable[[jetsync.Message | jetsync.StoredMessage], None]:
        """
        Return the function that is told of each message, with all it needs at hand.
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
                # Read directly, or the first message of this thread.
                pass
            try:
                if isinstance(message, kind):
                    look(message)
            except Exception as error:  # noqa: BLE001 - raising here would refuse the message
                report("message_received", error)

        return received

    def _look(self, message: jetsync.Message) -> None:
        """Count a message that is not like the one before."""
        reply = message.raw_reply
        tally: Tally | None = getattr(self._local, "tally", None)
        if tally is not None and reply.startswith(tally.prefix):
            # The usual case where headers differ from message to message.
            tally.count += 1
            tally.reply = reply
        else:
            tally = self._look_at_reply(reply)
        block = message.raw_headers
        if block != tally.block:
            self._look_at_headers(tally, block)

    def _look_at_reply(self, reply: bytes) -> Tally:
        """Count a message of another consumer, a second delivery, or one after a question."""
        tokens = reply.split(b".")
        first = 2 if len(tokens) == 9 else 4
        if len(tokens) < 9 or not reply.startswith(b"$JS.ACK."):
            raise ValueError(f"not the reply of a consumer's message: {reply!r}")
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
        """Return the tally of a consumer, and have it at hand for the next message."""
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
        """Drop what threads that have ended were handed, where all of it was told; locked."""
        kept = {source: _in_use(tallies) for source, tallies in list(self._all.items())}
        self._all = {source: tallies for source, tallies in kept.items() if tallies}
        self._look_at = max(MANY, 2 * len(self._all))

    def _forget(self, mine: dict[Source, Tally]) -> None:
        """Drop the tallies of consumers that this thread has heard nothing of; they may be gone."""
        for source in [source for source, tally in mine.items() if tally.is_spent]:
            tally = mine.pop(source)
            with self._lock:
                rest = [each for each in self._all.get(source, []) if each is not tally]
                self._all[source] = rest
                if not rest:
                    self._all.pop(source, None)

    def _look_at_headers(self, tally: Tally, block: bytes | None) -> None:
        """Keep the headers of a message, if it carries a context that was not seen yet."""
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

    def of_thread(self, source: Source) -> Handed | None:
        """
        Return what this thread was handed of a consumer since the last time.
        """
        mine: dict[Source, Tally] = self._local.__dict__.get("tallies", {})
        tally = mine.get(source)
        return None if tally is None else tally.take()

    def of_all(self, source: Source) -> Handed | None:
        """
        Return what all threads were handed of a consumer since the last time.
        """
        with self._lock:
            tallies = self._all.get(source, [])
            # Before they are asked: what a thread has counted at its end is told once more.
            alive = [tally for tally in tallies if tally.thread.is_alive()]
            if len(alive) < len(tallies):
                self._all[source] = alive
            if not alive:
                self._all.pop(source, None)
        handed: Handed | None = None
        for tally in tallies:
            taken = tally.take()
            if taken is not None and handed is None:
                handed = taken
            elif taken is not None and handed is not None:
                handed.add(taken)
        return handed

    def sources(self) -> list[Source]:
        """
        Return the consumers that messages came from.
        """
        with self._lock:
            return list(self._all)


def _in_use(tallies: Iterable[Tally]) -> list[Tally]:
    """Return those that may count more, or have counted what nobody was told."""
    return [each for each in tallies if each.thread.is_alive() or not each.is_spent]


def sequences(reply: bytes) -> tuple[int, int, int]:
    """
    Return of a consumer's message: what is pending behind it, its place in the stream, and its
    place among the deliveries.
    """
    tokens = reply.split(b".")
    first = 4 if len(tokens) == 9 else 6
    return int(tokens[first + 4]), int(tokens[first + 1]), int(tokens[first + 2])
