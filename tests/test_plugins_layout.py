"""
The plugins of this repository: each is a distribution, and uses only public names.

The tests read the files and import no plugin. They also cover the example of the tutorial, because
authors copy it, and the names that the other examples use.
"""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

import jetsync

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest itself brings this one
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
FOLDERS = sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))
FOLDERS += sorted(file.parent for file in ROOT.glob("examples/*/pyproject.toml"))
PROGRAM = sorted(ROOT.glob("examples/flights/*.py"))
PLUGINS = [folder for folder in FOLDERS if folder.parent.name == "plugins"]

WITHOUT_HOOKS = {
    "jetsync-celery",
    "jetsync-django",
    "jetsync-groups",
    "jetsync-locks",
    "jetsync-queue",
    "jetsync-services",
    "jetsync-spark",
}
"""Distributions that use the client rather than extend it."""

BY_NAME = {"getattr", "hasattr", "setattr"}
MAX_LINES = 600


def short(path: Path) -> str:
    """
    Return the name of a test.
    """
    return str(path.relative_to(ROOT))


def project(folder: Path) -> dict:
    """
    Return the metadata of a distribution.
    """
    return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]


def package(folder: Path) -> Path:
    """
    Return the only package of a distribution, which is named after it.
    """
    return folder / project(folder)["name"].replace("-", "_")


def sources(folder: Path) -> list[Path]:
    """
    Return the Python files of a distribution, with its tests but without build products.
    """
    package_files = package(folder).rglob("*.py")
    return sorted([*package_files, *(folder / "tests").rglob("*.py")])


def is_private(name: str) -> bool:
    """
    Return whether a part of a dotted name is private.
    """
    return any(
        part.startswith("_") and not (part.startswith("__") and part.endswith("__"))
        for part in name.split(".")
    )


def root_of(node: ast.expr) -> ast.expr:
    """
    Return the first name of an expression of attributes and calls.
    """
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node


