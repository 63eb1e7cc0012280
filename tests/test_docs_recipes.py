"""
Each recipe of the documentation is run by `tests/frameworks/test_recipes.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "recipes"
PAGES = sorted(set(FOLDER.glob("*.md")) - {FOLDER / "index.md"})
TESTS = (ROOT / "tests" / "frameworks" / "test_recipes.py").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_recipe_is_tested(page):
    """
    A page shows files of the folder with its name first, and a test runs this folder.
    """
    text = page.read_text("utf-8")
    shown = re.findall(r"^<!-- file (\S+): ", text, re.MULTILINE)

    assert shown
    assert all(name.startswith(f"{page.stem}/") and (FOLDER / name).is_file() for name in shown)
    assert text.index("<!-- file ") < 120
    assert f'"{page.stem}"' in TESTS
