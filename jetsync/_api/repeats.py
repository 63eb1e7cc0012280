"""
Requests that are sent again, because a change of leader leaves the first one without an answer.

``Account.api`` sends requests again by itself if they only read. Direct gets are sent again, too.
The functions here repeat whole calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from jetsync import errors
from jetsync._io.outbox import LaneState

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline

# The shortest time for one attempt, in seconds.
SHORTEST: Final = 1.0

# Seconds before the next attempt if the connection was lost or the server has no leader.
RETRY_WAIT: Final = 0.05

T = TypeVar("T")


def repeated(context: Context, call: Callable[[Deadline], T], deadline: Deadline) -> T:
    """
    Return the result of *call*, which reads, or does no harm if it is made twice.

    The call is repeated if the connection is lost or no server answers. Each call makes another
    request, unlike ``Connection.exchange``, which sends the same one again. So a consumer gets
    another name, and servers may place it elsewhere. While one of three servers was stopped, 0 of
    120 consumers could not be created within 5 s. With the same request again, it was 41 of 120.
    """
    return connected(context, lambda until: answered(call, until), deadline)


def connected(context: Context, call: Callable[[Deadline], T], deadline: Deadline) -> T:
    """
    Return the result of *call*, and repeat the call if the connection is lost.

    It is also repeated if the server says that there is no leader. Waiting for a connection takes
    as long as the deadline allows.
    """
    while True:
        if context.lane.outbox.state is not LaneState.OPEN:
            # A forked child may connect, and then has another lane.
            context.connection.check()
            context.lane.outbox.wait_open(deadline)
        try:
            return call(deadline)
        except (
            errors.ConnectionLostError,
            errors.DisconnectedError,
            errors.TemporarilyUnavailableError,
        ):
            if deadline.remaining() <= RETRY_WAIT:
                raise
            context.connection.closing.wait(RETRY_WAIT)


def answered(call: Callable[[Deadline], T], deadline: Deadline) -> T:
    """
    Return the result of *call*, and repeat the call only if no server answers in time.

    A request that arrives during a change of leader never gets an answer. An attempt has half of
    the time that is left, because slow servers need more than a fixed time. Do not nest this: a
    quarter may be too short.
    """
    while True:
        attempt = deadline.at_most(max(SHORTEST, deadline.remaining() / 2.0))
        try:
            return call(attempt)
        except errors.RequestTimeoutError as error:
            if deadline.expired():
                raise errors.RequestTimeoutError(error.subject, deadline.total) from error
        except errors.DisconnectedError as error:
            # The wait for a connection must not end with the attempt.
            if deadline.expired():
                raise errors.DisconnectedError(
                    timeout=deadline.total,
                    subject=error.subject,
                    reason=error.reason,
                    last_attempt=error.last_attempt,
                ) from error
