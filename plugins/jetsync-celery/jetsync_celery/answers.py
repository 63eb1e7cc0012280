"""
Acknowledgements that outlive a lost connection.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import jetsync

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE: Final = 0.2
"""Seconds between two attempts to send an acknowledgement."""

UNSENT: Final = (
    jetsync.ConnectionLostError,
    jetsync.DisconnectedError,
    jetsync.NoRespondersError,
    jetsync.NoStreamResponseError,
    jetsync.PublishOutcomeUnknownError,
    jetsync.RequestTimeoutError,
)
"""Errors after which an acknowledgement is sent again."""

_logger = jetsync.get_logger("jetsync.celery")


class Answers:
    """
    Sends acknowledgements. Without a connection, a thread sends them when it is back.

    The caller is often the event loop of a worker, which must not wait, and which calls once only:
    a lost acknowledgement would keep a task that is done in the worker's hands.

    Threads: any, and one of its own while there is something to repeat.
    Locks: `_lock` protects `_late` and `_thread`. Nothing is waited for under it.
    """

    def __init__(self, client: jetsync.Client) -> None:
        self._client = client
        self._lock = jetsync.interrupt_safe_lock()
        self._late: deque[tuple[Callable[[], object], Callable[[], object]]] = deque()
        self._thread: threading.Thread | None = None

    def send(self, answer: Callable[[], object], give_up: Callable[[], object]) -> None:
        """
        Send an acknowledgement now, or as soon as there is a connection.

        Args:
            answer: Sends it.
            give_up: Called if it cannot be sent for another reason than the connection.
        """
        if self._client.is_connected and _is_sent(answer, give_up):
            return
        with self._lock:
            self._late.append((answer, give_up))
            if self._thread is not None:
                return
            thread = self._thread = threading.Thread(
                target=self._repeat, name="jetsync-celery-answers", daemon=True
            )
        thread.start()

    def finish(self, timeout: float) -> None:
        """If there is a connection, wait until nothing is left to repeat, at most some seconds."""
        thread = self._thread
        if thread is not None and self._client.is_connected:
            thread.join(timeout)

    def _repeat(self) -> None:
        while True:
            with self._lock:
                if not self._late or self._client.is_closed:
                    # Without the client, the server delivers the tasks again.
                    self._late.clear()
                    self._thread = None
                    return
                answer, give_up = self._late[0]
            if self._client.is_connected and _is_sent(answer, give_up):
                with self._lock:
                    self._late.popleft()
            else:
                time.sleep(PAUSE)


def _is_sent(answer: Callable[[], object], give_up: Callable[[], object]) -> bool:
    """Return False if it is to be sent again."""
    try:
        answer()
    except jetsync.MessageAlreadyAckedError:
        return True
    except UNSENT as error:
        _logger.info("celery_acknowledgement_repeated", error=str(error))
        return False
    except jetsync.JetSyncError as error:
        _logger.warning("celery_acknowledgement_failed", error=str(error))
        give_up()
    return True
