"""
The client: one connection, core NATS, and access to JetStream.
"""

from __future__ import annotations

import _thread
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from jetsync import errors
from jetsync._api.context import Context
from jetsync._base.deadline import NO_WAIT, SHORTEST, Deadline, as_seconds
from jetsync._base.dropped import disown
from jetsync._base.fields import (
    check_count,
    check_fields,
    check_function,
    whole_number,
    wrong_type,
)
from jetsync._base.keywords import hide_extra, refuse_position
from jetsync._base.log import beats, get_logger
from jetsync._base.pickling import refuse_copy
from jetsync._base.stop_signal import STOP_SIGNALS, StopSignal
from jetsync._base.turn import is_inside
from jetsync._hooks.manager import Plugins
from jetsync._io.connection import Connection
from jetsync._io.handles import list_of
from jetsync._io.refusals import MOST_SUBJECTS
from jetsync._io.session import report_at_exit
from jetsync._proto import frames
from jetsync.consume.core import CLOSING_WAIT
from jetsync.consume.request_many import Answers
from jetsync.consume.subscription import (
    MAX_PENDING,
    MAX_PENDING_BYTES,
    UNSUBSCRIBE_GRACE,
    Subscription,
)
from jetsync.jetstream import JetStream
from jetsync.options import ConnectOptions, completed
from jetsync.system import System
from jetsync.values.headers import encode_headers, header_pairs
from jetsync.values.message import Message
from jetsync.values.outbound import payload_bytes
from jetsync.values.subjects import api_prefix, validate_filter, validate_queue, validate_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self, Unpack

    from jetsync._base.deadline import Seconds
    from jetsync._base.locks import Latch
    from jetsync._hooks.manager import PluginInfo
    from jetsync.options import ConnectFields
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import OutboundMessage, Payload
    from jetsync.values.server_info import PoolServer, ServerInfo, Statistics

__all__ = ["Client", "connect"]

CLOSE_TIMEOUT = 5.0
"""Default timeout of ``close``, in seconds."""


_logger = get_logger("jetsync.client")


def connect(
    servers: str | Iterable[str] | None = None,
    *,
    options: ConnectOptions | None = None,
    plugins: Iterable[object] = (),
    **fields: Unpack[ConnectFields],
) -> Client:
    """
    Connect to a NATS server and return the client.

    Blocks until a server has accepted the connection, for at most ``connect_timeout`` seconds over
    all servers. This includes the time for loading plugins. jetsync runs one background thread per
    client, which does not keep the program alive.

    Args:
        servers: One address or several, such as ``nats://host:4222``, as a list or separated by
            commas. The schemes are ``nats``, ``tls``, ``ws`` and ``wss``. None means those of
            *options*. If these name no server either, jetsync reads the environment as
            :meth:`ConnectOptions.from_env` does: the servers, the login and the TLS files. Options
            that you give replace those of the environment, a login as a whole. The default server
            is ``nats://127.0.0.1:4222``.
        options: All options as an object. *servers* and *fields* override its fields.
        plugins: Plugin objects, or names of entry points in the group ``jetsync``. jetsync adds
            them to the plugins of *options* and of ``$JETSYNC_PLUGINS``.
        **fields: Fields of :class:`ConnectOptions`.

    Raises:
        ConnectError: No server could be reached, or a server's TLS certificate is not trusted.
        ConnectTimeoutError: No server accepted the connection within ``connect_timeout``.
        AuthenticationError: The server refused the credentials, or jetsync could not load them.
        ConfigurationError: A plugin is unknown or does not match the hooks, an optional package is
            missing, or a TLS file or a variable of the environment cannot be used.
        InvalidArgumentError, InvalidTypeError: An option does not exist, or its value cannot be
            used.
    """
    check_fields(ConnectOptions, fields, "connect()")
    if isinstance(plugins, (str, type)) or not isinstance(plugins, Iterable):
        raise wrong_type("plugins", "a list of plugins", plugins)
    if options is not None and not isinstance(options, ConnectOptions):
        raise wrong_type("options", "a ConnectOptions", options)
    given: dict[str, Any] = {**fields}
    if servers is not None:
        if not isinstance(servers, Iterable):
            raise wrong_type("servers", "an address or a list of addresses", servers)
        given["servers"] = servers if isinstance(servers, str) else tuple(servers)
    options = ConnectOptions(**given) if options is None else attrs.evolve(options, **given)
    options = completed(options)
    deadline = Deadline.after(options.connect_timeout)
    loaded = Plugins.load((*options.plugins, *plugins))
    connection: Connection | None = None
    try:
        connection = Connection(options, loaded)
        connection.connect(deadline)
        return Client(connection)
    except BaseException as error:
        if connection is not None and not isinstance(error, Exception):
            # After Ctrl-C the connection may exist already.
            connection.abandon()
        if connection is None or not connection.closed.is_set():
            loaded.give_up(error)
        else:
            # The plugins have already been notified.
            loaded.close()
        raise


