"""
The documentation of each hook repeats its docstring, and each hook has a test with its name.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import attrs
import pytest

from jetsync import events, hookspecs
from jetsync._hooks.check import ARGUMENTS, HOOKS, WRAPPERS

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "hooks"
INDEX = (PAGES / "index.md").read_text("utf-8")
PARTS = ("*Thread*", "*When*", "*Returns*", "*If it raises*", "*Cost*")


def signature(hook):
    """
    Return the hook's signature as in the source, without the quotes of annotations.
    """
    return hook + str(inspect.signature(getattr(hookspecs, hook))).replace("'", "")


def page(hook):
    """
    Return the hook's page of the documentation.
    """
    return (PAGES / f"{hook}.md").read_text("utf-8")


EVERYTHING = "\n".join(page(hook) for hook in HOOKS)


def closing_parts(hook):
    """
    Return the paragraphs at the end of the hook's docstring, on one line each.
    """
    paragraphs = inspect.getdoc(getattr(hookspecs, hook)).split("\n\n")
    return [" ".join(each.split()) for each in paragraphs if each.startswith(PARTS)]


def names_of_tests():
    """
    List the names of all test functions of the project.
    """
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }


def test_the_hooks_are_these_nine():
    """
    A hook that is added or renamed has to be added here.
    """
    expected = {
        "jetsync_batch_commit",
        "jetsync_fetch",
        "jetsync_message_received",
        "jetsync_prepare_message",
        "jetsync_publish",
        "jetsync_retry",
        "jetsync_shared_headers",
        "jetsync_status",
        "jetsync_ttl_marker",
    }

    assert expected == set(HOOKS)
    assert {name for name in expected if name in WRAPPERS} == WRAPPERS


@pytest.mark.parametrize("hook", HOOKS)
def test_documented_with_its_exact_signature(hook):
    """
    Each hook has a page with its signature, and a line in the index.
    """
    assert page(hook).startswith(f"# {hook}\n")
    assert f"\n{signature(hook)}\n" in page(hook)
    assert f"| [`{hook}`]({hook}.md) |" in INDEX
    assert f"\n{hook}\n" in INDEX


@pytest.mark.parametrize("hook", HOOKS)
def test_documented_with_all_arguments_and_an_example(hook):
    """
    Each argument has a line, and the page has an example.
    """
    for argument in ARGUMENTS[hook]:
        assert f"\n- `{argument}`: " in page(hook)
    assert "```python\n" in page(hook)
    assert f"def {hook}(" in page(hook)


@pytest.mark.parametrize("hook", HOOKS)
def test_docstring_has_the_five_closing_parts(hook):
    """
    The docstring ends with thread, when, returns, if it raises and cost, in this order.
    """
    parts = closing_parts(hook)

    assert [part.partition(":")[0] for part in parts] == list(PARTS)
    assert all(part.partition(":")[2].strip() for part in parts)


@pytest.mark.parametrize("hook", HOOKS)
def test_documentation_repeats_the_closing_parts(hook):
    """
    The page repeats these parts of the docstring word by word.
    """
    text = " ".join(page(hook).split())

    assert [part for part in closing_parts(hook) if part not in text] == []


def test_tested_by_name():
    """
    Each hook has a test with its name.
    """
    tests = names_of_tests()
    untested = [
        hook
        for hook in HOOKS
        if not any(re.fullmatch(f"test_hook_{hook}(_.*)?", name) for name in tests)
    ]

    assert untested == []


@pytest.mark.parametrize("kind", events.StatusKind)
def test_every_status_kind_is_documented_with_its_class(kind):
    """
    The table of `jetsync_status` has a row for each kind, with the class and all its fields.
    """
    row = next(
        line
        for line in page("jetsync_status").splitlines()
        if line.startswith(f"| `{kind.name}` |")
    )
    cls = getattr(events, f"{kind.name.title().replace('_', '')}Event")
    own = {field.name for field in attrs.fields(cls) if not field.inherited}

    assert f"`{cls.__name__}`" in row
    assert {name for name in own if f"`{name}`" not in row} == set()


@pytest.mark.parametrize("cls", events.Operation.__subclasses__())
def test_every_operation_is_documented_with_its_fields(cls):
    """
    The page names each operation and all its own fields.
    """
    own = {field.name for field in cls.__attrs_attrs__ if not field.inherited} - {"name"}

    assert f"`{cls.__name__}`" in EVERYTHING
    assert {name for name in own if f"`{name}`" not in EVERYTHING} == set()


def test_hookspecs_imports_only_pluggy():
    """
    `jetsync.hookspecs` imports only pluggy, so that a plugin's module loads without the client.
    """
    tree = ast.parse(Path(hookspecs.__file__).read_text("utf-8"))
    imported = {
        name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [node.names[0].name])
    }

    assert imported == {"__future__", "typing", "pluggy"}
