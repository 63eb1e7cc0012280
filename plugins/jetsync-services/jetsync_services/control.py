"""
The subjects of discovery, and the answers to them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_services import checks, documents
from jetsync_services.errors import INTERNAL, ServiceError, headers_of

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = jetsync.get_logger("jetsync.services")

PREFIX: Final = "$SRV"
PING: Final = "PING"
INFO: Final = "INFO"
STATS: Final = "STATS"
VERBS: Final = (PING, INFO, STATS)


def control_subject(
    verb: str,
    name: str | None = None,
    id: str | None = None,  # noqa: A002 - the name of the field.
    *,
    prefix: str = PREFIX,
) -> str:
    """
    Return a subject of discovery.
    """
    if name is None:
        if id is not None:
            raise jetsync.InvalidArgumentError("an id needs the name of its service", argument="id")
        return f"{prefix}.{verb}"
    checks.name_of("service", name)
    if id is None:
        return f"{prefix}.{verb}.{name}"
    return f"{prefix}.{verb}.{name}.{checks.subject_of(id, refused='*>', name='id')}"


class Control:
    """
    Answers one subject of discovery, in a thread of its own.
    """

    def __init__(
        self,
        client: jetsync.Client,
        subject: str,
        document: Callable[[], documents.ServicePing],
        on_end: Callable[[Exception | None], object],
    ) -> None:
        self._client = client
        self._document = document
        self._on_end = on_end
        self._subscription = client.subscribe(subject)
        name = f"jetsync-service-{subject}"
        self.threads = [threading.Thread(target=self._run, name=name, daemon=True)]

    def unsubscribe(self, grace: float) -> None:
        """
        Ask the server for no more requests, and accept those that are in flight.
        """
        self._subscription.unsubscribe_nowait(grace=grace)

    def drain(self) -> None:
        """
        End the thread when it has answered what has arrived. Does not wait.
        """
        self._subscription.drain()

    abandon = drain

    def _run(self) -> None:
        error: Exception | None = None
        try:
            while True:
                try:
                    for message in self._subscription:
                        self._answer(message)
                    return
                except jetsync.SlowConsumerError as slow:
                    _logger.warning("requests_dropped", endpoint=PREFIX, count=slow.dropped)
        except jetsync.JetSyncError as failure:
            error = failure
        finally:
            self._on_end(error)

    def _answer(self, message: jetsync.Message) -> None:
        if not message.reply:
            return
        headers = None
        try:
            data = documents.encode_document(self._document())
        except Exception:
            _logger.exception("discovery_failed", subject=message.subject)
            data, headers = b"", headers_of(ServiceError(INTERNAL, "internal error"))
        try:
            self._client.publish(message.reply, data, headers=headers)
        except jetsync.JetSyncError as error:
            _logger.warning("answer_not_sent", subject=message.subject, error=str(error))
