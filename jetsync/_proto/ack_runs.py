"""
Read many acks of publishes at once, because nearly all of them look alike.

One regular expression reads a run of acks. An ack then costs 0.5 us instead of 1.2 us, including
the accounting.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

from jetsync._base.integers import LONGEST_DIGITS

if TYPE_CHECKING:
    from collections.abc import Callable

AckRun: TypeAlias = list[tuple[bytes, bytes]]
"""Plain acks in a row: the last token of the reply subject and the stream sequence, as digits."""


class AckRuns:
    """
    Takes acks in runs from the bytes received; for ``Inbound.express``.

    Only the thread that reads the socket calls :meth:`take`.

    Args:
        push: Takes each :data:`AckRun`.
        interest: The subject of the subscription, which ends in ``*``.
        sid: The id of the subscription.
        plain: How a plain ack starts. Only digits and a brace follow.
    """

    __slots__ = ("_pattern", "_plain", "_prefix", "_push", "_sid")

    def __init__(
        self, push: Callable[[Any], object], interest: bytes, sid: bytes, plain: bytes
    ) -> None:
        self._push = push
        self._prefix = re.escape(interest.removesuffix(b"*"))
        self._sid = sid
        self._plain = plain
        # Made from the first run, which shows how many digits a sequence has.
        self._pattern: re.Pattern[bytes] | None = None

    def take(self, data: bytes, position: int) -> int:
        """Take all frames but the last if every one of them is a plain ack of the same size."""
        last = data.rfind(b"\r\nMSG ", position)
        if last < 0:
            return position
        end = last + 2
        # Each match has two line ends. If there are more, something else stands in between.
        matches = data.count(b"\r\n", position, end) / 2
        pattern = self._pattern
        run: AckRun = [] if pattern is None else pattern.findall(data, position, end)
        if len(run) != matches:
            self._pattern = self._pattern_of(data, position)
            if self._pattern is None or self._pattern is pattern:
                return position
            run = self._pattern.findall(data, position, end)
            if len(run) != matches:
                return position
        self._push(run)
        return end

    def _pattern_of(self, data: bytes, position: int) -> re.Pattern[bytes] | None:
        """Return the pattern of plain acks with the size of the first frame, if that may be one."""
        line_end = data.index(b"\r\n", position)
        size = int(data[data.rindex(b" ", position, line_end) : line_end])
        digits = size - len(self._plain) - 1
        if not 1 <= digits <= LONGEST_DIGITS:
            return None
        # `re` keeps the patterns that were compiled last.
        return re.compile(
            rb"MSG %b([0-9]{1,20}) %b %d\r\n%b([0-9]{%d})\}\r\n"
            % (self._prefix, self._sid, size, re.escape(self._plain), digits)
        )
