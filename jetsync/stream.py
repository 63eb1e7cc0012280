"""
One stream: its configuration, its contents, its consumers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync._api import consumers as _consumer_admin
from jetsync._api import streams as _stream_admin
from jetsync._api.lists import pages
from jetsync._api.repeats import connected
from jetsync._api.replica_or_leader import (
    confirmed_get,
    direct_get,
    last_of_all,
    leader_get,
    shown_by,
)
from jetsync._base.fields import aware, check_exclusive, config_of, whole_number
from jetsync._base.integers import read_count
from jetsync._base.iterations import Iteration
from jetsync._base.pickling import refuse_copy
from jetsync._proto.direct import BatchRead
from jetsync.backups import back_up
from jetsync.consume.consumer import Consumer
from jetsync.consume.dead_workers import open_dead_letters
from jetsync.consume.ordered import open_ordered
from jetsync.counters import Counter, read_entry
from jetsync.errors import (
    ApiError,
    InvalidArgumentError,
    InvalidTypeError,
    MessageNotFoundError,
    NotSupportedError,
)
from jetsync.events import DirectReadOperation
from jetsync.read.direct import (
    DirectBatch,
    SequencePlan,
    StreamScan,
    beginning,
    optional_number,
    page_sizes,
    subject_filters,
)
from jetsync.read.last import LastPlan
from jetsync.read.pages import PAGE_BYTES, PageReader, check_stream
from jetsync.schedules import read_schedules
from jetsync.values.codec import format_time, from_wire
from jetsync.values.consumer_config import ConsumerConfig
from jetsync.values.consumer_info import ConsumerInfo, ConsumerReset
from jetsync.values.headers import SCHEDULE
from jetsync.values.stream_config import StreamConfig
from jetsync.values.subjects import validate_filter, validate_name, validate_subject

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Unpack

    from jetsync._api.consumers import Action
    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline, Seconds
    from jetsync.backups import StreamBackup
    from jetsync.consume.ordered import OrderedConsumer
    from jetsync.counters import CounterEntry
    from jetsync.read.pages import ReadPlan
    from jetsync.schedules import Schedule
    from jetsync.values.consumer_config import ConsumerFields, DeliverPolicyInput, ReplayPolicyInput
    from jetsync.values.consumer_info import PauseState
    from jetsync.values.stored import StoredMessage
    from jetsync.values.stream_config import StreamFields
    from jetsync.values.stream_info import StreamInfo

__all__ = ["Stream"]

# The code of a deletion that finds no message; reads get 10037.
SEQUENCE_NOT_FOUND: Final = 10043
DELETE_FAILED: Final = 10057

# The code for a consumer of a work queue that takes no acks.
ACKS_REQUIRED: Final = 10084

# Descriptions of DELETE_FAILED with which a file store says that it has no such message.
_MISSING: Final = ("stream store EOF", "no message found", "deleted message")


class Stream:
    """
    A stream on a server.

    Made by :class:`~jetsync.JetStream`. A handle holds no resources on the server and needs no
    closing. Any number of threads may share one. ``timeout`` is in seconds and limits all requests
    of a call together. The default is that of the :class:`~jetsync.JetStream` object. Requests fail
    with the same errors as those of :class:`~jetsync.JetStream`.
    """

    __slots__ = ("_context", "_info", "_is_looked_up", "_name")

    __reduce__ = refuse_copy

    def __init__(self, context: Context, info: StreamInfo, *, is_looked_up: bool = True) -> None:
        self._context = context
        self._name = info.config.name or ""
        self._info = info
        # Whether the server has sent the info.
        self._is_looked_up = is_looked_up

    def __repr__(self) -> str:
        if not self._is_looked_up:
            return f"<Stream {self._name!r}>"
        state = self._info.state
        return f"<Stream {self._name!r} {state.messages} messages up to {state.last_seq}>"

    @property
    def name(self) -> str:
        """
        The name of the stream.
        """
        return self._name

    @property
    def cached_info(self) -> StreamInfo:
        """
        The stream's info as the server last sent it. This sends no request.
        """
        return self._info

    @property
    def config(self) -> StreamConfig:
        """
        The configuration in :attr:`cached_info`. Use :meth:`update` to change it.
        """
        return self._info.config

    # The stream itself

    def info(
        self,
        *,
        subjects_filter: str | None = None,
        deleted_details: bool = False,
        timeout: Seconds | None = None,
    ) -> StreamInfo:
        """
        Ask the server for the stream's info, and keep the answer as :attr:`cached_info`.

        Args:
            subjects_filter: List the subjects that match this filter in ``info.state.subjects``,
                with the number of messages of each. ``">"`` matches all. jetsync sends one request
                for each 100,000 subjects. For each request, the server lists all matching subjects,
                which takes about 1 second for 1 million subjects.
            deleted_details: List the sequences of deleted messages in ``info.state.deleted``.
            timeout: Seconds for all requests together. Without it, each request has the default
                timeout of the context.

        Raises:
            StreamNotFoundError: The stream was deleted.
        """
        context = self._context
        deadline = context.deadline(timeout)
        info = _stream_admin.read_info(
            context,
            self._name,
            lambda send: send(context.deadline(None) if timeout is None else deadline),
            subjects_filter=subjects_filter,
            deleted_details=deleted_details,
        )
        return self._keep(info)

    def _keep(self, info: StreamInfo) -> StreamInfo:
        self._info, self._is_looked_up = info, True
        return info

    def update(
        self,
        config: StreamConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[StreamFields],
    ) -> StreamInfo:
        """
        Change the configuration.

        With keywords alone, jetsync reads the current configuration and sends it back with your
        changes, including fields that this version of jetsync does not know. This takes two
        requests: a change that another client makes between them is lost. With an object, the
        server replaces the whole configuration, and unset fields return to their defaults.

        Args:
            config: The whole configuration. Keywords override its fields; the object itself does
                not change.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`StreamConfig` to change.

        Raises:
            NotSupportedError: The server ignored a field. It changed the others.
            ApiError: The server refused the change. Nothing was changed.
        """
        if config is None and "name" in fields:
            raise InvalidTypeError(
                f"stream {self._name!r} cannot be renamed: servers do not support it",
                argument="name",
            )
        deadline = self._context.deadline(timeout)
        # Checks the fields before anything is sent.
        given = self._name if config is None else config
        wanted = config_of(StreamConfig, given, fields, "Stream.update()")
        if config is None:
            now = _stream_admin.info(self._context, self._name, deadline).config
            wanted = attrs.evolve(now, **fields)
        if wanted.name is None:
            wanted = attrs.evolve(wanted, name=self._name)
        if wanted.name != self._name:
            raise InvalidArgumentError(
                f"the configuration is for stream {wanted.name!r}, not {self._name!r}",
                argument="name",
            )
        return self._keep(_stream_admin.update(self._context, wanted, deadline))

    def delete(self, *, timeout: Seconds | None = None) -> None:
        """
        Delete the stream with its messages and consumers.

        Raises:
            StreamNotFoundError: The stream does not exist any more.
        """
        _stream_admin.delete(self._context, self._name, self._context.deadline(timeout))

    def purge(
        self,
        subject: str | None = None,
        *,
        sequence: int | None = None,
        keep: int | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Remove messages from the stream and return how many were removed.

        Without arguments, the call removes all messages. Servers read 0 as "not given", so
        ``keep=0`` removes every message of the subject or stream, **and so does** ``sequence=0``.

        Args:
            subject: Remove only messages of this subject or wildcard.
            sequence: Remove only messages before this sequence.
            keep: Keep this number of messages, the newest ones. With *subject*, the newest ones
                that match.
            timeout: Seconds for the request.

        Raises:
            InvalidArgumentError: Both ``sequence`` and ``keep`` are given.
        """
        request: dict[str, Any] = {} if subject is None else {"filter": validate_filter(subject)}
        if sequence is not None:
            request["seq"] = whole_number("sequence", sequence, 0)
        check_exclusive(sequence=sequence, keep=keep)
        if keep is not None:
            request["keep"] = whole_number("keep", keep, 0)
        deadline = self._context.deadline(timeout)
        if sequence == 1:
            # No message has a lower sequence, but servers before 2.14 remove all messages.
            self._current(deadline)
            return 0
        answer = self._api("PURGE", request or None, deadline)
        return read_count(answer.get("purged", 0), "the number of purged messages")

    def backup(
        self,
        path: str | os.PathLike[str],
        *,
        consumers: bool = True,
        check: bool = False,
        timeout: Seconds | None = None,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> StreamBackup:
        """
        Write a backup of the stream into a new folder, as the ``nats`` command line does.

        The backup has the messages that were in the stream when it began. Messages may be published
        meanwhile. The folder appears when all files are written and on the disk. If the call fails
        before, also by Ctrl-C, nothing is left. :meth:`JetStream.restore_stream` restores it.

        jetsync writes each chunk of the data before it asks for more, so the call needs about 10 MB
        of memory. Servers end a backup if the client is slower than 5 seconds, or 2 seconds before
        server 2.12. Servers before 2.15 cannot back up streams that are stored in memory.

        Args:
            path: The folder. It must be empty, or not exist. An empty one is replaced, so it must
                not be the current folder or a mount point.
            consumers: Whether the backup has the consumers and what they have acknowledged.
            check: Whether servers before 2.15 verify the checksums of all messages first. They
                leave out messages that they cannot read otherwise, without an error before 2.12.
                Later servers verify each message when they send it.
            timeout: Seconds without progress. The default is 60, and the timeout of the context
                for the first answer. A check shows no progress, and may take longer.
            on_progress: Called with the number of bytes that were written, before the server
                compressed them, and the number expected. The latter is an estimate.

        Raises:
            FileExistsError: There is something at *path*. Nothing was sent.
            OSError: A file cannot be written.
            StreamNotFoundError: The stream was deleted.
            ApiError: The server refused the backup, for example because it has another one to make.
            PermissionDeniedError: The user may not ask for a backup, or not acknowledge the chunks.
            BackupError: The server ended the backup, the connection was lost, or there was no
                progress.
        """
        return back_up(
            self._context,
            self._name,
            path,
            consumers=consumers,
            check=check,
            timeout=timeout,
            on_progress=on_progress,
        )

    def _api(self, verb: str, request: Mapping[str, Any] | None, deadline: Deadline) -> Any:
        """Send a request about this stream."""
        endpoint = f"STREAM.{verb}.{self._name}"
        return self._context.api(endpoint, request, deadline, stream=self._name)

    # Consumers

    def create_consumer(
        self,
        consumer: str | ConsumerConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """
        Create a consumer, or return the existing one if it has the same configuration.

        With a name as the first argument, the consumer is durable: ``create_consumer("worker")``
        stays until you delete it. If ``inactive_threshold`` is set, the server deletes it after
        this number of seconds without activity. Without a name, or with only the keyword ``name``,
        the consumer is ephemeral: the server deletes it after 5 seconds of inactivity unless
        ``inactive_threshold`` is set.

        Messages have to be acknowledged one by one unless ``ack_policy`` says otherwise. jetsync
        logs a warning if a filter matches no subject of the stream. The server accepts such a
        consumer, but this filter matches no new message.

        Args:
            consumer: The durable name, or the configuration as an object.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`ConsumerConfig`. They override those of an object, which is
                not changed.

        Raises:
            ConsumerExistsError: A consumer of that name has another configuration.
            NotSupportedError: The server ignored a field. The consumer exists without it.
            ApiError: The server refused the configuration. No consumer was created.
        """
        return self._put_consumer("create", consumer, fields, timeout)

    def update_consumer(
        self,
        consumer: str | ConsumerConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """
        Change the configuration of an existing consumer, durable or not.

        With a name, jetsync reads the current configuration and sends it back with your changes:
        ``stream.update_consumer("worker", max_ack_pending=50)``. With an object, the server
        replaces the whole configuration, as with :meth:`update`.

        Args:
            consumer: The name of the consumer, or its whole configuration as an object.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`ConsumerConfig` to change.

        Raises:
            ConsumerNotFoundError: The consumer does not exist. If *consumer* is an object, the
                error is the subclass ConsumerDoesNotExistError.
            ApiError: The server refused the change, for example of the deliver policy.
        """
        return self._put_consumer("update", consumer, fields, timeout)

    def create_or_update_consumer(
        self,
        consumer: str | ConsumerConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """
        Create a consumer, or replace the whole configuration of the existing one.

        Args, Raises: as :meth:`create_consumer`, without ``ConsumerExistsError``.
        """
        return self._put_consumer("create_or_update", consumer, fields, timeout)

    def consumer(
        self, name: str, *, lookup: bool = True, timeout: Seconds | None = None
    ) -> Consumer:
        """
        Return an existing consumer.

        Args:
            name: The consumer.
            lookup: Ask the server for the consumer's info. With False, nothing is sent, so the user
                needs no permission for that request, and ``cached_info`` has only the names.
                jetsync then takes the consumer for a pull consumer with explicit acknowledgements
                and without priority groups. If there is no such consumer, the first read says so.
            timeout: Seconds for the request.

        Raises:
            ConsumerNotFoundError: The stream has no consumer of that name.
            PermissionDeniedError: The user may not ask for the info.
        """
        if not lookup:
            config = ConsumerConfig(name=validate_name("consumer", name))
            return self._consumer(ConsumerInfo(stream_name=self._name, name=name, config=config))
        deadline = self._context.deadline(timeout)
        return self._consumer(_consumer_admin.info(self._context, self._name, name, deadline))

    def ordered_consumer(
        self,
        *,
        filter_subjects: str | Sequence[str] | None = None,
        deliver_policy: DeliverPolicyInput | None = None,
        opt_start_seq: int | None = None,
        opt_start_time: dt.datetime | None = None,
        replay_policy: ReplayPolicyInput | None = None,
        inactive_threshold: Seconds | None = None,
        headers_only: bool | None = None,
        max_reset_attempts: int = -1,
        name_prefix: str | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
    ) -> OrderedConsumer:
        """
        Return a reader of the stream, or of a part of it, in order, without gaps or duplicates.

        The call creates an ephemeral consumer in the server's memory, without acknowledgements.

        Args:
            filter_subjects: One or more subjects or wildcards to read. Default: all.
            deliver_policy: Where to begin. Default: at *opt_start_seq* or *opt_start_time* if one
                is given, otherwise at the first message.
            opt_start_seq: The stream sequence to begin at.
            opt_start_time: The time to begin at, as an aware datetime, instead of *opt_start_seq*.
            replay_policy: How fast the server sends.
            inactive_threshold: Seconds without a read after which the server deletes the consumer.
                Default: 300.
            headers_only: Leave out the payloads.
            max_reset_attempts: How many consecutive attempts to replace the consumer may fail. With
                -1, jetsync tries until a server reports that the stream does not exist.
            name_prefix: The start of the consumer's name. No other ordered consumer of the stream
                may use the same prefix. Default: a random prefix.
            metadata: As in :class:`ConsumerConfig`.
            timeout: Seconds for all requests together.

        Raises:
            InvalidArgumentError: The options exclude each other. Nothing was sent.
            NotSupportedError: The stream is a work queue. Its consumers must acknowledge messages.
            StreamNotFoundError: The stream was deleted.
        """
        try:
            return open_ordered(
                self._context,
                self._name,
                self._info,
                self._context.deadline(timeout),
                filter_subjects,
                deliver_policy=deliver_policy,
                opt_start_seq=opt_start_seq,
                opt_start_time=opt_start_time,
                replay_policy=replay_policy,
                inactive_threshold=inactive_threshold,
                headers_only=headers_only,
                max_reset_attempts=max_reset_attempts,
                name_prefix=name_prefix,
                metadata=None if metadata is None else dict(metadata),
            )
        except ApiError as error:
            if error.err_code != ACKS_REQUIRED:
                raise
            raise NotSupportedError(
                f"an ordered consumer of work queue {self._name!r}",
                needs="a stream with another retention; scan() reads a work queue",
            ) from error

    def dead_letters(
        self,
        consumer: str,
        subject: str,
        *,
        advisories: str | None = None,
        idle: Seconds | None = None,
        timeout: Seconds | None = None,
    ) -> Iterator[StoredMessage]:
        """
        Copy the messages whose workers died, and yield each message after its copy is stored.

        ``consume`` with ``dead_letter`` copies the messages that its handler gives up. It cannot do
        so if its process dies during the last delivery that ``max_deliver`` allows, or if the copy
        could not be stored. Only the server then knows that the message is given up. It says so
        once, in an *advisory*. Run this iterator in one or more processes, all the time: it
        listens to the advisories, and stores the same copy as the worker. The reason in the copy
        only says how often the message was delivered: it cannot know whether a handler failed. A
        message that has a copy gets no second one. The server is then told to keep the message no
        longer for this consumer.

        Advisories are lost while no iterator runs, unless a stream stores them. If this stream is a
        work queue, it still has these messages, and the iterator finds them as soon as no message
        of the consumer is in flight. On other streams, servers do not tell which messages were
        given up, so let a stream store the advisories.

        A copy that cannot be stored is tried again after 1, 2, 4, ... seconds, at most 30. Events
        and the log report it. One call at a time may take the next message. The iteration ends when
        the client is closed or drained.

        Args:
            consumer: The consumer, with ``ack_policy`` explicit and a ``max_deliver``.
            subject: The subject of the copies, as *dead_letter* in :meth:`Consumer.consume`.
            advisories: A stream that stores the subject
                ``$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.<stream>.<consumer>`` or a wildcard for
                it. The call creates a durable consumer on it. Default: listen only.
            idle: End after this many seconds without a message. Default: no end.
            timeout: Seconds for all requests of this call together.

        Raises:
            InvalidArgumentError, InvalidSubjectError: An argument is invalid, the server never
                gives up messages of this consumer, or the consumer would get its own dead letters.
            ConsumerNotFoundError: The stream has no consumer of that name.
            NoStreamResponseError: No stream stores the subject.
            PermissionDeniedError: The user may not listen to the advisories, or may not read the
                stream. Raised when the first message is taken.
        """
        return open_dead_letters(
            self._context,
            self._name,
            consumer,
            subject,
            self._context.deadline(timeout),
            advisories=advisories,
            idle=idle,
        )

    def delete_consumer(self, name: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete a consumer.

        Raises:
            ConsumerNotFoundError: The stream has no consumer of that name.
        """
        deadline = self._context.deadline(timeout)
        _consumer_admin.delete(self._context, self._name, name, deadline)

    def consumers(self, *, timeout: Seconds | None = None) -> Iterator[Consumer]:
        """
        Iterate over the consumers. Pages of 256 are requested as you need them.

        The iterator yields no consumer twice, even if consumers are created or deleted during the
        iteration.

        Args:
            timeout: Seconds for each page.
        """
        endpoint = f"CONSUMER.LIST.{self._name}"
        found = pages(self._context, endpoint, {}, timeout, stream=self._name)
        made = (self._consumer(from_wire(ConsumerInfo, each)) for each in found)
        return Iteration(made, "list of consumers")

    def consumer_names(self, *, timeout: Seconds | None = None) -> Iterator[str]:
        """
        Iterate over the names of the consumers, like :meth:`consumers`, in pages of 1024.
        """
        endpoint = f"CONSUMER.NAMES.{self._name}"
        names = pages(self._context, endpoint, {}, timeout, stream=self._name)
        return Iteration(names, "list of consumers")

    def pause_consumer(
        self, name: str, until: dt.datetime, *, timeout: Seconds | None = None
    ) -> PauseState:
        """
        Stop the delivery of a consumer until a time. Meanwhile, pulls wait and get heartbeats.

        Args:
            name: The consumer.
            until: An aware datetime. A time in the past resumes the delivery.
            timeout: Seconds for all requests together.

        Raises:
            InvalidTypeError, InvalidArgumentError: *until* is not an aware datetime.
            ConsumerNotFoundError: The stream has no consumer of that name.
            NotSupportedError: The server is older than 2.11.
        """
        end = aware(until, "until")
        deadline = self._context.deadline(timeout)
        return _consumer_admin.pause(self._context, self._name, name, end, deadline)

    def resume_consumer(self, name: str, *, timeout: Seconds | None = None) -> PauseState:
        """
        End the pause of a consumer; does nothing if it is not paused.

        Raises: as :meth:`pause_consumer`.
        """
        deadline = self._context.deadline(timeout)
        return _consumer_admin.pause(self._context, self._name, name, None, deadline)

    def unpin_consumer(self, name: str, group: str, *, timeout: Seconds | None = None) -> None:
        """
        Unpin the client of a priority group. The server then pins the client of the next pull.

        With the priority policy ``pinned_client``, the *pinned* client gets all messages of the
        group.

        Raises:
            ConsumerNotFoundError: The stream has no consumer of that name.
            PriorityGroupNotFoundError: The consumer has no such group.
            NotSupportedError: The server is older than 2.11.
        """
        deadline = self._context.deadline(timeout)
        consumer = (self._name, name)
        _consumer_admin.command(self._context, "UNPIN", consumer, {"group": group}, deadline)

    def reset_consumer(
        self, name: str, sequence: int | None = None, *, timeout: Seconds | None = None
    ) -> ConsumerReset:
        """
        Move a consumer to another position in the stream, to read messages again or to skip some.

        Needs server 2.14.

        Args:
            name: The consumer.
            sequence: The stream sequence to continue at. Default: that of the first message that is
                not acknowledged.
            timeout: Seconds for all requests together.

        Raises:
            ConsumerNotFoundError: The stream has no consumer of that name.
            InvalidResetError: The consumer's configuration does not allow this sequence, for
                example because it is before the configured start.
            NotSupportedError: The server is older than 2.14.
        """
        deadline = self._context.deadline(timeout)
        body = None if sequence is None else {"seq": whole_number("sequence", sequence)}
        consumer = (self._name, name)
        answer = _consumer_admin.command(self._context, "RESET", consumer, body, deadline)
        reset_seq = read_count(answer.pop("reset_seq", None), "reset_seq")
        return ConsumerReset(reset_seq=reset_seq, info=from_wire(ConsumerInfo, answer))

    def _put_consumer(
        self,
        action: Action,
        given: str | ConsumerConfig | None,
        fields: Mapping[str, Any],
        timeout: Seconds | None,
    ) -> Consumer:
        context, stream, deadline = self._context, self._name, self._context.deadline(timeout)
        # Checks the fields before anything is sent. A plain name means a durable consumer.
        base = ConsumerConfig() if given is None else given
        what = f"{action}_consumer()"
        config = config_of(ConsumerConfig, base, fields, what, key="durable_name")
        name = config.durable_name or config.name
        if action == "update" and name and not isinstance(given, ConsumerConfig):
            now = _consumer_admin.info(context, stream, name, deadline).config
            config = attrs.evolve(now, **fields)
        info = _consumer_admin.create(context, stream, config, deadline, action)
        if action != "update":
            filters = _consumer_admin.filters_of(info.config)
            _consumer_admin.warn_about_filters(
                context, (stream, info.name), filters, self._info.config, deadline
            )
        return self._consumer(info)

    def _consumer(self, info: ConsumerInfo) -> Consumer:
        return Consumer(self._context, self._name, info)

    # Single messages

    def get_message(
        self, sequence: int, *, direct: bool | None = None, timeout: Seconds | None = None
    ) -> StoredMessage:
        """
        Read the message with this sequence.

        Args:
            sequence: The stream sequence, from 1.
            direct: ``True`` sends a *direct get*, which any replica or a mirror of the stream may
                answer. ``False`` asks the leader. ``None``, the default, sends a direct get if the
                stream allows it. Then jetsync also asks the leader if no message is found, or if
                the answer comes from a mirror that may have fewer messages than the stream.
            timeout: Seconds for all requests together.

        Raises:
            MessageNotFoundError: The message was removed or never existed.
            DirectNotSupportedError: ``direct=True``, and the stream does not allow direct gets.
        """
        request = {"seq": whole_number("sequence", sequence)}
        return self._read("get_message", request, self._context.deadline(timeout), direct=direct)

    def get_last(
        self, subject: str, *, direct: bool | None = None, timeout: Seconds | None = None
    ) -> StoredMessage:
        """
        Read the last message of a subject.

        Args:
            subject: The subject. For a wildcard, the call reads the last message that matches.
            direct: As in :meth:`get_message`.
            timeout: Seconds for all requests together.

        Raises:
            MessageNotFoundError: The subject has no message.
            DirectNotSupportedError: ``direct=True``, and the stream does not allow direct gets.
        """
        request = {"last_by_subj": validate_filter(subject)}
        return self._read("get_last", request, self._context.deadline(timeout), direct=direct)

    def get_next(
        self,
        subject: str,
        sequence: int = 1,
        *,
        direct: bool | None = None,
        timeout: Seconds | None = None,
    ) -> StoredMessage:
        """
        Read the first message of a subject at or after a sequence.

        Args:
            subject: The subject or wildcard.
            sequence: The stream sequence to begin at, from 1.
            direct: As in :meth:`get_message`.
            timeout: Seconds for all requests together.

        Raises:
            MessageNotFoundError: There is no such message.
            DirectNotSupportedError: ``direct=True``, and the stream does not allow direct gets.
        """
        request = {
            "seq": whole_number("sequence", sequence),
            "next_by_subj": validate_filter(subject),
        }
        return self._read("get_next", request, self._context.deadline(timeout), direct=direct)

    def get_at(
        self,
        time: dt.datetime | int,
        *,
        direct: bool | None = None,
        timeout: Seconds | None = None,
    ) -> StoredMessage:
        """
        Read the first message that was stored at or after a time. Needs server 2.11 or later.

        Args:
            time: An aware datetime, or nanoseconds since 1970, inclusive.
            direct: As in :meth:`get_message`.
            timeout: Seconds for all requests together.

        Raises:
            MessageNotFoundError: No message was stored since then.
            NotSupportedError: The server is older than 2.11.
            DirectNotSupportedError: ``direct=True``, and the stream does not allow direct gets.
        """
        request = {"start_time": format_time(time, "time")}
        deadline = self._context.deadline(timeout)
        check_stream(
            self._context, self._name, deadline, feature="a read from a time", direct=False
        )
        return self._read("get_at", request, deadline, direct=direct)

    # Many messages

    def get_batch(
        self,
        batch: int,
        *,
        sequence: int | None = None,
        subject: str | None = None,
        start_time: dt.datetime | int | None = None,
        max_bytes: int | None = None,
        timeout: Seconds | None = None,
    ) -> DirectBatch:
        """
        Read up to *batch* messages in stored order, without a consumer (ADR-31).

        Any replica of the stream may answer, or a mirror of the whole stream. If it has fewer than
        *batch* messages, jetsync asks the leader for more. If there is no message, the
        batch is empty. To continue after a batch, begin at its ``last_sequence`` + 1, or use
        :meth:`scan` instead. The call returns when the first messages have arrived.

        Args:
            batch: Maximum number of messages.
            sequence: The stream sequence to begin at, from 1. Default: 1.
            subject: Read only messages of this subject or wildcard.
            start_time: The time to begin at, instead of a sequence: an aware datetime, or
                nanoseconds since 1970, inclusive.
            max_bytes: Stop when the subjects, headers and payloads have this size in bytes. The
                message that reaches it is included.
            timeout: Seconds for the call, and then for each further page of the batch.

        Raises:
            DirectNotSupportedError: The stream does not allow direct gets.
            IncompleteMirrorError: Only a mirror answers, and it may lack messages of the stream.
            NotSupportedError: The server is older than 2.11.
            InvalidArgumentError: The arguments exclude each other or are not valid.
        """
        deadline = self._context.deadline(timeout)
        wanted = None if subject is None else validate_filter(subject)
        engine = BatchRead(
            self._name,
            limit=whole_number("batch", batch),
            size_limit=optional_number("max_bytes", max_bytes),
            page_bytes=PAGE_BYTES,
            subject=wanted,
            **page_sizes(None, wanted),
            **beginning(sequence, start_time, "sequence"),
        )
        known = check_stream(self._context, self._name, deadline)
        plan = SequencePlan(engine, alone=(known.config.num_replicas or 1) == 1)
        return DirectBatch(self._open_reader("get_batch", plan, deadline))

    def get_last_for(
        self,
        subjects: Iterable[str] | str,
        *,
        up_to_sequence: int | None = None,
        up_to_time: dt.datetime | int | None = None,
        batch: int | None = None,
        split: bool = True,
        reread: bool = False,
        timeout: Seconds | None = None,
    ) -> DirectBatch:
        """
        Read a consistent snapshot of the last messages of many subjects (ADR-31).

        The snapshot shows the current state, or the state at the sequence or time that you give.
        The batch's ``up_to_sequence`` is the sequence of the snapshot. Large snapshots take several
        requests. The result leaves out subjects without a message, and messages that were removed
        before the read. If a message is removed *during* the read, the batch lists its subject in
        ``missing``.

        The batch yields messages in the order in which they were stored. If jetsync has to split
        the subjects, it reads groups of up to 1,024 subjects in alphabetical order. Then messages
        are in stored order only within a group.

        Any replica of the stream may answer, or a mirror of the whole stream. Either may lag
        slightly behind the leader. jetsync asks the leader before it returns an empty result.

        Args:
            subjects: Subjects and wildcards.
            up_to_sequence: Read the state when this was the last sequence.
            up_to_time: Read the state right before this time: an aware datetime, or nanoseconds
                since 1970. A message of exactly this time is left out.
            batch: Maximum number of messages per request.
            split: If more subjects match than a server accepts (1,024), list them and request up to
                1,024 at a time.
            reread: Read the current messages of the subjects that would be in ``missing``. The
                batch yields these messages last, and their sequences are above ``up_to_sequence``.
                The batch lists their subjects in ``later``.
            timeout: Seconds for the call, and then for each further page. Without it, each request
                has the default timeout of the context. If more than 1,024 subjects match a
                wildcard, the call lists the stream's subjects, as :meth:`info` does. Allow 20
                seconds for 1 million.

        Raises:
            TooManySubjectsError: With ``split=False``, more than 1,024 subjects match.
            DirectNotSupportedError: The stream does not allow direct gets.
            IncompleteMirrorError: Only a mirror answers, and it may lack messages of the stream.
            NotSupportedError: The server is older than 2.11.
            InvalidArgumentError: There is no subject, or the arguments exclude each other.
        """
        deadline = self._context.deadline(timeout)
        names = subject_filters(subjects)
        check_exclusive(up_to_sequence=up_to_sequence, up_to_time=up_to_time)
        moment = optional_number("up_to_sequence", up_to_sequence)
        before = None if up_to_time is None else format_time(up_to_time, "up_to_time")
        page = optional_number("batch", batch)
        known = check_stream(self._context, self._name, deadline)
        if moment is not None and moment > self._info.state.last_seq:
            # With a sequence in the future, the next page would contain newer messages.
            moment = min(moment, self._current(deadline).state.last_seq) or None
        plan = LastPlan(
            context=self._context,
            stream=self._name,
            subjects=names,
            moment=moment,
            up_to_time=before,
            finds_times=known.finds_times,
            page=page,
            split=split,
            reread=reread,
        )
        # Without a timeout, each request of a long list of subjects has the default.
        reader = self._open_reader("get_last_for", plan, deadline, patient=timeout is None)
        return DirectBatch(reader, plan)

    def scan(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        start_time: dt.datetime | int | None = None,
        subject: str | None = None,
        page: int | None = None,
        max_bytes: int | None = None,
        timeout: Seconds | None = None,
    ) -> StreamScan:
        """
        Iterate over the stream's messages in order, page by page, without a consumer.

        The call asks the server for the stream's info first, and keeps it as :attr:`cached_info`.
        The scan ends at the message that was the last one of the stream then. It leaves out
        messages that are deleted before their page is read. jetsync reads at most one page
        ahead. After a lost connection, the scan continues after the last message that it received.
        Any replica of the stream may answer, or a mirror of the whole stream. When a replica or
        mirror has no more messages, jetsync asks the leader.

        Args:
            start: The first sequence. Default: 1.
            end: The last sequence. Default: the stream's last one at the time of the call.
            start_time: The time to begin at, instead of a sequence: an aware datetime, or
                nanoseconds since 1970, inclusive.
            subject: Read only messages of this subject or wildcard.
            page: Maximum number of messages per request. Default: 4,000. If *subject* has a
                wildcard, the default grows to 32,000 during the scan, because the server looks at
                all matching subjects before each page.
            max_bytes: Size of a page in bytes, counted as in :meth:`get_batch`. Default: 2 MiB. At
                most two pages are in memory.
            timeout: Seconds for the call, and then for each further page.

        Raises:
            DirectNotSupportedError: The stream does not allow direct gets.
            IncompleteMirrorError: Only a mirror answers, and it may lack messages of the stream.
            NotSupportedError: The server is older than 2.11.
            InvalidArgumentError: The arguments exclude each other or are not valid.
            StreamNotFoundError: The stream was deleted. During the iteration, this is also raised
                if another stream now has its name.
        """
        deadline = self._context.deadline(timeout)
        where = beginning(start, start_time, "start")
        last = optional_number("end", end, 0)
        # A range without messages ends right before its start.
        if start is not None and last is not None and last < start - 1:
            raise InvalidArgumentError(f"end {last} lies before start {start}", argument="end")
        page_size = optional_number("page", page)
        page_bytes = optional_number("max_bytes", max_bytes) or PAGE_BYTES
        wanted = None if subject is None else validate_filter(subject)
        check_stream(self._context, self._name, deadline)
        known = self._keep(self._current(deadline))
        if last is None:
            last = known.state.last_seq
        sizes = page_sizes(page_size, wanted)
        engine = BatchRead(
            self._name, subject=wanted, end=last, page_bytes=page_bytes, **sizes, **where
        )
        if engine.reached_end or not last:
            engine.stop()
        plan = SequencePlan(engine, end=last, known=known)
        return StreamScan(self._open_reader("scan", plan, deadline))

    def _current(self, deadline: Deadline) -> StreamInfo:
        """Ask the server for the stream."""
        return connected(
            self._context,
            lambda until: _stream_admin.info(self._context, self._name, until),
            deadline,
        )

    def _open_reader(
        self, call: str, plan: ReadPlan, deadline: Deadline, *, patient: bool = False
    ) -> PageReader:
        """Start a read and wait for its first messages."""
        reader = PageReader(
            self._context, self._name, plan, name=call, seconds=deadline.total, patient=patient
        )
        reader.begin(deadline)
        return reader

    # Counters

    def counter(self, subject: str) -> Counter:
        """
        Return the counter of a subject (ADR-49). Sends no request.

        The counter does not have to exist yet.

        Raises:
            InvalidSubjectError: The subject is not valid for publishing.
        """
        return Counter(self._context, self, subject)

    def counters(
        self, subjects: Iterable[str] | str = ">", *, timeout: Seconds | None = None
    ) -> dict[str, CounterEntry]:
        """
        Return the counters of many subjects, by subject.

        The values come from one snapshot. There is one exception: if a counter changes during the
        read and the stream no longer has its old value, the result has the new value.

        Args:
            subjects: Subjects and wildcards. Subjects without a counter are left out.
            timeout: As for :meth:`get_last_for`.

        Raises:
            CounterDisabledError: The stream does not hold counters.
            DirectNotSupportedError, NotSupportedError: As for :meth:`get_last_for`.
        """
        found = self.get_last_for(subjects, reread=True, timeout=timeout)
        return {message.subject: read_entry(message, self) for message in found}

    def schedules(
        self, subjects: Iterable[str] | str = ">", *, timeout: Seconds | None = None
    ) -> list[Schedule]:
        """
        List the schedules of the stream (ADR-51), in stored order. ``JetStream.schedule`` makes
        them.

        jetsync reads the headers of the last message of each subject. So if the stream has many
        subjects, give those of the schedules. Schedules that change during the call may be missing.

        Args:
            subjects: Subjects and wildcards that store schedules. They must not overlap.
            timeout: Seconds for the whole call. If the server stops answering, a call with less
                than 2 seconds may take up to 2 seconds longer.

        Raises:
            SchedulesDisabledError: The stream does not allow schedules.
            RequestTimeoutError: Not all schedules arrived in time.
        """
        filters = subject_filters(subjects)
        deadline = self._context.deadline(timeout)
        known = self._info
        if not known.config.allow_msg_schedules:
            # It may have been updated since.
            known = self.info(timeout=deadline.remaining())
        return read_schedules(self._context, self._name, known, filters, deadline)

    def cancel_schedule(self, subject: str, *, timeout: Seconds | None = None) -> bool:
        """
        Remove the schedule of a subject, so that the server publishes no more of its messages.

        Messages that it has published stay. You can repeat the call, for example if its answer was
        lost.

        Args:
            subject: The subject that stores the schedule, not its target.
            timeout: Seconds for all requests together.

        Returns:
            Whether there was a schedule. False if the server has published its only message.

        Raises:
            ApiError: The stream does not allow clients to delete messages (``deny_delete``).
        """
        validate_subject(subject)
        deadline = self._context.deadline(timeout)
        while True:
            try:
                last = self.get_last(subject, direct=False, timeout=deadline.remaining())
                if SCHEDULE not in last.headers:
                    return False
            except MessageNotFoundError:
                return False
            try:
                # By its sequence, so that nothing else on the subject is removed.
                self.delete_message(last.sequence, timeout=deadline.remaining())
            except MessageNotFoundError:
                # It was replaced meanwhile, or the server has published its message.
                continue
            return True

    def delete_message(
        self,
        sequence: int,
        *,
        secure: bool = False,
        timeout: Seconds | None = None,
    ) -> None:
        """
        Delete the message with this sequence. The sequence is never used again.

        Args:
            sequence: The stream sequence, from 1.
            secure: Overwrite the message on disk with random bytes, which is slower.
            timeout: Seconds for the request.

        Raises:
            MessageNotFoundError: The stream does not have the message.
        """
        request = {"seq": whole_number("sequence", sequence), "no_erase": not secure}
        try:
            self._api("MSG.DELETE", request, self._context.deadline(timeout))
        except ApiError as error:
            if error.err_code != SEQUENCE_NOT_FOUND and (
                error.err_code != DELETE_FAILED or error.description not in _MISSING
            ):
                raise
            raise MessageNotFoundError(
                code=error.code,
                err_code=error.err_code,
                description=f"message {sequence} not found",
                stream=self._name,
            ) from None

    def _read(
        self, name: str, request: Mapping[str, Any], deadline: Deadline, *, direct: bool | None
    ) -> StoredMessage:
        """
        Read one message, from the leader or by a direct get.
        """
        context = self._context
        if direct is None:
            # Without a lookup it is not known whether the stream allows direct gets.
            tries_direct = self._info.config.allow_direct or not self._is_looked_up
            get = confirmed_get if tries_direct else leader_get
        else:
            get = direct_get if direct else leader_get
        if request.get("last_by_subj") == ">":
            get = partial(last_of_all, get)
        enter = context.plugins.enter_fetch
        if enter is None:
            message = get(context, self._name, request, deadline)
        else:
            subject = request.get("last_by_subj") or request.get("next_by_subj")
            operation = DirectReadOperation(
                name=name,
                stream=self._name,
                subjects=() if subject is None else (subject,),
                sequence=request.get("seq"),
            )
            message = enter(operation).run(lambda: get(context, self._name, request, deadline))
        show = shown_by(context)
        return message if show is None else show(message)
