"""
The ackers of messages that must not be acknowledged: by the application, or by plugins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync import errors, events
from jetsync._base.log import get_logger
from jetsync.values.message import IN_PROGRESS, NAK

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds
    from jetsync._io.connection import Connection
    from jetsync.values.message import Message

_logger = get_logger("jetsync.acks")


class UnwantedAcks:
    """
    The acker of messages whose consumer has ``ack_policy`` none.

    Servers treat such a message as acknowledged when they have sent it. An ``ack()`` does no harm,
    but waiting for a confirmation would always time out, and a ``nak()`` has no effect.

    Threads: any.
    Locks: none; if two threads ack at the same moment, both may report.
    """

    __slots__ = ("_connection", "_is_reported")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_reported = False

    def acknowledge(self, message: Message, body: bytes) -> None:
        """Send the ack, which the server ignores, and report that once."""
        self._connection.acknowledge(message, body)
        self.report(self.error(message))

    def report(self, error: errors.AcksNotWantedError) -> None:
        """Report, once, that acks have no effect."""
        if not self._is_reported:
            self._is_reported = True
            _logger.warning("ack_ignored", consumer=error.consumer, stream=error.stream)
            self._connection.emit(events.AsyncErrorEvent(error=error))

    def acknowledge_sync(
        self,
        message: Message,
        body: bytes,  # noqa: ARG002 - required by the Acker protocol.
        timeout: Seconds | None,  # noqa: ARG002 - likewise.
    ) -> None:
        """Raise, because the server would not confirm it."""
        raise self.error(message)

    def error(self, message: Message) -> errors.AcksNotWantedError:
        """Return the error that names the consumer."""
        metadata = message.metadata
        return errors.AcksNotWantedError(metadata.consumer, stream=metadata.stream)


class PluginAcks:
    """
    The acker that plugins see on messages of a consumer with ``ack_policy`` all.

    Each ack there covers all earlier messages, so a plugin must not acknowledge: it would
    acknowledge messages that other threads are still handling.

    Threads: any.
    Locks: none; the only field never changes.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def acknowledge(self, message: Message, body: bytes) -> None:
        """Send naks and progress reports; raise for acknowledgements that end a message."""
        if not body.startswith((NAK, IN_PROGRESS)):
            raise errors.ConflictingUseError(
                f"a plugin cannot end a message of consumer {message.metadata.consumer!r}: its "
                "ack_policy is 'all', so that would also end all earlier messages"
            )
        self._connection.acknowledge(message, body)

    def acknowledge_sync(
        self,
        message: Message,
        body: bytes,
        timeout: Seconds | None,  # noqa: ARG002 - required by the Acker protocol.
    ) -> None:
        """Raise as :meth:`acknowledge`."""
        self.acknowledge(message, body)
