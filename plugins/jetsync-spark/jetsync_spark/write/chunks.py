"""
Chunks of messages, for modes that store several messages at once.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from jetsync_spark.write.changes import subject_of, waits_for_key

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Chunks"]

CHUNK_BYTES: Final = 8 << 20
"""Maximum bytes of an atomic batch of several rows, which is held in memory."""


class Chunks:
    """
    Splits an iterator of messages into chunks. Not thread-safe.

    Args:
        source: The messages.
        of_keys: Whether they are changes of a bucket. A chunk then ends before a change that cannot
            follow an earlier one of its key in an atomic batch.
        each_key_once: Whether a chunk ends before any second change of a key.
    """

    def __init__(
        self, source: Iterator[Any], *, of_keys: bool = False, each_key_once: bool = False
    ) -> None:
        self._source = source
        self._of_keys = of_keys or each_key_once
        self._each_key_once = each_key_once
        self._held: list[Any] = []
        self.taken = 0
        """The number of messages returned so far."""

    def take(self, most: int) -> tuple[list[Any], bool]:
        """
        Return up to *most* messages, limited to CHUNK_BYTES, and whether there are more.
        """
        chunk, limit = self._held, CHUNK_BYTES
        size = sum(map(_size, chunk))
        subjects = {*map(subject_of, chunk)} if self._of_keys else None
        # Take rows one by one, because they stay in memory and may be large.
        for message in islice(self._source, most - len(chunk)):
            if type(message) is tuple and type(message[1]) is bytes and len(message) == 2:
                size += len(message[1])
            else:
                size += _size(message)
            if subjects is not None:
                subject = subject_of(message)
                if subject in subjects and (self._each_key_once or waits_for_key(message)):
                    size = limit + 1
                subjects.add(subject)
            if size > limit and chunk:
                self._held = [message]
                break
            chunk.append(message)
        else:
            self._held = list(islice(self._source, 1))
        self.taken += len(chunk)
        return chunk, bool(self._held)


def _size(message: Any) -> int:
    """Estimate the bytes of a message with its headers."""
    if type(message) is tuple:
        data, headers = message[1], message[2] if len(message) > 2 else None
    else:
        data, headers = message.data, message.headers
    size = len(data.encode()) if isinstance(data, str) and not data.isascii() else len(data)
    return size + len(repr(headers)) if headers else size
