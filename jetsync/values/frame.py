"""
Messages from the server before they are parsed.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Frame"]

Frame: TypeAlias = tuple[bytes, bytes, bytes | None, bytes]
"""
The parts of one received message: subject, reply subject (``b""`` if there is none), header block
(``None`` if there is none) and payload. The header block is not parsed and reaches from
``NATS/1.0`` to the empty line.
"""


def message_size(frame: Frame) -> int:
    """Return the size of a message as servers count it against ``max_bytes``."""
    subject, reply, header, data = frame
    return len(subject) + len(reply) + (len(header) if header is not None else 0) + len(data)


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


def join_runs(
    runs: Sequence[FrameRun], shift: Callable[[array[int], array[int]], array[int]]
) -> FrameRun:
    """
    Return the frames of runs as one run. There is at least one, and none is empty.

    Args:
        runs: The runs.
        shift: Adds the numbers of two arrays of C ints.
    """
    if len(runs) == 1:
        return runs[0]
    bounds, shifts = array("i"), array("i")
    parts = []
    base = 0
    for run in runs:
        # Runs may share their data, if frames of several subscriptions arrived mixed.
        begin, end = run.bounds[0], run.bounds[-1]
        parts.append(memoryview(run.data)[begin:end])
        bounds.extend(run.bounds)
        shifts.extend(array("i", [base - begin]) * len(run.bounds))
        base += end - begin
    return FrameRun(runs[0].subject, b"".join(parts), shift(bounds, shifts))


Frames: TypeAlias = "list[Frame] | FrameRun"
"""
Frames that arrived together.
"""
