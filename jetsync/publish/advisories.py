"""
The advisories in which the server reports that it has dropped an atomic batch.

The batches of a client on one stream share one subscription. It ends a moment after the last batch,
because another batch usually follows. With a subscription for each batch, the client would send two
more lines, and a cluster would forward them to all its servers.
"""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Final

from jetsync._io.mailbox import Mailbox
from jetsync.errors import PermissionDeniedError

if TYPE_CHECKING:
    from jetsync._io.lane import Lane
    from jetsync.publish.atomic_attempt import BatchAttempt
    from jetsync.values.frame import Frame

# If a user may not subscribe to it, jetsync notices the loss of a batch with the next answer.
ADVISORY: Final = "$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED."

# The subscription ends when no batch has used it for one to two times this many seconds.
IDLE_CHECK: Final = 1.0


class Advisories(Mailbox):
    """
    Passes the advisories of one stream to the batches that they are about; thread-safe.
    """

    def __init__(self, lane: Lane, interest: bytes) -> None:
        super().__init__(interest)
        self.push = self._receive
        self.on_failure = self._on_failure
        # Weak, because Ctrl-C may keep an attempt from being removed.
        self.attempts: weakref.WeakValueDictionary[str, BatchAttempt] = (
            weakref.WeakValueDictionary()
        )
        # Whether a batch has begun since the last check.
        self.used: bool = True
        # The connection on which the server denied the subscription; 0 if it did not.
        self.denied_on: int = 0
        self._lane = lane
        self._sid = lane.new_sid()
        # In this order: after Ctrl-C in between, the check ends the subscription.
        lane.later(IDLE_CHECK, self._check_idle)
        # The line that subscribes, to be written before a message; empty once it was written. If
        # two batches write it, the server ignores the second one.
        self.line: bytes = lane.listen(self._sid, self)

    def _receive(self, frame: Frame) -> None:
        """Pass on an advisory, unparsed; runs in the thread that reads the socket."""
        for reference in self.attempts.valuerefs():
            attempt = reference()
            if attempt is not None and _mark_of(attempt.id) in frame[3]:
                attempt.on_advisory(frame)

    def _on_failure(self, error: Exception) -> None:
        """Unsubscribe. If permission was denied, no batch on this connection subscribes again."""
        self.line = b""
        if isinstance(error, PermissionDeniedError):
            self.denied_on = self._lane.outbox.epoch
        else:
            self.leave()
        self._lane.unsubscribe(self._sid)

    def leave(self) -> None:
        """Have the next batch subscribe again."""
        if self._lane.shared.get(self.interest) is self:
            self._lane.shared.pop(self.interest, None)

    def _is_idle(self) -> bool:
        return not self.used and not self.attempts

    def _check_idle(self) -> None:
        """Unsubscribe if no batch needs it; runs in the loop thread."""
        if self.failure is not None:
            return
        if self._is_idle():
            self.leave()
            # Checked again, because `listen` adds a batch before it sees that this has left.
            if self._is_idle():
                self._lane.unsubscribe(self._sid)
                return
            self._lane.shared.setdefault(self.interest, self)
        self.used = False
        self._lane.later(IDLE_CHECK, self._check_idle)


def _mark_of(batch_id: str) -> bytes:
    """Return the part of the JSON of an advisory that names its batch, as servers write it."""
    # Go escapes these three in addition. Without the quotes, the id may be the start of another.
    text = json.dumps(batch_id, ensure_ascii=False)
    for character in "&<>":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return b'"batch":' + text.encode()


def listen(lane: Lane, attempt: BatchAttempt) -> Advisories:
    """Have *attempt* receive the advisories about its batch."""
    interest = (ADVISORY + attempt.known.name).encode()
    shared = lane.shared
    while True:
        box = shared.get(interest) or shared.setdefault(interest, Advisories(lane, interest))
        assert isinstance(box, Advisories)
        if 0 < box.denied_on < lane.outbox.epoch:
            # The next connection may have other permissions.
            box.leave()
            continue
        box.attempts[attempt.id] = attempt
        box.used = True
        if shared.get(interest) is box:
            return box
        # The check has just ended it. If it stays nevertheless, it must not report the batch twice.
        box.attempts.pop(attempt.id, None)
