"""
Names of attributes and metrics.

Those of the conventions are spelled out here, as the package that has them makes no promises about
the ones of messaging. What only NATS has is below ``messaging.nats``, and metrics that the
conventions do not know are below ``jetsync``.
"""

from __future__ import annotations

from typing import Final

SYSTEM: Final = "messaging.system"
NATS: Final = "nats"
OPERATION: Final = "messaging.operation.name"
TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
"""The stream: subjects are too many for names of spans and labels of metrics."""
GROUP: Final = "messaging.consumer.group.name"
"""The consumer, whose clients share its messages among them."""
COUNT: Final = "messaging.batch.message_count"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
ERROR_TYPE: Final = "error.type"

SUBJECT: Final = "messaging.nats.subject"
SEQUENCE: Final = "messaging.nats.stream.sequence"
DUPLICATE: Final = "messaging.nats.duplicate"
DELIVERED: Final = "messaging.nats.delivered"
BATCH_ID: Final = "messaging.nats.batch.id"
FAILED: Final = "messaging.nats.batch.failed_count"
EVENT: Final = "jetsync.event"

# Metrics of the conventions.
DURATION: Final = "messaging.client.operation.duration"
SENT: Final = "messaging.client.sent.messages"
CONSUMED: Final = "messaging.client.consumed.messages"
PROCESS_DURATION: Final = "messaging.process.duration"

# Metrics of our own.
ACKNOWLEDGED: Final = "jetsync.publish.acknowledged"
DUPLICATES: Final = "jetsync.publish.duplicates"
REDELIVERED: Final = "jetsync.consumer.redelivered"
PENDING: Final = "jetsync.consumer.pending"
LAG: Final = "jetsync.consumer.lag"
RECONNECTS: Final = "jetsync.client.reconnects"
EVENTS: Final = "jetsync.client.events"


def error_type(error: BaseException) -> str:
    """
    Return the canonical name of the class of *error*.
    """
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
