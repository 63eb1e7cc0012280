"""
Reading the last message of each of many subjects at one moment, in pages.

What lives here: the engine of such a read, and how many subjects are put into one request. What may
not: the socket, the clock, threads.

Theory of operation. The moment is a sequence: a server looks for the last message of each subject
up to there. A read that needs one page is of the moment at which its server was, as the end of the
page tells.

A read of more pages needs a moment that was fixed before. It may be answered by several servers, of
which some have not got that far, and those would give older messages without a word. So they are
asked for what was stored *before a time*, that of the first message behind the moment: the end of
the page then tells how far the server really looked. A page that is not of the moment is dropped
and asked for again; for that, each page is kept back until its end.

An answer without a message does not tell who gave it, and a mirror may have less than the stream:
where it is in doubt, such a page has to be confirmed by who can ask the leader.

A stream that keeps only so many messages of a subject may lose one of that moment before its page
is asked for; the first message of a part tells how many there should be.

Implements ADR-31; facts about servers 2.11 to 2.15.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from jetsync._base.integers import read_digits
from jetsync._proto.direct import NUM_PENDING, SUBJECT, PagedRead, PageRequest, number_in
from jetsync.errors import ProtocolError
from jetsync.values import headers
from jetsync.values.headers import find_last

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync.values.frame import Frame

MAX_SUBJECTS: Final = 1024
"""How many subjects one request may resolve; servers answer 413 to more (ADR-31)."""

_UP_TO: Final = headers.UP_TO_SEQUENCE.encode()


class LastRead(PagedRead):
    """
    Read the last message of each of many subjects as of one moment, in parts of so many subjects.

    Where no moment was given, a single page may tell it; if that is not enough, :attr:`cut` says
    that the read has to begin anew with a moment.

    Args:
        stream: The stream, for errors.
        parts: Subjects and wildcards of each request; a request may resolve 1024 subjects.
        after: Only messages behind this sequence, 0 for all.
        moment: The sequence up to which to look.
        time: A time that only messages behind the moment have reached; ``None`` to take the word of
            servers that they have got that far.
        up_to_time: The time before which to look, in place of a moment.
        page: Messages of one request at most; ``None`` leaves it to the server.
        page_bytes: Bytes of one request.
        doubts: Whether a page without a message has to be confirmed.
    """

    __slots__ = (
        "_after",
        "_doubts",
        "_expected",
        "_held",
        "_mark",
        "_page",
        "_page_bytes",
        "_part",
        "_part_began",
        "_parts",
        "_position",
        "_time",
        "_up_to_time",
        "blocks",
        "cut",
        "lagging",
        "moment",
        "nothing",
        "too_many",
    )

    def __init__(
        self,
        stream: str,
        parts: Sequence[tuple[str, ...]],
        *,
        after: int = 0,
        moment: int | None = None,
        time: str | None = None,
        up_to_time: str | None = None,
        page: int | None = None,
        page_bytes: int,
        doubts: bool = False,
    ) -> None:
        super().__init__(stream)
        self._doubts = doubts
        self._parts = parts
        self._part = 0
        self._part_began = False
        self._after = after
        self._position = after + 1
        self._up_to_time = up_to_time
        self._page = page
        self._page_bytes = page_bytes
        self._time = time
        self._held: list[Frame] = []
        self._expected = 0
        self._mark = (0, 0, False, b"", 0)
        """How things were when the open page was asked for."""

        self.blocks: list[bytes] = []
        """The headers of all messages that came, for who looks which subjects are missing."""

        self.moment = moment
        """The sequence that all messages are consistent with; ``None`` before it is known."""

        self.cut = False
        """
        Whether a moment has to be given: one page is not enough, or was cut off because a message
        was removed while the server read it.
        """

        self.lagging = False
        """Whether the last page was dropped, as its server has not got to the moment yet."""

        self.nothing = False
        """Whether the last page had no message, and waits to be confirmed."""

        self.too_many = False
        """Whether more subjects match than a server resolves, and nothing was handed out yet."""

        self.done = not parts

    @property
    def part(self) -> tuple[str, ...]:
        """The subjects and wildcards that the open or last page is about."""
        return self._parts[self._part]

    @property
    def position(self) -> int:
        """The sequence that the page begins with."""
        return self._position

    def confirm(self) -> None:
        """Learn that there is no message behind the last page, as it said."""
        self.nothing = False
        self._next_part()

    @property
    def vanished(self) -> int:
        """How many messages less came than there were when their part was first asked for."""
        return max(0, self._expected - self.received)

    def begin_again(self, moment: int, time: str | None = None) -> None:
        """Begin with a moment that was fixed elsewhere; only while nothing was handed out."""
        self._reset()
        self.cut = False
        self.moment = moment
        self._time = time
        # Before the first sequence there is nothing; servers take 0 for "not given".
        self.done = not moment

    def release(self) -> Sequence[Frame]:
        """Return what is kept back of a single page, as no more will come."""
        held, self._held = self._held, []
        return held if self._time is None else ()

    def subjects(self) -> set[str]:
        """Return the subjects of all messages that came."""
        found = (find_last(block, SUBJECT) for block in self.blocks)
        return {(name or b"").decode("utf-8", "surrogateescape") for name in found}

    def lost(self) -> None:
        super().lost()
        if self.moment is None:
            self._reset()
        elif self._time is not None:
            self._drop()
        elif self._page_count:
            self._position = self.last_sequence + 1

    def _drop(self) -> None:
        """Forget the open page, so that the same is asked for again."""
        self._held = []
        self.received, self._expected, self._part_began, self._last_block, kept = self._mark
        del self.blocks[kept:]

    def _reset(self) -> None:
        self._held = []
        self.blocks = []
        self.received = self._expected = 0
        self._part_began = False
        self._position = self._after + 1
        self._last_block = b""

    def _request(self) -> PageRequest:
        self._mark = (
            self.received,
            self._expected,
            self._part_began,
            self._last_block,
            len(self.blocks),
        )
        self.lagging = self.nothing = False
        by_time = self._time if self.moment is not None else self._up_to_time
        return PageRequest(
            subjects=self._parts[self._part],
            sequence=self._position if self._position > 1 else None,
            up_to_sequence=self.moment if by_time is None else None,
            up_to_time=by_time,
            batch=self._page,
            max_bytes=self._page_bytes,
        )

    def _on_messages(self, frames: list[Frame]) -> Sequence[Frame]:
        if not self._part_began:
            # Unlike those of batches, the numbers of these messages are right on all servers.
            self._part_began = True
            self._expected += number_in(frames[0][2] or b"", NUM_PENDING) + 1
        self.blocks.extend([frame[2] or b"" for frame in frames])
        if self.moment is None or self._time is not None:
            self._held.extend(frames)
            return ()
        return frames

    def _on_end(self, block: bytes, messages: Sequence[Frame]) -> Sequence[Frame]:
        told = find_last(block, _UP_TO)
        if told is None:
            self._fail(ProtocolError("the end of a read of several subjects tells no sequence"))
            return messages
        if self._doubts and not self._page_count:
            self.nothing = True
            return ()
        self.pending = self._left() if self._page_count else 0
        if self.moment is None:
            if self.pending:
                self.cut = True
                self._reset()
                return ()
            self.moment = read_digits(told)
            messages, self._held = self._held, []
        elif self._time is not None:
            reached = read_digits(told)
            if reached != self.moment:
                # Behind the moment: what had the time is gone by now. Then a sequence has to do,
                # and this server has got there.
                self.lagging = reached < self.moment
                self._time = self._time if self.lagging else None
                self._drop()
                return ()
            messages, self._held = self._held, []
        if self.pending:
            self._position = self.last_sequence + 1
        else:
            self._next_part()
        return messages

    def _on_nothing(self, messages: Sequence[Frame], description: str) -> Sequence[Frame]:
        if not self._page_count and not description.startswith("Message"):
            # "No Results": none of the subjects has a message. A server that has not got so far
            # says the same, as does a mirror without them, and nothing in its answer tells.
            self.nothing = self._doubts
            if not self.nothing:
                self._next_part()
            return messages
        # "Message Not Found": one of those that the server had resolved was removed before it could
        # be read. What is behind it did not come.
        if self.moment is None:
            self.cut = True
            self._reset()
            return ()
        if self._time is not None:
            # Without an end nobody knows how far the server looked.
            self._time = None
            self._drop()
            return ()
        if self._page_count:
            self._position = self.last_sequence + 1
        if not self._part_began:
            self._expected += 1
        return messages

    def _on_status(
        self, status: tuple[int | None, str], block: bytes, messages: Sequence[Frame]
    ) -> Sequence[Frame]:
        if status[0] == 413 and not self.received:
            self.too_many = True
        return super()._on_status(status, block, messages)

    def _next_part(self) -> None:
        self._part += 1
        self._part_began = False
        self._position = self._after + 1
        self.done = self._part >= len(self._parts)


def chunks(names: Sequence[str], room: int) -> list[tuple[str, ...]]:
    """
    Return *names* in parts that one request each can have: in number, and in *room* bytes.
    """
    if 0 < len(names) <= MAX_SUBJECTS and 4 * sum(map(len, names)) + 3 * len(names) <= room:
        # Certainly small enough: a character has four bytes at most.
        return [tuple(names)]
    parts: list[tuple[str, ...]] = []
    part: list[str] = []
    size = 0
    for name in names:
        cost = len(json.dumps(name, ensure_ascii=False).encode()) + 1
        if part and (len(part) == MAX_SUBJECTS or size + cost > room):
            parts.append(tuple(part))
            part, size = [], 0
        part.append(name)
        size += cost
    if part:
        parts.append(tuple(part))
    return parts
