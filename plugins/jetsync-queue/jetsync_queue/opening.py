"""
Making the stream and the bucket of a prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import jetsync
from jetsync_queue.errors import QueueError
from jetsync_queue.names import stream_name, subjects_of

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")

MARKER_TTL: Final = 60.0
"""Seconds for which the server keeps the marker of an expired record."""


def open_stream(
    js: jetsync.JetStream, prefix: str, window: float, storage: Any, num_replicas: int
) -> jetsync.Stream:
    """
    Return the stream of a prefix; make it if it is missing.
    """
    name = stream_name(prefix)
    stream = _find_or_make(
        lambda: js.stream(name),
        lambda: js.create_stream(
            name,
            subjects=subjects_of(prefix),
            retention="workqueue",
            storage=storage,
            num_replicas=num_replicas,
            duplicate_window=window,
            allow_direct=True,
            allow_msg_ttl=True,
            allow_msg_schedules=True,
        ),
    )
    config = stream.config
    is_queue = config.retention == jetsync.RetentionPolicy.WORKQUEUE
    if not (is_queue and config.allow_msg_schedules and config.allow_msg_ttl):
        raise QueueError(
            f"stream {name!r} is no work queue: it needs retention='workqueue', "
            "allow_msg_schedules and allow_msg_ttl"
        )
    return stream


def open_bucket(js: jetsync.JetStream, name: str, like: jetsync.StreamConfig) -> jetsync.KeyValue:
    """
    Return the bucket with the results; make it if it is missing.
    """
    return _find_or_make(
        lambda: js.key_value(name),
        lambda: js.create_key_value(
            name,
            history=1,
            limit_marker_ttl=MARKER_TTL,
            storage=like.storage,
            num_replicas=like.num_replicas,
        ),
    )


def _find_or_make(find: Callable[[], Found], make: Callable[[], Found]) -> Found:
    """Find something; otherwise make it, or find what another program has made meanwhile."""
    missing = (jetsync.StreamNotFoundError, jetsync.BucketNotFoundError)
    try:
        return find()
    except missing:
        pass
    try:
        return make()
    except jetsync.ApiError as error:
        try:
            return find()
        except missing:
            raise error from None
