"""
The shape of the package, as rules over its import statements.

The tests read the files and import nothing. Imports under `if TYPE_CHECKING:` count as well.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jetsync"

LAYERS = """
__main__
cli
testing
devserver
filesystem monitoring
__init__
_facade
typing
client
system
jetstream
objects
kv
stream
backups counters schedules
consume
publish read
_api
_io
_hooks
hookspecs
_proto
options
values
_base
events
errors
"""
"""
Every module or folder directly below `jetsync/`. A module may import from its own folder and from
the lines below it. Names on one line are siblings that do not import each other.
"""

RANKS = {name: rank for rank, line in enumerate(LAYERS.split("\n")) for name in line.split()}

ROOMS = {
    "objects": """
handle
garbage put
reader upload watch
bucket
config info source
""",
    "kv": """
handle
transaction
bucket watch
codecs config entry
""",
    "consume": """
dead_workers
consumer ordered
fetch
consumption ordered_consumption
core handlers
ordered_source push request_many
feed pull_feed target
options subscription
ack_many auto_acks dead_letters ordered_deletion reading
unwanted_acks
""",
    "publish": """
fast many publisher
advisories atomic atomic_attempt errors
fast_link schedules
atomic_messages fast_stream flight one
encode
batch_support future hooks retry stage ttl_floor
""",
    "read": """
direct
last
pages
""",
    "_api": """
consumers
replica_or_leader streams
lists mirrors repeats
context
known_streams
account strays
""",
    "_io": """
connection
requests
session
nats_seam
websocket
transport
next_server
connection_state
listener probe refusals shortcut
lane
reader
gate subscriptions
bridge outbox
deferred handles login mailbox reminder replies resolve tls translate
""",
    "_hooks": """
manager
calls trace
check dispatcher errors
""",
    "_proto": """
consume fetch
pulling
direct_last open_pulls push
batch buffered direct fastingest object_names pins pipeline pull_size status
ack_runs consumer_probe dead_letters frames keys late_answers many_answers ordered origin
outcome page_runs puback pull_request server_pool snapshot watching
""",
    "values": """
dead_letter
message
ack_subject system_info
consumer_info pub_acks server_versions stored
arrow outbound stream_info
account consumer_config page_columns stream_config ttl
codec frame headers json_payloads saved_context server_info server_urls subjects
""",
    "_base": """
