"""
Break connections, servers and calls at random but repeatable moments, and count violations.

``tox run -e chaos`` runs the whole campaign in about 20 minutes; ``JETSYNC_CHAOS_SECONDS=80`` makes
it short. Each trial has a seed, and each violation names the seed of its trial::

    tox run -e chaos -- --part signals --seed 1234 --trials 1

``tox run -e life`` runs the part ``life`` alone, for 30 minutes, and ``tox run -e shared`` the part
``shared``, for an hour.

Each part runs in a process of its own. This one watches it: a trial that does not end in time is a
violation, its stacks are shown, and the next trial gets a new process.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import attrs

HERE = Path(__file__).parent
FULL = 1200.0
"""Seconds of the whole campaign."""


@attrs.frozen
class Part:
    """
    One part of the campaign.
    """

    name: str
    share: float
    """The part's share of the campaign's time."""
    limit: float
    """Seconds that one trial may take before it counts as hanging."""
    trials: int | None = None
    """The number of trials in the full form; None runs as many as fit into the time."""
    work: tuple[str, ...] = ()
    """What the part counts when it does what it is for. A part without any of it has failed."""
    usual: bool = True
    """Whether the part belongs to the campaign. Others run only if ``--part`` names them."""


PARTS = [
    Part("faults", 0.2, 150.0, work=("faults",)),
    Part("signals", 0.14, 15.0, 800, work=("signals",)),
    Part("ctrlc", 0.14, 15.0, 800, work=("interrupts",)),
    Part("reads", 0.06, 60.0, work=("interrupts",)),
    Part("hostile", 0.08, 60.0, work=("hostile frames", "attacks")),
    Part("reconnects", 0.06, 60.0, work=("junk", "spoiled files")),
    Part("linear", 0.12, 90.0, work=("operations",)),
    Part("rules", 0.08, 120.0, work=("changes",)),
    Part("upgrade", 0.06, 150.0, work=("upgrades",)),
    Part("network", 0.06, 150.0, work=("faults",)),
    Part("life", 1.0, 150.0, usual=False, work=("handles", "clients", "forks")),
    Part("shared", 1.0, 150.0, usual=False, work=("operations",)),
]


class Result:
    """
    The findings of one part.
    """

    def __init__(self) -> None:
        self.trials = 0
        self.skipped = ""
        """Why the part cannot run on this machine."""
        self.seconds = 0.0
        self.counts: Counter[str] = Counter()
        self.violations: dict[str, list[tuple[int, str]]] = defaultdict(list)

    def add(self, kind: str, seed: int, text: str) -> None:
        """Note a violation, and show its first line at once."""
        self.violations[kind].append((seed, text))
        show(f"  seed {seed}: {kind}: {text.splitlines()[0][:150]}")

    def check_work(self, part: Part, seed: int, *, is_whole: bool) -> None:
        """
        Note a violation if the part has shown nothing.

        A few trials that were asked for, instead of the *whole* part, may miss their targets.
        """
        if self.skipped:
            return
        if not self.trials:
            self.add("nothing shown", seed, "no trial was run")
        elif is_whole and part.work and not any(self.counts[what] for what in part.work):
            self.add("nothing shown", seed, f"no {' or '.join(part.work)} in {self.trials} trials")

    @property
    def total(self) -> int:
        return sum(map(len, self.violations.values()))


class Child:
    """
    The process that runs the trials of a part, from one seed on.
    """

    def __init__(self, part: Part, seed: int) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(HERE / "trial.py"), part.name, str(seed)],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            # Ctrl-C at the terminal is for this process, which then ends the child.
            start_new_session=True,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def line(self, timeout: float) -> dict | None:
        """Return the next report, None if the process has ended; raises queue.Empty."""
        line = self._lines.get(timeout=timeout)
        return json.loads(line) if line else None

    def stderr(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()

    def stacks(self) -> str:
        """End a process that hangs, and return where its threads were."""
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGABRT)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.stderr()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def run(part: Part, seed: int, seconds: float, trials: int | None) -> Result:
    """Run trials of one part until its time or its number of trials is used up."""
    result = Result()
    begin = time.monotonic()

    def over() -> bool:
        # However short the time is, each part has a trial.
        late = result.trials > 0 and time.monotonic() - begin >= seconds
        return late or (result.trials >= trials if trials else False)

    while not over():
        child = Child(part, seed + result.trials)
        ready, doing = False, ""
        try:
            while not over():
                current = seed + result.trials
                try:
                    found = child.line(part.limit)
                except queue.Empty:
                    text = f"{doing}: not over after {part.limit:g} s\n{child.stacks()}"
                    result.add("hang", current, text)
                    result.trials += 1
                    break
                if found is None:
                    status = child.process.wait()
                    text = f"{doing}: the process ended with {status}\n{child.stderr()}"
                    result.add("crash", current, text)
                    result.trials += 1
                    if not ready:
                        return result
                    break
                if "skipped" in found:
                    result.skipped = found["skipped"]
                    show(f"  skipped: {result.skipped}")
                    return result
                if "doing" in found:
                    ready, doing = True, found["doing"]
                    continue
                result.trials += 1
                result.counts.update(found["counts"])
                for kind, text in found["violations"]:
                    result.add(kind, found["seed"], text)
        finally:
            child.end()
    result.seconds = time.monotonic() - begin
    return result


def show(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def tell(results: dict[str, Result]) -> None:
    """Print the tables of work and of violations."""
    for name, result in results.items():
        if not result.violations:
            continue
        show(f"\n== violations of {name}")
        for kind, found in sorted(result.violations.items(), key=lambda item: -len(item[1])):
            seeds = " ".join(str(seed) for seed, _ in found[:6])
            show(f"\n-- {kind}: {len(found)}; seeds {seeds}{' ...' if len(found) > 6 else ''}")
            show("\n".join(f"   {line}" for line in found[0][1].splitlines()[:60]))
            own = name in {part.name for part in PARTS if not part.usual}
            command = f"tox run -e {name} --" if own else f"tox run -e chaos -- --part {name}"
            show(f"   again: {command} --seed {found[0][0]} --trials 1")
    show(f"\n{'part':<12}{'trials':>8}{'seconds':>9}{'violations':>12}  counts")
    for name, result in results.items():
        counts = ", ".join(f"{count} {what}" for what, count in sorted(result.counts.items()))
        if result.skipped:
            counts = f"skipped: {result.skipped}"
        show(f"{name:<12}{result.trials:>8}{result.seconds:>9.0f}{result.total:>12}  {counts}")
    total = sum(result.total for result in results.values())
    show(f"\n{total} violations" if total else "\nno violations")


def main() -> int:
    """Read the arguments, run, and return the exit status."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="tox run -e chaos --", description=__doc__)
    parser.add_argument("--part", choices=names, action="append", help="only this one; repeatable")
    parser.add_argument("--seed", type=int, help="the seed of the first trial; counts up")
    parser.add_argument("--trials", type=int, help="of each part, however long they take")
    parser.add_argument("--seconds", type=float, help="of the whole campaign; default 1200")
    asked = parser.parse_args()
    seconds = asked.seconds or float(os.environ.get("JETSYNC_CHAOS_SECONDS", FULL))
    seed = random.randrange(1 << 31) if asked.seed is None else asked.seed
    results = {}
    for part in PARTS:
        if part.name not in (asked.part or [each.name for each in PARTS if each.usual]):
            continue
        show(f"{part.name}: from seed {seed}")
        trials = asked.trials
        limit = seconds * part.share
        if trials is not None:
            limit = math.inf
        elif part.trials:
            # A slow machine may take longer for them, within this limit.
            trials, limit = max(1, round(part.trials * seconds / FULL)), 2 * limit
        try:
            results[part.name] = run(part, seed, limit, trials)
            results[part.name].check_work(part, seed, is_whole=asked.trials is None)
        except KeyboardInterrupt:
            show("interrupted")
            break
    tell(results)
    if not results:
        return 1
    return 1 if any(result.total for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
