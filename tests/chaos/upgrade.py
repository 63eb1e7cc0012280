"""
Upgrades of servers under load.

A trial upgrades one server from 2.10 through all versions up to the newest, or a cluster of three,
server by server, by one version. The store stays, and the jobs of `faults` run meanwhile. As soon
as the servers support a feature, the streams get it, and the client has to use it. Then the streams
are compared with the outcome of each call.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path

import attrs
from faults import (
    BACK,
    TIMEOUT,
    Jobs,
    answer,
    end_all,
    kill,
    lame_duck,
    make_streams,
    patiently,
    restart,
    settle,
)
from trial import LATE, Base, Report, Skipped

import jetsync
from jetsync.devserver import DevServer, find_server

OLDER = ["2.10.26", "2.11.11", "2.12.8", "2.14.6"]
"""The versions before the newest, which is the installed one."""
PAUSE = 0.8
"""Seconds of load between two upgrades."""
WAYS = [restart, restart, kill, lame_duck]
BATCHES = (2, 12)
FAST = (2, 14)
TTL = (2, 11)


@attrs.define
class World:
    base: Base
    binaries: list[Path]
    """The servers of all versions, oldest first."""


@contextlib.contextmanager
def world():
    try:
        binaries = [find_server(version).path for version in [*OLDER, None]]
    except jetsync.DevServerError as error:
        raise Skipped(str(error)) from error
    with DevServer() as server, jetsync.connect(server.url):
        # The first event loop of a process opens a pipe that stays.
        pass
    yield World(Base(), binaries)


class Servers:
    """
    Servers that start a link, which points to the present version.
    """

    def __init__(self, world: World, first: int, size: int, stack) -> None:
        self._world = world
        self._link = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "nats-server"
        self.present = first
        self._point()
        before = os.environ.get("NATS_SERVER")
        os.environ["NATS_SERVER"] = str(self._link)
        try:
            self.dev = stack.enter_context(DevServer(cluster=size))
        finally:
            if before is None:
                del os.environ["NATS_SERVER"]
            else:
                os.environ["NATS_SERVER"] = before

    def _point(self) -> None:
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(self._world.binaries[self.present])

    def upgrade(self) -> None:
        """Let servers that start from now on have the next version."""
        self.present += 1
        self._point()


def trial(world: World, chance, report: Report) -> None:
    """Upgrade one server by all versions, or a cluster by one."""
    if report.seed % 2 == 0:
        play(world, chance, report, first=0, steps=len(OLDER), size=1)
    else:
        play(world, chance, report, first=chance.randrange(len(OLDER)), steps=1, size=3)
    world.base.check(report)


def play(world: World, chance, report: Report, *, first: int, steps: int, size: int) -> None:
    made = f"{size} server{'s' * (size > 1)}"
    with contextlib.ExitStack() as stack:
        servers = Servers(world, first, size, stack)
        observer = stack.enter_context(
            jetsync.connect(servers.dev.url, reconnect_wait=0.05, max_reconnect_wait=0.5)
        )
        made += f", {servers.dev.version}"
        report.about(made)
        stream, kv = make_streams(observer, size, batches=False)
        stop = threading.Event()
        echo = threading.Thread(target=answer, args=(observer, stop), daemon=True)
        echo.start()
        client = stack.enter_context(
            jetsync.connect(
                servers.dev.url, reconnect_wait=0.02, max_reconnect_wait=0.5, ping_interval=0.5
            )
        )
        add_features(observer, servers.dev.version_tuple, report)
        jobs = Jobs(client, report, chance)
        for _ in range(steps):
            time.sleep(PAUSE * chance.random())
            servers.upgrade()
            for index in chance.sample(range(size), size):
                way = chance.choice(WAYS)
                way(servers.dev, index, chance)
                made += f", {way.__name__} {index}: {servers.dev.version}"
                report.about(made)
            report.counts["upgrades"] += 1
            add_features(observer, servers.dev.version_tuple, report)
        use_features(jobs, servers.dev.version_tuple, report)
        # The jobs that need a feature which the servers do not have cannot succeed.
        missing = {"atomic": BATCHES, "fast": FAST}
        jobs.threads[:] = [
            thread
            for thread in jobs.threads
            if servers.dev.version_tuple >= missing.get(thread.name, ())
        ]
        settle(jobs, report, stream, kv)
        report.counts["reconnects"] += client.statistics().reconnects
        end_all(jobs, report)
        stop.set()
        echo.join(5)


def add_features(observer: jetsync.Client, version: tuple[int, ...], report: Report) -> None:
    """Let the streams have the features of the servers."""
    js = observer.jetstream(timeout=TIMEOUT)
    if version < TTL:
        return
    changes = {"allow_msg_ttl": True}
    if version >= BATCHES:
        changes["allow_atomic"] = True
    if version >= FAST:
        changes["allow_batched"] = True
    config = patiently(lambda: js.stream("F").info()).config
    patiently(lambda: js.update_stream(attrs.evolve(config, **changes)))
    if version >= BATCHES:
        patiently(lambda: js.update_key_value("K", atomic=True))
    report.counts["features"] += len(changes)


def use_features(jobs: Jobs, version: tuple[int, ...], report: Report) -> None:
    """Use each feature of the servers, with the client that has seen all versions."""
    kv = jobs.js.key_value("K")

    def transaction() -> None:
        with kv.atomic() as changes:
            changes.put("both-a", b"x")
            changes.put("both-b", b"x")

    def ttl() -> None:
        data = b"ttl-%d" % report.counts["features used"]
        try:
            jobs.ledger.acked[data] = jobs.js.publish("f.ttl", data, ttl=3600).sequence
        except jetsync.JetSyncError as error:
            jobs.ledger.failed(data, error)
            raise

    for name, needs, use in [("ttl", TTL, ttl), ("transaction", BATCHES, transaction)]:
        if version < needs:
            continue
        end = time.monotonic() + BACK + LATE
        while isinstance(error := report.call(name, use, TIMEOUT), jetsync.JetSyncError):
            if time.monotonic() > end:
                report.violation(f"{name} does not work", repr(error))
                break
            time.sleep(0.1)
        report.counts["features used"] += 1
