"""
The JetStream context: publishing, and the streams, consumers and buckets of one account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn

import attrs

from jetsync import errors
from jetsync._api import streams as _stream_admin
from jetsync._api.lists import pages
from jetsync._base.deadline import Deadline, as_seconds
from jetsync._base.dropped import find_creator
from jetsync._base.fields import check_count, check_function, config_of, wrong_type
from jetsync._base.iterations import Iteration
from jetsync._base.keywords import hide_extra, refuse, refuse_position
from jetsync._base.pickling import refuse_copy
from jetsync._proto import object_names as _object_names
from jetsync._proto.keys import STREAM_PREFIX, stream_of
from jetsync.backups import restore
from jetsync.kv.bucket import Bucket
from jetsync.kv.config import KeyValueConfig
from jetsync.kv.handle import KeyValue
from jetsync.objects.bucket import Bucket as ObjectBucket
from jetsync.objects.config import ObjectStoreConfig
from jetsync.objects.handle import ObjectStore
from jetsync.publish.atomic import AtomicBatch, publish_batch
from jetsync.publish.atomic_messages import AtomicOptions
from jetsync.publish.fast import FastOptions, FastPublisher
from jetsync.publish.flight import DEFAULT_WINDOW, DEFAULT_WINDOW_BYTES, FlightOptions
from jetsync.publish.many import BulkPublish
from jetsync.publish.one import PUBLISH_RETRIES, PUBLISH_RETRY_WAIT, publish_one
from jetsync.publish.publisher import Publisher
from jetsync.publish.schedules import ScheduleOptions, schedule
from jetsync.stream import Stream
from jetsync.values.account import AccountInfo
from jetsync.values.codec import from_wire
from jetsync.values.outbound import OutboundMessage
from jetsync.values.stream_config import DiscardPolicy, StreamConfig
from jetsync.values.stream_info import StreamInfo
from jetsync.values.subjects import validate_filter, validate_name

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Unpack

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync._base.keywords import NoKeywords
    from jetsync.consume.consumer import Consumer
    from jetsync.events import BatchGapEvent
    from jetsync.kv.config import KeyValueFields
    from jetsync.objects.config import ObjectStoreFields
    from jetsync.publish.publisher import DeliveryReport
    from jetsync.values.consumer_config import ConsumerConfig, ConsumerFields
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import Expect, Payload
    from jetsync.values.pub_acks import BatchAck, PubAck, PublishReport
    from jetsync.values.stream_config import StreamFields

__all__ = ["JetStream"]


class JetStream:
    """
    JetStream in one account, under one domain or API prefix.

    Made by :meth:`Client.jetstream`. Such a *context* holds no resources and needs no closing. Any
    number of threads may share one. ``timeout`` is in seconds and limits all requests of a call
    together. The default is the ``timeout`` of :meth:`Client.jetstream`.

    If no answer to a request arrives in time, the call raises RequestTimeoutError. If the
    connection fails, it raises DisconnectedError, ConnectionLostError or ConnectionClosedError. If
    no server with JetStream answers, it raises JetStreamNotEnabledError. Calls that publish raise
    the errors that their descriptions list.
    """

    __slots__ = ("_context",)

    __reduce__ = refuse_copy

    def __init__(self, context: Context) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"<JetStream {self._context.prefix}>"

    @classmethod
    def of(cls, stream: Stream) -> JetStream:
        """
        Return the context that a stream handle was made with.

        Libraries that are given a stream can reach its buckets and other streams with it.
        """
        if not isinstance(stream, Stream):
            raise wrong_type("stream", "a Stream", stream)
        return cls(stream._context)  # noqa: SLF001 - a stream is a part of its context.

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected now."""
        return self._context.connection.is_connected

    @property
    def is_closed(self) -> bool:
        """
        Whether the client was closed, by your code or because the connection cannot be restored.
        """
        return self._context.connection.closed.is_set()

    def account_info(self, *, timeout: Seconds | None = None) -> AccountInfo:
        """
        Return the usage and the limits of the account, and the API level of the server.

        Raises:
            JetStreamNotEnabledError: The account or the server has no JetStream.
        """
        deadline = self._context.deadline(timeout)
        return from_wire(AccountInfo, self._context.api("INFO", None, deadline))

    # Publishing

    @hide_extra
    def publish(
        self,
        subject: str,
        data: Payload = b"",
        *_extra: NoReturn,
        headers: HeadersInput | None = None,
        msg_id: str | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        expect: Expect | None = None,
        timeout: Seconds | None = None,
        retries: int = PUBLISH_RETRIES,
        retry_wait: Seconds = PUBLISH_RETRY_WAIT,
        **unknown: Unpack[NoKeywords],
    ) -> PubAck:
        """
        Publish one message and wait until the stream has stored it.

        If no stream responds, for example while a stream has no leader, jetsync sends the message
        again up to *retries* times within *timeout*. If the message was sent but no answer arrives,
        or if the call is interrupted, the message may be stored or not. Any thread may call this.

        Args:
            subject: The subject, which selects the stream.
            data: The payload; text is sent as UTF-8.
            headers: The headers. jetsync does not change this object.
            msg_id: Id for the stream's duplicate detection.
            ttl: Time-to-live: seconds or a ``timedelta``, at least 1 second, or ``"never"``
                (ADR-43).
            expect: Conditions under which the stream stores the message.
            timeout: Seconds for the whole call.
            retries: How often to send the message again if no stream responds.
            retry_wait: Seconds before each retry.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid. Nothing was sent.
            NoStreamResponseError: No stream responded. The message is not stored.
            ApiError: The stream refused the message, for example with WrongLastSequenceError. The
                message is not stored.
            PublishOutcomeUnknownError: The message was sent, but no answer arrived. It may be
                stored or not. Or the server refused this message or another one to *subject*.
            PermissionDeniedError: The user has no permission to publish to the subject, or to
                receive replies. The message is not stored.
            NotSupportedError: The connected server is older than 2.11 and would ignore *ttl*, or
                ``last_subject_sequence_subject`` in *expect*. Nothing was sent.
            DisconnectedError, ConnectionClosedError: Nothing was sent.
            PluginError: A plugin vetoed the message, and nothing was sent. Or a plugin failed after
                the message was stored.
        """
        if unknown:
            refuse(JetStream.publish, unknown)
        if _extra:
            refuse_position(JetStream.publish)
        context = self._context
        context.connection.check()
        deadline = context.deadline(timeout)
        if retries is not PUBLISH_RETRIES:
            check_count("retries", retries, 0)
        if retry_wait is not PUBLISH_RETRY_WAIT:
            retry_wait = as_seconds(retry_wait, "retry_wait")
        message = OutboundMessage(subject, data, headers, msg_id, ttl, expect)
        return publish_one(context, message, deadline, retries=retries, retry_wait=retry_wait)

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
        Publish all messages of an iterable, with many in flight, and return a report.

        The call returns when each message is stored or has failed. The iterable is read lazily; at
        most *window* messages are in flight and in memory. If no stream responds to a message,
        jetsync sends it again, which may change the order. After *window* failures, no further
        messages are read. If the iterable raises an exception, this call raises it once the outcome
        of the earlier messages is known. Any thread may call this; each call has its own window.

        This exception, and the KeyboardInterrupt of Ctrl-C, have the :class:`PublishReport` as
        their attribute ``report``, if the call had begun. Its ``resume_at`` says where to continue.
        After Ctrl-C, messages in flight are failures with an unknown outcome. If the exception is
        the PublishManyError of another call, it is the cause of a new one with this report.

        Args:
            messages: ``OutboundMessage``, ``(subject, data)`` or ``(subject, data, headers)``.
            window: Maximum number of messages in flight.
            window_bytes: Maximum number of bytes in flight, 32 MiB by default. jetsync may exceed
                it by one block of about 128 KiB, or by one larger message.
            ack_timeout: Seconds to wait for each ack and for a connection. The default is that of
                the context.
            on_ack: Called in this thread with each message and its ack, in no particular order. If
                it raises, no further messages are read, and this call raises its first error once
                the outcome of the earlier messages is known.
            retries: How often to send a message again if no stream responds.
            retry_wait: Seconds before each retry.

        Raises:
            PublishManyError: Some messages failed; ``error.report`` lists them with the reasons.
                The other messages that were read are stored. ``error.report.exhausted`` says
                whether all messages were read.
            InvalidArgumentError, InvalidTypeError: An option is invalid. Nothing was sent. For an
                invalid message, PublishManyError is raised.
            ConnectionClosedError: The client was closed before the call.
        """
        context = self._context
        context.connection.check()
        check_function("on_ack", on_ack)
        seconds = self._seconds(ack_timeout, "ack_timeout")
        options = FlightOptions(seconds, window, window_bytes, retries, retry_wait)
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
        Return a publisher, which keeps many messages in flight. Threads may share it.

        Args:
            window: Maximum number of messages in flight. Publishing waits while the window is full.
            window_bytes: Maximum number of bytes in flight, 32 MiB by default. jetsync may exceed
                it by one message of each thread.
            ack_timeout: Seconds to wait for each ack and for a connection. The default is that of
                the context.
            on_report: Called with the :class:`DeliveryReport` of each message once its outcome is
                known, in the publisher's own thread.
            retries: How often to send a message again if no stream responds.
            retry_wait: Seconds before each retry.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid.
            ConnectionClosedError: The client is closed.
            PluginError: A plugin failed.
        """
        context = self._context
        context.connection.check()
        check_function("on_report", on_report)
        seconds = self._seconds(ack_timeout, "ack_timeout")
        options = FlightOptions(
            seconds, window, window_bytes, retries, retry_wait, name="publisher"
        )
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

        Nothing is sent before the first message. The stream needs ``allow_atomic``. Use server
        2.12.5 or later: jetsync refuses servers before 2.12, and 2.12.0 and 2.12.1. Any thread may
        call this.

        Args:
            ack_first: Whether the first ``add`` waits for the server's answer. If the server
                refuses the batch, that call raises the error.
            ack_every: If this is N, every Nth ``add`` waits for the server's answer. 0, the
                default, turns this off.
            ttl: Time-to-live of messages without one; see :meth:`publish`.
            timeout: Seconds for each call; None uses the default of the context.
            batch_id: The id of the batch, up to 64 bytes; None creates one.
            broken_servers: Whether to accept servers 2.12.0 and 2.12.1 in spite of their errors:
                2.12.0 checks expectations against the wrong subject, and 2.12.1 may store part of a
                batch.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid.
        """
        self._context.connection.check()
        check_count("ack_every", ack_every, 0)
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
            find_creator(),
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

        jetsync first reads the iterable to its end. If the iterable raises, nothing is sent. If no
        stream responds, the batch is sent again up to *retries* times within *timeout*. Any thread
        may call this.

        Args:
            messages: ``OutboundMessage``, ``(subject, data)`` or ``(subject, data, headers)``. The
                server accepts at most 1,000 in one batch, unless its operator changed the limit.
            ttl: Time-to-live of messages without one; see :meth:`publish`.
            timeout: Seconds for the whole call; None uses the default of the context.
            retries: How often to send the batch again if no stream responds.
            retry_wait: Seconds before each further attempt.
            batch_id: The id of the first attempt; None creates one.
            broken_servers: As for :meth:`atomic_batch`.

        Raises: as :meth:`AtomicBatch.add` and :meth:`AtomicBatch.commit`. Nothing is stored, except
            after AtomicityError, and perhaps after BatchOutcomeUnknownError, whose ``batch`` can be
            sent again.
        """
        self._context.connection.check()
        check_count("retries", retries, 0)
        deadline = self._context.deadline(timeout)
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
        Return a publisher for many messages to one stream, with one ack per block (ADR-50).

        Use it for large amounts of data that you can send again. Of all ways to publish, it needs
        the least CPU time per message. If a batch fails, messages without an ack may be stored or
        not. Nothing is sent before the first message. The stream needs ``allow_batched``, and the
        server has to be 2.14 or later. Any thread may call this.

        Args:
            flow: Messages between two acks, from 1 to 500. The server may choose fewer.
            max_outstanding_acks: How many acks may be outstanding, from 1 to 3. At most this number
                times *flow* messages are in flight.
            gap: What happens after a lost or refused message: ``"fail"`` ends the batch, and
                ``"ok"`` continues without that message. A lost connection always ends the batch.
            on_gap: Called with each :class:`BatchGapEvent` if *gap* is ``"ok"``, in the thread
                whose call notices the gap.
            ttl: Time-to-live of messages without one; see :meth:`publish`.
            timeout: Seconds for each call, and for each wait at the limit of messages in flight.
                None uses the default of the context.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid.
        """
        self._context.connection.check()
        check_function("on_gap", on_gap)
        options = FastOptions(
            flow=flow,
            max_outstanding_acks=max_outstanding_acks,
            gap=gap,
            on_gap=on_gap,
            ttl=ttl,
            timeout=self._seconds(timeout),
        )
        return FastPublisher(self._context, options)

    def _seconds(self, timeout: Seconds | None, name: str = "timeout") -> float:
        return as_seconds(self._context.default_timeout if timeout is None else timeout, name)

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
        Have the server publish a message later or repeatedly (ADR-51).

        The schedule is stored as a message on *subject*, in a stream with ``allow_msg_schedules``.
        A new schedule on the same subject replaces it. ``Stream.cancel_schedule`` removes it, and
        ``Stream.schedules`` lists all of them. The server removes a schedule with *at* after it has
        published the message. The published messages have the payload and headers of the schedule,
        and a header that names the schedule. Any thread may call this.

        Args:
            subject: The subject that stores the schedule.
            data: The payload to publish. If *source* is given, the server uses *data* only while
                the subject *source* has no message.
            target: The subject to publish to, in the same stream.
            at: Publish once at this time: an aware datetime, or nanoseconds since 1970. A time in
                the past means now.
            every: Publish repeatedly at this interval in seconds, at least 1. Server 2.14 and
                later.
            cron: Publish by a cron expression of six fields: second, minute, hour, day of the
                month, month, day of the week. ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``
                and ``@yearly`` work too. Server 2.14 and later.
            time_zone: Time zone of *cron*, such as ``Europe/Berlin``. The default is UTC.
            source: Publish the last message of this subject instead of *data*. Server 2.14 and
                later.
            ttl: Time-to-live of the published messages. The stream needs ``allow_msg_ttl``.
            rollup: Whether each published message replaces all earlier ones on *target*. Server
                2.14 and later.
            headers: Headers of the published messages.
            msg_id: Id for duplicate detection of the schedule.
            timeout: Seconds for the whole call.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid. Nothing was sent.
            NotSupportedError: The stream's server does not support an option. Nothing was sent.
            SchedulesDisabledError: The stream does not allow schedules. Nothing was sent.
            ScheduleTargetInvalidError: The stream does not have the target subject.
            SchedulePatternInvalidError: The server cannot parse *cron*.
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
            SubjectOverlapError: Another stream already stores messages of one of the subjects.
            NotSupportedError: The server ignored a field. The stream exists without it.
            ApiError: The server refused the configuration. No stream was created.
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
        This takes two requests: a change that another client makes between them is lost. With an
        object, the server replaces the whole configuration, and unset fields return to their
        defaults.

        Args:
            name: The name of the stream, or its whole configuration as an object.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`StreamConfig` to change.

        Raises:
            StreamNotFoundError: The stream does not exist.
            NotSupportedError: The server ignored a field. It changed the others.
            ApiError: The server refused the change. Nothing was changed.
        """
        wanted = config_of(StreamConfig, name, fields, "update_stream()")
        if wanted.name is None:
            raise errors.InvalidArgumentError(
                "update_stream() needs the stream's name", argument="name"
            )
        stream = self._named(wanted.name)
        stream.update(None if isinstance(name, str) else name, timeout=timeout, **fields)
        return stream

    def create_or_update_stream(
        self,
        name: str | StreamConfig,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[StreamFields],
    ) -> Stream:
        """
        Create a stream, or replace the whole configuration of the existing one.

        Unset fields get their defaults, even if the existing stream has other values.

        Args, Raises: as :meth:`create_stream`, without ``StreamNameInUseError``.
        """
        wanted = config_of(StreamConfig, name, fields, "create_or_update_stream()")
        deadline = self._context.deadline(timeout)
        context = self._context
        try:
            return Stream(context, _stream_admin.update(context, wanted, deadline))
        except errors.StreamNotFoundError:
            pass
        try:
            return Stream(context, _stream_admin.create(context, wanted, deadline))
        except errors.StreamNameInUseError:
            # Another client created it between the two requests, with another configuration.
            return Stream(context, _stream_admin.update(context, wanted, deadline))

    def stream(self, name: str, *, lookup: bool = True, timeout: Seconds | None = None) -> Stream:
        """
        Return an existing stream.

        Args:
            name: The stream.
            lookup: Ask the server for the stream's info. With False, nothing is sent, so the user
                needs no permission for that request, and ``cached_info`` has only the name. Reads
                of single messages then use direct gets, and ask the leader if no server answers.
            timeout: Seconds for the request.

        Raises:
            StreamNotFoundError: The stream does not exist.
            PermissionDeniedError: The user may not ask for the info.
        """
        if not lookup:
            return self._named(name)
        deadline = self._context.deadline(timeout)
        return Stream(self._context, _stream_admin.info(self._context, name, deadline))

    def delete_stream(self, name: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete a stream with its messages and consumers.

        Raises:
            StreamNotFoundError: The stream does not exist.
        """
        _stream_admin.delete(self._context, name, self._context.deadline(timeout))

    def restore_stream(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        verify: bool = True,
        timeout: Seconds | None = None,
        on_progress: Callable[[int, int], object] | None = None,
        **fields: Unpack[StreamFields],
    ) -> Stream:
        """
        Restore a stream from a backup of :meth:`Stream.backup` or of the ``nats`` command line.

        The stream must not exist. It gets the messages with their sequences and times, and the
        consumers if the backup has them. If the call fails, also by Ctrl-C, jetsync deletes what
        the server has made of the stream. If this process is killed, an empty stream or a part of
        the messages may stay: delete the stream before you restore it again.

        Args:
            path: The folder of the backup.
            name: Another name for the stream. Only for backups that server 2.15 or later has made.
                The subjects of the messages stay the same.
            verify: Whether to compare the files with ``SHA256SUMS`` first, so a damaged backup is
                refused before anything is sent. All data is read twice then. Backups of the
                ``nats`` command line have no digests; see :func:`read_backup`.
            timeout: Seconds without progress. The default is 60. When the server has all data, it
                may take an hour to build the stream.
            on_progress: Called with the number of bytes that the server has confirmed, and the
                total.
            **fields: Fields of :class:`StreamConfig` to change, such as ``num_replicas`` or
                ``placement``. None takes a field out, so the server uses its default.

        Raises:
            BackupDamagedError: The files are damaged. Nothing was sent.
            OSError: A file is missing or cannot be read. Nothing was sent.
            InvalidArgumentError, InvalidTypeError: An argument is invalid, or the backup cannot be
                restored under another name. Nothing was sent.
            NotSupportedError: The connected server is older than 2.15, and the backup is not.
                Nothing was sent.
            ApiError: The server refused to begin, for example because the stream exists (err_code
                10130).
            RestoreError: The restore failed later. ``outcome`` says what the server has.
        """
        return Stream(
            self._context,
            restore(
                self._context,
                path,
                name,
                fields,
                verify=verify,
                timeout=timeout,
                on_progress=on_progress,
            ),
        )

    def streams(
        self, subject: str | None = None, *, timeout: Seconds | None = None
    ) -> Iterator[Stream]:
        """
        Iterate over the streams. Pages of 256 are requested as you need them.

        The iterator yields no stream twice, even if streams are created or deleted during the
        iteration.

        Args:
            subject: Only streams with a subject that overlaps with this one.
            timeout: Seconds for each page.
        """
        context, filters = self._context, _by_subject(subject)
        found = pages(context, "STREAM.LIST", filters, timeout)
        made = (Stream(context, _stream_admin.stream_info(each)) for each in found)
        return Iteration(made, "list of streams")

    def stream_names(
        self, subject: str | None = None, *, timeout: Seconds | None = None
    ) -> Iterator[str]:
        """
        Iterate over the names of the streams, like :meth:`streams`, in pages of 1024.
        """
        names = pages(self._context, "STREAM.NAMES", _by_subject(subject), timeout)
        return Iteration(names, "list of streams")

    def stream_name_by_subject(self, subject: str, *, timeout: Seconds | None = None) -> str:
        """
        Return the name of the stream that stores a subject.

        If *subject* is a wildcard that overlaps with several streams, the call returns the first
        name.

        Raises:
            StreamNotFoundError: No stream has the subject.
        """
        for name in self.stream_names(subject, timeout=timeout):
            return name
        raise errors.StreamNotFoundError(description=f"no stream has the subject {subject!r}")

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
        Create a consumer on the stream of that name, like :meth:`Stream.create_consumer`.

        If the consumer has a filter, jetsync sends one more request, to compare it with the
        stream's subjects. If the stream does not exist, the call raises StreamNotFoundError.
        """
        return self._named(stream).create_consumer(consumer, timeout=timeout, **fields)

    def update_consumer(
        self,
        stream: str,
        consumer: str | ConsumerConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """
        Change the configuration of an existing consumer, like :meth:`Stream.update_consumer`.
        """
        return self._named(stream).update_consumer(consumer, timeout=timeout, **fields)

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

        Works like :meth:`Stream.create_or_update_consumer`.
        """
        return self._named(stream).create_or_update_consumer(consumer, timeout=timeout, **fields)

    def consumer(
        self, stream: str, name: str, *, lookup: bool = True, timeout: Seconds | None = None
    ) -> Consumer:
        """
        Return an existing consumer.

        Args:
            stream: The stream.
            name: The consumer.
            lookup: As for :meth:`Stream.consumer`.
            timeout: Seconds for the request.

        Raises:
            ConsumerNotFoundError: The consumer does not exist.
            StreamNotFoundError: The stream does not exist.
            PermissionDeniedError: The user may not ask for the info.
        """
        return self._named(stream).consumer(name, lookup=lookup, timeout=timeout)

    def delete_consumer(self, stream: str, name: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete a consumer.

        Raises:
            ConsumerNotFoundError: The consumer does not exist.
            StreamNotFoundError: The stream does not exist.
        """
        self._named(stream).delete_consumer(name, timeout=timeout)

    def _named(self, stream: str) -> Stream:
        """Return the handle of a stream, without a request to the server."""
        config = StreamConfig(name=validate_name("stream", stream))
        return Stream(self._context, StreamInfo(config=config), is_looked_up=False)

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

        Old clients created buckets that discard old values when they are full, or that do not allow
        direct reads. If an existing bucket differs in nothing else, it is changed.

        Args:
            bucket: The name of the bucket, or its configuration as an object.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`KeyValueConfig`. They override those of an object, which is
                not changed.

        Raises:
            StreamNameInUseError: A bucket of that name has another configuration.
            NotSupportedError: The server does not support a field. No bucket was created.
        """
        wanted = config_of(KeyValueConfig, bucket, fields, "create_key_value()", key="bucket")
        deadline = self._context.deadline(timeout)
        return self._create_bucket(wanted, deadline)

    def update_key_value(
        self,
        bucket: str | KeyValueConfig,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[KeyValueFields],
    ) -> KeyValue:
        """
        Change the configuration of an existing bucket.

        Fields that are unset or None keep their values, and so do fields that this version of
        jetsync does not know. 0 removes a limit or a time-to-live. This takes two requests: a
        change that another client makes between them is lost.

        Args:
            bucket: The name of the bucket, or its configuration as an object.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`KeyValueConfig` to change.

        Raises:
            BucketNotFoundError: The bucket does not exist.
            ApiError: The server refused the change, for example because it changes the storage.
        """
        wanted = config_of(KeyValueConfig, bucket, fields, "update_key_value()", key="bucket")
        deadline = self._context.deadline(timeout)
        try:
            return self._update_bucket(wanted, deadline)
        except errors.StreamNotFoundError as error:
            raise errors.BucketNotFoundError(wanted.bucket) from error

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
            return self._update_bucket(wanted, deadline)
        except errors.StreamNotFoundError:
            return self._create_bucket(wanted, deadline)

    def key_value(self, bucket: str, *, timeout: Seconds | None = None) -> KeyValue:
        """
        Return an existing bucket.

        Raises:
            BucketNotFoundError: The bucket does not exist.
            InvalidBucketError: The name is invalid, or the stream of that name is not a bucket.
        """
        stream = stream_of(bucket)
        try:
            info = _stream_admin.info(self._context, stream, self._context.deadline(timeout))
        except errors.StreamNotFoundError as error:
            raise errors.BucketNotFoundError(bucket) from error
        if (info.config.max_msgs_per_subject or 0) < 1:
            raise errors.InvalidBucketError(
                bucket, f"stream {stream!r} does not limit revisions of a key"
            )
        return self._bucket(bucket, info)

    def delete_key_value(self, bucket: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete a bucket with all its keys.

        Raises:
            BucketNotFoundError: The bucket does not exist.
        """
        try:
            _stream_admin.delete(self._context, stream_of(bucket), self._context.deadline(timeout))
        except errors.StreamNotFoundError as error:
            raise errors.BucketNotFoundError(bucket) from error

    def key_value_names(self, *, timeout: Seconds | None = None) -> Iterator[str]:
        """
        Iterate over the names of the buckets, mirrors included, like :meth:`stream_names`.

        Args:
            timeout: Seconds for each page of 1024.
        """
        found = self.stream_names(timeout=timeout)
        names = (
            name.removeprefix(STREAM_PREFIX) for name in found if name.startswith(STREAM_PREFIX)
        )
        return Iteration(names, "list of buckets")

    def _create_bucket(self, wanted: KeyValueConfig, deadline: Deadline) -> KeyValue:
        config = wanted.to_stream_config()
        try:
            info = _stream_admin.create(self._context, config, deadline, keep_partial=False)
        except errors.StreamNameInUseError:
            if not self._differs_as_old_buckets(config, deadline):
                raise
            info = _stream_admin.update(self._context, config, deadline)
        return self._bucket(wanted.bucket, info)

    def _differs_as_old_buckets(self, config: StreamConfig, deadline: Deadline) -> bool:
        """
        Return whether a bucket has this configuration, except as old clients created buckets.

        A bucket that discards old values loses keys when it is full.
        """
        name = _stream_admin.validate_config(config)
        now = _stream_admin.info(self._context, name, deadline).config
        old = attrs.evolve(config, discard=now.discard, allow_direct=now.allow_direct)
        if old == config:
            return False
        try:
            # The server compares the other fields with its own defaults.
            _stream_admin.create(self._context, old, deadline)
        except errors.StreamNameInUseError:
            return False
        return True

    def _update_bucket(self, wanted: KeyValueConfig, deadline: Deadline) -> KeyValue:
        now = _stream_admin.info(self._context, stream_of(wanted.bucket), deadline).config
        changes = {**wanted.stream_fields(), "discard": DiscardPolicy.NEW}
        if now.mirror is not None:
            # A mirror has no own subjects, and its origin writes the markers.
            changes.pop("subjects", None)
            changes.pop("subject_delete_marker_ttl", None)
        info = _stream_admin.update(self._context, attrs.evolve(now, **changes), deadline)
        return self._bucket(wanted.bucket, info)

    def _bucket(self, name: str, info: StreamInfo) -> KeyValue:
        return KeyValue(Bucket(self._context, name, info))

    # Object stores

    def create_object_store(
        self,
        bucket: str | ObjectStoreConfig,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[ObjectStoreFields],
    ) -> ObjectStore:
        """
        Create an object store, or return the existing one if it has the same configuration.

        Args:
            bucket: The name of the object store, or its configuration as an object.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`ObjectStoreConfig`. They override those of an object, which
                is not changed.

        Raises:
            StreamNameInUseError: An object store of that name has another configuration.
            NotSupportedError: The server does not support a field. No object store was created.
        """
        what = "create_object_store()"
        wanted = config_of(ObjectStoreConfig, bucket, fields, what, key="bucket")
        return self._create_object_store(wanted, self._context.deadline(timeout))

    def update_object_store(
        self,
        bucket: str | ObjectStoreConfig,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[ObjectStoreFields],
    ) -> ObjectStore:
        """
        Change the configuration of an existing object store.

        Fields that are unset or None keep their values. 0 removes a limit or a time-to-live. This
        takes two requests: a change that another client makes between them is lost.

        Args:
            bucket: The name of the object store, or its configuration as an object.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`ObjectStoreConfig` to change.

        Raises:
            ObjectStoreNotFoundError: The object store does not exist.
            ApiError: The server refused the change, for example because it changes the storage.
        """
        what = "update_object_store()"
        wanted = config_of(ObjectStoreConfig, bucket, fields, what, key="bucket")
        try:
            return self._update_object_store(wanted, self._context.deadline(timeout))
        except errors.StreamNotFoundError as error:
            raise errors.ObjectStoreNotFoundError(wanted.bucket) from error

    def create_or_update_object_store(
        self,
        bucket: str | ObjectStoreConfig,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[ObjectStoreFields],
    ) -> ObjectStore:
        """
        Create an object store, or change the configuration of the existing one.

        Args, Raises: as :meth:`create_object_store` and :meth:`update_object_store`.
        """
        what = "create_or_update_object_store()"
        wanted = config_of(ObjectStoreConfig, bucket, fields, what, key="bucket")
        deadline = self._context.deadline(timeout)
        try:
            return self._update_object_store(wanted, deadline)
        except errors.StreamNotFoundError:
            return self._create_object_store(wanted, deadline)

    def object_store(self, bucket: str, *, timeout: Seconds | None = None) -> ObjectStore:
        """
        Return an existing object store.

        Raises:
            ObjectStoreNotFoundError: The object store does not exist.
            InvalidBucketError: The name is invalid.
        """
        stream = _object_names.stream_of(bucket)
        try:
            info = _stream_admin.info(self._context, stream, self._context.deadline(timeout))
        except errors.StreamNotFoundError as error:
            raise errors.ObjectStoreNotFoundError(bucket) from error
        return self._object_store(info)

    def delete_object_store(self, bucket: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete an object store with all its objects.

        Raises:
            ObjectStoreNotFoundError: The object store does not exist.
        """
        stream = _object_names.stream_of(bucket)
        try:
            _stream_admin.delete(self._context, stream, self._context.deadline(timeout))
        except errors.StreamNotFoundError as error:
            raise errors.ObjectStoreNotFoundError(bucket) from error

    def object_stores(self, *, timeout: Seconds | None = None) -> Iterator[ObjectStore]:
        """
        Iterate over the object stores, like :meth:`streams`.

        Args:
            timeout: Seconds for each page of 256.
        """
        found = pages(self._context, "STREAM.LIST", {}, timeout)
        infos = map(_stream_admin.stream_info, found)
        stores = (
            self._object_store(info)
            for info in infos
            if (info.config.name or "").startswith(_object_names.STREAM_PREFIX)
        )
        return Iteration(stores, "list of object stores")

    def _create_object_store(self, wanted: ObjectStoreConfig, deadline: Deadline) -> ObjectStore:
        config = wanted.to_stream_config()
        return self._object_store(
            _stream_admin.create(self._context, config, deadline, keep_partial=False)
        )

    def _update_object_store(self, wanted: ObjectStoreConfig, deadline: Deadline) -> ObjectStore:
        stream = _object_names.stream_of(wanted.bucket)
        now = _stream_admin.info(self._context, stream, deadline).config
        changes = wanted.stream_fields()
        if wanted.ttl:
            # Servers refuse a longer window.
            changes["duplicate_window"] = min(now.duplicate_window or wanted.ttl, wanted.ttl)
        if now.mirror is not None:
            changes.pop("subjects")
        return self._object_store(
            _stream_admin.update(self._context, attrs.evolve(now, **changes), deadline)
        )

    def _object_store(self, info: StreamInfo) -> ObjectStore:
        name = (info.config.name or "").removeprefix(_object_names.STREAM_PREFIX)
        return ObjectStore(ObjectBucket(self._context, name, info))


def _by_subject(subject: str | None) -> dict[str, str]:
    return {} if subject is None else {"subject": validate_filter(subject)}
