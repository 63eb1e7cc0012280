"""
Calls that would block the loop thread, each in a thread of its own. Most of them look up a host.

The executor of the event loop is not used. The interpreter would not end before a lookup that hangs
does. uvloop looks up names in threads of libuv, and a forked child that ends normally crashes
because it waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from jetsync.errors import ConnectError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def look_up(host: Any, port: Any, *, flags: int = 0, **options: int) -> list[Any]:
    """Return what ``socket.getaddrinfo`` returns. A numeric address needs no thread."""
    try:
        return socket.getaddrinfo(host, port, flags=flags | socket.AI_NUMERICHOST, **options)
    except socket.gaierror:
        return await in_thread(socket.getaddrinfo, host, port, flags=flags, **options)


def in_thread(call: Callable[..., T], *arguments: Any, **options: Any) -> asyncio.Future[T]:
    """
    Run *call* in a thread of its own and return a future for its result.

    The thread is a daemon: a call that never returns must not keep the loop or the process alive.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def set_outcome(value: T | None, error: Exception | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, failure = None, None
        try:
            value = call(*arguments, **options)
        except Exception as error:  # noqa: BLE001 - raised where it is awaited.
            failure = error
        except BaseException as error:  # noqa: BLE001 - must not end the loop.
            failure = ConnectError(f"unexpected {type(error).__name__}")
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(set_outcome, value, failure)

    threading.Thread(target=run, name=f"jetsync-{call.__name__}", daemon=True).start()
    return result
