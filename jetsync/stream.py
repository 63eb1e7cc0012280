"""
One stream: its configuration, its contents, its consumers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from jetsync._api import consumers as _consumer_admin
from jetsync._api import messages as _messages
from jetsync._api import streams as _stream_admin
from jetsync._api.requests import sequence_number
from jetsync.consume.consumer import Consumer
from jetsync.consume.ordered import open_ordered
from jetsync.counters import Counter, read_entries
from jetsync.errors import InvalidArgumentError
from jetsync.events import DirectReadOperation
from jetsync.read import direct as _direct
from jetsync.read.pages import check_stream
from jetsync.values.codec import time_text
from jetsync.values.subjects import validate_filter

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Unpack

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline, Seconds
    from jetsync.consume.ordered import OrderedConsumer
    from jetsync.counters import CounterEntry
    from jetsync.read.direct import DirectBatch, StreamScan
    from jetsync.values.consumer_config import (
        ConsumerConfig,
        ConsumerFields,
        DeliverPolicyInput,
        ReplayPolicyInput,
    )
    from jetsync.values.consumer_info import ConsumerInfo, ConsumerReset, PauseState
    from jetsync.values.stored import StoredMessage
    from jetsync.values.stream_config import StreamConfig, StreamFields
    from jetsync.values.stream_info import StreamInfo

__all__ = ["Stream"]


class Stream:
    """
    A stream on a server.

    Made by :class:`~jetsync.JetStream`, not by hand. A handle holds no resources on the server and
    needs no closing; any number of threads may share one. Every call sends requests of its own and
    has a ``timeout`` in seconds for all of them together, ``None`` for the context's default.
    """

    __slots__ = ("_context", "_info", "_name")

    def __init__(self, context: Context, info: StreamInfo) -> None:
        self._context = context
        self._name = info.config.name or ""
        self._info = info

    def __repr__(self) -> str:
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
        What the server said last, on whichever call; asks nothing.
        """
        return self._info

    @property
    def config(self) -> StreamConfig:
        """
        The configuration as of :attr:`cached_info`. To change it, see :meth:`update`.
        """
        return self._info.config

    # The stream itself

    def info(
        self,
        subjects_filter: str | None = None,
        *,
        deleted_details: bool = False,
        timeout: Seconds | None = None,
    ) -> StreamInfo:
        """
        Ask the server for the stream and keep the answer as :attr:`cached_info`.

        Args:
            subjects_filter: Also count the messages of each subject that this matches, ``">"`` for
                all, into ``info.state.subjects``. Servers give 100 000 subjects at a time; as many
                requests as that takes are sent.
            deleted_details: Also list the sequences of deleted messages in ``info.state.deleted``.
            timeout: Seconds for all requests together.

        Raises:
            StreamNotFoundError: the stream is gone.
        """
        self._info = _stream_admin.info(
            self._context,
            self._name,
            self._context.deadline(timeout),
            subjects_filter=subjects_filter,
            deleted_details=deleted_details,
        )
        return self._info

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
        changes, including fields that this version does not know. Those are two requests: a change
        that another client makes between them is lost. With an object, the server replaces the
        whole configuration, and unset fields return to their defaults.

        Args:
            config: The whole configuration. Keywords override its fields; it is not changed.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`StreamConfig` to change.

        Raises:
            NotSupportedError: The server ignored a field. It changed the others.
            ApiError: The server refused. Nothing was changed.
        """
        deadline = self._context.deadline(timeout)
        wanted = _stream_admin.changed_config(
            self._context,
            self._name if config is None else config,
            fields,
            deadline,
            "Stream.update()",
        )
        if wanted.name is None:
            wanted = attrs.evolve(wanted, name=self._name)
        if wanted.name != self._name:
            raise InvalidArgumentError(
                f"the configuration is for stream {wanted.name!r}, this is {self._name!r}",
                argument="name",
            )
        self._info = _stream_admin.update(self._context, wanted, deadline)
        return self._info

    def delete(self, *, timeout: Seconds | None = None) -> None:
        """
        Delete the stream with its messages and consumers.

        Raises:
            StreamNotFoundError: it is gone already.
        """
        _stream_admin.delete(self._context, self._name, self._context.deadline(timeout))

    def purge(
        self,
        subject: str | None = None,
        sequence: int | None = None,
        keep: int | None = None,
        *,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Remove messages from the stream and return how many there were.

        Without arguments all of them. An explicit 0 is sent, and servers take it for "not given":
        ``keep=0`` removes every message of the subject or stream, as it says, **and so does**
        ``sequence=0``.

        Args:
            subject: Only messages under this subject or wildcard.
            sequence: Only messages before this sequence.
            keep: All but the last so many.
            timeout: Seconds for the request.

        Raises:
            InvalidArgumentError: both ``sequence`` and ``keep`` are given.
        """
        return _stream_admin.purge(
            self._context,
            self._name,
            self._context.deadline(timeout),
            subject=subject,
            sequence=sequence,
            keep=keep,
        )

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

        A name makes a durable consumer: ``create_consumer("worker")`` stays until it is deleted,
        or until it has been inactive for ``inactive_threshold`` seconds if that is set. Without a
        name, or with the keyword ``name`` alone, the consumer is ephemeral: the server deletes it
        after 5 seconds of inactivity unless ``inactive_threshold`` is set.

        Messages have to be acknowledged one by one unless ``ack_policy`` says otherwise. If a
        filter matches no subject of the stream, jetsync logs a warning: the server accepts such a
        consumer, which never gets a message.

        Args:
            consumer: The durable name, or the configuration as an object.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`ConsumerConfig`. They override those of an object, which is
                not changed.

        Raises:
            ConsumerExistsError: A consumer of that name has another configuration.
            NotSupportedError: The server ignored a field. The consumer exists without it.
        """
        deadline = self._context.deadline(timeout)
        wanted = _consumer_admin.wanted_config(consumer, fields, "create_consumer()")
        info = _consumer_admin.create(self._context, self._name, wanted, deadline)
        _consumer_admin.warn_about_filters(self._context, info, self._info.config, deadline)
        return self._consumer(info)

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
            ConsumerDoesNotExistError, ConsumerNotFoundError: The consumer does not exist.
            ApiError: The server refused, for example to change the deliver policy.
        """
        context, deadline = self._context, self._context.deadline(timeout)
        wanted = _consumer_admin.changed_config(context, self._name, consumer, fields, deadline)
        return self._consumer(_consumer_admin.update(context, self._name, wanted, deadline))

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
        deadline = self._context.deadline(timeout)
        wanted = _consumer_admin.wanted_config(consumer, fields, "create_or_update_consumer()")
        info = _consumer_admin.create_or_update(self._context, self._name, wanted, deadline)
        _consumer_admin.warn_about_filters(self._context, info, self._info.config, deadline)
        return self._consumer(info)

    def consumer(self, name: str, *, timeout: Seconds | None = None) -> Consumer:
        """
        Return the consumer of that name.

        Raises:
            ConsumerNotFoundError: there is none.
        """
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
        Return a reader of the stream in its order, without a gap and without a repeat.

        An ephemeral consumer is made at once, in the server's memory and without acknowledgements.

        Args:
            filter_subjects: One subject or several, perhaps with wildcards; None for all.
            deliver_policy: Where to begin; all unless one of the next two is given.
            opt_start_seq: The stream sequence to begin at.
            opt_start_time: The time to begin at, aware; not together with *opt_start_seq*.
            replay_policy: How fast.
            inactive_threshold: Seconds after which the server forgets the consumer when nobody
                reads; default: 300.
            headers_only: Leave the payloads out.
            max_reset_attempts: How often in a row making the consumer again may fail; -1 tries
                until servers say that the stream is gone.
            name_prefix: What the consumer's name starts with, for this reader alone; default: one
                that is made up.
            metadata: As in :class:`ConsumerConfig`.
            timeout: Seconds for all requests together.

        Raises:
            InvalidArgumentError: the options do not fit together; nothing was sent.
            StreamNotFoundError: the stream is gone.
        """
        return open_ordered(
            self._context,
            self._name,
            self._info,
            self._context.deadline(timeout),
            filter_subjects=filter_subjects,
            deliver_policy=deliver_policy,
            opt_start_seq=opt_start_seq,
            opt_start_time=opt_start_time,
            replay_policy=replay_policy,
            inactive_threshold=inactive_threshold,
            headers_only=headers_only,
            max_reset_attempts=max_reset_attempts,
            name_prefix=name_prefix,
            metadata=metadata,
        )

    def delete_consumer(self, name: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete a consumer.

        Raises:
            ConsumerNotFoundError: there is none of that name.
        """
        deadline = self._context.deadline(timeout)
        _consumer_admin.delete(self._context, self._name, name, deadline)

    def consumers(self, *, timeout: Seconds | None = None) -> Iterator[Consumer]:
        """
        Iterate over the consumers; pages of 256 are asked for as they are needed.

        Consumers may be made and deleted meanwhile: none is yielded twice.

        Args:
            timeout: Seconds for each page.
        """
        return map(self._consumer, _consumer_admin.infos(self._context, self._name, timeout))

    def consumer_names(self, *, timeout: Seconds | None = None) -> Iterator[str]:
        """
        Iterate over the names of the consumers; as :meth:`consumers`, in pages of 1024.
        """
        return _consumer_admin.names(self._context, self._name, timeout)

    def pause_consumer(
        self, name: str, until: dt.datetime, *, timeout: Seconds | None = None
    ) -> PauseState:
        """
        Let a consumer deliver nothing until a time. Pulls wait and get their heartbeats.

        Args:
            name: The consumer.
            until: An aware time; one that has passed lets it go on.
            timeout: Seconds for all requests together.

        Raises:
            ConsumerNotFoundError: there is none of that name.
            NotSupportedError: the server is older than 2.11.
        """
        deadline = self._context.deadline(timeout)
        return _consumer_admin.pause(self._context, self._name, name, until, deadline)

    def resume_consumer(self, name: str, *, timeout: Seconds | None = None) -> PauseState:
        """
        End the pause of a consumer; does nothing if it is not paused.

        Raises: as :meth:`pause_consumer`.
        """
        deadline = self._context.deadline(timeout)
        return _consumer_admin.pause(self._context, self._name, name, None, deadline)

    def unpin_consumer(self, name: str, group: str, *, timeout: Seconds | None = None) -> None:
        """
        Take the pin of a priority group from its client, so that the next pull gets it.

        Raises:
            ConsumerNotFoundError: there is no consumer of that name.
            PriorityGroupNotFoundError: it has no such group.
            NotSupportedError: the server is older than 2.11.
        """
        deadline = self._context.deadline(timeout)
        _consumer_admin.unpin(self._context, self._name, name, group, deadline)

    def reset_consumer(
        self, name: str, sequence: int | None = None, *, timeout: Seconds | None = None
    ) -> ConsumerReset:
        """
        Let a consumer begin again: what was delivered since then is delivered once more.

        Args:
            name: The consumer.
            sequence: The stream sequence to begin at; ``None`` means the first message that is not
                acknowledged.
            timeout: Seconds for all requests together.

        Raises:
            ConsumerNotFoundError: there is none of that name.
            InvalidResetError: the sequence lies before the consumer's own start.
            NotSupportedError: the server is older than 2.14.
        """
        deadline = self._context.deadline(timeout)
        return _consumer_admin.reset(self._context, self._name, name, sequence, deadline)

    def _consumer(self, info: ConsumerInfo) -> Consumer:
        return Consumer(self._context, self._name, info)

    # Single messages

    def get_message(
        self, sequence: int, *, direct: bool | None = None, timeout: Seconds | None = None
    ) -> StoredMessage:
        """
        Read the message with a sequence.

        Args:
            sequence: Its place in the stream, from 1.
            direct: ``True`` insists on a direct get and takes what any replica or mirror answers;
                ``False`` insists on the leader; ``None`` uses a direct get where the stream allows
                it, and asks the leader where that finds nothing, or a mirror answers that may have
                less than the stream.
            timeout: Seconds for all requests together.

        Raises:
            MessageNotFoundError: it was removed, or was never there.
            DirectNotSupportedError: ``direct=True`` and the stream does not allow it.
        """
        request = {"seq": sequence_number(sequence, "sequence")}
        return self._read("get_message", request, self._context.deadline(timeout), direct=direct)

    def get_last(
        self, subject: str, *, direct: bool | None = None, timeout: Seconds | None = None
    ) -> StoredMessage:
        """
        Read the last message of a subject.

        Args:
            subject: The subject; a wildcard means the last message that matches.
            direct: As in :meth:`get_message`.
            timeout: Seconds for all requests together.

        Raises:
            MessageNotFoundError: there is none.
            DirectNotSupportedError: ``direct=True`` and the stream does not allow it.
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
        Read the first message of a subject at a sequence or after it.

        Args:
            subject: The subject or wildcard.
            sequence: Where to begin to look, from 1.
            direct: As in :meth:`get_message`.
            timeout: Seconds for all requests together.

        Raises:
            MessageNotFoundError: there is none.
            DirectNotSupportedError: ``direct=True`` and the stream does not allow it.
        """
        request = {
            "seq": sequence_number(sequence, "sequence"),
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
        Read the first message that was stored at a time or after it.

        Needs server 2.11 or later: an older one does not know times.

        Args:
            time: An aware datetime, or nanoseconds since 1970, inclusive.
            direct: As in :meth:`get_message`.
            timeout: Seconds for all requests together.

        Raises:
            MessageNotFoundError: nothing was stored since.
            NotSupportedError: the server is too old.
            DirectNotSupportedError: ``direct=True`` and the stream does not allow it.
        """
        request = {"start_time": time_text(time, "time")}
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
        Read up to so many messages in the order they were stored, without a consumer (ADR-31).

        Any replica of the stream may answer, and a mirror that has all of it; the leader is asked
        before the batch ends early. Nothing there is not an error: the batch is empty. What more
        there is can be read from behind its ``last_sequence``; :meth:`scan` does so by itself. The
        call returns when the first messages are there.

        Args:
            batch: How many messages at most.
            sequence: Where to begin, from 1, which is the default.
            subject: Only messages of this subject or wildcard.
            start_time: When to begin, in place of a sequence: an aware datetime, or nanoseconds
                since 1970, inclusive.
            max_bytes: Stop after the message with which subjects, headers and payloads have so many
                bytes; there is at least one.
            timeout: Seconds to wait for the call, and then for each page that the batch takes.

        Raises:
            DirectNotSupportedError: the stream does not allow direct gets.
            IncompleteMirrorError: a mirror answers that has less than the stream, and nobody else.
            NotSupportedError: the server is older than 2.11.
            InvalidArgumentError: the arguments exclude each other or can not be used.
        """
        return _direct.get_batch(
            self._context,
            self._name,
            batch,
            sequence=sequence,
            subject=subject,
            start_time=start_time,
            max_bytes=max_bytes,
            timeout=timeout,
        )

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
        Read the last message of each of many subjects, all as of one moment (ADR-31).

        The moment is now, or the one that is asked for; it is told by the batch's
        ``up_to_sequence``. As many requests as it takes are sent, all for that moment. What the
        stream does not hold any more can not be read: subjects whose message was lost *while* this
        read was under way are in the batch's ``missing``, never dropped silently; what was gone
        before is not there. Subjects without a message are left out.

        Messages come in the order they were stored; where the subjects had to be split, in that
        order within each 1024 subjects, which are in alphabetical order.

        Any replica of the stream may answer, and a mirror that has all of it, and be a moment
        behind; the leader is asked before there is nothing at all.

        Args:
            subjects: Subjects and wildcards.
            up_to_sequence: As it was when this was the last sequence.
            up_to_time: As it was right before this time: an aware datetime, or nanoseconds since
                1970. A message of exactly this time is left out.
            batch: Messages of one request at most.
            split: Ask again, by name and for no more than 1024 subjects at once, where more of them
                match than a server allows.
            reread: Read the subjects in ``missing`` again, as they are now: their messages come
                last, are named in the batch's ``later``, and have sequences behind its
                ``up_to_sequence``.
            timeout: Seconds to wait for the call, and then for each page that the batch takes.

        Raises:
            TooManySubjectsError: with ``split=False``, more than 1024 subjects match.
            DirectNotSupportedError: the stream does not allow direct gets.
            IncompleteMirrorError: a mirror answers that has less than the stream, and nobody else.
            NotSupportedError: the server is older than 2.11.
            InvalidArgumentError: there is no subject, or the arguments exclude each other.
        """
        return _direct.get_last_for(
            self._context,
            self._name,
            subjects,
            up_to_sequence=up_to_sequence,
            up_to_time=up_to_time,
            batch=batch,
            split=split,
            reread=reread,
            timeout=timeout,
            known_last=self._info.state.last_seq,
        )

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
        Iterate over the stream's messages in their order, page by page, without a consumer.

        Ends at the last message that the stream has at the time of the call: what is published
        meanwhile does not make it longer. What is deleted meanwhile is left out. One page is read
        ahead, never more. The connection may be lost: the scan goes on behind the last message.
        Any replica of the stream may answer, and a mirror that has all of it; the leader is asked
        where they have no more.

        Args:
            start: The first sequence; the default is 1.
            end: The last sequence; the default is the stream's last one now.
            start_time: When to begin, in place of a sequence: an aware datetime, or nanoseconds
                since 1970, inclusive.
            subject: Only messages of this subject or wildcard.
            page: Messages of one request at most.
            max_bytes: Bytes of one request, as in :meth:`get_batch`; two pages are in memory at
                most.
            timeout: Seconds to wait for the call, and then for each page.

        Raises:
            DirectNotSupportedError: the stream does not allow direct gets.
            IncompleteMirrorError: a mirror answers that has less than the stream, and nobody else.
            NotSupportedError: the server is older than 2.11.
            InvalidArgumentError: the arguments exclude each other or can not be used.
        """
        return _direct.scan(
            self._context,
            self._name,
            start=start,
            end=end,
            start_time=start_time,
            subject=subject,
            page=page,
            max_bytes=max_bytes,
            timeout=timeout,
        )

    # Counters

    def counter(self, subject: str) -> Counter:
        """
        Return the counter of a subject; asks nothing, and there need not be one yet (ADR-49).

        Raises:
            InvalidSubjectError: this is no subject to publish to.
        """
        return Counter(self._context, self, subject)

    def counters(
        self, subjects: Iterable[str] | str = ">", *, timeout: Seconds | None = None
    ) -> dict[str, CounterEntry]:
        """
        Return the counters of many subjects, by subject.

        They are as they were at one moment; those that were changed while this was under way, and
        of which the stream does not keep what was before, are as they are now.

        Args:
            subjects: Subjects and wildcards; those without a counter are left out.
            timeout: As for :meth:`get_last_for`.

        Raises:
            CounterDisabledError: the stream does not hold counters.
            DirectNotSupportedError, NotSupportedError: as for :meth:`get_last_for`.
        """
        found = self.get_last_for(subjects, reread=True, timeout=timeout)
        return read_entries(found, self)

    def delete_message(
        self,
        sequence: int,
        *,
        secure: bool = False,
        timeout: Seconds | None = None,
    ) -> None:
        """
        Delete the message with a sequence. Its place in the counting stays empty.

        Args:
            sequence: Its place in the stream, from 1.
            secure: Overwrite its bytes on disk with random ones, which is slower.
            timeout: Seconds for the request.

        Raises:
            MessageNotFoundError: it is gone already.
        """
        deadline = self._context.deadline(timeout)
        _stream_admin.delete_message(self._context, self._name, sequence, deadline, secure=secure)

    def _read(
        self, name: str, request: Mapping[str, Any], deadline: Deadline, *, direct: bool | None
    ) -> StoredMessage:
        """
        Read one message from the leader or by a direct get, as asked for or as the stream allows.
        """
        context = self._context
        if direct is None:
            get = (
                _messages.confirmed_get if self._info.config.allow_direct else _messages.leader_get
            )
        else:
            get = _messages.direct_get if direct else _messages.leader_get
        wrap = context.plugins.wrap_fetch
        if wrap is None:
            message = get(context, self._name, request, deadline)
        else:
            subject = request.get("last_by_subj") or request.get("next_by_subj")
            operation = DirectReadOperation(
                name=name,
                stream=self._name,
                subjects=() if subject is None else (subject,),
                sequence=request.get("seq"),
            )
            message = wrap(operation, lambda: get(context, self._name, request, deadline))
        show = _messages.shown_by(context)
        return message if show is None else show(message)
