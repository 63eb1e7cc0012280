"""
Requests whose answers are awaited later, so that a thread can have several in flight.

They share the reply subscription of the connection with ``Connection.exchange``, which sends one
request and waits. So a request needs no subscription of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync import errors
from jetsync._base.failures import raise_failure
from jetsync._io.replies import Waiter
from jetsync._proto.puback import is_no_responders

if TYPE_CHECKING:
    from jetsync._base.deadline import Deadline
    from jetsync._io.session import Session
    from jetsync.values.frame import Frame


class Request(Waiter):
    """
    A request whose answer is awaited later, with ``Lane.wait``.

    Threads: as for :class:`Waiter`; its owner calls the methods below.
    Locks: none.

    Args:
        session: The session that carries it.
        subject: The subject of the request.
    """

    __slots__ = ("_session", "address")

    def __init__(self, session: Session, subject: bytes) -> None:
        super().__init__(subject)
        self._session = session
        #: The reply subject.
        self.address: bytes = session.router.register(self)

    def send(self, block: bytes | memoryview, deadline: Deadline, *, more: bool = False) -> None:
        """
        Send the request, whose reply subject is :attr:`address`.

        Args:
            block: The frame. The memory of a view must not change before the request is answered.
            deadline: How long to wait for a connection and for room.
            more: Whether the caller sends another request at once. See ``Outbox.write``.

        Raises:
            DisconnectedError, ConnectionClosedError, PermissionDeniedError: As for
                ``Connection.exchange``. Nothing was sent.
        """
        session = self._session
        lane = session.lane
        if session.router.refusal is not None:
            session.subscribe_replies(deadline)
        self.epoch = epoch = lane.write(block, deadline, request=self.address, more=more)
        if lane.lost_epoch >= epoch:
            # As in `Connection.exchange`.
            self.lost(epoch)

    def answer(self) -> Frame:
        """
        Return the answer once the wait is over.

        Raises: as ``Connection.exchange`` does after it has sent a request.
        """
        answer = self.reply
        if answer is None:
            raise_unanswered(self._session, self, self.address)
            raise AssertionError("the wait is not over")
        if answer[2] is not None and is_no_responders(answer):
            raise errors.NoRespondersError(self.subject.decode())
        return answer

    def end(self) -> None:
        """Forget the request. If it has no answer, the server may still refuse it."""
        if self.reply is None:
            if self.may_be_refused:
                self._session.refusals.add(self.subject)
            self._session.router.forget(self.address)


def raise_unanswered(session: Session, waiter: Waiter, reply: bytes) -> None:
    """
    Raise why a request that was sent has no answer. Return if it may still get one.

    Args:
        session: The session that carried it.
        waiter: Its receiver.
        reply: Its reply subject.
    """
    failure = waiter.failure
    if isinstance(failure, errors.ConnectionClosedError):
        raise errors.ConnectionClosedError(str(failure), sent=True) from failure.__cause__
    if failure is not None:
        raise_failure(failure)
    if waiter.is_lost:
        lane = session.lane
        raise errors.ConnectionLostError(
            subject=waiter.subject.decode(),
            reason=lane.why_lost(waiter.epoch),
            sent=lane.unprocessed != reply,
        )
