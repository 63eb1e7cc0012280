"""
A channel of kombu: declares, publishes, consumes and acknowledges.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs
from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.base import NotEquivalentError

import jetsync
from jetsync_celery import envelope
from jetsync_celery.resending import RESENDING
from jetsync_celery.revoking import cancel_revoked
from jetsync_celery.sources import StoredQueue, Taken, TransientQueue, core_subject, get_one
from jetsync_celery.topology import Binding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jetsync_celery.transport import Transport

KINDS: Final = frozenset({"direct", "topic", "fanout"})
MAX_PRIORITY: Final = 9

BATCH: Final = 100
"""Messages that one call hands out before the event loop gets its turn."""

FILL_TIMEOUT: Final = 1.0
"""Seconds that the first read of a queue waits for the server's answer, so that the highest
priority comes first."""

LONGEST_ID: Final = 200
"""Characters of an id of a job."""

_logger = jetsync.get_logger("jetsync.celery")


@attrs.define(eq=False)
class Reader:
    """
    A consumer of a channel.
    """

    tag: str
    queue: str
    source: StoredQueue | TransientQueue
    callback: Callable[[Any], object]
    no_ack: bool
    is_filled: bool = False


class QoS:
    """
    The prefetch limit of a channel. Acks are in the channel.
    """

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        self._channel = channel
        self.prefetch_count = prefetch_count

    def can_consume(self) -> bool:
        """Return whether the channel may take another message."""
        return self.can_consume_max_estimate() != 0

    def can_consume_max_estimate(self) -> int | None:
        """Return how many messages the channel may take; None for any number."""
        limit = self.prefetch_count
        return max(limit - self._channel.unsettled_count, 0) if limit else None

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Do nothing: the server has the messages."""


