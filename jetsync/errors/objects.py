"""
The errors of object stores.
"""

from __future__ import annotations

import typing as _t

from jetsync.errors import api as _api
from jetsync.errors import base as _base


class ObjectStoreNotFoundError(_api.StreamNotFoundError):
    """
    The object store does not exist, or it was deleted and created again during a watch.
    """

    def __init__(self, bucket: str, *, reason: str | None = None) -> None:
        why = "" if reason is None else f": {reason}"
        text = f"object store {bucket!r} not found{why}"
        super().__init__(description=text, stream=f"OBJ_{bucket}")
        self.args: tuple[_t.Any, ...] = (text,)
        self.bucket = bucket
        self.reason = reason


class ObjectStoreSealedError(_api.StreamSealedError):
    """
    The object store is sealed: it can be read, and never changes again. Nothing was changed.
    """

    def __init__(self, bucket: str) -> None:
        text = f"object store {bucket!r} is sealed and never changes again"
        super().__init__(description=text, stream=f"OBJ_{bucket}")
        self.args: tuple[_t.Any, ...] = (text,)
        self.bucket = bucket


class ObjectChangedError(_api.WrongLastSequenceError):
    """
    Another client has changed the object. Nothing was changed by this call.

    ``last_sequence`` is the object's current revision, or None if jetsync does not know it.
    """

    def __init__(
        self,
        bucket: str,
        name: str,
        *,
        last_sequence: int | None = None,
        reason: str = (
            "was changed by another client, and this call changed nothing: read it and try again"
        ),
    ) -> None:
        text = f"object {name!r} of object store {bucket!r} {reason}"
        super().__init__(description=text, stream=f"OBJ_{bucket}")
        self.args: tuple[_t.Any, ...] = (text,)
        self.bucket = bucket
        self.name = name
        self.last_sequence = last_sequence


class ObjectExistsError(ObjectChangedError):
    """
    There is an object of that name already. Nothing was changed.
    """

    def __init__(self, bucket: str, name: str, *, last_sequence: int | None = None) -> None:
        super().__init__(bucket, name, last_sequence=last_sequence)
        self.description: str = f"object {name!r} exists already in object store {bucket!r}"
        self.args: tuple[_t.Any, ...] = (self.description,)


class ObjectNotFoundError(_base.JetSyncError, KeyError):
    """
    The object does not exist in the object store, or it was deleted.

    ``deleted_at`` is the revision of the deletion, or None if the object never existed.
    """

    def __init__(self, bucket: str, name: str, *, deleted_at: int | None = None) -> None:
        text = f"object {name!r} not found in object store {bucket!r}"
        if deleted_at is not None:
            text += f": deleted at revision {deleted_at}"
        super().__init__(text)
        self.bucket = bucket
        self.name = name
        self.deleted_at = deleted_at


class ObjectIsLinkError(_base.JetSyncError):
    """
    A link cannot be used for this: it has no data of its own, or its target cannot be read.
    """

    def __init__(self, bucket: str, name: str, reason: str) -> None:
        super().__init__(f"object {name!r} of object store {bucket!r} is a link: {reason}")
        self.bucket = bucket
        self.name = name
        self.reason = reason


class ObjectCorruptedError(_base.JetSyncError):
    """
    The stored data is not the data of the object: chunks are missing, or the digest differs.
    """

    def __init__(self, bucket: str, name: str, reason: str) -> None:
        super().__init__(f"object {name!r} of object store {bucket!r} cannot be read: {reason}")
        self.bucket = bucket
        self.name = name
        self.reason = reason
