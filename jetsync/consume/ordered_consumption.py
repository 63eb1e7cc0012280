"""
Read an ordered consumer without end.

Each message that is handed out advances the cursor of the ordered consumer. If its consumer on the
server is lost, the source replaces it.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Final, NoReturn

import attrs

from jetsync import errors
from jetsync._base.deadline import Deadline
from jetsync._base.dropped import disown
from jetsync._base.iterations import ENTRY
from jetsync._base.keywords import hide_extra, refuse_position
from jetsync._base.pickling import refuse_copy
from jetsync._hooks.errors import PluginError
from jetsync.consume.core import ConsumptionCore
from jetsync.consume.ordered_source import reset_reason
from jetsync.consume.pull_feed import empty_pull
from jetsync.consume.reading import Reading, shown

if TYPE_CHECKING:
    from typing_extensions import Self

    from jetsync._base.deadline import Seconds
    from jetsync._proto.consume import ConsumeOptions
    from jetsync.consume.ordered_source import OrderedSource
    from jetsync.events import ResetReason
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

__all__ = ["OrderedConsumption"]

# Seconds for which the server keeps the pull of a nudge.
NUDGE: Final = 0.01


class OrderedConsumption:
    """
    The messages of an ordered consumer, without end; made by ``OrderedConsumer.consume``.

    Iterate over it, in one thread at a time. Stream sequences increase, and no message is skipped
    or repeated, even if connections, servers or consumers are lost. The iteration ends after
    :meth:`close`, :meth:`drain` or ``stop_after`` messages, or when the client closes. Permanent
    errors are raised once. The end of a ``with`` block closes the consumption.
    """

    # Threads: one at a time takes messages. Any thread and any signal handler may close, drain or
    # wait.
    # Locks: none; `_reading` refuses a second taker, and only the taker changes the position. The
    # reading turn of the core protects the rest of the cursor.

    __reduce__ = refuse_copy

    def __init__(self, source: OrderedSource, options: ConsumeOptions) -> None:
        self._source = source
        self.options = options
        self._received = 0
        # How many messages earlier uses were handed.
        self._before = source.cursor.delivered
        # The messages that the last call took, oldest first.
        self._taken: list[Frame] = []
        self._reading = Reading("consumption", source.context.connection)
        self._draining = False
        # The core that pulls from the newest consumer; None when that has to be replaced.
        self._core: ConsumptionCore | None = None
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
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        message = self._take(None)
        if message is None:
            self._reading.end_loop()
        # No call between this and the caller, so that no signal handler runs.
        self._source.taking = None
        return message

    def next(self, *, timeout: Seconds | None = None) -> Message | None:
        """
        Return the next message, or None if none arrives in time.

        Args:
            timeout: Seconds to wait. Default: the ``expires`` of the consumption. 0 returns only a
                message that has already arrived. If jetsync replaces the consumer meanwhile, the
                call may take half a second longer.

        Raises:
            ConsumptionClosedError: The consumption has ended, and all messages were taken.
            ConflictingUseError: Another thread is taking a message.
            JetSyncError: The error that ended the consumption. It is raised once.
        """
        message = self.take(Deadline.after(self.options.expires if timeout is None else timeout))
        if message is None and self.closed:
            self._reading.end_next(errors.ConsumptionClosedError)
        # As in `__next__`.
        self._source.taking = None
        return message

    def take(self, deadline: Deadline, *, shared: bool = False) -> Message | None:
        """
        Return the next message; None at the end or at the deadline.

        Call :meth:`settle` once the message is handed out. If that does not happen, because Ctrl-C
        interrupts a call, the next call of this thread returns the message again. With *shared*,
        the next call of any thread does.
        """
        try:
            message = self._take(deadline, shared=shared)
        except errors.WaitTimeoutError:
            return None
        if message is None:
            self._reading.raise_once()
        return message

    def settle(self) -> None:
        """Record that the message that :meth:`take` returned is handed out."""
        self._source.taking = None
        self._taken = []

    @property
    def is_settled(self) -> bool:
        """Whether all messages that were taken are handed out."""
        return self._source.taking is None

    @property
    def closed(self) -> bool:
        """Whether the consumption has ended and all messages were taken."""
        return self._reading.over.is_set()

    @property
    def error(self) -> BaseException | None:
        """The error that ended the consumption. None if it is open, or ended without an error."""
        return shown(self._reading.error)

    @property
    def received(self) -> int:
        """How many messages were handed out."""
        return self._received

    def close(self) -> None:
        """
        Stop now. The next read of the ordered consumer gets the messages that were not taken.

        A thread that waits for a message wakes up. Does not wait, see :meth:`wait`. Thread-safe,
        and safe to repeat.
        """
        self._reading.end()
        core, self._core = self._core, None
        self._taken = []
        if core is not None:
            core.close()

    def drain(self) -> None:
        """
        Stop pulling, and end once all messages that have arrived are taken.

        Does not wait, see :meth:`wait`. Thread-safe, and safe to repeat.
        """
        self._draining = True
        core = self._core
        if core is not None:
            core.drain()
        if core is None or core.closed:
            self._reading.end()

    @hide_extra
    def wait(self, *_extra: NoReturn, timeout: Seconds | None = None) -> bool:
        """
        Wait until the consumption has ended and all messages were taken. Return whether that is so.

        Args:
            timeout: Seconds to wait. Default: no limit.

        Raises:
            CallInSignalHandlerError: This signal handler interrupted a call of jetsync.
        """
        if _extra:
            refuse_position(OrderedConsumption.wait)
        deadline = Deadline.after(timeout)
        reading = self._reading
        return reading.wait(reading.over, deadline.remaining())

    def _take(self, deadline: Deadline | None, *, shared: bool = False) -> Message | None:
        """Return the next message, None at the end; raises WaitTimeoutError at the deadline."""
        source, reading, me = self._source, self._reading, get_ident()
        cursor = source.cursor
        # As in `Iteration`.
        try:
            for _ in reading.entry:
                break
        except IndexError:
            raise reading.conflict() from None
        try:
            reading.taker = me
            if source.taking is not None and (shared or source.taking[0] == me):
                self._put_back()
                source.take_back()
            core = self._core or self._wait(deadline)
            while core is not None:
                buffer = core.buffer
                # Another thread that closes this may empty the buffer at any moment.
                try:
                    frame: Frame | None = buffer[0]
                except IndexError:
                    frame = None
                if frame is None:
                    core = self._wait(deadline)
                    continue
                self._taken = [frame]
                source.taking = me, cursor.position
                cursor.hand_out(frame[1])
                try:
                    core.take_first()
                except IndexError:
                    source.take_back()
                    continue
                self._received = cursor.position[1] - self._before
                if len(buffer) <= core.low[0]:
                    core.refill()
                try:
                    message = core.make(frame)
                except PluginError:
                    # The next use of the consumer gets it again.
                    source.take_back()
                    raise
                if not buffer and (core.is_complete or (self._draining and core.closed)):
                    reading.end()
                return message
        except (
            errors.WaitTimeoutError,
            errors.CallInSignalHandlerError,
            errors.ConflictingUseError,
        ):
            raise
        except errors.JetSyncError as error:
            reading.end(error)
            self._note_end()
            # The next read of the ordered consumer gets what was not taken.
            self.close()
        finally:
            reading.taker = None
            reading.free += ENTRY
        self._note_end()
        return None

    def _note_end(self) -> None:
        """Note that a call has seen the end."""
        # Read once, because another thread may close it meanwhile.
        core = self._core
        if core is not None:
            core.end_seen.set()

    def _put_back(self) -> None:
        """Make the messages that an interrupted call took the next ones, unless this is closed."""
        core, taken = self._core, self._taken
        while taken and core is not None:
            # That call, or one of this method, may have been interrupted between two steps.
            if not core.buffer or core.buffer[0] is not taken[-1]:
                core.engine.put_back(taken[-1])
            taken.pop()

    def _wait(self, deadline: Deadline | None) -> ConsumptionCore | None:
        """Wait for a message, and return the core that buffers it; None at the end."""
        over = self._reading.over
        while not over.is_set():
            core = self._core
            if core is None:
                self._source.remake(deadline, self._reason, over)
                if not over.is_set():
                    self._begin()
            elif core.wait_for_frame(deadline):
                return core
            else:
                self._see_end(core, deadline)
        return None

    def _begin(self) -> None:
        """Pull from a fresh consumer."""
        source, options = self._source, self.options
        source.fresh = False
        if options.stop_after is not None:
            options = attrs.evolve(options, stop_after=options.stop_after - self._received)
        core = self._core = ConsumptionCore(source.target, options, order=source.cursor)
        if self._draining:
            core.drain()
        if self._reading.over.is_set():
            core.close()
        disown(source.context.lane.later, self, core)

    def _see_end(self, core: ConsumptionCore, deadline: Deadline | None) -> None:
        """Decide what follows, as no message arrived; raises WaitTimeoutError at the deadline."""
        if deadline is not None and not core.reading.over.is_set():
            raise errors.WaitTimeoutError("a message", deadline.total)
        self._core = None
        error = core.engine.error
        reason = reset_reason(error, core.engine.losses)
        if reason is not None:
            self._reason = reason
        elif isinstance(error, errors.JetSyncError):
            self._reading.end(error)
        elif error is not None:
            # Of a plugin or a signal handler. The next call continues with another consumer.
            raise error
        elif core.engine.is_ending:
            self._reading.end()
        if self._draining:
            self._reading.end()


def nudge(consumption: OrderedConsumption) -> None:
    """Have the server look for messages again; never waits."""
    target = consumption._source.target  # noqa: SLF001  (its own module)
    target.lane.post_nowait(empty_pull(target, expires=NUDGE))


def arrived(consumption: OrderedConsumption) -> int:
    """Return how many messages have arrived in the buffer."""
    core = consumption._core  # noqa: SLF001  (its own module)
    return 0 if core is None else len(core.buffer)


def take_arrived(consumption: OrderedConsumption) -> Message | None:
    """
    Return the next message if it has arrived; never waits.

    Call this after ``take`` and before ``settle``, and only if no other call takes a message. If
    Ctrl-C interrupts a call, a later one returns all messages since ``take`` again.
    """
    core, cursor = consumption._core, consumption._source.cursor  # noqa: SLF001  (its own module)
    if core is None:
        return None
    before = cursor.position
    try:
        frame = core.buffer[0]
        consumption._taken.append(frame)  # noqa: SLF001
        cursor.hand_out(frame[1])
        core.take_first()
    except IndexError:  # There is none, or another thread closes the consumption.
        cursor.go_back(before)
        return None
    if len(core.buffer) <= core.low[0]:
        core.refill()
    try:
        return core.make(frame)
    except PluginError as error:
        # The messages before this one are handed out first.
        cursor.go_back(before)
        consumption._reading.end(error)  # noqa: SLF001
        consumption.close()
        return None
