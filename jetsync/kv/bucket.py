"""
A bucket as its handles share it: where its keys are, and the single steps of reading and writing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Literal

from jetsync._api.context import Context
from jetsync._api.messages import leader_get, shown_by
from jetsync._proto.kv import STREAM_PREFIX, layout_of, why_gone
from jetsync.errors import (
    BucketNotFoundError,
    JetStreamNotEnabledError,
    KeyNotFoundError,
    MessageNotFoundError,
    MessageTtlDisabledError,
    NoStreamResponseError,
    NotSupportedError,
    RequestTimeoutError,
    StreamNotFoundError,
    TransportError,
)
from jetsync.kv.entry import stored_entry
from jetsync.publish.one import publish_one
from jetsync.publish.ttl_floor import report_raised_ttl
from jetsync.stream import Stream
from jetsync.values.outbound import Expect, OutboundMessage
from jetsync.values.support import api_level_of
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetsync._base.deadline import Deadline, Seconds
    from jetsync.kv.entry import Entry
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import Payload
    from jetsync.values.stream_config import StreamConfig
    from jetsync.values.stream_info import StreamInfo


class Bucket:
    """
    What the handles of one bucket share; any thread.
    """

    __slots__ = ("context", "layout", "name", "origin", "stream")

    def __init__(self, context: Context, name: str, info: StreamInfo) -> None:
        self.name: str = name
        self.context: Context = context
        self.stream: Stream = Stream(context, info)
        self.layout: Final = layout_of(name, info.config, context.prefix)
        self.origin: Context = context
        """The context in which the stream is found that stores what is written."""

        if self.layout.origin_api != context.prefix:
            self.origin = Context(
                context.connection,
                prefix=self.layout.origin_api,
                domain=None,
                default_timeout=context.default_timeout,
            )

    @property
    def config(self) -> StreamConfig:
        """The bucket's stream as it was when it was asked after last."""
        return self.stream.config

    @contextlib.contextmanager
    def named(self, *, origin: bool = False) -> Iterator[None]:
        """
        Have an error about the missing stream say that there is no such bucket.

        Args:
            origin: Whether it is about the bucket that stores what is written.
        """
        try:
            yield
        except BucketNotFoundError:
            raise
        except StreamNotFoundError as error:
            name = self.layout.origin_stream.removeprefix(STREAM_PREFIX) if origin else self.name
            raise BucketNotFoundError(name) from error

    def not_found(
        self, key: str, entry: Entry | None = None, *, revision: int | None = None
    ) -> KeyNotFoundError:
        """Make the error of a key without a value; *entry* is what stands in its place."""
        if entry is None:
            return KeyNotFoundError(self.name, key, revision=revision)
        return KeyNotFoundError(
            self.name,
            key,
            revision=revision,
            deleted_at=entry.revision,
            reason=why_gone(entry.operation, entry.marker),
        )

    def last_at_origin(self, key: str, deadline: Deadline) -> Entry | None:
        """
        Return the last revision of a key, whatever it is, as the leader of the stream knows it that
        stores what is written; None if there is none.
        """
        layout = self.layout
        request = {"last_by_subj": layout.origin_subject(key)}
        try:
            with self.named(origin=True):
                found = leader_get(self.origin, layout.origin_stream, request, deadline)
        except MessageNotFoundError:
            return None
        show = shown_by(self.context)
        return stored_entry(self.name, key, found if show is None else show(found))

    def write(
        self,
        key: str,
        value: Payload,
        deadline: Deadline,
        *,
        headers: HeadersInput | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        last: int | None = None,
    ) -> int:
        """
        Store a revision of a key that was checked, and return its number.

        Args:
            key: The key.
            value: Its value.
            deadline: Of the whole call.
            headers: What it is, if it is no value.
            ttl: Its time-to-live.
            last: The revision that the key has to be at.
        """
        storing = None if ttl is None else self.require_ttl(ttl, deadline)
        expect = None if last is None else Expect(last_subject_sequence=last)
        subject = self.layout.write_prefix + key
        message = OutboundMessage(subject, value, headers, None, ttl, expect)
        try:
            ack = publish_one(self.context, message, deadline)
        except NoStreamResponseError:
            self.check_exists(deadline)
            raise
        context = self.context
        # A stream that is known by its subjects was looked at when it took the message.
        if storing is not None and context.streams.kept(subject, context.lane.epoch) is None:
            report_raised_ttl(context, storing, subject, ttl)
        return ack.sequence

    def require_ttl(self, ttl: Seconds | Literal["never"], deadline: Deadline) -> StreamConfig:
        """
        Raise unless *ttl* is one, and the bucket takes it; return the stream that will store it.

        Raises:
            InvalidTtlError: It is none.
            NotSupportedError: The server is older than 2.11.
            MessageTtlDisabledError: The bucket takes none.
        """
        ttl_header(ttl)
        config = self._storing(deadline, fresh=False)
        if not config.allow_msg_ttl:
            # It may have been allowed since.
            config = self._storing(deadline, fresh=True)
        if config.allow_msg_ttl:
            return config
        if not api_level_of(config.metadata):
            raise NotSupportedError(
                "a time-to-live of a key",
                needs="server 2.11 or later (API level 1)",
                server=self.context.server.version,
            )
        raise MessageTtlDisabledError(
            description="per-message TTL is disabled: bucket "
            f"{self.layout.origin_stream.removeprefix(STREAM_PREFIX)!r} needs limit_marker_ttl"
            " (allow_msg_ttl of its stream)",
            stream=self.layout.origin_stream,
        )

    def _storing(self, deadline: Deadline, *, fresh: bool) -> StreamConfig:
        """Return the stream that stores what is written; that of the origin is kept, too."""
        if self.config.mirror is not None:
            with self.named(origin=True):
                name = self.layout.origin_stream
                return self.origin.streams.named(name, deadline, fresh=fresh).config
        if not fresh:
            return self.config
        with self.named():
            return self.stream.info(timeout=deadline.remaining()).config

    def check_exists(self, deadline: Deadline) -> None:
        """
        Raise if the bucket that nobody took a change for is gone.

        Where that cannot be told in time, this is no reason to say anything else than before.
        """
        unknown = (JetStreamNotEnabledError, RequestTimeoutError, TransportError)
        with self.named(origin=True), contextlib.suppress(*unknown):
            self.origin.streams.named(self.layout.origin_stream, deadline, fresh=True)
