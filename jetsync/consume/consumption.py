"""
Continuous consumption: messages are pulled ahead into a buffer, which is kept filled.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn, overload

import attrs

from jetsync._base.deadline import Deadline
from jetsync._base.dropped import disown
from jetsync._base.html import html_table
from jetsync._base.keywords import hide_extra, refuse_position
from jetsync._base.pickling import refuse_copy
from jetsync._base.speedups import with_twin
from jetsync._proto.consume import ConsumeEngine
from jetsync._proto.push import PushEngine
from jetsync.consume.auto_acks import answer_soon
from jetsync.consume.core import ConsumptionCore
from jetsync.errors import ConflictingUseError, ConsumptionClosedError
from jetsync.values.message import ACK

if TYPE_CHECKING:
    from typing_extensions import Self

    from jetsync._base.deadline import Seconds
    from jetsync._proto.pull_request import ConsumeOptions
    from jetsync._proto.push import PushOptions
    from jetsync.consume.options import HandlerOptions
    from jetsync.consume.target import PullTarget
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

__all__ = ["Consumption", "ConsumptionStatistics"]


@attrs.frozen
class ConsumptionStatistics:
    """
    The counters of a consumption.
    """

    # For notebooks.
    _repr_html_ = html_table

    received: int
    """Messages that arrived."""

    buffered: int
    """Messages that have arrived and that your code has not taken yet."""

    pending: int
    """
    Messages that open pulls may still deliver. If the buffer has a limit in bytes, this is an upper
    bound.
    """

    pending_bytes: int
    """Bytes that open pulls may still deliver, if the buffer has a limit in bytes."""

    pulls: int
    """Pulls that jetsync has sent."""

    heartbeats_missed: int
    """How often jetsync missed two heartbeats in a row."""

    connections_lost: int
    """How often the connection was lost."""

    failures: int = 0
    """
    Messages whose handler raised an exception, or that a plugin refused before the handler ran.
    Without a handler, this is 0.
    """

    lost: int = 0
    """
    Messages of a push consumer with ``ack_policy`` none that did not reach this client, for example
    because the connection was lost. With a ``deliver_group``, this cannot be known and is 0.
    """


class _LastTaken(threading.local):
    """The message that each thread took last, for ``ack="auto"``."""

    message: Message | None = None


@with_twin
class TakingStorage:
    """
    The base class of what yields messages. Its compiled twin has a ``__next__``, which calls
    ``_take_next`` if no message is in the buffer.
    """

    # Threads: any.
    # Locks: none; the field is set once.

    # Where to take messages from: the buffer, its `popleft`, `ConsumptionCore.low`, what makes a
    # message, and the list that each message is appended to, or None. None instead if each message
    # needs more than that.
    __slots__ = ("_quick",)

    _quick: tuple[Any, ...] | None


class Consumption(TakingStorage):
    """
    The messages of a consumer as an endless iterator; made by ``Consumer.consume``.

    Any number of threads may iterate over it, and each message goes to one of them. The iteration
    continues after lost connections, server shutdowns and leader changes. It ends after
    :meth:`close`, :meth:`drain` or ``stop_after`` messages, or when the client closes. Permanent
    errors, such as ConsumerDeletedError, are raised once. The end of a ``with`` block closes the
    consumption, and so does dropping the last reference.

    With a handler, threads of the consumption take the messages. The consumption then continues
    even if you drop the object, and the end of a ``with`` block waits for handlers that are
    running.
    """

    # Threads: any, and signal handlers.
    # Locks: none of its own; `_last_taken` differs for each thread, and the core protects the rest.

    __reduce__ = refuse_copy

    def __init__(
        self, target: PullTarget, options: ConsumeOptions | PushOptions, handling: HandlerOptions
    ) -> None:
        handler = None if handling.handler is None else handling
        # With a handler, its threads acknowledge.
        self._auto_ack = handler is None and handling.ack == "auto" and target.wants_acks
        self._last_taken = _LastTaken()
        self._expires = options.expires
        self._core = core = ConsumptionCore(target, options, handler=handler)
        is_quick = handler is None and not self._auto_ack
        parts = core.buffer, core.buffer.popleft, core.low, core.make, None
        self._quick = parts if is_quick else None
        disown(target.lane.later, self, self._core)

    def __repr__(self) -> str:
        core = self._core
        over = core.reading.over if core.pool is None else core.pool.done
        state = "closed" if over.is_set() else "ending" if core.engine.is_ending else "open"
        return (
            f"<Consumption {core.target.stream}/{core.target.consumer} {state} "
            f"received={core.engine.admitted} buffered={len(core.buffer)}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._auto_ack:
            self._ack_last()
        core = self._core
        # The block has handled its messages, so a client that drains does not wait for the next
        # call.
        core.end_seen.set()
        core.close()
        if core.pool is not None and not core.pool.is_own_thread():
            core.pool.done.wait()

    def __iter__(self) -> Self:
        return self

    @overload
    def _take_next(self) -> Message: ...

    @overload
    def _take_next(self, deadline: Deadline) -> Message | None: ...

    def _take_next(self, deadline: Deadline | None = None) -> Message | None:
        """Take a message as ``__next__`` does, or as ``next`` if there is a deadline."""
        core = self._core
        if core.pool is not None:
            raise ConflictingUseError("the handler takes the messages: leave it out to iterate")
        if self._auto_ack:
            self._ack_last()
        frame: Frame | None = None
        try:
            while frame is None:
                try:
                    for oldest in core.oldest:
                        frame = oldest
                        break
                except IndexError:
                    pass
                if frame is None and not core.wait_for_frame(deadline):
                    if deadline is None:
                        core.reading.end_loop()
                    return None
            message = core.make_taken(frame)
            if self._auto_ack:
                self._last_taken.message = message
            return message
        except BaseException as error:
            # Other threads may take at the same time, so it could not stay in the buffer.
            if frame is not None:
                core.put_back(frame, error)
            raise

    if not hasattr(TakingStorage, "__next__"):
        __next__ = _take_next

    def next(self, *, timeout: Seconds | None = None) -> Message | None:
        """
        Return the next message, or None if none arrives in time.

        Args:
            timeout: Seconds to wait. Default: the ``expires`` of the consumption. 0 returns only a
                message that has already arrived.

        Raises:
            ConsumptionClosedError: The consumption has ended, and all messages were taken.
            JetSyncError: The error that ended the consumption. It is raised once.
        """
        core = self._core
        deadline = Deadline.after(self._expires if timeout is None else timeout)
        message = self._take_next(deadline)
        if message is None and core.reading.over.is_set():
            core.reading.end_next(ConsumptionClosedError)
        return message

    @property
    def closed(self) -> bool:
        """
        Whether the consumption has ended, and all messages were taken or, with a handler, handled.
        """
        return self._core.closed

    @property
    def error(self) -> BaseException | None:
        """The error that ended the consumption. None if it is open, or ended without an error."""
        return self._core.error

    def close(self) -> None:
        """
        Stop now. Messages that were not taken go back to the server for redelivery.

        Threads that wait for a message wake up. Handlers that are running are not interrupted. With
        a handler, messages on the last delivery that ``max_deliver`` allows are still handled: the
        server would not deliver them again. Does not wait, see :meth:`wait`. Thread-safe, safe to
        repeat and safe in a signal handler.
        """
        self._core.close()

    def drain(self) -> None:
        """
        Stop pulling, or unsubscribe from a push consumer. End once all messages that have arrived
        are taken.

        Messages that arrive later are given back to the server. Does not wait, see :meth:`wait`.
        Thread-safe, safe to repeat and safe in a signal handler.
        """
        self._core.drain()

    @hide_extra
    def wait(self, *_extra: NoReturn, timeout: Seconds | None = None) -> bool:
        """
        Wait until the consumption has ended and all messages were taken. Return whether that is so.

        With a handler, also wait until the last call of the handler has returned.

        Args:
            timeout: Seconds to wait. Default: no limit.

        Raises:
            ConflictingUseError: The caller is the handler, which would wait for itself.
            CallInSignalHandlerError: This signal handler interrupted a call of jetsync.
        """
        if _extra:
            refuse_position(Consumption.wait)
        return self._core.wait(Deadline.after(timeout))

    def statistics(self) -> ConsumptionStatistics:
        """Return the current counters."""
        core = self._core
        if core.pool is None and not core.reading.over.is_set():
            # Messages may have arrived while no thread took any.
            core.refill()
        engine = core.engine
        pulling = engine if isinstance(engine, ConsumeEngine) else None
        return ConsumptionStatistics(
            received=engine.admitted,
            buffered=len(core.buffer),
            pending=pulling.pulls.pending_messages if pulling else 0,
            pending_bytes=pulling.pulls.pending_bytes if pulling else 0,
            pulls=pulling.pulled if pulling else 0,
            heartbeats_missed=engine.misses,
            connections_lost=engine.losses,
            failures=0 if core.pool is None else core.pool.failures,
            lost=engine.lost_messages if isinstance(engine, PushEngine) else 0,
        )

    def _ack_last(self) -> None:
        """Acknowledge the message that this thread took last, together with others."""
        message, self._last_taken.message = self._last_taken.message, None
        if message is not None and not message.is_acked:
            answer_soon(self._core.target.lane, message, ACK)
