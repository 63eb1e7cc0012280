"""
The first connect of a program: what it imports, and its deadline.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import time

import pytest

import jetsync
from helpers.waiting import LATE

NOBODY = "nats://127.0.0.1:1"
"""A server that refuses connections."""

UNUSED = {"aiohttp", "multidict", "yarl", "nkeys", "nacl", "cryptography", "pyarrow", "numpy"}
UNUSED |= {"structlog", "click", "rich", "nats_server", "pytest", "jetsync.cli", "jetsync.testing"}
UNUSED |= {"jetsync.devserver", "nats.js", "uvloop"}
"""Modules that only other addresses, options and tools need."""


def run_python(program, *arguments):
    """
    Run a program in a fresh interpreter and return what it prints.
    """
    done = subprocess.run(
        [sys.executable, *arguments, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


class TestClass:
    """The class of clients, which users of other libraries may call."""

    @pytest.mark.parametrize("arguments", [(), ("nats://127.0.0.1:4222",)])
    def test_call(self, arguments):
        """Calling the class raises an error that names the function to call."""
        with pytest.raises(jetsync.InvalidTypeError, match=r"jetsync\.connect\(\)"):
            jetsync.Client(*arguments)


class TestImports:
    """What the first connect of a program imports."""

    def test_only_what_the_address_needs(self):
        """A first connect to a nats:// address imports nothing that only others need."""
        program = f"""
            import sys, jetsync
            try:
                jetsync.connect("{NOBODY}", loop="asyncio", connect_timeout=60)
            except jetsync.ConnectError as error:
                assert "refused" in str(error), error
            print(*sys.modules)
        """

        assert set(run_python(program)) & UNUSED == set()

    def test_what_is_left_for_the_call(self):
        """Only the event loop is imported within the call, and so within its deadline."""
        program = f"""
            import sys
            from jetsync import ConnectError, connect
            before = set(sys.modules)
            try:
                connect("{NOBODY}", loop="asyncio")
            except ConnectError as error:
                assert "refused" in str(error), error
            packages = {{name.partition(".")[0] for name in set(sys.modules) - before}}
            print(*packages - sys.stdlib_module_names)
        """

        names = {"anyio", "exceptiongroup", "sniffio", "typing_extensions"}
        assert set(run_python(program)) <= names

    def test_aiohttp_for_websockets(self):
        """A first connect to a ws:// address imports aiohttp."""
        pytest.importorskip("aiohttp")
        program = """
            import sys, jetsync
            try:
                jetsync.connect("ws://127.0.0.1:1", connect_timeout=60)
            except jetsync.ConnectError:
                print("aiohttp" in sys.modules)
        """

        assert run_python(program) == ["True"]

    def test_cold_bytecode(self, tmp_path):
        """A refused first connect is short, even if Python has to compile every module."""
        program = f"""
            import time, jetsync
            start = time.process_time()
            try:
                jetsync.connect("{NOBODY}", connect_timeout=60)
            except jetsync.ConnectError:
                print(time.process_time() - start)
        """
        (seconds,) = run_python(program, "-B", "-X", f"pycache_prefix={tmp_path}")

        assert float(seconds) < 0.5 + LATE


class TestDeadline:
    """The deadline begins with the call."""

    def test_includes_the_start_of_the_loop(self):
        """If the imports of the event loop take longer than connect_timeout, connect raises."""
        program = f"""
            import sys, threading, jetsync
            raised = threading.Event()

            class Finder:
                def find_spec(self, name, path=None, target=None):
                    if name == "anyio._backends._asyncio":
                        print("first", raised.wait(20))

            sys.meta_path.insert(0, Finder())
            try:
                jetsync.connect("{NOBODY}", connect_timeout=0.1)
            except jetsync.ConnectTimeoutError:
                raised.set()
            try:
                jetsync.connect("{NOBODY}", connect_timeout=60)
            except jetsync.ConnectError as error:
                print(type(error).__name__)
        """

        assert run_python(program) == ["first", "True", "ConnectError"]

    def test_includes_the_plugins(self):
        """The time for loading plugins counts."""

        def slow():
            # A plugin that takes longer to import than the whole call may take.
            time.sleep(0.1)
            yield from ()

        # Nothing answers the connection, which the kernel accepts.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(jetsync.ConnectTimeoutError):
                jetsync.connect(url, connect_timeout=0.05, plugins=slow())
