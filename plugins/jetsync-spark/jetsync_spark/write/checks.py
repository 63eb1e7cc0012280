"""
Check values of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync_spark.common.errors import RowError
from jetsync_spark.common.subjects import bad_token, escaped, token_text
from jetsync_spark.write.changes import ChangeError
from jetsync_spark.write.messages import HeaderError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jetsync_spark.common.subjects import StreamSubjects
    from jetsync_spark.write.invalid import InvalidRows

__all__ = ["Checks"]


class Checks:
    """
    Checks values of rows. Errors name the row.

    Args:
        subjects: The subjects of the stream.
        stream: The name of the stream.
        partition: The number of the partition.
        streams: The subjects of each stream, if there are several.
        largest: Maximum bytes of a payload.
        invalid: What replaces invalid rows. None means that they raise an error.
    """

    def __init__(
        self,
        subjects: StreamSubjects,
        stream: str,
        partition: int,
        *,
        streams: Mapping[str, StreamSubjects] | None = None,
        largest: int = 1 << 62,
        invalid: InvalidRows | None = None,
    ) -> None:
        self.subjects = subjects
        self._streams = streams or {}
        self.largest = largest
        self.invalid = invalid
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
        raise self._not_captured(self._stream, self.subjects, subject, row, column)

    def stream(self, name: object, subject: str, row: int, column: str) -> None:
        """
        Raise unless the stream that a row names captures its subject.
        """
        stream = self._streams.get(name) if isinstance(name, str) else None
        if stream is None:
            known = ", ".join(self._streams)
            what = "the stream is null" if name is None else f"the write has no stream {name}"
            raise self._error(what, row, column, f"give one of {known}, or add it to option stream")
        if not stream.takes(subject):
            cure = f"correct the column {column}, or "
            raise self._not_captured(f"{name}", stream, subject, row, column, cure)

    def token(self, value: object, row: int, column: str, *, escapes: bool) -> str:
        """
        Return a value as one token of a subject. *escapes* is whether to escape it.
        """
        if value is None:
            what = f"column {column}, which is part of the subject, is null"
            raise self._error(what, row, column, "drop such rows, or fill it")
        text = token_text(value)
        if escapes:
            text = escaped(text)
        bad = bad_token(text)
        if bad is not None:
            what = f"column {column}, which is part of the subject, {bad}"
            cure = "replace or drop such values, or escape them with {" + column + "!e}"
            raise self._error(what, row, column, cure)
        return text

    def sizes(self, sizes: Iterable[int], first: int, column: str | None) -> None:
        """
        Raise if a payload is larger than the server or the stream accepts.
        """
        for row, size in enumerate(sizes, first):
            if size > self.largest:
                raise self._error(
                    f"the payload has {size} bytes, and the server or the stream accepts "
                    f"{self.largest}",
                    row,
                    column,
                    "drop or split such rows, or raise max_payload of the server and max_msg_size "
                    "of the stream",
                )

    def bad_value(self, error: Exception, row: int, column: str | None = None) -> RowError:
        """Return the error of a row that cannot be converted to a message."""
        cure = "correct or drop such rows"
        if isinstance(error, (HeaderError, ChangeError)):
            cure = error.cure
        return self._error(str(error), row, column, cure)

    def _not_captured(  # noqa: PLR0917 - as the error names them.
        self,
        stream: str,
        subjects: StreamSubjects,
        subject: str,
        row: int,
        column: str | None,
        cure: str = "",
    ) -> RowError:
        return RowError(
            f"stream {stream} does not capture its subject",
            partition=self._partition,
            row=row,
            column=column,
            subject=subject,
            cure=f"{cure}add the subject to the stream, which has {', '.join(subjects.filters)}",
        )

    def _error(self, what: str, row: int, column: str | None, cure: str) -> RowError:
        return RowError(what, partition=self._partition, row=row, column=column, cure=cure)
