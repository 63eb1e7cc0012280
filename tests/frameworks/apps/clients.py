"""
One client for each process, made on first use.
"""

import os
import threading

import jetsync

NAME = os.environ["STREAM"]

_lock = threading.Lock()
_clients: dict[int, jetsync.Client] = {}


def client() -> jetsync.Client:
    """
    Return the client of this process.
    """
    pid = os.getpid()
    with _lock:
        if pid not in _clients:
            _clients[pid] = jetsync.connect(os.environ["NATS_URL"])
        return _clients[pid]


def store(data: str) -> str:
    """
    Publish a message. Return the process and the sequence of the message.
    """
    ack = client().jetstream().publish(f"{NAME}.{os.getpid()}", data.encode())
    return f"{os.getpid()} {ack.sequence}"
