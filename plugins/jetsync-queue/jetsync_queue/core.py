"""
One queue on the server, as all parts of the package use it.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Any, Final

import attrs

import jetsync
from jetsync_queue import names as headers_of
from jetsync_queue.content import Objects, decode
from jetsync_queue.names import Names
from jetsync_queue.records import Records, now

if TYPE_CHECKING:
    from collections.abc import Mapping


UNLIMITED: Final = -1


@attrs.frozen(kw_only=True)
class Core:
    """
    The handles and options of one queue.

    Threads: any. Locks: none; nothing is changed.
    """

    js: jetsync.JetStream
    name: str
    """The name of the queue as the user gave it."""
    names: Names
    stream: jetsync.Stream
    bucket: jetsync.KeyValue
    records: Records
    objects: Objects
    """The data of jobs that is too large for a message."""
    priorities: int
    results: bool
    track: bool
    result_ttl: float
    ack_wait: float

    def consumer(self, priority: int) -> jetsync.Consumer:
        """Return the consumer of one priority; the first caller makes it."""
        name = self.names.consumer(priority)
        try:
            return self.stream.create_consumer(
                name,
                filter_subject=self.names.waiting(priority),
                ack_wait=self.ack_wait,
                max_ack_pending=UNLIMITED,
            )
        except jetsync.ConsumerExistsError:
            # Another program has made it with another ack_wait, which holds for all workers.
            return self.stream.consumer(name)

    def publish(
        self,
        data: bytes,
        headers: Mapping[str, str],
        *,
        job: str,
        priority: int,
        at: float | None = None,
        expires: float | None = None,
        msg_id: str | None = None,
        is_new: bool = False,
    ) -> jetsync.PubAck:
        """
        Store a job, with its data in the object store if it is too large for a message.

        Args:
            data: The data.
            headers: All headers of the job.
            job: The token of the job.
            priority: The priority.
            at: When the job becomes available, in seconds since 1970. Default: at once.
            expires: When the job expires, in seconds since 1970.
            msg_id: The id for duplicate detection.
            is_new: Refuse a job whose id is scheduled already.

        Raises:
            WrongLastSequenceError: It is scheduled already.
        """
        message = self.message(
            data,
            headers,
            job=job,
            priority=priority,
            at=at,
            expires=expires,
            msg_id=msg_id,
            is_new=is_new,
        )
        try:
            return self.send(message)
        except jetsync.MaxPayloadError:
            stored = self.objects.put(f"{self.names.queue}/{job}", data)
        try:
            message.data = b""
            message.headers = {**dict(message.headers or {}), headers_of.OBJECT: stored}
            ack = self.send(message)
        except (jetsync.ApiError, jetsync.InvalidArgumentError):
            self.objects.delete(stored)
            raise
        if ack.duplicate:
            self.objects.delete(stored)
        return ack

    def send(self, message: jetsync.OutboundMessage) -> jetsync.PubAck:
        """Publish a message that :meth:`message` has made."""
        return self.js.publish(
            message.subject,
            message.data,
            headers=message.headers,
            msg_id=message.msg_id,
            ttl=message.ttl,
            expect=message.expect,
        )

    def message(
        self,
        data: bytes,
        headers: Mapping[str, str],
        *,
        job: str,
        priority: int,
        at: float | None = None,
        expires: float | None = None,
        msg_id: str | None = None,
        is_new: bool = False,
    ) -> jetsync.OutboundMessage:
        """Return the message that stores a job; see :meth:`publish`."""
        target = self.names.waiting(priority)
        if at is None:
            return jetsync.OutboundMessage(
                target, data, dict(headers), msg_id, None if expires is None else ttl_until(expires)
            )
        schedule = {
            "Nats-Schedule": f"@at {moment_text(at)}",
            "Nats-Schedule-Target": target,
        }
        if expires is not None:
            # It begins when the server publishes the message.
            schedule["Nats-Schedule-TTL"] = f"{ttl_until(expires, max(at, now()))}s"
        is_retry = headers_of.ATTEMPT in headers
        subject = self.names.retrying(job) if is_retry else self.names.scheduled(job)
        return jetsync.OutboundMessage(
            subject,
            data,
            {**headers, **schedule},
            msg_id,
            None,
            jetsync.Expect(last_subject_sequence=0) if is_new else None,
        )

    def load(self, message: jetsync.Message | jetsync.StoredMessage) -> bytes:
        """
        Return the data of a job, which may be in the object store.

        Raises:
            ObjectNotFoundError, ObjectStoreNotFoundError: The object is gone.
        """
        name = message.headers.get(headers_of.OBJECT)
        return bytes(message.data) if name is None else self.objects.get(name)

    def decoded(self, message: jetsync.Message | jetsync.StoredMessage) -> Any:
        """Return the data of a job as it was put."""
        return decode(self.load(message), message.headers.get(headers_of.TYPE))

    def forget_data(self, message: jetsync.Message | jetsync.StoredMessage) -> None:
        """Remove the object with the data of a job, if it has one."""
        if message.raw_headers is not None and (name := message.headers.get(headers_of.OBJECT)):
            self.objects.delete(name)


def ttl_until(expires: float, since: float | None = None) -> int:
    """
    Return the whole seconds until a job expires, at least one, as servers demand.
    """
    return max(math.ceil(expires - (now() if since is None else since)), 1)


def moment_text(seconds: float) -> str:
    """
    Return a time as schedules have it.
    """
    found = dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def own_headers(message: jetsync.Message | jetsync.StoredMessage) -> dict[str, str]:
    """
    Return the headers of the user.
    """
    if message.raw_headers is None:
        return {}
    return {
        name: value
        for name, value in message.headers.items()
        if not name.lower().startswith(headers_of.RESERVED)
    }


def job_headers(message: jetsync.Message | jetsync.StoredMessage) -> dict[str, str]:
    """
    Return the headers of the user and those of the job, to store the job again.
    """
    return {
        name: value
        for name, value in message.headers.items()
        if not name.lower().startswith("nats-")
    }
