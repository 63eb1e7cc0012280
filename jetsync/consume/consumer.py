"""
The handle of a consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn

from jetsync._api.consumers import delete as delete_consumer
from jetsync._api.consumers import info as consumer_info
from jetsync._base.keywords import hide_extra, refuse, refuse_position
from jetsync._base.pickling import refuse_copy
from jetsync._proto.pull_request import NO_PRIORITIES
from jetsync._proto.push import PushOptions
from jetsync.consume.consumption import Consumption
from jetsync.consume.dead_letters import (
    check_target,
    is_limited,
    warn_if_buffered,
    warn_if_unlimited,
)
from jetsync.consume.fetch import Fetch, MessageBatch
from jetsync.consume.options import (
    cached_request,
    consume_options,
    fetch_request,
    handler_options,
    push_options,
    require_priorities,
)
from jetsync.consume.push import bind
from jetsync.consume.target import PullTarget
from jetsync.errors import NotPullConsumerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Unpack

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync._base.keywords import NoKeywords
    from jetsync._proto.pull_request import ConsumeOptions
    from jetsync.values.consumer_info import ConsumerInfo
    from jetsync.values.message import Message

__all__ = ["Consumer"]


class Consumer:
    """
    A durable or ephemeral consumer on the server; made by a stream or a JetStream context.

    Thread-safe. Each fetch sends its own *pull*, a request for messages. The server sends each
    message to one of the pulls. From a push consumer, which has a ``deliver_subject``, messages can
    only be read with :meth:`consume`.
    """

    # Threads: any.
    # Locks: none; `_info` is replaced in one step, and each fetch has a state of its own. If two
    # threads begin to consume at the same moment, both may warn.

    __reduce__ = refuse_copy

    def __init__(self, context: Context, stream_name: str, info: ConsumerInfo) -> None:
        self._context = context
        self._stream_name = stream_name
        self._info = info
        self._target = PullTarget(context, stream_name, info.name, info.config.ack_policy)
        # Whether a warning about the buffers of its consumptions was logged.
        self._is_warned = False

    def __repr__(self) -> str:
        return f"<Consumer {self._stream_name}/{self.name}>"

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._info.name

    @property
    def stream_name(self) -> str:
        """The name of the stream that the consumer reads."""
        return self._stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """The consumer's info as the server last sent it. This sends no request."""
        return self._info

    def info(self, *, timeout: Seconds | None = None) -> ConsumerInfo:
        """
        Ask the server for the consumer's info, and keep the answer as :attr:`cached_info`.

        Args:
            timeout: Seconds for the whole call. Default: that of the :class:`JetStream` object.

        Raises:
            ConsumerNotFoundError: The consumer no longer exists.
        """
        deadline = self._context.deadline(timeout)
        self._info = consumer_info(self._context, self._stream_name, self.name, deadline)
        return self._info

    def delete(self, *, timeout: Seconds | None = None) -> None:
        """
        Delete the consumer on the server. Waiting fetches raise ConsumerDeletedError.

        Args:
            timeout: Seconds for the whole call. Default: that of the :class:`JetStream` object.

        Raises:
            ConsumerNotFoundError: The consumer no longer exists.
        """
        delete_consumer(
            self._context, self._stream_name, self.name, self._context.deadline(timeout)
        )

    @hide_extra
    def fetch(
        self,
        max_messages: int | None = None,
        *_extra: NoReturn,
        max_bytes: int | None = None,
        expires: Seconds | None = None,
        heartbeat: Seconds | None = None,
        no_wait: bool = False,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
        **unknown: Unpack[NoKeywords],
    ) -> MessageBatch:
        """
        Ask for messages, and return them as an iterable that yields each message as it arrives.

        jetsync sends the pull before the call returns. The iteration ends when all requested
        messages have arrived, or after *expires*. If no message arrives, it ends without an error.
        Errors are raised at the end of the iteration, after the messages that did arrive. Examples
        are a deleted consumer, and a pull that exceeds a limit of the consumer.

        If the consumer has no leader or the connection is lost, jetsync requests the remaining
        messages again within *expires*. The iteration waits for at most *expires* plus 2 seconds.
        If you leave the iteration early, jetsync gives the remaining messages back to the server.

        Thread-safe; each batch belongs to one thread.

        Args:
            max_messages: The maximum number of messages. Optional if *max_bytes* is given.
            max_bytes: The maximum number of bytes, counted as the server does: subject, reply
                subject, headers and payload. If the next message is larger than this, the batch is
                empty, and ``batch.status`` says so. Set *max_bytes* for large batches of large
                messages: by default, servers disconnect a client for which 64 MiB wait to be sent.
            expires: Seconds to wait for messages. Default: 30. With *no_wait*, seconds to wait for
                a connection or a leader, at most 2.
            heartbeat: Seconds between heartbeats of the server, from 0.5 to half of *expires*. Two
                missed heartbeats end the fetch with NoHeartbeatError. Default: 5 if *expires* is at
                least 10, otherwise none. 0 turns heartbeats off.
            no_wait: Fetch the messages that are available now, and do not wait for more. Default:
                False.
            group: The priority group. Required if the consumer has a ``priority_policy`` other than
                ``none``.
            min_pending: Deliver only while the consumer has at least this many undelivered
                messages. For the priority policy ``overflow``.
            min_ack_pending: Deliver only while the consumer has at least this many unacknowledged
                messages. For the priority policy ``overflow``.
            priority: The priority of this pull, from 0 (served first) to 9. For the priority policy
                ``prioritized``.

        Raises:
            InvalidArgumentError: An option is invalid; nothing was sent.
            NotPullConsumerError: This is a push consumer; nothing was sent.
            NotSupportedError: The connected server would ignore an option of priority groups: it is
                older than 2.11, or older than 2.12 for *priority*. Nothing was sent.
            DisconnectedError: There was no connection in time; nothing was sent.

        See ADR-37, "Fetch".
        """
        if unknown:
            refuse(Consumer.fetch, unknown)
        if _extra:
            refuse_position(Consumer.fetch)
        options = {
            "max_messages": max_messages,
            "max_bytes": max_bytes,
            "expires": expires,
            "heartbeat": heartbeat,
            "no_wait": no_wait,
            "group": group,
            "min_pending": min_pending,
            "min_ack_pending": min_ack_pending,
            "priority": priority,
        }
        return self._fetch("fetch", options)

    @hide_extra
    def next(
        self,
        expires: Seconds | None = None,
        *_extra: NoReturn,
        heartbeat: Seconds | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
        **unknown: Unpack[NoKeywords],
    ) -> Message | None:
        """
        Wait for one message and return it, or None if none arrives within *expires*.

        Thread-safe. If the pull ends for a temporary reason, jetsync retries it as in
        :meth:`fetch`.

        Args:
            expires: Seconds to wait. Default: 30.
            heartbeat: As for :meth:`fetch`.
            group: As for :meth:`fetch`.
            min_pending: As for :meth:`fetch`.
            min_ack_pending: As for :meth:`fetch`.
            priority: As for :meth:`fetch`.

        Raises:
            ConsumerDeletedError, ConsumerNotFoundError: The consumer no longer exists.
            StatusError: The pull failed for another reason.
            InvalidArgumentError, NotPullConsumerError, NotSupportedError: As for :meth:`fetch`.
            DisconnectedError, ConnectionClosedError: There was no connection in time, or the client
                is closed.

        See ADR-37, "Next".
        """
        if unknown:
            refuse(Consumer.next, unknown)
        if _extra:
            refuse_position(Consumer.next)
        options = {
            "max_messages": 1,
            "expires": expires,
            "heartbeat": heartbeat,
            "group": group,
            "min_pending": min_pending,
            "min_ack_pending": min_ack_pending,
            "priority": priority,
        }
        batch = self._fetch("next", options)
        message = next(iter(batch), None)
        batch.close()
        return message

    @hide_extra
    def consume(
        self,
        handler: Callable[[Message], object] | None = None,
        *_extra: NoReturn,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Seconds | None = None,
        heartbeat: Seconds | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        stop_after: int | None = None,
        ack: Literal["explicit", "auto"] = "explicit",
        threads: int = 1,
        ordered_by: Literal["subject"] | None = None,
        on_error: Literal["nak", "leave", "stop"] = "nak",
        keep_alive: bool = False,
        dead_letter: str | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
        **unknown: Unpack[NoKeywords],
    ) -> Consumption:
        """
        Return the messages as an endless iterator, or call a handler with each message.

        jetsync pulls messages ahead into a buffer. If your code is slow, the server stops sending
        once *max_messages* (or *max_bytes*) are buffered. This call does not wait: without a
        connection, the first pull is sent after the reconnect. Thread-safe, and threads may share
        the iterator.

        A push consumer sends messages as they come, so there are no pulls. Its ``flow_control``
        limits the buffer: jetsync answers the server after your code has taken the messages before
        its request. Without flow control, the buffer is limited to *max_messages* (65,536) and
        *max_bytes* (64 MiB). If it is full, the consumption ends with SlowConsumerError after the
        buffered messages. With ``ack_policy`` none, the dropped messages are lost. Unless the
        consumer has a ``deliver_group``, this call asks the server whether there is another
        subscriber, and waits for the answer up to the timeout of the :class:`JetStream` object.

        If a handler raises an exception, jetsync emits a HandlerErrorEvent, logs the error and
        counts it in ``statistics()``. The first exception of each type and line also goes to
        ``threading.excepthook``, which prints it. An exception ends the consumption only if
        *on_error* is ``"stop"``, or if it is a SystemExit or KeyboardInterrupt. If a plugin refuses
        a message of a consumer with ``ack_policy`` all, the consumption ends, because the next
        acknowledgement would also cover that message.

        Args:
            handler: Called with each message, in threads of the consumption.
            max_messages: The size of the buffer in messages. With a handler, it also counts the
                messages that its threads work on, and is at least *threads*. Default: *threads* for
                a handler on a consumer with ``max_deliver``, otherwise 500. A larger buffer on a
                consumer with ``max_deliver`` logs a warning: if the process stops or dies, each
                message in the buffer has used one of its deliveries. Not allowed for a push
                consumer with flow control. Messages that are not handled within the consumer's
                ``ack_wait`` are redelivered.
            max_bytes: The size of the buffer in bytes, counted as for :meth:`fetch`. Cannot be
                combined with *max_messages*. Set it for messages of more than 64 KiB: by default,
                servers disconnect a client for which 64 MiB wait to be sent.
            expires: Seconds that the server keeps one pull open, at least 1. Default: 30. Like all
                other options of pulls, it is refused for a push consumer.
            heartbeat: Seconds between heartbeats of the server, from 0.5 to half of *expires*, at
                most 30. Default: half of *expires*, at most 30.
            threshold_messages: jetsync refills the buffer when this many messages are left.
                Default: half of *max_messages*. With a handler, halfway between *threads* and
                *max_messages*.
            threshold_bytes: The same in bytes. Default: half of *max_bytes*.
            stop_after: End after this many messages, and pull no more than that. Default: no end.
                From a push consumer more may arrive, and are given back. So its ``ack_policy`` must
                not be none.
            ack: ``"explicit"``, the default: your code acknowledges each message. ``"auto"``
                acknowledges a message when its handler has returned. Without a handler, it does so
                when the same thread takes its next message or leaves the ``with`` block without an
                exception. Not allowed with a handler if the consumer's ``ack_policy`` is ``all``,
                because each acknowledgement also covers earlier messages that failed.
            threads: How many threads call the handler. Default: 1.
            ordered_by: ``"subject"`` handles one message of each subject at a time, in the order of
                delivery. A redelivered message is therefore handled after messages of its subject
                that were delivered in the meantime. Default: any order.
            on_error: What happens to a message whose handler raised. ``"nak"``, the default, has it
                redelivered: immediately the first time, then after 1, 2, 4, ... seconds, at most
                30. ``"leave"`` does nothing, so the server redelivers it after ``ack_wait``.
                ``"stop"`` has it redelivered and ends the consumption.
            keep_alive: Whether to restart the ``ack_wait`` of buffered messages, and of messages
                that a handler is processing, before it runs out. Default: False.
            dead_letter: A subject for copies of messages that are given up: if the handler raises
                :class:`DeadLetter`, or if the last delivery that the consumer's ``max_deliver``
                allows fails. The message is terminated after its copy is stored. If that fails, it
                is not terminated: after the last delivery, :meth:`Stream.dead_letters` copies it.
                Without ``max_deliver``, only :class:`DeadLetter` gives a message up, and the call
                logs a warning. Needs ``ack="auto"``. The call asks the server which stream stores
                the subject, so it needs a connection. Default: none.
            group: As for :meth:`fetch`.
            min_pending: As for :meth:`fetch`.
            min_ack_pending: As for :meth:`fetch`.
            priority: As for :meth:`fetch`.

        Raises:
            InvalidArgumentError: An option is invalid; nothing was sent.
            InvalidGroupError: *group* is missing or unknown, or the consumer's priority policy does
                not allow *min_pending* or *min_ack_pending*.
            NotSupportedError: As for :meth:`fetch`, or the ``ack_policy`` is ``flow_control``.
            ConsumerInUseError: This is a push consumer that another client is reading, without
                ``deliver_group``.
            ConsumerNotFoundError: This is a push consumer that no longer exists.
            DisconnectedError: This is a push consumer, and there was no connection in time.
            ConnectionClosedError: The client is closed.
            NoStreamResponseError: No stream stores the subject *dead_letter*.

        See ADR-37, "Consume".
        """
        if unknown:
            refuse(Consumer.consume, unknown)
        if _extra:
            refuse_position(Consumer.consume)
        config = self._info.config
        handling = handler_options(
            config,
            handler=handler,
            ack=ack,
            threads=threads,
            ordered_by=ordered_by,
            on_error=on_error,
            keep_alive=keep_alive,
            dead_letter=dead_letter,
        )
        options = push_options if config.deliver_subject else consume_options
        wanted: ConsumeOptions | PushOptions = options(
            self._stream_name,
            self._info.name,
            config,
            handling,
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
        if handling.dead_letter is not None:
            context = self._context
            until = context.deadline(None)
            check_target(context, self._stream_name, config, handling.dead_letter, until)
            warn_if_unlimited(self.name, self._stream_name, config)
        if not self._is_warned and is_limited(config):
            self._is_warned = warn_if_buffered(self._stream_name, self.name, config, wanted)
        if isinstance(wanted, PushOptions):
            wanted = bind(self._target, wanted, self._context.deadline(None))
        elif wanted.priorities != NO_PRIORITIES:
            require_priorities(self._context.connection.server.version, wanted.priorities)
        return Consumption(self._target, wanted, handling)

    def _fetch(self, name: str, options: Mapping[str, Any]) -> MessageBatch:
        if self._info.config.deliver_subject:
            raise NotPullConsumerError(consumer=self.name, stream=self._stream_name)
        try:
            # Programs repeat the same fetch, so a request is checked and encoded only once.
            found = cached_request(**options)
        except TypeError:
            # An argument cannot be hashed. If it is invalid, the next line raises the error.
            found = None
        request, wait = found or fetch_request(**options)
        if request.priorities != NO_PRIORITIES:
            require_priorities(self._context.connection.server.version, request.priorities)
        return MessageBatch(Fetch(self._target, request, wait=wait, name=name))
