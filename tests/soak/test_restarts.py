"""
Workers that are deployed again and killed at random, with default settings: no message becomes a
dead letter unless a worker was killed while a handler worked on it.

``JETSYNC_SOAK_RESTARTS`` is the duration in seconds (600).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

import jetsync
from helpers.waiting import eventually
from jetsync.devserver import DevServer

SECONDS = float(os.environ.get("JETSYNC_SOAK_RESTARTS", "600"))
SEED = int(os.environ.get("JETSYNC_SOAK_SEED", "1"))

WORKERS = 3
DELIVERIES = 3
ACK_WAIT = 5.0

BACKLOG = 100
"""So many messages wait at least, as buffers are only filled from a backlog."""

PATIENCE = 60.0
"""Seconds for which a new process may take no message."""

STARTER = """
import os, random, signal, sys, time, jetsync
url, path = sys.argv[1:]
notes = os.open(path, os.O_WRONLY | os.O_APPEND)

def note(kind, message):
    os.write(notes, b"%b %d %d\\n" % (kind, message.sequence, os.getpid()))

def handle(message):
    note(b"start", message)
    time.sleep(random.choice([0, 0.001, 0.02, 0.1, 1]))
    note(b"end", message)

def work(threads):
    with jetsync.connect(url, connect_timeout=60, request_timeout=60) as client:
        with client.stop_on_signal(timeout=10):
            worker = client.jetstream().consumer("ORDERS", "worker")
            worker.consume(handle, threads=threads, ack="auto", dead_letter="dead.orders").wait()

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The system reaps the workers.
for line in sys.stdin:
    process = os.fork()
    if not process:
        try:
            random.seed()
            work(int(line))
        finally:
            os._exit(0)
    print(process, flush=True)
"""
"""
Forks a worker for each line, which is its number of threads. A fork saves the time of the imports,
so that there are more restarts. What a worker writes to the file survives its death.
"""


class Notes:
    """
    What the workers wrote.
    """

    def __init__(self, path):
        self._path = path
        self._size = 0
        self.started = Counter()
        self.handled = Counter()
        self.by_process = Counter()

    def read(self):
        """Read what has come since. Each note is one write, so no line is incomplete."""
        with self._path.open("rb") as file:
            file.seek(self._size)
            found = file.read()
        self._size += len(found)
        for line in found.splitlines():
            kind, sequence, process = line.split()
            (self.started if kind == b"start" else self.handled)[int(sequence)] += 1
            self.by_process[int(process)] += 1
        return self


def is_alive(process):
    """Whether there is a process with this id."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class Fleet:
    """
    The workers. Those that are stopped or killed are started again.
    """

    def __init__(self, url, path, chance):
        self._chance = chance
        self._starter = subprocess.Popen(
            [sys.executable, "-c", STARTER, url, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.running = [self._start() for _ in range(WORKERS)]
        self.deploys = self.kills = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in filter(is_alive, self.running):
            os.kill(process, signal.SIGKILL)
        with self._starter:
            self._starter.kill()

    def _start(self):
        self._starter.stdin.write(f"{self._chance.choice([1, 4])}\n")
        self._starter.stdin.flush()
        return int(self._starter.stdout.readline())

    def restart(self, place, number):
        """End a worker with a signal, and start it again."""
        process = self.running[place]
        os.kill(process, number)
        eventually(lambda: not is_alive(process), PATIENCE)
        self.running[place] = self._start()
        if number == signal.SIGKILL:
            self.kills += 1
        else:
            self.deploys += 1


LONG = pytest.param(SECONDS, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])


@pytest.mark.parametrize("seconds", [pytest.param(20.0, marks=pytest.mark.timeout(400)), LONG])
def test_healthy_messages_are_not_given_up(seconds, tmp_path, record_property):
    """
    Each message is handled, or has a dead letter after a kill interrupted its handler. Restarts,
    deploys and kills use no delivery of a message that no handler has started with.
    """
    chance = random.Random(SEED)
    path = tmp_path / "notes"
    path.touch()
    notes, published = Notes(path), 0
    with DevServer() as server, jetsync.connect(server.url, request_timeout=60) as client:
        js = client.jetstream()
        stream = js.create_stream("ORDERS", subjects=["orders.>"], retention="workqueue")
        dead = js.create_stream("DEAD", subjects=["dead.>"], allow_direct=True)
        worker = stream.create_consumer("worker", ack_wait=ACK_WAIT, max_deliver=DELIVERIES)
        letters = stream.dead_letters("worker", "dead.orders")
        threading.Thread(target=lambda: [None for _ in letters], daemon=True).start()

        def fill():
            nonlocal published
            if worker.info().num_pending < BACKLOG:
                published += js.publish_many(("orders.new", b"x") for _ in range(BACKLOG)).count

        def is_at_work(place):
            fill()
            return notes.read().by_process[fleet.running[place]]

        fill()
        end = time.monotonic() + seconds
        with Fleet(server.url, path, chance) as fleet:
            while time.monotonic() < end:
                # Sometimes all of them, one after the other.
                places = range(WORKERS) if chance.random() < 0.3 else [chance.randrange(WORKERS)]
                number = chance.choice([signal.SIGTERM, signal.SIGKILL])
                for place in places:
                    eventually(lambda: is_at_work(place), PATIENCE)  # noqa: B023
                    # The moment of a restart is random.
                    time.sleep(chance.expovariate(1.0))
                    fleet.restart(place, number)
            eventually(lambda: stream.info().state.messages == 0, 120 + seconds)
        given_up = {}
        for letter in dead.scan():
            found = letter.headers
            given_up[int(found["Jetsync-Dead-Letter-Sequence"])] = found
    notes.read()
    started, handled = notes.started, notes.handled
    healthy = [each for each in given_up if started[each] == handled[each]]
    early = [each for each in given_up if started[each] < DELIVERIES]
    for name, value in {
        "published": published,
        "deploys": fleet.deploys,
        "kills": fleet.kills,
        "handled": len(handled),
        "handled_twice": sum(count > 1 for count in handled.values()),
        "interrupted": sum((started - handled).values()),
        "given_up": len(given_up),
        "given_up_early": len(early),
        "given_up_and_handled": sum(each in handled for each in given_up),
        "given_up_healthy": len(healthy),
    }.items():
        record_property(name, value)
    assert set(range(1, published + 1)) == handled.keys() | given_up.keys()
    assert not healthy
