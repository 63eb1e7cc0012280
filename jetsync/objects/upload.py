"""
Send the chunks of one object, in order, with a window of bytes in flight.

A reader gets the chunks in the order of their sequences. So their order in the stream has to be
that of the data, also if chunks are lost with a connection, refused, or sent twice. Each chunk has
a message id. An :class:`Upload` keeps the data of a chunk until the sequences of all chunks up to
it are known and increase. If a chunk fails, it waits for the outcome of all others in flight and
sends them again from the first one that failed. The stream drops those that it has already. A chunk
that was stored after a failed one is in the wrong place: it is deleted and gets another id.

The data of a chunk is read into a slot, which has room for the rest of its frame. So the frame is
sent without a copy. Slots of confirmed chunks are used again, because new memory for each chunk
would cost a tenth of the CPU of a put.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync import errors
from jetsync._base.deadline import MAX_SECONDS, Deadline
from jetsync._proto.objects import chunks_of
from jetsync.events import RetryEvent
from jetsync.publish.hooks import BulkHooks
from jetsync.publish.window import Window, WindowOptions
from jetsync.values.outbound import OutboundMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync.objects.bucket import Bucket

# Bytes in flight at most: 8 MiB. More would only help with more than 80 MB/s over a round trip of
# 100 ms. A leader with replicas falls behind if clients have hundreds of MB in flight.
WINDOW: Final = 8 << 20

# Seconds before chunks are sent again, doubled each time without progress up to the limit.
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0

# Seconds to wait for the answers to chunks in flight before the chunks of a failed put are removed:
# a chunk that arrives later would stay.
LAST_ANSWERS: Final = 2.0

# Seconds between two reads of acks, and how long one may take. If this thread did not read them
# before the next tick, the loop would read each one alone, which costs a tenth of the CPU of a put.
LOOK_INTERVAL: Final = 0.003
SHORT_WAIT: Final = 0.0001

# Bytes of a frame before the data, without its subject and the prefix of its reply subject: sizes,
# the number, and the header with the id.
HEAD_ROOM: Final = 256

# Errors after which a chunk is sent again. Its outcome is unknown, or the server asks for patience.
TEMPORARY: Final = (
    errors.PublishOutcomeUnknownError,
    errors.NoStreamResponseError,
    errors.DisconnectedError,
    errors.ConnectionLostError,
    errors.TemporarilyUnavailableError,
    errors.InsufficientResourcesError,
    errors.TooManyRequestsError,
    errors.DuplicateMessageInProcessError,
)


class Slot:
    """
    Memory for the frame of one chunk: room for its head, the data, and two bytes for the end.

    Args:
        room: The bytes of the longest head.
        size: The bytes of the largest chunk.
    """

    __slots__ = ("_memory", "_room", "data")

    def __init__(self, room: int, size: int) -> None:
        self._room = room
        self._memory = memoryview(bytearray(room + size + 2))
        #: The place of the data.
        self.data: memoryview = self._memory[room : room + size]

    def frame(self, head: bytes, size: int) -> memoryview:
        """Return the frame of the first *size* bytes of the data."""
        memory, end = self._memory, self._room + size
        begin = self._room - len(head)
        memory[begin : self._room] = head
        memory[end : end + 2] = b"\r\n"
        return memory[begin : end + 2]


@attrs.define(eq=False)
class Chunk:
    """
    A chunk that is not confirmed yet.
    """

    message: OutboundMessage
    slot: Slot
    size: int
    # How often it got a new id, because it was stored in the wrong place.
    attempt: int = 0
    # Its sequence, once it is stored.
    sequence: int | None = None
    error: Exception | None = None


class Upload:
    """
    The chunks of one put; one thread.

    Args:
        bucket: The object store.
        nuid: The id of the put.
        seconds: Seconds to wait for progress.
        chunk_size: The size of the largest chunk.
        on_progress: Called with the confirmed bytes, and their number in all if that is known.
        total: The number of all bytes.
    """

    def __init__(
        self,
        bucket: Bucket,
        nuid: str,
        *,
        seconds: float,
        chunk_size: int,
        on_progress: Callable[[int, int | None], object] | None,
        total: int | None,
    ) -> None:
        context = bucket.context
        self._bucket = bucket
        self._nuid = nuid
        self._subject = chunks_of(bucket.name, nuid)
        self._seconds = seconds
        self._on_progress = on_progress
        self._total = total
        # The next chunk is sent if this much is in flight, so a window has at least two chunks.
        self._options = WindowOptions(
            MAX_SECONDS,
            max_bytes=max(WINDOW - chunk_size, 1),
            retries=0,
            name="put",
            write_timeout=seconds,
        )
        self._window = Window(context, self._options, keep_acks=True)
        self._hooks = BulkHooks(context.plugins)
        self._lane = context.lane
        # Chunks that are not confirmed, in order. Those in flight by the identity of the message.
        self._open: deque[Chunk] = deque()
        self._in_flight: dict[int, Chunk] = {}
        self._number = 0
        self._target = b""
        # The slots of confirmed chunks, and that of the next one.
        self._free: list[Slot] = []
        self._next: Slot | None = None
        self._slot = partial(
            Slot, len(self._subject) + len(self._window.prefix) + HEAD_ROOM, chunk_size
        )
        self._failed = False
        self._pause = FIRST_PAUSE
        # Why chunks were sent again last, if none was confirmed since.
        self._reason: Exception | None = None
        # When this thread reads acks next.
        self._next_look = 0.0
        # When chunks were confirmed last, or the caller's own code ended.
        self._moved = 0.0
        #: Whether chunks were sent again.
        self.has_repeated: bool = False
        #: How many chunks were given.
        self.count: int = 0
        #: How many bytes are confirmed.
        self.done: int = 0
        # The sequence of the last confirmed chunk.
        self._last = 0

    def run(self, send: Callable[[], None]) -> None:
        """Call *send* inside the plugins' wrappers."""
        # Raises before anything is sent in a signal handler that cannot wait for acks.
        self._lane.prepare_wait()
        self._hooks.begin(self._options.operation, self._window.pipeline.tally)
        self._next_look = time.monotonic() + LOOK_INTERVAL
        self._hooks.run(send)

    def buffer(self) -> memoryview:
        """Return where the data of the next chunk belongs, before :meth:`add`."""
        if self._next is None:
            self._next = self._free.pop() if self._free else self._slot()
        return self._next.data

    def add(self, size: int) -> None:
        """Send the next chunk of *size* bytes, and wait until there is room for another one."""
        self._moved = time.monotonic()
        slot, self._next = self._next, None
        assert slot is not None
        message = OutboundMessage(
            self._subject, slot.data[:size], msg_id=f"{self._nuid}-{self.count}"
        )
        self.count += 1
        chunk = Chunk(message, slot, size)
        self._open.append(chunk)
        if not self._failed:
            self._send(chunk)
        if self._moved >= self._next_look:
            self._next_look = self._moved + LOOK_INTERVAL
            self._window.wait(self._moved + SHORT_WAIT)
            self._settle()
        if self._window.is_full or self._window.room <= 0:
            # Waiting for each ack would wake this thread once for each chunk.
            while self._window.pipeline.size > self._options.max_bytes // 2:
                self._proceed()
        while self._failed:
            self._proceed()

    def finish(self) -> None:
        """Wait until all chunks are confirmed."""
        self._moved = time.monotonic()
        while self._open:
            self._proceed()

    def close(self) -> None:
        """End the reply subscription, and report to the plugins."""
        self._window.close()
        if self._hooks.reports is not None:
            self._hooks.reports.note(())
            self._hooks.reports.send(interrupted=self._window.open_count)

    def abort(self, deadline: Deadline) -> None:
        """Remove the chunks of a put that failed."""
        try:
            # The purge needs the other half.
            until = deadline.at_most(min(LAST_ANSWERS, 0.5 * deadline.remaining()))
            while self._window.open_count and not until.expired():
                self._window.wait(until.at)
                self._take_outcomes()
        finally:
            self.close()
        if self.count:
            self._bucket.purge_chunks(self._nuid, deadline)

    def _send(self, chunk: Chunk, *, again: bool = False) -> None:
        window, message = self._window, chunk.message
        encoder, number = window.encoder, self._number
        frame: bytes | memoryview
        if self._hooks.changes_messages:
            # A copy, because plugins may change and keep it, and it may be sent again.
            copied = attrs.evolve(message, data=bytes(message.data))  # type: ignore[arg-type]
            message = self._hooks.prepared(copied)
            frame = encoder.frame(message, window.prefix, number)
        else:
            if not self._target:
                # Checks the subject.
                self._target = encoder.encode((self._subject, b""))[0]
            # Written here, because the encoder takes as long as the rest.
            header = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % str(message.msg_id).encode()
            self._bucket.context.connection.check_size(len(header) + chunk.size)
            if again:
                # A copy, because the outbox may not have dropped the first frame yet.
                encoded: Any = self._target, header, message.data, ()
                frame = encoder.framed(encoded, window.prefix, number)
            else:
                head = encoder.head(self._target, header, chunk.size, window.prefix, number)
                frame = chunk.slot.frame(head, chunk.size)
        self._number += 1
        chunk.sequence = chunk.error = None
        self._in_flight[id(message)] = chunk
        # The window keeps the message, so its identity stays unique.
        window.pipeline.enter([(number, message)])
        try:
            window.write(frame, range(number, number + 1))
        except (errors.DisconnectedError, errors.ConnectionClosedError):
            # The failure is in the window now.
            self._take_outcomes()

    def _proceed(self) -> None:
        """Wait for an answer, or send chunks again after a failure."""
        if self._failed:
            for chunk in self._open:
                if chunk.error is not None and not isinstance(chunk.error, TEMPORARY):
                    raise chunk.error
            if not self._window.open_count:
                self._send_again()
                return
        due = self._moved + self._seconds
        self._window.wait(min(due, self._window.due() or due))
        self._settle()
        if self._open and time.monotonic() >= self._moved + self._seconds:
            self._time_out()

    def _time_out(self) -> None:
        self._bucket.context.connection.probe()
        raise errors.RequestTimeoutError(
            self._subject, self._seconds, what="no chunk was confirmed"
        ) from self._reason

    def _settle(self) -> None:
        """Process answers, confirm chunks, and report the progress."""
        self._take_outcomes()
        before, queue = self.done, self._open
        while queue and (sequence := queue[0].sequence) is not None:
            if sequence <= self._last:
                # It was stored before an earlier chunk, so it is in the wrong place.
                self._failed = True
                break
            self._last = sequence
            chunk = queue.popleft()
            self.done += chunk.size
            # The server has received the whole frame, so nothing reads the memory any more.
            self._free.append(chunk.slot)
        if self.done > before:
            self._pause, self._reason = FIRST_PAUSE, None
            if self._on_progress is not None:
                self._on_progress(self.done, self._total)
            self._moved = time.monotonic()

    def _take_outcomes(self) -> None:
        window = self._window
        if window.process_outcomes():
            # Chunks are sent again in order, and not one by one.
            window.schedule_retries()
        for message, ack in window.take_acked():
            chunk = self._in_flight.pop(id(message), None)
            if chunk is not None:
                chunk.sequence = ack if isinstance(ack, int) else ack.sequence
        for _, message, error in window.failures:
            chunk = self._in_flight.pop(id(message), None)
            if chunk is not None:
                chunk.error = error
                self._failed = True
        if self._hooks.reports is not None and self._hooks.reports.note(
            error for _, _, error in window.failures
        ):
            self._hooks.reports.send()
        window.failures.clear()

    def _send_again(self) -> None:
        """Send all chunks again from the first one that is not confirmed. None is in flight."""
        chunks = list(self._open)
        # Those before it are confirmed, so none of these is in its place.
        first = self.count - len(chunks)
        error = next((chunk.error for chunk in chunks if chunk.error is not None), None)
        self._reason = error or self._reason
        left = self._moved + self._seconds - time.monotonic()
        if left <= self._pause:
            self._time_out()
        context = self._bucket.context
        deadline = Deadline.after(left)
        if isinstance(error, errors.NoStreamResponseError):
            self._bucket.check_exists(deadline)
        if context.plugins.status is not None and error is not None:
            context.plugins.status(
                RetryEvent(
                    stream=self._bucket.stream.name,
                    operation="put",
                    subject=self._subject,
                    messages=len(chunks),
                    attempts=1,
                    delay=self._pause,
                    error=error,
                )
            )
        context.connection.closing.wait(self._pause)
        self._pause = min(2.0 * self._pause, LONGEST_PAUSE)
        self._lane.outbox.wait_open(Deadline.after(left))
        for number, chunk in enumerate(chunks, first):
            if chunk.sequence is not None:
                self._remove(chunk.sequence)
                chunk.attempt += 1
                msg_id = f"{self._nuid}-{number}-{chunk.attempt}"
                chunk.message = attrs.evolve(chunk.message, msg_id=msg_id)
            chunk.sequence = chunk.error = None
        self._failed, self.has_repeated = False, True
        for chunk in chunks:
            # After another failure, those that follow it wait for the next attempt.
            if not self._failed:
                self._send(chunk, again=True)

    def _remove(self, sequence: int) -> None:
        """Remove a chunk that is in the wrong place."""
        with contextlib.suppress(errors.MessageNotFoundError):
            self._bucket.stream.delete_message(sequence, timeout=self._seconds)
