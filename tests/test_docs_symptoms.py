"""
Each section of the page of symptoms has a test that produces the symptom.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from helpers.symptoms import sections

FILES = sorted((Path(__file__).parent / "live").glob("test_symptoms_*.py"))


def texts() -> set[str]:
    """
    Return the text constants of the tests.
    """
    trees = [ast.parse(path.read_text("utf-8")) for path in FILES]
    return {
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_each_symptom_is_produced():
    """
    The tests name each heading, and there are at least 25.
    """
    headings = set(sections())
    assert len(headings) >= 25
    assert headings - texts() == set()


@pytest.mark.parametrize("heading", sections())
def test_the_form(heading):
    """
    Each section has a cause, how to see it and what to do.
    """
    lines = sections()[heading].splitlines()
    labels = [line.partition(":** ")[0] for line in lines]
    assert labels == ["- **Cause", "- **See", "- **Do"]
