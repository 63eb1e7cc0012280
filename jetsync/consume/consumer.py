"""
A pull consumer, as a handle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from jetsync._api.consumers import delete as delete_consumer
from jetsync._api.consumers import info as consumer_info
from jetsync._base.deadline import as_seconds
from jetsync._proto.pins import Pins
from jetsync._proto.pull import UNBOUNDED_BATCH, PullRequest
from jetsync.consume.consumption import Consumption
from jetsync.consume.fetch import Fetch, MessageBatch
from jetsync.consume.options import (
    check_given,
    check_priorities,
    consume_options,
    handler_options,
    read_heartbeat,
    require_priorities,
)
from jetsync.errors import InvalidArgumentError, NotPullConsumerError
from jetsync.values.consumer_config import AckPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.consume.inbox import PullInbox
    from jetsync.values.consumer_info import ConsumerInfo
    from jetsync.values.message import Message

__all__ = ["Consumer"]

NO_PRIORITIES: Final = (None,) * 4
"""The last options of a pull, where they are not given."""

DEFAULT_EXPIRES: Final = 30.0
"""Seconds that a fetch waits for messages (ADR-37)."""

HEARTBEAT_FROM: Final = 10.0
"""
A fetch that waits at least so many seconds asks for heartbeats by itself, every
:data:`FETCH_HEARTBEAT`.
"""

FETCH_HEARTBEAT: Final = 5.0

NO_WAIT_EXPIRES: Final = 0.0
"""
Seconds that a pull with ``no_wait`` asks for: none, so that the server answers at once and gives
all that is there.

