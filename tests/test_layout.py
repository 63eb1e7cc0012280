"""
Each module of the package has a test file with its name, or a named file that covers it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "jetsync"

COVERED_BY = {
    "test_errors.py": "errors/*",
    "test_hooks_contract.py": "hookspecs",
    "live/test_usage.py": "_base/pickling",
    "values/test_stream_config.py": "values/stream_info values/server_versions",
    "values/test_consumer_config.py": "values/consumer_info",
    "test_hostile_json.py": "values/account values/server_info",
    "test_options.py": "values/server_urls values/saved_context",
    "io/test_reader.py": "_io/gate",
    "io/test_connection.py": "_io/connection_state _io/handles _io/probe _io/session",
    "io/test_subscriptions.py": "_io/listener",
    "api/test_context.py": "_api/account",
    "io/test_nats_seam.py": "_io/transport",
    "live/io/test_server_pool.py": "_io/next_server",
    "hooks/test_manager.py": "_hooks/check _hooks/errors _hooks/trace",
    "test_events.py": "_hooks/dispatcher",
    "test_exports.py": "_facade",
    "proto/test_direct.py": "_proto/direct_last",
    "live/api/test_streams.py": "_api/replica_or_leader jetstream stream",
    "live/api/test_consumers.py": "consume/consumer",
    "live/consume/test_acks.py": "consume/unwanted_acks",
    "live/consume/test_consumption.py": "consume/core consume/target",
    "live/consume/test_push.py": "consume/feed",
    "live/consume/test_ordered.py": "consume/ordered_consumption consume/ordered_deletion",
    "live/test_client.py": "consume/subscription",
    "live/test_system.py": "values/system_info",
    "live/kv/test_handle.py": "kv/bucket kv/entry",
    "live/objects/test_handle.py": "objects/bucket objects/garbage",
    "live/read/test_pages.py": "read/last",
    "publish/test_publisher.py": "publish/flight publish/future",
    "proto/test_open_pulls.py": "_proto/pins _proto/pull_request",
    "proto/test_consume.py": "_proto/buffered _proto/consumer_probe _proto/pulling",
    "proto/test_frames.py": "values/frame",
    "api/test_known_streams.py": "publish/batch_support",
    "live/publish/test_atomic.py": "publish/atomic_attempt publish/errors",
    "live/publish/test_ttl.py": "publish/ttl_floor",
    "live/publish/fast/test_fast.py": "publish/fast_link publish/fast_stream",
    "cli/test_app.py": "cli/* __main__",
    "devserver/test_server.py": "devserver/*",
    "testing/test_plugin.py": "testing/*",
}
"""
The file that tests a module which has no file with its name; ``*`` is each such module of a folder.
"""


def own_files(module: Path) -> list[Path]:
    """
    Return the test files with the name of a module.
    """
    parts = [part.lstrip("_") for part in module.with_suffix("").parts]
    *folder, name = parts
    places = [TESTS.joinpath(*start, *folder) for start in ((), ("live",))]
    paths = [place / inner / f"test_{name}.py" for place in places for inner in ("", name)]
    return [path for path in paths if path.is_file()]


MODULES = [
    path.relative_to(PACKAGE)
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py"
]
WITHOUT = {str(module.with_suffix("")) for module in MODULES if not own_files(module)}


@pytest.mark.parametrize("module", sorted(WITHOUT))
def test_each_module_has_a_test_file(module):
    """
    A module without a test file of its name is in the table.
    """
    covered = {name for names in COVERED_BY.values() for name in names.split()}

    assert covered & {module, f"{module.rpartition('/')[0]}/*"}


@pytest.mark.parametrize("file", sorted(COVERED_BY))
def test_the_table_is_current(file):
    """
    A row of the table names a test file that exists, and modules that need it.
    """
    folders = {f"{module.rpartition('/')[0]}/*" for module in WITHOUT}

    assert (TESTS / file).is_file()
    assert set(COVERED_BY[file].split()) <= WITHOUT | folders


def test_contributing_describes_each_folder():
    """
    CONTRIBUTING.md says what each folder of the package holds.
    """
    lines = (TESTS.parent / "CONTRIBUTING.md").read_text("utf-8").splitlines()
    described = [line[3:].partition("/`: ")[0] for line in lines if "/`: " in line]

    assert sorted(described) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def test_design_describes_each_file_of_the_connection():
    """
    docs/design.md names each file of `_io/`: in a walk, or in the table of the others.
    """
    text = (TESTS.parent / "docs" / "design.md").read_text("utf-8")
    files = {path.name for path in PACKAGE.glob("_io/*.py") if path.name != "__init__.py"}

    assert files - set(re.findall(r"`(?:_io/)?(\w+\.py)`", text)) == set()


def test_design_names_files_that_exist():
    """
    Each file that docs/design.md names exists, and has the function that it names with the file.
    """
    root = TESTS.parent
    text = (root / "docs" / "design.md").read_text("utf-8")
    named = {(path, "") for path in re.findall(r"`([\w/]+\.py)`", text)}
    named |= {(path, name) for name, path in re.findall(r"`(\w+)` in `([\w/]+\.py)`", text)}

    def exists(path, name):
        files = [base / path for base in (root, PACKAGE, PACKAGE / "_io")]
        sources = [file.read_text("utf-8") for file in files if file.is_file()]
        return any(
            re.search(rf"(def|class) {name}\b|^{name}\b", source, re.MULTILINE)
            for source in sources
        )

    assert [each for each in sorted(named) if not exists(*each)] == []
