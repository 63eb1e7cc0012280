"""
What a key-value bucket is, as its stream is configured and as it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict

import attrs

from jetsync._base.fields import checked, duration
from jetsync._proto.kv import STREAM_PREFIX, check_bucket, subjects_of
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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync._base.deadline import Seconds
    from jetsync.values.stream_config import StorageTypeInput

__all__ = ["KeyValueConfig", "KeyValueFields", "KeyValueStatus"]

LONGEST_HISTORY: Final = 64
"""Revisions of a key that a bucket keeps at most (ADR-8)."""

DUPLICATE_WINDOW: Final = 120.0
"""Seconds of the duplicate window of every bucket, unless values live shorter."""

UNLIMITED: Final = -1


def _source(value: StreamSource | str | None) -> StreamSource | None:
    """Take another bucket by its name, or as a source whose name may be that of the stream."""
    if value is None:
        return None
    source = StreamSource(name=value) if isinstance(value, str) else value
    if not isinstance(source, StreamSource):
        raise InvalidTypeError(f"a bucket or StreamSource is needed, not {type(value).__name__}")
    name = source.name or ""
    if not name.startswith(STREAM_PREFIX):
        source = attrs.evolve(source, name=STREAM_PREFIX + name)
    check_bucket((source.name or "").removeprefix(STREAM_PREFIX))
    return source


def _sources(value: Iterable[StreamSource | str] | None) -> tuple[StreamSource, ...] | None:
    if value is None:
        return None
    if isinstance(value, (str, StreamSource)):
        raise InvalidTypeError("a list of buckets is needed")
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
    What a bucket is (ADR-8); laid out as other clients do, so that all can share it.
    """

    bucket: str = attrs.field(converter=check_bucket)
    """Its name: letters, digits, ``-`` and ``_``. Can not be changed."""

    description: str | None = None
    """Free text."""

    history: int | None = None
    """Revisions that are kept of each key, 1 to 64; None is one."""

    ttl: float | None = attrs.field(default=None, converter=duration)
    """Seconds that a revision is kept; None or 0 for no limit."""

    max_value_size: int | None = None
    """Bytes of the largest value, headers included; None or 0 for no limit."""

    max_bytes: int | None = None
    """Bytes of the whole bucket, which refuses what is too much; None or 0 for no limit."""

    storage: StorageType | None = attrs.field(default=None, converter=storage_type)
    """Where it is kept; None is on disk. Can not be changed."""

    num_replicas: int | None = None
    """Servers that keep a copy; None is one."""

    placement: Placement | None = None
    """On which servers."""

    republish: Republish | None = None
    """Where changes are sent again as core NATS messages."""

    mirror: StreamSource | None = attrs.field(default=None, converter=_source)
    """The bucket that this one is a copy of, by name or as a source; writes go there."""

    sources: tuple[StreamSource, ...] | None = attrs.field(default=None, converter=_sources)
    """Buckets whose changes are drawn in, by name or as sources."""

    compression: bool | None = None
    """Compress its files."""

    metadata: dict[str, str] | None = None
    """Free key-value pairs."""

    limit_marker_ttl: float | None = attrs.field(default=None, converter=duration)
    """
    Let keys have a time-to-live of their own, and leave a marker for so many seconds, at least 1,
    where a value expired (ADR-43, ADR-48); 0 leaves none. A mirror has the markers of its origin.
    Server 2.11 and later.
    """

    atomic: bool | None = None
    """
    Allow transactions (ADR-50). None allows them where the server can; True insists; False leaves
    them out, so that another client that creates the same bucket finds its own settings.
    """

    def __attrs_post_init__(self) -> None:
        history = self.history
        if history is not None and not 1 <= history <= LONGEST_HISTORY:
            raise InvalidArgumentError(
                f"history: must be 1 to {LONGEST_HISTORY}, not {history}", argument="history"
            )
        if self.limit_marker_ttl is not None and 0 < self.limit_marker_ttl < 1:
            raise InvalidArgumentError(
                "limit_marker_ttl: must be at least 1 second", argument="limit_marker_ttl"
            )
        if self.mirror is not None and self.sources:
            raise InvalidArgumentError("a bucket has a mirror or sources, not both")
        if self.mirror is not None and self.atomic:
            raise InvalidArgumentError(
                "transactions are made in the bucket that is mirrored", argument="atomic"
            )

    def to_stream_config(self, *, atomic: bool) -> StreamConfig:
        """
        Return the stream that is this bucket.

        Args:
            atomic: Whether to allow transactions where :attr:`atomic` leaves that open.
        """
        wanted: dict[str, Any] = {}
        if self.limit_marker_ttl:
            wanted["allow_msg_ttl"] = True
            if self.mirror is None:
                wanted["subject_delete_marker_ttl"] = self.limit_marker_ttl
        if self.mirror is not None:
            wanted |= {"mirror": self.mirror, "mirror_direct": True}
        else:
            wanted["subjects"] = [subjects_of(self.bucket)]
            if self.atomic or (self.atomic is None and atomic):
                wanted["allow_atomic"] = True
        if self.sources:
            wanted["sources"] = [self._drawn_from(source) for source in self.sources]
        if self.compression is not None:
            wanted["compression"] = (
                StoreCompression.S2 if self.compression else StoreCompression.NONE
            )
        return StreamConfig(
            name=STREAM_PREFIX + self.bucket,
            description=self.description,
            max_consumers=UNLIMITED,
            max_msgs=UNLIMITED,
            max_bytes=self.max_bytes or UNLIMITED,
            max_age=self.ttl or 0.0,
            max_msgs_per_subject=self.history or 1,
            max_msg_size=self.max_value_size or UNLIMITED,
            discard=DiscardPolicy.NEW,
            storage=self.storage or StorageType.FILE,
            num_replicas=self.num_replicas or 1,
            duplicate_window=min(self.ttl or DUPLICATE_WINDOW, DUPLICATE_WINDOW),
            placement=self.placement,
            republish=self.republish,
            metadata=self.metadata,
            allow_direct=True,
            allow_rollup_hdrs=True,
            deny_delete=True,
            **wanted,
        )

    def _drawn_from(self, source: StreamSource) -> StreamSource:
        """Return a source whose keys become keys of this bucket."""
        name = (source.name or "").removeprefix(STREAM_PREFIX)
        if source.subject_transforms or (source.external is not None and name == self.bucket):
            return source
        transform = SubjectTransform(src=subjects_of(name), dest=subjects_of(self.bucket))
        return attrs.evolve(source, subject_transforms=[transform])


