"""
The code in the README and in `docs/` runs.

Each plugin tests its own page, because this environment lacks the plugin's dependencies.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.doc_pages import run_page, script_of
from helpers.thorough import thorough_except
from jetsync.devserver import DevServer

ROOT = Path(__file__).parents[2]
PLUGINS = {folder.name.removeprefix("jetsync-") for folder in (ROOT / "plugins").glob("jetsync-*")}
OF_PLUGINS = {
    page
    for page in (ROOT / "docs" / "plugins").rglob("*.md")
    if PLUGINS & {page.stem, page.parent.name}
}
PAGES = {ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - OF_PLUGINS
SCRIPTS = {str(page.relative_to(ROOT)): page for page in sorted(PAGES) if script_of(page).strip()}
# The pages that a reader may try on one server. The other two store nothing on it.
SHARED = [
    name
    for name, page in SCRIPTS.items()
    if name.startswith("docs/howto/") and page.stem not in {"connect", "testing"}
]


def test_the_pages_have_examples():
    """
    The README, the start page and each how-to have runnable code.
    """
    how_to = {str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "howto").glob("*.md")}

    assert {"README.md", "docs/index.md"} | how_to - {"docs/howto/index.md"} <= set(SCRIPTS)


@pytest.mark.live
@pytest.mark.parametrize(
    "page",
    thorough_except(
        {name: page for name, page in SCRIPTS.items() if name not in SHARED}, "README.md"
    ),
)
def test_examples_of_page_run(page, tmp_path):
    """
    The page's blocks run to their end.
    """
    run_page(page, tmp_path)


@pytest.mark.thorough
@pytest.mark.live
def test_getting_started_can_be_pasted():
    """
    The blocks run in an interactive interpreter, one after the other.

    Only the handler that shows a failure raises an exception.
    """
    text = (ROOT / "docs" / "getting-started.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with DevServer() as server:
        done = subprocess.run(
            [sys.executable, "-i", "-q"],
            input="\n".join(f"{block}\nprint('pasted')\n" for block in blocks),
            env={**os.environ, "NATS_URL": server.url},
            capture_output=True,
            text=True,
            errors="backslashreplace",  # As in `run_page`.
            timeout=90,
            check=False,
        )
    errors = re.findall(r"^(?:>>> )*(\w+(?:Error|Exception|Exit)\b.*)$", done.stderr, re.MULTILINE)
    assert errors == ["LookupError: the van is full"], done.stderr
    assert done.stdout.count("pasted") == len(blocks)
    assert "shipped b'a sofa'" in done.stdout


@pytest.mark.thorough
@pytest.mark.live
@pytest.mark.timeout(900)
def test_pages_share_a_server(tmp_path):
    """
    The how-to pages run on the server of the first steps, one after another.
    """
    with DevServer() as server:
        for name in ["docs/getting-started.md", *SHARED, "docs/howto/consume.md"]:
            run_page(SCRIPTS[name], tmp_path, server=server)
