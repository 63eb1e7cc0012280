"""
The server's consumer of an ordered consumer: created, replaced and deleted.
"""

from __future__ import annotations

import datetime as dt
import functools
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jetsync import errors, events
from jetsync._api import consumers as _consumer_admin
from jetsync._api import streams as _stream_admin
from jetsync._api.replica_or_leader import is_another, leader_get
from jetsync._base.failures import raise_failure
from jetsync._base.integers import read_count
from jetsync._base.locks import POLL, Latch, UnlessSet
from jetsync._base.log import get_logger
from jetsync._base.turn import Turn
from jetsync._io.outbox import LaneState
from jetsync._proto.ordered import INACTIVE_NS, INACTIVE_THRESHOLD, MissingMessages, read_reply
from jetsync._proto.pull_request import PullLimits
from jetsync.consume.options import pull_limits
from jetsync.consume.ordered_deletion import Deletions
from jetsync.consume.target import PullTarget
from jetsync.values.codec import from_wire
from jetsync.values.consumer_config import AckPolicy
from jetsync.values.consumer_info import ConsumerInfo
from jetsync.values.stored import time_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync._proto.ordered import OrderedCursor
    from jetsync.events import ResetReason
    from jetsync.values.stream_info import StreamState

# Seconds that a server has to create a consumer.
CREATE_TIMEOUT: Final = 5.0

# The minimum, however little time the caller has left. Otherwise a caller that polls with
# short timeouts would never get a consumer.
SHORTEST_CREATE: Final = 0.5

# Seconds to wait for an answer after the use was closed.
ANSWER_GRACE: Final = 0.25

# Seconds for which servers have to report that the stream is missing before it counts as deleted. A
# server that has just started may not know it yet.
MISSING: Final = 2.0

# Seconds before the second lookup of a stream that ends before the position.
CATCH_UP: Final = 0.25

# How much the clocks of two servers may differ.
CLOCKS: Final = dt.timedelta(seconds=5)

# The fields of a consumer's configuration that limit its pulls.
LIMITS: Final = ("max_batch", "max_bytes", "max_expires", "inactive_threshold")

# Those that a server returns if neither the caller nor the server has a limit.
USUAL_LIMITS: Final = {"inactive_threshold": INACTIVE_NS}
USUAL: Final = PullLimits(inactive_threshold=INACTIVE_THRESHOLD)

GONE: Final = (
    errors.ConsumerDeletedError,
    errors.ConsumerNotFoundError,
    errors.ConsumerUnavailableError,
    errors.StreamNotFoundError,
)

_logger = get_logger("jetsync.ordered")


def _is_temporary(error: errors.JetSyncError) -> bool:
    """Return whether another attempt to create a consumer may succeed after this error."""
    if isinstance(error, errors.ApiError):
        kinds = (errors.StreamNotFoundError, errors.MaxConsumersError, errors.ConsumerExistsError)
        return isinstance(error, kinds) or error.code >= 500
    return isinstance(
        error, (errors.RequestTimeoutError, errors.ConnectionLostError, errors.DisconnectedError)
    )


def reset_reason(error: BaseException | None, losses: int) -> ResetReason | None:
    """
    Return why the consumer has to be replaced after a read ended with *error*, or None.

    Args:
        error: Why the read ended; None if it ended as it should.
        losses: How often the connection was lost.
    """
    if isinstance(error, MissingMessages):
        return "gap"
    is_silent = isinstance(error, (errors.NoHeartbeatError, errors.RequestTimeoutError))
    # A read is closed if a call was interrupted.
    if not is_silent and not isinstance(error, (*GONE, errors.HandleClosedError)):
        return None
    if losses:
        return "reconnected"
    return "silent" if is_silent else "gone"


