"""
The choice between functions in Python and their compiled twins.

`jetsync/_speedups.c` has the twins. It is compiled when jetsync is installed, if there is a
compiler, and the wheels for the usual systems have it. Python is the reference, and runs
everywhere. The environment variable ``JETSYNC_SPEEDUPS=0`` chooses Python.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from types import ModuleType

T = TypeVar("T")

SWITCH: Final = "JETSYNC_SPEEDUPS"


def _load() -> tuple[ModuleType | None, str]:
    """Return the compiled module if it is to be used, and which variant runs and why."""
    if os.environ.get(SWITCH) == "0":
        return None, f"Python ({SWITCH}=0)"
    try:
        from jetsync import _speedups  # type: ignore[attr-defined]  # It may not be compiled.
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        return None, f"Python ({'not compiled' if missing else f'not loaded: {error}'})"
    return _speedups, "compiled"


_compiled, VARIANT = _load()

TWINS: Final[dict[str, Any]] = {}
"""The functions and classes in Python that have compiled twins, by their names."""


def with_twin(reference: T) -> T:
    """
    Return the compiled twin of *reference*, or *reference* itself if Python is chosen.

    Use it as a decorator. The twin has the same name.
    """
    name = reference.__name__  # type: ignore[attr-defined]
    TWINS[name] = reference
    found: T = getattr(_compiled, name, reference)
    return found
