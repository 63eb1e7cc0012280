"""
Acknowledgements that are sent until the server has confirmed them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

import jetsync

THREADS: Final = 16
"""Most threads that send. Each waits for one confirmation, which takes a round trip."""

IDLE: Final = 5.0
"""Seconds after which a thread ends that has nothing to send."""

SOON: Final = 0.5
"""Seconds to wait for a confirmation at first. A new leader waits from 0.5 to 1.5 s for
acknowledgements that the last one did not get."""

ATTEMPTS: Final = 20
"""Attempts with that limit. After that, it is the client's ``request_timeout``."""

PAUSE: Final = 0.1
"""Seconds between two attempts to send an acknowledgement."""

GIVE_UP: Final = 60.0
"""Seconds after which a consumer that nobody has is taken for deleted."""

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


@attrs.define(eq=False)
class Answer:
    """
    An acknowledgement to send.
    """

    send: Callable[[float | None], object]
    give_up: Callable[[], object]
    attempts: int = 0
    unanswered_since: float | None = None
    """Since when there is a connection, and nobody who takes it."""


class Answers:
    """
    Sends acknowledgements in threads.

    The caller is often the event loop of a worker, which must not wait, and which calls once only:
    an acknowledgement that is lost would let a task that is done run again. Without a connection,
    the threads wait for it in their calls, so that acknowledgements are sent as soon as it is back.

    Threads: any, and up to `THREADS` of its own while there is something to send.
    Locks: `_lock` protects all fields. Nothing is sent under it.
    """

    def __init__(self, client: jetsync.Client) -> None:
        self._client = client
        self._lock = jetsync.interrupt_safe_lock()
        self._changed = threading.Condition(self._lock)
        # Apart, so that the end of one acknowledgement does not wake all idle threads.
        self._finished = threading.Condition(self._lock)
        self._waiting: deque[Answer] = deque()
        # Of these threads, and how many of them wait for something to send.
        self._threads = 0
        self._idle = 0

    def send(self, answer: Callable[[float | None], object], give_up: Callable[[], object]) -> None:
        """
        Send an acknowledgement now, or as soon as there is a connection.

        Args:
            answer: Sends it, and waits for the confirmation. It gets the seconds to wait, or None
                for the default.
            give_up: Called if it cannot be sent for another reason than the connection.
        """
        thread = None
        with self._lock:
            self._waiting.append(Answer(answer, give_up))
            if self._idle >= len(self._waiting) or self._threads == THREADS:
                self._changed.notify()
            else:
                self._threads += 1
                thread = threading.Thread(
                    target=self._run, name="jetsync-celery-answers", daemon=True
                )
        if thread is not None:
            try:
                thread.start()
            except BaseException:
                # There can be no further thread. The next one that runs sends this, too.
                with self._lock:
                    self._threads -= 1
                raise

    @property
    def is_connected(self) -> bool:
        """Whether acknowledgements can be sent now."""
        return self._client.is_connected

    def finish(self, timeout: float) -> None:
        """If there is a connection, wait until nothing is left to send, at most some seconds."""
        if self._client.is_connected:
            with self._lock:
                self._finished.wait_for(
                    lambda: not self._waiting and self._idle == self._threads, timeout
                )

    def _run(self) -> None:
        while (answer := self._next()) is not None:
            if not self._is_done(answer):
                time.sleep(PAUSE)
                with self._lock:
                    self._waiting.append(answer)

    def _next(self) -> Answer | None:
        """Return what to send next; None if the thread is to end."""
        with self._lock:
            self._idle += 1
            self._finished.notify_all()
            self._changed.wait_for(lambda: self._waiting, IDLE)
            self._idle -= 1
            if not self._waiting or self._client.is_closed:
                # Without the client, the server delivers the tasks again.
                self._waiting.clear()
                self._threads -= 1
                self._finished.notify_all()
                return None
            return self._waiting.popleft()

    def _is_done(self, answer: Answer) -> bool:
        """Send an acknowledgement, and return whether to forget it."""
        answer.attempts += 1
        try:
            answer.send(SOON if answer.attempts <= ATTEMPTS else None)
        except jetsync.MessageAlreadyAckedError:
            return True
        except UNSENT as error:
            if not _is_lost(answer, error):
                _logger.info("celery_acknowledgement_repeated", error=str(error))
                return False
            _logger.warning("celery_acknowledgement_failed", error=str(error))
        except Exception as error:  # noqa: BLE001 - other answers need the thread.
            _logger.warning("celery_acknowledgement_failed", error=repr(error))
        else:
            return True
        answer.give_up()
        return True


def _is_lost(answer: Answer, error: jetsync.JetSyncError) -> bool:
    """Return whether nobody has taken an acknowledgement for so long that nobody will."""
    if not isinstance(error, jetsync.NoRespondersError):
        answer.unanswered_since = None
        return False
    now = time.monotonic()
    if answer.unanswered_since is None:
        answer.unanswered_since = now
    return now - answer.unanswered_since > GIVE_UP
