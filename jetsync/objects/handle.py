"""
Object stores: data of any size under names, in a stream (ADR-20).
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from jetsync import errors
from jetsync._base.deadline import Deadline, as_seconds
from jetsync._base.log import get_logger
from jetsync._base.pickling import refuse_copy
from jetsync._proto.objects import documents_of
from jetsync.objects.bucket import CLEANUP
from jetsync.objects.config import ObjectStoreStatus
from jetsync.objects.put import Put
from jetsync.objects.reader import ObjectReader

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from jetsync._base.deadline import Seconds
    from jetsync.objects.bucket import Bucket
    from jetsync.objects.info import ObjectInfo
    from jetsync.objects.source import ObjectData
    from jetsync.stream import Stream
    from jetsync.values.headers import HeadersInput

__all__ = ["ObjectStore"]

# The class has a method of this name.
Infos: TypeAlias = "list[ObjectInfo]"

_logger = get_logger("jetsync.objects")

# How many links of links are followed.
DEEPEST: Final = 8

# Default timeout, in seconds, of calls that read many objects.
READING: Final = 30.0

# Bytes of one write into a file.
BLOCK: Final = 1 << 20


class ObjectStore:
    """
    A bucket that stores data of any size under names (ADR-20).

    Made by ``JetStream.create_object_store`` and ``JetStream.object_store``. A name is any text. An
    object consists of chunks and a description, :class:`ObjectInfo`. Readers see the whole new
    object or the whole old one. A *link* is a name for another object, or for another object store.

    A handle holds no resources on the server and needs no closing; any number of threads may share
    one. ``timeout`` is in seconds. Unless a method says otherwise, it limits all requests of a call
    together, and the default is that of the :class:`JetStream` object. If the answer to a change is
    lost, jetsync finds out whether it was stored. If that is impossible, the call raises
    PublishOutcomeUnknownError.
    """

    __slots__ = ("_bucket",)

    __reduce__ = refuse_copy

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def __repr__(self) -> str:
        return f"<ObjectStore {self._bucket.name!r}>"

    @property
    def bucket(self) -> str:
        """The name of the object store."""
        return self._bucket.name

    @property
    def stream(self) -> Stream:
        """
        The stream that stores the objects. If you write to this stream directly, you may break
        objects.
        """
        return self._bucket.stream

    # Data

    def put(
        self,
        name: str,
        data: ObjectData,
        *,
        description: str | None = None,
        headers: HeadersInput | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
        expect: Literal["new"] | ObjectInfo | None = None,
        on_progress: Callable[[int, int | None], object] | None = None,
        timeout: Seconds | None = None,
    ) -> ObjectInfo:
        """
        Store an object, and return its description.

        jetsync sends chunks with up to 8 MiB in flight, and keeps no more in memory. It sends lost
        chunks again. When all are stored, it stores the description, under the condition that no
        other client has changed the object since the call began. Then it removes the chunks of the
        old object.

        If the call fails or is interrupted, the old object stays, and jetsync removes the new
        chunks. If that is impossible, the error has the attribute ``nuid``, and
        :meth:`collect_garbage` removes the chunks later. If Ctrl-C arrives while the description is
        stored, jetsync completes the put before it raises KeyboardInterrupt.

        Args:
            name: The name.
            data: Bytes, text (stored as UTF-8), a file that was opened in binary mode, or an
                iterable of bytes. A file is read from its position to its end.
            description: Free text.
            headers: Headers of the object.
            metadata: Any key-value pairs.
            chunk_size: Bytes of a chunk. The default is 128 KiB, or less if the server accepts only
                smaller messages.
            expect: ``"new"`` stores the object only if the name is free. An :class:`ObjectInfo`
                stores it only if the object has not changed since.
            on_progress: Called in this thread with the number of bytes that are stored, and the
                total, which is None if jetsync does not know it. If it raises, the put fails.
            timeout: Seconds without progress after which the put fails. A put may take longer. The
                time that your file, iterable or function takes does not count.

        Returns:
            The description. Its ``modified`` is a time of this machine's clock.

        Raises:
            InvalidNameError, InvalidArgumentError, InvalidTypeError: An argument is invalid.
            ObjectExistsError: With ``expect="new"``, there is such an object.
            ObjectChangedError: Another client has changed the object meanwhile, or it is not the
                one in *expect*.
            ObjectStoreNotFoundError: The object store does not exist any more.
            ObjectStoreSealedError: The object store is sealed.
            MaxMessagesError, MessageTooLargeError, ...: The server refused the data, for example
                because the object store is full.
            RequestTimeoutError, DisconnectedError: There was no progress for *timeout* seconds.
            PublishOutcomeUnknownError: All chunks are stored. The object may be stored or not.
        """
        return Put(
            self._bucket,
            name,
            data,
            description=description,
            headers=headers,
            metadata=metadata,
            chunk_size=chunk_size,
            expect=expect,
            on_progress=on_progress,
            timeout=timeout,
        ).run()

    def put_file(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        description: str | None = None,
        headers: HeadersInput | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
        expect: Literal["new"] | ObjectInfo | None = None,
        on_progress: Callable[[int, int | None], object] | None = None,
        timeout: Seconds | None = None,
    ) -> ObjectInfo:
        """
        Store the contents of a file.

        Args:
            name: The name of the object.
            path: The file.
            description: As for :meth:`put`, like all further arguments.
            headers: Headers of the object.
            metadata: Any key-value pairs.
            chunk_size: Bytes of a chunk.
            expect: What has to be there before.
            on_progress: Called with the stored bytes and the size of the file.
            timeout: Seconds without progress after which the put fails.

        Raises:
            OSError: The file cannot be read.
            ObjectExistsError, ObjectChangedError, ...: As :meth:`put`.
        """
        # Unbuffered, because chunks are read whole.
        with Path(path).open("rb", buffering=0) as file:
            return self.put(
                name,
                file,
                description=description,
                headers=headers,
                metadata=metadata,
                chunk_size=chunk_size,
                expect=expect,
                on_progress=on_progress,
                timeout=timeout,
            )

    def get(
        self, name: str, *, verify: bool = True, timeout: Seconds | None = None
    ) -> ObjectReader:
        """
        Open an object for reading, and return a binary file.

        Links are followed. The data is requested by the first read.

        Args:
            name: The object.
            verify: Whether to check the digest. Some old clients stored wrong digests.
            timeout: Seconds for this call. Later, seconds without an answer after which a read
                fails. The time between reads does not count.

        Raises:
            ObjectNotFoundError: There is no such object, or a link leads nowhere.
            ObjectIsLinkError: The links form a circle, are more than 8, or lead to an object store.
            ObjectCorruptedError: The object has no digest, and *verify* is true.
            ObjectStoreNotFoundError: The object store does not exist any more.
        """
        seconds = self._seconds(timeout)
        bucket, info = self._resolve(name, Deadline.after(seconds))
        return ObjectReader(bucket, info, seconds=seconds, verify=verify)

    def get_bytes(self, name: str, *, verify: bool = True, timeout: Seconds | None = None) -> bytes:
        """
        Return the data of an object.

        Args, Raises: as :meth:`get`, and those of ``ObjectReader.read``.
        """
        with self.get(name, verify=verify, timeout=timeout) as reader:
            return reader.read()

    def get_file(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        verify: bool = True,
        on_progress: Callable[[int, int], object] | None = None,
        timeout: Seconds | None = None,
    ) -> ObjectInfo:
        """
        Write the data of an object into a file, and return the description of the object.

        jetsync writes into a new file in the same folder, and renames it once all data was checked.
        So *path* has the old file or the whole new one.

        Args:
            name: The object.
            path: The file, which is replaced.
            verify: As for :meth:`get`.
            on_progress: Called with the number of bytes that are written, and the total.
            timeout: As for :meth:`get`.

        Raises:
            OSError: The file cannot be written.
            ObjectNotFoundError, ObjectCorruptedError, ...: As :meth:`get` and
                ``ObjectReader.read``.
        """
        target = Path(path)
        part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
        with self.get(name, verify=verify, timeout=timeout) as reader:
            try:
                with part.open("xb", buffering=0) as file:
                    while data := reader.read1():
                        file.write(data)
                        if on_progress is not None:
                            on_progress(reader.tell(), reader.info.size)
                part.replace(target)
            except BaseException:
                with contextlib.suppress(OSError):
                    part.unlink()
                raise
            return reader.info

    # Descriptions

    def info(
        self, name: str, *, include_deleted: bool = False, timeout: Seconds | None = None
    ) -> ObjectInfo:
        """
        Return the description of an object or a link. Links are not followed.

        Any replica may answer, as for ``KeyValue.get``.

        Args:
            name: The object.
            include_deleted: Whether to return the description of a deleted object.
            timeout: Seconds for all requests together.

        Raises:
            ObjectNotFoundError: There is no such object.
            ObjectStoreNotFoundError: The object store does not exist any more.
        """
        bucket, deadline = self._bucket, self._deadline(timeout)
        found = bucket.last(name, deadline)
        if found is not None and found.is_deleted and include_deleted:
            return found
        if found is None or found.is_deleted:
            raise errors.ObjectNotFoundError(
                bucket.name, name, deleted_at=None if found is None else found.revision
            )
        return found

    def list(self, *, include_deleted: bool = False, timeout: Seconds | None = None) -> Infos:
        """
        Return the descriptions of all objects and links, by name.

        The server reads the descriptions, and no chunks.

        Args:
            include_deleted: Whether to include deleted objects.
            timeout: Seconds for each request. The default is 30.

        Raises:
            ObjectStoreNotFoundError: The object store does not exist any more.
        """
        found = self._documents(as_seconds(READING if timeout is None else timeout))
        return [info for info in found if include_deleted or not info.is_deleted]

    def delete(self, name: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete an object with its data, or a link without its target.

        The description stays, marked as deleted, so that watchers learn about it.

        Args:
            name: The object.
            timeout: Seconds for all requests together.

        Raises:
            ObjectNotFoundError: There is no such object.
            ObjectChangedError: Another client has changed the object meanwhile.
            ObjectStoreNotFoundError: The object store does not exist any more.
            ObjectStoreSealedError: The object store is sealed.
        """
        bucket, deadline = self._bucket, self._deadline(timeout)
        found = bucket.current(name, deadline, leader=True)
        document = {**found.document, "deleted": True, "size": 0, "chunks": 0, "digest": None}
        bucket.store(name, document, found.revision, deadline)
        bucket.drop_chunks(found, Deadline.after(CLEANUP))

    def status(self, *, timeout: Seconds | None = None) -> ObjectStoreStatus:
        """
        Ask the server for the configuration and the state of the object store.

        Raises:
            ObjectStoreNotFoundError: The object store does not exist any more.
        """
        with self._bucket.named():
            return ObjectStoreStatus(self._bucket.name, self._bucket.stream.info(timeout=timeout))

    def _seconds(self, timeout: Seconds | None) -> float:
        return self._bucket.context.default_timeout if timeout is None else as_seconds(timeout)

    def _deadline(self, timeout: Seconds | None) -> Deadline:
        return self._bucket.context.deadline(timeout)

    def _resolve(self, name: str, deadline: Deadline) -> tuple[Bucket, ObjectInfo]:
        """Return the description of an object with data, and its object store."""
        bucket, info = self._bucket, self._bucket.current(name, deadline)
        seen = {(bucket.name, name)}
        while info.link is not None:
            link = info.link
            reason = None
            if link.name is None:
                reason = f"it leads to the object store {link.bucket!r} and not to an object"
            elif (link.bucket, link.name) in seen:
                reason = "its links form a circle"
            elif len(seen) > DEEPEST:
                reason = f"it leads to more than {DEEPEST} links"
            if reason is not None or link.name is None:
                raise errors.ObjectIsLinkError(self._bucket.name, name, reason or "")
            seen.add((link.bucket, link.name))
            bucket = bucket.linked(link.bucket, deadline)
            info = bucket.current(link.name, deadline)
        return bucket, info

    def _documents(self, seconds: float) -> Infos:
        """Return all descriptions, one for each name, sorted."""
        bucket = self._bucket
        found: dict[str, ObjectInfo] = {}
        with bucket.named():
            batch = bucket.stream.get_last_for(
                documents_of(bucket.name), reread=True, timeout=seconds
            )
            for message in batch:
                try:
                    info = bucket.info_of(message)
                except errors.ProtocolError as error:
                    # One document must not hide all others.
                    details = {"subject": message.subject, "error": str(error)}
                    _logger.warning("object_unreadable", bucket=bucket.name, **details)
                    continue
                # Some clients write to a subject of their own; the last change counts.
                other = found.get(info.name)
                if other is None or other.revision < info.revision:
                    found[info.name] = info
        return [found[name] for name in sorted(found)]
