"""
Ordered consumers: read a stream, or a part of it, in order, without gaps or duplicates.

An :class:`OrderedConsumer` uses an ephemeral consumer in the server's memory, without
acknowledgements. If the consumer or one of its messages is lost, jetsync creates another consumer
that begins after the last message that was handed out. The client keeps the position, so the server
may lose the consumer at any time.

Invariants
- The thread that drives a read admits messages in their order. Only the thread that takes messages
  changes the position. There is one such thread at a time.
- A consumer on the server is *fresh* while all messages that it has sent were handed out. A
  consumer that is not fresh is replaced before the next use.
"""

from __future__ import annotations

import secrets
import weakref
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import attrs

from jetsync import errors
from jetsync._api import consumers as _consumer_admin
from jetsync._base.deadline import Deadline
from jetsync._base.dropped import disown
from jetsync._base.fields import check_count, check_exclusive
from jetsync._base.html import html_table
from jetsync._base.keywords import hide_extra, refuse, refuse_position
from jetsync._base.pickling import refuse_copy
from jetsync._proto.ordered import OrderedCursor
from jetsync.consume.fetch import Fetch, OrderedBatch
from jetsync.consume.options import fetch_request, pull_options
from jetsync.consume.ordered_consumption import OrderedConsumption
from jetsync.consume.ordered_source import SHORTEST_CREATE, OrderedSource
from jetsync.values.codec import to_wire
from jetsync.values.consumer_config import ConsumerConfig, DeliverPolicy
from jetsync.values.stream_config import RetentionPolicy
from jetsync.values.subjects import validate_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self, Unpack

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync._base.keywords import NoKeywords
    from jetsync._proto.pull_request import ConsumeOptions, PullLimits
    from jetsync.values.consumer_info import ConsumerInfo
    from jetsync.values.message import Message
    from jetsync.values.stream_config import StreamConfig
    from jetsync.values.stream_info import StreamInfo

__all__ = ["OrderedConsumer", "OrderedStatistics"]


T = TypeVar("T", OrderedBatch, OrderedConsumption)

# Seconds between heartbeats by default. Shorter than for other consumers, because servers silently
# drop a pull that arrives together with the deletion of its consumer (seen on 2.15.1).
HEARTBEAT: Final = 5.0


@attrs.frozen
class OrderedStatistics:
    """
    The counters of an ordered consumer.
    """

    # For notebooks.
    _repr_html_ = html_table

    delivered: int
    """Messages that your code has received."""

    last_sequence: int | None
    """The stream sequence after which the next read continues; None if it is not known yet."""

    resets: int
    """How often jetsync has replaced the consumer on the server."""


def open_ordered(
    context: Context,
    stream: str,
    known: StreamInfo,
    deadline: Deadline,
    filter_subjects: str | Sequence[str] | None,
    *,
    max_reset_attempts: int = -1,
    name_prefix: str | None = None,
    **wanted: Any,
) -> OrderedConsumer:
    """
    Check the options, create the first consumer and return the handle.

    Args:
        context: The context of its requests.
        stream: The stream.
        known: What is known about the stream.
        deadline: The deadline of the calling operation.
        filter_subjects: Subjects and wildcards.
        max_reset_attempts: As for ``Stream.ordered_consumer``.
        name_prefix: As for ``Stream.ordered_consumer``.
        **wanted: Other fields of the consumer's configuration.
    """
    starts = {
        "opt_start_seq": DeliverPolicy.BY_START_SEQUENCE,
        "opt_start_time": DeliverPolicy.BY_START_TIME,
    }
    check_exclusive(**{name: wanted.get(name) for name in starts})
    given = [name for name in starts if wanted.get(name) is not None]
    if "opt_start_seq" in given:
        check_count("opt_start_seq", wanted["opt_start_seq"], 1)
    check_count("max_reset_attempts", max_reset_attempts, -1)
    prefix = secrets.token_hex(8) if name_prefix is None else validate_name("consumer", name_prefix)
    filters = [filter_subjects] if isinstance(filter_subjects, str) else list(filter_subjects or ())
    if given and wanted.get("deliver_policy") is None:
        wanted["deliver_policy"] = starts[given[0]]
    if wanted.get("deliver_policy") == DeliverPolicy.LAST_PER_SUBJECT and not filters:
        # Servers require a filter with this policy.
        filters = [">"]
    config = ConsumerConfig(**filter_fields(filters), **wanted)
    for name, policy in starts.items():
        if (name in given) is not (config.deliver_policy is policy):
            raise errors.InvalidArgumentError(
                f"{name} and deliver_policy={policy.value!r} need each other", argument=name
            )
    _consumer_admin.validate(config)
    cursor = OrderedCursor(to_wire(config), prefix, replicas_in(known.config))
    source = OrderedSource(context, stream, known.created, cursor, max_reset_attempts)
    source.make(deadline)
    _consumer_admin.warn_about_filters(
        context, (stream, cursor.name), _consumer_admin.filters_of(config), known.config, deadline
    )
    return OrderedConsumer(source)


