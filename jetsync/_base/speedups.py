"""
The choice between functions in Python and their compiled twins.

`jetsync/_speedups.c` has the twins. It is compiled when jetsync is installed, if there is a
compiler, and the wheels for the usual systems have it. Python is the reference, and runs
everywhere. The environment variable ``JETSYNC_SPEEDUPS=0`` chooses Python.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from types import ModuleType

T = TypeVar("T")

SWITCH: Final = "JETSYNC_SPEEDUPS"

INTERFACE: Final = 11
"""The number of the interface, as in `jetsync/_speedups.c`, which says when to raise it."""

_INSTALL: Final = (
    "for the compiled core, install a C compiler and the headers of Python, and then jetsync"
)
_AGAIN: Final = "the compiled core is there but cannot be used: install jetsync again"


def _load() -> tuple[ModuleType | None, str, str | None]:
    """Return the compiled module if it is to be used, which variant runs and why, and advice."""
    if os.environ.get(SWITCH) == "0":
        return None, f"Python ({SWITCH}=0)", f"unset {SWITCH} to use the compiled core"
    try:
        module = importlib.import_module("jetsync._speedups")
    except ModuleNotFoundError:
        return None, "Python (not compiled)", _INSTALL
    except ImportError as error:
        return None, f"Python (not loaded: {error})", _AGAIN
    # A checkout keeps the module that was compiled before the source changed.
    if getattr(module, "INTERFACE", None) != INTERFACE:
        return None, "Python (outdated, compile it again)", _AGAIN
    return module, "compiled", None


_compiled, VARIANT, _advice = _load()


def advice() -> str | None:
    """
    Return how to get the compiled variant, or None if it runs.
    """
    return _advice


TWINS: Final[dict[str, Any]] = {}
"""The functions and classes in Python that have compiled twins, by their names."""


def with_twin(reference: T) -> T:
    """
    Return the compiled twin of *reference*, or *reference* itself if Python is chosen.

    Use it as a decorator. The twin has the same name.
    """
    name = reference.__name__  # type: ignore[attr-defined]
    TWINS[name] = reference
    found: T = reference if _compiled is None else getattr(_compiled, name)
    return found
