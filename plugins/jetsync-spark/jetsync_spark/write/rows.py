"""
Convert rows to messages one by one, for ``foreachPartition`` and row writers.
"""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any

import jetsync
from jetsync_spark.common.errors import RowError
from jetsync_spark.common.headers import LEDGER, SERVER_PREFIX
from jetsync_spark.common.subjects import bad_token, token_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jetsync_spark.common.subjects import StreamSubjects, SubjectTemplate
    from jetsync_spark.write.columns import Columns

__all__ = ["Checks", "made_messages", "message_of", "row_messages"]


class _HeaderError(ValueError):
    """
    A header that would have an effect on the server or on readers.
    """

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.cure = cure


class Checks:
    """
    Checks values of rows. Errors name the row.
    """

    def __init__(self, subjects: StreamSubjects, stream: str, partition: int) -> None:
        self.subjects = subjects
        self._stream = stream
        self._partition = partition

    def null_subject(self, row: int, column: str | None) -> RowError:
        """Return the error of a row whose subject is null."""
        return self._error("the subject is null", row, column, "drop such rows, or give a subject")

    def subject(self, subject: object, row: int, column: str | None) -> str:
        """
        Return the subject if the stream captures it. Raise otherwise.
        """
        if subject is None:
            raise self.null_subject(row, column)
        if not isinstance(subject, str):
            what = f"the subject must be a string, not {type(subject).__name__}"
            raise self._error(what, row, column, "cast it to a string")
        if self.subjects.takes(subject):
            return subject
        bad = next(filter(None, map(bad_token, subject.split("."))), None)
        if bad is not None:
            raise self._error(f"the subject {bad}", row, column, "correct or drop such rows")
        raise RowError(
            f"stream {self._stream} does not capture its subject",
            partition=self._partition,
            row=row,
            column=column,
            subject=subject,
            cure=f"add it to the stream, which has {', '.join(self.subjects.filters)}",
        )

    def token(self, value: object, row: int, column: str) -> str:
        """
        Return a value as one token of a subject.
        """
        if value is None:
            what = f"column {column}, which is part of the subject, is null"
            raise self._error(what, row, column, "drop such rows, or fill it")
        text = token_text(value)
        bad = bad_token(text)
        if bad is not None:
            what = f"column {column}, which is part of the subject, {bad}"
            raise self._error(what, row, column, "replace or drop such values")
        return text

    def bad_value(self, error: Exception, row: int, column: str | None = None) -> RowError:
        """Return the error of a row that cannot be converted to a message."""
        cure = error.cure if isinstance(error, _HeaderError) else "correct or drop such rows"
        return self._error(str(error), row, column, cure)

    def _error(self, what: str, row: int, column: str | None, cure: str) -> RowError:
        return RowError(what, partition=self._partition, row=row, column=column, cure=cure)


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
        columns = self._template.columns
        tokens = [
            self._checks.token(value, row, column)
            for value, column in zip(values, columns, strict=True)
        ]
        subject = self._checks.subject(self._template.fill(tokens), row, columns[0])
        if len(self.known) >= 65536:
            self.known.clear()
        self.known[values] = subject
        return subject


def message_of(  # noqa: PLR0917 - the columns, in the order of Columns.
    subject: str, data: Any, headers: Any, msg_id: Any, ttl: Any, expected: Any
) -> jetsync.OutboundMessage:
    """
    Build a message from the values of a row.

    Args:
        subject: The subject.
        data: The payload. None means an empty payload.
        headers: A mapping, or pairs of name and value. A value is a string or a list of strings.
        msg_id: The message ID.
        ttl: Seconds, an interval, or text.
        expected: The expected last sequence of the subject, or 0 if it has no message.

    Raises:
        ValueError, TypeError: A value cannot be sent.
    """
    expect = None
    if expected is not None:
        expect = jetsync.Expect(last_subject_sequence=int(expected))
    if isinstance(ttl, decimal.Decimal) or (isinstance(ttl, str) and ttl.isdigit()):
        ttl = int(ttl)
    return jetsync.OutboundMessage(
        subject,
        b"" if data is None else data,
        None if headers is None else _headers(headers),
        msg_id,
        ttl,
        expect,
    )


def _headers(headers: Any) -> dict[str, list[str]] | None:
    pairs = headers.items() if isinstance(headers, dict) else headers
    found: dict[str, list[str]] = {}
    for name, values in pairs:
        if name.startswith(SERVER_PREFIX):
            raise _HeaderError(
                f"header {name} would have an effect on the server",
                "drop it, as map_filter(headers, (name, _) -> name not like 'Nats-%') does; "
                "msg_id, ttl and expected_sequence are columns, and a function given to "
                "JetStreamSink may send any header",
            )
        if name == LEDGER:
            raise _HeaderError(
                f"header {name} would make it a ledger message, which readers skip",
                "read without includeLedger, or drop the header",
            )
        # A name without values cannot be sent.
        listed = [values] if isinstance(values, str) else list(values or ())
        if None in listed:
            raise ValueError(f"header {name} is null")
        found[name] = listed
    return found or None


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
    source = iter(rows)
    first = next(source, None)
    if first is None:
        return
    names = _names(first)
    columns = columns.within(names)
    place = {part: names.index(column) for part, column in columns.named().items()}
    subject_of = _subject_maker(columns, names, checks)
    at_data = place["data"]
    if columns.plain:
        for number, row in enumerate(_with(first, source)):
            # Indexing a Row is slower than indexing a tuple.
            values = tuple(row)
            data = values[at_data]
            yield subject_of(values, number), b"" if data is None else data
        return
    others = [place.get(part) for part in ("headers", "msg_id", "ttl", "expected_sequence")]
    for number, row in enumerate(_with(first, source)):
        values = tuple(row)
        subject = subject_of(values, number)
        more = [None if at is None else values[at] for at in others]
        try:
            yield message_of(subject, values[at_data], *more)
        except (ValueError, TypeError) as error:
            raise checks.bad_value(error, number) from error


def _with(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _names(row: Any) -> Sequence[str]:
    if isinstance(row, dict):
        raise TypeError("rows must be rows of Spark, not dictionaries")
    return list(row.__fields__)


def _subject_maker(
    columns: Columns, names: Sequence[str], checks: Checks
) -> Callable[[tuple[Any, ...], int], str]:
    """
    Return a function that builds the subject from a row's values and number.
    """
    if columns.constant is not None:
        constant = checks.subject(columns.constant, 0, None)
        return lambda _values, _number: constant
    if columns.template is not None:
        places = [names.index(column) for column in columns.template.columns]
        subjects = Subjects(columns.template, checks)
        known = subjects.known

        def filled(values: tuple[Any, ...], number: int) -> str:
            key = tuple([values[at] for at in places])
            try:
                return known[key]
            except (KeyError, TypeError):
                return subjects.make(key, number)

        return filled
    column = columns.subject
    assert column is not None
    place, good = names.index(column), checks.subjects.known

    def own(values: tuple[Any, ...], number: int) -> str:
        subject = values[place]
        if subject in good:
            return subject  # type: ignore[no-any-return]
        return checks.subject(subject, number, column)

    return own


def made_messages(rows: Iterable[Any], make: Callable[[Any], Any], checks: Checks) -> Iterator[Any]:
    """
    Yield the message that a function builds from each row.

    Raises:
        RowError: The function raised, or returned no message or one for another stream.
    """
    for number, row in enumerate(rows):
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
        yield made
