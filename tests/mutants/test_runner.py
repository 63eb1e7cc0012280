"""
The runner of the mutation tests, with a small package that has planted mutants.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="runs in the environment of the mutation tests")

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent

CHECKED = """
def is_large(value: int | None) -> bool:
    return value >= 10

def add(values, value):
    values.append(value)
"""
CHECKS = """
from jetsync.kv.tiny import *

def test_is_large():
    assert is_large(10)
    assert is_large(11)
    assert not is_large(9)

def test_add():
    values = []
    add(values, 1)
    assert values == [1]
"""
UNCHECKED = """
def label(flag):
    return 1 if flag else 2
"""


class Runner:
    """
    A tree with one module, and the runner on it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.results = root / "results.jsonl"
        for folder in ("jetsync/kv", "jetsync/testing", "tests/kv"):
            (root / folder).mkdir(parents=True)
        # The installed jetsync tells pytest to load this plugin.
        for file in ("__init__.py", "kv/__init__.py", "testing/__init__.py", "testing/plugin.py"):
            (root / "jetsync" / file).touch()
        shutil.copy(HERE.parent / "test_layout.py", root / "tests")

    def run(self, source: str, tests: str, *options: str) -> subprocess.CompletedProcess:
        (self.root / "jetsync/kv/tiny.py").write_text(source)
        (self.root / "tests/kv/test_tiny.py").write_text(tests)
        command = [sys.executable, str(HERE), "--tree", str(self.root), "--jobs", "1"]
        command += ["--patience", "5", "--results", str(self.results), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def verdicts(self) -> dict[str, set[str]]:
        """Return the verdicts by function."""
        found: dict[str, set[str]] = {}
        for line in self.results.read_text().splitlines():
            result = json.loads(line)
            found.setdefault(result["function"], set()).add(result["verdict"])
        return found


@pytest.fixture
def runner(tmp_path):
    """
    A runner in an empty tree.
    """
    return Runner(tmp_path)


def test_mutants_that_tests_notice_are_killed(runner):
    """
    Mutants that make a test fail count as killed, and annotations have none.
    """
    done = runner.run(CHECKED, CHECKS)

    assert done.returncode == 0, done.stdout + done.stderr
    assert runner.verdicts() == {"is_large": {"fast"}, "add": {"fast"}}
    assert "100.0%" in done.stdout


def test_a_mutant_that_tests_overlook_survives(runner):
    """
    A mutant that no test notices is a survivor, and too many of them fail the run.
    """
    done = runner.run(CHECKED + UNCHECKED, CHECKS + "\ndef test_label():\n    label(True)\n")

    assert done.returncode == 1
    assert runner.verdicts()["label"] == {"survived"}
    assert "+ return 1 if not flag else 2" in done.stdout
    assert "Fewer than 85% were killed." in done.stdout


def test_survivors_are_tested_again(runner, tmp_path):
    """
    With the results of an earlier run, only its survivors are tested.
    """
    source, weak = CHECKED + UNCHECKED, CHECKS + "\ndef test_label():\n    label(True)\n"
    runner.run(source, weak)
    earlier = runner.results.rename(tmp_path / "earlier.jsonl")
    strong = weak + "    assert [label(True), label(False)] == [1, 2]\n"
    done = runner.run(source, strong, "--again", str(earlier))

    assert done.returncode == 0, done.stdout + done.stderr
    assert runner.verdicts() == {"label": {"fast"}}


def test_a_mutant_that_no_test_reaches_is_no_kill(runner):
    """
    A mutant in a function that no test calls counts against the tests.
    """
    done = runner.run(CHECKED + UNCHECKED, CHECKS)

    assert done.returncode == 1
    assert runner.verdicts() == {"is_large": {"fast"}, "add": {"fast"}, "label": {"survived"}}


def test_a_mutant_that_hangs_is_killed_by_the_timeout(runner):
    """
    A mutant that never ends is killed, and reported as timed out.
    """
    source = "def wait(box):\n    while box:\n        box.pop()\n"
    tests = "from jetsync.kv.tiny import *\n\ndef test_wait():\n    wait([1])\n    wait([])\n"
    done = runner.run(source, tests)

    assert done.returncode == 0, done.stdout + done.stderr
    # Without `pop` the loop never ends.
    assert runner.verdicts() == {"wait": {"fast", "timed out"}}


def test_no_mutant_is_a_failure(runner):
    """
    A run without a mutant fails.
    """
    done = runner.run("NAME = 'tiny'\n", CHECKS.replace("assert", "pass #"))

    assert done.returncode == 1
    assert "No mutant was tested." in done.stdout


def test_failing_tests_are_refused(runner):
    """
    Tests that fail without a mutant are reported, and no mutant is tested.
    """
    done = runner.run(CHECKED, CHECKS.replace("is_large(9)", "is_large(12)"))

    assert done.returncode == 1
    assert "Tests fail without a mutant" in done.stdout
    assert not runner.results.exists()


def test_each_equivalent_mutant_exists(monkeypatch):
    """
    The list of equivalent mutants names only mutants that the current code has.
    """
    monkeypatch.syspath_prepend(str(HERE))
    from equivalent import EQUIVALENT
    from places import places

    changes = set()
    for file, before in {(file, before) for file, _, before, _ in EQUIVALENT}:
        lines = (PROJECT / file).read_text("utf-8").splitlines()
        for mutants in places(PROJECT, file):
            first, last = mutants[0].lines
            if before in (line.strip() for line in lines[first - 1 : last]):
                changes |= {(file, one.function, *one.change(PROJECT)) for one in mutants}

    assert set(EQUIVALENT) <= changes
