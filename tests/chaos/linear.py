"""
Changes, reads and transactions of one bucket under faults, checked for linearizability.

Each trial is a round of about 200 operations of six threads and three clients on five keys of a
bucket with three replicas. A search then decides whether the outcomes fit one order of the
operations (`linearizable`). Direct gets may be stale, so they are no part of it. They must only
return a value that a change begun earlier may have stored, with its revision.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter

import attrs
from faults import cut, cut_in_a_frame, freeze, hold, kill, patiently, sigstop, wait_for
from trial import LATE, Base, Report

import jetsync
from helpers.linearizable import Change, Operation, UndecidedError, refutation
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

SECONDS = 4.0
"""Seconds in which one round makes faults."""
TIMEOUT = 3.0
OPERATIONS = 240
"""The most operations of a round: the check then takes about a second."""
ENOUGH = 100
"""After the faults, a round continues for a moment until it has this many operations."""
PAUSE = 0.15
"""The longest pause of a thread between two operations, in seconds."""
LAG = 0.03
"""The longest delay of a proxy, in seconds, so that faults meet operations without an answer."""
CLIENTS = 3
THREADS = 2
"""Threads of each client."""
SINGLE = ["s0", "s1"]
"""Keys that no transaction changes."""
JOINED = ["t0", "t1", "t2"]


@attrs.define
class World:
    servers: DevServer
    observer: jetsync.Client
    """Its connections have no proxy."""
    base: Base


@contextlib.contextmanager
def world():
    config = {"cluster": {"no_advertise": True}}
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(DevServer(config=config, cluster=3))
        observer = stack.enter_context(
            jetsync.connect(servers.urls, reconnect_wait=0.05, max_reconnect_wait=0.5)
        )
        yield World(servers, observer, Base())


class Round:
    """
    The threads of one round, and the operations that they recorded.
    """

    def __init__(self, clients, bucket: str, report: Report, chance) -> None:
        self.report = report
        self.history: list[Operation] = []
        self.direct: list[Operation] = []
        self.stop = threading.Event()
        self.left = itertools.count(OPERATIONS, -1)
        self.revisions: dict[str, int] = {}
        """The last revision of each key that a thread noticed."""
        self.threads = [
            threading.Thread(
                target=self._work,
                args=(client.jetstream(timeout=TIMEOUT).key_value(bucket), name, chance.random()),
                name=f"worker {name}",
                daemon=True,
            )
            for number, client in enumerate(clients)
            for name in range(number * THREADS, (number + 1) * THREADS)
        ]
        for thread in self.threads:
            thread.start()

    def _work(self, kv, name, seed) -> None:
        chance = random.Random(seed)
        acts = [self.get] * 4 + [self.get_direct] + [self.change] * 6 + [self.modify] * 2
        acts += [self.transaction] * 3
        for number in itertools.count():
            if self.stop.wait(chance.random() * PAUSE) or next(self.left) <= 0:
                return
            chance.choice(acts)(kv, chance, b"%d-%d" % (name, number))

    # Reads.

    def get(self, kv, chance, _) -> None:
        read = self._read(kv, chance, direct=False)
        if read is not None:
            self.history.append(read)
            self.revisions[read.changes[0].key] = read.revisions[0]

    def get_direct(self, kv, chance, _) -> None:
        read = self._read(kv, chance, direct=True)
        if read is not None:
            self.direct.append(read)

    def _read(self, kv, chance, *, direct: bool) -> Operation | None:
        key = chance.choice(SINGLE + JOINED)
        begin = time.monotonic()
        found = self.report.call("get", lambda: kv.get(key, direct=direct), TIMEOUT)
        end = time.monotonic()
        if isinstance(found, jetsync.Entry):
            value, revision = bytes(found.value), found.revision
        elif isinstance(found, jetsync.KeyNotFoundError):
            value, revision = None, found.deleted_at or 0
        else:
            return None
        self.report.counts["operations"] += 1
        return Operation(begin, end, "read", (Change(key, value),), (revision,))

    # Changes.

    def change(self, kv, chance, value) -> None:
        key = chance.choice(SINGLE + JOINED)
        last = self._expected(chance, key)
        some = chance.choice([None, last])
        name, change, call = chance.choice(
            [
                ("put", Change(key, value), lambda: kv.put(key, value)),
                ("create", Change(key, value, creates=True), lambda: kv.create(key, value)),
                ("update", Change(key, value, last), lambda: kv.update(key, value, last=last)),
                ("update", Change(key, value, last), lambda: kv.update(key, value, last=last)),
                ("delete", Change(key, None, some), lambda: kv.delete(key, last=some)),
                ("purge", Change(key, None, some), lambda: kv.purge(key, last=some)),
            ]
        )
        self._record(name, (change,), lambda: (call(),))

    def modify(self, kv, chance, value) -> None:
        key, changes = chance.choice(SINGLE + JOINED), []

        def change(entry):
            # Only the last attempt may be stored.
            last = None if entry is None else entry.revision
            changes[:] = [Change(key, value, last, creates=entry is None)]
            return value

        self._record("modify", changes, lambda: (kv.modify(key, change),))

    def transaction(self, kv, chance, value) -> None:
        changes = []
        for key in chance.sample(JOINED, chance.choice([2, 2, 3])):
            kind = chance.choice(["put", "put", "create", "update", "delete"])
            changes.append(
                Change(
                    key,
                    None if kind == "delete" else value + b"-" + key.encode(),
                    self._expected(chance, key) if kind == "update" else None,
                    creates=kind == "create",
                )
            )

        def commit():
            with kv.atomic() as transaction:
                for change in changes:
                    if change.value is None:
                        transaction.delete(change.key)
                    elif change.creates:
                        transaction.create(change.key, change.value)
                    elif change.last is not None:
                        transaction.update(change.key, change.value, last=change.last)
                    else:
                        transaction.put(change.key, change.value)
            return tuple(transaction.revisions[change.key] for change in changes)

        self._record("transaction", tuple(changes), commit)

    def _expected(self, chance, key: str) -> int:
        """Return the revision of a key as far as it is known, or one that may be too low."""
        last = self.revisions.get(key) or 0
        return max(last - (chance.random() < 0.1), 0)

    def _record(self, name, changes, call) -> None:
        begin = time.monotonic()
        found = self.report.call(name, call, TIMEOUT)
        end = time.monotonic()
        self.report.counts["operations"] += 1
        changes = tuple(changes)
        if not changes:
            return
        if isinstance(found, tuple):
            self.history.append(Operation(begin, end, "done", changes, found))
            for change, revision in zip(changes, found, strict=True):
                self.revisions[change.key] = revision
        elif isinstance(
            found, jetsync.PublishOutcomeUnknownError | jetsync.ConnectionClosedError | None
        ):
            self.report.counts["unknown"] += 1
            self.history.append(Operation(begin, end, "unknown", changes))
        elif isinstance(found, jetsync.WrongLastRevisionError):
            self.report.counts["refused"] += 1
            self._refused(begin, end, changes, found)
        # With any other error nothing was changed.

    def _refused(self, begin, end, changes, error) -> None:
        """
        Record a refusal if it says which revision the key has.

        Some servers refuse a change without this number while they replicate another one.
        """
        single = len(changes) == 1 and not isinstance(error, jetsync.KeyExistsError)
        told = error.__cause__ if single else error
        if getattr(told, "last_sequence", None) is None:
            return
        changes = tuple(change for change in changes if change.key == error.key)
        revision = error.last_sequence
        self.revisions[error.key] = revision
        self.history.append(Operation(begin, end, "refused", changes, (revision,)))


def trial(world: World, chance, report: Report) -> None:
    """Run one round, and decide whether its history is linearizable."""
    play(world, chance, report)
    world.base.check(report)


def play(world: World, chance, report: Report) -> None:
    bucket = f"L{report.seed}"
    report.about("start")
    js = world.observer.jetstream(timeout=TIMEOUT)
    config = jetsync.KeyValueConfig(bucket=bucket, num_replicas=3, history=64, atomic=True)
    kv = patiently(lambda: js.create_or_update_key_value(config))
    with contextlib.ExitStack() as stack:
        proxies = [
            stack.enter_context(CutProxy(world.servers.ports(index)["nats"])) for index in range(3)
        ]
        for proxy in proxies:
            proxy.delay(LAG * chance.random())
        urls = [f"nats://127.0.0.1:{proxy.port}" for proxy in proxies]
        clients = [
            stack.enter_context(
                jetsync.connect(
                    chance.sample(urls, 3),
                    reconnect_wait=0.02,
                    max_reconnect_wait=0.5,
                    ping_interval=0.5,
                )
            )
            for _ in range(CLIENTS)
        ]
        working = Round(clients, bucket, report, chance)
        made = make_faults(world, proxies, chance, report, bucket)
        report.about(f"faults: {made}")
        # A new leader may just have been elected.
        wait_for(lambda: len(working.history) >= ENOUGH, 4)
        working.stop.set()
        for thread in working.threads:
            thread.join(TIMEOUT + LATE)
            if thread.is_alive():
                report.violation("hang", f"{thread.name} does not end")
        for client in clients:
            report.call("close", lambda: client.close(timeout=3), 3)  # noqa: B023 - called here
    check(working, kv, report)
    patiently(lambda: js.delete_key_value(bucket))


def make_faults(world: World, proxies, chance, report: Report, bucket: str) -> str:
    """Make one fault after the other; return a description of them."""
    made = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(chance.random() * 0.5)
        fault = chance.choice(FAULTS)
        report.about(f"faults: {' '.join(made)}, now {fault.__name__}")
        made.append(fault.__name__)
        report.counts["faults"] += 1
        if fault is step_down:
            fault(world, chance, bucket)
        elif fault in SERVER_FAULTS:
            leader = world.servers.stream_leader(f"KV_{bucket}")
            chosen = leader if leader is not None and chance.random() < 0.7 else chance.randrange(3)
            fault(world.servers, chosen, chance)
        else:
            count = chance.choice([1, 3])
            fault(chance.sample(proxies, count), chance)
    return " ".join(made)


def step_down(world: World, chance, bucket: str) -> None:
    subject = chance.choice([f"STREAM.LEADER.STEPDOWN.KV_{bucket}"] * 3 + ["META.LEADER.STEPDOWN"])
    with contextlib.suppress(jetsync.JetSyncError):
        world.observer.request(f"$JS.API.{subject}", timeout=2)


SERVER_FAULTS = [kill, sigstop]
FAULTS = [*[cut, cut_in_a_frame, freeze, hold] * 2, *[step_down] * 3, *SERVER_FAULTS * 2]


# Afterwards.


def check(working: Round, kv, report: Report) -> None:
    """Read all keys once more, and compare the operations with each other."""
    for key in SINGLE + JOINED:
        begin = time.monotonic()
        value, revision = patiently(lambda: last_of(kv, key))  # noqa: B023 - called here
        end = time.monotonic()
        working.history.append(Operation(begin, end, "read", (Change(key, value),), (revision,)))
        # Markers have no value.
        times = Counter(patiently(lambda: values_of(kv, key)))  # noqa: B023 - called here
        twice = [value for value, count in times.items() if value and count > 1]
        if twice:
            report.violation("stored twice", f"{key}: {twice[:5]}")
    try:
        wrong = refutation(working.history)
    except UndecidedError:
        report.counts["undecided"] += 1
        wrong = None
    if wrong:
        report.violation("not linearizable", wrong)
    check_direct(working, report)


def last_of(kv, key: str) -> tuple[bytes | None, int]:
    try:
        entry = kv.get(key, direct=False)
    except jetsync.KeyNotFoundError as error:
        return None, error.deleted_at or 0
    return bytes(entry.value), entry.revision


def values_of(kv, key: str) -> list[bytes]:
    try:
        return [bytes(entry.value) for entry in kv.history(key)]
    except jetsync.KeyNotFoundError:
        return []


def check_direct(working: Round, report: Report) -> None:
    """A direct get had a value that a change begun before its end may have stored."""
    changes: dict[tuple[str, bytes | None], list[tuple[float, int | None]]] = {}
    for operation in working.history:
        if operation.writes:
            for change, revision in zip(operation.changes, operation.revisions, strict=True):
                known = changes.setdefault((change.key, change.value), [])
                known.append((operation.begin, revision))
    for read in working.direct:
        change, revision = read.changes[0], read.revisions[0]
        if not revision:
            # The key had no marker yet.
            continue
        if not any(
            begin < read.end and found in {None, revision}
            for begin, found in changes.get((change.key, change.value), [])
        ):
            report.violation("direct get", f"nothing stored {read}")
