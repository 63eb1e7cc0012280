"""
The state that all handles of a bucket share, and the basic operations on its stream.
"""

from __future__ import annotations

import contextlib
import copy
import secrets
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from jetsync import errors
from jetsync._api.context import Context
from jetsync._api.mirrors import TRANSIENT
from jetsync._api.replica_or_leader import leader_get, shown_by
from jetsync._base.fields import check_count
from jetsync._proto.keys import STREAM_PREFIX, check_key, check_pattern, layout_of, why_gone
from jetsync._proto.outcome import Again, cause_of, outcome_of
from jetsync.kv.codecs import reason_of
from jetsync.kv.entry import stored_entry
from jetsync.publish.one import publish_one
from jetsync.read.direct import end_by
from jetsync.stream import Stream
from jetsync.values.headers import MSG_ID
from jetsync.values.outbound import Expect, OutboundMessage
from jetsync.values.server_versions import api_level_of
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Self

    from jetsync._base.deadline import Deadline, Seconds
    from jetsync.kv.codecs import Codecs
    from jetsync.kv.entry import Entry
    from jetsync.read.direct import DirectBatch
    from jetsync.values.headers import HeadersInput
    from jetsync.values.stream_config import StreamConfig
    from jetsync.values.stream_info import StreamInfo


Kinds: TypeAlias = "Mapping[type[object], Callable[[str], Exception]]"


class Named:
    """
    Replaces the errors of a stream by those of the bucket or the object store that it stores.

    Not a function with ``contextlib.contextmanager``, because each put of an object enters it four
    times.

    Args:
        name: The name of the bucket or the object store.
        kinds: The classes of its errors, by those of the stream's errors.
    """

    __slots__ = ("_kinds", "_name")

    def __init__(self, name: str, kinds: Kinds) -> None:
        self._name = name
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        # By the very class, because an error of the bucket is one of its stream, too.
        kind = self._kinds.get(type(error))
        if kind is not None:
            raise kind(self._name) from error


_NAMES: Final[Kinds] = {errors.StreamNotFoundError: errors.BucketNotFoundError}


