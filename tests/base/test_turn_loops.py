"""
Loops in blocks that have to run to their end after Ctrl-C, on Python 3.13.

There, the jump of some ``while`` loops is a step at which Ctrl-C leaves a ``try`` or ``with``
without its end (CPython issue 130279). ``jetsync/_base/turn.py`` says how to write such a loop.
"""

from __future__ import annotations

import ast
import dis
import sys
import types
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "jetsync"

HARMLESS = {
    "_base/iterations.py _fill": "what was not taken can still be taken, and the generator ends",
    "_base/locks.py wait": "the latch keeps a flag that no thread waits for",
    "_io/outbox.py _on_room": "runs in the loop thread",
    "client.py drain": "the log lacks a line",
    "consume/handlers.py _work": "runs in a thread of the consumption",
    "publish/publisher.py _run": "runs in a thread of the publisher",
}
"""
The functions with such a loop that Ctrl-C may strike there, or that it does not strike.
"""

OTHERS = {"cli", "devserver", "testing", "filesystem.py"}


def is_guarded(node):
    """Return whether a statement is a block whose end has to run."""
    if isinstance(node, ast.With):
        return "suppress" not in ast.unparse(node.items[0].context_expr)
    if not isinstance(node, ast.Try):
        return False
    caught = [ast.unparse(handler.type) for handler in node.handlers if handler.type]
    return bool(node.finalbody) or "BaseException" in caught


def guarded_loops(node, guard=False):
    """Yield the lines of the ``while`` loops in such blocks of a function, without inner ones."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        inside = guard or is_guarded(node)
        if inside and isinstance(child, ast.While):
            yield range(child.lineno, child.end_lineno + 1)
        yield from guarded_loops(child, inside)


def codes(code):
    """Yield the code of all functions in a module."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def open_jumps(code):
    """Yield the lines of the jumps back that no exception handler of the loop covers."""
    blocks = dis._parse_exception_table(code)

    def handler_of(offset):
        return next((each.target for each in blocks if each.start <= offset < each.end), None)

    before = None
    for step in dis.get_instructions(code):
        if step.opname == "JUMP_BACKWARD" and handler_of(step.offset) is None:
            target = handler_of(step.argval)
            if target is not None and target == handler_of(before.offset):
                yield step.positions.lineno
        before = step


def broken(source, name):
    """Yield the functions in which such a jump leaves a block that has to run to its end."""
    loops = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            loops[node.name, node.lineno] = list(guarded_loops(node))
    for code in codes(compile(source, name, "exec")):
        for (function, start), lines in loops.items():
            if code.co_name == function and start >= code.co_firstlineno:
                jumps = list(open_jumps(code))
                if any(jump in loop for jump in jumps for loop in lines):
                    yield f"{name} {function}"


pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 13), reason="only Python 3.13 has such jumps"
)


def test_loops_end_their_blocks():
    """No call that Ctrl-C may strike has such a loop in a block that has to run to its end."""
    files = [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in OTHERS
    ]
    names = {path: path.relative_to(PACKAGE).as_posix() for path in files}
    found = {each for path in files for each in broken(path.read_text("utf-8"), names[path])}

    assert found <= HARMLESS.keys()