class Channel(virtual.Channel):
    """
    A channel of kombu over jetsync.

    One thread at a time declares, publishes and consumes, as with every channel of kombu. Any
    thread may acknowledge.
    """

    # Threads: one, but acks come from any. `_unsettled` is changed by single steps of a dict.

    do_restore = False
    supports_fanout = True
    body_encoding = None
    QoS = QoS
    from_transport_options = ()
    connection: Transport
    closed: bool

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._readers: dict[str, Reader] = {}
        self._stopped: list[StoredQueue] = []
        self._unsettled: dict[str, Taken] = {}

    @property
    def unsettled_count(self) -> int:
        """How many messages kombu has and has not acknowledged."""
        return len(self._unsettled)

    # Exchanges and queues

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",  # noqa: A002 - kombu's name.
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Store an exchange, which all processes then know."""
        kind = type or "direct"
        name = exchange or f"amq.{kind}"
        found = self._topology.exchange(name)
        if passive:
            if found is None:
                raise _not_found("exchange", name, "Channel.exchange_declare")
            return
        if kind not in KINDS:
            raise ChannelError(f"exchanges are direct, topic or fanout, not {kind!r}", (50, 10))
        if found is None:
            found = self._topology.declare_exchange(
                name, {"type": kind, "durable": durable, "auto_delete": auto_delete}
            )
        if found["type"] != kind:
            raise NotEquivalentError(f"exchange {name!r} is {found['type']}, not {kind}")

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Remove an exchange and its bindings."""
        used = any(each.exchange == exchange for each in self._topology.bindings())
        if not (if_unused and used):
            self._topology.remove_exchange(exchange)

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> queue_declare_ok_t:
        """
        Store a queue, or open one in memory if it is exclusive or deletes itself.

        The answer has the number of messages only for a passive declaration.
        """
        name = queue or f"amq.gen-{uuid.uuid4()}"
        is_known = self._has_queue(name)
        if passive:
            if not is_known:
                raise _not_found("queue", name, "Channel.queue_declare")
            return queue_declare_ok_t(name, self._size(name), 0)
        if not is_known:
            if exclusive or auto_delete:
                self.connection.open_transient(name)
            else:
                self._topology.declare_queue(name, dict(arguments or {}))
        return queue_declare_ok_t(name, 0, 0)

    def prepare_queue_arguments(
        self, arguments: Mapping[str, Any], **kwargs: Any
    ) -> Mapping[str, Any]:
        """Name the arguments as RabbitMQ does."""
        prepared: Mapping[str, Any] = to_rabbitmq_queue_arguments(arguments or {}, **kwargs)
        return prepared

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Remove a queue, its bindings and its messages."""
        if if_empty and self._has_queue(queue) and self._size(queue):
            return
        if self.connection.close_transient(queue):
            return
        if self._topology.queue(queue) is not None:
            self._topology.remove_queue(queue)
            self.connection.work_queue(queue).delete()
            self.connection.forget_queue(queue)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Let a queue get messages of an exchange."""
        name = exchange or "amq.direct"
        transient = self.connection.transient(queue)
        if transient is not None:
            transient.bind(name, self._topology.kind(name), routing_key or "")
        else:
            self._topology.bind(Binding(name, queue, routing_key or ""))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Let a queue get no more messages of an exchange."""
        name = exchange or "amq.direct"
        transient = self.connection.transient(queue)
        if transient is not None:
            transient.unbind(name, routing_key or "")
        else:
            self._topology.unbind(Binding(name, queue, routing_key or ""))

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Return queue, exchange and routing key of all stored bindings."""
        return ((b.queue, b.exchange, b.routing_key) for b in self._topology.bindings())

    def get_exchanges(self) -> list[str]:
        """Return the names of all exchanges."""
        return list(self._topology.exchanges())

    # Messages in

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str | None, **kwargs: Any
    ) -> None:
        """
        Store a message in the queues that the exchange chooses, each confirmed by the server.

        Without such a queue, it goes to those that listen at this moment.
        """
        exchange, key = exchange or "", routing_key or ""
        message["properties"]["delivery_info"].update(exchange=exchange, routing_key=key)
        queues = self._topology.route(exchange, key)
        for queue in queues:
            self._put(queue, message)
        if not queues:
            data, headers = envelope.encode(message)
            expiration = envelope.expiration_of(message["properties"])
            if expiration is not None:
                headers[envelope.EXPIRES] = f"{time.time() + expiration:.3f}"
            subject = core_subject(self.connection.prefix, exchange, key)
            self.connection.connected_client.publish(subject, data, headers=headers)
            if exchange.endswith(".pidbox"):
                cancel_revoked(data, self._cancel)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        settings = self.connection.settings
        data, headers = envelope.encode(message)
        task = message["headers"] or {}
        task_id = str(task.get("id") or "")
        at = envelope.eta_of(task) if task_id else None
        arguments = self._topology.queue(queue) or {}
        put = functools.partial(
            self.connection.work_queue(queue).put,
            data,
            headers=headers,
            priority=self._step(message),
            at=at,
            expires=_expires(message, arguments, at.timestamp() if at else 0.0),
        )
        if not task_id:
            put(msg_id=uuid.uuid4().hex)
            return
        # An id of Celery may be used again, so it is not the id for the duplicate detection.
        job_id = task_id if len(task_id) <= LONGEST_ID else None
        with RESENDING.sending(queue, task, data, settings.duplicate_window) as msg_id:
            job = put(job_id=job_id, msg_id=msg_id)
            if job.duplicate and at is not None and not task.get("retries"):
                # A task with this id waits for its ETA already. If this message is not stored yet,
                # its signature was applied twice. A retry comes twice only if the worker died after
                # the first one.
                put(msg_id=msg_id)

    def _step(self, message: dict[str, Any]) -> int:
        priority = message["properties"].get("priority") or 0
        steps = self.connection.settings.priorities
        return min(max(int(priority), 0), MAX_PRIORITY) * steps // (MAX_PRIORITY + 1)

    def _cancel(self, task_id: str) -> bool:
        removed = False
        for queue in self._topology.queues():
            # Workers drop the others, which they know from the same message.
            removed |= self.connection.work_queue(queue).cancel(task_id, scheduled_only=True)
        return removed

    # Messages out

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], object],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Start to take messages of a queue."""
        source: StoredQueue | TransientQueue | None = self.connection.transient(queue)
        if isinstance(source, TransientQueue):
            if not source.is_bound:
                # Every queue is bound to the default exchange with its name.
                source.bind("", "direct", queue)
        elif self._topology.queue(queue) is None:
            raise _not_found("queue", queue, "Channel.basic_consume")
        else:
            source = StoredQueue(
                self.connection.work_queue(queue),
                self.connection.answers,
                0 if no_ack else self.qos.prefetch_count,
                self.connection.wake,
                keep_dead=self.connection.settings.dead_letters,
            )
        self._readers[consumer_tag] = Reader(consumer_tag, queue, source, callback, no_ack)
        self._consumers.add(consumer_tag)
        self._tag_to_queue[consumer_tag] = queue
        self.connection.wake()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Take no more messages; those that kombu has can still be acknowledged."""
        reader = self._readers.pop(consumer_tag, None)
        self._consumers.discard(consumer_tag)
        self._tag_to_queue.pop(consumer_tag, None)
        if reader is None:
            return
        if isinstance(reader.source, StoredQueue):
            reader.source.stop()
            self._stopped.append(reader.source)
        elif not self.connection.has_reader(reader.source):
            # It deletes itself with its last consumer.
            self.connection.close_transient(reader.queue)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return a message of a queue that is available now, or None."""
        transient = self.connection.transient(queue)
        taken: Taken | None = None
        if transient is not None:
            taken = transient.take()
        else:
            taken = get_one(
                self.connection.work_queue(queue),
                self.connection.answers,
                keep_dead=self.connection.settings.dead_letters,
            )
        return None if taken is None else self._received(taken, no_ack=no_ack)

    def deliver(self, kind: type[StoredQueue | TransientQueue]) -> int:
        """
        Hand out messages that have arrived, within the prefetch limit; return how many.

        Args:
            kind: The queues whose messages are handed out.
        """
        count = 0
        is_finished = False
        while not is_finished and count < BATCH:
            is_finished = True
            for reader in list(self._readers.values()):
                # A callback may have cancelled it.
                if reader.tag not in self._readers or not isinstance(reader.source, kind):
                    continue
                if not (reader.no_ack or self.qos.can_consume()):
                    continue
                taken = reader.source.take()
                if taken is None:
                    continue
                reader.callback(self._received(taken, no_ack=reader.no_ack))
                count += 1
                # Callers of queues without a stream, such as remote control, count their calls.
                if isinstance(reader.source, TransientQueue):
                    self.connection.wake()
                else:
                    is_finished = False
        if count >= BATCH:
            self.connection.wake()
        return count

    def fill(self, timeout: float) -> None:
        """Wait until the server has said what new consumers get."""
        for reader in list(self._readers.values()):
            if not reader.is_filled and isinstance(reader.source, StoredQueue):
                reader.source.fill(min(timeout, FILL_TIMEOUT))
                reader.is_filled = True

    def reads(self, source: TransientQueue) -> bool:
        """Return whether the channel has a consumer of a queue."""
        return any(reader.source is source for reader in self._readers.values())

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Limit the messages that kombu has and has not acknowledged."""
        self.qos.prefetch_count = prefetch_count
        for reader in list(self._readers.values()):
            if isinstance(reader.source, StoredQueue) and not reader.no_ack:
                reader.source.set_prefetch(prefetch_count)
        self.connection.wake()

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message."""
        for tag in self._up_to(delivery_tag) if multiple else [delivery_tag]:
            if (taken := self._settle(tag)) is not None:
                taken.settling.ack()

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or drop it, or keep it as a dead job."""
        if (taken := self._settle(delivery_tag)) is not None:
            (taken.settling.requeue if requeue else taken.settling.reject)()

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back all messages that kombu has."""
        for tag in list(self._unsettled):
            self.basic_reject(tag, requeue=True)

    def close(self) -> None:
        """Cancel all consumers, and give back what kombu has not acknowledged."""
        if self.closed:
            return
        self.closed = True
        if self.connection is not None:
            # In a forked child, the receivers and the messages belong to the parent.
            if not self.connection.is_forked:
                for tag in list(self._readers):
                    self.basic_cancel(tag)
                self._give_back()
            self.connection.close_channel(self)

    def _give_back(self) -> None:
        try:
            self.basic_recover(requeue=True)
            self.connection.finish_answers()
        finally:
            # An open receiver would keep messages alive that nobody handles.
            for source in self._stopped:
                source.close()
            self._stopped.clear()

    def _received(self, taken: Taken, *, no_ack: bool) -> Any:
        message = self.Message(taken.raw, channel=self)
        if no_ack:
            taken.settling.ack()
        else:
            self._unsettled[taken.tag] = taken
        return message

    def _settle(self, tag: str) -> Taken | None:
        taken = self._unsettled.pop(tag, None)
        if taken is None:
            # The channel was closed, and the server has given the message to another consumer.
            _logger.info("kombu_message_not_held", delivery_tag=tag)
        elif self.connection is not None:
            self.connection.wake()
        return taken

    def _up_to(self, tag: str) -> list[str]:
        tags = list(self._unsettled)
        return tags[: tags.index(tag) + 1] if tag in tags else []

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return (
            self.connection.transient(queue) is not None or self._topology.queue(queue) is not None
        )

    def _size(self, queue: str) -> int:
        transient = self.connection.transient(queue)
        if transient is not None:
            return transient.size()
        return int(self.connection.work_queue(queue).statistics().waiting)

    def _purge(self, queue: str) -> int:
        transient = self.connection.transient(queue)
        if transient is not None:
            return transient.purge()
        return self.connection.work_queue(queue).purge()

    @property
    def _topology(self) -> Any:
        return self.connection.topology


def _expires(
    message: Mapping[str, Any], arguments: Mapping[str, Any], start: float
) -> float | None:
    expires = envelope.expiration_of(message["properties"])
    ttl = arguments.get("x-message-ttl")
    if ttl:
        expires = min(expires or float("inf"), float(ttl) / 1000.0)
    if expires is not None and start:
        # The worker finds that such a task has expired, and says so in its result.
        expires = max(expires, start - time.time() + 1.0)
    return expires


def _not_found(what: str, name: str, method: str) -> ChannelError:
    return ChannelError(f"NOT_FOUND - no {what} {name!r}", (50, 10), method, "404")
