"""
Programs of tests in interpreters of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from helpers.lacking import skip_if_lacking


def run(script, *arguments, timeout=60.0):
    """
    Run a script in an interpreter of its own and return its output. Its status must be 0 and its
    stderr empty.

    The script can import the test helpers. Warnings are off, because newer interpreters warn of
    every fork in a process that has threads.
    """
    helpers = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, helpers))}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    skip_if_lacking(done.stderr)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
