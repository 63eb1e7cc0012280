"""
Workers and listeners that are killed at random: each poisonous message has one dead letter, and all
others are handled.

``JETSYNC_SOAK_ORDERS`` is the number of messages (50,000), of which 1 % are poisonous: the handler
raises an error, gives them up, or dies with them. A message whose handler was killed too often
becomes a dead letter as well, and is put back.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

import jetsync
from helpers.waiting import eventually
from jetsync.devserver import DevServer

ORDERS = int(os.environ.get("JETSYNC_SOAK_ORDERS", "50_000"))
SEED = int(os.environ.get("JETSYNC_SOAK_SEED", "1"))

POISON = 100
"""One message in this many is poisonous."""

FATAL = 50
"""One poisonous message in this many kills its worker."""

LISTENERS = 2

STEPS = 300
"""There are at most this many messages between two kills, or 4 % of all."""

PATIENCE = (30.0, 60.0)
"""Seconds after which a process is killed even without progress, from and to."""

ADVISORIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.ORDERS.worker"

WORKER = f"""
import os, sys, jetsync
url, handled = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)

def handle(message):
    number = int(message.data)
    if number % {POISON} == 0:
        kind = number // {POISON}
        if kind % {FATAL} == 0:
            os._exit(9)
        if kind % 2:
            raise jetsync.DeadLetter("poison")
        raise ValueError("poison")
    os.write(handled, message.data + b"\\n")

with jetsync.connect(url, connect_timeout=60, request_timeout=60) as client:
    worker = client.jetstream().consumer("ORDERS", "worker")
    worker.consume(handle, ack="auto", dead_letter="dead.orders").wait()
"""
"""A worker. What it writes to the file survives its death."""

LISTENER = """
import sys, jetsync
with jetsync.connect(sys.argv[1], connect_timeout=60, request_timeout=60) as client:
    stream = client.jetstream().stream("ORDERS")
    for message in stream.dead_letters("worker", "dead.orders", advisories=sys.argv[2] or None):
        pass
"""


class Processes:
    """
    Workers and listeners. Those that end are started again.
    """

    def __init__(self, commands):
        self._commands = commands
        self._running = [None] * len(commands)
        self.started = self.kills = 0

    def __enter__(self):
        self.keep()
        return self

    def __exit__(self, *_):
        for process in self._running:
            process.kill()
            process.wait()

    def keep(self):
        """Start those that have ended."""
        for place, process in enumerate(self._running):
            if process is None or process.poll() is not None:
                self._running[place] = subprocess.Popen(
                    [sys.executable, "-c", *self._commands[place]],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                self.started += 1

    def kill(self, chance):
        """Kill one of them."""
        chance.choice(self._running).kill()
        self.kills += 1


class Letters:
    """
    The dead letters so far. Those of messages that are not poisonous are put back.
    """

    def __init__(self, js):
        self._js = js
        self._reader = js.stream("DEAD").create_consumer("reader")
        self.counts = Counter()
        self.reasons = Counter()
        self.put_back = 0

    def read(self):
        """Read those that have come since."""
        for letter in self._reader.fetch(1000, no_wait=True):
            number = int(letter.data)
            if number % POISON:
                self._js.publish_many([jetsync.replay(letter)])
                self.put_back += 1
            else:
                self.counts[number] += 1
                self.reasons[letter.headers["Jetsync-Dead-Letter-Reason"].split()[0]] += 1
            letter.ack_sync()


LONG = pytest.param(ORDERS, 6, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])


@pytest.mark.parametrize("retention", ["workqueue", "limits"])
@pytest.mark.parametrize(
    ("orders", "workers"), [pytest.param(1000, 3, marks=pytest.mark.timeout(300)), LONG]
)
def test_each_poisonous_message_has_one_dead_letter(
    orders, workers, retention, tmp_path, record_property
):
    """
    While processes are killed, no message is lost, and no poisonous one has two dead letters. On a
    work queue, listeners miss advisories while they are dead. On the other stream, a stream stores
    the advisories.
    """
    chance = random.Random(SEED)
    handled = tmp_path / "handled"
    handled.touch()
    with DevServer() as server, jetsync.connect(server.url, request_timeout=60) as client:
        js = client.jetstream()
        stream = js.create_stream("ORDERS", subjects=["orders.>"], retention=retention)
        js.create_stream("DEAD", subjects=["dead.>"], duplicate_window=3600)
        kept = "" if retention == "workqueue" else "ADVISORIES"
        if kept:
            js.create_stream(kept, subjects=[ADVISORIES], retention="workqueue")
        worker = stream.create_consumer("worker", ack_wait=1, max_deliver=3)
        js.publish_many((f"orders.{n % 10}", b"%d" % n) for n in range(orders))
        wanted = set(range(0, orders, POISON))
        letters = Letters(js)
        commands = [(WORKER, server.url, str(handled))] * workers
        commands += [(LISTENER, server.url, kept)] * LISTENERS
        done = set()

        def progress():
            letters.read()
            done.clear()
            done.update(map(int, handled.read_bytes().split(b"\n")[:-1]))
            return len(done) + len(letters.counts)

        with Processes(commands) as processes:
            end = time.monotonic() + 200 + orders / 20
            steps = max(STEPS, orders // 25)
            goal, patience = chance.randint(1, steps), end
            while (now := progress()) < orders:
                assert time.monotonic() < end, f"{len(done)} handled, {len(letters.counts)} dead"
                if now >= goal or time.monotonic() > patience:
                    processes.kill(chance)
                    goal = now + chance.randint(1, steps)
                    patience = time.monotonic() + chance.uniform(*PATIENCE)
                processes.keep()
                # Reading the file and the letters has no event.
                time.sleep(0.05)
            # The server gives up messages whose termination was lost. They have a dead letter.
            eventually(lambda: worker.info().num_ack_pending == 0, 60)
            if retention == "workqueue":
                eventually(lambda: stream.info().state.messages == 0, 60)
            else:
                eventually(lambda: js.stream(kept).info().state.messages == 0, 60)
            letters.read()
        record_property("started", processes.started)
        record_property("kills", processes.kills)
        record_property("put_back", letters.put_back)
        record_property("reasons", dict(letters.reasons))
        assert set(letters.counts) == wanted
        assert set(letters.counts.values()) == {1}
        assert done == set(range(orders)) - wanted
