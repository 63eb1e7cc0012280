"""
A command as a process: its standard streams, full disks, and the signals that end it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jetsync.cli import _signals

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX shells and signals")

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


@pytest.fixture
def shell(environment, tmp_path):
    """
    Run a line of the shell in a folder of its own; a function from the line.
    """

    def run(line):
        return subprocess.run(
            ["sh", "-c", line],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def store(js, unique):
    """
    An object store.
    """
    return js.create_object_store(unique, storage="memory")


class TestStandardStreams:
    @needs_full
    @pytest.mark.parametrize(
        "command", ["--version", "stream --help", "stream ls", "stream ls --json", "top"]
    )
    def test_output_to_a_full_disk(self, shell, command):
        """
        If the output cannot be written, one line says so, and the exit status is 1.
        """
        done = shell(f"jetsync {command} > /dev/full")
        assert done.stderr == "Error: standard input or output: No space left on device\n"
        assert done.returncode == 1

    @needs_full
    @pytest.mark.parametrize("option", ["", "--json", "--prometheus"])
    def test_a_check_to_a_full_disk(self, shell, option):
        """
        The result of a check that cannot be printed is UNKNOWN, because 1 would be WARNING.
        """
        done = shell(f"jetsync check server {option} > /dev/full")
        assert done.stderr == "Error: the result cannot be printed: No space left on device\n"
        assert done.returncode == 3

    @pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
    @pytest.mark.parametrize("command", ["stream ls", "top --interval 100ms"])
    def test_closed_streams(self, shell, command, closed):
        """
        A command also runs if its parent has closed its standard streams.
        """
        done = shell(f"jetsync {command} {closed}")
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.parametrize("arguments", ["", "-", "--lines"])
    def test_closed_standard_input_is_no_empty_payload(self, shell, js, unique, arguments):
        """
        `pub` refuses to read a closed standard input, and stores nothing.
        """
        stream = js.create_stream(unique, subjects=[unique], storage="memory")
        done = shell(f"jetsync pub {unique} {arguments} <&-")
        assert done.stderr.startswith("Error: cannot read the ")
        assert done.stderr.endswith(": standard input is closed\n")
        assert done.returncode == 1
        assert stream.info().state.messages == 0

    def test_closed_standard_input_is_no_terminal(self, shell, js, unique):
        """
        A command that asks needs a terminal.
        """
        js.create_stream(unique, subjects=[unique], storage="memory")
        done = shell(f"jetsync stream rm {unique} <&-")
        assert done.stderr.startswith("Error: there is no terminal")
        assert unique in js.stream_names()


def test_a_file_that_cannot_be_written_is_named(shell, store, tmp_path):
    """
    If a disk or quota is full, the error names the file, and none is left.
    """
    store.put("data", os.urandom(100_000))
    for line in (f"object get {store.bucket} data out", f"object backup {store.bucket} out"):
        # The unit is 512 bytes or 1 KiB.
        done = shell(f"ulimit -f 4; jetsync {line}")
        assert (done.returncode, done.stderr) == (1, "Error: 'out': File too large\n")
        assert list(tmp_path.glob("out*")) == []


class TestSignals:
    @pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
    def test_an_interrupted_put_removes_its_data(self, environment, store, name):
        """
        Ctrl-C, SIGTERM and a closed terminal end a put, which leaves no data.
        """
        command = shlex.split(f"jetsync object put {store.bucket} data - --chunk-size 1KB")
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            process.stdin.write(b"x" * 100_000)
            process.stdin.flush()
            while not store.status().bytes:
                assert process.poll() is None
            process.send_signal(getattr(signal, name))
            # Standard input is still open.
            process.wait(60)
            errors = process.stderr.read()
        # A chunk that the signal cut off has ended the connection, which gives other lines.
        assert errors.endswith(b"\nAborted!\n")
        assert process.returncode == 1
        assert store.status().bytes == 0

    def test_an_ignored_signal_stays_ignored(self):
        """
        A command that `nohup` runs continues after SIGHUP.
        """
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with _signals.ends_interrupt():
                signal.raise_signal(signal.SIGHUP)
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGTERM)
        finally:
            signal.signal(signal.SIGHUP, before)
