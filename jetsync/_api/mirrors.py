"""
Decide which mirrors may answer direct gets for the stream that they mirror.

Servers let every mirror of a stream answer its direct gets (ADR-31), also one that has fewer
messages. The answer names the stream that sent it. This is the rule for all reads:

1. A message from the stream itself counts.
2. A message from a mirror counts if the mirror has every message of this kind of read. Both
   configurations decide that (:func:`agrees`). They are fetched again after :data:`TRUSTED_FOR`
   seconds. If a stream does not answer, its last configuration counts, so complete mirrors serve
   reads while their origin is down.
3. All else is checked, also that there is no message: the leader is asked for a single message, and
   any server again for a page (``read/pages.py``).
4. A user who may not ask the leader takes the first answer, but not for a subject with wildcards.

A mirror that may answer can still lag slightly, and it keeps messages that were deleted from the
origin. jetsync cannot notice messages that were deleted from the mirror itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal

from jetsync import errors
from jetsync.values.stream_config import DiscardPolicy

if TYPE_CHECKING:
    from typing import TypeAlias

    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline
    from jetsync.values.stream_config import StreamConfig

# The kind of read: "message" is one message, by its sequence or as the last of a subject. "last" is
# the last messages of many subjects. "history" is all messages.
Reading: TypeAlias = Literal["message", "last", "history"]

# Seconds after which the configuration of a mirror is fetched again.
TRUSTED_FOR: Final = 30.0

# Seconds to wait for both configurations. If one was never fetched, the mirror may not answer.
ANSWER_WAIT: Final = 1.0

# Errors of a request for the stream's info that say nothing about the stream.
TRANSIENT: Final = (
    errors.JetStreamNotEnabledError,
    errors.RequestTimeoutError,
    errors.TemporarilyUnavailableError,
    errors.TransportError,
)

_LIMITS: Final = ("max_age", "max_bytes", "max_msgs", "max_msg_size")


def may_answer(
    context: Context, mirror: str, stream: str, reading: Reading, deadline: Deadline
) -> bool:
    """
    Return whether *mirror*, which answered for *stream*, has all messages of this kind of read.

    The configurations of both streams are fetched if they are missing or too old.
    """
    try:
        until = deadline.at_most(ANSWER_WAIT)
        return agrees(_current(context, mirror, until), _current(context, stream, until), reading)
    except (*TRANSIENT, errors.StreamNotFoundError):
        # The mirror may be in another account, or this user has no permission for its info.
        return False


def known_answers(context: Context, stream: str, reading: Reading) -> frozenset[bytes]:
    """
    Return the known mirrors that may answer for a stream; sends no request.
    """
    names = context.streams.mirrors(stream)
    origin = context.streams.last(stream) if names else None
    if origin is None or _is_old(origin):
        return frozenset()
    found = filter(None, map(context.streams.last, names))
    return frozenset(
        mirror.name.encode()
        for mirror in found
        if not _is_old(mirror) and agrees(mirror.config, origin.config, reading)
    )


def agrees(mirror: StreamConfig, origin: StreamConfig, reading: Reading) -> bool:
    """
    Return whether a mirror has all messages of its origin for this kind of read.

    The mirror must not change subjects, or reject messages once it is full. For a single message,
    which it names, it only has to accept the same sizes. For more, it must have no filter, no
    later start and no lower limits. The limit for each subject matters only for the history.
    """
    source = mirror.mirror
    if source is None or source.name != origin.name or source.subject_transforms:
        return False
    everything = (*_LIMITS, "max_msgs_per_subject")
    if mirror.discard is DiscardPolicy.NEW and any(
        _bound(mirror, limit) != float("inf") for limit in everything
    ):
        # A full mirror rejects the newest messages.
        return False
    if reading == "message":
        return _bound(mirror, "max_msg_size") >= _bound(origin, "max_msg_size")
    if source.filter_subject not in {None, "", ">"}:
        return False
    if (source.opt_start_seq or 0) > 1 or source.opt_start_time is not None:
        return False
    limits = _LIMITS if reading == "last" else everything
    return all(_bound(mirror, limit) >= _bound(origin, limit) for limit in limits)


def _current(context: Context, name: str, deadline: Deadline) -> StreamConfig:
    streams = context.streams
    last = streams.last(name)
    if last is not None and not _is_old(last):
        return last.config
    try:
        return streams.named(name, deadline, fresh=True).config
    except TRANSIENT:
        if last is None:
            raise
        last.keep()
        return last.config


def _is_old(known: KnownStream) -> bool:
    return time.monotonic() - known.asked > TRUSTED_FOR


def _bound(config: StreamConfig, limit: str) -> float:
    """Return a limit as a number; servers write "no limit" as 0 or -1."""
    value: float | None = getattr(config, limit)
    return float("inf") if value is None or value <= 0 else value
