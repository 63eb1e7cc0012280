"""
The answers to one request, from any number of responders (ADR-47).
"""

from __future__ import annotations

import functools
import time
import weakref
from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.dropped import disown, when_dropped
from jetsync._base.failures import raise_failure
from jetsync._base.pickling import refuse_copy
from jetsync._base.turn import outside, refuse_request
from jetsync._io.mailbox import Listener
from jetsync._proto import frames
from jetsync._proto.answers import Gathering
from jetsync._proto.puback import is_no_responders
from jetsync.consume.reading import Reading
from jetsync.consume.subscription import (
    MAX_PENDING,
    MAX_PENDING_BYTES,
    BoundedMailbox,
    DropReports,
)
from jetsync.values.message import Message

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from typing_extensions import Self

    from jetsync._io.connection import Connection
    from jetsync._io.refusals import Refusals
    from jetsync._proto.answers import Reason
    from jetsync.values.frame import Frame

__all__ = ["Answers"]

INTERRUPTED: Final = "a call was interrupted, so an answer may be lost"


class Answers:
    """
    The answers to one request, as they arrive; made by :meth:`Client.request_many`.

    Iterate over it. :attr:`reason` says why the iteration has ended. Several threads may iterate,
    and each answer goes to one of them. A ``with`` block closes it. If you drop all references to
    it, jetsync unsubscribes.

    The answers that your code has not taken are in a buffer of 65,536 messages and 64 MiB. If it is
    full, newer answers are dropped. The iteration then raises SlowConsumerError once, with the
    number of dropped answers. To get the buffered ones, start another loop over the same object.
    Any other error ends the iteration. After Ctrl-C, another loop continues, unless the interrupted
    call may have lost an answer. Then the iteration raises HandleClosedError.
    """

    # Threads: any, and signal handlers.
    # Locks: the thread that takes an answer has the turn of `_reading`, which protects the
    # engine. Only `close` changes it outside the turn, in one step.

    __reduce__ = refuse_copy

    def __init__(
        self,
        connection: Connection,
        subject: str,
        header: bytes | None,
        payload: bytes | bytearray | memoryview,
        deadline: Deadline,
        *,
        stall: float | None = None,
        max_messages: int | None = None,
        until: Callable[[Message], object] | None = None,
    ) -> None:
        """Send the request, within *deadline*; raises as ``Outbox.write``."""
        self.subject = subject
        self._connection = connection
        self._lane = lane = connection.lane
        self._until = until
        self._total = deadline.total
        self._target = target = subject.encode()
        inbox = connection.new_inbox().encode()
        request = frames.message(target, inbox, header, payload)
        # Before the write: the request must not be sent if its answers cannot be read.
        refuse_request()
        self._reading = Reading("request", connection)
        self._engine = engine = Gathering(deadline.at, stall, max_messages)
        self._reports = DropReports(connection, subject)
        self._box = box = BoundedMailbox(
            inbox,
            MAX_PENDING,
            MAX_PENDING_BYTES,
            weakref.WeakMethod(self._reports.began),
            collect_denials=True,
        )
        box.find_messages = functools.partial(_unanswered, target, box.frames, engine)
        self._listener = listener = Listener(lane, box)
        self._dropped = when_dropped(
            self, "request", _forget, connection.refusals, target, engine, listener
        )
        # The server sends no more than the caller takes, however slow the caller is.
        most = b"" if max_messages is None else frames.unsub(listener.sid, max_messages)
        try:
            self._epoch = listener.write(most + request, deadline)
            disown(lane.later, self)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Answers to {self.subject!r} count={self.count} {self.reason or 'open'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        for message in map(self._reading.take, (self._take_or_end,), (FOREVER,)):
            return message
        raise StopIteration

    def _take_or_end(self, _deadline: Deadline, me: int) -> Message | None:
        """Do the work of :meth:`_take`. Its errors end the iteration, unless they say otherwise."""
        held: Message | None = self._reading.held.get(me)
        if held is not None and self._engine.reason != "closed":
            return held
        try:
            return self._take(me)
        except Exception as error:
            passes = isinstance(error, (errors.CallInSignalHandlerError, errors.SlowConsumerError))
            # An error of `until` may be of the same kind.
            if self._reading.turn.unfinished or not passes:
                self._end()
            raise

    @property
    def count(self) -> int:
        """How many answers were taken."""
        return self._engine.count

    @property
    def reason(self) -> Reason | None:
        """
        Why the iteration has ended. None while it has not, or if it raised an error.

        - ``"count"``: *max_messages* answers were taken.
        - ``"sentinel"``: *until* returned true.
        - ``"stall"``: no answer followed within *stall* seconds.
        - ``"timeout"``: the time was over.
        - ``"disconnected"``: the connection was lost, so answers may be missing.
        - ``"closed"``: your code closed this object or the client.
        """
        return self._engine.reason

    def close(self) -> None:
        """
        Unsubscribe and drop the answers that were not taken.

        Threads that wait for an answer are woken. Thread-safe and safe to repeat.
        """
        if not self._reading.over.is_set():
            self._engine.close()
            self._end()
            self._lane.interrupt(self._box)

    def _end(self) -> None:
        """Unsubscribe; no more answers are handed out."""
        self._reading.end()
        self._box.frames.clear()
        self._stop_listening()
        self._dropped.detach()

    def _stop_listening(self) -> None:
        """Unsubscribe; the answers that have arrived can still be taken."""
        _forget(self._connection.refusals, self._target, self._engine, self._listener)

    def _take(self, me: int) -> Message | None:
        """Hold and return the next answer; None at the end. In the turn."""
        box, engine, over = self._box, self._engine, self._reading.over
        turn = self._reading.turn
        now = time.monotonic()
        limit = engine.wait(now)
        if limit <= now:
            # Otherwise, a caller who is slower than the responders would never come to an end.
            engine.silent()
            self._stop_listening()
        while not over.is_set():
            if turn.unfinished:
                raise errors.HandleClosedError("request", reason=INTERRUPTED)
            if box.slow and (dropped := box.take_dropped()):
                self._reports.emit(dropped)
                raise errors.SlowConsumerError(self.subject, dropped, is_request=True)
            # Not `Turn.step`: an answer is also lost if `until` raises an error of jetsync.
            turn.unfinished = True
            taken: dict[int, Frame] = {}
            try:  # noqa: SIM105 - `contextlib.suppress` takes a tenth of the time
                box.take(taken, me)
            except IndexError:  # Empty, or closed at this moment.
                pass
            message = self._judge(taken[me]) if taken else None
            # Before the end, which an interrupt may hit.
            self._reading.held[me] = message
            if engine.reason is not None:
                self._end()
            turn.unfinished = False
            if message is not None or engine.reason is not None:
                return message
            if engine.ending is not None:
                engine.emptied()
                self._end()
            elif not self._look() and not self._lane.wait(box, Deadline(limit, self._total)):
                engine.silent()
                self._stop_listening()
        return None

    def _judge(self, frame: Frame) -> Message | None:
        """Return the message of a frame, or None if it is the sentinel."""
        if frame[2] is not None and not self._engine.count and is_no_responders(frame):
            self._engine.settle()
            raise errors.NoRespondersError(self.subject)
        message = Message(*frame, self._connection)
        if self._until is not None and outside(self._until, message):
            self._engine.found_sentinel()
            return None
        self._engine.answered()
        return message

    def _look(self) -> bool:
        """Return whether no more answers arrive; raise if the server has refused the request."""
        box, engine, failure = self._box, self._engine, self._box.failure
        if isinstance(failure, errors.ConnectionClosedError):
            if failure.__cause__ is None:
                engine.client_closed()
            else:
                engine.lost()
        elif isinstance(failure, errors.PermissionDeniedError):
            raise errors.PermissionDeniedError(failure.subject, failure.operation, sent=True)
        elif failure is not None:
            raise_failure(failure)
        elif box.take_lost() >= self._epoch:
            engine.lost()
            self._stop_listening()
        for _, refusal in box.take_denials():
            engine.settle()
            raise_failure(refusal)
        return engine.ending is not None


def _unanswered(
    target: bytes, arrived: deque[Frame], engine: Gathering, subject: bytes
) -> list[int]:
    """Return one number if this is the request's subject, and the server may still refuse it."""
    return [0] if subject == target and not (arrived or engine.settled) else []


def _forget(refusals: Refusals, target: bytes, engine: Gathering, listener: Listener) -> bool:
    """Unsubscribe; never waits. Returns False, because answers may be dropped without a warning."""
    if not engine.settled:
        refusals.add(target)
    listener.end()
    return False
