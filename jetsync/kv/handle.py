"""
Key-value buckets: values under keys, in a stream (ADR-8, ADR-43, ADR-48).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, TypeVar, overload

from jetsync import errors
from jetsync._base.deadline import Deadline, as_seconds
from jetsync._base.fields import aware, check_count, check_function, whole_number, wrong_type
from jetsync._base.keywords import hide_extra, refuse_position
from jetsync._base.pickling import refuse_copy
from jetsync._proto.keys import (
    DELETE_MARKER,
    PURGE_MARKER,
    KeyOperation,
    covering,
)
from jetsync.kv.codecs import Codecs, check_codec
from jetsync.kv.config import KeyValueStatus
from jetsync.kv.entry import ValueT, stored_entry
from jetsync.kv.transaction import Transaction
from jetsync.kv.watch import Watch, initial_entries, watch_subjects
from jetsync.values.consumer_config import DeliverPolicy
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from typing_extensions import Unpack

    from jetsync._base.deadline import Seconds
    from jetsync.backups import BackupOptions, StreamBackup
    from jetsync.kv.bucket import Bucket
    from jetsync.kv.codecs import KeyCodec, ValueCodec
    from jetsync.kv.entry import Entry
    from jetsync.stream import Stream
    from jetsync.values.outbound import Payload

__all__ = ["KeyValue"]

T = TypeVar("T")

# The default of `get` that stands for no default.
NO_DEFAULT: Final = object()

# Default timeout, in seconds, of calls that read many keys one after another.
READING: Final = 30.0

# Seconds before the third attempt to create a key, and before the second one to change a key that
# is at the expected revision; doubled for each further one. The second attempt to create a key,
# which replaces the marker of a deleted value, follows immediately. `modify` waits for a random
# part of these seconds, because the others that change the key wait, too.
FIRST_CONFLICT_PAUSE: Final = 0.01
LONGEST_CONFLICT_PAUSE: Final = 0.5

# Seconds for which purge_deletes keeps the markers of deleted keys for watchers.
OLD_DELETES: Final = 30 * 60.0


class KeyValue(Generic[ValueT]):
    """
    A bucket that stores values under keys; each change has a revision (ADR-8).

    Made by ``JetStream.create_key_value`` and ``JetStream.key_value``. A key consists of parts
    separated by dots, with letters, digits and ``-_=/``. In a pattern, ``*`` stands for one part
    and ``>`` for all remaining parts. Revisions count the changes of the whole bucket. Deleting or
    purging a key stores a *marker*, a revision without a value.

    A handle holds no resources on the server and needs no closing; any number of threads may share
    one. ``timeout`` is in seconds and limits all requests of a call together. Unless a method says
    otherwise, the default is that of the :class:`JetStream` object. If the answer to a change is
    lost, the call raises PublishOutcomeUnknownError: the change may have been stored or not. To
    find out, call :meth:`get`. If a plugin implements ``jetsync_retry``, such as jetsync-retry,
    changes are sent again instead.
    """

    __slots__ = ("_bucket",)

    __reduce__ = refuse_copy

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def __repr__(self) -> str:
        codecs = self._bucket.codecs
        given = {"keys": codecs.keys, "values": codecs.values} if codecs else {}
        said = [f" {name}={codec!r}" for name, codec in given.items() if codec is not None]
        return f"<KeyValue {self._bucket.name!r}{''.join(said)}>"

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self._bucket.name

    @property
    def stream(self) -> Stream:
        """
        The stream that stores the bucket. If you write to this stream directly, you may break the
        bucket's rules.
        """
        return self._bucket.stream

    @overload
    def with_codec(
        self,
        *,
        keys: KeyCodec,
        values: None = None,
        on_undecodable: Callable[[errors.DecodeError], object] | None = None,
    ) -> KeyValue[ValueT]: ...

    @overload
    def with_codec(
        self,
        *,
        keys: KeyCodec | None = None,
        values: ValueCodec[T],
        on_undecodable: Callable[[errors.DecodeError], object] | None = None,
    ) -> KeyValue[T]: ...

    def with_codec(
        self,
        *,
        keys: KeyCodec | None = None,
        values: ValueCodec[Any] | None = None,
        on_undecodable: Callable[[errors.DecodeError], object] | None = None,
    ) -> KeyValue[Any]:
        """
        Return a handle of the same bucket that converts keys and values; this one stays as it is.

        All its methods take and return the keys and values that your code uses. A key is refused
        before anything is sent if servers would refuse the encoded key, or if decoding would not
        return the same key. The bucket does not record the codecs, so all programs that share its
        keys have to use the same ones. Threads that share the handle call the codecs at the
        same time.

        If another program has stored a key or a value that the codecs cannot decode, :meth:`get`,
        :meth:`keys`, :meth:`history`, :meth:`get_many` and watches raise DecodeError. A watch then
        continues with the next entry when you call it again. Methods that only write or delete do
        not decode values.

        Args:
            keys: The codec for keys, such as :class:`Base64Codec`. None keeps the current one.
            values: The codec for values, such as :class:`JsonCodec`. None keeps the current one.
            on_undecodable: Called with each DecodeError of a method that reads many entries,
                instead of raising it. The entry is left out. None raises the error.

        Raises:
            InvalidArgumentError, InvalidTypeError: No codec is given, or an argument is no codec.
        """
        if keys is None and values is None:
            raise errors.InvalidArgumentError("give keys, values or both", argument="keys")
        check_function("on_undecodable", on_undecodable)
        if keys is not None:
            check_codec("keys", keys, "encode_key", "decode_key")
        if values is not None:
            check_codec("values", values, "encode", "decode")
        now = self._bucket.codecs or Codecs()
        codecs = Codecs(
            now.keys if keys is None else keys,
            now.values if values is None else values,
            on_undecodable or now.on_undecodable,
        )
        return KeyValue(self._bucket.with_codecs(codecs))

    # Single keys

    @overload
    def get(
        self,
        key: str,
        revision: int | None = None,
        *,
        direct: bool | None = None,
        timeout: Seconds | None = None,
    ) -> Entry[ValueT]: ...

    @overload
    def get(
        self,
        key: str,
        revision: int | None = None,
        *,
        default: T,
        direct: bool | None = None,
        timeout: Seconds | None = None,
    ) -> Entry[ValueT] | T: ...

    def get(
        self,
        key: str,
        revision: int | None = None,
        *,
        default: Any = NO_DEFAULT,
        direct: bool | None = None,
        timeout: Seconds | None = None,
    ) -> Any:
        """
        Return the value of a key.

        If the bucket allows direct gets, any replica or a mirror may answer. Its data may lag
        slightly behind the leader's.

        Args:
            key: The key.
            revision: An earlier revision of this key. The default is the last one.
            default: What to return if the key has no value, instead of raising KeyNotFoundError.
            direct: ``False`` asks the leader, which knows every change. ``True`` sends a direct get
                and trusts the replica or mirror that answers. ``None``, the default, sends a direct
                get if the bucket allows it, and asks the leader if the answer has no message.
            timeout: Seconds for all requests together.

        Raises:
            KeyNotFoundError: The key has no value: it was never set, was deleted, or has expired.
                With *revision*, the revision is not one of its values.
            BucketNotFoundError: The bucket does not exist any more.
        """
        entry = self._find(key, revision, direct=direct, timeout=timeout)
        if entry is not None and not entry.is_deleted:
            return self._bucket.shown(entry)
        if default is not NO_DEFAULT:
            return default
        raise self._bucket.not_found(key, entry, revision=revision)

    def __contains__(self, key: str) -> bool:
        """
        Return whether a key has a value. Asks the server, as :meth:`get` does.
        """
        entry = self._find(key)
        return entry is not None and not entry.is_deleted

    def _find(
        self,
        key: str,
        revision: int | None = None,
        *,
        direct: bool | None = None,
        timeout: Seconds | None = None,
    ) -> Entry | None:
        """Return a stored revision of a key, which may be a marker; None if there is none."""
        bucket = self._bucket
        stored = bucket.stored_key(key)
        subject = bucket.layout.read_prefix + stored
        try:
            if revision is None:
                message = bucket.stream.get_last(subject, direct=direct, timeout=timeout)
            else:
                number = whole_number("revision", revision)
                message = bucket.stream.get_message(number, direct=direct, timeout=timeout)
        except errors.MessageNotFoundError:
            return None
        except errors.StreamNotFoundError as error:
            raise errors.BucketNotFoundError(bucket.name) from error
        if revision is not None and message.subject != subject:
            return None
        return stored_entry(bucket.name, stored, message)

    @hide_extra
    def put(
        self,
        key: str,
        value: Payload | ValueT,
        *_extra: NoReturn,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Set the value of a key and return the new revision.

        Args:
            key: The key.
            value: The value; text is stored as UTF-8.
            ttl: Time-to-live of the value: seconds (at least 1), a ``timedelta`` or ``"never"``.
                The bucket needs ``limit_marker_ttl``. Unless *ttl* is ``"never"``, the bucket also
                needs ``history=1``, or the previous value would reappear when this one
                expires.
            timeout: Seconds for all requests together.

        Raises:
            InvalidKeyError, InvalidTtlError, InvalidTypeError: An argument is invalid. Nothing was
                sent.
            MessageTtlDisabledError, NotSupportedError: The bucket does not support *ttl*. Nothing
                was sent.
            BucketNotFoundError: The bucket does not exist any more.
            MessageTooLargeError, StreamFullError, ...: The bucket refused the value.
            PublishOutcomeUnknownError: The value was sent, but no answer arrived.
        """
        if _extra:
            refuse_position(KeyValue.put)
        return self._bucket.write(key, value, self._deadline(timeout), ttl=ttl)

    @hide_extra
    def create(
        self,
        key: str,
        value: Payload | ValueT,
        *_extra: NoReturn,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Set the value of a key that has no value, and return the new revision.

        A key that was deleted, purged or has expired has no value.

        Args:
            key: The key.
            value: The value; text is stored as UTF-8.
            ttl: As for :meth:`put`, but the bucket may have any ``history``.
            timeout: Seconds for all requests together.

        Raises:
            KeyExistsError: The key has a value.
            PublishError, ApiError, ...: As :meth:`put`.
        """
        if _extra:
            refuse_position(KeyValue.create)
        bucket, deadline = self._bucket, self._deadline(timeout)
        last, pause = 0, 0.0
        while True:
            try:
                return bucket.write(key, value, deadline, ttl=ttl, last=last, creates=True)
            except errors.WrongLastSequenceError as error:
                # The last revision may be the marker of a deleted value.
                found = bucket.last_at_origin(key, deadline)
                if found is not None and not found.is_deleted:
                    raise errors.KeyExistsError(
                        bucket.name, key, last_sequence=found.revision
                    ) from error
                last = 0 if found is None else found.revision
            # Other clients create and delete the key at the same time.
            bucket.context.connection.closing.wait(min(pause, deadline.remaining()))
            pause = min(pause * 2.0 or FIRST_CONFLICT_PAUSE, LONGEST_CONFLICT_PAUSE)

    @hide_extra
    def update(
        self,
        key: str,
        value: Payload | ValueT,
        *_extra: NoReturn,
        last: int,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Set the value of a key if its revision is *last*, and return the new revision.

        Args:
            key: The key.
            value: The value; text is stored as UTF-8.
            last: The expected revision of the key; 0 means that the bucket has no revision of the
                key, not even a marker.
            ttl: As for :meth:`put`.
            timeout: Seconds for all requests together.

        Raises:
            WrongLastRevisionError: The key's revision is not *last*. ``last_sequence`` of the error
                is the key's revision.
            PublishError, ApiError, ...: As :meth:`put`.
        """
        if _extra:
            refuse_position(KeyValue.update)
        check_count("last", last, 0)
        return self._change(key, value, last, self._deadline(timeout), ttl=ttl)

    def modify(
        self,
        key: str,
        change: Callable[[Entry[ValueT] | None], Payload | ValueT | KeyOperation | None],
        *,
        ttl: Seconds
        | Literal["never"]
        | Callable[[Entry[ValueT] | None], Seconds | Literal["never"] | None]
        | None = None,
        timeout: Seconds | None = None,
    ) -> int | None:
        """
        Change the value of a key with a function, and return the new revision.

        jetsync asks the leader for the key, calls *change*, and stores the result if the key still
        has the same revision. Otherwise another client was faster, and jetsync starts again after a
        short random wait. So no change is lost, however many threads and programs modify the key.

        If *change* raises an error, the key stays as it is. *change* runs in your thread, may be
        called several times, and may make other calls of jetsync, within the same *timeout*.

        If the answer to a change is lost, jetsync looks whether the change is stored. Ctrl-C may
        leave it stored or not, as it does for :meth:`update`.

        Args:
            key: The key.
            change: Gets the last entry of the key, or None if the key has no value, and returns the
                new value. It returns None to leave the key as it is, and ``KeyOperation.DELETE`` or
                ``KeyOperation.PURGE`` to delete or purge it. To store null with a codec, call
                :meth:`update`.
            ttl: Time-to-live of a new value as for :meth:`put`, or of the marker as for
                :meth:`purge`. A function gets the same entry as *change*, after *change* was
                called.
            timeout: Seconds for all attempts together.

        Returns:
            The new revision, or None if *change* has left the key as it is.

        Raises:
            WrongLastRevisionError: Other clients changed the key until the end of the timeout.
            PublishOutcomeUnknownError: The change was sent, but no answer arrived, and the last
                revision of the key is another one. The change may be stored nevertheless.
            DecodeError: A codec cannot decode the value of the key.
            InvalidTypeError, InvalidKeyError, ...: An argument is invalid. Nothing was sent.
            PublishError, ApiError, ...: As :meth:`put`.
        """
        if change is None:
            raise wrong_type("change", "a function", change)
        check_function("change", change)
        if callable(ttl):
            check_function("ttl", ttl)
        elif ttl is not None:
            ttl_header(ttl)
        bucket, deadline = self._bucket, self._deadline(timeout)
        pause = FIRST_CONFLICT_PAUSE
        while True:
            found = bucket.last_at_origin(key, deadline)
            entry = None if found is None or found.is_deleted else bucket.shown(found)
            value: Any = change(entry)
            if value is None:
                return None
            expires = ttl(entry) if callable(ttl) else ttl
            options: dict[str, Any] = {"ttl": expires, "creates": entry is None}
            if value is KeyOperation.PURGE:
                value, options["headers"] = b"", PURGE_MARKER
            elif value is KeyOperation.DELETE:
                # With a time-to-live, earlier revisions would reappear when the marker expires.
                value, options = b"", {"headers": DELETE_MARKER}
            last = 0 if found is None else found.revision
            try:
                return self._change(key, value, last, deadline, looks=True, **options)
            except errors.WrongLastRevisionError:
                if deadline.remaining() <= pause:
                    raise
            bucket.context.connection.closing.wait(random.uniform(0.0, pause))
            pause = min(pause * 2.0, LONGEST_CONFLICT_PAUSE)

    @hide_extra
    def delete(
        self,
        key: str,
        *_extra: NoReturn,
        last: int | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Delete a key and return the revision of its delete marker.

        Earlier revisions stay in :meth:`history` if the bucket keeps more than one per key.
        Deleting a key without a value is not an error.

        Args:
            key: The key.
            last: The expected revision of the key; None for any.
            timeout: Seconds for all requests together.

        Raises:
            WrongLastRevisionError: The key has another revision.
            PublishError, ApiError, ...: As :meth:`put`.
        """
        if _extra:
            refuse_position(KeyValue.delete)
        return self._change(key, b"", last, self._deadline(timeout), headers=DELETE_MARKER)

    @hide_extra
    def purge(
        self,
        key: str,
        *_extra: NoReturn,
        ttl: Seconds | Literal["never"] | None = None,
        last: int | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Delete a key with all its revisions, and return the revision of the purge marker.

        Args:
            key: The key.
            ttl: Time-to-live of the marker, in seconds. The bucket needs ``limit_marker_ttl``.
            last: The expected revision of the key; None for any.
            timeout: Seconds for all requests together.

        Raises: as :meth:`delete`, and for *ttl* as :meth:`put`.
        """
        if _extra:
            refuse_position(KeyValue.purge)
        deadline = self._deadline(timeout)
        return self._change(key, b"", last, deadline, headers=PURGE_MARKER, ttl=ttl)

    # Many keys

    def keys(self, *filters: str, timeout: Seconds | None = None) -> list[str]:
        """
        Return the keys that have a value, in the order of their last changes.

        The server sends the keys without their values. No key is missing that had a value before
        the call and keeps one, even if other clients change it meanwhile.

        Args:
            *filters: Return only keys that match one of these patterns. The default is all keys.
            timeout: Seconds for the whole call. The default is 30.

        Raises:
            InvalidKeyError: A pattern is invalid. Nothing was sent.
            RequestTimeoutError: Not all keys arrived in time, for example because keys changed
                faster than they could be read.
            BucketNotFoundError: The bucket does not exist any more.
        """
        bucket = self._bucket
        deadline = Deadline.after(READING if timeout is None else timeout)
        found: dict[str, Entry | None] = {}
        patterns = [*map(bucket.stored_pattern, filters)]
        policy = DeliverPolicy.LAST_PER_SUBJECT
        with self._watch(patterns, policy, deadline, meta_only=True, complete=True) as watch:
            for entry in initial_entries(watch, deadline):
                found.pop(entry.key, None)
                if not entry.is_deleted:
                    # Keys alone take a fifth of the memory.
                    found[entry.key] = None if bucket.codecs is None else entry
        if bucket.codecs is None:
            return [*found]
        stored = [entry for entry in found.values() if entry is not None]
        return [entry.key for entry in bucket.all_shown(stored, with_value=False)]

    def history(self, key: str, *, timeout: Seconds | None = None) -> list[Entry[ValueT]]:
        """
        Return the stored revisions of a key, oldest first, including its markers.

        Args:
            key: The key.
            timeout: Seconds for the whole call. The default is 30.

        Raises:
            KeyNotFoundError: The bucket has no revision of the key.
            RequestTimeoutError: Not all revisions arrived in time.
            BucketNotFoundError: The bucket does not exist any more.
        """
        deadline = Deadline.after(READING if timeout is None else timeout)
        stored = self._bucket.stored_key(key)
        with self._watch([stored], DeliverPolicy.ALL, deadline) as watch:
            found = [*initial_entries(watch, deadline)]
        if not found:
            raise self._bucket.not_found(key)
        return self._bucket.all_shown(found)

    def get_many(
        self,
        keys: str | Sequence[str],
        at: int | dt.datetime | None = None,
        *,
        timeout: Seconds | None = None,
    ) -> dict[str, Entry[ValueT]]:
        """
        Return a consistent snapshot of the values of many keys (ADR-31).

        The snapshot is consistent even if it takes several requests: you see all changes of a
        transaction, or none of them.

        Args:
            keys: Keys and patterns. Keys without a value are left out.
            at: Time of the snapshot: a revision (inclusive) or an aware datetime (exclusive). The
                default is now. An earlier snapshot needs a bucket that keeps enough history. If the
                bucket no longer stores a key's revision of that time, the key is left out: jetsync
                cannot distinguish it from a key without a value.
            timeout: Seconds for all requests together. The default is that of the
                :class:`JetStream` object. Allow 3 seconds for 100,000 keys, and a minute for 1
                million.

        Raises:
            KeysVanishedError: With *at*, values of the snapshot were removed while jetsync read
                them. Without *at*, jetsync then reads a later snapshot.
            RequestTimeoutError: jetsync could not read a snapshot within the timeout.
            NotSupportedError: The server is older than 2.11, or the bucket allows no direct gets.
            InvalidKeyError, InvalidArgumentError: A key or *at* is invalid. Nothing was sent.
            BucketNotFoundError: The bucket does not exist any more.
        """
        if not isinstance(keys, Iterable):
            raise wrong_type("keys", "a key or a list of keys", keys)
        bucket, deadline = self._bucket, self._deadline(timeout)
        given = [keys] if isinstance(keys, str) else [*keys]
        patterns = covering([*map(bucket.stored_pattern, given)])
        if not patterns:
            raise errors.InvalidArgumentError("at least one key is needed", argument="keys")
        moment = _moment(at)
        while True:
            found, batch = bucket.snapshot(patterns, moment, deadline)
            if not batch.missing and not batch.vanished:
                values = [entry for entry in found.values() if not entry.is_deleted]
                return {entry.key: entry for entry in bucket.all_shown(values)}
            prefix = bucket.layout.read_prefix
            if at is not None:
                missing = [subject.removeprefix(prefix) for subject in batch.missing]
                raise errors.KeysVanishedError(
                    bucket.name,
                    [*map(bucket.readable, missing)] or given,
                    revision=moment.get("up_to_sequence"),
                )
            if deadline.expired():
                # Values are overwritten faster than a snapshot can be read.
                raise errors.RequestTimeoutError(prefix + patterns[0], deadline.total)

    def watch(
        self,
        *keys: str,
        include_history: bool = False,
        updates_only: bool = False,
        from_revision: int | None = None,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        timeout: Seconds | None = None,
    ) -> Watch[ValueT]:
        """
        Return a watch, which yields the current entries and then the changes, in order.

        It skips a revision that the bucket no longer keeps when the server could send it, but never
        the last revision of a key.

        Args:
            *keys: Keys and patterns. The default is all keys.
            include_history: Start with all stored revisions instead of the last one of each key.
            updates_only: Start with the next change.
            from_revision: Start with this revision and yield all later ones.
            ignore_deletes: Leave out markers of deleted keys.
            meta_only: Leave out the values.
            timeout: Seconds to wait until the server has created the watch's consumer.

        Raises:
            InvalidKeyError, InvalidArgumentError: A pattern is invalid, or the options contradict
                each other. Nothing was sent.
            BucketNotFoundError: The bucket does not exist any more.
        """
        if updates_only and (include_history or from_revision is not None):
            raise errors.InvalidArgumentError(
                "updates_only cannot be combined with include_history or from_revision",
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
        return self._watch(
            [*map(self._bucket.stored_pattern, keys)],
            policy,
            self._deadline(timeout),
            from_revision=from_revision,
            ignore_deletes=ignore_deletes,
            meta_only=meta_only,
            ends=False,
        )

    def atomic(self, *, timeout: Seconds | None = None) -> Transaction[ValueT]:
        """
        Return a transaction, which changes many keys together or none of them (ADR-50).

        jetsync sends the changes when the ``with`` block ends. It asks the server once per
        connection whether the bucket supports transactions. If the bucket is deleted after that,
        the commit raises BucketNotFoundError.

        Args:
            timeout: Seconds for the commit. The default is that of the JetStream context.

        Raises:
            AtomicPublishDisabledError: The bucket does not allow transactions, see ``atomic`` in
                :class:`KeyValueConfig`.
            NotSupportedError: The server is older than 2.12, or is 2.12.0 or 2.12.1, whose
                transactions have errors.
            BucketNotFoundError: The bucket does not exist any more.
        """
        return Transaction(self._bucket, self._deadline(timeout).total)

    # The bucket itself

    def purge_deletes(
        self, older_than: Seconds = OLD_DELETES, *, timeout: Seconds | None = None
    ) -> int:
        """
        Remove the revisions and old markers of deleted keys.

        Returns the number of keys for which messages were removed.

        Recent markers stay, so that watchers learn about the deletion. If a key is set again during
        the call, it keeps its new value.

        Args:
            older_than: Remove markers that are at least this old, in seconds. The default is 1800.
                0 removes all markers of deleted keys.
            timeout: Seconds for the whole call. The default is 30.

        Raises:
            RequestTimeoutError: Some keys are left. Call again to remove them.
            BucketNotFoundError: The bucket does not exist any more.
        """
        deadline = Deadline.after(READING if timeout is None else timeout)
        age = as_seconds(older_than, "older_than")
        bucket = self._bucket
        deleted: dict[str, Entry] = {}
        with self._watch([], DeliverPolicy.LAST_PER_SUBJECT, deadline, meta_only=True) as watch:
            for entry in initial_entries(watch, deadline):
                deleted.pop(entry.key, None)
                if entry.is_deleted:
                    deleted[entry.key] = entry
        if not deleted:
            return 0
        # Compare with the clock of the server, which wrote the markers' times.
        with bucket.named:
            now = bucket.stream.info(timeout=deadline.remaining()).ts
        now = now or dt.datetime.now(dt.timezone.utc)
        changed = 0
        for key, entry in deleted.items():
            old = (now - entry.created).total_seconds() >= age
            if not old and (
                entry.operation is KeyOperation.PURGE or bucket.config.max_msgs_per_subject == 1
            ):
                # No earlier revision can be left.
                continue
            # Only up to the marker: a later revision is a new value.
            before = entry.revision + (1 if old else 0)
            if before == 1:
                # Nothing is older, but servers before 2.14 remove all revisions.
                continue
            request = {"filter": bucket.layout.origin_subject(key), "seq": before}
            stream = bucket.layout.origin_stream
            with bucket.origin_named:
                answer = bucket.origin.api(
                    f"STREAM.PURGE.{stream}", request, deadline, stream=stream
                )
            changed += 1 if answer.get("purged") else 0
        return changed

    def backup(
        self, path: str | os.PathLike[str], **options: Unpack[BackupOptions]
    ) -> StreamBackup:
        """
        Write a backup of the bucket into a new folder, as :meth:`Stream.backup` does.

        Restore it with :meth:`JetStream.restore_stream`, under the same name.

        Args:
            path: The folder. It must be empty, or not exist.
            **options: As for :meth:`Stream.backup`.

        Raises:
            BucketNotFoundError: The bucket does not exist any more.
            BackupError, FileExistsError, ...: As :meth:`Stream.backup`.
        """
        with self._bucket.named:
            return self._bucket.stream.backup(path, **options)

    def status(self, *, timeout: Seconds | None = None) -> KeyValueStatus:
        """
        Ask the server for the configuration and the state of the bucket.

        Raises:
            BucketNotFoundError: The bucket does not exist any more.
        """
        with self._bucket.named:
            return KeyValueStatus(self._bucket.name, self._bucket.stream.info(timeout=timeout))

    def _deadline(self, timeout: Seconds | None) -> Deadline:
        return self._bucket.context.deadline(timeout)

    def _watch(
        self,
        patterns: Sequence[str],
        policy: DeliverPolicy,
        deadline: Deadline,
        *,
        from_revision: int | None = None,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        complete: bool = False,
        ends: bool = True,
    ) -> Watch[Any]:
        """
        Create a watch.

        Args:
            patterns: Stored keys and patterns; all keys if there are none.
            policy: Where the watch starts.
            deadline: Deadline of the calling operation.
            from_revision: As for :meth:`watch`.
            ignore_deletes: As for :meth:`watch`.
            meta_only: As for :meth:`watch`.
            complete: As for :class:`Watch`.
            ends: Whether the calling operation closes the watch. If so, the entries are as they are
                stored, and not as the codecs show them.
        """
        bucket = self._bucket
        prefix = bucket.layout.read_prefix
        decodes = bucket.codecs is not None and not ends
        with bucket.named:
            return watch_subjects(
                bucket,
                [prefix + pattern for pattern in covering(patterns or [">"])],
                deadline,
                policy=policy,
                from_revision=from_revision,
                meta_only=meta_only,
                ends=ends,
                complete=complete,
                ignore_deletes=ignore_deletes,
                shown=partial(bucket.shown, with_value=not meta_only) if decodes else None,
                report=bucket.report if decodes else None,
            )

    def _change(
        self, key: str, value: Any, last: int | None, deadline: Deadline, **options: Any
    ) -> int:
        """
        Store a revision of a key, with *last* as its expected revision unless that is None.

        The options are those of ``Bucket.write``.
        """
        bucket, pause = self._bucket, FIRST_CONFLICT_PAUSE
        while True:
            try:
                return bucket.write(key, value, deadline, last=last, **options)
            except errors.WrongLastSequenceError as error:
                current = error.last_sequence
                if current is None:
                    # The leader is still storing another change of the key, whose revision it does
                    # not know yet. If it loses its role first, that change may never be stored.
                    with contextlib.suppress(errors.JetSyncError):
                        found = bucket.last_at_origin(key, deadline)
                        current = 0 if found is None else found.revision
                if current != last or deadline.remaining() <= pause:
                    raise errors.WrongLastRevisionError(
                        bucket.name, key, expected=last, last_sequence=current
                    ) from error
            bucket.context.connection.closing.wait(pause)
            pause = min(pause * 2.0, LONGEST_CONFLICT_PAUSE)


def _moment(at: int | dt.datetime | None) -> dict[str, Any]:
    """Return the arguments of a read that select the snapshot."""
    if at is None:
        return {}
    if isinstance(at, dt.datetime):
        return {"up_to_time": aware(at, "at")}
    if not isinstance(at, int):
        raise errors.InvalidTypeError(
            f"at must be a revision or an aware datetime, not {type(at).__name__};"
            " pass several keys as a list",
            argument="at",
        )
    check_count("at", at, 1)
    return {"up_to_sequence": at}
