"""
The choice between functions in Python and their compiled twins.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import jetsync
from helpers.builds import ROOT
from jetsync._base import speedups

COMPILED = "jetsync._speedups"
SOURCE = ROOT / "jetsync" / "_speedups.c"


def twice(number):
    """
    Stands for a function in Python that may have a twin.
    """
    return 2 * number


class Broken:
    """
    Finds the compiled module and cannot load it, as if it were made for another system.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == COMPILED:
            raise ImportError("wrong ELF class")


@pytest.fixture
def chosen(monkeypatch):
    """
    Load the module of the choice once more, beside the one that jetsync uses.
    """
    monkeypatch.delenv(speedups.SWITCH, raising=False)
    monkeypatch.delitem(sys.modules, COMPILED, raising=False)

    def load():
        spec = importlib.util.spec_from_file_location("another_choice", speedups.__file__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def compiled(monkeypatch, chosen):
    """
    A compiled module that has a twin of `twice`.
    """
    module = ModuleType(COMPILED)
    module.INTERFACE = speedups.INTERFACE
    module.twice = lambda number: number + number
    monkeypatch.setitem(sys.modules, COMPILED, module)
    return module


def test_the_compiled_module_is_used_if_it_is_there(chosen, compiled):
    """
    A function is replaced by its compiled twin, and the one in Python stays available.
    """
    choice = chosen()

    assert choice.VARIANT == "compiled"
    assert choice.advice() is None
    assert choice.with_twin(twice) is compiled.twice
    assert {"twice": twice} == choice.TWINS


def test_a_missing_twin_is_an_error(chosen, compiled):
    """
    A function without its twin in a module of the right interface is an error, not a silent choice.
    """
    del compiled.twice

    with pytest.raises(AttributeError, match="twice"):
        chosen().with_twin(twice)


@pytest.mark.skipif(not SOURCE.exists(), reason="needs the files of the repository")
def test_the_interface_has_one_number():
    """
    The compiled module and the package have the same number. Otherwise, Python would run.
    """
    assert f"#define INTERFACE {speedups.INTERFACE}\n" in SOURCE.read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [None, speedups.INTERFACE - 1, speedups.INTERFACE + 1])
def test_with_an_outdated_module_python_runs(chosen, compiled, number):
    """
    A module that was compiled from another version of the source is not used at all.
    """
    del compiled.INTERFACE
    if number is not None:
        compiled.INTERFACE = number
    choice = chosen()

    assert choice.VARIANT == "Python (outdated, compile it again)"
    assert choice.with_twin(twice) is twice
    assert "install jetsync again" in choice.advice()


def test_the_switch_chooses_python(chosen, compiled, monkeypatch):
    """
    JETSYNC_SPEEDUPS=0 leaves the compiled module unused, and the advice says how to use it.
    """
    monkeypatch.setenv("JETSYNC_SPEEDUPS", "0")
    choice = chosen()

    assert choice.VARIANT == "Python (JETSYNC_SPEEDUPS=0)"
    assert choice.with_twin(twice) is twice
    assert "unset JETSYNC_SPEEDUPS" in choice.advice()


@pytest.mark.parametrize("value", ["", "1"])
def test_other_values_of_the_switch_choose_the_compiled_module(
    chosen, compiled, monkeypatch, value
):
    """
    Only 0 turns the compiled module off.
    """
    monkeypatch.setenv("JETSYNC_SPEEDUPS", value)

    assert chosen().VARIANT == "compiled"


def test_without_the_module_python_runs(chosen, monkeypatch):
    """
    If the module was not compiled, Python runs, and the advice says what to install.
    """
    monkeypatch.setitem(sys.modules, COMPILED, None)
    choice = chosen()

    assert choice.VARIANT == "Python (not compiled)"
    assert choice.with_twin(twice) is twice
    assert "C compiler" in choice.advice()


def test_with_a_broken_module_python_runs(chosen, monkeypatch):
    """
    If the module cannot be loaded, Python runs. The variant says why, and the advice what to do.
    """
    monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    choice = chosen()

    assert choice.VARIANT == "Python (not loaded: wrong ELF class)"
    assert choice.with_twin(twice) is twice
    assert "install jetsync again" in choice.advice()
    assert "C compiler" not in choice.advice()


def test_what_has_no_module_is_imported_in_python():
    """
    The package without a compiled module is imported as a whole, and says what runs.
    """
    code = (
        f"import sys; sys.modules[{COMPILED!r}] = None; import jetsync;"
        "from jetsync._base import speedups;"
        "print(speedups.VARIANT, jetsync.Message.__mro__[1].__module__)"
    )
    environment = {**os.environ, "JETSYNC_SPEEDUPS": ""}
    output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)

    assert output == "Python (not compiled) jetsync.values.message\n"


def test_every_function_of_the_module_is_a_twin():
    """
    The compiled module has no function or class that nothing in Python stands for.
    """
    module = pytest.importorskip(COMPILED, reason="not compiled")
    public = {name for name in dir(module) if not name.startswith("_")}
    package = Path(jetsync.__file__).parent
    for path in package.rglob("*.py"):
        if "@with_twin" in path.read_text("utf-8"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            importlib.import_module(".".join(parts))

    assert public - {"INTERFACE"} == set(speedups.TWINS)
