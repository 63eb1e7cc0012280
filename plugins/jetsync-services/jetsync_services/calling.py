"""
The other side: find services, and call them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

import jetsync
from jetsync_services import checks, control
from jetsync_services.control import control_subject
from jetsync_services.documents import EndpointInfo, ServiceInfo, ServicePing, ServiceStats, decode
from jetsync_services.errors import error_of
from jetsync_services.request import payload_of

if TYPE_CHECKING:
    from jetsync.typing import HeadersInput, Seconds

__all__ = ["DiscoveredService", "call", "discover", "info", "ping", "stats"]

T = TypeVar("T", bound=ServicePing)

_logger = jetsync.get_logger("jetsync.services")

STALL: Final = 0.3
"""Seconds to wait for the answer of another instance, as the other clients do."""


@attrs.frozen(kw_only=True)
class DiscoveredService:
    """
    A service that was found, with all its instances.
    """

    name: str
    """The name."""

    versions: tuple[str, ...]
    """The versions of the instances, sorted as text."""

    description: str
    """What it does, as the last instance in the list says."""

    endpoints: tuple[EndpointInfo, ...]
    """The endpoints of all instances, each once."""

    instances: tuple[ServiceInfo, ...]
    """The instances, sorted by id."""


def ping(
    client: jetsync.Client,
    name: str | None = None,
    id: str | None = None,  # noqa: A002 - the name of the field.
    *,
    timeout: Seconds | None = None,
    stall: Seconds = STALL,
    control_prefix: str = control.PREFIX,
) -> list[ServicePing]:
    """
    Return the identities of instances of services, sorted by name and id.

    No client can know how many instances there are. So the call ends when no further answer has
    arrived for *stall* seconds. Without any instance, it returns an empty list at once. The log
    names answers that are no such document, and the list leaves them out.

    Args:
        client: The client.
        name: The name of a service. None means all services.
        id: The id of an instance, with its name. None means all.
        timeout: Seconds that the call may take. The default is the client's ``request_timeout``.
        stall: Seconds to wait for another answer.
        control_prefix: What the subjects of discovery begin with.

    Raises:
        jetsync.InvalidArgumentError, jetsync.InvalidTypeError: An argument cannot be used.
        jetsync.ConnectionLostError: The connection was lost, so answers may be missing.
    """
    return _collect(client, ServicePing, control.PING, name, id, timeout, stall, control_prefix)


def info(
    client: jetsync.Client,
    name: str | None = None,
    id: str | None = None,  # noqa: A002 - the name of the field.
    *,
    timeout: Seconds | None = None,
    stall: Seconds = STALL,
    control_prefix: str = control.PREFIX,
) -> list[ServiceInfo]:
    """
    Return instances of services with their endpoints. The arguments are those of :func:`ping`.
    """
    return _collect(client, ServiceInfo, control.INFO, name, id, timeout, stall, control_prefix)


def stats(
    client: jetsync.Client,
    name: str | None = None,
    id: str | None = None,  # noqa: A002 - the name of the field.
    *,
    timeout: Seconds | None = None,
    stall: Seconds = STALL,
    control_prefix: str = control.PREFIX,
) -> list[ServiceStats]:
    """
    Return the counts of instances of services. The arguments are those of :func:`ping`.
    """
    return _collect(client, ServiceStats, control.STATS, name, id, timeout, stall, control_prefix)


def discover(
    client: jetsync.Client,
    *,
    timeout: Seconds | None = None,
    stall: Seconds = STALL,
    control_prefix: str = control.PREFIX,
) -> list[DiscoveredService]:
    """
    Return all services with their instances, sorted by name. The arguments are those of
    :func:`ping`.
    """
    found: dict[str, list[ServiceInfo]] = {}
    for each in info(client, timeout=timeout, stall=stall, control_prefix=control_prefix):
        found.setdefault(each.name, []).append(each)
    return [
        DiscoveredService(
            name=name,
            versions=tuple(sorted({each.version for each in instances})),
            description=instances[-1].description,
            endpoints=tuple(
                # Endpoints have metadata, so they cannot be hashed.
                {
                    (endpoint.name, endpoint.subject): endpoint
                    for each in instances
                    for endpoint in each.endpoints
                }.values()
            ),
            instances=tuple(instances),
        )
        for name, instances in found.items()
    ]


def call(
    client: jetsync.Client,
    subject: str,
    data: Any = b"",
    *,
    headers: HeadersInput | None = None,
    timeout: Seconds | None = None,
) -> jetsync.Message:
    """
    Call an endpoint and return its answer.

    The plugins of the client may change or refuse the request, as they do for a message that is
    published. The call is not repeated: if it fails without an answer, the service may have handled
    the request.

    Args:
        client: The client.
        subject: The subject of the endpoint.
        data: The payload: bytes, text, None for nothing, or anything that JSON can express.
        headers: The headers.
        timeout: Seconds to wait for the answer. The default is the client's ``request_timeout``.

    Raises:
        ServiceError: The service has answered with an error.
        jetsync.NoRespondersError: No instance of the service runs. Nothing was handled.
        jetsync.RequestTimeoutError, jetsync.ConnectionLostError: There was no answer. Whether the
            request was handled is unknown.
        jetsync.PluginError: A plugin has refused the request. Nothing was sent.
        jetsync.InvalidTypeError: JSON cannot express the data. Nothing was sent.
    """
    try:
        payload = payload_of(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise jetsync.InvalidTypeError(
            f"data must be bytes, str or what JSON can express: {error}", argument="data"
        ) from error
    request = client.prepare_message(jetsync.OutboundMessage(subject, payload, headers))
    answer = client.request(request.subject, request.data, headers=request.headers, timeout=timeout)
    failure = error_of(answer)
    if failure is not None:
        raise failure
    return answer


def _collect(  # noqa: PLR0917 - one private step.
    client: jetsync.Client,
    kind: type[T],
    verb: str,
    name: str | None,
    id: str | None,  # noqa: A002
    timeout: Seconds | None,
    stall: Seconds,
    control_prefix: str,
) -> list[T]:
    prefix = checks.subject_of(control_prefix, refused="*>", name="control_prefix")
    subject = control_subject(verb, name, id, prefix=prefix)
    # The instances that have answered: one may get the request through two accounts.
    found: dict[tuple[str, str], T] = {}
    try:
        with client.request_many(subject, timeout=timeout, stall=stall) as answers:
            for answer in answers:
                try:
                    document = decode(kind, answer)
                except jetsync.DecodeError as error:
                    _logger.warning("unreadable_answer", subject=subject, error=str(error))
                    continue
                found[document.name, document.id] = document
        if answers.reason == "disconnected":
            raise jetsync.ConnectionLostError(reason="while collecting answers")
    except jetsync.NoRespondersError:
        return []
    return [found[key] for key in sorted(found)]
