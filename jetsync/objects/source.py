"""
The data that a caller gives to a put, read into buffers.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

from jetsync._base.fields import wrong_type
from jetsync._proto.object_names import CHUNK_SIZE
from jetsync.values.outbound import Payload, payload_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeGuard

ObjectData: TypeAlias = Payload | BinaryIO | Iterable["bytes | bytearray | memoryview"]
"""
The data of an object: a bytes-like object, text, which is stored as UTF-8, a file that was opened
in binary mode, or an iterable of bytes.
"""

# Files that write into a buffer themselves. Not their subclasses, which may only replace `read`.
_DIRECT: Final = frozenset({io.FileIO, io.BufferedReader, io.BufferedRandom, io.BytesIO})


class Source:
    """
    The data of one put; one thread.

    Args:
        data: The data.

    Raises:
        InvalidTypeError: The data is not of a supported type. For a file or an iterable,
            :meth:`read` may raise it, too.
    """

    def __init__(self, data: ObjectData) -> None:
        #: The number of all bytes if *data* is in memory.
        self.size: int | None = None
        self._file: Any = None
        # Pieces of any size, and what is left of the last one.
        self._pieces: Iterator[Any] = iter(())
        self._rest = memoryview(b"")
        if isinstance(data, (bytes, bytearray, memoryview, str)):
            view = memoryview(payload_bytes(data))
            # Python copies to a buffer only from views of its format. An empty view has no cast.
            self._rest = view.cast("B") if view else view
            self.size = len(self._rest)
        elif _is_file(data):
            self._file = data
            if type(data) not in _DIRECT:
                self._pieces = _blocks(data)
        elif not isinstance(data, Mapping) and isinstance(data, Iterable):
            self._pieces = (_bytes(piece, "an item of the iterable") for piece in data)
        else:
            raise wrong_type("data", "bytes, text, a binary file or an iterable of bytes", data)

    def total(self) -> int | None:
        """Return the number of all bytes; None if that is not known before the end."""
        if self._file is None:
            return self.size
        try:
            at = self._file.tell()
            end = self._file.seek(0, 2)
            self._file.seek(at)
        except (OSError, AttributeError, ValueError):
            # A pipe, or another file that cannot seek.
            return None
        return max(end - at, 0) if isinstance(end, int) else None

    def read(self, buffer: memoryview) -> int:
        """Copy the next bytes into *buffer*, and return how many; fewer than fit at the end."""
        copy = self._read_file if type(self._file) in _DIRECT else self._take
        size = 0
        # A pipe or a socket returns what is there. Other clients read small chunks slowly.
        while size < len(buffer) and (count := copy(buffer[size:])):
            size += count
        return size

    def _read_file(self, buffer: memoryview) -> int:
        count = self._file.readinto(buffer)
        if not isinstance(count, int):
            # The file does not block, and has no data now.
            raise wrong_type("the result of a file's readinto()", "a number", count, "data")
        return count

    def _take(self, buffer: memoryview) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        part = self._rest[: len(buffer)]
        buffer[: len(part)] = part
        self._rest = self._rest[len(part) :]
        return len(part)


def _is_file(data: Any) -> TypeGuard[Any]:
    return callable(getattr(data, "read", None))


def _blocks(file: Any) -> Iterator[bytes]:
    while block := _bytes(file.read(CHUNK_SIZE), "a file's read()"):
        yield block


def _bytes(data: Any, what: str) -> bytes:
    if type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        # A copy, because a program may use its buffer for the next block.
        return bytes(payload_bytes(data))
    wanted = "bytes; open text files in binary mode" if isinstance(data, str) else "bytes"
    raise wrong_type(what, wanted, data, "data")
