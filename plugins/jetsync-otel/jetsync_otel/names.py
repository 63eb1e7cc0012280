"""
Names of attributes and metrics.

The names of the conventions are repeated here, because the package that defines them does not
guarantee those for messaging. Attributes specific to NATS are below ``messaging.nats``, and metrics
outside of the conventions are below ``jetsync``.
"""

from __future__ import annotations

from typing import Final

SYSTEM: Final = "messaging.system"
NATS: Final = "nats"
OPERATION: Final = "messaging.operation.name"
TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
"""The stream. There are too many subjects for span names and metric labels."""
GROUP: Final = "messaging.consumer.group.name"
"""The consumer."""
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

# Other metrics.
ACKNOWLEDGED: Final = "jetsync.publish.acknowledged"
DUPLICATES: Final = "jetsync.publish.duplicates"
REDELIVERED: Final = "jetsync.consumer.redelivered"
PENDING: Final = "jetsync.consumer.pending"
LAG: Final = "jetsync.consumer.lag"
RECONNECTS: Final = "jetsync.client.reconnects"
EVENTS: Final = "jetsync.client.events"


def error_type(error: BaseException | type[BaseException]) -> str:
    """
    Return the canonical name of the class of an error.
    """
    kind = error if isinstance(error, type) else type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
