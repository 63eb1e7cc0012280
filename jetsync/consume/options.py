"""
Checking the options of fetches and consumptions, and completing them with defaults.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from jetsync._base.deadline import as_seconds
from jetsync._base.fields import check_count, check_function, checked, wrong_type
from jetsync._base.reprs import tolerant_repr
from jetsync._proto.pull_request import ConsumeOptions, Priorities, PullLimits, PullRequest
from jetsync._proto.pull_size import UNBOUNDED_BATCH
from jetsync._proto.push import PushOptions
from jetsync.consume.dead_letters import is_limited
from jetsync.errors import (
    InvalidArgumentError,
    InvalidGroupError,
    InvalidTypeError,
    NotSupportedError,
)
from jetsync.values.consumer_config import AckPolicy, PriorityPolicy
from jetsync.values.message import Message
from jetsync.values.server_versions import PULL_NEEDS, require
from jetsync.values.subjects import validate_subject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync._base.deadline import Seconds
    from jetsync.values.consumer_config import ConsumerConfig

# Seconds that a fetch waits for messages, and that the server keeps a pull of a consumption, unless
# the caller says otherwise (ADR-37).
DEFAULT_EXPIRES: Final = 30.0

# The buffer of a consumption, in messages, if the caller does not limit it. The first pull asks for
# all of it, and later ones for what is missing. 500 messages of 64 KiB are 32 MB, so the docstrings
# and how-tos advise a limit in bytes for larger messages.
DEFAULT_MESSAGES: Final = 500

# By default, the next pull is sent when the buffer's size divided by this is left. With a handler,
# the messages that its threads work on are not part of the buffer.
THRESHOLD_DIVISOR: Final = 2

# A fetch with an `expires` of at least `HEARTBEAT_FROM` seconds asks for heartbeats by default.
HEARTBEAT_FROM: Final = 10.0
FETCH_HEARTBEAT: Final = 5.0

# Servers accept shorter heartbeats and flood the client with them.
SHORTEST_HEARTBEAT: Final = 0.5

LONGEST_CONSUME_HEARTBEAT: Final = 30.0

# Seconds that a fetch with `no_wait` waits at most for a connection or a leader.
NO_WAIT_LIMIT: Final = 2.0

# The least value of each option that counts something.
LEAST: Final = {
    "max_messages": 1,
    "max_bytes": 1,
    "threshold_messages": 0,
    "threshold_bytes": 0,
    "stop_after": 1,
    "min_pending": 1,
    "min_ack_pending": 1,
    "priority": 0,
}

# The buffer of a consumption from a push consumer without flow control, in messages and bytes, as
# for core subscriptions.
PUSH_MESSAGES: Final = 65_536
PUSH_BYTES: Final = 64 << 20

# The default of servers.
DEFAULT_ACK_WAIT: Final = 30.0


def _handler(value: Any) -> Any:
    if isinstance(value, int):
        raise InvalidTypeError(f"must be a function; did you mean max_messages={value}?")
    check_function("", value)
    return value


@tolerant_repr
@attrs.frozen(kw_only=True, field_transformer=checked)
class HandlerOptions:
    """How a handler is called: keywords of ``Consumer.consume``, checked."""

    handler: Callable[[Message], object] | None = attrs.field(default=None, converter=_handler)
    ack: Literal["explicit", "auto"] = "explicit"
    threads: int = attrs.field(
        default=1, validator=lambda _, field, value: check_count(field.name, value, 1)
    )
    ordered_by: Literal["subject"] | None = None
    on_error: Literal["nak", "leave", "stop"] = "nak"
    keep_alive: bool = False
    dead_letter: str | None = attrs.field(
        default=None, converter=attrs.converters.optional(validate_subject)
    )
    # Those of the consumer; the first one is in seconds.
    ack_wait: float = 0.0
    max_deliver: int = 0


NO_HANDLER: Final = HandlerOptions()


def pull_limits(config: ConsumerConfig) -> PullLimits:
    """Return the limits of a consumer's pulls."""
    # A pull without a pin id could be given the pin of a group.
    is_pinned = config.priority_policy is PriorityPolicy.PINNED_CLIENT
    return PullLimits(
        # From servers, 0 means none as well.
        config.max_batch or None,
        config.max_bytes or None,
        config.max_expires or None,
        None if is_pinned else config.inactive_threshold or None,
    )