def _position(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Return the consumer sequence and the stream sequence up to which a consumer has sent."""
    sent = answer.get("delivered") or {}
    if not isinstance(sent, dict):
        raise errors.ProtocolError("the description of a consumer has no position")
    return (
        read_count(sent.get("consumer_seq", 0), "consumer_seq"),
        read_count(sent.get("stream_seq", 0), "stream_seq"),
    )


class OrderedSource:
    """
    The server's consumer of an ordered consumer, replaced as often as necessary.

    Threads: one that begins a use or takes messages, and others whose uses another thread has just
    closed. Any thread may set ``closed``.
    Locks: the use turn, ``turn``, is that of the thread that begins a use, or that replaces the
    consumer of an open one.

    Args:
        context: The context of its requests.
        stream: The stream.
        created: When the stream was created, if known.
        cursor: The position.
        max_attempts: How many attempts in a row may fail; -1 for no limit.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        created: dt.datetime | None,
        cursor: OrderedCursor,
        max_attempts: int,
    ) -> None:
        self.context = context
        self.stream = stream
        self.cursor = cursor
        #: What was handed out last, and how many messages the current use was handed. Only the call
        #: that takes messages changes it, in one step. Until the first message, the former is the
        #: stream sequence before it, if known. After that, it is the reply subject of a message,
        #: which contains the sequence: reading that takes 0.2 us, and most are never needed.
        self.place: list[Any] = [None, 0]
        # How many messages earlier uses were handed.
        self._before = 0
        #: Set once the ordered consumer is closed, by any thread.
        self.closed: Latch = Latch()
        self.resets: int = 0
        #: Whether everything that the consumer sent was handed out.
        self.fresh: bool = False
        #: The current consumer, for pulls.
        self.target: PullTarget
        #: How many messages the current consumer had to send when it was created.
        self.pending: int = 0
        self.limits: PullLimits = USUAL
        #: Returns the consumer as the server last described it.
        self.describe: Callable[[], ConsumerInfo]
        #: The connection that the consumer was created on.
        self.epoch: int = 0
        #: Taken while a use begins, and while its consumer is replaced.
        self.turn: Final = Turn("another call on the ordered consumer")
        self._max_attempts = max_attempts
        self._created = created
        # The same for the first consumer.
        self._describe_first: Callable[[], ConsumerInfo] | None = None
        # Set once the position does not belong to the stream any more.
        self._replaced: errors.StreamNotFoundError | None = None
        # Since when servers have reported that the stream is missing.
        self._missing: float | None = None
        # Deletes those that were replaced, and the current one at the end.
        self._deletions = Deletions(context, stream)

    @property
    def is_current(self) -> bool:
        """Whether the connection that the consumer was created on is still up."""
        lane = self.context.lane
        return self.epoch == lane.epoch and lane.lost_epoch < self.epoch

    @property
    def delivered(self) -> int:
        """How many messages were handed out."""
        return self._before + int(self.place[1])

    @property
    def last(self) -> int | None:
        """The stream sequence after which the next consumer begins; None if not known yet."""
        last: int | bytes | None = self.place[0]
        return read_reply(last).stream_sequence if isinstance(last, bytes) else last

    @property
    def _last_time(self) -> int | None:
        """When the last message was stored, in nanoseconds since 1970; None before the first."""
        last = self.place[0]
        return read_reply(last).timestamp_ns if isinstance(last, bytes) else None

    @property
    def _began(self) -> dt.datetime | None:
        """When the first consumer was created."""
        return None if self._describe_first is None else self._describe_first().created

    def make(self, deadline: Deadline) -> None:
        """
        Create the next consumer, and have the previous one deleted.

        Raises:
            StreamNotFoundError: There is no such stream, or it is not the one of the position.
            JetSyncError: The consumer could not be created.
        """
        self.fresh = False
        if self._replaced is not None:
            raise_failure(self._replaced)
        self._deletions.forget_current()
        # Read before the request. If the connection is lost meanwhile, the consumer counts as one
        # of the lost connection, and is replaced.
        epoch = self.context.lane.outbox.wait_open(deadline)
        config = self.cursor.next_config(self.last)
        self._deletions.current = name = self.cursor.name
        try:
            until = deadline
            if isinstance(deadline, UnlessSet):
                # Servers may process a deletion before a creation that was sent earlier. So `close`
                # waits a moment for the answer, and the consumer is deleted after that.
                until = UnlessSet(deadline.at, deadline.total, deadline.latch, ANSWER_GRACE)
            answer = _consumer_admin.send(self.context, self.stream, config, until)
            sent = _position(answer)
            if sent[0]:
                # It belongs to another client, with the same name and configuration.
                raise errors.ConsumerExistsError(stream=self.stream, consumer=name)
            self.pending = read_count(answer.get("num_pending") or 0, "num_pending")
        except errors.ApiError:
            self._deletions.current = ""
            raise
        except errors.JetSyncError:
            # The consumer may exist nevertheless.
            self._deletions.forget(name)
            raise
        self._deletions.retry()
        # An answer has some fifty fields, and most uses need only the ones above.
        describe = functools.cache(functools.partial(from_wire, ConsumerInfo, answer))
        if self._describe_first is None:
            self._describe_first = describe
        else:
            # After the creation, so that it is the consumer's stream or a later one.
            self._check_stream(deadline)
        begin = self.cursor.made(sent[1])
        if begin is not None:
            self.place[0] = begin
        self.target = PullTarget(self.context, self.stream, name, AckPolicy.NONE)
        returned = answer.get("config") or {}
        limits = {field: returned[field] for field in LIMITS if returned.get(field)}
        self.limits = USUAL if limits == USUAL_LIMITS else pull_limits(describe().config)
        self.describe, self.fresh, self.epoch = describe, True, epoch
        if self.closed.is_set():
            self._deletions.forget(name)

    def start(self, deadline: Deadline, *, verify: bool) -> None:
        """
        Begin a use with a fresh consumer within the deadline, or raise why there is none.

        Call it in the turn. With *verify*, the server is asked whether the consumer still exists.
        """
        deadline = UnlessSet(deadline.at, deadline.total, self.closed)
        # If another thread closed the last use, a call of that may still change its own place.
        self._before, self.place = self.delivered, [self.place[0], 0]
        before = self.cursor.name
        reason: ResetReason = "reused" if self.is_current else "reconnected"
        if self.fresh and self.is_current:
            if not verify:
                return
            try:
                self.ask(deadline)
            except errors.ConsumerNotFoundError:
                reason = "gone"
            else:
                return
        attempts = 0
        while True:
            attempts += 1
            try:
                self.make(deadline)
            except errors.JetSyncError as error:
                # Report a missing stream at once, but wait for a lost connection.
                final = isinstance(error, errors.StreamNotFoundError) or not _is_temporary(error)
                if self.closed.is_set():
                    raise errors.HandleClosedError("ordered consumer") from error
                if final or deadline.expired():
                    raise
                pause = min(self.cursor.pause(), deadline.remaining())
                self.context.connection.closing.wait(pause)
            else:
                self._report_reset(before, reason, attempts)
                return

    def ask(self, deadline: Deadline) -> ConsumerInfo:
        """Ask the server for the consumer."""
        info = _consumer_admin.info(self.context, self.stream, self.cursor.name, deadline)
        self.describe = lambda: info
        return info

    def remake(self, until: Deadline, reason: ResetReason, over: Latch) -> None:
        """
        Create another consumer, in as many attempts as it takes; return early once *over* is set.

        Raises:
            WaitTimeoutError: The deadline *until* has passed. Its cause is the last error, if any.
            ResetAttemptsExceededError: There were too many attempts.
            StreamNotFoundError: The stream has been missing for :data:`MISSING` seconds, or another
                stream now has its name.
            JetSyncError: Another attempt cannot succeed.
        """
        lane, cursor, before = self.context.lane, self.cursor, self.cursor.name
        failure: errors.JetSyncError | None = None
        attempts = 0
        over.wait(min(cursor.pause(), until.remaining()))
        while not over.is_set():
            if self.context.connection.stopping:
                over.set()
                return
            if failure is not None and until.expired():
                raise errors.WaitTimeoutError("a message", until.total) from failure
            try:
                if lane.state is not LaneState.OPEN:
                    # This is not an attempt, as no server can answer.
                    lane.outbox.wait_open(until.at_most(POLL))
            except errors.DisconnectedError as error:
                failure, self._missing = error, None
                continue
            attempts += 1
            seconds = max(min(CREATE_TIMEOUT, until.remaining()), SHORTEST_CREATE)
            step = UnlessSet(time.monotonic() + seconds, seconds, over)
            try:
                is_made = self.turn.run(step, self._make_unless, over, step)
            except errors.JetSyncError as error:
                if over.is_set():
                    return
                if not _is_temporary(error) or self._is_gone(error):
                    raise
                failure = error
                if cursor.failed() >= self._max_attempts >= 0:
                    raise errors.ResetAttemptsExceededError(self.stream, cursor.failures) from error
            else:
                if is_made:
                    self._report_reset(before, reason, attempts)
                return
            over.wait(min(cursor.pause(), until.remaining()))

    def _make_unless(self, over: Latch, deadline: Deadline) -> bool:
        """Create the next consumer, unless *over* is set: the next use may have one already."""
        if over.is_set():
            return False
        self.make(deadline)
        return True

    def _check_stream(self, deadline: Deadline) -> None:
        """Raise if another stream has the name, or if the stream has lost what was read."""
        last = self.last
        if last is None:
            # Whichever stream it is, it is read from the start.
            return
        info = _stream_admin.info(self.context, self.stream, deadline)
        if info.state.last_seq < last:
            # A new leader may need a moment to catch up.
            self.context.connection.closing.wait(CATCH_UP)
            info = _stream_admin.info(self.context, self.stream, deadline)
        if info.created is not None and info.created != self._created:
            if self._is_another(info.state, last, deadline):
                self._give_up(_stream_admin.REPLACED)
            self._created = info.created
        elif info.state.last_seq < last or self._is_rewritten(info.state, last, deadline):
            self._give_up(f"the stream has lost its messages up to sequence {last}")

    def _is_another(self, state: StreamState, last: int, deadline: Deadline) -> bool:
        """Return whether a stream with another time of creation is not the one that was read."""
        time_ns = self._last_time
        # If nothing was read, the messages up to the position are older than the first consumer.
        stored = self._began if time_ns is None else time_of(time_ns)
        return stored is None or is_another(
            self.context,
            self.stream,
            state,
            deadline,
            last=last,
            stored=stored,
            is_exact=time_ns is not None,
        )

    def _is_rewritten(self, state: StreamState, last: int, deadline: Deadline) -> bool:
        """
        Return whether the stream has lost the message *last* and used its sequence again.

        A stream in memory is empty after its only server was started again, but a cluster keeps the
        time of its creation.
        """
        time_ns, first = self._last_time, state.first_ts
        if time_ns is not None:
            read = time_of(time_ns)
        elif self._began is not None:
            # The messages up to the position are older than the first consumer.
            read = self._began + CLOCKS
        else:
            return False
        if first is None or first <= read or state.first_seq > last:
            return False
        # A stream stores messages in the order of their times, unless its leaders' clocks differ.
        try:
            found = leader_get(self.context, self.stream, {"seq": last}, deadline)
        except (errors.MessageNotFoundError, errors.PermissionDeniedError):
            return first > read + CLOCKS
        return found.timestamp > read

    def _give_up(self, why: str) -> NoReturn:
        """Raise, because the position does not belong to the stream."""
        self._deletions.forget_current()
        self._replaced = errors.StreamNotFoundError(description=why, stream=self.stream)
        raise_failure(self._replaced)

    def _is_gone(self, error: errors.JetSyncError) -> bool:
        """Return whether a failed attempt shows that the stream is gone for good."""
        if self._replaced is not None:
            return True
        if not isinstance(error, errors.StreamNotFoundError):
            self._missing = None
            return False
        now = time.monotonic()
        if self._missing is None:
            self._missing = now
        return now - self._missing >= MISSING

    def _report_reset(self, before: str, reason: ResetReason, attempts: int) -> None:
        """Count the reset and report it."""
        self._missing = None
        self.resets += 1
        last = self.last
        reset: dict[str, Any] = {
            "stream": self.stream,
            "consumer": self.cursor.name,
            "before": before,
            "reason": reason,
        }
        _logger.info("consumer_reset", **reset, sequence=last)
        status = self.context.plugins.status
        if status is not None:
            status(events.OrderedResetEvent(**reset, last_sequence=last, attempts=attempts))

    def close(self, deadline: Deadline) -> None:
        """Delete the consumer on the server."""
        self.closed.set()
        self._deletions.delete_current(deadline)
