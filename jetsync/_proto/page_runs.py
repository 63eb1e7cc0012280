"""
Read many messages of a page at once.

The lines of a page differ only in their sizes, and few pairs of sizes occur. A message costs 0.4 us
this way, and 1.3 us if each line is parsed.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any, Final

from jetsync._base.speedups import with_twin
from jetsync.values.frame import FrameRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync.values.frame import Frame

# A pattern with the subject of one read would have to be compiled for each read, which takes 0.2 ms
# and displaces a pattern of the program in the cache of `re`.
_LINE_START: Final = re.compile(rb"(HMSG ([^ \r\n]+) ([^ \r\n]+) )[0-9]")
_HEXADECIMAL: Final = re.compile(rb"[0-9a-f]+")

_SIZES: Final = re.compile(rb"([0-9]{1,10}) ([0-9]{1,10})")

# How many different pairs of sizes are remembered, in about 2 MB.
KEPT_SIZES: Final = 8192

# Positions are C ints. No read returns so much.
LARGEST_POSITION: Final = (1 << 31) - 1


class PageRuns:
    """
    Takes the messages of pages in runs from the bytes received; for ``Inbound.express``.

    Only the thread that reads the socket calls :meth:`take`.

    Args:
        push: Takes each :class:`FrameRun`.
        interest: The subject of the subscription, which ends in ``*``.
        sid: The id of the subscription.
    """

    __slots__ = ("_prefix", "_push", "_sid")

    def __init__(self, push: Callable[[Any], object], interest: bytes, sid: bytes) -> None:
        self._push = push
        self._prefix = interest.removesuffix(b"*")
        self._sid = sid

    def take(self, data: bytes, position: int) -> int:
        """Take whole frames until one has another form, which the splitter reads."""
        while found := take_page(data, position, self._prefix, self._sid):
            subject, bounds, position = found
            # Pushed when it is complete, because the owner may take it at once.
            self._push(FrameRun(subject, data, bounds))
        return position


@with_twin
def take_page(
    data: bytes, position: int, prefix: bytes, sid: bytes
) -> tuple[bytes, array[int], int] | None:
    """
    Take whole frames with one subject from *data*, which begin at *position*.

    Args:
        data: The bytes received.
        position: Where the first line begins.
        prefix: The subject without its last part, a hexadecimal number.
        sid: The id of the subscription.

    Returns:
        The subject, the bounds as in :class:`FrameRun`, and the position after the frames. None if
        there is no such frame.
    """
    found = _LINE_START.match(data, position)
    if found is None or len(data) > LARGEST_POSITION:
        return None
    subject = found[2]
    is_own = subject.startswith(prefix) and found[3] == sid
    if not is_own or _HEXADECIMAL.fullmatch(subject, len(prefix)) is None:
        return None
    known, find, is_at = _known_sizes, data.find, data.startswith
    following = b"\r\n" + found[1]
    place = found.end(1)
    bounds: list[int] = []
    while True:
        line_end = find(b"\r\n", place)
        text = data[place:line_end]
        sizes = known.get(text) or _read_sizes(text)
        if sizes is None or line_end < 0:
            break
        start = line_end + 2
        end = start + sizes[1]
        # One comparison finds the end of a message and the line after it.
        is_followed = is_at(following, end)
        if is_followed or is_at(b"\r\n", end):
            bounds += (start, start + sizes[0], end)
            position = end + 2
            place = end + len(following)
        if not is_followed:
            break
    return (subject, array("i", bounds), position) if bounds else None


# The sizes of headers and frame, by the text of both on a line. Any reading thread uses it.
_known_sizes: Final[dict[bytes, tuple[int, int]]] = {}


def _read_sizes(text: bytes) -> tuple[int, int] | None:
    """Return the sizes of headers and frame on a line; None if the splitter has to read it."""
    found = _SIZES.fullmatch(text)
    if found is None or int(found[1]) > int(found[2]):
        return None
    if len(_known_sizes) >= KEPT_SIZES:
        _known_sizes.clear()
    sizes = _known_sizes[text] = int(found[1]), int(found[2])
    return sizes


def join_frames(arrived: Iterable[Frame | FrameRun]) -> list[FrameRun | list[Frame]]:
    """Return the runs of *arrived*, and lists of the single frames between them, in order."""
    runs: list[FrameRun | list[Frame]] = []
    for each in arrived:
        if isinstance(each, FrameRun):
            runs.append(each)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs
