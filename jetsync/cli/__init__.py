"""
The `jetsync` command.

The package needs the extra `cli` (click and rich), which the library itself does not need. Each
command is a module that is imported when the command is called, so its imports do not slow down the
other commands.
"""

from __future__ import annotations

import importlib.util
import io
import sys

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
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file or pipe on Windows has a code page, which lacks most characters.
        sys.stdout.reconfigure(errors="backslashreplace")
    from jetsync.cli._app import jetsync

    jetsync(prog_name="jetsync")
