"""
Copies of the project, and runs of its tests in them.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import attrs
from places import FOLDERS

HERE = Path(__file__).parent
SPANNING = {
    "live/hooks/test_plugin_faults.py": "consume/fetch publish/many",
    "live/publish/test_atomic_outcome.py": "publish/atomic_attempt",
    "live/publish/test_atomic_rules.py": "publish/atomic_messages publish/atomic_attempt",
    "live/read/test_pages.py": "read/direct",
    "live/test_dropped_clients.py": "_io/bridge _io/connection _io/session",
    "live/test_forks.py": "_io/bridge _io/connection _io/session",
    "live/test_headers.py": "values/headers",
    "live/test_process_life.py": "_io/bridge _io/connection _io/session",
    "live/test_signal_handlers.py": "_io/lane _io/mailbox _io/outbox _io/reader publish/publisher",
    "test_errors.py": "publish/errors",
    "values/test_consumer_config.py": "values/server_versions",
}
"""Test files about modules of several folders, and the modules that they are about."""


@attrs.frozen
class Run:
    """
    One run of some tests.
    """

    outcome: str
    """``passed``, ``failed``, ``timed out`` or ``none``: no test ran."""
    killer: str
    """The first test that failed, or why there is none."""
    seconds: float
    output: str


class Tree:
    """
    A copy of the project in which one thread at a time changes a file and runs tests.
    """

    _stamp = 1_000_000_000

    def __init__(self, original: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="jetsync-mutants-")
        self.root = Path(self._folder.name).resolve() / "tree"
        left_out = shutil.ignore_patterns(
            ".*", "*.pyc", "*.egg-info", "__pycache__", "_build", "build", "dist"
        )
        shutil.copytree(original, self.root, ignore=left_out)

    def close(self) -> None:
        """Delete the copy."""
        self._folder.cleanup()

    def write(self, file: str, source: str) -> None:
        """
        Replace a file.

        Its time becomes one that no version had before. Python decides by the time in seconds and
        the size whether compiled code is current, and many mutants have the size of the original.
        """
        path = self.root / file
        path.write_text(source, "utf-8")
        Tree._stamp += 1
        os.utime(path, (Tree._stamp, Tree._stamp))

    def run(self, files: list[str], *options: str, limit: float, **variables: str) -> Run:
        """
        Run tests, and end all of their processes after a time limit in seconds.
        """
        environment = os.environ | variables
        environment["PYTHONPATH"] = os.pathsep.join([str(self.root), str(HERE)])
        environment.pop("PYTEST_ADDOPTS", None)
        command = [sys.executable, "-m", "pytest", "-p", "reach", "-p", "no:cacheprovider"]
        command += ["-q", "-rfE", "--tb=line", *options, *files]
        started = time.monotonic()
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(limit)
                late = False
            except subprocess.TimeoutExpired:
                late = True
            # Also ends what the tests left running.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            log.seek(0)
            output = log.read().decode(errors="replace")
        seconds = round(time.monotonic() - started, 1)
        return Run(*_judge(process.returncode, output, late=late), seconds, output)


def _judge(status: int, output: str, *, late: bool) -> tuple[str, str]:
    if late or "+++ Timeout +++" in output:
        return "timed out", ""
    if status == 0:
        return "passed", ""
    if status == 5:
        return "none", ""
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return "failed", line.split()[1]
    return "failed", "the tests did not start"


def test_files(tree: Path, module: str) -> list[str]:
    """
    Return the test files of a module such as ``kv/watch``, as CONTRIBUTING.md defines them.

    They are those with its name, those that the table of ``test_layout.py`` gives it, the topics of
    both, with and without a server, and the topics of its folder, which are named after no module.
    """
    layout = runpy.run_path(str(tree / "tests" / "test_layout.py"))
    folder = module.rpartition("/")[0]
    own = layout["own_files"](Path(f"{module}.py"))
    for file, names in layout["COVERED_BY"].items():
        if {module, f"{folder}/*"} & {*names.split()}:
            name = file.removeprefix("live/")
            own += [tree / "tests" / name, tree / "tests" / "live" / name]
    own += [
        tree / "tests" / file for file, modules in SPANNING.items() if module in modules.split()
    ]
    found = {topic for file in own for topic in file.parent.glob(f"{file.stem}*.py")}
    named = {path.stem for path in layout["MODULES"] if str(path.parent) == folder}
    for start in ("tests", "tests/live"):
        for path in (tree / start / folder.lstrip("_")).glob("test_*.py"):
            words = path.stem.split("_")[1:]
            if named.isdisjoint("_".join(words[:end]) for end in range(1, len(words) + 1)):
                found.add(path)
    return sorted(str(path.relative_to(tree)) for path in found)


class Baseline:
    """
    What the tests do without a mutant.
    """

    def __init__(self, contents: list[dict]) -> None:
        self.tests: dict[str, dict] = {}
        self._reached: dict[str, dict[int, set[str]]] = {}
        # The tests that use the tested folders in the process of the tests.
        self._inside: set[str] = set()
        for content in contents:
            self.tests |= content["tests"]
            for file, lines in content["reached"].items():
                known = self._reached.setdefault(file, {})
                for line, numbers in lines.items():
                    names = {content["names"][number] for number in numbers}
                    known.setdefault(int(line), set()).update(names)
                    if file.split("/")[1] in FOLDERS:
                        self._inside |= names

    @property
    def failures(self) -> list[str]:
        return sorted(name for name, test in self.tests.items() if test["outcome"] == "failed")

    def reaching(self, file: str, lines: tuple[int, int], files: list[str]) -> list[str]:
        """
        Return the tests of some files that reach lines.

        Lines that run on import belong to no test, and a class of values has no others. Then these
        are all tests without a server, and the live ones that reach the file. Tests that reach
        nothing run the package in processes of their own, and may reach each line. Tests without a
        server come first, then the quick ones.
        """
        known = self._reached.get(file, {})
        first, last = lines
        names = set().union(*(known.get(line, ()) for line in range(first, last + 1)))
        everywhere = set(self.tests)
        if not self._of(names, files):
            names = set().union(*known.values()) | {
                name for name in everywhere if not is_live(name)
            }
        names = self._of(names | (everywhere - self._inside), files)
        places = {name: place for place, name in enumerate(self.tests)}
        return sorted(names, key=lambda name: (*self._cost(name), places[name]))

    def _of(self, names: set[str], files: list[str]) -> set[str]:
        return {
            name
            for name in names
            if name.partition("::")[0] in files and self.tests[name]["outcome"] == "passed"
        }

    def _cost(self, name: str) -> tuple[bool, int]:
        # Tests of one file share servers, so they stay together unless they are slow.
        return is_live(name), int(self.tests[name]["seconds"])

    def seconds(self, names: list[str]) -> float:
        return sum(self.tests[name]["seconds"] for name in names)


def is_live(name: str) -> bool:
    """Whether a test needs a server."""
    return name.startswith("tests/live/")


def baseline(tree: Tree, files: list[str], processes: int) -> tuple[Baseline, Run]:
    """
    Run test files without a mutant.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = tree.run(
            files, "-n", str(processes), "--reruns", "1", limit=3600, MUTANTS_REACH=folder
        )
        contents = [json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())]
    return Baseline(contents), run
