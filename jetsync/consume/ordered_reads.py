"""
Reading an ordered consumer: one bounded batch, or an iteration without end.

Both move the cursor of the ordered consumer that made them, and have its consumer on the server
made again where that is lost.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import attrs

from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch, refuse_reentry, take
from jetsync._io.connection import raise_failure
from jetsync._proto.ordered import Order
from jetsync._proto.pull import message_size
from jetsync.consume.acks import message_maker
from jetsync.consume.core import ConsumptionCore, is_own_close
from jetsync.consume.fetch import Fetch, Iteration, rest_of
from jetsync.errors import (
    CallInSignalHandlerError,
    ConflictingUseError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    ConsumptionClosedError,
    JetSyncError,
    NoHeartbeatError,
    RequestTimeoutError,
    StreamNotFoundError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from typing_extensions import Self

    from jetsync._base.deadline import Seconds
    from jetsync._proto.consume import ConsumeOptions
    from jetsync._proto.pull import PullRequest
    from jetsync._proto.status import Status
    from jetsync.consume.inbox import PullInbox
    from jetsync.consume.ordered_source import OrderedSource
    from jetsync.events import ResetReason
    from jetsync.values.message import Message

__all__ = ["OrderedBatch", "OrderedConsumption"]

GONE: Final = (ConsumerDeletedError, ConsumerNotFoundError, StreamNotFoundError)


class OrderedConsumption:
    """
    The messages of an ordered consumer, one after the other; made by ``OrderedConsumer.consume``.

    Iterate over it, in one thread at a time. Whatever happens to connections, servers and consumers
    meanwhile, the stream sequences grow, no message is left out and none comes twice. The iteration
    ends after :meth:`stop`, :meth:`drain`, ``stop_after`` messages or the end of the client; it
    raises, once, what makes going on impossible. As a context manager it is stopped at the end of
    the block.
    """

    def __init__(self, source: OrderedSource, options: ConsumeOptions) -> None:
        self._source = source
        self.options = options
        self._make = message_maker(source.context, acked=False)
        self._received = 0
        self._over = Latch()
        self._draining = False
        self._taking = threading.RLock()
        """Held by the thread that takes a message."""

        self._error: JetSyncError | None = None
        self._told = False
        self._leg: ConsumptionCore | None = None
        self._reason: ResetReason = "gone"
        self._begin()

    def __repr__(self) -> str:
        cursor, state = self._source.cursor, "closed" if self.closed else "open"
        return (
            f"<OrderedConsumption {self._source.stream}/{cursor.name} {state} "
            f"received={self._received} last={cursor.last}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        message = self._take(None)
        if message is None:
            if not is_own_close(self._error):
                self._raise_error()
            raise StopIteration
        return message

    def next(self, *, timeout: Seconds | None = None) -> Message:
        """
        Return the next message.

        Args:
            timeout: Seconds to wait; None is the consumption's *expires*, 0 only looks. While the
                consumer has to be made again, half a second may be added.

        Raises:
            WaitTimeoutError: None came in time; the position is kept.
            ConsumptionClosedError: It has ended, and all that came was taken.
            ConflictingUseError: Another thread is taking a message.
            JetSyncError: What ended it, once.
        """
        return self.take(Deadline.after(self.options.expires if timeout is None else timeout))

    def take(self, deadline: Deadline) -> Message:
        """Do as :meth:`next`, for other handles of the package."""
        message = self._take(deadline)
        if message is None:
            self._raise_error()
            error = self._error
            raise ConsumptionClosedError(reason=None if error is None else str(error))
        return message

    @property
    def closed(self) -> bool:
        """Whether it has ended, and all that came was taken."""
        return self._over.is_set()

    @property
    def error(self) -> BaseException | None:
        """What made it end, None if it goes on or was ended in an ordinary way."""
        return None if is_own_close(self._error) else self._error

    @property
    def received(self) -> int:
        """How many messages were given out."""
        return self._received

    def stop(self) -> None:
        """
        End it; what was not taken is left to the next use of the ordered consumer.

        Safe to repeat, from any thread; whoever waits for a message is woken. Does not wait.
        """
        self._over.set()
        leg = self._leg
        if leg is not None:
            leg.close()

    close = stop

    def drain(self) -> None:
        """
        Pull no more; the iteration ends once what is here has been taken.

        Safe to repeat, from any thread. Does not wait.
        """
        self._draining = True
        leg = self._leg
        if leg is None:
            self._over.set()
        else:
            leg.drain()
            if leg.closed:
                self._over.set()

    def wait(self, *, timeout: Seconds | None = None) -> bool:
        """
        Wait until it has ended and all that came was taken; return whether that is so.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Raises:
            CallInSignalHandlerError: This is a signal handler that interrupted a call for a
                message. It would wait for itself.
        """
        deadline = Deadline.after(timeout)
        if not self._over.is_set():
            refuse_reentry(self._taking)
        return self._over.wait(deadline.remaining())

    def _take(self, deadline: Deadline | None) -> Message | None:
        """Return the next message, None at the end."""
        refuse_reentry(self._taking)
        taken: list[bool] = []
        try:
            if not take(self._taking, taken):
                raise ConflictingUseError(
                    "another thread is taking a message of this ordered consumption"
                )
            while not self._over.is_set():
                leg = self._leg
                if leg is None:
                    self._source.remake(deadline, self._reason, self._over)
                    if not self._over.is_set():
                        self._begin()
                    continue
                frame = leg.take_frame(deadline)
                if frame is None:
                    if deadline is not None and not leg.over.is_set():
                        raise WaitTimeoutError("a message", deadline.total)
                    self._end(leg)
                    continue
                leg.refill_if_low()
                order = self._source.cursor.take(frame[1])
                if order is Order.NEXT:
                    try:
                        message = self._make(frame)
                    except BaseException:
                        # A plugin refuses it. Whoever reads on from here gets it again.
                        self._source.cursor.put_back()
                        raise
                    self._received += 1
                    if self._received == self.options.stop_after or (
                        leg.engine.draining and leg.closed
                    ):
                        self._over.set()
                    return message
                if order is Order.GAP:
                    leg.close()
                    self._leg, self._reason = None, "gap"
        except (WaitTimeoutError, CallInSignalHandlerError, ConflictingUseError):
            raise
        except JetSyncError as error:
            self._error = error
            self._over.set()
        finally:
            if True in taken:
                self._taking.release()
        if self._leg is not None:
            self._leg.end_seen.set()
        return None

    def _begin(self) -> None:
        """Pull from a consumer that is fresh."""
        source, options = self._source, self.options
        source.fresh = False
        left = None if options.stop_after is None else options.stop_after - self._received
        wanted = attrs.evolve(options, consumer=source.cursor.name, stop_after=left)
        leg = self._leg = ConsumptionCore(source.context, wanted, acked=False, recovers=False)
        if self._draining:
            leg.drain()
        if self._over.is_set():
            leg.close()

    def _end(self, leg: ConsumptionCore) -> None:
        """See why a leg brings no more."""
        self._leg = None
        error = leg.engine.error
        if isinstance(error, (*GONE, NoHeartbeatError)):
            if leg.driver.losses:
                self._reason = "reconnected"
            else:
                self._reason = "silent" if isinstance(error, NoHeartbeatError) else "gone"
        elif isinstance(error, JetSyncError):
            self._error = error
            self._over.set()
        elif leg.engine.draining or self._draining:
            self._over.set()
        if self._draining:
            self._over.set()

    def _raise_error(self) -> None:
        """Raise what ended it, unless it was raised before."""
        if self._error is not None and not self._told:
            self._told = True
            raise_failure(self._error)


class OrderedBatch:
    """
    The messages of one fetch of an ordered consumer, as they arrive.

    Iterate over it once, in one thread. Nothing there is not an error. Messages that were not taken
    when the iteration is left, or at :meth:`close`, are left to the next use of the ordered
    consumer.
    """

    def __init__(
        self,
        source: OrderedSource,
        pool: list[PullInbox],
        request: PullRequest,
        *,
        wait: float,
        name: str,
    ) -> None:
        self._source = source
        self._pool = pool
        self._request = request
        self._name = name
        self._until = Deadline.after(wait)
        self._over = Latch()
        self._received = 0
        self._size = 0
        self._fetch = self._pull(request, wait)
        self._iteration = Iteration()

    def __repr__(self) -> str:
        state = "ended" if self.closed else "open"
        return (
            f"<OrderedBatch {self._source.stream}/{self._source.cursor.name} {state} "
            f"received={self._received} of {self._request.max_messages}>"
        )

    def __iter__(self) -> Iterator[Message]:
        return self._iteration.start(self._run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set() and not self._iteration.is_running

    @property
    def received(self) -> int:
        """How many messages were given out."""
        return self._received

    @property
    def status(self) -> Status | None:
        """The status that ended the last pull, None while it runs or when none was needed."""
        return self._fetch.status

    def close(self) -> None:
        """
        End the batch now; safe to repeat.
        """
        self._over.set()
        if self._iteration.close():
            # A generator that was never started has not run its `finally`.
            self._end_pull(None)
        else:
            self._fetch.interrupt()

    def first(self) -> Message | None:
        """Return the one message of a batch of one, None if there is none."""
        message = next(iter(self), None)
        self.close()
        return message

    def _pull(self, request: PullRequest, wait: float) -> Fetch:
        source = self._source
        source.fresh = False
        return Fetch(
            source.context,
            source.stream,
            source.cursor.name,
            request,
            self._pool,
            wait=wait,
            name=self._name,
            acked=False,
            epoch=source.epoch,
        )

    def _end_pull(self, error: BaseException | None) -> None:
        self._fetch.abandon(())
        self._fetch.finish(self, error)

    def _run(self) -> Generator[Message, None, None]:
        """Yield the messages of as many consumers as it takes."""
        source, asked = self._source, self._request
        try:
            while True:
                reason: ResetReason | None = None
                try:
                    in_order = yield from self._read(asked)
                    reason = None if in_order else "gap"
                except GONE:
                    reason = "gone"
                except (NoHeartbeatError, RequestTimeoutError):
                    reason = "silent"
                if not reason and source.is_current and not self._over.is_set():
                    source.fresh = True
                    return
                source.fresh = False
                if self._over.is_set() or self._rest() is None:
                    return
                if not self._remake(reason or "reconnected"):
                    return
                rest = self._rest()
                if rest is None:
                    return
                asked = rest
                self._fetch = self._pull(asked, self._until.remaining())
        finally:
            self._end_pull(None)
            self._over.set()

    def _read(self, asked: PullRequest) -> Generator[Message, None, bool]:
        """Yield the messages of one pull; return False if the next one was lost."""
        source, fetch, seen = self._source, self._fetch, 0
        make = message_maker(source.context, acked=False)
        error: BaseException | None = None
        try:
            while fetch.is_open and not self._over.is_set():
                for frame in fetch.receive():
                    seen += 1
                    order = source.cursor.take(frame[1])
                    if order is Order.GAP:
                        return False
                    # If all that was asked for has come, the consumer has sent nothing else.
                    source.fresh = seen == asked.max_messages and source.is_current
                    if order is Order.NEXT:
                        try:
                            message = make(frame)
                        except BaseException:
                            # A plugin refuses it. The next use of the consumer gets it again.
                            source.cursor.put_back()
                            source.fresh = False
                            raise
                        self._received += 1
                        self._size += message_size(frame)
                        yield message
                        if fetch.closing:
                            break
            if fetch.error is not None:
                raise_failure(fetch.error)
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._end_pull(error)
        return True

    def _remake(self, reason: ResetReason) -> bool:
        """Make another consumer; return False if there is no time, and nothing to complain of."""
        try:
            self._source.remake(self._until, reason, self._over)
        except WaitTimeoutError as error:
            if isinstance(error.__cause__, JetSyncError):
                raise_failure(error.__cause__)
            return False
        return not self._over.is_set()

    def _rest(self) -> PullRequest | None:
        """Return what is left to ask for; None if nothing is left, or no time."""
        return rest_of(self._request, self._received, self._size, self._until.remaining())
