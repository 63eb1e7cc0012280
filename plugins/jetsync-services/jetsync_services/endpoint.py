"""
An endpoint: a thread that receives requests, and threads that handle them.

The receiving thread never waits for a handler. It answers 503 if all threads are busy and the queue
is full, so that callers learn about it at once, and services that call each other cannot wait for
each other for ever.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

import jetsync
from jetsync_services.counts import Counts
from jetsync_services.documents import EndpointInfo, EndpointStats
from jetsync_services.errors import (
    INTERNAL,
    LATE,
    UNAVAILABLE,
    ServiceError,
    headers_of,
    summary_of,
)
from jetsync_services.request import Request, Response, payload_of

if TYPE_CHECKING:
    from jetsync_services.limits import Watch

_logger = jetsync.get_logger("jetsync.services")

Handler: TypeAlias = Callable[[Request], Any]
Handling: TypeAlias = Callable[[jetsync.Message], Any]
"""Handles a message, and returns what the handler has returned."""

BUSY: Final = "all threads are busy and the queue is full"
STOPPING: Final = "the service is stopping"
FAILED: Final = "internal error"


@attrs.frozen(kw_only=True, eq=False)
class Settings:
    """
    The settings of an endpoint.
    """

    name: str
    subject: str
    queue_group: str | None
    metadata: dict[str, str]
    threads: int
    max_waiting: int
    timeout: float | None
    handle: Handling
    show_errors: bool

    def info(self) -> EndpointInfo:
        """
        Return the endpoint as INFO describes it.
        """
        return EndpointInfo(
            name=self.name,
            subject=self.subject,
            queue_group=self.queue_group or "",
            metadata=self.metadata,
        )


class Call:
    """
    One request while it is handled. Either its thread or the watch answers it, once.
    """

    __slots__ = ("_claim", "_endpoint", "_is_inside", "begun", "ends", "message")

    def __init__(self, endpoint: Endpoint, message: jetsync.Message, timeout: float) -> None:
        self._endpoint = endpoint
        self.message = message
        self._claim = threading.Lock()
        self._is_inside = True
        self.ends = time.monotonic() + timeout
        self.begun = time.perf_counter_ns()

    def finish(self, data: Any, headers: Any, error: str | None) -> None:
        """
        Count the request and send its answer, unless that was done.
        """
        spent = time.perf_counter_ns() - self.begun
        if not self._claim.acquire(blocking=False):
            settings = self._endpoint.settings
            _logger.warning(
                "result_too_late",
                endpoint=settings.name,
                subject=self.message.subject,
                seconds=round(spent / 1e9, 3),
                timeout=settings.timeout,
            )
            return
        # Counted first, so that a caller who has the answer finds it in the statistics, and so that
        # its next request finds a place.
        self._endpoint.counts.add(spent, error)
        self.leave()
        self._endpoint.send(self.message, data, headers)

    def leave(self) -> None:
        """
        Give the place in the endpoint to another request, once. The request's thread calls it.
        """
        if self._is_inside:
            self._is_inside = False
            self._endpoint.counts.leave()

    def expire(self) -> None:
        """
        Answer 504, unless the request was answered.
        """
        if self._claim.acquire(blocking=False):
            timeout = self._endpoint.settings.timeout
            spent = time.perf_counter_ns() - self.begun
            error = ServiceError(LATE, f"no result within {timeout:g} seconds")
            self._endpoint.refuse(self.message, error, spent)


class Endpoint:
    """
    An endpoint that is subscribed.

    Threads: ``_receive`` runs in one thread, and ``_work`` in those that handle requests. Any
    thread may stop it.
    Locks: those of the counts and of the queue.
    """

    def __init__(
        self,
        client: jetsync.Client,
        settings: Settings,
        watch: Watch,
        on_end: Callable[[Exception | None], object],
    ) -> None:
        self.settings = settings
        self.counts = Counts()
        self._client = client
        self._watch = watch
        self._on_end = on_end
        self._most = settings.threads + settings.max_waiting
        self._queue: queue.SimpleQueue[jetsync.Message | None] = queue.SimpleQueue()
        self._abandoned = False
        self._subscription = client.subscribe(settings.subject, queue=settings.queue_group)
        label = f"jetsync-service-{settings.name}"
        self.threads = [
            threading.Thread(target=self._receive, name=f"{label}-receive", daemon=True),
            *(
                threading.Thread(target=self._work, name=f"{label}-{number}", daemon=True)
                for number in range(1, settings.threads + 1)
            ),
        ]

    def stats(self, data: Any) -> EndpointStats:
        """
        Return the counts as STATS describes them.
        """
        settings, counts = self.settings, self.counts.snapshot()
        return EndpointStats(
            name=settings.name,
            subject=settings.subject,
            queue_group=settings.queue_group or "",
            num_requests=counts.requests,
            num_errors=counts.errors,
            last_error=counts.last_error,
            processing_time=counts.nanoseconds,
            average_processing_time=counts.nanoseconds // max(counts.requests, 1),
            data=data,
        )

    # The end.

    def unsubscribe(self, grace: float) -> None:
        """
        Ask the server for no more requests, and accept those that are in flight.
        """
        self._subscription.unsubscribe_nowait(grace=grace)

    def drain(self) -> None:
        """
        End the threads when they have answered all requests that have arrived. Does not wait.
        """
        self._subscription.drain()

    def abandon(self) -> None:
        """
        Answer the requests that wait with 503, because the time for the stop is over.
        """
        self._abandoned = True
        self._subscription.drain()

    # The threads.

    def _receive(self) -> None:
        error: Exception | None = None
        try:
            while True:
                try:
                    for message in self._subscription:
                        self._admit(message)
                    return
                except jetsync.SlowConsumerError as slow:
                    # This thread got too little time. The callers of these requests get no answer.
                    _logger.warning(
                        "requests_dropped", endpoint=self.settings.name, count=slow.dropped
                    )
        except jetsync.JetSyncError as failure:
            error = failure
        finally:
            for _ in range(self.settings.threads):
                self._queue.put(None)
            self._on_end(error)

    def _admit(self, message: jetsync.Message) -> None:
        if self.counts.enter(self._most):
            self._queue.put(message)
        else:
            self.refuse(message, ServiceError(UNAVAILABLE, BUSY))

    def _work(self) -> None:
        while (message := self._queue.get()) is not None:
            if self._abandoned:
                self.counts.leave()
                self.refuse(message, ServiceError(UNAVAILABLE, STOPPING))
            else:
                self._handle(message)

    def _handle(self, message: jetsync.Message) -> None:
        """Call the handler and answer; raises nothing but what is meant to end the program."""
        timeout = self.settings.timeout
        call = Call(self, message, float("inf") if timeout is None else timeout)
        if timeout is not None:
            self._watch.add(call)
        try:
            self._answer(call)
        finally:
            self._watch.remove(call)
            call.leave()

    def _answer(self, call: Call) -> None:
        try:
            result = self.settings.handle(call.message)
            headers = None
            if isinstance(result, Response):
                result, headers = result.data, result.headers
            data = payload_of(result)
        except Exception as raised:  # noqa: BLE001 - other requests wait to be handled.
            error = self._error_of(raised, call.message)
            call.finish(error.data, headers_of(error), summary_of(error))
        except BaseException as raised:  # noqa: BLE001 - reported, and ends the service.
            # The handler wants to end the program: the caller should not wait, nor the service.
            error = ServiceError(INTERNAL, FAILED)
            call.finish(b"", headers_of(error), summary_of(error))
            self._on_end(jetsync.ConflictingUseError(f"a handler raised {raised!r}"))
        else:
            call.finish(data, headers, None)

    def _error_of(self, raised: Exception, message: jetsync.Message) -> ServiceError:
        """Return the error for the caller, which tells nothing about the inside of the service."""
        settings = self.settings
        if isinstance(raised, ServiceError):
            return raised
        _logger.error(
            "handler_failed", endpoint=settings.name, subject=message.subject, exc_info=raised
        )
        if settings.show_errors:
            # The class of the application may have any `repr`, also one that fails.
            with contextlib.suppress(Exception):
                return ServiceError(INTERNAL, repr(raised))
        return ServiceError(INTERNAL, FAILED)

    # Answers.

    def refuse(self, message: jetsync.Message, error: ServiceError, spent: int = 0) -> None:
        """
        Count a request that is answered with an error instead of being handled, and answer it.
        """
        self.counts.add(spent, summary_of(error))
        self.send(message, error.data, headers_of(error))

    def send(self, message: jetsync.Message, data: Any, headers: Any) -> None:
        """
        Send an answer. If that fails, count and log it; the outcome for the caller is an error 500
        if one can be sent, else none.
        """
        reply = message.reply
        if not reply:
            return
        try:
            self._client.publish(reply, data, headers=headers)
        except jetsync.JetSyncError as failure:
            self._report_unsent(failure)
            if isinstance(failure, (jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
                try:
                    self._client.publish(
                        reply,
                        headers=headers_of(ServiceError(INTERNAL, "the answer cannot be sent")),
                    )
                except jetsync.JetSyncError as again:
                    _logger.warning("answer_not_sent", error=str(again))

    def _report_unsent(self, failure: jetsync.JetSyncError) -> None:
        name = self.settings.name
        self.counts.fail(f"{INTERNAL}:the answer was not sent")
        _logger.warning("answer_not_sent", endpoint=name, error=str(failure))
