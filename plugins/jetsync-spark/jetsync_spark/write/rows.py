"""
Convert rows to messages, for ``foreachPartition`` and row writers.

Rows are converted in blocks, column by column. A Python call per row would cost more than sending
the row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Final

import jetsync
from jetsync_spark.common.errors import RowError
from jetsync_spark.common.keys import key_prefix
from jetsync_spark.common.names import find_name
from jetsync_spark.write.changes import as_change
from jetsync_spark.write.columns import OF_BUCKETS, OPTIONAL, no_field
from jetsync_spark.write.messages import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from jetsync_spark.common.subjects import SubjectTemplate
    from jetsync_spark.write.checks import Checks
    from jetsync_spark.write.columns import Columns

__all__ = ["Maker", "RowMaker", "Subjects", "made_messages", "row_messages"]

BLOCK_ROWS: Final = 512
"""Maximum rows of a block."""

BLOCK_BYTES: Final = 1 << 20
"""Maximum bytes of a block's payloads, if they are as large as the largest of the last block."""


KNOWN: Final = 65536
"""Size of the caches of checked values."""


class Subjects:
    """
    The subjects of a template, each checked once.
    """

    def __init__(self, template: SubjectTemplate, checks: Checks) -> None:
        self._template = template
        self._checks = checks
        self.known: dict[tuple[Any, ...], str] = {}

    def make(self, values: tuple[Any, ...], row: int) -> str:
        """
        Return the subject for new values.
        """
        columns, escapes = self._template.columns, self._template.escapes
        tokens = [
            self._checks.token(value, row, column, escapes=escape)
            for value, column, escape in zip(values, columns, escapes, strict=True)
        ]
        subject = self._checks.subject(self._template.fill(tokens), row, columns[0])
        if len(self.known) >= KNOWN:
            self.known.clear()
        self.known[values] = subject
        return subject


def row_messages(rows: Iterable[Any], columns: Columns, checks: Checks) -> Iterator[Any]:
    """
    Yield a message for each row.

    Args:
        rows: Rows of Spark.
        columns: The columns of the message parts. Optional ones are used if they exist.
        checks: The checks of the partition.

    Raises:
        RowError: A row cannot be converted to a message.
        OptionError: A column is missing.
    """
    return chain.from_iterable(_each_block(rows, columns, checks))


