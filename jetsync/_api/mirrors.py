"""
Which mirrors may answer for the stream that they mirror.

Servers let every mirror of a stream answer its direct gets (ADR-31), even a mirror with a filter,
which then answers with fewer messages or with none. The answer names the stream that gave it, and
the configuration of a mirror tells what it can have.

A mirror that may answer can still be slightly behind, and keeps messages that were deleted from the
origin. Messages that somebody deletes from the mirror itself cannot be noticed.
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

# What is read: one message, by its sequence or as the last of one subject; the last messages of
# many subjects; or all messages.
Reading: TypeAlias = Literal["message", "last", "history"]

# Seconds after which the configuration of a mirror is asked for again.
TRUSTED_FOR: Final = 30.0

# Seconds to wait for the configuration. A mirror that cannot be asked for may not answer.
ANSWER_WAIT: Final = 1.0

_LIMITS: Final = ("max_age", "max_bytes", "max_msgs", "max_msg_size")


def may_answer(
    context: Context, mirror: str, stream: str, reading: Reading, deadline: Deadline
) -> bool:
    """
    Return whether the stream *mirror*, which answered for *stream*, has everything that is read.

    Both are asked for on the first answer of a mirror, and again after :data:`TRUSTED_FOR` seconds.
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
        # It may be in another account, or this user may not ask for it.
        return False


def known_answers(context: Context, stream: str, reading: Reading) -> frozenset[bytes]:
    """
    Return the known mirrors that may answer for a stream; sends no request.
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
        # A full mirror rejects the newest messages.
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
    """Return a limit as a number; servers write "no limit" as 0 or -1."""
    value: float | None = getattr(config, limit)
    return float("inf") if value is None or value <= 0 else value
