"""
The table of scenarios: sorted, each once, and every test that it names exists.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROW = re.compile(r"^\| (\d+) \| [^|]+ \| (.+) \|$", re.MULTILINE)
ROWS = [(int(number), cell) for number, cell in ROW.findall((TESTS / "scenarios.md").read_text())]
NAMED = [(number, name) for number, cell in ROWS for name in re.findall(r"`([^`]+)`", cell)]


def names_in(path: Path) -> set[str]:
    """
    Return the tests of a file as pytest names them, classes included.
    """
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        found.add(getattr(node, "name", ""))
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{getattr(method, 'name', '')}" for method in node.body}
    return found


def test_the_table_is_in_order():
    """
    Each scenario has one row, and the rows are sorted.
    """
    numbers = [number for number, _ in ROWS]

    assert sorted(set(numbers)) == numbers
    assert len(ROWS) > 0


@pytest.mark.parametrize(("number", "name"), NAMED)
def test_the_named_tests_exist(number, name):
    """
    A row names tests that are there.
    """
    path, _, test = name.partition("::")

    assert (TESTS / path).is_file(), number
    assert not test or test in names_in(TESTS / path), number
