"""
A shop that stores its orders, and a worker that ships them.
"""

from __future__ import annotations

import jetsync


def place_order(js: jetsync.JetStream, subject: str, text: str, number: int) -> None:
    """
    Store an order once, even if it is placed again after an error.
    """
    js.publish(subject, text, msg_id=f"order-{number}")


def ship(stream: jetsync.Stream) -> list[str]:
    """
    Ship all new orders, each one once.
    """
    worker = stream.create_or_update_consumer("shipping")
    shipped = []
    for message in worker.fetch(100, no_wait=True):
        shipped.append(message.data.decode())
        message.ack()
    return shipped
