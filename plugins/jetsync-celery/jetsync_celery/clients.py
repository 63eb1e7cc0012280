"""
One client of jetsync for all connections of a process to the same servers.

kombu makes several connections in each process: for tasks, for events, for publishing. A client may
be shared by threads, so one is enough. Under gevent and eventlet only one can run.
"""

from __future__ import annotations

import os
from typing import Final

import attrs

import jetsync


@attrs.define(eq=False)
class Shared:
    """
    A client and how many use it.
    """

    options: jetsync.ConnectOptions
    client: jetsync.Client
    users: int


class Clients:
    """
    The clients of this process.

    Threads: any.
    Locks: `_lock` protects the list. It is held while a client connects, so that others wait for
    that client instead of making another one.
    """

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            # The clients, and a lock that another thread held, belong to the parent.
            os.register_at_fork(after_in_child=self._reset)

    def acquire(self, options: jetsync.ConnectOptions) -> jetsync.Client:
        """
        Return the client with these options, which is made if there is none.

        Raises:
            ConnectError: No server can be reached, or it refuses the login.
        """
        # What does not matter once there is a connection.
        key = attrs.evolve(options, connect_timeout=5.0, name=None)
        with self._lock:
            for shared in self._shared:
                if shared.options == key and not shared.client.is_closed:
                    shared.users += 1
                    return shared.client
            client = jetsync.connect(options=options)
            self._shared.append(Shared(key, client, 1))
            return client

    def release(self, client: jetsync.Client) -> None:
        """
        End the use of a client. The last one closes it. In a forked child, this does nothing.
        """
        with self._lock:
            found = [each for each in self._shared if each.client is client]
            for shared in found:
                shared.users -= 1
                if shared.users == 0:
                    self._shared.remove(shared)
            is_unused = any(shared.users == 0 for shared in found)
        if is_unused:
            client.close()

    def _reset(self) -> None:
        # Time limits of Celery raise in signal handlers.
        self._lock = jetsync.interrupt_safe_lock()
        self._shared: list[Shared] = []


CLIENTS: Final = Clients()
"""The clients of this process."""
