"""
Random input for the functions that have compiled twins, and what each of the two does with it.

``CASES`` has a case for each function. To add a function, write a class with two methods:

- ``draw(rng)`` returns the input. It depends on nothing but *rng*.
- ``run(functions, drawn)`` calls the function of one variant with new copies of everything that it
  changes. It returns the result and all state that the function can change. ``functions`` has all
  functions of a variant by their names.

If ``run`` raises, its error is the result, so ``run`` keeps errors itself if there is other state.
``difference`` compares the two results. Input that the compiled function refuses and Python takes,
such as positions outside of the data, is in ``tests/base/test_speedups_arguments.py``.
"""

from __future__ import annotations

import socket
import sys
from array import array
from collections import deque
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from helpers.acks import acks_of
from jetsync._base.deadline import Deadline
from jetsync._base.iterations import one_by_one
from jetsync._base.speedups import TWINS
from jetsync._io.connection import Connection
from jetsync._io.lane import Lane
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import LaneState
from jetsync._io.replies import ReplyRouter
from jetsync._proto import frames, pipeline
from jetsync._proto.frames import SERVER_BUFFER, Splitter
from jetsync._proto.pipeline import Pipeline
from jetsync.consume.consumption import Consumption, TakingStorage
from jetsync.consume.core import ConsumptionCore
from jetsync.consume.fetch import BatchIteration
from jetsync.kv.entry import Entry
from jetsync.values import arrow
from jetsync.values.frame import FrameRun
from jetsync.values.headers import SharedHeaders
from jetsync.values.message import Message, frame_of
from jetsync.values.pub_acks import PubAck
from jetsync.values.stored import StoredMessage, page_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping

    Functions = Mapping[str, Callable[..., Any]]


