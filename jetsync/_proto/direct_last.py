"""
Read the last message of each of many subjects as of one moment, in pages.

The engine does no I/O and reads no clock.

The moment is a sequence: a server looks for the last message of each subject up to it. If one page
is enough, the moment is where the server was, and the end of the page tells it.

A read of several pages needs a moment that is fixed before. Several servers may answer it, and one
that has not reached the moment would return older messages without notice. So the request asks for
messages stored *before a time*: that of the first message after the moment. The end of a page then
tells how far the server really looked. A page of another moment is dropped and requested again,
which is why each page is kept back until its end.

An answer without a message does not tell who gave it, and a mirror may have less than the stream.
Where that matters, such a page has to be confirmed by the leader.

A stream that keeps a limited number of messages per subject may lose one of that moment before its
page is requested. The first message of a part tells how many there should be.

Implements ADR-31, with facts about servers 2.11 to 2.15.
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

# Servers answer 413 to a request that matches more subjects (ADR-31).
MAX_SUBJECTS: Final = 1024

_UP_TO: Final = headers.UP_TO_SEQUENCE.encode()


class LastRead(PagedRead):
    """
    Read the last message of each of many subjects as of one moment, part by part.

    Without a given moment, a single page tells it. If one page is not enough, :attr:`cut` is set,
    and the read has to begin again with a moment.

    Args:
        stream: The stream, for errors.
        parts: The subjects and wildcards of each request, which may match 1024 subjects.
        after: Only messages after this sequence, 0 for all.
        moment: The sequence up to which to look.
        time: A time that only messages after the moment have reached; ``None`` to trust that every
            server has reached the moment.
        up_to_time: The time before which to look, instead of a moment.
        page: Messages of one request at most; ``None`` leaves it to the server.
        page_bytes: Bytes of one request.
        doubts: Whether a page without a message has to be confirmed.
    """

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
        self._parts = parts
        self._part = 0
        self._part_began = False
        self._after = after
        self._time = time
        self._up_to_time = up_to_time
        self._page = page
        self._page_bytes = page_bytes
        self._doubts = doubts
        self._held: list[Frame] = []
        # How many messages all parts should have that were begun.
        self._expected = 0
        # The counters as they were when the open page was requested.
        self._mark = (0, 0, False, b"", 0)
        #: The sequence that the next page begins at.
        self.position: int = after + 1
        #: The headers of all messages that arrived, to find the missing subjects.
        self.blocks: list[bytes] = []
        #: The sequence that all messages are consistent with; None before it is known.
        self.moment = moment
        #: Whether a moment has to be given: one page is not enough, or it was cut off because a
        #: message was removed while the server read it.
        self.cut: bool = False
        #: Whether the last page was dropped because its server has not reached the moment.
        self.lagging: bool = False
        #: Whether the last page had no message and has to be confirmed.
        self.nothing: bool = False
        #: Whether more subjects match than a server accepts, and nothing was handed out yet.
        self.too_many: bool = False
        self.done: bool = not parts

    @property
    def part(self) -> tuple[str, ...]:
        """The subjects and wildcards of the open or last page."""
        return self._parts[self._part]

    def confirm(self) -> None:
        """Learn that the last page was right to have no message."""
        self.nothing = False
        self._next_part()

    @property
    def vanished(self) -> int:
        """How many messages are missing of those that the parts had when they were begun."""
        return max(0, self._expected - self.received)

    def begin_again(self, moment: int, time: str | None = None) -> None:
        """Begin again with a moment, while nothing was handed out."""
        self._reset()
        self.cut = False
        self.moment = moment
        self._time = time
        # There is nothing before the first sequence, and servers read 0 as "not given".
        self.done = not moment

    def release(self) -> Sequence[Frame]:
        """Return the frames that are kept back of a single page, as it will not end."""
        held, self._held = self._held, []
        return held if self._time is None else ()

    def subjects(self) -> set[str]:
        """Return the subjects of all messages that arrived."""
        found = (find_last(block, SUBJECT) for block in self.blocks)
        return {(name or b"").decode("utf-8", "surrogateescape") for name in found}

    def lost(self) -> None:
        super().lost()
        if self.moment is None:
            self._reset()
        elif self._time is not None:
            self._drop()
        elif self.page_count:
            self.position = self.last_sequence + 1

    def _drop(self) -> None:
        """Drop the open page, so that it is requested again."""
        self._held = []
        self.received, self._expected, self._part_began, self.last_block, kept = self._mark
        del self.blocks[kept:]

    def _reset(self) -> None:
        self._held = []
        self.blocks = []
        self.received: int = 0
        self._expected = 0
        self._part_began = False
        self.position = self._after + 1
        self.last_block: bytes = b""

    def page_request(self) -> PageRequest:
        self._mark = (
            self.received,
            self._expected,
            self._part_began,
            self.last_block,
            len(self.blocks),
        )
        self.lagging = self.nothing = False
        by_time = self._time if self.moment is not None else self._up_to_time
        return PageRequest(
            subjects=self._parts[self._part],
            sequence=self.position if self.position > 1 else None,
            up_to_sequence=self.moment if by_time is None else None,
            up_to_time=by_time,
            batch=self._page,
            max_bytes=self._page_bytes,
        )

    def on_messages(self, frames: list[Frame]) -> Sequence[Frame]:
        if not self._part_began:
            # Unlike in batches, this count is right on all servers.
            self._part_began = True
            self._expected += number_in(frames[0][2] or b"", NUM_PENDING) + 1
        self.blocks.extend([frame[2] or b"" for frame in frames])
        if self.moment is None or self._time is not None:
            self._held.extend(frames)
            return ()
        return frames

    def on_end(self, block: bytes, messages: Sequence[Frame]) -> Sequence[Frame]:
        told = find_last(block, _UP_TO)
        if told is None:
            self.fail(
                ProtocolError("the end of a read of several subjects has no Nats-UpTo-Sequence")
            )
            return messages
        if self._doubts and not self.page_count:
            self.nothing = True
            return ()
        self.pending: int = number_in(self.last_block, NUM_PENDING) if self.page_count else 0
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
                # If the server is past the moment, the message with that time is gone by now. Then
                # a sequence has to do, and this server has reached it.
                self.lagging = reached < self.moment
                self._time = self._time if self.lagging else None
                self._drop()
                return ()
            messages, self._held = self._held, []
        if self.pending:
            self.position = self.last_sequence + 1
        else:
            self._next_part()
        return messages

    def on_nothing(self, messages: Sequence[Frame], description: str) -> Sequence[Frame]:
        if not self.page_count and not description.startswith("Message"):
            # "No Results": none of the subjects has a message. A server that is behind or a mirror
            # without them sends the same answer.
            self.nothing = self._doubts
            if not self.nothing:
                self._next_part()
            return messages
        # "Message Not Found": a message was removed between the lookup and the read. The messages
        # after it were not sent.
        if self.moment is None:
            self.cut = True
            self._reset()
            return ()
        if self._time is not None:
            # Without an end it is unknown how far the server looked.
            self._time = None
            self._drop()
            return ()
        if self.page_count:
            self.position = self.last_sequence + 1
        if not self._part_began:
            self._expected += 1
        return messages

    def on_status(
        self, status: tuple[int | None, str], block: bytes, messages: Sequence[Frame]
    ) -> Sequence[Frame]:
        if status[0] == 413 and not self.received:
            self.too_many = True
        return super().on_status(status, block, messages)

    def _next_part(self) -> None:
        self._part += 1
        self._part_began = False
        self.position = self._after + 1
        self.done = self._part >= len(self._parts)


def chunks(names: Sequence[str], room: int) -> list[tuple[str, ...]]:
    """
    Split subjects into parts that fit one request each, in number and in *room* bytes.
    """
    if 0 < len(names) <= MAX_SUBJECTS and 4 * sum(map(len, names)) + 3 * len(names) <= room:
        # Small enough in any case: a character has four bytes at most.
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
