"""
Consistent snapshots of many keys of a bucket.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jetsync._base.fields import aware, check_count
from jetsync._proto.kv import check_pattern, covering
from jetsync.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    KeysVanishedError,
    RequestTimeoutError,
)
from jetsync.kv.entry import stored_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._base.deadline import Deadline
    from jetsync.kv.bucket import Bucket
    from jetsync.kv.entry import Entry


def get_many(
    bucket: Bucket, keys: str | Sequence[str], at: int | dt.datetime | None, deadline: Deadline
) -> dict[str, Entry]:
    """Read a snapshot of many keys; see ``KeyValue.get_many``."""
    if not isinstance(keys, Iterable):
        raise InvalidTypeError(
            f"keys must be a key or a list of keys, not {type(keys).__name__}", argument="keys"
        )
    given = [keys] if isinstance(keys, str) else keys
    patterns = covering([*map(check_pattern, given)])
    if not patterns:
        raise InvalidArgumentError("at least one key is needed", argument="keys")
    prefix = bucket.layout.read_prefix
    subjects = [prefix + pattern for pattern in patterns]
    moment = _moment(at)
    while True:
        found: dict[str, Entry] = {}
        with bucket.named():
            batch = bucket.stream.get_last_for(subjects, **moment, timeout=deadline.remaining())
            for message in batch:
                if deadline.expired():
                    # The timeout of the read applies to each page.
                    raise RequestTimeoutError(subjects[0], deadline.total)
                key = message.subject.removeprefix(prefix)
                found[key] = stored_entry(bucket.name, key, message)
        missing = [subject.removeprefix(prefix) for subject in batch.missing]
        if not missing and not batch.vanished:
            return {key: entry for key, entry in found.items() if not entry.is_deleted}
        if at is not None:
            revision = at if isinstance(at, int) else None
            raise KeysVanishedError(bucket.name, missing or patterns, revision=revision)
        if deadline.expired():
            # Values are overwritten faster than a snapshot can be read.
            raise RequestTimeoutError(subjects[0], deadline.total)


def _moment(at: int | dt.datetime | None) -> dict[str, Any]:
    """Return the arguments of a read that select the snapshot."""
    if at is None:
        return {}
    if isinstance(at, dt.datetime):
        return {"up_to_time": aware(at, "at")}
    if not isinstance(at, int):
        raise InvalidTypeError(
            f"at must be a revision or an aware datetime, not {type(at).__name__};"
            " pass several keys as a list",
            argument="at",
        )
    check_count("at", at, 1)
    return {"up_to_sequence": at}
