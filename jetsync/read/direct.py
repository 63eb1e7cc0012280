"""
Read many stored messages without a consumer (ADR-31): batches, the last messages of many subjects,
and whole streams.

The reads run in the iterating thread. The server keeps no state for them, because each request
is independent of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from jetsync import errors
from jetsync._base.fields import check_exclusive, whole_number, wrong_type
from jetsync._base.iterations import Iteration
from jetsync._base.pickling import refuse_copy
from jetsync._proto.direct import BatchRead
from jetsync.read.pages import LARGEST_PAGE, PAGE, ReadPlan
from jetsync.values.arrow import DEFAULT_COLUMNS, arrow_columns
from jetsync.values.codec import format_time
from jetsync.values.stream_info import StreamInfo
from jetsync.values.subjects import has_wildcard, validate_filter

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Generator, Sequence

    import pyarrow as pa
    from typing_extensions import Self

    from jetsync._base.deadline import Deadline
    from jetsync._base.iterations import ListIteration
    from jetsync.read.last import LastPlan
    from jetsync.read.pages import PageReader
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

    __reduce__ = refuse_copy

    def __init__(self, reader: PageReader, last: LastPlan | None = None) -> None:
        self._reader = reader
        self._last = last
        # The iteration refers to the reader and not to this object. The read ends when nothing
        # refers to either of them.
        self._running: ListIteration[StoredMessage] | None = None

    def __repr__(self) -> str:
        return f"<DirectBatch {self._reader.description}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[StoredMessage]:
        if self._running is None:
            self._running = self._reader.messages("batch")
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
        How many matching messages follow this batch; ``None`` until the server has said so.
        """
        return self._reader.plan.engine.pending

    @property
    def up_to_sequence(self) -> int | None:
        """
        The stream sequence of the snapshot that ``get_last_for`` reads; ``None`` for other reads.

        Pass it to another ``get_last_for`` to read other subjects of the same snapshot.
        """
        return None if self._last is None else self._last.engine.moment

    @property
    def missing(self) -> tuple[str, ...]:
        """
        Subjects whose state in the snapshot is unknown, because their message was removed; sorted.

        A stream that keeps one message per subject drops the old one when a new one is stored,
        which may happen between two pages of a read. If jetsync cannot exclude that this happened
        to a subject, it lists the subject. In a snapshot of the past, or with subjects given by
        name, the list may include subjects that were first written during the read.
        """
        return () if self._last is None else self._last.missing

    @property
    def vanished(self) -> int:
        """
        How many messages of the snapshot are known to be missing from the batch.
        """
        return 0 if self._last is None else self._last.vanished

    @property
    def later(self) -> tuple[str, ...]:
        """
        Subjects whose message of the snapshot was removed and whose current message was read
        instead; sorted.

        Their messages come last, and only these have a sequence above :attr:`up_to_sequence`.
        """
        return () if self._last is None else self._last.later

    def close(self) -> None:
        """
        End the read now and drop the messages that were not taken; safe to repeat.

        If another thread waits for a message, its iteration ends.
        """
        self._reader.close(self._running)


def end_by(batch: DirectBatch, deadline: Deadline) -> None:
    """Have all further pages arrive by the deadline of the calling operation."""
    batch._reader.until = deadline  # noqa: SLF001  (its own module)


