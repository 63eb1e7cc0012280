"""
Sending a request and taking its answer in one step.

A request passes about 25 methods of this folder. For a thread that has the connection to itself,
one compiled function does the same. It knows only this usual case, and leaves all else to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from jetsync._base.speedups import with_twin
from jetsync._io.outbox import LaneState

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._base.deadline import Deadline
    from jetsync._io.lane import Lane
    from jetsync._io.outbox import Outbox
    from jetsync._io.reader import Reader
    from jetsync._io.replies import ReplyRouter
    from jetsync.values.frame import Frame


class Asked(Protocol):
    """What the function needs of a request; see ``Request``."""

    address: bytes
    epoch: int
    reply: Frame | None
    ready: bool


def shortcut(
    lane: Lane, router: ReplyRouter, sid: bytes
) -> Callable[[Asked, bytes, Deadline, int | None], None] | None:
    """
    Return a function that may send a request and take its answer; None in Python.

    It gets a request that is registered with *router*, its frame, the deadline, and the epoch of
    the only connection that may carry it, or None. Afterwards, the request is sent if it has an
    epoch, and answered if it is ready. The caller does what is left.

    The function sends the request unless another thread uses the connection or something waits to
    be sent. It takes the answer if that comes soon, and nothing else before. It is one step for
    signal handlers, because it waits only some milliseconds, and runs no code in Python.

    Args:
        lane: The lane that carries the requests.
        router: The receiver of the answers.
        sid: The id of its subscription.
    """
    return asker(lane, lane.outbox, lane.reader, router, sid, LaneState.OPEN)


@with_twin
def asker(  # noqa: PLR0917 - as in C
    lane: Lane,  # noqa: ARG001 - the methods in Python need no shortcut.
    outbox: Outbox,  # noqa: ARG001
    reader: Reader,  # noqa: ARG001
    router: ReplyRouter,  # noqa: ARG001
    sid: bytes,  # noqa: ARG001
    opened: LaneState,  # noqa: ARG001
) -> Callable[[Asked, bytes, Deadline, int | None], None] | None:
    """
    Return the function that :func:`shortcut` describes if there is one.

    The reference is what ``Request.send`` and ``Lane.wait`` do, so there is none in Python.
    """
    return None
