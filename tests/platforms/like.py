"""
What ``sitecustomize`` of the folders beside this file shares: hiding parts of Python.

A folder is an entry of PYTHONPATH, so that the scripts that tests start are changed, too.
"""

from __future__ import annotations

import builtins
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def hide_names(module: types.ModuleType, names: Iterable[str]) -> None:
    """
    Delete those of the names that the module has.
    """
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def hide_modules(*names: str) -> None:
    """
    Make each import of the modules raise ImportError.
    """
    for name in names:
        sys.modules[name] = None  # type: ignore[assignment]


def tell_jetsync(platform: str) -> None:
    """
    Let the modules of jetsync and its plugins, and no others, find *platform* in ``sys.platform``.

    The standard library depends on the real value.
    """
    fake, import_module = _Sys(platform), builtins.__import__

    def import_(
        name: str, importer: Mapping[str, Any] | None = None, *rest: Any, **options: Any
    ) -> types.ModuleType:
        if name == "sys" and importer and str(importer.get("__name__")).startswith("jetsync"):
            return fake
        return import_module(name, importer, *rest, **options)

    builtins.__import__ = import_  # type: ignore[assignment]


class _Sys(types.ModuleType):
    """
    The module ``sys`` with another platform.
    """

    def __init__(self, platform: str) -> None:
        super().__init__("sys")
        self.platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)
