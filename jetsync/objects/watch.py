"""
Watch an object store: the descriptions of its objects, and then the changes in order.

A watch of a bucket reads the documents. This module turns its entries into descriptions.
"""

from __future__ import annotations

from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

import attrs

from jetsync import errors
from jetsync._api.context import Context
from jetsync._base.dropped import disown
from jetsync._base.log import get_logger
from jetsync._base.pickling import refuse_copy
from jetsync._proto.keys import BucketLayout
from jetsync._proto.object_names import documents_of, encode_name
from jetsync.kv.watch import Watch, watch_subjects
from jetsync.objects.info import read_info
from jetsync.stream import Stream
from jetsync.values.consumer_config import DeliverPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

    from jetsync._base.deadline import Deadline, Seconds
    from jetsync.kv.entry import Entry
    from jetsync.objects.bucket import Bucket
    from jetsync.objects.info import ObjectInfo

__all__ = ["ObjectWatch"]

_logger = get_logger("jetsync.objects")


@attrs.frozen
class Documents:
    """
    The documents of an object store, as a watch sees a bucket.
    """

    name: str
    context: Context
    stream: Stream
    layout: BucketLayout

    def gone(self, reason: str | None) -> errors.ObjectStoreNotFoundError:
        """Return the error for a watch that ends because there is no such object store."""
        return errors.ObjectStoreNotFoundError(self.name, reason=reason)


class ObjectWatch:
    """
    The descriptions of objects and their changes. Made by ``ObjectStore.watch``.

    It works like the :class:`Watch` of a key-value bucket. :meth:`initial` yields the descriptions
    that exist at the start, and then ends. A loop over the watch itself continues until the watch
    is closed. A deleted object has a description whose ``is_deleted`` is true. If an object changes
    several times before its description is sent, only the last change is.

    Any number of threads may share a watch; each description goes to one of them. The iteration
    ends when the watch or the client is closed. An error that ends the watch is raised once:
    ObjectStoreNotFoundError if the object store was deleted. A ``with`` block closes the watch.
    """

    # Threads: any, and signal handlers.
    # Locks: none of its own.

    __reduce__ = refuse_copy

    def __init__(self, bucket: Bucket, watch: Watch[Any]) -> None:
        self._bucket = bucket
        # Its items are descriptions, in place of the entries.
        self._watch = watch
        disown(bucket.context.lane.later, self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "current" if self.is_current else "loading"
        return f"<ObjectWatch {self._bucket.name} {state} revision={self.revision}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ObjectInfo:
        # Not `next`: Ctrl-C may strike between its end and the return.
        for info in self._watch:
            return info  # type: ignore[return-value]
        raise StopIteration

    def next(self, *, timeout: Seconds | None = None) -> ObjectInfo | None:
        """
        Wait for the next description and return it, or None if none arrives in time.

        Args:
            timeout: Seconds to wait. The default is 30; 0 returns only a description that has
                already arrived.

        Raises:
            HandleClosedError: The watch has ended.
            JetSyncError: The error that ended the watch. It is raised once.
        """
        # As in `__next__`.
        for info in starmap(partial(self._watch.next, timeout=timeout), ((),)):
            return info  # type: ignore[return-value]
        return None

    def initial(self, *, timeout: Seconds | None = None) -> Iterator[ObjectInfo]:
        """
        Yield the descriptions of the objects that existed when the watch was created, and then end.

        Args:
            timeout: Seconds for all of them. The default is no limit.

        Raises:
            RequestTimeoutError: Not all arrived in time. The watch stays open.
            HandleClosedError: The watch was closed before all had arrived.
            JetSyncError: The error that ended the watch. It is raised once.
        """
        return self._watch.initial(timeout=timeout)  # type: ignore[return-value]

    @property
    def is_current(self) -> bool:
        """Whether all objects that existed at the start have been taken."""
        return self._watch.is_current

    @property
    def revision(self) -> int:
        """The revision of the last description that was taken; 0 before the first."""
        return self._watch.revision

    @property
    def closed(self) -> bool:
        """Whether the watch has ended."""
        return self._watch.closed

    def wait_current(self, *, timeout: Seconds | None = None) -> bool:
        """
        Wait until the loop has taken all initial descriptions, and return whether it has.

        Args:
            timeout: Seconds to wait. The default is no limit.
        """
        return self._watch.wait_current(timeout=timeout)

    def close(self) -> None:
        """
        End the watch and wake all threads that wait for a description; safe to repeat.
        """
        self._watch.close()


def open_watch(
    bucket: Bucket,
    names: Sequence[str],
    deadline: Deadline,
    *,
    updates_only: bool,
    ignore_deletes: bool,
) -> ObjectWatch:
    """Create a watch; see ``ObjectStore.watch``."""
    tokens = dict.fromkeys(map(encode_name, names))
    # Some clients leave the padding out.
    tokens.update(dict.fromkeys(token.rstrip("=") for token in list(tokens)))

    def read(entry: Entry) -> ObjectInfo | None:
        try:
            info = info_in(bucket, entry)
        except errors.ProtocolError as error:
            _logger.warning("object_unreadable", bucket=bucket.name, error=str(error))
            return None
        return None if ignore_deletes and info.is_deleted else info

    found = watch_documents(
        bucket, [*tokens] or [">"], deadline, updates_only=updates_only, ends=False, shown=read
    )
    return ObjectWatch(bucket, found)


def watch_documents(
    bucket: Bucket,
    tokens: Sequence[str],
    deadline: Deadline,
    *,
    updates_only: bool = False,
    **options: Any,
) -> Watch[Any]:
    """
    Return a watch whose entries are documents.

    Args:
        bucket: The object store.
        tokens: The last parts of the subjects of documents, or ``>``.
        deadline: Deadline of the calling operation.
        updates_only: Whether to start with the next change.
        **options: As for :func:`watch_subjects`.
    """
    prefix = documents_of(bucket.name, "")
    layout = BucketLayout(prefix, prefix, bucket.stream.name, bucket.context.prefix)
    with bucket.named:
        return watch_subjects(
            Documents(bucket.name, bucket.context, bucket.stream, layout),
            [prefix + token for token in tokens],
            deadline,
            policy=DeliverPolicy.NEW if updates_only else DeliverPolicy.LAST_PER_SUBJECT,
            **options,
        )


def info_in(bucket: Bucket, entry: Entry) -> ObjectInfo:
    """Return the description in an entry; raises ProtocolError if it cannot be read."""
    return read_info(bucket.name, entry.key, entry.revision, entry.created, entry.value)
