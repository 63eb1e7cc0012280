"""
The records of jobs in the bucket: results, the state of tracked jobs, and counts of starts.
"""

from __future__ import annotations

import datetime as dt
import json
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

import attrs

import jetsync
from jetsync_queue.content import Objects, encode, from_fields, to_fields
from jetsync_queue.times import LONGEST_TTL

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync_queue.names import Names

__all__ = ["JobError", "JobStatus"]

WAITING: Final = "waiting"
RUNNING: Final = "running"
RETRYING: Final = "retrying"
SUCCEEDED: Final = "succeeded"
DEAD: Final = "dead"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"

FINAL: Final = frozenset({SUCCEEDED, DEAD, CANCELLED, EXPIRED})

LONGEST_TRACEBACK: Final = 8000
"""Characters of a traceback in a record; the end is kept."""
LONGEST_MESSAGE: Final = 2000
"""Characters of the text of an exception in a record; the beginning is kept."""
MOST_ERRORS: Final = 20
"""Errors in a record; the last ones are kept."""
STARTS_TTL: Final = 86_400.0
"""Seconds for which the count of starts of one redelivered job is kept after the last start."""


@attrs.frozen
class JobError:
    """
    The error of one attempt.
    """

    type: str
    """The class of the exception, with its module."""

    message: str
    """The text of the exception."""

    traceback: str
    """The traceback; empty if there was none."""

    at: dt.datetime | None
    """When the attempt failed, in UTC."""


