"""
Transactions, which change many keys of a bucket together or none of them (ADR-50).
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import attrs

from jetsync._base.deadline import Deadline, Seconds, as_seconds
from jetsync._base.fields import check_count
from jetsync._base.locks import refuse_reentry
from jetsync._base.pickling import refuse_copy
from jetsync._proto.kv import DELETE_MARKER, PURGE_MARKER, check_key
from jetsync.errors import (
    AtomicPublishDisabledError,
    BatchClosedError,
    InvalidArgumentError,
    JetSyncError,
    KeyExistsError,
    NoStreamResponseError,
    WrongLastRevisionError,
    WrongLastSequenceError,
)
from jetsync.publish.atomic import publish_batch
from jetsync.publish.atomic_commit import AtomicOptions
from jetsync.publish.capability import require_atomic
from jetsync.publish.one import PUBLISH_RETRIES, PUBLISH_RETRY_WAIT
from jetsync.values.outbound import Expect, OutboundMessage, payload_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from jetsync._api.known_streams import KnownStream
    from jetsync.kv.bucket import Bucket
    from jetsync.values.outbound import BatchAck, Payload

__all__ = ["Transaction"]

ATTEMPTS: Final = 8
"""
The most attempts to send a transaction.

A transaction is only sent again if keys to create still have the marker of a deleted value. Each
attempt then expects the revisions of all these markers.
"""


@attrs.frozen
class Change:
    """
    One change of a transaction, to one key.
    """

    key: str
    data: bytes = attrs.field(repr=False)
    headers: dict[str, str] | None = None
    ttl: Seconds | Literal["never"] | None = None
    last: int | None = None
    """The expected revision of the key; None expects nothing."""

    creates: bool = False
    """Whether the key must have no value. It may have the marker of a deleted value."""

    def message(self, prefix: str, last: int | None) -> OutboundMessage:
        """Return the message of this change. The server checks that the key is at *last*."""
        expect = None if last is None else Expect(last_subject_sequence=last)
        return OutboundMessage(prefix + self.key, self.data, self.headers, None, self.ttl, expect)


def known_stream(bucket: Bucket, deadline: Deadline) -> KnownStream:
    """
    Return the stream that stores the values written to a bucket.

    Raises:
        AtomicPublishDisabledError, NotSupportedError: The stream or its server does not support
            transactions.
        BucketNotFoundError: The bucket does not exist.
    """
    layout, streams = bucket.layout, bucket.origin.streams
    with bucket.named(origin=True):
        known = streams.named(layout.origin_stream, deadline)
        try:
            require_atomic(known, bucket.context, broken_servers=False)
        except JetSyncError:
            # The stream may have been changed since its configuration was fetched.
            known = streams.named(layout.origin_stream, deadline, fresh=True)
            try:
                require_atomic(known, bucket.context, broken_servers=False)
            except AtomicPublishDisabledError as error:
                raise AtomicPublishDisabledError(
                    description=f"bucket {bucket.name!r} does not allow transactions: call"
                    f" update_key_value({bucket.name!r}, atomic=True)",
                    stream=known.name,
                ) from error
    subjects = [f"{layout.write_prefix}>"]
    return attrs.evolve(known, config=attrs.evolve(known.config, subjects=subjects))


class Transaction:
    """
    Changes of a bucket that are stored together or not at all. Made by ``KeyValue.atomic``.

    The changes are sent when the ``with`` block ends; an exception in the block discards them. If a
    key does not have its expected revision, no change is stored. A block without changes sends
    nothing. Any thread may add changes.

    A key can be changed once, or put several times in a row, because expectations and purges refer
    to the state before the transaction. Servers accept 1000 changes per transaction unless an
    operator changed the limit.
    """

    __reduce__ = refuse_copy

    def __init__(self, bucket: Bucket, timeout: float) -> None:
        self._bucket = bucket
        self._timeout = timeout
        self._lock = threading.RLock()
        self._changes: list[Change] = []
        self._changed: set[str] = set()
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
        self, key: str, value: Payload, *, ttl: Seconds | Literal["never"] | None = None
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
        self, key: str, value: Payload, *, ttl: Seconds | Literal["never"] | None = None
    ) -> None:
        """
        Set the value of a key. The transaction fails if the key already has a value.

        Args, Raises: as :meth:`put`.
        """
        self._add(key, value, ttl=ttl, last=0, creates=True)

    def update(
        self,
        key: str,
        value: Payload,
        *,
        last: int,
        ttl: Seconds | Literal["never"] | None = None,
    ) -> None:
        """
        Set the value of a key. The transaction fails if its revision is not *last*.

        Args, Raises: as :meth:`put`.
        """
        check_count("last", last, 0)
        self._add(key, value, ttl=ttl, last=last)

    def delete(self, key: str, *, last: int | None = None) -> None:
        """
        Delete a key. The transaction fails if *last* is given and is not its revision.

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
        Store the changes, and return the revision of each key. The end of the block does the same.

        Args:
            timeout: Seconds for all requests together; None uses the timeout of the transaction.

        Raises:
            WrongLastRevisionError: A key does not have its expected revision. Nothing was changed.
                The error's ``key`` is that key, if jetsync could still find out.
            KeyExistsError: A key to create has a value. Nothing was changed.
            BatchOutcomeUnknownError: No answer came. Either all changes are stored, or none. A
                PublishOutcomeUnknownError.
            BatchTooLargeError, MessageTooLargeError, MaxMessagesError, ...: The bucket refused the
                transaction. Nothing was changed.
            NoStreamResponseError, ConnectionLostError, DisconnectedError: The transaction was not
                sent. Nothing was changed.
            BatchClosedError: The transaction was committed or discarded.
        """
        seconds = self._timeout if timeout is None else as_seconds(timeout)
        deadline = Deadline.after(seconds)
        refuse_reentry(self._lock)
        with self._lock:
            self._check_open()
            self._over = "it was committed"
        if self._changes:
            self._ack = ack = self._store(deadline)
            for place, change in enumerate(self._changes):
                self._revisions[change.key] = ack.sequence - ack.size + 1 + place
        return self._revisions

    # Implementation.

    def _check_open(self) -> None:
        if self._over is not None:
            raise BatchClosedError("transaction", reason=self._over)

    def _add(
        self,
        key: str,
        value: Payload,
        headers: dict[str, str] | None = None,
        *,
        ttl: Seconds | Literal["never"] | None = None,
        last: int | None = None,
        creates: bool = False,
    ) -> None:
        if last is not None:
            check_count("last", last, 0)
        data = bytes(payload_bytes(value))
        change = Change(check_key(key), data, headers, ttl, last, creates=creates)
        if ttl is not None:
            self._bucket.require_ttl(
                ttl, Deadline.after(self._timeout), replaces=headers is None and not creates
            )
        refuse_reentry(self._lock)
        with self._lock:
            self._check_open()
            if (last is not None or headers is PURGE_MARKER) and key in self._changed:
                raise InvalidArgumentError(
                    f"the transaction already changes key {key!r}: expectations and purges"
                    " refer to the state before the transaction",
                    argument="key",
                )
            self._changes.append(change)
            self._changed.add(key)

    def _store(self, deadline: Deadline) -> BatchAck:
        """Send the changes, and send them again if keys to create have markers of old values."""
        expected = {change.key: change.last for change in self._changes if change.last is not None}
        options = AtomicOptions(
            timeout=deadline.total,
            retries=PUBLISH_RETRIES,
            retry_wait=PUBLISH_RETRY_WAIT,
            # If the bucket is in another domain, no stream of this domain has its subjects. So the
            # stream is looked up by its name.
            find_stream=partial(known_stream, self._bucket),
        )
        prefix = self._bucket.layout.write_prefix
        for _ in range(ATTEMPTS):
            left = dict(expected)
            # If a key has several changes, only the first one can have an expectation.
            messages = [
                change.message(prefix, left.pop(change.key, None)) for change in self._changes
            ]
            try:
                return publish_batch(self._bucket.context, messages, options, deadline)
            except WrongLastSequenceError as error:
                refusal = error
                expected |= self._look(refusal, deadline)
            except NoStreamResponseError:
                self._bucket.check_exists(deadline)
                raise
        raise WrongLastRevisionError(self._bucket.name) from refusal

    def _look(self, refusal: WrongLastSequenceError, deadline: Deadline) -> dict[str, int]:
        """
        Return the revisions of the markers of keys to create, or raise the error of a wrong key.

        The server only reports that an expectation failed. It does not report which one.
        """
        bucket, markers = self._bucket, {}
        for change in self._changes:
            if change.last is None:
                continue
            try:
                found = bucket.last_at_origin(change.key, deadline)
            except JetSyncError as error:
                error.__cause__ = refusal
                raise WrongLastRevisionError(bucket.name) from error
            current = 0 if found is None else found.revision
            if change.creates:
                if found is not None and not found.is_deleted:
                    raise KeyExistsError(
                        bucket.name, change.key, last_sequence=current
                    ) from refusal
                markers[change.key] = current
            elif current != change.last:
                raise WrongLastRevisionError(
                    bucket.name, change.key, expected=change.last, last_sequence=current
                ) from refusal
        if not markers:
            raise WrongLastRevisionError(bucket.name) from refusal
        return markers
