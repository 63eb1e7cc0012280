"""
Fetching: one bounded batch of messages, yielded as they arrive.

A :class:`MessageBatch` drives the pull engine for one ``fetch`` or ``next``. Its consumer keeps the
inboxes that pulls are answered on and lends one to each batch; one that ended cleanly is used
again, so that a fetch costs one write and no subscription of its own.

Everything runs in the thread that iterates.
"""

from __future__ import annotations

import inspect
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync import events
from jetsync._base import log as _log
from jetsync._base.deadline import Deadline
from jetsync._hooks.errors import PluginError
from jetsync._io.connection import raise_failure
from jetsync._io.outbox import LaneState
from jetsync._proto.pull import GRACE, RETRY_WAIT, RETRY_WAIT_LIMIT, PullRequest, message_size
from jetsync._proto.status import Effect, Status
from jetsync.consume.acks import acknowledge_all, give_back, message_maker
from jetsync.consume.inbox import PullInbox, take_inbox
from jetsync.errors import (
    ConflictingUseError,
    InvalidGroupError,
    JetStreamNotEnabledError,
    JetSyncError,
    NoHeartbeatError,
    PinIdMismatchError,
    RequestTimeoutError,
    TransportError,
)
from jetsync.values.codec import from_wire
from jetsync.values.consumer_info import ConsumerInfo

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync._hooks.calls import Entered
    from jetsync._proto.pins import Pins
    from jetsync._proto.pull import Pull
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

__all__ = ["MessageBatch"]

PROBE_WAIT: Final = 1.0
"""Seconds to wait for the consumer's info when nobody answered a pull."""

NO_WAIT_SILENCE: Final = 0.05
"""
Seconds of silence after which a fetch with ``no_wait`` asks how its consumer is doing.

Servers answer such a pull within a millisecond, except while ``max_ack_pending`` is reached: then
they keep it, and say nothing at all.
"""

SECOND_LOOK: Final = 0.005
"""
Seconds of the second look of a fetch with ``no_wait`` that found nothing.

Servers acknowledge a publish a moment before its consumers know of the message. Measured on
2.10.26, 2.11.11, 2.12.8, 2.14.6 and 2.15.1, with a pull right behind each ack: without a second
look 0.4 to 2 of 100 messages were missed on an idle machine, up to 7 on a busy one; with 1 or 2 ms
none and 1 in 500; with 5 ms none of 10,000.
"""

SHORTEST_REST: Final = 0.01
"""Seconds that have to be left for another pull to be worth sending."""

PRUNE_AT: Final = 4096
"""
Messages that a batch keeps for :meth:`MessageBatch.ack` before it looks which are acknowledged
already.
"""

_logger = _log.get_logger("jetsync.fetch")


def is_running(generator: Generator[Any, None, None]) -> bool:
    """
    Return whether the generator runs, in another thread or interrupted by this signal handler.
    """
    return inspect.getgeneratorstate(generator) == inspect.GEN_RUNNING


