"""
The background thread of a client, and the event loop that nats-py lives in.

This is the only file that imports anyio. It starts the thread, runs coroutines in it for blocking
callers, and stops it on :meth:`Bridge.stop` or at the end of the interpreter.

A blocking caller waits on a lock of its own, not on the futures of anyio's portal. Those contain
locks that are written in Python. If Ctrl-C interrupted one, it would stay locked, and the loop
would wait for it forever.

Guarantees

- The thread is a daemon and never keeps a program alive. At exit, a program that has not closed its
  clients gets up to :data:`EXIT_BUDGET` seconds to send what is outstanding.
- Ctrl-C interrupts a blocking caller, and the coroutine that it waited for is cancelled.
- After a fork, the child's copy of a bridge is marked. It raises ForkedProcessError if it is used.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import contextlib
import importlib.util
import itertools
import os
import threading
import types
import weakref
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import anyio
import anyio.from_thread

from jetsync import errors
from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch, Signal, keep_interrupts
from jetsync._base.log import get_logger
from jetsync._base.reprs import tolerant_repr
from jetsync._base.turn import waiting
from jetsync._io.resolve import look_up

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

# Seconds that all clients together have to close when the interpreter exits.
EXIT_BUDGET: Final = 2.0

_log = get_logger("jetsync.bridge")
_numbers = itertools.count(1)
_live: weakref.WeakSet[Bridge] = weakref.WeakSet()


@tolerant_repr
class Bridge:
    """
    A daemon thread with an event loop, as blocking code sees it.

    Threads: any thread; the methods below "The loop thread", only that thread.
    Locks: none; ``_calls`` changes by single calls into C, and the rest in the loop thread.

    Args:
        loop: The option ``loop``.
    """

    def __init__(self, loop: Literal["auto", "asyncio", "uvloop"]) -> None:
        self._use_uvloop = choose_uvloop(loop)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._portal: anyio.from_thread.BlockingPortal | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._stopping = False
        self._started = Signal()
        self._failure: BaseException | None = None
        # The calls that have not ended.
        self._calls: set[_Call] = set()
        # Whether this is the copy in a forked child, where the thread does not exist.
        self.forked = False
        self._thread = threading.Thread(
            target=self._run, name=f"jetsync-io-{next(_numbers)}", daemon=True
        )

    def __repr__(self) -> str:
        state = "forked" if self.forked else "running" if self._thread.is_alive() else "stopped"
        return f"<Bridge {self._thread.name} {state} uvloop={self._use_uvloop}>"

    def start(
        self,
        at_exit: Callable[[float], None],
        at_fork: Callable[[], None],
        deadline: Deadline,
    ) -> None:
        """
        Start the thread and wait until its loop runs.

        If this raises, the caller has to call :meth:`stop`. The thread then ends once it has
        started.

        Args:
            at_exit: Called with a number of seconds if the interpreter ends before :meth:`stop`.
            at_fork: Called in a child that is forked before :meth:`stop`. It must not wait.
            deadline: How long to wait.

        Raises:
            WaitTimeoutError: The deadline has passed.
        """
        self._at_exit = at_exit
        self._at_fork = at_fork
        with keep_interrupts():
            self._thread.start()
        if not self._started.wait(deadline.remaining()):
            raise errors.WaitTimeoutError("the background thread's start", deadline.total)
        if self._failure is not None:
            raise self._failure
        _live.add(self)

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, deadline: Deadline) -> T:
        """
        Run a coroutine function in the loop and return its result.

        The coroutine is cancelled if the deadline passes or Ctrl-C interrupts the caller.

        Raises:
            WaitTimeoutError: The deadline has passed.
            ConnectionClosedError: The loop does not run, or ended first.
        """
        if self.forked:
            raise errors.ForkedProcessError
        call = _Call(function, args)
        try:
            waiting(self._run_call, call, deadline)
            if not call.over.is_set():
                raise errors.WaitTimeoutError("the background thread's answer", deadline.total)
        finally:
            if not call.over.is_set():
                # Also after Ctrl-C, the coroutine must not run on without a caller.
                self._call_soon(self._cancel, call)
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    def spawn(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Run a coroutine function in the loop, and log its error; any thread, never waits."""
        if not self.forked:
            self._begin_soon(_Call(_logged, (function, *args)))

    def stop(self, timeout: float) -> None:
        """
        Stop the loop and wait up to *timeout* seconds for the thread to end.

        Can be called repeatedly.
        """
        _live.discard(self)
        if self.forked:
            return
        self._stopping = True
        self._call_soon(self._stop_portal)
        thread = self._thread
        if timeout and thread is not threading.current_thread() and thread.is_alive():
            with keep_interrupts():
                thread.join(timeout)

    def _run_call(self, call: _Call, deadline: Deadline) -> None:
        """Begin *call*, and wait until it has ended."""
        self._begin_soon(call)
        call.over.wait(deadline.remaining())

    def _begin_soon(self, call: _Call) -> None:
        self._calls.add(call)
        self._call_soon(self._begin, call)

    def _call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Have the loop thread call *function*; if there is no loop, end all calls."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop was closed at this moment.
                loop.call_soon_threadsafe(function, *args, context=Context())
                return
        self._end_calls()

    def _end_calls(self) -> None:
        """End the calls that no loop will ever run; any thread."""
        for call in [call for call in list(self._calls) if call.task is None]:
            self._calls.discard(call)
            call.error = call.error or errors.ConnectionClosedError()
            call.over.set()

    # The loop thread.

    def _begin(self, call: _Call) -> None:
        if self._loop is None:
            self._end_calls()
            return
        call.task = asyncio.get_running_loop().create_task(self._finish(call))

    async def _finish(self, call: _Call) -> None:
        try:
            call.result = await call.function(*call.arguments)
        except asyncio.CancelledError:
            call.error = errors.ConnectionClosedError()
            raise
        except Exception as error:  # noqa: BLE001 - raised where it is waited for.
            call.error = error
        finally:
            self._calls.discard(call)
            # The task is dropped in this thread. In the caller's, Ctrl-C could strike while asyncio
            # cleans the task up, and would be lost.
            call.task = None
            call.over.set()

    def _cancel(self, call: _Call) -> None:
        if call.task is None:
            # It has ended, or Ctrl-C came before the loop knew of it.
            self._calls.discard(call)
        else:
            # Not at once: a coroutine that has not begun would be cancelled without its cleanup.
            asyncio.get_running_loop().call_soon(call.task.cancel)

    def _run(self) -> None:
        try:
            # Not the default loop: on Windows, that one cannot watch sockets (`add_reader`).
            factory = _new_uvloop if self._use_uvloop else asyncio.SelectorEventLoop
            options = {"loop_factory": factory}
            # The collector may call the application's finalizers in this thread, and a call that
            # waited here would wait for itself.
            waiting(lambda: anyio.run(self._main, backend="asyncio", backend_options=options))
        except BaseException as error:  # noqa: BLE001 - a thread has no caller to raise to.
            if self._portal is not None:
                _log.error("bridge.failed", exc_info=error)
            self._failure = error
        finally:
            self._loop = None
            for call in list(self._calls):
                # A task that was cancelled before its first step never ran `_finish`.
                call.task = None
            self._end_calls()
            self._started.set()

    def _stop_portal(self) -> None:
        if self._portal is not None and self._stop_task is None:
            self._stop_task = asyncio.get_running_loop().create_task(self._portal.stop(True))

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_on_loop_error)
        async with anyio.from_thread.BlockingPortal() as self._portal:
            self._loop = loop
            self._started.set()
            if not self._stopping:
                await self._portal.sleep_until_stopped()
        self._loop = None
        # Before Python 3.12, asyncio.wait_for may swallow a cancellation, and a call may
        # then start tasks. So each call is awaited before the loop cancels the tasks that are left.
        tasks = [call.task for call in list(self._calls) if call.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # The end of the interpreter, and a fork.

    def close_at_exit(self, deadline: Deadline) -> None:
        """Let the owner send what is outstanding and end the thread."""
        self._at_exit(deadline.remaining())
        # If the client was dropped, the loop is already closing it.
        self._thread.join(deadline.remaining())

    def after_fork(self) -> None:
        """Mark the copy in a forked child. Takes no lock, because its owner may not exist there."""
        self.forked = True
        self._at_fork()


class _Call:
    """
    A coroutine that the loop runs for a blocking caller.

    Threads: the blocking thread waits, and the loop thread ends it.
    Locks: none; the loop sets the results before it wakes the caller.
    """

    __slots__ = ("arguments", "error", "function", "over", "result", "task")

    def __init__(self, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.over = Latch()
        self.task: asyncio.Task[None] | None = None
        self.result: Any = None
        self.error: Exception | None = None


def choose_uvloop(loop: Literal["auto", "asyncio", "uvloop"]) -> bool:
    """Return whether the event loop is uvloop's. Raises ConfigurationError if it cannot be."""
    if loop == "asyncio":
        return False
    # gevent and eventlet have replaced it. uvloop would wait in C and stop all their threads.
    if not isinstance(_thread.start_new_thread, types.BuiltinFunctionType):
        if loop == "uvloop":
            raise errors.ConfigurationError(
                "loop='uvloop' does not work with the threads of gevent or eventlet:"
                " leave loop out, or use loop='asyncio'"
            )
        return False
    present = importlib.util.find_spec("uvloop") is not None
    if loop == "uvloop" and not present:
        raise errors.ConfigurationError(
            "loop='uvloop' needs the extra: pip install 'jetsync[uvloop]'"
        )
    return present


def _new_uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    class Loop(uvloop.Loop):
        async def getaddrinfo(self, *host: Any, **options: Any) -> list[Any]:
            return await look_up(*host, **options)

    return Loop()


def _on_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what the loop would print, because a library does not write to stderr."""
    _log.error(
        "bridge.loop_error", message=context.get("message"), exc_info=context.get("exception")
    )


async def _logged(function: Callable[..., Awaitable[object]], *args: Any) -> None:
    """Log the error of a coroutine function, because no caller waits for it."""
    try:
        await function(*args)
    except Exception as error:  # noqa: BLE001 - logged in place of being raised
        _log.error("bridge.loop_error", message="a call without a caller failed", exc_info=error)


def _close_at_exit() -> None:
    deadline = Deadline.after(EXIT_BUDGET)
    for bridge in list(_live):
        with contextlib.suppress(Exception):
            bridge.close_at_exit(deadline)


def _mark_forked() -> None:
    for bridge in list(_live):
        bridge.after_fork()
    _live.clear()


atexit.register(_close_at_exit)

# Before any other code runs in the child. Its next call raises ForkedProcessError, or opens a
# connection of its own, see `Connection.check`.
if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_mark_forked)
