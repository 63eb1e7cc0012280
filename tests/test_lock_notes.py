"""
Classes say which threads call them and which lock protects what.

The notes are two lines, "Threads:" and "Locks:". They are comments below the docstring of the class
or, if the class is internal, a paragraph of the docstring. The tests read the files and import
nothing.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import attrs
import pytest

PACKAGE = Path(__file__).parent.parent / "jetsync"
CONSUME = [*sorted(PACKAGE.joinpath("consume").glob("*.py")), PACKAGE / "kv" / "watch.py"]
FILES = [*sorted(PACKAGE.joinpath("publish").glob("*.py")), *CONSUME]

MAKES_LOCK = re.compile(r"self\.(\w+)(?:: [\w.]+)? = (?:LongLock|short_lock|threading\.Lock)\(")


@attrs.frozen
class Noted:
    """
    A class with its notes and its locks.
    """

    name: str
    notes: str
    """Empty if it has none."""

    locks: set[str]
    words: set[str]
    """The words of the file without the notes."""


def note_lines(node: ast.ClassDef, lines: list[str]) -> range:
    """
    Return the indexes of the lines with the notes of a class.
    """
    place = range(node.body[0].lineno - 1, node.body[1].lineno - 1)
    starts = [index for index in place if lines[index].strip(" #").startswith("Threads: ")]
    if not starts:
        return range(0)
    blank = [index for index in place if index > starts[0] and not lines[index].strip(" #")]
    return range(starts[0], blank[0] if blank else place.stop)


def noted_in(source: str) -> list[Noted]:
    """
    Return the classes of a module, except values and those whose state differs for each thread.
    """
    found = []
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef) or len(node.body) < 2:
            continue
        if any("frozen" in ast.unparse(each) for each in node.decorator_list):
            continue
        if "threading.local" in map(ast.unparse, node.bases):
            continue
        place = note_lines(node, lines)
        notes = "\n".join(lines[index].strip(" #") for index in place)
        locks = set(MAKES_LOCK.findall(ast.get_source_segment(source, node)))
        others = [line for index, line in enumerate(lines) if index not in place]
        found.append(Noted(node.name, notes, locks, set(re.findall(r"\w+", "\n".join(others)))))
    return found


def classes(files: list[Path]) -> list[Noted]:
    """
    Return the classes of the files.
    """
    return [each for path in files for each in noted_in(path.read_text("utf-8"))]


NOTED = [each for each in classes(FILES) if each.locks or "Locks: " in each.notes]


def test_classes_are_found():
    """
    The rule covers the handles of these folders.
    """
    names = {each.name for each in NOTED}

    assert names >= {"AtomicBatch", "BatchAttempt", "FastPublisher", "Publisher", "StagedRun"}
    assert names >= {"Consumption", "HandlerPool", "MessageBatch", "Reading", "Watch"}


def test_each_class_that_consumes_has_notes():
    """
    Every class of `jetsync/consume` and `jetsync/kv/watch.py` has notes, unless it is a value.
    """
    assert [each.name for each in classes(CONSUME) if "Locks: " not in each.notes] == []


@pytest.mark.parametrize("each", NOTED, ids=lambda each: each.name)
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


@pytest.mark.parametrize(
    "notes",
    [
        "A queue.",
        "A queue.\n\n    Threads: any.",
        "A queue.\n\n    Threads: any.\n    Locks: none of its own.",
        "A queue.\n\n    Threads: any.\n    Locks: `_lock` protects `_gone`.",
        "A queue.\n\n    Locks: `_lock` protects `_items`.",
    ],
)
def test_missing_notes_are_found(notes):
    """
    The rule finds a class without one of the lines, without one of its locks, or with another name.
    """
    (each,) = noted_in(
        f'''
class Queue:
    """
    {notes}
    """

    def __init__(self):
        self._lock = short_lock()
        self._items = []
'''
    )

    with pytest.raises(AssertionError):
        test_notes(each)


@pytest.mark.parametrize("style", ["docstring", "comment"])
def test_complete_notes_are_accepted(style):
    """
    The notes may be in the docstring, with other paragraphs after them, or in comments below it.
    """
    notes = "Threads: any.\n    Locks: `_lock` protects `_items`."
    inside = f"\n\n    {notes}\n\n    Args:\n        number: How many." * (style == "docstring")
    below = "\n    # " + notes.replace("    ", "    # ") if style == "comment" else ""
    (each,) = noted_in(
        f'''
class Queue:
    """
    A queue.{inside}
    """
{below}

    def __init__(self, number):
        self._lock = short_lock()
        self._items = [None] * number
'''
    )

    test_notes(each)
