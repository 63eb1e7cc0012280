"""
The public names: each one is in `jetsync`, and is documented.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import GenericAlias

import pytest

import jetsync

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"

BESIDE_THE_FACADE = {
    "cli": "a program",
    "devserver": "used without the client",
    "monitoring": "imported by those who monitor",
    "testing": "used without the client",
    "hookspecs": "hooks are found by name; only `hookimpl` is public",
    "__main__": "a program",
}
"""Public modules whose names are imported from the module itself."""


def public_modules() -> list[str]:
    """
    List the modules with public names, which are those with `__all__`, without `jetsync.`.
    """
    names = [module.name for module in pkgutil.walk_packages(jetsync.__path__, "jetsync.")]
    return [
        name.removeprefix("jetsync.")
        for name in names
        if name.split(".")[1] not in BESIDE_THE_FACADE
        and not name.startswith("jetsync._")
        and hasattr(importlib.import_module(name), "__all__")
    ]


MODULES = public_modules()
EXPORTS = sorted(set(jetsync.__all__) - {"__version__"})
CLASSES = [
    name
    for name in EXPORTS
    # To Python 3.10 an alias such as `tuple[bytes, bytes]` is a class, too.
    if inspect.isclass(value := getattr(jetsync, name)) and not isinstance(value, GenericAlias)
]
CALLABLES = [name for name in EXPORTS if inspect.isroutine(getattr(jetsync, name))]


def sort_key(name: str) -> tuple[int, str]:
    """
    Order names as ruff does: constants, classes, then the others.
    """
    if name.isupper():
        return 0, name
    return (1 if name[:1].isupper() else 2), name


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_on_the_facade(module):
    """
    Every name in a public module's `__all__` is the same object on the facade.
    """
    names = importlib.import_module(f"jetsync.{module}").__all__

    assert set(names) - set(jetsync.__all__) == set()
    for name in names:
        assert getattr(importlib.import_module(f"jetsync.{module}"), name) is getattr(jetsync, name)


@pytest.mark.parametrize("module", MODULES)
def test_all_of_a_module_is_sorted(module):
    """
    A module lists its public names in order, once each.
    """
    names = list(importlib.import_module(f"jetsync.{module}").__all__)

    assert sorted(set(names), key=sort_key) == names


def test_facade_lists_each_name_once():
    """
    `__all__` is sorted, has no name twice, and each name exists.
    """
    assert sorted(set(jetsync.__all__)) == jetsync.__all__
    assert [name for name in jetsync.__all__ if not hasattr(jetsync, name)] == []


def test_facade_has_nothing_else():
    """
    The facade's names without an underscore are in `__all__`, except modules.
    """
    shown = {
        name
        for name, value in vars(jetsync).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }

    assert shown - set(jetsync.__all__) == {"TYPE_CHECKING", "annotations"}
    assert [name for name in EXPORTS if (ROOT / "jetsync" / name).with_suffix(".py").exists()] == []


@pytest.mark.parametrize("name", [*CLASSES, *CALLABLES])
def test_exported_objects_are_of_jetsync(name):
    """
    Tracebacks, reprs and pickles name the path that users import from.
    """
    value = getattr(jetsync, name)

    assert value.__module__ == "jetsync"
    assert pickle.loads(pickle.dumps(value)) is value


@pytest.mark.parametrize("name", [*CLASSES, *CALLABLES])
def test_exported_objects_have_docstrings(name):
    """
    Every public class and function has a docstring.
    """
    assert (getattr(jetsync, name).__doc__ or "").strip() != ""


@pytest.mark.parametrize("name", CLASSES)
def test_public_methods_have_docstrings(name):
    """
    Public methods and properties have docstrings, including inherited ones of jetsync.
    """
    undocumented = [
        f"{owner.__name__}.{attribute}"
        for owner in getattr(jetsync, name).__mro__
        if owner.__module__.split(".")[0] == "jetsync"
        for attribute, value in vars(owner).items()
        if not attribute.startswith("_")
        and (inspect.isroutine(value) or isinstance(value, (property, classmethod, staticmethod)))
        and not (value.__doc__ or "").strip()
    ]

    assert undocumented == []


def test_the_reference_has_each_public_name_once():
    """
    The pages of the reference name everything that `jetsync` exports, and each name once.

    `docs/check_reference.py` compares the members, after the documentation is built.
    """
    pages = "\n".join(page.read_text("utf-8") for page in REFERENCE.glob("*.md"))
    # The first table of a block has the names, and the others the members of one class each.
    tables = re.findall(r"^<!-- names of jetsync -->\n\n(.*?)\n\n", pages, re.MULTILINE | re.DOTALL)

    names = [name for table in tables for name in re.findall(r"^\| `(\w+)`", table, re.MULTILINE)]

    assert set(EXPORTS) - set(names) == set()
    assert set(names) - set(EXPORTS) == set()
    assert len(names) == len(set(names))


def run_python(program: str) -> set[str]:
    """
    Run a program in a fresh interpreter and return the words that it prints.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_what_jetsync_imports():
    """
    The first use of a name imports the client, so that `connect` does not have to, but no tool and
    nothing that only an extra, an option or a plugin needs.
    """
    client = {"jetsync.client", "jetsync._io", "nats", "anyio", "asyncio"}
    tools = {"click", "cryptography", "jetsync.cli", "jetsync.testing", "matplotlib", "pytest"}
    extras = {"aiohttp", "multidict", "nats_server", "nkeys", "pandas", "pyarrow", "uvloop"}
    others = {"certifi", "jetsync.devserver", "rich", "structlog"}
    modules = run_python("import sys, jetsync; jetsync.connect; print(*sys.modules)")

    assert client <= modules
    assert modules & (tools | extras | others) == set()