class StreamScan(Iterator["StoredMessage"]):
    """
    The messages of a stream in their order, read page by page.

    Iterate over it for single messages, or over :meth:`pages`, in one thread at a time. To end a
    scan early, call :meth:`close`, use it in a ``with`` block, or drop all references to it.
    """

    __reduce__ = refuse_copy

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader
        # The iteration over messages or over pages. The read ends as in a DirectBatch.
        self._running: ListIteration[StoredMessage] | Iteration[StoredPage] | None = None

    def __repr__(self) -> str:
        return f"<StreamScan {self._reader.description}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[StoredMessage]:  # noqa: PYI034 - not this object, see DirectBatch.
        if self._running is None:
            self._running = self._reader.messages("scan")
        if isinstance(self._running, Iteration):
            raise errors.ConflictingUseError(
                "this scan is already read page by page: use another one"
            )
        return self._running

    def __next__(self) -> StoredMessage:
        # Not `next`: Ctrl-C may strike between its end and the return.
        for message in self:
            return message
        raise StopIteration

    @property
    def last_sequence(self) -> int:
        """
        The stream sequence of the last message that has arrived, 0 before the first.
        """
        return self._reader.plan.engine.last_sequence

    def pages(self) -> Iterator[StoredPage]:
        """
        Iterate over the rest of the scan in non-empty pages.

        Use it to process many messages together, for example to fill tables. A page has the parts
        of its messages as columns. Reading columns takes a third of the time of reading each
        message. The arguments ``page`` and ``max_bytes`` of :meth:`Stream.scan` limit a page.
        Errors are raised after the last page has been yielded.

        Raises:
            ConflictingUseError: Your code already reads the scan message by message.
        """
        return self._by_page()

    def _by_page(self) -> Iteration[StoredPage]:
        if self._running is None:
            self._running = self._reader.pages("scan")
        if not isinstance(self._running, Iteration):
            raise errors.ConflictingUseError(
                "this scan is already read message by message: use another one"
            )
        return self._running

    def to_arrow(self, columns: Iterable[str] = DEFAULT_COLUMNS) -> pa.Table:
        """
        Read the rest of the scan into a ``pyarrow.Table``.

        The extra ``jetsync[arrow]`` installs pyarrow. Arrow reads the columns from the bytes that
        arrived, without an object for each message.

        Args:
            columns: Names of columns, in the order of the table. ``subject`` is a string, ``data``
                binary, ``sequence`` int64, and ``timestamp`` has nanoseconds and the time zone UTC.
                ``headers`` is a map from names to lists of values. By default, ``headers`` is left
                out, because it takes about as long as all other columns together. Bytes of subjects
                and headers that are not UTF-8 become U+FFFD.

        Raises:
            ConfigurationError: pyarrow is not installed.
            ConflictingUseError: Your code already reads the scan message by message.
            InvalidArgumentError: A name is unknown or given twice, or no name is given.
        """
        batches, pages = self.to_batches(columns), self._by_page()
        try:
            return batches.read_all()
        except errors.JetSyncError:
            raise
        except BaseException:
            # The pages that were read are lost.
            pages.unfinished = True
            raise

    def to_batches(self, columns: Iterable[str] = DEFAULT_COLUMNS) -> pa.RecordBatchReader:
        """
        Read the rest of the scan as Arrow record batches, one for each page.

        Use it for streams that do not fit into memory. The ``pyarrow.RecordBatchReader`` is an
        iterator, and other libraries read it through the Arrow C stream interface. Errors are
        raised after the last batch has been yielded.

        Args:
            columns: As in :meth:`to_arrow`.

        Raises:
            ConfigurationError: pyarrow is not installed.
            ConflictingUseError: Your code already reads the scan message by message.
            InvalidArgumentError: A name is unknown or given twice, or no name is given.
        """
        wanted = arrow_columns(columns)
        batches = _record_batches(self._by_page(), wanted.schema.names)
        return wanted.reader(Iteration(batches, "scan"))

    def to_reader(self, columns: Iterable[str] = DEFAULT_COLUMNS) -> pa.RecordBatchReader:
        """
        Do the same as :meth:`to_batches`. This is the name that scanners of pyarrow have.
        """
        return self.to_batches(columns)

    def close(self) -> None:
        """
        End the read now and drop the messages that were not taken; safe to repeat.

        If another thread waits for a message, its iteration ends.
        """
        self._reader.close(self._running)