class Bucket:
    """
    The state that all handles of one bucket share, and the codecs of one of them. Thread-safe.
    """

    __slots__ = (
        "codecs",
        "context",
        "layout",
        "name",
        "named",
        "origin",
        "origin_named",
        "stored_key",
        "stored_pattern",
        "stream",
    )

    def __init__(self, context: Context, name: str, info: StreamInfo) -> None:
        self.name: str = name
        self.context: Context = context
        self.stream: Stream = Stream(context, info)
        self.layout: Final = layout_of(name, info.config, context.prefix)
        self.origin: Context = context
        """The context for requests to the origin stream, which stores written values."""

        # For requests to the two streams.
        self.named: Named = Named(name, _NAMES)
        origin = self.layout.origin_stream.removeprefix(STREAM_PREFIX)
        self.origin_named: Named = Named(origin, _NAMES)
        self.codecs: Codecs | None = None
        # Check a key or a pattern, and return its stored form.
        self.stored_key: Callable[[str], str] = check_key
        self.stored_pattern: Callable[[str], str] = check_pattern
        if self.layout.origin_api != context.prefix:
            self.origin = Context(
                context.connection,
                prefix=self.layout.origin_api,
                domain=None,
                default_timeout=context.default_timeout,
            )

    def with_codecs(self, codecs: Codecs) -> Self:
        """Return the same bucket with other codecs."""
        other = copy.copy(self)
        other.codecs = codecs
        other.stored_key, other.stored_pattern = codecs.stored_key, codecs.stored_pattern
        return other

    def shown(self, entry: Entry[Any], *, with_value: bool = True) -> Entry[Any]:
        """
        Return a stored entry with its key and its value as the codecs show them.

        Raises:
            DecodeError: A codec cannot decode it.
        """
        if self.codecs is None:
            return entry
        what, key, value = "key", entry.key, entry.value
        try:
            key = self.codecs.shown_key(entry.key)
            if with_value and self.codecs.values is not None and not entry.is_deleted:
                what = "value"
                value = self.codecs.values.decode(key, value)
        except Exception as error:
            raise errors.DecodeError(
                what,
                reason_of(error),
                subject=self.layout.read_prefix + entry.key,
                stream=self.stream.name,
                sequence=entry.revision,
                bucket=self.name,
                key=key,
            ) from error
        return attrs.evolve(entry, key=key, value=value)

    def all_shown(
        self, entries: Iterable[Entry[Any]], *, with_value: bool = True
    ) -> list[Entry[Any]]:
        """Return the entries that the codecs can decode; see ``on_undecodable`` of the codecs."""
        found = []
        for entry in entries:
            try:
                found.append(self.shown(entry, with_value=with_value))
            except errors.DecodeError as error:
                self.report(error)
        return found

    def readable(self, stored: str) -> str:
        """Return the key of a stored one for an error; the stored one if it cannot be decoded."""
        with contextlib.suppress(Exception):
            return stored if self.codecs is None else self.codecs.shown_key(stored)
        return stored

    def report(self, error: errors.DecodeError) -> None:
        """Tell the caller's function that an entry is left out, or raise the error."""
        assert self.codecs is not None
        if self.codecs.on_undecodable is None:
            raise error
        self.codecs.on_undecodable(error)

    @property
    def config(self) -> StreamConfig:
        """The configuration of the bucket's stream, as the server last sent it."""
        return self.stream.config

    def gone(self, reason: str | None) -> errors.BucketNotFoundError:
        """Return the error for a watch that ends because there is no such bucket."""
        return errors.BucketNotFoundError(self.name, reason=reason)

    def not_found(
        self, key: str, entry: Entry | None = None, *, revision: int | None = None
    ) -> errors.KeyNotFoundError:
        """Return the error for a key without a value; *entry* is the key's marker, if any."""
        if entry is None:
            return errors.KeyNotFoundError(self.name, key, revision=revision)
        return errors.KeyNotFoundError(
            self.name,
            key,
            revision=revision,
            deleted_at=entry.revision,
            reason=why_gone(entry.operation, entry.marker),
        )

    def last_at_origin(self, key: str, deadline: Deadline) -> Entry | None:
        """
        Return the last revision of a key, which may be a marker; None if there is none.

        The leader of the origin stream answers, so the result is up to date. The entry is as it is
        stored, and not as the codecs show it.
        """
        layout, stored = self.layout, self.stored_key(key)
        request = {"last_by_subj": layout.origin_subject(stored)}
        try:
            with self.origin_named:
                found = leader_get(self.origin, layout.origin_stream, request, deadline)
        except errors.MessageNotFoundError:
            return None
        show = shown_by(self.context)
        return stored_entry(self.name, stored, found if show is None else show(found))

    def snapshot(
        self, patterns: Sequence[str], moment: Mapping[str, Any], deadline: Deadline
    ) -> tuple[dict[str, Entry], DirectBatch]:
        """
        Read the last revisions of keys once; the batch says which are missing.

        Args:
            patterns: Stored keys and patterns.
            moment: The arguments of ``Stream.get_last_for`` that say of which time.
            deadline: Deadline of the calling operation.
        """
        prefix = self.layout.read_prefix
        subjects = [prefix + pattern for pattern in patterns]
        found: dict[str, Entry] = {}
        with self.named:
            batch = self.stream.get_last_for(subjects, **moment, timeout=deadline.remaining())
            end_by(batch, deadline)
            for message in batch:
                if deadline.expired():
                    raise errors.RequestTimeoutError(subjects[0], deadline.total)
                key = message.subject.removeprefix(prefix)
                found[key] = stored_entry(self.name, key, message)
        return found, batch

    def write(
        self, key: str, value: Any, deadline: Deadline, *, looks: bool = False, **options: Any
    ) -> int:
        """
        Store a revision of a key, and return its number. See :meth:`change`.

        If a plugin decides about retries, the message gets an id, so that it can be sent again.
        With *looks*, it gets one without such a plugin, too. If its answer is lost, the id may show
        that it is stored.
        """
        message, storing = self.change(key, value, deadline, **options)
        may_repeat = self.context.plugins.retry is not None
        if self._remembers_ids(deadline) if may_repeat else looks:
            message = attrs.evolve(message, msg_id=secrets.token_hex(11))
        try:
            return publish_one(self.context, message, deadline, config=storing).sequence
        except errors.PublishOutcomeUnknownError as error:
            if message.msg_id is None:
                raise
            cause, sent = cause_of(error)
            if looks or outcome_of(cause, sent=sent, earlier=True).again is Again.LOOK:
                # Streams without replicas check expectations before they look for the id.
                revision = self._revision_of(message.msg_id, key, deadline)
                if revision is not None:
                    return revision
            # Another call has another id, so its advice would be wrong.
            raise errors.PublishOutcomeUnknownError(
                error.subject or "", timeout=error.timeout, reason=error.reason
            ) from error.__cause__
        except errors.NoStreamResponseError:
            self.check_exists(deadline)
            raise

    def _remembers_ids(self, deadline: Deadline) -> bool:
        """
        Return whether the stream remembers the id of a message until no copy of it can arrive.

        Half of the time is for a copy in flight. The window of another bucket's stream is unknown.
        """
        config = self.config
        window = config.duplicate_window
        return config.mirror is None and window is not None and deadline.total <= window / 2.0

    def _revision_of(self, msg_id: str, key: str, deadline: Deadline) -> int | None:
        """Return the last revision of a key if it has this id; None if it has not, or is unsure."""
        request = {"last_by_subj": self.layout.origin_subject(self.stored_key(key))}
        with contextlib.suppress(errors.JetSyncError):
            found = leader_get(self.origin, self.layout.origin_stream, request, deadline)
            if found.headers.get(MSG_ID) == msg_id:
                return found.sequence
        return None

    def change(
        self,
        key: str,
        value: Any,
        deadline: Deadline,
        *,
        headers: HeadersInput | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        last: int | None = None,
        creates: bool = False,
    ) -> tuple[OutboundMessage, StreamConfig | None]:
        """
        Return the message of a change. If it has a *ttl*, also return the configuration of the
        stream that will store it.

        Args:
            key: The key.
            value: The value.
            deadline: Deadline of the whole call.
            headers: The headers of a marker; None for a value.
            ttl: The time-to-live of the revision.
            last: The expected revision of the key; None expects nothing.
            creates: Whether the change expects that the key has no value.
        """
        subject = self.layout.write_prefix + self.stored_key(key)
        expect = storing = None
        if last is not None:
            check_count("last", last, 0)
            expect = Expect(last_subject_sequence=last)
        if ttl is not None:
            storing = self._require_ttl(ttl, deadline, replaces=headers is None and not creates)
        if headers is None and self.codecs is not None:
            value = self.codecs.stored_value(key, value)
        return OutboundMessage(subject, value, headers, None, ttl, expect), storing

    def _require_ttl(
        self, ttl: Seconds | Literal["never"], deadline: Deadline, *, replaces: bool
    ) -> StreamConfig:
        """
        Check *ttl*, and return the configuration of the stream that will store the revision.

        Args:
            ttl: The time-to-live.
            deadline: The deadline of the calling operation.
            replaces: Whether the revision is a value that may replace another one.

        Raises:
            InvalidTtlError: *ttl* is not a valid time-to-live, or the previous value would reappear
                when the new one expires (ADR-48).
            NotSupportedError: The server is older than 2.11.
            MessageTtlDisabledError: The bucket does not allow a time-to-live per key.
        """
        ttl_header(ttl)
        one_only = replaces and ttl != "never"
        config = self._storing(deadline, fresh=False)
        if not config.allow_msg_ttl or (one_only and config.max_msgs_per_subject != 1):
            # The stream may have been changed since its configuration was fetched.
            config = self._storing(deadline, fresh=True)
        if config.allow_msg_ttl:
            if one_only and config.max_msgs_per_subject != 1:
                raise errors.InvalidTtlError(
                    ttl,
                    f"bucket {self.name!r} keeps {config.max_msgs_per_subject} revisions per key,"
                    " so the previous value would reappear after that time: use create(), or"
                    " a bucket with history=1",
                )
            return config
        if not api_level_of(config.metadata):
            raise errors.NotSupportedError(
                "a time-to-live of a key",
                needs="server 2.11 or later (API level 1)",
                server=self.context.server.version,
            )
        raise errors.MessageTtlDisabledError(stream=self.layout.origin_stream)

    def _storing(self, deadline: Deadline, *, fresh: bool) -> StreamConfig:
        """Return the configuration of the stream that stores written values, from a cache."""
        if self.config.mirror is not None:
            with self.origin_named:
                name = self.layout.origin_stream
                return self.origin.streams.named(name, deadline, fresh=fresh).config
        if not fresh:
            return self.config
        with self.named:
            return self.stream.info(timeout=deadline.remaining()).config

    def check_exists(self, deadline: Deadline) -> None:
        """
        Raise BucketNotFoundError if a write failed because the bucket no longer exists.

        Return if jetsync cannot find out in time. The caller then raises the original error.
        """
        with self.origin_named, contextlib.suppress(*TRANSIENT):
            self.origin.streams.named(self.layout.origin_stream, deadline, fresh=True)
