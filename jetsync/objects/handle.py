"""
Object stores: data of any size under names, in a stream (ADR-20).
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from jetsync import errors
from jetsync._base.deadline import Deadline, as_seconds
from jetsync._base.fields import wrong_type
from jetsync._base.files import replaceable, replacing
from jetsync._base.log import get_logger
from jetsync._base.pickling import refuse_copy
from jetsync._proto.keys import check_bucket
from jetsync._proto.object_names import encode_name
from jetsync.objects.bucket import cleanup
from jetsync.objects.config import ObjectStoreStatus
from jetsync.objects.garbage import collect_garbage, documents, purge_deletes
from jetsync.objects.info import ObjectInfo
from jetsync.objects.put import NUID_BYTES, Put, new_nuid, texts
from jetsync.objects.reader import ObjectReader
from jetsync.objects.watch import ObjectWatch, open_watch

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from typing_extensions import Unpack

    from jetsync._base.deadline import Seconds
    from jetsync.backups import BackupOptions, StreamBackup
    from jetsync.objects.bucket import Bucket
    from jetsync.objects.source import ObjectData
    from jetsync.stream import Stream
    from jetsync.values.headers import HeadersInput

__all__ = ["ObjectStore"]

# The class has a method of this name.
Infos: TypeAlias = "list[ObjectInfo]"

_logger = get_logger("jetsync.objects")

# Seconds after which data that belongs to no object counts as garbage.
GARBAGE: Final = 3600.0

# Seconds for which purge_deletes keeps the descriptions of deleted objects for watchers.
OLD_DELETES: Final = 1800.0

# What a server answers if the object store, the account or the server has no room for a message.
FULL: Final = (errors.StreamFullError, errors.InsufficientResourcesError)

# How many links of links are followed.
DEEPEST: Final = 8

# Default timeout, in seconds, of calls that read many objects.
READING: Final = 30.0


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
        other client has changed the object since jetsync read its last description. Then it removes
        the chunks of the old object. If this handle has put the object before, and the data fits
        into one chunk, jetsync sends the chunk and the description together.

        If the call fails or is interrupted, the old object stays, and jetsync removes the new
        chunks. If that is impossible, the error has the attribute ``nuid``, and
        :meth:`collect_garbage` removes the chunks later. If Ctrl-C arrives while the description is
        stored or later, jetsync completes the put before it raises KeyboardInterrupt.

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
                time that your file, iterable or function takes does not count. Removing data that
                is not needed any more may take as long again, but at most 5 seconds.

        Returns:
            The description. Its ``modified`` is a time of this machine's clock.

        Raises:
            InvalidNameError, InvalidArgumentError, InvalidTypeError: An argument is invalid.
            ObjectExistsError: With ``expect="new"``, there is such an object.
            ObjectChangedError: Another client has changed the object meanwhile, or it is not the
                one in *expect*.
            ObjectStoreNotFoundError: The object store does not exist any more.
            ObjectStoreSealedError: The object store is sealed.
            StreamFullError, MessageTooLargeError, ...: The server refused the data, for example
                because the object store is full.
            RequestTimeoutError, DisconnectedError: There was no progress for *timeout* seconds.
            PublishOutcomeUnknownError: The description was sent. The object may be stored or not.
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
            timeout: As for :meth:`put`.

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
        deadline = self._deadline(timeout)
        bucket, info = self._resolve(name, deadline)
        return ObjectReader(bucket, info, seconds=deadline.total, verify=verify)

    def get_bytes(self, name: str, *, verify: bool = True, timeout: Seconds | None = None) -> bytes:
        """
        Return the data of an object.

        If the object changes meanwhile, this raises ObjectChangedError. Call it again then.

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
        So *path* has the old file or the whole new one. The new file keeps the permissions of the
        old one and, where the system allows it, its owner and group. If *path* is a symbolic link,
        the file that it leads to is replaced, and the link stays.

        Args:
            name: The object.
            path: The file, which is replaced.
            verify: As for :meth:`get`.
            on_progress: Called with the number of bytes that are written, and the total.
            timeout: As for :meth:`get`.

        Raises:
            OSError: The file cannot be written, or *path* is not a file but a folder, a device, a
                pipe or a socket.
            ObjectNotFoundError, ObjectCorruptedError, ...: As :meth:`get` and
                ``ObjectReader.read``.
        """
        # Before anything is read.
        replaceable(path)
        with self.get(name, verify=verify, timeout=timeout) as reader:
            with replacing(path) as file:
                for data in reader.chunks():
                    file.write(data)
                    if on_progress is not None:
                        on_progress(reader.tell(), reader.info.size)
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
        return self._bucket.current(name, self._deadline(timeout), include_deleted=include_deleted)

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
        bucket, found = self._bucket, dict[str, ObjectInfo]()
        for info in documents(bucket, as_seconds(READING if timeout is None else timeout)):
            if isinstance(info, errors.ProtocolError):
                # One document must not hide all others.
                _logger.warning("object_unreadable", bucket=bucket.name, error=str(info))
                continue
            # Some clients write to a subject of their own; the last change counts.
            other = found.get(info.name)
            if other is None or other.revision < info.revision:
                found[info.name] = info
        return [
            found[name] for name in sorted(found) if include_deleted or not found[name].is_deleted
        ]

    def delete(self, name: str, *, timeout: Seconds | None = None) -> None:
        """
        Delete an object with its data, or a link without its target.

        The description stays, marked as deleted, so that watchers learn about it, until
        :meth:`purge_deletes` removes it.

        If there is no room for the mark, jetsync removes the description and the data before it
        stores the mark. If the call fails or is interrupted between, the object is deleted without
        a mark, so watchers do not learn about it. :meth:`collect_garbage` removes data that is left
        then.

        Args:
            name: The object.
            timeout: Seconds for all requests together. Removing the data may take as long again,
                but at most 5 seconds.

        Raises:
            ObjectNotFoundError: There is no such object.
            ObjectChangedError: Another client has changed the object meanwhile.
            ObjectStoreNotFoundError: The object store does not exist any more.
            ObjectStoreSealedError: The object store is sealed.
        """
        bucket, deadline = self._bucket, self._deadline(timeout)
        found = bucket.current(name, deadline, leader=True)
        try:
            bucket.store(name, _deleted(found), found, deadline)
        except FULL:
            self._delete_first(found, deadline)
        else:
            bucket.drop_chunks(found, deadline.total)

    def _delete_first(self, found: ObjectInfo, deadline: Deadline) -> None:
        """Delete an object of a full store, which has no room for the mark before that."""
        bucket = self._bucket
        # Without the description first, an interrupt would leave an object that lacks its data.
        if not bucket.remove(found, deadline):
            raise errors.ObjectChangedError(bucket.name, found.name)
        bucket.drop_chunks(found, deadline.total)
        try:
            # The mark of a link is shorter than the link if it does not name the target.
            bucket.store(found.name, {**_deleted(found), "options": None}, None, deadline)
        except errors.ObjectChangedError:
            # Another client has stored a new object of this name.
            pass
        except FULL as error:
            _logger.warning(
                "deletion_not_marked", bucket=bucket.name, object=found.name, error=str(error)
            )

    def purge_deletes(
        self, older_than: Seconds = OLD_DELETES, *, timeout: Seconds | None = None
    ) -> int:
        """
        Remove old descriptions of deleted objects, and return the number of these objects.

        Recent ones stay, so that watchers learn about the deletion. If an object of the name is
        stored during the call, it is kept.

        Args:
            older_than: Remove the descriptions of objects that were deleted at least this many
                seconds ago. The default is 1800. 0 removes those of all deleted objects.
            timeout: Seconds for each request. The default is 30.

        Raises:
            ObjectStoreNotFoundError: The object store does not exist any more.
            ObjectStoreSealedError: The object store is sealed, and has such descriptions.
        """
        seconds = as_seconds(READING if timeout is None else timeout)
        return purge_deletes(self._bucket, as_seconds(older_than, "older_than"), seconds)

    def update_meta(
        self,
        name: str,
        *,
        description: str | None = None,
        headers: HeadersInput | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
    ) -> ObjectInfo:
        """
        Change the texts of an object without its data, and return the new description.

        Texts that are None keep their values. Empty ones are removed.

        Args:
            name: The object or link.
            description: Free text.
            headers: All headers of the object.
            metadata: All key-value pairs.
            timeout: Seconds for all requests together.

        Raises:
            InvalidTypeError, InvalidHeaderError: An argument is invalid. Nothing was sent.
            ObjectNotFoundError, ObjectChangedError, ...: As :meth:`delete`.
        """
        bucket, deadline = self._bucket, self._deadline(timeout)
        given = texts(description, headers, metadata)
        found = bucket.current(name, deadline, leader=True)
        changes = {field: value or None for field, value in given.items()}
        return bucket.store(name, {**found.document, **changes}, found, deadline)

    def rename(self, name: str, new_name: str, *, timeout: Seconds | None = None) -> ObjectInfo:
        """
        Give an object or a link another name, and return its description.

        The data is not copied. For a moment, the object has both names. Links to the old name are
        not changed. If the call fails or is interrupted, the object may have both. Then repeat the
        call: if you delete or replace one of them, the other one loses its data.

        Args:
            name: The object.
            new_name: A name that is free, or that of a deleted object.
            timeout: Seconds for all requests together.

        Raises:
            ObjectExistsError: There is an object of the new name.
            ObjectNotFoundError, ObjectChangedError, ...: As :meth:`delete`.
            PublishOutcomeUnknownError: The object may have the old name, the new one, or both.
        """
        bucket, deadline = self._bucket, self._deadline(timeout)
        encode_name(new_name)
        found = bucket.current(name, deadline, leader=True)
        if new_name == name:
            return found
        try:
            old = bucket.free_name(new_name, deadline)
            made = bucket.store(new_name, found.document, old, deadline)
        except errors.ObjectExistsError:
            made = bucket.current(new_name, deadline, leader=True)
            if not found.nuid or made.nuid != found.nuid:
                raise
            # A rename was interrupted before the next step.
        # Not the id of the data, so that no client removes the data together with this document.
        # Two clients that rename the object to the same name write the same id, so both succeed.
        nuid = hashlib.sha256(f"{found.nuid} {new_name}".encode()).hexdigest()[: 2 * NUID_BYTES]
        gone = {**_deleted(found), "nuid": nuid}
        try:
            bucket.store(name, gone, found, deadline)
        except errors.ObjectChangedError:
            # The client that has changed the object removes the data of the new name, too.
            bucket.store(new_name, _deleted(made), made, cleanup(deadline.total))
            raise
        return made

    # Links

    def add_link(
        self, name: str, target: str | ObjectInfo, *, timeout: Seconds | None = None
    ) -> ObjectInfo:
        """
        Store a link to an object, and return its description.

        Reads of the link return the data that the target has at that time.

        Args:
            name: The name of the link. It may replace another link or a deleted object.
            target: The name of an object of this store, or the description of any object.
            timeout: Seconds for all requests together.

        Raises:
            ObjectNotFoundError: The target does not exist.
            ObjectIsLinkError: The target is a link.
            ObjectExistsError: There is an object of that name.
            ObjectChangedError, ...: As :meth:`delete`.
        """
        bucket, deadline = self._bucket, self._deadline(timeout)
        encode_name(name)
        found = bucket.current(target, deadline) if isinstance(target, str) else target
        if not isinstance(found, ObjectInfo):
            raise wrong_type("target", "a name or an ObjectInfo", target)
        if found.is_deleted:
            raise errors.ObjectNotFoundError(found.bucket, found.name, deleted_at=found.revision)
        if found.link is not None:
            raise errors.ObjectIsLinkError(
                found.bucket, found.name, "link to its target, because links to links are refused"
            )
        return self._link(name, {"bucket": found.bucket, "name": found.name}, deadline)

    def add_store_link(
        self, name: str, store: str | ObjectStore, *, timeout: Seconds | None = None
    ) -> ObjectInfo:
        """
        Store a link to a whole object store, and return its description.

        Such a link has no data. ``info(name).link.bucket`` is the name of that store.

        Args:
            name: The name of the link. It may replace another link or a deleted object.
            store: The other object store.
            timeout: Seconds for all requests together.

        Raises:
            ObjectExistsError: There is an object of that name.
            ObjectChangedError, ...: As :meth:`delete`.
        """
        encode_name(name)
        if not isinstance(store, (str, ObjectStore)):
            raise wrong_type("store", "a name or an ObjectStore", store)
        bucket = check_bucket(store if isinstance(store, str) else store.bucket)
        return self._link(name, {"bucket": bucket}, self._deadline(timeout))

    def _link(self, name: str, link: dict[str, str], deadline: Deadline) -> ObjectInfo:
        bucket = self._bucket
        document = {
            "name": name,
            "options": {"link": link},
            "bucket": bucket.name,
            "nuid": new_nuid(),
            "size": 0,
            "chunks": 0,
        }
        old = bucket.free_name(name, deadline, or_link=True)
        return bucket.store(name, document, old, deadline)

    # The store itself

    def watch(
        self,
        *names: str,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        timeout: Seconds | None = None,
    ) -> ObjectWatch:
        """
        Return a watch, which yields the current descriptions and then the changes, in order.

        It skips a description that was replaced before the server could send it, but never the last
        one of an object.

        Args:
            *names: The objects. The default is all.
            updates_only: Start with the next change.
            ignore_deletes: Leave out deleted objects.
            timeout: Seconds to wait until the server has created the watch's consumer.

        Raises:
            InvalidNameError: A name is invalid. Nothing was sent.
            ObjectStoreNotFoundError: The object store does not exist any more.
        """
        return open_watch(
            self._bucket,
            names,
            self._deadline(timeout),
            updates_only=updates_only,
            ignore_deletes=ignore_deletes,
        )

    def seal(self, *, timeout: Seconds | None = None) -> None:
        """
        Seal the object store: it can be read, and never changes again. This cannot be undone.

        Sealing a sealed object store does nothing. The server also removes its time-to-live.

        Raises:
            ObjectStoreNotFoundError: The object store does not exist any more.
        """
        with self._bucket.named, contextlib.suppress(errors.StreamSealedError):
            self._bucket.stream.update(sealed=True, timeout=timeout)

    def collect_garbage(
        self, older_than: Seconds = GARBAGE, *, timeout: Seconds | None = None
    ) -> int:
        """
        Remove data that belongs to no object, and return the number of puts that had left it.

        A put that fails removes its own data. It cannot do so if its process was killed or if it
        lost the connection for long. No other data is removed, also that of other clients.

        Args:
            older_than: Remove data that was stored at least this many seconds ago. The default is
                3600. Choose more than the longest pause and timeout of a put, and at least 120.
                With less, an object that is stored meanwhile may lose its data without an error.
            timeout: Seconds for each request. The default is 30.

        Raises:
            ProtocolError: A description cannot be read, so its data is not known. Nothing was
                removed.
            ObjectStoreNotFoundError: The object store does not exist any more.
            ObjectStoreSealedError: The object store is sealed, and has garbage.
        """
        seconds = as_seconds(READING if timeout is None else timeout)
        return collect_garbage(self._bucket, as_seconds(older_than, "older_than"), seconds)

    def backup(
        self, path: str | os.PathLike[str], **options: Unpack[BackupOptions]
    ) -> StreamBackup:
        """
        Write a backup of the object store into a new folder, as :meth:`Stream.backup` does.

        Restore it with :meth:`JetStream.restore_stream`, under the same name.

        Args:
            path: The folder. It must be empty, or not exist.
            **options: As for :meth:`Stream.backup`.

        Raises:
            ObjectStoreNotFoundError: The object store does not exist any more.
            BackupError, FileExistsError, ...: As :meth:`Stream.backup`.
        """
        with self._bucket.named:
            return self._bucket.stream.backup(path, **options)

    def status(self, *, timeout: Seconds | None = None) -> ObjectStoreStatus:
        """
        Ask the server for the configuration and the state of the object store.

        Raises:
            ObjectStoreNotFoundError: The object store does not exist any more.
        """
        with self._bucket.named:
            return ObjectStoreStatus(self._bucket.name, self._bucket.stream.info(timeout=timeout))

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


def _deleted(info: ObjectInfo) -> dict[str, Any]:
    """Return the document that marks an object as deleted."""
    return {**info.document, "deleted": True, "size": 0, "chunks": 0, "digest": None}
