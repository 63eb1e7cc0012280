"""
How the options of a consumption are checked and completed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from jetsync._base.deadline import as_seconds
from jetsync._base.fields import check_count
from jetsync._proto.consume import ConsumeOptions
from jetsync._proto.pull import UNBOUNDED_BATCH
from jetsync.consume.handlers import HandlerOptions
from jetsync.errors import InvalidArgumentError, InvalidGroupError, InvalidTypeError
from jetsync.values.consumer_config import AckPolicy, PriorityPolicy
from jetsync.values.echo import PULL_NEEDS, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync._base.deadline import Seconds
    from jetsync.values.consumer_config import ConsumerConfig
    from jetsync.values.message import Message

DEFAULT_MESSAGES: Final = 500

SHORTEST_EXPIRES: Final = 1.0

SHORTEST_HEARTBEAT: Final = 0.5
"""
The shortest heartbeat that may be asked for, in seconds.

Servers take any, and flood their client with very short ones.
"""

LONGEST_HEARTBEAT: Final = 30.0

HIGHEST_PRIORITY: Final = 9

DEFAULT_ACK_WAIT: Final = 30.0
"""The server's own, for a configuration that does not say."""


def consume_options(
    stream: str,
    consumer: str,
    config: ConsumerConfig,
    *,
    max_messages: int | None,
    max_bytes: int | None,
    expires: Seconds,
    heartbeat: Seconds | None,
    threshold_messages: int | None,
    threshold_bytes: int | None,
    stop_after: int | None,
    group: str | None,
    min_pending: int | None,
    min_ack_pending: int | None,
    priority: int | None,
) -> ConsumeOptions:
    """
    Check the options of a consumption and complete them by what ADR-37 says.

    What the consumer allows a single pull is kept to, where its configuration says so.
    """
    counts = (
        ("max_messages", max_messages, 1),
        ("max_bytes", max_bytes, 1),
        ("threshold_messages", threshold_messages, 0),
        ("threshold_bytes", threshold_bytes, 0),
        ("stop_after", stop_after, 1),
    )
    check_given(counts)
    check_priorities(group, min_pending, min_ack_pending, priority)
    if max_messages is not None and max_bytes is not None:
        raise InvalidArgumentError(
            "give max_messages or max_bytes, not both", argument="max_messages"
        )
    check_group(
        stream, consumer, config, group, overflow=(min_pending, min_ack_pending) != (None, None)
    )
    if max_bytes is None:
        limit = DEFAULT_MESSAGES if max_messages is None else max_messages
        threshold = _threshold("threshold_messages", threshold_messages, limit)
        _refuse("threshold_bytes", threshold_bytes, "max_bytes")
    else:
        limit = UNBOUNDED_BATCH
        threshold = _threshold("threshold_bytes", threshold_bytes, max_bytes)
        _refuse("threshold_messages", threshold_messages, "max_messages")
    seconds = as_seconds(expires, "expires")
    if seconds < SHORTEST_EXPIRES:
        raise InvalidArgumentError("expires must be at least 1 second", argument="expires")
    beat = _heartbeat(heartbeat, seconds)
    if config.max_expires:
        seconds = min(seconds, config.max_expires)
        beat = min(beat, seconds / 2.0)
    return ConsumeOptions(
        stream=stream,
        consumer=consumer,
        max_messages=limit,
        max_bytes=max_bytes,
        threshold=threshold,
        expires=seconds,
        heartbeat=beat,
        stop_after=stop_after,
        max_batch=config.max_batch or None,
        max_batch_bytes=config.max_bytes or None,
        group=group,
        min_pending=min_pending,
        min_ack_pending=min_ack_pending,
        priority=priority,
    )


