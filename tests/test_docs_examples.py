"""
The code in the README and in `docs/` runs.

The Python blocks of a page are one script, run in order by an interpreter of its own, with
`$NATS_URL` naming a fresh server. Blocks that are not to be run are marked `text`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jetsync.devserver import DevServer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def script_of(page: Path) -> str:
    """
    Return the page with all but its Python blocks blanked, so that line numbers stay right.
    """
    lines = []
    inside = False
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("```"):
            inside = not inside and line == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines).rstrip() + "\n"


SCRIPTS = {
    str(page.relative_to(ROOT)): script for page in PAGES if (script := script_of(page)).strip()
}


def test_the_pages_have_examples():
    """
    The README, the start page and each how-to have code that runs.
    """
    how_to = {str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "howto").glob("*.md")}

    assert {"README.md", "docs/index.md"} | how_to - {"docs/howto/index.md"} <= set(SCRIPTS)


@pytest.mark.live
@pytest.mark.parametrize("page", SCRIPTS)
def test_examples_of_page_run(page, tmp_path):
    """
    The page's blocks run to their end.
    """
    script = tmp_path / (page.replace("/", "_") + ".py")
    script.write_text(SCRIPTS[page], "utf-8")

    with DevServer() as server:
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "NATS_URL": server.url},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    assert done.returncode == 0, done.stdout + done.stderr
