"""
The feed of a pull consumer: it sends pulls, and receives what they bring.

Servers send the answers to a pull to its reply subject. Each feed has one subscription for all its
pulls. A consumer keeps the feeds that are idle, and lends one to each read. So a fetch usually
costs one write and no new subscription.
"""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync._base.deadline import NO_WAIT
from jetsync._base.log import get_logger
from jetsync._io.listener import Listener
from jetsync._io.mailbox import take_all
from jetsync._proto import frames
from jetsync._proto.open_pulls import OpenPulls
from jetsync._proto.pull_request import NO_PRIORITIES, PullRequest
from jetsync._proto.pulling import Pulling
from jetsync.consume.auto_acks import give_back
from jetsync.consume.feed import Feed, SiftedMailbox, abandon
from jetsync.events import PullOutcome

if TYPE_CHECKING:
    from jetsync._hooks.calls import Entered
    from jetsync._proto.pull_request import Priorities
    from jetsync.consume.target import PullTarget
    from jetsync.values.frame import Frame

# After this many refused pulls in a row, a warning is logged: the server may refuse all later ones.
REFUSALS_WARNED: Final = 5

# The shortest pause between two pulls that keep a consumer, in seconds.
SHORTEST_KEEP: Final = 0.05

_logger = get_logger("jetsync.consume")


class PullFeed(Feed[Pulling]):
    """
    The pulls of one consumption, or of one fetch after another, and their subscription.

    Threads: as for :class:`Feed`.
    Locks: none; the reading turn of its core protects it.

    Args:
        target: The consumer.
    """

    def __init__(self, target: PullTarget) -> None:
        context = target.context
        self.pulls: Final = OpenPulls(context.connection.new_inbox().encode(), target.origin)
        box = SiftedMailbox(self.pulls.prefix + b"*", self.pulls.sift, context.lane)
        super().__init__(context.lane, box)
        # The SUB line is sent with the first pull.
        self._listener = Listener(self.lane, box)
        # Whether no message may arrive after the end.
        self._is_idle = False
        # The plugins around the open pulls, by the reply subjects of the pulls.
        self.entered: dict[bytes, Entered] = {}

    def end(self, *, closing: bool) -> None:
        """
        Send no more pulls, unsubscribe unless it is idle, and nak what will not be taken.

        Unless it is closing, the messages that have arrived can still be taken.
        """
        engine, target, box = self.engine, self.target, self.box
        unused: list[Frame] = []
        self._is_idle = False
        if box.frames and not closing:
            self.receive(time.monotonic())
        if closing:
            unused = engine.take_all()
        elif engine.refused:
            unused = engine.take_refused()
        if engine.may_be_served or box.frames or box.failure is not None:
            # If Ctrl-C strikes and this is repeated, it must not go to the pool.
            engine.give_up()
            if target.wants_acks:
                abandon(box, self._listener, unused, functools.partial(give_back, self.lane))
            else:
                # No message is redelivered. An ordered read gets the next ones from its place.
                self._listener.end(is_urgent=engine.order is None)
            self.pulls.clear()
        else:
            if unused:
                target.give_back(unused)
            # The statistics of a consumption that has ended still show its pulls.
            self._is_idle = engine.is_bounded
            if not self._is_idle:
                self._listener.end()
        if self.entered:
            self.leave_ended()

    def return_to_pool(self) -> None:
        """Go to the pool of the consumer, if this was a fetch and no message may arrive."""
        if self._is_idle:
            pool = self.target.pool
            # The consumer refers to its idle feeds, so they must not refer to it.
            del self.target, self.engine
            pool.append(self)

    def receive(self, now: float) -> None:
        """Pass the frames in the mailbox to the engine, and report the statuses."""
        engine, target = self.engine, self.target
        for status, outcome in engine.receive(take_all(self.box.frames), now):
            target.report_status(status, outcome)
            if outcome is PullOutcome.RETRIED and engine.refusals == REFUSALS_WARNED:
                _logger.warning(
                    "pulls_refused",
                    stream=target.stream,
                    consumer=target.consumer,
                    code=status.code,
                    # Some have no text.
                    description=status.description or status.rule.meaning,
                )
        if engine.refused:
            target.give_back(engine.take_refused())
        pulls = self.pulls
        if pulls.strays.fresh or pulls.sifted.fresh:
            target.report_strays(pulls.strays, pulls.sifted)

    def lost(self, epoch: int, now: float) -> None:
        """
        Report a loss. Warn if the pulls could bring more than a server keeps for a slow client.

        A server that drops a slow client says so only in its own log.
        """
        overload = self.engine.overload()
        if overload is not None:
            awaited, size = overload
            room = frames.SERVER_BUFFER // 2
            _logger.warning(
                "pull_too_large",
                stream=self.target.stream,
                consumer=self.target.consumer,
                message_size=size,
                awaited=awaited,
                reason="the server may have dropped this client as a slow consumer: by "
                f"default it keeps {frames.SERVER_BUFFER >> 20} MiB for a client; "
                f"pass max_bytes={room} or max_messages={max(room // size, 1)}",
            )
        super().lost(epoch, now)

    def send(self, now: float) -> bool:
        """Send the pulls that are due, and the probe; return False if nothing can be sent now."""
        engine = self.engine
        while (request := engine.next_pull(now)) is not None:
            if not self.pull(request):
                return False
        probe = engine.probe_due(now)
        if probe is not None:
            with contextlib.suppress(errors.TransportError, errors.CallInSignalHandlerError):
                block = frames.pub(self.target.info_subject, probe, b"")
                self.lane.write(block, NO_WAIT)
        return True

    def leave_ended(self) -> None:
        """Leave the plugins around pulls that have ended."""
        for subject in [subject for subject in self.entered if subject not in self.pulls]:
            self.entered.pop(subject).leave(None, None)

    def pull(self, request: PullRequest) -> bool:
        """Send one pull; return False if that is not possible now."""
        target = self.target
        entered: Entered | None = None
        wraps = target.context.plugins.enter_fetch is not None
        # They wrap a fetch as a whole.
        if wraps and not self.engine.is_bounded:
            entered = target.enter("consume", request, request.expires)
        pull = self.pulls.open(request, time.monotonic())
        block = frames.pub(target.subject, pull.subject, request.wire)
        try:
            self.pulls.sent(pull, self._listener.write(block, NO_WAIT))
        except BaseException as error:
            # After an interrupt it may be sent, so it stays open.
            if isinstance(error, errors.JetSyncError):
                self.pulls.remove(pull)
            if entered is not None:
                with contextlib.suppress(type(error)):
                    entered.leave(None, error)
            # The call that a signal handler interrupted sends the pull later.
            if isinstance(error, (errors.DisconnectedError, errors.CallInSignalHandlerError)):
                self.blocked = True
                return False
            raise
        if entered is not None:
            self.entered[pull.subject] = entered
        return True


def take_feed(target: PullTarget) -> PullFeed:
    """Return an idle feed of the target's pool, or a new one; thread-safe."""
    try:
        feed = target.pool.pop()
    except IndexError:
        # Not checked before: another thread may take the last one after the check.
        return PullFeed(target)
    # In a forked child, the feeds of the parent are useless.
    if feed.lane is not target.context.lane:
        return PullFeed(target)
    if feed.pulls.probe.asked:
        feed.pulls.probe.reset()
    if feed.box.ready:
        # Forget losses and refused publishes: none of them was a pull on this idle feed.
        feed.box.take_denials()
        feed.box.take_lost()
    return feed


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
