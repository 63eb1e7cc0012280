"""
One connection per worker process and options.

Spark reuses its Python workers, so what a module keeps survives from task to task. A client is made
when the first task needs it, is shared by all that follow with the same options, and is looked at
before it is used again after a pause. A task that failed may have left it in any state: it is
dropped then. Workers leave without a word (``os._exit``, SIGKILL): nothing on the server may depend
on a connection, and nothing is pending when a task ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

import jetsync
from jetsync.errors import redact_url
from jetsync_spark.common.errors import OptionError, explain
from jetsync_spark.common.options import ConnectSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Settings", "check_plugins", "client_for", "forget", "lend"]

Settings: TypeAlias = ConnectSettings | jetsync.ConnectOptions
"""How to connect: from options of a data source, or as a program gave it."""

IDLE: Final = 5.0
"""Seconds after which a connection is looked at before it is used."""

LOOK: Final = 2.0
"""Seconds that the server has to answer then."""

_logger = jetsync.get_logger("jetsync.spark.clients")


@attrs.define(eq=False)
class _Kept:
    """
    A client, and who uses it.
    """

    client: jetsync.Client
    used: float
    """When somebody used it last."""

    users: int = 0
    dropped: bool = False
    """Whether it is closed as soon as nobody uses it."""


_lock = threading.RLock()
_kept: dict[Settings, _Kept] = {}


def _after_fork() -> None:
    # The connections are the parent's; their file descriptors are left alone.
    global _lock, _kept
    _lock, _kept = threading.RLock(), {}


os.register_at_fork(after_in_child=_after_fork)


def check_plugins(settings: Settings) -> None:
    """
    Refuse plugins of which each task would have another one, and with it another connection.

    Raises:
        OptionError: there are such.
    """
    if not all(map(_is_value, settings.plugins)):
        raise OptionError(
            "the plugins of these options are objects that are others in each task",
            option="plugins",
            cure='give them by their names, such as plugins=["retry"]',
        )


def client_for(settings: Settings, name: str | None = None) -> jetsync.Client:
    """
    Return the client of this process for *settings*; connect if there is none that works.

    Any thread. Who uses it for longer than a call takes :func:`lend`, which keeps it from being
    closed meanwhile.

    Args:
        settings: How to connect.
        name: What the server calls the connection; that of the first use stays.

    Raises:
        JetStreamSparkError: there is no connection, with the reason and what to do.
    """
    check_plugins(settings)
    with _lock:
        kept = _kept.get(settings)
    if kept is not None and _works(kept):
        kept.used = time.monotonic()
        return kept.client
    if kept is not None:
        forget(settings, kept.client)
    made = _connect(settings, name)
    with _lock:
        # Another thread may have been faster.
        there = _kept.setdefault(settings, _Kept(made, time.monotonic()))
    if there.client is not made:
        made.close()
    return there.client


@contextlib.contextmanager
def lend(settings: Settings, name: str | None = None) -> Iterator[jetsync.Client]:
    """
    Lend the client of this process for *settings*, and drop it if the block fails.

    Any thread. A reader that is stopped early (``GeneratorExit``) has not failed.

    Args: as :func:`client_for`.
    """
    client = client_for(settings, name)
    with _lock:
        kept = _kept.get(settings)
        if kept is not None and kept.client is client:
            kept.users += 1
        else:
            kept = None
    try:
        yield client
    except GeneratorExit:
        raise
    except BaseException:
        forget(settings, client)
        raise
    finally:
        if kept is not None:
            kept.used = time.monotonic()
            with _lock:
                kept.users -= 1
                last = kept.dropped and kept.users == 0
            if last:
                _close(client)


def forget(settings: Settings, client: jetsync.Client | None = None) -> None:
    """
    Drop the client for *settings*, so that the next use connects anew.

    It is closed at once, or as soon as nobody has borrowed it any more. Safe to repeat.

    Args:
        settings: How it was connected.
        client: Only if it is this one; another may have taken its place.
    """
    with _lock:
        kept = _kept.get(settings)
        if kept is None or (client is not None and kept.client is not client):
            return
        del _kept[settings]
        kept.dropped = True
        unused = kept.users == 0
    if unused:
        _close(kept.client)


def _is_value(plugin: object) -> bool:
    """
    Tell whether a copy of a plugin, as each task has one, is as good as itself.
    """
    if isinstance(plugin, (str, type, ModuleType)):
        return True
    try:
        hash(plugin)
    except TypeError:
        return False
    return type(plugin).__hash__ is not object.__hash__


def _works(kept: _Kept) -> bool:
    client = kept.client
    if client.is_closed:
        return False
    if time.monotonic() - kept.used < IDLE and client.is_connected:
        return True
    try:
        client.rtt(timeout=LOOK)
    except jetsync.JetSyncError as error:
        _logger.info("connection_renewed", reason=str(error))
        return False
    return True


def _connect(settings: Settings, name: str | None) -> jetsync.Client:
    if isinstance(settings, ConnectSettings):
        options = settings.connect_options(name)
    else:
        options = settings if settings.name or not name else settings.evolve(name=name)
    try:
        return jetsync.connect(options=options)
    except jetsync.JetSyncError as error:
        raise explain(error, f"connecting to {_shown(options)} failed") from error


def _shown(options: jetsync.ConnectOptions) -> str:
    servers = options.servers
    if servers is None:
        servers = os.environ.get("NATS_URL") or jetsync.DEFAULT_URL
    shown = redact_url(servers if isinstance(servers, str) else ",".join(servers))
    return re.sub(r"[?#][^,]*", "?***", shown)


def _close(client: jetsync.Client) -> None:
    with contextlib.suppress(jetsync.JetSyncError):
        client.close(timeout=1.0)
