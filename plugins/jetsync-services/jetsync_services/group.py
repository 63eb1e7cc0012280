"""
Groups of endpoints, and what endpoints inherit from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

import jetsync
from jetsync_services import checks
from jetsync_services.endpoint import Handling, Settings
from jetsync_services.errors import BAD_REQUEST, ServiceError
from jetsync_services.request import Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync.typing import Seconds
    from jetsync_services.endpoint import Handler

__all__ = ["Group"]

F = TypeVar("F", bound=Callable[..., Any])

_logger = jetsync.get_logger("jetsync.services")

MAX_WAITING: Final = 1000
"""The default number of requests that wait for a thread."""

TIMEOUT: Final = 30.0
"""The default time of a handler, in seconds."""


INHERIT: Final = ""
"""The queue group of an endpoint or group that names none, as in nats.go."""


@attrs.frozen(kw_only=True, eq=False)
class Owner:
    """
    What a group needs of its service.
    """

    name: str
    client: jetsync.Client
    wrap: tuple[Callable[[Handling], Handling], ...]
    show_errors: bool
    add: Callable[[Settings], object]
    """Adds an endpoint."""


class Group:
    """
    A part of a service, whose endpoints share a prefix of their subjects; made by
    :meth:`Service.group` and :meth:`group`.
    """

    def __init__(self, owner: Owner, prefix: str, queue_group: str | None) -> None:
        self._owner = owner
        self._prefix = prefix
        self._queue_group = queue_group

    def __repr__(self) -> str:
        return f"<Group {self._prefix!r} of {self._owner.name}>"

    @property
    def prefix(self) -> str:
        """The prefix of the subjects; ``""`` for the service itself."""
        return self._prefix

    @property
    def queue_group(self) -> str | None:
        """The queue group of endpoints that name none; None if they have none."""
        return self._queue_group

    def group(self, name: str, *, queue_group: str | None = INHERIT) -> Group:
        """
        Return a group within this one.

        Args:
            name: What its subjects begin with, after the prefix of this group. ``""`` adds nothing.
            queue_group: The queue group of its endpoints. None disables it: each instance gets each
                request. By default it is that of this group.
        """
        prefix = self._prefix
        if checks.text("name", name):
            prefix = self._joined(checks.subject_of(name, refused=">", name="name"))
        return Group(self._owner, prefix, self._queue(queue_group))

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
        Return a decorator that makes a function the handler of an endpoint.

        The function gets a :class:`Request`. It returns bytes, text, None for an empty answer,
        anything that JSON can express, or a :class:`Response`. If it raises a
        :class:`ServiceError`, the caller gets that. After any other error, the log has the details,
        and the caller gets the error 500 without them. The decorator returns the function
        unchanged.

        If the service runs, the endpoint is there when the decorator returns. It stays until the
        service stops.

        Args:
            name: The name: letters, digits, ``-`` and ``_``. Several endpoints may share it.
            subject: The subject, after the prefix of the group. Wildcards are allowed. Default: the
                name.
            queue_group: The queue group, whose members share the requests. None disables it: each
                instance gets each request. By default it is that of the group.
            metadata: What discovery tells about the endpoint.
            threads: How many requests are handled at the same time. With more than 1, threads call
                the function concurrently.
            max_waiting: How many requests wait while all threads are busy. Those above that get the
                error 503 at once. With 0, no request waits.
            timeout: Seconds that the function may take. After that the caller gets the error 504.
                The function is not interrupted. It keeps its thread, and its result is dropped.
                None means no limit.

        Raises:
            jetsync.InvalidArgumentError, jetsync.InvalidTypeError: An argument cannot be used.
            jetsync.ConflictingUseError: The service has stopped.
        """
        checks.name_of("endpoint", name)
        given: dict[str, Any] = {
            "name": name,
            "subject": checks.subject_of(
                self._joined(checks.subject_of(name if subject is None else subject))
            ),
            "queue_group": self._queue(queue_group),
            "metadata": checks.metadata_of(metadata),
            "threads": checks.count("threads", threads, 1),
            "max_waiting": checks.count("max_waiting", max_waiting, 0),
            "timeout": checks.seconds("timeout", timeout),
            "show_errors": self._owner.show_errors,
        }

        def add(function: F) -> F:
            checks.function("the handler", function)
            self._owner.add(Settings(handle=self._handling(name, function), **given))
            return function

        return add

    def _handling(self, name: str, function: Handler) -> Handling:
        """Return the function that handles a message with the plugins of the client."""
        client = self._owner.client

        def handle(message: jetsync.Message) -> Any:
            try:
                message = client.receive_message(message)
            except jetsync.PluginError as error:
                _logger.warning(
                    "request_refused", endpoint=name, plugin=error.plugin, error=str(error)
                )
                raise ServiceError(BAD_REQUEST, f"refused by the plugin {error.plugin}") from error
            return function(Request(message, name))

        handling: Handling = handle
        for wrap in reversed(self._owner.wrap):
            handling = wrap(handling)
        return handling

    def _joined(self, subject: str) -> str:
        return f"{self._prefix}.{subject}" if self._prefix else subject

    def _queue(self, given: str | None) -> str | None:
        return self._queue_group if given == INHERIT else checks.queue_of(given)
