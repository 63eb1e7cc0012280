"""
What a class says about threads and locks.

Each class of `jetsync/_io` names its callers and what its lock protects. A method whose docstring
says that a lock is held asserts that.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "jetsync"
FILES = sorted(PACKAGE.joinpath("_io").glob("*.py"))

DATA = {"Attempt", "Login", "_Refused", "LaneState"}
"""Values, which do nothing by themselves."""

HELD = "lock is held"


def classes(path):
    """
    Return the classes of a file that threads call.
    """
    found = ast.walk(ast.parse(path.read_text("utf-8")))
    return [
        node
        for node in found
        if isinstance(node, ast.ClassDef)
        and node.name not in DATA
        and ast.get_docstring(node)
        and not {ast.unparse(base) for base in node.bases} & {"Protocol", "Exception"}
    ]


def unasserted(tree):
    """
    List the functions that say that a lock is held and do not begin with an assertion.
    """
    names = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[1] if len(node.body) > 1 else None
            if HELD in (ast.get_docstring(node) or "") and not isinstance(first, ast.Assert):
                names.append(node.name)
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_class_names_its_callers_and_its_lock(path):
    """
    The docstring of a class has one paragraph that begins with both lines.
    """
    assert [
        node.name
        for node in classes(path)
        if "\n\nThreads: " not in ast.get_docstring(node)
        or "\nLocks: " not in ast.get_docstring(node).split("\n\nThreads: ")[1].split("\n\n")[0]
    ] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_held_lock_is_asserted(path):
    """
    A method that is called with a lock held begins with the assertion of that.
    """
    assert unasserted(ast.parse(path.read_text("utf-8"))) == []


def test_missing_assertions_are_found():
    """
    The rule finds a method without an assertion, and accepts one with it.
    """
    text = """
    def bad(self):
        "Do it; the lock is held."
        self.done = True

    def good(self):
        "Do it; the lock is held."
        assert self.held_here()
    """
    assert unasserted(ast.parse(f"class A:\n{text}")) == ["bad"]
