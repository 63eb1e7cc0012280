"""
The subscriptions of a lane, which are written again after each reconnect.
"""

from __future__ import annotations

import itertools
import secrets
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

from jetsync._io.mailbox import Mailbox
from jetsync._proto import frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._io.outbox import Outbox
    from jetsync._io.replies import ReplyRouter

# The first subscription id of a client is drawn from this range, so that it cannot be guessed.
SID_RANGE: Final = 1 << 32


class Subscriptions:
    """
    The receiver and the ``SUB`` line of each subscription.

    Threads: any thread.
    Locks: none; the dictionaries change by single calls into C.

    Args:
        outbox: Sends the ``UNSUB`` lines.
        later: Calls a function in the loop thread after some seconds; ``Lane.later``.
    """

    def __init__(self, outbox: Outbox, later: Callable[..., None]) -> None:
        # The receivers, by subscription id. The splitter of each connection uses this object.
        self.boxes: dict[bytes, Any] = {}
        # Mailboxes that all handles of the client use together, by subject. They last as long as
        # the lane, so the statistics do not count them: they would look like a leak.
        self.client_wide: dict[bytes, Mailbox] = {}
        self._outbox = outbox
        self._later = later
        # By subscription id: the SUB line, and the number of subscriptions that the connection had
        # before it.
        self._lines: dict[bytes, bytes] = {}
        self._ranks: dict[bytes, int] = {}
        # Each ends a subscription when its owner is garbage-collected.
        self._owners: dict[bytes, weakref.ref[object]] = {}
        self._sids = itertools.count(secrets.randbelow(SID_RANGE) + SID_RANGE)

    def sub_lines(self) -> bytes:
        """Return the ``SUB`` lines of all subscriptions, for a new connection; loop thread."""
        lines = dict(self._lines)
        self._ranks = {sid: count for count, sid in enumerate(lines)}
        return b"".join(lines.values())

    def new_sid(self) -> bytes:
        """Return a subscription id that no other subscription of this lane has; any thread."""
        return b"%d" % next(self._sids)

    def listen(
        self,
        sid: bytes,
        box: Mailbox | ReplyRouter,
        queue: bytes = b"",
        owner: object | None = None,
    ) -> bytes:
        """
        Route the frames of *sid* to *box* and return the ``SUB`` line to write; any thread.

        The lane writes the line again after each reconnect. The subscription ends when *owner* is
        dropped, if there is one.
        """
        line = frames.sub(box.interest, sid, queue)
        if owner is not None:
            # First, so that Ctrl-C leaves no subscription behind. A ``__del__`` would run after
            # each use, and Python loses a Ctrl-C that strikes in it.
            self._owners[sid] = weakref.ref(owner, lambda _: self._dropped(sid))
        self.boxes[sid] = box
        self._ranks[sid] = len(self._lines)
        self._lines[sid] = line
        if self._outbox.reason is not None:
            box.fail(self._outbox.reason)
        return line

    def _dropped(self, sid: bytes) -> None:
        """Unsubscribe because the owner was dropped, unless :meth:`unsubscribe` came first."""
        # Without the GIL, the weak reference may outlive its removal, and still call this.
        if sid in self._owners:
            self.unsubscribe(sid)

    def unsubscribe(
        self,
        sid: bytes,
        *,
        grace: float = 0.0,
        is_urgent: bool = False,
        is_ending: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        """
        Unsubscribe; any thread. Never waits and never fails.

        Frames in flight reach the mailbox for *grace* seconds more. After that, they count as
        strays. Without a grace, the server may send more frames for some milliseconds, unless this
        *is_urgent* because they would be lost.
        """
        if is_ending():
            # At its end, the interpreter empties modules, but not the default of an argument.
            return
        self._ranks.pop(sid, None)
        self._lines.pop(sid, None)
        # The rest comes last, so that after Ctrl-C a repeated call does it.
        if sid in self.boxes:
            # A wake-up of the loop for this line alone took a sixth of the CPU of `KeyValue.keys`.
            self._outbox.post_nowait(frames.unsub(sid), is_urgent=is_urgent or bool(grace))
            if grace and self._outbox.can_send:
                self._later(grace, self._forget, sid)
            else:
                self._forget(sid)
        self._owners.pop(sid, None)

    def _forget(self, sid: bytes) -> None:
        """Forget the mailbox of a subscription; any thread."""
        self.boxes.pop(sid, None)

    def receivers(self) -> list[Mailbox | ReplyRouter]:
        """Return the receivers of all subscriptions; any thread."""
        return list(self.boxes.values())

    def count(self) -> int:
        """Return how many subscriptions are open, without the client-wide ones; any thread."""
        client_wide = list(self.client_wide.values())
        return sum([receiver not in client_wide for receiver in self.receivers()])

    def take_refused(self) -> Mailbox | None:
        """
        Remove and return the subscription that the server refused because there are too many.

        The server does not name the subscription. It refuses each one above its limit, so this is
        the last one of the connection. If several threads subscribe at the same moment, this may
        return the wrong one of theirs. It never returns the reply subscription. Any thread.
        """
        last, before = None, -1
        for sid, count in list(self._ranks.items()):
            if count > before and isinstance(self.boxes.get(sid), Mailbox):
                last, before = sid, count
        if last is None:
            return None
        self._ranks.pop(last, None)
        self._lines.pop(last, None)
        box: Mailbox | None = self.boxes.pop(last, None)
        return box
