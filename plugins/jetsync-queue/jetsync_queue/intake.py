"""
What a receiver is made of: the jobs of all priorities, and the thread that keeps them alive.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_queue.delivery import Delivery
from jetsync_queue.errors import ReceiverClosedError
from jetsync_queue.readiness import Readiness
from jetsync_queue.steps import Step
from jetsync_queue.times import seconds

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from jetsync_queue.core import Core

HOLD: Final = 1.0
"""Seconds for which a job is held for a thread that is not free."""

KEEP_ALIVE_STEPS: Final = 8
KEEP_ALIVE_AFTER: Final = 3
"""Progress is reported after 3 of 8 steps of the ack wait, so that one report may be late."""

SIGNAL_CHECK: Final = 0.5
"""Longest wait in one call, in seconds. Python may miss a signal right before a longer one."""

_logger = jetsync.get_logger("jetsync_queue")


class Intake:
    """
    Fetches the jobs of a queue, and hands them out; see :class:`Receiver`.
    """

    # Threads: any, those of the steps, and the keeper, which reports progress.
    # Locks: `lock` protects all fields. It is held for short steps only, never for a request. It is
    # taken by its own name, because Ctrl-C inside `Condition.__enter__` would leave it held.

    def __init__(
        self,
        core: Core,
        *,
        prefetch: int | None,
        ahead: int,
        on_ready: Callable[[], object] | None,
    ) -> None:
        self.core = core
        self.ahead = ahead
        self.lock = jetsync.interrupt_safe_lock()
        self.changed = threading.Condition(self.lock)
        self._pid = os.getpid()
        self._prefetch = prefetch
        # The jobs that were taken, and when their progress was reported last.
        self._unsettled: dict[Delivery, float] = {}
        self._is_stopping = False
        self._is_closed = False
        self._error: Exception | None = None
        self._readiness = Readiness(on_ready)
        # The highest priority first.
        self._steps = [Step(self, priority) for priority in reversed(range(core.priorities))]
        self._keeper = threading.Thread(target=self._keep, name="jetsync-queue-keep", daemon=True)
        try:
            for thread in self._threads():
                thread.start()
        except BaseException:
            # Ctrl-C, or there can be no further thread. No caller can close it.
            self._is_stopping = self._is_closed = True
            raise

    @property
    def prefetch(self) -> int | None:
        """How many jobs may be unsettled. It can be changed at any time; None for no limit."""
        return self._prefetch

    @prefetch.setter
    def prefetch(self, value: int | None) -> None:
        with self.lock:
            self._prefetch = value
            self.changed.notify_all()
        self._readiness.set()

    @property
    def unsettled(self) -> int:
        """How many jobs were taken and not settled."""
        return len(self._unsettled)

    @property
    def held(self) -> int:
        """How many jobs were fetched and not taken."""
        return sum(len(step.held) for step in self._steps)

    @property
    def closed(self) -> bool:
        """Whether the receiver takes no further jobs."""
        return self._is_stopping

    @property
    def error(self) -> Exception | None:
        """The error that ended the receiver; None if there was none."""
        return self._error

    def get(self, timeout: float | dt.timedelta | None) -> Delivery | None:
        """Take a job; see :meth:`Receiver.get`."""
        self._check_process()
        limit = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        delivery: Delivery | None = None
        try:
            with self.lock:
                while True:
                    if self._is_stopping:
                        raise self._error or ReceiverClosedError
                    delivery = self._take()
                    left = SIGNAL_CHECK if limit is None else limit - time.monotonic()
                    if delivery is not None or left <= 0.0:
                        break
                    self.changed.wait(min(left, SIGNAL_CHECK))
                if delivery is None:
                    self._readiness.clear()
        except BaseException:
            # Ctrl-C may come after a job was taken.
            if delivery is not None:
                delivery.requeue()
            raise
        return delivery

    def wait_ready(self, timeout: float | dt.timedelta | None) -> bool:
        """Wait until a job is held; see :meth:`Receiver.wait_ready`."""
        self._check_process()
        limit = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        with self.lock:
            while not (self.held or self._is_stopping):
                left = SIGNAL_CHECK if limit is None else limit - time.monotonic()
                if left <= 0.0:
                    break
                self._resume()
                self.changed.wait(min(left, SIGNAL_CHECK))
            return bool(self.held)

    def fileno(self) -> int:
        """Return the descriptor; see :meth:`Receiver.fileno`."""
        self._check_process()
        return self._readiness.fileno()

    def stop(self) -> None:
        """Fetch no further jobs, and give back those that are held."""
        if os.getpid() != self._pid:
            # A forked child has no threads, and its parent keeps the jobs.
            return
        with self.lock:
            self._is_stopping = True
            given_back = [each for step in self._steps for each in step.take_held()]
            consumptions = [step.leave() for step in self._steps]
            self.changed.notify_all()
        for consumption in consumptions:
            if consumption is not None:
                consumption.close()
        give_back(given_back)
        self._readiness.set()

    def forget(self, delivery: Delivery) -> None:
        """Stop keeping a job alive."""
        with self.lock:
            self._unsettled.pop(delivery, None)
            if self._prefetch is not None:
                self.changed.notify_all()
                self._readiness.set()

    def close(self, timeout: float | dt.timedelta) -> None:
        """Stop, give back the unsettled jobs, and wait for the threads."""
        limit = time.monotonic() + seconds("timeout", timeout)
        if os.getpid() != self._pid:
            return
        self.stop()
        with self.lock:
            self._is_closed = True
            unsettled = list(self._unsettled)
            self._unsettled.clear()
            self.changed.notify_all()
        give_back(unsettled)
        for thread in self._threads():
            if thread is not threading.current_thread():
                thread.join(max(limit - time.monotonic(), 0.0))
        self._readiness.close()

    def _threads(self) -> list[threading.Thread]:
        return [*(step.thread for step in self._steps), self._keeper]

    def _take(self) -> Delivery | None:
        """Return the next job; None if there is none, or too many are unsettled."""
        if self._prefetch is not None and len(self._unsettled) >= self._prefetch:
            return None
        for step in self._steps:
            if step.held:
                delivery, arrived = step.held.popleft()
                self._unsettled[delivery] = arrived
                self.changed.notify_all()
                return delivery
        self._resume()
        return None

    def _resume(self) -> None:
        """Fetch again where it was paused. Called with the lock."""
        paused = [step for step in self._steps if not step.is_wanted]
        if paused:
            for step in paused:
                step.is_wanted = True
            self.changed.notify_all()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise jetsync.ConflictingUseError(
                "the receiver belongs to the parent of this process: make one after the fork"
            )

    # For the steps.

    def wants(self, step: Step) -> bool:
        """Return whether a step is to fetch jobs."""
        return step.is_wanted and not self._is_stopping

    def wait_until_wanted(self, step: Step) -> bool:
        """Wait until a step is to fetch jobs; return False if it never will again."""
        with self.lock:
            self.changed.wait_for(lambda: step.is_wanted or self._is_stopping)
            return not self._is_stopping

    def begin_fetching(self, step: Step, consumption: jetsync.Consumption) -> bool:
        """Note the consumption of a step; return False if it is not wanted any more."""
        with self.lock:
            step.consumption = consumption
            return self.wants(step)

    def hold(self, step: Step, message: jetsync.Message) -> bool:
        """
        Keep a job for the next call that takes one; wait while there is no room for a further one.

        Returns False if the step is not to fetch any more; then the job was given back.
        """
        delivery = Delivery(self.core, message, step.priority, self.forget)
        with self.lock:
            is_wanted = self.wants(step)
            if is_wanted:
                step.held.append((delivery, time.monotonic()))
                self.changed.notify_all()
        if not is_wanted:
            give_back([delivery])
            return False
        self._readiness.set()
        with self.lock:
            self.changed.wait_for(lambda: len(step.held) < self.ahead or not self.wants(step))
            return self.wants(step)

    def sleep(self, pause: float) -> None:
        """Wait before the next attempt to fetch."""
        with self.lock:
            self.changed.wait_for(lambda: self._is_stopping, pause)

    def fail(self, error: Exception) -> None:
        """End with an error."""
        with self.lock:
            self._error = self._error or error
        self.stop()

    # The keeper.

    def _keep(self) -> None:
        """Report progress of all jobs, and give back those that are held for too long."""
        while not self._is_closed:
            shortest = min(step.ack_wait for step in self._steps) / KEEP_ALIVE_STEPS
            with self.lock:
                hold = min(HOLD, 2.0 * shortest)
                self.changed.wait_for(lambda: self._is_closed, hold / 2.0)
                stale = [step for step in self._steps if step.is_stale(hold)]
                given_back = [each for step in stale for each in step.take_held()]
                consumptions = [step.pause() for step in stale]
                due = self._find_due(shortest * KEEP_ALIVE_AFTER)
            for consumption in consumptions:
                if consumption is not None:
                    consumption.close()
            give_back(given_back)
            self._report(due)

    def _find_due(self, after: float) -> list[Delivery]:
        """Return the jobs whose progress is due. Called with the lock."""
        earliest = time.monotonic() - after
        return [each for each, reported in self._unsettled.items() if reported <= earliest]

    def _report(self, due: Iterable[Delivery]) -> None:
        """Report the progress of jobs. Those that cannot be reported are tried at the next step."""
        for delivery in due:
            try:
                delivery.extend()
            except jetsync.MessageAlreadyAckedError:
                continue
            except jetsync.JetSyncError:
                return
            with self.lock:
                if delivery in self._unsettled:
                    self._unsettled[delivery] = time.monotonic()


def give_back(deliveries: Iterable[Delivery]) -> None:
    """
    Return jobs to the server. Without a connection, it delivers them after the ack wait.
    """
    for delivery in deliveries:
        try:
            delivery.message.nak()
        except (jetsync.ConnectionClosedError, jetsync.DisconnectedError):
            return  # Each attempt would wait for a connection.
        except jetsync.JetSyncError:
            continue