def handler_options(
    handler: Callable[[Message], object] | None,
    config: ConsumerConfig,
    *,
    ack: str,
    threads: int,
    ordered_by: Literal["subject"] | None,
    on_error: Literal["nak", "leave", "stop"],
    keep_alive: bool,
) -> HandlerOptions | None:
    """Check how a handler is to be called; return None if there is none."""
    check_count("threads", threads, 1)
    words: tuple[tuple[str, object, tuple[object, ...]], ...] = (
        ("ack", ack, ("explicit", "auto")),
        ("ordered_by", ordered_by, (None, "subject")),
        ("on_error", on_error, ("nak", "leave", "stop")),
    )
    for name, value, known in words:
        if value not in known:
            raise InvalidArgumentError(
                f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}", argument=name
            )
    if handler is None:
        if (threads, ordered_by, on_error, keep_alive) != (1, None, "nak", False):
            raise InvalidArgumentError(
                "threads, ordered_by, on_error and keep_alive go with a handler", argument="handler"
            )
        return None
    given: object = handler
    if not callable(given):
        if isinstance(given, int):
            raise InvalidTypeError(
                f"handler must be a function; did you mean max_messages={given}?",
                argument="handler",
            )
        raise InvalidTypeError("handler must be a function", argument="handler")
    if ack == "auto" and config.ack_policy is AckPolicy.ALL:
        raise InvalidArgumentError(
            "ack='auto' would acknowledge messages whose handler failed, as the consumer's "
            "ack_policy is 'all': each acknowledgement is one of all messages before it too",
            argument="ack",
        )
    acked = config.ack_policy is not AckPolicy.NONE
    # Where there are steps, the first one is the time until the first repetition.
    wait = (config.backoff or [config.ack_wait or DEFAULT_ACK_WAIT])[0]
    return HandlerOptions(
        handler=handler,
        threads=threads,
        ordered_by=ordered_by,
        on_error=on_error,
        auto_ack=acked and ack == "auto",
        acked=acked,
        keep_alive=wait if keep_alive and acked else None,
    )


def check_given(counts: Iterable[tuple[str, int | None, int]]) -> None:
    """Check the (name, value, least) whose value is given."""
    for name, value, least in counts:
        if value is not None:
            check_count(name, value, least)


def check_priorities(
    group: str | None,
    min_pending: int | None,
    min_ack_pending: int | None,
    priority: int | None,
) -> None:
    """Check the options of a pull that concern priority groups, whatever the consumer is."""
    counts = (
        ("min_pending", min_pending, 1),
        ("min_ack_pending", min_ack_pending, 1),
        ("priority", priority, 0),
    )
    check_given(counts)
    if priority is not None and priority > HIGHEST_PRIORITY:
        raise InvalidArgumentError("priority must be from 0 to 9", argument="priority")
    if group is not None and not isinstance(group, str):
        raise InvalidTypeError("group must be text", argument="group")


def require_priorities(
    version: str,
    group: str | None,
    min_pending: int | None,
    min_ack_pending: int | None,
    priority: int | None,
) -> None:
    """Raise NotSupportedError if a server of this *version* would ignore options of a pull."""
    given = (group, min_pending, min_ack_pending, priority)
    for (name, need), value in zip(PULL_NEEDS.items(), given, strict=True):
        if value is not None:
            require(f"{name} of a pull", need, version)


def check_group(
    stream: str, consumer: str, config: ConsumerConfig, group: str | None, *, overflow: bool
) -> None:
    """Raise InvalidGroupError where the server would refuse the priority options of a pull."""
    groups, policy = config.priority_groups, config.priority_policy
    if not groups or policy in {None, PriorityPolicy.NONE}:
        return
    if group is None:
        text = "Bad Request - Priority Group missing"
    elif group not in groups:
        text = "Bad Request - Invalid Priority Group"
    elif overflow and policy is not PriorityPolicy.OVERFLOW:
        text = "Bad Request - Not a Overflow Priority consumer"
    else:
        return
    raise InvalidGroupError(code=400, description=text, stream=stream, consumer=consumer)


def _threshold(name: str, value: int | None, limit: int) -> int:
    if value is None:
        return limit // 2
    if value > limit:
        raise InvalidArgumentError(
            f"{name} must be at most {limit}, the size of the buffer, not {value}", argument=name
        )
    # A buffer that is full has no room for another pull.
    return min(value, limit - 1)


def _refuse(name: str, value: int | None, other: str) -> None:
    if value is not None:
        raise InvalidArgumentError(f"{name} goes with {other}", argument=name)


def _heartbeat(heartbeat: Seconds | None, expires: float) -> float:
    longest = min(expires / 2.0, LONGEST_HEARTBEAT)
    return longest if heartbeat is None else read_heartbeat(heartbeat, longest)


def read_heartbeat(heartbeat: Seconds, longest: float) -> float:
    """Return the seconds of a heartbeat that is asked for; raises if it is out of its bounds."""
    beat = as_seconds(heartbeat, "heartbeat")
    if beat < SHORTEST_HEARTBEAT or beat > longest:
        raise InvalidArgumentError(
            f"heartbeat must be from {SHORTEST_HEARTBEAT:g} s to half of expires "
            f"({longest:g} s), not {beat:g} s",
            argument="heartbeat",
        )
    return beat
