"""
Key-value buckets: values under keys, in a stream (ADR-8, ADR-43, ADR-48).
"""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Final, Literal

from jetsync._api import streams as _stream_admin
from jetsync._base.deadline import Deadline, as_seconds
from jetsync._base.fields import check_count
from jetsync._proto.kv import (
    DELETED,
    PURGED,
    check_key,
    check_pattern,
    covering,
)
from jetsync.consume.ordered import open_ordered
from jetsync.errors import (
    BucketNotFoundError,
    InvalidArgumentError,
    JetSyncError,
    KeyExistsError,
    MessageNotFoundError,
    StreamNotFoundError,
    WrongLastRevisionError,
    WrongLastSequenceError,
)
from jetsync.kv.config import KeyValueStatus
from jetsync.kv.entry import stored_entry
from jetsync.kv.many import get_many
from jetsync.kv.transaction import Transaction
from jetsync.kv.watch import Watch
from jetsync.values.consumer_config import DeliverPolicy
from jetsync.values.headers import KV_OPERATION, ROLLUP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._base.deadline import Seconds
    from jetsync.kv.bucket import Bucket
    from jetsync.kv.entry import Entry
    from jetsync.stream import Stream
    from jetsync.values.outbound import Payload

__all__ = ["KeyValue"]

READING: Final = 30.0
"""Seconds that reading many keys one after the other may take unless told otherwise."""

FIRST_CONFLICT_PAUSE: Final = 0.01
"""
Seconds before the third attempt to create a key; doubled each time. The second one, over the marker
of a value that is gone, follows at once.
"""

LONGEST_CONFLICT_PAUSE: Final = 0.5

OLD_DELETES: Final = 30 * 60.0
"""Seconds that markers of deleted keys stay for watchers when all others are purged."""


