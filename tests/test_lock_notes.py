"""
Classes of `jetsync/publish` say which threads call them and which lock protects what.

The notes are comments below the docstring of the class. The tests read the files and import
nothing.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import attrs
import pytest

PUBLISH = Path(__file__).parent.parent / "jetsync" / "publish"

MAKES_LOCK = re.compile(r"self\.(\w+)(?:: [\w.]+)? = (?:LongLock|short_lock)\(")


@attrs.frozen
class Noted:
    """
    A class with its notes and its locks.
    """

    name: str
    notes: str
    locks: set[str]
    words: set[str]
    """The words of the file without the notes."""


def noted_in(source: str) -> list[Noted]:
    """
    Return the classes of a module that have notes or make locks.
    """
    found = []
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef) or len(node.body) < 2:
            continue
        first, after = node.body[0].end_lineno, node.body[1].lineno - 1
        notes = "\n".join(
            line.strip(" #") for line in lines[first:after] if line.strip().startswith("#")
        )
        locks = set(MAKES_LOCK.findall(ast.get_source_segment(source, node)))
        if locks or "Locks: " in notes:
            words = set(re.findall(r"\w+", "\n".join([*lines[:first], *lines[after:]])))
            found.append(Noted(node.name, notes, locks, words))
    return found


CLASSES = [each for path in sorted(PUBLISH.glob("*.py")) for each in noted_in(path.read_text())]


def test_classes_are_found():
    """
    The rule covers the handles of this folder.
    """
    names = {each.name for each in CLASSES}

    assert names >= {"AtomicBatch", "BatchAttempt", "FastPublisher", "Publisher", "StagedRun"}


@pytest.mark.parametrize("each", CLASSES, ids=lambda each: each.name)
def test_notes(each):
    """
    The notes name the threads and every lock of the class, and nothing that the file does not have.
    """
    threads, found, locks = each.notes.partition("Locks: ")
    named = {word for name in re.findall(r"`([\w.]+)`", each.notes) for word in name.split(".")}

    assert threads.startswith("Threads: ")
    assert found
    assert each.locks <= set(re.findall(r"`(\w+)`", locks))
    assert named - each.words == set()
