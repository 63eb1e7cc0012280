"""
Handles that the application drops without closing them.

Such a handle emits a ResourceWarning that says where it was created, and releases what it holds.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["when_dropped"]


def when_dropped(
    handle: object, what: str, release: Callable[..., object], *arguments: Any
) -> weakref.finalize[..., Any]:
    """
    Release what *handle* holds and warn if it is garbage-collected before it was closed.

    The garbage collector runs *release* in any thread, while that thread may hold any lock, and
    Python loses a Ctrl-C that strikes in it. So it must neither wait nor take a lock. It hands the
    work to another thread, for example with ``Lane.later``, ``Lane.unsubscribe`` or
    ``Bridge.spawn``. Nothing happens in a forked child or when the interpreter exits.

    Args:
        handle: The handle. The threads that work for it must not refer to it.
        what: The handle in the warning, such as ``subscription to 'a'``.
        release: Called once.
        *arguments: Of that call. They must not refer to *handle*.

    Returns:
        The finalizer. Call its ``detach`` when the handle is closed.
    """
    finalizer = weakref.finalize(
        handle, _release, os.getpid(), what, _creator(), release, arguments
    )
    finalizer.atexit = False
    return finalizer


def _creator() -> tuple[str, int]:
    """Return the file and the line of the application that creates a handle."""
    frame = sys._getframe(2)  # noqa: SLF001 - `inspect` reads source files too.
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "jetsync"


def _release(
    process: int,
    what: str,
    creator: tuple[str, int],
    release: Callable[..., object],
    arguments: tuple[Any, ...],
) -> None:
    if process != os.getpid() or sys.is_finalizing():
        return
    try:
        release(*arguments)
    finally:
        file, line = creator
        text = f"{what} was dropped without being closed; it was created at {file}:{line}"
        warnings.warn_explicit(text, ResourceWarning, file, line)
