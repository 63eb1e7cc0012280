"""
Counting messages at little cost, without a server.
"""

from __future__ import annotations

import threading
import time

import pytest

import jetsync
from jetsync_otel.metrics.counts import MANY, Tallies, sequences

W3C = {"traceparent", "tracestate", "baggage"}
FORMS = ["$JS.ACK.{}.{}.{}.{}.{}.{}.{}", "$JS.ACK.hub.hash.{}.{}.{}.{}.{}.{}.{}",
         "$JS.ACK.hub.hash.{}.{}.{}.{}.{}.{}.{}.token"]  # fmt: skip


def message(sequence, *, delivered=1, pending=0, consumer="C", form=FORMS[0], parent=None, more=""):
    """
    Make a message as a consumer delivers it.
    """
    reply = form.format("S", consumer, delivered, sequence, sequence, time.time_ns(), pending)
    block = None
    if parent or more:
        line = f"traceparent: 00-{parent:032x}-{parent:016x}-01\r\n" if parent else ""
        block = f"NATS/1.0\r\n{more}{line}\r\n".encode()
    return jetsync.Message(b"s", reply.encode(), block, b"")


class Fixture:
    """
    Tallies, and the counts that they reported.
    """

    def __init__(self, keep=128, fields=W3C):
        self.first = []
        self.faults = []
        self.tallies = Tallies(
            keep,
            set(fields),
            lambda source, stored: self.first.append((source, stored)),
            lambda doing, error: self.faults.append(error),
        )
        self.received = self.tallies.hook()


@pytest.fixture
def tallies():
    """
    Tallies of W3C contexts.
    """
    return Fixture()


@pytest.mark.parametrize("form", FORMS)
def test_replies_of_every_form_give_counts(tallies, form):
    """
    All forms of reply subjects are parsed.
    """
    for number in range(1, 6):
        tallies.received(
            message(number, delivered=2 if number == 3 else 1, pending=5 - number, form=form)
        )
    handed = tallies.tallies.of_thread(("S", "C"))
    assert (handed.count, handed.redelivered) == (5, 1)
    assert sequences(handed.reply) == (0, 5, 5)
    assert tallies.tallies.of_thread(("S", "C")) is None
    ((source, stored),) = tallies.first
    assert source == ("S", "C")
    assert abs(time.time_ns() - stored) < 60e9


def test_contexts_are_kept_once(tallies):
    """
    Other headers may differ from message to message.
    """
    for number in range(1, 10):
        tallies.received(message(number, parent=number % 2 + 1, more=f"Nats-Msg-Id: {number}\r\n"))
    tallies.received(message(10, more="A: 1\r\n"))
    tallies.received(message(11))
    handed = tallies.tallies.of_thread(("S", "C"))
    assert (handed.count, len(handed.blocks)) == (11, 2)
    tallies.received(message(12, parent=1))
    assert len(tallies.tallies.of_thread(("S", "C")).blocks) == 1


def test_contexts_of_another_propagator():
    """
    The format of another propagator is unknown, so each different header block is inspected.
    """
    tallies = Fixture(fields={"b3"})
    for number in range(1, 4):
        tallies.received(message(number, more=f"b3: {number}\r\n"))
    assert len(tallies.tallies.of_thread(("S", "C")).blocks) == 3


def test_no_more_contexts_than_wanted():
    """
    Counting for long without a report needs no more memory.
    """
    tallies = Fixture(keep=2)
    for number in range(1, 10):
        tallies.received(message(number, parent=number))
    assert len(tallies.tallies.of_thread(("S", "C")).blocks) == 2


def test_threads_count_for_themselves_and_together(tallies):
    """
    The counts of threads that have ended are kept, and reported once.
    """

    def take(first):
        for number in range(first, first + 1000):
            tallies.received(message(number, parent=first))

    threads = [threading.Thread(target=take, args=(1000 * each,)) for each in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tallies.received(message(1))
    assert tallies.tallies.of_thread(("S", "C")).count == 1
    handed = tallies.tallies.of_all(("S", "C"))
    assert (handed.count, len(handed.blocks)) == (4000, 4)
    assert sequences(handed.reply)[2] == 4999
    assert tallies.tallies.of_all(("S", "C")) is None


def test_reports_while_threads_count(tallies):
    """
    Every message is reported exactly once, at whatever moment a report is made.
    """
    stop = threading.Event()
    reports = []

    def ask():
        while not stop.is_set():
            reports.append(tallies.tallies.of_all(("S", "C")))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for number in range(1, 20_001):
            tallies.received(message(number, delivered=number % 7 // 6 + 1, parent=number % 3 + 1))
    finally:
        stop.set()
        asking.join()
    reports.append(tallies.tallies.of_all(("S", "C")))
    found = [handed for handed in reports if handed is not None]
    assert sum(handed.count for handed in found) == 20_000
    assert sum(handed.redelivered for handed in found) == sum(
        number % 7 == 6 for number in range(1, 20_001)
    )
    assert all(handed.first_ns > 0 for handed in found)


def test_deleted_consumers_are_forgotten(tallies):
    """
    A program that makes a consumer per task does not keep a tally of each.
    """
    for number in range(10 * MANY):
        tallies.received(message(1, consumer=f"C{number}"))
        tallies.tallies.of_thread(("S", f"C{number}"))
    assert len(tallies.tallies.sources()) <= MANY


def test_ended_threads_are_forgotten(tallies):
    """
    A program that makes a thread per fetch does not keep a tally of each.
    """

    def take():
        tallies.received(message(1))
        tallies.tallies.of_thread(("S", "C"))

    for _ in range(20):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    assert tallies.tallies.of_all(("S", "C")) is None
    assert tallies.tallies.sources() == []


def test_ended_threads_and_deleted_consumers_are_forgotten(tallies):
    """
    A thread per task with its own consumer leaves no tally.
    """

    def take(number):
        tallies.received(message(1, consumer=f"C{number}"))
        tallies.tallies.of_thread(("S", f"C{number}"))

    for number in range(4 * MANY):
        thread = threading.Thread(target=take, args=(number,))
        thread.start()
        thread.join()
    assert len(tallies.tallies.sources()) <= MANY


def test_other_messages_are_left_alone(tallies):
    """
    Messages that were read directly are counted elsewhere, and an invalid reply subject is
    reported.
    """
    tallies.received(jetsync.StoredMessage("S", "s", 1, 1))
    assert tallies.tallies.sources() == []
    assert tallies.faults == []
    tallies.received(jetsync.Message(b"s", b"$JS.ACK.S.C.1.a.b.c.d", None, b""))
    assert [type(fault) for fault in tallies.faults] == [ValueError]
