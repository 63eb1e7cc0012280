"""
Object stores as a file system of fsspec: `jetstream://bucket/name`.

Needs the extra `fsspec`. fsspec finds the class by its entry point, so programs need not import
this module.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import sys
import tempfile
import warnings
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.transaction import Transaction
from fsspec.utils import isfilelike, tokenize

import jetsync
from jetsync import errors
from jetsync._base.fields import check_fields
from jetsync._base.log import get_logger

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Mapping

_logger = get_logger("jetsync.filesystem")

# What fsspec says about a file or a directory.
Entry: TypeAlias = "dict[str, Any]"

# Bytes of data that a file keeps in memory until it is closed; more goes to a temporary file.
SPOOL: Final = 8 << 20

# Bytes that are read ahead and kept: one chunk. A reader requests more if a file is read on. One
# column of 1 MB transferred 5.8 MB with 4 MiB, 2.2 MB with 512 KiB and 1.8 MB with 128 KiB.
BLOCK: Final = 128 << 10

# What `open` passes to `ObjectStore.put`.
PUT_FIELDS: Final = {"description", "headers", "metadata", "chunk_size", "timeout"}

# Options of fsspec for a cache of listings, which this file system does not have.
NO_CACHE: Final = {"use_listings_cache", "listings_expiry_time", "max_paths"}

# The client of each set of options. File systems are cached for each thread, and share it.
_clients: Final[dict[str, jetsync.Client]] = {}


class _Transaction(Transaction):  # type: ignore[misc]
    """
    A transaction that also ends if one of its files cannot be stored.

    Before fsspec 2026.9, all later writes of the file system would belong to it, and be lost.
    """

    fs: Any

    def complete(self, commit: bool = True) -> None:  # noqa: FBT001, FBT002 - fsspec's signature
        fs = self.fs
        try:
            super().complete(commit)
        finally:
            while self.files:
                self.files.popleft().discard()
            fs._intrans = False  # noqa: SLF001 - fsspec has no other way
            fs._transaction = None  # noqa: SLF001 - fsspec has no other way
            self.fs = None


class JetStreamFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """
    Object stores as a file system of fsspec, with the protocol ``jetstream``.

    A path is ``bucket/name``. The parts of a name that end with ``/`` are directories, which exist
    as long as an object has them in its name. ``mkdir("bucket")`` creates an object store. Methods
    whose name ends in ``_file``, and ``open``, take a path as it is. ``cat``, ``get``, ``cp``,
    ``mv`` and ``rm`` take ``*``, ``?`` and ``[`` as wildcards. They raise InvalidArgumentError if
    the path exists and also matches other paths.

    Files are read with random access, as by :class:`~jetsync.ObjectReader`. A new file is stored as
    one object when it is closed, see :class:`JetStreamFile`. Links are read like their targets.

    All file systems of a process that have the same options share a connection. It is opened by
    the first call, and closed at exit or by ``clear_instance_cache()``. File systems can be pickled
    and used in other threads, in processes and after a fork.

    Args:
        servers: One address or several, as for :func:`jetsync.connect`.
        **options: Further fields of :class:`~jetsync.ConnectOptions`. The default of ``after_fork``
            is ``"reconnect"``.

    Raises:
        InvalidArgumentError, InvalidTypeError: An option does not exist, or its value cannot be
            used.
    """

    # Threads: any number. The dictionaries are changed by single operations.

    protocol = "jetstream"
    blocksize = BLOCK
    transaction_type = _Transaction

    def __init__(self, servers: Any = None, **options: Any) -> None:
        super().__init__(**options)
        given = {name: value for name, value in options.items() if name not in NO_CACHE}
        check_fields(jetsync.ConnectOptions, given, "JetStreamFileSystem()")
        fields = {"after_fork": "reconnect", **given, "servers": servers}
        self._options = jetsync.ConnectOptions(**fields)
        self._key: str = tokenize(fields)
        self._stores: dict[str, tuple[jetsync.Client, jetsync.ObjectStore]] = {}

    @classmethod
    def clear_instance_cache(cls) -> None:
        """
        Close the connections, and forget the file systems that fsspec keeps.

        File systems that you still have connect again when they are used.
        """
        super().clear_instance_cache()
        while _clients:
            _clients.popitem()[1].close()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        found = super()._strip_protocol(path)
        return found.lstrip("/") if isinstance(found, str) else found

    # Connections.

    def _client(self) -> jetsync.Client:
        client = _clients.get(self._key)
        if client is not None and client.is_closed:
            # It could not be restored.
            _clients.pop(self._key, None)
            client = None
        if client is None:
            # No lock, which a fork could copy: two threads may connect, and one of them closes.
            made = jetsync.connect(options=self._options)
            client = _clients.setdefault(self._key, made)
            if client is not made:
                made.close()
        return client

    def _store(self, bucket: str) -> jetsync.ObjectStore:
        client = self._client()
        known, store = self._stores.get(bucket, (None, None))
        if store is None or known is not client:
            store = client.jetstream().object_store(bucket)
            self._stores[bucket] = client, store
        return store

    @contextlib.contextmanager
    def _place(self, path: str) -> Iterator[tuple[jetsync.ObjectStore, str]]:
        """
        Return the object store and the name of an object.

        Errors within the block become those that callers of file systems expect.
        """
        bucket, _, name = self._strip_protocol(path).partition("/")
        try:
            if not bucket:
                raise IsADirectoryError(errno.EISDIR, "the path names no object store", path)
            yield self._store(bucket), name
        except (errors.ObjectNotFoundError, errors.InvalidBucketError) as error:
            raise FileNotFoundError(errno.ENOENT, str(error), path) from error
        except errors.ObjectStoreNotFoundError as error:
            self._stores.pop(bucket, None)
            raise FileNotFoundError(errno.ENOENT, f"{error}; mkdir creates it", path) from error
        except errors.InvalidNameError as error:
            if name:
                raise
            raise IsADirectoryError(errno.EISDIR, "the path names an object store", path) from error
        except errors.ObjectExistsError as error:
            raise FileExistsError(errno.EEXIST, str(error), path) from error
        except errors.ObjectStoreSealedError as error:
            raise OSError(errno.EROFS, str(error), path) from error
        except (errors.StreamFullError, errors.InsufficientResourcesError) as error:
            raise OSError(errno.ENOSPC, str(error), path) from error

    # Listings.

    def _buckets(self) -> list[str]:
        return sorted(store.bucket for store in self._client().jetstream().object_stores())

    def _infos(self, bucket: str) -> dict[str, jetsync.ObjectInfo]:
        """Return the objects and links of an object store by path."""
        with self._place(bucket) as (store, _):
            return {f"{bucket}/{info.name}": info for info in store.list()}

    def _entry(self, path: str, info: jetsync.ObjectInfo) -> Entry:
        """Describe an object; a link like its target, or as something else if it has no data."""
        entry: Entry = {"name": path, "type": "file"}
        if info.link is not None:
            try:
                with (
                    self._place(path) as (store, name),
                    store.get(name, verify=False) as reader,
                ):
                    info = reader.info
            except (FileNotFoundError, errors.ObjectIsLinkError):
                entry["type"] = "other"
        return {
            **entry,
            "size": info.size,
            "mtime": info.modified.timestamp(),
            "modified": info.modified,
            "revision": info.revision,
            "digest": info.digest,
        }

    def info(self, path: str, **_: Any) -> Entry:
        """
        Describe an object or a directory.

        Returns:
            ``name``, ``size`` and ``type``, and for an object ``mtime``, ``modified``, ``revision``
            and ``digest``.

        Raises:
            FileNotFoundError: There is no such object or directory.
        """
        path = self._strip_protocol(path)
        if not path:
            return _directory(path)
        with self._place(path) as (store, name):
            if not name:
                return _directory(path)
            with contextlib.suppress(errors.ObjectNotFoundError):
                return self._entry(path, store.info(name))
            if any(each.startswith(f"{path}/") for each in self._infos(store.bucket)):
                return _directory(path)
            raise FileNotFoundError(errno.ENOENT, "there is no such object", path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:  # noqa: FBT001, FBT002 - fsspec's signature
        """
        List the objects and directories in a directory; without a path, the object stores.

        The server reads the descriptions of all objects in the store, and no data.

        Raises:
            FileNotFoundError: There is no such directory or object.
        """
        path = self._strip_protocol(path)
        found = self._find(path, 1)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such directory", path)
        return self._entries(found) if detail else sorted(found)

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,  # noqa: FBT001, FBT002 - fsspec's signature
        detail: bool = False,  # noqa: FBT001, FBT002 - fsspec's signature
        **_: Any,
    ) -> Any:
        """
        List all objects below a directory, with one list for each object store.
        """
        path = self._strip_protocol(path)
        found = self._find(path, math.inf if maxdepth is None else maxdepth) or {}
        if not withdirs:
            found = {name: info for name, info in found.items() if info is not None}
        elif path and path not in found and self.isdir(path):
            found[path] = None
        if detail:
            return {entry["name"]: entry for entry in self._entries(found)}
        return sorted(found)

    def _entries(self, found: Mapping[str, jetsync.ObjectInfo | None]) -> list[Entry]:
        return [
            _directory(name) if (info := found[name]) is None else self._entry(name, info)
            for name in sorted(found)
        ]

    def _find(self, path: str, depth: float) -> dict[str, jetsync.ObjectInfo | None] | None:
        """
        Return objects and directories below a path, or the object at the path itself.

        Args:
            path: An object store, a directory, an object, or nothing for all object stores.
            depth: How many levels to return.

        Returns:
            A description for each object, and None for each directory. None if there is nothing.
        """
        found: dict[str, jetsync.ObjectInfo | None] = {}
        if not path:
            found.update(dict.fromkeys(self._buckets()))
            for bucket in list(found) if depth > 1 else ():
                # It may be deleted meanwhile.
                found.update(self._find(bucket, depth - 1) or {})
            return found
        bucket = path.partition("/")[0]
        try:
            infos = self._infos(bucket)
        except FileNotFoundError:
            return None
        start = f"{path}/"
        for name, info in infos.items():
            if name.startswith(start):
                parts = name[len(start) :].split("/")
                for level in range(1, len(parts)):
                    if level <= depth:
                        found.setdefault(start + "/".join(parts[:level]))
                if len(parts) <= depth:
                    found[name] = info
        if found or path == bucket:
            return found
        return {path: infos[path]} if path in infos else None

    def exists(self, path: str, **_: Any) -> bool:
        """
        Return whether there is such an object or directory.
        """
        return self._type(path) is not None

    def isdir(self, path: str) -> bool:
        """
        Return whether there is such a directory.
        """
        return self._type(path) == "directory"

    def isfile(self, path: str) -> bool:
        """
        Return whether there is such an object.
        """
        return self._type(path) == "file"

    def _type(self, path: str) -> str | None:
        try:
            return cast("str", self.info(path)["type"])
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> dt.datetime:
        """
        Return when an object was changed last, by the server's clock.
        """
        return cast("dt.datetime", self.info(path)["modified"])

    def expand_path(
        self,
        path: Any,
        recursive: bool = False,  # noqa: FBT001, FBT002 - fsspec's signature
        maxdepth: int | None = None,
        **options: Any,
    ) -> list[str]:
        """
        Return the paths that a path or a pattern matches.

        Raises:
            InvalidArgumentError: The path exists, and is also a pattern that matches other paths.
        """
        given = [path] if isinstance(path, (str, os.PathLike)) else path
        names = [each for each in map(self._strip_protocol, given) if self._is_name(each)]
        if not names or options.get("assume_literal"):
            return cast("list[str]", super().expand_path(path, recursive, maxdepth, **options))
        found = set(names)
        if recursive:
            found.update(*(self.find(each, maxdepth, withdirs=True) for each in names))
        patterns = [each for each in given if self._strip_protocol(each) not in names]
        with contextlib.suppress(FileNotFoundError):
            found.update(super().expand_path(patterns, recursive, maxdepth, **options))
        return sorted(found)

    def _is_name(self, path: str) -> bool:
        """Return whether a path looks like a pattern, but is the name of an object or directory."""
        if not has_magic(path) or not self.exists(path):
            return False
        others = [each for each in self.glob(path) if each != path]
        if others:
            raise errors.InvalidArgumentError(
                f"{path!r} is a name, and also a pattern that matches {others[0]!r}: for an object,"
                " use rm_file, cat_file, get_file, cp_file or open",
                argument="path",
            )
        return True

    # Reading and writing data.

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,  # noqa: FBT001, FBT002 - fsspec's signature
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> JetStreamFile:
        return JetStreamFile(
            self,
            path,
            mode,
            block_size or BLOCK,
            autocommit,
            cache_options=cache_options,
            **options,
        )

    def open(
        self, path: str, mode: str = "rb", *, compression: str | None = None, **options: Any
    ) -> Any:
        """
        Open an object as a file of fsspec.

        Args:
            path: The object.
            mode: ``rb``, ``wb``, ``xb`` (the object must be new), or the same with ``t`` for text.
            compression: As for ``fsspec.open``.
            **options: To read, ``verify`` and ``timeout`` of ``ObjectStore.get``. To write,
                arguments of ``ObjectStore.put``, such as ``metadata``.

        Raises:
            FileNotFoundError: There is no such object, or no such object store.
            FileExistsError: The mode is ``xb``, and there is such an object.
        """
        if compression is None or "b" not in mode or "r" in mode:
            return super().open(path, mode, compression=compression, **options)
        raw = super().open(path, mode, **options)
        return _Compressed(raw, compr[get_compression(path, compression)](raw, mode=mode[0]))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """
        Return the bytes of an object, or some of them. Negative numbers count from the end.
        """
        with self._place(path) as (store, name), store.get(name) as reader:
            if start is None and end is None:
                return reader.read()
            begin, stop, _step = slice(start, end).indices(reader.info.size)
            reader.seek(begin)
            return reader.read(max(stop - begin, 0))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **fields: Any) -> None:
        """
        Store bytes as an object.

        Raises:
            FileExistsError: The mode is ``create``, and there is such an object.
        """
        if self._intrans:
            super().pipe_file(path, value, mode, **fields)
        else:
            self._put(path, lambda store: store.put, value, mode, fields)

    def put_file(
        self,
        lpath: Any,
        rpath: str,
        callback: Any = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **fields: Any,
    ) -> None:
        """
        Store a local file as an object.
        """
        if self._intrans or os.path.isdir(lpath):  # noqa: PTH112 - paths of fsspec are text
            super().put_file(lpath, rpath, callback, mode, **fields)
            return
        callback.set_size(os.path.getsize(lpath))  # noqa: PTH202 - as above
        fields["on_progress"] = lambda done, _: callback.absolute_update(done)
        self._put(rpath, lambda store: store.put_file, lpath, mode, fields)

    def _put(
        self,
        path: str,
        method: Callable[[jetsync.ObjectStore], Callable[..., object]],
        data: Any,
        mode: str,
        fields: dict[str, Any],
    ) -> None:
        with self._place(path) as (store, name):
            if not name:
                raise IsADirectoryError(errno.EISDIR, "the path names no object", path)
            expect = "new" if mode == "create" else None
            method(store)(name, data, expect=expect, **fields)

    def get_file(
        self,
        rpath: str,
        lpath: Any,
        callback: Any = DEFAULT_CALLBACK,
        outfile: Any = None,
        **options: Any,
    ) -> None:
        """
        Write an object into a local file, which appears when all data is read and checked.

        Raises:
            InvalidArgumentError: The name of the object has a part ``..``, and so has *lpath*. A
                recursive ``get`` would leave its folder.
        """
        if outfile is not None or isfilelike(lpath):
            super().get_file(rpath, lpath, callback=callback, outfile=outfile, **options)
            return
        if all(".." in Path(each).parts for each in (self._strip_protocol(rpath), lpath)):
            raise errors.InvalidArgumentError(
                f"the name of {rpath!r} leads out of the folder: get it into another file",
                argument="lpath",
            )
        if self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)  # noqa: PTH103 - paths of fsspec are text
            return

        def report(done: int, total: int) -> None:
            callback.set_size(total)
            callback.absolute_update(done)

        os.makedirs(os.path.dirname(lpath) or ".", exist_ok=True)  # noqa: PTH103, PTH120 - as above
        with self._place(rpath) as (store, name):
            store.get_file(name, lpath, on_progress=report)

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,  # noqa: FBT001, FBT002 - fsspec's signature
        maxdepth: int | None = None,
        **_: Any,
    ) -> None:
        """
        Move objects. Within an object store, the data is not copied if the new name is free.

        Otherwise the object is copied, replaces the object of the new name, and is deleted. If
        another client changes one of the two objects meanwhile, that change may be lost.
        """
        self.copy(path1, path2, recursive, maxdepth, on_error="raise", move=True)

    def _move(self, path1: str, path2: str) -> None:
        with self._place(path1) as (store, name):
            bucket, _, new_name = self._strip_protocol(path2).partition("/")
            if bucket == store.bucket:
                with contextlib.suppress(errors.ObjectExistsError):
                    store.rename(name, new_name)
                    return
            self.cp_file(path1, path2)
            store.delete(name)

    def cp_file(self, path1: str, path2: str, *, move: bool = False, **_: Any) -> None:
        """
        Copy an object with its description, headers and metadata.
        """
        if self._strip_protocol(path1) == self._strip_protocol(path2):
            return
        try:
            with self._place(path1) as (source, name):
                if not name:
                    return
                if move:
                    self._move(path1, path2)
                    return
                with (
                    source.get(name) as reader,
                    self._place(path2) as (target, new_name),
                ):
                    info = reader.info
                    target.put(
                        new_name,
                        reader,
                        description=info.description,
                        headers=info.headers,
                        metadata=info.metadata,
                    )
        except FileNotFoundError as error:
            # Directories exist by the names of their objects.
            if error.filename != path1 or not self.isdir(path1):
                raise

    # Creating and removing.

    def mkdir(self, path: str, create_parents: bool = True, **fields: Any) -> None:  # noqa: ARG002, FBT001, FBT002 - fsspec's signature
        """
        Create an object store; do nothing for a directory within one.

        Args:
            path: The name of the object store.
            create_parents: Not used.
            **fields: Fields of :class:`~jetsync.ObjectStoreConfig`.

        Raises:
            FileExistsError: There is such an object store.
        """
        bucket, _, name = self._strip_protocol(path).partition("/")
        if name or not bucket:
            return
        if self.exists(bucket):
            raise FileExistsError(errno.EEXIST, "there is such an object store", bucket)
        self._client().jetstream().create_object_store(bucket, **fields)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - fsspec's signature
        """
        Create an object store; do nothing for a directory within one.

        Raises:
            FileExistsError: There is such an object store, and *exist_ok* is false.
        """
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok:
                raise

    def rmdir(self, path: str) -> None:
        """
        Delete an object store that is empty; do nothing for a directory within one.

        Raises:
            OSError: The object store is not empty.
        """
        with self._place(path) as (store, name):
            if name:
                return
            if store.list():
                raise OSError(errno.ENOTEMPTY, "the object store is not empty", path)
            self._delete_store(store.bucket)

    def _delete_store(self, bucket: str) -> None:
        with self._place(bucket):
            self._client().jetstream().delete_object_store(bucket)
            self._stores.pop(bucket, None)

    def rm_file(self, path: str) -> None:
        """
        Delete an object.
        """
        with self._place(path) as (store, name):
            if not name:
                raise IsADirectoryError(errno.EISDIR, "the path names an object store", path)
            store.delete(name)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:  # noqa: FBT001, FBT002 - fsspec's signature
        """
        Delete objects.

        Args:
            path: An object or several, also with wildcards.
            recursive: Whether to delete all objects in directories, and whole object stores.
            maxdepth: How many levels to delete.
        """
        paths = self.expand_path(path, recursive=recursive, maxdepth=maxdepth)
        if "" in paths:
            raise IsADirectoryError(errno.EISDIR, "the path names no object store", path)
        buckets = {each for each in paths if recursive and maxdepth is None and "/" not in each}
        for bucket in buckets:
            self._delete_store(bucket)
        for each in reversed(paths):
            if each.partition("/")[0] in buckets or (recursive and "/" not in each):
                continue
            try:
                self.rm_file(each)
            except FileNotFoundError:
                # It is a directory, which ends with its objects, or was deleted meanwhile.
                if not recursive:
                    raise


class JetStreamFile(AbstractBufferedFile):  # type: ignore[misc]
    """
    An object that is read or written as a file of fsspec.

    A file that is written is stored when it is closed, in one ``put``. Up to then, data above 8 MiB
    is in a temporary file. So a reader finds the old object or the whole new one. If an exception
    ends the ``with`` block, nothing is stored. This is also the case if the file is closed while an
    exception is handled that was raised after the file was opened, and a warning is logged.
    """

    DEFAULT_BLOCK_SIZE = BLOCK

    def __init__(
        self,
        fs: JetStreamFileSystem,
        path: str,
        mode: str = "rb",
        block_size: int = BLOCK,
        autocommit: bool = True,  # noqa: FBT001, FBT002 - fsspec's signature
        *,
        cache_type: str = "readahead",
        cache_options: dict[str, Any] | None = None,
        size: int | None = None,  # noqa: ARG002 - the reader knows it
        verify: bool = True,
        timeout: float | None = None,
        **fields: Any,
    ) -> None:
        # Closed until the file is complete, for the finalizer.
        self._closed = True
        self._reader: jetsync.ObjectReader | None = None
        self._spool: Any = None
        if mode not in {"rb", "wb", "xb"}:
            raise NotImplementedError(f"an object cannot be opened with mode {mode!r}")
        unknown = fields.keys() - PUT_FIELDS
        if unknown or (fields and mode == "rb"):
            raise TypeError(f"open() has no option {min(unknown or fields)!r} here")
        with fs._place(path) as (store, name):  # noqa: SLF001 - one module
            if not name:
                raise IsADirectoryError(errno.EISDIR, "the path names an object store", path)
            if mode == "rb":
                self._reader = store.get(name, verify=verify, timeout=timeout)
                self._details = fs._entry(path, self._reader.info)  # noqa: SLF001 - one module
        if mode == "xb" and fs.isfile(path):
            raise FileExistsError(errno.EEXIST, "there is such an object", path)
        super().__init__(
            fs,
            path,
            mode,
            block_size,
            autocommit,
            cache_type=cache_type,
            cache_options=cache_options,
            **(fields if mode != "rb" else {"verify": verify, "timeout": timeout}),
        )
        if mode != "rb":
            self.kwargs["timeout"] = timeout
            self._spool = tempfile.SpooledTemporaryFile(SPOOL)  # noqa: SIM115 - closed by close()
            self._handled = sys.exc_info()[1]

    def _fetch_range(self, start: int, end: int) -> bytes:
        assert self._reader is not None
        self._reader.seek(start)
        return self._reader.read(end - start)

    def write(self, data: Any) -> int:
        """
        Write data at the position.
        """
        if self.closed or self.mode == "rb":
            raise ValueError("the file is closed, or was opened for reading")
        self._spool.write(data)
        count = memoryview(data).nbytes
        self.loc += count
        return count

    def seekable(self) -> bool:
        """
        Return whether the file is open.
        """
        # Also to write: otherwise, Python writes text in UTF-16 and UTF-32 without the mark at its
        # beginning, and cannot read it.
        return not self.closed

    def tell(self) -> int:
        """
        Return the position in bytes.
        """
        self._check_open()
        return cast("int", super().tell())

    def seek(self, loc: int, whence: int = 0) -> int:
        """
        Change the position, and return it.
        """
        self._check_open()
        if self.mode == "rb":
            return cast("int", super().seek(loc, whence))
        self._spool.seek(loc, whence)
        position: int = self._spool.tell()
        self.loc = position
        return position

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")

    def flush(self, force: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - fsspec's signature
        """
        Do nothing, because the object is stored as a whole.
        """
        self._check_open()

    def close(self) -> None:
        """
        Store the object, if the file was opened for writing; safe to repeat.
        """
        if self.closed:
            return
        if self.mode == "rb":
            super().close()
            assert self._reader is not None
            self._reader.close()
            return
        # `fsspec.open`, text files and compressed files call this at the end of a `with` block,
        # too, without passing the exception that ended it.
        raised = sys.exc_info()[1]
        self._closed = True
        if raised is not None and raised is not self._handled:
            _logger.warning("object_not_written", path=self.path, error=type(raised).__name__)
            self.discard()
        elif self.autocommit:
            self.commit()

    def __exit__(self, exc_type: object, *rest: object) -> None:
        if exc_type is None or self.mode == "rb":
            self.close()
        elif not self.closed:
            self._closed = True
            self.discard()

    def __del__(self) -> None:
        if not self.closed:
            self._closed = True
            if self._spool is not None:
                self.discard()
                text = f"{self} was dropped without being closed: nothing was written"
                warnings.warn(text, ResourceWarning, stacklevel=2)

    def commit(self) -> None:
        """
        Store the object; called by transactions of fsspec.
        """
        spool, self._spool = self._spool, None
        if spool is not None:
            with spool:
                spool.seek(0)
                mode = "create" if self.mode == "xb" else "overwrite"
                self.fs._put(self.path, lambda store: store.put, spool, mode, self.kwargs)  # noqa: SLF001 - one module

    def discard(self) -> None:
        """
        Drop the data; called by transactions of fsspec.
        """
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close()


class _Compressed(io.BufferedIOBase):
    """
    A compressed file that closes the file below it, which those of Python do not.
    """

    def __init__(self, raw: JetStreamFile, compressed: Any) -> None:
        super().__init__()
        self._raw = raw
        self._compressed = compressed

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return cast("bool", self._compressed.seekable())

    def tell(self) -> int:
        return cast("int", self._compressed.tell())

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return cast("int", self._compressed.seek(offset, whence))

    def write(self, data: Any, /) -> int:
        return cast("int", self._compressed.write(data))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._compressed.close()
            self._raw.close()

    def __del__(self) -> None:
        # Not stored by the garbage collector, as other files.
        pass


def _directory(path: str) -> Entry:
    return {"name": path, "size": 0, "type": "directory"}