iterations
dropped stop_signal turn
fields locks
deadline failures files html integers keywords log makers pickling reprs
speedups
""",
}
"""
The files of a folder from top to bottom. A file may import, also for annotations, only those on the
lines below its own, and those of its circle.
"""

CIRCLES = {
    ("consume.core", "consume.handlers"): "a consumption ends with its threads, which take from it",
    ("consume.feed", "consume.pull_feed", "consume.target"): "a consumer keeps its idle feeds",
    (
        "publish.advisories",
        "publish.atomic",
        "publish.atomic_attempt",
        "publish.errors",
    ): "an advisory ends the attempt that expects it, and the error of a batch has the batch",
}
"""
The files of a folder that import each other, for annotations, and the reason. Each circle is a line
of its folder.
"""

WITHOUT_CLIENT = {"devserver": {"_base", "errors"}}
"""Tools that are used without the client, and the only layers that they may import."""

SINGLE_IMPORTERS = {"nats": "jetsync._io.nats_seam", "anyio": "jetsync._io.bridge"}
"""Foreign packages that exactly one file may import, so that replacing them touches one file."""

IMPURE = {"time", "datetime", "threading", "queue", "socket", "ssl", "select", "selectors", "os"}
IMPURE |= {"asyncio", "anyio", "nats", "subprocess", "concurrent", "multiprocessing", "signal"}
IMPURE |= {"logging", "structlog", "random", "secrets"}
"""Modules that an engine must not use: I/O, clocks, threads, random numbers and logs."""

IMPURE_OWN = {"jetsync._base.deadline", "jetsync._base.log", "jetsync._base.locks"}
IMPURE_OWN |= {"jetsync._base.stop_signal", "jetsync._base.turn"}
"""Modules that read the clock, write logs or block."""

VALUES = {"options", "values", "_base", "events", "errors"}
"""Layers that hold and convert data."""


@attrs.frozen
class Import:
    """
    One imported module, and where.
    """

    importer: str
    imported: str
    line: int
    for_types: bool
    """Whether the import is under `if TYPE_CHECKING:`."""

    def __str__(self) -> str:
        return f"{self.importer} (line {self.line}) imports {self.imported}"


def module_name(path: Path) -> str:
    """
    Return the name under which the file is imported.
    """
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {module_name(path) for path in FILES}


def imports_in(source: str, importer: str) -> list[Import]:
    """
    List the imports in the source of a module; `from a import b` is `a.b` if that is a module.
    """
    tree = ast.parse(source)
    type_blocks = [
        statement
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
    ]
    for_types = {node for block in type_blocks for node in ast.walk(block)}
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{importer}: relative import in line {node.lineno}"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else str(node.module) for name in full]
        found += [Import(importer, name, node.lineno, node in for_types) for name in names]
    return found


def top(module: str) -> str:
    """
    Return the part below `jetsync` that has a place in LAYERS.
    """
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def is_own(each: Import) -> bool:
    """
    Return whether the import is of another part of the package.
    """
    return each.imported.split(".")[0] == "jetsync" and top(each.imported) != top(each.importer)


def forbidden(imports: list[Import]) -> list[str]:
    """
    List the imports that do not point to a lower line of LAYERS.
    """
    return [
        str(each)
        for each in imports
        if is_own(each) and RANKS[top(each.imported)] <= RANKS[top(each.importer)]
    ]


@functools.cache
def all_imports() -> list[Import]:
    """
    List the imports of the package.
    """
    return [
        each for path in FILES for each in imports_in(path.read_text("utf-8"), module_name(path))
    ]


def test_every_module_has_a_place():
    """
    LAYERS names every module and folder exactly once, and nothing else.
    """
    assert sorted(LAYERS.split()) == sorted({top(module) for module in MODULES})


def test_imports_point_down():
    """
    A module imports only from its own folder and from lower layers.
    """
    assert forbidden(all_imports()) == []


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("jetsync.errors", "from jetsync.values.pub_acks import PubAck"),
        ("jetsync.errors", "import jetsync.values.pub_acks"),
        ("jetsync.errors", "if TYPE_CHECKING:\n    from jetsync.values.pub_acks import PubAck"),
        ("jetsync.errors", "def f():\n    from jetsync import values"),
        ("jetsync._io.connection", "from jetsync import Message"),
        ("jetsync.publish.one", "from jetsync.consume.fetch import MessageBatch"),
        ("jetsync.read.pages", "if typing.TYPE_CHECKING:\n    from jetsync import publish"),
    ],
)
def test_forbidden_imports_are_found(importer, source):
    """
    The rule covers imports for annotations, inside functions, of the facade and between siblings.
    """
    assert len(forbidden(imports_in(source, importer))) == 1


@pytest.mark.parametrize("room", ROOMS)
def test_files_of_a_room_have_an_order(room):
    """
    A file of the folder imports from the folder only files on lower lines or of its circle, and
    each file has a line.
    """
    ranks = {
        f"jetsync.{room}.{name}": rank
        for rank, line in enumerate(ROOMS[room].split("\n"))
        for name in line.split()
    }
    inside = [each for each in all_imports() if {each.importer, each.imported} <= ranks.keys()]

    assert ranks.keys() == {module for module in MODULES if module.startswith(f"jetsync.{room}.")}
    wrong = [each for each in inside if ranks[each.imported] <= ranks[each.importer]]
    assert [str(each) for each in wrong if not in_circle(each)] == []


def in_circle(each: Import) -> bool:
    """
    Return whether both files of an import are in one circle.
    """
    ends = {each.importer, each.imported}
    return any(ends <= {f"jetsync.{name}" for name in circle} for circle in CIRCLES)


def test_circles_are_current():
    """
    Each file of a circle imports another one of the circle and is imported by one, and the files
    are all of a line in their folder.
    """
    inside = [each for each in all_imports() if in_circle(each)]
    ends = [{each.importer for each in inside}, {each.imported for each in inside}]
    named = {f"jetsync.{name}" for circle in CIRCLES for name in circle}
    rows = {
        tuple(f"{room}.{name}" for name in line.split())
        for room, text in ROOMS.items()
        for line in text.split("\n")
    }

    assert ends == [named, named]
    assert rows >= CIRCLES.keys()


def test_tools_without_the_client():
    """
    A tool that is used without the client imports only the layers that it is allowed to.
    """
    too_high = [
        each
        for each in all_imports()
        if is_own(each)
        and top(each.importer) in WITHOUT_CLIENT
        and top(each.imported) not in WITHOUT_CLIENT[top(each.importer)]
    ]

    assert [str(each) for each in too_high] == []


def test_no_import_cycles():
    """
    Modules can be put in an order in which each one imports, at run time, only those before it.
    """
    open_imports = {
        module: {
            each.imported
            for each in all_imports()
            if each.importer == module and each.imported in MODULES - {module}
            if not each.for_types
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
    Exactly one file imports the package.
    """
    importers = {each.importer for each in all_imports() if each.imported.split(".")[0] == package}

    assert importers == {importer}


def test_engines_are_pure():
    """
    Engines import nothing that does I/O, reads the clock, makes threads, draws random numbers or
    logs.
    """
    impure = [
        each
        for each in all_imports()
        if each.importer.startswith("jetsync._proto")
        and (each.imported.split(".")[0] in IMPURE or each.imported in IMPURE_OWN)
    ]

    assert [str(each) for each in impure] == []


def test_values_do_no_io():
    """
    Modules that hold and convert data import nothing that waits.
    """
    waiting = {"threading", "queue", "socket", "select", "selectors", "asyncio", "subprocess"}
    impure = [
        each
        for each in all_imports()
        if top(each.importer) in VALUES
        and each.importer not in IMPURE_OWN
        and each.imported.split(".")[0] in waiting
    ]

    assert [str(each) for each in impure] == []


def test_no_catch_all_modules():
    """
    No file has a catch-all name such as `utils`; a name says what is inside.
    """
    drawers = {"utils", "util", "helpers", "constants", "common", "misc", "exceptions"}

    assert {module for module in MODULES if module.split(".")[-1].strip("_") in drawers} == set()
