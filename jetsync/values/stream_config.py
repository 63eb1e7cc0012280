"""
The configuration of a stream, every field of servers 2.10 to 2.15.

Field names are those of the server. Fields that are ``None`` are not sent, and the server uses its
defaults, on updates too, because an update replaces the whole configuration. ``False``,
``0`` and ``[]`` are sent. Fields from a server that this version does not know are kept in
``extra`` and sent back with the next update.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

import attrs

from jetsync._base.fields import Choice, checked, choose, duration
from jetsync.errors import InvalidArgumentError
from jetsync.values.codec import COUNT, SIGNED_32, UNSIGNED, ConfigModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync._base.deadline import Seconds

__all__ = [
    "ConsumerLimits",
    "DiscardPolicy",
    "ExternalStream",
    "PersistMode",
    "Placement",
    "Republish",
    "RetentionPolicy",
    "SourceConsumer",
    "StorageType",
    "StoreCompression",
    "StreamConfig",
    "StreamFields",
    "StreamSource",
    "SubjectTransform",
]


# Default lifetime of limit markers, in seconds.
MARKER_TTL: Final = 60.0


class RetentionPolicy(Choice):
    """
    When a stream removes messages, apart from its limits.
    """

    LIMITS = "limits"
    """Never: only the limits remove messages. The server's default."""
    INTEREST = "interest"
    """
    When all consumers have acknowledged a message; immediately if no consumer's filter matches it.
    """
    WORKQUEUE = "workqueue"
    """When one consumer has acknowledged a message."""


class StorageType(Choice):
    """
    Where a stream keeps its messages.
    """

    FILE = "file"
    """On disk. The server's default."""
    MEMORY = "memory"
    """In memory. Lost when the server stops."""


class DiscardPolicy(Choice):
    """
    How a stream treats a message that would exceed one of its limits.
    """

    OLD = "old"
    """The oldest messages are removed. The server's default."""
    NEW = "new"
    """The new message is refused."""


class StoreCompression(Choice):
    """
    How the files of a stream are compressed.
    """

    NONE = "none"
    """Not at all. The server's default."""
    S2 = "s2"
    """With S2, an extension of Snappy."""


class PersistMode(Choice):
    """
    When the server flushes a stored message to disk. Server 2.12 and later.
    """

    DEFAULT = "default"
    """As the server is configured. Servers omit this value in their answers."""
    ASYNC = "async"
    """After the acknowledgement. Faster, but a crash may lose the last messages."""


@attrs.define(repr=False, field_transformer=checked)
class Placement(ConfigModel):
    """
    Which servers store a stream.
    """

    cluster: str | None = None
    """Name of the cluster."""

    tags: list[str] | None = None
    """Tags. Only servers that have all of them store the stream."""

    preferred: str | None = None
    """
    Server that should become the leader. Only for a request that asks the present leader to step
    down. Servers from 2.11 on refuse it in the configuration of a stream.
    """


@attrs.define(repr=False, field_transformer=checked)
class SubjectTransform(ConfigModel):
    """
    A rule that rewrites subjects: those that match ``src`` become ``dest``.
    """

    src: str | None = None
    """Subject or wildcard to match; empty matches all."""

    dest: str | None = None
    """The new subject; may contain mappings such as ``{{wildcard(1)}}``."""


@attrs.define(repr=False, field_transformer=checked)
class ExternalStream(ConfigModel):
    """
    How the server reaches a stream in another account or domain.
    """

    api: str | None = None
    """Prefix of the JetStream API there, such as ``$JS.hub.API``."""

    deliver: str | None = None
    """Prefix of the subjects on which the messages are delivered here."""


@attrs.define(repr=False, field_transformer=checked)
class SourceConsumer(ConfigModel):
    """
    An existing consumer of the other stream, through which a mirror or source reads it. Server 2.14
    and later.
    """

    name: str | None = None
    """Name of the consumer on the other stream."""

    deliver_subject: str | None = None
    """Subject to which the consumer delivers."""


@attrs.define(repr=False, field_transformer=checked)
class StreamSource(ConfigModel):
    """
    Another stream that this one mirrors or copies messages from.
    """

    name: str | None = None
    """Name of the other stream."""

    opt_start_seq: int | None = attrs.field(default=None, metadata=UNSIGNED)
    """First sequence to copy."""

    opt_start_time: dt.datetime | None = None
    """Time of the first message to copy, an aware datetime."""

    filter_subject: str | None = None
    """Copy only messages of this subject or wildcard."""

    subject_transforms: list[SubjectTransform] | None = None
    """
    How the server rewrites subjects; the first match applies. Cannot be combined with
    ``filter_subject``.
    """

    external: ExternalStream | None = None
    """Location of the other stream, if it is in another account or domain."""

    consumer: SourceConsumer | None = None
    """Consumer to read from. Server 2.14 and later."""


@attrs.define(repr=False, field_transformer=checked)
class Republish(ConfigModel):
    """
    Which stored messages the server publishes again as core NATS messages.
    """

    src: str | None = None
    """Subject or wildcard to republish; empty means all."""

    dest: str | None = None
    """Subject to publish to; may contain mappings."""

    headers_only: bool | None = None
    """Leave out the payload. The header ``Nats-Msg-Size`` has its size."""


