"""
Which server the next attempt to connect uses, and the wait before it.

The pool decides (:mod:`jetsync._proto.server_pool`), unless the option ``choose_server`` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

from jetsync import errors
from jetsync._base.deadline import as_seconds
from jetsync._base.failures import raised_at
from jetsync._io.resolve import in_thread
from jetsync._proto.server_pool import Server, ServerPool, Waits
from jetsync.errors.texts import redact_url
from jetsync.values.server_info import PoolServer, ServerInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._io.connection_state import ConnectionState
    from jetsync.options import ConnectOptions


class NextServer:
    """
    Chooses servers, and waits until they are due.

    Threads: the loop thread; any thread sets :attr:`asked`.
    Locks: none.
    """

    def __init__(self, state: ConnectionState, options: ConnectOptions) -> None:
        self._state = state
        self._choose = options.choose_server
        jitter = options.reconnect_jitter
        waits = Waits(
            first=options.reconnect_wait,
            longest=options.max_reconnect_wait,
            jitter=options.reconnect_wait if jitter is None else jitter,
        )
        chance = random.Random()
        self.pool = ServerPool(
            options.server_list(), waits, options.max_reconnects, chance.uniform, options
        )
        # Whether the program has asked for another connection, which then begins at once.
        self.asked: bool = False
        # The last INFO of a server that has accepted the login.
        self.info: ServerInfo = ServerInfo()
        # Ends the wait, because the pool has changed.
        self._changed = asyncio.Event()
        # The last call of the option, which may not have returned yet.
        self._choosing: asyncio.Future[Any] | None = None

    async def take_server(self, patience: float) -> Server | None:
        """
        Return the server of the next attempt when it is due; None if none may be tried.

        Args:
            patience: Seconds for the option ``choose_server``.
        """
        loop, pool = asyncio.get_running_loop(), self.pool
        asked, self.asked = self.asked, False
        pool.ended(loop.time(), asked=asked)
        while True:
            self._changed.clear()
            default = pool.next_server(loop.time())
            if default is None:
                return None
            server, due = await self._chosen(patience) or default
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), max(due - loop.time(), 0.0))
                continue
            # The program may have replaced the pool just now.
            if pool.begin(server):
                return server

    def on_change(self) -> None:
        """Choose again, because the program has replaced the pool."""
        self._changed.set()

    async def _chosen(self, patience: float) -> tuple[Server, float] | None:
        """Return the choice of the option, and when the server is due; None for the default."""
        if self._choose is None or not self.pool.has_connected:
            return None
        try:
            if self._choosing is not None and not self._choosing.done():
                raise errors.ConnectError("an earlier call has not returned")
            offered = tuple(one.public for one in self.pool.eligible)
            self._choosing = in_thread(_call, self._choose, offered, self.info)
            found = await asyncio.wait_for(asyncio.shield(self._choosing), patience)
            return self._read_choice(found)
        except Exception as error:  # noqa: BLE001 - no error of the program may end the attempts.
            cause: Exception | None = error
            if isinstance(error, errors.JetSyncError):
                problem = str(error)
            elif self._choosing is not None and not self._choosing.done():
                problem, cause = f"it has not returned within {patience:.3g} s", None
            else:
                # Without the text, which may contain a secret.
                problem = f"it raised {type(error).__name__} {_place(error)}"
        where = f"connect(choose_server={_name(self._choose)})"
        failure = errors.ConnectError(f"{where}: {problem}; jetsync chooses the server")
        failure.__cause__ = cause
        self._state.on_error(failure)
        return None

    def _read_choice(self, found: Any) -> tuple[Server, float] | None:
        if found is None:
            return None
        wait: float | None = None
        if isinstance(found, tuple) and len(found) == 2:
            wait = as_seconds(found[1], "the wait of choose_server")
            found = found[0]
        if not isinstance(found, PoolServer):
            raise errors.InvalidTypeError(
                "it must return one of the servers, a server and seconds, or None,"
                f" not {type(found).__name__}"
            )
        server = self.pool.find_server(found.url)
        if server is None:
            raise errors.InvalidArgumentError(f"{redact_url(found.url)} is not one of the servers")
        if wait is None:
            return server, self.pool.when(server)
        return server, asyncio.get_running_loop().time() + wait


def _call(choose: Callable[..., Any], *arguments: Any) -> Any:
    # A function of its own, because its name becomes that of the thread.
    return choose(*arguments)


def _name(choose: Callable[..., Any]) -> str:
    """Return the full name of a function, or of the class of another callable."""
    named = choose if hasattr(choose, "__qualname__") else type(choose)
    return f"{named.__module__}.{named.__qualname__}"


def _place(error: Exception) -> str:
    """Say where the program's function has raised an error, for the text of another one."""
    place = raised_at(error)
    if place is None or place.tb_frame.f_code is _call.__code__:
        return "when it was called with the servers and the last ServerInfo"
    return f"in {place.tb_frame.f_code.co_filename}, line {place.tb_lineno}"
