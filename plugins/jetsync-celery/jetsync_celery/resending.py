"""
Tasks that are sent again because it is unknown whether the server has stored them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from kombu.utils.json import dumps

import jetsync

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_UNKNOWN: Final = 10_000
"""Messages with an unknown outcome that a process remembers; it forgets the oldest ones."""


class Resending:
    """
    The ids of messages with an unknown outcome: the same task, sent again, gets the same id.

    Celery sends a task again after an error, and so may a program. If an earlier one was confirmed,
    an equal task is a new one, because a signature may be applied twice.

    Threads: any.
    Locks: `_lock` protects `_unknown`.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, also a lock that another thread of a forked parent held."""
        self._lock = jetsync.interrupt_safe_lock()
        self._unknown: dict[bytes, tuple[str, float]] = {}

    @contextlib.contextmanager
    def sending(
        self, queue: str, task: Mapping[str, Any], data: bytes, window: float
    ) -> Iterator[str]:
        """
        Give a message its id while the block sends it.

        Args:
            queue: What the message is sent to.
            task: Celery's headers.
            data: The body.
            window: Seconds for which the server recognises an id.
        """
        # The common case computes no fingerprint.
        known = self._known(fingerprint(queue, task, data)) if self._unknown else None
        msg_id = known or uuid.uuid4().hex
        until = time.monotonic() + window
        try:
            yield msg_id
        except jetsync.PublishOutcomeUnknownError:
            self._note(fingerprint(queue, task, data), msg_id, until)
            raise
        except jetsync.JetSyncError:
            raise  # It is not stored.
        except BaseException:
            # An interrupt, for example a time limit of Celery.
            self._note(fingerprint(queue, task, data), msg_id, until)
            raise
        if known is not None:
            with self._lock:
                self._unknown.pop(fingerprint(queue, task, data), None)

    def _known(self, key: bytes) -> str | None:
        with self._lock:
            msg_id, until = self._unknown.get(key, (None, 0.0))
        return msg_id if time.monotonic() < until else None

    def _note(self, key: bytes, msg_id: str, until: float) -> None:
        with self._lock:
            self._unknown.pop(key, None)
            while len(self._unknown) >= MAX_UNKNOWN:
                self._unknown.pop(next(iter(self._unknown)))
            self._unknown[key] = (msg_id, until)


def fingerprint(queue: str, task: Mapping[str, Any], data: bytes) -> bytes:
    """
    Return what is equal for a task that is sent again unchanged.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (queue.encode(), dumps(task).encode(), data):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


RESENDING: Final = Resending()
"""Those of this process. kombu sends again over another connection."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RESENDING.reset)