@attrs.define(repr=False, field_transformer=checked)
class ConsumerLimits(ConfigModel):
    """
    Defaults and upper bounds for the consumers of a stream.
    """

    inactive_threshold: float | None = attrs.field(default=None, converter=duration)
    """Seconds of inactivity after which the server deletes a consumer."""

    max_ack_pending: int | None = None
    """Maximum number of unacknowledged messages of a consumer."""


RetentionPolicyInput: TypeAlias = RetentionPolicy | Literal["limits", "interest", "workqueue"]


def _retention(value: RetentionPolicyInput | None) -> RetentionPolicy | None:
    return choose(RetentionPolicy, value)


StorageTypeInput: TypeAlias = StorageType | Literal["file", "memory"]


def storage_type(value: StorageTypeInput | None) -> StorageType | None:
    """Return the storage type that a word names."""
    return choose(StorageType, value)


DiscardPolicyInput: TypeAlias = DiscardPolicy | Literal["old", "new"]


def _discard(value: DiscardPolicyInput | None) -> DiscardPolicy | None:
    return choose(DiscardPolicy, value)


StoreCompressionInput: TypeAlias = StoreCompression | Literal["none", "s2"]


def _compression(value: StoreCompressionInput | None) -> StoreCompression | None:
    return choose(StoreCompression, value)


PersistModeInput: TypeAlias = PersistMode | Literal["default", "async"]


def _persist_mode(value: PersistModeInput | None) -> PersistMode | None:
    return choose(PersistMode, value)


class StreamFields(TypedDict, total=False):
    """
    The fields of :class:`StreamConfig` as keywords, for type checkers.
    """

    description: str | None
    subjects: list[str] | None
    retention: RetentionPolicyInput | None
    max_consumers: int | None
    max_msgs: int | None
    max_bytes: int | None
    max_age: Seconds | None
    max_msgs_per_subject: int | None
    max_msg_size: int | None
    discard: DiscardPolicyInput | None
    storage: StorageTypeInput | None
    num_replicas: int | None
    no_ack: bool | None
    duplicate_window: Seconds | None
    placement: Placement | None
    mirror: StreamSource | None
    sources: list[StreamSource] | None
    compression: StoreCompressionInput | None
    first_seq: int | None
    subject_transform: SubjectTransform | None
    republish: Republish | None
    allow_direct: bool | None
    mirror_direct: bool | None
    discard_new_per_subject: bool | None
    sealed: bool | None
    deny_delete: bool | None
    deny_purge: bool | None
    allow_rollup_hdrs: bool | None
    consumer_limits: ConsumerLimits | None
    metadata: dict[str, str] | None
    allow_msg_ttl: bool | None
    subject_delete_marker_ttl: Seconds | None
    allow_atomic: bool | None
    allow_msg_counter: bool | None
    allow_msg_schedules: bool | None
    persist_mode: PersistModeInput | None
    allow_batched: bool | None
    template_owner: str | None
    extra: dict[str, Any]


