"""
The code blocks of a page, as one script that is run.

The Python blocks of a page are run in order by an interpreter of its own, with `$NATS_URL` naming a
fresh server. Blocks that are not to be run are marked `text`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from pathlib import Path


def script_of(page: Path) -> str:
    """
    Return the Python blocks of the page with all other lines empty, so that line numbers match.
    """
    lines = []
    fence = ""
    inside = False
    for line in page.read_text("utf-8").splitlines():
        ticks = line[: len(line) - len(line.lstrip("`"))]
        if not fence and len(ticks) >= len("```"):
            fence, inside = ticks, line == "```python"
            lines.append("")
        elif fence and line.rstrip() == fence:
            # A block may contain other blocks with shorter fences.
            fence, inside = "", False
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines).rstrip() + "\n"


def run_page(
    page: Path,
    folder: Path,
    *,
    seconds: float = 90.0,
    server: DevServer | None = None,
    **environment: str,
) -> str:
    """
    Run the blocks of a page and return their output. A failure shows all of the output.

    Args:
        page: The page.
        folder: The folder for the script.
        seconds: How long it may take.
        server: The server to use instead of a fresh one. It is not stopped.
        environment: Variables to set besides those of this process.
    """
    script = folder / f"{page.stem}.py"
    script.write_text(script_of(page), "utf-8")
    with DevServer() if server is None else contextlib.nullcontext(server) as used:
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "NATS_URL": used.url, **environment},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
