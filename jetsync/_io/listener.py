"""
The subscription of a mailbox, which ends with its owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetsync._base.deadline import Deadline
    from jetsync._io.lane import Lane
    from jetsync._io.mailbox import Mailbox


class Listener:
    """
    The subscription of a mailbox. It ends when its owner drops it, unless :meth:`end` came first.

    So Ctrl-C leaves no subscription behind, wherever it interrupts the owner. The lane would write
    such a subscription again after each reconnect. The lane refers to the mailbox, so the mailbox
    must not refer to the owner.

    Threads: the owner, in any thread.
    Locks: none.
    """

    __slots__ = ("__weakref__", "_box", "_lane", "line", "sid")

    def __init__(self, lane: Lane, box: Mailbox, queue: bytes = b"") -> None:
        self._lane = lane
        self._box = box
        subscriptions = lane.subscriptions
        self.sid: bytes = subscriptions.new_sid()
        # The SUB line, until it is written. An owner that does not call `write` empties it.
        self.line: bytes = subscriptions.listen(self.sid, box, queue, self)

    def write(self, block: bytes, deadline: Deadline) -> int:
        """
        Write a block whose answers the mailbox gets, and return its epoch; as ``Outbox.write``.

        The first block follows the SUB line.
        """
        lane = self._lane
        epoch = lane.write(self.line + block, deadline)
        self.line = b""
        if lane.lost_epoch >= epoch:
            # The connection was lost after the write.
            self._box.lost(lane.lost_epoch)
        return epoch

    def end(self, *, grace: float = 0.0, is_urgent: bool = False) -> None:
        """Unsubscribe, as :meth:`Subscriptions.unsubscribe` does."""
        self._lane.subscriptions.unsubscribe(self.sid, grace=grace, is_urgent=is_urgent)
