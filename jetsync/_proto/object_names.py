"""
Object stores: names, subjects, digests, and where the chunks of an object begin.

This module uses no socket, no clock and no threads.

An object store is a stream named ``OBJ_<bucket>``. The data of an object is in chunks, the messages
of one subject below ``$O.<bucket>.C``. Its document, a JSON object, is the last message of a
subject below ``$O.<bucket>.M``, whose last part is the object's name in Base64. The document names
the subject of the chunks by an id, the *nuid*, and each put takes a new one.

Implements ADR-20. Writes are canonical. Reads also accept what other clients write: names and
digests without padding, and the name of the hash in lower case.
"""

from __future__ import annotations

import base64
import binascii
import bisect
from array import array
from typing import Final

from jetsync._base.fields import wrong_type
from jetsync._proto.keys import check_bucket
from jetsync.errors import InvalidNameError

STREAM_PREFIX: Final = "OBJ_"
"""The prefix of the stream name of an object store."""

SUBJECT_PREFIX: Final = "$O."
"""The prefix of the subjects of an object store."""

CHUNK_SIZE: Final = 128 << 10
"""The size of chunks by default, as in all clients."""

_HASH: Final = "SHA-256="


def stream_of(bucket: str) -> str:
    """Return the name of the stream of an object store."""
    return STREAM_PREFIX + check_bucket(bucket)


def chunks_of(bucket: str, nuid: str) -> str:
    """Return the subject of the chunks of one put; ``>`` stands for all of them."""
    return f"{SUBJECT_PREFIX}{bucket}.C.{nuid}"


def documents_of(bucket: str, last: str = ">") -> str:
    """Return the subject of a document by its last part; ``>`` stands for all of them."""
    return f"{SUBJECT_PREFIX}{bucket}.M.{last}"


def check_name(name: str) -> str:
    """
    Return the name of an object if it is valid: text that is not empty.

    Raises:
        InvalidTypeError: It is not text.
        InvalidNameError: It is empty, or it cannot be encoded as UTF-8.
    """
    if not isinstance(name, str):
        raise wrong_type("an object's name", "text", name, "name")
    if not name:
        raise InvalidNameError("object", name, "it is empty")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidNameError("object", name, "it cannot be encoded as UTF-8") from None
    return name


def encode_name(name: str) -> str:
    """Return the last part of the subject of an object's document."""
    return base64.urlsafe_b64encode(check_name(name).encode()).decode()


def decode_name(token: str) -> str:
    """Return the name of an object from the last part of its subject; *token* if it has none."""
    data = _decode(token)
    return token if data is None else data.decode("utf-8", "replace")


def encode_digest(digest: bytes) -> str:
    """Return a digest as it is written into a document."""
    return _HASH + base64.urlsafe_b64encode(digest).decode()


def decode_digest(text: str) -> bytes | None:
    """Return the bytes of a digest; None if it is not one of SHA-256."""
    if text[: len(_HASH)].upper() != _HASH:
        return None
    return _decode(text[len(_HASH) :])


def _decode(text: str) -> bytes | None:
    """Decode Base64 with or without its padding; None if it is not valid."""
    text = text.rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None


class ChunkIndex:
    """
    Where the chunks of an object begin: their offsets in the data, and their sequences.

    Chunks may have any sizes, because some clients make a chunk of what each read of their source
    returned.
    """

    def __init__(self) -> None:
        self._ends = array("Q")
        self._sequences = array("Q")

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """The bytes of all chunks."""
        return self._ends[-1] if self._ends else 0

    def add(self, sequence: int, size: int) -> None:
        """Add the next chunk."""
        self._ends.append(self.size + size)
        self._sequences.append(sequence)

    def find(self, offset: int) -> tuple[int, int, int]:
        """Return the number, offset and sequence of the chunk that has the byte *offset*."""
        number = bisect.bisect_right(self._ends, offset)
        return number, self._ends[number - 1] if number else 0, self._sequences[number]

    def sequence(self, number: int) -> int:
        """Return the sequence of a chunk."""
        return self._sequences[number]
