"""
Read an ordered consumer without end.

Each message that is handed out moves the place of the ordered consumer. If its consumer on the
server is lost, the core replaces it.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, NoReturn, overload

from jetsync import errors
from jetsync._base.deadline import Deadline
from jetsync._base.dropped import disown
from jetsync._base.iterations import ENTRY
from jetsync._base.keywords import hide_extra, refuse_position
from jetsync._base.pickling import refuse_copy
from jetsync.consume.core import ConsumptionCore

if TYPE_CHECKING:
    from typing_extensions import Self

    from jetsync._base.deadline import Seconds
    from jetsync._proto.pull_request import ConsumeOptions
    from jetsync.consume.ordered_source import OrderedSource
    from jetsync.values.message import Message

__all__ = ["OrderedConsumption"]


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
    # Locks: none of its own; a second taker is refused, and only the taker changes the place.

    __reduce__ = refuse_copy

    def __init__(self, source: OrderedSource, options: ConsumeOptions) -> None:
        self._source = source
        self._expires = options.expires
        source.fresh = False
        self._core = ConsumptionCore(source.target, options, source=source)
        disown(source.context.lane.later, self, self._core)

    def __repr__(self) -> str:
        source, state = self._source, "closed" if self.closed else "open"
        return (
            f"<OrderedConsumption {source.stream}/{source.cursor.name} {state} "
            f"received={self.received} last={source.last}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

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
        deadline = Deadline.after(self._expires if timeout is None else timeout)
        # Because `map` is written in C, no signal handler runs after the return of `_take_next`.
        # Python 3.10 runs them after calls of functions written in Python, too.
        for message in map(self._take_next, (deadline,)):
            if message is not None:
                return message
        if self.closed:
            self._core.reading.end_next(errors.ConsumptionClosedError)
        return None

    @property
    def closed(self) -> bool:
        """Whether the consumption has ended and all messages were taken."""
        return self._core.closed

    @property
    def error(self) -> BaseException | None:
        """The error that ended the consumption. None if it is open, or ended without an error."""
        return self._core.error

    @property
    def received(self) -> int:
        """How many messages were handed out."""
        return int(self._core.place[1])

    def close(self) -> None:
        """
        Stop now. The next read of the ordered consumer gets the messages that were not taken.

        A thread that waits for a message wakes up. Does not wait, see :meth:`wait`. Thread-safe,
        and safe to repeat.
        """
        self._core.close()

    def drain(self) -> None:
        """
        Stop pulling, and end once all messages that have arrived are taken.

        Does not wait, see :meth:`wait`. Thread-safe, and safe to repeat.
        """
        self._core.drain()

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
        self._core.reading.check()
        return self._core.wait(Deadline.after(timeout))

    @overload
    def _take_next(self) -> Message: ...

    @overload
    def _take_next(self, deadline: Deadline | None) -> Message | None: ...

    def _take_next(self, deadline: Deadline | None = None) -> Message | None:
        """Take a message as ``__next__`` does, or as ``next`` if there is a deadline."""
        core = self._core
        place, reading = core.place, core.reading
        # As in `Iteration`.
        try:
            for _ in reading.entry:
                break
        except IndexError:
            raise reading.conflict() from None
        try:
            reading.taker = get_ident()
            # The next read of the ordered consumer gets what a closed one has not handed out.
            frame = None if core.closing else core.taken
            while frame is None:
                try:
                    for oldest in core.oldest:
                        frame = core.taken = oldest
                        break
                except IndexError:
                    pass
                if frame is None and not core.wait_for_next(deadline):
                    if deadline is None:
                        reading.end_loop()
                    return None
            message = core.make_taken(frame)
            # Nothing is called from here to the return, so that no signal handler runs.
            place[:] = frame[1], place[1] + 1
            core.taken = None
            return message
        finally:
            reading.taker = None
            reading.free += ENTRY

    __next__ = _take_next
