"""
The `jetsync` command.

The package needs the extra `cli` (click and rich), which the library itself does not need. Each
command is a module that is imported when the command is called, so its imports do not slow down the
other commands.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """
    Run the command line; the entry point of `jetsync` and of `python -m jetsync`.
    """
    missing = [name for name in ("click", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"jetsync: the command line needs {' and '.join(missing)}:"
            " install the extra, as in python -m pip install 'jetsync[cli]'"
        )
    _fill_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file or pipe on Windows has a code page, which lacks most characters.
        sys.stdout.reconfigure(errors="backslashreplace")
    from jetsync.cli._app import jetsync

    jetsync(prog_name="jetsync")


def _fill_closed_streams() -> None:
    """
    Open the null device in place of standard streams that the parent process has closed.

    A socket would get their numbers, and libuv aborts the process when it closes such a socket.
    Standard input stays unusable, so no command takes it for an empty file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The system takes the lowest free number.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
