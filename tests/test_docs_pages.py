"""
What readers copy from the README and `docs/`, and the output that they compare with their own.
"""

from __future__ import annotations

import codeop
import re
from pathlib import Path

import pytest

from helpers.doc_pages import script_of
from jetsync import Message
from jetsync._io.outbox import ACK_LIMIT

ROOT = Path(__file__).parents[1]
STEPS = [ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "getting-started.md"]
STEPS += sorted((ROOT / "docs" / "howto").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def errors_at_the_prompt(script: str) -> list[str]:
    """
    Return the lines that the prompt of Python 3.12 refuses if they are pasted one after another.

    A compound statement ends there at its first empty line, and only there.
    """
    compiler = codeop.CommandCompiler()
    refused, statement = [], ""
    for number, line in enumerate([*script.splitlines(), ""], 1):
        statement += line + "\n"
        try:
            # The prompt compiles without the last line end.
            done = compiler(statement[:-1], "<stdin>", "single") is not None
        except SyntaxError:
            refused.append(f"{number}: {line}")
            done = True
        if done:
            statement = ""
    return refused


@pytest.mark.parametrize(
    ("script", "refused"),
    [
        ("for _ in []:\n    pass\n\nprint()", []),
        ("for _ in []:\n    pass\nprint()", ["3: print()"]),
        ("for _ in []:\n    pass\n\n    pass", ["4:     pass"]),
        ("print(\n\n    1\n)", []),
        ("try:\n    pass\nfinally:\n    pass\n\n1", []),
        ("1\n2", []),
    ],
)
def test_the_prompt(script, refused):
    """
    A compound statement needs an empty line behind it, and must have none inside.
    """
    assert errors_at_the_prompt(script) == refused


def test_pages_are_complete_without_sphinx():
    """
    Only the page of the changelog includes another file, and says where it is.
    """
    includes = [
        page
        for page in PAGES
        if re.search(r"^```{(include|literalinclude)}", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert [page.name for page in includes] == ["changelog.md"]
    assert re.search("^> On GitHub, ", includes[0].read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", STEPS, ids=lambda page: page.stem)
def test_the_code_of_the_page_can_be_pasted(page):
    """
    The prompt of Python accepts the code of the README, the first steps and the how-to pages.
    """
    assert errors_at_the_prompt(script_of(page)) == []


def test_times_have_an_offset():
    """
    Times in the output of commands have the offset that the commands print.
    """
    times = [
        (page.name, *found)
        for page in PAGES
        for found in re.findall(
            r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)([+-]\d\d:\d\d)?", page.read_text("utf-8")
        )
    ]
    assert times
    assert [each for each in times if not each[-1]] == []


def test_the_number_of_acks_that_are_collected():
    """
    The docstring of ``ack`` and the how-to say how many acks are sent together at most.
    """
    howto = (ROOT / "docs" / "howto" / "fetch.md").read_text("utf-8")
    assert f"the acknowledgements of up to {ACK_LIMIT} messages" in howto
    assert f" or {ACK_LIMIT} acknowledgements" in " ".join((Message.ack.__doc__ or "").split())
