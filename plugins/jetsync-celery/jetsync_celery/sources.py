"""
The queues that a connection of kombu reads.

Tasks come from the work queues of jetsync-queue. Queues that live only as long as a process uses
them, such as those for replies, remote control and events, are core subscriptions: a message for
them arrives at most once, and only while they exist.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

import jetsync
import jetsync_queue
from jetsync_celery import envelope
from jetsync_celery.answers import Answers
from jetsync_celery.topology import Binding, matches, part

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PENDING: Final = 65_536
"""Messages that a queue without a stream holds; newer ones are dropped."""

JOIN_TIMEOUT: Final = 5.0
"""Seconds to wait for the thread of a subscription, which ends at once."""

_tags = itertools.count(1)
_logger = jetsync.get_logger("jetsync.celery")


class Settling(Protocol):
    """
    How a message that was handed to kombu ends. Thread-safe.
    """

    def ack(self) -> None:
        """Remove the message: it is done."""

    def reject(self) -> None:
        """Drop the message: no consumer will handle it."""

    def requeue(self) -> None:
        """Give the message back, for any consumer."""


@attrs.frozen
class Taken:
    """
    A message for kombu, and how it ends.
    """

    tag: str
    raw: dict[str, Any]
    settling: Settling


@attrs.frozen
class StoredMessage:
    """
    The end of a message of a work queue.
    """

    delivery: jetsync_queue.Delivery
    answers: Answers
    receiver: jetsync_queue.Receiver
    keep_dead: bool

    def ack(self) -> None:
        """Remove the message from its queue."""
        self._settle(lambda timeout: self.delivery.ack(confirmed=True, timeout=timeout))

    def reject(self) -> None:
        """Remove the message, or keep it as a dead job."""
        reason = "rejected by the consumer"
        self._settle(lambda _: self.delivery.reject(reason, dead=self.keep_dead))

    def bury(self, reason: str) -> None:
        """Keep the message as a dead job."""
        self._settle(lambda _: self.delivery.reject(reason, dead=True))

    def requeue(self, delay: float | None = None) -> None:
        """
        Give the message back to the server.

        Without a connection, the server delivers it after the ack wait. A message that is given
        back later may be with another worker then, and would be taken away from it.
        """
        if self.answers.is_connected:
            self._settle(lambda _: self.delivery.requeue(delay=delay))
        else:
            self.receiver.forget(self.delivery)

    def _settle(self, answer: Callable[[float | None], object]) -> None:
        def settle(timeout: float | None) -> None:
            if not self.delivery.is_settled:
                answer(timeout)

        # The server delivers a message again that cannot be settled and is not kept alive.
        self.answers.send(settle, lambda: self.receiver.forget(self.delivery))


class StoredQueue:
    """
    The messages of a work queue, for one channel.

    Threads: one takes messages, any may stop it.
    """

    def __init__(
        self,
        queue: jetsync_queue.WorkQueue,
        answers: Answers,
        prefetch: int,
        on_ready: Callable[[], object],
        *,
        keep_dead: bool,
    ) -> None:
        self._queue = queue
        self._answers = answers
        self._keep_dead = keep_dead
        # The server does not keep the order of messages that come back, so those that have arrived
        # are handed out by priority and then by age.
        self._arrived: list[tuple[int, int, jetsync_queue.Delivery]] = []
        ahead = min(prefetch, AHEAD) if prefetch else AHEAD
        self._receiver = queue.receive(prefetch=prefetch or None, ahead=ahead, on_ready=on_ready)

    def set_prefetch(self, prefetch: int) -> None:
        """Limit the messages that are taken and have not ended; 0 for no limit."""
        self._receiver.prefetch = prefetch or None

    def fill(self, timeout: float) -> None:
        """Wait until what is stored has arrived, so that the highest priority comes first."""
        end = time.monotonic() + timeout
        found = self._queue.statistics()
        if not found.waiting + found.running:
            return
        wanted = min(found.waiting, AHEAD)
        if self._receiver.prefetch is not None:
            wanted = min(wanted, self._receiver.prefetch)
        held, grew = -1, time.monotonic()
        while (now := time.monotonic()) < end:
            if self._receiver.held > held:
                held, grew = self._receiver.held, now
            if held >= wanted and now - grew >= (SETTLED if found.running else 0.0):
                return
            time.sleep(PAUSE)

    def take(self) -> Taken | None:
        """Return the next message that has arrived, or None."""
        while len(self._arrived) < AHEAD:
            delivery = self._receiver.get(timeout=0)
            if delivery is None:
                break
            heapq.heappush(self._arrived, (-delivery.priority, delivery.sequence, delivery))
        while self._arrived:
            _, _, delivery = heapq.heappop(self._arrived)
            message = StoredMessage(delivery, self._answers, self._receiver, self._keep_dead)
            if (taken := taken_from(message)) is not None:
                return taken
        return None

    def stop(self) -> None:
        """Take no more. Messages that kombu has can still end."""
        self._receiver.stop()
        arrived, self._arrived = self._arrived, []
        for _, _, delivery in arrived:
            StoredMessage(delivery, self._answers, self._receiver, self._keep_dead).requeue()

    def close(self) -> None:
        """Take no more, and give back what has not ended."""
        self._receiver.close()


def get_one(queue: jetsync_queue.WorkQueue, answers: Answers, *, keep_dead: bool) -> Taken | None:
    """
    Return a message of a work queue that is available now, or None.
    """
    found = queue.statistics()
    if not found.waiting + found.running:
        return None
    receiver = queue.receive(prefetch=1)
    try:
        # Those that were just given back count as running.
        timeout = GET_TIMEOUT if found.waiting else GET_TIMEOUT / 5.0
        while (delivery := receiver.get(timeout=timeout)) is not None:
            message = StoredMessage(delivery, answers, receiver, keep_dead)
            if (taken := taken_from(message)) is not None:
                return taken
    finally:
        # Its threads end when the message is settled.
        receiver.stop()
    return None


GET_TIMEOUT: Final = 1.0
"""Seconds to wait for a message that the server says to have."""

SETTLED: Final = 0.1
"""Seconds without a further message after which those that were given back have arrived."""

PAUSE: Final = 0.002
"""Seconds between two looks at what has arrived."""

AHEAD: Final = 16
"""Most messages of each priority that are fetched before kombu asks for them."""

READ_AGAIN: Final = 1.0
"""Seconds until a message is delivered again whose data could not be loaded."""

GONE: Final = (jetsync.ObjectNotFoundError, jetsync.ObjectStoreNotFoundError)
"""Errors that say that the data of a message no longer exists."""


def taken_from(message: StoredMessage) -> Taken | None:
    """
    Return a job as a message for kombu; None if it has expired or cannot be read.

    An error here would stop the worker, and the next one that gets the job, too.
    """
    try:
        if not message.delivery.is_expired:
            return _decoded(message)
    except GONE as error:
        failure: Exception = error
    except jetsync.JetSyncError as error:
        _logger.warning("kombu_message_given_back", job=message.delivery.id, error=repr(error))
        message.requeue(delay=READ_AGAIN)
        return None
    except Exception as error:  # noqa: BLE001 - of any program that publishes.
        failure = error
    else:
        attrs.evolve(message, keep_dead=False).reject()
        return None
    _logger.error("kombu_message_unreadable", job=message.delivery.id, error=repr(failure))
    message.bury(f"it cannot be read: {failure!r}")
    return None


def _decoded(message: StoredMessage) -> Taken:
    delivery = message.delivery
    tag = f"{delivery.sequence}.{next(_tags)}"
    data = delivery.data
    raw = envelope.decode(
        data if isinstance(data, bytes) else delivery.raw,
        delivery.headers,
        tag,
        redelivered=delivery.deliveries > 1,
    )
    return Taken(tag, raw, message)


@attrs.frozen
class HeldMessage:
    """
    The end of a message of a queue without a stream.
    """

    queue: TransientQueue
    priority: int
    data: bytes
    headers: dict[str, str]

    def ack(self) -> None:
        """Nothing to do: no server has the message."""

    def reject(self) -> None:
        """Nothing to do: no server has the message."""

    def requeue(self) -> None:
        """Put the message back into the queue of this process."""
        self.queue.add(self.priority, self.data, self.headers, redelivered=True)


class TransientQueue:
    """
    A queue without a stream, in the memory of this process.

    Several processes that read a queue of one name share its messages.

    Threads: any. Each binding has a thread that moves messages into the heap.
    Locks: `_lock` protects the heap and the bindings. Nothing is waited for under it.
    """

    def __init__(
        self, client: jetsync.Client, prefix: str, name: str, on_ready: Callable[[], object]
    ) -> None:
        self.name = name
        self._client = client
        self._prefix = prefix
        self._on_ready = on_ready
        self._lock = jetsync.interrupt_safe_lock()
        self._heap: list[tuple[int, int, bytes, dict[str, str], bool]] = []
        self._order = itertools.count()
        self._bindings: dict[Binding, tuple[jetsync.Subscription, threading.Thread]] = {}
        # Changed by single steps of a set.
        self._receiving: set[jetsync.Subscription] = set()

    @property
    def is_bound(self) -> bool:
        """Whether it gets messages of any exchange."""
        return bool(self._bindings)

    @property
    def is_behind(self) -> bool:
        """Whether messages have arrived that `take` does not return yet."""
        return bool(self._receiving) or any(
            subscription.pending and thread.is_alive()
            for subscription, thread in list(self._bindings.values())
        )

    def bind(self, exchange: str, kind: str, routing_key: str) -> None:
        """Start to receive the messages of an exchange."""
        binding = Binding(exchange, self.name, routing_key)
        with self._lock:
            if binding in self._bindings:
                return
        is_exact = kind not in {"fanout", "topic"}
        subject = core_subject(self._prefix, exchange, routing_key if is_exact else None)
        subscription = self._client.subscribe(
            subject, queue=part(self.name), max_pending=MAX_PENDING
        )
        thread = threading.Thread(
            target=self._read,
            args=(subscription, kind, routing_key),
            name=f"kombu {self.name}",
            daemon=True,
        )
        with self._lock:
            self._bindings[binding] = (subscription, thread)
        thread.start()
        # A message that another connection publishes after this call arrives.
        self._client.flush()

    def unbind(self, exchange: str, routing_key: str) -> None:
        """Receive no more messages of an exchange."""
        with self._lock:
            found = self._bindings.pop(Binding(exchange, self.name, routing_key), None)
        if found:
            _end(*found)

    def add(
        self, priority: int, data: bytes, headers: dict[str, str], *, redelivered: bool = False
    ) -> None:
        """Add a message, which a thread may take at once."""
        self._push(priority, data, headers, redelivered=redelivered)
        self._on_ready()

    def _push(
        self, priority: int, data: bytes, headers: dict[str, str], *, redelivered: bool
    ) -> None:
        with self._lock:
            order = -next(self._order) if redelivered else next(self._order)
            heapq.heappush(self._heap, (-priority, order, data, headers, redelivered))

    def take(self) -> Taken | None:
        """Return the message of the highest priority, or None."""
        while True:
            with self._lock:
                if not self._heap:
                    return None
                priority, _, data, headers, redelivered = heapq.heappop(self._heap)
            if envelope.has_expired(headers):
                continue
            tag = f"t{next(_tags)}"
            raw = envelope.decode(data, headers, tag, redelivered=redelivered)
            return Taken(tag, raw, HeldMessage(self, -priority, data, headers))

    def size(self) -> int:
        """Return how many messages wait in this process."""
        return len(self._heap)

    def purge(self) -> int:
        """Drop the messages that wait in this process, and return how many."""
        with self._lock:
            count = len(self._heap)
            self._heap.clear()
        return count

    def close(self) -> None:
        """Stop receiving, and drop what waits."""
        with self._lock:
            found = list(self._bindings.values())
            self._bindings.clear()
            self._heap.clear()
        for subscription, thread in found:
            _end(subscription, thread)

    def _read(self, subscription: jetsync.Subscription, kind: str, routing_key: str) -> None:
        while True:
            try:
                for message in subscription:
                    self._receiving.add(subscription)
                    try:
                        self._receive(message, kind, routing_key)
                    finally:
                        self._receiving.discard(subscription)
                        # Also if it is not for this queue: tasks may wait for it.
                        self._on_ready()
                return
            except jetsync.SlowConsumerError as error:
                _logger.warning("kombu_messages_dropped", queue=self.name, error=str(error))
            except jetsync.JetSyncError as error:
                _logger.debug("kombu_subscription_ended", queue=self.name, error=str(error))
                return
            except Exception as error:  # noqa: BLE001 - of any program that publishes.
                # A message of another program must not end the thread.
                _logger.warning("kombu_message_ignored", queue=self.name, error=repr(error))

    def _receive(self, message: jetsync.Message, kind: str, routing_key: str) -> None:
        headers = {name: str(value) for name, value in message.headers.items()}
        properties = envelope.decode(b"", headers, "")["properties"]
        info = properties.get("delivery_info", {})
        # The second check also refuses a header that is no time, which `take` could not read.
        if matches(
            kind, routing_key, str(info.get("routing_key") or "")
        ) and not envelope.has_expired(headers):
            priority = int(properties.get("priority") or 0)
            self._push(priority, bytes(message.data), headers, redelivered=False)


def core_subject(prefix: str, exchange: str, routing_key: str | None) -> str:
    """
    Return the subject of the messages of an exchange; with all routing keys for None.
    """
    last = "*" if routing_key is None else part(routing_key)
    return f"kombu.{prefix}.{part(exchange)}.{last}"


def _end(subscription: jetsync.Subscription, thread: threading.Thread) -> None:
    subscription.close()
    if thread is not threading.current_thread():
        thread.join(JOIN_TIMEOUT)
