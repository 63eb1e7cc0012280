"""
Ordered consumers: read a stream, or a part of it, in its order, without a gap and without a repeat.

Behind an :class:`OrderedConsumer` stands an ephemeral consumer in a server's memory that asks for
no acknowledgements. When it is lost, or a message of it is, another one takes its place that begins
behind the last message that was given out. The position is the client's: nothing on a server has to
survive.

Invariants
- The cursor is moved by one thread at a time: the one that takes messages.
- A consumer on the server is *fresh* while it has sent nothing that was not given out; one that is
  not is never read further, but replaced.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from typing import TYPE_CHECKING, Final

import attrs

from jetsync._api import consumers as _consumer_admin
from jetsync._base.deadline import Deadline, as_seconds
from jetsync._base.fields import check_count
from jetsync._base.locks import Locked
from jetsync._proto.ordered import OrderedCursor
from jetsync.consume.options import DEFAULT_EXPIRES, consume_options, fetch_request
from jetsync.consume.ordered_reads import OrderedBatch, OrderedConsumption
from jetsync.consume.ordered_source import SHORTEST_MAKING, OrderedSource
from jetsync.errors import (
    ConflictingUseError,
    HandleClosedError,
    InvalidArgumentError,
)
from jetsync.values.consumer_config import ConsumerConfig, DeliverPolicy
from jetsync.values.subjects import validate_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.consume.inbox import PullInbox
    from jetsync.values.consumer_config import DeliverPolicyInput, ReplayPolicyInput
    from jetsync.values.consumer_info import ConsumerInfo
    from jetsync.values.message import Message
    from jetsync.values.stream_info import StreamInfo

__all__ = ["OrderedConsumer", "OrderedStatistics"]


HEARTBEAT: Final = 5.0
"""
Seconds between heartbeats unless told otherwise.

