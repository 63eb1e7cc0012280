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

    If no moment is given, it is known after the first page. If one page is not enough, the read is
    cut and has to begin again with a given moment: one page does not hold all messages, or a
    message was removed while the server read it.

    Args:
        stream: The stream, for errors.
        parts: The subjects and wildcards of each request. One request may match 1024 subjects.
        after: Only read messages after this sequence; 0 reads all.
        moment: The sequence of the snapshot.
        up_to_time: Read messages before this time. With a moment, it is the time of the first
            message after it, and ``None`` assumes that every server has reached the moment.
        page: The most messages of one request; ``None`` lets the server decide.
        page_bytes: The most bytes of one request.
    """

    _stream: str
    # The open part comes first.
    _parts: Sequence[tuple[str, ...]]
    _after: int = attrs.field(default=0, kw_only=True)
    #: The sequence of the snapshot; None before it is known.
    moment: int | None = attrs.field(default=None, kw_only=True)
    _up_to_time: str | None = attrs.field(default=None, kw_only=True)
    _page: int | None = attrs.field(default=None, kw_only=True)
    _page_bytes: int = attrs.field(kw_only=True)

    #: The first sequence of the next page.
    position: int = attrs.field(default=1, init=False)
    # Whether the parts have no wildcards, so that it is known which messages to expect.
    _named = False
    #: The headers of all messages that were handed out, or of those of the open part if the parts
    #: are named: a snapshot of a million subjects would keep 200 MB of them.
    blocks: list[bytes] = attrs.field(factory=list, init=False)
    #: The subjects of named parts that brought no message.
    absent: set[str] = attrs.field(factory=set, init=False)
    # The messages of the open page, if they are handed out at its end.
    _held: list[Frame] = attrs.field(factory=list, init=False)
    # How many messages the parts should have, counting the parts that have begun.
    _expected = 0

    def __attrs_post_init__(self) -> None:
        self._reset()
        self.done = not self._parts

    @property
    def part(self) -> tuple[str, ...]:
        """The subjects and wildcards of the open or last page."""
        return self._parts[0]

    def needs_moment(self) -> None:
        """Request nothing before :meth:`begin_again`, because the read needs a given moment."""
        self.done, self.verdict = True, "cut"

    def needs_split(self) -> None:
        """Request nothing, because the subjects are too many for one request."""
        self.done, self.verdict = True, "too many"

    def confirm(self) -> None:
        """Accept that the last page is empty, and continue with the next part."""
        self.verdict = None
        self._next_part()

    @property
    def vanished(self) -> int:
        """How many messages disappeared after the first page of their part."""
        return max(0, self._expected - self.received)

    def begin_again(
        self,
        moment: int,
        time: str | None = None,
        names: Sequence[tuple[str, ...]] | None = None,
    ) -> None:
        """
        Begin again with a moment. Only allowed before anything was handed out.

        Args:
            moment: The sequence of the snapshot.
            time: The time of the first message after it, if that is known.
            names: The subjects of each request, without wildcards, instead of the parts.
        """
        self._reset()
        self.verdict = self.error = None
        self.moment, self._up_to_time = moment, time
        if names is not None:
            self._parts, self._named = names, True
        # No message has sequence 0, and servers would read 0 as "not given".
        self.done = not (moment and self._parts)

    def release(self) -> list[Frame]:
        held, self._held = self._held, []
        return held if self.moment is None else []

    def subjects(self) -> set[str]:
        """Return the subjects of the messages in :attr:`blocks`."""
        found = (find_last(block, SUBJECT) for block in self.blocks)
        return {(name or b"").decode("utf-8", "surrogateescape") for name in found}

    def lost(self) -> None:
        super().lost()
        if self.moment is None:
            self._reset()
        elif self._up_to_time is not None:
            self._drop()
        elif self.page_count:
            self.position = self.last_sequence + 1

    def _drop(self) -> None:
        """Drop the open page, so that it is requested again."""
        self._held = []
        self.received -= self.page_count

    def _reset(self) -> None:
        self._held = []
        self.blocks = []
        self.received = self._received_before = self._expected = 0
        self.pending = None
        self.position = self._after + 1
        self.last_block = b""

    @property
    def _is_new_part(self) -> bool:
        """Whether no earlier page of the open part brought messages."""
        return self.position == self._after + 1

    def page_request(self) -> dict[str, Any]:
        request = {
            "multi_last": self.part,
            "seq": None if self.position == 1 else self.position,
            "up_to_seq": self.moment if self._up_to_time is None else None,
            "up_to_time": self._up_to_time,
            "batch": self._page,
            "max_bytes": self._page_bytes,
        }
        return {name: value for name, value in request.items() if value is not None}

    def on_messages(self, frames: Frames) -> Frames:
        if self.moment is not None and self._up_to_time is None:
            return self._accept(list(frames))
        self._held.extend(frames)
        return []

    def _accept(self, frames: list[Frame]) -> list[Frame]:
        """Return messages to hand out."""
        if self._is_new_part and self.page_count == len(frames):
            # Unlike in batches, this count is right on all servers.
            self._expected += number_in(frames[0][2] or b"", NUM_PENDING) + 1
        self.blocks.extend([frame[2] or b"" for frame in frames])
        return frames

    def on_end(self, block: bytes, messages: Frames) -> Frames:
        up_to = find_last(block, _UP_TO)
        if up_to is None:
            self.fail(
                ProtocolError("the end of a read of several subjects has no Nats-UpTo-Sequence")
            )
            return messages
        if not self.page_count:
            self.verdict = "nothing"
            return []
        self.pending = number_in(self.last_block, NUM_PENDING)
        reached = read_digits(up_to)
        if self.moment is None:
            if self.pending:
                return self._cut()
            self.moment, self._up_to_time = reached, None
        elif self._up_to_time is not None and reached != self.moment:
            # If the server has looked further, the message with that time has been removed. The
            # next request uses the sequence instead, which this server has already reached.
            if reached < self.moment:
                self.verdict = "lagging"
            else:
                self._up_to_time = None
            self._drop()
            return []
        if self._held:
            messages, self._held = self._accept(self._held), []
        if self.pending:
            self.position = self.last_sequence + 1
        else:
            self._next_part()
        return messages

    def on_nothing(self, messages: Frames, description: str) -> Frames:
        if not self.page_count and not description.startswith("Message"):
            # "No Results": none of the subjects has a message. A lagging server, or a mirror
            # without these messages, sends the same answer.
            self.verdict = "nothing"
            return messages
        # "Message Not Found": a message was removed between the lookup and the read. The messages
        # after it were not sent.
        if self.moment is None:
            return self._cut()
        if self._up_to_time is not None:
            # The page has no end, so it is unknown up to which sequence the server has looked.
            self._up_to_time = None
            self._drop()
            return []
        if self.page_count:
            self.position = self.last_sequence + 1
        elif self._is_new_part:
            self._expected += 1
        return messages

    def _cut(self) -> list[Frame]:
        """Drop everything, because the read needs a given moment."""
        self.verdict = "cut"
        self._reset()
        return []

    def on_status(self, status: tuple[int | None, str], block: bytes, messages: Frames) -> Frames:
        if status[0] == 413 and not self.received:
            self.verdict = "too many"
        return super().on_status(status, block, messages)

    def _next_part(self) -> None:
        if self._named:
            self.absent.update(set(self.part).difference(self.subjects()))
            self.blocks.clear()
        self._parts = self._parts[1:]
        self.position = self._after + 1
        self.done = not self._parts


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
