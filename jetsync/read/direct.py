"""
Reading many stored messages without a consumer (ADR-31): batches, many subjects at one moment, and
whole streams page by page.

The reads run in the thread that iterates and leave nothing behind on the server: it answers a
request, and knows nothing of the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from jetsync._api import streams as _stream_admin
from jetsync._api.known_streams import known_stream
from jetsync._api.requests import sequence_number
from jetsync._base.deadline import as_seconds
from jetsync._proto.direct import BatchRead
from jetsync.errors import (
    ConflictingUseError,
    InvalidArgumentError,
    InvalidTypeError,
    PermissionDeniedError,
)
from jetsync.read.last import LastReader
from jetsync.read.pages import PAGE, PAGE_BYTES, PageReader, check_stream, repeated, require_pages
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

LARGEST: Final = (1 << 63) - 1
"""What servers take for a number."""


class _Reading:
    """
    What all reads of many messages are to their users.
    """

    def __init__(self, reader: PageReader[Any]) -> None:
        self._reader = reader
        self._running: Generator[Any, None, None] | None = None

    def __repr__(self) -> str:
        reader = self._reader
        return (
            f"<{type(self).__name__} {reader.name} of {reader.stream!r} {reader.state} "
            f"received={reader.engine.received}>"
        )

    def __iter__(self) -> Iterator[StoredMessage]:
        # The iteration keeps the reader alive, and the reader nothing of this: whoever lets go of
        # both ends the read.
        if self._running is None:
            self._running = self._reader.messages()
        return self._running

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def last_sequence(self) -> int:
        """
        The stream sequence of the last message that came, 0 before there is one.
        """
        sequence: int = self._reader.engine.last_sequence
        return sequence

    def close(self) -> None:
        """
        End the read now; what has not been taken is dropped. Safe to repeat.
        """
        if self._running is not None:
            self._running.close()
        self._reader.close()


class DirectBatch(_Reading):
    """
    The messages of one direct read, as they arrive (ADR-31).

    Iterate over it once, one thread at a time. A fault is raised at the end of the iteration, after
    the messages that did arrive. The attributes are complete once the iteration is. A batch that is
    left early may be closed, is closed at the end of a ``with`` block, and closes itself when
    nothing refers to it any more; reading changes nothing, so there is nothing to give back.
    """

    @property
    def pending(self) -> int | None:
        """
        How many messages the stream had left behind this batch; ``None`` before that is known.
        """
        pending: int | None = self._reader.engine.pending
        return pending

    @property
    def up_to_sequence(self) -> int | None:
        """
        The stream sequence that all messages are consistent with, for reads of several subjects.

        Give it to another ``get_last_for`` to read other subjects as of the same moment.
        """
        return getattr(self._reader.engine, "moment", None)

    @property
    def missing(self) -> tuple[str, ...]:
        """
        Subjects that had a message at the moment of the read which is gone now, so that their state
        at that moment can not be told; sorted.

        Streams that keep one message per subject lose the old one when a new one comes, which may
        happen between two pages of a read. A subject is named here if that can not be ruled out: if
        the moment is in the past, or subjects are asked for by name, one that was written for the
        first time while the read was under way may be among them.
        """
        return getattr(self._reader, "missing", ())

    @property
    def vanished(self) -> int:
        """
        How many messages of the moment could not be read, as far as is known; 0 if it is whole.
        """
        return getattr(self._reader, "vanished", 0)

    @property
    def later(self) -> tuple[str, ...]:
        """
        Subjects that vanished and were read again: their messages come last, and are the only ones
        with a sequence behind :attr:`up_to_sequence`. Sorted.
        """
        return getattr(self._reader, "later", ())


class StreamScan(_Reading, Iterator["StoredMessage"]):
    """
    The messages of a stream in their order, read page by page.

    An iterator, over messages or with :meth:`pages` over pages of them: one thread at a time.
    Letting go of it, :meth:`close` and the end of a ``with`` block end the read.
    """

    def __init__(self, reader: PageReader[Any]) -> None:
        super().__init__(reader)
        self._by_pages = False

    def __next__(self) -> StoredMessage:
        return next(iter(self))

    def __iter__(self) -> Iterator[StoredMessage]:  # noqa: PYI034  (what is behind it ends with it)
        if self._by_pages:
            raise ConflictingUseError("the scan is read page by page")
        return super().__iter__()

    def pages(self) -> Iterator[StoredPage]:
        """
        Iterate over what the scan has left by pages, none of them empty.

        For programs that take many messages at once, such as those that make tables: a page has the
        parts of its messages as columns, in a third of the time that asking each message takes.
        Pages have as many messages as ``page`` and ``max_bytes`` of the scan allow, or fewer. A
        fault is raised behind the last page.

        Raises:
            ConflictingUseError: The scan is read message by message already.
        """
        if self._running is None:
            self._by_pages = True
            self._running = self._reader.pages()
        elif not self._by_pages:
            raise ConflictingUseError("the scan is read message by message")
        return self._running


class BatchReader(PageReader[BatchRead]):
    """
    The pages of a batch: what ends it early has to be the end of the stream.

    Args:
        alone: Whether the stream has no replicas, so that its own answers are those of its leader.
    """

    def __init__(self, *args: Any, alone: bool, **named: Any) -> None:
        super().__init__(*args, **named)
        self._alone = alone

    def more(self) -> bool:
        """
        Ask again for what the leader has behind the last message, if who answered has no more.
        """
        engine = self.engine
        if not engine.drained or (self._alone and engine.from_itself):
            return False
        try:
            message = self.first_at_leader(engine.behind())
        except PermissionDeniedError:
            # Who may only read directly has to take the word of servers.
            message = None
        if message is None:
            engine.drained = False
            return False
        engine.go_on(message.sequence)
        self.try_again(wait=self._tries > 0)
        return True


class ScanReader(PageReader[BatchRead]):
    """
    The pages of a scan: where a page ends before the end, the leader is asked whether that is all.
    """

    def __init__(self, *args: Any, end: int, **named: Any) -> None:
        super().__init__(*args, **named)
        self._end = end
        self._from_leader: list[StoredMessage] = []

    def _next(self) -> list[StoredMessage]:
        run = super()._next()
        if not run:
            run, self._from_leader = self._from_leader, []
        return run

    def more(self) -> bool:
        """
        Look behind the last message where the server that answered has no more.

        A replica or a mirror may be behind the leader, and has then not seen all there is. Who may
        not ask the leader has to take its word.
        """
        engine = self.engine
        if not engine.drained or engine.reached_end or self._from_leader:
            return False
        try:
            message = self.first_at_leader(engine.behind())
        except PermissionDeniedError:
            message = None
        if message is None or message.sequence > self._end:
            engine.drained = False
            return False
        engine.skip(message.sequence)
        self._from_leader.append(message)
        return False


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
    Read up to so many messages; see :meth:`jetsync.Stream.get_batch`.
    """
    seconds = as_seconds(context.default_timeout if timeout is None else timeout)
    engine = BatchRead(
        stream,
        limit=_number(batch, "batch"),
        size_limit=None if max_bytes is None else _number(max_bytes, "max_bytes"),
        page=PAGE,
        page_bytes=PAGE_BYTES,
        subject=None if subject is None else validate_filter(subject),
        **_beginning(sequence, start_time, "sequence"),
    )
    deadline = context.deadline(seconds)
    known = check_stream(context, stream, deadline)
    alone = (known.config.num_replicas or 1) == 1
    reader = BatchReader(context, stream, engine, name="get_batch", seconds=seconds, alone=alone)
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
    Read the last message of each subject; see :meth:`jetsync.Stream.get_last_for`.

    The stream has reached the sequence *known_last* for sure.
    """
    seconds = as_seconds(context.default_timeout if timeout is None else timeout)
    names = _filters(subjects)
    if up_to_sequence is not None and up_to_time is not None:
        raise InvalidArgumentError(
            "read up to a sequence or up to a time, not both", argument="up_to_time"
        )
    moment = None if up_to_sequence is None else _number(up_to_sequence, "up_to_sequence")
    time = None if up_to_time is None else time_text(up_to_time, "up_to_time")
    page = None if batch is None else _number(batch, "batch")
    deadline = context.deadline(seconds)
    check_stream(context, stream, deadline)
    if moment is not None and moment > known_last:
        # Servers look up to where they are: the next page would see what was stored meanwhile.
        last = repeated(
            lambda until: _stream_admin.info(context, stream, until), deadline
        ).state.last_seq
        moment = min(moment, last) or None
    reader = LastReader(
        context,
        stream,
        names,
        moment=moment,
        up_to_time=time,
        page=page,
        split=split,
        reread=reread,
        seconds=seconds,
    )
    reader.begin(deadline)
    return DirectBatch(reader)


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
    Read a stream in pages; see :meth:`jetsync.Stream.scan`.
    """
    seconds = as_seconds(context.default_timeout if timeout is None else timeout)
    beginning = _beginning(start, start_time, "start")
    last = None if end is None else _number(end, "end", minimum=0)
    arguments: dict[str, Any] = {
        "page": PAGE if page is None else _number(page, "page"),
        "page_bytes": PAGE_BYTES if max_bytes is None else _number(max_bytes, "max_bytes"),
        "subject": None if subject is None else validate_filter(subject),
    }
    deadline = context.deadline(seconds)
    info = repeated(lambda until: _stream_admin.info(context, stream, until), deadline)
    require_pages(known_stream(stream, info.config, context.lane.epoch), context.server.version)
    if last is None:
        last = info.state.last_seq
    engine = BatchRead(stream, end=last, **beginning, **arguments)
    engine.done = engine.reached_end or not last
    reader = ScanReader(context, stream, engine, name="scan", seconds=seconds, end=last)
    reader.begin(deadline)
    return StreamScan(reader)


