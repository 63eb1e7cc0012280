"""
Create and update the streams of key-value buckets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from jetsync._api import streams as _stream_admin
from jetsync._proto.kv import check_bucket, stream_of
from jetsync.errors import NotSupportedError, StreamNameInUseError
from jetsync.publish.capability import ATOMIC_LEVEL
from jetsync.values.account import AccountInfo
from jetsync.values.codec import from_wire

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync.kv.config import KeyValueConfig
    from jetsync.values.stream_info import StreamInfo


def create(context: Context, wanted: KeyValueConfig, deadline: Deadline) -> StreamInfo:
    """Create the stream of a bucket, with transactions if the server supports them."""
    if wanted.atomic is None and wanted.mirror is None:
        level = from_wire(AccountInfo, context.api("INFO", None, deadline)).api.level
        if level >= ATOMIC_LEVEL:
            try:
                return _stream_admin.create(context, wanted.to_stream_config(atomic=True), deadline)
            except (StreamNameInUseError, NotSupportedError) as error:
                # The bucket exists without transactions, or its server does not support them.
                try:
                    return _stream_admin.create(
                        context, wanted.to_stream_config(atomic=False), deadline
                    )
                except StreamNameInUseError:
                    raise error from None
    return _stream_admin.create(context, wanted.to_stream_config(atomic=False), deadline)


def update(context: Context, wanted: KeyValueConfig, deadline: Deadline) -> StreamInfo:
    """Apply the configuration of a bucket to its existing stream."""
    now = _stream_admin.info(context, stream_of(check_bucket(wanted.bucket)), deadline).config
    atomic = bool(now.allow_atomic)
    config = wanted.to_stream_config(atomic=atomic)
    changes = {
        field.name: value
        for field in attrs.fields(type(config))
        if field.init
        and field.name not in {"extra", "_received"}
        and ((value := getattr(config, field.name)) is not None)
    }
    if wanted.atomic is False and atomic:
        changes["allow_atomic"] = False
    given = {
        "max_consumers": None,
        "max_msgs": None,
        "max_bytes": wanted.max_bytes,
        "max_age": wanted.ttl,
        "duplicate_window": wanted.ttl,
        "max_msgs_per_subject": wanted.history,
        "max_msg_size": wanted.max_value_size,
        "storage": wanted.storage,
        "num_replicas": wanted.num_replicas,
    }
    for name, value in given.items():
        if value is None:
            del changes[name]
    if now.mirror is not None:
        # A mirror has no own subjects, and its origin writes the markers.
        changes.pop("subjects", None)
        changes.pop("subject_delete_marker_ttl", None)
    elif wanted.limit_marker_ttl == 0 and now.subject_delete_marker_ttl:
        changes["subject_delete_marker_ttl"] = 0.0
    return _stream_admin.update(context, attrs.evolve(now, **changes), deadline)