def private_uses(tree: ast.AST) -> list[str]:
    """
    List the uses of jetsync's private names, as `line: name`.

    A use is an import, an attribute of an imported object, or a string with either.
    """
    found = []
    ours: set[str] = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            bound = [alias.asname or alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            bound = [alias.asname or alias.name for alias in node.names]
        for name, local in zip(names, bound if names else [], strict=True):
            if name.split(".")[0] == "jetsync":
                ours.add(local)
                if is_private(name):
                    found.append(f"{node.lineno}: imports {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root = root_of(node.value)
            if isinstance(root, ast.Name) and root.id in ours:
                found.append(f"{node.lineno}: uses {ast.unparse(node)}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if text.startswith("jetsync.") and " " not in text and is_private(text):
                found.append(f"{node.lineno}: names {text}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
            found += [
                f"{node.lineno}: {ast.unparse(node)}"
                for name in node.args[1:2]
                if isinstance(name, ast.Constant) and is_private(str(name.value))
            ]
    return sorted(found)


@pytest.mark.parametrize(
    "code",
    [
        "import jetsync._io.connection",
        "from jetsync import _io",
        "from jetsync._io.connection import Connection",
        "def f():\n    from jetsync.publish import _window as w",
        "if TYPE_CHECKING:\n    from jetsync._proto import open_pulls",
        "import jetsync\njetsync._plugins",
        "import jetsync as js\njs.connect()._connection",
        "from jetsync import Message\nMessage.ack._x",
        "import importlib\nimportlib.import_module('jetsync._io.connection')",
        "def f(message):\n    return getattr(message, '_acker')",
    ],
)
def test_private_names_are_found(code):
    """
    The test below finds private names in imports, attributes and strings.
    """
    assert private_uses(ast.parse(code)) != []


@pytest.mark.parametrize(
    "code",
    [
        "import jetsync\njetsync.__version__",
        "from jetsync.errors import PluginError",
        "from jetsync_retry._policy import Policy",
        "class A:\n    def f(self):\n        return self._x",
        "'''jetsync._proto is private'''",
    ],
)
def test_public_names_are_accepted(code):
    """
    A plugin may have its own private names, and may mention others in prose.
    """
    assert private_uses(ast.parse(code)) == []


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_only_public_names_are_used(folder):
    """
    Plugins and their tests use only public names, as plugins of other authors have to.
    """
    found = [
        f"{short(path)}:{use}"
        for path in sources(folder)
        for use in private_uses(ast.parse(path.read_text("utf-8")))
    ]

    assert found == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")) + PROGRAM, ids=short)
def test_examples_use_only_public_names(path):
    """
    The examples that are no distributions use only public names, as programs of users do.
    """
    assert private_uses(ast.parse(path.read_text("utf-8"))) == []


def test_reading_and_writing_spark_are_independent():
    """
    The `read` and `write` folders of the Spark plugin share code only through `common`.
    """
    spark = ROOT / "plugins" / "jetsync-spark" / "jetsync_spark"
    pattern = re.compile(r"from jetsync_spark\.(\w+)")
    allowed = {"read": {"read", "common"}, "write": {"write", "common"}, "common": {"common"}}

    assert [
        f"{short(path)} imports {other}"
        for part, below in allowed.items()
        for path in (spark / part).rglob("*.py")
        for other in pattern.findall(path.read_text("utf-8"))
        if other not in below
    ] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_plugins_log_as_jetsync_does(folder):
    """
    Plugins use `jetsync.get_logger`, so their events go where jetsync's go.
    """
    own = re.compile(r"^\s*(import|from) (logging|structlog)\b", re.MULTILINE)

    assert [
        short(path) for path in package(folder).rglob("*.py") if own.search(path.read_text("utf-8"))
    ] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_private_members_are_not_excused(folder):
    """
    No plugin turns off the linter's check for private members.
    """
    excused = [short(path) for path in sources(folder) if "SLF001" in path.read_text("utf-8")]

    assert excused == []


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_files_of_a_distribution(folder):
    """
    A distribution has a README, a typed package that is named after it, and tests.

    Each plugin has a copy of the licence, because an sdist cannot include files from above.
    """
    missing = [
        short(path)
        for path in (
            folder / "README.md",
            package(folder) / "__init__.py",
            package(folder) / "py.typed",
        )
        if not path.is_file()
    ]

    assert missing == []
    assert list((folder / "tests").rglob("test_*.py")) != []
    if folder in PLUGINS:
        assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_all_plugins_have_the_same_metadata(folder):
    """
    Name, licence, Python versions and the dependency on jetsync are the same in all plugins.
    """
    about = project(folder)
    needs = {name.partition(">")[0].partition("[")[0] for name in about["dependencies"]}

    assert about["license"] == "Apache-2.0"
    assert about["requires-python"] == ">=3.10"
    assert "jetsync" in needs
    assert folder.parent.name == "examples" or "jetsync>=0.1,<0.2" in about["dependencies"]
    assert about["readme"] == "README.md"
    assert folder.parent.name == "examples" or about["name"] == folder.name


@pytest.mark.parametrize("folder", PLUGINS, ids=short)
def test_plugins_have_the_version_and_addresses_of_jetsync(folder):
    """
    Plugins have the version and the addresses of jetsync, and each its own documentation.
    """
    core = configparser.ConfigParser(interpolation=None)
    core.read(ROOT / "setup.cfg", "utf-8")
    lines = core["metadata"]["project_urls"].strip().splitlines()
    urls = dict(line.split(" = ") for line in lines)
    name = folder.name.removeprefix("jetsync-")
    about = project(folder)

    _, _, page = about["urls"]["Documentation"].partition(f"{urls['Source']}/blob/main/")
    assert page.startswith(f"docs/plugins/{name}")
    assert (ROOT / page).is_file()
    assert about["urls"] == urls | {"Documentation": about["urls"]["Documentation"]}
    assert about["version"] == core["metadata"]["version"] == jetsync.__version__


@pytest.mark.parametrize("folder", PLUGINS, ids=short)
def test_tests_run_without_the_repository(folder):
    """
    Only the tests of the pages, of three hosts and of logins need the helpers of jetsync's own
    tests, which no sdist has. They skip themselves without them.
    """
    allowed = {"test_pages.py", "test_cluster.py", "test_logins.py", "three_hosts.py"}
    pattern = re.compile(r"^ *(?:from|import) helpers\b", re.MULTILINE)

    assert [
        short(path)
        for path in (folder / "tests").rglob("*.py")
        if path.name not in allowed and pattern.search(path.read_text("utf-8"))
    ] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_can_be_loaded_by_name(folder):
    """
    A plugin has an entry point in the group `jetsync`, named after its distribution.
    """
    about = project(folder)
    points = about.get("entry-points", {}).get("jetsync", {})

    if about["name"] in WITHOUT_HOOKS:
        assert points == {}
    else:
        name = about["name"].removeprefix("jetsync-")
        assert set(points) == {name}
        assert points[name].split(":")[0].split(".")[0] == package(folder).name


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_readme_fits_a_screen_and_begins_with_code(folder):
    """
    After the title and one sentence, the README shows code that runs.
    """
    text = (folder / "README.md").read_text("utf-8")

    assert len(text.splitlines()) <= 60
    assert "```python" in text
    assert len(text.partition("```python")[0].splitlines()) <= 12


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_files_are_short(folder):
    """
    No file is longer than 600 lines.
    """
    long = [
        short(path)
        for path in sources(folder)
        if len(path.read_text("utf-8").splitlines()) > MAX_LINES
    ]

    assert long == []


@pytest.mark.parametrize("folder", PLUGINS, ids=short)
def test_has_a_page_in_the_documentation(folder):
    """
    Each plugin has a page or a folder of its own, and a line on the page that lists them.
    """
    name = folder.name.removeprefix("jetsync-")
    pages = ROOT / "docs" / "plugins"

    page = f"{name}/index.md" if (pages / name).is_dir() else f"{name}.md"
    assert (pages / page).is_file()
    assert f"({page})" in (pages / "index.md").read_text("utf-8")


@pytest.mark.parametrize("folder", PLUGINS, ids=short)
def test_is_tested_by_the_command_that_runs_every_gate(folder):
    """
    `tox run` or `tox run -m rest` runs the tests of the plugin, and its types are checked.
    """
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", "utf-8")
    name = folder.name.removeprefix("jetsync-")

    rest = re.search(r"^rest = (.*)$", tox["tox"]["labels"], re.MULTILINE)[1]
    assert name in f"{tox['tox']['env_list']}, {rest}".split(", ")
    assert short(package(folder)) in tox["testenv:type"]["commands"]
