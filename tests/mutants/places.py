"""
The mutants of a module: cosmic-ray's operators, and one of our own that leaves out a call.

A place is a piece of code that an operator can change. Each place is drawn as often as any other:
an addition has eleven mutants and a ``not`` has one, so drawing mutants would favour additions.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

import attrs
import cosmic_ray.plugins
import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDERS = ("_proto", "values", "publish", "consume", "read", "kv", "_io")

# These are exchanged only with one another: `is` is nearly always equivalent to `==`, and an order
# of things that are compared by identity raises.
_IDENTITY = {"Is", "IsNot"}
# These two take arguments: names of variables.
_WITHOUT = {"VariableReplacer", "VariableInserter"}

_NODES = {"ReplaceBinaryOperator": "operator", "ReplaceComparisonOperator": "comparison"}
"""The only nodes of which these kinds of operators can change something."""


class LeaveOutCall(Operator):
    """
    Replace a statement that is a call with ``pass``. cosmic-ray has no operator that removes code.
    """

    def mutation_positions(self, node):
        """Yield the place of the call."""
        if self._is_call(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node, index):
        """Return ``pass`` with the indentation of the call."""
        assert index == 0
        return parso.parse(f"{node.get_first_leaf().prefix}pass")

    @staticmethod
    def _is_call(node) -> bool:
        if node.type not in {"atom_expr", "power"} or node.parent.type not in {
            "simple_stmt",
            "suite",
        }:
            return False
        last = node.children[-1]
        is_call = last.type == "trailer" and last.children[0].value == "("
        return is_call and node.get_first_leaf().value not in {"_log", "_logger"}

    @classmethod
    def examples(cls):
        """Return none: they are for cosmic-ray's own tests."""
        return ()


@attrs.frozen
class Mutant:
    """
    One change of one file.
    """

    file: str
    """Relative to the tree, such as ``jetsync/kv/watch.py``."""
    operator: str
    occurrence: int
    """The how-manieth place of the operator in the file."""
    line: int
    function: str
    """The innermost class or function around the change, such as ``Watch.close``."""
    lines: tuple[int, int]
    """The first and last line of the statement that is changed."""

    @property
    def folder(self) -> str:
        return self.file.split("/")[1]

    def source(self, tree: Path) -> str:
        """
        Return the file's text with the change.
        """
        text = (tree / self.file).read_text("utf-8")
        return mutate_code(text, operators()[self.operator], self.occurrence)

    def change(self, tree: Path) -> tuple[str, str]:
        """
        Return the first line that changes, before and after.
        """
        before = (tree / self.file).read_text("utf-8").splitlines()
        after = self.source(tree).splitlines()
        number = next(n for n, line in enumerate(before) if after[n : n + 1] != [line])
        if self.operator == "RemoveDecorator":
            return before[self.line - 1].strip(), ""
        return before[number].strip(), "".join(after[number : number + 1]).strip()


@functools.cache
def operators() -> dict[str, Operator]:
    """
    Return the operators by name.
    """
    chosen: dict[str, Operator] = {"LeaveOutCall": LeaveOutCall()}
    for name in cosmic_ray.plugins.operator_names():
        short = name.removeprefix("core/")
        mixed = short.startswith("ReplaceComparison") and len(_IDENTITY & {*short.split("_")}) == 1
        if short not in _WITHOUT and not mixed:
            chosen[short] = cosmic_ray.plugins.get_operator(name)()
    return chosen


def places(tree: Path, file: str) -> list[list[Mutant]]:
    """
    Return the places of a file, each with its mutants.

    Left out are annotations, code for type checkers only, and calls of loggers.
    """
    text = (tree / file).read_text("utf-8")
    parsed = ast.parse(text)
    statements = _Statements(parsed)
    skipped = list(_unused_at_run_time(parsed))
    found: dict[tuple, list[Mutant]] = defaultdict(list)
    counts = dict.fromkeys(operators(), 0)
    for node in ast_nodes(parso.parse(text)):
        for name, operator in operators().items():
            # Most of the operators are of two kinds. They need not look at each node.
            if _NODES.get(name.partition("_")[0], node.type) != node.type:
                continue
            for start, stop in operator.mutation_positions(node):
                number = counts[name]
                counts[name] += 1
                if any(first <= start < last for first, last in skipped):
                    continue
                function, lines = statements.around(start[0])
                # Equal ends, but operators of different kinds, are different places.
                kind = name.partition("_")[0]
                mutant = Mutant(file, name, number, start[0], function, lines)
                found[start, stop, kind].append(mutant)
    return [found[place] for place in sorted(found)]


def drawn(tree: Path, folders: tuple[str, ...], seed: int, number: int) -> list[Mutant]:
    """
    Draw mutants, at most one of each place.

    The draw goes by a hash of the code, so that a change of the code elsewhere changes little.
    """
    ranked = []
    for folder in folders:
        for path in sorted((tree / "jetsync" / folder).glob("*.py")):
            file = str(path.relative_to(tree))
            lines = path.read_text("utf-8").splitlines()
            seen: dict[tuple, int] = defaultdict(int)
            for mutants in places(tree, file):
                first = mutants[0]
                kind = first.operator.partition("_")[0]
                key = (file, first.function, lines[first.lines[0] - 1].strip(), kind)
                seen[key] += 1
                rank = hashlib.sha256(repr((seed, key, seen[key])).encode()).digest()
                ranked.append((rank, mutants[rank[-1] % len(mutants)]))
    ranked.sort(key=lambda pair: pair[0])
    valid = (mutant for _, mutant in ranked if _is_valid(mutant, tree))
    return list(itertools.islice(valid, number))


def _is_valid(mutant: Mutant, tree: Path) -> bool:
    """
    Whether the mutant is Python. Two of cosmic-ray's mutations are not.

    It takes a bare star among parameters for a multiplication, and fails at a handler of several
    exceptions that have dotted names.
    """
    try:
        ast.parse(mutant.source(tree))
    except (AttributeError, SyntaxError):
        return False
    return True


def _unused_at_run_time(parsed: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for node in ast.walk(parsed):
        parts: list[ast.AST | None] = []
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            parts.append(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts.append(node.returns)
            if "overload" in map(ast.unparse, node.decorator_list):
                parts += [node, *node.decorator_list]
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts.append(node)
        for part in parts:
            if part is not None:
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


class _Statements:
    """
    The statements of a module.
    """

    def __init__(self, parsed: ast.Module) -> None:
        self._found: list[tuple[int, int, ast.AST]] = []
        # An outer statement comes before those inside it.
        for node in ast.walk(parsed):
            if isinstance(node, (ast.stmt, ast.ExceptHandler)):
                first = min(n.lineno for n in (node, *getattr(node, "decorator_list", ())))
                self._found.append((first, node.end_lineno, node))

    def around(self, line: int) -> tuple[str, tuple[int, int]]:
        """
        Return the innermost definition, and the lines of the innermost statement, around a line.
        """
        around = [found for found in self._found if found[0] <= line <= found[1]]
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        names = [node.name for _, _, node in around if isinstance(node, kinds)]
        first, last, innermost = around[-1]
        # Of a statement that contains others, only its head.
        body = getattr(innermost, "body", None)
        if body:
            last = max(line, body[0].lineno - 1)
        return ".".join(names), (first, last)