def _beginning(
    sequence: int | None, start_time: dt.datetime | int | None, name: str
) -> dict[str, Any]:
    if start_time is None:
        return {"sequence": 1 if sequence is None else _number(sequence, name)}
    if sequence is not None:
        raise InvalidArgumentError(
            f"begin at a sequence or at a time, not both: {name} and start_time are given",
            argument="start_time",
        )
    return {"start_time": time_text(start_time, "start_time")}


def _number(value: int, name: str, *, minimum: int = 1) -> int:
    """
    Return a number that servers take.

    Raises:
        InvalidTypeError: It is no whole number.
        InvalidArgumentError: It is too small, or more than 63 bits.
    """
    given = sequence_number(value, name, minimum=minimum)
    if given > LARGEST:
        raise InvalidArgumentError(f"{name} must be less than 2**63, not {given}", argument=name)
    return given


def _filters(subjects: Iterable[str] | str) -> tuple[str, ...]:
    """
    Return subjects and wildcards, each once.

    Raises:
        InvalidArgumentError: There is none.
        InvalidTypeError, InvalidSubjectError: One of them can not be used.
    """
    if isinstance(subjects, str):
        subjects = (subjects,)
    elif not isinstance(subjects, Iterable):
        raise InvalidTypeError(
            f"subjects must be texts, not {type(subjects).__name__}", argument="subjects"
        )
    found = tuple(dict.fromkeys(validate_filter(each) for each in subjects))
    if not found:
        raise InvalidArgumentError("there is no subject to read", argument="subjects")
    return found
