"""
Send the chunks of one object, in order, with a window of bytes in flight.

A reader gets the chunks in the order of their sequences. So their order in the stream has to be
that of the data, also if chunks are lost with a connection, refused, or sent twice. Each chunk has
a message id. An :class:`Upload` keeps the data of a chunk until the sequences of all chunks up to
it are known and increase. If a chunk fails, it waits for the outcome of all others in flight and
sends them again from the first one that failed. The stream drops those that it has already. If a
chunk was stored after a failed one, for example by another leader, it is in the wrong place: it is
deleted and gets another id.

Each chunk is a request of its own (:mod:`jetsync._io.requests`), so a put needs no subscription.
Servers answer the requests in order, so a put waits for the answer to the oldest one. When the
leader changes, answers may be lost although the connection stays. So if the newest request has an
answer and an older one gets none for a while, the older one counts as failed. If no request gets an
answer for half of the timeout, all do.

The data of a chunk is read into a slot, which has room for the rest of its frame. So the frame is
sent without a copy. Slots of confirmed chunks are used again, because new memory for each chunk
would cost a tenth of the CPU of a put.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from jetsync import errors
from jetsync._api.repeats import repeated
from jetsync._base.deadline import Deadline
from jetsync._base.turn import refuse_request
from jetsync._io.requests import Request
from jetsync._proto import frames
from jetsync._proto.object_names import chunks_of
from jetsync._proto.outcome import cause_of, outcome_of
from jetsync._proto.pipeline import Tally
from jetsync._proto.puback import parse_ack
from jetsync.events import PublishOperation, RetryEvent
from jetsync.publish.encode import Encoder
from jetsync.publish.hooks import BulkHooks
from jetsync.publish.retry import error_of
from jetsync.values.outbound import OutboundMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jetsync._proto.outcome import OutcomeRule
    from jetsync.objects.bucket import Bucket

# Bytes in flight at most: 8 MiB. More would only help with more than 80 MB/s over a round trip of
# 100 ms. A leader with replicas falls behind if clients have hundreds of MB in flight.
WINDOW: Final = 8 << 20

# Chunks in flight at most.
MOST_CHUNKS: Final = 4096

# Seconds before chunks are sent again, doubled each time without progress up to the limit.
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0

# Seconds to wait for the answers to chunks in flight before the chunks of a failed put are removed:
# a chunk that arrives later would stay.
LAST_ANSWERS: Final = 2.0

# Seconds to wait for the answer to the oldest chunk after the newest one has its own. When the
# leader changes, two servers answer, and answers may overtake others.
OVERDUE: Final = 1.0

# Bytes of a frame before the data, without its subject and the prefix of its reply subject: sizes,
# the number, and the header with the id.
HEAD_ROOM: Final = 256


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


class Slots:
    """
    The memory for the chunks of one put. One thread.

    Args:
        room: The bytes of the longest head.
        size: The bytes of the largest chunk.
    """

    def __init__(self, room: int, size: int) -> None:
        self._room = room
        self.size: int = size
        # The slots of confirmed chunks.
        self._free: list[Slot] = []

    def take(self) -> Slot:
        """Return memory for the next chunk."""
        return self._free.pop() if self._free else Slot(self._room, self.size)

    def give(self, slot: Slot) -> None:
        """Take back the memory of a chunk that nothing reads any more."""
        self._free.append(slot)

    def clear(self) -> None:
        """Drop the memory that is not in use."""
        self._free.clear()


@attrs.define(eq=False)
class Chunk:
    """
    A chunk that is not confirmed yet.
    """

    slot: Slot
    size: int
    # Another one if the chunk was stored in the wrong place.
    msg_id: str
    # The last request that carried it.
    request: Request = attrs.field(init=False)
    # Its sequence, once it is stored.
    sequence: int | None = None


class Upload:
    """
    The chunks of one put; one thread.

    Args:
        bucket: The object store.
        nuid: The id of the put.
        seconds: Seconds to wait for progress.
        chunk_size: The size of the largest chunk.
        on_progress: Called with the confirmed bytes.
    """

    def __init__(
        self,
        bucket: Bucket,
        nuid: str,
        *,
        seconds: float,
        chunk_size: int,
        on_progress: Callable[[int], object] | None,
    ) -> None:
        context = bucket.context
        self._bucket = bucket
        self._nuid = nuid
        self._subject = chunks_of(bucket.name, nuid)
        self._seconds = seconds
        self._on_progress = on_progress
        self._hooks = BulkHooks(context.plugins)
        self._tally = Tally()
        # In a forked child, the calls of this put raise.
        self._session = session = context.connection.session
        frames.check_subject(self._subject.encode(), session.inbox)
        room = len(self._subject) + len(session.inbox) + HEAD_ROOM
        self._slots = Slots(room, chunk_size)
        # Chunks that are not confirmed, and those of them that have no answer yet; both in order.
        self._open: deque[Chunk] = deque()
        self._in_flight: deque[Chunk] = deque()
        # The first error of the chunks in flight, or one that ends the put, and what follows.
        self._failure: tuple[Exception, OutcomeRule] | None = None
        self._pause = FIRST_PAUSE
        # Why chunks were sent again last, if none was confirmed since.
        self._reason: Exception | None = None
        # When chunks were confirmed last, or the caller's own code ended.
        self._moved = 0.0
        #: Whether chunks were sent again.
        self.has_repeated: bool = False
        #: How many chunks were given, and how many bytes.
        self.count: int = 0
        self.given: int = 0
        #: How many bytes are confirmed.
        self.done: int = 0
        # The sequence of the last confirmed chunk.
        self._last = 0

    def run(self, send: Callable[[], None]) -> None:
        """Call *send* inside the plugins' wrappers."""
        # Raises before anything is sent in a signal handler that cannot wait for acks.
        refuse_request()
        seconds = self._seconds
        self._hooks.begin(
            lambda: PublishOperation(
                name="put", messages=None, window=MOST_CHUNKS, timeout=seconds
            ),
            self._tally,
        )
        self._hooks.run(send)

    @property
    def _failed(self) -> bool:
        """Whether chunks have to be sent again: one has failed, or is in the wrong place."""
        # A chunk that was stored after those before it is confirmed, and not open any more.
        return self._failure is not None or (
            bool(self._open) and self._open[0].sequence is not None
        )

    @property
    def next_id(self) -> str:
        """The message id of the next chunk."""
        return f"{self._nuid}-{self.count}"

    def slot(self) -> Slot:
        """Return memory for the next chunk."""
        return self._slots.take()

    @property
    def has_sent(self) -> bool:
        """Whether there may be chunks of this put. Those of a forked child are its parent's."""
        return self.count > 0 and not self._session.forked

    def add(
        self,
        slot: Slot,
        size: int,
        *,
        front: Sequence[Request] = (),
        after: Sequence[Request] = (),
    ) -> None:
        """
        Send the next chunk, and wait until there is room for another one.

        Args:
            slot: Its memory.
            size: Its bytes.
            front: Requests to send in front of it, in the same write.
            after: Requests to send after it, in the same write. They are sent once.
        """
        self._moved = time.monotonic()
        chunk = Chunk(slot, size, self.next_id)
        self.count += 1
        self.given += size
        self._open.append(chunk)
        self._send(chunk, front=front, after=after)
        # A slow source may never fill the window.
        self._settle()
        # The next chunk is sent if fewer bytes are in flight, so a window has at least two chunks.
        limit = max(WINDOW - self._slots.size, 1)
        if self._has(limit, MOST_CHUNKS):
            # Waiting for each ack would wake this thread once for each chunk.
            while self._has(limit // 2 + 1, MOST_CHUNKS // 2 + 1):
                self._proceed()
        while self._failed:
            self._proceed()

    def _has(self, size: int, count: int) -> bool:
        """Return whether this many bytes or chunks are not confirmed."""
        return self.given - self.done >= size or len(self._open) >= count

    def finish(self) -> None:
        """Wait until all chunks are confirmed."""
        self._moved = time.monotonic()
        while self._open:
            self._proceed()
        # Raises in a forked child, which must not describe the object of its parent.
        self._session.lane.check()

    def close(self) -> None:
        """Forget the chunks in flight, and report to the plugins."""
        for chunk in self._in_flight:
            chunk.request.end()
        if self._hooks.reports is not None:
            self._hooks.reports.send(interrupted=len(self._in_flight))

    def abort(self, deadline: Deadline) -> None:
        """Wait for the last answers of a put that failed, and forget its chunks."""
        try:
            # The put has failed, so this is no progress.
            self._on_progress = None
            # The removal of the chunks needs the other half.
            self._await_last(deadline.at_most(min(LAST_ANSWERS, 0.5 * deadline.remaining())))
        finally:
            self.close()
            # The traceback of the error refers to the chunks. So the slots would stay until the
            # garbage collector runs.
            self._failure = None
            self._open.clear()
            self._slots.clear()

    def _await_last(self, deadline: Deadline) -> None:
        """Wait for the answers to the chunks in flight."""
        while self._in_flight and not deadline.expired():
            self._session.lane.wait(self._in_flight[0].request, deadline)
            self._settle()

    def _send(
        self,
        chunk: Chunk,
        *,
        front: Sequence[Request] = (),
        after: Sequence[Request] = (),
        again: bool = False,
    ) -> None:
        session, connection = self._session, self._bucket.context.connection
        data: bytes | bytearray | memoryview = chunk.slot.data[: chunk.size]
        changes = self._hooks.changes_messages
        if changes:
            # A copy, because plugins may change and keep it, and it may be sent again.
            message = OutboundMessage(self._subject, bytes(data), msg_id=chunk.msg_id)
            encoder = Encoder(connection)
            target, header, data, _ = encoder.encode(self._hooks.prepared(message))
        else:
            # Written here, because the encoder takes as long as the rest.
            target = self._subject.encode()
            header = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % chunk.msg_id.encode()
            connection.check_size(len(header) + chunk.size)
        # Those in flight may be lost with their connection, and must not be stored after this one.
        # Removing it would not be enough: a server that is killed may lose the removal.
        epoch = self._in_flight[-1].request.epoch if self._in_flight else None
        request = chunk.request = Request(session, target)
        self._in_flight.append(chunk)
        frame: bytes | memoryview
        if changes or again:
            # A copy, because the outbox may not have dropped the first frame yet.
            frame = frames.message(target, request.address, header or None, data)
        else:
            head = frames.hpub_head(target, request.address, header, chunk.size)
            frame = chunk.slot.frame(head, chunk.size)
        try:
            deadline = Deadline(self._moved + self._seconds, self._seconds)
            request.send(frame, deadline, epoch, front=front, after=after)
        except (
            errors.DisconnectedError,
            errors.ConnectionLostError,
            errors.ConnectionClosedError,
            errors.PermissionDeniedError,
        ) as error:
            # Nothing was sent.
            request.end()
            self._in_flight.pop()
            self._fail(chunk, error)

    def _proceed(self) -> None:
        """Wait for an answer, or send chunks again after a failure."""
        if self._failure is not None and not self._failure[1].may_repeat_batch:
            raise self._failure[0]
        in_flight = self._in_flight
        if not in_flight:
            # Otherwise, all would be confirmed.
            self._send_again()
            return
        until = self._moved + self._seconds
        overtaken = in_flight[-1].request.ready
        patience = OVERDUE if overtaken else max(OVERDUE, 0.5 * self._seconds)
        overdue = time.monotonic() + patience
        wait = Deadline(min(until, overdue), self._seconds)
        if not self._session.lane.wait(in_flight[0].request, wait) and overdue <= until:
            self._give_up(patience)
        self._settle()
        # Not `until`, because answers may just have moved it.
        if self._open and time.monotonic() >= self._moved + self._seconds:
            self._time_out()

    def _give_up(self, seconds: float) -> None:
        """Note that the chunks in flight failed that got no answer in so many seconds."""
        answered: deque[Chunk] = deque()
        for chunk in self._in_flight:
            if chunk.request.ready:
                answered.append(chunk)
            else:
                chunk.request.end()
                self._fail(chunk, None, seconds)
        # Last, because after Ctrl-C `close` ends only the requests of chunks in flight.
        self._in_flight = answered

    def _time_out(self) -> None:
        if isinstance(self._reason, errors.InsufficientResourcesError):
            # The server has answered.
            raise self._reason
        self._session.probe()
        raise errors.RequestTimeoutError(
            self._subject, self._seconds, what="no chunk was confirmed"
        ) from self._reason

    def _settle(self) -> None:
        """Process answers, and confirm chunks."""
        in_flight, reports = self._in_flight, self._hooks.reports
        while in_flight and in_flight[0].request.ready:
            chunk, failure = in_flight[0], None
            try:
                answer = chunk.request.answer()
                assert answer is not None
                ack = parse_ack(answer[3])
            except errors.JetSyncError as error:
                failure = error
                chunk.request.end()
            else:
                if isinstance(ack, errors.ApiError):
                    failure = ack
                else:
                    chunk.sequence = ack.sequence
                    if reports is not None:
                        self._tally.add(ack)
            in_flight.popleft()
            if failure is not None:
                self._fail(chunk, failure)
        if reports is not None and reports.note(()):
            reports.send()
        self._confirm()

    def _confirm(self) -> None:
        """Confirm the first chunks whose sequences are known and increase."""
        before, queue = self.done, self._open
        while queue and (sequence := queue[0].sequence) is not None:
            if sequence <= self._last:
                # It was stored before an earlier chunk, so it is in the wrong place.
                break
            self._last = sequence
            chunk = queue.popleft()
            self.done += chunk.size
            # The server has received the whole frame, so nothing reads the memory any more.
            self._slots.give(chunk.slot)
        if self.done > before:
            self._pause, self._reason = FIRST_PAUSE, None
            if self._on_progress is not None:
                self._on_progress(self.done)
            self._moved = time.monotonic()

    def _fail(
        self, chunk: Chunk, failure: errors.JetSyncError | None, seconds: float = 0.0
    ) -> None:
        """
        Note that a chunk failed.

        Without a *failure*, there was no answer within *seconds*.
        """
        cause, sent = cause_of(failure)
        rule = outcome_of(cause, sent=sent, safe=True)
        error: Exception
        if isinstance(failure, errors.NoRespondersError):
            error = errors.NoStreamResponseError(failure.subject, attempts=1)
        elif failure is not None and not rule.may_repeat_batch:
            # The put has not stored its object, even if the outcome of this chunk is unknown.
            error = failure
        else:
            message = OutboundMessage(self._subject, msg_id=chunk.msg_id)
            error = error_of(rule, message, failure, seconds)
        if self._hooks.reports is not None:
            self._hooks.reports.note([error])
        if failure is not None:
            # It would keep the memory of all chunks.
            failure.__traceback__ = None
        if self._failure is None or not rule.may_repeat_batch:
            self._failure = error, rule

    def _send_again(self) -> None:
        """Send all chunks again from the first one that is not confirmed. None is in flight."""
        chunks, error = self._open, None
        if self._failure is not None:
            self._reason = error = self._failure[0]
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
        self._session.lane.outbox.wait_open(Deadline.after(left))
        # Those before them are confirmed, so none of these is in its place.
        for chunk in chunks:
            if chunk.sequence is not None:
                self._remove(chunk.sequence)
                chunk.sequence = None
                chunk.msg_id += "-again"
        self._failure, self.has_repeated = None, True
        for chunk in chunks:
            # After another failure, those that follow it wait for the next attempt.
            if not self._failed:
                self._send(chunk, again=True)

    def _remove(self, sequence: int) -> None:
        """Remove a chunk that is in the wrong place; if an answer is lost, it may be gone."""
        bucket, deadline = self._bucket, Deadline.after(self._seconds)
        with contextlib.suppress(errors.MessageNotFoundError):
            repeated(
                bucket.context,
                lambda until: bucket.stream.delete_message(sequence, timeout=until.remaining()),
                deadline,
            )
