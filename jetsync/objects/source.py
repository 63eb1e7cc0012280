"""
The data that a caller gives to a put, as chunks of one size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from jetsync._base.fields import wrong_type
from jetsync.errors import InvalidTypeError
from jetsync.values.outbound import Payload, payload_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeGuard

ObjectData: TypeAlias = Payload | BinaryIO | Iterable["bytes | bytearray | memoryview"]
"""
The data of an object: a bytes-like object, text, which is stored as UTF-8, a file that was opened
in binary mode, or an iterable of bytes.
"""


def size_of(data: ObjectData) -> int | None:
    """Return the size of the data in bytes; None if that is not known before the end."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return memoryview(data).nbytes
    if isinstance(data, str):
        return len(payload_bytes(data))
    if not _is_file(data):
        return None
    try:
        at = data.tell()
        end = data.seek(0, 2)
        data.seek(at)
    except (OSError, AttributeError, ValueError):
        # A pipe, or another file that cannot seek.
        return None
    return max(end - at, 0) if isinstance(end, int) else None


def chunks_in(data: ObjectData, size: int) -> Iterator[bytes | memoryview]:
    """
    Return an iterator over the chunks, which all have *size* bytes, except for the last one.

    Raises:
        InvalidTypeError: The data is not of a supported type. For a file or an iterable, the
            iterator may raise it, too.
    """
    if isinstance(data, (bytes, bytearray, memoryview, str)):
        view = memoryview(payload_bytes(data))
        return (view[at : at + size] for at in range(0, len(view), size))
    if _is_file(data):
        return _read(data, size)
    if not isinstance(data, Mapping) and isinstance(data, Iterable):
        return _regroup(iter(data), size)
    raise wrong_type("data", "bytes, text, a binary file or an iterable of bytes", data)


def _is_file(data: Any) -> TypeGuard[Any]:
    return callable(getattr(data, "read", None))


def _read(file: Any, size: int) -> Iterator[bytes | memoryview]:
    while True:
        block = _bytes(file.read(size), "a file's read()")
        if 0 < len(block) < size:
            # A pipe or a socket returns what is there. Other clients read such chunks slowly.
            parts = [block]
            missing = size - len(block)
            while missing and (block := _bytes(file.read(missing), "a file's read()")):
                parts.append(block)
                missing -= len(block)
            block = b"".join(parts)
        if not block:
            return
        if len(block) > size:
            raise InvalidTypeError("the file's read() returned more than was asked for")
        yield block


def _regroup(pieces: Iterator[Any], size: int) -> Iterator[bytes | memoryview]:
    parts: list[bytes | memoryview] = []
    missing = size
    for piece in pieces:
        view = memoryview(_bytes(piece, "an item of the iterable"))
        while len(view) >= missing:
            parts.append(view[:missing])
            view = view[missing:]
            yield parts[0] if len(parts) == 1 else b"".join(parts)
            parts, missing = [], size
        if len(view):
            parts.append(view)
            missing -= len(view)
    if parts:
        yield b"".join(parts)


def _bytes(data: Any, what: str) -> Any:
    if type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        # A copy, because a program may use its buffer for the next block.
        return bytes(payload_bytes(data))
    wanted = "bytes; open text files in binary mode" if isinstance(data, str) else "bytes"
    raise wrong_type(what, wanted, data, "data")