With a time of its own such a pull waits that long where nothing is there, and is cut off after it
where there is much. Measured on 2.10.26, 2.11.11, 2.12.8, 2.14.6 and 2.15.1, alone and as a
cluster: nothing there, answered after 0.3 ms without, 1.3-2.6 ms with 1 ms, 51 ms with 50 ms; of
100,000 messages that were there, all came without, 0 with 1 ms, 3,400-4,200 with 5 ms,
13,000-28,000 with 50 ms; even 100 messages were cut off 1-6 times in 100 with 1 ms. What it would
help against, the silence while ``max_ack_pending`` is reached, the fetch finds out by asking; and
one that found nothing looks a second time, with a short time.
"""

NO_WAIT_PATIENCE: Final = 2.0
"""
Seconds that a fetch with ``no_wait`` waits for a connection or a leader, unless its *expires* is
less.
"""


class Consumer:
    """
    A durable or ephemeral pull consumer on the server; made by a stream or a JetStream context.

    Any number of threads may use one: each fetch has a pull of its own, and a message is given to
    one of them.
    """

    def __init__(self, context: Context, stream_name: str, info: ConsumerInfo) -> None:
        self._context = context
        self._stream_name = stream_name
        self._info = info
        self._pool: list[PullInbox] = []
        self._pins = Pins()
        """What the server calls this client where it serves one of a group, for all pulls."""

        self._last: tuple[tuple[Any, ...], PullRequest, float] | None = None

    def __repr__(self) -> str:
        return f"<Consumer {self._stream_name}/{self.name}>"

    def __del__(self) -> None:
        # Only idle subscriptions are left here, and leaving them neither waits nor fails.
        for inbox in getattr(self, "_pool", ()):
            inbox.close()

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._info.name

    @property
    def stream_name(self) -> str:
        """The name of the stream that it reads."""
        return self._stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """The consumer as it was when the server was asked last; asks nothing."""
        return self._info

    def info(self, *, timeout: Seconds | None = None) -> ConsumerInfo:
        """
        Ask the server how the consumer is doing, and keep the answer as :attr:`cached_info`.

        Args:
            timeout: Seconds for the whole call; None is the context's default.

        Raises:
            ConsumerNotFoundError: It does not exist any more.
        """
        deadline = self._context.deadline(timeout)
        self._info = consumer_info(self._context, self._stream_name, self.name, deadline)
        return self._info

    def delete(self, *, timeout: Seconds | None = None) -> None:
        """
        Delete the consumer on the server. Fetches that wait end with ConsumerDeletedError.

        Args:
            timeout: Seconds for the whole call; None is the context's default.
        """
        delete_consumer(
            self._context, self._stream_name, self.name, self._context.deadline(timeout)
        )

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: Seconds = DEFAULT_EXPIRES,
        heartbeat: Seconds | None = None,
        no_wait: bool = False,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> MessageBatch:
        """
        Ask for messages and return them as an iterable that yields each as it arrives.

        The pull is sent at once. The iteration ends when all that was asked for has come, or after
        *expires*; nothing there is not an error. A fault (consumer deleted, a limit of the consumer
        exceeded, ...) is raised at the end of the iteration, after the messages that did arrive.
        While the consumer has no leader, or the connection is lost, the rest is asked for again,
        within *expires*. Never takes longer than
        *expires* and two seconds, whatever the server does.

        Leaving the iteration early gives messages that were not taken back to the server. Any
        thread; one thread per batch.

        Args:
            max_messages: How many messages at most. May be left out if *max_bytes* is given.
            max_bytes: How many bytes at most, as the server counts them: subject, reply subject,
                headers and
                payload. A message that is larger than this ends the batch with nothing;
                ``batch.status`` tells.
            expires: Seconds to wait for messages; with *no_wait*, for a connection or a leader, up
                to 2.
            heartbeat: Seconds between signs of life that the server gives, from 0.5 up to half of
                *expires*;
                two missed end the fetch with NoHeartbeatError. Default: 5 for an *expires* of 10
                and more, none below. 0 asks for none.
            no_wait: Take what is there now, and do not wait for more.
            group: Priority group, which consumers with groups need.
            min_pending: Only deliver while at least so many messages are pending (overflow policy).
            min_ack_pending: Only deliver while at least so many acks are pending (overflow policy).
            priority: 0 (first) to 9 (prioritized policy).

        Raises:
            InvalidArgumentError: An option makes no sense; nothing was sent.
            NotPullConsumerError: This is a push consumer; nothing was sent.
            NotSupportedError: The server that the client is connected to is older than 2.11, or
                2.12 for *priority*, and would ignore these options; nothing was sent.
            DisconnectedError: There was no connection in time; nothing was sent.

        See ADR-37, "Fetch".
        """
        return self._fetch(
            "fetch",
            (
                max_messages,
                max_bytes,
                expires,
                heartbeat,
                no_wait,
                group,
                min_pending,
                min_ack_pending,
                priority,
            ),
        )

    def next(
        self,
        expires: Seconds = DEFAULT_EXPIRES,
        *,
        heartbeat: Seconds | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Message | None:
        """
        Wait for one message and return it, or None when none came within *expires*.

        The options, the errors and the behaviour under faults and threads are those of
        :meth:`fetch`.

        Args:
            expires: Seconds to wait.
            heartbeat: As for :meth:`fetch`.
            group: As for :meth:`fetch`.
            min_pending: As for :meth:`fetch`.
            min_ack_pending: As for :meth:`fetch`.
            priority: As for :meth:`fetch`.

        Raises:
            ConsumerDeletedError, ConsumerNotFoundError: The consumer is gone.
            StatusError: Any other fault of the pull.
            DisconnectedError, ConnectionClosedError: There was no connection in time.

        See ADR-37, "Next".
        """
        batch = self._fetch(
            "next",
            (1, None, expires, heartbeat, False, group, min_pending, min_ack_pending, priority),
        )
        message = next(iter(batch), None)
        batch.close()
        return message

    def consume(
        self,
        handler: Callable[[Message], object] | None = None,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Seconds = DEFAULT_EXPIRES,
        heartbeat: Seconds | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        stop_after: int | None = None,
        ack: Literal["explicit", "auto"] = "explicit",
        threads: int = 1,
        ordered_by: Literal["subject"] | None = None,
        on_error: Literal["nak", "leave", "stop"] = "nak",
        keep_alive: bool = False,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Consumption:
        """
        Return the messages as an iterator without end, or have a handler called with each.

        They are pulled ahead into a buffer: never more than *max_messages* (or *max_bytes*) are in
        this process untaken, however slow it is. Waits for nothing: without a connection, the first
        pull is sent when there is one. Any thread; the iterator may be shared by threads.

        What a handler raises is reported as a HandlerErrorEvent and in the log, and never ends the
        consumption, unless *on_error* says so. What a plugin refuses ends it where the consumer's
        ``ack_policy`` is ``all``, as the next acknowledgement would be one of that message too.

        Args:
            handler: Called with each message, in threads of the consumption's own.
            max_messages: How many messages the buffer has room for; 500 if neither is given. More
                than can be handled within the consumer's ack wait are delivered twice.
            max_bytes: How many bytes the buffer has room for, as the server counts them; not
                together with *max_messages*.
            expires: Seconds that the server keeps one pull, at least 1.
            heartbeat: Seconds between signs of life of the server, from 0.5 up to half of
                *expires* and 30. Default: half of *expires*, up to 30.
            threshold_messages: How many messages may be left when the buffer is filled again;
                default: half of *max_messages*.
            threshold_bytes: The same in bytes; default: half of *max_bytes*.
            stop_after: End after so many messages; no more than these are pulled.
            ack: ``"auto"`` acknowledges a message when its handler has returned; of an iterator,
                when the same thread takes its next one, or leaves the ``with`` block without an
                exception. Not with a handler where the consumer's ``ack_policy`` is ``all``, as
                each acknowledgement would be one of the messages before it that failed.
            threads: How many threads call the handler.
            ordered_by: ``"subject"`` calls the handler with one message of each subject at a time,
                in the order they are delivered, so that one that is delivered again comes behind
                newer ones of its subject; None in any order.
            on_error: What happens to a message whose handler raised: ``"nak"`` has it delivered
                again, at once the first time, then after 1, 2, 4, ... up to 30 seconds;
                ``"leave"`` does nothing, so that it comes again after the consumer's ack wait;
                ``"stop"`` has it delivered again and ends the consumption.
            keep_alive: Start the ack wait anew, time and again, for the message that a handler is
                at and for those in the buffer, which wait for it.
            group: Priority group, which consumers with groups need.
            min_pending: Only deliver while at least so many messages are pending (overflow policy).
            min_ack_pending: Only deliver while at least so many acks are pending (overflow policy).
            priority: 0 (first) to 9 (prioritized policy).

        Raises:
            InvalidArgumentError: An option makes no sense; nothing was sent.
            InvalidGroupError: The consumer has priority groups, and the options do not fit them.
            NotSupportedError: As for :meth:`fetch`.
            NotPullConsumerError: This is a push consumer; nothing was sent.
            ConnectionClosedError: The client is closed.

        See ADR-37, "Consume".
        """
        config = self._info.config
        if config.deliver_subject:
            raise NotPullConsumerError(consumer=self.name, stream=self._stream_name)
        acked = config.ack_policy is not AckPolicy.NONE
        pool = handler_options(
            handler,
            config,
            ack=ack,
            threads=threads,
            ordered_by=ordered_by,
            on_error=on_error,
            keep_alive=keep_alive,
        )
        require_priorities(
            self._context.server.version, group, min_pending, min_ack_pending, priority
        )
        options = consume_options(
            self._stream_name,
            self.name,
            config,
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            heartbeat=heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            stop_after=stop_after,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
        )
        return Consumption(
            self._context,
            options,
            acked=acked,
            ack_all=config.ack_policy is AckPolicy.ALL,
            auto_ack=acked and ack == "auto" and pool is None,
            handler=pool,
            pins=self._pins,
        )

    def _fetch(self, name: str, options: tuple[Any, ...]) -> MessageBatch:
        if self._info.config.deliver_subject:
            raise NotPullConsumerError(consumer=self.name, stream=self._stream_name)
        last = self._last
        # Programs fetch the same again and again; checking and encoding it once is enough.
        if last is not None and last[0] == options:
            request, wait = last[1:]
        else:
            request, wait = pull_request(*options)
            self._last = (options, request, wait)
        if options[5:] != NO_PRIORITIES:
            require_priorities(self._context.server.version, *options[5:])
        fetch = Fetch(
            self._context,
            self._stream_name,
            self._info.name,
            request,
            self._pool,
            wait=wait,
            name=name,
            acked=self._info.config.ack_policy is not AckPolicy.NONE,
            pins=self._pins,
        )
        return MessageBatch(fetch, ack_all=self._info.config.ack_policy is AckPolicy.ALL)


def pull_request(  # noqa: PLR0917 - the options of a pull.
    max_messages: int | None,
    max_bytes: int | None,
    expires: Seconds,
    heartbeat: Seconds | None,
    no_wait: bool,  # noqa: FBT001 - positional only inside this module.
    group: str | None,
    min_pending: int | None,
    min_ack_pending: int | None,
    priority: int | None,
) -> tuple[PullRequest, float]:
    """Check the options of a pull; return the request, and how long to try."""
    if max_messages is None and max_bytes is None:
        raise InvalidArgumentError("give max_messages, max_bytes or both", argument="max_messages")
    check_given((("max_messages", max_messages, 1), ("max_bytes", max_bytes, 1)))
    check_priorities(group, min_pending, min_ack_pending, priority)
    wait = as_seconds(expires, "expires")
    if wait <= 0.0:
        raise InvalidArgumentError("expires must be more than 0 seconds", argument="expires")
    if no_wait:
        if heartbeat:
            raise InvalidArgumentError(
                "a fetch that does not wait has no heartbeats", argument="heartbeat"
            )
        wait, beat = min(wait, NO_WAIT_PATIENCE), None
    else:
        beat = _heartbeat(heartbeat, wait)
    request = PullRequest(
        max_messages=UNBOUNDED_BATCH if max_messages is None else max_messages,
        max_bytes=max_bytes,
        expires=NO_WAIT_EXPIRES if no_wait else wait,
        heartbeat=beat,
        no_wait=no_wait,
        group=group,
        min_pending=min_pending,
        min_ack_pending=min_ack_pending,
        priority=priority,
    )
    return request, wait


def _heartbeat(heartbeat: Seconds | None, expires: float) -> float | None:
    if heartbeat is None:
        return FETCH_HEARTBEAT if expires >= HEARTBEAT_FROM else None
    if as_seconds(heartbeat, "heartbeat") == 0.0:
        return None
    return read_heartbeat(heartbeat, expires / 2.0)
