"""
The key-value methods of a JetStream context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from jetsync._api import streams as _stream_admin
from jetsync._api.requests import call
from jetsync._proto.kv import STREAM_PREFIX, check_bucket, stream_of
from jetsync.errors import (
    BucketNotFoundError,
    InvalidBucketError,
    InvalidTypeError,
    NotSupportedError,
    StreamNameInUseError,
    StreamNotFoundError,
)
from jetsync.kv.bucket import Bucket
from jetsync.kv.config import KeyValueConfig
from jetsync.kv.handle import KeyValue
from jetsync.publish.capability import ATOMIC_LEVEL
from jetsync.values.account import AccountInfo
from jetsync.values.codec import from_wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline, Seconds
    from jetsync.values.stream_info import StreamInfo


class KeyValueDoor:
    """
    What a JetStream context can do with buckets.
    """

    __slots__ = ()

    _context: Context

    def create_key_value(
        self,
        config: KeyValueConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Any,
    ) -> KeyValue:
        """
        Create a key-value bucket, or return the one that exists with the same configuration.

        Args:
            config: The configuration; keywords are laid over a copy of it.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`KeyValueConfig`.

        Raises:
            StreamNameInUseError: There is one of that name with another configuration.
            NotSupportedError: The server left a field out; the bucket exists without it.
        """
        wanted = _config(config, fields, "create_key_value")
        deadline = self._context.deadline(timeout)
        return self._bucket(wanted.bucket, _create(self._context, wanted, deadline))

    def update_key_value(
        self,
        config: KeyValueConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Any,
    ) -> KeyValue:
        """
        Change the configuration of an existing bucket.

        What is not given, or None, stays as it is, fields that this version does not know included;
        0 takes a limit or a time away. Two requests: a change that somebody else makes between them
        is lost.

        Args:
            config: The configuration; keywords are laid over a copy of it.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`KeyValueConfig`.

        Raises:
            BucketNotFoundError: There is none of that name.
            ApiError: The server refused, for instance to change what cannot be changed.
        """
        wanted = _config(config, fields, "update_key_value")
        deadline = self._context.deadline(timeout)
        try:
            return self._bucket(wanted.bucket, _update(self._context, wanted, deadline))
        except StreamNotFoundError as error:
            raise BucketNotFoundError(wanted.bucket) from error

    def create_or_update_key_value(
        self,
        config: KeyValueConfig | None = None,
        *,
        timeout: Seconds | None = None,
        **fields: Any,
    ) -> KeyValue:
        """
        Create a bucket, or change the configuration of the one of that name.

        Args, Raises: as :meth:`create_key_value` and :meth:`update_key_value`.
        """
        wanted = _config(config, fields, "create_or_update_key_value")
        deadline = self._context.deadline(timeout)
        try:
            info = _update(self._context, wanted, deadline)
        except StreamNotFoundError:
            info = _create(self._context, wanted, deadline)
        return self._bucket(wanted.bucket, info)

    def key_value(self, bucket: str, *, timeout: Seconds | None = None) -> KeyValue:
        """
        Return the bucket of that name.

        Raises:
            BucketNotFoundError: There is none.
            InvalidBucketError: No bucket can have that name, or the stream of that name is none.
        """
        stream = stream_of(bucket)
        try:
            info = _stream_admin.info(self._context, stream, self._context.deadline(timeout))
        except StreamNotFoundError as error:
            raise BucketNotFoundError(bucket) from error
        if (info.config.max_msgs_per_subject or 0) < 1:
            raise InvalidBucketError(bucket, f"stream {stream!r} does not limit revisions of a key")
        return self._bucket(bucket, info)

    def delete_key_value(self, bucket: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete a bucket with all that is in it.

        Raises:
            BucketNotFoundError: There is none of that name.
        """
        try:
            _stream_admin.delete(self._context, stream_of(bucket), self._context.deadline(timeout))
        except StreamNotFoundError as error:
            raise BucketNotFoundError(bucket) from error

    def key_value_names(self, *, timeout: Seconds | None = None) -> Iterator[str]:
        """
        Iterate over the names of the buckets, mirrors included; as ``stream_names``.

        Args:
            timeout: Seconds for each page of 1024.
        """
        found = _stream_admin.names(self._context, None, timeout)
        return (
            name.removeprefix(STREAM_PREFIX) for name in found if name.startswith(STREAM_PREFIX)
        )

    def _bucket(self, name: str, info: StreamInfo) -> KeyValue:
        return KeyValue(Bucket(self._context, name, info))


def _config(config: KeyValueConfig | None, fields: Mapping[str, Any], what: str) -> KeyValueConfig:
    """Return the configuration that a call was given: an object, plain keywords, or both."""
    if config is not None and not isinstance(config, KeyValueConfig):
        raise InvalidTypeError(
            f"{what} needs a KeyValueConfig, not {type(config).__name__}", argument="config"
        )
    try:
        return KeyValueConfig(**fields) if config is None else attrs.evolve(config, **fields)
    except TypeError as error:
        if isinstance(error, InvalidTypeError):
            raise
        known = ", ".join(field.name for field in attrs.fields(KeyValueConfig))
        raise InvalidTypeError(f"{what}: {error}; the fields are {known}") from error


def _create(context: Context, wanted: KeyValueConfig, deadline: Deadline) -> StreamInfo:
    """Create the stream of a bucket, with transactions where that is possible."""
    if wanted.atomic is None and wanted.mirror is None:
        level = from_wire(AccountInfo, call(context, "INFO", None, deadline)).api.level
        if level >= ATOMIC_LEVEL:
            try:
                return _stream_admin.create(context, wanted.to_stream_config(atomic=True), deadline)
            except (StreamNameInUseError, NotSupportedError) as error:
                # There is one without them, or the stream's server cannot have them.
                try:
                    return _stream_admin.create(
                        context, wanted.to_stream_config(atomic=False), deadline
                    )
                except StreamNameInUseError:
                    raise error from None
    return _stream_admin.create(context, wanted.to_stream_config(atomic=False), deadline)


def _update(context: Context, wanted: KeyValueConfig, deadline: Deadline) -> StreamInfo:
    """Lay the configuration of a bucket over that of its stream."""
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
        # It has no subjects of its own, and its origin makes the markers.
        changes.pop("subjects", None)
        changes.pop("subject_delete_marker_ttl", None)
    elif wanted.limit_marker_ttl == 0 and now.subject_delete_marker_ttl:
        changes["subject_delete_marker_ttl"] = 0.0
    return _stream_admin.update(context, attrs.evolve(now, **changes), deadline)
