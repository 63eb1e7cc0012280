"""
Publish from a pool of processes.
"""

from __future__ import annotations

import multiprocessing
import sys

import jetsync

js: jetsync.JetStream


def connect(options: jetsync.ConnectOptions) -> None:
    """
    Connect when a process of the pool starts.
    """
    global js  # noqa: PLW0603 - one client for each process
    js = jetsync.connect(options=options).jetstream()


def store(number: int) -> int:
    """
    Publish an order, and return its sequence.
    """
    return js.publish(f"orders.{number}", f"order {number}").sequence


def main(method: str) -> None:
    """
    Publish in the pool and in this process.
    """
    context = multiprocessing.get_context(method)
    with jetsync.connect() as client:
        with context.Pool(4, initializer=connect, initargs=(client.options,)) as pool:
            sequences = pool.map(store, range(100))
        client.jetstream().publish("orders.done", str(len(set(sequences))))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "spawn")
