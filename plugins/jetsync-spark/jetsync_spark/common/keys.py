"""
Keys of key-value buckets, and the subjects of their changes.

This module does no I/O.
"""

from __future__ import annotations

import re
from typing import Final

from jetsync_spark.common.subjects import KNOWN, StreamSubjects

__all__ = ["LEDGER_KEY", "Keys", "bad_key", "bucket_stream", "is_bucket_name", "key_prefix"]

LEDGER_KEY: Final = "_ledger"
"""The first part of the keys that hold the ledger of mode ``exactlyonce``."""

_BUCKET: Final = re.compile(r"[A-Za-z0-9_-]+")
_KEY: Final = re.compile(r"[-/_=A-Za-z0-9]+(?:\.[-/_=A-Za-z0-9]+)*")


def is_bucket_name(name: str) -> bool:
    """
    Tell whether a text may be the name of a bucket.
    """
    return _BUCKET.fullmatch(name) is not None


def bucket_stream(bucket: str) -> str:
    """
    Return the name of the stream that stores a bucket.
    """
    return f"KV_{bucket}"


def key_prefix(bucket: str) -> str:
    """
    Return the prefix of the subjects of a bucket's keys.
    """
    return f"$KV.{bucket}."


def bad_key(key: str) -> str | None:
    """
    Return why a row cannot have this key, or None if it can.
    """
    if not key:
        return "is empty"
    if "" in key.split("."):
        return f"begins or ends with a dot, or has two in a row: {key!r}"
    if not _KEY.fullmatch(key):
        return f"has a character that is not a letter, a digit, a dot or one of -_=/: {key!r}"
    if key.split(".", 1)[0] == LEDGER_KEY:
        return f"is reserved for the ledger of mode exactlyonce: {key!r}"
    return None


class Keys(StreamSubjects):
    """
    The keys that rows may have, with a cache.
    """

    def __init__(self) -> None:
        super().__init__(())

    def takes(self, subject: str) -> bool:
        """
        Tell whether a row may have a key.
        """
        if subject in self.known:
            return True
        if bad_key(subject) is not None:
            return False
        if len(self.known) >= KNOWN:
            self.known.clear()
        self.known.add(subject)
        return True
