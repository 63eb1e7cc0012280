"""
One connection per worker process and set of options.

Spark reuses its Python workers, so a client outlives the task that created it. All tasks with the
same options share it. After a pause it is pinged before it is used again. If a task fails, its
client is dropped, because it may be in any state. Workers may end at any time (``os._exit``,
SIGKILL), so nothing on the server depends on a connection and nothing is pending when a task ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

import jetsync
from jetsync.errors.texts import redact_url
from jetsync_spark.common.errors import OptionError, explain
from jetsync_spark.common.options import OF_CLIENT, ConnectSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Settings", "check_plugins", "client_for", "context_of", "forget", "lend", "stream_of"]

Settings: TypeAlias = ConnectSettings | jetsync.ConnectOptions
"""How to connect: the options of the data source, or ``ConnectOptions`` from a program."""

IDLE: Final = 5.0
"""Seconds after which a connection is pinged before it is used again."""

PING_TIMEOUT: Final = 2.0
"""Seconds that the server has to answer this ping."""

_QUERY: Final = re.compile(r"[?#][^,]*")

_logger = jetsync.get_logger("jetsync.spark.clients")


@attrs.define(eq=False)
class _Pooled:
    """
    A client and the number of its users.
    """

    client: jetsync.Client
    used: float
    """When it was last used, on the monotonic clock."""

    users: int = 0
    dropped: bool = False
    """Whether to close it when the last user returns it."""

    js: jetsync.JetStream = attrs.field(
        default=attrs.Factory(lambda self: self.client.jetstream(), takes_self=True)
    )
    """The context of all users, which remembers the streams that it has looked up."""

    streams: dict[str, jetsync.Stream] = attrs.field(factory=dict)
    """Streams by name. Their configuration may be out of date."""


_lock = jetsync.interrupt_safe_lock()
_pool: dict[Settings, _Pooled] = {}


def _after_fork() -> None:
    # The connections belong to the parent, so their file descriptors stay untouched.
    global _lock, _pool
    _lock, _pool = jetsync.interrupt_safe_lock(), {}


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_after_fork)


def check_plugins(settings: Settings) -> None:
    """
    Reject plugin objects that compare unequal to their pickled copies.

    Each task would create a connection of its own for such a copy.

    Raises:
        OptionError: There is such a plugin.
    """
    if not all(map(_is_value, settings.plugins)):
        raise OptionError(
            "these options have plugin objects whose copies in tasks compare unequal",
            option="plugins",
            cure='pass their names, such as plugins=["retry"]',
        )


def client_for(settings: Settings, name: str | None = None) -> jetsync.Client:
    """
    Return this process's client for *settings*. Connect if there is no working one.

    Thread-safe. To use the client for more than one call, borrow it with :func:`lend`, which keeps
    it open meanwhile.

    Args:
        settings: How to connect.
        name: The connection's name on the server. The name of the first use stays.

    Raises:
        JetStreamSparkError: The connection failed.
    """
    check_plugins(settings)
    with _lock:
        kept = _pool.get(settings)
    if kept is not None and _works(kept):
        kept.used = time.monotonic()
        return kept.client
    if kept is not None:
        forget(settings, kept.client)
    made = _connect(settings, name)
    with _lock:
        # Another thread may have connected first.
        there = _pool.setdefault(settings, _Pooled(made, time.monotonic()))
    if there.client is not made:
        made.close()
    return there.client


@contextlib.contextmanager
def lend(
    settings: Settings, name: str | None = None, *, keep: bool = True
) -> Iterator[jetsync.Client]:
    """
    Lend this process's client for *settings*, and drop the client if the block raises.

    Thread-safe. A reader that is stopped early (``GeneratorExit``) does not count as a failure.

    Args:
        settings: As for :func:`client_for`.
        name: As for :func:`client_for`.
        keep: Whether a connection that this call makes stays open for the next one. Processes that
            only plan have no use for it.
    """
    with _lock:
        before = _pool.get(settings)
    kept = None
    while kept is None:
        client = client_for(settings, name)
        with _lock:
            there = _pool.get(settings)
            # Another task may have failed meanwhile, and have closed the client with that.
            if there is not None and there.client is client:
                kept = there
                kept.users += 1
    made = before is None or before.client is not client
    try:
        yield client
    except GeneratorExit:
        raise
    except BaseException:
        forget(settings, client)
        raise
    finally:
        if made and not keep:
            forget(settings, client)
        kept.used = time.monotonic()
        with _lock:
            kept.users -= 1
            last = kept.dropped and kept.users == 0
        if last:
            _close(client)


def context_of(settings: Settings, client: jetsync.Client) -> jetsync.JetStream:
    """
    Return the JetStream context of a lent client. Its users share what it has looked up.
    """
    kept = _kept(settings, client)
    return client.jetstream() if kept is None else kept.js


def stream_of(settings: Settings, client: jetsync.Client, name: str) -> jetsync.Stream:
    """
    Return a stream of a lent client. The server is asked once for each connection.

    The configuration of the stream may be out of date.

    Thread-safe.

    Raises:
        JetSyncError: The stream does not exist, or the server did not answer.
    """
    kept = _kept(settings, client)
    streams = {} if kept is None else kept.streams
    stream = streams.get(name)
    if stream is None:
        stream = streams[name] = context_of(settings, client).stream(name)
    return stream


def _kept(settings: Settings, client: jetsync.Client) -> _Pooled | None:
    """Return the entry of a client, or None if it was dropped."""
    with _lock:
        kept = _pool.get(settings)
    return kept if kept is not None and kept.client is client else None


def forget(settings: Settings, client: jetsync.Client | None = None) -> None:
    """
    Drop the client for *settings*, so that the next use connects again.

    The client is closed when its last borrower returns it. Calling this twice has no effect.

    Args:
        settings: How it was connected.
        client: Drop only this client, not a newer one.
    """
    with _lock:
        kept = _pool.get(settings)
        if kept is None or (client is not None and kept.client is not client):
            return
        del _pool[settings]
        kept.dropped = True
        unused = kept.users == 0
    if unused:
        _close(kept.client)


def _is_value(plugin: object) -> bool:
    """
    Tell whether a pickled copy of a plugin compares equal to the original.
    """
    if isinstance(plugin, (str, type, ModuleType)):
        return True
    try:
        hash(plugin)
    except TypeError:
        return False
    return type(plugin).__hash__ is not object.__hash__


def _works(kept: _Pooled) -> bool:
    client = kept.client
    if client.is_closed:
        return False
    if time.monotonic() - kept.used < IDLE and client.is_connected:
        return True
    try:
        client.rtt(timeout=PING_TIMEOUT)
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
        made = explain(error, f"connecting to {_shown(options)} failed")
        if isinstance(settings, ConnectSettings):
            made.rename(OF_CLIENT)
        raise made from error


def _shown(options: jetsync.ConnectOptions) -> str:
    servers = options.servers
    if servers is None:
        servers = os.environ.get("NATS_URL") or jetsync.DEFAULT_URL
    shown = redact_url(servers if isinstance(servers, str) else ",".join(servers))
    return _QUERY.sub("?***", shown)


def _close(client: jetsync.Client) -> None:
    with contextlib.suppress(jetsync.JetSyncError):
        client.close(timeout=1.0)