@attrs.define(kw_only=True, repr=False, field_transformer=checked)
class StreamConfig(ConfigModel):
    """
    The configuration of a stream. Fields that are ``None`` are not sent.

    Fields whose type is an enumeration also accept its values as strings. Fields with a duration
    accept seconds or a ``timedelta``, and store it as seconds (``float``). Values of a wrong type
    raise an error here, before anything is sent.
    """

    name: str | None = None
    """Name of the stream, without spaces, dots, ``*``, ``>`` and slashes. Cannot be changed."""

    description: str | None = None
    """Free text, up to 4 KiB."""

    subjects: list[str] | None = None
    """Subjects and wildcards that the stream stores. The default is the name of the stream."""

    retention: RetentionPolicy | None = attrs.field(default=None, converter=_retention)
    """When messages are removed, apart from the limits."""

    max_consumers: int | None = None
    """Maximum number of consumers; -1 for no limit."""

    max_msgs: int | None = None
    """Maximum number of messages; -1 for no limit."""

    max_bytes: int | None = None
    """Maximum size in bytes; -1 for no limit."""

    max_age: float | None = attrs.field(default=None, converter=duration)
    """Seconds for which a message is kept, at least 0.1; 0 for no limit."""

    max_msgs_per_subject: int | None = None
    """Maximum number of messages per subject; -1 for no limit."""

    max_msg_size: int | None = attrs.field(default=None, metadata=SIGNED_32)
    """Maximum message size in bytes, including headers; -1 for no limit."""

    discard: DiscardPolicy | None = attrs.field(default=None, converter=_discard)
    """Which messages are dropped at a limit: the oldest or the new ones."""

    storage: StorageType | None = attrs.field(default=None, converter=storage_type)
    """Where messages are stored. Cannot be changed."""

    num_replicas: int | None = attrs.field(default=None, metadata=COUNT)
    """Number of replicas: 1, 3 or 5."""

    no_ack: bool | None = None
    """Do not acknowledge publishes. A publish that waits for an ack then times out."""

    duplicate_window: float | None = attrs.field(default=None, converter=duration)
    """
    Seconds for which the stream remembers message ids. The server's default is 120, or ``max_age``
    if that is shorter.
    """

    placement: Placement | None = None
    """The servers that store the stream."""

    mirror: StreamSource | None = None
    """The stream that this one mirrors."""

    sources: list[StreamSource] | None = None
    """Streams to copy messages from, in addition to the stream's own subjects."""

    compression: StoreCompression | None = attrs.field(default=None, converter=_compression)
    """How files are compressed."""

    first_seq: int | None = attrs.field(default=None, metadata=UNSIGNED)
    """Sequence of the first message. Cannot be changed."""

    subject_transform: SubjectTransform | None = None
    """How the server rewrites subjects before it stores messages."""

    republish: Republish | None = None
    """How the server also publishes stored messages as core NATS messages."""

    allow_direct: bool | None = None
    """Allow *direct gets*, reads that any replica may answer (ADR-31). Off by default."""

    mirror_direct: bool | None = None
    """
    Let a mirror answer direct gets for its origin. The server sets it if the origin has
    ``allow_direct``.
    """

    discard_new_per_subject: bool | None = None
    """With ``discard="new"``, also refuse messages beyond ``max_msgs_per_subject``."""

    sealed: bool | None = None
    """
    Refuse all changes of the stream and its messages. Only an update can set it. Cannot be undone.
    """

    deny_delete: bool | None = None
    """Forbid deleting single messages. Cannot be undone."""

    deny_purge: bool | None = None
    """
    Forbid purging the stream. Cannot be undone. Cannot be combined with
    ``subject_delete_marker_ttl``.
    """

    allow_rollup_hdrs: bool | None = None
    """Allow the ``Nats-Rollup`` header. A message with it replaces earlier messages."""

    consumer_limits: ConsumerLimits | None = None
    """Defaults and limits for consumers."""

    metadata: dict[str, str] | None = None
    """Any key-value pairs. Server 2.11 and later add some of their own under ``_nats.``."""

    allow_msg_ttl: bool | None = None
    """
    Allow the ``Nats-TTL`` header (ADR-43). Cannot be undone: the server refuses an update that
    turns it off. Server 2.11 and later.
    """

    subject_delete_marker_ttl: float | None = attrs.field(default=None, converter=duration)
    """
    When the last message of a subject expires, store a *marker*, a message without payload, for
    this number of seconds, at least 1 (ADR-43). With this field, the server also sets
    ``allow_msg_ttl`` and ``allow_rollup_hdrs``. It creates the stream without ``deny_purge``, and
    refuses to update a stream that already has ``deny_purge``. Server 2.11 and later.
    """

    allow_atomic: bool | None = None
    """Allow atomic batches (ADR-50). Server 2.12.2 and later; use 2.12.5 or later."""

    allow_msg_counter: bool | None = None
    """Make every subject a counter. See :class:`Counter`. Server 2.12 and later."""

    allow_msg_schedules: bool | None = None
    """Allow messages that are published later or repeatedly. Server 2.12 and later."""

    persist_mode: PersistMode | None = attrs.field(default=None, converter=_persist_mode)
    """When the server flushes messages to disk. Server 2.12 and later."""

    allow_batched: bool | None = None
    """Allow fast ingest (ADR-50). Server 2.14 and later."""

    template_owner: str | None = None
    """Template of the stream. Servers up to 2.12 only; later servers refuse the field."""

    def lacks(self, *features: str) -> dict[str, Any]:
        """
        Return the fields that have to change for some features, with suitable values.

        The result is empty if nothing has to change. ``stream.update(**stream.config.lacks("ttl",
        "atomic"))`` enables both features, if the server supports them.

        Args:
            *features: ``"atomic"`` batches, ``"fast"`` ingest, ``"direct"`` reads, message
                ``"ttl"``, limit ``"markers"``, ``"rollup"``, ``"counters"``, ``"schedules"``.

        Raises:
            InvalidArgumentError: A feature is unknown.
        """
        wanted: dict[str, Any] = {}
        for feature in features:
            if feature not in _FEATURE_FIELDS:
                known = ", ".join(_FEATURE_FIELDS)
                raise InvalidArgumentError(
                    f"unknown feature {feature!r}; the features are {known}", argument="features"
                )
            for name, value in _FEATURE_FIELDS[feature].items():
                has = getattr(self, name)
                # Any marker lifetime is suitable, and unset means False.
                fits = bool(has) if isinstance(value, float) else (has or False) == value
                if not fits:
                    wanted[name] = value
        return wanted


# The configuration that each feature needs.
_FEATURE_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "atomic": {"allow_atomic": True},
    "counters": {"allow_msg_counter": True},
    "direct": {"allow_direct": True},
    "fast": {"allow_batched": True},
    "markers": {
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": MARKER_TTL,
        "allow_rollup_hdrs": True,
        "deny_purge": False,
    },
    "rollup": {"allow_rollup_hdrs": True},
    "schedules": {"allow_msg_schedules": True},
    "ttl": {"allow_msg_ttl": True},
}
