"""
The code blocks of a page, as one script that is run, and the links of a README.

The Python blocks of a page are run in order by an interpreter of its own, with `$NATS_URL` naming a
fresh server. Blocks that are not to be run are marked `text`. Files that `docs/write_code.py` wrote
into a page have tests of their own.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

from jetsync.devserver import DevServer

ROOT = Path(__file__).parents[2]

_FILE = re.compile(r"^<!-- file .*?^<!-- end of file -->", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"""\]\(([^)\s]+)|(?:href|src|srcset)=["']([^"']+)""")
_OURS = re.compile(
    r"https://(?:github\.com/jetsync/jetsync/(?:blob|tree)"
    r"|raw\.githubusercontent\.com/jetsync/jetsync)/main/([^#?]+)"
)


def broken_links(text: str) -> list[str]:
    """
    List the links of a README that do not work on the page of an installed package.

    They have to be absolute, and those into the repository name a file or folder that is there.
    """
    links = [first or second for first, second in _LINK.findall(text)]
    ours = {link: _OURS.match(link) for link in links}
    return [
        link
        for link, path in ours.items()
        if not link.startswith("https://") or (path and not (ROOT / path[1]).exists())
    ]


def script_of(page: Path, language: str = "python") -> str:
    """
    Return the blocks of a language with all other lines empty, so that line numbers match.
    """
    lines = []
    fence = ""
    inside = False
    text = _FILE.sub(lambda file: "\n" * file[0].count("\n"), page.read_text("utf-8"))
    for line in text.splitlines():
        ticks = line[: len(line) - len(line.lstrip("`"))]
        if not fence and len(ticks) >= len("```"):
            fence, inside = ticks, line == f"```{language}"
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
    # Not the name of a module: a page about queues would hide `queue`.
    script = folder / f"page_{page.stem}.py"
    script.write_text(script_of(page), "utf-8")
    with DevServer() if server is None else contextlib.nullcontext(server) as used:
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "NATS_URL": used.url, **environment},
            capture_output=True,
            text=True,
            # Before Python 3.12.4, the output of several threads may have bytes of other memory.
            errors="backslashreplace",
            timeout=seconds,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