@attrs.frozen
class JobStatus:
    """
    The state of a job, as the bucket has it.
    """

    id: str
    """The id of the job."""

    state: str
    """
    ``waiting``, ``running`` or ``retrying`` (tracked jobs only), or how the job has ended:
    ``succeeded``, ``dead``, ``cancelled`` or ``expired``.
    """

    attempts: int = 0
    """How many attempts a worker has started."""

    value: Any = attrs.field(default=None, repr=False)
    """What the handler returned, if the job has succeeded."""

    errors: tuple[JobError, ...] = ()
    """The errors of failed attempts, oldest first: the last 20 of a tracked job, else the last."""

    enqueued: dt.datetime | None = None
    """When the job was put, in UTC; None if it is not tracked."""

    started: dt.datetime | None = None
    """When its last attempt began, in UTC."""

    finished: dt.datetime | None = None
    """When the job ended, in UTC."""

    run_after: dt.datetime | None = None
    """When a tracked job with a delay may start, in UTC."""

    priority: int | None = None
    """The priority of a tracked job."""

    workers: tuple[str, ...] = ()
    """The names of the workers that started an attempt, oldest first."""

    data: Any = attrs.field(default=None, repr=False)
    """The data of a tracked job; None if it is too large for the record."""

    headers: dict[str, str] = attrs.field(factory=dict, repr=False)
    """The headers of a tracked job."""

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended, so that nothing changes any more."""
        return self.state in FINAL

    @property
    def worker(self) -> str | None:
        """The name of the worker that started the last attempt."""
        return self.workers[-1] if self.workers else None


def now() -> float:
    """
    Return the time in seconds since 1970, in milliseconds.
    """
    return round(time.time(), 3)


def moment(seconds: float | None) -> dt.datetime | None:
    """
    Return a time in UTC.
    """
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, dt.timezone.utc)


def error_text(error: BaseException) -> str:
    """
    Return the text of an exception; empty if it has none.
    """
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is a class of the application.
        return ""


def error_fields(error: BaseException) -> dict[str, Any]:
    """
    Return an exception as fields of a record.
    """
    kind = type(error)
    text = error_text(error)
    lines = traceback.format_exception(kind, error, error.__traceback__)
    return {
        "type": f"{kind.__module__}.{kind.__qualname__}",
        "message": text[:LONGEST_MESSAGE].encode("utf-8", "replace").decode(),
        "traceback": "".join(lines).encode("utf-8", "replace").decode()[-LONGEST_TRACEBACK:],
        "at": now(),
    }


class Records:
    """
    Reads and writes the records of one queue.

    Threads: any. Locks: none; each record is changed by its revision.
    """

    def __init__(
        self, bucket: jetsync.KeyValue, names: Names, objects: Objects, ttl: float
    ) -> None:
        self.bucket = bucket
        self._names = names
        self._objects = objects
        self._ttl = ttl

    def read(
        self, job: str, *, latest: bool = False, timeout: float | None = None
    ) -> dict[str, Any] | None:
        """
        Return the record of a job; None without one.

        Args:
            job: The token of the job.
            latest: Ask the leader. Other servers of a cluster may not have the last change yet.
            timeout: Seconds to wait. Default: the client's ``request_timeout``.
        """
        key = self._names.record(job)
        direct = False if latest else None
        entry = self.bucket.get(key, default=None, direct=direct, timeout=timeout)
        record: dict[str, Any] | None = None if entry is None else entry.json()
        return record

    def create(self, job: str, record: dict[str, Any], *, extra: float = 0.0) -> bool:
        """Store the record of a new job; return False if there is one already."""
        key, ttl = self._names.record(job), min(self._ttl + extra, LONGEST_TTL)
        try:
            self._write(lambda body: self.bucket.create(key, body(record), ttl=ttl))
        except jetsync.KeyExistsError:
            return False
        return True

    def put(self, job: str, record: dict[str, Any]) -> None:
        """Store the record of a job, whatever there is."""
        key = self._names.record(job)
        self._write(lambda body: self.bucket.put(key, body(record), ttl=self._ttl))

    def update(
        self,
        job: str,
        change: Callable[[dict[str, Any]], dict[str, Any] | None],
        *,
        new: dict[str, Any] | None = None,
    ) -> None:
        """
        Change the record of a job.

        Args:
            job: The token of the job.
            change: Gets the record, and returns the new one, or None to leave it. Called again if
                the record was changed meanwhile.
            new: What *change* gets if the job has no record. None makes no record then.
        """
        key = self._names.record(job)

        def write(body: Callable[[dict[str, Any]], bytes]) -> None:
            def changed(entry: jetsync.Entry | None) -> bytes | None:
                record = new if entry is None else entry.json()
                record = None if record is None else change(record)
                return None if record is None else body(record)

            self.bucket.modify(key, changed, ttl=self._ttl)

        self._write(write)

    def _write(self, write: Callable[[Callable[[dict[str, Any]], bytes]], object]) -> None:
        """
        Write a record with *write*, which gets the function that makes its bytes.

        What is too large for a message is written into the object store.
        """
        try:
            write(_body)
        except jetsync.MaxPayloadError:
            write(self._small_body)

    def _small_body(self, record: dict[str, Any]) -> bytes:
        """Return a record as bytes, with its value in the object store and only the last error."""
        record = dict(record)
        # The data of a tracked job is in the job itself.
        record.pop("data", None)
        # On a server with a small `max_payload`, 20 errors may not fit.
        if "errors" in record:
            record["errors"] = record["errors"][-1:]
        kept = {name: record.pop(name) for name in ("value", "bytes") if name in record}
        if kept:
            record["object"] = self._objects.put("result", encode(kept)[0])
        return _body(record)

    def status(self, job_id: str, record: dict[str, Any]) -> JobStatus:
        """Return the status that a record describes; reads its object, if there is one."""
        if "object" in record:
            record = record | json.loads(self._objects.get(record["object"]))
        errors = tuple(
            JobError(each["type"], each["message"], each["traceback"], moment(each["at"]))
            for each in record.get("errors", ())
        )
        return JobStatus(
            id=job_id,
            state=record["state"],
            attempts=record.get("attempts", 0),
            value=from_fields(record),
            errors=errors,
            enqueued=moment(record.get("enqueued")),
            started=moment(record.get("started")),
            finished=moment(record.get("finished")),
            run_after=moment(record.get("run_after")),
            priority=record.get("priority"),
            workers=tuple(record.get("workers", ())),
            data=from_fields(record["data"]) if "data" in record else None,
            headers=record.get("headers", {}),
        )

    def count_start(self, sequence: int) -> int:
        """
        Count a start of a job that the server has delivered more than once; return the new count.

        Only these are counted here: a job whose worker died, or that was given back. The first
        start of every other job costs nothing.
        """
        key = self._names.starts(sequence)
        try:
            count = int(self.bucket.get(key, direct=False).value) + 1
        except jetsync.KeyNotFoundError:
            count = 1
        self.bucket.put(key, str(count), ttl=STARTS_TTL)
        return count

    def forget_starts(self, sequence: int) -> None:
        """Remove the count of starts of a job."""
        self.bucket.purge(self._names.starts(sequence), ttl=60.0)


def _body(record: dict[str, Any]) -> bytes:
    return encode(record, "the record of a job")[0]


def finished(state: str, *, attempts: int, value: object = None) -> dict[str, Any]:
    """
    Return the record of a job that has ended.
    """
    record: dict[str, Any] = {"state": state, "attempts": attempts, "finished": now()}
    if state == SUCCEEDED:
        record |= to_fields(value)
    return record
