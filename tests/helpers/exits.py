"""
Scripts that end without closing their client.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

from helpers.lacking import skip_if_lacking
from helpers.waiting import LATE

EXIT_SECONDS = 3.0 + LATE
"""Seconds within which such a script has to end."""

START = """
import os, signal, sys, time
import jetsync

def hang(client, pid):
    \"""Stop the server, and return once it no longer answers.\"""
    os.kill(int(pid), signal.SIGSTOP)
    # The server may run for a moment after the signal was sent.
    try:
        while True:
            client.flush(timeout=0.1)
    except jetsync.WaitTimeoutError:
        pass
"""
"""The start of each script."""


def run_to_exit(script, *arguments):
    """
    Run a script in an interpreter of its own; return its status, stderr, and seconds to exit.
    """
    source = f"{START}{textwrap.dedent(script)}print(time.time())"
    command = [sys.executable, "-c", source, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    skip_if_lacking(done.stderr)
    return done.returncode, done.stderr, time.time() - float(done.stdout)
