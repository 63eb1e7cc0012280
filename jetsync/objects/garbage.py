"""
Find and remove chunks that no document names, and the documents of deleted objects.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Any

from jetsync import errors
from jetsync._base.deadline import Deadline
from jetsync._proto.object_names import chunks_of, documents_of
from jetsync.objects.watch import info_in, watch_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jetsync.objects.bucket import Bucket
    from jetsync.objects.info import ObjectInfo


def documents(
    bucket: Bucket, seconds: float, up_to: int | None = None
) -> Iterator[ObjectInfo | errors.ProtocolError]:
    """
    Yield all descriptions, and an error in place of each that cannot be read.

    Args:
        bucket: The object store.
        seconds: Seconds for each request.
        up_to: A sequence that a replica must have to answer.
    """
    read: Callable[[Any], ObjectInfo] = bucket.info_of
    with bucket.named, contextlib.ExitStack() as stack:
        try:
            found: Iterable[Any] = bucket.stream.get_last_for(
                documents_of(bucket.name), up_to_sequence=up_to, reread=True, timeout=seconds
            )
        except errors.NotSupportedError:
            # Servers before 2.11, and old object stores, do not allow such reads.
            watch = watch_documents(bucket, [">"], Deadline.after(seconds), ends=True)
            found, read = (
                stack.enter_context(watch).initial(timeout=seconds),
                partial(info_in, bucket),
            )
        for each in found:
            try:
                yield read(each)
            except errors.ProtocolError as error:
                yield error


def collect_garbage(bucket: Bucket, age: float, seconds: float) -> int:
    """Remove the chunks of puts that no document names; see ``ObjectStore.collect_garbage``."""
    stream = bucket.stream
    with bucket.named:
        info = stream.info(subjects_filter=chunks_of(bucket.name, ">"), timeout=seconds)
        now = info.ts or dt.datetime.now(dt.timezone.utc)
        if not info.state.subjects:
            return 0
        # Asked again: a document that was stored after the chunks were listed counts, too.
        last = stream.info(timeout=seconds).state.last_seq
    named = set()
    for found in documents(bucket, seconds, last):
        if isinstance(found, errors.ProtocolError):
            raise found
        if not found.is_deleted:
            named.add(chunks_of(bucket.name, found.nuid))
    removed = 0
    for subject in sorted(info.state.subjects.keys() - named):
        with bucket.named:
            try:
                newest = stream.get_last(subject, direct=False, timeout=seconds)
            except errors.MessageNotFoundError:
                continue
            if (now - newest.timestamp).total_seconds() >= age:
                removed += stream.purge(subject, timeout=seconds) > 0
    return removed


def purge_deletes(bucket: Bucket, age: float, seconds: float) -> int:
    """Remove the documents of deleted objects; see ``ObjectStore.purge_deletes``."""
    by_name: dict[str, list[ObjectInfo]] = {}
    for found in documents(bucket, seconds):
        # One document that cannot be read must not hide all others.
        if not isinstance(found, errors.ProtocolError):
            by_name.setdefault(found.name, []).append(found)
    # Some clients write to a subject of their own; the last change counts.
    deleted = [infos for infos in by_name.values() if max(infos, key=_revision).is_deleted]
    if not deleted:
        return 0
    with bucket.named:
        # Compare with the clock of the server, which wrote the documents' times.
        now = bucket.stream.info(timeout=seconds).ts or dt.datetime.now(dt.timezone.utc)
    removed = 0
    for infos in deleted:
        if (now - max(infos, key=_revision).modified).total_seconds() >= age:
            # The mark last: without it, an older document would count again.
            gone = [
                bucket.remove(each, Deadline.after(seconds))
                for each in sorted(infos, key=_revision)
            ]
            removed += any(gone)
    return removed


def _revision(info: ObjectInfo) -> int:
    return info.revision
