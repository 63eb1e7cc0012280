"""
The data of jobs and the values of results as bytes, and objects for what is too large.
"""

from __future__ import annotations

import base64
import json
import uuid
from typing import TYPE_CHECKING, Any

import jetsync

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON = "json"
BYTES = "bytes"


def encode(data: object, what: str = "data") -> tuple[bytes, str]:
    """
    Return data as bytes, and its type: ``bytes`` stay as they are, all else becomes JSON.

    Raises:
        InvalidTypeError: JSON cannot express the data.
    """
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data), BYTES
    try:
        text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode(), JSON
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        raise jetsync.InvalidTypeError(
            f"{what} must be bytes or a value that JSON can express: {error}", argument=what
        ) from error


def decode(raw: bytes, kind: str | None) -> Any:
    """
    Return the data that :func:`encode` was given.
    """
    return json.loads(raw) if kind == JSON else raw


def to_fields(value: object) -> dict[str, Any]:
    """
    Return the fields of a record that hold a value.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": base64.b64encode(bytes(value)).decode("ascii")}
    return {"value": value}


def from_fields(record: Mapping[str, Any]) -> Any:
    """
    Return the value in the fields of a record; None if there is none.
    """
    encoded = record.get("bytes")
    return record.get("value") if encoded is None else base64.b64decode(encoded)


class Objects:
    """
    An object store that is made when the first object is stored.

    Threads: any. Locks: ``_lock`` protects the handle.
    """

    def __init__(
        self, js: jetsync.JetStream, name: str, like: jetsync.StreamConfig, ttl: float | None
    ) -> None:
        self._js = js
        self._name = name
        self._like = like
        self._ttl = ttl
        self._lock = jetsync.interrupt_safe_lock()
        self._store: jetsync.ObjectStore | None = None

    def put(self, name: str, data: bytes) -> str:
        """Store data under a new name that begins with *name*, and return that name."""
        unique = f"{name}/{uuid.uuid4().hex}"
        self._open(create=True).put(unique, data)
        return unique

    def get(self, name: str) -> bytes:
        """
        Return data.

        Raises:
            ObjectNotFoundError, ObjectStoreNotFoundError: It was removed, or has expired.
        """
        return self._open(create=False).get_bytes(name)

    def delete(self, name: str) -> None:
        """Remove data; it is no error if it is gone already."""
        try:
            self._open(create=False).delete(name)
        except (jetsync.ObjectNotFoundError, jetsync.ObjectStoreNotFoundError):
            return

    def _open(self, *, create: bool) -> jetsync.ObjectStore:
        with self._lock:
            store = self._store
        if store is None:
            try:
                store = self._js.object_store(self._name)
            except jetsync.ObjectStoreNotFoundError:
                if not create:
                    raise
                store = self._create()
            with self._lock:
                self._store = store
        return store

    def _create(self) -> jetsync.ObjectStore:
        try:
            return self._js.create_object_store(
                self._name,
                storage=self._like.storage,
                num_replicas=self._like.num_replicas,
                ttl=self._ttl,
            )
        except jetsync.ApiError:
            # Another process has made it meanwhile, with settings of its own.
            return self._js.object_store(self._name)
