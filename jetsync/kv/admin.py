"""
Create and update the streams of key-value buckets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from jetsync._api import streams as _stream_admin
from jetsync._proto.kv import stream_of

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync.kv.config import KeyValueConfig
    from jetsync.values.stream_info import StreamInfo


def create(context: Context, wanted: KeyValueConfig, deadline: Deadline) -> StreamInfo:
    """Create the stream of a bucket."""
    return _stream_admin.create(context, wanted.to_stream_config(), deadline, keep_partial=False)


def update(context: Context, wanted: KeyValueConfig, deadline: Deadline) -> StreamInfo:
    """Apply the configuration of a bucket to its existing stream."""
    now = _stream_admin.info(context, stream_of(wanted.bucket), deadline).config
    changes = wanted.stream_fields()
    if now.mirror is not None:
        # A mirror has no own subjects, and its origin writes the markers.
        changes.pop("subjects", None)
        changes.pop("subject_delete_marker_ttl", None)
    return _stream_admin.update(context, attrs.evolve(now, **changes), deadline)
