"""
Handles that the application drops without closing them.

Such a handle emits a ResourceWarning that says where it was created, and releases what it holds.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final

from jetsync._base.locks import Latch

if TYPE_CHECKING:
    from collections.abc import Callable

# Whether each object belongs to the thread that created it, see `disown`.
OWNED_BY_THREADS: Final = "free-threading" in sys.version

# Seconds to wait for the other thread: it may wait for a call that this signal handler interrupted.
DISOWN_WAIT: Final = 1.0


def when_dropped(
    handle: object,
    what: str,
    release: Callable[..., object],
    *arguments: Any,
    creator: tuple[str, int] | None = None,
) -> weakref.finalize[..., Any]:
    """
    Release what *handle* holds and warn if it is garbage-collected before it was closed.

    The garbage collector runs *release* in any thread, while that thread may hold any lock, and
    Python loses a Ctrl-C that strikes in it. So it must neither wait nor take a lock. It hands the
    work to another thread, for example with ``Lane.later``, ``Subscriptions.unsubscribe`` or
    ``Bridge.spawn``. Nothing happens in a forked child or when the interpreter exits.

    Args:
        handle: The handle. The threads that work for it must not refer to it.
        what: The handle in the warning, such as ``subscription to 'a'``.
        release: Called once. There is no warning if it returns False, because there was nothing to
            release. An example is a subscription whose client is closed.
        *arguments: The arguments of *release*. They must not refer to *handle*.
        creator: What :func:`find_creator` returned, None to call it here.

    Returns:
        The finalizer. Call its ``detach`` when the handle is closed.
    """
    creator = creator or find_creator()
    finalizer = weakref.finalize(handle, _release, os.getpid(), what, creator, release, arguments)
    finalizer.atexit = False
    return finalizer


def find_creator() -> tuple[str, int]:
    """Return the file and the line of the application that is calling jetsync."""
    frame = sys._getframe(1)  # noqa: SLF001 - `inspect` reads source files too.
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "jetsync":
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _release(
    process: int,
    what: str,
    creator: tuple[str, int],
    release: Callable[..., object],
    arguments: tuple[Any, ...],
) -> None:
    if process != os.getpid() or sys.is_finalizing():
        return
    if release(*arguments) is not False:
        file, line = creator
        text = f"{what} was dropped without being closed; it was created at {file}:{line}"
        warnings.warn_explicit(text, ResourceWarning, file, line)


def disown(later: Callable[..., object], *handles: object) -> None:
    """
    Let *handles* end as soon as their last references are dropped, in whichever thread.

    Without the GIL, an object belongs to the thread that created it. Other threads count their
    references apart. If one of them drops the last reference, it leaves the rest to the owner. If
    the owner is blocked, the object lives on, and with it its subscription or pull. CPython ends
    the ownership once another thread has dropped a reference that the owner has counted. So this
    function has another thread drop one. The caller then ends the ownership as it goes on.

    Args:
        later: Calls a function in another thread after some seconds; ``Lane.later``.
        *handles: Objects that the calling thread has just created: the handle, and each object
            between it and the one that releases something when it is dropped.
    """
    if OWNED_BY_THREADS:
        surplus, over = [*handles], Latch()
        later(0.0, _drop, surplus, over)
        over.wait(DISOWN_WAIT)


def _drop(surplus: list[object], over: Latch) -> None:
    surplus.clear()
    over.set()
