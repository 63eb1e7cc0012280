"""
The bucket of results: any key, values of any size, and changes that no other process can overwrite.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from typing import TYPE_CHECKING, Any, Final

import attrs

import jetsync
from jetsync_celery.clients import CLIENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MARKER_TTL: Final = 60.0
"""Seconds for which the server remembers that a key has expired."""

LARGE: Final = b"\0object:"
"""Begins a value whose data is in the object store. JSON and pickles begin differently."""

HEADERS: Final = 4096
"""Bytes of a message that are left for its headers."""

_LEGAL = re.compile(r"[A-Za-z0-9_/-]+(?:\.[A-Za-z0-9_/-]+)*")
_UNSAFE = re.compile(rb"[^A-Za-z0-9_/-]")


def legal(key: str) -> str:
    """
    Return a key as the bucket allows it. Keys of Celery stay as they are.
    """
    if _LEGAL.fullmatch(key):
        return key
    return _UNSAFE.sub(lambda found: b"=%02X" % ord(found[0]), key.encode()).decode()


@attrs.frozen
class Opened:
    """
    The bucket, in one process.
    """

    pid: int
    client: jetsync.Client
    bucket: jetsync.KeyValue[bytes]


class Values:
    """
    Keys and values that expire. Connects with the first call, and again in a forked child.

    Threads: any.
    Locks: `_lock` protects `_opened`.
    """

    def __init__(
        self,
        options: jetsync.ConnectOptions,
        name: str,
        *,
        expires: float | None,
        storage: str,
        num_replicas: int,
    ) -> None:
        self._options = options
        self._name = name
        self._expires = expires
        self._config: dict[str, Any] = {"storage": storage, "num_replicas": num_replicas}
        self._lock = jetsync.interrupt_safe_lock()
        self._opened: Opened | None = None

    @property
    def bucket(self) -> jetsync.KeyValue[bytes]:
        """The bucket."""
        return self._open().bucket

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            CLIENTS.release(opened.client)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None."""
        return self.load(self.bucket.get(legal(key), default=None))

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of keys, all of one moment."""
        found = self.bucket.get_many([legal(key) for key in keys]) if keys else {}
        return [self.load(found.get(legal(key))) for key in keys]

    def put(self, key: str, value: bytes | str) -> None:
        """Set the value of a key."""
        self.bucket.put(legal(key), self._stored(key, value), ttl=self._expires)

    def delete(self, key: str) -> None:
        """Remove a key."""
        self.bucket.purge(legal(key), ttl=MARKER_TTL)

    def put_below(self, key: str, name: str, value: bytes | str) -> None:
        """Set a value below a key: `get_below` returns all values below it."""
        self.bucket.put(f"{legal(key)}.{name}", self._stored(key, value), ttl=self._expires)

    def get_below(self, key: str) -> list[bytes]:
        """Return the values below a key, in the order of their names, all of one moment."""
        found = sorted(self.bucket.get_many(f"{legal(key)}.>").items())
        return [value for _, entry in found if (value := self.load(entry)) is not None]

    def delete_below(self, key: str) -> None:
        """Remove the values below a key, in one request."""
        bucket = self.bucket
        bucket.stream.purge(f"$KV.{bucket.bucket}.{legal(key)}.>")

    def change(
        self,
        key: str,
        changed: Callable[[bytes | None], bytes | str | None],
        *,
        is_new: bool = False,
    ) -> bytes | None:
        """
        Replace the value of a key by what a function makes of it, in one step for all processes.

        Args:
            key: The key.
            changed: Gets the value, or None, and returns the new one, or None to leave it. Called
                again if another process changed the key meanwhile.
            is_new: Whether the key is likely to be new, so that it is not read first.

        Returns:
            The value afterwards.
        """
        after: bytes | str | None = None
        data: bytes | None = None

        def stored(entry: jetsync.Entry[bytes] | None) -> bytes | None:
            nonlocal after, data
            old = self.load(entry)
            new = changed(old)
            if new is None:
                after = old
                return None
            if new is not after:
                # A large value is uploaded once, even if the key has changed meanwhile.
                after, data = new, self._stored(key, new)
            return data

        bucket, name = self.bucket, legal(key)
        is_stored = False
        if is_new and (first := stored(None)) is not None:
            with contextlib.suppress(jetsync.KeyExistsError):
                bucket.create(name, first, ttl=self._expires)
                is_stored = True
        if not is_stored:
            bucket.modify(name, stored, ttl=self._expires)
        return after.encode() if isinstance(after, str) else after

    def watch(self, keys: Sequence[str]) -> jetsync.Watch[bytes]:
        """Return a watch of keys, which begins with their values."""
        return self.bucket.watch(*map(legal, keys), ignore_deletes=True)

    def load(self, entry: jetsync.Entry[bytes] | None) -> bytes | None:
        """Return the value of an entry, wherever it is stored."""
        if entry is None or entry.is_deleted:
            return None
        value = bytes(entry.value)
        if not value.startswith(LARGE):
            return value
        try:
            return self._objects().get_bytes(value.removeprefix(LARGE).decode())
        except jetsync.ObjectNotFoundError:
            return None  # It has expired.

    def _stored(self, key: str, value: bytes | str) -> bytes:
        data = value.encode() if isinstance(value, str) else value
        if len(data) <= self._open().client.server.max_payload - HEADERS:
            return data
        name = f"{legal(key)}.{random.getrandbits(64):016x}"
        self._objects().put(name, data)
        return LARGE + name.encode()

    def _objects(self) -> jetsync.ObjectStore:
        js = self._open().client.jetstream()
        try:
            return js.object_store(self._name)
        except jetsync.ObjectStoreNotFoundError:
            return js.create_or_update_object_store(self._name, ttl=self._expires, **self._config)

    def _open(self) -> Opened:
        opened = self._opened
        if opened is not None and opened.pid == os.getpid():
            return opened
        client = CLIENTS.acquire(self._options)
        try:
            opened = Opened(os.getpid(), client, self._bucket(client.jetstream()))
        except BaseException:
            CLIENTS.release(client)
            raise
        with self._lock:
            known = self._opened
            if known is None or known.pid != opened.pid:
                self._opened = opened
                return opened
        # Another thread was faster.
        CLIENTS.release(client)
        return known

    def _bucket(self, js: jetsync.JetStream) -> jetsync.KeyValue[bytes]:
        try:
            return js.key_value(self._name)
        except jetsync.BucketNotFoundError:
            try:
                return js.create_key_value(
                    self._name,
                    description="Results of Celery",
                    history=1,
                    limit_marker_ttl=MARKER_TTL,
                    **self._config,
                )
            except jetsync.StreamNameInUseError:
                # Another process has created it with other settings.
                return js.key_value(self._name)
