"""
Fetching: one bounded batch of messages, yielded as they arrive.

The call of ``fetch`` sends the first pull. Everything else runs in the thread that iterates, except
that any thread may read the messages from the socket.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync._base.failures import raise_failure
from jetsync._base.iterations import ENTRY, OF_OTHERS
from jetsync._base.pickling import refuse_copy
from jetsync._base.turn import refuse_request
from jetsync._hooks.errors import PluginError
from jetsync._proto.fetch import FetchEngine
from jetsync.consume.ack_many import acknowledge_all
from jetsync.consume.consumption import TakingStorage
from jetsync.consume.core import LEFT, ConsumptionCore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from jetsync._hooks.calls import Entered
    from jetsync._proto.pull_request import PullRequest
    from jetsync._proto.status import Status
    from jetsync.consume.ordered_source import OrderedSource
    from jetsync.consume.target import PullTarget
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

__all__ = ["MessageBatch", "OrderedBatch"]

# A batch forgets the messages that were acknowledged whenever it has yielded this many.
PRUNE_AT: Final = 4096


class Fetch:
    """
    What one batch reads: the messages of one fetch, and where they are recorded when it yields one.

    If the consumer is that of an ordered consumer, it is replaced when it is lost, and the rest is
    fetched from the next one.

    Threads: the one that iterates. Any thread and any signal handler may call ``abandon`` and
    close the core.
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
        name: str,
        source: OrderedSource | None = None,
    ) -> None:
        # Before the pull: a signal handler that cannot wait for messages asks for none.
        refuse_request()
        self.request = request
        self.wants_acks: bool = target.wants_acks
        self._name = name
        self.source = source
        # The messages that were yielded, without those that were acknowledged; empty if the
        # consumer wants no acks.
        self.yielded: list[Message] = []
        self._prune_at = PRUNE_AT
        # The error of another iteration if this one was interrupted or left early.
        self._left: Exception | None = None
        self.closing: bool = False
        # Whether an iteration has ended.
        self.is_over: bool = False
        self._entered: Entered | None = None
        if source is not None:
            source.fresh = False
        self._enter_plugins(target, request, wait)
        core: ConsumptionCore | None = None
        try:
            # It sends the pull.
            self.core = core = ConsumptionCore(target, request, wait=wait, source=source)
            assert isinstance(core.engine, FetchEngine)
            self._engine = core.engine
            # An ordered consumer has its turn meanwhile. Its batch waits when it is iterated over.
            if core.feed.blocked and source is None:
                core.wait_until_sent()
        except BaseException as error:
            if core is not None:
                core.close()
            self.leave_plugins(None, error)
            raise

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
        error = self._left or self.core.fault
        assert error is None or isinstance(error, Exception)
        return error

    @property
    def is_taken(self) -> bool:
        """Whether no more messages can arrive, and all that have arrived were taken."""
        return not (self.core.is_open or self.core.buffer)

    @property
    def is_fresh(self) -> bool:
        """Whether an ordered consumer has sent what it was asked for, and nothing else."""
        return self.source is not None and self.source.is_current and self._engine.is_full

    def wait(self, result: object) -> bool:
        """
        Wait until there is a message; return False at the end.

        Args:
            result: What plugins get as the result if the consumer is replaced.
        """
        core, source = self.core, self.source
        # Another iteration may have ended it: what that has not taken was given back.
        is_over = self.is_taken and (self.is_over or core.lost is None)
        if is_over or not core.wait_for_next(None, partial(self._enter_next, result)):
            if source is not None and not (self.is_over or self._engine.error):
                is_closed = self.closing or source.context.connection.stopping
                source.fresh = source.is_current and not is_closed
            return False
        self.prune()
        return True

    def _enter_next(self, result: object) -> None:
        """Have plugins see the pull from the next consumer as another fetch."""
        engine, source, now = self._engine, self.source, time.monotonic()
        error, rest = engine.error, engine.rest(now)
        try:
            self.leave_plugins(result, error)
        except Exception as raised:
            if raised is not error:
                raise
        if rest is not None and source is not None:
            self._enter_plugins(source.target, rest, engine.send_until - now)

    def prune(self) -> None:
        """Forget acknowledged messages, so that a long batch does not keep all of them."""
        yielded, core = self.yielded, self.core
        if len(yielded) >= self._prune_at:
            yielded[:] = [message for message in yielded if not message.is_acked]
            self._prune_at = max(PRUNE_AT, 2 * len(yielded))
        # When the compiled `__next__` has taken that many, it has this called again.
        core.low[0] = max(len(core.buffer) - PRUNE_AT - 1, -1)

    def end(self, result: object, error: BaseException | None) -> None:
        """End it, give back what was not taken, and leave the plugins; safe to repeat."""
        core = self.core
        if not self.is_taken:
            core.close()
        core.target.context.connection.consumptions.discard(core)
        self.is_over = True
        self.leave_plugins(result, error)

    def leave(self, result: object, error: BaseException | None = None) -> None:
        """End it, and have another iteration say so if messages may be missing."""
        is_whole = self.is_taken and (self.source is None or self.source.fresh)
        if not (self.closing or is_whole):
            self._left = errors.HandleClosedError("batch", reason=LEFT)
        self.end(result, error)

    def abandon(self) -> None:
        """Want no more messages, so that none is missing."""
        self.closing = True
        self._left = None

    def leave_plugins(self, result: object, error: BaseException | None) -> None:
        """Leave the hooks of plugins."""
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.leave(result, error)

    def _enter_plugins(self, target: PullTarget, request: PullRequest, wait: float) -> None:
        if target.context.plugins.enter_fetch is not None:
            self._entered = target.enter(self._name, request, wait)


