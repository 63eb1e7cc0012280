"""
The advisories in which the server reports that it has dropped an atomic batch.

All batches of a client use one subscription. The first batch makes it, and it lasts as long as
the client, as the one for replies does.

The thread that reads the socket parses the advisories, although it parses no other JSON of
JetStream. Only the content of an advisory names its batch. A batch has to learn of its loss before
its next message, and plugins learn of it even if no call on the batch follows. The subscription
also brings the advisories about batches of other clients, so queues of unparsed ones would need
limits. Advisories are rare, and they are dropped unparsed while the client has no batch.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from jetsync._io.mailbox import Mailbox
from jetsync.errors import ProtocolError
from jetsync.values.server_info import decode_json

if TYPE_CHECKING:
    from jetsync._io.lane import Lane
    from jetsync.publish.atomic_attempt import BatchAttempt
    from jetsync.values.frame import Frame

# If the user may not subscribe to it, jetsync notices the loss of a batch with the next answer.
INTEREST: Final = b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.*"


class Advisories(Mailbox):
    """Passes each advisory to the batch that it is about."""

    # Threads: any for `listen`, and the one that reads the socket for `_receive`.
    # Locks: none; a dictionary changes by single calls into C.

    def __init__(self, lane: Lane) -> None:
        super().__init__(INTEREST, sink=self._receive)
        # By stream and id. Weak, because the mailbox lives longer than the batches.
        self.attempts: weakref.WeakValueDictionary[tuple[str, str], BatchAttempt] = (
            weakref.WeakValueDictionary()
        )
        self.sid: bytes = lane.subscriptions.new_sid()
        self.is_subscribed: bool = False

    def _receive(self, frame: Frame) -> None:
        if not self.attempts:
            return
        try:
            advisory = decode_json(frame[3])
        except ProtocolError:
            return
        stream, batch, reason = (str(advisory.get(key)) for key in ("stream", "batch", "reason"))
        attempt = self.attempts.get((stream, batch))
        if attempt is not None:
            attempt.on_advisory(reason)


def listen(lane: Lane, attempt: BatchAttempt) -> None:
    """Have *attempt* get the server's advisories about its batch; never waits."""
    boxes = lane.subscriptions.client_wide
    box = boxes.get(INTEREST) or boxes.setdefault(INTEREST, Advisories(lane))
    assert isinstance(box, Advisories)
    box.attempts[attempt.known.name, attempt.id] = attempt
    if not box.is_subscribed:
        # If two threads do this, the server ignores the second line, which is the same.
        lane.post_nowait(lane.subscriptions.listen(box.sid, box))
        box.is_subscribed = True
