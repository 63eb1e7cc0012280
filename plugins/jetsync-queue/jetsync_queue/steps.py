"""
One priority of a receiver: the thread that fetches its jobs, and those that wait to be taken.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import jetsync

if TYPE_CHECKING:
    from jetsync_queue.delivery import Delivery
    from jetsync_queue.intake import Intake

PAUSE: Final = 1.0
"""Seconds before a step fetches again after an error."""

ANSWER: Final = 0.15
"""Seconds for an answer of the server that has the consumer, or four times as long as the last
answer took. A server that starts again waits 0.5 s for reports of progress."""

LATE_ANSWER: Final = 5.0
"""Seconds for an answer of a server that has been silent for long, because it may be slow."""

UNREACHABLE: Final = (
    jetsync.ConnectionLostError,
    jetsync.DisconnectedError,
    jetsync.JetStreamNotEnabledError,
    jetsync.NoRespondersError,
    jetsync.RequestTimeoutError,
    jetsync.TemporarilyUnavailableError,
)
"""Errors that say that no server has got what was sent to a consumer."""

ENDS: Final = (jetsync.StreamNotFoundError, jetsync.PermissionDeniedError)
"""Errors after which a receiver cannot take any job."""

_logger = jetsync.get_logger("jetsync_queue")


class Step:
    """
    The jobs of one priority that the receiver holds, and the thread that fetches them.

    The thread asks the server for a job only while there is room for one. If a job is held for too
    long, because all threads of the worker are busy, the receiver pauses the step: jobs that are
    held go back to the server, where another worker can get them.

    Threads: its own. Locks: the receiver's ``lock`` protects ``held``, ``is_wanted`` and
    ``consumption``.
    """

    def __init__(self, intake: Intake, priority: int) -> None:
        self._intake = intake
        self.priority = priority
        # Jobs and when they arrived, oldest first.
        self.held: deque[tuple[Delivery, float]] = deque()
        self.is_wanted: bool = True
        self._consumer: jetsync.Consumer | None = None
        # Seconds in which the server has to answer.
        self._patience = ANSWER
        # None as soon as the receiver has ended it.
        self.consumption: jetsync.Consumption | None = None
        # Seconds, as the server has it.
        self.ack_wait: float = intake.core.ack_wait
        self.thread = threading.Thread(
            target=self._run, name=f"jetsync-queue-{priority}", daemon=True
        )

    def _run(self) -> None:
        intake = self._intake
        while intake.wait_until_wanted(self):
            try:
                if not self._fetch():
                    # The client is closed or drains, or got a signal to stop.
                    intake.stop()
            except ENDS as error:
                intake.fail(error)
            except jetsync.ConnectionClosedError:
                intake.stop()
            except Exception as error:  # noqa: BLE001 - for example a consumer that was deleted.
                _logger.warning("queue_fetch_failed", queue=intake.core.name, error=repr(error))
                self._consumer = None
                intake.sleep(PAUSE)

    def _fetch(self) -> bool:
        """Fetch until the step is paused or the receiver stops; return False at another end."""
        intake = self._intake
        consumer = self._consumer
        if consumer is None:
            began = time.monotonic()
            consumer = self._consumer = intake.core.consumer(self.priority)
            self._patience = patience_after(time.monotonic() - began)
            self.ack_wait = consumer.cached_info.config.ack_wait or self.ack_wait
        consumption = consumer.consume(max_messages=intake.ahead)
        with consumption:
            if not intake.begin_fetching(self, consumption):
                return True
            for message in consumption:
                if not intake.hold(self, message):
                    return True
        return self.consumption is None

    def is_reachable(self, *, is_late: bool) -> bool:
        """Return whether a server has the consumer now; wait longer if it has been silent."""
        consumer = self._consumer
        began = time.monotonic()
        try:
            if consumer is not None:
                consumer.info(timeout=LATE_ANSWER if is_late else self._patience)
                self._patience = patience_after(time.monotonic() - began)
        except UNREACHABLE:
            return False
        except jetsync.JetSyncError as error:
            # Another attempt would end in the same way.
            _logger.info("queue_consumer_unknown", consumer=consumer, error=repr(error))
        return True

    def leave(self) -> jetsync.Consumption | None:
        """Return the consumption, which the caller ends. Called with the lock."""
        consumption, self.consumption = self.consumption, None
        return consumption

    def pause(self) -> jetsync.Consumption | None:
        """Fetch no more until a thread of the worker is free. Called with the lock."""
        self.is_wanted = False
        return self.leave()

    def take_held(self) -> list[Delivery]:
        """Forget and return the jobs that are held. Called with the lock."""
        found = [delivery for delivery, _ in self.held]
        self.held.clear()
        return found

    def is_stale(self, limit: float) -> bool:
        """Return whether a job is held for longer than that. Called with the lock."""
        return bool(self.held) and time.monotonic() - self.held[0][1] > limit


def patience_after(answer: float) -> float:
    """
    Return how many seconds to wait for the next answer after one that took so long.

    One very late answer must not keep the jobs of other priorities from being reported.
    """
    return min(max(ANSWER, 4.0 * answer), LATE_ANSWER)
