"""
Programs of other packages that use jetsync, run as a user would run them.

The programs are in `apps/`. Each test runs them in a new folder and in processes of their own,
against a real server. `tox run -e frameworks` installs the packages.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """
    Mark everything in this folder, so that only its own environment runs it.
    """
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.frameworks)


class Program:
    """
    A running program, and its output so far.
    """

    def __init__(self, command, folder, variables):
        self._log = folder / f"output-{time.monotonic_ns()}.txt"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self):
        """
        All lines so far.
        """
        return self._log.read_text("utf-8", "replace")

    def wait_for(self, pattern, count=1, seconds=60.0):
        """
        Wait until the output has *count* matches of *pattern*.
        """
        end = time.monotonic() + seconds
        while len(re.findall(pattern, self.output)) < count:
            assert self._process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.05)

    def wait(self, seconds=60.0):
        """
        Wait for the end of the program and return its exit code.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not end within {seconds:g} s:\n{self.output}")

    def stop(self, number=signal.SIGTERM, seconds=30.0):
        """
        Send a signal to the first process, and return its exit code.
        """
        self._process.send_signal(number)
        return self.wait(seconds)

    def kill(self):
        """
        End all processes of the program.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def programs(tmp_path):
    """
    A function that starts a Python module in a folder, with its arguments and further variables.
    """
    with contextlib.ExitStack() as stack:

        def programs(folder, module, *arguments, **more):
            variables = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
                "PYTHONUNBUFFERED": "1",
                # Where gunicorn has its control socket, and Jupyter its settings.
                "HOME": str(tmp_path),
                **more,
            }
            command = [sys.executable, "-m", module, *map(str, arguments)]
            program = Program(command, folder, variables)
            stack.callback(program.kill)
            return program

        yield programs


@pytest.fixture
def start(programs, tmp_path, nats_server, stream):
    """
    A function that starts a Python module of `apps/` or of a package, with its arguments.

    The server has a name instead of an address, so that clients have to resolve it.
    """
    folder = tmp_path / "apps"
    shutil.copytree(_HERE / "apps", folder)
    url = nats_server.url.replace("127.0.0.1", "localhost")

    def start(module, *arguments, **more):
        return programs(folder, module, *arguments, NATS_URL=url, STREAM=stream.name, **more)

    start.folder = folder
    return start


@pytest.fixture
def port():
    """
    A free port.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def get(port):
    """
    A function that requests a path on the port, and returns the words of the answer.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(path):
        with direct.open(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
            return answer.read().decode().split()

    return get


@pytest.fixture
def ended_well():
    """
    A function that checks that no process of a program crashed or printed an error.
    """

    def ended_well(program):
        bad = re.search(
            r"Traceback|SIGSEGV|SIGABRT|SIGKILL|Segmentation|Fatal Python|never awaited",
            program.output,
        )
        assert bad is None, program.output

    return ended_well
