"""
Engines own their state: only code in `jetsync/_proto` changes it.

The tests read the files and import nothing. They find the names that the code uses for engines from
annotations, from calls of their classes, from calls of methods that return one and from assignments
of one such name to another.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jetsync"
ENGINES = "jetsync/_proto/"

VALUES = {"Enum", "NamedTuple", "Protocol"}
"""Bases of classes in `_proto` that are not engines."""

MUTATORS = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop"}
MUTATORS |= {"popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort", "update"}
"""Methods that change a container."""


def last_name(node: ast.AST | None) -> str:
    """
    Return `c` for `a.b.c`, and also for `a.b.c[0]` and `a.b.c[T]`; empty for other expressions.
    """
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def names_of(annotation: ast.AST | None) -> set[str]:
    """
    Return the classes that an annotation allows, without those inside brackets.
    """
    if isinstance(annotation, ast.BinOp):
        return names_of(annotation.left) | names_of(annotation.right)
    return {last_name(annotation)}


@functools.cache
def engines() -> set[str]:
    """
    Return the classes of `_proto` whose objects have a state.
    """
    classes = [
        node
        for path in sorted((ROOT / ENGINES).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    return {
        each.name
        for each in classes
        if not VALUES.intersection(map(last_name, each.bases))
        if not any("frozen" in ast.unparse(decorator) for decorator in each.decorator_list)
    }


def pairs(node: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """
    Return the targets of an assignment, each with the expression that it gets.
    """
    if isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        return [(node.target, node.value)]
    if not isinstance(node, ast.Assign):
        return []
    found: list[tuple[ast.AST, ast.AST]] = []
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            found += zip(target.elts, node.value.elts, strict=False)
        else:
            found.append((target, node.value))
    return found


class Names:
    """
    The names that stand for engines, and those that stand for parts of an engine's state.

    Names of attributes count in all files, and names of variables in their own file.
    """

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.engines: set[tuple[str, str]] = set()
        self.parts: set[tuple[str, str]] = set()
        for file, tree in trees.items():
            self._from_types(file, tree)
        assigned = [
            (file, target, value)
            for file, tree in trees.items()
            for node in ast.walk(tree)
            for target, value in pairs(node)
        ]
        before = -1
        while before != len(self.engines) + len(self.parts):
            before = len(self.engines) + len(self.parts)
            for file, target, value in assigned:
                self._from_value(file, target, value)

    def _from_types(self, file: str, tree: ast.Module) -> None:
        own = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        fields = {each for node in own for each in node.body}
        known = engines()
        if not file.startswith(ENGINES):
            # A class of this file may have the name of an engine.
            known = known.difference(node.name for node in own)
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and names_of(node.annotation) & known:
                is_field = node in fields or isinstance(node.target, ast.Attribute)
                self.engines.add(("" if is_field else file, last_name(node.target)))
            elif isinstance(node, ast.arg) and names_of(node.annotation) & known:
                self.engines.add((file, node.arg))
            elif isinstance(node, ast.FunctionDef) and names_of(node.returns) & known:
                self.engines.add(("", node.name))

    def _from_value(self, file: str, target: ast.AST, value: ast.AST) -> None:
        name = ("" if isinstance(target, ast.Attribute) else file, last_name(target))
        if isinstance(value, ast.Call):
            if last_name(value.func) in engines() or self.is_engine(file, value.func):
                self.engines.add(name)
        elif not isinstance(value, (ast.Name, ast.Attribute)):
            pass
        elif self.is_engine(file, value):
            self.engines.add(name)
        elif self.is_inside(file, value):
            self.parts.add(name)

    def is_engine(self, file: str, node: ast.AST) -> bool:
        """
        Return whether an expression is an engine.
        """
        place = "" if isinstance(node, ast.Attribute) else file
        return isinstance(node, (ast.Name, ast.Attribute)) and (
            (place, last_name(node)) in self.engines
        )

    def is_inside(self, file: str, node: ast.AST) -> bool:
        """
        Return whether an expression is a part of an engine's state.
        """
        place = "" if isinstance(node, ast.Attribute) else file
        if self.is_engine(file, node):
            return False
        if isinstance(node, (ast.Name, ast.Attribute)) and (place, last_name(node)) in self.parts:
            return True
        if not isinstance(node, (ast.Attribute, ast.Subscript)):
            return False
        return self.is_engine(file, node.value) or self.is_inside(file, node.value)


def changes(sources: dict[str, str]) -> list[tuple[str, int, str]]:
    """
    List the changes of an engine's state outside `_proto`: file, line and what is changed.
    """
    trees = {file: ast.parse(source) for file, source in sources.items()}
    names, found = Names(trees), []
    for file, tree in trees.items():
        for node in () if file.startswith(ENGINES) else ast.walk(tree):
            if isinstance(node, (ast.Attribute, ast.Subscript)):
                # An attribute that holds an engine may get another one.
                owner = node.value
                is_write = not isinstance(node.ctx, ast.Load) and (
                    names.is_engine(file, owner) or names.is_inside(file, owner)
                )
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                is_write = node.func.attr in MUTATORS and names.is_inside(file, node.func.value)
            else:
                continue
            if is_write:
                found.append((file, node.lineno, ast.unparse(node)))
    return found


@functools.cache
def all_changes() -> list[tuple[str, int, str]]:
    """
    List the changes in the package.
    """
    return changes(
        {
            path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
            for path in sorted(PACKAGE.rglob("*.py"))
        }
    )


def test_engines_own_their_state():
    """
    No code outside `_proto` assigns to an engine's attribute or changes a container of an engine.
    """
    assert [f"{file}:{line} changes {what}" for file, line, what in all_changes()] == []


@pytest.mark.parametrize(
    "line",
    [
        "self.engine.phase = Phase.DONE",
        "self.engine.pings += 1",
        "self.engine.done = self.engine.cut = True",
        "refusal, self.engine.refusal = self.engine.refusal, None",
        "del self.engine.refusal",
        "self.engine.ledger.sent = 1",
        "self.engine.ledger.gaps.popleft()",
        "ledger = self.engine.ledger\n        ledger.sent += 1",
        "gaps = self.engine.ledger.gaps\n        gaps.clear()",
        "self.gaps = self.engine.ledger.gaps\n        self.gaps.clear()",
        "self.engine.ledger.gaps[0] = None",
        "other.phase = Phase.DONE",
        "engine = FastIngest()\n        engine.phase = Phase.DONE",
        "link = self.link()\n        link.phase = Phase.DONE",
    ],
)
def test_changes_are_found(line):
    """
    The rule covers assignments of all kinds, mutating calls, and other names for the same objects.
    """
    source = f"""
class Link:
    engine: FastIngest
    ledger: Ledger

    def link(self) -> FastIngest: ...

    def run(self, other: FastIngest | None):
        {line}
"""

    assert changes({"link.py": source}) != []


@pytest.mark.parametrize(
    "line",
    [
        "self.engine = FastIngest()",
        "self.engine.close()",
        "self.engine.ledger.pop()",
        "self.batch_id = self.engine.batch_id",
        "gaps = list(self.engine.ledger.gaps)\n        gaps.clear()",
    ],
)
def test_events_are_allowed(line):
    """
    Other code may call the methods of an engine, read its state, and replace it by another engine.
    """
    source = f"""
class Link:
    engine: FastIngest
    ledger: Ledger

    def run(self):
        {line}
"""

    assert changes({"link.py": source}) == []
