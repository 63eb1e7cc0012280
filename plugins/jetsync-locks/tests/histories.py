"""
Histories of locks: programs that write them, and an exact check.

All programs of a test run on one machine and share a clock, so their claims can be compared.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

import jetsync
from jetsync_locks import AcquireTimeoutError, LeaseLostError, Lock
from jetsync_locks._clock import now

if TYPE_CHECKING:
    from collections.abc import Iterable

RECONNECT = {"reconnect_wait": 0.05, "max_reconnect_wait": 0.5, "max_reconnects": -1}


@attrs.frozen
class Claim:
    """
    The time during which a program says that it holds a lock.
    """

    name: str
    fence: int
    program: str
    begin: float
    """When `acquire` had returned."""
    end: float
    """When the program began to release it, or when its lease ended by its own clock."""
    waited: float
    """Seconds from the call of `acquire`."""


class Diary:
    """
    A file with a line for each event, which survives that the program is killed.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, event: str, **fields: Any) -> None:
        """
        Write an event with the time.
        """
        line = json.dumps({"event": event, "at": now(), **fields}) + "\n"
        os.write(self._file, line.encode())


def work(urls: list[str], bucket: str, path: str, options: dict[str, Any]) -> None:
    """
    Acquire and release locks in several threads until the file *stop* exists.
    """
    with connect(urls) as client:
        kv = opened(client, bucket)
        with ThreadPoolExecutor(options["threads"]) as pool:
            working = [
                pool.submit(claim_often, kv, f"{path}-{number}.jsonl", options, number)
                for number in range(options["threads"])
            ]
        for thread in working:
            thread.result()


def connect(urls: list[str]) -> jetsync.Client:
    """
    Connect, also if no server can be reached at first.
    """
    while True:
        try:
            return jetsync.connect(urls, **RECONNECT)
        except jetsync.ConnectError:
            time.sleep(0.1)


def opened(client: jetsync.Client, bucket: str) -> jetsync.KeyValue:
    """
    Open the bucket, also if it has no leader at first.
    """
    while True:
        try:
            return client.jetstream(timeout=10).key_value(bucket)
        except (jetsync.TemporarilyUnavailableError, TimeoutError, ConnectionError):
            time.sleep(0.1)


def claim_often(kv: jetsync.KeyValue, path: str, options: dict[str, Any], number: int) -> None:
    """
    Acquire and release locks in one thread. Some of the locks are asked for more often.
    """
    diary, rng = Diary(path), random.Random(f"{options['seed']} {number}")
    lease, stop = options["lease"], Path(options["stop"])
    names = options["names"]
    kept = {name: Lock(kv, name, lease=lease) for name in names}
    try:
        while not stop.exists():
            name = rng.choice(names[:3] if rng.random() < options["hot"] else names)
            lock = kept[name] if rng.random() < 0.7 else Lock(kv, name, lease=lease)
            hold = rng.choices([0.0, 0.02, 2.5 * lease], [90, 10, options["long"]])[0]
            claim(diary, lock, rng.random() * hold)
        diary.note("finished")
    except BaseException as error:
        diary.note("error", reason=repr(error))
        raise


def claim(diary: Diary, lock: Lock, hold: float) -> None:
    """
    Acquire a lock once, hold it for a time, and note what it says.
    """
    asked = now()
    diary.note("ask", name=lock.name)
    try:
        lock.acquire(timeout=300)
    except AcquireTimeoutError as error:
        diary.note("failed", name=lock.name, reason=str(error))
        return
    got = now()
    valid = got + lock.remaining
    diary.note(
        "got", name=lock.name, fence=lock.fence, valid=valid, held=lock.held, waited=got - asked
    )
    while lock.held and (left := got + hold - now()) > 0:
        lock.lost.wait(min(left, 0.1))
        at = now()
        if lock.held and at + lock.remaining > valid + 0.01:
            valid = at + lock.remaining
            diary.note("renewed", fence=lock.fence, name=lock.name, valid=valid)
    diary.note("end", name=lock.name, fence=lock.fence, held=lock.held)
    try:
        confirmed = lock.release(timeout=30)
    except LeaseLostError:
        diary.note("lost", name=lock.name)
    else:
        diary.note("released", name=lock.name, confirmed=confirmed)


def read(path: Path) -> list[dict[str, Any]]:
    """
    Return the events of a diary.
    """
    return [json.loads(line) for line in path.read_text().splitlines()]


def claims_of(program: str, events: Iterable[dict[str, Any]]) -> list[Claim]:
    """
    Return the claims in the events of one program.

    A claim ends when its lease does, unless the program has said before that it ends.
    """
    claims: list[Claim] = []
    current: dict[str, Any] | None = None
    for event in [*events, {"event": "finished", "at": float("inf")}]:
        kind = event["event"]
        if kind == "got":
            assert current is None
            current = event if event["held"] else None
        elif kind == "renewed" and current is not None:
            current = {**current, "valid": event["valid"]}
        elif kind in {"end", "finished"} and current is not None:
            end = min(event["at"], current["valid"])
            if end > current["at"]:
                fields = current["name"], current["fence"], program, current["at"]
                claims.append(Claim(*fields, end, current["waited"]))
            current = None
    return claims


def violations(claims: Iterable[Claim]) -> list[str]:
    """
    Return what is wrong with a history: two holders at one moment, or a fence that does not grow.
    """
    by_name: dict[str, list[Claim]] = defaultdict(list)
    for one in claims:
        by_name[one.name].append(one)
    found = []
    for name, held in by_name.items():
        held.sort(key=lambda one: one.begin)
        latest = None
        for one in held:
            if latest is not None:
                if one.begin < latest.end:
                    found.append(f"{name}: two holders: {latest} and {one}")
                if one.fence <= latest.fence:
                    found.append(f"{name}: the fence does not grow: {latest} and {one}")
            if latest is None or one.end > latest.end:
                latest = one
    return found
