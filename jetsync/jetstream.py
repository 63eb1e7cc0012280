"""
A JetStream context: the streams and consumers of one account, domain or prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from jetsync._api import consumers as _consumer_admin
from jetsync._api import streams as _stream_admin
from jetsync._api.requests import call, config_of
from jetsync.consume.consumer import Consumer
from jetsync.errors import StreamNotFoundError
from jetsync.kv.admin import KeyValueDoor
from jetsync.publish.door import PublishDoor
from jetsync.publish.schedules import ScheduleOptions, schedule
from jetsync.stream import Stream
from jetsync.values.account import AccountInfo
from jetsync.values.codec import from_wire
from jetsync.values.consumer_config import ConsumerConfig
from jetsync.values.stream_config import StreamConfig

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import Payload, PubAck

__all__ = ["JetStream"]


class JetStream(PublishDoor, KeyValueDoor):
    """
    JetStream as one account sees it, under one domain or prefix.

    Made by :meth:`Client.jetstream`. A context holds no resources and needs no closing; any number
    of threads may share one. Every call sends requests of its own and has a ``timeout`` in seconds
    for all of them together, ``None`` for the context's default.
    """

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"<JetStream {self._context.prefix}>"

    def account_info(self, *, timeout: Seconds | None = None) -> AccountInfo:
        """
        Ask what the account uses and may use, and which API level answers.

        Raises:
            JetStreamNotEnabledError: the account or the server has no JetStream.
        """
        answer = call(self._context, "INFO", None, self._context.deadline(timeout))
        answer.pop("type", None)
        return from_wire(AccountInfo, answer)

    # Schedules

    def schedule(
        self,
        subject: str,
        data: Payload = b"",
        *,
        target: str,
        at: dt.datetime | int | None = None,
        every: Seconds | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        source: str | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        rollup: bool = False,
        headers: HeadersInput | None = None,
        msg_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> PubAck:
        """
        Have the server publish a message later, or again and again (ADR-51).

        The schedule is a message on *subject*, of a stream with ``allow_msg_schedules``; another
        one on the same subject takes its place, and purging the subject ends it. What it publishes
        has its payload and headers, and a header that names the schedule. One with *at* is gone
        once it was published. Any thread.

        Args:
            subject: Where the schedule is kept.
            data: What to publish; with a *source*, where that has no message.
            target: The subject to publish to, of the same stream.
            at: Once, at this time: an aware datetime, or nanoseconds since 1970; at once if that is
                over.
            every: Again and again, so many seconds apart, at least 1. Server 2.14 and later.
            cron: As six fields say: second, minute, hour, day of the month, month, day of the week;
                or ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``. Server 2.14 and
                later.
            time_zone: The zone *cron* is in, such as ``Europe/Berlin``; UTC otherwise.
            source: Publish the last message of this subject instead. Server 2.14 and later.
            ttl: Time-to-live of what is published; the stream needs ``allow_msg_ttl``.
            rollup: What is published takes the place of all that its subject had. Server 2.14 and
                later.
            headers: Headers of what is published.
            msg_id: Id by which the stream drops duplicates of the schedule.
            timeout: Seconds for the whole call.

        Raises:
            InvalidArgumentError, InvalidTypeError: It can not be a schedule; nothing was sent.
            NotSupportedError: The stream's server does not know all of it; nothing was sent.
            SchedulesDisabledError: The stream does not allow schedules; nothing was sent.
            ScheduleTargetInvalidError: The target is none of the stream's subjects.
            SchedulePatternInvalidError: The server can not read *cron*.
            NoStreamResponseError, ApiError, PublishOutcomeUnknownError: As for :meth:`publish`.
        """
        options = ScheduleOptions(
            target=target,
            at=at,
            every=every,
            cron=cron,
            time_zone=time_zone,
            source=source,
            ttl=ttl,
            rollup=rollup,
        )
        deadline = self._context.deadline(timeout)
        return schedule(
            self._context, subject, data, options, deadline, headers=headers, msg_id=msg_id
        )

    # Streams

    def create_stream(
        self, config: StreamConfig | None = None, *, timeout: Seconds | None = None, **fields: Any
    ) -> Stream:
        """
        Create a stream, or return the one that exists with the same configuration.

        Args:
            config: The configuration; keywords are laid over a copy of it.
            timeout: Seconds for the request.
            **fields: Fields of :class:`StreamConfig`.

        Raises:
            StreamNameInUseError: there is one of that name with another configuration.
            SubjectOverlapError: another stream takes one of the subjects.
            NotSupportedError: the server left a field out; the stream exists without it.
        """
        wanted = config_of(StreamConfig, config, fields, "create_stream")
        deadline = self._context.deadline(timeout)
        return Stream(self._context, _stream_admin.create(self._context, wanted, deadline))

    def update_stream(
        self, config: StreamConfig | None = None, *, timeout: Seconds | None = None, **fields: Any
    ) -> Stream:
        """
        Change the configuration of an existing stream.

        A server replaces the whole configuration: what ``config`` leaves unset goes back to its
        default. With keywords alone, ``name`` among them, the current configuration is read first
        and sent back with those changes. That is two requests, and a change that somebody else
        makes between them is lost.

        Args:
            config: The whole configuration; keywords are laid over a copy of it.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`StreamConfig` to change.

        Raises:
            StreamNotFoundError: there is no stream of that name.
            NotSupportedError: the server left a field out; it did the rest of the update.
        """
        deadline = self._context.deadline(timeout)
        wanted = _stream_admin.changed_config(self._context, config, fields, deadline)
        return Stream(self._context, _stream_admin.update(self._context, wanted, deadline))

    def create_or_update_stream(
        self, config: StreamConfig | None = None, *, timeout: Seconds | None = None, **fields: Any
    ) -> Stream:
        """
        Create a stream, or replace the whole configuration of the one of that name.

        Args, Raises: as :meth:`create_stream`, without ``StreamNameInUseError``.
        """
        wanted = config_of(StreamConfig, config, fields, "create_or_update_stream")
        deadline = self._context.deadline(timeout)
        info = _stream_admin.create_or_update(self._context, wanted, deadline)
        return Stream(self._context, info)

    def stream(self, name: str, *, timeout: Seconds | None = None) -> Stream:
        """
        Return the stream of that name.

        Raises:
            StreamNotFoundError: there is none.
        """
        deadline = self._context.deadline(timeout)
        return Stream(self._context, _stream_admin.info(self._context, name, deadline))

    def delete_stream(self, name: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete a stream with its messages and consumers.

        Raises:
            StreamNotFoundError: there is none of that name.
        """
        _stream_admin.delete(self._context, name, self._context.deadline(timeout))

    def streams(
        self, subject: str | None = None, *, timeout: Seconds | None = None
    ) -> Iterator[Stream]:
        """
        Iterate over the streams; pages of 256 are asked for as they are needed.

        Streams may be made and deleted meanwhile: none is yielded twice.

        Args:
            subject: Only streams with a subject that overlaps with this one.
            timeout: Seconds for each page.
        """
        found = _stream_admin.infos(self._context, subject, timeout)
        return (Stream(self._context, info) for info in found)

    def stream_names(
        self, subject: str | None = None, *, timeout: Seconds | None = None
    ) -> Iterator[str]:
        """
        Iterate over the names of the streams; as :meth:`streams`, in pages of 1024.
        """
        return _stream_admin.names(self._context, subject, timeout)

    def stream_name_by_subject(self, subject: str, *, timeout: Seconds | None = None) -> str:
        """
        Return the name of the stream that takes a subject.

        A wildcard may overlap with several streams; the first name is returned.

        Raises:
            StreamNotFoundError: there is none.
        """
        for name in self.stream_names(subject, timeout=timeout):
            return name
        raise StreamNotFoundError(description=f"no stream takes subject {subject!r}")

    # Consumers

    def create_consumer(
        self,
        stream: str,
        config: ConsumerConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Any,
    ) -> Consumer:
        """
        Create a consumer, or return the one that exists with the same configuration.

        As :meth:`Stream.create_consumer`, for the stream of that name. A consumer with a filter
        costs one request more, which compares it with the stream's subjects.
        """
        deadline = self._context.deadline(timeout)
        wanted = config_of(ConsumerConfig, config, fields, "create_consumer")
        info = _consumer_admin.create(self._context, stream, wanted, deadline)
        _consumer_admin.warn_about_filters(self._context, info, None, deadline)
        return Consumer(self._context, stream, info)

    def update_consumer(
        self,
        stream: str,
        config: ConsumerConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Any,
    ) -> Consumer:
        """
        Change the configuration of an existing consumer, as :meth:`Stream.update_consumer`.
        """
        context, deadline = self._context, self._context.deadline(timeout)
        wanted = _consumer_admin.changed_config(context, stream, config, fields, deadline)
        return Consumer(context, stream, _consumer_admin.update(context, stream, wanted, deadline))

    def create_or_update_consumer(
        self,
        stream: str,
        config: ConsumerConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Any,
    ) -> Consumer:
        """
        Create a consumer, or replace the whole configuration of the one of that name.

        As :meth:`Stream.create_or_update_consumer`, for the stream of that name.
        """
        deadline = self._context.deadline(timeout)
        wanted = config_of(ConsumerConfig, config, fields, "create_or_update_consumer")
        info = _consumer_admin.create_or_update(self._context, stream, wanted, deadline)
        _consumer_admin.warn_about_filters(self._context, info, None, deadline)
        return Consumer(self._context, stream, info)

    def consumer(self, stream: str, name: str, *, timeout: Seconds | None = None) -> Consumer:
        """
        Return the consumer of that name.

        Raises:
            ConsumerNotFoundError: there is none.
            StreamNotFoundError: there is no stream of that name.
        """
        deadline = self._context.deadline(timeout)
        info = _consumer_admin.info(self._context, stream, name, deadline)
        return Consumer(self._context, stream, info)

    def delete_consumer(self, stream: str, name: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete a consumer.

        Raises:
            ConsumerNotFoundError: there is none of that name.
        """
        deadline = self._context.deadline(timeout)
        _consumer_admin.delete(self._context, stream, name, deadline)
