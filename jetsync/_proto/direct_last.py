"""
Read a consistent snapshot of the last messages of many subjects, in pages.

The engine does no I/O and reads no clock.

The *moment* of a snapshot is a sequence. Servers return the last message of each subject up to this
sequence. If one page is enough, the server chooses the moment and reports it at the page's end.

A read of several pages needs a fixed moment. Several servers may answer it. A server that has not
reached the moment would return older messages without notice. So the request asks for messages
stored *before a time*, which is the time of the first message after the moment. The end of a page
then reports up to which sequence the server has looked. If that is another moment, the page is
dropped and requested again. For this reason each page is held back until its end.

An empty answer does not tell which server sent it, and a mirror may have fewer messages than the
stream. Where that matters, the leader has to confirm an empty page.

A stream that limits the messages per subject may remove a message of the snapshot before its page
is requested. The first message of a part tells how many messages the part should have.

Implements ADR-31, with facts about servers 2.11 to 2.15.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync._base.integers import read_digits
from jetsync._proto.direct import NUM_PENDING, SUBJECT, PagedRead, number_in
from jetsync.errors import ProtocolError
from jetsync.values import headers
from jetsync.values.frame import Frame
from jetsync.values.headers import find_last

if TYPE_CHECKING:
    from jetsync.values.frame import Frames

# Servers answer 413 to a request that matches more subjects (ADR-31).
MAX_SUBJECTS: Final = 1024

_UP_TO: Final = headers.UP_TO_SEQUENCE.encode()


@attrs.define(slots=False, eq=False, repr=False)
class LastRead(PagedRead):
    """
    Read a snapshot of the last messages of many subjects, part by part.

    If no moment is given, it is known after the first page. If one page is not enough, :attr:`cut`
    is set, and the read has to begin again with a given moment.

    Args:
        stream: The stream, for errors.
        parts: The subjects and wildcards of each request. One request may match 1024 subjects.
        after: Only read messages after this sequence; 0 reads all.
        moment: The sequence of the snapshot.
        time: The time of the first message after the moment. ``None`` assumes that every server
            has reached the moment.
        up_to_time: Read messages before this time, instead of up to a moment.
        page: The most messages of one request; ``None`` lets the server decide.
        page_bytes: The most bytes of one request.
        named: Whether the parts have no wildcards, so that it is known which messages to expect.
    """

    _stream: str
    _parts: Sequence[tuple[str, ...]]
    _after: int = attrs.field(default=0, kw_only=True)
    #: The sequence of the snapshot; None before it is known.
    moment: int | None = attrs.field(default=None, kw_only=True)
    _time: str | None = attrs.field(default=None, kw_only=True)
    _up_to_time: str | None = attrs.field(default=None, kw_only=True)
    _page: int | None = attrs.field(default=None, kw_only=True)
    _page_bytes: int = attrs.field(kw_only=True)
    _named: bool = attrs.field(default=False, kw_only=True)

    #: The first sequence of the next page.
    position: int = attrs.field(default=1, init=False)
    #: The headers of all messages that arrived, or of those of the open part if the parts are
    #: named: a snapshot of a million subjects would keep 200 MB of them.
    blocks: list[bytes] = attrs.field(factory=list, init=False)
    #: The subjects of named parts that brought no message.
    absent: set[str] = attrs.field(factory=set, init=False)
    _held: list[Frame] = attrs.field(factory=list, init=False)
    _part = 0
    _part_began = False
    # How many messages the parts should have, counting the parts that have begun.
    _expected = 0
    # The counters at the request of the open page.
    _mark = (0, 0, False, b"", 0)
    #: Whether the read needs a given moment: one page is not enough, or the server ended it early
    #: because a message was removed during the read.
    cut: bool = False
    #: Whether the last page was dropped because its server has not reached the moment.
    lagging: bool = False
    #: Whether the last page was empty and has to be confirmed.
    nothing: bool = False
    #: Whether more subjects match than a server accepts, and nothing was handed out yet.
    too_many: bool = False

    def __attrs_post_init__(self) -> None:
        self._reset()
        self.done = not self._parts

    @property
    def part(self) -> tuple[str, ...]:
        """The subjects and wildcards of the open or last page."""
        return self._parts[self._part]

    def needs_moment(self) -> None:
        """Request nothing before :meth:`begin_again`, because the read needs a given moment."""
        self.done = self.cut = True

    def needs_split(self) -> None:
        """Request nothing, because the subjects are too many for one request."""
        self.done = self.too_many = True

    def confirm(self) -> None:
        """Accept that the last page is empty, and continue with the next part."""
        self.nothing = False
        self._next_part()

    @property
    def vanished(self) -> int:
        """How many messages disappeared after the first page of their part."""
        return max(0, self._expected - self.received)

    def begin_again(self, moment: int, time: str | None = None) -> None:
        """Begin again with a moment. Only allowed before anything was handed out."""
        self._reset()
        self.cut = False
        self.moment = moment
        self._time = time
        # No message has sequence 0, and servers would read 0 as "not given".
        self.done = not moment

    def release(self) -> list[Frame]:
        held, self._held = self._held, []
        return held if self._time is None else []

    def subjects(self) -> set[str]:
        """Return the subjects of the messages in :attr:`blocks`."""
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
        self.received = 0
        self._expected = 0
        self._part_began = False
        self.position = self._after + 1
        self.last_block = b""

    def page_request(self) -> dict[str, Any]:
        self._mark = (
            self.received,
            self._expected,
            self._part_began,
            self.last_block,
            len(self.blocks),
        )
        self.lagging = self.nothing = False
        by_time = self._time if self.moment is not None else self._up_to_time
        request = {
            "multi_last": self._parts[self._part],
            "seq": self.position if self.position > 1 else None,
            "up_to_seq": self.moment if by_time is None else None,
            "up_to_time": by_time,
            "batch": self._page,
            "max_bytes": self._page_bytes,
        }
        return {name: value for name, value in request.items() if value is not None}

    def on_messages(self, frames: Frames) -> Frames:
        if not self._part_began:
            # Unlike in batches, this count is right on all servers.
            self._part_began = True
            self._expected += number_in(frames[0][2] or b"", NUM_PENDING) + 1
        frames = list(frames)
        self.blocks.extend([frame[2] or b"" for frame in frames])
        if self.moment is None or self._time is not None:
            self._held.extend(frames)
            return []
        return frames

    def on_end(self, block: bytes, messages: Frames) -> Frames:
        up_to = find_last(block, _UP_TO)
        if up_to is None:
            self.fail(
                ProtocolError("the end of a read of several subjects has no Nats-UpTo-Sequence")
            )
            return messages
        if not self.page_count:
            self.nothing = True
            return []
        self.pending = number_in(self.last_block, NUM_PENDING)
        if self.moment is None:
            if self.pending:
                self.cut = True
                self._reset()
                return []
            self.moment = read_digits(up_to)
            messages, self._held = self._held, []
        elif self._time is not None:
            reached = read_digits(up_to)
            if reached != self.moment:
                # If the server has looked further, the message with that time has been removed. The
                # next request uses the sequence instead, which this server has already reached.
                self.lagging = reached < self.moment
                self._time = self._time if self.lagging else None
                self._drop()
                return []
            messages, self._held = self._held, []
        if self.pending:
            self.position = self.last_sequence + 1
        else:
            self._next_part()
        return messages

    def on_nothing(self, messages: Frames, description: str) -> Frames:
        if not self.page_count and not description.startswith("Message"):
            # "No Results": none of the subjects has a message. A lagging server, or a mirror
            # without these messages, sends the same answer.
            self.nothing = True
            return messages
        # "Message Not Found": a message was removed between the lookup and the read. The messages
        # after it were not sent.
        if self.moment is None:
            self.cut = True
            self._reset()
            return []
        if self._time is not None:
            # The page has no end, so it is unknown up to which sequence the server has looked.
            self._time = None
            self._drop()
            return []
        if self.page_count:
            self.position = self.last_sequence + 1
        if not self._part_began:
            self._expected += 1
        return messages

    def on_status(self, status: tuple[int | None, str], block: bytes, messages: Frames) -> Frames:
        if status[0] == 413 and not self.received:
            self.too_many = True
        return super().on_status(status, block, messages)

    def _next_part(self) -> None:
        if self._named:
            self.absent.update(set(self.part).difference(self.subjects()))
            self.blocks.clear()
        self._part += 1
        self._part_began = False
        self.position = self._after + 1
        self.done = self._part >= len(self._parts)


def chunks(names: Sequence[str], room: int) -> list[tuple[str, ...]]:
    """
    Split subjects into parts for one request each: at most 1024 subjects and *room* bytes.
    """
    if 0 < len(names) <= MAX_SUBJECTS and 4 * sum(map(len, names)) + 3 * len(names) <= room:
        # Always small enough, because a character has at most four bytes.
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
