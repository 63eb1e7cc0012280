"""
A job that was taken, and the ways to settle it.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any

import jetsync
from jetsync_queue import names as headers_of
from jetsync_queue import records
from jetsync_queue.content import encode
from jetsync_queue.core import job_headers, own_headers
from jetsync_queue.dead import bury
from jetsync_queue.names import token
from jetsync_queue.times import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync_queue.core import Core
    from jetsync_queue.jobs import Holder

__all__ = ["Delivery"]


class Delivery:
    """
    A job that a receiver or a worker has taken.

    Exactly one of :meth:`ack`, :meth:`requeue`, :meth:`retry` and :meth:`reject` settles it. A
    worker does that itself after the handler. Until then it is kept alive: the server does not
    deliver it again. If a call to settle it raises an error, it is not settled, and you can call it
    again. Thread-safe; a second settlement raises ``MessageAlreadyAckedError``.
    """

    # Threads: any. Locks: none; the message lets only one thread settle it.

    def __init__(
        self,
        core: Core,
        message: jetsync.Message,
        priority: int,
        holder: Holder,
    ) -> None:
        self._core = core
        self._message = message
        self._priority = priority
        self._holder = holder
        self._headers = message.headers
        self._id = self._headers.get(headers_of.ID) or f"#{message.sequence}"
        self._token = token(self._id)
        self._starts = 0
        self._data: tuple[Any] | None = None

    def __repr__(self) -> str:
        return f"<Delivery of job {self._id!r}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """The id of the job."""
        return self._id

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._core.name

    @property
    def data(self) -> Any:
        """
        The data that was put: bytes, or the value of a JSON document.

        Raises:
            ObjectNotFoundError: It was too large for a message, and its object was removed.
        """
        if self._data is None:
            self._data = (self._core.decoded(self._message),)
        return self._data[0]

    @property
    def raw(self) -> bytes:
        """The data as bytes, as the server has it."""
        return self._core.load(self._message)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were given to ``put``."""
        return own_headers(self._message)

    @property
    def priority(self) -> int:
        """The priority."""
        return self._priority

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1, and one more after each attempt that failed."""
        return int(self._headers.get(headers_of.ATTEMPT) or 1)

    @property
    def crashes(self) -> int:
        """How many workers have started this attempt before and did not settle it, at least."""
        return max(self._starts - 1, 0)

    @property
    def deliveries(self) -> int:
        """How often the server has delivered the message; also to workers that gave it back."""
        return self._message.metadata.delivered

    @property
    def sequence(self) -> int:
        """The stream sequence of the message."""
        return self._message.sequence

    @property
    def message(self) -> jetsync.Message:
        """The message. Do not acknowledge it; settle the delivery."""
        return self._message

    @property
    def enqueued(self) -> dt.datetime:
        """When the job was put, in UTC."""
        given = self._headers.get(headers_of.ENQUEUED)
        if given is None:
            return self._message.metadata.timestamp
        return dt.datetime.fromtimestamp(float(given), dt.timezone.utc)

    @property
    def expires(self) -> dt.datetime | None:
        """When the job expires, in UTC; None if it does not."""
        return records.moment(self._expires)

    @property
    def is_expired(self) -> bool:
        """Whether the job must not be started any more."""
        return self._expires is not None and self._expires <= time.time()

    @property
    def is_settled(self) -> bool:
        """Whether the job was settled."""
        return self._message.is_acked

    @property
    def _expires(self) -> float | None:
        given = self._headers.get(headers_of.EXPIRES)
        return None if given is None else float(given)

    @property
    def _is_tracked(self) -> bool:
        return headers_of.TRACKED in self._headers

    # Life

    def extend(self) -> None:
        """
        Report progress to the server now. This happens by itself while the receiver is open.
        """
        self._message.in_progress()

    def begin(self, worker: str = "") -> bool:
        """
        Record that a worker starts the job. Workers call this; call it if you have your own loop.

        Args:
            worker: The name of the worker, for the record of a tracked job.

        Returns:
            Whether to run the job. If not, it was settled: it has expired, or it is tracked and
            has ended already.
        """
        core = self._core
        if self.is_expired:
            self._end(records.finished(records.EXPIRED, attempts=self.attempt - 1))
            return False
        if self.deliveries > 1:
            self._starts = core.records.count_start(self.sequence)
        if not self._is_tracked:
            return True
        refused: list[bool] = []

        def change(record: dict[str, Any]) -> dict[str, Any] | None:
            latest = record.get("attempt", 0)
            # The worker of the attempt before this one publishes this one first, and records that
            # afterwards. So a running earlier attempt is no reason to refuse.
            other = record.get("sequence") not in {None, self.sequence}
            is_twice = other and record["state"] == records.RUNNING and latest == self.attempt
            if record["state"] in records.FINAL or latest > self.attempt or is_twice:
                refused.append(True)
                return None
            refused.clear()
            workers = [*record.get("workers", ()), worker][-records.MOST_ERRORS :]
            started = {
                "state": records.RUNNING,
                "attempts": record.get("attempts", 0) + 1,
                "started": records.now(),
                "attempt": self.attempt,
                "sequence": self.sequence,
                "workers": workers,
            }
            return record | started

        core.records.update(self._token, change)
        if refused:
            self._settle(self._message.ack)
        return not refused

    # Settling

    def ack(
        self,
        value: Any = None,
        *,
        confirmed: bool = False,
        timeout: float | dt.timedelta | None = None,
    ) -> None:
        """
        Settle the job as done, and store its result if the queue has results.

        Args:
            value: The result: bytes, or a value that JSON can express.
            confirmed: Whether to wait until the server has confirmed it. Otherwise a job that was
                done in the milliseconds before the process dies may run again.
            timeout: Seconds to wait for the confirmation, and for the other answers of the stream.
                Default: the client's ``request_timeout``.

        Raises:
            InvalidTypeError: JSON cannot express the value. The job is not settled.
            MessageAlreadyAckedError: The job was settled before.
            PublishError, RequestTimeoutError, DisconnectedError, ...: The result could not be
                stored, or the job not be acknowledged. The job is not settled.
        """
        if self._core.results or self._is_tracked:
            encode(value, "the result")
        end = records.finished(records.SUCCEEDED, attempts=self.attempt, value=value)
        self._end(end, confirmed=confirmed, timeout=timeout)

    def requeue(self, *, delay: float | dt.timedelta | None = None) -> None:
        """
        Give the job back, so that this worker or another one takes it again. No attempt counts.

        Args:
            delay: Seconds until it is available. Default: at once.
        """
        wait = None if delay is None else seconds("delay", delay)
        self._check_open()
        if self._is_tracked:
            again = {"state": records.WAITING, "sequence": None}

            def change(record: dict[str, Any]) -> dict[str, Any] | None:
                # Another worker may have ended the job, or it was cancelled.
                return None if record["state"] in records.FINAL else record | again

            self._core.records.update(self._token, change)
        # Before, because the server may deliver it to this very receiver at once.
        self._holder.let_go(self)
        try:
            self._message.nak(wait)
        except BaseException:
            self._holder.keep(self)
            raise
        self._holder.forget(self)
        self._forget_starts()

    def retry(
        self, error: BaseException | None = None, *, delay: float | dt.timedelta = 0.0
    ) -> None:
        """
        Settle this attempt as failed, and have the server keep the job for its next attempt.

        A job that was cancelled or purged meanwhile, or that another worker has settled, gets none.

        Args:
            error: Why, for the record of a tracked job.
            delay: Seconds until the job is available again.
        """
        wait = seconds("delay", delay)
        self._check_open()
        core, now = self._core, records.now()
        expires = self._expires
        if expires is not None and expires <= now + wait:
            self.reject("it expires before its next attempt", error=error)
            return
        if not self._is_stored():
            # It was cancelled, or another worker has settled it: it must not come back.
            self._settle(self._message.ack)
            return
        headers = job_headers(self._message)
        headers.setdefault(headers_of.ENQUEUED, f"{self.enqueued.timestamp():.3f}")
        headers[headers_of.ATTEMPT] = str(self.attempt + 1)
        core.publish(
            self._message.data,
            headers,
            job=self._token,
            priority=self._priority,
            at=now + wait if wait else None,
            expires=expires,
            # The same if it is repeated, because the worker died before the acknowledgement.
            msg_id=f"{core.names.queue}/{self._token}#{self.sequence}",
        )
        if self._is_tracked:
            self._record({"state": records.RETRYING, "sequence": None}, error)
        self._settle(self._message.ack)

    def reject(
        self, reason: str = "", *, dead: bool = True, error: BaseException | None = None
    ) -> None:
        """
        Settle the job as failed for good.

        A job that was cancelled or purged meanwhile, or that another worker has settled, stays as
        it is.

        Args:
            reason: Why, for the dead job.
            dead: Whether to keep it among the dead jobs of the queue. Otherwise it is dropped.
            error: The error of the last attempt, for the result.
        """
        self._check_open()
        core = self._core
        if not self._is_stored():
            self._settle(self._message.ack)
            return
        if dead:
            bury(
                core,
                self._message,
                self._token,
                priority=self._priority,
                reason=reason,
                attempts=self.attempt,
            )
        if core.results or self._is_tracked:
            end = records.finished(records.DEAD, attempts=self.attempt)
            self._record(end, error if error is not None else RejectedError(reason))
        if dead or headers_of.OBJECT not in self._headers:
            self._settle(self._message.term)
        else:
            self._settle(self._message.ack_sync)
            core.forget_data(self._message)

    def _end(
        self,
        end: dict[str, Any],
        *,
        confirmed: bool = False,
        timeout: float | dt.timedelta | None = None,
    ) -> None:
        """Store how the job has ended, and acknowledge it."""
        self._check_open()
        core = self._core
        if self._is_tracked:
            self._record(end, None)
        elif core.results:
            core.records.put(self._token, end)
        if self.deliveries > 1:
            # Another worker may have failed with it, and died before it settled it.
            core.stream.purge(core.names.retrying(self._token), timeout=timeout)
        has_object = headers_of.OBJECT in self._headers
        # The job may come again until the server has confirmed it, and needs its data then.
        if confirmed or has_object:
            self._settle(lambda: self._message.ack_sync(timeout=timeout))
        else:
            self._settle(self._message.ack)
        if has_object:
            core.forget_data(self._message)

    def _record(self, change: dict[str, Any], error: BaseException | None) -> None:
        """Merge a change and an error into the record of the job; make one if it has none."""
        errors = [] if error is None else [records.error_fields(error)]

        def merged(record: dict[str, Any]) -> dict[str, Any]:
            done = {**record, **change}
            if change["state"] not in records.FINAL and record.get("attempt", 0) > self.attempt:
                # A worker has begun the next attempt already.
                done = dict(record)
            # Attempts of a tracked job also count those whose worker died.
            done["attempts"] = max(record.get("attempts", 0), change.get("attempts", 0))
            found = [*record.get("errors", ()), *errors][-records.MOST_ERRORS :]
            return done | ({"errors": found} if found else {})

        if self._is_tracked:
            # If the job has waited for longer than its record was kept, it gets another one.
            enqueued = self.enqueued.timestamp()
            new: dict[str, Any] = {"enqueued": enqueued, "priority": self._priority}
            new |= {"headers": own} if (own := self.headers) else {}
            self._core.records.update(self._token, merged, new=new)
        else:
            self._core.records.put(self._token, merged({}))

    def _is_stored(self) -> bool:
        """Return whether the stream still has the message of this attempt."""
        try:
            self._core.stream.get_message(self.sequence, direct=False)
        except jetsync.MessageNotFoundError:
            return False
        return True

    def _settle(self, answer: Callable[[], object]) -> None:
        answer()
        self._holder.settle(self)
        self._forget_starts()

    def _forget_starts(self) -> None:
        if self._starts:
            self._core.records.forget_starts(self.sequence)

    def _check_open(self) -> None:
        if self._message.is_acked:
            raise jetsync.MessageAlreadyAckedError(self._message.subject, self._message.reply)


class RejectedError(Exception):
    """
    The job was rejected without an exception.
    """
