"""
The transport that kombu makes for each connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from kombu.transport import virtual
from kombu.transport.base import Transport as BaseTransport

import jetsync
from jetsync_celery import links
from jetsync_celery.answers import Answers
from jetsync_celery.channel import Channel
from jetsync_celery.clients import CLIENTS
from jetsync_celery.hidden import without_secrets
from jetsync_celery.settings import Settings
from jetsync_celery.sources import StoredQueue, TransientQueue
from jetsync_celery.topology import Topology
from jetsync_queue import ReceiverClosedError, WorkQueue

if TYPE_CHECKING:
    from kombu.asynchronous import Hub

SCHEMES: Final = ("jetstream", links.SECURE)
"""The schemes of broker URLs. The second one turns TLS on."""

BELL_SIZE: Final = 4096
"""Bytes that one call reads of what `wake` has written."""

LONGEST_HOLD: Final = 0.1
"""Seconds that tasks wait at most for messages without a stream, of which there may be a flood."""

FINISH_TIMEOUT: Final = 2.0
"""Seconds that the end of a channel waits for acknowledgements that are sent again."""


class Transport(virtual.Transport):
    """
    kombu's transport over NATS JetStream.

    Each connection of kombu has one. All of a process share one connection to the server, which
    jetsync restores after a loss, without kombu's help. A child of a fork must make its own, as
    Celery does.
    """

    # Threads: one declares and drains. Any thread calls `wake`.
    # Locks: none; `_ready` is an event, and a socket takes single bytes from any thread.

    Channel = Channel
    default_port = links.DEFAULT_PORT
    driver_type = "jetstream"
    driver_name = "jetsync"
    polling_interval = None
    connection_errors = (
        jetsync.ConnectError,
        jetsync.ConnectionClosedError,
        jetsync.ConnectionLostError,
        jetsync.DisconnectedError,
        jetsync.NoRespondersError,
        jetsync.PublishOutcomeUnknownError,
        jetsync.RequestTimeoutError,
        ReceiverClosedError,
    )
    channel_errors = (*BaseTransport.channel_errors, jetsync.JetSyncError)
    implements = BaseTransport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._pid = os.getpid()
        self._connected: jetsync.Client | None = None
        self._js: jetsync.JetStream | None = None
        self._answers: Answers | None = None
        self._queues: dict[str, WorkQueue] = {}
        self._transients: dict[str, TransientQueue] = {}
        self._ready = threading.Event()
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._hub: Hub | None = None
        self._held_since: float | None = None
        self.settings = Settings.of(client.transport_options or {})
        client.transport_options = without_secrets(client.transport_options or {})
        self.topology: Topology | None = None
        self.prefix = links.DEFAULT_PREFIX

    def driver_version(self) -> str:
        """Return the version of jetsync."""
        return str(jetsync.__version__)

    @property
    def is_forked(self) -> bool:
        """Whether this is the child of the process that has connected."""
        return os.getpid() != self._pid

    @property
    def connected_client(self) -> jetsync.Client:
        """The client of jetsync."""
        if self._connected is None:
            raise jetsync.ConnectionClosedError
        return self._connected

    @property
    def answers(self) -> Answers:
        """What sends acknowledgements."""
        if self._answers is None:
            raise jetsync.ConnectionClosedError
        return self._answers

    def finish_answers(self) -> None:
        """Wait a little for acknowledgements that are sent again."""
        if self._answers is not None:
            self._answers.finish(FINISH_TIMEOUT)

    # Connections and channels

    def establish_connection(self) -> Transport:
        """Connect, and read the topology."""
        link = links.of_connection(self.client, self.settings.connect)
        client = CLIENTS.acquire(link.options)
        try:
            js = client.jetstream()
            topology = Topology(js, link.prefix, self.settings)
        except BaseException:
            CLIENTS.release(client)
            raise
        self._pid = os.getpid()
        self._connected, self._js, self.topology = client, js, topology
        self._answers = Answers(client)
        self.prefix = link.prefix
        return self

    def verify_connection(self, connection: Transport) -> bool:
        """Return whether the connection can be used."""
        return self._connected is not None and not self._connected.is_closed and not self.is_forked

    def create_channel(self, connection: Transport) -> Any:
        """Return a new channel of a connection, which has another transport after a failover."""
        channel = self.Channel(connection)
        connection.channels.append(channel)
        return channel

    def close_connection(self, connection: Transport) -> None:
        """Close all channels and the connection."""
        if self.is_forked:
            # The socket, the threads and the messages belong to the parent.
            self.channels.clear()
            self._transients.clear()
            self._connected = self.topology = None
            return
        for channel in list(self.channels):
            channel.close()
        for transient in list(self._transients.values()):
            transient.close()
        self._transients.clear()
        self._queues.clear()
        self._close_bell()
        topology, self.topology = self.topology, None
        client, self._connected = self._connected, None
        if topology is not None:
            topology.close()
        if client is not None:
            CLIENTS.release(client)

    def _collect(self, connection: Transport) -> None:
        """Close after an error or a fork. kombu calls it."""
        self.close_connection(connection)

    # Queues

    def work_queue(self, name: str) -> WorkQueue:
        """Return the stored queue of this name."""
        found = self._queues.get(name)
        if found is None:
            if self._js is None:
                raise jetsync.ConnectionClosedError
            settings = self.settings
            found = self._queues[name] = WorkQueue.open(
                self._js,
                name,
                prefix=self.prefix,
                priorities=settings.priorities,
                results=False,
                ack_wait=settings.ack_wait,
                duplicate_window=settings.duplicate_window,
                storage=settings.storage,
                num_replicas=settings.num_replicas,
            )
        return found

    def forget_queue(self, name: str) -> None:
        """Forget a queue that was deleted."""
        self._queues.pop(name, None)

    def transient(self, name: str) -> TransientQueue | None:
        """Return the queue in memory of this name, or None."""
        return self._transients.get(name)

    def open_transient(self, name: str) -> TransientQueue:
        """Return a new queue in memory."""
        queue = TransientQueue(self.connected_client, self.prefix, name, self.wake)
        self._transients[name] = queue
        return queue

    def close_transient(self, name: str) -> bool:
        """Close a queue in memory, and return whether there was one."""
        queue = self._transients.pop(name, None)
        if queue is not None and not self.is_forked:
            queue.close()
        return queue is not None

    def has_reader(self, queue: TransientQueue) -> bool:
        """Return whether a channel has a consumer of a queue in memory."""
        return any(channel.reads(queue) for channel in self.channels)

    # Events

    def wake(self) -> None:
        """Let the thread that drains, or the event loop, look for messages. Thread-safe."""
        self._ready.set()
        bell = self._bell
        if bell is not None:
            # It may be full, so that the loop wakes anyway, or was just closed.
            with contextlib.suppress(OSError):
                bell[1].send(b"\0")

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """
        Hand out the messages that have arrived, or wait for the first.

        Raises:
            socket.timeout: None arrived in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._ready.clear()
            remaining = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            for channel in list(self.channels):
                channel.fill(1.0 if remaining is None else remaining)
            if self._deliver_ready():
                return
            if self._connected is None:
                raise jetsync.ConnectionClosedError
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise TimeoutError
            self._ready.wait(remaining)

    def register_with_event_loop(self, connection: Transport, loop: Hub) -> None:
        """Let an event loop hand out messages as soon as they arrive."""
        self._close_bell()
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._hub, self._bell = loop, (reader, writer)
        loop.add_reader(reader.fileno(), self._on_bell, reader)
        self.wake()

    def unregister_from_event_loop(self, connection: Transport, loop: Hub) -> None:
        """Leave the event loop."""
        self._close_bell()

    def _on_bell(self, reader: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while len(reader.recv(BELL_SIZE)) == BELL_SIZE:
                pass
        self._deliver_ready()

    def _deliver_ready(self) -> int:
        # Remote control first: a task that was revoked before it was sent must not run.
        count: int = sum([channel.deliver(TransientQueue) for channel in list(self.channels)])
        if not self._is_held(has_delivered=count > 0):
            count += sum([channel.deliver(StoredQueue) for channel in list(self.channels)])
        return count

    def _is_held(self, *, has_delivered: bool) -> bool:
        """Whether tasks wait for messages without a stream, which have arrived before them."""
        # After each such message, the queue or the channel calls `wake`.
        if not has_delivered and not any(
            queue.is_behind for queue in list(self._transients.values())
        ):
            self._held_since = None
            return False
        if self._held_since is None:
            self._held_since = time.monotonic()
        return time.monotonic() - self._held_since < LONGEST_HOLD

    def _close_bell(self) -> None:
        bell, self._bell = self._bell, None
        hub, self._hub = self._hub, None
        if bell is not None:
            if hub is not None:
                hub.remove_reader(bell[0].fileno())
            for end in bell:
                end.close()
