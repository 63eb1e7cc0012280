"""
The configuration of a stream, every field of servers 2.10 to 2.15.

Field names are the server's own. A field that is ``None`` is not set and not sent: the server uses
its default on create, and on update too, for an update replaces the whole configuration. Explicit
``False``, ``0`` and ``[]`` are sent. What a server sent and we do not know stays in ``extra`` and
goes back with the next update.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

import attrs

from jetsync._base.fields import Choice, checked, choose, duration
from jetsync.errors import InvalidArgumentError
from jetsync.values.codec import ConfigModel

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


MARKER_TTL: Final = 60.0
"""Seconds that limit markers stay where nothing else is said."""


class RetentionPolicy(Choice):
    """
    When a stream lets go of a message, besides its limits.
    """

    LIMITS = "limits"
    """Only the limits remove messages. The server's default."""
    INTEREST = "interest"
    """A message goes once all consumers have acknowledged it."""
    WORKQUEUE = "workqueue"
    """A message goes once one consumer has acknowledged it."""


class StorageType(Choice):
    """
    Where a stream keeps its messages.
    """

    FILE = "file"
    """On disk. The server's default."""
    MEMORY = "memory"
    """In memory; gone with the server process."""


class DiscardPolicy(Choice):
    """
    What happens to a message that would exceed a limit of its stream.
    """

    OLD = "old"
    """The oldest messages make room. The server's default."""
    NEW = "new"
    """The new message is refused."""


class StoreCompression(Choice):
    """
    How the files of a stream are compressed.
    """

    NONE = "none"
    """Not at all. The server's default."""
    S2 = "s2"
    """With S2, a fast relative of Snappy."""


class PersistMode(Choice):
    """
    When a stored message is flushed, on servers from 2.12 up.
    """

    DEFAULT = "default"
    """As the server is configured. A server does not echo this word."""
    ASYNC = "async"
    """After the acknowledgement; faster, and the last messages may be lost in a crash."""


@attrs.define(repr=False, field_transformer=checked)
class Placement(ConfigModel):
    """
    On which servers a stream lives.
    """

    cluster: str | None = None
    """Name of the cluster."""

    tags: list[str] | None = None
    """Tags that a server must have, all of them."""

    preferred: str | None = None
    """Server that should lead; for step-down requests only, a stream's own placement has none."""


@attrs.define(repr=False, field_transformer=checked)
class SubjectTransform(ConfigModel):
    """
    How subjects are rewritten: those that match ``src`` become ``dest``.
    """

    src: str | None = None
    """Subject or wildcard to match; empty matches all."""

    dest: str | None = None
    """What it becomes; may contain mappings such as ``{{wildcard(1)}}``."""


@attrs.define(repr=False, field_transformer=checked)
class ExternalStream(ConfigModel):
    """
    How a stream in another account or domain is reached.
    """

    api: str | None = None
    """Prefix of the other side's JetStream API, such as ``$JS.hub.API``."""

    deliver: str | None = None
    """Prefix of the subjects under which its messages are delivered here."""


@attrs.define(repr=False, field_transformer=checked)
class SourceConsumer(ConfigModel):
    """
    A consumer made beforehand that a mirror or source reads from; server 2.14 and later.
    """

    name: str | None = None
    """Name of the consumer on the other stream."""

    deliver_subject: str | None = None
    """Subject the consumer delivers to."""


@attrs.define(repr=False, field_transformer=checked)
class StreamSource(ConfigModel):
    """
    Another stream that this one mirrors or draws from.
    """

    name: str | None = None
    """Name of the other stream."""

    opt_start_seq: int | None = None
    """First sequence to take."""

    opt_start_time: dt.datetime | None = None
    """Time of the first message to take; aware."""

    filter_subject: str | None = None
    """Take only messages under this subject or wildcard."""

    subject_transforms: list[SubjectTransform] | None = None
    """How subjects are rewritten on the way; the first match wins. Excludes ``filter_subject``."""

    external: ExternalStream | None = None
    """Where the other stream is, if not in this account and domain."""

    consumer: SourceConsumer | None = None
    """Consumer to read through. Server 2.14 and later."""


@attrs.define(repr=False, field_transformer=checked)
class Republish(ConfigModel):
    """
    Send every stored message again as a core NATS message.
    """

    src: str | None = None
    """Which subjects; empty means all."""

    dest: str | None = None
    """Subject to send to; may contain mappings."""

    headers_only: bool | None = None
    """Leave the payload out and send its size in a header."""


