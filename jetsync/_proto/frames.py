"""
Frames of the NATS client protocol: cutting the byte stream that comes in, building the bytes that
go out.

What lives here: the splitter that the lane feeds with whatever the socket gave, and one builder for
each verb that jetsync writes itself. What may not: sockets, locks, waking anybody up.

The splitter knows which subscription ids are jetsync's own and appends their frames, unparsed, to
the mailbox of that id. Every other byte (INFO, PING, PONG, -ERR and frames of foreign ids) comes
back in whole lines or frames, in order, for nats-py's own parser.

Source: the NATS client protocol; facts about the order and shape of frames were measured on servers
2.10 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync.typing import Frame

FIRST_LANE_SID: Final = 1_000_000
"""
The first subscription id of jetsync's own range.

nats-py counts its ids from one, and a connection that makes a million subscriptions through it is
not one of
ours: the two ranges never meet.
"""

_MSG: Final = ord("M")
_HMSG: Final = ord("H")
_LANE_SID_LENGTH: Final = len(str(FIRST_LANE_SID))


class Inbound(Protocol):
    """What the splitter needs of the receiver of one subscription's frames."""

    push: Callable[[Frame], object]

    express: Callable[[bytes, int], int] | None
    """
    Takes a run of frames of a known shape at once: given data and the position of the first,
    returns the position behind the last it took, or the same position to leave them to the
    splitter. None where there is no such shape.
    """


class Splitter:
    """
    Cut a byte stream into frames and hand each to the subscription that it belongs to.

    Not thread-safe: the lane feeds it under its read lock.
    """

    __slots__ = ("_parts", "_parts_size", "_wanted", "boxes", "strays")

    def __init__(self, boxes: dict[bytes, Inbound]) -> None:
        self.boxes = boxes
        self.strays = 0
        """How many frames came for an id of our range that nobody listens to any more."""
        self._parts: list[bytes] = []
        self._parts_size = 0
        self._wanted = 0

    def feed(self, data: bytes, touched: list[Inbound], foreign: list[bytes]) -> None:
        """
        Take *data*, append to *touched* each mailbox that got frames and to *foreign* all other
        bytes.

        Raises ValueError if *data* is no NATS protocol; the connection has to end then.

        A frame that is not whole yet is kept until the rest of it arrives; its pieces are joined
        once, so a payload of many megabytes costs no more than its size.
        """
        if self._parts:
            self._parts.append(data)
            self._parts_size += len(data)
            if self._parts_size < self._wanted:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        self._wanted = 0
        end = self._cut(data, touched, foreign)
        if end < len(data):
            self._parts.append(data[end:] if end else data)
            self._parts_size = len(data) - end
        else:
            self._parts_size = 0

    def reset(self) -> None:
        """Forget a half-received frame, as a new connection starts with a fresh stream."""
        self._parts.clear()
        self._parts_size = self._wanted = 0

    def _cut(  # noqa: C901, PLR0912 - one loop over all frames there are; calls would double its cost.
        self, data: bytes, touched: list[Inbound], foreign: list[bytes]
    ) -> int:
        """Return how many bytes of *data* were whole frames; all of them are handed over."""
        find, boxes, size = data.find, self.boxes, len(data)
        position = 0
        last_sid = b""
        box: Inbound | None = None
        by_run = True
        while position < size:
            eol = find(b"\r\n", position)
            if eol < 0:
                break
            kind = data[position]
            if kind == _MSG:
                # MSG <subject> <sid> [reply] <size>
                words = data[position + 4 : eol].split(b" ")
                start = eol + 2
                end = start + int(words[-1])
                if len(words) < 3 or end < start:
                    raise ValueError("a MSG line without a subject, an id and a size")
                if end + 2 > size:
                    self._wanted = end + 2 - position
                    break
                reply = words[2] if len(words) == 4 else b""
                frame: Frame = (words[0], reply, None, data[start:end])
            elif kind == _HMSG:
                # HMSG <subject> <sid> [reply] <header size> <total size>
                words = data[position + 5 : eol].split(b" ")
                start = eol + 2
                end = start + int(words[-1])
                if len(words) < 4:
                    raise ValueError("an HMSG line without a subject, an id and two sizes")
                middle = start + int(words[-2])
                if not start <= middle <= end:
                    raise ValueError("an HMSG line whose sizes contradict each other")
                if end + 2 > size:
                    self._wanted = end + 2 - position
                    break
                reply = words[2] if len(words) == 5 else b""
                frame = (words[0], reply, data[start:middle], data[middle:end])
            else:
                foreign.append(data[position : eol + 2])
                position = eol + 2
                continue
            sid = words[1]
            # Frames come in runs of one subscription; looking the mailbox up once a run is
            # measurably cheaper.
            if sid != last_sid:
                last_sid = sid
                box = boxes.get(sid)
                if box is not None:
                    touched.append(box)
                    if by_run and box.express is not None:
                        behind = box.express(data, position)
                        if behind > position:
                            position = behind
                            continue
                        # Frames of several subscriptions take turns: looking through all the rest
                        # at each turn would cost its square.
                        by_run = False
            if box is not None:
                box.push(frame)
            elif len(sid) >= _LANE_SID_LENGTH:
                self.strays += 1
            else:
                foreign.append(data[position : end + 2])
            position = end + 2
        return position


def pub(subject: bytes, reply: bytes, payload: bytes | bytearray | memoryview) -> bytes:
    """Build ``PUB``; *reply* may be empty."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), bytes(payload))


def hpub(
    subject: bytes, reply: bytes, header: bytes, payload: bytes | bytearray | memoryview
) -> bytes:
    """
    Build ``HPUB`` with a whole header block, ``NATS/1.0`` line and closing blank line included.
    """
    size = len(header)
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
        subject,
        reply,
        size,
        size + len(payload),
        header,
        bytes(payload),
    )


def message(
    subject: bytes, reply: bytes, header: bytes | None, payload: bytes | bytearray | memoryview
) -> bytes:
    """Build ``PUB`` or ``HPUB``, whichever the message needs."""
    return pub(subject, reply, payload) if header is None else hpub(subject, reply, header, payload)


def sub(subject: bytes, sid: bytes, queue: bytes = b"") -> bytes:
    """Build ``SUB``; *queue* may be empty."""
    return b"SUB %b %b %b\r\n" % (subject, queue, sid)


def unsub(sid: bytes) -> bytes:
    """Build ``UNSUB``."""
    return b"UNSUB %b\r\n" % sid
