"""
A JetStream context: the streams and consumers of one account, domain or prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from jetsync._api import consumers as _consumer_admin
from jetsync._api import streams as _stream_admin
from jetsync._api.requests import config_of
from jetsync._base.deadline import Deadline, as_seconds
from jetsync._base.fields import check_count
from jetsync._proto.kv import STREAM_PREFIX, stream_of
from jetsync.consume.consumer import Consumer
from jetsync.errors import (
    BucketNotFoundError,
    InvalidBucketError,
    StreamNotFoundError,
)
from jetsync.kv import admin as _kv_admin
from jetsync.kv.bucket import Bucket
from jetsync.kv.config import KeyValueConfig
from jetsync.kv.handle import KeyValue
from jetsync.publish.atomic import AtomicBatch, publish_batch
from jetsync.publish.atomic_commit import AtomicOptions
from jetsync.publish.fast import FastOptions, FastPublisher
from jetsync.publish.many import BulkPublish
from jetsync.publish.one import publish_one
from jetsync.publish.publisher import Publisher
from jetsync.publish.schedules import ScheduleOptions, schedule
from jetsync.publish.window import DEFAULT_WINDOW, DEFAULT_WINDOW_BYTES, WindowOptions
from jetsync.stream import Stream
from jetsync.values.account import AccountInfo
from jetsync.values.codec import from_wire
from jetsync.values.outbound import OutboundMessage
from jetsync.values.stream_config import StreamConfig

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Unpack

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.events import BatchGapEvent
    from jetsync.kv.config import KeyValueFields
    from jetsync.publish.publisher import DeliveryReport
    from jetsync.values.consumer_config import ConsumerConfig, ConsumerFields
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import BatchAck, Expect, Payload, PubAck, PublishReport
    from jetsync.values.stream_config import StreamFields
    from jetsync.values.stream_info import StreamInfo

__all__ = ["JetStream"]


class JetStream:
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
        answer = self._context.api("INFO", None, self._context.deadline(timeout))
        answer.pop("type", None)
        return from_wire(AccountInfo, answer)

    # Publishing

    def publish(
        self,
        subject: str,
        data: Payload = b"",
        *,
        headers: HeadersInput | None = None,
        msg_id: str | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        expect: Expect | None = None,
        timeout: Seconds | None = None,
        retries: int = 2,
        retry_wait: Seconds = 0.25,
    ) -> PubAck:
        """
        Publish one message and wait until the stream has stored it.

        When no stream takes the subject, which is also so for moments while a stream has no leader,
        the message is sent again up to *retries* times, within *timeout*. Any other loss of the
        answer leaves the outcome unknown. Any thread. After Ctrl-C the outcome is unknown too.

        Args:
            subject: The subject; its stream is found by it.
            data: The payload; text is sent as UTF-8.
            headers: Headers; never changed.
            msg_id: Id by which the stream drops duplicates within its duplicate window.
            ttl: Time-to-live: seconds from 1 up, a ``timedelta`` or ``"never"`` (ADR-43).
            expect: Under which conditions to store it.
            timeout: Seconds for the whole call; None is the context's default.
            retries: How often to send again after "no stream".
            retry_wait: Seconds before each of these.

        Raises:
            InvalidArgumentError, InvalidTypeError: The message cannot be sent; nothing was.
            NoStreamResponseError: No stream took it; it is not stored.
            ApiError: The stream refused it, for example WrongLastSequenceError; it is not stored.
            PublishOutcomeUnknownError: It was sent and no answer came: it may be stored or not.
            PermissionDeniedError: The server refuses the subject; it is not stored.
            NotSupportedError: The server that the client is connected to is older than 2.11 and
                would ignore *ttl*, or the subject in *expect*; nothing was sent.
            DisconnectedError, ConnectionClosedError: Nothing was sent.
            PluginError: A plugin vetoed it; nothing was sent.
        """
        context = self._context
        context.connection.check()
        deadline = context.deadline(timeout)
        check_count("retries", retries, 0)
        wait = as_seconds(retry_wait, "retry_wait")
        message = OutboundMessage(subject, data, headers, msg_id, ttl, expect)
        return publish_one(context, message, deadline, retries=retries, retry_wait=wait)

    def publish_many(
        self,
        messages: Iterable[OutboundMessage | tuple[Any, ...]],
        *,
        window: int = DEFAULT_WINDOW,
        window_bytes: int = DEFAULT_WINDOW_BYTES,
        ack_timeout: Seconds | None = None,
        on_ack: Callable[[OutboundMessage, PubAck], object] | None = None,
        retries: int = 2,
        retry_wait: Seconds = 0.25,
    ) -> PublishReport:
        """
        Publish what an iterable yields, many at a time, and return once every message has ended.

        The iterable is read lazily; at most *window* messages are in flight, and only they are
        kept. Messages that no stream took are sent again, which may change their order. After as
        many failures as the window is large no further message is taken. An exception of the
        iterable itself is raised once all that it gave before has ended. Any thread; each call has
        a window of its own.

        Args:
            messages: ``OutboundMessage``, ``(subject, data)`` or ``(subject, data, headers)``.
            window: Messages in flight at most.
            window_bytes: Bytes in flight at most, 32 MiB by default. One block of up to 128 KiB, or
                one message if it is larger, may exceed it.
            ack_timeout: Seconds to wait for each ack, and for a connection; None is the context's
                default.
            on_ack: Called in this thread with each message and its ack, in no certain order. If it
                raises, no further message is taken, and its first error is raised once all that was
                taken has ended.
            retries: How often a message that no stream took is sent again.
            retry_wait: Seconds before each of these.

        Raises:
            PublishManyError: Some failed; ``error.report`` says which and why. What is not listed
                there and was taken from the iterable is stored; ``error.report.exhausted`` says
                whether all were taken.
            ConnectionClosedError: The client was closed before the call.
        """
        context = self._context
        context.connection.check()
        options = self._window_options(window, window_bytes, ack_timeout, retries, retry_wait)
        return BulkPublish(context, options, on_ack).run(messages)

    def publisher(
        self,
        *,
        window: int = DEFAULT_WINDOW,
        window_bytes: int = DEFAULT_WINDOW_BYTES,
        ack_timeout: Seconds | None = None,
        on_report: Callable[[DeliveryReport], object] | None = None,
        retries: int = 2,
        retry_wait: Seconds = 0.25,
    ) -> Publisher:
        """
        Return a publisher that keeps many messages in flight and is shared by threads.

        Args:
            window: Messages in flight at most; publishing waits while it is full.
            window_bytes: Bytes in flight at most, 32 MiB by default; publishing waits above it. One
                message of each thread may exceed it.
            ack_timeout: Seconds to wait for each ack, and for a connection; None is the context's
                default.
            on_report: Called with the :class:`DeliveryReport` of each message, in the publisher's
                own thread, in the order in which they end.
            retries: How often a message that no stream took is sent again.
            retry_wait: Seconds before each of these.
        """
        context = self._context
        context.connection.check()
        options = self._window_options(window, window_bytes, ack_timeout, retries, retry_wait)
        return Publisher(context, options, on_report)

    def atomic_batch(
        self,
        *,
        ack_first: bool = True,
        ack_every: int = 0,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
        batch_id: str | None = None,
        broken_servers: bool = False,
    ) -> AtomicBatch:
        """
        Return an empty batch, whose messages a stream stores together or not at all (ADR-50).

        Nothing is sent before the first message. The stream needs ``allow_atomic``, and the server
        has to be 2.12.5 or later. Any thread may call this.

        Args:
            ack_first: Whether the first message waits for the server's answer, so that a refused
                batch fails at once.
            ack_every: Wait for an answer every so many messages; 0 for none.
            ttl: Time-to-live of messages without one; see :meth:`publish`.
            timeout: Seconds for each call; None uses the default of the context.
            batch_id: The id of the batch, up to 64 bytes; None creates one.
            broken_servers: Whether to accept servers with known errors: 2.12.0 checks expectations
                against the wrong subject, and 2.12.1 may store part of a batch.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid.
        """
        self._context.connection.check()
        return AtomicBatch(
            self._context,
            AtomicOptions(
                batch_id=batch_id,
                ack_first=ack_first,
                ack_every=ack_every,
                ttl=ttl,
                timeout=self._seconds(timeout),
                broken_servers=broken_servers,
            ),
        )

    def publish_batch(
        self,
        messages: Iterable[OutboundMessage | tuple[Any, ...]],
        *,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
        retries: int = 2,
        retry_wait: Seconds = 0.25,
        batch_id: str | None = None,
        broken_servers: bool = False,
    ) -> BatchAck:
        """
        Store all messages of an iterable in their stream, or none of them (ADR-50).

        The iterable is read to its end first. If it raises, nothing is sent. If no stream takes the
        batch, it is sent again up to *retries* times within *timeout*. Any thread may call this.

        Args:
            messages: ``OutboundMessage``, ``(subject, data)`` or ``(subject, data, headers)``. The
                server accepts 1000 in one batch, unless its operator changed that.
            ttl: Time-to-live of messages without one; see :meth:`publish`.
            timeout: Seconds for the whole call; None uses the default of the context.
            retries: How often to send the batch again if no stream takes it.
            retry_wait: Seconds before each further attempt.
            batch_id: The id of the first attempt; None creates one.
            broken_servers: As for :meth:`atomic_batch`.

        Raises: as :meth:`AtomicBatch.add` and :meth:`AtomicBatch.commit`. Nothing is stored, except
            after AtomicityError, and perhaps after BatchOutcomeUnknownError, whose ``batch`` can be
            sent again.
        """
        self._context.connection.check()
        deadline = Deadline.after(self._context.default_timeout if timeout is None else timeout)
        options = AtomicOptions(
            batch_id=batch_id,
            ttl=ttl,
            timeout=deadline.total,
            broken_servers=broken_servers,
            retries=retries,
            retry_wait=as_seconds(retry_wait, "retry_wait"),
        )
        return publish_batch(self._context, messages, options, deadline)

    def fast_publisher(
        self,
        *,
        flow: int = 500,
        max_outstanding_acks: int = 2,
        gap: Literal["fail", "ok"] = "fail",
        on_gap: Callable[[BatchGapEvent], object] | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
    ) -> FastPublisher:
        """
        Return a publisher for many messages to one stream, acknowledged by the hundred (ADR-50).

        This is the fastest way to publish data that can be sent again. If a batch fails, messages
        without an ack may be stored or not. Nothing is sent before the first message. The stream
        needs ``allow_batched``, and the server has to be 2.14 or later. Any thread may call this.

        Args:
            flow: Messages between two acks, from 1 to 500. The server may choose fewer.
            max_outstanding_acks: How many acks may be missing, 1 or more. At most *flow* times as
                many messages are in flight.
            gap: Whether a lost or refused message ends the batch (``"fail"``), or the batch
                continues without it (``"ok"``).
            on_gap: Called with each :class:`BatchGapEvent` of ``gap="ok"``, in the thread whose
                call notices it.
            ttl: Time-to-live of messages without one; see :meth:`publish`.
            timeout: Seconds for each call and for each wait for room; None uses the default of the
                context.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid.
        """
        self._context.connection.check()
        options = FastOptions(
            flow=flow,
            max_outstanding_acks=max_outstanding_acks,
            gap=gap,
            on_gap=on_gap,
            ttl=ttl,
            timeout=self._seconds(timeout),
        )
        return FastPublisher(self._context, options)

    def _seconds(self, timeout: Seconds | None) -> float:
        return as_seconds(self._context.default_timeout if timeout is None else timeout, "timeout")

    def _window_options(
        self,
        window: int,
        window_bytes: int,
        ack_timeout: Seconds | None,
        retries: int,
        retry_wait: Seconds,
    ) -> WindowOptions:
        check_count("window", window, 1)
        check_count("window_bytes", window_bytes, 1)
        check_count("retries", retries, 0)
        timeout = self._context.default_timeout if ack_timeout is None else ack_timeout
        return WindowOptions(
            size=window,
            max_bytes=window_bytes,
            ack_timeout=as_seconds(timeout, "ack_timeout"),
            retries=retries,
            retry_wait=as_seconds(retry_wait, "retry_wait"),
        )

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
        self,
        name: str | StreamConfig,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[StreamFields],
    ) -> Stream:
        """
        Create a stream, or return the existing one if it has the same configuration.

        Args:
            name: The name of the stream, or its configuration as an object.
            timeout: Seconds for the request.
            **fields: Fields of :class:`StreamConfig`. They override those of an object, which is
                not changed.

        Raises:
            StreamNameInUseError: A stream of that name has another configuration.
            SubjectOverlapError: Another stream already has one of the subjects.
            NotSupportedError: The server ignored a field. The stream exists without it.
        """
        wanted = config_of(StreamConfig, name, fields, "create_stream()")
        deadline = self._context.deadline(timeout)
        return Stream(self._context, _stream_admin.create(self._context, wanted, deadline))

    def update_stream(
        self,
        name: str | StreamConfig,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[StreamFields],
    ) -> Stream:
        """
        Change the configuration of an existing stream.

        With a name, jetsync reads the current configuration and sends it back with your changes.
        Those are two requests: a change that another client makes between them is lost. With an
        object, the server replaces the whole configuration, and unset fields return to their
        defaults.

        Args:
            name: The name of the stream, or its whole configuration as an object.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`StreamConfig` to change.

        Raises:
            StreamNotFoundError: The stream does not exist.
            NotSupportedError: The server ignored a field. It changed the others.
        """
        deadline = self._context.deadline(timeout)
        wanted = _stream_admin.changed_config(
            self._context, name, fields, deadline, "update_stream()"
        )
        return Stream(self._context, _stream_admin.update(self._context, wanted, deadline))

    def create_or_update_stream(
        self,
        name: str | StreamConfig,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[StreamFields],
    ) -> Stream:
        """
        Create a stream, or replace the whole configuration of the existing one.

        Unset fields get their defaults, even if the stream exists.

        Args, Raises: as :meth:`create_stream`, without ``StreamNameInUseError``.
        """
        wanted = config_of(StreamConfig, name, fields, "create_or_update_stream()")
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
        consumer: str | ConsumerConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """
        Create a consumer on the stream of that name, as :meth:`Stream.create_consumer`.

        A filter costs one more request, which compares it with the stream's subjects.
        """
        deadline = self._context.deadline(timeout)
        wanted = _consumer_admin.wanted_config(consumer, fields, "create_consumer()")
        info = _consumer_admin.create(self._context, stream, wanted, deadline)
        _consumer_admin.warn_about_filters(self._context, info, None, deadline)
        return Consumer(self._context, stream, info)

    def update_consumer(
        self,
        stream: str,
        consumer: str | ConsumerConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """
        Change the configuration of an existing consumer, as :meth:`Stream.update_consumer`.
        """
        context, deadline = self._context, self._context.deadline(timeout)
        wanted = _consumer_admin.changed_config(context, stream, consumer, fields, deadline)
        return Consumer(context, stream, _consumer_admin.update(context, stream, wanted, deadline))

    def create_or_update_consumer(
        self,
        stream: str,
        consumer: str | ConsumerConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """
        Create or replace a consumer on the stream of that name.

        As :meth:`Stream.create_or_update_consumer`.
        """
        deadline = self._context.deadline(timeout)
        wanted = _consumer_admin.wanted_config(consumer, fields, "create_or_update_consumer()")
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

    # Key-value buckets

    def create_key_value(
        self,
        bucket: str | KeyValueConfig,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[KeyValueFields],
    ) -> KeyValue:
        """
        Create a key-value bucket, or return the existing one if it has the same configuration.

        Args:
            bucket: The name of the bucket, or its configuration as an object.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`KeyValueConfig`. They override those of an object, which is
                not changed.

        Raises:
            StreamNameInUseError: A bucket of that name has another configuration.
            NotSupportedError: The server ignored a field. The bucket exists without it.
        """
        wanted = config_of(KeyValueConfig, bucket, fields, "create_key_value()", key="bucket")
        deadline = self._context.deadline(timeout)
        return self._bucket(wanted.bucket, _kv_admin.create(self._context, wanted, deadline))

    def update_key_value(
        self,
        bucket: str | KeyValueConfig,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[KeyValueFields],
    ) -> KeyValue:
        """
        Change the configuration of an existing bucket.

        Fields that are unset or None keep their values, and so do fields that this version does not
        know. 0 removes a limit or a time-to-live. Those are two requests: a change that another
        client makes between them is lost.

        Args:
            bucket: The name of the bucket, or its configuration as an object.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`KeyValueConfig` to change.

        Raises:
            BucketNotFoundError: The bucket does not exist.
            ApiError: The server refused the change, for example of the storage.
        """
        wanted = config_of(KeyValueConfig, bucket, fields, "update_key_value()", key="bucket")
        deadline = self._context.deadline(timeout)
        try:
            return self._bucket(wanted.bucket, _kv_admin.update(self._context, wanted, deadline))
        except StreamNotFoundError as error:
            raise BucketNotFoundError(wanted.bucket) from error

    def create_or_update_key_value(
        self,
        bucket: str | KeyValueConfig,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[KeyValueFields],
    ) -> KeyValue:
        """
        Create a bucket, or change the configuration of the existing one.

        Args, Raises: as :meth:`create_key_value` and :meth:`update_key_value`.
        """
        wanted = config_of(
            KeyValueConfig, bucket, fields, "create_or_update_key_value()", key="bucket"
        )
        deadline = self._context.deadline(timeout)
        try:
            info = _kv_admin.update(self._context, wanted, deadline)
        except StreamNotFoundError:
            info = _kv_admin.create(self._context, wanted, deadline)
        return self._bucket(wanted.bucket, info)

    def key_value(self, bucket: str, *, timeout: Seconds | None = None) -> KeyValue:
        """
        Return the bucket of that name.

        Raises:
            BucketNotFoundError: There is none.
            InvalidBucketError: No bucket can have that name, or the stream of that name is none.
        """
        stream = stream_of(bucket)
        try:
            info = _stream_admin.info(self._context, stream, self._context.deadline(timeout))
        except StreamNotFoundError as error:
            raise BucketNotFoundError(bucket) from error
        if (info.config.max_msgs_per_subject or 0) < 1:
            raise InvalidBucketError(bucket, f"stream {stream!r} does not limit revisions of a key")
        return self._bucket(bucket, info)

    def delete_key_value(self, bucket: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete a bucket with all that is in it.

        Raises:
            BucketNotFoundError: There is none of that name.
        """
        try:
            _stream_admin.delete(self._context, stream_of(bucket), self._context.deadline(timeout))
        except StreamNotFoundError as error:
            raise BucketNotFoundError(bucket) from error

    def key_value_names(self, *, timeout: Seconds | None = None) -> Iterator[str]:
        """
        Iterate over the names of the buckets, mirrors included; as ``stream_names``.

        Args:
            timeout: Seconds for each page of 1024.
        """
        found = _stream_admin.names(self._context, None, timeout)
        return (
            name.removeprefix(STREAM_PREFIX) for name in found if name.startswith(STREAM_PREFIX)
        )

    def _bucket(self, name: str, info: StreamInfo) -> KeyValue:
        return KeyValue(Bucket(self._context, name, info))