class BatchIteration(TakingStorage):
    """
    Yields the messages of a batch, to one call at a time; dropping it ends the batch.

    Threads: any, and signal handlers.
    Locks: none; the call that has taken the entry of ``_reading`` waits and makes messages. The
    compiled ``__next__`` takes a message in one step.

    A message stays in the buffer until it is made. No signal handler runs between its removal and
    the return. So Ctrl-C loses none, and :meth:`MessageBatch.ack` covers none that was not yielded.

    Args:
        batch: The batch, which plugins get as the result.
        fetch: What it reads.
    """

    __slots__ = ("__weakref__", "_batch", "_fetch", "_reading", "is_over")

    def __init__(self, batch: MessageBatch, fetch: Fetch) -> None:
        self._batch = batch
        self._fetch = fetch
        core = fetch.core
        self._reading = core.reading
        record = fetch.yielded if fetch.wants_acks else None
        self._quick = (
            None
            if fetch.source is not None
            else (core.buffer, core.buffer.popleft, core.low, core.make, record)
        )
        self.is_over: bool = False

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # At its end, the interpreter empties modules, but not the default of an argument. Without
        # the last field, the constructor was interrupted.
        if not getattr(self, "is_over", True) and not is_ending():
            self._fetch.leave(self._batch)

    def __iter__(self) -> Self:
        return self

    @property
    def is_running(self) -> bool:
        """Whether a call waits for a message or makes one."""
        return not self._reading.free

    def _take_next(self) -> Message:
        """Take a message as ``__next__`` does."""
        try:
            for _ in self._reading.entry:
                break
        except IndexError:
            raise self._reading.conflict() from None
        fetch, source = self._fetch, self._fetch.source
        core = fetch.core
        try:
            while not self.is_over:
                # Another thread that closes the batch may empty the buffer at any moment.
                try:
                    frame = core.buffer[0]
                except IndexError:
                    frame = None
                if frame is None:
                    if not fetch.wait(self._batch):
                        self._end()
                    continue
                message = self._make(core, frame)
                is_fresh = source is not None and len(core.buffer) == 1 and fetch.is_fresh
                taken = frame
                try:
                    for oldest in core.oldest:
                        taken = oldest
                        break
                except IndexError:
                    continue
                if taken is not frame:
                    # Another thread has taken it by the compiled `__next__`.
                    core.engine.put_back(taken)
                    continue
                # Nothing is called from the removal to the return.
                if source is not None:
                    source.fresh = is_fresh
                    core.place[:] = frame[1], core.place[1] + 1
                elif fetch.wants_acks:
                    fetch.yielded += (message,)
                return message
        except BaseException as error:
            if not isinstance(error, errors.JetSyncError):
                # If Ctrl-C has ended the connection, messages may be missing.
                fetch.leave(self._batch, error)
            elif not (self.is_over or isinstance(error, OF_OTHERS)):
                self.is_over = True
                fetch.end(self._batch, error)
            raise
        finally:
            self._reading.free += ENTRY
        raise StopIteration

    if not hasattr(TakingStorage, "__next__"):
        __next__ = _take_next

    def _make(self, core: ConsumptionCore, frame: Frame) -> Message:
        """Make the message of the oldest frame, and remove the frame if a plugin refuses it."""
        fetch = self._fetch
        if len(core.buffer) <= core.low[0] + 1:
            fetch.prune()
        try:
            return core.make(frame)
        except PluginError as error:
            # The next use of an ordered consumer gets it again.
            if fetch.source is None:
                core.take_now()
                if not fetch.wants_acks:
                    # The server would not redeliver the messages after it. The next iteration
                    # yields them.
                    self.is_over = True
                    fetch.leave_plugins(self._batch, error)
            raise

    def _end(self) -> None:
        """End it after the last message: raise the error, if there is one."""
        error = self._fetch.error
        if error is not None:
            raise_failure(error)
        self.is_over = True
        self._fetch.end(self._batch, None)