class KeyValue:
    """
    A bucket: values under keys, each change with a revision (ADR-8).

    Made by ``JetStream.create_key_value`` and ``JetStream.key_value``. Keys are letters, digits and
    ``-_=/`` in parts between dots; patterns of keys may have ``*`` for a part and ``>`` at the end.
    A revision is a place in the bucket as a whole: it grows with every change of any key.

    A handle holds no resources on the server and needs no closing; any number of threads may share
    one. Every call has a ``timeout`` in seconds for all its requests together, ``None`` for the
    context's default. A change whose answer is lost raises PublishOutcomeUnknownError: it may have
    been stored or not, and :meth:`get` tells.
    """

    __slots__ = ("_bucket",)

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def __repr__(self) -> str:
        return f"<KeyValue {self._bucket.name!r}>"

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self._bucket.name

    @property
    def stream(self) -> Stream:
        """The stream behind it; what is written past this class may break the bucket's rules."""
        return self._bucket.stream

    # Single keys

    def get(
        self,
        key: str,
        revision: int | None = None,
        *,
        direct: bool | None = None,
        timeout: Seconds | None = None,
    ) -> Entry:
        """
        Return the value of a key.

        Read by a direct get where the bucket allows it, which any replica answers: behind a change
        that was made through another server it may be a moment late.

        Args:
            key: The key.
            revision: The revision that is wanted, not the last one; it has to be one of this key.
            direct: ``False`` asks the leader, which knows every change; ``True`` insists on a
                direct get and takes what any replica or mirror answers; ``None`` uses a direct get
                where the bucket allows it, and asks the leader where that finds nothing.
            timeout: Seconds for all requests together.

        Raises:
            KeyNotFoundError: There is none, or it was deleted, or it expired.
            BucketNotFoundError: The bucket is gone.
        """
        bucket = self._bucket
        subject = bucket.layout.read_prefix + check_key(key)
        try:
            if revision is None:
                message = bucket.stream.get_last(subject, direct=direct, timeout=timeout)
            else:
                message = bucket.stream.get_message(revision, direct=direct, timeout=timeout)
        except MessageNotFoundError as error:
            raise bucket.not_found(key, revision=revision) from error
        except StreamNotFoundError as error:
            raise BucketNotFoundError(bucket.name) from error
        if revision is not None and message.subject != subject:
            raise bucket.not_found(key, revision=revision)
        entry = stored_entry(bucket.name, key, message)
        if entry.is_deleted:
            raise bucket.not_found(key, entry, revision=revision)
        return entry

    def put(
        self,
        key: str,
        value: Payload,
        *,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Set the value of a key, whatever it was, and return the revision.

        Args:
            key: The key.
            value: The value; text is stored as UTF-8.
            ttl: Time-to-live: seconds from 1 up, a ``timedelta`` or ``"never"``; for buckets with
                ``limit_marker_ttl``.
            timeout: Seconds for all requests together.

        Raises:
            InvalidKeyError, InvalidTtlError, InvalidTypeError: It cannot be stored; nothing was
                sent.
            MessageTtlDisabledError, NotSupportedError: The bucket takes no *ttl*; nothing was sent.
            BucketNotFoundError: The bucket is gone.
            MessageTooLargeError, MaxMessagesError, ...: The bucket refused it.
            PublishOutcomeUnknownError: It was sent and no answer came.
        """
        return self._bucket.write(check_key(key), value, self._deadline(timeout), ttl=ttl)

    def create(
        self,
        key: str,
        value: Payload,
        *,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Set the value of a key that has none, and return the revision.

        A key that was deleted, purged or expired has none.

        Args:
            key: The key.
            value: The value; text is stored as UTF-8.
            ttl: As for :meth:`put`.
            timeout: Seconds for all requests together.

        Raises:
            KeyExistsError: It has a value.
            PublishError, ApiError, ...: As :meth:`put`.
        """
        bucket, deadline = self._bucket, self._deadline(timeout)
        check_key(key)
        last, pause = 0, 0.0
        while True:
            try:
                return bucket.write(key, value, deadline, ttl=ttl, last=last)
            except WrongLastSequenceError as error:
                # What is there may be no value, but the marker of one that is gone.
                found = bucket.last_at_origin(key, deadline)
                if found is not None and not found.is_deleted:
                    raise KeyExistsError(bucket.name, key, last_sequence=found.revision) from error
                last = 0 if found is None else found.revision
            # Others create and delete it at the same time.
            time.sleep(min(pause, deadline.remaining()))
            pause = min(pause * 2.0 or FIRST_CONFLICT_PAUSE, LONGEST_CONFLICT_PAUSE)

    def update(
        self,
        key: str,
        value: Payload,
        *,
        last: int,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Set the value of a key that is at a revision, and return the new revision.

        Args:
            key: The key.
            value: The value; text is stored as UTF-8.
            last: The revision that the key has to be at; 0 for one that never had any.
            ttl: As for :meth:`put`.
            timeout: Seconds for all requests together.

        Raises:
            WrongLastRevisionError: It is at another one, which the error names.
            PublishError, ApiError, ...: As :meth:`put`.
        """
        check_count("last", last, 0)
        return self._change(key, value, last, timeout, ttl=ttl)

    def delete(self, key: str, *, last: int | None = None, timeout: Seconds | None = None) -> int:
        """
        Delete a key and return the revision of the marker that says so.

        Earlier revisions stay in :meth:`history`. Deleting a key that is not there is no error.

        Args:
            key: The key.
            last: The revision that the key has to be at; None for any.
            timeout: Seconds for all requests together.

        Raises:
            WrongLastRevisionError: It is at another one.
            PublishError, ApiError, ...: As :meth:`put`.
        """
        return self._change(key, b"", last, timeout, headers={KV_OPERATION: DELETED})

    def purge(
        self,
        key: str,
        *,
        ttl: Seconds | Literal["never"] | None = None,
        last: int | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Delete a key with all its revisions, and return the revision of the marker that says so.

        Args:
            key: The key.
            ttl: After how long the marker goes, too; for buckets with ``limit_marker_ttl``.
            last: The revision that the key has to be at; None for any.
            timeout: Seconds for all requests together.

        Raises: as :meth:`delete`, and for *ttl* as :meth:`put`.
        """
        headers = {KV_OPERATION: PURGED, ROLLUP: "sub"}
        return self._change(key, b"", last, timeout, headers=headers, ttl=ttl)

    # Many keys

    def keys(self, *filters: str, timeout: Seconds | None = None) -> list[str]:
        """
        Return the keys that have a value, in the order in which they were last changed.

        The server looks for them and sends no values.

        Args:
            *filters: Patterns, of which a key has to match one; none for all keys.
            timeout: Seconds for all of it; None is 30.

        Raises:
            InvalidKeyError: A pattern makes no sense; nothing was sent.
            RequestTimeoutError: There are more than came in time.
            BucketNotFoundError: The bucket is gone.
        """
        deadline = Deadline.after(READING if timeout is None else timeout)
        found: dict[str, None] = {}
        with self._watch(filters or (">",), deadline, meta_only=True) as watch:
            for entry in watch.initial(timeout=deadline.remaining()):
                found.pop(entry.key, None)
                if not entry.is_deleted:
                    found[entry.key] = None
        return list(found)

    def history(self, key: str, *, timeout: Seconds | None = None) -> list[Entry]:
        """
        Return the revisions of a key that the bucket still has, oldest first, deletions included.

        Args:
            key: The key.
            timeout: Seconds for all of it; None is 30.

        Raises:
            KeyNotFoundError: There is none at all.
            RequestTimeoutError: There are more than came in time.
            BucketNotFoundError: The bucket is gone.
        """
        deadline = Deadline.after(READING if timeout is None else timeout)
        check_key(key)
        with self._watch((key,), deadline, include_history=True) as watch:
            found = list(watch.initial(timeout=deadline.remaining()))
        if not found:
            raise self._bucket.not_found(key)
        return found

    def get_many(
        self,
        keys: str | Sequence[str],
        at: int | dt.datetime | None = None,
        *,
        timeout: Seconds | None = None,
    ) -> dict[str, Entry]:
        """
        Return the values of many keys as they were at one moment (ADR-31).

        However many requests that takes, no change is seen in one key and missed in another: what
        a transaction changed together is seen together.

        Args:
            keys: Keys and patterns. Keys without a value are not in the answer.
            at: The moment: a revision, that one included, or an aware datetime, before which a
                change has to have been made; None is now. The bucket has to keep enough history for
                it: a key that was overwritten since, and of which no earlier revision is kept, is
                left out like one that had no value, as what was overwritten before the read began
                cannot be told from what never was.
            timeout: Seconds for all requests together.

        Raises:
            KeysVanishedError: Keys had a value at that moment which the bucket has no more. Without
                *at* the read is made anew at a later moment instead, for as long as there is time.
            NotSupportedError: The server is older than 2.11, or the bucket allows no direct gets.
            InvalidKeyError, InvalidArgumentError: A key or the moment makes no sense; nothing was
                sent.
            BucketNotFoundError: The bucket is gone.
        """
        return get_many(self._bucket, keys, at, self._deadline(timeout))

    def watch(
        self,
        *keys: str,
        include_history: bool = False,
        updates_only: bool = False,
        from_revision: int | None = None,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        timeout: Seconds | None = None,
    ) -> Watch:
        """
        Return the entries of the bucket as they are, followed by every change as it is made.

        Args:
            *keys: Keys and patterns; none for all keys.
            include_history: Begin with all revisions that are kept, not with the last of each key.
            updates_only: Begin with the next change.
            from_revision: Begin with this revision, and give every one from there on.
            ignore_deletes: Leave out what deletes keys.
            meta_only: Leave out the values.
            timeout: Seconds to set it up.

        Raises:
            InvalidKeyError, InvalidArgumentError: A pattern makes no sense, or the options do not
                go together; nothing was sent.
            BucketNotFoundError: The bucket is gone.
        """
        return self._watch(
            keys or (">",),
            self._deadline(timeout),
            include_history=include_history,
            updates_only=updates_only,
            from_revision=from_revision,
            ignore_deletes=ignore_deletes,
            meta_only=meta_only,
        )

    def atomic(self, *, timeout: Seconds | None = None) -> Transaction:
        """
        Return a transaction: changes of many keys that are made together, or not at all (ADR-50).

        Nothing is sent before its ``with`` block ends. Whether the bucket takes transactions is
        asked once per connection: that it is gone since then shows at the commit, which raises
        BucketNotFoundError, too.

        Args:
            timeout: Seconds for the commit; None is the context's default.

        Raises:
            AtomicPublishDisabledError: The bucket allows none, see ``atomic`` of its configuration.
            NotSupportedError: The server is older than 2.12.5.
            BucketNotFoundError: The bucket is gone.
        """
        context = self._bucket.context
        seconds = context.default_timeout if timeout is None else as_seconds(timeout)
        return Transaction(self._bucket, seconds)

    # The bucket itself

    def purge_deletes(
        self, older_than: Seconds = OLD_DELETES, *, timeout: Seconds | None = None
    ) -> int:
        """
        Remove what is left of deleted keys, and return how many keys that were.

        Of a key that was deleted not long ago the marker stays, so that watchers learn of it. A key
        that is set again meanwhile keeps its new value.

        Args:
            older_than: Seconds since the deletion; 0 removes all markers.
            timeout: Seconds for all of it; None is 30.

        Raises:
            RequestTimeoutError: It took longer; what was not removed yet can be later.
            BucketNotFoundError: The bucket is gone.
        """
        deadline = Deadline.after(READING if timeout is None else timeout)
        age = as_seconds(older_than, "older_than")
        bucket = self._bucket
        deleted: dict[str, Entry] = {}
        with self._watch((">",), deadline, meta_only=True) as watch:
            for entry in watch.initial(timeout=deadline.remaining()):
                deleted.pop(entry.key, None)
                if entry.is_deleted:
                    deleted[entry.key] = entry
        layout = bucket.layout
        if not deleted:
            return 0
        # The server's clock, which stamped the markers.
        with bucket.named():
            now = bucket.stream.info(timeout=deadline.remaining()).ts
        now = now or dt.datetime.now(dt.timezone.utc)
        for key, entry in deleted.items():
            old = (now - entry.created).total_seconds() >= age
            # Never more than up to the marker: what came behind it is a new value.
            with bucket.named(origin=True):
                _stream_admin.purge(
                    bucket.origin,
                    layout.origin_stream,
                    deadline,
                    subject=layout.origin_subject(key),
                    sequence=entry.revision + (1 if old else 0),
                )
        return len(deleted)

    def status(self, *, timeout: Seconds | None = None) -> KeyValueStatus:
        """
        Ask how the bucket is configured and what it holds.

        Raises:
            BucketNotFoundError: It is gone.
        """
        with self._bucket.named():
            return KeyValueStatus(self._bucket.name, self._bucket.stream.info(timeout=timeout))

    # Steps of the above.

    def _deadline(self, timeout: Seconds | None) -> Deadline:
        return self._bucket.context.deadline(timeout)

    def _change(
        self,
        key: str,
        value: Payload,
        last: int | None,
        timeout: Seconds | None,
        *,
        headers: dict[str, str] | None = None,
        ttl: Seconds | Literal["never"] | None = None,
    ) -> int:
        """Store a revision of a key, which has to be at revision *last* if that is given."""
        bucket, deadline = self._bucket, self._deadline(timeout)
        check_key(key)
        if last is not None:
            check_count("last", last, 0)
        try:
            return bucket.write(key, value, deadline, headers=headers, ttl=ttl, last=last)
        except WrongLastSequenceError as error:
            current = error.last_sequence
            if current is None:
                # Some refusals lack the number.
                try:
                    found = bucket.last_at_origin(key, deadline)
                except JetSyncError:
                    found = None
                current = None if found is None else found.revision
            raise WrongLastRevisionError(
                bucket.name, key, expected=last, last_sequence=current
            ) from error

    def _watch(
        self,
        patterns: Sequence[str],
        deadline: Deadline,
        *,
        include_history: bool = False,
        updates_only: bool = False,
        from_revision: int | None = None,
        ignore_deletes: bool = False,
        meta_only: bool = False,
    ) -> Watch:
        """Check the options and open a watch."""
        if updates_only and (include_history or from_revision is not None):
            raise InvalidArgumentError(
                "a watch begins with the next change or with earlier ones, not both",
                argument="updates_only",
            )
        if from_revision is not None:
            check_count("from_revision", from_revision, 1)
        policy = DeliverPolicy.LAST_PER_SUBJECT
        if from_revision is not None:
            policy = DeliverPolicy.BY_START_SEQUENCE
        elif include_history:
            policy = DeliverPolicy.ALL
        elif updates_only:
            policy = DeliverPolicy.NEW
        bucket = self._bucket
        prefix = bucket.layout.read_prefix
        filters = [prefix + each for each in covering([check_pattern(each) for each in patterns])]
        with bucket.named():
            ordered = open_ordered(
                bucket.context,
                bucket.stream.name,
                bucket.stream.cached_info,
                deadline,
                filter_subjects=filters,
                deliver_policy=policy,
                opt_start_seq=from_revision,
                opt_start_time=None,
                replay_policy=None,
                inactive_threshold=None,
                headers_only=meta_only or None,
                max_reset_attempts=-1,
                name_prefix=None,
                metadata=None,
                keep_to_stream=True,
            )
            return Watch(bucket, ordered, updates_only=updates_only, ignore_deletes=ignore_deletes)
