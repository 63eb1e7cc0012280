"""
Messages from the server before they are parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

__all__ = ["Frame"]

Frame: TypeAlias = tuple[bytes, bytes, bytes | None, bytes]
"""
The parts of one received message: subject, reply subject (``b""`` if there is none), header block
(``None`` if there is none) and payload. The header block is not parsed and reaches from
``NATS/1.0`` to the empty line.
"""


class FrameRun:
    """
    Frames of one subject with header blocks and without reply subjects, in the bytes received.

    Args:
        subject: The subject of all frames.
        data: The bytes that contain the frames.
        bounds: Three C ints for each frame: where its header block and its payload begin, and where
            it ends.
    """

    # A frame is read much faster from here than if it were split into a tuple of its own first.
    __slots__ = ("bounds", "data", "subject")

    def __init__(self, subject: bytes, data: bytes, bounds: array[int]) -> None:
        self.subject: bytes = subject
        self.data: bytes = data
        self.bounds: array[int] = bounds

    def __len__(self) -> int:
        return len(self.bounds) // 3

    def __getitem__(self, index: int) -> Frame:
        start, middle, end = self.bounds[3 * index : (3 * index + 3) or None]
        return self.subject, b"", self.data[start:middle], self.data[middle:end]

    def __iter__(self) -> Iterator[Frame]:
        subject, data = self.subject, self.data
        bounds = iter(self.bounds)
        for start, middle, end in zip(bounds, bounds, bounds, strict=True):
            yield subject, b"", data[start:middle], data[middle:end]

    def pop(self) -> None:
        """Remove the last frame."""
        del self.bounds[-3:]


Frames: TypeAlias = "list[Frame] | FrameRun"
"""
Frames that arrived together.
"""
