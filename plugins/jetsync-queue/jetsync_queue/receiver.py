"""
Taking jobs one by one, those of the highest priority first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync_queue.intake import Intake

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from typing_extensions import Self

    from jetsync_queue.core import Core
    from jetsync_queue.delivery import Delivery

__all__ = ["Receiver"]


class Receiver:
    """
    Takes jobs of a queue; made by :meth:`WorkQueue.receive`.

    For each priority, a thread fetches jobs ahead. Jobs that were taken are *unsettled* until they
    are settled, and the server does not deliver them again as long as the receiver is open. Held
    jobs that no call takes within a second go back to the server. If a server that was away
    delivers a job again that the receiver has or has settled, it is not handed out. Thread-safe. A
    ``with`` block closes the receiver.
    """

    # Threads: any. Locks: none of its own; the intake protects everything.

    def __init__(
        self,
        core: Core,
        *,
        prefetch: int | None,
        ahead: int,
        on_ready: Callable[[], object] | None,
    ) -> None:
        self._queue = core.name
        self._intake = Intake(core, prefetch=prefetch, ahead=ahead, on_ready=on_ready)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Receiver of queue {self._queue!r} {state} unsettled={self.unsettled}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def prefetch(self) -> int | None:
        """How many jobs may be unsettled. It can be changed at any time; None for no limit."""
        return self._intake.prefetch

    @prefetch.setter
    def prefetch(self, value: int | None) -> None:
        self._intake.prefetch = value

    @property
    def unsettled(self) -> int:
        """How many jobs were taken and not settled."""
        return self._intake.unsettled

    @property
    def held(self) -> int:
        """How many jobs were fetched and not taken."""
        return self._intake.held

    @property
    def closed(self) -> bool:
        """Whether the receiver takes no further jobs."""
        return self._intake.closed

    @property
    def error(self) -> Exception | None:
        """The error that ended the receiver; None if there was none."""
        return self._intake.error

    def get(self, *, timeout: float | dt.timedelta | None = 0.0) -> Delivery | None:
        """
        Take a job, or return None if there is none in time, or *prefetch* jobs are unsettled.

        Args:
            timeout: Seconds to wait. 0, the default, returns a job that has arrived already. None
                waits without a limit.

        Raises:
            ReceiverClosedError: The receiver or the client is closed, or a signal stopped it.
            StreamNotFoundError, PermissionDeniedError: The queue cannot be read.
            ConflictingUseError: This is a forked child of the process that made the receiver.
        """
        return self._intake.get(timeout)

    def wait_ready(self, *, timeout: float | dt.timedelta | None = None) -> bool:
        """
        Wait until a job was fetched, and return whether one is held. It takes none.

        Args:
            timeout: Seconds to wait. Default: no limit.
        """
        return self._intake.wait_ready(timeout)

    def fileno(self) -> int:
        """
        Return a file descriptor that is readable while there may be a job.

        Call :meth:`get` until it returns None, and wait for the descriptor again then. For
        ``select`` and event loops; not on Windows, where only sockets can be waited for.
        """
        return self._intake.fileno()

    def stop(self) -> None:
        """
        Fetch no further jobs, and give back those that are held. Does not wait.

        Unsettled jobs are kept alive, and can be settled, until the receiver is closed. Safe to
        repeat.
        """
        self._intake.stop()

    def forget(self, delivery: Delivery) -> None:
        """
        Stop keeping a job alive. If it is not settled, the server delivers it after the ack wait.

        Args:
            delivery: A job that this receiver has returned.
        """
        self._intake.forget(delivery)

    def close(self, *, timeout: float | dt.timedelta = 5.0) -> None:
        """
        Stop, give back the unsettled jobs, too, and wait for the threads. Safe to repeat.

        Args:
            timeout: Seconds to wait. The threads end soon after that, too.
        """
        self._intake.close(timeout)
