"""
Read many acks of publishes at once, because nearly all of them look alike.

One regular expression reads a run of acks. An ack then costs 0.5 us instead of 1.2 us, including
the accounting.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jetsync._base.speedups import with_twin

if TYPE_CHECKING:
    from collections.abc import Callable

AckRun: TypeAlias = list[Any]
"""
Plain acks in a row, for ``end_acks`` of the same variant.

In Python, each part is an ack: the last token of the reply subject and the stream sequence, both as
digits. Compiled runs also have parts with many acks, which are packed integers of 64 bits.
"""

RUN_DIGITS: Final = 19
"""Digits of a number or a sequence in a run, at most. Any 19 digits fit into 64 bits."""


class AckRuns:
    """
    Takes acks in runs from the bytes received; see :func:`ack_taker`.

    Only the thread that reads the socket calls :meth:`take`.
    """

    __slots__ = ("_pattern", "_plain", "_prefix", "_push", "_rest", "_sid", "_size")

    def __init__(
        self, push: Callable[[Any], object], prefix: bytes, sid: bytes, plain: bytes
    ) -> None:
        self._push = push
        self._prefix = prefix
        self._sid = sid
        self._plain = plain
        # Made from the first run, which shows how many digits a sequence has.
        self._pattern: re.Pattern[bytes] | None = None
        # The size of its payloads, and how long a frame is without the digits of its number.
        self._size = self._rest = 0

    def take(self, data: bytes, position: int) -> int:
        """
        Take all whole frames if there are several, and each is a plain ack of the same size.

        Return the position after them, or *position* if none is taken.
        """
        last = data.rfind(b"\r\nMSG ", position)
        if last < 0:
            return position
        end = len(data) if data.endswith(b"}\r\n") else last + 2
        run = self._match(data, position, end)
        if not run and self._learn(data, position):
            run = self._match(data, position, end)
        if not run:
            return position
        self._push(run)
        return end

    def _match(self, data: bytes, position: int, end: int) -> AckRun | None:
        """Return the acks if there is nothing else between the two positions."""
        if self._pattern is None:
            return None
        run = self._pattern.findall(data, position, end)
        size = len(run) * self._rest + len(b"".join([number for number, _ in run]))
        return run if size == end - position else None

    def _learn(self, data: bytes, position: int) -> bool:
        """Adopt the size of the first frame; return whether plain acks may have it."""
        line_end = data.index(b"\r\n", position)
        size = int(data[data.rindex(b" ", position, line_end) : line_end])
        digits = size - len(self._plain) - 1
        if size == self._size or not 1 <= digits <= RUN_DIGITS:
            return False
        prefix, plain = re.escape(self._prefix), re.escape(self._plain)
        # `re` keeps the patterns that were compiled last.
        self._pattern = re.compile(
            rb"MSG %b([0-9]{1,%d}) %b %d\r\n%b([0-9]{%d})\}\r\n"
            % (prefix, RUN_DIGITS, re.escape(self._sid), size, plain, digits)
        )
        self._size = size
        self._rest = len(b"MSG %b %b %d\r\n\r\n" % (self._prefix, self._sid, size)) + size
        return True


@with_twin
def ack_taker(
    push: Callable[[Any], object], prefix: bytes, sid: bytes, plain: bytes
) -> Callable[[bytes, int], int]:
    """
    Return what takes acks in runs from the bytes received, as :meth:`AckRuns.take`.

    It is for ``Mailbox.express``.

    Args:
        push: Takes each :data:`AckRun`.
        prefix: The reply subject up to the message's number.
        sid: The id of the subscription.
        plain: How a plain ack starts. Only digits and a brace follow.
    """
    return AckRuns(push, prefix, sid, plain).take
