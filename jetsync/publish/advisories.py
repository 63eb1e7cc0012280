"""
The advisories in which the server reports that it has dropped an atomic batch.

All batches of a client use one subscription. The first batch makes it, and it lasts as long as
the client, as the one for replies does.

The thread that reads the socket parses the advisories, although it parses no other JSON of
JetStream. Only the content of an advisory names its batch. A batch has to learn of its loss before
its next message, and plugins learn of it even if no call on the batch follows. The subscription
also brings the advisories about batches of other clients, so queues of unparsed ones would need
limits. Advisories are rare, and they are dropped unparsed while none is expected.

The advisory of a batch that the server refuses may arrive after the refusal, when the batch is
gone. So the last batches that were not stored are remembered for it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from jetsync._io.handles import list_of
from jetsync._io.mailbox import Mailbox
from jetsync.errors import ProtocolError
from jetsync.events import BatchAbandonedEvent
from jetsync.values.server_info import decode_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._io.lane import Lane
    from jetsync.publish.atomic_attempt import BatchAttempt
    from jetsync.values.frame import Frame

# If the user may not subscribe to it, jetsync notices the loss of a batch with the next answer.
INTEREST: Final = b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.*"

# If more advisories are expected, those of the oldest batches that have ended are not any more.
KEPT: Final = 1000


class Advisories(Mailbox):
    """Reports each advisory about a batch of this client, and passes it to the batch."""

    # Threads: any for `listen` and `forget`, and the one that reads the socket for `_receive`.
    # Locks: none; a dictionary changes by single calls into C.

    def __init__(self, lane: Lane) -> None:
        super().__init__(INTEREST, sink=self._receive)
        # By stream and id: what passes an event to the plugins, and the attempt. That is weak,
        # because the mailbox lives longer than the batches.
        self.expected: dict[
            tuple[str, str],
            tuple[Callable[[BatchAbandonedEvent], object], weakref.ref[BatchAttempt]],
        ] = {}
        self.sid: bytes = lane.subscriptions.new_sid()
        self.is_subscribed: bool = False

    def _receive(self, frame: Frame) -> None:
        if not self.expected:
            return
        try:
            advisory = decode_json(frame[3])
        except ProtocolError:
            return
        stream, batch, reason = (str(advisory.get(key)) for key in ("stream", "batch", "reason"))
        found = self.expected.pop((stream, batch), None)
        if found is None:
            return
        emit, reference = found
        # First, so that a plugin that has the event finds the batch ended.
        attempt = reference()
        if attempt is not None:
            attempt.on_advisory(reason)
        emit(BatchAbandonedEvent(stream=stream, batch_id=batch, reason=reason))


def listen(
    lane: Lane, attempt: BatchAttempt, emit: Callable[[BatchAbandonedEvent], object]
) -> None:
    """
    Have *attempt* and *emit* get the server's advisory about its batch; never waits.

    *emit* must not refer to the client.
    """
    boxes = lane.subscriptions.client_wide
    box = boxes.get(INTEREST) or boxes.setdefault(INTEREST, Advisories(lane))
    assert isinstance(box, Advisories)
    box.expected[attempt.known.name, attempt.id] = emit, weakref.ref(attempt)
    if len(box.expected) > KEPT:
        _forget_oldest(box)
    if not box.is_subscribed:
        # If two threads do this, the server ignores the second line, which is the same.
        lane.post_nowait(lane.subscriptions.listen(box.sid, box))
        box.is_subscribed = True


def _forget_oldest(box: Advisories) -> None:
    """Expect no advisory about the oldest batch that has ended."""
    for key, (_, reference) in list_of(box.expected.items()):
        attempt = reference()
        if attempt is None or not attempt.is_open:
            box.expected.pop(key, None)
            return


def forget(lane: Lane, attempt: BatchAttempt) -> None:
    """Expect no advisory about a batch, because it is stored or this client has discarded it."""
    box = lane.subscriptions.client_wide.get(INTEREST)
    if isinstance(box, Advisories):
        box.expected.pop((attempt.known.name, attempt.id), None)
