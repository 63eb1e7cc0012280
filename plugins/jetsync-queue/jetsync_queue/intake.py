"""
What a receiver is made of: the jobs of all priorities, and the thread that keeps them alive.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_queue.delivery import Delivery
from jetsync_queue.errors import ReceiverClosedError
from jetsync_queue.jobs import Jobs
from jetsync_queue.readiness import Readiness
from jetsync_queue.steps import Step
from jetsync_queue.times import seconds

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from jetsync_queue.core import Core

HOLD: Final = 1.0
"""Seconds for which a job is held for a thread that is not free."""

LONGEST_HOLD: Final = 0.5
"""The share of the ack wait for which a job may be held. After that, a keeper that was late might
let two workers have it."""

KEEP_ALIVE_STEPS: Final = 8
KEEP_ALIVE_AFTER: Final = 3
"""Progress is reported after 3 of 8 steps of the ack wait, so that one report may be late."""

NOTICE: Final = 0.25
"""Seconds within which the loss of a connection is noticed. No server starts again much sooner."""

LOOK: Final = 0.05
"""Seconds between two looks for a server that cannot be reached. A server that starts again looks
for jobs whose ack wait is over after 0.5 to 1.5 s, and must know by then which ones are alive."""

GRACE: Final = 1.0
"""Seconds after an outage in which nothing is fetched, because other workers may not have
acknowledged yet what they have done meanwhile."""

SILENCE: Final = 1.0
"""Seconds without an answer after which the leader of a consumer is taken for lost. The next one
takes 4 to 7 s."""

LONG_SILENCE: Final = 10.0
"""Seconds after which a server that does not answer may only be slow."""

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
        self._jobs = Jobs()
        # Whether there was a connection at the last look, and whether the last reports of progress
        # have reached the server, as far as is known.
        self._is_connected = self._is_reachable = True
        self._last_reached = time.monotonic()
        # When the server was back after an outage, until fetching begins again.
        self._back_since: float | None = None
        self._may_fetch = True
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
        return len(self._jobs.unsettled)

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
        _close(consumptions)
        self._give_back(given_back)
        self._readiness.set()

    def forget(self, delivery: Delivery) -> None:
        """Stop keeping a job alive."""
        with self.lock:
            self._jobs.forget(delivery)
            self._make_room()

    def close(self, timeout: float | dt.timedelta) -> None:
        """Stop, give back the unsettled jobs, and wait for the threads."""
        limit = time.monotonic() + seconds("timeout", timeout)
        if os.getpid() != self._pid:
            return
        self.stop()
        with self.lock:
            self._is_closed = True
            unsettled = list(self._jobs.unsettled)
            self._jobs = Jobs()
            self.changed.notify_all()
        self._give_back(unsettled)
        for thread in self._threads():
            if thread is not threading.current_thread():
                thread.join(max(limit - time.monotonic(), 0.0))
        self._readiness.close()

    def _threads(self) -> list[threading.Thread]:
        return [*(step.thread for step in self._steps), self._keeper]

    def _take(self) -> Delivery | None:
        """Return the next job; None if there is none, or too many are unsettled."""
        jobs = self._jobs
        if self._prefetch is not None and len(jobs.unsettled) >= self._prefetch:
            return None
        for step in self._steps:
            oldest = time.monotonic() - LONGEST_HOLD * step.ack_wait
            while step.held:
                delivery, arrived = step.held.popleft()
                self.changed.notify_all()
                if arrived > oldest and not (jobs.is_taken(delivery) or jobs.is_settled(delivery)):
                    jobs.take(delivery, arrived)
                    return delivery
        self._resume()
        return None

    def _make_room(self) -> None:
        """Let threads look for a job if too many were unsettled. Called with the lock."""
        if self._prefetch is not None:
            self.changed.notify_all()
            self._readiness.set()

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
        return step.is_wanted and self._may_fetch and not self._is_stopping

    def wait_until_wanted(self, step: Step) -> bool:
        """Wait until a step is to fetch jobs; return False if it never will again."""
        with self.lock:
            self.changed.wait_for(lambda: self.wants(step) or self._is_stopping)
            return not self._is_stopping

    def begin_fetching(self, step: Step, consumption: jetsync.Consumption) -> bool:
        """Note the consumption of a step; return False if it is not wanted any more."""
        with self.lock:
            step.consumption = consumption
            return self.wants(step)

    def hold(self, step: Step, message: jetsync.Message) -> bool:
        """
        Keep a job for the next call that takes one; wait while there is no room for a further one.

        A job that this receiver has or has settled is not kept: the server has delivered it again,
        because it has not got the acknowledgement or the report of progress.

        Returns False if the step is not to fetch any more; then the job was given back.
        """
        delivery = Delivery(self.core, message, step.priority, self)
        with self.lock:
            is_wanted = self.wants(step)
            is_settled = self._jobs.is_settled(delivery)
            is_copy = is_settled or self._jobs.is_taken(delivery)
            # Without a connection, the server may give the job to another worker.
            is_kept = is_wanted and not is_copy and self.core.js.is_connected
            if is_kept:
                step.held.append((delivery, time.monotonic()))
                self.changed.notify_all()
        if is_settled:
            with contextlib.suppress(jetsync.JetSyncError):  # It comes again then.
                message.ack()
        if not is_wanted:
            if not is_copy:
                self._give_back([delivery])
            return False
        if not is_kept:
            return True
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

    # For the deliveries, see `Holder`.

    def let_go(self, delivery: Delivery) -> None:
        """Expect that a job comes again."""
        with self.lock:
            self._jobs.let_go(delivery)

    def keep(self, delivery: Delivery) -> None:
        """Keep a job that could not be given back."""
        with self.lock:
            self._jobs.keep(delivery)

    def settle(self, delivery: Delivery) -> None:
        """Note that a job was settled for good."""
        with self.lock:
            self._jobs.settle(delivery)
            self._make_room()

    def _give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Return jobs to the server. Without a connection, it delivers them after the ack wait."""
        for delivery in deliveries:
            if not self.core.js.is_connected:
                # Later, another worker may have the job, and this would take it away from it.
                return
            with contextlib.suppress(jetsync.JetSyncError):
                delivery.message.nak()

    # The keeper.

    def _keep(self) -> None:
        """Report progress of all jobs, and give back those that are held for too long."""
        while not self._is_over():
            shortest = min(step.ack_wait for step in self._steps) / KEEP_ALIVE_STEPS
            hold = min(HOLD, 2.0 * shortest)
            is_well = self._is_reachable and self._may_fetch
            with self.lock:
                pause = min(hold / 2.0, NOTICE) if is_well else LOOK
                self.changed.wait_for(self._is_over, pause)
            if self.core.js.is_closed:
                # Nothing can be reported any more.
                self.stop()
                return
            if not self.core.js.is_connected:
                self._suspend()
                continue
            self._is_connected = True
            with self.lock:
                stale = [step for step in self._steps if step.is_stale(hold)]
                given_back = [each for step in stale for each in step.take_held()]
                consumptions = [step.pause() for step in stale]
                due = self._find_due(shortest * KEEP_ALIVE_AFTER if self._is_reachable else 0.0)
            _close(consumptions)
            self._give_back(given_back)
            # All of them, because each consumer has a leader of its own.
            arrived = [self._report(step, due) for step in self._steps]
            self._is_reachable = all(arrived)
            if self._is_reachable:
                self._last_reached = time.monotonic()
                self._fetch_again()
            elif time.monotonic() - self._last_reached > SILENCE:
                _close(self._stop_fetching())

    def _is_over(self) -> bool:
        """Whether there is no job to keep alive, and never will be."""
        return self._is_closed or (self._is_stopping and not self._jobs.unsettled)

    def _suspend(self) -> None:
        """
        Stop fetching, because there is no connection.

        Jobs that are held are dropped. The server delivers them again, perhaps to other workers.
        """
        with self.lock:
            for step in self._steps:
                step.take_held()
            self.changed.notify_all()
        # At the second look, after the steps have dropped what had arrived. A consumption that ends
        # would give it back as soon as there is a connection, when another worker may have it.
        if not self._is_connected:
            _close(self._stop_fetching())
        self._is_connected = self._is_reachable = False

    def _stop_fetching(self) -> list[jetsync.Consumption | None]:
        """Fetch nothing until the server is back, and return the consumptions to close."""
        with self.lock:
            self._may_fetch, self._back_since = False, None
            return [step.leave() for step in self._steps]

    def _fetch_again(self) -> None:
        """Fetch again, some time after an outage."""
        if self._may_fetch:
            return
        now = time.monotonic()
        if self._back_since is None:
            self._back_since = now
        elif now - self._back_since >= GRACE:
            with self.lock:
                self._may_fetch = True
                self.changed.notify_all()

    def _find_due(self, after: float) -> list[Delivery]:
        """Return the jobs whose progress is due. Called with the lock."""
        earliest = time.monotonic() - after
        unsettled = self._jobs.unsettled
        return [each for each, reported in unsettled.items() if reported <= earliest]

    def _report(self, step: Step, due: Iterable[Delivery]) -> bool:
        """
        Report the progress of jobs of a priority, and return whether the reports have arrived.

        Servers do not confirm them, and nothing gets them while a consumer has no leader. So the
        consumer is asked for its info before.
        """
        of_step = [delivery for delivery in due if delivery.priority == step.priority]
        if not of_step:
            return True
        is_late = time.monotonic() - self._last_reached > LONG_SILENCE
        is_reachable = step.is_reachable(is_late=is_late)
        for delivery in of_step:
            if not self.core.js.is_connected:
                return False
            try:
                delivery.extend()
            except jetsync.MessageAlreadyAckedError:
                continue
            except jetsync.JetSyncError:
                return False
            if is_reachable:
                with self.lock:
                    if delivery in self._jobs.unsettled:
                        self._jobs.unsettled[delivery] = time.monotonic()
        return is_reachable


def _close(consumptions: Iterable[jetsync.Consumption | None]) -> None:
    for consumption in consumptions:
        if consumption is not None:
            consumption.close()
