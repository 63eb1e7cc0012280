"""
The code of the README and of the documentation's page runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("helpers.doc_pages", reason="only in the repository")

from helpers.doc_pages import run_page

HERE = Path(__file__).parents[1]
PAGES = [HERE / "README.md", HERE.parents[1] / "docs" / "plugins" / "celery.md"]


@pytest.mark.live
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_of_jetsync_celery_runs(page, tmp_path):
    """
    The page's blocks run without an error.
    """
    run_page(page, tmp_path)
