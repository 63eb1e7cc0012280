"""
Read an object as a binary file.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import math
from typing import TYPE_CHECKING, Final, TypeVar

from jetsync import errors
from jetsync._api.repeats import repeated
from jetsync._base.deadline import Deadline
from jetsync._base.fields import whole_number, wrong_type
from jetsync._base.iterations import Iteration
from jetsync._base.pickling import refuse_copy
from jetsync._base.turn import Turn, outside
from jetsync._proto.direct import BatchRead
from jetsync._proto.object_names import ChunkIndex, chunks_of, decode_digest
from jetsync.consume.ordered import consume_within, open_ordered, pending_of
from jetsync.read.direct import SequencePlan
from jetsync.read.pages import PAGE, PageReader, check_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from typing_extensions import Buffer

    from jetsync.consume.ordered_consumption import OrderedConsumption
    from jetsync.objects.bucket import Bucket
    from jetsync.objects.info import ObjectInfo
    from jetsync.values.ack_subject import Metadata
    from jetsync.values.message import Message

__all__ = ["ObjectReader"]

T = TypeVar("T")
Q = TypeVar("Q")

# The most bytes of one request for chunks: 8 MiB. At most two of them are in memory. Between
# requests the server waits. On a busy machine, 200 MB took 3.3 s with 4 MiB, 3.1 s with 8 MiB,
# 2.6 s with 16.
PAGE_BYTES: Final = 8 << 20

# The bytes that a reader requests at least at the start, because most programs read on. A seek
# forward by up to as many reads the chunks between, which costs less than another request.
SHORT: Final = 1 << 20

# Chunks whose sizes are requested at once.
SIZES: Final = 5000

# Seconds without a chunk after which jetsync asks the server whether the consumer sends more. It
# asks again after twice as long each time.
QUIET: Final = 0.25


class ObjectReader(io.BufferedIOBase):
    """
    The data of an object, as a binary file. Made by ``ObjectStore.get``.

    ``read``, ``readinto``, ``seek``, ``tell`` and iteration over lines work as in a file. A read
    after a :meth:`seek` requests only the chunks that have the bytes you ask for, and a read at the
    start at least 1 MiB. If you read on, also after a seek forward by up to 1 MiB, jetsync requests
    as much again as it has read since, and keeps at most 16 MiB. Servers before 2.11, and stores
    without direct gets, send up to 8 MiB for each read after a longer seek.

    If the data is read from its beginning to its end, the reader also checks the digest, and raises
    ObjectCorruptedError before it returns the last bytes. It checks the number and the sizes of the
    chunks there, too. Before that, the data may be wrong if the first chunks have expired in an
    object store with a ``ttl``. If you skip a part, it cannot check the digest.

    If the object is changed or deleted while you read it, the reader raises ObjectChangedError.

    One thread at a time may use a reader. A ``with`` block closes it. After that, reads, ``seek``
    and ``tell`` raise FileClosedError, which is also a ValueError.
    """

    # Threads: one at a time.
    # Locks: the reader turn, `_turn`, protects the chunks. A read changes the position last, and
    # without it.

    __reduce__ = refuse_copy

    # Python closes a file that is dropped, also if `__init__` did not come to its end. The open
    # read of chunks, if there is one.
    _source: _Direct | _Consumed | None = None

    def __init__(self, bucket: Bucket, info: ObjectInfo, *, seconds: float, verify: bool) -> None:
        super().__init__()
        self._bucket = bucket
        self._info = info
        self._seconds = seconds
        self._verify = verify
        self._digest = None if info.digest is None else decode_digest(info.digest)
        self._turn = Turn(f"another read of object {info.name!r}")
        # The position of the caller. A read changes it right before it returns, so Ctrl-C skips no
        # bytes.
        self._at = 0
        # The current chunk, its offset in the data, and the number of the next one.
        self._data: bytes | memoryview = b""
        self._begin = 0
        self._next = 0
        # The number of the first chunk of the open read.
        self._first = 0
        self._chunks: Iterator[bytes | memoryview] | None = None
        # The hash of the first chunks, and how many they are.
        self._hash = hashlib.sha256()
        self._hashed = 0
        self._index: ChunkIndex | None = None
        if verify and self._digest is None:
            raise self._corrupted("it has no SHA-256 digest")
        if info.chunks and not info.nuid:
            raise self._corrupted("its description does not say which chunks it has")
        if not info.chunks:
            self._check_end(0)

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<ObjectReader {self._info.name!r} at {self._at} of {self._info.size}{state}>"

    @property
    def info(self) -> ObjectInfo:
        """The description of the object."""
        return self._info

    @property
    def name(self) -> str:
        """The name of the object."""
        return self._info.name

    def readable(self) -> bool:
        """Return True."""
        self._check_open()
        return True

    def seekable(self) -> bool:
        """Return True."""
        self._check_open()
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        self._check_open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """
        Change the position, and return it. The next read requests the data.

        If that is not close after the current position, the reader first asks the server for the
        sizes of all chunks, which are about 280 bytes for each. The :class:`ObjectStore` object
        keeps those of the last object.

        Args:
            offset: Bytes, relative to *whence*.
            whence: 0 for the start, 1 for the current position, and 2 for the end.
        """
        self._check_open()
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size}
        if whence not in bases:
            raise errors.InvalidArgumentError(
                f"whence must be 0, 1 or 2, not {whence!r}", argument="whence"
            )
        position = bases[whence] + whole_number("offset", offset, -math.inf)
        if position < 0:
            raise errors.InvalidArgumentError(
                f"the position would be {position}, before the start", argument="offset"
            )
        self._at = position
        return position

    def read(self, size: int | None = -1, /) -> bytes:
        """
        Return the next *size* bytes, or all of the rest. At the end, return empty bytes.

        Raises:
            ObjectCorruptedError: The stored data is not that of the object.
            ObjectChangedError: The object was changed or deleted meanwhile.
            RequestTimeoutError: The server sent nothing for ``timeout`` seconds.
        """
        data, self._at = self._run(self._read, self._wanted(size))
        return data

    def _read(self, missing: int) -> tuple[bytes, int]:
        at = self._at
        parts: list[bytes | memoryview] = []
        while missing > 0:
            part = self._take(at, missing)
            if not len(part):
                break
            parts.append(part)
            at += len(part)
            missing -= len(part)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts), at

    def chunks(self) -> Iterator[bytes | memoryview]:
        """
        Yield the rest of the data in pieces as they arrive, without copying it.

        Raises: as :meth:`read`.
        """
        return Iteration(self._pieces(), "object reader")

    def _pieces(self) -> Generator[bytes | memoryview, None, None]:
        """Yield the rest of the data."""
        while True:
            part, at = self._run(self._part, self._info.size)
            if not len(part):
                return
            self._at = at
            yield part

    def read1(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes up to the end of their chunk, and at most *size*."""
        part, at = self._run(self._part, self._wanted(size))
        data = bytes(part)
        self._at = at
        return data

    def _part(self, size: int) -> tuple[bytes | memoryview, int]:
        part = self._take(self._at, size)
        return part, self._at + len(part)

    def _wanted(self, size: int | None) -> int:
        """Return how many bytes to read at most."""
        number = -1 if size is None else whole_number("size", size, -math.inf)
        return self._info.size if number < 0 else number

    def peek(self, size: int = 0, /) -> bytes:
        """Return some bytes from the position on without changing it; at least one of the rest."""
        part, _ = self._run(self._part, max(size, io.DEFAULT_BUFFER_SIZE))
        return bytes(part)

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the bytes up to the end of the line, and at most *size*."""
        line, self._at = self._run(self._line, self._wanted(size))
        return line

    def _line(self, missing: int) -> tuple[bytes, int]:
        at = self._at
        line = b""
        while missing > 0 and not line.endswith(b"\n"):
            part = bytes(self._take(at, min(missing, io.DEFAULT_BUFFER_SIZE)))
            if not part:
                break
            part = part[: part.find(b"\n") + 1] or part
            line += part
            at += len(part)
            missing -= len(part)
        return line, at

    def readinto(self, buffer: Buffer, /) -> int:
        """Read bytes into *buffer* until it is full, and return their number."""
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise wrong_type("buffer", "a buffer that can be written to", buffer)
        done, self._at = self._run(self._fill, view)
        return done

    def _fill(self, view: memoryview) -> tuple[int, int]:
        done = 0
        while done < len(view):
            part = self._take(self._at + done, len(view) - done)
            if not len(part):
                break
            view[done : done + len(part)] = part
            done += len(part)
        return done, self._at + done

    def close(self) -> None:
        """Close the reader, and drop the data that was not read; safe to repeat."""
        super().close()
        self._end_source()
        self._data = b""

    def _check_open(self) -> None:
        if self.closed:
            raise errors.FileClosedError("object reader")

    def _run(self, work: Callable[[Q], tuple[T, int]], argument: Q) -> tuple[T, int]:
        """Call a method that returns data and the position after it."""
        self._check_open()
        try:
            # The chunks come from another handle, which has a turn of its own.
            found: tuple[T, int] = self._turn.run(
                Deadline.after(0), outside, self._step, work, argument
            )
        except errors.WaitTimeoutError as error:
            if error.what is not self._turn.what:
                raise
            raise errors.ConflictingUseError("another call reads this object") from None
        return found

    def _step(self, work: Callable[[Q], tuple[T, int]], argument: Q) -> tuple[T, int]:
        if self._turn.unfinished:
            # The open read may have lost a chunk. Another one begins at the position.
            self._end_source()
        return self._turn.step(work, argument)

    # Chunks.

    def _take(self, at: int, size: int) -> bytes | memoryview:
        """Return up to *size* bytes at *at* from one chunk; empty at the end."""
        if at >= self._info.size or not size:
            return b""
        try:
            while not self._begin <= at < self._begin + len(self._data):
                self._load(at, size)
        except errors.JetSyncError:
            self._end_source()
            raise
        start = at - self._begin
        data = self._data
        if not start and size >= len(data):
            return data
        return memoryview(data)[start : start + size]

    def _load(self, at: int, size: int) -> None:
        """Load the next chunk, or the one at *at* if that is far from it."""
        info = self._info
        reach = self._begin + len(self._data) + SHORT
        # Nothing is open at the start, and after an error.
        if self._chunks is None or not self._begin <= at <= reach:
            self._jump(at, size)
        assert self._chunks is not None
        assert self._source is not None
        data = next(self._chunks, None)
        if data is None:
            raise self._incomplete(f"only {self._next} of {info.chunks} chunks are stored")
        if self._index is not None:
            count, sequence = self._source.arrived
            if self._index.sequence(self._first + count - 1) != sequence:
                raise self._incomplete(f"not all of its {info.chunks} chunks are stored")
        number = self._next
        begin = self._begin + len(self._data)
        if number == self._hashed and self._verify:
            digest = self._hash.copy()
            digest.update(data)
            # Together, so that Ctrl-C does not make a chunk count twice.
            self._hash, self._hashed = digest, number + 1
        if number + 1 == info.chunks:
            self._check_end(begin + len(data))
        elif begin + len(data) >= info.size:
            raise self._corrupted(
                f"{number + 1} of {info.chunks} chunks have {begin + len(data)} bytes already"
            )
        self._next, self._data, self._begin = number + 1, data, begin

    def _jump(self, at: int, size: int) -> None:
        """Open the read at the chunk of *at*, and request the chunks of *size* bytes."""
        info = self._info
        if not at or info.chunks == 1:
            # Without an index, all chunks count as equally large.
            part = min(max(size, SHORT), info.size)
            self._open(0, 0, 1, -(-part * info.chunks // info.size))
            return
        if self._index is None:
            known = self._bucket.indexed
            if known is None or known[0] != info:
                known = self._bucket.indexed = info, self._read_index()
            self._index = known[1]
        number, offset, sequence = self._index.find(at)
        last = self._index.find(min(at + size, info.size) - 1)[0]
        self._open(number, offset, sequence, last - number + 1)

    def _open(self, number: int, offset: int, sequence: int, wanted: int) -> None:
        """Open the read at a chunk, and request as many as *wanted*."""
        self._end_source()
        self._first = self._next = number
        self._begin, self._data = offset, b""
        if not number:
            self._hash, self._hashed = hashlib.sha256(), 0
        bucket, info = self._bucket, self._info
        with bucket.named:
            self._source = source = open_chunks(
                bucket,
                info.nuid,
                sequence,
                info.chunks - number,
                wanted=wanted,
                seconds=self._seconds,
            )
        self._chunks = iter(source)

    def _end_source(self) -> None:
        source, self._source, self._chunks = self._source, None, None
        if source is not None:
            source.close()

    def _read_index(self) -> ChunkIndex:
        """Ask the server for the sequences and sizes of all chunks."""
        bucket, info = self._bucket, self._info
        index = ChunkIndex()
        subject = chunks_of(bucket.name, info.nuid)
        with bucket.named:
            source = _Consumed(bucket, subject, 1, info.chunks, self._seconds, sizes=True)
        try:
            for message in source.messages():
                index.add(message.metadata.stream_sequence, message.omitted_bytes or 0)
        finally:
            source.close()
        if len(index) < info.chunks:
            raise self._incomplete(f"only {len(index)} of {info.chunks} chunks are stored")
        if index.size != info.size:
            raise self._corrupted(f"its chunks have {index.size} bytes instead of {info.size}")
        return index

    def _check_end(self, size: int) -> None:
        """Check the size, and the digest if all chunks were read in order."""
        info = self._info
        if size != info.size:
            raise self._corrupted(f"its chunks have {size} bytes instead of {info.size}")
        if self._verify and self._hashed == info.chunks and self._hash.digest() != self._digest:
            raise self._corrupted("its digest differs")

    def _corrupted(self, reason: str) -> errors.ObjectCorruptedError:
        return errors.ObjectCorruptedError(self._info.bucket, self._info.name, reason)

    def _incomplete(self, reason: str) -> errors.JetSyncError:
        """Return the error for missing chunks: the object was changed, or it is corrupted."""
        bucket, info = self._bucket, self._info
        found = bucket.last(info.name, Deadline.after(self._seconds), leader=True)
        if found is None or found.is_deleted or found.nuid != info.nuid:
            return errors.ObjectChangedError(
                info.bucket,
                info.name,
                last_sequence=0 if found is None else found.revision,
                reason="was replaced or deleted while it was read: get it again",
            )
        return self._corrupted(reason)


def open_chunks(
    bucket: Bucket, nuid: str, sequence: int, count: int, *, wanted: int, seconds: float
) -> _Direct | _Consumed:
    """
    Return an iterable of up to *count* chunks from a sequence on, of which *wanted* are needed.

    Direct gets need no consumer. Servers before 2.11 do not support them for many messages, and old
    object stores do not allow them.
    """
    context, stream = bucket.context, bucket.stream.name
    subject = chunks_of(bucket.name, nuid)
    deadline = Deadline.after(seconds)
    try:
        known = check_stream(context, stream, deadline)
    except errors.NotSupportedError:
        return _Consumed(bucket, subject, sequence, count, seconds)
    engine = BatchRead(
        stream,
        sequence=sequence,
        subject=subject,
        limit=count,
        page=PAGE,
        page_bytes=PAGE_BYTES,
        wanted=wanted,
    )
    plan = SequencePlan(engine, alone=(known.config.num_replicas or 1) == 1)
    reader = PageReader(context, stream, plan, name="get_object", seconds=seconds)
    reader.begin(deadline)
    return _Direct(reader, engine)


class _Direct:
    """
    Chunks from direct gets.
    """

    def __init__(self, reader: PageReader, engine: BatchRead) -> None:
        self._reader = reader
        self._engine = engine
        self._payloads = reader.payloads("object")

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return itertools.chain.from_iterable(self._payloads)

    @property
    def arrived(self) -> tuple[int, int]:
        """How many chunks have arrived, and the sequence of the last one."""
        return self._engine.received, self._engine.last_sequence

    def close(self) -> None:
        self._reader.close(self._payloads)


class _Consumed:
    """
    Chunks, or only their sizes, from an ordered consumer.
    """

    def __init__(
        self,
        bucket: Bucket,
        subject: str,
        sequence: int,
        count: int,
        seconds: float,
        *,
        sizes: bool = False,
    ) -> None:
        self._seconds = seconds
        # Seconds that the deletion of the consumer may take.
        self._patience = seconds
        self._subject = subject
        deadline = Deadline.after(seconds)
        self._ordered = repeated(
            bucket.context,
            lambda until: open_ordered(
                bucket.context,
                bucket.stream.name,
                bucket.stream.cached_info,
                until,
                subject,
                opt_start_seq=sequence,
                headers_only=sizes or None,
            ),
            deadline,
        )
        # Chunks that are removed before they are sent never arrive.
        self._left = min(count, pending_of(self._ordered))
        self._messages: OrderedConsumption | None = None
        # The last chunk that was taken.
        self._last: Metadata | None = None
        #: How many chunks were taken, and the sequence of the last one.
        self.arrived: tuple[int, int] = 0, 0
        if self._left and sizes:
            self._messages = consume_within(self._ordered, deadline, max_messages=SIZES)
        elif self._left:
            self._messages = consume_within(self._ordered, deadline, max_bytes=PAGE_BYTES)

    def __iter__(self) -> Iterator[bytes]:
        return (message.data for message in self.messages())

    def messages(self) -> Iterator[Message]:
        """Yield the messages of the chunks."""
        while self._messages is not None and self._left:
            message = self._next(self._messages)
            if message is None:
                return
            self._left -= 1
            self._last = message.metadata
            self.arrived = self.arrived[0] + 1, self._last.stream_sequence
            yield message

    def _next(self, messages: OrderedConsumption) -> Message | None:
        """Return the next message; None if the chunks that are missing were removed."""
        quiet = min(QUIET, self._seconds)
        message = messages.next(timeout=quiet)
        deadline = None
        while message is None:
            deadline = deadline or Deadline.after(self._seconds - quiet)
            if deadline.expired():
                # The server is silent, so the deletion is sent without a wait for its answer.
                self._patience = 0.0
                raise errors.RequestTimeoutError(
                    self._subject, self._seconds, what="no chunk arrived"
                )
            if self._is_over(deadline.at_most(quiet)):
                return None
            quiet *= 2
            message = messages.next(timeout=deadline.at_most(quiet).remaining())
        return message

    def _is_over(self, deadline: Deadline) -> bool:
        """Return whether the server says that it has sent all chunks, and that all were taken."""
        try:
            info = self._ordered.info(timeout=deadline.remaining())
        except errors.JetSyncError:
            return False
        last, came = self._last, 0
        if last is not None and last.consumer == info.name:
            came = last.consumer_sequence
        return not info.num_pending and info.delivered.consumer_seq <= came

    def close(self) -> None:
        self._ordered.close(timeout=self._patience)
