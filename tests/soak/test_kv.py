"""
Money that is moved between the keys of a bucket while its server is restarted and killed: no read
sees a part of a transaction, and no money is lost.

``JETSYNC_SOAK_COMMITS`` is the number of transfers (2000).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time

import pytest

import jetsync
from jetsync.devserver import DevServer

COMMITS = int(os.environ.get("JETSYNC_SOAK_COMMITS", "2000"))
KEYS = [f"account.{number}" for number in range(50)]
START = 1000
PASSING = (
    jetsync.PublishError,
    jetsync.ApiError,
    jetsync.TransportError,
    jetsync.RequestTimeoutError,
    jetsync.NotSupportedError,
)
"""Errors of calls that a restart interrupts."""


class Bank:
    """
    Threads that transfer, and one that continuously adds everything up.
    """

    def __init__(self, kv: jetsync.KeyValue, commits: int) -> None:
        self._kv = kv
        self._left = commits
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.commits = self.conflicts = self.unknown = self.refused = self.audits = 0
        self.errors: list[BaseException] = []
        self._movers = [
            threading.Thread(target=self._guarded, args=(self._move, seed), daemon=True)
            for seed in range(8)
        ]
        self._auditor = threading.Thread(target=self._guarded, args=(self._audit, 99), daemon=True)
        for thread in (*self._movers, self._auditor):
            thread.start()

    def __str__(self) -> str:
        return (
            f"{self.commits} transfers, {self.conflicts} conflicts, {self.unknown} unknown,"
            f" {self.refused} not made, {self.audits} audits"
        )

    @property
    def is_done(self) -> bool:
        """Whether all transfers are made, or an error occurred."""
        return bool(self.errors) or not any(thread.is_alive() for thread in self._movers)

    def stop(self) -> None:
        """End all threads, and raise the first error of any."""
        self._stop.set()
        for thread in (*self._movers, self._auditor):
            thread.join(60)
            assert not thread.is_alive(), "a thread hangs"
        if self.errors:
            raise self.errors[0]

    def _guarded(self, work, seed: int) -> None:
        try:
            work(random.Random(seed))
        except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
            self.errors.append(error)
            self._stop.set()

    def _count(self, name: str) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)

    def _move(self, chance: random.Random) -> None:
        kv = self._kv
        while not self._stop.is_set():
            with self._lock:
                if self.commits >= self._left:
                    return
            one, other = chance.sample(KEYS, 2)
            try:
                found = kv.get_many([one, other], timeout=5)
                have = {key: int(entry.value) for key, entry in found.items()}
                amount = chance.randint(0, have[one])
                with kv.atomic(timeout=5) as tx:
                    tx.update(one, str(have[one] - amount), last=found[one].revision)
                    tx.update(other, str(have[other] + amount), last=found[other].revision)
            except jetsync.WrongLastRevisionError:
                self._count("conflicts")
            except jetsync.PublishOutcomeUnknownError:
                self._count("unknown")
            except PASSING:
                self._count("refused")
                self._stop.wait(0.02)
            else:
                assert tx.revisions.keys() == {one, other}
                self._count("commits")

    def _audit(self, _: random.Random) -> None:
        while not self._stop.is_set():
            try:
                found = self._kv.get_many("account.*", timeout=5)
            except PASSING:
                self._stop.wait(0.02)
                continue
            check(found)
            self.audits += 1


def check(found: dict[str, jetsync.Entry]) -> None:
    """All accounts exist, and their sum is the initial one."""
    assert found.keys() == set(KEYS)
    assert sum(int(entry.value) for entry in found.values()) == START * len(KEYS)


@pytest.mark.parametrize("commits", [60, pytest.param(COMMITS, marks=pytest.mark.soak)])
def test_every_read_of_all_keys_has_the_same_sum(commits, record_property, tmp_path):
    """
    Every read of all keys has the same sum, whatever happens to the server.
    """
    with (
        DevServer(store=tmp_path) as server,
        jetsync.connect(server.url, reconnect_wait=0.02, max_reconnect_wait=0.5) as client,
    ):
        kv = client.jetstream().create_key_value("BANK", atomic=True)
        fill(kv)
        bank = Bank(kv, commits)
        restarts = 0
        try:
            for number in itertools.count():
                goal = min(commits, (number + 1) * max(20, commits // 20))
                end = time.monotonic() + 60
                while bank.commits < goal and not bank.is_done:
                    assert time.monotonic() < end, f"nothing moves: {bank}"
                    time.sleep(0.01)
                if bank.is_done or (restarts and commits == 60):
                    break
                if number % 2:
                    server.kill()
                    server.start()
                else:
                    server.restart()
                restarts += 1
            end = time.monotonic() + 60
            while not bank.is_done:
                assert time.monotonic() < end, f"nothing moves: {bank}"
                time.sleep(0.01)
        finally:
            bank.stop()
        check(kv.get_many("account.*", timeout=20))
        record_property("campaign", f"{bank}, {restarts} restarts")
        print(f"{bank}, {restarts} restarts")  # noqa: T201 - the figure of a long run
        assert bank.commits >= commits
        assert bank.audits
        assert restarts


@pytest.mark.soak
@pytest.mark.cluster
def test_transfers_in_a_cluster(record_property):
    """
    The same with three replicas, whose leader steps down and is killed in turn.
    """
    with (
        DevServer(cluster=3) as servers,
        jetsync.connect(servers.urls, reconnect_wait=0.02, max_reconnect_wait=0.5) as client,
    ):
        js = client.jetstream()
        kv = patiently(lambda: js.create_key_value("BANK", num_replicas=3, history=5, atomic=True))
        patiently(lambda: fill(kv))
        bank = Bank(kv, COMMITS)
        changes = 0
        try:
            end = time.monotonic() + 600
            while not bank.is_done:
                assert time.monotonic() < end, f"nothing moves: {bank}"
                time.sleep(1)
                leader = servers.wait_stream_leader("KV_BANK", timeout=30)
                if changes % 2:
                    servers.kill(leader)
                    servers.wait_stream_leader("KV_BANK", timeout=30)
                    servers.start(leader)
                else:
                    stepdown = "$JS.API.STREAM.LEADER.STEPDOWN.KV_BANK"
                    with contextlib.suppress(jetsync.JetSyncError):
                        client.request(stepdown, b"", timeout=5)
                changes += 1
        finally:
            bank.stop()
        patiently(lambda: check(kv.get_many("account.*", timeout=20)))
        record_property("campaign", f"{bank}, {changes} changes of leader")
        print(f"{bank}, {changes} changes of leader")  # noqa: T201 - the figure of a long run
        assert bank.commits >= COMMITS


def fill(kv: jetsync.KeyValue) -> None:
    """Give each account its initial amount."""
    with kv.atomic() as tx:
        for key in KEYS:
            tx.put(key, str(START))


def patiently(call):
    """Call again until the cluster has a leader, for at most a minute."""
    end = time.monotonic() + 60
    while True:
        try:
            return call()
        except jetsync.JetSyncError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