@pytest.mark.parametrize(
    "program",
    [
        "import jetsync",
        "import jetsync; jetsync.__version__; hasattr(jetsync, '__path__')",
        "import jetsync.devserver",
        "import jetsync; jetsync.errors.ApiError",
        "from jetsync import errors",
        """
            import click.testing
            from jetsync.cli._app import jetsync
            click.testing.CliRunner().invoke(jetsync, ["--version"], catch_exceptions=False)
        """,
    ],
)
def test_what_needs_no_client(program):
    """
    The import of the package or of a tool, and `jetsync --version`, import no client.
    """
    modules = run_python(textwrap.dedent(program) + "\nimport sys; print(*sys.modules)")

    assert modules & {"asyncio", "jetsync.client", "jetsync._facade", "nats"} == set()


def test_a_name_that_was_replaced_before():
    """
    A name that a program has set stays when the others are imported.
    """
    program = "import jetsync; jetsync.connect = 5; jetsync.Client; print(jetsync.connect)"

    assert run_python(program) == {"5"}


def test_a_module_whose_package_is_missing():
    """
    The error of a module that needs an extra names the package that is not installed.
    """
    program = """
        import sys
        import jetsync

        sys.modules["fsspec"] = sys.modules["fsspec.callbacks"] = None
        try:
            jetsync.filesystem
        except ModuleNotFoundError as error:
            print(error.name)
    """

    assert run_python(program) == {"fsspec.callbacks"}


def test_first_names_in_many_threads():
    """
    Threads that use the first names at the same time get them.
    """
    program = """
        import sys, threading, jetsync
        sys.setswitchinterval(1e-6)
        barrier, done = threading.Barrier(4), []
        def use(name):
            barrier.wait()
            getattr(jetsync, name)
            done.append(name)
        names = ["connect", "Headers", "ApiError", "__all__"]
        threads = [threading.Thread(target=use, args=[name]) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(*done)
    """

    assert run_python(program) == {"connect", "Headers", "ApiError", "__all__"}


def test_dir_lists_the_public_names():
    """
    `dir` lists the public names, and a wrong name is an AttributeError.
    """
    printed = run_python("import jetsync; print(*dir(jetsync), hasattr(jetsync, 'conect'))")

    assert printed == {*jetsync.__all__, "False"}
    assert not [name for name in ("", "a.b", "errors.x", "__path") if hasattr(jetsync, name)]


def test_public_classes_have_no_private_bases():
    """
    The reference shows the members of a class itself, so each public class is complete.
    """
    classes = [
        value for name in jetsync.__all__ if isinstance(value := getattr(jetsync, name), type)
    ]
    private = {
        cls.__name__: base.__name__
        for cls in classes
        for base in cls.__mro__
        if base.__module__.startswith("jetsync") and base.__name__.startswith("_")
    }
    assert not private
