"""
Running jobs in threads.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs

import jetsync
from jetsync_queue.delivery import Delivery
from jetsync_queue.errors import JobTimeoutError, ReceiverClosedError, Retry
from jetsync_queue.limits import Attempt, Clock
from jetsync_queue.receiver import Receiver
from jetsync_queue.records import error_text
from jetsync_queue.times import seconds

if TYPE_CHECKING:
    import datetime as dt

    from typing_extensions import Self

    from jetsync_queue.core import Core

__all__ = ["Worker", "WorkerStatistics"]

PAUSES: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 5.0, 10.0, 10.0)
"""Seconds between attempts to settle a job, while the connection is lost for example."""

SIGNAL_CHECK: Final = 0.5
"""Longest wait in one call, in seconds. Python may miss a signal right before a longer one."""

_logger = jetsync.get_logger("jetsync_queue")


@attrs.frozen(kw_only=True)
class WorkerOptions:
    """
    The options of a worker, which were checked.
    """

    handler: Callable[[Delivery], object]
    threads: int
    retries: int
    waits: tuple[float, ...]
    timeout: float | None
    grace: float
    crashes: int
    ahead: int
    name: str | None


@attrs.frozen
class WorkerStatistics:
    """
    The counts of a worker.
    """

    succeeded: int = 0
    """Jobs whose handler returned."""

    retried: int = 0
    """Attempts that failed, and whose job gets another one."""

    dead: int = 0
    """Jobs that were given up."""

    skipped: int = 0
    """Jobs that were not started: expired ones, and repetitions of tracked ones."""

    unsettled: int = 0
    """Attempts whose outcome could not be stored. The server delivers their jobs again."""


class Worker:
    """
    Runs jobs of a queue in threads; made by :meth:`WorkQueue.worker`.

    Call :meth:`run`, or :meth:`start` and :meth:`stop`, or use it in a ``with`` statement. It can
    be used once. Thread-safe.
    """

    # Threads: any, its own, and the clock. Locks: `_lock` protects the counters and the threads. It
    # is taken by its own name, because Ctrl-C inside `Condition.__enter__` would leave it held.

    def __init__(self, core: Core, options: WorkerOptions) -> None:
        self._core = core
        self._options = options
        self._name = options.name or f"{socket.gethostname()}-{os.getpid()}"
        self._lock = jetsync.interrupt_safe_lock()
        self._changed = threading.Condition(self._lock)
        self._statistics = WorkerStatistics()
        # Those that have not ended, and were not given up. Each one removes itself. `Thread.join`
        # would not do: until Python 3.12, Ctrl-C inside it marks a thread that runs as ended.
        self._threads: list[threading.Thread] = []
        self._started = 0
        self._receiver: Receiver | None = None
        self._clock: Clock | None = None
        self._error: BaseException | None = None
        # Set by a stop, also before the start, because a signal may come that early.
        self._is_stopping = False
        # Set when the worker is closed, to end waits.
        self._closing = threading.Event()

    def __repr__(self) -> str:
        return f"<Worker {self._name!r} of queue {self._core.name!r}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def name(self) -> str:
        """The name in the records of tracked jobs."""
        return self._name

    @property
    def statistics(self) -> WorkerStatistics:
        """The counts so far."""
        return self._statistics

    @property
    def error(self) -> BaseException | None:
        """The error that ended it; None if there was none."""
        return self._error

    def start(self) -> None:
        """
        Start the threads, and return.

        Raises:
            ConflictingUseError: It was started before.
        """
        with self._lock:
            if self._receiver is not None:
                raise jetsync.ConflictingUseError("a worker can be started once: make another one")
            self._receiver = Receiver(
                self._core, prefetch=None, ahead=self._options.ahead, on_ready=None
            )
        try:
            if self._is_stopping:
                self._receiver.stop()
            if self._options.timeout is not None:
                self._clock = Clock(self._abandon)
                self._clock.thread.start()
            for _ in range(self._options.threads):
                self._start_thread()
        except BaseException:
            # Ctrl-C, or there can be no further thread.
            self.stop()
            raise

    def run(self) -> WorkerStatistics:
        """
        Work until the worker is stopped; return the counts. See :meth:`WorkQueue.work`.
        """
        self.start()
        try:
            self.wait(timeout=None)
        except BaseException:
            # Ctrl-C. A second one interrupts this wait.
            self.stop()
            raise
        self.stop()
        if self._error is not None:
            raise self._error
        return self._statistics

    def wait(self, *, timeout: float | dt.timedelta | None = None) -> bool:
        """
        Wait until the worker has stopped; return whether it has.

        Args:
            timeout: Seconds to wait. Default: no limit.

        Raises:
            ConflictingUseError: A handler calls it, which would wait for itself.
        """
        limit = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        if threading.current_thread() in self._threads:
            raise jetsync.ConflictingUseError(
                "a handler cannot wait for its own worker: call request_stop"
            )
        with self._lock:
            while self._threads:
                left = SIGNAL_CHECK if limit is None else limit - time.monotonic()
                if left <= 0.0:
                    return False
                self._changed.wait(min(left, SIGNAL_CHECK))
        return True

    def stop(self, *, timeout: float | dt.timedelta | None = None) -> bool:
        """
        Start no further job, give back those that were fetched ahead, and wait for those that run.

        A worker that is started later stops at once.

        Args:
            timeout: Seconds to wait for them. Default: no limit. After that, the server gives the
                jobs that still run to other workers, too.

        Returns:
            Whether all jobs have ended.
        """
        self.request_stop()
        receiver = self._receiver
        if receiver is None:
            return True
        if threading.current_thread() in self._threads:
            # Before the receiver is closed, which would give back the job of the caller.
            return self.wait(timeout=timeout)
        is_done = False
        try:
            is_done = self.wait(timeout=timeout)
        finally:
            self._closing.set()
            if self._clock is not None:
                self._clock.stop()
                if self._clock.thread.is_alive():
                    self._clock.thread.join()
            receiver.close()
        return is_done

    def request_stop(self) -> None:
        """
        Start no further job, and return at once: for a handler, which cannot wait for itself.

        A worker that is started later stops at once.
        """
        # Before it looks for a receiver, which `start` stores before it looks for this.
        self._is_stopping = True
        if self._receiver is not None:
            self._receiver.stop()

    # The threads.

    def _start_thread(self) -> None:
        with self._lock:
            self._started += 1
            thread = threading.Thread(
                target=self._run_thread, name=f"jetsync-queue-worker-{self._started}", daemon=True
            )
            self._threads.append(thread)
        try:
            thread.start()
        except BaseException:
            # Ctrl-C may also come after the thread has started, which removes itself then.
            if thread.ident is None:
                self._remove(thread)
            raise

    def _run_thread(self) -> None:
        try:
            self._work()
        finally:
            self._remove(threading.current_thread())

    def _remove(self, thread: threading.Thread) -> None:
        """Do not wait for a thread any more."""
        with self._lock:
            if thread in self._threads:
                self._threads.remove(thread)
            self._changed.notify_all()

    def _work(self) -> None:
        receiver = self._receiver
        assert receiver is not None
        while True:
            try:
                delivery = receiver.get(timeout=None)
            except ReceiverClosedError:
                return
            except Exception as error:  # noqa: BLE001 - `run` raises it.
                self._error = self._error or error
                return
            if delivery is not None and not self._handle(delivery):
                return

    def _handle(self, delivery: Delivery) -> bool:
        """Run one job; return whether the thread goes on."""
        options = self._options
        try:
            if not delivery.begin(self._name):
                self._count("skipped")
                return True
        except Exception as error:  # noqa: BLE001 - also a record that was spoilt.
            # Nothing was run. The server delivers the job again.
            self._leave(delivery, error)
            return True
        if delivery.crashes > options.crashes:
            reason = f"{delivery.crashes} workers died or lost their connection while they ran it"
            self._settle(delivery, "dead", lambda: delivery.reject(reason))
            return True
        attempt = Attempt(delivery, options.timeout, options.grace)
        if self._clock is not None:
            self._clock.watch(attempt)
        value, failure = attempt.call(options.handler)
        if self._clock is not None:
            self._clock.forget(attempt)
        if attempt.is_abandoned:
            # Another thread has taken the place of this one.
            return False
        self._finish(delivery, value, failure)
        if failure is not None and not isinstance(failure, Exception):
            # The handler wants to end the program.
            self._error = self._error or failure
            self.request_stop()
            return False
        return True

    def _abandon(self, attempt: Attempt) -> None:
        """Replace a thread whose handler does not end; called by the clock."""
        _logger.error(
            "job_abandoned",
            queue=self._core.name,
            job=attempt.delivery.id,
            timeout=self._options.timeout,
        )
        self._start_thread()
        self._remove(attempt.thread)
        limit = f"the handler did not end within {self._options.timeout:g} seconds"
        self._finish(attempt.delivery, None, JobTimeoutError(limit))

    def _finish(self, delivery: Delivery, value: object, error: BaseException | None) -> None:
        """Settle a job after its attempt. Whatever happens, its thread goes on."""
        try:
            self._conclude(delivery, value, error)
        except Exception as failure:  # noqa: BLE001 - a thread that ends silently helps nobody.
            self._leave(delivery, failure)

    def _conclude(self, delivery: Delivery, value: object, error: BaseException | None) -> None:
        if delivery.is_settled:
            # The handler did it.
            self._count("succeeded" if error is None else "retried")
            if error is not None:
                _logger.warning(
                    "settled_job_failed", queue=self._core.name, job=delivery.id, exc_info=error
                )
            return
        if error is None:
            try:
                self._settle(delivery, "succeeded", lambda: delivery.ack(value))
            except jetsync.InvalidTypeError as refused:
                error = refused
            else:
                return
        self._fail(delivery, error)

    def _fail(self, delivery: Delivery, error: BaseException) -> None:
        """Settle a job whose attempt failed."""
        options, attempt = self._options, delivery.attempt
        retries = not isinstance(error, jetsync.DeadLetter) and (
            isinstance(error, Retry) or attempt <= options.retries
        )
        _logger.warning(
            "job_failed",
            queue=self._core.name,
            job=delivery.id,
            attempt=attempt,
            retries=retries,
            exc_info=error,
        )
        if retries:
            wait = options.waits[min(attempt, len(options.waits)) - 1]
            if isinstance(error, Retry) and error.delay is not None:
                wait = error.delay
            self._settle(delivery, "retried", lambda: delivery.retry(error, delay=wait))
        else:
            text, kind = error_text(error), type(error).__name__
            reason = (text or kind) if isinstance(error, jetsync.DeadLetter) else f"{kind}: {text}"
            self._settle(delivery, "dead", lambda: delivery.reject(reason, error=error))

    def _settle(self, delivery: Delivery, outcome: str, settle: Callable[[], object]) -> None:
        """Settle a job; try again while the server does not answer."""
        for pause in (*PAUSES, None):
            try:
                settle()
            except jetsync.InvalidTypeError:
                raise
            except jetsync.MessageAlreadyAckedError:
                break
            except jetsync.JetSyncError as error:
                is_closed = isinstance(error, jetsync.ConnectionClosedError)
                if pause is None or is_closed or self._closing.is_set():
                    self._leave(delivery, error)
                    return
                self._closing.wait(pause)
            else:
                break
        self._count(outcome)

    def _leave(self, delivery: Delivery, error: Exception) -> None:
        """Have the server deliver a job again, because its outcome cannot be stored."""
        _logger.warning("job_unsettled", queue=self._core.name, job=delivery.id, error=repr(error))
        if self._receiver is not None:
            self._receiver.forget(delivery)
        self._count("unsettled")

    def _count(self, outcome: str) -> None:
        with self._lock:
            old = self._statistics
            self._statistics = attrs.evolve(old, **{outcome: getattr(old, outcome) + 1})
