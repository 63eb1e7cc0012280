"""
Fetching: one bounded batch of messages, yielded as they arrive.

A :class:`Fetch` drives the pull engine for one ``fetch`` or ``next``. Servers send the answers to a
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
from jetsync._api.consumers import info as consumer_info
from jetsync._base.deadline import Deadline
from jetsync._base.failures import raise_failure
from jetsync._base.iterations import Iteration, ListIteration, conflict
from jetsync._base.locks import POLL
from jetsync._base.pickling import refuse_copy
from jetsync._base.turn import refuse_request
from jetsync._hooks.errors import PluginError
from jetsync._io.mailbox import take_all
from jetsync._io.outbox import LaneState
from jetsync._proto.pull import (
    GRACE,
    PULL_RETRY_WAIT,
    PULL_RETRY_WAIT_LIMIT,
    drop_pin,
    learn_pin,
    message_size,
)
from jetsync._proto.pull_size import rest_of, room_for
from jetsync._proto.status import Bounded, Verdict, judge
from jetsync.consume.acks import acknowledge_all
from jetsync.consume.inbox import PullInbox, take_inbox
from jetsync.events import PullOutcome
from jetsync.values.message import frame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from typing_extensions import Self

    from jetsync._hooks.calls import Entered
    from jetsync._io.connection import Connection
    from jetsync._proto.pull import Pull, PullRequest
    from jetsync._proto.status import Status
    from jetsync.consume.ordered_reads import OrderedFetch
    from jetsync.consume.target import PullTarget
    from jetsync.values.consumer_info import ConsumerInfo
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

__all__ = ["MessageBatch", "OrderedBatch"]

# Seconds to wait for the consumer's info if no server answered a pull.
INFO_TIMEOUT: Final = 1.0

# Seconds of silence after which a fetch with `no_wait` asks for the consumer's info. Servers answer
# such a pull within a millisecond, unless `max_ack_pending` is reached. Then they keep the pull and
# send nothing.
NO_WAIT_SILENCE: Final = 0.05

# If the first pull of a fetch with `no_wait` finds nothing, a second one waits this many seconds.
# Servers acknowledge a publish shortly before its consumers know of the message. Measured on
# 2.10.26, 2.11.11, 2.12.8, 2.14.6 and 2.15.1, with a pull right after each ack. Without a second
# pull, 0.4 to 2 of 100 messages were missed on an idle machine, and up to 7 on a busy one. With 1
# or 2 ms, at most 1 in 500 was missed. With 5 ms, none of 10,000 were missed.
SECOND_PULL: Final = 0.005

# A batch forgets the messages that were acknowledged once it holds this many.
PRUNE_AT: Final = 4096

# Why another iteration over a batch fails.
LEFT: Final = "its iteration was interrupted or left early, so messages may be missing: fetch again"

# How many frames are made into messages at once. With 16, each takes 0.07 us more.
MADE_AT_ONCE: Final = 256


class Fetch:
    """
    One bounded pull, followed by another one if it ends for a temporary reason.

    Threads: the one that iterates. Any thread and any signal handler may call ``interrupt``.
    Locks: none; the iteration of the batch lets in one call at a time.

    Args:
        target: The consumer.
        request: What to ask for.
        wait: Seconds to wait for messages.
        name: The public method that fetches, for plugins.
        epoch: If given, the pull is only retried on this connection. On another one, the fetch
            ends with NoHeartbeatError.
    """

    def __init__(
        self,
        target: PullTarget,
        request: PullRequest,
        *,
        wait: float,
        name: str = "fetch",
        epoch: int | None = None,
    ) -> None:
        # Before the pull: a signal handler that cannot wait for messages asks for none.
        refuse_request()
        if target.lane.outbox.state is not LaneState.OPEN:
            target.renew_lane()
        lane = target.lane
        self.connection: Connection = target.context.connection
        connected = lane.outbox.state is LaneState.OPEN
        self.target = target
        group = request.priorities.group
        if group is not None:
            request = attrs.evolve(request, pin_id=target.pins.get(group))
        self.request = request
        self._lane = lane
        self._epoch = epoch
        now = time.monotonic()
        self._deadline = Deadline(now + wait + GRACE, wait + GRACE)
        self._send_until = Deadline(now + wait, wait)
        self._retry_wait = PULL_RETRY_WAIT
        # Which pull of a fetch with `no_wait` this is, see `judge`.
        self._attempt = 1
        # Why another pull has to be sent before the next wait; None if none has to.
        self._due: Verdict | None = None
        # Whether an open pull was given up, for example with its connection. The server may keep it
        # until it expires, and then serves it as well, because the inbox is subscribed again.
        self._lost = False
        self._received_bytes = 0
        self.received: int = 0
        # The status that ended the last pull; None while it is open, or if none was needed.
        self.status: Status | None = None
        self.error: Exception | None = None
        # The error of another iteration if this one was interrupted or left early.
        self._left: Exception | None = None
        # Whether another call closed the batch while the iteration was running.
        self.closing: bool = False
        # None once no more messages can arrive.
        self.inbox: PullInbox | None = None
        self._entered: Entered | None = None
        if target.context.plugins.enter_fetch is not None:
            self._entered = target.enter(name, request, wait)
        try:
            if not connected:
                # Wait for a connection. The pull then expires with the time that is left.
                self._wait_for_connection()
                request = self._rest() or request
            if self.connection.stopping:
                # A signal is ending the program: the batch is empty.
                return
            self.inbox = take_inbox(target)
            self.inbox.pull(target.subject, request, self._send_until)
        except BaseException as error:
            inbox, self.inbox = self.inbox, None
            if inbox is not None:
                inbox.close()
            self.end(None, error)
            raise

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # At its end, the interpreter empties modules, but not the default of an argument.
        # A batch that was not iterated over has an open pull, and no generator that would end it.
        if getattr(self, "inbox", None) is not None and not is_ending():
            self._stop()

    @property
    def is_over(self) -> bool:
        """Whether no more messages can arrive."""
        return self.inbox is None

    def receive(self) -> Sequence[Frame]:
        """Wait for messages and return their frames; return nothing if the state has changed."""
        inbox = self.inbox
        assert inbox is not None
        if self._due is not None:
            self._pull_rest(inbox, self._due)
        if self.inbox is None or not self._wait_for_frames(inbox):
            return ()
        engine = inbox.engine
        now = time.monotonic()
        received = engine.receive(take_all(inbox.box.frames), now)
        messages, statuses = received.messages, received.statuses
        if received.surplus:
            self.target.give_back(received.surplus)
        if engine.strays.fresh or engine.sifted.fresh:
            self.target.report_strays(engine.strays, engine.sifted)
        surplus: Sequence[Frame] = ()
        # Messages that need no ack cannot be given back, so the caller gets all of them.
        if self._lost and self.target.wants_acks:
            sizes = map(message_size, messages)
            room = room_for(self.request, self.received, self._received_bytes, sizes)
            messages, surplus = messages[:room], messages[room:]
        self.received += len(messages)
        if self.request.priorities.group is not None:
            learn_pin(self.target.pins, self.request.priorities.group, messages)
        if self.request.max_bytes is not None:
            self._received_bytes += sum(map(message_size, messages))
        for status, pull in statuses:
            outcome = PullOutcome.IGNORED if pull is None else self._follow(status, pull, now)
            self.target.report_status(status, outcome)
        if surplus or (engine.is_idle and self._due is None):
            self._release(inbox, surplus)
        return messages

    def interrupt(self) -> None:
        """End a :meth:`receive` of another thread, or one that this signal handler interrupted."""
        self.closing = True
        inbox = self.inbox
        if inbox is not None:
            self._lane.interrupt(inbox.box)

    def end(
        self, result: object, error: BaseException | None, unused: Sequence[Frame] = ()
    ) -> None:
        """End the fetch, give back *unused*, and leave the hooks of plugins; safe to repeat."""
        if unused or self.inbox is not None:
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
        if not self.closing and not (is_whole and self.is_over):
            self.error = self._left = errors.HandleClosedError("batch", reason=LEFT)

    def abandon(self) -> None:
        """Want no more messages, so that none is missing."""
        self.closing = True
        if self.error is self._left:
            self.error = None

    def _release(self, inbox: PullInbox, surplus: Sequence[Frame] = ()) -> None:
        """Return the inbox to the pool, unless the server may still serve a pull of it."""
        self.inbox = None
        # Servers before 2.14 refuse a pull for its group and still serve it (seen on 2.11.11 and
        # 2.12.8).
        if self._lost or isinstance(self.error, errors.InvalidGroupError):
            inbox.abandon(surplus, acked=self.target.wants_acks)
        else:
            self.target.pool.append(inbox)

    def _stop(self, unused: Sequence[Frame] = ()) -> None:
        """End the fetch, though its pull may be open at the server, and give back *unused*."""
        inbox, self.inbox = self.inbox, None
        if inbox is not None:
            inbox.abandon(unused, acked=self.target.wants_acks)
        else:
            self.target.give_back(unused)

    def _wait_for_frames(self, inbox: PullInbox) -> bool:
        """Wait until there are frames; return False if something else has to be done first."""
        box, engine = inbox.box, inbox.engine
        while not box.frames:
            # Cleared before the check: an interruption after it must end the wait below.
            box.interrupted = False
            if self.closing or self.connection.stopping:
                self._stop()
                return False
            if box.ready:
                if box.failure is not None:
                    self._fail(box.failure)
                    return False
                for subject, denial in box.take_denials():
                    if subject == self.target.subject:
                        self._fail(denial)
                        return False
                lost = box.take_lost()
                if lost and engine.lost(lost):
                    self._due, self._lost = Verdict.AGAIN, True
                    return False
            due = engine.next_miss()
            until = self._deadline
            if due is not None and due < until.at:
                until = Deadline(due, until.total)
            if self.request.no_wait:
                until = until.at_most(NO_WAIT_SILENCE)
            if not self._lane.wait(box, until) and self._act_on_silence(inbox):
                return False
        return True

    def _act_on_silence(self, inbox: PullInbox) -> bool:
        """Act on a wait that brought nothing; return whether the fetch or its pull is over."""
        now = time.monotonic()
        engine = inbox.engine
        silent = engine.missed(now)
        if silent or self._deadline.expired():
            self.connection.probe()
        if silent:
            self.target.report_silence(engine.heartbeat, now - engine.heard)
            self._fail(
                errors.NoHeartbeatError(consumer=self.target.consumer, stream=self.target.stream)
            )
        elif self._deadline.expired():
            self._fail(
                errors.RequestTimeoutError(self.target.subject.decode(), self._deadline.total)
            )
        elif self.request.no_wait:
            self._explain_silence(inbox)
        return self.inbox is None or self._due is not None

    def _explain_silence(self, inbox: PullInbox) -> None:
        """
        Ask the server why a fetch with ``no_wait`` gets no messages, and act on the answer.

        If the consumer cannot deliver now, the fetch ends. If the pull was lost, it is retried.
        The server answers in order, so all messages of the pull have arrived before this answer.
        """
        try:
            info = self._find_consumer()
        except errors.JetSyncError as error:
            self._fail(error)
            return
        if info is None or inbox.box.frames:
            return
        limit = info.config.max_ack_pending or 0
        if (
            not info.num_pending
            or 0 < limit <= info.num_ack_pending
            or info.paused
            or self.request.priorities.group is not None
        ):
            self._stop()
        elif not info.num_waiting and self._rest() is not None:
            # A leader that has just stepped down drops pulls without a status.
            # A busy server may also not have looked at this one yet, and serves it later.
            inbox.engine.lost(self._lane.epoch)
            self._due, self._lost = Verdict.AGAIN, True

    def _follow(self, status: Status, pull: Pull, now: float) -> PullOutcome:
        """Act on a status that ended the pull."""
        self.status = status
        want = Bounded(self._rest() is not None, self.received > 0, self._attempt)
        verdict = judge(status, pull, want, now)
        if verdict is Verdict.FAIL:
            self.error = status.error(self.target.stream, self.target.consumer)
            return PullOutcome.FAILED
        if verdict is Verdict.END:
            return PullOutcome.ENDED
        if verdict is Verdict.AGAIN:
            self._attempt += 1
        elif status.rule.error is errors.PinIdMismatchError:
            # Another client is pinned, or this client was given a new id meanwhile.
            drop_pin(self.target.pins, pull.request)
        self._due = verdict
        return PullOutcome.RETRIED

    def _rest(self) -> PullRequest | None:
        """Return a pull for the messages that are left; None if none are left, or no time."""
        rest = rest_of(
            self.request, self.received, self._received_bytes, self._send_until.remaining()
        )
        if rest is None or not (rest.no_wait or rest.priorities.group):
            return rest
        return attrs.evolve(
            rest,
            pin_id=self.target.pins.get(rest.priorities.group),
            expires=(SECOND_PULL if self._attempt == 2 else 0.0) if rest.no_wait else rest.expires,
        )

    def _pull_rest(self, inbox: PullInbox, why: Verdict) -> None:
        """
        Send a pull for the messages that are left, after one that ended for a temporary reason.

        If no server answered that pull, first check that the consumer still exists.
        """
        self._due = None
        status, lane = self.status, self._lane
        if self._epoch is not None and not lane.lost_epoch < self._epoch == lane.epoch:
            self._fail(
                errors.NoHeartbeatError(consumer=self.target.consumer, stream=self.target.stream)
            )
            return
        try:
            if why is Verdict.PROBE:
                self._find_consumer()
            if why is not Verdict.AGAIN:
                pause = self._deadline.at_most(self._retry_wait)
                self._retry_wait = min(self._retry_wait * 2.0, PULL_RETRY_WAIT_LIMIT)
                lane.wait(inbox.box, pause)
            # Wait here, because the pull expires with the time that is left once it is sent.
            self._wait_for_connection()
            if self.closing or self.connection.stopping:
                return
            rest = self._rest()
            if rest is not None:
                self.status = None
                inbox.pull(self.target.subject, rest, self._send_until)
                return
        except errors.JetSyncError as error:
            self._fail(error)
            return
        if status is not None and why is Verdict.PROBE:
            self.error = status.error(self.target.stream, self.target.consumer)
        self._release(inbox)

    def _wait_for_connection(self) -> None:
        """Wait until a pull can be sent, but notice within a moment if the batch is closed."""
        while not (self.closing or self.connection.stopping) and not self._send_until.expired():
            with contextlib.suppress(errors.DisconnectedError):
                self._lane.outbox.wait_open(self._send_until.at_most(POLL))
                return
        if not (self.closing or self.connection.stopping):
            self._lane.outbox.wait_open(self._send_until)

    def _find_consumer(self) -> ConsumerInfo | None:
        """
        Return the consumer's info, or None if there is no answer.

        Raises ConsumerNotFoundError or StreamNotFoundError if the consumer does not exist.
        """
        try:
            target, deadline = self.target, self._deadline.at_most(INFO_TIMEOUT)
            return consumer_info(target.context, target.stream, target.consumer, deadline)
        except (
            errors.JetStreamNotEnabledError,
            errors.RequestTimeoutError,
            errors.TemporarilyUnavailableError,
            errors.TransportError,
        ):
            # No leader, no connection, no permission, or a domain that is out of reach. The next
            # pull will show which.
            return None

    def _fail(self, error: Exception) -> None:
        """End with an error while the pull may still be open at the server."""
        self.error = error
        self._stop()


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
                elif fetch.inbox is not None:
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