class Client:
    """
    A connection to NATS that any number of threads may share; made by :func:`connect`.

    A ``with`` block closes the client at its end. If your program drops the last reference to the
    client and its handles, the client closes in the background and emits a ResourceWarning. A
    client belongs to the process that created it. In a forked child process, every call raises
    ForkedProcessError unless the option ``after_fork`` is ``reconnect``.
    """

    __reduce__ = refuse_copy

    def __init__(self, connection: Connection | None = None) -> None:
        if not isinstance(connection, Connection):
            text = "make a client with jetsync.connect(), which takes addresses and options"
            raise errors.InvalidTypeError(text, argument="connection")
        self._connection = connection
        self._subscriptions = connection.subscriptions
        # Those that a signal has ended.
        self._stopping: list[Subscription] = []
        disown(connection.lane.later, self, connection)

    def __repr__(self) -> str:
        url = None if self._connection.state == "forked" else self.server.url
        return f"<Client {self._connection.state} {url}>"

    def __enter__(self) -> Self:
        self._connection.check()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # Life.

    def close(self, *, timeout: Seconds | None = None) -> None:
        """
        Close the connection. Safe to repeat, in any thread.

        Calls that wait in other threads end immediately. They raise ConnectionClosedError, or
        PublishOutcomeUnknownError if a message was in flight. Loops over consumptions, watches and
        subscriptions end without an error. Every new call raises ConnectionClosedError.

        Pending publishes and acks are still sent, and other threads can acknowledge messages until
        the connection is closed. If there is a connection, open publishers wait for their acks and
        open fast publishers commit, within the timeout. Open atomic batches are discarded.
        Consumptions and fetches are closed, and the server redelivers their buffered messages
        immediately. A fetch of a consumer that wants no acks still yields what has arrived.

        A signal handler may call this. If the handler interrupted a call of jetsync, this call
        returns immediately, and another thread closes the client. If Ctrl-C interrupts this call,
        the client closes without waiting any longer.

        Args:
            timeout: Maximum number of seconds. The default is 5.
        """
        deadline = Deadline.after(CLOSE_TIMEOUT if timeout is None else timeout)
        if is_inside():
            self._soon(self.close, deadline)
            return
        try:
            consumptions = self._end_consumptions()
            connection = self._connection
            # No other thread waits for what follows.
            connection.begin_close()
            _wait_until_given_back(consumptions, deadline)
            # Without a connection, nothing can be confirmed soon.
            connection.finish_writers(deadline if connection.can_finish else NO_WAIT)
            connection.close(deadline.remaining())
        except BaseException as error:
            if not isinstance(error, Exception):
                # After Ctrl-C, the program may not call this again.
                self._connection.abandon()
            raise

    def _soon(self, end: Callable[..., object], deadline: Deadline) -> None:
        """Call *end* in another thread, because this signal handler interrupted a call."""
        session = self._connection.session
        session.end_soon(lambda: end(timeout=deadline.remaining()), deadline)

    def drain(self, *, timeout: Seconds | None = None) -> None:
        """
        Unsubscribe, wait until all buffered messages have been taken, then close.

        Consumptions are drained too: jetsync waits until your code has taken their buffered
        messages and their handlers have finished, and sends the acks. Then open publishers wait for
        their acks, open fast publishers commit, and open atomic batches are discarded. Other calls,
        such as ``publish_many`` in another thread, are not waited for, and end as after ``close``.

        A signal handler may call this. If the handler interrupted a call of jetsync, this call
        returns immediately, and another thread drains the client.

        Args:
            timeout: Maximum number of seconds. The default is the option ``drain_timeout``. After
                that, the server redelivers the messages that consumptions still hold. jetsync drops
                those of core subscriptions, with a warning in the log.
        """
        connection = self._connection
        connection.check()
        deadline = Deadline.after(connection.options.drain_timeout if timeout is None else timeout)
        if is_inside():
            self._soon(self.drain, deadline)
            return
        with beats(_logger, "drain") as outcome:
            subscriptions = list_of(self._subscriptions)
            consumptions = list_of(self._connection.consumptions)
            for consumption in consumptions:
                consumption.drain()
            for subscription in subscriptions:
                subscription.unsubscribe_nowait(grace=deadline.remaining())
            try:
                # After the flush, all messages sent before the UNSUBs have arrived.
                connection.flush(deadline)
            finally:
                for subscription in subscriptions:
                    subscription.drain()
            dropped = _wait_until_taken(subscriptions, connection.closing, deadline)
            if dropped:
                outcome["dropped"] = dropped
            taken = [each for each in consumptions if each.wait_until_taken(deadline)]
            if len(taken) < len(consumptions):
                outcome["consuming"] = len(consumptions) - len(taken)
            until = deadline.at_most(CLOSING_WAIT)
            for consumption in taken:
                consumption.wait_for_taker(until)
            _wait_until_given_back(self._end_consumptions(), deadline)
            unconfirmed = connection.finish_writers(deadline)
            if unconfirmed:
                outcome["unconfirmed"] = len(unconfirmed)
            connection.close(max(deadline.remaining(), 1.0))

    def stop_on_signal(
        self,
        *signals: int,
        timeout: Seconds | None = None,
        exit_code: int | None = None,
    ) -> StopSignal:
        """
        Return a context manager that ends the program cleanly when a signal arrives.

        Use it with ``with`` in the main thread. After the signal, consumptions, fetches, watches
        and open subscriptions still yield the messages that have arrived. Then they end, and so do
        loops over them. A waiting ``next`` returns None. A fetch, ``next`` or consumption that
        begins after the signal returns no messages. In loops over anything else, check
        ``is_set()``.

        If a signal has arrived, the end of the block drains the client and raises SystemExit. A
        second signal raises SystemExit immediately, wherever the main thread is. Signals within
        half a second of the first one are ignored, because some supervisors send it twice. So the
        block ends at the earliest half a second after the first signal, also if it raises. Its end
        restores the previous signal handlers.

        After *timeout* seconds, buffered messages are no longer handled: jetsync gives those of
        consumers back to the server, and drops those of core subscriptions with a warning in the
        log. The timeout does not interrupt handlers or the body of a loop. If the drain fails, one
        line on stderr says why, and the exit status stays the same.

        For several clients, nest the blocks: the signal stops all of them, and the ends of the
        blocks drain one client after the other. ``exit_code`` of the innermost block counts.

        If the block raises, its exception propagates and the client is not drained.

        Args:
            signals: The signals. Default: SIGTERM and SIGINT, and on Windows also SIGBREAK.
            timeout: Seconds after the signal during which buffered messages are handled. The drain
                gets the rest of this time, at least 1 second. Default: the option
                ``drain_timeout``.
            exit_code: The exit status after a signal. Default: 128 plus the number of the signal,
                which is 143 for SIGTERM.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is not valid. For a signal that no
                program can handle, such as SIGKILL, the ``with`` statement raises it.
            ConflictingUseError: The ``with`` statement is not in the main thread.
        """
        if timeout is not None:
            as_seconds(timeout)
        if exit_code is not None:
            whole_number("exit_code", exit_code, 0, 255)
        numbers = signals or STOP_SIGNALS
        limit = self.options.drain_timeout if timeout is None else timeout
        return StopSignal(
            numbers,
            exit_code,
            limit,
            on_change=self._set_stopping,
            on_timeout=self._stop_now,
            on_end=self._drain_open,
        )

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected now."""
        return self._connection.is_connected

    @property
    def is_closed(self) -> bool:
        """
        Whether the client was closed, by your code or because the connection cannot be restored.
        """
        return self._connection.closed.is_set()

    @property
    def server(self) -> ServerInfo:
        """The connected server, or the last one while the client is disconnected."""
        return self._connection.server

    @property
    def options(self) -> ConnectOptions:
        """The options of this client."""
        return self._connection.options

    @property
    def plugins(self) -> tuple[PluginInfo, ...]:
        """The plugins of this client, in loading order."""
        return self._connection.plugins.infos

    def statistics(self) -> Statistics:
        """Return the client's traffic so far, over all its connections."""
        return self._connection.statistics()

    def rtt(self, *, timeout: Seconds | None = None) -> float:
        """
        Measure a round trip to the server and return its duration in seconds.

        Args:
            timeout: Seconds to wait. The default is the option ``request_timeout``.
        """
        return self._connection.flush(self._connection.deadline(timeout))

    def flush(self, *, timeout: Seconds | None = None) -> None:
        """
        Wait until the server has processed everything that the client sent on this connection.

        If the client has reconnected since a :meth:`publish`, its message may have been lost with
        the old connection. This call does not report that.

        Args:
            timeout: Seconds to wait. The default is the option ``request_timeout``.

        Raises:
            DisconnectedError, ConnectionLostError, WaitTimeoutError: The server did not confirm
                this within the timeout.
            PermissionDeniedError: The server refused a message of :meth:`publish` since the last
                flush, because the user may not publish to its subject. The error names the first
                one. The server has processed everything else.
        """
        self._connection.flush_core(self._connection.deadline(timeout))

    def reconnect(self, *, timeout: Seconds | None = None) -> None:
        """
        Drop the connection, and wait until the client is connected again.

        Calls that start meanwhile wait for the new connection, within their own timeouts. Calls
        that wait for an answer on the old connection end as after a connection loss: requests that
        only read are sent again, and other calls fail. If the client is reconnecting already, this
        call only waits. So several threads that call it at the same time make one new connection.

        If the call raises DisconnectedError or is interrupted by Ctrl-C, the client continues to
        reconnect.

        Args:
            timeout: Seconds to wait. The default is the option ``request_timeout``. It should be
                longer than the option ``reconnect_wait``: the client waits that long before it
                connects again to a server that it connected to shortly before. It tries the
                server that it leaves last.

        Raises:
            DisconnectedError: No server accepted the connection within the timeout.
            ConnectionClosedError: The client is closed, or gave up reconnecting.
            ConflictingUseError: The option ``max_reconnects`` is 0. The connection stays.
            CallInSignalHandlerError: This signal handler interrupted a call of jetsync. The
                connection stays.
        """
        self._connection.reconnect(self._connection.deadline(timeout))

    @property
    def server_pool(self) -> tuple[PoolServer, ...]:
        """
        The servers that the client may connect to, including those that a server has announced.
        """
        return self._connection.server_pool

    def set_server_pool(self, servers: str | Iterable[str]) -> None:
        """
        Replace the servers that the client may connect to.

        The connection stays, and the next one is to one of these servers. :meth:`reconnect` makes
        it at once. A client that waits for its next attempt to connect tries the new servers.
        Servers that are in both pools keep their waits. Unless the option
        ``ignore_discovered_servers`` is set, the client adds those that a server announces later. A
        login in a URL is for that server and for announced ones. A login in the options is for all.
        If several threads call this, the last call counts.

        Args:
            servers: One address or several, as for :func:`connect`. They must speak WebSocket if
                the client does, and use TLS if it does.

        Raises:
            InvalidArgumentError, InvalidTypeError: The servers cannot be used. Nothing changes.
            ConnectionClosedError: The client is closed.

        ADR-40, "Custom server pool".
        """
        if not isinstance(servers, Iterable):
            raise wrong_type("servers", "an address or a list of addresses", servers)
        given = servers if isinstance(servers, str) else tuple(servers)
        self._connection.set_server_pool(given)

    # Core NATS.

    def publish(
        self,
        subject: str,
        data: Payload = b"",
        *,
        headers: HeadersInput | None = None,
        reply: str | None = None,
    ) -> None:
        """
        Publish a message without an acknowledgement (core NATS).

        The call returns when the connection has queued the message. Call :meth:`flush` to make sure
        that the server has the message. While disconnected, the call waits up to
        ``request_timeout``. If the interpreter exits before the client is closed, jetsync sends
        queued messages within 2 seconds. If the server does not confirm them, jetsync writes a line
        to stderr.

        If the user may not publish to the subject, the server drops the message and reports that
        later. The next :meth:`flush` then raises PermissionDeniedError, and plugins get a
        ``PermissionDeniedEvent``.

        Args:
            subject: The subject.
            data: The payload.
            headers: The headers. jetsync does not change this object.
            reply: The subject for answers.

        Raises:
            InvalidArgumentError: An argument is invalid, or the message is too large. Nothing was
                sent.
            DisconnectedError: The client did not reconnect in time. Nothing was sent.
        """
        connection = self._connection
        connection.check()
        validate_subject(subject)
        answer = b"" if reply is None else validate_subject(reply).encode()
        target, payload, header = self._encode(subject, data, headers)
        refusals = connection.refusals
        refusals.has_published = True
        refusals.untracked.add(subject)
        if len(refusals.untracked) > MOST_SUBJECTS:
            refusals.make_room(connection.lane)
        connection.lane.post(
            frames.message(target, answer, header, payload), connection.options.request_timeout
        )

    @hide_extra
    def request(
        self,
        subject: str,
        data: Payload = b"",
        *_extra: NoReturn,
        headers: HeadersInput | None = None,
        timeout: Seconds | None = None,
    ) -> Message:
        """
        Send a request and return the first reply.

        Args:
            subject: The subject.
            data: The payload.
            headers: The headers. jetsync does not change this object.
            timeout: Seconds to wait. The default is the option ``request_timeout``.

        Raises:
            NoRespondersError: The subject has no subscribers.
            RequestTimeoutError: No reply arrived in time.
            ConnectionLostError: The connection was lost while waiting.
            DisconnectedError: The client did not reconnect in time. Nothing was sent.
        """
        if _extra:
            refuse_position(Client.request)
        connection = self._connection
        connection.check()
        validate_subject(subject)
        target, payload, header = self._encode(subject, data, headers)
        frame = connection.exchange(target, header, payload, connection.deadline(timeout))
        return Message(*frame, connection)

    def new_inbox(self) -> str:
        """
        Return a new subject, which no other client and no other call uses.

        Use it for answers, or as the ``deliver_subject`` of an ephemeral push consumer. It begins
        with the client's ``inbox_prefix``. Sends nothing. Thread-safe.
        """
        return self._connection.new_inbox()

    @hide_extra
    def request_many(
        self,
        subject: str,
        data: Payload = b"",
        *_extra: NoReturn,
        headers: HeadersInput | None = None,
        timeout: Seconds | None = None,
        stall: Seconds | None = None,
        max_messages: int | None = None,
        until: Callable[[Message], object] | None = None,
    ) -> Answers:
        """
        Send a request and return an iterator over the replies of any number of responders.

        The call returns when the request is sent. The iteration raises the errors that follow. It
        ends without an error after *timeout*, or earlier if one of the other limits is reached, the
        connection is lost or the client closes. :attr:`Answers.reason` says which. Replies that
        have arrived are returned also after that.

        Args:
            subject: The subject.
            data: The payload.
            headers: The headers. jetsync does not change this object.
            timeout: Seconds from the call to the end of the iteration. The default is the option
                ``request_timeout``.
            stall: Seconds to wait for another reply, in each step of the iteration after the first.
                By default, only *timeout* limits this.
            max_messages: How many replies to take at most.
            until: A function that gets each reply. If it returns true, the iteration ends, and this
                reply is not returned.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid. Nothing was sent.
            DisconnectedError: The client did not reconnect in time. Nothing was sent.
            NoRespondersError: The subject has no subscribers. Raised by the iteration, as are all
                errors below.
            PermissionDeniedError: The server refused the subject, or the subscription to replies.
            SlowConsumerError: The buffer was full, and replies were dropped. Start another loop to
                get those in the buffer.

        ADR-47.
        """
        if _extra:
            refuse_position(Client.request_many)
        connection = self._connection
        connection.check()
        validate_subject(subject)
        if max_messages is not None:
            check_count("max_messages", max_messages, 1)
        check_function("until", until)
        _, payload, header = self._encode(subject, data, headers)
        return Answers(
            connection,
            subject,
            header,
            payload,
            connection.deadline(timeout),
            stall=None if stall is None else as_seconds(stall, "stall", minimum=SHORTEST),
            max_messages=max_messages,
            until=until,
        )

    @hide_extra
    def subscribe(
        self,
        subject: str,
        *_extra: NoReturn,
        queue: str | None = None,
        max_pending: int = MAX_PENDING,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> Subscription:
        """
        Subscribe to a subject (core NATS).

        Args:
            subject: The subject. Wildcards are allowed.
            queue: The queue group. The server sends each message to one member of the group.
            max_pending: How many messages to buffer until your code takes them, 65,536 by default.
                jetsync drops messages that arrive while the buffer is full, see
                :meth:`Subscription.next`.
            max_pending_bytes: How many bytes of subjects, headers and payloads to buffer, 64 MiB by
                default.

        Raises:
            InvalidSubjectError, InvalidNameError: The subject or the queue group is invalid.
                Nothing was sent.
            MaxControlLineError: The subject and the queue together are too long. Nothing was sent.
        """
        if _extra:
            refuse_position(Client.subscribe)
        self._connection.check()
        validate_filter(subject)
        if queue is not None:
            validate_queue(queue)
        check_count("max_pending", max_pending, 1)
        check_count("max_pending_bytes", max_pending_bytes, 1)
        subscription = Subscription(
            self._connection,
            subject,
            queue,
            self._subscriptions.discard,
            max_pending=max_pending,
            max_pending_bytes=max_pending_bytes,
        )
        self._subscriptions.add(subscription)
        if self._connection.stopping:
            subscription.drain()
        return subscription

    # Hooks, for libraries on top of core NATS.

    def prepare_message(self, message: OutboundMessage) -> OutboundMessage:
        """
        Pass a message through the hook ``jetsync_prepare_message``, as publishing to a stream does.

        :meth:`publish` and :meth:`request` do not call hooks. A library on top of them uses this,
        and then sends the subject, payload and headers of the result. Sends nothing. Thread-safe.

        Args:
            message: The message.

        Raises:
            PluginError: A plugin refuses the message.
        """
        prepare = self._connection.plugins.prepare
        return message if prepare is None else prepare(message)

    def receive_message(self, message: Message) -> Message:
        """
        Pass a message through the hook ``jetsync_message_received``, as reading with a consumer
        does.

        Subscriptions and replies to requests do not call hooks. A library on top of them uses this,
        and then handles the result. Thread-safe.

        Args:
            message: A message of a subscription or a reply.

        Raises:
            PluginError: A plugin refuses the message.
        """
        received = self._connection.plugins.received
        return message if received is None else received(message)

    # The system account.

    def system(
        self,
        *,
        timeout: Seconds | None = None,
        stall: Seconds = 0.3,
        servers: int | None = None,
    ) -> System:
        """
        Return an object that asks the servers about themselves. Sends no request.

        Only users of the system account get answers.

        Args:
            timeout: Timeout of each call, in seconds. The default is the option
                ``request_timeout``.
            stall: Seconds to wait for another answer, if a call asks all servers.
            servers: How many servers there are, if you know. A call that asks all of them then ends
                with the last answer, instead of waiting *stall* seconds for another one.
        """
        default = self.options.request_timeout if timeout is None else timeout
        if servers is not None:
            check_count("servers", servers, 1)
        return System(
            self._connection,
            timeout=as_seconds(default),
            stall=as_seconds(stall, "stall", minimum=SHORTEST),
            servers=servers,
        )

    # JetStream.

    def jetstream(
        self,
        *,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: Seconds | None = None,
    ) -> JetStream:
        """
        Return a JetStream context. Sends no request.

        Args:
            domain: The JetStream domain: the name of a separate JetStream system, for example that
                of a leaf node. The default is the option ``jetstream_domain``.
            prefix: The API prefix, if your account imports the JetStream API of another account
                under that prefix. The default is the option ``jetstream_prefix``. Cannot
                be combined with *domain*.
            timeout: Default timeout of each call, in seconds. The default is the option
                ``request_timeout``.
        """
        options = self._connection.options
        if domain is None and prefix is None:
            domain, prefix = options.jetstream_domain, options.jetstream_prefix
        default = options.request_timeout if timeout is None else timeout
        return JetStream(
            Context(
                self._connection,
                prefix=api_prefix(domain, prefix),
                domain=domain,
                default_timeout=as_seconds(default),
            )
        )

    def _encode(
        self, subject: str, data: Payload, headers: HeadersInput | None
    ) -> tuple[bytes, bytes | bytearray | memoryview, bytes | None]:
        payload = payload_bytes(data)
        header = None if headers is None else encode_headers(header_pairs(headers))
        self._connection.check_size(len(payload) + (0 if header is None else len(header)))
        return subject.encode(), payload, header

    def _set_stopping(self, stopping: bool) -> None:  # noqa: FBT001 - called by StopSignal.
        """If *stopping*, end consumptions and subscriptions after what was sent; never waits."""
        # First, because another thread may be about to begin a consumption.
        self._connection.stopping = stopping
        self._stopping = list_of(self._subscriptions) if stopping else []
        if stopping:
            for consumption in list_of(self._connection.consumptions):
                consumption.drain()
            for subscription in self._stopping:
                # The server may have sent messages that have not arrived yet.
                subscription.unsubscribe_nowait()
            if self._stopping:
                # Not `threading.Thread`: the interrupted code may hold a lock that its `start`
                # takes.
                _thread.start_new_thread(self._drain_unsubscribed, (self._stopping,))

    def _drain_unsubscribed(self, subscriptions: list[Subscription]) -> None:
        """End subscriptions when what was in flight has arrived. A signal handler cannot wait."""
        try:
            if self._connection.is_connected:
                self._connection.flush(Deadline.after(UNSUBSCRIBE_GRACE))
        except errors.JetSyncError:
            # Nothing more arrives, or not in time.
            pass
        finally:
            for subscription in subscriptions:
                subscription.drain()

    def _stop_now(self) -> None:
        """Give back the messages that were not taken, because the time after a signal is over."""
        for consumption in list_of(self._connection.consumptions):
            consumption.close()
        for subscription in self._stopping:
            if subscription.pending:
                _logger.warning("drain", subject=subscription.subject, dropped=subscription.pending)
            subscription.close()

    def _drain_open(self, seconds: float) -> None:
        """Drain the client unless it is closed; if that fails, report it on stderr."""
        try:
            if not self.is_closed:
                self.drain(timeout=seconds)
        except errors.JetSyncError as error:
            report_at_exit(
                "the client was not drained, so messages and acknowledgements in flight may be"
                f" lost: {error}"
            )

    def _end_consumptions(self) -> list[Any]:
        """Close the consumptions and return them."""
        if self._connection.closed.is_set():
            return []
        consumptions = list_of(self._connection.consumptions)
        for consumption in consumptions:
            consumption.end_with_client()
        return consumptions


def _wait_until_taken(
    subscriptions: Sequence[Subscription], closing: Latch, deadline: Deadline
) -> int:
    """Wait until all messages of subscriptions are taken, and return how many are left."""
    while any(subscription.pending for subscription in subscriptions):
        # No event tells when another thread takes a message.
        if deadline.expired() or closing.wait(min(0.01, deadline.remaining())):
            break
    return sum([subscription.pending for subscription in subscriptions])


def _wait_until_given_back(consumptions: Iterable[Any], deadline: Deadline) -> None:
    """Wait until consumptions that were closed have returned their buffered messages."""
    until = deadline.at_most(CLOSING_WAIT)
    for consumption in consumptions:
        consumption.wait_until_given_back(until)
