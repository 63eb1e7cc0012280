"""
The shape of the package, as rules over its import statements.

Nothing is imported here: the files are read. Imports under `if TYPE_CHECKING:` do not count, as
they do not exist at run time.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jetsync"

LAYERS = (
    # 0: vocabulary
    {"errors", "typing", "headers", "_deadline", "_log", "_locks"},
    # 1: values and wire forms: no I/O, no clock, no threads
    {"_subjects", "_codec", "_integers", "_fields", "_echo", "ttl"}
    | {"message", "outbound", "stored", "events"}
    | {"stream_config", "stream_info", "consumer_config", "consumer_info", "account"}
    | {"options", "_server_urls", "_saved_context", "server_info"},
    # 2: engines
    {"_proto"},
    # 3: plumbing
    {"hookspecs", "_plugins", "_hookcalls", "_hookcheck", "_hooktrace", "_eventthread"}
    | {"_bridge", "_login", "_transport", "_translate", "_websocket", "_lane", "_gate", "_outbox"}
    | {"_handoff", "_session", "_stream_cache", "_mirrors"},
    # 3, continued: the management API as functions over a session, and where pulls are answered
    {"_management", "_stream_admin", "_consumer_admin", "_message_get", "_pull_inbox"},
    # 4: blocking handles; each line may use those before it
    {"acks"},
    {"publish", "fetch", "subscription", "_page_reader"},
    {"_last_reader"},
    {"direct"},
    {"counters", "_schedules"},
    {"_consume_options", "_consume_drive", "_consume_handlers", "consume"},
    {"consumer"},
    {"_ordered_source", "ordered_reads", "ordered"},
    {"stream_consumers", "stream"},
    {"kv_entry", "kv_config", "_kv_bucket", "_kv_many", "kv_watch", "kv_atomic"},
    {"kv", "_kv_door"},
    {"jetstream"},
    {"client"},
    # the facade
    {"__init__"},
    # 5: tools
    {"devserver", "testing", "cli"},
    {"__main__"},
)
"""
Every module or folder directly below `jetsync/`, lowest first. A module may import from its own
layer and from those below it. A new module gets its place here.
"""

LOW_TOOLS = {"devserver": 0}
"""Tools that other tools and plugins use without the client, and the layer they may reach up to."""

SINGLE_IMPORTERS = {"nats": "jetsync._io.nats_seam", "anyio": "jetsync._io.bridge"}
"""Foreign packages that exactly one file may import, so that replacing them touches one file."""

IMPURE = {"time", "datetime", "threading", "queue", "socket", "ssl", "select", "selectors", "os"}
IMPURE |= {"asyncio", "anyio", "nats", "subprocess", "concurrent", "multiprocessing", "signal"}
IMPURE |= {"logging", "structlog", "random", "secrets"}
"""What an engine may not touch: I/O, clocks, threads, chance and logs are its caller's."""

IMPURE_OWN = {"jetsync._base.deadline", "jetsync._base.log", "jetsync._base.locks"}
"""Modules of layer 0 that tell time or write logs."""


@attrs.frozen
class Import:
    """
    One imported module, and where.
    """

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer} (line {self.line}) imports {self.imported}"


def module_name(path: Path) -> str:
    """
    Return the name that the file is imported by.
    """
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.AST) -> bool:
    """
    Tell whether the node is `if TYPE_CHECKING:`.
    """
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """
    Walk the tree as `ast.walk` does, without what only type checkers see.
    """
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            for otherwise in node.orelse:
                yield otherwise
                yield from run_time_nodes(otherwise)
        else:
            yield node
            yield from run_time_nodes(node)


def imports_of(path: Path, modules: set[str]) -> list[Import]:
    """
    List what the file imports at run time; `from a import b` is `a.b` where that is a module.
    """
    importer = module_name(path)
    found = []
    for node in run_time_nodes(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [Import(importer, alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{importer}: relative import in line {node.lineno}"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                imported = full if full in modules else str(node.module)
                found.append(Import(importer, imported, node.lineno))
    return found


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {module_name(path) for path in FILES}
IMPORTS = [each for path in FILES for each in imports_of(path, MODULES)]
OWN_IMPORTS = [each for each in IMPORTS if each.imported.split(".")[0] == "jetsync"]


def top(module: str) -> str:
    """
    Return the part below `jetsync` that has a place in LAYERS.
    """
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def layer(module: str) -> int:
    """
    Return the place of the module in LAYERS; one that has none is above all.
    """
    ranks = (rank for rank, names in enumerate(LAYERS) if top(module) in names)
    return next(ranks, len(LAYERS))


def test_every_module_has_a_place():
    """
    Every module is in LAYERS, and in one layer only.
    """
    placed = [name for names in LAYERS for name in names]

    assert {top(module) for module in MODULES} - set(placed) == set()
    assert len(placed) == len(set(placed))


def test_no_module_imports_a_higher_layer():
    """
    Imports point down, or stay within a layer.
    """
    upward = [each for each in OWN_IMPORTS if layer(each.imported) > layer(each.importer)]

    assert [str(each) for each in upward] == []


def test_low_tools_stay_low():
    """
    A tool that is used without the client imports only itself and the layers allowed to it.
    """
    too_high = [
        each
        for each in OWN_IMPORTS
        if top(each.importer) in LOW_TOOLS
        and top(each.imported) != top(each.importer)
        and layer(each.imported) > LOW_TOOLS[top(each.importer)]
    ]

    assert [str(each) for each in too_high] == []


def test_no_import_cycles():
    """
    Modules can be put in an order in which each one imports only those before it.
    """
    open_imports = {
        module: {
            each.imported
            for each in OWN_IMPORTS
            if each.importer == module and each.imported in MODULES and each.imported != module
        }
        for module in MODULES
    }
    while free := {module for module, imported in open_imports.items() if not imported}:
        open_imports = {
            module: imported - free
            for module, imported in open_imports.items()
            if module not in free
        }

    assert open_imports == {}


@pytest.mark.parametrize(("package", "importer"), SINGLE_IMPORTERS.items())
def test_single_importer(package, importer):
    """
    One file alone imports the package.
    """
    importers = {each.importer for each in IMPORTS if each.imported.split(".")[0] == package}

    assert importers == {importer}


def test_engines_are_pure():
    """
    Engines import nothing that does I/O, tells time, makes threads, draws lots or writes logs.
    """
    impure = [
        each
        for each in IMPORTS
        if each.importer.startswith("jetsync._proto")
        and (each.imported.split(".")[0] in IMPURE or each.imported in IMPURE_OWN)
    ]

    assert [str(each) for each in impure] == []


def test_values_do_no_io():
    """
    Values and wire forms import nothing that waits.
    """
    waiting = {"threading", "queue", "socket", "select", "selectors", "asyncio", "subprocess"}
    impure = [
        each
        for each in IMPORTS
        if layer(each.importer) == 1 and each.imported.split(".")[0] in waiting
    ]

    assert [str(each) for each in impure] == []


def test_no_drawer_modules():
    """
    No file is named for being a drawer; a name says what is inside.
    """
    drawers = {"utils", "util", "helpers", "constants", "common", "misc", "exceptions"}

    assert {module for module in MODULES if module.split(".")[-1].strip("_") in drawers} == set()
