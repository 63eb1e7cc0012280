"""
The stored documents of groups, in the key-value buckets that orbit.go uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import jetsync
from jetsync_groups.documents import ElasticSettings, StaticSettings
from jetsync_groups.errors import GroupDocumentError, GroupExistsError, GroupNotFoundError
from jetsync_groups.names import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

SettingsT = TypeVar("SettingsT", ElasticSettings, StaticSettings)


class Documents(Generic[SettingsT]):
    """
    The documents of one kind of groups. Thread-safe.
    """

    def __init__(self, js: jetsync.JetStream, bucket: str, kind: type[SettingsT]) -> None:
        self._js = js
        self.bucket: str = bucket
        self._kind: type[SettingsT] = kind

    def open(self, stream: str, group: str, *, timeout: float | None = None) -> jetsync.KeyValue:
        """
        Return the bucket.

        Raises:
            GroupNotFoundError: The bucket does not exist, so there is no group.
        """
        try:
            return self._js.key_value(self.bucket, timeout=timeout)
        except jetsync.BucketNotFoundError:
            raise GroupNotFoundError(stream, group, "it does not exist") from None

    def create_bucket(self, replicas: int, *, timeout: float | None = None) -> jetsync.KeyValue:
        """
        Return the bucket. Create it if it does not exist.
        """
        try:
            return self._js.key_value(self.bucket, timeout=timeout)
        except jetsync.BucketNotFoundError:
            pass
        try:
            return self._js.create_key_value(
                self.bucket, num_replicas=replicas, storage="file", timeout=timeout
            )
        except jetsync.StreamNameInUseError:
            # Another process was first, with other settings.
            return self._js.key_value(self.bucket, timeout=timeout)

    def parse(self, stream: str, group: str, data: bytes) -> SettingsT:
        """
        Return the settings in a document.

        Raises:
            GroupDocumentError: The document cannot be read.
        """
        try:
            found: SettingsT = self._kind.from_json(data)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            reason = f"its stored settings cannot be read: {error}"
            raise GroupDocumentError(stream, group, reason) from error
        return found

    def read(
        self, bucket: jetsync.KeyValue, stream: str, group: str, *, timeout: float | None = None
    ) -> SettingsT:
        """
        Return the settings of a group.

        Raises:
            GroupNotFoundError: The group does not exist.
            GroupDocumentError: The document cannot be read.
        """
        try:
            entry = bucket.get(key_of(stream, group), timeout=timeout)
        except (jetsync.KeyNotFoundError, jetsync.BucketNotFoundError):
            raise GroupNotFoundError(stream, group, "it does not exist") from None
        return self.parse(stream, group, entry.value)

    def create(
        self,
        bucket: jetsync.KeyValue,
        stream: str,
        group: str,
        wanted: SettingsT,
        *,
        timeout: float | None = None,
    ) -> SettingsT:
        """
        Store the document of a group, unless there is the same. Return what is stored.

        Raises:
            GroupExistsError: The group has other settings.
        """
        try:
            bucket.create(key_of(stream, group), wanted.to_json(), timeout=timeout)
        except jetsync.KeyExistsError:
            found = self.read(bucket, stream, group, timeout=timeout)
            require_same(stream, group, found, wanted)
            return found
        return wanted

    def change(
        self,
        stream: str,
        group: str,
        change: Callable[[SettingsT], SettingsT],
        *,
        timeout: float,
    ) -> SettingsT:
        """
        Change the settings of a group, and return them. A lost race is tried again.

        Raises:
            GroupNotFoundError, GroupDocumentError: As for :meth:`read`.
            WrongLastRevisionError: Others changed the document until the time was over.
            PublishOutcomeUnknownError: The change may have been stored.
        """
        wanted: SettingsT

        def changed(entry: jetsync.Entry | None) -> bytes | None:
            nonlocal wanted
            if entry is None:
                raise GroupNotFoundError(stream, group, "it does not exist")
            settings = self.parse(stream, group, entry.value)
            wanted = change(settings)
            return None if wanted == settings else wanted.to_json()

        bucket = self.open(stream, group, timeout=timeout)
        bucket.modify(key_of(stream, group), changed, timeout=timeout)
        return wanted

    def groups(self, stream: str, *, timeout: float | None = None) -> list[str]:
        """
        Return the names of a stream's groups, sorted.
        """
        try:
            bucket = self._js.key_value(self.bucket, timeout=timeout)
            keys = bucket.keys(f"{stream}.>", timeout=timeout)
        except jetsync.BucketNotFoundError:
            return []
        return sorted(key[len(stream) + 1 :] for key in keys)


def require_same(
    stream: str, group: str, found: ElasticSettings | StaticSettings, wanted: object
) -> None:
    """
    Raise GroupExistsError if a group has other settings than wanted.
    """
    if not found.is_same_group(wanted):  # type: ignore[arg-type]
        reason = "it exists with other settings, which cannot be changed. Delete it first"
        raise GroupExistsError(stream, group, reason)
