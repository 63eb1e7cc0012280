"""
A member's consumer on the server: its configuration, and when it may be created or deleted.

A partition is never in two consumers of an elastic group, because the server refuses filters that
overlap on a work queue. So a member that keeps its consumer until its handler has returned and the
acknowledgement has arrived keeps others away from its keys.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import Any, Final

import jetsync
from jetsync_groups.names import PRIORITY_GROUP

NOT_UNIQUE: Final = 10100
"""The server's code for a filter that overlaps with that of another consumer of a work queue."""

SHORTEST_PIN: Final = 1.0
"""The shortest time in seconds after which a silent instance is replaced, as in orbit.go."""

SETTLE: Final = 2.0
"""Longest wait in seconds until the server has processed the last acknowledgements."""

PAUSE: Final = 5.0
"""How long a consumer is paused in seconds if the instance dies before it can delete it."""

UNREACHABLE: Final = (
    jetsync.ConnectionLostError,
    jetsync.DisconnectedError,
    jetsync.InsufficientResourcesError,
    jetsync.JetStreamNotEnabledError,
    jetsync.NoRespondersError,
    jetsync.RequestTimeoutError,
    jetsync.TemporarilyUnavailableError,
)
"""Errors after which a request may succeed a moment later."""


def configuration(
    name: str,
    filters: list[str],
    *,
    durable: bool,
    ack_wait: float,
    max_ack_pending: int | None,
) -> jetsync.ConsumerConfig:
    """
    Return the configuration of a member's consumer, equal to that of orbit.go.
    """
    wanted: dict[str, Any] = {"durable_name": name} if durable else {"name": name}
    if not durable:
        wanted["inactive_threshold"] = ack_wait
    return jetsync.ConsumerConfig(
        **wanted,
        ack_policy="explicit",
        ack_wait=ack_wait,
        max_ack_pending=max_ack_pending,
        filter_subjects=filters,
        priority_groups=[PRIORITY_GROUP],
        priority_policy="pinned_client",
        priority_timeout=max(ack_wait, SHORTEST_PIN),
    )


def pull_expiry(ack_wait: float) -> float:
    """
    Return how long a pull stays open, in seconds: several pulls fit into the time of a pin.
    """
    return max(ack_wait / 2, SHORTEST_PIN)


class MustWaitError(Exception):
    """
    A member cannot create its consumer yet.
    """


def create(
    stream: jetsync.Stream, config: jetsync.ConsumerConfig, *, timeout: float
) -> jetsync.Consumer:
    """
    Create a member's consumer.

    Raises:
        MustWaitError: Another member or instance is in the way, or the server is.
        JetSyncError: The server refused the consumer for good.
    """
    try:
        return stream.create_consumer(config, timeout=timeout)
    except jetsync.ConsumerExistsError as error:
        text = "another instance still uses the consumer with other settings"
        raise MustWaitError(text) from error
    except jetsync.StreamNotFoundError as error:
        # Either the document is about to be deleted, or someone will create the stream again.
        raise MustWaitError(f"stream {stream.name!r} does not exist") from error
    except UNREACHABLE as error:
        raise MustWaitError(repr(error)) from error
    except jetsync.ApiError as error:
        if error.err_code == NOT_UNIQUE:
            text = "another member still has one of the partitions"
            raise MustWaitError(text) from error
        raise


def settle(
    consumer: jetsync.Consumer, created: dt.datetime | None, open_here: int
) -> jetsync.ConsumerInfo | None:
    """
    Wait until the server has processed this instance's acknowledgements.

    Args:
        consumer: The consumer.
        created: When the consumer was created.
        open_here: How many messages this instance has given back.

    Returns:
        The consumer's info. None if the consumer is gone or was replaced, or if other instances
        have messages of it: after at most ``SETTLE`` seconds.
    """
    end = time.monotonic() + SETTLE
    pause = 0.005
    while True:
        try:
            info = consumer.info(timeout=SETTLE)
        except (jetsync.ConsumerNotFoundError, jetsync.StreamNotFoundError):
            return None
        except UNREACHABLE:
            info = None
        if info is not None and info.created != created:
            return None
        if info is not None and info.num_ack_pending <= open_here:
            return info
        if time.monotonic() >= end:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.2)


def delete_if_own(
    stream: jetsync.Stream,
    consumer: jetsync.Consumer,
    info: jetsync.ConsumerInfo,
    pin: str | None,
    open_here: int,
    *,
    timeout: float,
) -> bool:
    """
    Delete a member's consumer, unless another instance of the member has it. Return whether it did.

    Args:
        stream: The stream of the consumer.
        consumer: The consumer.
        info: What :func:`settle` has returned.
        pin: The pin id of this instance.
        open_here: As for :func:`settle`.
        timeout: Seconds for each request.
    """
    owner = pinned(info)
    if owner not in {None, pin}:
        return False
    try:
        if owner is None:
            # Another instance could get a message before the deletion.
            until = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=PAUSE)
            stream.pause_consumer(consumer.name, until, timeout=timeout)
            now = consumer.info(timeout=timeout)
            if pinned(now) is not None or now.num_ack_pending > open_here:
                stream.resume_consumer(consumer.name, timeout=timeout)
                return False
        stream.delete_consumer(consumer.name, timeout=timeout)
    except (jetsync.ConsumerNotFoundError, jetsync.StreamNotFoundError):
        pass
    return True


def pinned(info: jetsync.ConsumerInfo) -> str | None:
    """
    Return the id of the instance that gets messages; None if there is none.
    """
    for state in info.priority_groups:
        if state.group == PRIORITY_GROUP:
            return state.pinned_client_id or None
    return None