def fetch_request(**options: Any) -> tuple[PullRequest, float]:
    """
    Check the options of a fetch; return the pull, and for how many seconds to wait.

    Args:
        **options: Arguments of ``Consumer.fetch``.
    """
    max_messages, max_bytes = options.get("max_messages"), options.get("max_bytes")
    expires, heartbeat = options.get("expires"), options.get("heartbeat")
    no_wait = options.get("no_wait", False)
    if max_messages is None and max_bytes is None:
        raise InvalidArgumentError("give max_messages, max_bytes or both", argument="max_messages")
    if not isinstance(no_wait, bool):
        raise wrong_type("no_wait", "True or False", no_wait)
    _check_counts(options)
    priorities = _priorities(options)
    wait = as_seconds(DEFAULT_EXPIRES if expires is None else expires, "expires")
    if wait <= 0.0:
        raise InvalidArgumentError("expires must be more than 0 seconds", argument="expires")
    beat: float | None
    if no_wait:
        if heartbeat:
            raise InvalidArgumentError(
                "a fetch with no_wait cannot have heartbeats: leave heartbeat out",
                argument="heartbeat",
            )
        wait, beat = min(wait, NO_WAIT_LIMIT), None
    elif heartbeat is None:
        beat = FETCH_HEARTBEAT if wait >= HEARTBEAT_FROM else None
    elif as_seconds(heartbeat, "heartbeat") == 0.0:
        beat = None
    else:
        beat = _heartbeat(heartbeat, wait / 2.0)
    request = PullRequest(
        max_messages=UNBOUNDED_BATCH if max_messages is None else max_messages,
        max_bytes=max_bytes,
        # A pull with `no_wait` has no expiry, so the server answers at once with all that is there.
        # With an expiry, the server waits that long if nothing is there, and cuts the pull off
        # after it. Measured on 2.10.26, 2.11.11, 2.12.8, 2.14.6 and 2.15.1, alone and as a cluster.
        # Nothing there: answered after 0.3 ms without an expiry, 1.3-2.6 ms with 1 ms, 51 ms with
        # 50 ms. Of 100,000 messages, all arrived without, 0 with 1 ms, 3,400-4,200 with 5 ms,
        # 13,000-28,000 with 50 ms. Even 100 messages were cut off 1-6 times in 100 with 1 ms.
        expires=0.0 if no_wait else wait,
        heartbeat=beat,
        no_wait=no_wait,
        priorities=priorities,
    )
    return request, wait


# Typed, because True and 1.0 are equal to 1 and are refused as a count.
cached_request: Callable[..., tuple[PullRequest, float]] = functools.lru_cache(
    maxsize=256, typed=True
)(fetch_request)


def consume_options(
    stream: str,
    consumer: str,
    config: ConsumerConfig,
    handling: HandlerOptions = NO_HANDLER,
    /,
    **options: Any,
) -> ConsumeOptions:
    """
    Check the options of a consumption of one consumer, and complete them.

    Args:
        stream: The stream's name.
        consumer: The consumer's name.
        config: The consumer's configuration.
        handling: The options that concern the handler.
        **options: The arguments of ``Consumer.consume`` that do not concern the handler.
    """
    threads = 0 if handling.handler is None else handling.threads
    # A message that waits in the buffer of a worker that dies has used one of its deliveries. So by
    # default, the server delivers only what a thread is ready to handle.
    unlimited = threads if threads and is_limited(config) else DEFAULT_MESSAGES
    found = pull_options(
        pull_limits(config),
        LONGEST_CONSUME_HEARTBEAT,
        threads,
        unlimited,
        handling.max_deliver if threads else 0,
        **options,
    )
    _check_group(stream, consumer, config, found.priorities)
    return found


def pull_options(*known: Any, **options: Any) -> ConsumeOptions:
    """Return what :func:`check_options` returns, which is computed once if it repeats."""
    # An argument that has no hash is refused by the check.
    with contextlib.suppress(TypeError):
        return _cached_options(*known, **options)
    return check_options(*known, **options)


