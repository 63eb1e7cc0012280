"""
The consumers of one stream: the part of :class:`~jetsync.Stream` that makes and manages them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetsync._api import consumers as _consumer_admin
from jetsync._api.requests import config_of
from jetsync.consume.consumer import Consumer
from jetsync.consume.ordered import open_ordered
from jetsync.values.consumer_config import ConsumerConfig

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.consume.ordered import OrderedConsumer
    from jetsync.values.consumer_config import DeliverPolicy, ReplayPolicy
    from jetsync.values.consumer_info import ConsumerInfo, ConsumerReset, PauseState
    from jetsync.values.stream_info import StreamInfo

__all__ = ["StreamConsumers"]


class StreamConsumers:
    """
    The base of :class:`~jetsync.Stream`, with what concerns its consumers.
    """

    __slots__ = ("_context", "_info", "_name")

    def __init__(self, context: Context, info: StreamInfo) -> None:
        self._context = context
        self._name = info.config.name or ""
        self._info = info

    def create_consumer(
        self, config: ConsumerConfig | None = None, *, timeout: Seconds | None = None, **fields: Any
    ) -> Consumer:
        """
        Create a consumer, or return the one that exists with the same configuration.

        It acknowledges explicitly unless ``ack_policy`` says otherwise. Without a name it gets one,
        and goes again when nobody has used it for ``inactive_threshold``. A filter that no subject
        of the stream can match is logged as a warning: servers accept it, and it never gets a
        message.

        Args:
            config: The configuration; keywords are laid over a copy of it.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`ConsumerConfig`.

        Raises:
            ConsumerExistsError: there is one of that name with another configuration.
            NotSupportedError: the server left a field out; the consumer exists without it.
        """
        deadline = self._context.deadline(timeout)
        wanted = config_of(ConsumerConfig, config, fields, "create_consumer")
        info = _consumer_admin.create(self._context, self._name, wanted, deadline)
        _consumer_admin.warn_about_filters(self._context, info, self._info.config, deadline)
        return self._consumer(info)

    def update_consumer(
        self, config: ConsumerConfig | None = None, *, timeout: Seconds | None = None, **fields: Any
    ) -> Consumer:
        """
        Change the configuration of an existing consumer.

        As with :meth:`update`, an object replaces the whole configuration, and keywords alone
        change the current one: ``stream.update_consumer(name="worker", max_ack_pending=50)``.

        Args:
            config: The whole configuration; keywords are laid over a copy of it.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`ConsumerConfig`, ``name`` or ``durable_name`` among them.

        Raises:
            ConsumerDoesNotExistError: there is none of that name.
            ApiError: the server refused, for instance to change what can not be changed.
        """
        context, deadline = self._context, self._context.deadline(timeout)
        wanted = _consumer_admin.changed_config(context, self._name, config, fields, deadline)
        return self._consumer(_consumer_admin.update(context, self._name, wanted, deadline))

    def create_or_update_consumer(
        self, config: ConsumerConfig | None = None, *, timeout: Seconds | None = None, **fields: Any
    ) -> Consumer:
        """
        Create a consumer, or replace the whole configuration of the one of that name.

        Args, Raises: as :meth:`create_consumer`, without ``ConsumerExistsError``.
        """
        deadline = self._context.deadline(timeout)
        wanted = config_of(ConsumerConfig, config, fields, "create_or_update_consumer")
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
        deliver_policy: DeliverPolicy | str | None = None,
        opt_start_seq: int | None = None,
        opt_start_time: dt.datetime | None = None,
        replay_policy: ReplayPolicy | str | None = None,
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
