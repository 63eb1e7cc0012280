"""
Which mirrors may answer for the stream that they mirror.

Servers let every mirror of a stream answer its direct gets (ADR-31), whatever the mirror has of it:
one with a filter answers that there is nothing, or with fewer messages, and cannot be kept from
it. The name in an answer tells who gave it, and the mirror's configuration what it can have.

A mirror that may answer can still be a moment behind, and keeps what was deleted from its origin;
what somebody deletes from the mirror itself shows nowhere.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal

from jetsync.errors import (
    JetStreamNotEnabledError,
    RequestTimeoutError,
    StreamNotFoundError,
    TemporarilyUnavailableError,
    TransportError,
)
from jetsync.values.stream_config import DiscardPolicy

if TYPE_CHECKING:
    from typing import TypeAlias

    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline
    from jetsync.values.stream_config import StreamConfig

__all__ = ["Reading", "agrees", "known_answers", "may_answer"]

Reading: TypeAlias = Literal["message", "last", "history"]
"""
What is read: one message that is what it is wherever it is found (that with a sequence, or the last
of one subject); the last messages of many subjects; or all there is.
"""

TRUSTED_FOR: Final = 30.0
"""Seconds after which the configuration of a mirror is asked for again."""

ANSWER_WAIT: Final = 1.0
"""Seconds to wait for it; a mirror of which nothing can be learned may not answer."""

_LIMITS: Final = ("max_age", "max_bytes", "max_msgs", "max_msg_size")


def may_answer(
    context: Context, mirror: str, stream: str, reading: Reading, deadline: Deadline
) -> bool:
    """
    Return whether the stream called *mirror*, which answered for *stream*, has what that one has.

    Asks for both on the first answer of a mirror, and then once in a while.
    """
    try:
        until = deadline.at_most(ANSWER_WAIT)
        return agrees(_current(context, mirror, until), _current(context, stream, until), reading)
    except (
        JetStreamNotEnabledError,
        RequestTimeoutError,
        StreamNotFoundError,
        TemporarilyUnavailableError,
        TransportError,
    ):
        # In another account, or not for this user: then it can not be told.
        return False


def known_answers(context: Context, stream: str, reading: Reading) -> frozenset[bytes]:
    """
    Return the mirrors of a stream that may answer for it, as far as is known; asks nothing.
    """
    names = context.streams.mirrors(stream)
    origin = context.streams.peek(stream) if names else None
    if origin is None or _is_old(origin):
        return frozenset()
    found = filter(None, map(context.streams.peek, names))
    return frozenset(
        mirror.name.encode()
        for mirror in found
        if not _is_old(mirror) and agrees(mirror.config, origin.config, reading)
    )


def agrees(mirror: StreamConfig, origin: StreamConfig, reading: Reading) -> bool:
    """
    Return whether a stream with the configuration *mirror* has all that its *origin* has.
    """
    source = mirror.mirror
    if source is None or source.name != origin.name or source.subject_transforms:
        return False
    if mirror.discard is DiscardPolicy.NEW and _is_limited(mirror):
        # Without what came last.
        return False
    if reading == "message":
        return _bound(mirror, "max_msg_size") >= _bound(origin, "max_msg_size")
    if source.filter_subject not in {None, "", ">"}:
        return False
    if (source.opt_start_seq or 0) > 1 or source.opt_start_time is not None:
        return False
    limits = _LIMITS if reading == "last" else (*_LIMITS, "max_msgs_per_subject")
    return all(_bound(mirror, limit) >= _bound(origin, limit) for limit in limits)


def _current(context: Context, name: str, deadline: Deadline) -> StreamConfig:
    known = context.streams.named(name, deadline)
    if _is_old(known):
        known = context.streams.named(name, deadline, fresh=True)
    return known.config


def _is_old(known: KnownStream) -> bool:
    return time.monotonic() - known.asked > TRUSTED_FOR


def _is_limited(config: StreamConfig) -> bool:
    limits = (*_LIMITS, "max_msgs_per_subject")
    return any(_bound(config, limit) != float("inf") for limit in limits)


def _bound(config: StreamConfig, limit: str) -> float:
    """Return a limit; servers write "none" as 0 or -1."""
    value: float | None = getattr(config, limit)
    return float("inf") if value is None or value <= 0 else value
