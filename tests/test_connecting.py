"""
The first connect of a program: what it imports, and its deadline.

tests/live/io/test_connection.py tests `connect` with servers.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest
from waiting import LATE

import jetsync

NOBODY = "nats://127.0.0.1:1"
"""A server that refuses connections."""

UNUSED = {"aiohttp", "multidict", "yarl", "nkeys", "nacl", "cryptography", "pyarrow", "numpy"}
UNUSED |= {"structlog", "click", "rich", "nats_server", "pytest", "jetsync.cli", "jetsync.testing"}
UNUSED |= {"jetsync.devserver"}
"""Modules that only other addresses, logins and tools need."""


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
        modules = set(run_python(program))

        assert {"nats", "anyio", "jetsync.client"} <= modules
        assert modules & (UNUSED | {"uvloop"}) == set()

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
        """A refused first connect is short of a second, even if Python compiles every module."""
        program = f"""
            import time, jetsync
            start = time.process_time()
            try:
                jetsync.connect("{NOBODY}", connect_timeout=60)
            except jetsync.ConnectError:
                print(time.process_time() - start)
        """
        (seconds,) = run_python(program, "-B", "-X", f"pycache_prefix={tmp_path}")

        assert float(seconds) < 1.0 + LATE


class TestDeadline:
    """The deadline begins with the call."""

    def test_includes_the_imports(self):
        """If the imports take longer than connect_timeout, connect raises in time."""
        program = f"""
            import sys, threading, jetsync
            release = threading.Event()

            class Finder:
                def find_spec(self, name, path=None, target=None):
                    if name == "nats":
                        release.wait(20)

            sys.meta_path.insert(0, Finder())
            try:
                jetsync.connect("{NOBODY}", connect_timeout=0.1)
            except jetsync.ConnectTimeoutError as error:
                print(error)
            release.set()
            try:
                jetsync.connect("{NOBODY}", connect_timeout=60)
            except jetsync.ConnectError as error:
                print(type(error).__name__)
        """
        *text, kind = run_python(program)

        assert " ".join(text) == (
            "no connection within 0.1 s: the modules of the client are still being imported"
        )
        assert kind == "ConnectError"

    def test_includes_the_plugins(self):
        """The time for loading plugins counts."""

        def slow():
            # A plugin that takes longer to import than the whole call may take.
            time.sleep(0.1)
            yield from ()

        with pytest.raises(jetsync.ConnectTimeoutError):
            jetsync.connect(NOBODY, connect_timeout=0.05, plugins=slow())
