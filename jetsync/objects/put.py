"""
Store an object: its chunks first, and then the document that names them.

The document is sent after the server has confirmed the last chunk, under the condition that the
object has not changed. So a reader finds the whole new object or the old one. If the put fails
before that, its chunks are removed. If the outcome of the document is unknown, nothing is removed.

If the last document is known and the data fits into one chunk, the document is sent *ahead*: in the
same write as the chunk, which saves a round trip. It has one more condition: the chunk has to be
the last message of the stream. So the server does not store it without its chunk. If the server
refuses it, for example because another client has written meanwhile, the put continues as above.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from jetsync import errors
from jetsync._api.repeats import connected
from jetsync._api.replica_or_leader import begin_get
from jetsync._base.deadline import Deadline, as_seconds
from jetsync._base.fields import check_function, whole_number, wrong_type
from jetsync._hooks.errors import PluginError
from jetsync._io.requests import Request
from jetsync._proto.object_names import CHUNK_SIZE, chunks_of, encode_digest
from jetsync._proto.outcome import Ending, cause_of, outcome_of
from jetsync._proto.puback import parse_ack
from jetsync.objects.bucket import cleanup, expected_revision
from jetsync.objects.info import ObjectInfo, complete
from jetsync.objects.source import Source
from jetsync.objects.upload import Upload
from jetsync.publish.encode import Encoder
from jetsync.publish.retry import error_of
from jetsync.values.headers import Headers, header_pairs
from jetsync.values.outbound import OutboundMessage
from jetsync.values.server_info import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jetsync._base.deadline import Seconds
    from jetsync.objects.bucket import Bucket
    from jetsync.objects.source import ObjectData
    from jetsync.values.headers import HeadersInput
    from jetsync.values.stream_info import StreamInfo

# Bytes of a message that are kept free for headers: those of a chunk, and those that plugins add.
HEADER_ROOM: Final = 512

# Bytes of a document that are kept free for what a put adds: the largest counts, and a digest.
COUNTS_ROOM: Final = 160

NUID_BYTES: Final = 11

# Seconds without a chunk after which the chunks are counted before the document is sent. Another
# client may have taken them for garbage.
LONG_PAUSE: Final = 60.0


def new_nuid() -> str:
    """Return a random id."""
    return secrets.token_hex(NUID_BYTES)


def texts(description: Any, headers: Any, metadata: Any) -> dict[str, Any]:
    """
    Check the texts of an object, and return those that are given as fields of its document.

    Raises:
        InvalidTypeError, InvalidHeaderError: One of them is not valid.
    """
    fields: dict[str, Any] = {}
    if description is not None:
        if not isinstance(description, str):
            raise wrong_type("description", "text", description)
        fields["description"] = description
    if headers is not None:
        fields["headers"] = Headers(header_pairs(headers)).to_dict()
    if metadata is not None:
        try:
            pairs = dict(metadata)
        except (TypeError, ValueError):
            raise wrong_type("metadata", "a mapping of strings", metadata) from None
        for each in (*pairs, *pairs.values()):
            if not isinstance(each, str):
                raise wrong_type("metadata", "a mapping of strings", each, "metadata")
        fields["metadata"] = pairs
    return fields


class Put:
    """
    One call of ``put``; one thread.
    """

    def __init__(
        self,
        bucket: Bucket,
        name: str,
        data: ObjectData,
        *,
        description: str | None,
        headers: HeadersInput | None,
        metadata: Mapping[str, str] | None,
        chunk_size: int | None,
        expect: object,
        on_progress: Callable[[int, int | None], object] | None,
        timeout: Seconds | None,
    ) -> None:
        context = bucket.context
        context.connection.check()
        # The subjects of its document; checks the name.
        self._subjects = bucket.documents(name)
        self._bucket = bucket
        self._name = name
        self._expect = _expected(expect, bucket.name, name)
        check_function("on_progress", on_progress)
        self._seconds = context.default_timeout if timeout is None else as_seconds(timeout)
        self._size = _chunk_size(bucket, chunk_size)
        source = self._source = Source(data)
        self._nuid = new_nuid()
        given = texts(description, headers, metadata)
        self._document = {
            "name": name,
            **given,
            "options": {"max_chunk_size": self._size},
            "bucket": bucket.name,
            "nuid": self._nuid,
        }
        if given:
            size = len(encode_json(complete(self._document)))
            context.connection.check_size(size + COUNTS_ROOM + HEADER_ROOM)
        self._upload = Upload(
            bucket,
            self._nuid,
            seconds=self._seconds,
            chunk_size=self._size if source.size is None else min(self._size, source.size),
            on_progress=None if on_progress is None else _with_total(on_progress, source.total()),
        )
        self._hash = hashlib.sha256()
        self._paused = False
        # The object's last document, once it was read.
        self._old: ObjectInfo | None = None
        self._has_read = False
        # The requests for it, which are sent with the first chunk.
        self._begun: dict[str, Request] = {}
        # Whether the new document may have been sent, and whether it is stored.
        self._has_committed = False
        self._is_stored = False
        # Whether a document may be sent ahead. Without plugins, which would have to see it, and if
        # the stream drops each second copy of the chunk.
        window = bucket.stream.config.duplicate_window or 0.0
        self._may_go_ahead = (
            source.size is not None
            and 0 < source.size <= self._size
            and on_progress is None
            and not context.plugins.infos
            and self._seconds <= window / 2.0
        )
        # The request of a document that was sent ahead and not answered yet, and whether a lost
        # answer leaves unknown if that document is stored.
        self._ahead: Request | None = None
        self._is_unknown = False

    def run(self) -> ObjectInfo:
        """Store the object, and return its description."""
        upload, bucket = self._upload, self._bucket
        try:
            if self._expect is not None:
                self._read_old()
                self._check_expected()
            elif self._may_go_ahead:
                self._old = bucket.remembered(self._name)
                self._has_read = self._old is not None
            stored = self._upload_data()
            if stored is None:
                self._read_old()
                # Not while a document that was sent ahead may be stored. Another client may have
                # replaced that one since, and removed its chunk. `store` finds out.
                if (self._paused or upload.has_repeated) and not self._is_unknown:
                    self._count_chunks()
                upload.close()
                self._complete_document(upload.done, upload.count)
                self._has_committed = True
                stored = self._commit(Deadline.after(self._seconds), earlier=self._is_unknown)
                self._is_stored = True
            bucket.remember(stored)
            bucket.drop_chunks(self._old, self._seconds)
        except BaseException as error:
            # First, because Ctrl-C may end what follows.
            error.nuid = self._nuid  # type: ignore[attr-defined]
            with contextlib.suppress(errors.JetSyncError):
                if self._clean_up(error):
                    del error.nuid  # type: ignore[attr-defined]
            raise
        return stored

    def _upload_data(self) -> ObjectInfo | None:
        """
        Send the chunks, and return the description if it was sent ahead and is stored.

        Raises:
            PublishOutcomeUnknownError: No answer says whether the document that was sent ahead is
                stored.
        """
        upload = self._upload
        try:
            with self._bucket.named:
                upload.run(self._send)
        except errors.JetSyncError as error:
            if self._ahead is None or not upload.has_sent:
                raise
            # First the chunk, because the server stores the document only after it.
            deadline = cleanup(self._seconds)
            upload.abort(deadline)
            stored = self._answer_ahead(deadline)
            if self._is_unknown:
                cause, sent = cause_of(error)
                rule = outcome_of(cause, sent=sent, earlier=True, safe=True)
                message = OutboundMessage(self._subjects[0])
                raise error_of(rule, message, error, self._seconds) from error
            if stored is None:
                raise
            return stored
        return self._answer_ahead(Deadline.after(self._seconds))

    def _send(self) -> None:
        upload, read = self._upload, self._source.read
        context, stream = self._bucket.context, self._bucket.stream.name
        started = time.monotonic()
        front: tuple[Request, ...] = ()
        while size := read((slot := upload.slot()).data):
            if not (self._has_read or self._begun):
                for subject in self._subjects:
                    self._begun[subject] = begin_get(context, stream, subject)
                front = tuple(self._begun.values())
            self._hash.update(slot.data[:size])
            upload.add(slot, size, front=front, after=self._begin_ahead(size))
            front = ()
            if upload.done:
                # The answers came with those to the first chunk. They may be errors.
                self._read_old()
            now = time.monotonic()
            self._paused |= now - started > LONG_PAUSE
            started = now
            if size < len(slot.data) or upload.given == self._source.size:
                break
        self._paused |= time.monotonic() - started > LONG_PAUSE
        self._upload.finish()

    def _complete_document(self, size: int, chunks: int) -> None:
        """Add the counts and the digest."""
        digest = encode_digest(self._hash.digest())
        self._document.update(size=size, chunks=chunks, digest=digest)

    def _begin_ahead(self, size: int) -> tuple[Request, ...]:
        """Return the request of the document if it may follow the first chunk, of *size* bytes."""
        bucket, old = self._bucket, self._old
        if (
            not (self._may_go_ahead and self._has_read and size == self._source.size)
            # Only `store` replaces a document on the subject of other clients.
            or (old is not None and not old.is_padded)
        ):
            return ()
        self._complete_document(size, 1)
        message = bucket.document_message(
            self._name,
            complete(self._document),
            expected_revision(old),
            after=self._upload.next_id,
        )
        connection = bucket.context.connection
        target, header, payload, _ = Encoder(connection).encode(message)
        request = self._ahead = Request(connection.session, target)
        request.header, request.payload = header, payload
        return (request,)

    def _answer_ahead(self, deadline: Deadline, *, interrupted: bool = False) -> ObjectInfo | None:
        """
        Return the description if the document was sent ahead and is stored; None if not.

        Args:
            deadline: Deadline of the wait for the answer.
            interrupted: Whether Ctrl-C may have struck while the document was sent.
        """
        request, bucket = self._ahead, self._bucket
        if request is None:
            return None
        stored = None
        try:
            # Without an epoch, it was not sent, unless Ctrl-C came before the epoch was noted.
            if request.epoch or interrupted:
                # Its answer follows that to the chunk.
                if not interrupted or self._upload.done:
                    bucket.context.lane.wait(request, deadline)
                answer = request.answer()
                self._is_unknown = answer is None
                ack = None if answer is None else parse_ack(answer[3])
                if ack is not None and not isinstance(ack, errors.ApiError):
                    stored = bucket.described(self._name, ack.sequence, complete(self._document))
        except errors.JetSyncError as error:
            cause, sent = cause_of(error)
            self._is_unknown = outcome_of(cause, sent=sent).ending is Ending.UNKNOWN
        # Not after Ctrl-C: the clean-up waits again. Until then, it needs the request.
        request.end()
        self._is_stored = self._has_committed = stored is not None
        self._ahead = None
        if stored is None and self._expect is None and not self._is_unknown:
            # It has changed since it was remembered. After an unknown outcome, the last document
            # may be the new one, and `store` finds out.
            self._has_read = False
        return stored

    def _read_old(self) -> None:
        if not self._has_read:
            deadline = Deadline.after(self._seconds)
            self._old = self._bucket.last(self._name, deadline, leader=True, begun=self._begun)
            self._has_read = True
            self._end_begun()

    def _end_begun(self) -> None:
        """Forget the requests for the old document."""
        for request in self._begun.values():
            request.end()
        self._begun.clear()

    def _check_expected(self) -> None:
        """Raise if the object is not what the caller expects."""
        old, expect, bucket = self._old, self._expect, self._bucket
        revision = 0 if old is None else old.revision
        if expect == "new":
            if old is not None and not old.is_deleted:
                raise errors.ObjectExistsError(bucket.name, self._name, last_sequence=revision)
        elif revision != expect:
            raise errors.ObjectChangedError(bucket.name, self._name, last_sequence=revision)

    def _commit(self, deadline: Deadline, *, earlier: bool = False) -> ObjectInfo:
        """Store the document; *earlier* says whether an earlier attempt may have stored it."""
        try:
            return self._bucket.store(
                self._name, self._document, self._old, deadline, earlier=earlier
            )
        except errors.ObjectChangedError as error:
            if self._expect != "new":
                raise
            raise errors.ObjectExistsError(
                self._bucket.name, self._name, last_sequence=error.last_sequence
            ) from error

    def _count_chunks(self) -> None:
        """
        Raise if chunks were removed or stored twice.

        Another client may remove chunks while the caller's code takes long to give the next one. A
        chunk that is sent again after the duplicate window of the stream is stored twice.
        """
        subject = chunks_of(self._bucket.name, self._nuid)

        def read(deadline: Deadline) -> StreamInfo:
            return self._bucket.stream.info(subjects_filter=subject, timeout=deadline.remaining())

        with self._bucket.named:
            state = connected(self._bucket.context, read, Deadline.after(self._seconds)).state
        if state.subjects.get(subject, 0) != self._upload.count:
            raise errors.ObjectCorruptedError(
                self._bucket.name,
                self._name,
                "its chunks were removed or stored twice during the put, which therefore failed",
            )

    def _clean_up(self, error: BaseException) -> bool:
        """Remove the chunks, unless an object may need them. Return whether none is left over."""
        deadline = cleanup(self._seconds)
        ahead = self._ahead
        if ahead is not None:
            try:
                # In this order as in `_upload_data`.
                self._upload.abort(deadline)
                self._answer_ahead(deadline, interrupted=True)
            finally:
                ahead.end()
        if self._is_unknown and not self._has_committed:
            # The document may be stored, and would need its chunk.
            return False
        if not self._has_committed:
            self._end_begun()
            self._upload.abort(deadline)
        elif isinstance(error, errors.PublishOutcomeUnknownError):
            return False
        elif (
            self._is_stored
            or isinstance(error, (PluginError, errors.CallInSignalHandlerError))
            or not isinstance(error, errors.JetSyncError)
        ):
            # Of a plugin that may have seen it stored, of a signal handler, or Ctrl-C. Sending the
            # document again is the only way to find out whether it is stored: the server may
            # receive the first one later.
            if not self._is_stored:
                self._commit(deadline, earlier=True)
            self._bucket.drop_chunks(self._old, self._seconds)
            return True
        if self._upload.has_sent:
            self._bucket.purge_chunks(self._nuid, deadline)
        return True


def _with_total(
    on_progress: Callable[[int, int | None], object], total: int | None
) -> Callable[[int], object]:
    return lambda done: on_progress(done, total)


def _expected(expect: object, bucket: str, name: str) -> str | int | None:
    """Return ``"new"``, the expected revision, or None."""
    if expect is None or expect == "new":
        return None if expect is None else "new"
    if not isinstance(expect, ObjectInfo):
        raise wrong_type("expect", 'an ObjectInfo or "new"', expect)
    if (expect.bucket, expect.name) != (bucket, name):
        raise errors.InvalidArgumentError(
            f"expect is {expect.name!r} of object store {expect.bucket!r}, not {name!r} of"
            f" {bucket!r}",
            argument="expect",
        )
    return expect.revision


def _chunk_size(bucket: Bucket, given: int | None) -> int:
    """
    Return the size of chunks.

    Raises:
        InvalidArgumentError: A message of *given* bytes is larger than the server or the stream
            accepts. Every chunk would be refused.
    """
    limit = bucket.context.server.max_payload
    most = bucket.stream.config.max_msg_size or 0
    if most > 0:
        limit = min(limit, most)
    # A limit of a few bytes is only seen in tests.
    limit = max(limit - HEADER_ROOM, limit // 2, 1)
    if given is None:
        return min(CHUNK_SIZE, limit)
    size = whole_number("chunk_size", given)
    if size > limit:
        raise errors.InvalidArgumentError(
            f"chunk_size must be at most {limit}, not {size}: the server's max_payload and the"
            " stream's max_msg_size limit a message",
            argument="chunk_size",
        )
    return size
