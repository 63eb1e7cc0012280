"""
Messages by the chunk, for modes that store several at once.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Chunks"]

CHUNK_BYTES: Final = 8 << 20
"""Payload and headers of one atomic batch of several rows at most: it is kept in memory."""


class Chunks:
    """
    Messages of an iterator, by the chunk; not synchronised.
    """

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source
        self._held: list[Any] = []
        self.taken = 0
        """How many messages were handed out."""

    def take(self, most: int) -> tuple[list[Any], bool]:
        """
        Return the next messages, *most* of them and not many megabytes, and whether there are more.
        """
        chunk, limit = self._held, CHUNK_BYTES
        size = sum(map(_size, chunk))
        # One by one: what is taken is in memory, and rows may be large.
        for message in islice(self._source, most - len(chunk)):
            if type(message) is tuple and type(message[1]) is bytes and len(message) == 2:
                size += len(message[1])
            else:
                size += _size(message)
            if size > limit and chunk:
                self._held = [message]
                break
            chunk.append(message)
        else:
            self._held = list(islice(self._source, 1))
        self.taken += len(chunk)
        return chunk, bool(self._held)


def _size(message: Any) -> int:
    """Return about how many bytes a message has, its headers included."""
    if type(message) is tuple:
        data, headers = message[1], message[2] if len(message) > 2 else None
    else:
        data, headers = message.data, message.headers
    size = len(data.encode()) if isinstance(data, str) and not data.isascii() else len(data)
    return size + len(repr(headers)) if headers else size
