"""
Configuration and status of object stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict

import attrs

from jetsync._base.fields import checked, duration
from jetsync._base.html import html_table
from jetsync._proto.keys import check_bucket
from jetsync._proto.object_names import chunks_of, documents_of, stream_of
from jetsync.kv.config import UNLIMITED, common_fields
from jetsync.values.stream_config import (
    DiscardPolicy,
    Placement,
    RetentionPolicy,
    StorageType,
    StoreCompression,
    StreamConfig,
    storage_type,
)
from jetsync.values.stream_info import StreamInfo

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds
    from jetsync.values.stream_config import StorageTypeInput

__all__ = ["ObjectStoreConfig", "ObjectStoreStatus"]

# The fields that all clients set in the stream of an object store (ADR-20).
DEFAULTS: Final[dict[str, Any]] = {
    "retention": RetentionPolicy.LIMITS,
    "max_bytes": UNLIMITED,
    "max_age": 0.0,
    "discard": DiscardPolicy.NEW,
    "storage": StorageType.FILE,
    "num_replicas": 1,
    "allow_direct": True,
    "allow_rollup_hdrs": True,
}


class ObjectStoreFields(TypedDict, total=False):
    """
    The fields of :class:`ObjectStoreConfig` as keywords, for type checkers.
    """

    description: str | None
    ttl: Seconds | None
    max_bytes: int | None
    storage: StorageTypeInput | None
    num_replicas: int | None
    placement: Placement | None
    compression: bool | None
    metadata: dict[str, str] | None


@attrs.frozen(kw_only=True, field_transformer=checked)
class ObjectStoreConfig:
    """
    The configuration of an object store (ADR-20), compatible with other NATS clients.
    """

    # For notebooks.
    _repr_html_ = html_table

    bucket: str = attrs.field(converter=check_bucket)
    """Name of the object store: letters, digits, ``-`` and ``_``. Cannot be changed."""

    description: str | None = None
    """Free text."""

    ttl: float | None = attrs.field(default=None, converter=duration)
    """Seconds for which objects are kept; None or 0 for no limit."""

    max_bytes: int | None = None
    """Maximum size of the store in bytes; a full store refuses changes. None or 0: no limit."""

    storage: StorageType | None = attrs.field(default=None, converter=storage_type)
    """Where the objects are stored. The default is on disk. Cannot be changed."""

    num_replicas: int | None = None
    """Number of replicas. The default is 1."""

    placement: Placement | None = None
    """The servers that store the objects."""

    compression: bool | None = None
    """Whether to compress the files."""

    metadata: dict[str, str] | None = None
    """Any key-value pairs."""

    def to_stream_config(self) -> StreamConfig:
        """Return the configuration of the stream that stores this object store."""
        return StreamConfig(**{**DEFAULTS, **self.stream_fields()})

    def stream_fields(self) -> dict[str, Any]:
        """Return the fields of the stream that this configuration sets."""
        subjects = [chunks_of(self.bucket, ">"), documents_of(self.bucket)]
        return common_fields(self, name=stream_of(self.bucket), subjects=subjects)


@attrs.frozen
class ObjectStoreStatus:
    """
    The status of an object store at the time of the request.
    """

    # For notebooks.
    _repr_html_ = html_table

    bucket: str
    """Name of the object store."""

    stream_info: StreamInfo
    """The stream that stores it."""

    @property
    def description(self) -> str | None:
        """Free text."""
        return self.stream_info.config.description

    @property
    def bytes(self) -> int:
        """Size of everything that is stored, in bytes."""
        return self.stream_info.state.bytes

    @property
    def ttl(self) -> float | None:
        """Seconds for which objects are kept; None for no limit."""
        return self.stream_info.config.max_age or None

    @property
    def storage(self) -> StorageType | None:
        """Where the objects are stored."""
        return self.stream_info.config.storage

    @property
    def num_replicas(self) -> int:
        """Number of replicas."""
        return self.stream_info.config.num_replicas or 1

    @property
    def is_sealed(self) -> bool:
        """Whether the store never changes again."""
        return bool(self.stream_info.config.sealed)

    @property
    def is_compressed(self) -> bool:
        """Whether the files are compressed."""
        return self.stream_info.config.compression not in {None, StoreCompression.NONE}

    @property
    def metadata(self) -> dict[str, str]:
        """The key-value pairs, without those that servers add."""
        found = self.stream_info.config.metadata or {}
        return {key: value for key, value in found.items() if not key.startswith("_nats.")}