@attrs.frozen
class KeyValueStatus:
    """
    A bucket as it stood when it was asked after.
    """

    bucket: str
    """Its name."""

    stream_info: StreamInfo
    """The stream behind it."""

    @property
    def values(self) -> int:
        """How many revisions it has, markers of deleted keys included."""
        return self.stream_info.state.messages

    @property
    def bytes(self) -> int:
        """How many bytes they take."""
        return self.stream_info.state.bytes

    @property
    def last_revision(self) -> int:
        """The revision of its last change, 0 if there was none."""
        return self.stream_info.state.last_seq

    @property
    def history(self) -> int:
        """How many revisions of each key are kept."""
        return self.stream_info.config.max_msgs_per_subject or 1

    @property
    def ttl(self) -> float | None:
        """How many seconds a revision is kept; None for no limit."""
        return self.stream_info.config.max_age or None

    @property
    def limit_marker_ttl(self) -> float | None:
        """How many seconds markers of expired values stay; None where there are none."""
        return self.stream_info.config.subject_delete_marker_ttl or None

    @property
    def is_compressed(self) -> bool:
        """Whether its files are compressed."""
        return self.stream_info.config.compression not in {None, StoreCompression.NONE}

    @property
    def allows_ttl(self) -> bool:
        """Whether keys may have a time-to-live of their own."""
        return bool(self.stream_info.config.allow_msg_ttl)

    @property
    def allows_atomic(self) -> bool:
        """Whether it takes transactions."""
        return bool(self.stream_info.config.allow_atomic)