Shorter than those of other consumers: servers drop a pull without a word that comes together with
the deletion of its consumer (seen on 2.15.1), and only silence tells of it.
"""


@attrs.frozen
class OrderedStatistics:
    """
    What went through an ordered consumer.
    """

    delivered: int
    """Messages that were given out."""

    last_sequence: int | None
    """The stream sequence that it has come to, None if that is not known yet."""

    resets: int
    """How often it was made again."""


def open_ordered(
    context: Context,
    stream: str,
    known: StreamInfo,
    deadline: Deadline,
    *,
    filter_subjects: str | Sequence[str] | None,
    deliver_policy: DeliverPolicyInput | None,
    opt_start_seq: int | None,
    opt_start_time: dt.datetime | None,
    replay_policy: ReplayPolicyInput | None,
    inactive_threshold: Seconds | None,
    headers_only: bool | None,
    max_reset_attempts: int,
    name_prefix: str | None,
    metadata: Mapping[str, str] | None,
    keep_to_stream: bool = False,
) -> OrderedConsumer:
    """
    Check the options, make the first consumer and return the handle.

    With *keep_to_stream* it ends with the stream, and does not wait for another one of its name.
    """
    if opt_start_seq is not None and opt_start_time is not None:
        raise InvalidArgumentError(
            "give opt_start_seq or opt_start_time, not both", argument="opt_start_seq"
        )
    if opt_start_seq is not None:
        check_count("opt_start_seq", opt_start_seq, 1)
    check_count("max_reset_attempts", max_reset_attempts, -1)
    prefix = secrets.token_hex(8) if name_prefix is None else name_prefix
    validate_name("consumer", prefix)
    filters = [filter_subjects] if isinstance(filter_subjects, str) else list(filter_subjects or ())
    config = ConsumerConfig(
        opt_start_seq=opt_start_seq,
        opt_start_time=opt_start_time,
        inactive_threshold=inactive_threshold,
        headers_only=headers_only,
        filter_subject=filters[0] if len(filters) == 1 else None,
        filter_subjects=filters if len(filters) > 1 else None,
        metadata=None if metadata is None else dict(metadata),
        deliver_policy=deliver_policy,
        replay_policy=replay_policy,
    )
    starts = (
        (DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq", opt_start_seq),
        (DeliverPolicy.BY_START_TIME, "opt_start_time", opt_start_time),
    )
    for policy, name, start in starts:
        if start is not None and config.deliver_policy is None:
            config = attrs.evolve(config, deliver_policy=policy)
        if (start is None) is (config.deliver_policy is policy):
            raise InvalidArgumentError(f"{name} goes with {policy.value}", argument=name)
    if config.deliver_policy is DeliverPolicy.LAST_PER_SUBJECT and not filters:
        # Servers insist on a filter here.
        config = attrs.evolve(config, filter_subject=">")
    source = OrderedSource(context, stream, OrderedCursor(config, prefix), max_reset_attempts)
    info = source.make(deadline)
    if keep_to_stream:
        source.keep_to_stream(known.created)
    _consumer_admin.warn_about_filters(context, info, known.config, deadline)
    return OrderedConsumer(source)


class OrderedConsumer:
    """
    A reader of a stream, or a part of it, in its order; made by ``Stream.ordered_consumer``.

    Messages come in strictly growing stream sequence, none is left out and none comes twice, across
    lost connections, servers that restart and consumers that are deleted. They need no
    acknowledgement. Each use goes on where the one before stopped; one use at a time.

    The consumer on the server is an ephemeral one, which is made again where it has to be; its
    :attr:`name` counts how often. :meth:`close` deletes it, and so does the end of a ``with``
    block.

    If the stream is deleted, a use that waits for messages ends with StreamNotFoundError, once
    servers have said for two seconds that there is no such stream. If it was made again until then,
    reading goes on after the last sequence that was given out: messages up to there do not come.
    """

    def __init__(self, source: OrderedSource) -> None:
        self._source = source
        self._pool: list[PullInbox] = []
        self._using = threading.RLock()
        """Held while a use begins."""

        self._user: weakref.ref[OrderedConsumption | OrderedBatch] | None = None

    def __repr__(self) -> str:
        return (
            f"<OrderedConsumer {self.stream_name}/{self.name} last={self._source.cursor.last}"
            f"{' closed' if self._source.closed else ''}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Only idle subscriptions are left here, and leaving them neither waits nor fails.
        for inbox in getattr(self, "_pool", ()):
            inbox.close()

    @property
    def name(self) -> str:
        """The name of the consumer that is there now: the prefix and a number that grows."""
        return self._source.cursor.name

    @property
    def stream_name(self) -> str:
        """The name of the stream that it reads."""
        return self._source.stream

    @property
    def cached_info(self) -> ConsumerInfo:
        """The consumer as it was when it was made or asked after last; asks nothing."""
        assert self._source.info is not None
        return self._source.info

    def info(self, *, timeout: Seconds | None = None) -> ConsumerInfo:
        """
        Ask the server how the consumer that is there now is doing.

        Args:
            timeout: Seconds for the whole call; None is the context's default.

        Raises:
            ConsumerNotFoundError: It is gone; the next message makes another one.
        """
        return self._source.ask(self._source.context.deadline(timeout))

    def statistics(self) -> OrderedStatistics:
        """Return the counters as they are now."""
        cursor = self._source.cursor
        return OrderedStatistics(cursor.delivered, cursor.last, self._source.resets)

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: Seconds = DEFAULT_EXPIRES,
        heartbeat: Seconds | None = None,
        no_wait: bool = False,
    ) -> OrderedBatch:
        """
        Ask for the next messages and return them as an iterable that yields each as it arrives.

        Ends when all that was asked for has come, or after *expires*. A consumer that is lost
        meanwhile is made again, and the rest asked for.

        Args:
            max_messages: How many messages at most. May be left out if *max_bytes* is given.
            max_bytes: How many bytes at most, as for ``Consumer.fetch``.
            expires: Seconds to wait for messages.
            heartbeat: As for ``Consumer.fetch``.
            no_wait: Take what is there now, and do not wait for more.

        Raises:
            InvalidArgumentError: An option makes no sense; nothing was sent.
            ConflictingUseError: Messages of this ordered consumer are being read already.
            StreamNotFoundError: The consumer had to be made again, and its stream is gone.
            HandleClosedError: It was closed.
        """
        return self._fetch("fetch", (max_messages, max_bytes, expires, heartbeat, no_wait))

    def next(
        self, expires: Seconds = DEFAULT_EXPIRES, *, heartbeat: Seconds | None = None
    ) -> Message | None:
        """
        Wait for the next message and return it, or None when none came within *expires*.

        Args, Raises: as :meth:`fetch`.
        """
        return self._fetch("next", (1, None, expires, heartbeat, False)).first()

    def consume(
        self,
        handler: None = None,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Seconds = DEFAULT_EXPIRES,
        heartbeat: Seconds | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        stop_after: int | None = None,
    ) -> OrderedConsumption:
        """
        Return the messages as an iterator without end.

        They are pulled ahead into a buffer. Waits for the consumer to be there, within the
        context's default timeout; from then on whatever passes is waited out.

        Args:
            handler: None; handlers are for other consumers.
            max_messages: How many messages the buffer has room for; 500 if neither is given.
            max_bytes: How many bytes the buffer has room for, not together with *max_messages*.
            expires: Seconds that the server keeps one pull, at least 1.
            heartbeat: Seconds between signs of life of the server; two that are missed have the
                consumer made again. Default: half of *expires*, up to 5.
            threshold_messages: As for ``Consumer.consume``.
            threshold_bytes: As for ``Consumer.consume``.
            stop_after: End after so many messages, however often the consumer is made again.

        Raises:
            InvalidArgumentError: An option makes no sense; nothing was sent.
            ConflictingUseError: Messages of this ordered consumer are being read already.
            StreamNotFoundError: The stream is gone.
            HandleClosedError: It was closed.
        """
        if handler is not None:
            raise InvalidArgumentError(
                "an ordered consumer calls no handler: iterate over consume()", argument="handler"
            )
        if heartbeat is None:
            heartbeat = min(HEARTBEAT, as_seconds(expires, "expires") / 2.0)
        options = consume_options(
            self.stream_name,
            self.name,
            self.cached_info.config,
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            heartbeat=heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            stop_after=stop_after,
        )
        source = self._source
        deadline = source.context.deadline(None)
        with Locked(self._using, deadline, "another call on the ordered consumer"):
            self._check_unused()
            source.start(deadline, verify=True)
            consumption = OrderedConsumption(source, options)
            self._user = weakref.ref(consumption)
        return consumption

    def close(self, *, timeout: Seconds | None = None) -> None:
        """
        End whatever reads it, and delete the consumer on the server; safe to repeat.

        Without a connection it is deleted when there is one again, if the client lives as long;
        otherwise the server does that itself after the inactive threshold.

        Args:
            timeout: Seconds for the whole call; None is the context's default.
        """
        user = None if self._user is None else self._user()
        if isinstance(user, OrderedConsumption):
            user.stop()
        elif user is not None:
            user.close()
        self._source.close(self._source.context.deadline(timeout))

    def _fetch(
        self, name: str, options: tuple[int | None, int | None, Seconds, Seconds | None, bool]
    ) -> OrderedBatch:
        request, wait = fetch_request(*options[:4], no_wait=options[4])
        source = self._source
        deadline = Deadline.after(max(wait, SHORTEST_MAKING))
        with Locked(self._using, deadline, "another call on the ordered consumer"):
            self._check_unused()
            source.start(deadline, verify=False)
            batch = OrderedBatch(source, self._pool, request, wait=wait, name=name)
            self._user = weakref.ref(batch)
        return batch

    def _check_unused(self) -> None:
        """Raise if this is closed, or if an earlier use of it is still open."""
        if self._source.closed:
            raise HandleClosedError("ordered consumer")
        user = None if self._user is None else self._user()
        if user is not None and not user.closed:
            kind = "consume" if isinstance(user, OrderedConsumption) else "fetch"
            raise ConflictingUseError(
                f"a {kind} of this ordered consumer is still open; end or close it first"
            )
