"""
A process that holds a lock.

It is in a module of its own, because the process has to import it by a name that does not depend on
how pytest was started.
"""

from __future__ import annotations

import os

import jetsync
from jetsync_locks import Lock

LEASE = 2
"""Seconds, the shortest lease: time itself is the subject of these tests."""


def hold_in_a_process(url, name, pipe):
    """
    Acquire a lock, report its fence, and then what the lock says each time the parent asks.
    """
    with jetsync.connect(url) as client:
        lock = Lock(client.jetstream().key_value(name), "a", lease=LEASE).acquire()
        pipe.send(lock.fence)
        while pipe.recv() == "held?":
            # The clock is read: the background thread may not have run yet.
            pipe.send((lock.held, lock.lost.is_set()))
        os._exit(0)
