"""
A Redis of the tests.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING

from waiting import free_port

from jetsync.testing import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def redis_process() -> Iterator[int | None]:
    """
    Run a Redis, and return its port; None if there is no command ``redis-server``.
    """
    command = shutil.which("redis-server")
    if command is None:
        yield None
        return
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [command, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            eventually(lambda: _answers(port))
            yield port
        finally:
            process.terminate()
            process.wait()


def _answers(port: int) -> bool:
    import redis

    with contextlib.suppress(redis.ConnectionError), redis.Redis(port=port) as client:
        return bool(client.ping())
    return False