def _record_batches(
    pages: Iteration[StoredPage], columns: Sequence[str]
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the record batch of each page."""
    for page in pages:
        # The page is lost if this is interrupted or raises.
        pages.unfinished = True
        batch = page.to_arrow(columns)
        pages.unfinished = False
        yield batch


@attrs.define(slots=False, eq=False)
class SequencePlan(ReadPlan):
    """
    The pages of a batch or a scan. At their end, the leader is asked for further messages.

    A replica or a mirror may be behind the leader. A user without permission to ask the leader has
    to trust it.

    Args:
        engine: What to request.
        end: The last sequence of a scan, None for a batch.
        alone: Whether the stream has no replicas, so that its own answers are the leader's.
        known: The stream when a scan began. The scan ends with an error once another stream has
            its name. None for a batch.
    """

    engine: BatchRead
    _end: int | None = attrs.field(default=None, kw_only=True)
    _alone: bool = attrs.field(default=False, kw_only=True)
    known: StreamInfo | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        # Messages up to this time belong to the stream that is known.
        self._checked_until = None if self.known is None else self.known.ts

    def extend(self, reader: PageReader) -> list[StoredMessage]:
        """Look for messages at the leader."""
        engine = self.engine
        if (
            engine.verdict != "drained"
            or engine.reached_end
            or (self._alone and engine.from_itself)
        ):
            return []
        try:
            message = reader.first_at_leader(engine.next_request())
        except errors.PermissionDeniedError:
            message = None
        if message is None or (self._end is not None and message.sequence > self._end):
            engine.confirm_end()
            if self.known is not None:
                reader.check_same(reader.info())
            return []
        if self._end is None:
            engine.continue_at(message.sequence)
            reader.try_again(wait=engine.tries > 0)
            return []
        # A scan takes the leader's message, and continues after it.
        engine.skip(message.sequence)
        self.check(reader, [message])
        return [message]

    def check(self, reader: PageReader, messages: Sequence[StoredMessage]) -> None:
        """Raise StreamNotFoundError if these messages are those of another stream of that name."""
        # All messages of the scan were stored before it began, unless the caller gave its end.
        until = self._checked_until
        if until is not None and messages and messages[-1].timestamp > until:
            reader.check_same(reader.info())
            self._checked_until = messages[-1].timestamp


def beginning(
    sequence: int | None, start_time: dt.datetime | int | None, name: str
) -> dict[str, Any]:
    """
    Return where a :class:`BatchRead` begins, from the arguments of a public call.
    """
    check_exclusive(**{name: sequence, "start_time": start_time})
    if start_time is None:
        return {"sequence": 1 if sequence is None else whole_number(name, sequence)}
    return {"start_time": format_time(start_time, "start_time")}


def optional_number(name: str, value: int | None, least: int = 1) -> int | None:
    """Return an integer that servers accept, or None."""
    return None if value is None else whole_number(name, value, least)


def page_sizes(page: int | None, subject: str | None) -> dict[str, Any]:
    """
    Return the sizes of the pages of a :class:`BatchRead`; *page* is that of a public call.
    """
    if page is not None:
        return {"page": page}
    if subject is not None and has_wildcard(subject):
        return {"page": PAGE, "largest_page": LARGEST_PAGE}
    return {"page": PAGE}


def subject_filters(subjects: Iterable[str] | str) -> tuple[str, ...]:
    """
    Return subjects and wildcards, each once.

    Raises:
        InvalidArgumentError: There is none.
        InvalidTypeError, InvalidSubjectError: One of them is not valid.
    """
    if isinstance(subjects, str):
        subjects = (subjects,)
    elif not isinstance(subjects, Iterable):
        raise wrong_type("subjects", "strings", subjects)
    found = tuple(dict.fromkeys(validate_filter(each) for each in subjects))
    if not found:
        raise errors.InvalidArgumentError(
            "subjects is empty: give at least one subject", argument="subjects"
        )
    return found
