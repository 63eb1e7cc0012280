"""
Transactions, which change many keys of a bucket together or none of them (ADR-50).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal

import attrs

from jetsync import errors
from jetsync._base.deadline import Deadline, Seconds, as_seconds
from jetsync._base.fields import check_count
from jetsync._base.locks import refuse_reentry, short_lock
from jetsync._base.pickling import refuse_copy
from jetsync._proto.keys import DELETE_MARKER, PURGE_MARKER, STREAM_PREFIX
from jetsync.kv.entry import ValueT
from jetsync.publish.atomic import publish_batch
from jetsync.publish.atomic_messages import AtomicOptions
from jetsync.publish.batch_support import find_capable, require_atomic
from jetsync.publish.one import PUBLISH_RETRIES, PUBLISH_RETRY_WAIT
from jetsync.values.outbound import Expect, payload_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from jetsync._api.known_streams import KnownStream
    from jetsync.kv.bucket import Bucket
    from jetsync.values.outbound import OutboundMessage, Payload
    from jetsync.values.pub_acks import BatchAck

__all__ = ["Transaction"]

ATTEMPTS: Final = 8
"""
The most attempts to send a transaction.

A transaction is sent again if keys to create still have the marker of a deleted value. Each attempt
then expects the revisions of all these markers. It is also sent again if it was refused although
all keys have the expected revisions.
"""

CONFLICT_PAUSE: Final = 0.05
"""Seconds before the next attempt in the second case."""


def known_stream(bucket: Bucket, deadline: Deadline) -> KnownStream:
    """
    Return the stream that stores the values written to a bucket.

    Raises:
        AtomicPublishDisabledError, NotSupportedError: The stream or its server does not support
            transactions.
        BucketNotFoundError: The bucket does not exist.
    """
    layout, streams = bucket.layout, bucket.origin.streams
    with bucket.origin_named:
        try:
            known = find_capable(
                streams.named,
                partial(require_atomic, context=bucket.context, broken_servers=False),
                layout.origin_stream,
                deadline,
            )
        except errors.AtomicPublishDisabledError as error:
            origin = layout.origin_stream.removeprefix(STREAM_PREFIX)
            raise errors.AtomicPublishDisabledError(
                description="it allows no transactions:"
                f" call update_key_value({origin!r}, atomic=True)",
                stream=layout.origin_stream,
            ) from error
    subjects = [f"{layout.write_prefix}>"]
    return attrs.evolve(known, config=attrs.evolve(known.config, subjects=subjects))


class Transaction(Generic[ValueT]):
    """
    Changes of a bucket that the server stores together or not at all. Made by ``KeyValue.atomic``.

    jetsync sends the changes when the ``with`` block ends. An exception in the block discards them.
    If a key does not have its expected revision, no change is stored. A block without changes sends
    nothing. Any thread may add changes.

    Creates, purges and changes with *last* apply to the state before the transaction. So a second
    change of the same key must be a :meth:`put`, or a :meth:`delete` without *last*.

    Servers accept at most 1,000 changes per transaction, unless their operator changed the limit.
    """

    __reduce__ = refuse_copy

    def __init__(self, bucket: Bucket, timeout: float) -> None:
        self._bucket = bucket
        self._timeout = timeout
        self._lock = short_lock()
        # The key of each change, in the same order, is in the second list.
        self._changes: list[OutboundMessage] = []
        self._keys: list[str] = []
        # The keys that must not have a value. They may have the marker of a deleted value.
        self._created: set[str] = set()
        self._over: str | None = None
        """Why the transaction accepts no more changes; None while it is open."""

        self._ack: BatchAck | None = None
        self._revisions: dict[str, int] = {}

        known_stream(bucket, Deadline.after(timeout))

    def __repr__(self) -> str:
        state = "committed" if self._ack is not None else "closed" if self._over else "open"
        return f"<Transaction {self._bucket.name} {state} size={len(self._changes)}>"

    def __len__(self) -> int:
        return len(self._changes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
        elif self._over is None:
            self.commit()

    @property
    def ack(self) -> BatchAck | None:
        """The ack of the commit; None before the commit, and if there were no changes."""
        return self._ack

    @property
    def revisions(self) -> Mapping[str, int]:
        """The new revision of each changed key; empty before the commit."""
        return self._revisions

    def put(
        self, key: str, value: Payload | ValueT, *, ttl: Seconds | Literal["never"] | None = None
    ) -> None:
        """
        Set the value of a key.

        Args:
            key: The key.
            value: The value; text is stored as UTF-8.
            ttl: As for ``KeyValue.put``.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid. The transaction is
                unchanged.
            MessageTtlDisabledError, NotSupportedError: The bucket does not support *ttl*. The
                transaction is unchanged.
            BatchClosedError: The transaction was committed or discarded.
        """
        self._add(key, value, ttl=ttl)

    def create(
        self, key: str, value: Payload | ValueT, *, ttl: Seconds | Literal["never"] | None = None
    ) -> None:
        """
        Set the value of a key. The transaction fails if the key already has a value.

        Args, Raises: as :meth:`put`.
        """
        self._add(key, value, ttl=ttl, last=0, creates=True)

    def update(
        self,
        key: str,
        value: Payload | ValueT,
        *,
        last: int,
        ttl: Seconds | Literal["never"] | None = None,
    ) -> None:
        """
        Set the value of a key. The transaction fails if the key's revision is not *last*.

        Args, Raises: as :meth:`put`.
        """
        check_count("last", last, 0)
        self._add(key, value, ttl=ttl, last=last)

    def delete(self, key: str, *, last: int | None = None) -> None:
        """
        Delete a key. The transaction fails if *last* is given and is not the key's revision.

        Raises: as :meth:`put`.
        """
        self._add(key, b"", DELETE_MARKER, last=last)

    def purge(
        self,
        key: str,
        *,
        ttl: Seconds | Literal["never"] | None = None,
        last: int | None = None,
    ) -> None:
        """
        Delete a key with all its revisions; *last* is as for :meth:`delete`.

        Args, Raises: as ``KeyValue.purge`` and :meth:`put`.
        """
        self._add(key, b"", PURGE_MARKER, ttl=ttl, last=last)

    def discard(self) -> None:
        """Discard the changes without sending them. Safe to repeat."""
        if self._over is None:
            self._over = "it was discarded"

    def commit(self, *, timeout: Seconds | None = None) -> Mapping[str, int]:
        """
        Store the changes, and return the revision of each key. The end of the block calls this.

        Args:
            timeout: Seconds for all requests together; None uses the timeout of the transaction.

        Raises:
            WrongLastRevisionError: A key does not have its expected revision. Nothing was changed.
                ``key`` of the error is None if jetsync could not find out which key.
            KeyExistsError: A key to create has a value. Nothing was changed.
            BatchOutcomeUnknownError: No answer arrived. Either all changes are stored, or none.
                This is a subclass of PublishOutcomeUnknownError.
            BatchTooLargeError, MessageTooLargeError, StreamFullError, ...: The bucket refused the
                transaction. Nothing was changed.
            NoStreamResponseError, ConnectionLostError, DisconnectedError: The stream or the
                connection was not available. Nothing was changed.
            BatchClosedError: The transaction was discarded, or a call has tried to commit it.
        """
        seconds = self._timeout if timeout is None else as_seconds(timeout)
        deadline = Deadline.after(seconds)
        refuse_reentry(self._lock)
        with self._lock:
            self._check_open()
            self._over = "a call has tried to commit it"
        if self._changes:
            self._ack = ack = self._store(deadline)
            first = ack.sequence - ack.size + 1
            self._revisions.update(zip(self._keys, range(first, ack.sequence + 1), strict=True))
        return self._revisions

    # Implementation.

    def _check_open(self) -> None:
        if self._over is not None:
            raise errors.BatchClosedError("transaction", reason=self._over)

    def _add(
        self,
        key: str,
        value: Any,
        headers: dict[str, str] | None = None,
        *,
        ttl: Seconds | Literal["never"] | None = None,
        last: int | None = None,
        creates: bool = False,
    ) -> None:
        deadline = Deadline.after(self._timeout)
        change, _ = self._bucket.change(
            key, value, deadline, headers=headers, ttl=ttl, last=last, creates=creates
        )
        # A copy, because the caller may change its buffer before the commit.
        change.data = bytes(payload_bytes(change.data))
        refuse_reentry(self._lock)
        with self._lock:
            self._check_open()
            if (last is not None or headers is PURGE_MARKER) and key in self._keys:
                raise errors.InvalidArgumentError(
                    f"the transaction already changes key {key!r}: expectations and purges"
                    " refer to the state before the transaction",
                    argument="key",
                )
            self._changes.append(change)
            self._keys.append(key)
            if creates:
                self._created.add(key)

    def _store(self, deadline: Deadline) -> BatchAck:
        """Send the changes, and send them again if keys to create have markers of old values."""
        options = AtomicOptions(
            timeout=deadline.total,
            retries=PUBLISH_RETRIES,
            retry_wait=PUBLISH_RETRY_WAIT,
            # If the bucket is in another domain, no stream of this domain has its subjects. So the
            # stream is looked up by its name.
            find_stream=lambda _, deadline: known_stream(self._bucket, deadline),
        )
        for _ in range(ATTEMPTS):
            # Plugins may change the messages of one attempt.
            messages = [*map(attrs.evolve, self._changes)]
            try:
                return publish_batch(self._bucket.context, messages, options, deadline)
            except errors.WrongLastSequenceError as error:
                refusal = error
                self._look(refusal, deadline)
            except errors.NoStreamResponseError:
                self._bucket.check_exists(deadline)
                raise
        raise errors.WrongLastRevisionError(self._bucket.name) from refusal

    def _look(self, refusal: errors.WrongLastSequenceError, deadline: Deadline) -> None:
        """
        Expect the revisions of the markers of keys to create, or raise the error of a wrong key.

        The server only reports that an expectation failed. It does not report which one.
        """
        bucket = self._bucket
        for change, key in zip(self._changes, self._keys, strict=True):
            if change.expect is None:
                continue
            try:
                found = bucket.last_at_origin(key, deadline)
            except errors.JetSyncError as error:
                error.__cause__ = refusal
                raise errors.WrongLastRevisionError(bucket.name) from error
            current, expected = found.revision if found else 0, change.expect.last_subject_sequence
            if key in self._created:
                if found is not None and not found.is_deleted:
                    raise errors.KeyExistsError(
                        bucket.name, key, last_sequence=current
                    ) from refusal
                change.expect = Expect(last_subject_sequence=current)
            elif current != expected:
                raise errors.WrongLastRevisionError(
                    bucket.name, key, expected=expected, last_sequence=current
                ) from refusal
        if not self._created:
            # The leader is still storing another change of one of the keys.
            bucket.context.connection.closing.wait(min(CONFLICT_PAUSE, deadline.remaining()))
