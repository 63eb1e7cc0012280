"""
The one background thread, and the event loop that nats-py lives in.

This is the only file that imports anyio. It starts the thread, runs coroutines in it for blocking
callers,
and stops it: on :meth:`Bridge.stop`, or at the end of the interpreter.

Guarantees
- The thread is a daemon: it never keeps a program alive. A program that ends without closing its
clients
  gets up to :data:`EXIT_BUDGET` seconds at exit to send what it handed over.
- A blocking caller can be interrupted by Ctrl-C; the coroutine that it waited for is cancelled.
- After a fork the child's copy of a bridge is marked; it must not be used, and says so.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import importlib.util
import itertools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import anyio
import anyio.from_thread

from jetsync._deadline import Deadline
from jetsync._log import get_logger
from jetsync.errors import ConfigurationError, ForkedProcessError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

EXIT_BUDGET: Final = 2.0
"""Seconds that all forgotten clients together get to close when the interpreter exits."""

_log = get_logger("bridge")
_numbers = itertools.count(1)
_live: weakref.WeakSet[Bridge] = weakref.WeakSet()


class Bridge:
    """A daemon thread with an event loop, seen from blocking code."""

    def __init__(self, loop: Literal["auto", "asyncio", "uvloop"]) -> None:
        self._use_uvloop = _choose_uvloop(loop)
        self._portal: anyio.from_thread.BlockingPortal | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._at_exit: Callable[[float], None] = lambda _: None
        self._at_fork: Callable[[], None] = lambda: None
        self.forked = False
        """Whether this object was copied into a child process, where its thread does not exist."""
        self._thread = threading.Thread(
            target=self._run, name=f"jetsync-io-{next(_numbers)}", daemon=True
        )

    def __repr__(self) -> str:
        state = "forked" if self.forked else "running" if self._thread.is_alive() else "stopped"
        return f"<Bridge {self._thread.name} {state} uvloop={self._use_uvloop}>"

    def start(self, at_exit: Callable[[float], None], at_fork: Callable[[], None]) -> None:
        """
        Start the thread and wait until its loop runs.

        *at_exit* is called with a number of seconds if the interpreter ends before :meth:`stop`,
        *at_fork* in a child that is forked before; it must not wait for anything.
        """
        self._at_exit = at_exit
        self._at_fork = at_fork
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        _live.add(self)

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, deadline: Deadline) -> T:
        """
        Run a coroutine function in the loop and return what it returns.

        Raises WaitTimeoutError once *deadline* has passed; the coroutine is cancelled then, as it
        is when the waiting thread is interrupted.
        """
        portal = self._portal
        if self.forked:
            raise ForkedProcessError
        if portal is None:
            raise RuntimeError("the background thread is not running")
        future = portal.start_task_soon(function, *args)
        try:
            return future.result(deadline.remaining())
        except concurrent.futures.TimeoutError:
            if future.done():
                # Not ours: the coroutine itself ended with a time-out, or answered just now.
                return future.result()
            future.cancel()
            raise WaitTimeoutError("the background thread's answer", deadline.total) from None
        except BaseException:
            future.cancel()
            raise

    def stop(self, timeout: float) -> None:
        """Stop the loop and wait up to *timeout* seconds for the thread to end; safe to repeat."""
        _live.discard(self)
        portal, self._portal = self._portal, None
        if portal is None or self.forked:
            return
        with contextlib.suppress(RuntimeError):  # The loop has ended by itself.
            portal.start_task_soon(portal.stop, True)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def close_at_exit(self, timeout: float) -> None:
        """Let the owner close what it has here, as the interpreter ends."""
        self._at_exit(timeout)

    def leave_to_parent(self) -> None:
        """Learn that this process is a forked child, where the thread does not exist."""
        self.forked = True
        self._at_fork()

    def _run(self) -> None:
        try:
            anyio.run(
                self._main, backend="asyncio", backend_options={"use_uvloop": self._use_uvloop}
            )
        except BaseException as error:  # noqa: BLE001 - a thread has nobody to raise to.
            if self._started.is_set():
                _log.error("bridge.failed", exc_info=error)
            self._failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_on_loop_error)
        async with anyio.from_thread.BlockingPortal() as portal:
            self._portal = portal
            self._started.set()
            await portal.sleep_until_stopped()


def _choose_uvloop(loop: Literal["auto", "asyncio", "uvloop"]) -> bool:
    if loop == "asyncio":
        return False
    present = importlib.util.find_spec("uvloop") is not None
    if loop == "uvloop" and not present:
        raise ConfigurationError("loop='uvloop' needs the extra: pip install 'jetsync[uvloop]'")
    return present


def _on_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what the loop would print: a library does not write to stderr."""
    _log.error(
        "bridge.loop_error", message=context.get("message"), exc_info=context.get("exception")
    )


def _close_at_exit() -> None:
    deadline = Deadline.after(EXIT_BUDGET)
    for bridge in list(_live):
        if not bridge.forked:
            with contextlib.suppress(Exception):
                bridge.close_at_exit(deadline.remaining())


def _mark_forked() -> None:
    # Runs in the child before anything else does. No lock is taken: their owners may not exist
    # here.
    for bridge in list(_live):
        bridge.leave_to_parent()
    _live.clear()


atexit.register(_close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
