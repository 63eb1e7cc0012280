"""
Inboxes for the answers to pulls: each has one subscription, a mailbox and a pull engine.

A consumer keeps the inboxes that are idle and lends one to each fetch. A consumption takes one, and
closes it at its end. If an inbox is abandoned while a pull is open, it naks the messages that still
arrive. So the server redelivers them at once, and not only after the consumer's ``ack_wait``.
"""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from typing import TYPE_CHECKING, Final

from jetsync._io.mailbox import Listener, Mailbox, take_all
from jetsync._proto import frames
from jetsync._proto.origin import Origin
from jetsync._proto.pull import NO_PRIORITIES, PullEngine, PullRequest, message_size
from jetsync.consume.acks import give_back
from jetsync.errors import JetSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync._base.deadline import Deadline
    from jetsync._io.lane import Lane
    from jetsync._proto.pull import Priorities, Pull
    from jetsync.consume.target import PullTarget
    from jetsync.values.frame import Frame

# The shortest pause between two pulls that keep a consumer, in seconds.
SHORTEST_KEEP: Final = 0.05

# Seconds for which an abandoned inbox still naks messages that arrive.
LATE_MESSAGES: Final = 5.0

# How many frames may wait in an inbox, and how many bytes may arrive, before it looks which of them
# were asked for. Both are above what one read of the socket returns.
SIFTED_FRAMES: Final = 4096
SIFTED_BYTES: Final = 16 << 20


class SiftedMailbox(Mailbox):
    """
    The frames of a consumer that no thread has received yet.

    If more than :data:`SIFTED_FRAMES` frames or :data:`SIFTED_BYTES` bytes wait, it drops those
    that are not wanted. So a flood does not fill the memory while the program is busy.

    Threads: the one that reads the socket pushes and wakes. The owner takes.
    Locks: none; the queues change by single calls into C.

    Args:
        interest: The subject that is subscribed to.
        sift: Returns the wanted ones of some frames; the thread that reads calls it.
        lane: The lane that the frames arrive on.
    """

    def __init__(
        self, interest: bytes, sift: Callable[[list[Frame]], list[Frame]], lane: Lane
    ) -> None:
        super().__init__(interest, collect_denials=True)
        self._choose = sift
        self._lane = lane
        # Sifted if more frames wait, or once the connection has received more bytes in all.
        self._most_frames = SIFTED_FRAMES
        self._most_bytes = lane.bytes_in + SIFTED_BYTES

    def wake(self) -> None:
        """Drop what is not wanted if too much waits, and wake the thread."""
        if len(self.frames) > self._most_frames or self._lane.bytes_in > self._most_bytes:
            self.sift()
        self.signal.set()

    def sift(self) -> None:
        """Drop what is not wanted; only the thread that reads."""
        arrived: list[Frame] = []
        # From the right, because the owner may take from the left at the same time.
        with contextlib.suppress(IndexError):
            while True:
                arrived.append(self.frames.pop())
        arrived.reverse()
        kept = self._choose(arrived)
        self.frames.extend(kept)
        # Doubled, so that wanted frames are not sifted again and again.
        self._most_frames = max(SIFTED_FRAMES, 2 * len(kept))
        size = sum(map(message_size, kept))
        self._most_bytes = self._lane.bytes_in + max(SIFTED_BYTES, size)


