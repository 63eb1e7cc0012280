"""
The page of symptoms: whether it has the words that a user sees.
"""

from __future__ import annotations

import re
from pathlib import Path

import jetsync

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "symptoms.md"

_SECTION = re.compile(r"^### (.*)\n\n((?:.+\n)+)", re.MULTILINE)


def sections() -> dict[str, str]:
    """
    Return the text of each symptom by its heading.
    """
    return dict(_SECTION.findall(PAGE.read_text("utf-8")))


def shows(heading: str, seen: BaseException | str, *words: str) -> None:
    """
    Assert that the page has, under *heading*, the words that are in *seen*.

    Args:
        heading: The heading, which may have the words itself.
        seen: What a user sees. The name of the class of jetsync's errors is one of the
            words.
        words: Parts of it.
    """
    section = f"{heading}\n{sections()[heading]}"
    if isinstance(seen, jetsync.JetSyncError):
        words = (type(seen).__name__, *words)
        seen = f"{type(seen).__name__}: {seen}"
    seen = str(seen)
    assert words
    for word in words:
        assert word in seen, f"{word!r} is not in what a user sees: {seen}"
        assert word in section, f"{word!r} is not on the page under {heading!r}"


def names(heading: str, *words: str) -> None:
    """
    Assert that the page has, under *heading*, the names of figures and options that a test uses.
    """
    section = f"{heading}\n{sections()[heading]}"
    for word in words:
        assert word in section, f"{word!r} is not on the page under {heading!r}"
