"""
The connections of this process: one for each set of options, shared by all its threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured

import jetsync
from jetsync import ConnectOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["connect_options", "shared_client"]

NAME: Final = "jetsync-django"
"""The name of the connections in the server's monitoring."""

# A child of a fork inherits the clients, and `after_fork` gives it connections of its own.
_clients: dict[ConnectOptions, jetsync.Client] = {}


def connect_options(servers: Any, connect: Any, setting: str) -> ConnectOptions:
    """
    Return the options of a connection that a setting describes.

    Args:
        servers: One URL, several separated by commas, a list, or nothing for those of the
            environment.
        connect: More options of `jetsync.connect` by name, such as the login, or None.
        setting: The name of the setting, for errors.

    Raises:
        ImproperlyConfigured: An option is unknown or invalid.
    """
    given: Mapping[str, Any] = {} if connect is None else connect
    # The errors do not show CONNECT, which may have a password.
    if not isinstance(given, dict):
        raise ImproperlyConfigured(
            f"{setting}: CONNECT must be a dict of options of jetsync.connect, not"
            f" {type(connect).__name__}"
        )
    if "servers" in given:
        raise ImproperlyConfigured(
            f"{setting}: CONNECT cannot have 'servers': use SERVERS, or LOCATION of a cache"
        )
    options = {"name": NAME, **given, "after_fork": "reconnect"}
    try:
        made = ConnectOptions(servers=servers or None, **options)
        hash(made)
    except (jetsync.JetSyncError, TypeError) as error:
        raise ImproperlyConfigured(f"{setting}: {error}") from error
    return made


def shared_client(options: ConnectOptions) -> jetsync.Client:
    """
    Return the client of this process with these options, and connect it if there is none.

    Any number of threads may call it. It takes no lock, so a fork or Ctrl-C cannot leave one
    locked. The first threads may each open a connection: one is kept, and the others are closed.
    The client stays open until the process ends. A child of a fork gets a connection of its own
    with its first request.

    Raises:
        ConnectError, AuthenticationError, ...: No server could be reached, or the login was
            refused. The next call tries again.
    """
    found = _clients.get(options)
    if found is not None and not found.is_closed:
        return found
    made = jetsync.connect(options=options)
    if found is not None:
        # Other code closed it.
        _clients[options] = made
        return made
    kept = _clients.setdefault(options, made)
    if kept is not made:
        made.close()
    return kept
