"""
Make reprs work at any moment.
"""

from __future__ import annotations

import functools
from typing import TypeVar

C = TypeVar("C", bound=type)


def tolerant_repr(cls: C) -> C:
    """
    Make the repr of a class show its name alone if it cannot show more; a decorator.

    Tracebacks with local variables show objects whose constructor has just raised. They call
    ``repr`` on all variables, and an error in one of them would hide the traceback.
    """
    shown = cls.__dict__.get("__repr__")
    if shown is None:
        return cls

    @functools.wraps(shown)
    def tolerant(self: object) -> str:
        try:
            return str(shown(self))
        except Exception:  # noqa: BLE001 - whatever the fields that are missing lead to.
            return f"<{type(self).__name__}, incomplete>"

    cls.__repr__ = tolerant  # type: ignore[assignment]
    return cls
