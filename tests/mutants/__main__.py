"""
Change the package in one place at a time, and count the changes that its tests notice.

``tox run -e mutants`` draws 400 mutants of the folders in ``FOLDERS`` and runs, for each, the tests
of its module that reach it, first those without a server. A mutant is killed if a test fails twice
or does not end in time. The command fails if fewer than 85 % are killed, and if none was tested::

    tox run -e mutants -- --folder kv --sample 40 --seed 7

The draw depends on the seed and the code alone. Mutants that are listed in ``equivalent.py`` behave
as the original; they are drawn, but count neither for nor against the tests.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import attrs
from equivalent import EQUIVALENT
from places import FOLDERS, Mutant, drawn
from trees import Baseline, Run, Tree, baseline, is_live, test_files

LEAST = 0.85
"""The share of the mutants that have to be killed."""
CONTROL = 20
"""One run in so many is of unchanged code. If it fails, failures prove nothing."""
COLUMNS = ("sampled", "fast", "live", "timed out", "survived", "equivalent")
"""The verdicts on a mutant, after the number of them."""


@attrs.define
class Campaign:
    """
    The mutants to test, and what came of those that were tested.

    The threads take mutants from a queue. The lock protects the results and their file.
    """

    root: Path
    base: Baseline
    results: Path
    patience: float
    """Seconds that a test may take in addition to five times its usual time."""
    todo: queue.SimpleQueue = attrs.field(factory=queue.SimpleQueue)
    found: list[dict] = attrs.field(factory=list)
    broken: list[str] = attrs.field(factory=list)
    """Failures without a mutant, and runs without a test."""
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def work(self) -> None:
        """Test mutants until none is left; this runs in a thread."""
        tree = Tree(self.root)
        try:
            while True:
                number, mutant = self.todo.get_nowait()
                self._test(tree, number, mutant)
        except queue.Empty:
            pass
        except Exception as error:
            self.broken.append(f"a thread ended: {error!r}")
            raise
        finally:
            tree.close()

    def _test(self, tree: Tree, number: int, mutant: Mutant) -> None:
        before, after = mutant.change(tree.root)
        result = {
            "file": mutant.file,
            "line": mutant.line,
            "function": mutant.function,
            "operator": mutant.operator,
            "before": before,
            "after": after,
            "tests": 0,
            "killer": "",
            "seconds": 0.0,
            "verdict": "survived",
        }
        files = test_files(tree.root, mutant.file.partition("/")[2].removesuffix(".py"))
        names = self.base.reaching(mutant.file, mutant.lines, files)
        if (mutant.file, mutant.function, before, after) in EQUIVALENT:
            result["verdict"] = "equivalent"
        elif names:
            if number % CONTROL == 0:
                self._control(tree, names, mutant)
            run = self._run(tree, names, mutant.file, mutant.source(tree.root))
            result |= {"tests": len(names), "killer": run.killer, "seconds": run.seconds}
            result["verdict"] = self._verdict(run, mutant)
        with self._lock:
            self.found.append(result)
            with self.results.open("a") as file:
                file.write(json.dumps(result) + "\n")
            show_result(len(self.found), result)

    def _run(self, tree: Tree, names: list[str], file: str, source: str) -> Run:
        seconds = self.base.seconds(names)
        longest = max(self.base.tests[name]["seconds"] for name in names)
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        original = (tree.root / file).read_text("utf-8")
        with tempfile.NamedTemporaryFile("w+", suffix=".json") as chosen:
            json.dump(names, chosen)
            chosen.flush()
            tree.write(file, source)
            try:
                return tree.run(
                    files,
                    "-x",
                    # A test that fails once and then passes has noticed nothing.
                    "--reruns=1",
                    # A machine may be several times as busy as during the baseline.
                    f"--timeout={self.patience + 5 * longest:.0f}",
                    limit=90 + 5 * seconds,
                    MUTANTS_TESTS=chosen.name,
                )
            finally:
                tree.write(file, original)

    def _control(self, tree: Tree, names: list[str], mutant: Mutant) -> None:
        run = self._run(tree, names, mutant.file, (tree.root / mutant.file).read_text("utf-8"))
        if run.outcome != "passed":
            self.broken.append(f"{run.outcome} without a mutant: {run.killer or names}")

    def _verdict(self, run: Run, mutant: Mutant) -> str:
        if run.outcome == "none":
            self.broken.append(f"no test ran: {mutant.file}:{mutant.line}")
        if run.outcome == "failed":
            return "live" if is_live(run.killer) else "fast"
        return {"passed": "survived", "none": "survived"}.get(run.outcome, run.outcome)


def show_result(number: int, result: dict) -> None:
    """
    Print one line for a mutant.
    """
    place = f"{result['file']}:{result['line']} {result['function']}"
    change = f"{result['before'][:90]}  ->  {result['after'][:90]}"
    took = f"{result['seconds']:6.1f} s"
    print(f"{number:4} {result['verdict']:10} {took}  {place}  {change}", flush=True)


def table(found: list[dict]) -> list[str]:
    """
    Return the verdicts by folder as lines.
    """
    counts: dict[str, Counter[str]] = {folder: Counter() for folder in (*FOLDERS, "all")}
    for result in found:
        for row in (result["file"].split("/")[1], "all"):
            counts[row].update(["sampled", result["verdict"]])
    lines = [f"{'folder':10}" + "".join(f"{name:>12}" for name in COLUMNS) + f"{'killed':>12}"]
    for folder, count in counts.items():
        if count["sampled"]:
            cells = "".join(f"{count[name]:12}" for name in COLUMNS)
            lines.append(f"{folder:10}{cells}{rate(count):12.1%}")
    return lines


def rate(count: Counter[str]) -> float:
    """
    Return the share of killed mutants among those that are not equivalent.
    """
    killed = count["fast"] + count["live"] + count["timed out"]
    return killed / max(1, count["sampled"] - count["equivalent"])


def survivors_in(results: Path) -> set[tuple[str, str, str]]:
    """
    Return the survivors of an earlier run: file, and line before and after.
    """
    found = map(json.loads, results.read_text("utf-8").splitlines())
    survived = (result for result in found if result["verdict"] in {"survived", "unreached"})
    return {(result["file"], result["before"], result["after"]) for result in survived}


def main(arguments: list[str] | None = None) -> int:
    """
    Run a campaign; return 0 only if it tested mutants and enough of them were killed.
    """
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.split("\n\n")[0])
    parser.add_argument("--sample", type=int, default=400, help="how many mutants")
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--folder", action="append", choices=FOLDERS, help="only these folders")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants at a time")
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--again", type=Path, help="only the survivors that these results name")
    parser.add_argument("--results", type=Path, help="file of JSON lines, one for each mutant")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds before a hang ends")
    options = parser.parse_args(arguments)
    root = options.tree.resolve()
    survivors = options.again and survivors_in(options.again)
    results = options.results or root / ".mutants" / "results.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)

    started = time.monotonic()
    mutants = drawn(root, tuple(options.folder or FOLDERS), options.seed, options.sample)
    if survivors:
        mutants = [each for each in mutants if (each.file, *each.change(root)) in survivors]
    modules = {mutant.file.partition("/")[2].removesuffix(".py") for mutant in mutants}
    files = sorted({file for module in modules for file in test_files(root, module)})
    print(f"{len(mutants)} mutants of {len(modules)} modules, seed {options.seed}", flush=True)
    if not files:
        print("No mutant was tested.")
        return 1
    tree = Tree(root)
    base, run = baseline(tree, files, 2 * options.jobs)
    tree.close()
    print(f"{len(base.tests)} tests without a mutant: {run.seconds} s", flush=True)
    if run.outcome != "passed" or base.failures:
        print(run.output[-3000:])
        print("Tests fail without a mutant, so that failures would prove nothing.")
        return 1

    campaign = Campaign(root, base, results, options.patience)
    for numbered in enumerate(mutants):
        campaign.todo.put(numbered)
    threads = [threading.Thread(target=campaign.work) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report(campaign, options.seed, time.monotonic() - started)


def report(campaign: Campaign, seed: int, seconds: float) -> int:
    """
    Print the survivors and the table; return the exit status.
    """
    print("\nSurvivors:")
    for result in sorted(campaign.found, key=lambda result: (result["file"], result["line"])):
        if result["verdict"] == "survived":
            print(f"  {result['file']}:{result['line']} {result['function']} {result['operator']}")
            print(f"    - {result['before']}\n    + {result['after']}")
    print(f"\nSeed {seed}, {seconds / 60:.0f} minutes", *table(campaign.found), sep="\n")
    for line in campaign.broken:
        print(line)
    count = Counter(result["verdict"] for result in campaign.found)
    count["sampled"] = len(campaign.found)
    if not any(result["tests"] for result in campaign.found):
        print("No mutant was tested.")
        return 1
    if campaign.broken:
        return 1
    if rate(count) < LEAST:
        print(f"Fewer than {LEAST:.0%} were killed.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
