"""
The consumer on a server behind an ordered consumer: made, and made again, and deleted.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from jetsync import events
from jetsync._api import consumers as _consumer_admin
from jetsync._api import streams as _stream_admin
from jetsync._base import log as _log
from jetsync._base.deadline import Deadline
from jetsync._io.outbox import LaneState
from jetsync._proto import frames
from jetsync.errors import (
    ApiError,
    CallInSignalHandlerError,
    ConnectionLostError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    DisconnectedError,
    JetSyncError,
    MaxConsumersError,
    NoRespondersError,
    RequestTimeoutError,
    ResetAttemptsExceededError,
    StreamNotFoundError,
    TransportError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from jetsync._api.context import Context
    from jetsync._base.locks import Latch
    from jetsync._proto.ordered import OrderedCursor
    from jetsync.events import ResetReason
    from jetsync.values.consumer_info import ConsumerInfo
    from jetsync.values.stream_info import StreamInfo

LOOK: Final = 0.1
"""Seconds between two looks at whether to go on, while there is no connection."""

MAKING: Final = 5.0
"""Seconds that a server has to make a consumer."""

SHORTEST_MAKING: Final = 0.5
"""
Seconds that it has at least, however little time the caller has left: otherwise somebody who looks
often and briefly would never get on.
"""

MISSING: Final = 2.0
"""
Seconds for which servers have to say that there is no stream before it is taken to be gone. A
server that has just started may not know it yet.
"""

CATCH_UP: Final = 0.25
"""Seconds before a stream that ends before the position is asked once more."""

_logger = _log.get_logger("jetsync.ordered")


FORGOTTEN: Final = 300.0
"""
Seconds for which the deletion of a consumer waits for a connection; after that servers have
forgotten it by themselves, unless it was made with another threshold.
"""


class UnlessOver(Deadline):
    """
    A deadline that expires early when the latch is set. Waiters must poll it.
    """

    __slots__ = ("_over",)

    def __init__(self, at: float, total: float, over: Latch) -> None:
        super().__init__(at, total)
        self._over = over

    def remaining(self) -> float:
        """Return how long to wait before the next look, 0 once it is over."""
        return 0.0 if self._over.is_set() else min(super().remaining(), LOOK)

    def expired(self) -> bool:
        """Return whether it is over."""
        return self._over.is_set() or super().expired()


def _passes(error: JetSyncError) -> bool:
    """Whether another attempt to make a consumer may succeed where this error came up."""
    if isinstance(error, ApiError):
        kinds = (StreamNotFoundError, MaxConsumersError, ConsumerExistsError)
        return isinstance(error, kinds) or error.code >= 500
    return isinstance(
        error, (RequestTimeoutError, NoRespondersError, ConnectionLostError, DisconnectedError)
    )


class _AnotherStreamError(StreamNotFoundError):
    """
    The stream is gone, and another one has its name or its place.
    """


class _SameStream:
    """
    What tells a stream from another one of its name.

    Args:
        created: When it was made, as far as is known; perhaps that is said of one before it.
        began: When its first consumer was made, and so it was there.
    """

    def __init__(self, created: dt.datetime | None, began: dt.datetime | None) -> None:
        self._created = created
        self._began = began

    def check(self, ask: Callable[[], StreamInfo], last: int | None) -> None:
        """Ask, and raise if it is another stream, or has lost what was read up to *last*."""
        info, began = ask(), self._began
        made = info.created
        if made is not None and began is not None and made != self._created and made > began:
            raise _AnotherStreamError(
                description="the stream was deleted, and another one has its name",
                stream=info.config.name,
            )
        if last is None or info.state.last_seq >= last:
            return
        # A server that leads it only now may have to catch up with itself.
        time.sleep(CATCH_UP)
        if ask().state.last_seq < last:
            raise _AnotherStreamError(
                description=f"the stream has lost what it held, up to sequence {last}",
                stream=info.config.name,
            )


class OrderedSource:
    """
    The consumer on the server behind an ordered consumer, made again as often as it takes.

    Used by one thread at a time, but for :attr:`closed`.
    """

    def __init__(
        self, context: Context, stream: str, cursor: OrderedCursor, max_attempts: int
    ) -> None:
        self.context = context
        self.stream = stream
        self.cursor = cursor
        self.closed = False
        self.resets = 0
        self.fresh = False
        """Whether the consumer has sent nothing that was not given out."""

        self.info: ConsumerInfo | None = None
        """As it was when it was made, or asked after."""

        self._max_attempts = max_attempts
        self._is_same: _SameStream | None = None
        """What tells the stream from another one of its name; None if that does not matter."""

        self._missing: float | None = None
        """Since when servers have said that there is no stream."""

        self.epoch = 0
        self._live = ""
        """The name of a consumer that may be on the server, and is not to stay."""

        self._unsure: list[tuple[str, int]] = []
        """The consumers whose deletion was sent, and on which connection; perhaps in vain."""

    def __del__(self) -> None:
        # Nobody reads any more. What the garbage collector calls must not wait for the connection.
        name = getattr(self, "_live", "")
        if name:
            self.context.lane.post_nowait(self._deletion(name), keep=FORGOTTEN)

    @property
    def is_current(self) -> bool:
        """Whether the connection is still the one on which the consumer was made."""
        lane = self.context.lane
        return self.epoch == lane.epoch and lane.lost_epoch < self.epoch

    def make(self, deadline: Deadline) -> ConsumerInfo:
        """Make the next consumer, and have the one before deleted."""
        self.fresh = False
        if self._live:
            self._forget(self._live)
        config = self.cursor.next_config()
        epoch = self.context.lane.epoch
        self._live = self.cursor.name
        try:
            info = _consumer_admin.create(self.context, self.stream, config, deadline)
        except ApiError:
            self._live = ""
            raise
        except JetSyncError:
            # It may be there all the same.
            self._forget(self._live)
            raise
        if info.delivered.consumer_seq:
            # Somebody else's, with the same name and settings.
            self._live = ""
            raise ConsumerExistsError(stream=self.stream, consumer=config.name)
        self._send_again()
        self.cursor.made(info.delivered.stream_seq)
        self.info, self.fresh, self.epoch = info, True, epoch
        if self.closed:
            self._forget(self._live)
        return info

    def start(self, deadline: Deadline, *, verify: bool) -> None:
        """Have a fresh consumer in time, or raise why there is none."""
        before = self.cursor.name
        reason: ResetReason = "reused" if self.is_current else "reconnected"
        if self.fresh and self.is_current:
            if not verify:
                return
            try:
                self.ask(deadline)
            except ConsumerNotFoundError:
                reason = "gone"
            else:
                return
        attempts = 0
        while True:
            attempts += 1
            try:
                self.make(deadline)
            except JetSyncError as error:
                # A stream that is missing now is worth an error, a connection that is lost is not.
                final = isinstance(error, StreamNotFoundError) or not _passes(error)
                if final or deadline.expired():
                    raise
                time.sleep(min(self.cursor.pause(), deadline.remaining()))
            else:
                self._made_again(before, reason, attempts)
                return

    def keep_to_stream(self, created: dt.datetime | None) -> None:
        """
        End with the stream from now on, and do not go on with another one that has its name.

        Args:
            created: When the stream was made, as far as is known; the first consumer is there.
        """
        assert self.info is not None
        self._is_same = _SameStream(created, self.info.created)

    def ask(self, deadline: Deadline) -> ConsumerInfo:
        """Ask the server how the consumer is doing."""
        self.info = _consumer_admin.info(self.context, self.stream, self.cursor.name, deadline)
        return self.info

    def remake(self, deadline: Deadline | None, reason: ResetReason, over: Latch) -> None:
        """
        Make another consumer, in as many attempts as it takes; returns early once *over* is set.

        Raises:
            WaitTimeoutError: The time is over; its cause is the last failure, if there was one.
            ResetAttemptsExceededError: There were too many attempts.
            StreamNotFoundError: The stream has been missing for :data:`MISSING` seconds, or another
                stream now has its name.
            JetSyncError: What makes another attempt useless.
        """
        until = Deadline.after(None) if deadline is None else deadline
        lane, cursor, before = self.context.lane, self.cursor, self.cursor.name
        failure: JetSyncError | None = None
        attempts = 0
        over.wait(min(cursor.pause(), until.remaining()))
        while not over.is_set():
            if failure is not None and until.expired():
                raise WaitTimeoutError("a message", until.total) from failure
            try:
                if lane.state is not LaneState.OPEN:
                    # No attempt: there is nobody to ask.
                    lane.write(b"", until.at_most(LOOK))
            except DisconnectedError as error:
                failure, self._missing = error, None
                continue
            attempts += 1
            seconds = max(min(MAKING, until.remaining()), SHORTEST_MAKING)
            step = UnlessOver(time.monotonic() + seconds, seconds, over)
            try:
                self.make(step)
                if self._is_same is not None:
                    # Behind the making, so that it is the stream of this consumer or a later one.
                    ask = partial(_stream_admin.info, self.context, self.stream, step)
                    self._is_same.check(ask, cursor.last)
            except JetSyncError as error:
                if over.is_set():
                    return
                if not _passes(error) or self._is_gone(error):
                    raise
                failure = error
                if cursor.failed() >= self._max_attempts >= 0:
                    raise ResetAttemptsExceededError(self.stream, cursor.failures) from error
                over.wait(min(cursor.pause(), until.remaining()))
                continue
            self._made_again(before, reason, attempts)
            return

    def _is_gone(self, error: JetSyncError) -> bool:
        """Return whether an attempt that failed shows that the stream is gone for good."""
        if isinstance(error, _AnotherStreamError):
            self._forget(self._live)
            return True
        if not isinstance(error, StreamNotFoundError):
            self._missing = None
            return False
        now = time.monotonic()
        if self._missing is None:
            self._missing = now
        return now - self._missing >= MISSING

    def _made_again(self, before: str, reason: ResetReason, attempts: int) -> None:
        """Count the reset, and tell of it."""
        self._missing = None
        self.resets += 1
        name, last = self.cursor.name, self.cursor.last
        _logger.info(
            _log.CONSUMER_RESET,
            stream=self.stream,
            consumer=name,
            before=before,
            reason=reason,
            sequence=last,
        )
        if self.context.plugins.status is not None:
            self.context.plugins.status(
                events.OrderedResetEvent(
                    stream=self.stream,
                    consumer=name,
                    before=before,
                    reason=reason,
                    last_sequence=last,
                    attempts=attempts,
                )
            )

    def close(self, deadline: Deadline) -> None:
        """Delete the consumer on the server."""
        self.closed = True
        name, self._live = self._live, ""
        while name:
            try:
                _consumer_admin.delete(self.context, self.stream, name, deadline)
                self._send_again()
            except (ConnectionLostError, NoRespondersError):
                # The server was perhaps not told, and can be once it is back.
                if not deadline.expired():
                    time.sleep(min(LOOK, deadline.remaining()))
                    continue
                self._forget(name)
            except (TransportError, RequestTimeoutError, CallInSignalHandlerError):
                self._forget(name)
            except (ConsumerNotFoundError, StreamNotFoundError):
                pass
            return

    def _send_again(self) -> None:
        """
        Have those deleted once more whose connection was lost; the server answers on this one.

        What was sent on it before has come, as an answer to something behind it has.
        """
        lost = self.context.lane.lost_epoch
        unsure, self._unsure = self._unsure, []
        for name, epoch in unsure:
            if epoch <= lost:
                self._forget(name)

    def _deletion(self, name: str) -> bytes:
        """Return the request that deletes a consumer, whose answer nobody waits for."""
        context = self.context
        subject = f"{context.prefix}.CONSUMER.DELETE.{self.stream}.{name}"
        return frames.pub(subject.encode(), context.connection.new_inbox().encode(), b"")

    def _forget(self, name: str) -> None:
        """
        Have a consumer deleted without waiting for it, on the next connection if there is none.

        Its threshold sees to what can not be told.
        """
        context = self.context
        if name == self._live:
            self._live = ""
        block = self._deletion(name)
        try:
            # Not posted: what waits to be sent together with others is lost with its connection.
            epoch = context.lane.write(block, Deadline(time.monotonic(), 0.0))
            self._unsure.append((name, epoch))
        except (DisconnectedError, CallInSignalHandlerError):
            context.lane.post_nowait(block, keep=FORGOTTEN)
        except TransportError:
            pass
