"""
The function that a member's consumption calls with each message.
"""

from __future__ import annotations

import contextlib
import re
import threading
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_groups.dead_letters import reason_of
from jetsync_groups.names import published_subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync_groups.dead_letters import DeadLetters

_PIN: Final = re.compile(rb"\r\nNats-Pin-Id: *([^\r]*)\r\n")


class Worker:
    """
    Shows messages under the subject that was published, and keeps what a change of members needs.

    The consumption has one thread, which is the only one that calls this object. Another one reads
    its fields after the consumption has ended.

    Args:
        handler: The handler of the application.
        letters: Where given up messages go; None if they do not.
        before: The member's last worker, whose counts go on; None if this is the first one.
    """

    def __init__(
        self,
        handler: Callable[[jetsync.Message], object],
        letters: DeadLetters | None,
        *,
        before: Worker | None = None,
    ) -> None:
        self._handler = handler
        self._letters = letters
        # The thread that is in the handler.
        self.thread: int | None = None
        self.calls: int = 0
        self.handled: int = 0 if before is None else before.handled
        self.failures: int = 0 if before is None else before.failures
        self.dead_letters: int = 0 if before is None else before.dead_letters
        # The sequences of messages that failed, and that the server will deliver again.
        self.failed: set[int] = set()
        self._last_headers: bytes | None = None

    @property
    def pin(self) -> str | None:
        """
        The pin id of the last message; None if none has arrived.
        """
        found = None if self._last_headers is None else _PIN.search(self._last_headers)
        return None if found is None else found[1].decode("utf-8", "replace")

    def __call__(self, message: jetsync.Message) -> None:
        """
        Call the handler with a message. An exception has the message redelivered.
        """
        self.calls += 1
        self._last_headers = message.raw_headers
        shown = message
        with contextlib.suppress(jetsync.InvalidSubjectError):  # Servers store any bytes.
            shown = message.replace(subject=published_subject(message.subject))
        letters, sequence = self._letters, message.sequence
        # Until the handler has returned.
        self.failed.add(sequence)
        if letters is not None and letters.is_over(message.metadata.delivered):
            tries = message.metadata.delivered - 1
            if self._give_up(shown, f"delivered {tries} times, never acknowledged"):
                return
            raise _NotStoredError("the dead letter could not be stored")
        try:
            self.thread = threading.get_ident()
            try:
                self._handler(shown)
            finally:
                self.thread = None
        except Exception as error:
            self.failures += 1
            delivered = message.metadata.delivered
            gives_up = letters is not None and letters.gives_up(delivered, error)
            if gives_up and not shown.is_acked and self._give_up(shown, reason_of(error)):
                return
            raise
        self.handled += 1
        self.failed.discard(sequence)

    def _give_up(self, message: jetsync.Message, reason: str) -> bool:
        assert self._letters is not None
        if not self._letters.store(message, reason):
            return False
        message.term("dead letter")
        self.dead_letters += 1
        self.failed.discard(message.sequence)
        return True


class _NotStoredError(Exception):
    """
    The dead letter of a message was not stored, so the message is delivered again.
    """
