"""
Staging: messages get their numbers and wait, until they are written together.

A call that takes a turn and writes costs about 3 us, and staging costs a fifth of it. Any thread
may stage a message, without the turn of the publisher. A call that has the turn writes the staged
messages before it waits, or when they fill a block. Otherwise, the loop thread of a fast
publisher or the worker of a publisher writes them after a short pause. Those of an atomic batch
wait for its next write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetsync._base.locks import refuse_reentry, short_lock, use_if_free
from jetsync._base.speedups import with_twin

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping
    from typing import Any

    from jetsync.values.headers import SharedHeaders

# A block of an atomic batch is written at this many messages, and a block of larger ones at this
# many bytes. With 128-byte messages, half as many cost a sixth more CPU. With more, the server
# idles meanwhile.
MOST_STAGED: Final = 128
MOST_STAGED_BYTES: Final = 64 << 10

# Seconds between two sends of the loop thread. If the last write of an atomic batch is older than
# this, the next message is written at once.
STAGING_PAUSE: Final = 0.002

# More bytes than any stage has.
_UNLIMITED: Final = 1 << 62


@with_twin
class Stage:
    """
    Numbers messages, and keeps their frames until they are written.

    The owner of a batch opens it for some messages and closes it before it changes anything. A
    ``Publisher`` leaves it open, and ``publish_many`` keeps it closed. A message has its number
    from the moment in which it is staged. An exception of a signal handler, at any step, leaves it
    staged with its number, or not staged. In the compiled twin, each call is one step.

    A message may have an entry, which :meth:`take` moves to the messages in flight.

    Args:
        targets: The known subjects, as bytes. The owner may add some, and drop all.
        suffix: What follows the number, in each reply subject or header block.
    """

    # Threads: any for `stage`, `add` and `stop`; for the rest, those that have the turn of the
    # owner. The loop thread takes that turn, too. `publish_many` has one thread and no turn.
    # Locks: the staging lock, `_lock`, protects `places`, and the end of `_frames` while the stage
    # is not stopped. `stop` sets `_is_stopped` without it.

    __slots__ = (
        "_before", "_form", "_frames", "_head", "_header_form", "_is_stopped", "_lock", "_most",
        "_moved", "_small", "_start", "_suffix", "_taken", "_taken_size", "_targets", "places",
        "size",
    )  # fmt: skip

    def __init__(self, targets: Mapping[str, bytes], suffix: bytes, /) -> None:
        self._targets = targets
        self._suffix = suffix.replace(b"%", b"%%")
        # Held for a few steps only, so waiting for it needs no deadline.
        self._lock: threading.RLock = short_lock()
        # Set while the owner has to make a call that reads what has arrived.
        self._is_stopped = False
        self.begin(b"")

    def begin(self, prefix: bytes, /) -> None:
        """Close, forget all messages, and let reply subjects begin with *prefix*."""
        start = b"%b%%d%b" % (prefix.replace(b"%", b"%%"), self._suffix)
        # The bytes of prefix and suffix in a header block; None if they are in the reply subject.
        self._head: int | None = None
        self._form = b"PUB %%b %b %%d\r\n%%b\r\n" % start
        self._header_form = b"HPUB %%b %b %%d %%d\r\n%%b%%b\r\n" % start
        self._small = self._most = 0
        # Entries with their frames, or with the arguments of `_form`. Making many frames at once
        # costs a third less than making each one when its message is staged.
        self._frames: list[tuple[Any, bytes | tuple[bytes | int, ...]]] = []
        # Those before `_start` were written, those before `_taken` were taken, and the entries of
        # those before `_moved` were moved.
        self._start = self._taken = self._moved = 0
        # The number of the message before the first frame. The place of a frame decides the number,
        # so staging changes only the list.
        self._before = 0
        # How many more messages may be staged, a hint for other threads.
        self.places: int = 0
        # Bytes of the headers and payloads that are not written, with the frames of the owner. An
        # interrupt may leave out a message.
        self.size: int = 0
        self._taken_size = 0

    def begin_in_headers(self, prefix: bytes, /) -> None:
        """
        Do the same as :meth:`begin`, for messages without reply subjects.

        The header block of each message begins with *prefix*, the number and the suffix.
        """
        self.begin(prefix)
        start = b"%b%%d%b" % (prefix.replace(b"%", b"%%"), self._suffix)
        self._head = len(start % 0) - 1
        self._form = b"HPUB %%b %%d %%d\r\n%b%%b%%b\r\n" % start

    @property
    def last(self) -> int:
        """The number of the last message."""
        return self._before + len(self._frames)

    @property
    def count(self) -> int:
        """How many messages are not written."""
        return len(self._frames) - self._start

    @property
    def done(self) -> int:
        """The number of the last message that is written."""
        return self._before + self._start

    @property
    def taken(self) -> int:
        """How many messages were taken and are not written."""
        return max(self._taken - self._start, 0)

    @property
    def fresh(self) -> int:
        """How many messages have entries that :meth:`take` has not moved."""
        return len(self._frames) - self._moved

    def stage(
        self, subject: object, data: object, header: bytes = b"", entry: object = None, /
    ) -> int:
        """
        Stage a message with a known subject, and return its number.

        Return 0 for any other message, and if the stage is full, closed or stopped.

        Args:
            subject: The subject.
            data: The payload.
            header: The header block, or the end of the one that begins with the number; empty for
                no headers.
            entry: What stands for the message in flight; None for nothing.
        """
        # Before the lock is taken: in a forked child, its owner may not exist.
        if self._is_stopped or type(subject) is not str or type(data) is not bytes:
            return 0
        size = len(data)
        target = self._targets.get(subject)
        if target is None or len(header) + size > self._small:
            return 0
        with self._lock:
            places = self.places
            # Looked at again: whoever has stopped and then closed the stage finds no message later.
            is_full = places <= 0 or self.size + len(header) + size >= self._most
            if is_full or self._is_stopped:
                return 0
            # A signal handler that interrupts the next steps must not stage another message.
            self.places = 0
            number = self._add(target, data, header, entry)
            self.places = places - 1
            return number

    def add(self, target: bytes, data: bytes, header: bytes, entry: object, /) -> int:
        """
        Stage a message of any size, and return its number; 0 if the stage is stopped.

        Args:
            target: The subject, as bytes.
            data: The payload.
            header: The header block; empty for none.
            entry: As for :meth:`stage`.

        Raises:
            CallInSignalHandlerError: The calling thread is staging a message.
        """
        if self._is_stopped:
            return 0
        refuse_reentry(self._lock)
        with self._lock:
            if self._is_stopped:
                return 0  # type: ignore[unreachable]  # Another thread has stopped it.
            places, self.places = self.places, 0
            number = self._add(target, data, header, entry)
            self.places = places - 1 if places > 0 else places
            return number

    def add_all(self, messages: Iterator[tuple[bytes, bytes, bytes]], most_bytes: int, /) -> bool:
        """
        Append messages of any size; the stage is closed. Return whether *messages* is exhausted.

        Args:
            messages: Their subjects, header blocks and payloads.
            most_bytes: Stop when the stage has as many bytes.
        """
        for target, header, data in messages:
            self._add(target, data, header, None)
            if self.size >= most_bytes:
                return False
        return True

    def _add(self, target: bytes, data: bytes, header: bytes, entry: object) -> int:
        """Append a message, whose place decides its number; the lock is held."""
        frames, size = self._frames, len(data)
        number = self._before + len(frames) + 1
        if self._head is not None:
            tail = header or b"\r\n"
            length = self._head + len(b"%d" % number) + len(tail)
            frames.append((entry, (target, length, length + size, number, tail, data)))
            size += len(header)
        elif header:
            length = len(header)
            size += length
            parts = target, number, length, size, header, data
            frames.append((entry, self._header_form % parts))
        else:
            frames.append((entry, (target, number, size, data)))
        self.size += size
        return number

    def append(self, frame: bytes, entry: object = None, /) -> None:
        """Append the frame of the next message, which has its number; the stage is closed."""
        self._frames.append((entry, frame))
        self.size += len(frame)

    def extend(  # noqa: PLR0917 - a call per block; keywords would need more code in C.
        self,
        items: Iterator[Any],
        last: int,
        most_bytes: int,
        limit: int,
        block: bytes,
        shared_headers: SharedHeaders | None,
        /,
    ) -> tuple[bool | None, Any]:
        """
        Append messages up to the first item that is not a plain pair; the stage is closed.

        A plain pair has a known subject, and bytes as its payload. It is the entry of its message.

        Args:
            items: The messages.
            last: The number of the last message to append.
            most_bytes: Stop when the stage has as many bytes.
            limit: The bytes of the largest payload.
            block: The header block of all frames; empty for frames without headers.
            shared_headers: The headers in *block*, which become a third part of the entries.

        Returns:
            Whether *items* is exhausted; False if the stage is full, and None if an item is
            returned. Then the item.
        """
        # One look-up per item, because another thread that encodes may drop the known subjects.
        known = self._targets.get
        for item in items:
            if type(item) is tuple and len(item) == 2:
                subject, data = item
                if type(data) is bytes and type(subject) is str:
                    target = known(subject)
                    if target is not None and len(data) <= limit:
                        entry = item if shared_headers is None else (*item, shared_headers)
                        number = self._add(target, data, block, entry)
                        if number >= last or self.size >= most_bytes:
                            return False, None
                        continue
            return None, item
        return True, None

    def allow(self, last: int, places: int, small: int, most: int, /) -> None:
        """
        Open the stage, unless *places* is 0; look afterwards for what :meth:`stop` reported before.

        Args:
            last: The number of the last message.
            places: How many messages may be staged.
            small: The bytes of headers and payload of the largest one.
            most: The bytes of a full stage. A message that would fill it is not staged.
        """
        frames = self._frames[self._start :]
        fresh = self.fresh
        with self._lock:
            # The frames first: meanwhile, `last` may only be too small.
            self._frames, self._before, self._start, self._taken = frames, last - len(frames), 0, 0
            self._moved, self._taken_size = len(frames) - fresh, 0
            self._small, self._most, self._is_stopped = small, most, False
            self.places = places

    def permit(self, last: int, small: int, /) -> None:
        """
        Let messages be staged up to the number *last*; look afterwards as after :meth:`allow`.

        The stage may be open, and keeps its numbers.

        Raises:
            CallInSignalHandlerError: The calling thread is staging a message.
        """
        refuse_reentry(self._lock)
        with self._lock:
            self.places = 0
            start = self._start
            frames, before = self._frames[start:], self._before + start
            taken, moved = max(self._taken - start, 0), self._moved - start
            # No function is called meanwhile, so no signal handler runs.
            self._frames, self._before, self._start, self._taken = frames, before, 0, taken
            self._moved = moved
            self._small, self._most, self._is_stopped = small, _UNLIMITED, False
            self.places = max(last - self.last, 0)

    def close(self) -> int:
        """
        Let no more messages be staged, and return the number of the last one.

        Raises:
            CallInSignalHandlerError: The calling thread is staging a message.
        """
        refuse_reentry(self._lock)
        with self._lock:
            self.places = 0
        return self.last

    def close_if_empty(self) -> bool:
        """Close the stage if all messages are written, and return whether it is closed."""
        # The loop thread waits for no lock here: a signal handler may have interrupted the thread
        # that holds it, and may wait for the loop.
        return bool(use_if_free(self._lock, self._close_if_empty))

    def _close_if_empty(self) -> bool:
        if self.count:
            return False
        self.places = 0
        return True

    def stop(self) -> None:
        """Let no more messages be staged until the owner has looked; never waits."""
        self._is_stopped = True

    def take(self, in_flight: dict[int, Any] | None = None, /) -> bytes:
        """
        Return the frames that are not written.

        Args:
            in_flight: Receives the entries of the messages by their numbers.
        """
        size, frames = self.size, self._frames[self._start :]
        end = self._start + len(frames)
        if in_flight is not None:
            entries = self._frames[self._moved : end]
            for number, (entry, _) in enumerate(entries, self._before + self._moved + 1):
                if entry is not None:
                    in_flight[number] = entry
        self._moved = self._taken = end
        self._taken_size = size
        form = self._form
        return b"".join([each if type(each) is bytes else form % each for _, each in frames])

    def written(self) -> None:
        """Forget the frames that :meth:`take` has returned."""
        self._start = max(self._taken, self._start)
        self.size, self._taken_size = self.size - self._taken_size, 0