class MessageBatch:
    """
    The messages of one fetch, as they arrive; made by ``Consumer.fetch``.

    Iterate over it once, in one thread. If no message arrives, the iteration ends without an error.
    Errors are raised at the end of the iteration, after the messages that did arrive. If you leave
    the iteration early, by ``break`` or an exception, jetsync immediately gives the remaining
    messages back to the server. :meth:`close` and the end of a ``with`` block do the same.
    """

    # Threads: one iterates and acknowledges. Any thread and any signal handler may close it.
    # Locks: none; the iteration lets in one call at a time.

    __reduce__ = refuse_copy

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        # Only its user keeps the iteration alive, so dropping it ends the batch.
        self._iteration: weakref.ref[BatchIteration] | None = None
        # The thread that iterates.
        self._thread = 0

    def __repr__(self) -> str:
        fetch, target = self._fetch, self._fetch.core.target
        state = "ended" if fetch.is_over or fetch.is_taken else "open"
        return (
            f"<{type(self).__name__} {target.stream}/{target.consumer} {state} "
            f"received={fetch.received} of {fetch.request.max_messages}>"
        )

    def __iter__(self) -> Iterator[Message]:
        iteration, me = self._running(), threading.get_ident()
        if iteration is None:
            iteration = BatchIteration(self, self._fetch)
            self._iteration, self._thread = weakref.ref(iteration), me
        elif self._thread != me or iteration.is_running:
            raise self._fetch.core.reading.conflict()
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
        fetch = self._fetch
        fetch.abandon()
        if self._is_running:
            # That call ends the fetch.
            fetch.core.close()
        else:
            fetch.end(self, None)

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
        fetch, target = self._fetch, self._fetch.core.target
        if fetch.received and not target.wants_acks:
            raise errors.AcksNotWantedError(target.consumer, stream=target.stream)
        yielded = [*fetch.yielded]
        count = acknowledge_all(yielded, None, skip_acked=True, ack_all=target.ack_all)
        del fetch.yielded[: len(yielded)]
        return count

    def _running(self) -> BatchIteration | None:
        """Return the iteration, if there is one."""
        # Read once, because a thread that iterates may clear it meanwhile.
        reference = self._iteration
        iteration = None if reference is None else reference()
        if iteration is not None and iteration.is_over and not self._fetch.is_taken:
            # A plugin has refused a message.
            return None
        return iteration

    @property
    def _is_running(self) -> bool:
        """Whether a call waits for a message or makes one."""
        iteration = self._running()
        return iteration is not None and iteration.is_running


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
        fetch = self._fetch
        return fetch.is_over or (fetch.closing and not self._is_running)
