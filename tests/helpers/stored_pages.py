"""
Pages of stored messages in every form: as servers send them, and made from messages.
"""

from __future__ import annotations

import datetime as dt
from array import array

from jetsync.values.frame import FrameRun
from jetsync.values.stored import StoredMessage, StoredPage, page_of

MOMENT = dt.datetime(2026, 11, 20, 16, 38, 27, 709983, tzinfo=dt.timezone.utc)


def said(sequence, time, subject="dg.A", own=b"", more=b""):
    """Make a message from a response with these fields."""
    added = f"Nats-Stream: DG\r\nNats-Subject: {subject}\r\nNats-Sequence: {sequence}\r\n"
    block = b"NATS/1.0\r\n" + own + added.encode("utf-8", "surrogateescape")
    block += b"Nats-Time-Stamp: " + time + b"\r\n" + more + b"\r\n"
    return StoredMessage.from_direct(block, b"%d" % sequence)


PENDING = b"Nats-Num-Pending: 8\r\nNats-Last-Sequence: 6\r\n"
ORDINARY = [
    said(5, b"2026-11-20T16:38:27.709983862Z"),
    said(1 << 63, b"2026-11-20T16:38:27.7Z", "dg.\u00fc", b"A: 1\r\n"),
    said(7, b"2026-11-20T16:38:28Z", "dg.\udcff", more=PENDING),
    said(8, b"1969-12-31T23:59:59.000000001Z", own=b"Nats-Stream: x\r\nNats-Subject: y\r\n"),
]
ODD = [
    said(9, b"2026-11-20T17:38:27.5+01:00"),
    said(9, b"2026-11-20T16:38:27.5Z", more=b"Nats-Num-Pending: 8\r\n"),
    StoredMessage("DG", "dg.B", 10, MOMENT),
]


def run_of(messages):
    """Make a run of messages as a server sends them, with their lines between them."""
    data, bounds = b"earlier", []
    for message in messages:
        data += b"HMSG inbox 1 2\r\n"
        bounds += [len(data), len(data) + len(message.raw_headers)]
        data += message.raw_headers + message.data
        bounds.append(len(data))
    return FrameRun(b"inbox", data + b"\r\nlater", array("i", bounds))


PAGES = [
    *map(StoredPage, [ORDINARY, [*ORDINARY, *ODD], ODD, ORDINARY[:1], []]),
    page_of([run_of(ORDINARY)]),
    page_of([run_of(ORDINARY[:1]), run_of(ORDINARY[1:])]),
    page_of([run_of(ORDINARY[:1]), run_of(ORDINARY[1:]), run_of(ODD[:1])]),
    page_of([run_of(ORDINARY), ODD]),
    page_of([]),
    page_of([run_of([said(5, b"2026-11-20T16:38:27Z", "dg\nA"), *ORDINARY])]),
]
IDS = [
    "usual", "mixed", "odd", "one", "none", "run", "runs", "odd runs", "mixed runs", "no runs",
    "line end in a subject",
]  # fmt: skip
