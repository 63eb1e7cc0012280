"""
The checker of the documentation's prose, and the documentation that passes it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "docs" / "check_prose.py"


@pytest.fixture(scope="module")
def prose():
    """
    The script as a module.
    """
    spec = importlib.util.spec_from_file_location("check_prose", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The message comes again.", "'comes again'"),
        ("- One.\n- It stands in\n  the table.", "'stands'"),
        ("| a |\n|---|\n| Nobody waits. |", "'Nobody'"),
        (":::{grid-item}\n:columns: 2\nIt goes on.\n:::", "'goes on'"),
        ("```{note}\nSimply call it.\n```", "'Simply'"),
        ("What is not acknowledged is lost.", "a clause is the subject"),
        (f"One. Too {'many ' * 30}words.", "32 words in one sentence"),
    ],
)
def test_unclear_prose_is_found_in_all_kinds_of_text(prose, text, found):
    """
    Words to avoid, long sentences and clauses as subjects are found in all kinds of text.
    """
    [(_, what)] = prose.complaints(text)

    assert found in what


@pytest.mark.parametrize(
    "text",
    [
        "`stands` is code, and `*` stands for one part.",
        "```python\nnobody = 1\n```",
        "```text\nIt goes on.\n```",
        "[text](https://example.org/nobody)",
        "What jetsync guarantees",
        f"Too {'many ' * 20}words. Too {'many ' * 20}words.",
        "The backlog thins out.",
    ],
)
def test_no_complaints(prose, text):
    """
    Code, addresses, headings and short sentences pass.
    """
    assert list(prose.complaints(text)) == []


def test_the_line_of_a_complaint(prose):
    """
    The complaint names the line in which the paragraph starts.
    """
    [(line, _)] = prose.complaints("# Title\n\n:::{card}\n\nIt goes on.\n:::\n")

    assert line == 5


def test_the_documentation_passes(prose):
    """
    No page has a complaint.
    """
    found = [
        f"{page.name}:{line}: {what}"
        for page in prose.pages()
        for line, what in prose.complaints(page.read_text("utf-8"))
    ]

    assert found == []
