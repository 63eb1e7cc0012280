"""
What the classes of `_io`, `publish` and `consume` say about threads and locks.

The notes are two lines, "Threads:" and "Locks:". They are comments below the docstring of the class
or, if the class is internal, a paragraph of the docstring. A class of `_io` with methods that say
that a lock is held asserts that in one of them. The tests read the files and import nothing.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import attrs
import pytest

PACKAGE = Path(__file__).parent.parent / "jetsync"
IO, CONSUME, PUBLISH = (
    sorted(PACKAGE.joinpath(folder).glob("*.py")) for folder in ("_io", "consume", "publish")
)
COMPLETE = [*IO, *CONSUME, PACKAGE / "kv" / "watch.py"]
"""The files in which every class has notes. In `publish`, only a class with a lock needs them."""

VALUES = {"Protocol", "Exception", "enum.Enum", "threading.local"}
"""Bases of classes without a state that threads share."""

SINGLE_USE = {"Attempt", "_Refused"}
"""Values that are not frozen."""

HELD = "lock is held"

MAKES_LOCK = re.compile(r"self\.(\w+)(?:: [\w.]+)? = (?:Turn|\w+_lock|threading\.Lock)\(")


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
    Return the classes of a module, except values.
    """
    found = []
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef) or len(node.body) < 2:
            continue
        if any("frozen" in ast.unparse(each) for each in node.decorator_list):
            continue
        if node.name in SINGLE_USE or not VALUES.isdisjoint(map(ast.unparse, node.bases)):
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


NOTED = [each for each in classes(COMPLETE + PUBLISH) if each.locks or "Locks: " in each.notes]


def test_classes_are_found():
    """
    The rule covers the handles of these folders.
    """
    names = {each.name for each in NOTED}

    assert names >= {"AtomicBatch", "BatchAttempt", "FastPublisher", "Publisher", "Stage"}
    assert names >= {"Consumption", "HandlerPool", "MessageBatch", "Reading", "Watch"}
    assert names >= {"Connection", "Lane", "Outbox", "Session"}


def test_each_class_has_notes():
    """
    Every class of `_io`, `consume` and `kv/watch.py` has notes, unless it is a value.
    """
    assert [each.name for each in classes(COMPLETE) if "Locks: " not in each.notes] == []


@pytest.mark.parametrize("each", NOTED, ids=lambda each: each.name)
def test_notes(each):
    """
    The notes name the threads and every lock of the class, and nothing that the file does not have.
    """
    threads, found, locks = each.notes.partition("Locks: ")
    named = {word for name in re.findall(r"`([\w.]+)`", each.notes) for word in name.split(".")}
    # "on_" stands for all names that begin with it.
    named = {word for word in named if not word.endswith("_")}

    assert threads.startswith("Threads: ")
    assert found
    assert each.locks <= set(re.findall(r"`(\w+)`", locks))
    assert named - each.words == set()


DESIGN = PACKAGE.parent / "docs" / "design.md"

NAMES = set(re.findall(r"^\| ([a-z]+ (?:lock|turn)) \|", DESIGN.read_text("utf-8"), re.MULTILINE))
"""The names of locks in the table of the design."""


@pytest.mark.parametrize("each", [each for each in NOTED if each.locks], ids=lambda each: each.name)
def test_each_lock_has_its_name(each):
    """
    The notes give each lock of the class the name that it has in the design.
    """
    names = dict(re.findall(r"[Tt]he ([a-z]+ (?:lock|turn)), `+(\w+)`", each.notes))
    attributes = {attribute: name for name, attribute in names.items()}

    assert each.locks <= attributes.keys()
    assert names.keys() <= NAMES


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


def unasserted(tree):
    """
    List the classes with methods that say that a lock is held, none of which begins with an
    assertion.
    """
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            held = [each for each in methods if HELD in (ast.get_docstring(each) or "")]
            if held and not any(isinstance(each.body[1], ast.Assert) for each in held):
                names.append(node.name)
    return names


@pytest.mark.parametrize("path", IO, ids=lambda path: path.stem)
def test_a_held_lock_is_asserted(path):
    """
    Of the methods that are called with a lock held, one begins with the assertion of that.
    """
    assert unasserted(ast.parse(path.read_text("utf-8"))) == []


def test_missing_assertions_are_found():
    """
    The rule finds a class without an assertion, and accepts one with it.
    """
    text = """
class Bad:
    def caller(self):
        "Do it; the lock is held."
        self.done = True

class Good(Bad):
    def called(self):
        "Do it; the lock is held."
        assert self.held_here()

    def caller(self):
        "Call it; the lock is held."
        self.called()
    """
    assert unasserted(ast.parse(text)) == ["Bad"]
