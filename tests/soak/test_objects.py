"""
Objects that are put and read while connections are cut, the server is killed, and calls are
interrupted: each object is whole or absent, garbage collection leaves no orphan, and writers that
add to an object lose nothing.

``JETSYNC_SOAK_OBJECT_FAULTS`` is the number of faults (300), ``JETSYNC_SOAK_SEED`` repeats a run.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest

import jetsync
from helpers.interrupts import interrupted_at
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

FAULTS = int(os.environ.get("JETSYNC_SOAK_OBJECT_FAULTS", "300"))
TIMEOUT = 20.0
NAMES = ("a", "b/ü", "c d")

# A put of the sizes below takes some thousands of steps at which Ctrl-C may strike.
STEPS = 6000


class Model:
    """
    The data that each object may have.
    """

    def __init__(self, store: jetsync.ObjectStore) -> None:
        self._store = store
        self._allowed: dict[str, list[bytes | None]] = {name: [None] for name in NAMES}
        self.outcomes: Counter[str] = Counter()

    def put(self, store: jetsync.ObjectStore, name: str, data: bytes, chunk_size: int) -> None:
        """Put an object, and note what it may be afterwards."""
        before = self._allowed[name]
        self._allowed[name] = [*before, data]
        try:
            store.put(name, data, chunk_size=chunk_size, timeout=TIMEOUT)
        except jetsync.PublishOutcomeUnknownError:
            self.outcomes["unknown"] += 1
        except jetsync.JetSyncError as error:
            self._allowed[name] = before
            self.outcomes[type(error).__name__] += 1
        except KeyboardInterrupt:
            self.outcomes["interrupted"] += 1
            raise
        else:
            self._allowed[name] = [data]
            self.outcomes["stored"] += 1

    def get(self, store: jetsync.ObjectStore, name: str) -> None:
        """Read an object, and compare it."""
        data: bytes | None
        try:
            data = store.get_bytes(name, timeout=TIMEOUT)
        except jetsync.ObjectNotFoundError:
            data = None
        self.check(name, data)

    def check(self, name: str, data: bytes | None) -> None:
        """Check that an object is whole, and remember which data it has."""
        assert data in self._allowed[name], f"{name!r} has {len(data or b'')} other bytes"
        self._allowed[name] = [data]
        self.outcomes["read"] += 1

    def check_all(self) -> None:
        """Check all objects, and that garbage collection leaves no orphans."""
        self._store.collect_garbage(0)
        for name in NAMES:
            self.get(self._store, name)
        named = {info.nuid for info in self._store.list() if info.chunks}
        found = self._store.stream.info(
            subjects_filter=f"$O.{self._store.bucket}.C.>", timeout=TIMEOUT
        ).state.subjects
        assert {subject.rpartition(".")[2] for subject in found} == named


@pytest.mark.parametrize("faults", [12, pytest.param(FAULTS, marks=pytest.mark.soak)])
def test_objects_are_whole_or_absent(faults, record_property, tmp_path):
    """
    Each object is whole or absent after cuts, kills and interrupts, and no chunks stay.
    """
    seed = int(os.environ.get("JETSYNC_SOAK_SEED", "0")) or random.randrange(1 << 32)
    print(f"JETSYNC_SOAK_SEED={seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    with (
        DevServer(store=tmp_path) as server,
        CutProxy(server.url) as proxy,
        jetsync.connect(proxy.url, reconnect_wait=0.02, max_reconnect_wait=0.5) as client,
        jetsync.connect(server.url, reconnect_wait=0.02, max_reconnect_wait=0.5) as observer,
    ):
        watched = observer.jetstream(timeout=TIMEOUT).create_object_store("SOAK")
        store = client.jetstream(timeout=TIMEOUT).object_store("SOAK")
        model = Model(watched)
        for number in range(faults):
            name = chance.choice(NAMES)
            data = chance.randbytes(
                int(chance.choice([0, 1, 1e3, 1e5, 1e6, 3e6]) * chance.random())
            )
            chunk_size = chance.choice([5000, 20_000, 131_072, 500_000])
            is_put = chance.random() < 0.65

            def call(name=name, data=data, chunk_size=chunk_size, is_put=is_put):
                if is_put:
                    model.put(store, name, data, chunk_size)
                else:
                    model.get(store, name)

            fault = chance.choice(["cut", "cut", "cut", "interrupt", "interrupt", "kill"])
            model.outcomes[fault] += 1
            if fault == "cut":
                way = chance.choice(["to_server", "to_client"])
                most = len(data) + 2000 if (way == "to_server") is is_put else 3000
                proxy.cut_after(**{way: chance.randrange(most)}, reset=chance.random() < 0.5)
                call()
                proxy.cut_after()
            elif fault == "interrupt":
                # A read that is interrupted is dropped.
                interrupted_at(chance.randrange(1, STEPS), call)
            else:
                delay = chance.random() * 0.1
                killer = threading.Thread(target=_restart, args=(server, delay))
                killer.start()
                call()
                killer.join()
            if number % 5 == 4 or number == faults - 1:
                model.check_all()
        record_property("campaign", f"{dict(model.outcomes)}")
        print(dict(model.outcomes))  # noqa: T201 - the figure of a long run
        assert model.outcomes["stored"]
        assert model.outcomes["read"]


def _restart(server, delay):
    """Kill the server in the middle of a call, and start it again."""
    time.sleep(delay)  # The moment is random.
    server.kill()
    server.start()


@pytest.mark.parametrize("faults", [5, pytest.param(FAULTS // 3, marks=pytest.mark.soak)])
def test_two_writers_lose_nothing(faults, record_property):
    """
    Two clients that add to one object lose no update silently, whatever their connections do.
    """
    chance = random.Random(faults)
    stop = threading.Event()
    certain: set[bytes] = set()
    possible: set[bytes] = set()
    wrong: list[BaseException] = []

    def write(store, letter):
        number = 0
        while not stop.is_set():
            number += 1
            word = b"%b%d" % (letter, number)
            possible.add(word)
            try:
                with store.get("a", timeout=TIMEOUT) as reader:
                    data = reader.read()
                store.put("a", data + b" " + word, expect=reader.info, timeout=TIMEOUT)
                certain.add(word)
            except jetsync.PublishOutcomeUnknownError:
                pass
            except jetsync.JetSyncError:
                possible.discard(word)
            except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
                wrong.append(error)
                return

    with (
        DevServer() as server,
        CutProxy(server.url) as proxy,
        jetsync.connect(proxy.url, reconnect_wait=0.02, max_reconnect_wait=0.5) as one,
        jetsync.connect(proxy.url, reconnect_wait=0.02, max_reconnect_wait=0.5) as two,
    ):
        store = one.jetstream().create_object_store("WRITERS", storage="memory")
        store.put("a", b"")
        threads = [
            # Opened before the cuts begin, because opening a store is not repeated.
            threading.Thread(
                target=write,
                args=(client.jetstream(timeout=TIMEOUT).object_store("WRITERS"), letter),
            )
            for client, letter in ((one, b"x"), (two, b"y"))
        ]
        for thread in threads:
            thread.start()
        for number in range(1, faults + 1):
            proxy.cut_after(to_client=chance.randrange(6000), reset=chance.random() < 0.5)
            assert proxy.wait_cuts(number, timeout=60)
        stop.set()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        with suppress(IndexError):
            raise wrong[0]
        words = store.get_bytes("a", timeout=TIMEOUT).split()
        record_property("campaign", f"{len(words)} updates, {proxy.statistics().cuts} cuts")
        assert len(words) == len(set(words))
        assert certain <= set(words) <= possible
        assert certain
