"""
The code of the README and of the documentation's page runs.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("helpers.doc_pages", reason="only in the repository")

from helpers.doc_pages import run_page

HERE = Path(__file__).parents[1]
PAGES = [HERE / "README.md", HERE.parents[1] / "docs" / "plugins" / "django.md"]


@pytest.mark.live
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_of_jetsync_django_runs(page, tmp_path):
    """
    The page's blocks run without an error.
    """
    # A script `django.py` would hide the package.
    script = tmp_path / f"page_{page.name}"
    shutil.copy(page, script)
    run_page(script, tmp_path)


def test_the_page_lists_the_options_of_a_cache():
    """
    The table of options on the page has each option, and no other.
    """
    from jetsync_django.cache.bucket import OPTIONS

    page = PAGES[1].read_text("utf-8").partition("These are the `OPTIONS`")[2]
    table = page.partition("\n\n")[2].partition("\n\n")[0]

    assert sorted(re.findall(r"^\| `([A-Z_]+)`", table, re.MULTILINE)) == sorted(OPTIONS)
