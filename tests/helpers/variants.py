"""
The two variants of the functions that have compiled twins.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

# The modules whose functions have compiled twins. Importing them fills `TWINS`.
for _name in (
    "_io.shortcut", "_proto.page_runs", "consume.target", "publish.stage", "publish.flight",
    "values.stored",
):  # fmt: skip
    importlib.import_module(f"jetsync.{_name}")

from jetsync._base import speedups  # noqa: E402 - after the modules that fill it

PYTHON: dict[str, Any] = {
    name: twin for name, twin in speedups.TWINS.items() if not name.endswith("Storage")
}
"""The functions in Python by their names, and the classes that are no base classes."""

COMPILED: dict[str, Any] = {
    name: getattr(speedups._compiled, name) for name in PYTHON if speedups._compiled is not None
}
"""Their compiled twins; empty if Python runs."""

VARIANTS = {"python": PYTHON, "compiled": COMPILED}

NOT_COMPILED = f"no compiled variant: {speedups.VARIANT}"


def use_variant(name: str, patch: pytest.MonkeyPatch) -> None:
    """
    Let all modules of jetsync call the functions of a variant; skip the test if it is not there.
    """
    functions = VARIANTS[name]
    if not functions:
        pytest.skip(NOT_COMPILED)
    modules = [module for key, module in sys.modules.items() if key.startswith("jetsync.")]
    for module in modules:
        for function, chosen in functions.items():
            if vars(module).get(function) in {PYTHON[function], COMPILED.get(function)} - {None}:
                patch.setattr(module, function, chosen)
