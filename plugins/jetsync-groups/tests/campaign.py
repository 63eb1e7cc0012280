"""
A campaign: members of a group come, go, are killed and paused while they handle keyed messages.

Afterwards, what the members wrote is compared with what was published:

- every message was handled;
- the first completions of each key are in order;
- no two live members worked on one key at the same time;
- each message that was handled twice has a reason.

If ``JETSYNC_GROUPS_PEER`` names a program that joins with orbit.go, half of the members are Go's:
``PROGRAM pcg-member URL STREAM GROUP MEMBER -ack-wait 3s -timeout 24h`` has to print a JSON line
with ``data``, ``started`` and ``finished`` (nanoseconds) for each message.

Usage: campaign.py MESSAGES SECONDS [SEED]
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import jetsync
from jetsync.devserver import DevServer
from jetsync_groups import create_elastic_group

HERE = Path(__file__).parent
STREAM, GROUP = "CAMPAIGN", "g"
KEYS, MEMBERS, PARTITIONS, ACK_WAIT = 1000, 8, 24, 3
SLOW = float(os.environ.get("JETSYNC_GROUPS_SLOW", "0.005"))
PEER = os.environ.get("JETSYNC_GROUPS_PEER")


class Process:
    """
    One process of a member, and what happened to it. Times are in nanoseconds since 1970.
    """

    def __init__(self, member: str, number: int, url: str, folder: Path, *, is_go: bool) -> None:
        self.member, self.is_go = member, is_go
        self.path = folder / f"{number:05d}-{member}"
        self.killed: int | None = None
        self.pauses: list[list[int]] = []
        self.errors: list[str] = []
        self.started = time.time_ns()
        self.ended: int | None = None
        if is_go:
            assert PEER is not None
            options = ["-ack-wait", f"{ACK_WAIT}s", "-timeout", "24h"]
            # The peer sleeps before each acknowledgement.
            options += ["-sleep", "50"] if SLOW >= 1 else []
            command = [PEER, "pcg-member", url, STREAM, GROUP, member, *options]
        else:
            script = str(HERE / "member_process.py")
            names = [url, STREAM, GROUP, member, str(ACK_WAIT), str(self.path)]
            command = [sys.executable, script, *names]
        with self.path.open("ab") as out, (folder / "stderr").open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=out if is_go else subprocess.DEVNULL, stderr=errors
            )

    def runs(self) -> list[tuple[int, int, int | None]]:
        """
        List the messages that this process handled: number, start and end (None if it died).
        """
        found: list[tuple[int, int, int | None]] = []
        open_at: dict[int, int] = {}
        for line in self.path.read_bytes().decode(errors="replace").splitlines():
            if self.is_go:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # It was killed while it wrote.
                if "started" in row:
                    found.append((int(row["data"]), row["started"], row["finished"]))
                continue
            at, kind, number = [*line.split(" ", 2), "", ""][:3]
            if kind == "start":
                open_at[int(number)] = int(at)
            elif kind == "end":
                found.append((int(number), open_at.pop(int(number)), int(at)))
            elif kind == "error":
                self.errors.append(f"{self.member}: {number}")
        found += [(number, at, None) for number, at in open_at.items()]
        return found

    def was_paused(self, start: int, end: int) -> bool:
        """
        Return whether the process was stopped between two times.
        """
        return any(begin <= end and start <= until for begin, until in self.pauses)


class Campaign:
    """
    The members, and what is done to them.
    """

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self.url, self.folder = url, folder
        self.random = random.Random(seed)
        self.processes: list[Process] = []
        self.alive: dict[str, Process] = {}
        self.events: list[tuple[int, str, str]] = []
        self.changes = collections.Counter[str]()
        self.names = [f"m{number}" for number in range(MEMBERS)]

    def start(self, member: str) -> None:
        """
        Start a process for a member; with a peer, half of them are Go's.
        """
        is_go = PEER is not None and self.random.random() < 0.5
        number = len(self.processes)
        process = Process(member, number, self.url, self.folder, is_go=is_go)
        self.processes.append(process)
        self.alive[member] = process

    def note(self, kind: str, member: str) -> None:
        """
        Note an event.
        """
        self.events.append((time.time_ns(), kind, member))
        self.changes[kind] += 1

    def step(self, group: object, buffer: jetsync.Stream) -> None:
        """
        Do one thing to a random member.
        """
        member = self.random.choice(self.names)
        process = self.alive.get(member)
        kind = self.random.choice(
            ["drop", "drop", "kill", "pause", "stop", "delete", "step_down", "restart"]
        )
        if process is None:
            self.start(member)
            self.note("start", member)
            return
        if kind == "drop":
            if member in group.members() and len(group.members()) > 3:
                self.note("drop", member)
                group.drop_members(member)
            else:
                self.note("add", member)
                group.add_members(*self.random.sample(self.names, 3))
        elif kind in {"kill", "restart"}:
            process.process.kill()
            process.process.wait()
            process.killed = process.ended = time.time_ns()
            self.note("kill", member)
            del self.alive[member]
            if kind == "restart":
                self.start(member)
        elif kind == "pause":
            pause = [time.time_ns(), 2**63]
            process.pauses.append(pause)
            process.process.send_signal(signal.SIGSTOP)
            self.note("pause", member)
            threading.Timer(self.random.uniform(0.5, 8), self.resume, [process, pause]).start()
        elif kind == "stop":
            self.end(process)
            self.note("stop", member)
            del self.alive[member]
        elif kind == "delete":
            self.note("delete", member)
            with contextlib.suppress(jetsync.ConsumerNotFoundError):
                buffer.delete_consumer(member)
        else:
            self.note("step_down", member)
            with contextlib.suppress(jetsync.ApiError):
                group.step_down(member)

    @staticmethod
    def resume(process: Process, pause: list[int]) -> None:
        """
        Continue a stopped process.
        """
        pause[1] = time.time_ns()
        if process.process.poll() is None:
            process.process.send_signal(signal.SIGCONT)

    @staticmethod
    def end(process: Process) -> None:
        """
        End a process without killing it.
        """
        process.process.send_signal(signal.SIGCONT)
        process.process.terminate()
        try:
            process.process.wait(20)
        except subprocess.TimeoutExpired:
            process.process.kill()
            process.process.wait()
            process.killed = time.time_ns()
        process.ended = time.time_ns()


def publish(url: str, messages: int) -> None:
    """
    Publish the messages: message i has key i % KEYS.
    """
    with jetsync.connect(url, connect_timeout=60) as client:
        js = client.jetstream(timeout=30)
        for first in range(0, messages, 10_000):
            numbers = range(first, min(first + 10_000, messages))
            js.publish_many((f"c.k{i % KEYS}", str(i).encode()) for i in numbers)


def report(campaign: Campaign, messages: int) -> dict[str, object]:
    """
    Compare what was handled with what was published.
    """
    runs = collections.defaultdict(list)
    for process in campaign.processes:
        for number, start, end in process.runs():
            runs[number].append((start, end, process))
    missing = [i for i in range(messages) if not any(end for _, end, _ in runs[i])]
    first = {
        i: min(end for _, end, _ in runs[i] if end)
        for i in range(messages)
        if i not in set(missing)
    }
    disorder = [i for i in first if i + KEYS in first and first[i] >= first[i + KEYS]]
    twice, overlaps = collections.Counter(), collections.Counter()
    unexplained = []
    for number, found in runs.items():
        found.sort(key=lambda each: each[0])
        for run, _ in itertools.pairwise(found):
            reason = why_twice(campaign, *run)
            twice[reason] += 1
            if reason == "unexplained":
                unexplained.append((number, [(s, e, p.member, p.is_go) for s, e, p in found]))
    by_key = collections.defaultdict(list)
    for number, found in runs.items():
        by_key[number % KEYS] += [(start, end, process) for start, end, process in found]
    details = []
    for found in by_key.values():
        found.sort(key=lambda each: each[0])
        for (s1, e1, p1), (s2, _, p2) in itertools.pairwise(found):
            until = e1 or p1.killed or s1
            if until <= s2:
                continue
            if p1.was_paused(s1, until):
                overlaps["the first was stopped by a signal"] += 1
            elif any(
                k == "delete" and m == p1.member and s1 - 10**9 <= at <= s2 + 10**9
                for at, k, m in campaign.events
            ):
                overlaps["the campaign deleted the consumer"] += 1
            elif p1.is_go or any(
                p.is_go and p.member == p1.member
                for p in campaign.processes
                if p.started < s2 and (p.ended or 2**63) > s1
            ):
                overlaps["the first was a Go member"] += 1
            else:
                overlaps["two live members"] += 1
                details.append((s1, e1, p1.member, s2, p2.member, p2.is_go))
    return {
        "messages": messages,
        "missing": len(missing),
        "out of order": len(disorder),
        "handled": sum(len(found) for found in runs.values()),
        "twice": dict(twice),
        "overlaps": dict(overlaps),
        "changes": dict(campaign.changes),
        "processes": {
            "python": sum(not p.is_go for p in campaign.processes),
            "go": sum(p.is_go for p in campaign.processes),
        },
        "by go": sum(1 for found in runs.values() for _, _, p in found if p.is_go),
        "errors": [error for each in campaign.processes for error in each.errors],
        "details": details[:20],
        "unexplained": unexplained[:20],
    }


def why_twice(campaign: Campaign, start: int, end: int | None, process: Process) -> str:
    """
    Return why a message that was handled from *start* to *end* was delivered again.
    """
    near = end or process.killed or start
    if process.killed is not None and (end is None or process.killed - end < 10**9):
        return "killed before the server had the ack"
    if process.was_paused(start, near + 10**8):
        return "stopped by a signal before the server had the ack"
    for at, kind, member in campaign.events:
        if kind == "delete" and member == process.member and start - 10**9 <= at <= near + 10**9:
            return "the campaign deleted the consumer"
    changed = any(
        kind in {"drop", "add"} and start - 3 * 10**9 <= at <= near + 3 * 10**9
        for at, kind, _ in campaign.events
    )
    if process.is_go and changed:
        return "a Go member deleted its consumer while it worked"
    if process.is_go:
        return "a Go member, no event near"
    return "unexplained"


def run(messages: int, seconds: float, seed: int = 1) -> dict[str, object]:
    """
    Run a campaign, and return its report.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, DevServer() as server:
        folder = Path(name)
        with jetsync.connect(server.url, connect_timeout=60) as client:
            js = client.jetstream(timeout=30)
            stream = js.create_stream(STREAM, subjects=["c.*"])
            group = create_elastic_group(
                stream, GROUP, max_members=PARTITIONS, partition_by=[("c.*", [1])]
            )
            campaign = Campaign(server.url, folder, seed)
            group.add_members(*campaign.names)
            publisher = threading.Thread(target=publish, args=(server.url, messages))
            publisher.start()
            for member in campaign.names:
                campaign.start(member)
            buffer = js.stream(f"{STREAM}-{GROUP}", lookup=False)
            while time.monotonic() < began + seconds:
                time.sleep(campaign.random.uniform(0.2, 1.5))
                campaign.step(group, buffer)
                if is_done(buffer, messages):
                    break
            publisher.join()
            changed = time.monotonic() - began
            group.add_members(*campaign.names)
            time.sleep(8)  # Until the last pause is over.
            for member in campaign.names:
                if (
                    member not in campaign.alive
                    or campaign.alive[member].process.poll() is not None
                ):
                    campaign.start(member)
            # On a busy machine this takes long, so only a minute without progress is a fault.
            left, end = -1, time.monotonic() + 60
            while not is_done(buffer, messages) and time.monotonic() < end:
                time.sleep(0.5)
                if (now := buffer.info().state.messages) != left:
                    left, end = now, time.monotonic() + 60
            left = buffer.info().state.messages
            for process in campaign.alive.values():
                campaign.end(process)
            found = report(campaign, messages)
            found["left"], found["seconds of changes"] = left, round(changed)
            found["seconds"] = round(time.monotonic() - began)
            found["stderr"] = (folder / "stderr").read_text(errors="replace")[-2000:]
            return found


def is_done(buffer: jetsync.Stream, messages: int) -> bool:
    """
    Return whether the group's stream has got all messages, and none is left.
    """
    state = buffer.info().state
    return state.last_seq >= messages and state.messages == 0


if __name__ == "__main__":
    result = run(int(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:]))
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
