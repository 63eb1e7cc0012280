"""
Ctrl-C at any step of a read: the same handle continues correctly, or an error says what happened.
"""

from __future__ import annotations

import contextlib
import os

import pytest

import jetsync
from helpers.interrupted_reads import KINDS, Sources
from helpers.interrupts import interrupted_at, steps_of
from helpers.waiting import eventually

MOST = int(os.environ.get("JETSYNC_TEST_INTERRUPTS", "250"))
"""At how many steps of each read the thorough tests strike, spread evenly."""

FEW = 12
"""The same for the quick tests."""

# Python swallows an interrupt that hits a finalizer.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def rig(nats_server):
    """
    What the reads read. An interrupt may end the connection, so it has a client of its own.
    """
    with jetsync.connect(nats_server.url, reconnect_wait=0.01) as client:
        made = Sources(client, f"INTERRUPTED-{os.getpid()}")
        yield made
        made.close()


def begun(rig, kind):
    """
    Begin a read. The interrupt before may have ended the connection.
    """

    def begin():
        try:
            rig.client.flush(timeout=5)
            return kind(rig)
        except (jetsync.TransportError, jetsync.RequestTimeoutError):
            return None

    return eventually(begin)


def strike(rig, kind, most):
    """
    Interrupt a read at up to *most* steps, once at each, and return what was wrong.
    """
    read, got = begun(rig, kind), []
    count = steps_of(lambda: read.take(got))
    assert not read.missing(got), "without an interrupt"
    read.close()
    wrong = []
    for step in sorted({1 + count * number // most for number in range(most)}):
        read, got = begun(rig, kind), []
        interrupted_at(step, lambda: read.take(got))  # noqa: B023
        if what := read.missing(got):
            wrong.append(f"step {step} of {count}: {what}")
        with contextlib.suppress(jetsync.JetSyncError):
            read.close()
    return wrong


QUICK = [
    "scan",
    "scan_batches",
    "stream_names",
    "initial_again",
    "object_watch",
    "object_chunks_again",
    "fetch",
    "consume_next",
    "ordered",
    "ordered_batch",
    "subscription",
]
"""One kind for each place that takes items."""


@pytest.mark.parametrize("kind", [pytest.param(KINDS[name], id=name) for name in QUICK])
def test_at_some_steps(rig, kind):
    """
    After Ctrl-C, no item is missing and none is repeated, unless an error says so.
    """
    assert strike(rig, kind, FEW) == []


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for name, kind in KINDS.items()])
def test_at_many_steps(rig, kind):
    """
    The same for each kind of read, at hundreds of steps.
    """
    assert strike(rig, kind, MOST) == []
