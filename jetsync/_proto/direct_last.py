"""
Reading the last message of each of many subjects at one moment, in pages.

What lives here: the engine of such a read, and how many subjects are put into one request. What may
not: the socket, the clock, threads.

Theory of operation. The moment is a sequence: a server looks for the last message of each subject
up to there. The end of the first page tells which one it took, and all later requests name it. A
stream that keeps only so many messages of a subject may lose one of that moment before its page is
asked for; the first message of a part tells how many there should be.

Implements ADR-31; facts about servers 2.11 to 2.15.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from jetsync import headers
from jetsync._proto.direct import NUM_PENDING, SUBJECT, PagedRead, PageRequest
from jetsync.errors import ProtocolError
from jetsync.headers import find_last

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync.typing import Frame

MAX_SUBJECTS: Final = 1024
"""How many subjects one request may resolve; servers answer 413 to more (ADR-31)."""

_UP_TO: Final = headers.UP_TO_SEQUENCE.encode()


class LastRead(PagedRead):
    """
    Read the last message of each of many subjects as of one moment, in parts of so many subjects.

    The moment is the sequence up to which a server looks. Where none was given, the end of the
    first page tells it; the messages of that page are kept back until then, so that the read can
    begin anew if the page is cut off.

    Args:
        stream: The stream, for errors.
        parts: Subjects and wildcards of each request; a request may resolve 1024 subjects.
        after: Only messages behind this sequence, 0 for all.
        moment: The sequence up to which to look.
        up_to_time: The time before which to look, in its place.
        page: Messages of one request at most; ``None`` leaves it to the server.
        page_bytes: Bytes of one request.
    """

    __slots__ = (
        "_after",
        "_expected",
        "_held",
        "_page",
        "_page_bytes",
        "_part",
        "_part_began",
        "_parts",
        "_position",
        "_up_to_time",
        "blocks",
        "cut",
        "moment",
        "too_many",
    )

    def __init__(
        self,
        stream: str,
        parts: Sequence[tuple[str, ...]],
        *,
        after: int = 0,
        moment: int | None = None,
        up_to_time: str | None = None,
        page: int | None = None,
        page_bytes: int,
    ) -> None:
        super().__init__(stream)
        self._parts = parts
        self._part = 0
        self._part_began = False
        self._after = after
        self._position = after + 1
        self._up_to_time = up_to_time
        self._page = page
        self._page_bytes = page_bytes
        self._held: list[Frame] = []
        self._expected = 0
        self.blocks: list[bytes] = []
        """The headers of all messages that came, for who looks which subjects are missing."""

        self.moment = moment
        """The sequence that all messages are consistent with; ``None`` before it is known."""

        self.cut = False
        """
        Whether a page was cut off before the moment was known: a message was removed while the
        server read it, and only a moment that is given can help.
        """

        self.too_many = False
        """Whether more subjects match than a server resolves, and nothing was handed out yet."""

        self.done = not parts

    @property
    def vanished(self) -> int:
        """How many messages less came than there were when their part was first asked for."""
        return max(0, self._expected - self.received)

    def begin_anew(self, moment: int) -> None:
        """Begin with a moment that was fixed elsewhere; only while nothing was handed out."""
        assert self.moment is None
        self._reset()
        self.cut = False
        self.moment = moment
        # Before the first sequence there is nothing; servers take 0 for "not given".
        self.done = not moment

    def release(self) -> Sequence[Frame]:
        """Return what is kept back, as no more will come."""
        held, self._held = self._held, []
        return held

    def subjects(self) -> set[str]:
        """Return the subjects of all messages that came."""
        found = (find_last(block, SUBJECT) for block in self.blocks)
        return {(name or b"").decode("utf-8", "surrogateescape") for name in found}

    def lost(self) -> None:
        super().lost()
        if self.moment is None:
            self._reset()
        elif self._page_count:
            self._position = self.last_sequence + 1

    def _reset(self) -> None:
        self._held = []
        self.blocks = []
        self.received = self._expected = 0
        self._part_began = False
        self._position = self._after + 1
        self._last_block = b""

    def _request(self) -> PageRequest:
        return PageRequest(
            subjects=self._parts[self._part],
            sequence=self._position if self._position > 1 else None,
            up_to_sequence=self.moment,
            up_to_time=self._up_to_time if self.moment is None else None,
            batch=self._page,
            max_bytes=self._page_bytes,
        )

    def _on_messages(self, frames: list[Frame]) -> Sequence[Frame]:
        if not self._part_began:
            # Unlike those of batches, the numbers of these messages are right on all servers.
            self._part_began = True
            first = find_last(frames[0][2] or b"", NUM_PENDING)
            self._expected += int(first or 0) + 1
        self.blocks.extend([frame[2] or b"" for frame in frames])
        if self.moment is None:
            self._held.extend(frames)
            return ()
        return frames

    def _on_end(self, block: bytes, messages: Sequence[Frame]) -> Sequence[Frame]:
        if self.moment is None:
            told = find_last(block, _UP_TO)
            if told is None:
                self._fail(ProtocolError("the end of a read of several subjects tells no sequence"))
                return messages
            self.moment = int(told)
            messages = self.release()
        self.pending = self._left() if self._page_count else 0
        if self.pending:
            self._position = self.last_sequence + 1
        else:
            self._next_part()
        return messages

    def _on_nothing(self, messages: Sequence[Frame], description: str) -> Sequence[Frame]:
        if not self._page_count and not description.startswith("Message"):
            # "No Results": none of the subjects has a message.
            self._next_part()
            return messages
        # "Message Not Found": one of those that the server had resolved was removed before it could
        # be read. What is behind it did not come.
        if self.moment is None:
            self.cut = True
            self._reset()
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
