"""
Fetching: one bounded batch of messages, yielded as they arrive.

A :class:`Fetch` drives a :class:`FetchEngine` through a :class:`PullFeed` for one ``fetch`` or
``next``. Servers send the answers to a
pull to an inbox. Each consumer keeps idle inboxes and lends one to each fetch. An inbox is reused
if its pull ended cleanly, so a fetch costs one write and no subscription of its own.

The call of ``fetch`` sends the first pull. Everything else runs in the thread that iterates, except
that any thread may read the messages from the socket.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from jetsync import errors
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.failures import raise_failure
from jetsync._base.iterations import Iteration, ListIteration, conflict
from jetsync._base.pickling import refuse_copy
from jetsync._base.turn import refuse_request
from jetsync._hooks.errors import PluginError
from jetsync._io.mailbox import take_all
from jetsync._io.outbox import LaneState
from jetsync._proto.fetch import FetchEngine
from jetsync.consume.acks import acknowledge_all
from jetsync.consume.pull_feed import PullFeed, take_feed
from jetsync.values.message import frame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from typing_extensions import Self

    from jetsync._hooks.calls import Entered
    from jetsync._io.connection import Connection
    from jetsync._proto.ordered import OrderedCursor
    from jetsync._proto.pull import PullRequest
    from jetsync._proto.status import Status
    from jetsync.consume.ordered_reads import OrderedFetch
    from jetsync.consume.target import PullTarget
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

__all__ = ["MessageBatch", "OrderedBatch"]

# A batch forgets the messages that were acknowledged once it holds this many.
PRUNE_AT: Final = 4096

# Why another iteration over a batch fails.
LEFT: Final = "its iteration was interrupted or left early, so messages may be missing: fetch again"

# How many frames are made into messages at once. With 16, each takes 0.07 us more.
MADE_AT_ONCE: Final = 256


class Fetch:
    """
    The pulls of one batch.

    Threads: the one that iterates. Any thread and any signal handler may call ``interrupt``.
    Locks: none; the iteration of the batch lets in one call at a time.

    Args:
        target: The consumer.
        request: What to ask for.
        wait: Seconds to wait for messages.
        name: The public method that fetches, for plugins.
        order: The order in which messages have to arrive, for an ordered consumer. The fetch then
            ends with NoHeartbeatError if the connection is lost.
    """

    def __init__(
        self,
        target: PullTarget,
        request: PullRequest,
        *,
        wait: float,
        name: str = "fetch",
        order: OrderedCursor | None = None,
    ) -> None:
        # Before the pull: a signal handler that cannot wait for messages asks for none.
        refuse_request()
        if target.lane.outbox.state is not LaneState.OPEN:
            target.renew_lane()
        self.connection: Connection = target.context.connection
        self.target = target
        group = request.priorities.group
        if group is not None:
            request = attrs.evolve(request, pin_id=target.pins.get(group))
        self.request = request
        # The error of another iteration if this one was interrupted or left early.
        self._left: Exception | None = None
        # Whether another call closed the batch while the iteration was running.
        self.closing: bool = False
        self._entered: Entered | None = None
        now = time.monotonic()
        self._send_until = Deadline(now + wait, wait)
        feed = take_feed(target)
        self._engine = FetchEngine(
            feed.pulls,
            request,
            target.pins,
            now=now,
            wait=wait,
            subject=target.subject,
            acked=target.wants_acks,
            order=order,
        )
        feed.begin(target, self._engine)
        # None once no more messages can arrive.
        self.feed: PullFeed | None = feed
        if target.context.plugins.enter_fetch is not None:
            self._entered = target.enter(name, request, wait)
        try:
            if self.connection.stopping:
                self._engine.drain()
            elif not feed.pull(request):
                # The pull expires with the time that is left once there is a connection.
                while self._engine.is_due:
                    self._wait_for_connection()
                if self.error is not None:
                    raise_failure(self.error)
        except BaseException as error:
            self.end(None, error)
            raise

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # At its end, the interpreter empties modules, but not the default of an argument.
        # A batch that was not iterated over has an open pull, and no generator that would end it.
        if getattr(self, "feed", None) is not None and not is_ending():
            self._stop()

    @property
    def is_over(self) -> bool:
        """Whether no more messages can arrive."""
        return self.feed is None

    @property
    def received(self) -> int:
        """How many messages have arrived."""
        return self._engine.admitted

    @property
    def status(self) -> Status | None:
        """The status that ended the last pull; None while it is open, or if none was needed."""
        return self._engine.status

    @property
    def error(self) -> Exception | None:
        """The error to raise once all messages were taken."""
        error = self._left or self._engine.error
        assert error is None or isinstance(error, Exception)
        return error

    def receive(self) -> Sequence[Frame]:
        """Wait for messages and return their frames; return nothing at the end."""
        engine, feed = self._engine, self.feed
        assert feed is not None
        while not (engine.buffer or engine.is_ending):
            if feed.blocked:
                self._wait_for_connection()
                continue
            if not feed.box.frames:
                feed.wait(FOREVER)
            self._step(feed)
        received = take_all(engine.buffer)
        if engine.is_ending:
            self._stop()
        return received

    def interrupt(self) -> None:
        """End a :meth:`receive` of another thread, or one that this signal handler interrupted."""
        self.closing = True
        self._engine.drain()
        feed = self.feed
        if feed is not None:
            feed.interrupt()

    def end(
        self, result: object, error: BaseException | None, unused: Sequence[Frame] = ()
    ) -> None:
        """End the fetch, give back *unused*, and leave the hooks of plugins; safe to repeat."""
        if unused or self.feed is not None:
            self._stop(unused)
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.leave(result, error)

    def leave(self, *, is_whole: bool) -> None:
        """
        Have another iteration say that messages may be missing, unless the batch was closed.

        Args:
            is_whole: Whether all messages that have arrived were taken.
        """
        if not self.closing and not (is_whole and self.feed is None):
            self._left = errors.HandleClosedError("batch", reason=LEFT)

    def abandon(self) -> None:
        """Want no more messages, so that none is missing."""
        self.closing = True
        self._left = None

    def _stop(self, unused: Sequence[Frame] = ()) -> None:
        """End the fetch, though its pull may be open at the server, and give back *unused*."""
        feed, self.feed = self.feed, None
        if feed is not None:
            feed.end(closing=True, unused=unused)
        else:
            self.target.give_back(unused)

    def _wait_for_connection(self) -> None:
        """Wait a moment until something can be sent, and fail at the end of the time."""
        feed, until = self.feed, self._send_until
        assert feed is not None
        if until.expired():
            try:
                self.target.lane.outbox.wait_open(until)
            except errors.JetSyncError as error:
                self._engine.fail(error)
        else:
            feed.wait(until)
        self._step(feed)

    def _step(self, feed: PullFeed) -> None:
        """Take what has arrived, and send what is due."""
        feed.step(time.monotonic())
        # After the step, which forgets interruptions that came before it.
        if self.connection.stopping:
            self._engine.drain()
        elif isinstance(self._engine.error, errors.RequestTimeoutError):
            self.connection.probe()


BatchIteration: TypeAlias = "ListIteration[Message] | Iteration[Message]"


class MessageBatch:
    """
    The messages of one fetch, as they arrive; made by ``Consumer.fetch``.

    Iterate over it once, in one thread. If no message arrives, the iteration ends without an error.
    Errors are raised at the end of the iteration, after the messages that did arrive. If you leave
    the iteration early, by ``break`` or an exception, jetsync immediately gives the remaining
    messages back to the server. :meth:`close` and the end of a ``with`` block do the same.
    """

    # Threads: one iterates and acknowledges. Any thread and any signal handler may close it.
    # Locks: none; the iteration lets in one call at a time, and `_untaken` loses one message in one
    # step.

    __reduce__ = refuse_copy

    def __init__(self, fetch: Fetch | OrderedFetch) -> None:
        self._fetch = fetch
        # The messages that were yielded before those in `_made`, without those that `ack` has
        # acknowledged.
        self._yielded: list[Message] = []
        self._prune_at = PRUNE_AT
        # The messages that were made last, and those of them that were not yielded. The next one
        # is at the end.
        self._made: list[Message] = []
        self._untaken: list[Message] = []
        # The frames after a message that a plugin refused, if the consumer wants no acks. The next
        # one is at the end.
        self._kept: list[Frame] = []
        # Only its user keeps the iteration alive, so dropping it ends the batch.
        self._iteration: weakref.ref[BatchIteration] | None = None
        # The thread that iterates.
        self._thread = 0

    def __repr__(self) -> str:
        fetch, target = self._fetch, self._fetch.target
        state = "ended" if fetch.is_over else "open"
        return (
            f"<{type(self).__name__} {target.stream}/{target.consumer} {state} "
            f"received={fetch.received} of {fetch.request.max_messages}>"
        )

    def __iter__(self) -> Iterator[Message]:
        iteration, me = self._running(), threading.get_ident()
        if iteration is None:
            iteration = self._begin()
            self._iteration, self._thread = weakref.ref(iteration), me
        elif self._thread != me or iteration.is_running:
            raise conflict("batch")
        return iteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def received(self) -> int:
        """How many messages have arrived so far."""
        return self._fetch.received

    @property
    def status(self) -> Status | None:
        """
        The server's status that ended the batch; None if it is open, or ended without a status.
        """
        return self._fetch.status

    def close(self) -> None:
        """
        End the batch now and give the remaining messages back to the server. Safe to repeat.

        If another call is waiting for a message of this batch, the iteration of that call ends.
        """
        self._fetch.abandon()
        iteration = self._running()
        if iteration is not None and not iteration.close():
            self._fetch.interrupt()
            return
        self._kept = []
        # A generator that was never started has not run its `finally`.
        self._fetch.end(self, None)

    def ack(self) -> int:
        """
        Acknowledge all messages that were yielded, in one write, and return how many there were.

        Call it during or after the iteration; before that, it returns 0. Messages that your code
        has already acknowledged, nakked or terminated are left out. If the consumer's
        ``ack_policy`` is ``all``, one acknowledgement covers all messages.

        Raises:
            AcksNotWantedError: The consumer has ``ack_policy`` none.
            DisconnectedError, ConnectionClosedError: Nothing was sent. After DisconnectedError you
                can call this method again.
        """
        fetch, target = self._fetch, self._fetch.target
        if fetch.received and not target.wants_acks:
            raise errors.AcksNotWantedError(target.consumer, stream=target.stream)
        self._note_yielded()
        count = acknowledge_all(self._yielded, None, skip_acked=True, ack_all=target.ack_all)
        self._yielded.clear()
        return count

    def _running(self) -> BatchIteration | None:
        """Return the iteration, if there is one."""
        # Read once, because a thread that iterates may clear it meanwhile.
        iteration = self._iteration
        return None if iteration is None else iteration()

    def _begin(self) -> BatchIteration:
        """Return a new iteration."""
        fetch = self._fetch
        if isinstance(fetch, Fetch):
            return ListIteration(self._untaken, self._fill(fetch), "batch", fetch.connection)
        return Iteration(fetch.messages(self), "batch")

    def _fill(self, fetch: Fetch) -> Generator[None, None, None]:
        """Make messages of frames that have arrived, whenever all others were taken."""
        unused, self._kept = self._kept, []
        resumable = False
        connection, target = fetch.connection, fetch.target
        error: BaseException | None = None
        try:
            while not (fetch.closing or connection.stopped):
                if self._untaken:
                    # Another call made them after this one had found none.
                    yield
                    continue
                self._note_yielded()
                if unused and target.shows_messages:
                    # A plugin sees a message when it is taken, and may refuse it.
                    try:
                        made = [target.make(unused[-1])]
                    except PluginError:
                        del unused[-1]
                        raise
                    self._untaken[:] = self._made = made
                    del unused[-1]
                elif unused:
                    frames = unused[-MADE_AT_ONCE:]
                    self._untaken[:] = self._made = [*map(target.make, frames)]
                    del unused[-MADE_AT_ONCE:]
                elif fetch.feed is not None:
                    unused = [*reversed(fetch.receive())]
                else:
                    break
            if fetch.error is not None:
                raise_failure(fetch.error)
        except BaseException as raised:
            error = None if isinstance(raised, GeneratorExit) else raised
            if not isinstance(raised, errors.JetSyncError):
                is_left = isinstance(raised, GeneratorExit)
                fetch.leave(is_whole=is_left and not (unused or self._untaken))
            if isinstance(raised, PluginError) and not target.wants_acks:
                # The server would not redeliver the other messages: keep them for the next
                # iteration.
                self._kept, self._iteration, resumable = unused, None, True
            raise
        finally:
            fetch.end(self, error, () if resumable else [*self._take_untaken(), *unused])

    def _note_yielded(self) -> None:
        """Note which of the messages that were made last have been yielded."""
        left, yielded = len(self._untaken), self._yielded
        if self._fetch.target.wants_acks:
            yielded += reversed(self._made[left:])
        del self._made[left:]
        if len(yielded) >= self._prune_at:
            # Forget acknowledged messages, so that a long batch does not keep all of them.
            yielded[:] = [message for message in yielded if not message.is_acked]
            self._prune_at = max(PRUNE_AT, 2 * len(yielded))

    def _take_untaken(self) -> list[Frame]:
        """Take the messages that were not yielded, and return their frames."""
        self._note_yielded()
        # Before they are taken: a thread that acknowledges must not count them as yielded.
        made, self._made = self._made, []
        left: dict[int, Message] = {}
        with contextlib.suppress(IndexError):
            while True:  # One by one, because another thread may take some at the same time.
                message = self._untaken.pop()
                left[id(message)] = message
        if self._fetch.target.wants_acks:
            self._yielded += [each for each in reversed(made) if id(each) not in left]
        return [*map(frame_of, left.values())]


class OrderedBatch(MessageBatch):
    """
    The messages of one fetch of an ordered consumer, as they arrive.

    Iterate over it once, in one thread. If no message arrives, the iteration ends without an error.
    If you leave the iteration early or call :meth:`close`, the next read of the ordered consumer
    gets the messages that were not taken. The messages need no acknowledgement, so :meth:`ack`
    raises AcksNotWantedError.
    """

    # Threads: as for a MessageBatch.
    # Locks: none.

    @property
    def closed(self) -> bool:
        """Whether the batch has ended."""
        return self._fetch.is_over