@attrs.define(repr=False, field_transformer=checked)
class ConsumerLimits(ConfigModel):
    """
    Defaults and upper bounds for the consumers of a stream.
    """

    inactive_threshold: float | None = attrs.field(default=None, converter=duration)
    """Seconds without activity until a consumer is removed."""

    max_ack_pending: int | None = None
    """Messages that a consumer may have unacknowledged."""


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
    What a stream is; see the module for what ``None`` means.

    Enumerations take their plain string too, durations take seconds or a ``timedelta`` and hold
    float seconds. A value of a wrong type is refused here, before anything is sent.
    """

    name: str | None = None
    """Name of the stream: no blanks, dots, ``*``, ``>`` or slashes. Can not be changed."""

    description: str | None = None
    """Free text, up to 4 KiB."""

    subjects: list[str] | None = None
    """Subjects and wildcards that the stream takes. None at all means its name, or a mirror."""

    retention: RetentionPolicy | None = attrs.field(default=None, converter=_retention)
    """When messages go, besides the limits."""

    max_consumers: int | None = None
    """Consumers that may exist; -1 for no limit."""

    max_msgs: int | None = None
    """Messages that are kept; -1 for no limit."""

    max_bytes: int | None = None
    """Bytes that are kept; -1 for no limit."""

    max_age: float | None = attrs.field(default=None, converter=duration)
    """Seconds that a message is kept, at least 0.1; 0 for no limit."""

    max_msgs_per_subject: int | None = None
    """Messages that are kept under one subject; -1 for no limit."""

    max_msg_size: int | None = None
    """Bytes of the largest message, headers included; -1 for no limit."""

    discard: DiscardPolicy | None = attrs.field(default=None, converter=_discard)
    """Which message gives way at a limit."""

    storage: StorageType | None = attrs.field(default=None, converter=storage_type)
    """Where messages are kept. Can not be changed."""

    num_replicas: int | None = None
    """Servers that keep a copy: 1, 3 or 5."""

    no_ack: bool | None = None
    """Do not acknowledge publishes. A publish that waits for one then times out."""

    duplicate_window: float | None = attrs.field(default=None, converter=duration)
    """Seconds in which a message id is remembered; the server's default is 120, or ``max_age``."""

    placement: Placement | None = None
    """On which servers the stream lives."""

    mirror: StreamSource | None = None
    """The stream that this one is a copy of."""

    sources: list[StreamSource] | None = None
    """Streams that this one draws from, besides its own subjects."""

    compression: StoreCompression | None = attrs.field(default=None, converter=_compression)
    """How files are compressed."""

    first_seq: int | None = None
    """Sequence of the first message. Can not be changed."""

    subject_transform: SubjectTransform | None = None
    """How subjects are rewritten before storing."""

    republish: Republish | None = None
    """Where stored messages are sent again."""

    allow_direct: bool | None = None
    """Let any replica answer reads (ADR-31). Off unless asked for."""

    mirror_direct: bool | None = None
    """Let a mirror answer reads for its upstream. A mirror inherits it, even against ``False``."""

    discard_new_per_subject: bool | None = None
    """With ``discard`` new, hold ``max_msgs_per_subject`` against new messages too."""

    sealed: bool | None = None
    """Nothing comes in or goes out any more. Only by an update, and for good."""

    deny_delete: bool | None = None
    """Messages can not be deleted one by one. Can not be taken back."""

    deny_purge: bool | None = None
    """The stream can not be purged. Can not be taken back."""

    allow_rollup_hdrs: bool | None = None
    """Let a message replace all before it, with the ``Nats-Rollup`` header."""

    consumer_limits: ConsumerLimits | None = None
    """Defaults and bounds for consumers."""

    metadata: dict[str, str] | None = None
    """Free key-value pairs. Servers from 2.11 up add some of their own under ``_nats.``."""

    allow_msg_ttl: bool | None = None
    """
    Take the ``Nats-TTL`` header (ADR-43). Can not be taken back, and an update that leaves it out
    fails. Server 2.11 and later.
    """

    subject_delete_marker_ttl: float | None = attrs.field(default=None, converter=duration)
    """
    Seconds, at least 1, that a marker stays where the last message of a subject expired (ADR-43).
    Sets ``allow_msg_ttl`` and ``allow_rollup_hdrs`` and clears ``deny_purge``. Server 2.11 and
    later.
    """

    allow_atomic: bool | None = None
    """Take atomic batches (ADR-50). Server 2.12 and later; 2.12.5 is the first sound one."""

    allow_msg_counter: bool | None = None
    """Every subject is a counter, moved by the ``Nats-Incr`` header. Server 2.12 and later."""

    allow_msg_schedules: bool | None = None
    """Take messages that are to be published later or repeatedly. Server 2.12 and later."""

    persist_mode: PersistMode | None = attrs.field(default=None, converter=_persist_mode)
    """When messages are flushed. Server 2.12 and later."""

    allow_batched: bool | None = None
    """Take fast ingest (ADR-50). Server 2.14 and later."""

    template_owner: str | None = None
    """Template that made the stream. Servers up to 2.12 only, refused by later ones."""

    def lacks(self, *features: str) -> dict[str, Any]:
        """
        Return the fields that stand in the way of features, each with a value that would do.

        Empty if nothing does: ``stream.update(**stream.config.lacks("ttl", "atomic"))`` makes a
        stream fit. Whether the server can do it is another question, which it answers then.

        Args:
            *features: ``"atomic"`` batches, ``"fast"`` ingest, ``"direct"`` reads, message
                ``"ttl"``, limit ``"markers"``, ``"rollup"``, ``"counters"``, ``"schedules"``.

        Raises:
            InvalidArgumentError: There is no such feature.
        """
        wanted: dict[str, Any] = {}
        for feature in features:
            if feature not in _NEEDS:
                known = ", ".join(_NEEDS)
                raise InvalidArgumentError(
                    f"no feature {feature!r}: there are {known}", argument="features"
                )
            for name, value in _NEEDS[feature].items():
                has = getattr(self, name)
                # Any time will do for markers, and what is not set is as good as False.
                fits = bool(has) if isinstance(value, float) else (has or False) == value
                if not fits:
                    wanted[name] = value
        return wanted


_NEEDS: Final[Mapping[str, Mapping[str, Any]]] = {
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
"""What the features of a stream need of its configuration."""