def check_options(
    limits: PullLimits,
    default_heartbeat: float,
    threads: int = 0,
    unlimited: int = DEFAULT_MESSAGES,
    max_deliver: int = 0,
    **options: Any,
) -> ConsumeOptions:
    """
    Check the options of a consumption, and complete them as ADR-37 says.

    Args:
        limits: What the consumer allows its pulls to ask for.
        default_heartbeat: The default is half of ``expires``, but at most this many seconds.
        threads: How many threads handle the messages; 0 without a handler.
        unlimited: The default size of the buffer, in messages.
        max_deliver: The consumer's limit of deliveries, with a handler.
        **options: As for :func:`consume_options`.
    """
    _check_counts(options)
    priorities = _priorities(options)
    max_messages, max_bytes = options.get("max_messages"), options.get("max_bytes")
    if max_messages is not None and max_bytes is not None:
        raise InvalidArgumentError(
            "give max_messages or max_bytes, not both", argument="max_messages"
        )
    # Only a buffer of messages has room for those that threads work on.
    unit, other, busy = (
        ("messages", "bytes", threads) if max_bytes is None else ("bytes", "messages", 0)
    )
    if options.get(f"threshold_{other}") is not None:
        raise InvalidArgumentError(
            f"threshold_{other} needs max_{other}", argument=f"threshold_{other}"
        )
    size = max_bytes or max(max_messages or unlimited, threads)
    threshold = options.get(f"threshold_{unit}")
    if threshold is None:
        threshold = busy + (size - busy) // THRESHOLD_DIVISOR
    elif threshold > size:
        raise InvalidArgumentError(
            f"threshold_{unit} must be at most {size}, the size of the buffer, not {threshold}",
            argument=f"threshold_{unit}",
        )
    expires, heartbeat = options.get("expires"), options.get("heartbeat")
    seconds = as_seconds(DEFAULT_EXPIRES if expires is None else expires, "expires")
    if seconds < 1.0:
        raise InvalidArgumentError("expires must be at least 1 second", argument="expires")
    if heartbeat is None:
        beat = min(seconds / 2.0, default_heartbeat)
    else:
        beat = _heartbeat(heartbeat, min(seconds / 2.0, LONGEST_CONSUME_HEARTBEAT))
    if limits.max_expires:
        seconds = min(seconds, limits.max_expires)
        beat = min(beat, seconds / 2.0)
    return ConsumeOptions(
        max_messages=UNBOUNDED_BATCH if max_bytes else size,
        max_bytes=max_bytes,
        # A full buffer has no room for another pull.
        threshold=min(threshold, size - 1),
        expires=seconds,
        heartbeat=beat,
        stop_after=options.get("stop_after"),
        max_batch=limits.max_batch,
        max_batch_bytes=limits.max_bytes,
        priorities=priorities,
        inactive_threshold=limits.inactive_threshold,
        threads=threads,
        max_deliver=max_deliver,
    )


_cached_options: Callable[..., ConsumeOptions] = functools.lru_cache(maxsize=256, typed=True)(
    check_options
)


def push_options(
    stream: str,
    consumer: str,
    config: ConsumerConfig,
    handling: HandlerOptions = NO_HANDLER,
    /,
    **options: Any,
) -> PushOptions:
    """
    Check the options of a consumption from a push consumer, and complete them.

    Args:
        stream: The stream's name.
        consumer: The consumer's name.
        config: The consumer's configuration.
        handling: The options that concern the handler.
        **options: As for :func:`consume_options`.
    """
    _check_counts(options)
    given = {name: value for name, value in options.items() if value is not None}
    if of_pulls := given.keys() - {"max_messages", "max_bytes", "stop_after"}:
        name = min(of_pulls)
        raise InvalidArgumentError(
            f"{name} is an option of pulls, but {consumer!r} is a push consumer: leave it out",
            argument=name,
        )
    if config.ack_policy is AckPolicy.FLOW_CONTROL:
        raise NotSupportedError(
            f"consume() on consumer {consumer!r}, whose ack_policy is 'flow_control'",
            needs="a server that sources the stream",
        )
    usual = {} if config.flow_control else {"max_messages": PUSH_MESSAGES, "max_bytes": PUSH_BYTES}
    if config.flow_control and (sizes := given.keys() & {"max_messages", "max_bytes"}):
        raise InvalidArgumentError(
            "flow control limits the buffer: leave max_messages and max_bytes out",
            argument=min(sizes),
        )
    if "stop_after" in given and config.ack_policy is AckPolicy.NONE:
        raise InvalidArgumentError(
            "stop_after would lose the messages that arrive after it, because the ack_policy of "
            "the consumer is 'none': leave the loop instead, or use a pull consumer",
            argument="stop_after",
        )
    return PushOptions(
        stream=stream,
        consumer=consumer,
        deliver_subject=config.deliver_subject or "",
        deliver_group=config.deliver_group or None,
        expires=DEFAULT_EXPIRES,
        heartbeat=config.idle_heartbeat or 0.0,
        max_deliver=0 if handling.handler is None else handling.max_deliver,
        **(usual | given),
    )


