"""
Millions of messages through each compiled function: no memory and no reference is lost.

``JETSYNC_SOAK_MESSAGES`` is the number of messages for each function (10 million).
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import struct
import sys
from array import array
from pathlib import Path

import pytest

from helpers.variants import COMPILED, NOT_COMPILED
from jetsync.values.frame import FrameRun
from jetsync.values.message import Message
from jetsync.values.stored import StoredMessage

AT_ONCE = 500
"""Messages of one call."""

ALLOWED_BLOCKS = 25
"""Blocks of memory, and references to an object, that a round of at least 50 calls may add."""

FOR_EVER = 1 << 28
"""References that only objects have that are never freed."""

ALLOWED_GROWTH = 1 << 20
"""Bytes that resident memory may grow in such a round."""

pytestmark = pytest.mark.skipif(not COMPILED, reason=NOT_COMPILED)

BLOCK = b"NATS/1.0\r\n\r\n"
SIZES = (b"%d %d" % (len(BLOCK), len(BLOCK) + size) for size in itertools.cycle(range(0, 900, 97)))
PAGE = b"".join(
    b"HMSG _INBOX.p.a 5 %b\r\n%b%b\r\n"
    % (sizes, BLOCK, b"x" * (int(sizes.split()[1]) - len(BLOCK)))
    for sizes in itertools.islice(SIZES, AT_ONCE)
)
PLAIN = b"".join(b"MSG s.%d 5 r.%d 5\r\nhello\r\nPING\r\n" % (i, i) for i in range(AT_ONCE // 2))
MIXED = b"".join(b"MSG s %d 5\r\nhello\r\n" % (5 + i % 3) for i in range(AT_ONCE))
PREFIX = b"_INBOX.p."
ACKS = b"".join(b"MSG p.%d 5 5\r\n{%d}\r\n" % (i, i) for i in range(100, 100 + AT_ONCE))
FRAME = (b"a", b"r", BLOCK, b"x")
SHARED_HEADERS = object()
TARGETS = {"a": b"a.target"}
COLUMNS = ("subject", "data", "sequence", "timestamp", "headers")
SERVER = (
    b"Nats-Stream: S\r\nNats-Subject: s.1\r\nNats-Sequence: 5\r\n"
    b"Nats-Time-Stamp: 2026-11-20T16:38:27.709983862Z\r\n"
    b"Nats-Num-Pending: 3\r\nNats-Last-Sequence: 4\r\n\r\n"
)


class RefusedError(Exception):
    """What a callback raises."""


class Box:
    """A receiver, whose frames are dropped after each call."""

    def __init__(self, express=None, fails_at=None):
        self.frames, self.fails_at = [], fails_at
        self.push = self.frames.append if fails_at is None else self._push
        self.express = express

    def _push(self, frame):
        self.frames.append(frame)
        if len(self.frames) == self.fails_at:
            self.frames.clear()
            raise RefusedError


def take(data, position):
    """Take a run."""
    found = COMPILED["take_page"](data, position, PREFIX, b"5")
    return found[2] if found else position


def refuse(data, position):
    """Raise."""
    raise RefusedError


def cut(data, *boxes):
    """Return a call of ``cut``, with receivers for the ids from 5 on."""
    receivers = {b"%d" % sid: box for sid, box in enumerate(boxes, 5)}

    def call():
        try:
            COMPILED["cut"](data, receivers, [], [], 1 << 26)
        finally:
            for box in boxes:
                box.frames.clear()

    return call, [data, receivers, *boxes, *(box.push for box in boxes)]


def stored(*places):
    """Return a call of ``stored_of_run``."""
    bounds = array("i", [*[0, 12, 40] * AT_ONCE, *places])
    return lambda: COMPILED["stored_of_run"](StoredMessage, PAGE, bounds), [
        StoredMessage, PAGE, bounds,
    ]  # fmt: skip


class Refusing:
    """Names or bounds that raise an error."""

    def tobytes(self):
        raise RefusedError

    def __contains__(self, name):
        raise RefusedError


def tabling(*own, server=SERVER, last=(), bounds=None, names=COLUMNS):
    """Return a call of ``columns``; its last message has the own header lines and *server*."""
    usual = b"NATS/1.0\r\nA: b\r\nC: d\r\nA: e\r\n" + SERVER
    blocks = [usual] * (AT_ONCE - 1)
    blocks.append(b"".join([b"NATS/1.0\r\n", *own, server]))
    data, places = bytearray(), []
    for block in blocks:
        places += [len(data), len(data) + len(block), len(data) + len(block) + len(b"payload")]
        data += block + b"payload\r\n"
    data, bounds = bytes(data), bounds or array("i", [*places, *last])
    runs = [FrameRun(b"a", data, array("i", places[:3])), FrameRun(b"a", data, bounds)]
    return lambda: COMPILED["columns"](runs, names), [data, bounds, names, *runs]


def making(*last):
    """Return the making of messages, the last of them of a frame that may be wrong."""
    acker = object()

    def call():
        for _ in map(COMPILED["plain_maker"](Message, acker), [FRAME] * AT_ONCE):
            pass
        for _ in map(COMPILED["plain_maker"](Message, acker), last):
            pass

    return call, [Message, acker, FRAME, *FRAME]


def encoding(*last, shared_headers=None, fails=False):
    """Return a call of ``Stage.extend``, with another item at its end, or an error."""
    item = ("a", b"data")
    block = b"" if shared_headers is None else b"NATS/1.0\r\nA: b\r\n\r\n"

    def iterate():
        yield from itertools.repeat(item, AT_ONCE)
        if fails:
            raise RefusedError
        yield from last

    def call():
        stage = COMPILED["Stage"](TARGETS, b".s")
        stage.begin(b"p.")
        try:
            stage.extend(iterate(), 1 << 40, 1 << 40, 1000, block, shared_headers)
        finally:
            stage.take({})

    return call, [item, *item, *last, TARGETS, TARGETS["a"], block, SHARED_HEADERS]


def taking(data, push=len):
    """Return a call of what ``ack_taker`` returns."""
    arguments = [push, b"p.", b"5", b"{"]
    return lambda: COMPILED["ack_taker"](*arguments)(data, 0), [data, *arguments]


def ending(*last, kept=False):
    """Return a call of ``end_acks``, with another answer at its end."""
    item, header, sequence = object(), object(), b"{%d}" % (1 << 40)
    run = [struct.pack("=1000Q", *range(1000, 1000 + 2 * AT_ONCE)), (b"5", b"6")]
    frames = [(b"p.%d" % number, b"", header, sequence) for number in range(1001, 1100, 2)]
    in_flight = dict.fromkeys([5, *range(900, 1000 + 2 * AT_ONCE)], item)

    def call():
        answers = iter([run, *frames, run, *last])
        COMPILED["end_acks"](dict(in_flight), answers, 2, b"{", [] if kept else None)

    return call, [item, header, sequence, run, *run, *frames, *last]


def calls():
    """All calls by name, with the objects whose references are counted."""
    page_call = (
        lambda: COMPILED["take_page"](PAGE, 0, PREFIX, b"5"),
        [PAGE, PREFIX, FRAME],
    )
    return {
        "cut": cut(PLAIN, Box()),
        "cut headers": cut(PAGE, Box()),
        "cut several": cut(MIXED, Box(), Box()),
        "cut runs": cut(PAGE, Box(take)),
        "cut no line end": cut(PLAIN + b"MSG a 5 1\r\nxyz", Box()),
        "cut no size": cut(PLAIN + b"MSG a 5 x\r\n", Box()),
        "cut huge size": cut(PLAIN + b"MSG a 5 99999999999\r\n", Box()),
        "cut other line": cut(PLAIN + b"MSGS\r\n", Box()),
        "cut push raises": cut(PLAIN, Box(fails_at=AT_ONCE // 2)),
        "cut express raises": cut(MIXED, Box(), Box(), Box(refuse)),
        "cut express returns None": cut(MIXED, Box(), Box(lambda *_: None)),
        "take_page": page_call,
        "stored_of_run": stored(),
        "stored_of_run outside": stored(0, 1, 1 << 30),
        "columns": tabling(),
        "columns few": tabling(names=("sequence", "data")),
        "columns other headers": tabling(b"A: 1\r\n", b" folded\r\n"),
        "columns many headers": tabling(*(b"H%d: x\r\n" % i for i in range(100))),
        "columns no text": tabling(b"\xff: \xff\r\n", server=SERVER.replace(b"s.1", b"\xff")),
        "columns no server lines": tabling(server=b""),
        "columns outside": tabling(last=(0, 1, 1 << 30)),
        "columns names raise": tabling(names=Refusing()),
        "columns bounds raise": tabling(bounds=Refusing()),
        "plain_maker": making(),
        "plain_maker no frame": making(()),
        "extend": encoding(),
        "extend shared": encoding(shared_headers=SHARED_HEADERS),
        "extend unknown": encoding(("unknown", b"x"), shared_headers=SHARED_HEADERS),
        "extend other": encoding(["a", b"x"]),
        "extend raises": encoding(fails=True),
        "ack_taker": taking(ACKS),
        "ack_taker part": taking(ACKS[:-1]),
        "ack_taker other": taking(ACKS + ACKS.replace(b"{", b"[")),
        "ack_taker push raises": taking(ACKS, refuse),
        "ack_taker no bytes": taking("text"),
        "end_acks": ending(),
        "end_acks kept": ending(kept=True),
        "end_acks other": ending((b"p.1", b"", None, b"[5}"), kept=True),
        "end_acks no ack": ending([(b"1", b"2"), (b"1", b"x")], kept=True),
    }


def resident():
    """Return the resident memory of this process in bytes; 0 if the system does not say."""
    path = Path("/proc/self/statm")
    if not path.exists():
        return 0
    return int(path.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", calls() if COMPILED else [])
@pytest.mark.parametrize(
    "total",
    [
        100_000,
        pytest.param(
            int(os.environ.get("JETSYNC_SOAK_MESSAGES", "10_000_000")),
            marks=[pytest.mark.soak, pytest.mark.timeout(3600)],
        ),
    ],
)
def test_nothing_is_lost(total, name):
    """The number of blocks, references and resident bytes is constant, also if calls fail."""
    call, watched = calls()[name]
    # In newer interpreters, some objects live for ever, and a module that was compiled for earlier
    # versions still counts references to them.
    watched = [
        each for each in [*watched, None, True, False, (), b""] if sys.getrefcount(each) < FOR_EVER
    ]

    def run(messages):
        for _ in range(messages // AT_ONCE):
            with contextlib.suppress(RefusedError, ValueError, TypeError):
                call()
        gc.collect()

    def state():
        return resident(), sys.getallocatedblocks(), list(map(sys.getrefcount, watched))

    run(max(total // 10, 20 * AT_ONCE))
    # A leak shows in each round. Free lists and other threads of the process show in some, mostly
    # in the first ones.
    growth = []
    before = state()
    for _ in range(12):
        run(total // 4)
        after = state()
        references = max(map(int.__sub__, after[2], before[2]), default=0)
        fewer = max(map(int.__sub__, before[2], after[2]), default=0)
        growth.append((after[0] - before[0], after[1] - before[1], references, fewer))
        resident_growth, *others = map(min, zip(*growth, strict=True))
        if resident_growth < ALLOWED_GROWTH and max(others) < ALLOWED_BLOCKS:
            return
        before = after
    pytest.fail(f"Each round added memory or references: {growth}")