class Case(Protocol):
    """One function, or some that work together."""

    def draw(self, rng: random.Random) -> Any: ...
    def run(self, functions: Functions, drawn: Any) -> Any: ...


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a call returned, or the type and text of its error."""
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 - all errors are compared.
        return type(error), str(error)


# ---- Bytes as a server sends them, and others ----------------------------------------------------

SIDS: Final = [b"1000000", b"1000001", b"5", b"1000017"]
"""The first three have receivers."""

SUBJECTS: Final = [b"a", b"a.b", b"_INBOX.p.a", b"_INBOX.p.1f", b"_INBOX.p.", b"_INBOX.p.g", b""]
REPLIES: Final = [b"r.1", b"$JS.ACK.S.c.1.2.3.4.5"]
BLOCKS: Final = [b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0 204 EOB\r\n\r\n", b""]
PAYLOADS: Final = [
    b"", b"x", b"hello", b"\r\n", b"\r", b"\n", b"MSG a 5 1\r\nx\r\n", b"\r\nPING\r\n", b"x" * 100,
    b"\0\xff", b"HMSG _INBOX.p.a 1000000 12 12\r\nNATS/1.0\r\n\r\n\r\n", b" 5\r\n", b"y" * 2100,
]  # fmt: skip
LINES: Final = [
    b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'x'\r\n", b'INFO {"a":"MSG b 5 0"}\r\n', b"\r\n",
    b"PING\n\r\n", b"\n", b"x\n\ny\r\n", b"M\r\n", b"H\r\n", b"MSGS a 5 0\r\n", b"MSG\r\n",
    b" MSG a 5 0\r\n", b"HMS\n\r\n",
]  # fmt: skip

# A line is drawn from these words, so most of them are wrong in one or two places.
VERBS: Final = [b"MSG", b"HMSG", b"MSG", b"HMSG", b"msg", b"HMSGS", b"M", b"", b"PING"]
GAPS: Final = [b" ", b" ", b" ", b" ", b" ", b" ", b"  ", b"\t", b"", b"\n"]
NUMBERS: Final = [
    b"0", b"1", b"2", b"5", b"05", b"12", b"007", b"2047", b"2048", b"-1", b"+5", b"1_0", b"", b"x",
    b"0x5", b"\xd9\xa5", b"9" * 18, b"9" * 19, b"0" * 30 + b"3", b"9" * 200, b"67108864",
    b"67108865", b"9223372036854775807", b"9223372036854775808", b"18446744073709551616",
    b"4294967296", b"4294967301", b"2147483647", b"2147483648", b"9999999999", b"10000000000",
]  # fmt: skip
ENDS: Final = [*[b"\r\n"] * 4, b"\n", b"\r", b"", b"\r\r\n", b" \r\n", b"\n\r\n"]

SPICE: Final = [b"\r", b"\n", b" ", b"\r\n", b"M", b"H", b"0", b"9", b"\0", b"\xff", b"MSG ", b"a"]


def sizes_of(rng: random.Random, header: int, whole: int) -> bytes:
    """The sizes on a line, sometimes with zeros before them, or with a header of another size."""
    draw = rng.random()
    if draw < 0.92:
        return b"%d %d" % (header, whole)
    if draw < 0.95:
        return b"%d %d" % (whole + rng.choice([-1, 0, 1, 2, 3]), whole)
    # The widest size that is read in a page, and of a frame, and one digit more.
    width = rng.choice([10, 11, 18, 19])
    return b"%0*d %0*d" % (rng.choice([1, width]), header, rng.choice([1, width]), whole)


def frame(rng: random.Random, sid: bytes, subject: bytes) -> bytes:
    """A frame as a server writes it."""
    payload = rng.choice(PAYLOADS)
    draw = rng.random()
    reply = b" " + rng.choice(REPLIES) if draw < 0.3 else b""
    if draw < 0.6:
        return b"MSG %b %b%b %d\r\n%b\r\n" % (subject, sid, reply, len(payload), payload)
    block = rng.choice(BLOCKS)
    whole = len(block) + len(payload)
    return b"HMSG %b %b%b %b\r\n%b%b\r\n" % (
        subject, sid, reply, sizes_of(rng, len(block), whole), block, payload,
    )  # fmt: skip


def sound_frame(rng: random.Random, sid: bytes, subject: bytes) -> bytes:
    """A frame as a server writes it, whose sizes are right."""
    payload, block = rng.choice(PAYLOADS), rng.choice(BLOCKS)
    reply = b" " + rng.choice(REPLIES) if rng.random() < 0.1 else b""
    if rng.random() < 0.5:
        return b"MSG %b %b%b %d\r\n%b\r\n" % (subject, sid, reply, len(payload), payload)
    return b"HMSG %b %b%b %d %d\r\n%b%b\r\n" % (
        subject, sid, reply, len(block), len(block + payload), block, payload,
    )  # fmt: skip


def odd_line(rng: random.Random) -> bytes:
    """A line with words in wrong places, and perhaps bytes after it."""
    words = [rng.choice(VERBS), rng.choice(SUBJECTS), rng.choice(SIDS)]
    words += [rng.choice(NUMBERS) for _ in range(rng.randrange(4))]
    text = b"".join([part for word in words for part in (word, rng.choice(GAPS))][:-1])
    return text + rng.choice(ENDS) + rng.choice(PAYLOADS) + rng.choice(ENDS)


def stream(rng: random.Random) -> bytes:
    """Some frames and lines."""
    pieces = []
    sid, subject = rng.choice(SIDS), rng.choice(SUBJECTS)
    for _ in range(rng.randrange(1, 7)):
        draw = rng.random()
        if draw < 0.4:
            sid, subject = rng.choice(SIDS), rng.choice(SUBJECTS)
        if draw < 0.8:
            pieces.append(frame(rng, sid, subject))
        elif draw < 0.94:
            pieces.append(rng.choice(LINES))
        else:
            pieces.append(odd_line(rng))
    return b"".join(pieces)


def spoiled(rng: random.Random, data: bytes) -> bytes:
    """Cut, delete, insert or repeat something in some of the data."""
    draw = rng.random()
    if draw < 0.45 or not data:
        return data
    start = rng.randrange(len(data))
    if draw < 0.6:
        return data[:start]
    if draw < 0.7:
        return data[:start] + data[start + rng.randrange(1, 4) :]
    if draw < 0.8:
        return data[:start] + rng.choice(SPICE) + data[start:]
    if draw < 0.93:
        return data[:start] + rng.choice(SPICE) + data[start + 1 :]
    end = start + rng.randrange(1, 40)
    return data[:end] + data[start:end] + data[end:]


def page(rng: random.Random) -> bytes:
    """Messages with one subject, as answers to a direct read, and often something after them."""
    sid, subject = rng.choice(SIDS[:2]), rng.choice(SUBJECTS[2:])
    pieces = []
    for _ in range(rng.randrange(1, 6)):
        block, payload = rng.choice(BLOCKS), rng.choice(PAYLOADS)
        if rng.random() < 0.08:
            sizes = rng.choice(NUMBERS) + rng.choice(GAPS) + rng.choice(NUMBERS)
        else:
            sizes = sizes_of(rng, len(block), len(block) + len(payload))
        pieces.append(b"HMSG %b %b %b\r\n%b%b\r\n" % (subject, sid, sizes, block, payload))
    draw = rng.random()
    if draw < 0.3:
        pieces.append(stream(rng))
    return b"".join(pieces)


# ---- cut, and the splitter -----------------------------------------------------------------------


class RefusedError(Exception):
    """What a receiver raises."""


class Box:
    """
    A receiver that notes what it gets, and does as it is told.

    Its plan has what ``express`` does: a number moves the position, ``None`` takes pages, and an
    error is raised. An error for ``push`` is raised at the given frame.
    """

    def __init__(
        self, sid: bytes, log: list[Any], plan: Any, fails_at: int, functions: Functions
    ) -> None:
        self.sid, self.log, self.fails_at = sid, log, fails_at
        self.plan = deque(plan or ())
        self.take_page = functions["take_page"]
        self.express = None if plan is None else self._express
        if fails_at < 0:
            # As in jetsync: a method of a built-in type.
            self.frames: list[Any] = []
            log.append(self.frames)
            self.push = self.frames.append
        else:
            self.push = self._push

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and other.sid == self.sid

    __hash__ = None

    def __repr__(self) -> str:
        return f"<{self.sid!r}>"

    def _push(self, frame: Any) -> None:
        self.log.append((self.sid, frame))
        self.fails_at -= 1
        if self.fails_at < 0:
            raise RefusedError("no frame")

    def _express(self, data: bytes, position: int) -> int:
        step = self.plan.popleft() if self.plan else 0
        self.log.append((self.sid, "express", position))
        if step is None:
            while found := self.take_page(data, position, b"_INBOX.p.", self.sid):
                self.log.append((self.sid, found))
                position = found[2]
            return position
        if isinstance(step, Exception):
            raise step
        return position + step


def boxes_of(drawn: Any, log: list[Any], functions: Functions) -> dict[bytes, Box]:
    """Make new receivers."""
    return {
        sid: Box(sid, log, plan, fails_at, functions)
        for sid, (plan, fails_at) in zip(SIDS, drawn, strict=False)
    }


def draw_boxes(rng: random.Random) -> list[tuple[list[Any] | None, int]]:
    """Draw what the receivers do."""
    drawn: list[tuple[list[Any] | None, int]] = []
    for _ in range(3):
        plan: list[Any] | None = None
        draw = rng.random()
        if draw < 0.25:
            plan = [None] * 3
        elif draw < 0.4:
            steps = [0, 0, 1, 7, 30, 200, 100_000, -1, -1000, 1 << 40, None, RefusedError("no run")]
            plan = rng.choices(steps, k=3)
        drawn.append((plan, rng.randrange(4) if rng.random() < 0.03 else -1))
    return drawn


class Cut:
    """One call of ``cut``."""

    def draw(self, rng: random.Random) -> Any:
        data = spoiled(rng, stream(rng) if rng.random() < 0.7 else page(rng))
        return data, draw_boxes(rng), rng.choice([2047, 2048, 1 << 20, SERVER_BUFFER, 1 << 62])

    def run(self, functions: Functions, drawn: Any) -> Any:
        data, plans, limit = drawn
        log: list[Any] = []
        touched: list[Any] = []
        foreign: list[bytes] = []
        boxes = boxes_of(plans, log, functions)
        result = outcome(functions["cut"], data, boxes, touched, foreign, limit)
        return result, log, touched, foreign


class Feed:
    """A splitter that gets the same bytes in pieces, often byte by byte."""

    def draw(self, rng: random.Random) -> Any:
        data = spoiled(rng, stream(rng) if rng.random() < 0.7 else page(rng))
        if len(data) < 120 and rng.random() < 0.5:
            pieces = [data[i : i + 1] for i in range(len(data))]
        else:
            places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 6)))
            pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
        return pieces, draw_boxes(rng)

    def run(self, functions: Functions, drawn: Any) -> Any:
        pieces, plans = drawn
        log: list[Any] = []
        touched: list[Any] = []
        foreign: list[bytes] = []
        splitter = Splitter(boxes_of(plans, log, functions))
        before, frames.cut = frames.cut, functions["cut"]
        error = None
        try:
            for piece in pieces:
                error = outcome(splitter.feed, piece, touched, foreign)
                if error is not None:
                    break
        finally:
            frames.cut = before
        kept = splitter.strays, b"".join(splitter._parts), splitter._parts_size, splitter._wanted
        return error, log, touched, foreign, kept


# ---- Pages ---------------------------------------------------------------------------------------


class Made(StoredMessage):
    """A subclass with storage of its own."""


class Pages:
    """``take_page`` on a page, and ``stored_of_run`` on what it found."""

    def draw(self, rng: random.Random) -> Any:
        data = spoiled(rng, page(rng))
        position = 0
        if rng.random() < 0.3:
            data, position = b"PING\r\n" + data, rng.choice([0, 5, 6, 7, len(data), 1 << 40])
        prefix = rng.choice([b"_INBOX.p.", b"_INBOX.p.", b"_INBOX.", b"_INBOX.p.a", b"", b"x" * 50])
        sid = rng.choice([*SIDS[:2], *SIDS[:2], b"", b"100000"])
        return data, position, prefix, sid, rng.random() < 0.2

    def run(self, functions: Functions, drawn: Any) -> Any:
        data, position, prefix, sid, own = drawn
        kind = Made if own else StoredMessage
        found = functions["take_page"](data, position, prefix, sid)
        if found is None:
            return None
        made = functions["stored_of_run"](kind, data, found[1])
        return found, [(type(each), each._block, each.data) for each in made]


class Stored:
    """``stored_of_run`` on any positions inside of the data."""

    def draw(self, rng: random.Random) -> Any:
        size = rng.randrange(60)
        places = [rng.randrange(size + 1) for _ in range(rng.choice([0, 3, 3, 6, 30, 31, 32]))]
        bounds = array("i")
        for i in range(0, len(places), 3):
            bounds.extend(sorted(places[i : i + 3]))
        return rng.randbytes(size), bounds

    def run(self, functions: Functions, drawn: Any) -> Any:
        data, bounds = drawn
        bounds = bounds[:]
        made = functions["stored_of_run"](StoredMessage, data, bounds)
        fields = "_block", "data", "_headers", "_parts"
        return bounds, [[getattr(each, name, None) for name in fields] for each in made]


SERVER_LINES: Final = [
    b"Nats-Stream: S", b"Nats-Subject: a.b", b"Nats-Sequence: 5",
    b"Nats-Time-Stamp: 2026-11-20T16:38:27.709983862Z", b"Nats-Num-Pending: 3",
    b"Nats-Last-Sequence: 4",
]  # fmt: skip
OWN_LINES: Final = [
    b"A: 1", b"A: 2", b"B:x", b"B:  y ", b"a: 1", b"C:", b": d", b" continued", b"\tcontinued",
    b"no colon", b"E: 1: 2", b"\xc3\xbc: \xc3\xbc", b"F: \xff", b"\xbc: x", b"G: \xc3", b"",
    b"Nats-Stream: X", b"Nats-Sequence: 9", b"H: \r", b"Nats-Subject: c", b"a: bc",
]  # fmt: skip
FIRST_LINES: Final = [b"NATS/1.0"] * 8 + [b"N", b"", b"A: 1", b"NATS/1.0 503 No", b"NATS/2.0"]
SUBJECT_LINES: Final = [b"\xc3\xbc", b"\xff", b"a b", b"", b"x" * 50]
SEQUENCES: Final = [
    b"0", b"1", b"007", b"9223372036854775807", b"9223372036854775808", b"18446744073709551615",
    b"99999999999999999999", b"-1", b"+1", b"", b"1_0", b" 1", b"0" * 18 + b"1", b"0" * 19 + b"1",
]  # fmt: skip
TIMES: Final = [
    b"2024-02-29T00:00:00Z", b"2023-02-29T00:00:00Z", b"1969-12-31T23:59:59.000000001Z",
    b"2026-12-31T23:59:60Z", b"2026-11-20T16:38:27.Z", b"2026-11-20T16:38:27.1234567890Z",
    b"1677-12-31T23:59:59Z", b"1678-01-01T00:00:00Z", b"2261-12-31T23:59:59.999999999Z",
    b"2262-01-01T00:00:00Z", b"0001-01-01T00:00:00Z", b"2026-11-20T16:38:27+00:00",
    b"2100-02-28T23:59:59.5Z", b"2100-02-29T00:00:00Z", b"2026-13-01T00:00:00Z", b"x",
    b"2026-11-20 16:38:27Z", b"2026-11-20T24:00:00Z", b"2026-04-31T00:00:00Z",
]  # fmt: skip


class Columns:
    """
    A table of a page, whose columns are made by ``columns``, or message by message without them.

    The variants may leave out different columns, so that only the table is compared.
    """

    def draw(self, rng: random.Random) -> Any:
        data, bounds = b"earlier", array("i")
        for _ in range(rng.randrange(1, 5)):
            own = rng.choices(OWN_LINES, k=rng.choice([0, 0, 1, 2, 5]))
            lines = [rng.choice(FIRST_LINES), *own]
            server = list(SERVER_LINES)
            draw = rng.random()
            if draw < 0.1:
                server[1] = b"Nats-Subject: " + rng.choice(SUBJECT_LINES)
            elif draw < 0.25:
                server[2] = b"Nats-Sequence: " + rng.choice(SEQUENCES)
            elif draw < 0.45:
                server[3] = b"Nats-Time-Stamp: " + rng.choice(TIMES)
            elif draw < 0.5:
                rng.shuffle(server)
            elif draw < 0.55:
                server.pop(rng.randrange(len(server)))
            block = b"\r\n".join([*lines, *server, b"", b""])
            if rng.random() < 0.08:
                block = spoiled(rng, block)
            payload = rng.choice(PAYLOADS)
            data += b"HMSG a 5 1 1\r\n"
            bounds.extend([len(data), len(data) + len(block)])
            data += block + payload
            bounds.append(len(data))
        names = ["subject", "data", "sequence", "timestamp", "headers"]
        rng.shuffle(names)
        # The runs of a page have data of their own, or share it.
        place = 3 * rng.randrange(len(bounds) // 3)
        shift = bounds[place] if rng.random() < 0.5 else 0
        second = array("i", [each - shift for each in bounds[place:]])
        runs = [(data, bounds[:place]), (data[shift:], second)]
        return [run for run in runs if run[1]], names

    def run(self, functions: Functions, drawn: Any) -> Any:
        runs, names = drawn
        before, arrow.columns = arrow.columns, functions["columns"]
        try:
            page = page_of([FrameRun(b"a", data, bounds[:]) for data, bounds in runs])
            batch = page.to_arrow(names)
            batch.validate(full=True)
            # As integers, because Python has no nanoseconds.
            if "timestamp" in names:
                place = names.index("timestamp")
                batch = batch.set_column(place, "timestamp", batch["timestamp"].cast("int64"))
            return batch.to_pydict()
        finally:
            arrow.columns = before


# ---- Messages ------------------------------------------------------------------------------------


class OwnMessage(Message):
    """A subclass with storage of its own."""

    own = "nothing"


class Maker:
    """``plain_maker``, and the messages that it makes."""

    def draw(self, rng: random.Random) -> Any:
        made = []
        for _ in range(rng.randrange(1, 5)):
            header = rng.choice([None, *BLOCKS])
            made.append((rng.choice(SUBJECTS), rng.choice(REPLIES), header, rng.choice(PAYLOADS)))
        kind = rng.choice([Message, Message, OwnMessage])
        return kind, rng.choice([None, "acker"]), made

    def run(self, functions: Functions, drawn: Any) -> Any:
        kind, acker, made = drawn
        make = functions["plain_maker"](kind, acker)
        found = []
        for each in made:
            message = make(each)
            fields = message.subject, message.raw_reply, message.raw_headers, message.data
            message.own = fields if kind is OwnMessage else None if hasattr(message, "own") else 0
            found.append((type(message), fields, message._acker, getattr(message, "_headers", 0)))
        return found


class Origins:
    """``are_own``, with frames of one consumer and of others."""

    def draw(self, rng: random.Random) -> Any:
        prefix = rng.choice([b"", b"$JS.ACK.S.C.", b"$JS.ACK.a.b.S.C.", b"\xff"])
        numbers = [b"", b"1", b"9.9", b"10.10", b"\xff\xff", b"\0"]
        own = [(b"a", prefix + rng.choice(numbers), None, b"") for _ in range(rng.randrange(6))]
        if rng.random() < 0.5:
            other = rng.choice([b"", prefix[:-1], b"$JS.ACK.S.D.1", b"$JS.ACK.S.", *REPLIES])
            own.insert(rng.randrange(len(own) + 1), (b"a", other, rng.choice(BLOCKS), b"x"))
        return own, prefix

    def run(self, functions: Functions, drawn: Any) -> Any:
        return functions["are_own"](*drawn)


def is_python(functions: Functions) -> bool:
    """Whether these are the functions in Python, which also call the methods in Python."""
    return functions["plain_maker"] is TWINS["plain_maker"]


class Acker:
    """``_take_acker`` of messages, in turn with changes of their fields."""

    def draw(self, rng: random.Random) -> Any:
        replies = [b"", b"$JS.ACK", b"$JS.ACK.", b"$JS.ACKS.a", Reply(b"$JS.ACK.a"), None, *REPLIES]
        steps = ["take", "take", "take", "keep", "delete", "set", "none", "reply", "no reply"]
        return (
            rng.choice([Message, OwnMessage]),
            rng.choice(replies),
            rng.choice([None, "acker", "acker", "acker"]),
            [(rng.choice(steps), rng.choice(replies)) for _ in range(rng.randrange(1, 8))],
        )

    def run(self, functions: Functions, drawn: Any) -> Any:
        kind, reply, acker, steps = drawn
        message = kind(b"a", reply, None, b"", acker)
        take = message._take_acker_or_raise if is_python(functions) else message._take_acker

        def step(name: str, other: Any) -> Any:
            if name == "take":
                return take()
            if name == "keep":
                return message._take_acker_or_raise(keep=True)
            if name == "delete":
                del message._acker
            elif name == "no reply":
                del message._raw_reply
            elif name == "reply":
                message._raw_reply = other
            else:
                message._acker = None if name == "none" else "another"
            return message.is_acked

        return [(outcome(step, *each), getattr(message, "_acker", "taken")) for each in steps]


class Reply(bytes):
    """A reply subject that is no plain bytes object."""

    __slots__ = ()

    def startswith(self, *_: Any) -> bool:
        return False


class Core:
    """
    Stands for the core of a consumption, and notes how it is called.

    Each call that would read the socket does what comes next in the plan: it adds frames to the
    buffer and sets the mark. Without a plan, the consumption is at its end.
    """

    pool = None
    make_taken = ConsumptionCore.make_taken

    def __init__(self, plan: list[tuple[list[Any], int]], make: Callable[..., Any]) -> None:
        self.buffer: deque[Any] = deque()
        self.oldest = one_by_one(deque.popleft, self.buffer)
        self.low = [-1]
        self.make = make
        self.plan = deque(plan)
        self.log: list[Any] = []
        self.reading = self

    def _go_on(self, name: str) -> bool:
        self.log.append((name, len(self.buffer)))
        if not self.plan:
            return False
        found, self.low[0] = self.plan.popleft()
        self.buffer.extend(found)
        return True

    def refill(self) -> None:
        self._go_on("refill")

    def wait_for_frame(self, deadline: None) -> bool:
        while not self.buffer:
            if not self._go_on("wait"):
                return False
        return deadline is None

    def end_loop(self) -> None:
        self.log.append("end")
        raise StopIteration

    def put_back(self, frame: Any, error: BaseException) -> None:
        self.log.append(("put back", frame, type(error)))

    def make_failed(self, error: BaseException) -> None:
        self.log.append((type(error), str(error)))

    def fork(self) -> None:
        """Replace what a forked child replaces, in the same order."""
        self.buffer = deque([(b"forked", b"", None, b"")])
        self.oldest = one_by_one(deque.popleft, self.buffer)
        self.low[0], self.low = sys.maxsize, [-1]


def consumption_on(base: type) -> type:
    """Return a class like `Consumption` with one of the two base classes."""

    class Taker(base):  # type: ignore[misc, valid-type]
        _auto_ack = False
        _take_next = Consumption._take_next
        if not hasattr(base, "__next__"):
            __next__ = Consumption._take_next

        def __init__(self, core: Core) -> None:
            self._core = core
            self._quick = core.buffer, core.buffer.popleft, core.low, core.make, None

    return Taker


TAKERS: Final = [consumption_on(TWINS["TakingStorage"]), consumption_on(TakingStorage)]
"""In Python, and compiled."""


class Fetched:
    """Stands for the fetch of a batch, on the core of a consumption."""

    source = error = None

    def __init__(self, core: Core, *, wants_acks: bool) -> None:
        self.core = core
        core.engine = core
        self.wants_acks = wants_acks
        self.yielded: list[Any] = []

    def wait(self, _: object) -> bool:
        return self.core.wait_for_frame(None)

    def prune(self) -> None:
        # Without a change of the mark, the compiled variant has more of them.
        pass

    def leave(self, _: object, error: BaseException | None = None) -> None:
        pass

    def end(self, _: object, error: BaseException | None) -> None:
        self.core.log.append(("end", type(error)))


def batch_on(base: type) -> type:
    """Return a class like `BatchIteration` with one of the two base classes."""

    class Taker(base):  # type: ignore[misc, valid-type]
        is_over = False
        _take_next = BatchIteration._take_next
        _make, _end = BatchIteration._make, BatchIteration._end
        if not hasattr(base, "__next__"):
            __next__ = BatchIteration._take_next

        def __init__(self, fetch: Fetched) -> None:
            core, self._fetch, self._batch = fetch.core, fetch, None
            self._reading = SimpleNamespace(free=[None])
            self._reading.entry = one_by_one(list.pop, self._reading.free)
            record = fetch.yielded if fetch.wants_acks else None
            self._quick = core.buffer, core.buffer.popleft, core.low, core.make, record

    return Taker


BATCHES: Final = [batch_on(TWINS["TakingStorage"]), batch_on(TakingStorage)]
"""In Python, and compiled."""


class Take:
    """The iteration of a consumption, whose core adds frames and moves the mark."""

    def draw(self, rng: random.Random) -> Any:
        plan = []
        for _ in range(rng.randrange(1, 6)):
            found = [
                (b"%d" % rng.randrange(100), rng.choice(REPLIES), rng.choice([None, *BLOCKS]), b"x")
                for _ in range(rng.choice([0, 0, 1, 2, 3, 8]))
            ]
            plan.append((found, rng.choice([-1, -1, 0, 1, 2, 5, 1 << 40, sys.maxsize])))
        steps = rng.choices(["next", "mark", "clear", "fork"], [40, 4, 1, 1], k=25)
        return (
            plan,
            rng.choice(["plain", "plain", "plain", "application"]),
            # The frame of which the maker of the application makes nothing.
            rng.randrange(12),
            [(step, rng.choice([-1, 0, 1, 3, sys.maxsize])) for step in steps],
        )

    def run(self, functions: Functions, drawn: Any) -> Any:
        plan, maker, fails_at, steps = drawn
        plain, number = functions["plain_maker"](Message, "acker"), count()

        def make(frame: Any) -> Any:
            if next(number) == fails_at:
                raise RefusedError("no message")
            return plain(frame)

        core = Core(plan, plain if maker == "plain" else make)
        taker = TAKERS[not is_python(functions)](core)
        found: list[Any] = []
        for step, mark in steps:
            if step == "next":
                taken = outcome(next, taker)
                if isinstance(taken, Message):
                    taken = frame_of(taken), taken._acker
                found.append(taken)
            elif step == "mark":
                core.low[0] = mark
            elif step == "clear":
                core.buffer.clear()
            else:
                core.fork()
            found.append((list(core.buffer), list(core.low)))
        return found, core.log, list(core.plan)


class TakeFetched:
    """The iteration of a batch, and what it records."""

    def draw(self, rng: random.Random) -> Any:
        plan, maker, fails_at, steps = Take().draw(rng)
        return plan, maker, fails_at, steps, rng.random() < 0.7

    def run(self, functions: Functions, drawn: Any) -> Any:
        plan, maker, fails_at, steps, wants_acks = drawn
        plain, number = functions["plain_maker"](Message, "acker"), count()

        def make(frame: Any) -> Any:
            if next(number) == fails_at:
                raise RefusedError("no message")
            return plain(frame)

        fetch = Fetched(Core(plan, plain if maker == "plain" else make), wants_acks=wants_acks)
        core = fetch.core
        taker = BATCHES[not is_python(functions)](fetch)
        found: list[Any] = []
        for step, mark in steps:
            if step == "next":
                taken = outcome(next, taker)
                if isinstance(taken, Message):
                    assert not wants_acks or fetch.yielded[-1] is taken
                    taken = frame_of(taken), taken._acker
                found.append(taken)
            elif step == "mark":
                core.low[0] = mark
            elif step == "clear":
                core.buffer.clear()
            else:
                core.fork()
            found.append((list(core.buffer), list(core.low), len(fetch.yielded), taker.is_over))
        return found, core.log, list(core.plan)


# ---- Frames of messages that are published -------------------------------------------------------


class Text(str):
    """A subject that is no plain string."""

    __slots__ = ()


class Pair(tuple):
    """A pair that is no plain tuple."""

    __slots__ = ()


TARGETS: Final = {"a": b"a", "a.b": b"a.b", "\u00fc": "\u00fc".encode(), "s%": b"s%"}
OTHERS: Final = [
    ("unknown", b"x"), ("a", "text"), ("a", bytearray(b"x")), ("a", memoryview(b"x")), ("a", None),
    ("a", b"x", None), ("a",), (), ["a", b"x"], None, 5, (5, b"x"), (None, b"x"), (b"a", b"x"),
    Pair(("a", b"x")), (Text("a"), b"x"), ("\ud800", b""), ((), b""), ([], b""), "ab", b"ab",
]  # fmt: skip
SHARED_HEADERS: Final = SharedHeaders({"A": "100%", "B": ["1", "2"]})
DATA: Final = [b"", b"x", b"hello", b"100%", b"\r\n", b"z" * 300]


class Encode:
    """``Stage.extend`` on all kinds of items, and what it leaves in the iterator."""

    def draw(self, rng: random.Random) -> Any:
        items: list[Any] = []
        for _ in range(rng.randrange(9)):
            if rng.random() < 0.9:
                items.append((rng.choice(list(TARGETS)), rng.choice(DATA)))
            else:
                items.append(rng.choice(OTHERS))
        shared_headers = rng.random() < 0.3
        number = rng.choice([0, 1, 7, 99, 100, 1 << 40])
        return (
            items,
            # What the iterator does at its end, and once before.
            rng.choice([None, None, None, RefusedError("no item"), "clears", "appends"]),
            rng.randrange(6),
            rng.choice([b"_INBOX.r.", b"", b"%d."]),
            rng.choice([b"", b".s"]),
            number,
            number + rng.choice([-1, 0, 1, 2, 5, 100]),
            rng.choice([0, 10, 400, 1 << 17]),
            rng.choice([-1, 0, 5, 299, 1 << 20]),
            SHARED_HEADERS.block if shared_headers else b"",
            SHARED_HEADERS if shared_headers else None,
        )

    def run(self, functions: Functions, drawn: Any) -> Any:
        items, act, place, prefix, suffix, number, *rest = drawn
        in_flight, targets = {3: "before"}, dict(TARGETS)
        stage = functions["Stage"](targets, suffix)
        stage.begin(prefix)
        stage.allow(number, 0, 0, 1000)

        def iterate() -> Iterator[Any]:
            for index, item in enumerate(items):
                if index == place and act is not None:
                    if isinstance(act, Exception):
                        raise act
                    if act == "clears":
                        targets.clear()
                    else:
                        stage.append(b"another")
                        targets["unknown"] = b"unknown"
                yield item

        iterator = iter(items) if act is None else iterate()
        found = outcome(stage.extend, iterator, *rest)
        if isinstance(found, tuple) and len(found) == 2:
            # True, False or None, and not an equal number. The very item, and not an equal one.
            found = (*found, type(found[0]), id(found[1]))
        state = stage.last, stage.count, stage.size, stage.places, stage.take(in_flight)
        return found, state, in_flight, targets, outcome(list, iterator)


# ---- Acks of messages that are published ---------------------------------------------------------

PLAIN_STARTS: Final = [b'{"stream":"S","seq":', b'{"stream":"a.%d*","seq":', b'x"seq":', b"{", b""]
ACK_TOKENS: Final = [
    b"0", b"1", b"01", b"5", b"12", b"-1", b"+1", b"1_0", b" 1", b"", b"x", b"\xd9\xa1",
    b"9" * 18, b"9" * 19, b"9" * 20, b"0" * 18 + b"1", b"0" * 19 + b"1", b"0" * 20 + b"1",
    b"18446744073709551615", b"18446744073709551616", b"9223372036854775808", b"1" * 21,
]  # fmt: skip
OTHER_ACKS: Final = [
    b'{"stream":"S","seq":7,"duplicate": true}', b'{"error":{"code":400,"err_code":10071}}', b"",
    b'{"stream":"T","seq":7}', b'{"stream":"S","seq":7', b'{"stream":"S", "seq":7}', b"}\r\n", b"}",
    b'{"stream":"S","seq":8]', b"x}\r\n\r\nMSG _INBOX.p.1 5 2\r\n{}",
]  # fmt: skip
ITEMS: Final = [None, 0, "", ("a", b"x"), ["a", b"x"]]


def token(rng: random.Random, most: int) -> bytes:
    """The number of a message or a sequence, or something else."""
    return b"%d" % rng.randrange(most) if rng.random() < 0.97 else rng.choice(ACK_TOKENS)


def draw_in_flight(rng: random.Random) -> dict[int, Any]:
    """Messages in flight."""
    found = {number: f"m{number}" for number in range(30) if rng.random() < 0.8}
    odd = [0, 1, 5, 10**18 - 1, 10**19 - 1, 10**20 - 1, 1 << 64]
    for _ in range(rng.randrange(3)):
        found[rng.choice(odd)] = rng.choice(ITEMS)
    return found


def books(pipeline: Pipeline[Any]) -> Any:
    """What a pipeline says about its messages."""
    failed = [(number, item, str(error)) for number, item, error in pipeline.failed]
    tally = pipeline.tally
    return (
        list(pipeline.in_flight.items()), pipeline.acked, failed, list(pipeline.refused), tally,
        tally.streams, pipeline.plain,
    )  # fmt: skip


def read_runs(answers: list[Any]) -> list[Any]:
    """Return answers with the acks of runs, which each variant stores in its own form."""
    return [acks_of(each) if isinstance(each, list) else each for each in answers]


class Acks:
    """Acks that are received in pieces, taken in runs by ``ack_taker``, and ended by a pipeline."""

    def draw(self, rng: random.Random) -> Any:
        plain = rng.choice(PLAIN_STARTS[:2] if rng.random() < 0.8 else PLAIN_STARTS)
        sid = rng.choice(SIDS)
        noise, digits = rng.choice([0.0, 0.0, 0.02, 0.2]), rng.choice([1, 2, 3, 19])
        first = rng.choice([0, 0, 0, 5, 10**18 - 2])
        pieces = []
        for number in range(first, first + rng.choice([1, 2, 3, 8, 30])):
            if rng.random() < noise:
                pieces.append(rng.choice([odd_line(rng), frame(rng, sid, b"_INBOX.p.1")]))
            if rng.random() < noise:
                data = rng.choice(OTHER_ACKS)
            elif rng.random() < noise:
                data = plain + token(rng, 100) + rng.choice([b"}", b"}", b"]", b""])
            else:
                data = b"%b%0*d}" % (plain, digits, number % 10**digits)
            name = token(rng, 30) if rng.random() < 0.1 else b"%d" % number
            size = b"%d" % len(data)
            if rng.random() < noise:
                size = rng.choice([b"0%b" % size, b"%d" % (len(plain) + digits + 1)])
                data = rng.choice([data, plain + b"%d}" % rng.randrange(10**5)])
            pieces.append(b"MSG _INBOX.p.%b %b %b\r\n%b\r\n" % (name, sid, size, data))
        data = b"".join(pieces)
        if rng.random() < 0.4:
            data = spoiled(rng, data)
        places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 0, 1, 3])))
        parts = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
        # A pipeline that has not learned how plain acks start takes none of them in runs.
        learned = rng.choice([plain, plain, plain, b'{"stream":"S","seq":', b""])
        return parts, sid, plain, learned, draw_in_flight(rng), rng.random() < 0.5

    def run(self, functions: Functions, drawn: Any) -> Any:
        parts, sid, plain, learned, entries, keeps = drawn
        answers: list[Any] = []
        box = SimpleNamespace(push=answers.append)
        box.express = functions["ack_taker"](box.push, b"_INBOX.p.", sid, plain)
        engine: Pipeline[Any] = Pipeline(b"_INBOX.p.", keep_acks=keeps)
        engine.enter(entries.items())
        engine.plain = learned
        touched: list[Any] = []
        foreign: list[bytes] = []
        splitter, log = Splitter({sid: box}), []
        before = frames.cut, pipeline.end_acks
        frames.cut, pipeline.end_acks = functions["cut"], functions["end_acks"]
        error = None
        try:
            for part in parts:
                error = outcome(splitter.feed, part, touched, foreign)
                log.append((read_runs(answers), splitter.strays))
                engine.receive(answers)
                answers.clear()
                if error is not None:
                    break
        finally:
            frames.cut, pipeline.end_acks = before
        return error, log, len(touched), foreign, books(engine)


class Ended:
    """One call of ``end_acks``."""

    def draw(self, rng: random.Random) -> Any:
        plain = rng.choice(PLAIN_STARTS)
        answers: list[Any] = []
        for _ in range(rng.randrange(8)):
            if rng.random() < 0.4:
                pairs = [(token(rng, 40), token(rng, 1 << 40)) for _ in range(rng.randrange(8))]
                pairs = [pair for pair in pairs if all(1 <= len(t) <= 19 for t in pair)]
                answers.append([pair for pair in pairs if all(t.isdigit() for t in pair)])
            else:
                data = plain + token(rng, 100) + rng.choice([*[b"}"] * 9, b"]", b""])
                if rng.random() < 0.1:
                    data = rng.choice(OTHER_ACKS)
                header = rng.choice([None, None, BLOCKS[0]])
                subject = rng.choice([b"_INBOX.p.", b"_INBOX.p.", b"_INBOX.", b"other.p.0"])
                answers.append((subject + token(rng, 40), b"", header, data))
        cut = rng.choice([9, 9, 9, 9, 0, 7, 10, 50])
        return answers, cut, plain, draw_in_flight(rng), rng.choice([None, []])

    def run(self, functions: Functions, drawn: Any) -> Any:
        answers, cut, plain, in_flight, acked = drawn
        in_flight, acked = dict(in_flight), None if acked is None else ["before"]
        iterator = iter([each[:] if isinstance(each, list) else each for each in answers])
        found = outcome(functions["end_acks"], in_flight, iterator, cut, plain, acked)
        return found, list(in_flight.items()), acked, list(iterator)


# ---- Messages that are staged --------------------------------------------------------------------

TARGETS: Final = {"a": b"a", "a.b": b"a.b", "\u00fc": "\u00fc".encode(), "": b"", "%d": b"%d"}
STAGED: Final = [*PAYLOADS, *BLOCKS, "text", None, bytearray(b"x"), 5, b"%b"]
LASTS: Final = [0, 0, 1, 7, 98, 99, 10**18 - 2, (1 << 62) - 100]


def draw_parts(rng: random.Random) -> list[Any]:
    """Draw subjects, header blocks and payloads of some messages."""
    return [
        (rng.choice(list(TARGETS.values())), rng.choice(BLOCKS), rng.choice(PAYLOADS))
        for _ in range(rng.randrange(5))
    ]


class Staged:
    """The life of a stage: its methods in any order, with all state after each of them."""

    def draw(self, rng: random.Random) -> Any:
        steps: list[tuple[Any, ...]] = []
        for _ in range(rng.randrange(1, 40)):
            draw = rng.random()
            if draw < 0.6:
                subject = rng.choice([*TARGETS, "a", "a", "new", b"a", None])
                header = [rng.choice(BLOCKS)] if rng.random() < 0.6 else []
                entry = [rng.choice([None, "entry", ()])] if header and rng.random() < 0.7 else []
                steps.append(("stage", subject, rng.choice(STAGED), *header, *entry))
            elif draw < 0.65:
                target, data = rng.choice(list(TARGETS.values())), rng.choice(PAYLOADS)
                steps.append(("add", target, data, rng.choice(BLOCKS), rng.choice([None, "added"])))
            elif draw < 0.67:
                steps.append(("add_all", draw_parts(rng), rng.choice([-1, 0, 1, 50, 1 << 62])))
            elif draw < 0.7:
                steps.append(
                    ("permit", rng.choice([-1, 0, 3, 9, 50, *LASTS]), rng.choice([-1, 5, 100]))
                )
            elif draw < 0.75:
                places, small = (
                    rng.choice([-1, 0, 1, 2, 9, 99]),
                    rng.choice([-1, 0, 1, 5, 100, 5000]),
                )
                most = rng.choice([-1, 0, 1, 50, 1 << 62])
                steps.append(("allow", rng.choice(LASTS), places, small, most))
            elif draw < 0.8:
                entry = rng.choice([[], [None], ["appended"]])
                steps.append(("append", rng.choice(PAYLOADS), *entry))
            elif draw < 0.81:
                begin = rng.choice(["begin", "begin_in_headers"])
                steps.append((begin, rng.choice(REPLIES)))
            elif draw < 0.83:
                steps.append((rng.choice(["learn", "forget"]),))
            else:
                names = ["take", "enter", "enter", "written", "close", "close_if_empty", "stop"]
                steps.append((rng.choice(names),))
        begin = rng.choice(["begin", "begin_in_headers"]), rng.choice([b"", b"_INBOX.p.", b"%b"])
        return rng.choice([b"", b".1.$FI", b"%d%%"]), begin, steps

    def run(self, functions: Functions, drawn: Any) -> Any:
        suffix, begin, steps = drawn
        targets, in_flight, log = dict(TARGETS), {}, []
        stage = functions["Stage"](targets, suffix)
        for name, *arguments in (begin, ("allow", 0, 9, 100, 5000), *steps):
            if name == "learn":
                targets["new"] = b"new"
            elif name == "forget":
                targets.clear()
            else:
                if name == "enter":
                    found = outcome(stage.take, in_flight)
                elif name == "add_all":
                    messages = iter(arguments[0])
                    found = outcome(stage.add_all, messages, arguments[1])
                    log.append(list(messages))
                else:
                    found = outcome(getattr(stage, name), *arguments)
                log.append((found, type(found)))
            log.append((stage.last, stage.count, stage.size, stage.places))
            log.append((stage.fresh, stage.taken, stage.done, dict(in_flight)))
        return log, stage.take()


# ---- Frozen objects ------------------------------------------------------------------------------


class Frozen:
    """``maker`` for the classes that it makes, with any values."""

    def draw(self, rng: random.Random) -> Any:
        kind = rng.choice([PubAck, Entry])
        return kind, [rng.choice(ITEMS) for _ in attrs.fields(kind)]

    def run(self, functions: Functions, drawn: Any) -> Any:
        kind, values = drawn
        made = functions["maker"](kind, tuple(attrs.fields_dict(kind)))(*values)
        return type(made), repr(made), attrs.astuple(made, recurse=False)


# ---- Requests ------------------------------------------------------------------------------------


class EndingLoop:
    """A loop of the calling thread, which reads and writes everything. It only ends connections."""

    def __init__(self) -> None:
        self.lane: Lane

    def call_soon_threadsafe(self, call: Callable[..., Any], *_: Any, **options: Any) -> None:
        if call == self.lane._drain_control and b"" in self.lane._control:
            self.lane.detach()

    def call_later(self, *arguments: Any) -> None: ...
    def add_reader(self, *arguments: Any) -> None: ...
    def remove_reader(self, *arguments: Any) -> None: ...


class Asked:
    """
    Requests through ``Connection.exchange``, with what the server says before each of them.

    The variant in Python is what ``exchange`` does without a shortcut.
    """

    def draw(self, rng: random.Random) -> Any:
        steps = []
        count = rng.randrange(1, 6)
        for number in range(1, count + 1):
            # Only what the server says last may be wrong, because the connection ends after it.
            make = frame if number == count else sound_frame
            address = b"_INBOX.p.%x" % number
            said = b""
            while rng.random() < 0.3:
                subject = rng.choice([b"_INBOX.p.1", b"_INBOX.p.ff", b"a", address])
                sid = rng.choice([b"5", SIDS[3]])
                said += rng.choice([make(rng, sid, subject), b"PING\r\n"])
            answer = make(rng, SIDS[0], address)
            if rng.random() < 0.1:
                answer = b"MSG %b %b 9000\r\n%b\r\n" % (address, SIDS[0], b"z" * 9000)
            said += answer
            if rng.random() < 0.05:
                said += rng.choice([make(rng, SIDS[0], address), b"PING\r\n"])
            if number == count:
                said = spoiled(rng, said)
            before = rng.choice(["", "", "", "", "ack", "post", "watch"])
            steps.append((before, rng.choice([None, b"", BLOCKS[1]]), rng.choice(PAYLOADS), said))
        return steps

    def run(self, functions: Functions, drawn: Any) -> Any:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        loop, router, box = EndingLoop(), ReplyRouter(b"_INBOX.p"), Mailbox()
        loop.lane = lane = Lane(loop, lambda _: None)
        log: list[Any] = []
        box.interest = b"s"
        lane.subscriptions.listen(SIDS[0], router)
        lane.subscriptions.listen(b"5", box)
        parts = lane, lane.outbox, lane.reader, router
        connection = Connection.__new__(Connection)
        connection.session = SimpleNamespace(
            lane=lane, router=router, forked=False, probe=lambda: None,
            ask=functions["asker"](*parts, SIDS[0], LaneState.OPEN),
            state=SimpleNamespace(server=SimpleNamespace(max_payload=1 << 20), refusals=set()),
        )  # fmt: skip
        before, frames.cut = frames.cut, functions["cut"]
        try:
            lane.attach(ours)
            lane.open()
            lane.reader._gate.unwatch()
            for event, header, payload, said in drawn:
                if event == "ack":
                    lane.ack(b"r", 20.0)
                elif event == "post":
                    lane.post(b"PING\r\n", 20.0)
                elif event == "watch":
                    lane.reader._gate.watch()
                theirs.sendall(said)
                if len(log) == 3 * len(drawn) - 3:
                    theirs.shutdown(socket.SHUT_WR)
                deadline = Deadline.after(20.0)
                answer = outcome(connection.exchange, b"a.b", header, payload, deadline)
                log.append((answer, outcome(theirs.recv, 1 << 20), lane.outbox.bytes_out))
                log.append((lane.strays, list(lane._control), list(box.frames), str(lane.fault)))
                log.append((lane.bytes_in, lane.outbox.last_request, lane.reader._requests))
        finally:
            frames.cut = before
            lane.detach()
            theirs.close()
        return log, router.pending()


CASES: Final[list[tuple[str, Case, int]]] = [
    ("cut", Cut(), 30),
    ("feed", Feed(), 15),
    ("pages", Pages(), 12),
    ("columns", Columns(), 1),
    ("stored", Stored(), 5),
    ("maker", Maker(), 3),
    ("acker", Acker(), 2),
    ("take", Take(), 5),
    ("take_fetched", TakeFetched(), 5),
    ("encode", Encode(), 17),
    ("staged", Staged(), 5),
    ("acks", Acks(), 7),
    ("ended", Ended(), 3),
    ("origins", Origins(), 2),
    ("asked", Asked(), 2),
    ("frozen", Frozen(), 1),
]
"""Each case with its name and how many of a hundred streams it gets."""

TURNS: Final = [case for case in CASES for _ in range(case[2])]


class DifferenceError(Exception):
    """
    The variants differ.
    """


def check(rng: random.Random, seed: int, python: Functions, compiled: Functions) -> str:
    """
    Give the input with this seed to both variants, and return the name of its case.

    Raises:
        DifferenceError: Results, errors or state are not equal.
    """
    rng.seed(seed)
    name, case, _ = TURNS[seed % len(TURNS)]
    drawn = case.draw(rng)
    expected = outcome(case.run, python, drawn)
    found = outcome(case.run, compiled, drawn)
    if expected != found:
        raise DifferenceError(
            f"seed {seed}, {name}\ninput:    {drawn!r}\nPython:   {expected!r}\ncompiled: {found!r}"
        )
    return name
