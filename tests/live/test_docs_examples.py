"""
The code in the README and in `docs/` runs.

Each plugin tests its own page, because this environment lacks the plugin's dependencies.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import run_page, script_of

from jetsync.devserver import DevServer

ROOT = Path(__file__).parents[2]
OF_PLUGINS = {
    ROOT / "docs" / "plugins" / f"{folder.name.removeprefix('jetsync-')}.md"
    for folder in (ROOT / "plugins").glob("jetsync-*")
}
PAGES = {ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - OF_PLUGINS
SCRIPTS = {str(page.relative_to(ROOT)): page for page in sorted(PAGES) if script_of(page).strip()}


def test_the_pages_have_examples():
    """
    The README, the start page and each how-to have runnable code.
    """
    how_to = {str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "howto").glob("*.md")}

    assert {"README.md", "docs/index.md"} | how_to - {"docs/howto/index.md"} <= set(SCRIPTS)


@pytest.mark.live
@pytest.mark.parametrize("page", SCRIPTS)
def test_examples_of_page_run(page, tmp_path):
    """
    The page's blocks run to their end.
    """
    run_page(SCRIPTS[page], tmp_path)


@pytest.mark.live
@pytest.mark.timeout(900)
def test_pages_share_a_server(tmp_path):
    """
    The how-to pages also run on the server of the start page, one after another.
    """
    # The other pages store nothing on this server.
    how_to = [
        name
        for name, page in SCRIPTS.items()
        if name.startswith("docs/howto/") and page.stem not in {"connect", "testing"}
    ]

    with DevServer() as server:
        for name in ["docs/getting-started.md", *how_to, "docs/howto/consume.md"]:
            run_page(SCRIPTS[name], tmp_path, server=server)
