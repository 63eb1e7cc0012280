"""
Configuration and status of key-value buckets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypedDict

import attrs

from jetsync._base.fields import check_exclusive, checked, duration
from jetsync._base.html import html_table
from jetsync._proto.keys import STREAM_PREFIX, check_bucket, subjects_of
from jetsync.errors import InvalidArgumentError, InvalidTypeError
from jetsync.values.stream_config import (
    DiscardPolicy,
    Placement,
    Republish,
    StorageType,
    StoreCompression,
    StreamConfig,
    StreamSource,
    SubjectTransform,
    storage_type,
)
from jetsync.values.stream_info import StreamInfo
from jetsync.values.subjects import validate_name

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds
    from jetsync.values.stream_config import StorageTypeInput

__all__ = ["KeyValueConfig", "KeyValueFields", "KeyValueStatus"]

# Maximum number of revisions per key (ADR-8).
LONGEST_HISTORY: Final = 64

# Duplicate window of a bucket in seconds, unless its values expire earlier.
DUPLICATE_WINDOW: Final = 120.0

UNLIMITED: Final = -1

# The fields that all clients set in the stream of a bucket (ADR-8).
DEFAULTS: Final[dict[str, Any]] = {
    "max_consumers": UNLIMITED,
    "max_msgs": UNLIMITED,
    "max_bytes": UNLIMITED,
    "max_age": 0.0,
    "max_msgs_per_subject": 1,
    "max_msg_size": UNLIMITED,
    "discard": DiscardPolicy.NEW,
    "storage": StorageType.FILE,
    "num_replicas": 1,
    "duplicate_window": DUPLICATE_WINDOW,
    "allow_direct": True,
    "allow_rollup_hdrs": True,
    "deny_delete": True,
}


def _origin(value: StreamSource | str | None) -> StreamSource | None:
    """Accept a bucket by its name, or as a source with the name of the bucket or its stream."""
    if value is None:
        return None
    source = StreamSource(name=value) if isinstance(value, str) else value
    if not isinstance(source, StreamSource):
        raise InvalidTypeError(
            f"must be the name of a bucket or a StreamSource, not {type(value).__name__}"
        )
    name = source.name or ""
    if not name.startswith(STREAM_PREFIX):
        source = attrs.evolve(source, name=STREAM_PREFIX + name)
    check_bucket((source.name or "").removeprefix(STREAM_PREFIX))
    return source


def _source(value: StreamSource | str | None) -> StreamSource | None:
    """Accept a bucket, or a source that transforms the subjects of any stream itself."""
    if isinstance(value, StreamSource) and value.subject_transforms:
        validate_name("stream", value.name or "")
        return value
    return _origin(value)


def _sources(value: Iterable[StreamSource | str] | None) -> tuple[StreamSource, ...] | None:
    if value is None:
        return None
    if isinstance(value, (str, StreamSource)) or not isinstance(value, Iterable):
        raise InvalidTypeError(f"must be a list of buckets, not {type(value).__name__}")
    return tuple(source for source in map(_source, value) if source is not None)


class KeyValueFields(TypedDict, total=False):
    """
    The fields of :class:`KeyValueConfig` as keywords, for type checkers.
    """

    description: str | None
    history: int | None
    ttl: Seconds | None
    max_value_size: int | None
    max_bytes: int | None
    storage: StorageTypeInput | None
    num_replicas: int | None
    placement: Placement | None
    republish: Republish | None
    mirror: StreamSource | str | None
    sources: Iterable[StreamSource | str] | None
    compression: bool | None
    metadata: dict[str, str] | None
    limit_marker_ttl: Seconds | None
    atomic: bool | None


@attrs.frozen(kw_only=True, field_transformer=checked)
class KeyValueConfig:
    """
    The configuration of a bucket (ADR-8), compatible with other NATS clients.
    """

    # For notebooks.
    _repr_html_ = html_table

    bucket: str = attrs.field(converter=check_bucket)
    """Name of the bucket: letters, digits, ``-`` and ``_``. Cannot be changed."""

    description: str | None = None
    """Free text."""

    history: int | None = None
    """Revisions to keep per key, 1 to 64. The default is 1."""

    ttl: float | None = attrs.field(default=None, converter=duration)
    """Seconds for which a revision is kept; None or 0 for no limit."""

    max_value_size: int | None = None
    """Maximum size of a value in bytes, including headers; None or 0 for no limit."""

    max_bytes: int | None = None
    """Maximum size of the bucket in bytes; a full bucket refuses changes. None or 0: no limit."""

    storage: StorageType | None = attrs.field(default=None, converter=storage_type)
    """Where the bucket is stored. The default is on disk. Cannot be changed."""

    num_replicas: int | None = None
    """Number of replicas. The default is 1."""

    placement: Placement | None = None
    """The servers that store the bucket."""

    republish: Republish | None = None
    """How the server also publishes changes as core NATS messages."""

    mirror: StreamSource | None = attrs.field(default=None, converter=_origin)
    """
    The bucket that this one mirrors: a name or a StreamSource. jetsync sends writes to that bucket.
    """

    sources: tuple[StreamSource, ...] | None = attrs.field(default=None, converter=_sources)
    """
    Buckets whose changes the server copies into this one: names or StreamSource objects. A
    StreamSource with ``subject_transforms`` is used as it is. Its name is that of any stream, and
    it has to transform the subjects into those of this bucket, such as ``$KV.stock.>``.
    """

    compression: bool | None = None
    """Whether to compress the files."""

    metadata: dict[str, str] | None = None
    """Any key-value pairs."""

    limit_marker_ttl: float | None = attrs.field(default=None, converter=duration)
    """
    Allow a time-to-live per key. When a value expires, the server leaves a marker for this number
    of seconds, at least 1 (ADR-43, ADR-48). With 0, a new bucket allows no time-to-live per key,
    and expired values leave no markers. A mirror has the markers of its origin. Server 2.11 and
    later.
    """

    atomic: bool | None = None
    """
    Allow transactions (ADR-50). Use server 2.12.5 or later; jetsync refuses servers before 2.12,
    and 2.12.0 and 2.12.1. Off by default: if it is set, other clients get an error when they
    create the bucket again without it.
    """

    def __attrs_post_init__(self) -> None:
        history = self.history
        if history is not None and not 1 <= history <= LONGEST_HISTORY:
            raise InvalidArgumentError(
                f"history must be 1 to {LONGEST_HISTORY}, not {history}", argument="history"
            )
        if (self.max_value_size or 0) >= 1 << 31:
            raise InvalidArgumentError(
                f"max_value_size must be less than 2**31, not {self.max_value_size}",
                argument="max_value_size",
            )
        if self.limit_marker_ttl is not None and 0 < self.limit_marker_ttl < 1:
            raise InvalidArgumentError(
                "limit_marker_ttl must be at least 1 second", argument="limit_marker_ttl"
            )
        check_exclusive(mirror=self.mirror, sources=self.sources or None)
        if self.mirror is not None and self.atomic:
            raise InvalidArgumentError(
                "a mirror allows no transactions: set atomic on its origin", argument="atomic"
            )

    def to_stream_config(self) -> StreamConfig:
        """Return the configuration of the stream that stores this bucket."""
        return StreamConfig(**{**DEFAULTS, **self.stream_fields()})

    def stream_fields(self) -> dict[str, Any]:
        """Return the fields of the stream that this configuration sets."""
        own = self.mirror is None
        # With a ttl of 0, values never expire.
        longest = DUPLICATE_WINDOW if self.ttl == 0.0 else self.ttl
        return common_fields(
            self,
            name=STREAM_PREFIX + self.bucket,
            subjects=[subjects_of(self.bucket)] if own else None,
            mirror=self.mirror,
            mirror_direct=None if own else True,
            sources=[*map(self._drawn_from, self.sources or ())] or None,
            duplicate_window=longest and min(longest, DUPLICATE_WINDOW),
            max_msgs_per_subject=self.history,
            max_msg_size=limit_of(self.max_value_size),
            republish=self.republish,
            allow_msg_ttl=True if self.limit_marker_ttl else None,
            subject_delete_marker_ttl=self.limit_marker_ttl if own else None,
            allow_atomic=self.atomic,
        )

    def _drawn_from(self, source: StreamSource) -> StreamSource:
        """Return a source with a transform of its keys into keys of this bucket."""
        name = (source.name or "").removeprefix(STREAM_PREFIX)
        if source.subject_transforms or (source.external is not None and name == self.bucket):
            return source
        transform = SubjectTransform(src=subjects_of(name), dest=subjects_of(self.bucket))
        return attrs.evolve(source, subject_transforms=[transform])


def limit_of(number: int | None) -> int | None:
    """Return a limit as streams have it. 0 means none here, and there -1."""
    return UNLIMITED if number == 0 else number


def common_fields(config: Any, **fields: Any) -> dict[str, Any]:
    """
    Return the fields of the stream of a bucket or an object store that its configuration sets.

    Args:
        config: The configuration.
        **fields: The fields that only one of the two kinds sets; None sets none.
    """
    fields |= {
        "description": config.description,
        "max_bytes": limit_of(config.max_bytes),
        "max_age": config.ttl,
        "storage": config.storage,
        "num_replicas": config.num_replicas,
        "placement": config.placement,
        "metadata": config.metadata,
    }
    if config.compression is not None:
        fields["compression"] = StoreCompression.S2 if config.compression else StoreCompression.NONE
    return {name: value for name, value in fields.items() if value is not None}


@attrs.frozen
class KeyValueStatus:
    """
    The status of a bucket at the time of the request.
    """

    # For notebooks.
    _repr_html_ = html_table

    bucket: str
    """Name of the bucket."""

    stream_info: StreamInfo
    """The stream that stores the bucket."""

    @property
    def values(self) -> int:
        """Number of stored revisions, including markers."""
        return self.stream_info.state.messages

    @property
    def bytes(self) -> int:
        """Size of the stored revisions in bytes."""
        return self.stream_info.state.bytes

    @property
    def last_revision(self) -> int:
        """Revision of the last change; 0 if there was none."""
        return self.stream_info.state.last_seq

    @property
    def history(self) -> int:
        """Number of revisions that are kept per key."""
        return self.stream_info.config.max_msgs_per_subject or 1

    @property
    def ttl(self) -> float | None:
        """Seconds for which a revision is kept; None for no limit."""
        return self.stream_info.config.max_age or None

    @property
    def limit_marker_ttl(self) -> float | None:
        """Seconds for which markers of expired values are kept; None if there are none."""
        return self.stream_info.config.subject_delete_marker_ttl or None

    @property
    def is_compressed(self) -> bool:
        """Whether the files are compressed."""
        return self.stream_info.config.compression not in {None, StoreCompression.NONE}

    @property
    def allows_ttl(self) -> bool:
        """Whether the bucket allows a time-to-live per key."""
        return bool(self.stream_info.config.allow_msg_ttl)

    @property
    def allows_atomic(self) -> bool:
        """Whether the bucket allows transactions."""
        return bool(self.stream_info.config.allow_atomic)
