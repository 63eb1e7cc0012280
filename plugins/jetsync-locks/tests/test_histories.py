"""
Programs that are killed, stopped and cut off never hold a lock at the same time.

``JETSYNC_LOCKS_SECONDS`` is the length of the long run in seconds (480), ``JETSYNC_LOCKS_SERVERS``
the number of servers (3), and ``JETSYNC_LOCKS_SEED`` chooses the faults. ``JETSYNC_LOCKS_LONG`` is
the share of uses that last longer than the lease, in percent (2): only these can be lost.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import histories
import pytest
from histories import Claim, claims_of, read, violations, work

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROGRAMS = 8
LEASE = 3
STOPPED = 30.0
"""Seconds for which a program is stopped."""


def one(fence: int, begin: float, end: float, name: str = "a") -> Claim:
    """
    Return a claim.
    """
    return Claim(name, fence, "p", begin, end, 0.0)


def test_the_check_accepts_a_history_in_order():
    """
    Claims that follow each other, with growing fences, are accepted; locks are independent.
    """
    assert violations([one(1, 0, 2), one(2, 2, 3), one(1, 1, 9, "b"), one(5, 4, 5)]) == []


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ([one(1, 0, 2), one(2, 1, 3)], "two holders"),
        ([one(1, 0, 9), one(2, 1, 3)], "two holders"),
        ([one(1, 0, 9), one(2, 1, 2), one(3, 5, 6)], "two holders"),
        ([one(2, 0, 1), one(1, 2, 3)], "the fence does not grow"),
        ([one(2, 0, 1), one(2, 2, 3)], "the fence does not grow"),
    ],
)
def test_the_check_refuses_other_histories(claims, said):
    """
    Two holders at one moment and fences that do not grow are found.
    """
    assert said in violations(claims)[0]


def test_a_claim_lasts_until_its_end_or_that_of_its_lease():
    """
    A program that is killed or stopped claims the lock until its lease ends by its own clock.
    """
    got = {"event": "got", "at": 1.0, "name": "a", "fence": 7, "held": True, "waited": 0.0}
    renewed = {"event": "renewed", "at": 2.0, "valid": 6.0}
    ended = [*({**got, "valid": 4.0},), {"event": "end", "at": 3.0}]

    assert [c.end for c in claims_of("p", [{**got, "valid": 4.0}])] == [4.0]
    assert [c.end for c in claims_of("p", [{**got, "valid": 4.0}, renewed])] == [6.0]
    assert [c.end for c in claims_of("p", ended)] == [3.0]
    assert claims_of("p", [{**got, "held": False, "valid": 0.0}]) == []


class Campaign:
    """
    Programs on a cluster of three servers, each behind proxies of its own, and the faults.
    """

    def __init__(
        self,
        folder: Path,
        servers: DevServer,
        client: jetsync.Client,
        stack: contextlib.ExitStack,
        seed: int,
    ) -> None:
        self.folder, self.servers, self.client = folder, servers, client
        self.size = len(servers.urls)
        self.rng = random.Random(seed)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["histories"])
        self.proxies = [
            [stack.enter_context(CutProxy(url)) for url in self.rng.choices(servers.urls, k=2)]
            for _ in range(PROGRAMS)
        ]
        self.programs: list[multiprocessing.process.BaseProcess | None] = [None] * PROGRAMS
        self.busy: set[int] = set()
        self.numbers = itertools.count()
        self.faults: Counter[str] = Counter()
        self.stop_file = folder / "stop"
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.server_is_down = False

    def start(self, place: int) -> None:
        """
        Start the program at a place.
        """
        number = next(self.numbers)
        options = {
            "seed": number,
            "lease": LEASE,
            "names": [f"name-{number}" for number in range(40)],
            "hot": 0.25,
            "threads": 2,
            "stop": str(self.stop_file),
            "long": float(os.environ.get("JETSYNC_LOCKS_LONG", "2")),
        }
        path = str(self.folder / f"program-{number:03}")
        urls = [proxy.url for proxy in self.proxies[place]]
        self.programs[place] = self.context.Process(
            target=work, args=(urls, "locks", path, options), daemon=True
        )
        self.programs[place].start()

    def fault(self) -> None:
        """
        Do something bad to a program or a server.
        """
        kind = self.rng.choices(
            ["kill", "stop", "cut", "partition", "server", "pause server", "step down"],
            [3, 2, 3, 3, 1, 1, 3],
        )[0]
        place = self.rng.choice([p for p in range(PROGRAMS) if p not in self.busy])
        if kind == "kill":
            self.programs[place].kill()
            self.programs[place].join()
            self.start(place)
        elif kind == "stop":
            if len(self.busy) > PROGRAMS // 2:
                return
            self.busy.add(place)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.programs[place].pid, signal.SIGSTOP)
            self.after(STOPPED, lambda: self.carry_on(place))
        elif kind == "cut":
            for proxy in self.proxies[place]:
                proxy.cut(reset=self.rng.random() < 0.5)
        elif kind == "partition":
            self.busy.add(place)
            for proxy in self.proxies[place]:
                proxy.refuse()
                proxy.freeze()
            self.after(self.rng.uniform(0.5, 2.5 * LEASE), lambda: self.heal(place))
        elif kind == "step down":
            with contextlib.suppress(jetsync.JetSyncError):
                self.client.request("$JS.API.STREAM.LEADER.STEPDOWN.KV_locks", timeout=2)
        else:
            if self.server_is_down:
                return
            leader = self.servers.stream_leader("KV_locks") if self.size > 1 else 0
            if leader is None:
                return
            self.server_is_down = True
            if kind == "server":
                self.servers.kill(leader)
                undo = lambda: self.servers.start(leader, wait=False)  # noqa: E731
            else:
                self.servers.pause(leader)
                undo = lambda: self.servers.resume(leader)  # noqa: E731
            self.after(self.rng.uniform(1, 6), lambda: self.bring_back(undo))
        self.faults[kind] += 1

    def after(self, seconds: float, undo: Callable[[], object]) -> None:
        """
        Undo a fault later.
        """
        self.later.append((time.monotonic() + seconds, undo))

    def carry_on(self, place: int) -> None:
        """
        Let a stopped program continue.
        """
        with contextlib.suppress(ProcessLookupError):
            # If it has failed, its diary says why.
            os.kill(self.programs[place].pid, signal.SIGCONT)
        self.busy.discard(place)

    def heal(self, place: int) -> None:
        """
        End a partition.
        """
        for proxy in self.proxies[place]:
            proxy.accept()
            proxy.cut()
        self.busy.discard(place)

    def bring_back(self, undo: Callable[[], object]) -> None:
        """
        Start or resume a server.
        """
        undo()
        self.server_is_down = False

    def undo_due(self, *, everything: bool = False) -> None:
        """
        Undo the faults whose time has come.
        """
        now = time.monotonic()
        due = [item for item in self.later if everything or item[0] <= now]
        self.later = [item for item in self.later if item not in due]
        for _, undo in due:
            undo()

    def run(self, seconds: float, pause: float) -> float:
        """
        Run the campaign; return how many seconds the programs needed to end.
        """
        for place in range(PROGRAMS):
            self.start(place)
        end = time.monotonic() + seconds
        tick = threading.Event()
        while time.monotonic() < end:
            # Faults are spread over time.
            tick.wait(self.rng.uniform(0.5, 1.5) * pause)
            self.undo_due()
            self.fault()
        self.undo_due(everything=True)
        ended = time.monotonic()
        self.stop_file.touch()
        for program in self.programs:
            program.join(max(120 - (time.monotonic() - ended), 0))
        assert [p for p in self.programs if p.is_alive()] == [], "waiters are forgotten"
        return time.monotonic() - ended


@pytest.mark.soak
@pytest.mark.live
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
@pytest.mark.timeout(1200)
def test_no_two_programs_hold_a_lock_at_one_moment(tmp_path, record_property):
    """
    Over kills, stops of 30 s, partitions and changes of leader, fences grow, no two programs hold
    a lock at one moment, and each program that waits gets its lock.
    """
    seconds = float(os.environ.get("JETSYNC_LOCKS_SECONDS", "480"))
    seed = int(os.environ.get("JETSYNC_LOCKS_SEED", "1"))
    size = int(os.environ.get("JETSYNC_LOCKS_SERVERS", "3"))
    config = {"cluster": {"no_advertise": True}} if size > 1 else {}
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(DevServer(cluster=size, config=config))
        client = stack.enter_context(jetsync.connect(servers.urls, **histories.RECONNECT))
        client.jetstream(timeout=20).create_key_value(
            "locks", limit_marker_ttl=60, num_replicas=size
        )
        campaign = Campaign(tmp_path, servers, client, stack, seed)
        took = campaign.run(seconds, pause=3.0)
    diaries = {path.name: read(path) for path in sorted(tmp_path.glob("program-*.jsonl"))}
    claims = [claim for name, events in diaries.items() for claim in claims_of(name, events)]
    kinds = Counter(event["event"] for events in diaries.values() for event in events)
    waits = sorted(claim.waited for claim in claims)
    figures = {
        "acquisitions": kinds["got"],
        "events": dict(kinds),
        "faults": dict(campaign.faults),
        "longest wait": round(waits[-1], 1),
        "median wait": round(waits[len(waits) // 2], 4),
        "seconds to end": round(took, 1),
        "threads": len(diaries),
    }
    record_property("figures", figures)
    print(figures)  # noqa: T201 - the result of the campaign
    assert violations(claims) == []
    assert kinds["failed"] == kinds["error"] == 0
