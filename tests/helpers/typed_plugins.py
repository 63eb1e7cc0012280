"""
How programs use what the plugins offer, for type checkers; `typed_pages.py` checks it.
"""

# ruff: noqa: D103, TC001 - the code of a program, as its author writes it.

from __future__ import annotations

import jetsync
from jetsync_otel import OTel

otel = OTel()


def of_consumer(message: jetsync.Message) -> None:
    message.ack()


def of_both(message: jetsync.Message | jetsync.StoredMessage) -> int:
    return len(message.data)


def of_stream(message: jetsync.StoredMessage) -> str:
    return message.stream


@otel.handler
def decorated(message: jetsync.Message) -> None:
    message.ack()


class Worker:
    def handle(self, message: jetsync.Message) -> None:
        message.ack()


def wrap(consumer: jetsync.Consumer, stored: jetsync.StoredMessage) -> tuple[str, int]:
    """
    A wrapped handler takes the messages that the handler takes, and returns what it returns.
    """
    consumer.consume(otel.handler(of_consumer))
    consumer.consume(otel.handler(of_both))
    consumer.consume(otel.handler(Worker().handle))
    consumer.consume(otel.handler(lambda message: message.ack()))
    consumer.consume(decorated)
    decorated(stored)  # type: ignore[arg-type]
    return otel.handler(of_stream)(stored), otel.handler(of_both)(stored)
