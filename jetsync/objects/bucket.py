"""
The state that all handles of an object store share, and the basic operations on its documents.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jetsync import errors
from jetsync._api.mirrors import TRANSIENT
from jetsync._api.repeats import connected
from jetsync._api.replica_or_leader import begun_get, confirmed_get, leader_get, shown_by
from jetsync._base.deadline import Deadline
from jetsync._base.log import get_logger
from jetsync._proto.object_names import (
    STREAM_PREFIX,
    chunks_of,
    documents_of,
    encode_name,
    stream_of,
)
from jetsync._proto.outcome import Again, Cause, cause_of, outcome_of
from jetsync.kv.bucket import Named
from jetsync.objects.info import complete, describe, read_info
from jetsync.publish.one import publish_one
from jetsync.publish.retry import error_of
from jetsync.stream import Stream
from jetsync.values.headers import ROLLUP
from jetsync.values.outbound import Expect, OutboundMessage
from jetsync.values.server_info import encode_json
from jetsync.values.stream_info import StreamInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jetsync._api.context import Context
    from jetsync._io.requests import Request
    from jetsync._proto.object_names import ChunkIndex
    from jetsync.kv.bucket import Kinds
    from jetsync.objects.info import ObjectInfo
    from jetsync.values.stored import StoredMessage

_logger = get_logger("jetsync.objects")

# How often a document that no stream took is sent again: until the deadline.
RETRIES: Final = 1_000_000

# How many documents a store remembers.
REMEMBERED: Final = 256

# The longest time for removing chunks that are not needed any more, in seconds.
CLEANUP: Final = 5.0


def cleanup(seconds: float) -> Deadline:
    """
    Return the deadline for removing chunks at the end of a call.

    The server may be silent, so this takes at most as long as the call itself.

    Args:
        seconds: The timeout of the call.
    """
    return Deadline.after(min(CLEANUP, seconds))


_NAMES: Final[Kinds] = {
    errors.StreamNotFoundError: errors.ObjectStoreNotFoundError,
    errors.StreamSealedError: errors.ObjectStoreSealedError,
}


class Bucket:
    """
    The state that all handles of one object store share. Thread-safe.
    """

    __slots__ = ("_stored", "context", "indexed", "name", "named", "stream")

    def __init__(self, context: Context, name: str, info: StreamInfo) -> None:
        self.name: str = name
        self.context: Context = context
        self.stream: Stream = Stream(context, info)
        #: Replaces the errors of the stream by those of the object store.
        self.named: Named = Named(name, _NAMES)
        #: The object that was last read after a seek, and where its chunks are. Set as a whole.
        self.indexed: tuple[ObjectInfo, ChunkIndex] | None = None
        # The last documents that these handles have stored, by the names of their objects.
        self._stored: dict[str, ObjectInfo] = {}

    def remembered(self, name: str) -> ObjectInfo | None:
        """Return the document that a handle of this store has put last; it may have changed."""
        return self._stored.get(name)

    def remember(self, info: ObjectInfo) -> None:
        """Keep a document that was put. Any thread."""
        if len(self._stored) >= REMEMBERED:
            self._stored.clear()
        self._stored[info.name] = info

    def check_exists(self, deadline: Deadline) -> None:
        """
        Raise ObjectStoreNotFoundError if a write failed because the store no longer exists.

        Return if jetsync cannot find out in time. The caller then raises the original error.
        """
        with self.named, contextlib.suppress(*TRANSIENT):
            self.context.streams.named(self.stream.name, deadline, fresh=True)

    def linked(self, name: str, deadline: Deadline) -> Bucket:
        """Return the state of another object store, or of this one."""
        if name == self.name:
            return self
        stream = stream_of(name)
        try:
            known = self.context.streams.named(stream, deadline)
        except errors.StreamNotFoundError as error:
            raise errors.ObjectStoreNotFoundError(stream.removeprefix(STREAM_PREFIX)) from error
        return Bucket(self.context, name, StreamInfo(config=known.config))

    # Documents.

    def last(
        self,
        name: str,
        deadline: Deadline,
        *,
        leader: bool = False,
        exact: bool = False,
        begun: dict[str, Request] | None = None,
    ) -> ObjectInfo | None:
        """
        Return the last document of an object, also of a deleted one; None if there is none.

        Args:
            name: The object.
            deadline: Deadline of the calling operation.
            leader: Ask the leader, which knows every change.
            exact: Look only at the subject that jetsync writes to. Some clients leave the padding
                of names out.
            begun: Requests to the leader that were sent before, by subject.
        """
        context, stream = self.context, self.stream.name
        subjects = [*begun] if begun else self.documents(name)
        with self.named:
            for subject in subjects[:1] if exact else subjects:
                if begun:
                    found = begun_get(context, stream, subject, begun[subject], deadline)
                else:
                    found = self._read(subject, deadline, leader=leader)
                if found is not None:
                    show = shown_by(context)
                    return self.info_of(found if show is None else show(found))
        return None

    def documents(self, name: str) -> list[str]:
        """Return the subject of an object's document, and that of other clients if it differs."""
        token = encode_name(name)
        return [documents_of(self.name, each) for each in dict.fromkeys([token, token.rstrip("=")])]

    def _read(self, subject: str, deadline: Deadline, *, leader: bool) -> StoredMessage | None:
        """Return the last message of a document; None if there is none."""
        direct = not leader and self.stream.config.allow_direct
        get = confirmed_get if direct else leader_get
        read = partial(get, self.context, self.stream.name, {"last_by_subj": subject})
        with contextlib.suppress(errors.MessageNotFoundError):
            return connected(self.context, read, deadline)
        return None

    def info_of(self, message: StoredMessage) -> ObjectInfo:
        """Return the description in the message of a document."""
        return read_info(
            self.name, message.subject, message.sequence, message.timestamp, message.data
        )

    def current(
        self,
        name: str,
        deadline: Deadline,
        *,
        leader: bool = False,
        include_deleted: bool = False,
    ) -> ObjectInfo:
        """
        Return the description of an object that is not deleted; see :meth:`last`.

        Raises:
            ObjectNotFoundError: There is no such object.
        """
        found = self.last(name, deadline, leader=leader)
        if found is None and encode_name(name).endswith("="):
            # Between two lookups, another client may have replaced one without padding.
            found = self.last(name, deadline, leader=leader, exact=True)
        if found is None or (found.is_deleted and not include_deleted):
            raise errors.ObjectNotFoundError(
                self.name, name, deleted_at=None if found is None else found.revision
            )
        return found

    def free_name(
        self, name: str, deadline: Deadline, *, or_link: bool = False
    ) -> ObjectInfo | None:
        """
        Return the last document of a name that has no object.

        Args:
            name: The name.
            deadline: Deadline of the calling operation.
            or_link: Whether there may be a link.

        Raises:
            ObjectExistsError: There is an object.
        """
        found = self.last(name, deadline, leader=True)
        if not (found is None or found.is_deleted or (or_link and found.link is not None)):
            raise errors.ObjectExistsError(self.name, name, last_sequence=found.revision)
        return found

    def store(
        self,
        name: str,
        document: Mapping[str, Any],
        old: ObjectInfo | None,
        deadline: Deadline,
        *,
        earlier: bool = False,
    ) -> ObjectInfo:
        """
        Store a document if the object's last one is *old*, and return its description.

        If the answer is lost, jetsync looks whether the document was stored, and sends it again if
        not. The condition prevents a second copy.

        Args:
            name: The object.
            document: The document.
            old: The object's last document. It is removed if its subject has no padding.
            deadline: Deadline of the calling operation.
            earlier: Whether an earlier attempt may have stored the document.

        Raises:
            ObjectChangedError: The object's last document is another one.
            PublishOutcomeUnknownError: The document may be stored or not.
        """
        wanted = complete(document, name=name)
        expected = expected_revision(old)
        while True:
            message = self.document_message(name, wanted, expected)
            try:
                with self.named:
                    ack = publish_one(self.context, message, deadline, retries=RETRIES)
            except errors.JetSyncError as error:
                earlier = earlier or isinstance(error, errors.PublishOutcomeUnknownError)
                failed = self._failed(error, name, message, deadline, earlier=earlier)
            else:
                made = self.described(name, ack.sequence, wanted)
                break
            try:
                found = self.last(name, deadline, leader=True, exact=True)
            except errors.JetSyncError as error:
                raise failed from error
            if found is not None and found.revision > expected and found.document == wanted:
                made = found
                break
            revision = 0 if found is None else found.revision
            if revision != expected:
                if earlier:
                    # It may have been stored and then changed or renamed, and still need its data.
                    raise failed
                if found is None and old is not None and old.is_deleted:
                    # Another client has called `purge_deletes`. The name is still free.
                    expected = 0
                    continue
                raise errors.ObjectChangedError(self.name, name, last_sequence=revision) from failed
            if deadline.expired():
                raise failed
        if old is not None and not old.is_padded:
            with _log_failure(old):
                self.remove(old, deadline.at_most(CLEANUP))
        return made

    def _failed(
        self,
        error: errors.JetSyncError,
        name: str,
        message: OutboundMessage,
        deadline: Deadline,
        *,
        earlier: bool,
    ) -> Exception:
        """
        Return the error of an attempt to store a document if it may be stored, or sent again; raise
        it if not.
        """
        cause, sent = cause_of(error)
        if cause is Cause.NO_STREAM:
            self.check_exists(deadline)
        rule = outcome_of(cause, sent=sent, earlier=earlier, safe=True)
        failed = error_of(rule, message, error, deadline.total)
        if isinstance(failed, errors.WrongLastSequenceError):
            changed = errors.ObjectChangedError(self.name, name, last_sequence=failed.last_sequence)
            changed.__cause__ = error
            return changed
        is_unknown = isinstance(error, errors.PublishOutcomeUnknownError)
        may_look = is_unknown and cause is not Cause.CLOSED
        if not may_look and rule.again not in {Again.ASK, Again.LOOK}:
            raise failed from failed.__cause__
        return failed

    def document_message(
        self, name: str, wanted: Mapping[str, Any], expected: int, after: str | None = None
    ) -> OutboundMessage:
        """
        Return the message that stores a complete document.

        Args:
            name: The object.
            wanted: The document.
            expected: The revision of the document that it replaces; 0 for none.
            after: The id of the message that has to be the last one of the stream.
        """
        expect = Expect(last_subject_sequence=expected, last_msg_id=after)
        subject = documents_of(self.name, encode_name(name))
        return OutboundMessage(subject, encode_json(wanted), {ROLLUP: "sub"}, expect=expect)

    def described(self, name: str, sequence: int, wanted: dict[str, Any]) -> ObjectInfo:
        """Return the description in a complete document that was stored just now."""
        subject = documents_of(self.name, encode_name(name))
        return describe(self.name, subject, sequence, dt.datetime.now(dt.timezone.utc), wanted)

    def remove(self, info: ObjectInfo, deadline: Deadline) -> bool:
        """Remove a document, and return whether it was still there. Newer ones stay."""
        token = encode_name(info.name)
        subject = documents_of(self.name, token if info.is_padded else token.rstrip("="))
        with self.named:
            sequence = info.revision + 1
            return bool(self.stream.purge(subject, sequence=sequence, timeout=deadline.remaining()))

    def purge_chunks(self, nuid: str, deadline: Deadline) -> None:
        """Remove the chunks of one put."""
        stream, request = self.stream.name, {"filter": chunks_of(self.name, nuid)}
        with self.named:
            self.context.api(f"STREAM.PURGE.{stream}", request, deadline, stream=stream)

    def drop_chunks(self, info: ObjectInfo | None, seconds: float) -> None:
        """
        Remove the chunks of a document that was replaced; log if that is impossible.

        ``collect_garbage`` removes them later, unless a document without padding is left that names
        them.

        Args:
            info: The document.
            seconds: The timeout of the call.
        """
        if info is None or not info.nuid or info.is_deleted or info.link is not None:
            return
        with _log_failure(info):
            self.purge_chunks(info.nuid, cleanup(seconds))


def expected_revision(old: ObjectInfo | None) -> int:
    """Return the last revision on the subject that jetsync writes to; 0 if there is none."""
    return old.revision if old is not None and old.is_padded else 0


@contextlib.contextmanager
def _log_failure(info: ObjectInfo) -> Iterator[None]:
    """Log an error instead of raising it: the call that replaced the document has succeeded."""
    try:
        yield
    except errors.JetSyncError as error:
        _logger.warning(
            "chunks_left", bucket=info.bucket, object=info.name, nuid=info.nuid, error=str(error)
        )
