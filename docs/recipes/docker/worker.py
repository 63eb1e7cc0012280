"""
Handle messages until SIGTERM.
"""

from __future__ import annotations

import time

import jetsync


def handle(message: jetsync.Message) -> None:
    """
    Handle a message.
    """
    time.sleep(0.01)
    print("handled", message.sequence)


with jetsync.connect() as client, client.stop_on_signal(timeout=5):
    worker = client.jetstream().consumer("ORDERS", "worker")
    running = worker.consume(handle, threads=4, ack="auto")
    print("ready")
    running.wait()
    if running.error is not None:
        raise running.error  # For example, the consumer was deleted. The container restarts.
