"""
Workers of Celery in processes of their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

HERE = Path(__file__).parent


class WorkerProcess:
    """
    A process ``celery worker``, whose log can be waited for. A ``with`` block ends it.
    """

    def __init__(self, url: str, *arguments: object, **options: object) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "--app", "program", "worker"),
                *("--loglevel", "INFO", "--without-gossip", "--without-mingle"),
                *map(str, arguments),
            ],
            cwd=HERE,
            env={**os.environ, "BROKER": url, "OPTIONS": json.dumps(options)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def group(self) -> int:
        """The process group of the worker and its children."""
        return self._process.pid

    def __enter__(self) -> Self:
        self.wait_for(" ready.")
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self.stop()

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        """Wait until a line of the log has a text."""
        self.wait_for_times(text, 1, seconds)

    def wait_for_times(self, text: str, times: int, seconds: float = 60.0) -> None:
        """Wait until several lines of the log have a text."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._count(text) >= times or self._process.poll() is not None, seconds
            )
            assert self._count(text) >= times, "".join(self.lines)

    def _count(self, text: str) -> int:
        return sum(text in line for line in self.lines)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def stop(self, seconds: float = 30.0) -> str:
        """End the worker as SIGTERM does, and return its log."""
        self.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join(5.0)
        return "".join(self.lines)

    def kill(self) -> None:
        """Kill the worker and its children at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with stream:
            for line in stream:
                with self._changed:
                    self.lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()
