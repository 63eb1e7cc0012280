"""
Paged direct reads: the requests, the meaning of the answers and the start of the next page.

The engines here do no I/O and read no clock. :class:`PagedRead` is the base of all paged reads, and
:class:`BatchRead` reads by sequence. Reads of several subjects are in
:mod:`jetsync._proto.direct_last`.

A server answers a request with messages and then one status, without any flow control. So every
request limits the bytes of its page to what the client can buffer. Servers 2.11 report counts of
pending messages that are off by one: too high for one kind of read and too low for the other. So:

- a batch continues while its end marker says that messages are left;
- a read of several subjects continues while the last *message* of a page says so;
- a page without a message is the last one;
- a first message without ``Nats-Num-Pending`` comes from a server that does not support batches.

Mirrors of the stream answer too, and a mirror may lack messages. The first message of a page names
the stream that answered. The engine drops the page unless that stream is known to be complete, and
the verdict is then "stranger".

A page can be cut off: the connection is lost, or a message is removed while the server reads it.
The read then continues after the last message that arrived.

Implements ADR-31, with facts about servers 2.10 to 2.15.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from jetsync import errors
from jetsync._base.integers import read_digits
from jetsync._proto.origin import Strays
from jetsync.values import headers
from jetsync.values.frame import FrameRun
from jetsync.values.headers import find_last, is_status, own_block, parse_status
from jetsync.values.server_versions import NEEDS_PAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync.values.frame import Frame, Frames

NUM_PENDING: Final = headers.NUM_PENDING.encode()
STREAM: Final = headers.STREAM.encode()
SUBJECT: Final = headers.SUBJECT.encode()
_SEQUENCE: Final = headers.SEQUENCE.encode()

# How each status line begins. A block without it is no answer of a server.
_STATUS_START: Final = b"NATS/"

_ERRORS: Final[Mapping[int, type[errors.StatusError]]] = {
    408: errors.BadDirectRequestError,
    412: errors.RequiredApiLevelError,
    413: errors.TooManySubjectsError,
}


# What the last request brought instead of a page that can be used:
# - "unanswered": nothing, because no server has this stream (status 503)
# - "stranger": a page of another stream, whose answers are not accepted
# - "drained": less than was asked for, because the server that answered has no more messages
# - "nothing": an empty page, which has to be confirmed
# - "lagging": a page of a server that has not reached the moment of the read
# - "cut": not all messages of a read that needs a given moment to continue
# - "too many": a refusal, because more subjects match than a server accepts
PageVerdict: TypeAlias = Literal[
    "unanswered", "stranger", "drained", "nothing", "lagging", "cut", "too many"
]


class PagedRead:
    """
    The base of all paged reads: the state of the open page, and the reason why the read ended.

    Call :meth:`open` whenever :attr:`is_open` and :attr:`done` are both false, and pass every run
    of frames to :meth:`take`.
    """

    _stream: str
    _reply = b""
    page_count: int = 0
    last_block: bytes = b""
    _block_before = b""
    #: Whether a page was requested and its end has not arrived.
    is_open: bool = False
    #: Whether there is nothing more to request.
    done: bool = False
    #: What the caller has to decide about before it opens another page. None if there is nothing.
    verdict: PageVerdict | None = None
    # Names of the other streams whose answers are accepted.
    _trusted: frozenset[bytes] = frozenset()
    #: The stream that answered the last page; None if the page had no message.
    answerer: bytes | None = None
    #: How many servers that answered the open page have fewer messages than the stream, and the
    #: mirror among them.
    tries: int = 0
    mirror: str | None = None
    #: The error that ended the read.
    error: Exception | None = None
    #: How many messages arrived.
    received: int = 0
    # The same before the open page, which may take several requests.
    _received_before = 0
    #: How many messages were left at the end of the last page; None before the first page ended.
    pending: int | None = None

    @functools.cached_property
    def strays(self) -> Strays:
        """What other clients published to the inbox of the read."""
        return Strays()

    def __repr__(self) -> str:
        state = "done" if self.done else "open" if self.is_open else "between pages"
        return f"<{type(self).__name__} {state} received={self.received}>"

    @property
    def from_itself(self) -> bool:
        """Whether the last page is known to come from the stream itself."""
        return self.answerer == self._stream.encode()

    @property
    def answered_by(self) -> str:
        """The stream that answered the last page; empty if that is unknown."""
        return (self.answerer or b"").decode("utf-8", "surrogateescape")

    @property
    def page_received(self) -> int:
        """How many messages of the open page have arrived."""
        return self.received - self._received_before

    @property
    def reads_ahead(self) -> bool:
        """Whether to request the next page before the messages of the last one are used."""
        return True

    @property
    def last_sequence(self) -> int:
        """The sequence of the last message that arrived, 0 before the first."""
        return number_in(self.last_block, _SEQUENCE) if self.last_block else 0

    def open(self, reply: bytes, trusted: frozenset[bytes] = frozenset()) -> dict[str, Any]:
        """
        Return the next request, whose answers will arrive on the subject *reply*.

        Answers from the streams *trusted* are accepted as well.
        """
        assert not self.is_open
        assert not self.done
        self._reply, self._trusted = reply, trusted
        self.page_count = 0
        self.is_open = True
        self.verdict = self.answerer = None
        return self.page_request()

    def take(self, frames: Frames) -> Frames:
        """
        Process a run of frames and return its messages that can be yielded to the user.

        A status can only be the last frame, because servers send nothing after it. A malformed
        frame ends the read with an error.
        """
        try:
            return self._take(frames)
        except errors.ProtocolError as error:
            self.fail(error)
            return []

    def _take(self, frames: Frames) -> Frames:
        frames = self._own(frames)
        if not frames:
            return []
        block = _block_of(frames[-1])
        status = None
        if is_status(block):
            status = parse_status(block)
            frames.pop()
        messages = frames
        if frames and self.verdict is None and self._begins_well(frames[0]):
            self._block_before, self.last_block = self.last_block, _block_of(frames[-1])
            # Read here, so that an invalid number is reported as an error of this page.
            number_in(self.last_block, _SEQUENCE)
            number_in(self.last_block, NUM_PENDING)
            self.page_count += len(frames)
            self.received += len(frames)
            messages = self.on_messages(frames)
        if self.error is not None:
            return []
        if self.verdict == "stranger":
            # The page stays open until its status arrives. Only then can another one be requested.
            self.is_open = status is None
            return []
        if status is not None and self.is_open:
            self.is_open = False
            messages = self.on_status(status, block, messages)
        return messages

    def _own(self, frames: Frames) -> Frames:
        """
        Return the frames of the open page.

        Others are late answers to an earlier request, whose connection was lost, or come from
        other clients, which may publish to the inbox.
        """
        if isinstance(frames, list):
            frames = [frame for frame in frames if frame[0] == self._reply]
        elif frames.subject != self._reply:
            return []
        if not self.is_open:
            return []
        if isinstance(frames, FrameRun) and _are_counted_down(frames):
            return frames
        foreign = [frame for frame in frames if not _is_answer(frame)]
        if not foreign:
            return frames
        self.strays.note("foreign", foreign)
        return [frame for frame in frames if _is_answer(frame)]

    def lost(self) -> None:
        """Give up the open page, because the rest of it will not arrive."""
        self.is_open = False

    def _begins_well(self, frame: Frame) -> bool:
        """Check the first message of a page; return whether the page may be read."""
        if self.page_count:
            return True
        block = _block_of(frame)
        if find_last(block, NUM_PENDING) is None:
            # Servers before 2.11 send one message, perhaps of another subject, and no status.
            self.fail(errors.NotSupportedError("a direct read of many messages", needs=NEEDS_PAGES))
            return False
        self.answerer = find_last(block, STREAM)
        if not self.from_itself and self.answerer not in self._trusted:
            self.verdict = "stranger"
            return False
        return True

    def on_status(self, status: tuple[int | None, str], block: bytes, messages: Frames) -> Frames:
        """Handle the end of the open page; return the messages to yield."""
        code, description = status
        if code == 204:
            return self.on_end(block, messages)
        if code == 404:
            return self.on_nothing(messages, description)
        if code == 503:
            self.verdict = "unanswered"
            return messages
        self.fail(status_error(status, self._stream))
        return messages

    def count_try(self) -> None:
        """Count that a server answered that has fewer messages than the stream."""
        self.tries += 1
        if self.verdict == "stranger":
            self.mirror = self.answered_by or None

    def end_page(self) -> bool:
        """Finish a page, and return whether it brought messages."""
        brought = self.page_received > 0
        if brought:
            self.tries, self.mirror = 0, None
        self._received_before = self.received
        return brought

    def release(self) -> list[Frame]:
        """Return the frames that were held back and can be yielded although the read failed."""
        return []

    def stop(self) -> None:
        """End the read: nothing more will be requested."""
        self.done = True

    def take_error(self) -> Exception | None:
        """Return the error that ended the read, and forget it."""
        error, self.error = self.error, None
        return error

    def fail(self, error: Exception) -> None:
        """End the read with an error."""
        self.error = error
        self.is_open = False
        self.done = True

    # Subclasses implement these. The methods that get frames return the messages to yield.

    def page_request(self) -> dict[str, Any]:
        """Return the next request."""
        raise NotImplementedError

    def on_messages(self, frames: Frames) -> Frames:
        """Handle messages of the open page."""
        raise NotImplementedError

    def on_end(self, block: bytes, messages: Frames) -> Frames:
        """Handle the end marker of a page, whose headers are *block*."""
        raise NotImplementedError

    def on_nothing(self, messages: Frames, description: str) -> Frames:
        """Handle the status of a page without messages (404)."""
        raise NotImplementedError


@attrs.define(slots=False, eq=False, repr=False)
class BatchRead(PagedRead):
    """
    Read the messages of a stream, or of one subject or wildcard, in the order of their sequences.

    Args:
        stream: The stream, for errors.
        sequence: The sequence to begin at.
        start_time: The time to begin at, instead of a sequence.
        subject: Only messages of this subject or wildcard.
        limit: The most messages to read; ``None`` for all.
        size_limit: Stop after this many bytes, as servers count them; ``None`` for no limit.
        end: The last sequence to read; ``None`` for no end.
        page: The most messages per request.
        page_bytes: The most bytes per request.
        largest_page: Each full page is followed by one of twice as many messages, up to this many.
        wanted: How many messages the caller needs for certain; ``None`` for all. No page is larger,
            and none is read ahead after them. If the caller reads on, it needs twice as many.
    """

    _stream: str
    #: The sequence that the next page begins at, unless a time is set.
    position: int = attrs.field(default=1, alias="sequence", kw_only=True)
    _start_time: str | None = attrs.field(default=None, kw_only=True)
    _subject: str | None = attrs.field(default=None, kw_only=True)
    _limit: int | None = attrs.field(default=None, kw_only=True)
    _size_limit: int | None = attrs.field(default=None, kw_only=True)
    _end: int | None = attrs.field(default=None, kw_only=True)
    _page: int = attrs.field(kw_only=True)
    _page_bytes: int = attrs.field(kw_only=True)
    _largest_page: int = attrs.field(default=0, kw_only=True)
    _wanted: int | None = attrs.field(default=None, kw_only=True)

    _size = 0
    # Whether the open page is the last one, because it may use the rest of the size limit.
    _is_last = False

    @property
    def reached_end(self) -> bool:
        """Whether the read has passed its last sequence."""
        return self._end is not None and self.position > self._end and self._start_time is None

    @property
    def reads_ahead(self) -> bool:
        return self._wanted is None or self.received < self._wanted

    def next_request(self) -> dict[str, Any]:
        """Return the request for the first message of the next page."""
        return {"next_by_subj": ">", **self._where()}

    def _where(self) -> dict[str, Any]:
        at = (
            {"seq": self.position} if self._start_time is None else {"start_time": self._start_time}
        )
        return at if self._subject is None else {**at, "next_by_subj": self._subject}

    def continue_at(self, sequence: int) -> None:
        """Continue at *sequence*, because there is such a message after all."""
        self._continue_after(sequence - 1)
        self.done, self.verdict = False, None

    def confirm_end(self) -> None:
        """Accept that there are no more messages, because the leader has none either."""
        self.verdict = None

    def skip(self, sequence: int) -> None:
        """Continue after *sequence*, because the caller has read that message in another way."""
        self._continue_after(sequence)
        self.verdict = None
        self.done = self.reached_end

    def lost(self) -> None:
        super().lost()
        if self.page_count:
            self._continue_after(self.last_sequence)
            self.pending = number_in(self.last_block, NUM_PENDING)
            self.done = self._is_complete()

    def page_request(self) -> dict[str, Any]:
        batch, size = self._page, self._page_bytes
        self._is_last = False
        if self._limit is not None and self._limit - self.received <= batch:
            batch = self._limit - self.received
        if self._wanted is not None:
            if self.received >= self._wanted:
                self._wanted = 2 * self.received
            batch = min(batch, self._wanted - self.received)
        if self._size_limit is not None and self._size_limit - self._size <= size:
            # The rest fits into one page. The server counts its bytes, and the read ends with it.
            size = self._size_limit - self._size
            self._is_last = True
        if self._end is not None and self._start_time is None:
            batch = min(batch, self._end - self.position + 1)
        return {**self._where(), "batch": batch, "max_bytes": size}

    def on_messages(self, frames: Frames) -> Frames:
        if self._size_limit is not None:
            self._size += sum(map(size_of, frames))
        if self._end is not None and self.last_sequence > self._end:
            return self._cut(frames, self._end)
        return frames

    def _cut(self, frames: Frames, end: int) -> Frames:
        """Return the frames up to *end*; later ones were stored after the read began."""
        whole = len(frames)
        while frames and number_in(_block_of(frames[-1]), _SEQUENCE) > end:
            frames.pop()
        self.received -= whole - len(frames)
        self._continue_after(end)
        self.last_block = _block_of(frames[-1]) if frames else self._block_before
        self.is_open = False
        self.done = True
        self.pending = 0
        return frames

    def on_end(self, block: bytes, messages: Frames) -> Frames:
        self.pending = number_in(block, NUM_PENDING)
        if self.page_count >= self._page:
            self._page = max(self._page, min(2 * self._page, self._largest_page))
        if self.page_count:
            self._continue_after(self.last_sequence)
        self.done = self._is_last or self._is_complete()
        if not self.done and (not self.pending or not self.page_count):
            self.done, self.verdict = True, "drained"
        return messages

    def on_nothing(self, messages: Frames, description: str) -> Frames:
        del description
        if self.page_count:
            self._continue_after(self.last_sequence)
        self.pending = 0
        self.done, self.verdict = True, "drained"
        return messages

    def _continue_after(self, sequence: int) -> None:
        self.position = sequence + 1
        self._start_time = None

    def _is_complete(self) -> bool:
        if self._limit is not None and self.received >= self._limit:
            return True
        if self._size_limit is not None and self._size >= self._size_limit:
            return True
        return self.reached_end


def status_error(
    status: tuple[int | None, str], stream: str
) -> errors.StatusError | errors.ProtocolError:
    """Return the error for a status that refuses a direct get."""
    code, description = status
    if code is None:
        return errors.ProtocolError(f"{description[:40]!r} is not a status with a number")
    error = _ERRORS.get(code, errors.UnknownStatusError)
    return error(code=code, description=description or None, stream=stream)


def _is_answer(frame: Frame) -> bool:
    """Return whether a frame may be an answer of a server: a status or a stored message."""
    block = frame[2]
    if block is None:
        return False
    return find_last(block, _SEQUENCE) is not None or (
        block.startswith(_STATUS_START) and is_status(block)
    )


def _are_counted_down(run: FrameRun) -> bool:
    """
    Return whether each message of a run says that one message less follows than the one before.

    So servers number them, and nothing else can be among them. Compared by the first and the last
    one, because a check of each message would take a tenth of the time of the read.
    """
    count = len(run)
    if is_status(_block_of(run[count - 1])):
        count -= 1
    if not count:
        return True
    first, last = _block_of(run[0]), _block_of(run[count - 1])
    if find_last(first, _SEQUENCE) is None or find_last(last, _SEQUENCE) is None:
        return False
    return number_in(first, NUM_PENDING) - number_in(last, NUM_PENDING) == count - 1


def _block_of(frame: Frame) -> bytes:
    """Return the headers of a frame; raises ProtocolError if it has none."""
    if frame[2] is None:
        raise errors.ProtocolError("an answer to a direct get has no headers")
    return frame[2]


def number_in(block: bytes, name: bytes) -> int:
    """Return the number in a header, 0 if the header is missing; raises ProtocolError."""
    return read_digits(find_last(block, name) or b"0")


def size_of(frame: Frame) -> int:
    """Return the size of a message as servers count it for ``max_bytes``."""
    block = frame[2] or b""
    subject = find_last(block, SUBJECT) or b""
    own = own_block(block)
    # The server replaces the last two bytes of the message's own block.
    return len(subject) + (len(own) + 2 if own else 0) + len(frame[3])
