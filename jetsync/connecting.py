"""
``connect``, which begins its deadline and then imports the client.

So the deadline includes the import, and ``import jetsync`` stays quick.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs

from jetsync._base.deadline import Deadline
from jetsync._base.fields import check_fields, wrong_type
from jetsync._base.loading import Loading
from jetsync.errors import ConnectTimeoutError, WaitTimeoutError
from jetsync.options import ConnectOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from jetsync.client import Client
    from jetsync.options import ConnectFields

__all__ = ["connect"]

_client = Loading(functools.partial(importlib.import_module, "jetsync.client"))


def connect(
    servers: str | Iterable[str] | None = None,
    *,
    options: ConnectOptions | None = None,
    plugins: Iterable[object] = (),
    **fields: Unpack[ConnectFields],
) -> Client:
    """
    Connect to a NATS server and return the client.

    Blocks until a server has accepted the connection, for at most ``connect_timeout`` seconds over
    all servers. The first call also imports the client within this time. jetsync runs one
    background thread per client, which does not keep the program alive.

    Args:
        servers: One address or several, such as ``nats://host:4222``, as a list or separated by
            commas. The schemes are ``nats``, ``tls``, ``ws`` and ``wss``. None means ``$NATS_URL``,
            or ``nats://127.0.0.1:4222`` if that is not set.
        options: All options as an object. *servers* and *fields* override its fields.
        plugins: Plugin objects, or names of entry points in the group ``jetsync``. jetsync adds
            them to the plugins of *options* and of ``$JETSYNC_PLUGINS``.
        **fields: Fields of :class:`ConnectOptions`.

    Raises:
        ConnectError: No server could be reached, or a server's TLS certificate is not trusted.
        ConnectTimeoutError: No server accepted the connection within ``connect_timeout``.
        AuthenticationError: The server refused the credentials, or jetsync could not load them.
        ConfigurationError: A plugin is unknown or does not match the hooks, an optional package is
            missing, or a TLS file or ``$NATS_URL`` cannot be used.
        InvalidArgumentError, InvalidTypeError: An option does not exist, or its value cannot be
            used.
    """
    check_fields(ConnectOptions, fields, "connect()")
    if isinstance(plugins, (str, type)) or not isinstance(plugins, Iterable):
        raise wrong_type("plugins", "a list of plugins", plugins)
    if options is not None and not isinstance(options, ConnectOptions):
        raise wrong_type("options", "a ConnectOptions", options)
    given: dict[str, Any] = {**fields}
    if servers is not None:
        if not isinstance(servers, Iterable):
            raise wrong_type("servers", "an address or a list of addresses", servers)
        given["servers"] = servers if isinstance(servers, str) else tuple(servers)
    options = ConnectOptions(**given) if options is None else attrs.evolve(options, **given)
    deadline = Deadline.after(options.connect_timeout)
    try:
        _client.wait(deadline)
    except WaitTimeoutError:
        raise ConnectTimeoutError(
            deadline.total, reason="the modules of the client are still being imported"
        ) from None
    from jetsync.client import open_client

    return open_client(options, plugins, deadline)
