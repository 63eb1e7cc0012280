"""
The common part of fetches and consumptions: a feed, the engine that decides, and waiting threads.

It has no thread of its own. A thread that finds the buffer empty *drives*: it reads the
socket and sends the pulls that are due, until there is a message. Other threads wait for it to
stop. A thread that takes a message and finds the buffer low drives once, to send the next pull.

Invariants
- Only the thread that holds the reading turn drives. Messages are taken from the buffer without
  any lock.
- A driving thread waits only in :meth:`Feed.wait`.
- If a signal handler interrupts a thread that drives or waits, the handler's call for a message is
  refused. Otherwise the thread would wait for itself.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from jetsync import errors
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.failures import raise_failure
from jetsync._base.iterations import one_by_one
from jetsync._base.locks import Latch
from jetsync._base.log import get_logger
from jetsync._base.turn import waiting
from jetsync._hooks.errors import PluginError
from jetsync._io.outbox import LaneState
from jetsync._proto.consume import ConsumeEngine
from jetsync._proto.fetch import FetchEngine
from jetsync._proto.pull_request import PullRequest
from jetsync._proto.pulling import Pulling
from jetsync._proto.push import PushOptions
from jetsync.consume.handlers import HandlerPool
from jetsync.consume.ordered_source import reset_reason
from jetsync.consume.pull_feed import ConsumerKeeper, PullFeed, take_feed
from jetsync.consume.push import PushFeed
from jetsync.consume.reading import Reading, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jetsync._proto.pull_request import ConsumeOptions
    from jetsync._proto.push import PushEngine
    from jetsync.consume.options import HandlerOptions
    from jetsync.consume.ordered_source import OrderedSource
    from jetsync.consume.target import PullTarget
    from jetsync.events import ResetReason
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

# Seconds that a closing or draining client waits, for all its consumptions together, until threads
# have handled their last message. If one thread reads 1,000 consumptions in turn, limits for each
# of them would add up.
CLOSING_WAIT: Final = 1.0

# Seconds between two checks for the end of a consumption from which no thread takes messages.
END_POLL: Final = 0.2

# Why a read is closed after Ctrl-C or another exception of a signal handler.
INTERRUPTED: Final = "a call was interrupted while it changed the consumption; make another one"
LEFT: Final = "its iteration was interrupted or left early, so messages may be missing: fetch again"

_logger = get_logger("jetsync.consume")


class ConsumptionCore:
    """
    A buffer of messages that is filled, for any number of threads that take from it.

    Its *feed* fills the buffer: with pulls, or by the subscription of a push consumer. A fetch ends
    when it has what it asked for, or when its time is over. A consumption is kept filled. If the
    consumer of an ordered read is lost, :meth:`wait_for_next` fills the buffer from another one.

    Threads: any, and signal handlers.
    Locks: the reading turn, ``reading.turn``, protects the feed and the engine. The pool lock of
    the handlers protects the engine's counts of parked and handled messages. Taking a message from
    the buffer needs no lock, and neither does setting ``closing`` or ending the engine, because
    each is one step.

    Args:
        target: The consumer.
        options: What to fetch, how to pull, or which push consumer to read.
        wait: Seconds to wait for the messages of a fetch.
        source: Replaces the consumer, if it is that of an ordered consumer.
        handler: How to call the handler, if there is one.
    """

    def __init__(
        self,
        target: PullTarget,
        options: PullRequest | ConsumeOptions | PushOptions,
        *,
        wait: float = 0.0,
        source: OrderedSource | None = None,
        handler: HandlerOptions | None = None,
    ) -> None:
        connection = target.context.connection
        self.source: Final = source
        # What an ordered read was handed out last, see `OrderedSource`.
        self.place: Final[list[Any]] = [] if source is None else source.place
        order = None if source is None else source.cursor
        if target.lane.outbox.state is not LaneState.OPEN:
            target.renew_lane()
        self.target = target
        self.make: Callable[[Frame], Message] = target.make
        # What sends and receives; only the driving thread calls it, except for `interrupt`.
        self.feed: PullFeed | PushFeed
        # What keeps the consumer on the server while no pull is sent.
        self._keeper: ConsumerKeeper | None = None
        self.engine: FetchEngine | ConsumeEngine | PushEngine
        if isinstance(options, PushOptions):
            self.feed = push = PushFeed(target, options)
            self.engine = push.engine
        else:
            self.feed = pulling = take_feed(target)
            if isinstance(options, PullRequest):
                self.engine = FetchEngine(
                    pulling.pulls,
                    options,
                    target.pins,
                    now=time.monotonic(),
                    wait=wait,
                    subject=target.subject,
                    acked=target.wants_acks,
                    order=order,
                )
            else:
                self.engine = ConsumeEngine(pulling.pulls, options, target.pins, order=order)
            pulling.begin(target, self.engine)
            self._keep_consumer()
        self.buffer: deque[Frame] = self.engine.buffer
        # Takes the oldest one for a loop, see `one_by_one`.
        self.oldest: Iterator[Frame] = one_by_one(deque.popleft, self.buffer)
        # What an ordered consumption has taken and not returned yet. If Ctrl-C interrupts a call,
        # the next one returns it.
        self.taken: Frame | None = None
        # The number of buffered messages at which something may have to be sent. In a list, because
        # the compiled `__next__` of a consumption keeps the list.
        self.low: list[int] = [-1]
        # Whether messages may arrive.
        self.is_open: bool = True
        # Whether messages were in the buffer when the driving thread decided what is due.
        self._had_messages = False
        # The thread that drives has its turn.
        self.reading: Final = Reading(
            "batch" if self.engine.is_bounded else "consumption", connection
        )
        # Whether messages that were not taken are given back.
        self.closing: bool = False
        # Whether the application wants no more messages.
        self._draining = False
        # Set once a thread has asked for another message and learned that there is none.
        self.end_seen: Latch = Latch()
        self.pool: HandlerPool | None = None if handler is None else HandlerPool(self, handler)
        # Listed before the first step: if a signal arrives between the two, its handler drains this
        # one.
        connection.consumptions.add(self)
        if connection.stopping:
            self.engine.drain()
        try:
            if self.engine.is_bounded:
                # In the turn, because a signal handler may drain it meanwhile.
                self._attempt(self._send_request)
            else:
                self.refill()
            if self.pool is not None:
                self.pool.start()
        except BaseException:
            # After Ctrl-C, the traceback keeps this object, and the server has its pull. Threads
            # that have started would handle messages, and no caller could end them.
            self.close()
            raise

    def _send_request(self) -> None:
        """Send the first pull of a fetch."""
        engine, feed = self.engine, self.feed
        if isinstance(engine, FetchEngine) and isinstance(feed, PullFeed) and not engine.is_ending:
            # The request itself, not a copy: programs repeat the same fetch, and the JSON of a
            # request is made once.
            feed.pull(engine.request)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # At its end, the interpreter empties modules, but not the default of an argument.
        # No thread can be driving, because it would hold a reference.
        if getattr(self, "is_open", False) and not is_ending():
            self.closing = True
            if self._keeper is not None:
                self._keeper.stopped = True
            with contextlib.suppress(Exception):  # A plugin around a pull may raise.
                self._end_feed()

    # How it ends.

    @property
    def closed(self) -> bool:
        """Whether it has ended, and all messages were taken and handled."""
        if self.pool is not None:
            return self.pool.done.is_set()
        if not self.reading.over.is_set():
            # It may have ended while no thread took messages.
            self.refill()
        return self.reading.over.is_set()

    @property
    def error(self) -> BaseException | None:
        """Why it ended; None if it has not, or if the application ended it."""
        return shown(self.fault)

    @property
    def fault(self) -> BaseException | None:
        """The same, also if the application closed the client."""
        if self.reading.error is not None:
            return self.reading.error
        error = self.engine.error
        # A fetch whose consumer is unavailable must not look like one that found nothing.
        is_shown = self.source is None or isinstance(error, errors.ConsumerUnavailableError)
        return error if is_shown or reset_reason(error, 0) is None else None

    @property
    def lost(self) -> ResetReason | None:
        """Why the consumer of an ordered read has to be replaced; None if it need not be."""
        is_over = self.is_open or self.buffer or self.reading.over.is_set()
        if self.source is None or is_over or self.closing or self._draining:
            return None
        assert isinstance(self.engine, Pulling)
        lacks = self.engine.lacks_messages(time.monotonic())
        if not lacks or self.target.context.connection.stopping:
            return None
        return reset_reason(self.engine.error, self.engine.losses)

    def close(self) -> None:
        """End it and give back what was not taken; never waits."""
        self.closing = True
        if self.source is not None:
            # At once: the next read may begin before a thread that waits has woken. The client does
            # not wait for the taker, because no message needs an acknowledgement.
            self.reading.end(self.fault)
            self.end_seen.set()
        self.drain()

    def drain(self) -> None:
        """Send no more pulls; never waits."""
        # Set first, so that a thread that drives at the moment sends no more pulls.
        self._draining = True
        self.engine.drain()
        self._wake_driver()

    def wait(self, until: Deadline) -> bool:
        """Wait until it has ended, and return whether it has."""
        if self.pool is not None:
            if self.pool.is_own_thread():
                raise errors.ConflictingUseError("a handler cannot wait for itself to return")
            return self.reading.wait(self.pool.done, until.remaining())
        while not self.closed and not until.expired():
            # Polled, because there may be no thread that takes messages and notices the end.
            self.reading.wait(self.reading.over, min(until.remaining(), END_POLL))
        return self.closed

    def wait_until_taken(self, deadline: Deadline) -> bool:
        """
        Wait until all messages are taken or, with a handler, handled; for a client that drains.

        Returns whether they are. Call :meth:`wait_for_taker` after it. Does not wait for a fetch,
        because programs leave batches open.
        """
        if self.engine.is_bounded or (self.pool is not None and self.pool.is_own_thread()):
            return True
        return not self.reading.is_taking_here() and self.wait(deadline)

    def wait_for_taker(self, deadline: Deadline) -> None:
        """
        Wait until the last message is known to be handled.

        A thread has handled its message when it asks for another one. It may never ask, so the
        client waits at most :data:`CLOSING_WAIT` for all its consumptions together.
        """
        if self.pool is None and self.engine.admitted and not self.engine.is_bounded:
            waiting(self.end_seen.wait, deadline.remaining())

    def end_with_client(self) -> None:
        """End it because its client is being closed; threads in ``next`` get that as the error."""
        # If a server would not redeliver what a fetch has received, it can still be taken.
        is_kept = self.engine.is_bounded and not self.target.wants_acks
        if is_kept:
            self.refill()
        if self.engine.is_bounded and not self.is_open and (is_kept or not self.buffer):
            # Its messages are complete.
            return
        closed = errors.ConnectionClosedError()
        if is_kept:
            self.engine.fail(closed)
            self.drain()
            return
        self.fail(closed)
        if self.pool is not None:
            self.pool.give_back_parked()

    def wait_until_given_back(self, deadline: Deadline) -> None:
        """Wait until the driving thread has ended it, unless that is this thread."""
        if self.closing and not self.reading.is_taking_here():
            waiting(self.reading.over.wait, deadline.remaining())

    def after_fork(self) -> None:
        """
        End it in a forked child, because its messages belong to the parent process.

        Takes no lock, and replaces all locks: threads that do not exist here may hold them.
        """
        self.engine.after_fork(errors.ForkedProcessError())
        self.buffer = self.engine.buffer
        self.oldest = one_by_one(deque.popleft, self.buffer)
        self.taken = None
        # No compiled `__next__` takes anything from the deque that was replaced.
        self.low[0], self.low = sys.maxsize, [-1]
        self.is_open = False
        self.reading.after_fork()
        if self.pool is not None:
            self.pool.after_fork()

    # Messages.

    def put_back(self, frame: Frame, error: BaseException) -> None:
        """Put back a message that was taken and not returned, unless a plugin has refused it."""
        if not isinstance(error, PluginError):
            self.engine.put_back(frame)

    def take_now(self) -> Frame | None:
        """Return the frame of the next message if it is in the buffer."""
        try:
            return next(self.oldest)
        except IndexError:
            return None

    def hand_out(self, frames: Sequence[Frame]) -> None:
        """Take the oldest messages of an ordered read, which were used while in the buffer."""
        if frames:
            for _ in frames:
                self.take_now()
            self.place[:] = frames[-1][1], self.place[1] + len(frames)
            self.refill_if_low()

    def refill_if_low(self) -> None:
        """Drive once if a pull may be due; to be called after a message was taken."""
        if len(self.buffer) <= self.low[0]:
            self.refill()

    def wake_if_low(self) -> None:
        """
        Have a pull sent if one may be due; to be called after a message was unparked, or when a
        thread has become idle.
        """
        if len(self.buffer) <= self.engine.low_mark():
            # The driving thread may be in a long wait, because no pull was due.
            self._wake_driver()

    def make_taken(self, frame: Frame) -> Message:
        """Make the message of a frame that was taken, and send the next pull if one is due."""
        if len(self.buffer) <= self.low[0]:
            self.refill()
        try:
            return self.make(frame)
        except PluginError as error:
            self.make_failed(error)
            raise

    def make_failed(self, error: BaseException) -> None:
        """
        End it if a plugin refused a message that the next one would acknowledge, or has to follow.
        """
        if isinstance(error, PluginError) and (self.target.ack_all or self.source is not None):
            self.reading.mark_raised()
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless it has ended with another, and give back what is left."""
        self.engine.fail(error)
        if self.source is not None:
            # The engine may have the error of a lost consumer, which is not that of the read.
            self.reading.end(self.fault or error)
        self.close()

    # Driving and waiting.

    def wait_for_frame(self, deadline: Deadline | None) -> bool:
        """
        Wait until the buffer has a message; return False at the end or at the deadline.

        Also returns False once the consumer of an ordered read is lost. Drives if no other thread
        does.
        """
        reading, buffer = self.reading, self.buffer
        until = FOREVER if deadline is None else deadline
        reading.check()
        while not buffer:
            if reading.over.is_set():
                self.end_seen.set()
                return False
            if not self.is_open and self.lost is not None:
                return False
            try:
                reading.turn.run(until, self._drive_until, until)
            except errors.WaitTimeoutError:
                pass
            finally:
                # Another call may have asked for the end when this thread was about to stop.
                if self.is_open and self._draining:
                    self.refill()
            if not buffer and until.expired() and not reading.over.is_set():
                return False
        return True

    def wait_for_next(
        self, deadline: Deadline | None, replaced: Callable[[], None] | None = None
    ) -> bool:
        """
        Do the same for an ordered read, whose consumer is replaced if it is lost.

        Args:
            deadline: The deadline; None waits without one.
            replaced: Called before the next consumer is pulled from.
        """
        while not self.wait_for_frame(deadline):
            if not self._replace(deadline):
                return False
            if replaced is not None:
                replaced()
            # Pulls from the consumer that was made.
            self.reading.run(FOREVER, self._resume)
        return True

    def _replace(self, deadline: Deadline | None) -> bool:
        """Have another consumer created if this one is lost; return whether there is one."""
        source, reason, over = self.source, self.lost, self.reading.over
        if source is None or reason is None:
            return False
        until = FOREVER if deadline is None else deadline
        if self.engine.send_until < until.at:
            until = Deadline(self.engine.send_until, self.engine.wait)
        try:
            source.remake(until, reason, over)
        except (errors.CallInSignalHandlerError, errors.ConflictingUseError):
            raise
        except errors.WaitTimeoutError as late:
            if self.engine.is_bounded:
                # It does not continue after its time.
                cause = late.__cause__
                self._end(cause if isinstance(cause, errors.JetSyncError) else None)
            return False
        except errors.JetSyncError as error:
            self._end(error)
        return not over.is_set()

    def wait_until_sent(self) -> None:
        """Wait until there is a connection for the pull of a fetch; raise why there is none."""
        while self.is_open and self.feed.blocked:
            self.reading.run(FOREVER, self._wait_once)
        if isinstance(self.engine.error, errors.JetSyncError):
            raise_failure(self.engine.error)

    def refill(self) -> bool:
        """Drive once, unless another thread drives; return whether this call did."""
        return self._attempt(self._drive_once)

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Call *step* in the turn if it is free, and return whether it was."""
        # In a signal handler or a plugin, the interrupted call drives when it is back.
        if not self.reading.turn.attempt(step):
            return False
        # As in `wait_for_frame`.
        if self.is_open and self._draining:
            self.refill()
        return True

    def _drive_once(self) -> None:
        self.engine.back(time.monotonic())
        self._drive()
        self.engine.leave(time.monotonic())

    def _wait_once(self) -> None:
        self.feed.wait(FOREVER)
        self._drive()

    def _resume(self) -> None:
        self.reading.turn.step(self._connect)
        if self._draining:
            self.engine.drain()
        self._drive()

    def _connect(self) -> None:
        source, engine = self.source, self.engine
        assert source is not None
        assert isinstance(engine, Pulling)
        # Until all that it sends was handed out.
        source.fresh = False
        self.target, self.make = source.target, source.target.make
        self.feed = feed = take_feed(self.target)
        engine.restart(feed.pulls, time.monotonic())
        feed.begin(self.target, engine)
        self._keep_consumer()
        self.is_open = True

    def _keep_consumer(self) -> None:
        """Keep the consumer while no pull is sent, if the server would delete it."""
        options = self.engine.options if isinstance(self.engine, ConsumeEngine) else None
        if options is not None and options.inactive_threshold is not None:
            if self._keeper is not None:
                self._keeper.stopped = True
            self._keeper = ConsumerKeeper(
                self.target, options.priorities, options.inactive_threshold
            )

    def _drive_until(self, until: Deadline) -> None:
        """Drive until there is a message, or until the end or the deadline."""
        self.engine.back(time.monotonic())
        keeper = self._keeper
        try:
            if keeper is not None:
                keeper.paused = True
            if self._is_settled():
                self.feed.wait(until)
            while True:
                self._drive()
                if self.buffer or not self.is_open or until.expired():
                    return
                # Other threads that have taken the last messages meanwhile could not drive.
                if not self._had_messages:
                    self.feed.wait(until)
        finally:
            if keeper is not None:
                keeper.paused = False
            self.engine.leave(time.monotonic())

    def _is_settled(self) -> bool:
        """Return whether nothing has happened since the last step, so that none is due."""
        is_over = self.closing or not self.is_open or self.engine.is_ending
        is_due = self._had_messages or self.reading.turn.unfinished or self.feed.box.ready
        # Handlers that have returned make room for a pull, and wake no driver.
        return not (is_over or is_due or self.engine.low_mark() >= 0)

    def _wake_driver(self) -> None:
        """Drive once, or have the driving thread look for changes."""
        if not self.refill():
            self.feed.interrupt()

    def _drive(self) -> None:
        """Do what is due, in the turn."""
        engine = self.engine
        self._had_messages = bool(self.buffer)
        turn = self.reading.turn
        if turn.unfinished:
            if self.engine.is_bounded:
                engine.interrupted(errors.HandleClosedError("batch", reason=LEFT))
            else:
                engine.interrupted(errors.ConsumptionClosedError(reason=INTERRUPTED))
            turn.unfinished = False
        try:
            if self.is_open and not self.closing:
                self._had_messages = turn.step(self.feed.step, time.monotonic())
                if isinstance(self.feed, PullFeed) and self.feed.entered:
                    self.feed.leave_ended()
                # After the step, which forgets interruptions that came before it.
                if self.target.context.connection.stopping:
                    engine.drain()
        except errors.JetSyncError as error:  # Of a plugin. Pulling cannot continue after it.
            engine.fail(error)
        if self.is_open and (self.closing or engine.is_ending):
            self._end_feed()
        elif self.closing and self.buffer:
            self.target.give_back(engine.take_all())
        self.low[0] = engine.low_mark()
        if not (self.is_open or self.buffer or self.taken) and self.lost is None:
            self._end(self.fault)

    def _end(self, error: BaseException | None) -> None:
        """Hand out no more messages."""
        if self._keeper is not None:
            self._keeper.stopped = True
        self.reading.end(error)

    def _end_feed(self) -> None:
        """Receive no more messages; while it drains, those that have arrived can be taken."""
        if isinstance(self.engine.error, errors.RequestTimeoutError):
            self.target.context.connection.probe()
        self.feed.end(closing=self.closing)
        self.is_open = False
        # After this, because an interrupt before would end a feed that another fetch may have.
        self.feed.return_to_pool()
