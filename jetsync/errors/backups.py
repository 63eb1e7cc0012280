"""
The errors of backups of streams.
"""

from __future__ import annotations

import os as _os
import typing as _t

from jetsync.errors import base as _base

_OUTCOMES: _t.Final = {
    "nothing": "the server has nothing of it",
    "part": (
        "the server may keep a part of the stream, or an empty one: delete it before you restore"
        " the backup again"
    ),
    "unknown": (
        "all data was sent, so the server may have the whole stream: compare its last sequence with"
        " that of the backup"
    ),
}


class BackupError(_base.JetSyncError):
    """
    The backup of a stream failed. No files were written.
    """

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(f"the backup of stream {stream!r} failed: {reason}; no files were written")
        self.stream = stream
        self.reason = reason


class BackupDamagedError(_base.JetSyncError):
    """
    The files of a backup are damaged or incomplete. Nothing was sent to a server.
    """

    def __init__(self, path: str | _os.PathLike[str], reason: str) -> None:
        self.path: str = _os.fspath(path)
        super().__init__(f"the backup in {self.path!r} is damaged: {reason}")
        self.reason = reason


class RestoreError(_base.JetSyncError):
    """
    A backup could not be restored.

    ``outcome`` says what the server has now: ``"nothing"``, ``"part"`` if it may keep a part of the
    stream or an empty one, or ``"unknown"`` if it may have the whole stream. ``done`` is the number
    of bytes that the server has confirmed. The error that ended the restore is the ``__cause__``.
    """

    def __init__(
        self,
        stream: str,
        reason: str,
        *,
        outcome: _t.Literal["nothing", "part", "unknown"],
        done: int = 0,
    ) -> None:
        super().__init__(f"stream {stream!r} could not be restored: {reason}; {_OUTCOMES[outcome]}")
        self.stream = stream
        self.reason = reason
        self.outcome: _t.Literal["nothing", "part", "unknown"] = outcome
        self.done = done
