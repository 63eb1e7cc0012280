"""
Frames of the NATS client protocol: splitting the incoming byte stream, and building what is sent.

This module does not touch sockets or locks. The lane feeds the splitter, which appends the frames
of each subscription, unparsed, to the mailbox with its id. It counts and drops frames of unknown
ids. All other lines (INFO, PING, PONG, -ERR) come back whole, in order. There is one builder for
each verb that jetsync writes itself.

The splitter refuses lines and frames that no server sends, so that a broken or hostile server
cannot make it buffer without limit. The builders refuse lines that a server does not accept,
because the server would close the connection with everything in flight on it.

Source: the NATS client protocol. The order and shape of frames and the limits were measured on
servers 2.10 to 2.15.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final, Protocol

from jetsync._base.speedups import with_twin
from jetsync.errors import MaxControlLineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jetsync.values.frame import Frame

# Bytes of an incoming line, 1 MiB. An INFO line lists the addresses of a whole cluster. A MSG line
# has the subject and the reply of a PUB line, which a server limits to 4 KiB by default.
MAX_LINE: Final = 1 << 20

# Bytes that a server keeps for a slow client before it disconnects it, unless configured otherwise.
# This limits every frame, because the server counts a frame before it sends it. Answers of the
# JetStream API can be larger than the max_payload.
SERVER_BUFFER: Final = 64 << 20

# Bytes of an incoming frame, 1 GiB, whatever max_payload the server announces.
MAX_FRAME: Final = 1 << 30

# Digits of a size, at most. More would be above every limit.
LONGEST_SIZE: Final = 18

# Bytes of the arguments of a line: the default of servers, which do not announce their limit.
# Measured: the line without its verb, the space after it, and the line end.
MAX_CONTROL_LINE: Final = 4096

# Bytes reserved for what follows an inbox on a line: 68 for fast ingest, fewer for everything else.
REPLY_ROOM: Final = 72

# The sizes of small frames, as they end a line. Looking one up costs a third of parsing it.
_SIZES: Final = {b"%d\r\n" % size: size for size in range(2048)}

_VERBS: Final = frozenset({b"MSG", b"HMSG"})


class Inbound(Protocol):
    """What the splitter needs of the receiver of one subscription's frames."""

    push: Callable[[Frame], object]

    # Takes a run of frames of a known shape at once. Gets the data and the position of the first
    # one, and returns the position after the last one that it took, or the same one to take none.
    express: Callable[[bytes, int], int] | None


class Splitter:
    """
    Splits a byte stream into frames and passes each one to its subscription.

    Not thread-safe: the lane feeds it under its read lock.
    """

    __slots__ = ("_limit", "_parts", "_parts_size", "_wanted", "boxes", "strays")

    def __init__(self, boxes: dict[bytes, Inbound], max_payload: int = 0) -> None:
        self.boxes: dict[bytes, Inbound] = boxes
        # Frames for an id that is not among the boxes.
        self.strays: int = 0
        self._parts: list[bytes] = []
        self._parts_size = 0
        self._wanted = 0
        # A server sends messages that are larger than its own max_payload: it adds headers, and the
        # API returns a stored message as base64, which takes a third more.
        self._limit = max(SERVER_BUFFER, min(2 * max_payload, MAX_FRAME))

    def feed(self, data: bytes, touched: list[Inbound], foreign: list[bytes]) -> None:
        """
        Split *data*; append each mailbox that got frames to *touched*, other lines to *foreign*.

        The splitter keeps an incomplete frame until the rest arrives, and joins the pieces once.

        Raises:
            ValueError: *data* is not the NATS protocol, or a line or a frame is larger than a
                server sends. The connection has to end.
        """
        if not data:
            return
        parts = self._parts
        if parts:
            # A line end may be cut in two.
            ends = b"\r\n" in data or (data[:1] == b"\n" and parts[-1][-1:] == b"\r")
            parts.append(data)
            self._parts_size += len(data)
            if self._parts_size < self._wanted:
                return
            if not self._wanted and not ends:
                self._check_line(self._parts_size)
                return
            data = b"".join(parts)
            parts.clear()
        end, self._wanted, strays = cut(data, self.boxes, touched, foreign, self._limit)
        self.strays += strays
        self._parts_size = len(data) - end
        if self._parts_size:
            if not self._wanted:
                self._check_line(self._parts_size)
            parts.append(data[end:] if end else data)

    @staticmethod
    def _check_line(size: int) -> None:
        """Raise if *size* bytes without a line end are more than a server sends."""
        if size > MAX_LINE:
            raise ValueError(f"the server sent a line of more than {MAX_LINE} bytes")


