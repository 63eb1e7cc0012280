"""
An instance of a service: its identity, its endpoints, and its life.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import secrets
import string
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import jetsync
from jetsync_services import checks, control, documents
from jetsync_services.control import Control, control_subject
from jetsync_services.documents import ServiceInfo, ServicePing, ServiceStats
from jetsync_services.endpoint import Endpoint
from jetsync_services.group import INHERIT, MAX_WAITING, TIMEOUT, Group, Owner
from jetsync_services.limits import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from typing_extensions import Self

    from jetsync.typing import Seconds
    from jetsync_services.documents import EndpointInfo
    from jetsync_services.endpoint import Handling, Settings

__all__ = ["Service"]

F = TypeVar("F", bound="Callable[..., Any]")

_logger = jetsync.get_logger("jetsync.services")

_LETTERS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase

ABANDONED: Final = 1.0
"""Seconds to answer the requests that wait, if the time for the stop is over."""


class Service:
    """
    An instance of a service: endpoints that answer requests, and discovery (ADR-32).

    Add endpoints with :meth:`endpoint`. :meth:`run` answers requests until a signal. :meth:`start`
    and :meth:`stop`, or a ``with`` block, do so beside other work. Several instances of a service,
    in any language, share its requests. Any thread may use it.

    If the connection is lost, the service continues with the next one, under the same id. A service
    belongs to the process that started it. It is started once.

    Args:
        client: The client. It stays open when the service stops.
        name: The name of the kind of service: letters, digits, ``-`` and ``_``.
        version: A semantic version, such as ``1.2.0``.
        description: What it does.
        metadata: What discovery tells about it.
        queue_group: The queue group of endpoints and groups that name none. None disables it.
        on_stats: A function that gets the :class:`EndpointInfo` of each endpoint for each request
            for statistics. Its result, anything that JSON can express, is the ``data`` of the
            endpoint. After an error, and any other result, the endpoint has no ``data``.
        on_stop: A function that is called with the service once it has stopped.
        wrap: Functions that wrap the handling of a message, such as ``otel.handler`` of
            jetsync-otel. Each gets a function that handles a ``jetsync.Message``, and returns one.
            The first one is the outermost.
        show_errors: Whether the error 500 tells the caller the ``repr`` of the error, which may
            have secrets in it.
        control_prefix: What the subjects of discovery begin with. Change it if your account imports
            them under another prefix.

    Raises:
        jetsync.InvalidArgumentError, jetsync.InvalidTypeError: An argument cannot be used.
    """

    # Threads: any.
    # Locks: `_lock` protects `_state`, `_started`, and the lists of parts once the service runs. It
    # is held for a few steps only.

    def __init__(
        self,
        client: jetsync.Client,
        name: str,
        *,
        version: str,
        description: str | None = None,
        metadata: Mapping[str, str] | None = None,
        queue_group: str | None = "q",
        on_stats: Callable[[EndpointInfo], Any] | None = None,
        on_stop: Callable[[Service], object] | None = None,
        wrap: Iterable[Callable[[Handling], Handling]] = (),
        show_errors: bool = False,
        control_prefix: str = control.PREFIX,
    ) -> None:
        if not isinstance(client, jetsync.Client):
            raise jetsync.InvalidTypeError(
                f"client must be a jetsync.Client, not {type(client).__name__}", argument="client"
            )
        self.client = client
        """The client."""
        self.name: str = checks.name_of("service", name)
        """The name of the kind of service."""
        self.version: str = checks.version_of(version)
        """The version."""
        self.description: str = (
            ""
            if description is None
            else checks.encodable(checks.text("description", description), "description")
        )
        """What it does."""
        self.id: str = "".join(secrets.choice(_LETTERS) for _ in range(22))
        """The id of this instance."""
        self.error: Exception | None = None
        """Why an endpoint has ended before the service was stopped; None if none has."""
        self._metadata = checks.metadata_of(metadata)
        self._on_stats = None if on_stats is None else checks.function("on_stats", on_stats)
        self._on_stop = None if on_stop is None else checks.function("on_stop", on_stop)
        self._prefix = checks.subject_of(control_prefix, refused="*>", name="control_prefix")
        owner = Owner(
            name=self.name,
            client=client,
            wrap=tuple(checks.function("wrap", each) for each in wrap),
            show_errors=bool(show_errors),
            add=self._add,
        )
        self._root = Group(owner, "", checks.queue_of(queue_group))
        self._lock = jetsync.interrupt_safe_lock()
        self._state = "new"
        self._settings: list[Settings] = []
        self._endpoints: list[Endpoint] = []
        self._controls: list[Control] = []
        self._watch: Watch | None = None
        self._started = dt.datetime.now(dt.timezone.utc)
        self._pid = os.getpid()
        # Whether the end was reported.
        self._reported = False
        # Set by the threads of the service, and never by a signal handler, which might interrupt
        # a wait for it.
        self._ended = threading.Event()

    def __repr__(self) -> str:
        return f"<Service {self.name} {self.version} {self.id} {self._state}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.stop()
        except jetsync.WaitTimeoutError as error:
            if kind is None:
                raise
            _logger.warning("service_not_drained", service=self.name, error=str(error))
        if kind is None and self.error is not None:
            raise self.error

    # What it consists of.

    @property
    def metadata(self) -> dict[str, str]:
        """A copy of what discovery tells about it."""
        return dict(self._metadata)

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._state == "running"

    @property
    def started(self) -> dt.datetime:
        """When it was started or reset, in UTC."""
        return self._started

    def endpoint(
        self,
        name: str,
        *,
        subject: str | None = None,
        queue_group: str | None = INHERIT,
        metadata: Mapping[str, str] | None = None,
        threads: int = 1,
        max_waiting: int = MAX_WAITING,
        timeout: Seconds | None = TIMEOUT,
    ) -> Callable[[F], F]:
        """
        Return a decorator that makes a function the handler of an endpoint; see
        :meth:`Group.endpoint`.
        """
        return self._root.endpoint(
            name,
            subject=subject,
            queue_group=queue_group,
            metadata=metadata,
            threads=threads,
            max_waiting=max_waiting,
            timeout=timeout,
        )

    def group(self, name: str, *, queue_group: str | None = INHERIT) -> Group:
        """
        Return a group of endpoints; see :meth:`Group.group`.
        """
        return self._root.group(name, queue_group=queue_group)

    def ping(self) -> ServicePing:
        """
        Return the identity of this instance.
        """
        return ServicePing(
            name=self.name, id=self.id, version=self.version, metadata=self._metadata
        )

    def info(self) -> ServiceInfo:
        """
        Return this instance with its endpoints.
        """
        return ServiceInfo(
            name=self.name,
            id=self.id,
            version=self.version,
            metadata=self._metadata,
            description=self.description,
            endpoints=tuple(settings.info() for settings in list(self._settings)),
        )

    def stats(self) -> ServiceStats:
        """
        Return the counts of this instance. A service that was not started has no endpoints yet.
        """
        return ServiceStats(
            name=self.name,
            id=self.id,
            version=self.version,
            metadata=self._metadata,
            started=self._started,
            endpoints=tuple(each.stats(self._data_of(each)) for each in list(self._endpoints)),
        )

    def reset(self) -> None:
        """
        Set the counts of all endpoints to 0, and ``started`` to now.
        """
        with self._lock:
            for endpoint in self._endpoints:
                endpoint.counts.reset()
            self._started = dt.datetime.now(dt.timezone.utc)

    def _data_of(self, endpoint: Endpoint) -> Any:
        if self._on_stats is None:
            return None
        try:
            data = self._on_stats(endpoint.settings.info())
            # Here, so that the other endpoints are not left out.
            documents.encode(documents.as_json(data))
        except Exception:
            # The counts are worth more.
            _logger.exception("on_stats_failed", endpoint=endpoint.settings.name)
            return None
        return data

    # Life.

    def start(self) -> Self:
        """
        Subscribe and answer requests in threads. Returns when the server knows all endpoints.

        If this fails, also by Ctrl-C, the service has stopped. If the server refuses a subject, the
        service ends with this :attr:`error`, because the server says so later.

        Raises:
            jetsync.ConflictingUseError: The service was started before.
            jetsync.DisconnectedError, jetsync.RequestTimeoutError: The server did not confirm the
                subscriptions in time.
        """
        self._check_process()
        with self._lock:
            if self._state != "new":
                raise jetsync.ConflictingUseError(
                    f"the service is {self._state}: a service is started once, so make another one"
                )
            self._state = "running"
        try:
            self._started = dt.datetime.now(dt.timezone.utc)
            self._watch = Watch(threading.Thread.start)
            for settings in self._settings:
                self._endpoints.append(self._subscribe(settings))
            for verb, document in self._documents():
                for subject in (
                    control_subject(verb, prefix=self._prefix),
                    control_subject(verb, self.name, prefix=self._prefix),
                    control_subject(verb, self.name, self.id, prefix=self._prefix),
                ):
                    self._controls.append(Control(self.client, subject, document, self._part_ended))
            self._begin([*self._endpoints, *self._controls])
        except BaseException:
            self._give_up()
            raise
        _logger.info("service_started", service=self.name, id=self.id, version=self.version)
        if self._state == "stopped":
            # By another thread, which may not have seen all parts.
            self.stop()
        return self

    def stop(self, *, timeout: Seconds | None = None) -> None:
        """
        Take no more requests, answer those that have arrived, and end the threads.

        Requests in flight when the server handles the call are answered, too. Other instances get
        the requests after that. Discovery ends last. You can repeat the call, also after Ctrl-C has
        interrupted it. In a handler, it returns at once, and another thread stops the service.

        Args:
            timeout: Seconds. The default is the client's option ``drain_timeout``. After that,
                requests that still wait for a thread get the error 503.

        Raises:
            jetsync.WaitTimeoutError: Handlers are still running. Their callers get an answer when
                they return, if the client is open.
            jetsync.ForkedProcessError: The service belongs to the parent process.
        """
        self._check_process()
        seconds = self.client.options.drain_timeout if timeout is None else timeout
        limit = checks.seconds("timeout", seconds)
        assert limit is not None
        with self._lock:
            before, self._state = self._state, "stopped"
        if before == "new":
            return
        if any(threading.current_thread() in part.threads for part in self._parts()):
            threading.Thread(target=self._stop_soon, args=(limit,), daemon=True).start()
            return
        ends = time.monotonic() + limit
        endpoints, controls = list(self._endpoints), list(self._controls)
        self._drain(endpoints, ends)
        if not _join(endpoints, ends):
            for endpoint in endpoints:
                endpoint.abandon()
            _join(endpoints, time.monotonic() + ABANDONED)
        # Discovery ends last. The flush also confirms the answers.
        self._drain(controls, max(ends, time.monotonic() + ABANDONED))
        _join(controls, max(ends, time.monotonic() + ABANDONED))
        running = sum(thread.is_alive() for each in endpoints for thread in each.threads)
        if running:
            raise jetsync.WaitTimeoutError(
                f"{running} handlers of the service {self.name!r}", limit
            )
        if self._watch is not None:
            self._watch.stop()
            self._watch.thread.join(max(ends - time.monotonic(), ABANDONED))
        with self._lock:
            first, self._reported = not self._reported, True
        if first:
            _logger.info("service_stopped", service=self.name, id=self.id)
            if self._on_stop is not None:
                self._on_stop(self)

    def wait(self, *, timeout: Seconds | None = None) -> bool:
        """
        Wait until the service ends, and return whether it has.

        It ends when it is stopped, when the client is closed or gets a signal of
        ``stop_on_signal``, or when the server refuses one of its subjects. :attr:`error` then says
        why.

        Args:
            timeout: Seconds. None means no limit.

        Raises:
            jetsync.ForkedProcessError: The service belongs to the parent process.
        """
        self._check_process()
        limit = checks.seconds("timeout", timeout, zero=True)
        ends = None if limit is None else time.monotonic() + limit
        # On Windows, Ctrl-C does not end a wait without a limit.
        step = 0.5 if sys.platform == "win32" else None
        while True:
            left = None if ends is None else max(ends - time.monotonic(), 0)
            limits = [each for each in (left, step) if each is not None]
            if self._ended.wait(min(limits, default=None)):
                return True
            if left is not None and left <= (step or left):
                return False

    def run(self, *, timeout: Seconds | None = None) -> None:
        """
        Answer requests until :meth:`stop`, SIGTERM or Ctrl-C, then drain.

        In the main thread, a signal drains the service and the client, and ends the program as
        ``client.stop_on_signal`` does. In other threads, only :meth:`stop` ends it.

        Args:
            timeout: Seconds for the drain. The default is the client's option ``drain_timeout``.

        Raises:
            SystemExit: A signal has arrived, and the service has stopped.
            jetsync.JetSyncError: As for :meth:`start` and :meth:`stop`, or the :attr:`error` with
                which an endpoint has ended.
        """
        with contextlib.ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                stack.enter_context(self.client.stop_on_signal(timeout=timeout))
            if self._state == "new":
                self.start()
            try:
                self.wait()
            finally:
                self.stop(timeout=timeout)
            if self.error is not None:
                raise self.error

    # Steps.

    def _add(self, settings: Settings) -> None:
        """Add an endpoint, and subscribe to its subject if the service runs."""
        self._check_process()
        with self._lock:
            if self._state == "stopped":
                raise jetsync.ConflictingUseError("the service has stopped: it takes no endpoints")
            if self._state == "new":
                self._settings.append(settings)
                return
        endpoint = self._subscribe(settings)
        try:
            self._begin([endpoint])
            with self._lock:
                self._settings.append(settings)
                self._endpoints.append(endpoint)
                stopped = self._state == "stopped"
        except BaseException:
            endpoint.drain()
            raise
        if stopped:
            endpoint.drain()

    def _subscribe(self, settings: Settings) -> Endpoint:
        assert self._watch is not None
        return Endpoint(self.client, settings, self._watch, self._part_ended)

    def _begin(self, parts: list[Endpoint | Control]) -> None:
        """Wait until the server knows the subjects of some parts, and start their threads."""
        self.client.flush()
        for part in parts:
            for thread in part.threads:
                thread.start()

    def _parts(self) -> Iterator[Endpoint | Control]:
        yield from list(self._endpoints)
        yield from list(self._controls)

    def _documents(self) -> Iterator[tuple[str, Callable[[], ServicePing]]]:
        yield control.PING, self.ping
        yield control.INFO, self.info
        yield control.STATS, self.stats

    def _drain(self, parts: Iterable[Endpoint | Control], ends: float) -> None:
        """Let parts answer all that the server sends before it handles this call, and then end."""
        seconds = max(ends - time.monotonic(), 0.001)
        for part in parts:
            part.unsubscribe(seconds)
        try:
            if self.client.is_connected:
                # After it, all requests that the server has sent have arrived.
                self.client.flush(timeout=seconds)
        except jetsync.JetSyncError as error:
            _logger.warning("drain_not_confirmed", service=self.name, error=str(error))
        finally:
            for part in parts:
                part.drain()

    def _give_up(self) -> None:
        """Stop without waiting, because the start has failed."""
        self._state = "stopped"
        for part in self._parts():
            part.abandon()
        if self._watch is not None:
            self._watch.stop()

    def _stop_soon(self, timeout: float) -> None:
        try:
            self.stop(timeout=timeout)
        except jetsync.JetSyncError as error:
            _logger.warning("service_not_drained", service=self.name, error=str(error))

    def _part_ended(self, error: Exception | None) -> None:
        """Note that a thread has ended; called by that thread."""
        if error is not None and self._state == "running":
            if self.error is None:
                self.error = error
            _logger.error("endpoint_ended", service=self.name, error=str(error))
        self._ended.set()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise jetsync.ForkedProcessError


def _join(parts: Iterable[Endpoint | Control], ends: float) -> bool:
    """Wait for threads, and return whether all of them have ended."""
    threads = [thread for part in parts for thread in part.threads if thread.ident is not None]
    for thread in threads:
        thread.join(max(ends - time.monotonic(), 0))
    return not any(thread.is_alive() for thread in threads)
