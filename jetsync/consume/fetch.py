"""
Fetching: one bounded batch of messages, yielded as they arrive.

The call of ``fetch`` sends the first pull. Everything else runs in the thread that iterates, except
that any thread may read the messages from the socket.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Final, TypeAlias

from jetsync import errors
from jetsync._base.deadline import Deadline
from jetsync._base.failures import raise_failure
from jetsync._base.iterations import Iteration, ListIteration, conflict
from jetsync._base.locks import Latch
from jetsync._base.pickling import refuse_copy
from jetsync._base.turn import refuse_request
from jetsync._hooks.errors import PluginError
from jetsync._io.mailbox import take_all
from jetsync._proto.fetch import FetchEngine
from jetsync._proto.pull_size import rest_of
from jetsync.consume.acks import acknowledge_all
from jetsync.consume.core import LEFT, ConsumptionCore
from jetsync.consume.ordered_source import reset_reason
from jetsync.values.message import frame_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from typing_extensions import Self

    from jetsync._hooks.calls import Entered
    from jetsync._io.connection import Connection
    from jetsync._proto.pull import PullRequest
    from jetsync._proto.status import Status
    from jetsync.consume.ordered_source import OrderedSource
    from jetsync.consume.target import PullTarget
    from jetsync.events import ResetReason
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

__all__ = ["MessageBatch", "OrderedBatch"]

# A batch forgets the messages that were acknowledged once it holds this many.
PRUNE_AT: Final = 4096

# How many frames are made into messages at once. With 16, each takes 0.07 us more.
MADE_AT_ONCE: Final = 256


class Fetch:
    """
    What one batch reads: the messages of one fetch.

    If the consumer is that of an ordered consumer, it is replaced when it is lost, and the rest is
    fetched from the next one.

    Threads: the one that iterates. Any thread and any signal handler may call ``interrupt``.
    Locks: none; the iteration of the batch lets in one call at a time.

    Args:
        target: The consumer.
        request: What to ask for.
        wait: Seconds to wait for messages.
        name: The public method that fetches, for plugins.
        source: Replaces the consumer, if it is that of an ordered consumer.
    """

    def __init__(
        self,
        target: PullTarget,
        request: PullRequest,
        *,
        wait: float,
        name: str = "fetch",
        source: OrderedSource | None = None,
    ) -> None:
        # Before the pull: a signal handler that cannot wait for messages asks for none.
        refuse_request()
        self.request = request
        self.connection: Connection = target.context.connection
        self._name = name
        self.source = source
        # The messages, and their bytes, of consumers that were replaced.
        self._before: int
        self._before_size: int
        # The error of another iteration if this one was interrupted or left early.
        self._left: Exception | None = None
        # Whether another call closed the batch while the iteration was running.
        self.closing: bool = False
        # The same for the source, which waits for it.
        self._closed = None if source is None else Latch()
        # Whether no call runs the iteration any more.
        self.is_over: bool = False
        self._entered: Entered | None = None
        self._until = Deadline.after(wait)
        # Last: it sends the pull.
        self._begin(target, request, wait)

    def _begin(
        self,
        target: PullTarget,
        request: PullRequest,
        wait: float,
        before: tuple[int, int] = (0, 0),
    ) -> None:
        """Begin to fetch from a consumer, after *before*: messages and bytes of earlier ones."""
        self.target = target
        order = None
        if self.source is not None:
            self.source.fresh = False
            order = self.source.cursor
        if target.context.plugins.enter_fetch is not None:
            self._entered = target.enter(self._name, request, wait)
        core: ConsumptionCore | None = None
        try:
            self.core = core = ConsumptionCore(target, request, wait=wait, order=order)
            assert isinstance(core.engine, FetchEngine)
            # Together, because what follows may raise.
            self._engine, (self._before, self._before_size) = core.engine, before
            if core.feed.blocked:
                core.wait_until_sent()
        except BaseException as error:
            if core is not None:
                core.close()
            self._leave_plugins(None, error)
            raise

    @property
    def received(self) -> int:
        """How many messages have arrived."""
        return self._before + self._engine.admitted

    @property
    def status(self) -> Status | None:
        """The status that ended the last pull; None while it is open, or if none was needed."""
        return self._engine.status

    @property
    def error(self) -> Exception | None:
        """The error to raise once all messages were taken."""
        if self._left is not None:
            return self._left
        error = self._engine.error
        assert error is None or isinstance(error, Exception)
        # The consumer would be replaced, but its read is over.
        return None if self.source is not None and self._reason(error) else error

    def is_stopped(self) -> bool:
        """Whether no more messages are handed out."""
        return self.closing or self.connection.stopped

    @property
    def is_taken(self) -> bool:
        """Whether no more messages can arrive, and all that have arrived were taken."""
        return not (self.core.is_open or self.core.buffer)

    @property
    def is_fresh(self) -> bool:
        """Whether an ordered consumer has sent what it was asked for, and nothing else."""
        return self.source is not None and self.source.is_current and self._engine.is_full

    def receive(self, result: object) -> list[Frame]:
        """
        Wait for messages and return their frames; return nothing at the end.

        Args:
            result: What plugins get as the result if the consumer is replaced.
        """
        while self.is_taken or not self.core.wait_for_frame(None):
            source, closed = self.source, self._closed
            if source is None or closed is None or not self._replace(source, closed, result):
                return []
        return take_all(self.core.buffer)

    def interrupt(self) -> None:
        """End a :meth:`receive` of another thread, or one that this signal handler interrupted."""
        self.abandon()
        self.core.close()

    def end(
        self, result: object, error: BaseException | None, unused: Sequence[Frame] = ()
    ) -> None:
        """End the fetch, give back *unused*, and leave the hooks of plugins; safe to repeat."""
        # In front of later ones, because the server redelivers in the order of the naks.
        for frame in reversed(unused):
            self.core.engine.put_back(frame)
        if not self.is_taken:
            self.core.close()
        self.is_over = True
        self._leave_plugins(result, error)

    def mark_left(self, *, is_whole: bool) -> None:
        """
        Have another iteration say that messages may be missing, unless the batch was closed.

        Args:
            is_whole: Whether all messages that have arrived were taken.
        """
        if not self.closing and not (is_whole and self.is_taken):
            self._left = errors.HandleClosedError("batch", reason=LEFT)

    def abandon(self) -> None:
        """Want no more messages, so that none is missing."""
        self.closing = True
        if self._closed is not None:
            self._closed.set()
        self._left = None

    def _leave_plugins(self, result: object, error: BaseException | None) -> None:
        """Leave the hooks of plugins."""
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.leave(result, error)

    def _reason(self, error: BaseException | None) -> ResetReason | None:
        return reset_reason(error, self._engine.losses)

    def _rest(self) -> PullRequest | None:
        """Return what is left to ask for; None if nothing is left, or no time."""
        size = self._before_size + self._engine.size
        return rest_of(self.request, self.received, size, self._until.remaining())

    def _replace(self, source: OrderedSource, closed: Latch, result: object) -> bool:
        """Continue with another consumer if the last one is lost; return False at the end."""
        if self.is_over:
            # Another iteration after the end. What it has not taken was given back.
            return False
        error = self._engine.error
        reason = self._reason(error)
        over = self.closing or self.connection.stopping
        if error is None and source.is_current and not over:
            source.fresh = True
            return False
        source.fresh = False
        if (error is not None and reason is None) or over or self._rest() is None:
            return False
        try:
            self._leave_plugins(result, error)
        except Exception as raised:
            if raised is not error:
                raise
        try:
            source.remake(self._until, reason or "reconnected", closed)
        except errors.WaitTimeoutError as failure:
            if isinstance(failure.__cause__, errors.JetSyncError):
                raise_failure(failure.__cause__)
            return False
        rest = self._rest()
        if closed.is_set() or rest is None:
            return False
        before = self.received, self._before_size + self._engine.size
        self._begin(source.target, rest, self._until.remaining(), before)
        if closed.is_set():
            # Meanwhile, another call has closed the last core.
            self.core.close()
        return True


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

    def __init__(self, fetch: Fetch) -> None:
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
        state = "ended" if fetch.is_over or fetch.is_taken else "open"
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
        return ListIteration(self._untaken, self._fill(fetch), "batch", fetch.connection)

    def _fill(self, fetch: Fetch) -> Generator[None, None, None]:
        """Make messages of frames that have arrived, whenever all others were taken."""
        unused, self._kept = self._kept, []
        resumable = False
        target = fetch.target
        error: BaseException | None = None
        try:
            while not fetch.is_stopped():
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
                else:
                    unused = [*reversed(fetch.receive(self))]
                    if not unused:
                        break
            if fetch.error is not None:
                raise_failure(fetch.error)
        except BaseException as raised:
            error = None if isinstance(raised, GeneratorExit) else raised
            if not isinstance(raised, errors.JetSyncError):
                fetch.mark_left(is_whole=error is None and not (unused or self._untaken))
            if isinstance(raised, PluginError) and not target.wants_acks:
                # The server would not redeliver the other messages: keep them for the next
                # iteration.
                self._kept, self._iteration, resumable = unused, None, True
            raise
        finally:
            fetch.end(self, error, () if resumable else [*self._take_untaken(), *reversed(unused)])

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

    def _begin(self) -> BatchIteration:
        return Iteration(self._messages(self._fetch), "batch")

    def _messages(self, fetch: Fetch) -> Generator[Message, None, None]:
        """Yield one message after the other. The position includes each that was handed out."""
        source, me = fetch.source, threading.get_ident()
        assert source is not None
        cursor = source.cursor
        error: BaseException | None = None
        try:
            while not fetch.is_stopped():
                frames = fetch.receive(self)
                if not frames:
                    break
                for left, frame in zip(range(len(frames))[::-1], frames, strict=True):
                    source.taking = me, cursor.position
                    cursor.hand_out(frame[1])
                    source.fresh = not left and fetch.is_fresh
                    try:
                        message = fetch.target.make(frame)
                    except PluginError:
                        # The next use of the consumer gets it again.
                        source.take_back()
                        raise
                    # As in `OrderedConsumption.__next__`.
                    source.taking = None
                    yield message
                    if fetch.is_stopped():
                        break
            if fetch.error is not None:
                raise_failure(fetch.error)
        except BaseException as raised:
            error = None if isinstance(raised, GeneratorExit) else raised
            if not isinstance(raised, errors.JetSyncError):
                fetch.mark_left(is_whole=error is None and source.fresh)
            raise
        finally:
            fetch.end(self, error)
