"""
The pytest plugin in a suite of a user, on several workers, and in one that is aborted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import jetsync
from helpers.lacking import IS_LINUX
from helpers.waiting import eventually

pytest_plugins = ["pytester"]

SUITE = """
import os

def test_server(nats_server):
    assert nats_server.pids
    print(f"server {nats_server.pids[0]}")

def test_stream_is_fresh(stream, js):
    assert stream.info().state.messages == 0
    assert js.publish(f"{stream.name}.a", b"x").sequence == 1
    assert list(js.stream_names()) == [stream.name]

def test_stream_was_removed(js):
    assert list(js.stream_names()) == []

def test_stream_may_be_removed_by_the_test(stream, js):
    js.delete_stream(stream.name)
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    """
    A suite that uses the fixtures, and an environment in which exactly the plugins it needs are
    loaded.
    """
    # Loaded by name, because the entry point only exists if jetsync is installed.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(jetsync.__file__).parents[1]))
    # An aborted session leaves its files in a folder that pytest removes.
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    pytester.makepyfile(SUITE)
    return pytester


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_each_worker_has_a_server_and_each_test_a_stream(suite, workers):
    """Each worker has one server for the session, and each test a stream of its own."""
    distribution = ["-p", "xdist", "-n", str(workers), "--dist", "loadscope"] if workers else []
    result = suite.runpytest_subprocess("-p", "jetsync.testing.plugin", *distribution)
    result.assert_outcomes(passed=4)


@pytest.mark.thorough
def test_version_can_be_chosen(suite):
    """The ini option selects the version of the server."""
    suite.makepyfile("def test_version(nats_server): assert nats_server.version == '2.10.26'")
    result = suite.runpytest_subprocess(
        "-p", "jetsync.testing.plugin", "-o", "jetsync_server_version=2.10.26"
    )
    result.assert_outcomes(passed=1)


@pytest.mark.thorough
@pytest.mark.skipif(not IS_LINUX, reason="needs the parent-death signal")
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_aborted_session_leaves_no_process(suite, how):
    """A session that is killed also ends its server."""
    suite.makepyfile(
        """
        import signal

        def test_hangs(nats_server):
            with open("pid", "w") as file:
                print(nats_server.pids[0], file=file, flush=True)
            signal.pause()
        """
    )
    command = [sys.executable, "-m", "pytest", "-p", "jetsync.testing.plugin"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=suite.path) as session:
        try:
            pid = int(wait_for(lambda: (suite.path / "pid").read_text().strip()))
            assert exists(pid)
            session.send_signal(getattr(signal, how))
            session.wait(20)
        finally:
            # If this fails, the end of the block would wait for ever.
            session.kill()
    assert wait_for(lambda: not exists(pid))


def exists(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def wait_for(ask):
    """Call until the result is true; a missing file counts as false."""

    def answer():
        with contextlib.suppress(FileNotFoundError):
            return ask()

    return eventually(answer, 20)
