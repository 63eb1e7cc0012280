"""
Consumers over the JetStream API: the calls that :class:`JetStream`, :class:`Stream` and
:class:`Consumer` offer.

Every function takes the deadline of the public call that uses it.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from jetsync import errors
from jetsync._api import streams as _stream_admin
from jetsync._base.log import get_logger
from jetsync.events import FilterOutsideSubjectsEvent
from jetsync.values.codec import format_time, from_wire, to_wire
from jetsync.values.consumer_config import AckPolicy
from jetsync.values.consumer_info import ConsumerInfo, PauseState
from jetsync.values.server_versions import (
    CONSUMER_COMMAND_NEEDS,
    CONSUMER_NEEDS,
    check_reply,
    explain_refusal,
    require,
)
from jetsync.values.subjects import (
    overlap,
    validate_filter,
    validate_name,
    validate_queue,
    validate_subject,
)

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync.values.consumer_config import ConsumerConfig
    from jetsync.values.stream_config import StreamConfig

_logger = get_logger("jetsync.consumer")

# What a request does; ADR-37 calls it the action.
Action: TypeAlias = Literal["create", "update", "create_or_update"]

# The shortest heartbeat of a push consumer that servers accept, in seconds.
SHORTEST_BEAT: Final = 0.1

# Seconds that are reserved to find out why a command was not answered.
_PROBE_SECONDS: Final = 1.0


# --------------------------------------------------------------------------------------------------
# Create, update, delete


def create(
    context: Context,
    stream: str,
    config: ConsumerConfig,
    deadline: Deadline,
    action: Action = "create",
) -> ConsumerInfo:
    """
    Create a consumer, or replace the whole configuration of the existing one.

    Nothing changes if it exists with the same configuration.
    """
    validate_name("stream", stream)
    name = validate(config)
    if action != "update":
        # An update sends back what the server has accepted before.
        _check_delivery(config)
    asked = to_wire(config)
    asked.setdefault("ack_policy", "explicit")
    if name is None:
        if action == "update":
            raise errors.InvalidArgumentError(
                "update_consumer() needs the consumer's name", argument="name"
            )
        name = asked["name"] = secrets.token_hex(11)
    return from_wire(ConsumerInfo, send(context, stream, asked, deadline, action))


def send(
    context: Context,
    stream: str,
    asked: Mapping[str, Any],
    deadline: Deadline,
    action: Action = "create",
) -> dict[str, Any]:
    """
    Do what :func:`create` does with a valid configuration, and return the server's answer.

    Args:
        context: The context of the request.
        stream: The stream.
        asked: The configuration, as it is sent, with a name.
        deadline: The deadline of the calling operation.
        action: What to do.
    """
    name = asked.get("name") or asked["durable_name"]
    endpoint = f"CONSUMER.CREATE.{stream}.{name}"
    if asked.get("filter_subject") and not asked.get("filter_subjects"):
        # The filter is part of the request's subject, so that permissions can restrict it.
        endpoint += f".{asked['filter_subject']}"
    request: dict[str, Any] = {"stream_name": stream, "config": asked}
    if action != "create_or_update":
        request["action"] = action
    server = context.server.version
    try:
        answer = context.api(endpoint, request, deadline, stream=stream, consumer=name)
    except errors.InvalidJsonError as error:
        reason = explain_refusal(error, asked, CONSUMER_NEEDS, server)
        if reason is None:
            raise
        raise reason from error
    done = {"create": "created", "update": "updated"}.get(action, "created or updated")
    returned, done = answer.get("config") or {}, f"consumer {name!r} was {done}"
    if not isinstance(returned, dict):
        raise errors.ProtocolError(f"{done} with a configuration that is not a JSON object")
    check_reply(CONSUMER_NEEDS, asked, returned, server=server, done=done)
    return answer


def validate(config: ConsumerConfig) -> str | None:
    """
    Check the names, filters and retries of a configuration, and return the name if there is one.

    Raises:
        InvalidArgumentError: A name or a filter is not valid, the two names differ, or
            ``max_deliver`` is less than the number of entries of ``backoff``.
    """
    given = [name for name in (config.durable_name, config.name) if name is not None]
    for name in given:
        validate_name("consumer", name)
    if len(set(given)) > 1:
        raise errors.InvalidArgumentError(
            f"name {config.name!r} and durable_name {config.durable_name!r} differ: give one",
            argument="name",
        )
    for subject in filters_of(config):
        validate_filter(subject)
    steps, limit = len(config.backoff or ()), config.max_deliver or 0
    if 0 < limit < steps:
        # Servers refuse it, too, but say that the limit must be larger than the number of entries.
        raise errors.InvalidArgumentError(
            f"max_deliver={limit} is less than the {steps} entries of backoff: "
            "set it to their number at least, or leave entries out",
            argument="max_deliver",
        )
    return given[0] if given else None


# The fields that only one kind of consumer can have, and what to do if the other one has them.
_OF_PULLS: Final = (
    ("max_waiting", "priority_groups"),
    "is for pull consumers: leave it or deliver_subject out",
)
_OF_PUSHES: Final = (
    ("deliver_group", "flow_control", "idle_heartbeat", "rate_limit_bps"),
    "is for push consumers: set deliver_subject, too, or leave it out",
)


def _check_delivery(config: ConsumerConfig) -> None:
    """
    Check the fields that only a push consumer, or only a pull consumer, can have.

    Servers refuse these combinations, except that they ignore the ``deliver_group`` of a pull
    consumer.

    Raises:
        InvalidArgumentError: The fields do not fit together.
    """
    names, advice = _OF_PULLS if config.deliver_subject else _OF_PUSHES
    for name in names:
        if getattr(config, name):
            raise errors.InvalidArgumentError(f"{name} {advice}", argument=name)
    if not config.deliver_subject:
        return
    validate_subject(config.deliver_subject)
    if config.deliver_group:
        validate_queue(config.deliver_group)
    beat, flow_acks = config.idle_heartbeat, config.ack_policy is AckPolicy.FLOW_CONTROL
    if beat and beat < SHORTEST_BEAT:
        raise errors.InvalidArgumentError(
            f"idle_heartbeat must be at least {SHORTEST_BEAT:g} s, not {beat:g} s",
            argument="idle_heartbeat",
        )
    if config.flow_control and not beat and not flow_acks:
        raise errors.InvalidArgumentError(
            "flow_control needs idle_heartbeat, for example idle_heartbeat=5",
            argument="idle_heartbeat",
        )
    if config.ack_policy is AckPolicy.NONE and (config.max_ack_pending or 0) > 0:
        raise errors.InvalidArgumentError(
            "max_ack_pending has no effect on a push consumer with ack_policy='none': leave it out",
            argument="max_ack_pending",
        )


def filters_of(config: ConsumerConfig) -> list[str]:
    """Return the filters of a consumer."""
    # Empty filters are not checked: as a single filter they mean none, and servers refuse them in a
    # list.
    wanted = [config.filter_subject, *(config.filter_subjects or ())]
    return [subject for subject in wanted if subject]


def delete(context: Context, stream: str, name: str, deadline: Deadline) -> None:
    """
    Delete a consumer.
    """
    endpoint = _endpoint("DELETE", stream, name)
    context.api(endpoint, None, deadline, stream=stream, consumer=name)


# --------------------------------------------------------------------------------------------------
# Filters that cannot match


def warn_about_filters(
    context: Context,
    consumer: tuple[str, str],
    filters: Sequence[str],
    known: StreamConfig | None,
    deadline: Deadline,
) -> None:
    """
    Log a warning and notify the plugins if a filter lies outside the stream's subjects.

    Servers accept such a consumer, but it never gets a message. Streams with a mirror, sources or a
    subject transform are not checked, because their messages can have other subjects.

    Args:
        context: Fetches the stream's configuration if *known* is missing or may be outdated.
        consumer: The stream, and the name of the consumer that was created.
        filters: The consumer's filters.
        known: An earlier configuration of the stream, if there is one.
        deadline: The deadline of the calling operation. If the check fails, that operation still
            succeeds.
    """
    stream, name = consumer
    if not filters or (known is not None and not _outside(filters, known)):
        return
    try:
        current = _stream_admin.info(context, stream, deadline).config
    except errors.JetSyncError:
        return
    outside = _outside(filters, current)
    if not outside:
        return
    subjects = tuple(current.subjects or ())
    _logger.warning(
        "filter_outside_subjects",
        stream=stream,
        consumer=name,
        filters=outside,
        subjects=subjects,
    )
    context.connection.emit(
        FilterOutsideSubjectsEvent(
            stream=stream, consumer=name, filters=tuple(outside), subjects=subjects
        )
    )


def _outside(filters: Sequence[str], stream: StreamConfig) -> list[str]:
    if stream.mirror or stream.sources or stream.subject_transform:
        return []
    subjects = stream.subjects or []
    return [wanted for wanted in filters if not any(overlap(wanted, one) for one in subjects)]


# --------------------------------------------------------------------------------------------------
# Information


def info(context: Context, stream: str, name: str, deadline: Deadline) -> ConsumerInfo:
    """
    Fetch the description of a consumer.
    """
    endpoint = _endpoint("INFO", stream, name)
    answer = context.api(endpoint, None, deadline, stream=stream, consumer=name)
    return from_wire(ConsumerInfo, answer)


# --------------------------------------------------------------------------------------------------
# Commands of later servers


def pause(
    context: Context, stream: str, name: str, until: dt.datetime | None, deadline: Deadline
) -> PauseState:
    """
    Stop the delivery of a consumer until a time; ``None`` resumes it.
    """
    body = None if until is None else {"pause_until": format_time(until)}
    return from_wire(PauseState, command(context, "PAUSE", (stream, name), body, deadline))


def command(
    context: Context,
    verb: str,
    consumer: tuple[str, str],
    body: Mapping[str, Any] | None,
    deadline: Deadline,
) -> dict[str, Any]:
    """
    Send a command that older servers do not support.

    Those servers do not answer it, and no server answers a reset of a missing consumer. So this
    function fetches the consumer's description first. It shows whether the consumer exists and
    which API level its server has, so that the caller does not have to wait for a timeout.
    """
    stream, name = consumer
    endpoint = _endpoint(verb, stream, name)
    described = _info_if_allowed(context, stream, name, deadline)
    if described is not None:
        # The version of the server that answered, from 2.11 up.
        version = (described.config.metadata or {}).get("_nats.ver", context.server.version)
        require(f"consumer {verb.lower()}", CONSUMER_COMMAND_NEEDS[verb], version)
    wait = max(0.0, deadline.remaining() - min(_PROBE_SECONDS, deadline.total / 4))
    try:
        return context.api(endpoint, body, deadline.at_most(wait), stream=stream, consumer=name)
    except errors.RequestTimeoutError as error:
        # If the consumer was deleted between the two requests, this raises ConsumerNotFoundError.
        _info_if_allowed(context, stream, name, deadline)
        raise errors.RequestTimeoutError(error.subject, deadline.total) from None


def _info_if_allowed(
    context: Context, stream: str, name: str, deadline: Deadline
) -> ConsumerInfo | None:
    """
    Fetch the description of a consumer; ``None`` if the user has no permission for that request.

    The user may still have permission for the command.
    """
    with contextlib.suppress(errors.PermissionDeniedError):
        return info(context, stream, name, deadline)
    return None


def _endpoint(verb: str, stream: str, name: str) -> str:
    validate_name("stream", stream)
    return f"CONSUMER.{verb}.{stream}.{validate_name('consumer', name)}"
