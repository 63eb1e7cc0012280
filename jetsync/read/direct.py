"""
Read many stored messages without a consumer (ADR-31): batches, the last messages of many subjects,
and whole streams.

The reads run in the thread that iterates and leave nothing on the server, which answers each
request by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jetsync._api.requests import sequence_number
from jetsync._api.streams import info as stream_info
from jetsync._proto.direct import BatchRead
from jetsync.errors import (
    ConflictingUseError,
    InvalidArgumentError,
    InvalidTypeError,
    PermissionDeniedError,
)
from jetsync.read.last import LastPlan
from jetsync.read.pages import PAGE, PAGE_BYTES, PageReader, ReadPlan, check_stream, repeated
from jetsync.values.codec import time_text
from jetsync.values.subjects import validate_filter

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Generator

    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.values.stored import StoredMessage, StoredPage

__all__ = ["DirectBatch", "StreamScan"]


class DirectBatch:
    """
    The messages of one direct read, as they arrive (ADR-31).

    Iterate over it once, in one thread at a time. Errors are raised at the end of the iteration,
    after the messages that did arrive. The attributes are final when the iteration ends.

    To end a batch early, call :meth:`close`, use it in a ``with`` block, or drop all references to
    it.
    """

    def __init__(self, reader: PageReader, last: LastPlan | None = None) -> None:
        self._reader = reader
        self._last = last
        # The iteration refers to the reader and not to this object. The read ends when nothing
        # refers to either of them.
        self._running: Generator[StoredMessage, None, None] | None = None

    def __repr__(self) -> str:
        return f"<DirectBatch {self._reader.description}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[StoredMessage]:
        if self._running is None:
            self._running = self._reader.messages()
        return self._running

    @property
    def last_sequence(self) -> int:
        """
        The stream sequence of the last message that has arrived, 0 before the first.
        """
        return self._reader.plan.engine.last_sequence

    @property
    def pending(self) -> int | None:
        """
        How many messages the stream has after this batch; ``None`` before that is known.
        """
        return self._reader.plan.engine.pending

    @property
    def up_to_sequence(self) -> int | None:
        """
        The stream sequence that all messages are consistent with, for reads of several subjects.

        Pass it to another ``get_last_for`` to read other subjects as of the same moment.
        """
        return None if self._last is None else self._last.engine.moment

    @property
    def missing(self) -> tuple[str, ...]:
        """
        Subjects whose message of the moment is gone, so that their state at that moment is unknown;
        sorted.

        A stream that keeps one message per subject drops the old one when a new one is stored,
        which may happen between two pages of a read. Where that cannot be ruled out, the subject is
        listed. So if the moment is in the past, or the subjects are given by name, a subject that
        was written for the first time during the read may be listed too.
        """
        return () if self._last is None else self._last.missing

    @property
    def vanished(self) -> int:
        """
        How many messages of the moment could not be read, as far as is known; 0 if none is missing.
        """
        return 0 if self._last is None else self._last.vanished

    @property
    def later(self) -> tuple[str, ...]:
        """
        Subjects that were missing and have been read again; sorted.

        Their messages come last, and only these have a sequence above :attr:`up_to_sequence`.
        """
        return () if self._last is None else self._last.later

    def close(self) -> None:
        """
        End the read now and drop the messages that were not taken; safe to repeat.
        """
        self._reader.close(self._running)


class StreamScan(Iterator["StoredMessage"]):
    """
    The messages of a stream in their order, read page by page.

    An iterator over messages or, with :meth:`pages`, over pages; one thread at a time. To end a
    scan early, call :meth:`close`, use it in a ``with`` block, or drop all references to it.
    """

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader
        # As in a DirectBatch, of messages or of pages.
        self._running: Generator[Any, None, None] | None = None
        self._by_pages = False

    def __repr__(self) -> str:
        return f"<StreamScan {self._reader.description}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[StoredMessage]:  # noqa: PYI034 - not this object, see DirectBatch.
        if self._by_pages:
            raise ConflictingUseError("the scan is read page by page")
        if self._running is None:
            self._running = self._reader.messages()
        return self._running

    def __next__(self) -> StoredMessage:
        return next(iter(self))

    @property
    def last_sequence(self) -> int:
        """
        The stream sequence of the last message that has arrived, 0 before the first.
        """
        return self._reader.plan.engine.last_sequence

    def pages(self) -> Iterator[StoredPage]:
        """
        Iterate over the rest of the scan in non-empty pages.

        For programs that process many messages at once, for example into tables. A page has the
        parts of its messages as columns, in a third of the time that asking each message takes.
        Pages have up to ``page`` messages and ``max_bytes`` bytes. Errors are raised after the last
        page has been yielded.

        Raises:
            ConflictingUseError: The scan is already read message by message.
        """
        if self._running is None:
            self._by_pages = True
            self._running = self._reader.pages()
        elif not self._by_pages:
            raise ConflictingUseError("the scan is read message by message")
        return self._running

    def close(self) -> None:
        """
        End the read now and drop the messages that were not taken; safe to repeat.
        """
        self._reader.close(self._running)


class SequencePlan(ReadPlan):
    """
    The pages of a batch or a scan; the leader is asked where a server has no more messages.

    A replica or a mirror may be behind the leader. A user without permission to ask the leader has
    to trust it.

    Args:
        engine: What to request.
        end: The last sequence of a scan, None for a batch.
        alone: Whether the stream has no replicas, so that its own answers are the leader's.
    """

    engine: BatchRead

    def __init__(self, engine: BatchRead, *, end: int | None = None, alone: bool = False) -> None:
        super().__init__(engine)
        self._end = end
        self._alone = alone
        self._from_leader: list[StoredMessage] = []

    def extend(self, reader: PageReader) -> bool:
        """Look for messages at the leader; return whether to request another page."""
        engine = self.engine
        if not engine.drained or engine.reached_end or self._from_leader:
            return False
        if self._alone and engine.from_itself:
            return False
        try:
            message = reader.first_at_leader(engine.next_request())
        except PermissionDeniedError:
            message = None
        if message is None or (self._end is not None and message.sequence > self._end):
            engine.drained = False
            return False
        if self._end is None:
            engine.continue_at(message.sequence)
            reader.try_again(wait=reader.tries > 0)
            return True
        # A scan takes the leader's message, and continues after it.
        engine.skip(message.sequence)
        self._from_leader.append(message)
        return False

    def rest(self, reader: PageReader) -> list[StoredMessage]:
        """Return the message that the leader had."""
        del reader
        found, self._from_leader = self._from_leader, []
        return found


def get_batch(
    context: Context,
    stream: str,
    batch: int,
    *,
    sequence: int | None,
    subject: str | None,
    start_time: dt.datetime | int | None,
    max_bytes: int | None,
    timeout: Seconds | None,
) -> DirectBatch:
    """
    Start a read of up to *batch* messages; see :meth:`jetsync.Stream.get_batch`.
    """
    deadline = context.deadline(timeout)
    engine = BatchRead(
        stream,
        limit=_number(batch, "batch"),
        size_limit=_optional(max_bytes, "max_bytes"),
        page=PAGE,
        page_bytes=PAGE_BYTES,
        subject=None if subject is None else validate_filter(subject),
        **_beginning(sequence, start_time, "sequence"),
    )
    known = check_stream(context, stream, deadline)
    plan = SequencePlan(engine, alone=(known.config.num_replicas or 1) == 1)
    reader = PageReader(context, stream, plan, name="get_batch", seconds=deadline.total)
    reader.begin(deadline)
    return DirectBatch(reader)


def get_last_for(
    context: Context,
    stream: str,
    subjects: Iterable[str] | str,
    *,
    up_to_sequence: int | None,
    up_to_time: dt.datetime | int | None,
    batch: int | None,
    split: bool,
    reread: bool,
    timeout: Seconds | None,
    known_last: int,
) -> DirectBatch:
    """
    Start a read of the last message of each subject; see :meth:`jetsync.Stream.get_last_for`.

    The caller knows that the stream has reached the sequence *known_last*.
    """
    deadline = context.deadline(timeout)
    names = _filters(subjects)
    if up_to_sequence is not None and up_to_time is not None:
        raise InvalidArgumentError(
            "up_to_sequence and up_to_time exclude each other: give one of them",
            argument="up_to_time",
        )
    moment = _optional(up_to_sequence, "up_to_sequence")
    time = None if up_to_time is None else time_text(up_to_time, "up_to_time")
    page = _optional(batch, "batch")
    check_stream(context, stream, deadline)
    if moment is not None and moment > known_last:
        # With a sequence in the future, the next page would contain newer messages than the first.
        info = repeated(lambda until: stream_info(context, stream, until), deadline)
        moment = min(moment, info.state.last_seq) or None
    plan = LastPlan(
        context,
        stream,
        names,
        moment=moment,
        up_to_time=time,
        page=page,
        split=split,
        reread=reread,
    )
    reader = PageReader(context, stream, plan, name="get_last_for", seconds=deadline.total)
    reader.begin(deadline)
    return DirectBatch(reader, plan)


def scan(
    context: Context,
    stream: str,
    *,
    start: int | None,
    end: int | None,
    start_time: dt.datetime | int | None,
    subject: str | None,
    page: int | None,
    max_bytes: int | None,
    timeout: Seconds | None,
) -> StreamScan:
    """
    Start a read of a stream in pages; see :meth:`jetsync.Stream.scan`.
    """
    deadline = context.deadline(timeout)
    beginning = _beginning(start, start_time, "start")
    last = _optional(end, "end", minimum=0)
    page = _optional(page, "page") or PAGE
    page_bytes = _optional(max_bytes, "max_bytes") or PAGE_BYTES
    subject = None if subject is None else validate_filter(subject)
    check_stream(context, stream, deadline)
    if last is None:
        info = repeated(lambda until: stream_info(context, stream, until), deadline)
        last = info.state.last_seq
    engine = BatchRead(
        stream, subject=subject, end=last, page=page, page_bytes=page_bytes, **beginning
    )
    engine.done = engine.reached_end or not last
    plan = SequencePlan(engine, end=last)
    reader = PageReader(context, stream, plan, name="scan", seconds=deadline.total)
    reader.begin(deadline)
    return StreamScan(reader)


def _beginning(
    sequence: int | None, start_time: dt.datetime | int | None, name: str
) -> dict[str, Any]:
    if start_time is None:
        return {"sequence": 1 if sequence is None else _number(sequence, name)}
    if sequence is not None:
        raise InvalidArgumentError(
            f"{name} and start_time exclude each other: give one of them",
            argument="start_time",
        )
    return {"start_time": time_text(start_time, "start_time")}


def _number(value: int, name: str, *, minimum: int = 1) -> int:
    """
    Return an integer that servers accept.

    Raises:
        InvalidTypeError: The value is not an integer.
        InvalidArgumentError: It is less than *minimum*, or 2**63 or more.
    """
    given = sequence_number(value, name, minimum=minimum)
    if given >= 1 << 63:
        raise InvalidArgumentError(f"{name} must be less than 2**63, not {given}", argument=name)
    return given


def _optional(value: int | None, name: str, *, minimum: int = 1) -> int | None:
    """Return an integer that servers accept, or None."""
    return None if value is None else _number(value, name, minimum=minimum)


def _filters(subjects: Iterable[str] | str) -> tuple[str, ...]:
    """
    Return subjects and wildcards, each once.

    Raises:
        InvalidArgumentError: There is none.
        InvalidTypeError, InvalidSubjectError: One of them is not valid.
    """
    if isinstance(subjects, str):
        subjects = (subjects,)
    elif not isinstance(subjects, Iterable):
        raise InvalidTypeError(
            f"subjects must be strings, not {type(subjects).__name__}", argument="subjects"
        )
    found = tuple(dict.fromkeys(validate_filter(each) for each in subjects))
    if not found:
        raise InvalidArgumentError(
            "subjects is empty: give at least one subject", argument="subjects"
        )
    return found