@with_twin
def cut(  # noqa: C901, PLR0912, PLR0915 - one loop over all frames; calls would double its cost.
    data: bytes,
    boxes: Mapping[bytes, Inbound],
    touched: list[Inbound],
    foreign: list[bytes],
    limit: int,
) -> tuple[int, int, int]:
    """
    Pass on all whole frames of *data*.

    Args:
        data: The bytes received.
        boxes: The receivers by their ids.
        touched: Gets each receiver that got frames.
        foreign: Gets the lines that are neither MSG nor HMSG.
        limit: The bytes of the largest frame; at least 2047, the largest size in the table.

    Returns:
        How many bytes the frames and lines were, how many bytes the incomplete frame after them
        will have, or 0 if that is not known, and how many frames had an unknown id.

    Raises:
        ValueError: As :meth:`Splitter.feed`.
    """
    sizes, strays = _SIZES, 0
    # Slicing at computed positions took nearly twice as long as reading from a stream.
    stream = io.BytesIO(data)
    read = stream.read
    last_sid = b""
    box: Inbound | None = None
    by_run = True
    for line in stream:
        words = line.split(b" ")
        size = sizes.get(words[-1], -1)
        verb = words[0]
        if size < 0 and verb in _VERBS:
            if line[-1:] != b"\n":
                return len(data) - len(line), 0, strays
            size = _read_size(words[-1], limit)
        if verb == b"MSG":
            # MSG <subject> <sid> [reply] <size>
            if len(words) == 5:
                _, subject, sid, reply, _ = words
            elif len(words) == 4:
                _, subject, sid, _ = words
                reply = b""
            else:
                raise ValueError("a MSG line without a subject, an id and a size")
            header = None
            payload = read(size)
        elif verb == b"HMSG":
            # HMSG <subject> <sid> [reply] <header size> <total size>
            if len(words) == 6:
                _, subject, sid, reply, header_digits, _ = words
            elif len(words) == 5:
                _, subject, sid, header_digits, _ = words
                reply = b""
            else:
                raise ValueError("an HMSG line without a subject, an id and two sizes")
            header_size = sizes.get(header_digits + b"\r\n", -1)
            if header_size < 0:
                header_size = _read_size(header_digits + b"\r\n", limit)
            if header_size > size:
                raise ValueError("an HMSG line whose sizes contradict each other")
            header = read(header_size)
            payload = read(size - header_size)
        else:
            position = stream.tell() - len(line)
            end = data.find(b"\r\n", position)
            if end < 0:
                return position, 0, strays
            if line[:1] in {b"M", b"H"}:
                raise ValueError("a line that is neither MSG nor HMSG")
            foreign.append(data[position : end + 2])
            stream.seek(end + 2)
            continue
        end_of_frame = read(2)
        if end_of_frame != b"\r\n":
            got = len(header or b"") + len(payload) + len(end_of_frame)
            if got == size + 2:
                raise ValueError("a frame without a line end")
            return len(data) - len(line) - got, len(line) + size + 2, strays
        # Frames come in runs of one subscription. One lookup per run is measurably cheaper.
        if sid != last_sid:
            last_sid = sid
            box = boxes.get(sid)
            if box is not None:
                touched.append(box)
                if by_run and box.express is not None:
                    position = stream.tell() - len(line) - size - 2
                    next_position = box.express(data, position)
                    if next_position > position:
                        stream.seek(next_position)
                        continue
                    # Frames of several subscriptions are mixed. Searching the rest of the data
                    # at each change of subscription would take quadratic time.
                    by_run = False
        if box is not None:
            box.push((subject, reply, header, payload))
        else:
            strays += 1
    return len(data), 0, strays


