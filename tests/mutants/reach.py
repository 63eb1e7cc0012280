"""
A pytest plugin of the mutation tests.

In the baseline, it notes which lines of the package each test reaches, whether the test passed, and
how long it took. In the run of a mutant, it selects the tests that reach the mutant, in the
runner's order.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import jetsync

TREE = Path.cwd()


def pytest_configure(config: pytest.Config) -> None:
    """
    Start what the environment asks for, and refuse to test another copy of the package.
    """
    if TREE not in Path(jetsync.__file__).parents:
        raise pytest.UsageError(f"jetsync is imported from {jetsync.__file__}, not from {TREE}")
    # The process that only distributes tests runs none.
    distributes = hasattr(config.option, "dist") and config.option.dist != "no"
    folder = os.environ.get("MUTANTS_REACH")
    if folder and (hasattr(config, "workerinput") or not distributes):
        config.pluginmanager.register(Reach(Path(folder)))
    chosen = os.environ.get("MUTANTS_TESTS")
    if chosen:
        config.pluginmanager.register(Chosen(json.loads(Path(chosen).read_text())))


class Reach:
    """
    The lines that each test reaches.
    """

    def __init__(self, folder: Path) -> None:
        import coverage

        self._folder = folder
        self._coverage = coverage.Coverage(
            data_file=None,
            source=[str(TREE / "jetsync")],
            branch=False,
            concurrency=["thread"],
            config_file=False,
        )
        self._coverage._warn = lambda *args, **kwargs: None
        self._tests: dict[str, dict] = {}
        self._coverage.start()
        self._trace = sys.gettrace()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Give the lines of one test a context."""
        # Some tests trace, which ends coverage's tracing.
        if sys.gettrace() is not self._trace:
            self._coverage.stop()
            self._coverage.start()
            self._trace = sys.gettrace()
        self._coverage.switch_context(item.nodeid)
        self._tests[item.nodeid] = {"seconds": 0.0, "outcome": "passed"}
        result = yield
        self._coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report):
        """Note how the test went."""
        test = self._tests.get(report.nodeid)
        if test is not None:
            test["seconds"] += report.duration
            if report.when == "setup":
                test["outcome"] = "passed"
            if report.outcome in {"failed", "skipped"}:
                test["outcome"] = report.outcome

    def pytest_sessionfinish(self):
        """Write the lines by file, and the tests."""
        self._coverage.stop()
        data = self._coverage.get_data()
        names = list(self._tests)
        numbers = {name: number for number, name in enumerate(names)}
        reached = {
            str(Path(file).relative_to(TREE)): {
                line: [numbers[name] for name in contexts if name in numbers]
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        content = {"names": names, "tests": self._tests, "reached": reached}
        (self._folder / f"{os.getpid()}.json").write_text(json.dumps(content))


class Chosen:
    """
    The tests that reach a mutant.
    """

    def __init__(self, names: list[str]) -> None:
        self._ranks = {name: rank for rank, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        """Keep the chosen tests, or all if the mutant changed their names."""
        chosen = [item for item in items if item.nodeid in self._ranks]
        if len(chosen) < len(self._ranks):
            return
        dropped = [item for item in items if item.nodeid not in self._ranks]
        config.hook.pytest_deselected(items=dropped)
        items[:] = sorted(chosen, key=lambda item: self._ranks[item.nodeid])