def handler_options(config: ConsumerConfig, /, **options: Any) -> HandlerOptions:
    """
    Check the handler of a consumption, and the options that concern it.

    Args:
        config: The consumer's configuration.
        **options: Arguments of ``Consumer.consume``.
    """
    # Compared with `is`, because True and 1.0 are equal to 1 and are refused as a count.
    if not [name for name, value in options.items() if value is not getattr(NO_HANDLER, name)]:
        return NO_HANDLER
    # The first step of a backoff replaces the ack wait of the first delivery.
    wait = (config.backoff or [config.ack_wait or DEFAULT_ACK_WAIT])[0]
    found = HandlerOptions(ack_wait=wait, max_deliver=config.max_deliver or 0, **options)
    if found.handler is None:
        if found != attrs.evolve(
            NO_HANDLER, ack=found.ack, ack_wait=wait, max_deliver=found.max_deliver
        ):
            raise InvalidArgumentError(
                "threads, ordered_by, on_error, keep_alive and dead_letter need a handler",
                argument="handler",
            )
    elif found.ack == "auto" and config.ack_policy is AckPolicy.ALL:
        raise InvalidArgumentError(
            "ack='auto' would acknowledge messages whose handler failed: the consumer's "
            "ack_policy is 'all', so each acknowledgement covers all earlier messages",
            argument="ack",
        )
    if found.dead_letter is not None:
        _check_dead_letter(found, config)
    return found


def _check_dead_letter(found: HandlerOptions, config: ConsumerConfig) -> None:
    """Raise if the consumer, or the other options, do not allow dead letters."""
    if found.ack != "auto":
        problem = "needs ack='auto': jetsync terminates the message after its dead letter is stored"
    elif config.ack_policy is AckPolicy.NONE:
        problem = "has no effect: the consumer's ack_policy is 'none', so it redelivers nothing"
    elif config.headers_only:
        problem = "would lose the payload: the consumer delivers headers only"
    else:
        return
    raise InvalidArgumentError(f"dead_letter {problem}", argument="dead_letter")


def require_priorities(version: str, priorities: Priorities) -> None:
    """Raise NotSupportedError if a server of *version* would ignore one of the options."""
    for (name, need), value in zip(PULL_NEEDS.items(), priorities, strict=True):
        if value is not None:
            require(f"{name} of a pull", need, version)


def _check_counts(options: Mapping[str, Any]) -> None:
    for name, least in LEAST.items():
        if options.get(name) is not None:
            check_count(name, options[name], least)


def _priorities(options: Mapping[str, Any]) -> Priorities:
    """Return the options of priority groups; check what does not depend on the consumer."""
    priorities = Priorities(*map(options.get, Priorities._fields))
    group, priority = priorities.group, priorities.priority
    if priority is not None and priority > 9:
        raise InvalidArgumentError(
            f"priority must be from 0 to 9, not {priority}", argument="priority"
        )
    if group is not None and not isinstance(group, str):
        raise InvalidTypeError(f"group must be text, not {type(group).__name__}", argument="group")
    return priorities


def _check_group(
    stream: str, consumer: str, config: ConsumerConfig, priorities: Priorities
) -> None:
    """Raise InvalidGroupError if the server would refuse the pulls for their priority options."""
    groups, policy = config.priority_groups, config.priority_policy
    if not groups or policy in {None, PriorityPolicy.NONE}:
        return
    group = priorities.group
    overflow = (priorities.min_pending, priorities.min_ack_pending) != (None, None)
    if group is None:
        text = "Bad Request - Priority Group missing"
    elif group not in groups:
        text = "Bad Request - Invalid Priority Group"
    elif overflow and policy is not PriorityPolicy.OVERFLOW:
        text = "Bad Request - Not a Overflow Priority consumer"
    else:
        return
    raise InvalidGroupError(code=400, description=text, stream=stream, consumer=consumer)


def _heartbeat(heartbeat: Seconds, longest: float) -> float:
    """Return the seconds of a heartbeat; raises if it is out of bounds."""
    beat = as_seconds(heartbeat, "heartbeat")
    if beat < SHORTEST_HEARTBEAT or beat > longest:
        raise InvalidArgumentError(
            f"heartbeat must be from {SHORTEST_HEARTBEAT:g} s to half of expires "
            f"({longest:g} s), not {beat:g} s",
            argument="heartbeat",
        )
    return beat
