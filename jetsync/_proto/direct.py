"""
Reading stored messages in pages: what to ask, what an answer means, where the next page begins.

What lives here: the request of a direct get of many messages, what all such reads share, and the
engine of batches; that of reads of several subjects is in :mod:`jetsync._proto.direct_last`. An
engine is told what came and says what to ask next. What may not: the socket, the clock, threads.

Theory of operation. A server answers a request with messages and one status behind them, without
any flow control: so every request has a limit of bytes that the client can take at once. Which
numbers in an answer can be trusted differs, as those of servers 2.11 are off by one, in one
direction for batches and in the other for several subjects:

- a batch goes on while its end marker says that messages are left;
- a read of several subjects goes on while the last *message* of a page says so;
- a page without a message is the last one;
- a first message without ``Nats-Num-Pending`` comes from a server that knows no batches at all.

Not only the stream answers: its mirrors do, and may have less of it. The first message of a page
tells who did. A page of a stream that is not known to have all is left out, and
:attr:`PagedRead.stranger` names that stream.

A page that was cut off, by a lost connection or by a message that was removed under the server's
hands, is asked for again from behind the last message that came.

Implements ADR-31; facts about servers 2.10 to 2.15.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs

from jetsync._base.integers import read_digits
from jetsync.errors import (
    BadDirectRequestError,
    JetSyncError,
    NotSupportedError,
    ProtocolError,
    RequiredApiLevelError,
    TooManySubjectsError,
    UnknownStatusError,
)
from jetsync.values import headers
from jetsync.values.headers import find_last, parse_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync.values.frame import Frame

NEEDS_PAGES: Final = "server 2.11 or later"

NUM_PENDING: Final = headers.NUM_PENDING.encode()
SUBJECT: Final = headers.SUBJECT.encode()
_SEQUENCE: Final = headers.SEQUENCE.encode()
_STREAM: Final = headers.STREAM.encode()
_ADDED: Final = b"\r\n" + headers.STREAM.encode() + b": "

_ERRORS: Final = {
    408: BadDirectRequestError,
    412: RequiredApiLevelError,
    413: TooManySubjectsError,
}


@attrs.frozen(kw_only=True)
class PageRequest:
    """
    One request for many messages; what is ``None`` or empty is not sent.
    """

    sequence: int | None = None
    subject: str | None = None
    start_time: str | None = None
    batch: int | None = None
    max_bytes: int | None = None
    subjects: tuple[str, ...] = ()
    up_to_sequence: int | None = None
    up_to_time: str | None = None

    def body(self) -> bytes:
        """Return the JSON to send."""
        fields = {
            "multi_last": self.subjects or None,
            "seq": self.sequence,
            "start_time": self.start_time,
            "next_by_subj": self.subject,
            "up_to_seq": self.up_to_sequence,
            "up_to_time": self.up_to_time,
            "batch": self.batch,
            "max_bytes": self.max_bytes,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        return json.dumps(given, separators=(",", ":"), ensure_ascii=False).encode()


class PagedRead:
    """
    What both kinds of reads share: the page that is open, and what ended it.

    Ask with :meth:`open` whenever :attr:`is_open` and :attr:`done` are both false, and give every
    run of frames to :meth:`take`.
    """

    __slots__ = (
        "_last_block",
        "_page_count",
        "_reply",
        "_stream",
        "answerer",
        "done",
        "error",
        "is_open",
        "pending",
        "received",
        "stranger",
        "trusted",
        "unanswered",
    )

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._reply = b""
        self._page_count = 0
        self._last_block = b""
        self.is_open = False
        """Whether a page was asked for and its end was not seen yet."""

        self.done = False
        """Whether there is nothing more to ask."""

        self.unanswered = False
        """Whether nobody took the last request; asking again clears it."""

        self.trusted: frozenset[bytes] = frozenset()
        """Other streams that may answer."""

        self.answerer: bytes | None = None
        """The stream that the last page is from; ``None`` if it had no message to tell that."""

        self.stranger: str | None = None
        """A stream that may not answer, and did; asking again clears it."""

        self.error: JetSyncError | None = None
        """What ended the read, if it was a fault."""

        self.received = 0
        """How many messages came."""

        self.pending: int | None = None
        """How many messages are left behind the last page; ``None`` before one has ended."""

    def __repr__(self) -> str:
        state = "done" if self.done else "open" if self.is_open else "between pages"
        return f"<{type(self).__name__} {state} received={self.received}>"

    @property
    def from_itself(self) -> bool:
        """Whether the last page is from the stream itself for sure."""
        return self.answerer == self._stream.encode()

    @property
    def last_sequence(self) -> int:
        """The sequence of the last message that came, 0 before the first."""
        return number_in(self._last_block, _SEQUENCE) if self._last_block else 0

    def open(self, reply: bytes) -> PageRequest:
        """Return the next request; its answers are those that come on the subject *reply*."""
        assert not self.is_open
        assert not self.done
        self._reply = reply
        self._page_count = 0
        self.is_open = True
        self.unanswered = False
        self.stranger = self.answerer = None
        return self._request()

    def take(self, frames: list[Frame]) -> Sequence[Frame]:
        """
        Take a run of frames and return the messages in it, without those that are left out.

        A status can only be the last frame, as servers send nothing behind it. Frames that no
        server sends end the read with an error.
        """
        try:
            return self._take(frames)
        except ProtocolError as error:
            self._fail(error)
            return ()

    def _take(self, frames: list[Frame]) -> Sequence[Frame]:
        if len({frame[0] for frame in frames}) > 1 or (frames and frames[0][0] != self._reply):
            # Late answers to a request whose connection was lost, which another server had taken.
            frames = [frame for frame in frames if frame[0] == self._reply]
        if not frames or not self.is_open:
            return ()
        status = None
        block = frames[-1][2]
        if block is None:
            self._fail(ProtocolError("an answer to a direct get has no headers"))
            return ()
        if block[8:10] != b"\r\n":
            status = parse_status(block)
            frames.pop()
        messages: Sequence[Frame] = frames
        if frames and self.stranger is None and self._begins_well(frames[0][2]):
            self._last_block = frames[-1][2] or b""
            # Looked at here, as a lost connection is no place for an error about it.
            number_in(self._last_block, _SEQUENCE)
            self._left()
            self._page_count += len(frames)
            self.received += len(frames)
            messages = self._on_messages(frames)
        if self.error is not None:
            return ()
        if self.stranger is not None:
            # To be left out up to its end: behind that, another page can be asked for.
            self.is_open = status is None
            return ()
        if status is not None and self.is_open:
            self.is_open = False
            assert block is not None
            messages = self._on_status(status, block, messages)
        return messages

    def lost(self) -> None:
        """Learn that the rest of the open page will not come."""
        self.is_open = False

    def _begins_well(self, block: bytes | None) -> bool:
        """Look at the first message of a page; return whether it is one."""
        if self._page_count:
            return True
        if block is None:
            self._fail(ProtocolError("an answer to a direct get has no headers"))
            return False
        if find_last(block, NUM_PENDING) is None:
            # An old server: a single message, perhaps of another subject, and silence behind it.
            self._fail(NotSupportedError("a direct read of many messages", needs=NEEDS_PAGES))
            return False
        self.answerer = find_last(block, _STREAM)
        if not self.from_itself and self.answerer not in self.trusted:
            self.stranger = (self.answerer or b"").decode("utf-8", "surrogateescape")
            return False
        return True

    def _on_status(
        self, status: tuple[int | None, str], block: bytes, messages: Sequence[Frame]
    ) -> Sequence[Frame]:
        """Act on the end of the open page; return the messages to hand out."""
        code, description = status
        if code == 204:
            return self._on_end(block, messages)
        if code == 404:
            return self._on_nothing(messages, description)
        if code == 503:
            self.unanswered = True
            return messages
        error = _ERRORS.get(code or 0, UnknownStatusError)
        self._fail(error(code=code, description=description or None, stream=self._stream))
        return messages

    def _fail(self, error: JetSyncError) -> None:
        self.error = error
        self.is_open = False
        self.done = True

    def _left(self) -> int:
        """Return how many messages the last one says are left behind it."""
        return number_in(self._last_block, NUM_PENDING)

    def _request(self) -> PageRequest:
        raise NotImplementedError

    def _on_messages(self, frames: list[Frame]) -> Sequence[Frame]:
        raise NotImplementedError

    def _on_end(self, block: bytes, messages: Sequence[Frame]) -> Sequence[Frame]:
        raise NotImplementedError

    def _on_nothing(self, messages: Sequence[Frame], description: str) -> Sequence[Frame]:
        raise NotImplementedError


class BatchRead(PagedRead):
    """
    Read the messages of a stream, or of one subject or wildcard, in the order of their sequences.

    Args:
        stream: The stream, for errors.
        sequence: Where to begin.
        start_time: When to begin, in its place.
        subject: Only messages of this subject or wildcard.
        limit: How many messages at most; ``None`` for all.
        size_limit: After how many bytes to stop, as servers count them; ``None`` for no limit.
        end: The last sequence that is wanted; ``None`` for no end.
        page: Messages of one request at most.
        page_bytes: Bytes of one request.
    """

    __slots__ = (
        "_end",
        "_is_last",
        "_limit",
        "_page",
        "_page_bytes",
        "_position",
        "_size",
        "_size_limit",
        "_start_time",
        "_subject",
        "drained",
    )

    def __init__(
        self,
        stream: str,
        *,
        sequence: int = 1,
        start_time: str | None = None,
        subject: str | None = None,
        limit: int | None = None,
        size_limit: int | None = None,
        end: int | None = None,
        page: int,
        page_bytes: int,
    ) -> None:
        super().__init__(stream)
        self._position = sequence
        self._start_time = start_time
        self._subject = subject
        self._limit = limit
        self._size_limit = size_limit
        self._size = 0
        self._end = end
        self._page = page
        self._page_bytes = page_bytes
        self._is_last = False
        """Whether the open page was asked for all that is wanted."""

        self.drained = False
        """Whether the read is done because the server that answered has no more."""

    @property
    def position(self) -> int:
        """The sequence that the next page begins with, unless a time stands in its place."""
        return self._position

    @property
    def start_time(self) -> str | None:
        """When the next page begins, as long as no message came."""
        return self._start_time

    @property
    def reached_end(self) -> bool:
        """Whether nothing behind the last message is wanted."""
        return self._end is not None and self._position > self._end and self._start_time is None

    def next_request(self) -> dict[str, object]:
        """Return the request for the first message that the next page should have."""
        subject = ">" if self._subject is None else self._subject
        if self._start_time is not None:
            return {"next_by_subj": subject, "start_time": self._start_time}
        return {"next_by_subj": subject, "seq": self._position}

    def go_on(self, sequence: int) -> None:
        """Ask for more after all, as there is a message with this sequence."""
        self._go_behind(sequence - 1)
        self.done = self.drained = False

    def skip(self, sequence: int) -> None:
        """Go on behind *sequence*: what is before it was read elsewhere."""
        self._go_behind(sequence)
        self.drained = False
        self.done = self.reached_end

    def lost(self) -> None:
        super().lost()
        if self._page_count:
            self._go_behind(self.last_sequence)
            self.pending = self._left()
            self.done = self._is_complete()

    def _request(self) -> PageRequest:
        batch, size = self._page, self._page_bytes
        self._is_last = False
        if self._limit is not None and self._limit - self.received <= batch:
            batch = self._limit - self.received
        if self._size_limit is not None and self._size_limit - self._size <= size:
            # The server's count decides then: where it stops, nothing more is wanted.
            size = self._size_limit - self._size
            self._is_last = True
        if self._end is not None and self._start_time is None:
            batch = min(batch, self._end - self._position + 1)
        return PageRequest(
            sequence=self._position if self._start_time is None else None,
            start_time=self._start_time,
            subject=self._subject,
            batch=batch,
            max_bytes=size,
        )

    def _on_messages(self, frames: list[Frame]) -> Sequence[Frame]:
        if self._size_limit is not None:
            self._size += sum(map(size_of, frames))
        if self._end is not None and self.last_sequence > self._end:
            return self._cut(frames, self._end)
        return frames

    def _cut(self, frames: list[Frame], end: int) -> list[Frame]:
        """Return the frames up to *end*; those behind it were stored after the read began."""
        whole = len(frames)
        while frames and number_in(frames[-1][2] or b"", _SEQUENCE) > end:
            frames.pop()
        self.received -= whole - len(frames)
        self._go_behind(end)
        if frames:
            self._last_block = frames[-1][2] or b""
        self.is_open = False
        self.done = True
        self.pending = 0
        return frames

    def _on_end(self, block: bytes, messages: Sequence[Frame]) -> Sequence[Frame]:
        self.pending = number_in(block, NUM_PENDING)
        if self._page_count:
            self._go_behind(self.last_sequence)
        self.done = self._is_last or self._is_complete()
        if not self.done and (not self.pending or not self._page_count):
            self.done = self.drained = True
        return messages

    def _on_nothing(self, messages: Sequence[Frame], description: str) -> Sequence[Frame]:
        del description
        if self._page_count:
            self._go_behind(self.last_sequence)
        self.pending = 0
        self.done = self.drained = True
        return messages

    def _go_behind(self, sequence: int) -> None:
        self._position = sequence + 1
        self._start_time = None

    def _is_complete(self) -> bool:
        if self._limit is not None and self.received >= self._limit:
            return True
        if self._size_limit is not None and self._size >= self._size_limit:
            return True
        return self.reached_end


def number_in(block: bytes, name: bytes) -> int:
    """Return the number in a header of a block, 0 where it has none; raises ProtocolError."""
    return read_digits(find_last(block, name) or b"0")


def size_of(frame: Frame) -> int:
    """Return the size of a message as servers count it for ``max_bytes``."""
    block = frame[2] or b""
    subject = find_last(block, SUBJECT) or b""
    own = block.rfind(_ADDED) + 2
    # Headers of its own, with the blank line that ended them; or only the line of the version.
    own = own + 2 if own > len(b"NATS/1.0\r\n") else 0
    return len(subject) + own + len(frame[3])