def _each_block(rows: Iterable[Any], columns: Columns, checks: Checks) -> Iterator[Iterable[Any]]:
    source = iter(rows)
    maker = None
    number, size = 0, 1
    while block := list(islice(source, size)):
        if maker is None:
            maker = RowMaker(columns, _names(block[0]), checks)
        yield maker.valid(block, number, len(block))
        number += len(block)
        # The rows of a block stay in memory. Spark passes rows in blocks that grow in the same way.
        size = min(2 * size, max(BLOCK_BYTES // max(maker.largest, 1), 1), BLOCK_ROWS)


def _names(row: Any) -> list[str]:
    if isinstance(row, dict):
        raise TypeError("rows must be rows of Spark, not dictionaries")
    return list(row.__fields__)


class Maker(ABC):
    """
    Converts blocks of rows to messages. All blocks have the same columns.

    Args:
        columns: The columns of the message parts, all of which exist.
        checks: The checks of the partition.
    """

    def __init__(self, columns: Columns, checks: Checks) -> None:
        self._columns = columns
        self._checks = checks
        self._constant: str | None = None
        self._filled: Subjects | None = None
        self._pairs: set[tuple[Any, str]] = set()
        """Pairs of a stream and a subject that it captures."""

        if columns.constant is not None:
            self._constant = checks.subject(columns.constant, 0, None)
        elif columns.template is not None:
            self._filled = Subjects(columns.template, checks)

    def valid(self, block: Any, first: int, count: int) -> Iterable[Any]:
        """
        Convert a block, in which dead letters or nothing may replace invalid rows.

        Args:
            block: The block.
            first: The number of its first row.
            count: The number of its rows.
        """
        invalid = self._checks.invalid
        if invalid is None:
            return self.messages(block, first)
        try:
            # An iterator would raise later.
            return list(self.messages(block, first))
        except RowError as error:
            if count == 1:
                values = self._row(block)
                return invalid.replace(error, values, self._columns.data, self._subject_of(values))
        half = count // 2
        return [
            *self.valid(self._part(block, 0, half), first, half),
            *self.valid(self._part(block, half, count), first + half, count - half),
        ]

    def _subject_of(self, values: Mapping[str, Any]) -> str | None:
        """Return the subject of an invalid row as text, or None if it has none."""
        columns = self._columns
        if columns.subject is None:
            return columns.constant
        value = values[columns.subject]
        if value is not None and columns.bucket is not None:
            return f"{key_prefix(columns.bucket)}{value}"
        return None if value is None else str(value)

    def messages(self, block: Any, first: int) -> Iterable[Any]:
        """Convert a block. *first* is the number of its first row."""
        columns = self._columns
        if columns.bucket is not None:
            return self._changes(block, columns.bucket, first)
        subjects = self._subjects(block, first)
        assert columns.data is not None
        payloads = self._payloads(block, columns.data, first)
        if columns.stream is not None:
            subjects = self._in_streams(block, subjects, columns.stream, first)
        if columns.plain:
            return zip(subjects, payloads, strict=False)
        parts = [
            repeat(None) if name is None else self._values(block, name)
            for name in (getattr(columns, part) for part in OPTIONAL)
        ]
        # A list, so that no row of a block with an invalid row is sent.
        return list(self._whole(zip(subjects, payloads, *parts, strict=False), first))

    def _changes(self, block: Any, bucket: str, first: int) -> Iterable[Any]:
        """Convert a block to changes of a bucket."""
        columns = self._columns
        assert columns.subject is not None
        keys = self._own_subjects(block, columns.subject, first)
        subjects = map(key_prefix(bucket).__add__, keys)
        payloads: Iterable[Any] = repeat(None)
        if columns.data is not None:
            payloads = self._payloads(block, columns.data, first)
            nulls = self._nulls(block, columns.data)
            if nulls is not None:
                pairs = zip(payloads, nulls, strict=True)
                payloads = [None if is_null else data for data, is_null in pairs]
            elif columns.plain:
                return zip(subjects, payloads, strict=False)
        parts = [
            repeat(None) if name is None else self._values(block, name)
            for name in (getattr(columns, part) for part in OF_BUCKETS)
        ]

        def change(
            subject: str, data: Any, operation: Any, ttl: Any, expected: Any
        ) -> jetsync.OutboundMessage:
            message = message_of(subject, data, None, None, ttl, expected)
            is_null, has_history = data is None, columns.has_history
            return as_change(message, operation, is_null=is_null, has_history=has_history)

        return list(self._whole(zip(subjects, payloads, *parts, strict=False), first, change))

    def _in_streams(
        self, block: Any, subjects: Iterable[str], column: str, first: int
    ) -> Iterable[str]:
        """Check that the streams of the rows capture their subjects."""
        streams = self._values(block, column)
        subjects = list(islice(subjects, len(streams)))
        known = self._pairs
        for place, pair in enumerate(zip(streams, subjects, strict=True), first):
            if pair not in known:
                self._checks.stream(*pair, place, column)
                if len(known) >= KNOWN:
                    known.clear()
                known.add(pair)
        return subjects

    def _whole(
        self,
        rows: Iterable[tuple[Any, ...]],
        first: int,
        make: Callable[..., Any] = message_of,
    ) -> Iterator[Any]:
        for number, row in enumerate(rows, first):
            try:
                yield make(*row)
            except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
                raise self._checks.bad_value(error, number) from error

    def _subjects(self, block: Any, first: int) -> Iterable[str]:
        if self._constant is not None:
            return repeat(self._constant)
        if self._filled is not None:
            return self._template_subjects(block, first)
        assert self._columns.subject is not None
        return self._own_subjects(block, self._columns.subject, first)

    def _template_subjects(self, block: Any, first: int) -> Iterable[str]:
        assert self._filled is not None
        assert self._columns.template is not None
        known, make = self._filled.known, self._filled.make
        parts = [self._leaves(block, path) for path in self._columns.template.paths]
        found = []
        for number, key in enumerate(zip(*parts, strict=True), first):
            try:
                found.append(known[key])
            except (KeyError, TypeError):
                found.append(make(key, number))
        return found

    @abstractmethod
    def _values(self, block: Any, name: str) -> Sequence[Any]:
        """Return the values of a column."""

    @abstractmethod
    def _leaves(self, block: Any, path: tuple[str, ...]) -> Sequence[Any]:
        """Return the values of a nested field. A field of a null struct is null."""

    @abstractmethod
    def _own_subjects(self, block: Any, name: str, first: int) -> Iterable[str]:
        """Return the checked subjects of a column."""

    @abstractmethod
    def _payloads(self, block: Any, name: str, first: int) -> Iterable[Any]:
        """Return the payloads of a column. Null becomes an empty payload."""

    @abstractmethod
    def _nulls(self, block: Any, name: str) -> Sequence[bool] | None:
        """Return which values of a column are null, or None if none is."""

    @abstractmethod
    def _part(self, block: Any, start: int, end: int) -> Any:
        """Return some rows of a block as a block."""

    @abstractmethod
    def _row(self, block: Any) -> dict[str, Any]:
        """Return the columns of a block with one row."""


class RowMaker(Maker):
    """
    Converts blocks of Spark's rows.
    """

    def __init__(self, columns: Columns, names: list[str], checks: Checks) -> None:
        super().__init__(columns.within(names), checks)
        self._names = names
        self.largest = 0
        """The largest payload of the last block."""

    def messages(self, block: Any, first: int) -> Iterable[Any]:
        """Convert a block of rows."""
        # Rows are tuples, but finding a field of a Row is slow.
        return super().messages(list(zip(*block, strict=True)), first)

    def _nulls(self, block: Any, name: str) -> Sequence[bool] | None:
        values = self._values(block, name)
        return [value is None for value in values] if None in values else None

    def _part(self, block: Any, start: int, end: int) -> Any:
        return block[start:end]

    def _row(self, block: Any) -> dict[str, Any]:
        return dict(zip(self._names, block[0], strict=True))

    def _values(self, block: Any, name: str) -> Sequence[Any]:
        return block[self._names.index(name)]  # type: ignore[no-any-return]

    def _leaves(self, block: Any, path: tuple[str, ...]) -> Sequence[Any]:
        values = self._values(block, path[0])
        for depth, name in enumerate(path[1:], 1):
            there = next((value for value in values if value is not None), None)
            if there is None:
                break
            fields = list(getattr(there, "__fields__", ()))
            field = find_name(name, fields, case_sensitive=self._columns.case_sensitive)
            if field is None:
                raise no_field(".".join(path[:depth]), name, fields)
            place = fields.index(field)
            values = [None if value is None else tuple(value)[place] for value in values]
        return values

    def _own_subjects(self, block: Any, name: str, first: int) -> Iterable[str]:
        subjects = self._values(block, name)
        if not self._checks.subjects.known.issuperset(subjects):
            for number, subject in enumerate(subjects, first):
                self._checks.subject(subject, number, name)
        return subjects

    def _payloads(self, block: Any, name: str, first: int) -> Iterable[Any]:
        payloads = self._values(block, name)
        kinds = {*map(type, payloads)}
        if kinds != {bytes}:
            payloads = [self._payload(value, row) for row, value in enumerate(payloads, first)]
        self.largest = max(map(len, payloads))
        if self.largest > self._checks.largest:
            self._checks.sizes(map(len, payloads), first, name)
        return payloads

    def _payload(self, value: Any, row: int) -> bytes:
        if value is None:
            return b""
        try:
            return value.encode() if isinstance(value, str) else bytes(memoryview(value))
        except (TypeError, ValueError) as error:
            raise self._checks.bad_value(error, row, self._columns.data) from error


def made_messages(rows: Iterable[Any], make: Callable[[Any], Any], checks: Checks) -> Iterator[Any]:
    """
    Yield the message that a function builds from each row.

    Raises:
        RowError: The function raised, or returned no message or one for another stream.
    """
    invalid = checks.invalid
    for number, row in enumerate(rows):
        try:
            made = _made(row, make, checks, number)
        except RowError as error:
            if invalid is None:
                raise
            yield from invalid.replace(error, _values(row), None, error.subject)
        else:
            yield made


def _made(row: Any, make: Callable[[Any], Any], checks: Checks, number: int) -> Any:
    try:
        made = make(row)
    except Exception as error:
        raise checks.bad_value(error, number) from error
    if isinstance(made, jetsync.OutboundMessage):
        subject: object = made.subject
        data: object = made.data
    elif isinstance(made, tuple) and len(made) in {2, 3}:
        subject, data = made[0], made[1]
    else:
        raise checks.bad_value(
            TypeError(
                "the function has to return an OutboundMessage, (subject, data) or "
                f"(subject, data, headers), not {type(made).__name__}"
            ),
            number,
        )
    checks.subject(subject, number, None)
    if not isinstance(data, (bytes, str, bytearray, memoryview)):
        what = f"the payload that the function returns is {type(data).__name__}"
        raise checks.bad_value(TypeError(f"{what}, neither bytes nor text"), number)
    if isinstance(data, str) and not data.isascii():
        try:
            data.encode()
        except UnicodeEncodeError as error:
            raise checks.bad_value(error, number) from error
    return made


def _values(row: Any) -> dict[str, Any]:
    """Return the columns of a row of Spark."""
    return dict(zip(getattr(row, "__fields__", ()), row, strict=False))
