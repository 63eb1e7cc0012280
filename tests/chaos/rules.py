"""
Rules of a server that change under a running client: permissions, limits, passwords, certificates,
and room for data.

Each trial starts a server and the jobs of `faults`, changes one kind of rule by reloading the
configuration, makes a call that the new rule refuses, and restores the rule. Then the client works
again, and the streams are compared with the outcome of each call.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import attrs
from faults import (
    BACK,
    LIMIT,
    TIMEOUT,
    Jobs,
    answer,
    compare,
    end_all,
    make_streams,
    patiently,
    read_all,
    settle,
    wait_for,
)
from trial import LATE, Base, Report

import jetsync
from helpers.certificates import Authority, tls_block
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

FOR = 1.0
"""Seconds for which a rule stays changed, at least."""
ROOM = 40 << 20
"""Bytes of the disk, or of the limit for streams."""
BOSS = {"user": "boss", "password": "of-the-boss"}
"""The login that no rule changes."""
NEW_NAMESPACE = 0x00020000
"""CLONE_NEWNS of Linux: mounts of this process are not seen by others, and end with it."""


@attrs.define
class World:
    base: Base
    folder: Path
    ours: Authority
    theirs: Authority
    disk: Path | None
    """A small disk, None if this process may not mount one."""


@contextlib.contextmanager
def world():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with DevServer() as server, jetsync.connect(server.url):
            # The first event loop of a process opens a pipe that stays.
            pass
        ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
        yield World(Base(), folder, ours, theirs, small_disk(folder / "disk"))


def small_disk(path: Path) -> Path | None:
    """Mount a small disk that only this process and its servers see."""
    path.mkdir()
    if ctypes.CDLL(None).unshare(NEW_NAMESPACE):
        return None
    for command in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "jetsync", str(path)],
    ):
        with contextlib.suppress(OSError):
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                continue
        return None
    return path


class Server:
    """
    A server whose configuration is changed while it runs.
    """

    def __init__(self, world: World, stack, store: Path | None = None, **rules) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._file = folder / "rules.conf"
        self.rules = {"authorization": {"users": [BOSS, worker()]}, **rules}
        self._write()
        # The path is relative to the folder of the configuration, which is a sibling.
        text = f'include "../{folder.name}/{self._file.name}"'
        self.dev = stack.enter_context(DevServer(config=text, store=store))

    def _write(self) -> None:
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in self.rules.items()]
        self._file.write_text("\n".join(lines))

    def change(self, **rules) -> None:
        """Replace rules, None removes one, and wait until the server has read them."""
        self.rules = {k: v for k, v in (self.rules | rules).items() if v is not None}
        self._write()
        before = self._reloads()
        os.kill(self.dev.pids[0], signal.SIGHUP)
        if not wait_for(lambda: self._reloads() > before, 10):
            raise AssertionError(f"not reloaded:\n{self.dev.log()[-2000:]}")

    def user(self, **settings) -> None:
        """Change the user of the jobs."""
        self.change(authorization={"users": [BOSS, worker(**settings)]})

    def _reloads(self) -> int:
        return self.dev.log().count("Reloaded server configuration")


def worker(password="first", **settings) -> dict:
    return {"user": "worker", "password": password, **settings}


class Workers(Jobs):
    """
    The jobs, with readers that begin again after a rule has ended them.
    """

    def _read(self, reader) -> None:
        while True:
            if reader.__name__ == "ordered":
                self.in_order.clear()
            if reader.__name__ == "watch":
                self.entries.clear()
            try:
                reader()
            except jetsync.JetSyncError:
                self.report.counts["readers ended"] += 1
            except Exception as error:  # noqa: BLE001 - the trial looks for any error
                self.report.foreign(reader.__name__, error)
                return
            if wait_for(lambda: self.client.is_closed, 0.2):
                return

    def refused(self, kinds=jetsync.JetSyncError, size: int = 10) -> None:
        """Publish a message that a rule refuses, with an error of one of some kinds."""
        data = b"refused-%d-" % len(self.ledger.not_stored | self.ledger.unknown) + b"x" * size

        def publish() -> None:
            try:
                self.ledger.acked[data] = self.js.publish("f.single", data).sequence
            except jetsync.JetSyncError as error:
                self.ledger.failed(data, error)
                raise

        self.report.counts["refusals"] += 1
        error = self.report.call("refused", publish, TIMEOUT)
        if error is None:
            self.report.violation("not refused", "the call succeeded")
        elif not isinstance(error, kinds):
            self.report.violation("unclear error", repr(error))


@contextlib.contextmanager
def working(server: Server, chance, report: Report, url: str | None = None, **options):
    """Run the jobs during the block, and compare the outcomes afterwards."""
    trusted = {"tls_ca": options.pop("boss_ca")} if "boss_ca" in options else {}
    login = {"user": "worker", "password": "first"}
    quick = {"reconnect_wait": 0.05, "max_reconnect_wait": 0.5, "connect_timeout": 10}
    with contextlib.ExitStack() as stack:
        observer = stack.enter_context(jetsync.connect(server.dev.url, **BOSS, **quick, **trusted))
        stream, kv = make_streams(observer, 1)
        stop = threading.Event()
        echo = threading.Thread(target=answer, args=(observer, stop), daemon=True)
        echo.start()
        client = stack.enter_context(
            jetsync.connect(url or server.dev.url, **(login | quick | options))
        )
        jobs = Workers(client, report, chance)
        time.sleep(chance.random() * 0.5)
        yield jobs, observer
        if client.is_closed:
            finish(jobs, report, stream)
        else:
            settle(jobs, report, stream, kv)
        report.counts["reconnects"] += client.statistics().reconnects
        end_all(jobs, report)
        stop.set()
        echo.join(5)


def finish(jobs: Jobs, report: Report, stream) -> None:
    """End the jobs of a client that has closed, and compare."""
    jobs.stop.set()
    for thread in jobs.threads:
        thread.join(LIMIT + LATE)
        if thread.is_alive():
            report.violation("hang", f"{thread.name} does not end")
    compare(jobs.ledger, read_all(stream), report)


# The rules.

DENIED = [
    ("publish", "f.>"),
    ("publish", "$KV.>"),
    ("publish", "echo"),
    ("publish", "core.>"),
    ("publish", "$JS.ACK.>"),
    ("publish", "$JS.API.>"),
    ("publish", "$JS.API.CONSUMER.MSG.NEXT.>"),
    ("subscribe", "core.>"),
    ("subscribe", "_INBOX.>"),
]


def permissions(world: World, chance, report: Report) -> None:
    """Deny subjects to the user, and allow them again."""
    with contextlib.ExitStack() as stack:
        server = Server(world, stack)
        with working(server, chance, report) as (jobs, _):
            for way, subject in [("publish", "f.>"), *chance.sample(DENIED, 2)]:
                report.about(f"{way} {subject} denied")
                server.user(permissions={way: {"deny": [subject]}})
                report.counts["changes"] += 1
                if subject == "f.>":
                    jobs.refused(jetsync.PermissionDeniedError)
                time.sleep(FOR * chance.random())
                server.user()


def limits(world: World, chance, report: Report) -> None:
    """Lower limits, and raise them again."""
    with contextlib.ExitStack() as stack:
        server = Server(world, stack)
        with working(server, chance, report) as (jobs, _):
            for name, value in chance.sample([("max_payload", 900), ("max_connections", 1)], 2):
                report.about(f"{name} {value}")
                server.change(**{name: value})
                report.counts["changes"] += 1
                if name == "max_payload":
                    jobs.refused(size=5000)
                time.sleep(FOR * (0.5 + chance.random()))
                server.change(**{name: None})


def passwords(world: World, chance, report: Report) -> None:
    """Change the password of the user, so that the server ends its connection."""
    way = chance.choice(["callable", "later", "lost"])
    report.about(f"password {way}")
    known = ["first"]
    options = {"password": "first" if way == "lost" else lambda: known[-1]}
    with contextlib.ExitStack() as stack:
        server = Server(world, stack)
        with working(server, chance, report, retry_refused_logins=way == "later", **options) as (
            jobs,
            _,
        ):
            for password in ["second", "third"]:
                if way == "callable":
                    known.append(password)
                server.user(password=password)
                report.counts["changes"] += 1
                if way == "lost":
                    if not wait_for(lambda: jobs.client.is_closed, BACK + LATE):
                        report.violation("not closed", "after a refused login")
                    jobs.refused(jetsync.ConnectionClosedError)
                    return
                time.sleep(FOR)
                if way == "later":
                    if jobs.client.is_connected:
                        report.violation("connected", "with a wrong password")
                    jobs.refused()
                    known.append(password)
                back(jobs, report)


def certificates(world: World, chance, report: Report) -> None:
    """Replace the certificate of the server, also by one that the client does not trust."""
    number = report.seed
    good = [tls_block(world.ours.issue(f"good-{number}-{n}")) for n in range(2)]
    bad = tls_block(world.theirs.issue(f"bad-{number}"))
    both = world.folder / "both.pem"
    both.write_text(Path(world.ours.path).read_text() + Path(world.theirs.path).read_text())
    with contextlib.ExitStack() as stack:
        server = Server(world, stack, tls=good[0])
        proxy = stack.enter_context(CutProxy(server.dev.port))
        url = f"tls://127.0.0.1:{proxy.port}"
        with working(server, chance, report, url, tls_ca=world.ours.path, boss_ca=str(both)) as (
            jobs,
            _,
        ):
            for name, block in [("good", good[1]), ("bad", bad), ("good", good[0])]:
                report.about(f"{name} certificate")
                server.change(tls=block)
                report.counts["changes"] += 1
                proxy.cut()
                if name == "good":
                    back(jobs, report)
                    continue
                time.sleep(FOR)
                if jobs.client.is_connected:
                    report.violation("connected", "to a server that is not trusted")
                jobs.refused(jetsync.TransportError)


def full(world: World, chance, report: Report) -> None:
    """Fill the disk, or reach the limit for streams, and make room again."""
    disk = world.disk if chance.random() < 0.5 else None
    report.about("disk full" if disk else "limit reached")
    with contextlib.ExitStack() as stack:
        store = None
        rules = {"jetstream": {"max_file_store": ROOM}}
        if disk:
            store = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=disk)))
            rules = {}
        server = Server(world, stack, store, **rules)
        with working(server, chance, report) as (jobs, observer):
            report.counts["changes"] += 1
            filler = disk / "filler" if disk else None
            try:
                if filler:
                    fill_disk(filler)
                else:
                    fill_stream(observer)
                time.sleep(FOR)
                jobs.refused()
            finally:
                if filler:
                    filler.unlink()
            if disk:
                # A server that has no room for a message switches JetStream off.
                server.dev.restart()
            else:
                patiently(lambda: observer.jetstream().stream("FILLER").purge())


def fill_disk(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def fill_stream(observer: jetsync.Client) -> None:
    js = observer.jetstream()
    js.create_stream("FILLER", subjects=["filler"])
    for size in (900_000, 9_000, 90, 0):
        with contextlib.suppress(jetsync.ApiError):
            while True:
                js.publish("filler", bytes(size))


def back(jobs: Jobs, report: Report) -> None:
    """Wait until the client is connected and works."""

    def works() -> bool:
        with contextlib.suppress(jetsync.JetSyncError):
            jobs.client.flush(timeout=1)
            return True
        return False

    if not wait_for(works, BACK + LATE):
        report.violation("client not back", f"after {BACK:g} s")


RULES = [permissions, limits, passwords, certificates, full]


def trial(world: World, chance, report: Report) -> None:
    """Change one kind of rule."""
    rule = RULES[report.seed % len(RULES)]
    rule(world, chance, report)
    report.violations[:] = [(k, f"{rule.__name__}: {text}") for k, text in report.violations]
    world.base.check(report)