class PullInbox:
    """
    The subscription that pulls are answered on; lent to one fetch or consumption at a time.

    Threads: the one that iterates over the batch or drives the consumption. The thread that reads
    the socket fills the mailbox.
    Locks: none; the owner lets in one call at a time.
    """

    __slots__ = ("_listener", "box", "engine", "lane")

    def __init__(self, target: PullTarget) -> None:
        context = target.context
        self.lane: Lane = context.lane
        self.engine: PullEngine = PullEngine(
            context.connection.new_inbox().encode(), Origin(target.stream, target.consumer)
        )
        self.box: Mailbox = SiftedMailbox(self.engine.prefix + b"*", self.engine.sift, self.lane)
        context.connection.pull_boxes.add(self.box)
        # The SUB line is sent with the first pull.
        self._listener = Listener(self.lane, self.box)

    def pull(self, subject: bytes, request: PullRequest, deadline: Deadline) -> Pull:
        """Send a pull; if this raises, as the lane's ``write`` does, nothing was sent."""
        pull = self.engine.open(request, time.monotonic())
        block = frames.pub(subject, pull.subject, request.wire)
        try:
            epoch = self._listener.write(block, deadline)
            self.engine.sent(pull, epoch)
        except JetSyncError:
            # An interrupt, too, may leave it open. It ends the owner.
            self.engine.remove(pull)
            raise
        return pull

    def abandon(self, unused: Iterable[Frame], *, acked: bool = True) -> None:
        """
        Unsubscribe while a pull may be open; never waits.

        Args:
            unused: Messages that arrived and were not taken.
            acked: Whether the consumer wants acknowledgements. If not, there is nothing to nak.
        """
        if acked:
            abandon(self.box, self._listener, unused, functools.partial(give_back, self.lane))
        else:
            self._listener.end()

    def close(self) -> None:
        """Unsubscribe while no pull is open."""
        self._listener.end()


def abandon(
    box: Mailbox,
    listener: Listener,
    unused: Iterable[Frame],
    give: Callable[[Iterable[Frame]], None],
) -> None:
    """
    Unsubscribe and call *give* with *unused* and with all frames that still arrive; never waits.

    *give* must not refer to the owner of the mailbox.
    """
    arrived = box.frames
    # The reading thread calls it after it has added frames. So each frame is found, either here or
    # by that thread.
    box.wake = lambda: give(take_all(arrived))  # type: ignore[method-assign]
    # Unsubscribed before the naks: the server would redeliver the messages to this very client.
    listener.end(grace=LATE_MESSAGES)
    give(unused)
    box.wake()


def empty_pull(
    target: PullTarget, priorities: Priorities = NO_PRIORITIES, *, expires: float = 0.0
) -> bytes:
    """
    Return a pull that brings nothing, because no message fits into the one byte that it asks for.

    Servers 2.10 to 2.15 count it as a pull. If it waits, they also look for messages for the other
    pulls that wait.
    """
    request = PullRequest(
        max_messages=1, max_bytes=1, expires=expires, no_wait=not expires, priorities=priorities
    )
    # There is no subscription to this reply subject, so no client gets the status.
    reply = target.context.connection.new_inbox().encode()
    return frames.pub(target.subject, reply, request.wire)


class ConsumerKeeper:
    """
    Keeps a consumer on the server while the program is busy and pulls nothing.

    Servers delete a consumer with an ``inactive_threshold`` unless pulls arrive or wait. The loop
    thread sends a prepared pull on a timer, and decides nothing.

    Threads: the loop thread. The thread that drives the consumption sets the flags.
    Locks: none; setting a flag is one step.
    """

    def __init__(self, target: PullTarget, priorities: Priorities, threshold: float) -> None:
        self._lane = target.lane
        self._block = empty_pull(target, priorities)
        self._interval = max(threshold / 3.0, SHORTEST_KEEP)
        # Set while a thread waits for messages, because its own pulls are open then.
        self.paused = False
        self.stopped = False
        self.tick_later()

    def tick_later(self) -> None:
        """Have :meth:`tick` called, unless this object is dropped before."""
        self._lane.later(self._interval, _tick, weakref.ref(self))

    def tick(self) -> None:
        """Send the pull; loop thread."""
        if not self.stopped:
            if not self.paused:
                self._lane.post_nowait(self._block)
            self.tick_later()


def _tick(reference: weakref.ref[ConsumerKeeper]) -> None:
    keeper = reference()
    if keeper is not None:
        keeper.tick()


def take_inbox(target: PullTarget) -> PullInbox:
    """Return an idle inbox of the target's pool, or a new one; thread-safe."""
    inbox: PullInbox | None
    try:
        inbox = target.pool.pop()
    except IndexError:
        # Not checked before: another thread may take the last inbox after the check.
        inbox = None
    # In a forked child, the inboxes of the parent are useless.
    if inbox is None or inbox.lane is not target.context.lane:
        return PullInbox(target)
    if inbox.engine.probe.asked:
        inbox.engine.probe.reset()
    if inbox.box.ready:
        # Forget losses and refused publishes: none of them was a pull on this idle inbox.
        inbox.box.take_denials()
        inbox.box.take_lost()
    return inbox