class MessageBatch:
    """
    The messages of one fetch, as they arrive.

    Iterate over it once. Nothing there is not an error; a fault is raised at the end of the
    iteration, after the messages that did arrive. Leaving the iteration early, by ``break`` or an
    exception, gives the messages that were not taken back to the server at once; so does
    :meth:`close`, or using the batch as a context manager. One thread at a time.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        consumer: str,
        request: PullRequest,
        pool: list[PullInbox],
        *,
        wait: float,
        name: Any = "fetch",
        acked: bool = True,
        ack_all: bool = False,
        pins: Pins | None = None,
    ) -> None:
        self._context = context
        self._pins = pins
        if pins is not None and request.group is not None:
            request = attrs.evolve(request, pin_id=pins.get(request.group))
        self._acked = acked
        self._ack_all = ack_all
        self._stream = stream
        self._consumer = consumer
        self._request = request
        self._pool = pool
        self._wait = wait
        self._subject = f"{context.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}".encode()
        self._deadline = Deadline.after(wait + GRACE)
        self._ask_until = Deadline(self._deadline.at - GRACE, wait)
        self._retry_wait = RETRY_WAIT
        self._received = 0
        self._received_bytes = 0
        self._yielded: list[Message] = []
        self._prune_at = PRUNE_AT
        self._error: Exception | None = None
        self._ask_again = False
        self._look = 1
        """Which pull of a fetch with ``no_wait`` this is, see :meth:`_asks_again`."""

        self._closing = False
        """Whether it was closed while its iteration ran."""

        self._inbox: PullInbox | None = None
        self._entered: Entered | None = None
        self._name = name
        self.status: Status | None = None
        """The status that ended the batch, None while it runs or when none was needed."""
        self._behind: Iterator[Frame] = iter(())
        """What has come behind a message that a plugin refused, of a consumer without acks."""

        self._running: weakref.ref[Generator[Message, None, None]] | None = None
        """The iteration, which its caller alone keeps alive: letting go of it ends it."""
        context.connection.check()
        if context.plugins.enter_fetch is not None:
            self._entered = context.plugins.enter_fetch(self._operation())
        try:
            if context.lane.state is not LaneState.OPEN:
                # Waits for a connection: what is asked for has to fit the time that is left then.
                context.lane.write(b"", self._ask_until)
                request = self._rest() or request
            self._inbox = take_inbox(pool, context)
            self._inbox.pull(self._subject, request, self._ask_until)
        except BaseException as error:
            inbox, self._inbox = self._inbox, None
            if inbox is not None:
                inbox.close()
            self._finish(error)
            raise

    def __del__(self) -> None:
        # A batch that nobody iterated over has a pull open, and no generator that would end it.
        if getattr(self, "_inbox", None) is not None:
            self._abandon([])

    def __repr__(self) -> str:
        state = "open" if self._inbox is not None else "ended"
        return (
            f"<MessageBatch {self._stream}/{self._consumer} {state} received={self._received} "
            f"of {self._request.max_messages}>"
        )

    def __iter__(self) -> Iterator[Message]:
        return self._iteration()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def received(self) -> int:
        """How many messages have arrived so far."""
        return self._received

    def close(self) -> None:
        """
        End the batch now and give back what was not taken; safe to repeat.

        If another call is waiting for a message of this batch, its iteration ends at once.
        """
        running = None if self._running is None else self._running()
        if running is not None and is_running(running):
            self._closing = True
            inbox = self._inbox
            if inbox is not None:
                self._context.lane.interrupt(inbox.box)
            return
        if running is not None:
            running.close()
        self._behind = iter(())
        # A generator that was never started runs no `finally`.
        self._abandon([])
        self._finish(None)

    def ack(self) -> int:
        """
        Acknowledge all messages that were yielded, in one write; return how many that were.

        Messages that were acknowledged, refused or terminated before are left out.

        Raises:
            AcksNotWantedError: The consumer takes no acknowledgements.
            DisconnectedError, ConnectionClosedError: Nothing was sent; the messages can still be
                acknowledged.
        """
        count = acknowledge_all(self._yielded, None, skip_acked=True)
        self._yielded.clear()
        return count

    def first(self) -> Message | None:
        """Return the one message of a batch of one, None if there is none."""
        message = next(self._iteration(), None)
        self.close()
        return message

    def _iteration(self) -> Generator[Message, None, None]:
        """Return the one iteration, started or not."""
        running = None if self._running is None else self._running()
        if running is None:
            running = self._run()
            self._running = weakref.ref(running)
        if is_running(running):
            raise ConflictingUseError("another call waits for a message of this batch")
        return running

    def _operation(self) -> events.FetchOperation:
        request = self._request
        return events.FetchOperation(
            name=self._name,
            stream=self._stream,
            consumer=self._consumer,
            max_messages=request.max_messages,
            max_bytes=request.max_bytes,
            expires=None if request.no_wait else request.expires,
            heartbeat=request.heartbeat,
            group=request.group,
            timeout=self._wait,
        )

    def _run(self) -> Generator[Message, None, None]:
        """Yield the messages; every way out passes the end."""
        unused, self._behind = self._behind, iter(())
        goes_on = False
        make = message_maker(self._context, acked=self._acked, ack_all=self._ack_all)
        error: BaseException | None = None
        try:
            while True:
                for frame in () if self._closing else unused:
                    message = make(frame)
                    self._yielded.append(message)
                    yield message
                    if self._closing:
                        # Closed while the message was made.
                        break
                if len(self._yielded) >= self._prune_at:
                    self._prune()
                inbox = self._inbox
                if inbox is None or self._closing:
                    break
                unused = iter(self._receive(inbox))
            if self._error is not None:
                raise_failure(self._error)
        except BaseException as raised:
            error = None if isinstance(raised, GeneratorExit) else raised
            if isinstance(raised, PluginError) and not self._acked:
                # Nobody would deliver the others again: they are for the next iteration.
                self._behind, self._running, goes_on = unused, None, True
            raise
        finally:
            if not goes_on:
                self._abandon(list(unused))
            self._finish(error)

    def _receive(self, inbox: PullInbox) -> Sequence[Frame]:
        """Return the next messages; without an inbox afterwards, there are no more."""
        if self._ask_again:
            self._pull_rest(inbox)
        if self._error is not None or not self._wait_for_frames(inbox):
            return ()
        received = inbox.engine.receive(inbox.box.drain(), time.monotonic())
        self._received += len(received.messages)
        if self._pins is not None:
            self._pins.learn(self._request.group, received.messages)
        if self._request.max_bytes is not None:
            self._received_bytes += sum(map(message_size, received.messages))
        for status in received.others:
            self._tell(status, events.PullOutcome.IGNORED)
        for status, pull in zip(received.statuses, received.pulls, strict=True):
            self._on_status(status, pull)
        if inbox.engine.is_idle and not self._ask_again:
            self._inbox = None
            self._lay_down(inbox)
        return received.messages

    def _lay_down(self, inbox: PullInbox) -> None:
        """Leave an inbox whose pull is over to the next fetch, if it is over at the server too."""
        if isinstance(self._error, InvalidGroupError):
            # Servers before 2.14 refuse such a pull and serve it all the same (seen on 2.11.11 and
            # 2.12.8).
            inbox.abandon([])
        else:
            self._pool.append(inbox)

    def _wait_for_frames(self, inbox: PullInbox) -> bool:
        """Wait until there are frames; return False if something else has to be done first."""
        box, engine = inbox.box, inbox.engine
        while not box.frames:
            box.clear_interrupt()
            if self._closing:
                return False
            if box.failure is not None:
                self._fail(box.failure)
                return False
            for subject, denial in box.take_denials():
                if subject == self._subject:
                    self._fail(denial)
                    return False
            lost = box.take_lost()
            if lost and engine.lost(lost):
                self._ask_again = True
                return False
            due = engine.heartbeat.due()
            until = self._deadline
            if due is not None and due < until.at:
                until = Deadline(due, until.total)
            if self._request.no_wait:
                until = until.at_most(NO_WAIT_SILENCE)
            if not self._context.lane.wait(box, until) and self._is_over(inbox):
                return False
        return True

    def _is_over(self, inbox: PullInbox) -> bool:
        """Look why a wait ended with nothing, and set the error if that was the end."""
        now = time.monotonic()
        watch = inbox.engine.heartbeat
        silent = watch.missed(now)
        if silent or self._deadline.expired():
            self._context.connection.probe()
        if silent:
            if self._context.plugins.status is not None:
                self._context.plugins.status(
                    events.HeartbeatMissedEvent(
                        stream=self._stream,
                        consumer=self._consumer,
                        heartbeat=watch.interval,
                        silent_for=watch.silence(now),
                    )
                )
            self._fail(NoHeartbeatError(consumer=self._consumer, stream=self._stream))
        elif self._deadline.expired():
            self._fail(RequestTimeoutError(self._subject.decode(), self._deadline.total))
        elif self._request.no_wait:
            self._look_why_silent(inbox)
        return self._inbox is None or self._ask_again

    def _look_why_silent(self, inbox: PullInbox) -> None:
        """
        End a fetch that does not wait if its consumer has nothing to give now; ask again if the
        consumer has no pull.

        The server answers this question after the pull, so that with it comes what there was.
        """
        try:
            info = self._probe()
        except JetSyncError as error:
            self._fail(error)
            return
        if info is None or inbox.box.frames:
            return
        limit = info.config.max_ack_pending or 0
        if (
            not info.num_pending
            or 0 < limit <= info.num_ack_pending
            or info.paused
            or self._request.group is not None
        ):
            self._abandon([])
        elif not info.num_waiting and self._rest() is not None:
            # Sent to a leader that had just stepped down: it drops pulls without a word.
            inbox.engine.lost(self._context.lane.epoch)
            self._ask_again = True

    def _on_status(self, status: Status, pull: Pull) -> None:
        """Act on a status that ended the pull."""
        effect = status.effect
        self.status = status
        outcome = events.PullOutcome.ENDED
        if effect is Effect.FAULT:
            outcome = events.PullOutcome.FAILED
            self._error = status.error(self._stream, self._consumer)
        elif self._asks_again(status):
            if self._pins is not None and status.rule.error is PinIdMismatchError:
                # Another client is pinned, or ours was given another id meanwhile.
                self._pins.drop(pull.request.group, pull.request.pin_id)
            outcome = events.PullOutcome.RETRIED
            self._ask_again = True
        self._tell(status, outcome)

    def _tell(self, status: Status, outcome: events.PullOutcome) -> None:
        """Tell the log and the plugins of a status and what it did."""
        _logger.debug(
            _log.PULL_STATUS,
            stream=self._stream,
            consumer=self._consumer,
            code=status.code,
            description=status.description,
        )
        if self._context.plugins.status is not None:
            self._context.plugins.status(
                events.PullStatusEvent(
                    stream=self._stream,
                    consumer=self._consumer,
                    code=status.code,
                    description=status.description,
                    outcome=outcome,
                    pending_messages=status.pending_messages,
                    pending_bytes=status.pending_bytes,
                )
            )

    def _asks_again(self, status: Status) -> bool:
        """
        Say whether what is left has to be asked for after a status that is no fault.

        So it is after one that passes, and for a fetch that does not wait, which looks up to three
        times: without a time, so that it is never cut off; if that found nothing, with
        :data:`SECOND_LOOK`; for what that was cut off from, without a time again.
        """
        if self._rest() is None:
            return False
        if status.effect is not Effect.ENDED:
            return True
        if not self._request.no_wait or status.code == 409:
            return False
        found = self._received > 0
        if self._look == 1 and not found:
            self._look = 2
        elif self._look == 2 and found and status.code == 408:
            self._look = 3
        else:
            return False
        return True

    def _rest(self) -> PullRequest | None:
        """Return what is left to ask for, None if that is nothing worth asking."""
        request = self._request
        messages = request.max_messages - self._received
        expires = self._ask_until.remaining()
        size = None if request.max_bytes is None else request.max_bytes - self._received_bytes
        if messages <= 0 or expires < SHORTEST_REST or (size is not None and size <= 0):
            return None
        heartbeat = request.heartbeat
        if heartbeat is not None and heartbeat > expires / 2.0:
            heartbeat = None
        return attrs.evolve(
            request,
            max_messages=messages,
            max_bytes=size,
            pin_id=None if self._pins is None else self._pins.get(request.group),
            expires=(SECOND_LOOK if self._look == 2 else 0.0) if request.no_wait else expires,
            heartbeat=heartbeat,
        )

    def _pull_rest(self, inbox: PullInbox) -> None:
        """
        Ask again for what has not come: the pull died for a reason that passes.

        Where nobody answered, the consumer is looked up first, as it may be gone.
        """
        self._ask_again = False
        status = self.status
        try:
            if status is not None and status.effect is Effect.ABSENT:
                self._probe()
            if status is not None and status.effect is not Effect.ENDED:
                pause = self._deadline.at_most(self._retry_wait)
                self._retry_wait = min(self._retry_wait * 2.0, RETRY_WAIT_LIMIT)
                self._context.lane.wait(inbox.box, pause)
            # Waits for a connection: what is asked for has to fit the time that is left then.
            self._context.lane.write(b"", self._ask_until)
            rest = self._rest()
            if rest is not None:
                self.status = None
                inbox.pull(self._subject, rest, self._ask_until)
                return
        except JetSyncError as error:
            self._fail(error)
            return
        if status is not None and status.effect is Effect.ABSENT:
            self._error = status.error(self._stream, self._consumer)
        self._inbox = None
        self._pool.append(inbox)

    def _probe(self) -> ConsumerInfo | None:
        """
        Return how the consumer is doing, None if nobody says.

        Raises ConsumerNotFoundError or StreamNotFoundError if it does not exist.
        """
        try:
            answer = self._context.api(
                f"CONSUMER.INFO.{self._stream}.{self._consumer}",
                None,
                self._deadline.at_most(PROBE_WAIT),
                stream=self._stream,
                consumer=self._consumer,
            )
            return from_wire(ConsumerInfo, answer)
        except JetStreamNotEnabledError as error:
            if error.__cause__ is None:
                raise
            return None  # No server answered.
        except (TransportError, RequestTimeoutError):
            # Leaderless, disconnected or not allowed to ask: asking for messages again will tell.
            return None

    def _fail(self, error: Exception) -> None:
        """End the batch with an error and a pull that may still be open at the server."""
        self._error = error
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.abandon([])

    def _abandon(self, unused: list[Frame]) -> None:
        """Give back what nobody took; does nothing after a clean end."""
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.abandon(unused)
        elif unused:
            give_back(self._context.lane, unused)

    def _finish(self, error: BaseException | None) -> None:
        """Let the plugins around the fetch see its end."""
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.leave(self, error)

    def _prune(self) -> None:
        """
        Forget the messages that were acknowledged, so that a long batch does not keep all it
        yielded.
        """
        self._yielded = [message for message in self._yielded if not message.is_acked]
        self._prune_at = max(PRUNE_AT, 2 * len(self._yielded))