def _read_size(digits: bytes, limit: int) -> int:
    """Return a size that is not in the table, or raise if no server sends it."""
    # int() also takes signs, underscores and white space.
    if not (digits[-2:] == b"\r\n" and digits[:-2].isdigit()):
        raise ValueError("a MSG or HMSG line without a size")
    digits = digits[:-3].lstrip(b"0") + digits[-3:-2]
    if len(digits) > LONGEST_SIZE:
        raise ValueError(f"the server sent a frame whose size has {len(digits)} digits")
    size = int(digits)
    if size > limit:
        raise ValueError(f"the server sent a frame of {size} bytes; the limit is {limit}")
    return size


def check_subject(subject: bytes, inbox: str) -> None:
    """
    Raise MaxControlLineError unless *subject* fits on a line with any reply subject below *inbox*.

    An encoder checks each subject once, and then publishes to it many times.
    """
    size = len(subject) + len(inbox) + REPLY_ROOM
    if size > MAX_CONTROL_LINE:
        raise MaxControlLineError(size, MAX_CONTROL_LINE)


def pub(subject: bytes, reply: bytes, payload: bytes | bytearray | memoryview) -> bytes:
    """
    Build ``PUB``; *reply* may be empty.

    Raises:
        MaxControlLineError: Subject and reply are too long for a server. :func:`hpub` and
            :func:`message` raise it too.
    """
    block = b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), bytes(payload))
    size = len(block) - len(payload) - len(b"PUB \r\n\r\n")
    if size > MAX_CONTROL_LINE:
        raise MaxControlLineError(size, MAX_CONTROL_LINE)
    return block


def hpub(
    subject: bytes, reply: bytes, header: bytes, payload: bytes | bytearray | memoryview
) -> bytes:
    """
    Build ``HPUB`` with a whole header block, from the ``NATS/1.0`` line to the empty line.
    """
    size = len(header)
    arguments = b"%b %b %d %d" % (subject, reply, size, size + len(payload))
    if len(arguments) > MAX_CONTROL_LINE:
        raise MaxControlLineError(len(arguments), MAX_CONTROL_LINE)
    return b"HPUB %b\r\n%b%b\r\n" % (arguments, header, bytes(payload))


def hpub_head(subject: bytes, reply: bytes, header: bytes, size: int) -> bytes:
    """
    Build the part of ``HPUB`` before a payload of *size* bytes.

    The caller has checked the subject with :func:`check_subject`.
    """
    length = len(header)
    return b"HPUB %b %b %d %d\r\n%b" % (subject, reply, length, length + size, header)


def message(
    subject: bytes, reply: bytes, header: bytes | None, payload: bytes | bytearray | memoryview
) -> bytes:
    """Build ``PUB``, or ``HPUB`` if there is a header block."""
    return pub(subject, reply, payload) if header is None else hpub(subject, reply, header, payload)


def ack_block(replies: Iterable[bytes], body: bytes) -> bytes:
    """
    Build the block that sends *body* to each of the reply subjects; empty without any.
    """
    end = b"  %d\r\n%b\r\n" % (len(body), body)
    subjects = (end + b"PUB ").join(replies)
    return b"PUB " + subjects + end if subjects else b""


def sub(subject: bytes, sid: bytes, queue: bytes = b"") -> bytes:
    """
    Build ``SUB``; *queue* may be empty.

    Raises:
        MaxControlLineError: Subject and queue are too long for a server.
    """
    arguments = b"%b %b %b" % (subject, queue, sid)
    if len(arguments) > MAX_CONTROL_LINE:
        raise MaxControlLineError(len(arguments), MAX_CONTROL_LINE)
    return b"SUB %b\r\n" % arguments


def unsub(sid: bytes, after: int | None = None) -> bytes:
    """Build ``UNSUB``; if *after* is given, it takes effect after that many messages."""
    return b"UNSUB %b\r\n" % sid if after is None else b"UNSUB %b %d\r\n" % (sid, after)
