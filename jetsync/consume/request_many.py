"""
The answers to one request, from any number of responders (ADR-47).
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from jetsync import errors
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.dropped import disown, when_dropped
from jetsync._base.failures import raise_failure
from jetsync._base.pickling import refuse_copy
from jetsync._base.turn import outside, refuse_request
from jetsync._io.listener import Listener
from jetsync._proto import frames
from jetsync._proto.many_answers import Gathering
from jetsync._proto.puback import is_no_responders
from jetsync.consume.reading import Reading
from jetsync.consume.subscription import BoundedMailbox, DropReports
from jetsync.values.message import Message

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from typing_extensions import Self

    from jetsync._io.connection import Connection
    from jetsync._io.refusals import Refusals
    from jetsync._proto.many_answers import Reason
    from jetsync.values.frame import Frame

__all__ = ["Answers"]


class Answers:
    """
    The answers to one request, as they arrive; made by :meth:`Client.request_many`.

    Iterate over it. :attr:`reason` says why the iteration has ended. Several threads may iterate,
    and each answer goes to one of them. A ``with`` block closes it. If you drop all references to
    it, jetsync unsubscribes.

    The answers that your code has not taken are in a buffer of 65,536 messages and 64 MiB. If it is
    full, newer answers are dropped. The iteration then raises SlowConsumerError once, with the
    number of dropped answers. To get the buffered ones, start another loop over the same object.
    Any other error ends the iteration. After Ctrl-C, another loop continues. If that struck in
    *until*, it is called with the same answer again.
    """

    # Threads: any, and signal handlers.
    # Locks: the thread that takes an answer has the turn of `_reading`, which protects the
    # engine. Only `close` changes it outside the turn, in one step. What a thread holds is a frame,
    # and a message once that was found to be an answer. So after Ctrl-C, the next call continues.

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
        self._until = until
        self._total = deadline.total
        self._target = target = subject.encode()
        inbox = connection.new_inbox().encode()
        request = frames.message(target, inbox, header, payload)
        # Before the write: the request must not be sent if its answers cannot be read.
        refuse_request()
        self._reading = Reading("request", connection)
        self._engine = engine = Gathering(deadline.at, stall, max_messages)
        reports = DropReports(connection, subject, is_request=True)
        self._box = box = BoundedMailbox(inbox, reports)
        box.find_messages = functools.partial(_unanswered, target, box.frames, engine)
        self._listener = listener = Listener(connection.lane, box)
        self._dropped = when_dropped(
            self, "request", _forget, connection.refusals, target, engine, listener
        )
        # The server sends no more than the caller takes, however slow the caller is.
        most = b"" if max_messages is None else frames.unsub(listener.sid, max_messages)
        try:
            self._epoch = listener.write(most + request, deadline)
        except errors.JetSyncError:
            # After Ctrl-C, it is dropped.
            self.close()
            raise
        disown(connection.lane.later, self)

    def __repr__(self) -> str:
        return f"<Answers to {self.subject!r} count={self.count} {self.reason or 'open'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        for message in map(self._reading.take, (self._take,), (FOREVER,)):
            return message
        raise StopIteration

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
            self._connection.lane.interrupt(self._box)

    def _end(self) -> None:
        """Unsubscribe; no more answers are handed out."""
        self._reading.end()
        self._box.frames.clear()
        self._stop_listening()
        self._dropped.detach()

    def _stop_listening(self) -> None:
        """Unsubscribe; the answers that have arrived can still be taken."""
        _forget(self._connection.refusals, self._target, self._engine, self._listener)

    def _take(self, _deadline: Deadline, me: int) -> Message | None:
        """Hold and return the next answer; None at the end. In the turn."""
        held, engine = self._reading.held, self._engine
        try:
            while True:
                if engine.reason is not None:
                    self._end()
                item = held.get(me)
                if isinstance(item, Message):
                    # It counts, also if *until* has closed this object meanwhile.
                    return item
                if engine.reason == "closed":
                    break
                if item is not None:
                    self._judge(item, me)
                elif self._reading.over.is_set():
                    break
                else:
                    self._receive(me)
        except Exception as error:
            passes = isinstance(error, (errors.CallInSignalHandlerError, errors.SlowConsumerError))
            if isinstance(held.get(me), tuple):
                # Raised while the frame was judged: one of `until` may be of the same kind.
                del held[me]
                passes = False
            if not passes:
                self._end()
            raise
        return None

    def _receive(self, me: int) -> None:
        """Hold the next frame, or note that none has arrived."""
        engine, now = self._engine, time.monotonic()
        limit = engine.wait(now)
        if limit <= now:
            # Otherwise, a caller who is slower than the responders would never come to an end.
            self._note_silence()
        if not self._box.receive(self._reading.held, me, self._wait, limit):
            if engine.ending is None:
                self._note_silence()
            else:
                engine.emptied()

    def _note_silence(self) -> None:
        """Expect no more answers; those that have arrived can still be taken."""
        self._engine.silent()
        self._stop_listening()

    def _judge(self, frame: Frame, me: int) -> None:
        """Decide whether the frame that a thread holds is an answer; if so, hold the message."""
        held, engine = self._reading.held, self._engine
        if frame[2] is not None and not engine.count and is_no_responders(frame):
            engine.settle()
            raise errors.NoRespondersError(self.subject)
        message = Message(*frame, self._connection)
        if self._until is None or not outside(self._until, message):
            engine.answered(message, held, me)
        else:
            engine.found_sentinel()
            del held[me]

    def _wait(self, limit: float) -> bool:
        """Wait for a frame until *limit*, unless no more arrive."""
        if self._engine.ending is None:
            self._look()
        if self._engine.ending is not None:
            return False
        return self._connection.lane.wait(self._box, Deadline(limit, self._total))

    def _look(self) -> None:
        """Note that no more answers arrive, if so; raise if the server has refused the request."""
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
        elif box.lost_epoch >= self._epoch:
            engine.lost()
            self._stop_listening()
        box.take_lost()
        for _, refusal in box.take_denials():
            engine.settle()
            raise_failure(refusal)


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
