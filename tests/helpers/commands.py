"""
The `jetsync` command in a process of its own, and an address for commands that reach no server.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_SERVER = "nats://127.0.0.1:1"
"""An address where nothing listens: port 1 is reserved."""


@contextlib.contextmanager
def running(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """
    Start `jetsync` with these arguments and environment variables, and end it afterwards.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "jetsync", *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