def replicas_in(stream: StreamConfig) -> int | None:
    """
    Return how many replicas a consumer has; None lets the server decide.

    If a stream deletes messages after acknowledgements, servers refuse consumers with fewer
    replicas than the stream.
    """
    return 1 if stream.retention in (None, RetentionPolicy.LIMITS) else None


def filter_fields(filters: Sequence[str]) -> dict[str, Any]:
    """Return the field of a consumer's configuration for these filters."""
    if len(filters) == 1:
        return {"filter_subject": filters[0]}
    return {"filter_subjects": list(filters)} if filters else {}


class OrderedConsumer:
    """
    A reader of a stream, or of a part of it, in order; made by ``Stream.ordered_consumer``.

    Stream sequences increase strictly, and no message is skipped or repeated. Lost connections,
    restarted servers and deleted consumers do not change that. Messages need no acknowledgement.
    One fetch, ``next`` or consumption can be open at a time. The next read continues after the last
    message that your code has received.

    The consumer on the server is ephemeral, and jetsync replaces it when necessary. The number in
    :attr:`name` increases with each replacement. :meth:`close` and the end of a ``with`` block
    delete the consumer.

    If the stream is deleted, a call that waits for messages raises StreamNotFoundError after
    servers have reported for two seconds that there is no such stream. If the stream was deleted
    and created again, or has lost messages that your code has received, that call and all later
    reads raise StreamNotFoundError. Create another ordered consumer to read the new stream.
    """

    # Threads: any.
    # Locks: the use turn of the source lets one use at a time begin, and protects `_user`. After
    # that, only the open use changes the source.

    __reduce__ = refuse_copy

    def __init__(self, source: OrderedSource) -> None:
        self._source = source
        self._user: weakref.ref[OrderedConsumption | OrderedBatch] | None = None
        disown(source.context.lane.later, self, source)

    def __repr__(self) -> str:
        return (
            f"<OrderedConsumer {self.stream_name}/{self.name} last={self._source.last}"
            f"{' closed' if self._source.closed.is_set() else ''}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The name of the current consumer: the ``name_prefix`` and a number that increases."""
        return self._source.cursor.name

    @property
    def stream_name(self) -> str:
        """The name of the stream."""
        return self._source.stream

    @property
    def cached_info(self) -> ConsumerInfo:
        """The consumer's info as the server last sent it. This sends no request."""
        return self._source.describe()

    def info(self, *, timeout: Seconds | None = None) -> ConsumerInfo:
        """
        Ask the server for the info of the current consumer.

        Args:
            timeout: Seconds for the whole call; None is the context's default.

        Raises:
            ConsumerNotFoundError: The consumer no longer exists. The next read replaces it.
        """
        return self._source.ask(self._source.context.deadline(timeout))

    def statistics(self) -> OrderedStatistics:
        """Return the current counters."""
        source = self._source
        return OrderedStatistics(source.delivered, source.last, source.resets)

    @hide_extra
    def fetch(
        self,
        max_messages: int | None = None,
        *_extra: NoReturn,
        max_bytes: int | None = None,
        expires: Seconds | None = None,
        heartbeat: Seconds | None = None,
        no_wait: bool = False,
        **unknown: Unpack[NoKeywords],
    ) -> OrderedBatch:
        """
        Request the next messages and return them as an iterable that yields each as it arrives.

        The iteration ends after the requested number of messages, or after *expires*. If the
        consumer is lost in the meantime, jetsync replaces it and requests the remaining messages
        again.

        Args:
            max_messages: The maximum number of messages. Optional if *max_bytes* is given.
            max_bytes: The maximum number of bytes, as for ``Consumer.fetch``.
            expires: Seconds to wait for messages. Default: 30.
            heartbeat: As for ``Consumer.fetch``, but if two are missed, jetsync replaces the
                consumer.
            no_wait: Take the messages that are available now, and do not wait for more. Default:
                False.

        Raises:
            InvalidArgumentError: An option is not valid; nothing was sent.
            ConflictingUseError: Another read of this ordered consumer is still open.
            StreamNotFoundError: The stream was deleted. The iteration also raises this if another
                stream now has its name.
            HandleClosedError: The ordered consumer is closed.
        """
        if unknown:
            refuse(OrderedConsumer.fetch, unknown)
        if _extra:
            refuse_position(OrderedConsumer.fetch)
        return self._fetch(
            "fetch",
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            heartbeat=heartbeat,
            no_wait=no_wait,
        )

    @hide_extra
    def next(
        self,
        expires: Seconds | None = None,
        *_extra: NoReturn,
        heartbeat: Seconds | None = None,
        **unknown: Unpack[NoKeywords],
    ) -> Message | None:
        """
        Return the next message, or None if none arrives within *expires* seconds.

        Args, Raises: as for :meth:`fetch`.
        """
        if unknown:
            refuse(OrderedConsumer.next, unknown)
        if _extra:
            refuse_position(OrderedConsumer.next)
        batch = self._fetch("next", max_messages=1, expires=expires, heartbeat=heartbeat)
        source = self._source
        place = source.place
        before = tuple(place)
        try:
            with batch:
                return next(iter(batch), None)
        except errors.JetSyncError:
            raise
        except BaseException:
            # The next read gets the message, if there was one.
            source.fresh = False
            place[:] = before
            raise

    @hide_extra
    def consume(
        self,
        handler: None = None,
        *_extra: NoReturn,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Seconds | None = None,
        heartbeat: Seconds | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        stop_after: int | None = None,
        **unknown: Unpack[NoKeywords],
    ) -> OrderedConsumption:
        """
        Return the messages as an endless iterator, pulled ahead into a buffer.

        The call waits until the server has the consumer, for at most the context's default timeout.
        The iterator then continues after every temporary failure.

        Args:
            handler: Not supported; must be None.
            max_messages: How many messages the buffer holds. Default: 500, unless *max_bytes* is
                given.
            max_bytes: How many bytes the buffer holds. Cannot be combined with *max_messages*.
            expires: Seconds that the server keeps one pull open, at least 1. Default: 30.
            heartbeat: Seconds between heartbeats of the server. If two are missed, jetsync replaces
                the consumer. Default: half of *expires*, at most 5.
            threshold_messages: As for ``Consumer.consume``.
            threshold_bytes: As for ``Consumer.consume``.
            stop_after: End after this many messages, counted across replacements of the consumer.
                Default: no end.

        Raises:
            InvalidArgumentError: An option is not valid; nothing was sent.
            ConflictingUseError: Another read of this ordered consumer is still open.
            StreamNotFoundError: The stream was deleted. The iteration also raises this if another
                stream now has its name.
            HandleClosedError: The ordered consumer is closed.
        """
        if unknown:
            refuse(OrderedConsumer.consume, unknown)
        if _extra:
            refuse_position(OrderedConsumer.consume)
        if handler is not None:
            raise errors.InvalidArgumentError(
                "an ordered consumer cannot call a handler: iterate over consume()",
                argument="handler",
            )
        return self._consume(
            self._source.context.deadline(None),
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            heartbeat=heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            stop_after=stop_after,
        )

    def close(self, *, timeout: Seconds | None = None) -> None:
        """
        End the open read, and delete the consumer on the server. Safe to repeat.

        Without a connection, the client deletes the consumer after it has reconnected. If it never
        reconnects, the server deletes the consumer after ``inactive_threshold``.

        Args:
            timeout: Seconds for the whole call; None is the context's default.
        """
        user = None if self._user is None else self._user()
        if user is not None:
            user.close()
        self._source.close(self._source.context.deadline(timeout))

    def _fetch(self, name: str, **options: Any) -> OrderedBatch:
        request, wait = fetch_request(**options)
        source = self._source

        def begin() -> OrderedBatch:
            return OrderedBatch(Fetch(source.target, request, wait=wait, name=name, source=source))

        return self._begin(Deadline.after(max(wait, SHORTEST_CREATE)), begin, verify=False)

    def _consume(self, deadline: Deadline, **options: Any) -> OrderedConsumption:
        wanted = ordered_options(self._source.limits, **options)
        return self._begin(deadline, lambda: OrderedConsumption(self._source, wanted), verify=True)

    def _begin(self, deadline: Deadline, use: Callable[[], T], *, verify: bool) -> T:
        """Begin a use with a fresh consumer, or raise an error if another thread has closed it."""
        closed = self._source.closed

        def begin() -> T:
            self._check_unused()
            self._source.start(deadline, verify=verify)
            begun = use()
            self._user = weakref.ref(begun)
            return begun

        user = self._source.turn.run(deadline, begin)
        if closed.is_set():
            user.close()
            raise errors.HandleClosedError("ordered consumer")
        return user

    def _check_unused(self) -> None:
        """Raise if it is closed, or if an earlier use is still open."""
        if self._source.closed.is_set():
            raise errors.HandleClosedError("ordered consumer")
        user = None if self._user is None else self._user()
        if user is not None and not user.closed:
            kind = "consume" if isinstance(user, OrderedConsumption) else "fetch"
            raise errors.ConflictingUseError(
                f"a {kind} of this ordered consumer is still open: end or close it first"
            )


def consume_within(
    ordered: OrderedConsumer, deadline: Deadline, **options: Any
) -> OrderedConsumption:
    """Do what ``consume`` does, with the deadline of the calling operation."""
    return ordered._consume(deadline, **options)  # noqa: SLF001  (its own module)


def pending_of(ordered: OrderedConsumer) -> int:
    """Return how many messages the current consumer had to send when it was created."""
    return ordered._source.pending  # noqa: SLF001  (its own module)


def ordered_options(limits: PullLimits, **options: Any) -> ConsumeOptions:
    """Check the options of ``OrderedConsumer.consume``, and complete them."""
    return pull_options(limits, HEARTBEAT, **options)
