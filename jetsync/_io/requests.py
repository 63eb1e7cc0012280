"""
Requests whose answers come through the reply subscription that all requests share.

``Connection.exchange`` sends one and waits. Other callers await answers later, so that a thread can
have several requests in flight. One write may carry several of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync import errors
from jetsync._base.failures import raise_failure
from jetsync._base.turn import refuse_request
from jetsync._io.replies import Waiter
from jetsync._proto import frames
from jetsync._proto.puback import is_no_responders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._base.deadline import Deadline
    from jetsync._io.session import Session
    from jetsync.values.frame import Frame


class Request(Waiter):
    """
    A request whose answer is awaited with ``Lane.wait``.

    Threads: as for :class:`Waiter`; its owner calls the methods below.
    Locks: none.

    Args:
        session: The session that carries it.
        subject: The subject of the request.
        in_batch: Whether it is a message of a batch.

    Raises:
        CallInSignalHandlerError: This is a signal handler that cannot wait for the answer.
    """

    __slots__ = ("_session", "address", "header", "payload")

    def __init__(self, session: Session, subject: bytes, in_batch: bool = False) -> None:  # noqa: FBT001, FBT002 - as for Waiter
        refuse_request()
        super().__init__(subject, in_batch)
        self._session = session
        #: The reply subject.
        self.address: bytes = session.router.register(self)
        #: The header block and the payload of a request that is sent together with another one.
        self.header: bytes = b""
        self.payload: bytes = b""

    def send(
        self,
        block: bytes | memoryview,
        deadline: Deadline,
        epoch: int | None = None,
        *,
        may_delegate: bool = False,
        front: Sequence[Request] = (),
        after: Sequence[Request] = (),
    ) -> None:
        """
        Send the request, whose reply subject is :attr:`address`. See ``Outbox.write``.

        Args:
            block: The frame. The memory of a view must not change before the request is answered.
            deadline: How long to wait for a connection and for room.
            epoch: The only connection that may carry the request.
            may_delegate: Whether the thread that is sending may send it. The caller has to wait for
                the answer next.
            front: Requests to send in front of this one, in the same write.
            after: Requests to send after this one, in the same write.

        Raises:
            DisconnectedError, ConnectionClosedError, PermissionDeniedError: As for
                ``Connection.exchange``. Nothing was sent.
        """
        session = self._session
        lane = session.lane
        if session.router.refusal is not None:
            session.subscribe_replies(deadline)
        if front or after:
            block = b"".join((*_frames(front), block, *_frames(after)))
        last = after[-1].address if after else self.address
        epoch = lane.write(block, deadline, epoch, may_delegate=may_delegate, request=last)
        for each in (*front, self, *after):
            each.epoch = epoch
            if lane.lost_epoch >= epoch:
                # The connection was lost after the write. The router may have notified its waiters
                # before this one had its epoch.
                each.lost(epoch)

    @property
    def is_unprocessed(self) -> bool:
        """Whether the connection was lost, and the server has not processed the request."""
        if self.reply is not None or self.failure is not None or not self.is_lost:
            return False
        return self._session.lane.unprocessed == self.address

    def answer(self) -> Frame | None:
        """
        Return the answer; None if it may still come.

        Raises: as ``Connection.exchange`` does after it has sent a request.
        """
        answer = self.reply
        if answer is not None:
            # Checked here first, because most answers have a payload.
            if answer[2] is not None and not answer[3] and is_no_responders(answer):
                raise errors.NoRespondersError(self.subject.decode())
            return answer
        failure = self.failure
        if isinstance(failure, errors.ConnectionClosedError):
            raise errors.ConnectionClosedError(str(failure), sent=True) from failure.__cause__
        if failure is not None:
            raise_failure(failure)
        if self.is_lost:
            raise errors.ConnectionLostError(
                subject=self.subject.decode(),
                reason=self._session.lane.why_lost(self.epoch),
                sent=not self.is_unprocessed,
            )
        return None

    def end(self) -> None:
        """Forget the request. If it has no answer, the server may still refuse it."""
        if self.reply is None:
            if self.may_be_refused:
                self._session.state.refusals.add(self.subject)
            self._session.router.forget(self.address)


def _frames(requests: Sequence[Request]) -> list[bytes]:
    """Return the frames of requests that are sent together with another one."""
    return [
        frames.message(each.subject, each.address, each.header or None, each.payload)
        for each in requests
    ]
