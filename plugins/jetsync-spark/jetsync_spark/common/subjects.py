"""
Subjects: which ones a stream takes, and templates that make them of columns.

No input and output.
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Final

import attrs

from jetsync_spark.common.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "StreamSubjects",
    "SubjectTemplate",
    "bad_filter",
    "bad_token",
    "is_template",
    "overlap",
    "token_text",
]

_BAD: Final = re.compile(r"[\s.*>\x00-\x1f\x7f\ud800-\udfff]")
"""What one token of a subject can not have."""

KNOWN: Final = 65536
"""Subjects that are remembered as good; most jobs write to few."""


def is_template(subject: str) -> bool:
    """
    Tell whether a subject has columns in braces.
    """
    return "{" in subject or "}" in subject


def bad_token(value: str) -> str | None:
    """
    Return what is wrong with a value as one token of a subject, None if nothing is.
    """
    if not value:
        return "is empty"
    found = _BAD.search(value)
    if found is None:
        return None
    if found[0] == ".":
        return f"has a dot: {value!r}"
    if found[0] in "*>":
        return f"has a wildcard: {value!r}"
    if found[0] >= "\ud800":
        return f"has text that is no UTF-8: {value!r}"
    return f"has a blank or a control character: {value!r}"


def bad_filter(subject: str) -> str | None:
    """
    Return what is wrong with a token of a subject with wildcards, None if nothing is.
    """
    *head, last = subject.split(".")
    tokens = [*head, *([] if last == ">" else [last])]
    return next(filter(None, (bad_token(each) for each in tokens if each != "*")), None)


def overlap(one: str, two: str) -> bool:
    """
    Tell whether there are subjects that two wildcards have in common.
    """
    ours, theirs = one.split("."), two.split(".")
    for mine, other in zip(ours, theirs, strict=False):
        if ">" in {mine, other}:
            return True
        if mine != other and "*" not in {mine, other}:
            return False
    return len(ours) == len(theirs)


def token_text(value: object) -> str:
    """
    Return a value of a column as it stands in a subject: as Arrow writes it.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@attrs.frozen
class SubjectTemplate:
    """
    A subject with columns in braces, such as ``flights.{origin}.{carrier}``.
    """

    text: str
    literals: tuple[str, ...]
    """What stands before, between and behind the columns; one more than there are columns."""

    columns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> SubjectTemplate:
        """
        Read a template.

        Raises:
            OptionError: the braces do not fit, or hold more than the name of a column.
        """
        literals: list[str] = [""]
        columns: list[str] = []
        cure = "write each column as {name}, and nothing else in braces"
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise OptionError(f"subject {text!r}: {error}", option="subject", cure=cure) from None
        for literal, column, form, conversion in parts:
            literals[-1] += literal
            if column is None:
                continue
            if not column or form or conversion or column.isdigit():
                raise OptionError(
                    f"subject {text!r} has more or less than a column in braces",
                    option="subject",
                    cure=cure,
                )
            columns.append(column)
            literals.append("")
        # A value stands for anything: the rest must be a subject around it.
        checked = "x".join(literals)
        if any(bad_token(token) for token in checked.split(".")):
            raise OptionError(
                f"subject {text!r} is no subject around its columns",
                option="subject",
                cure="give tokens with dots between them, without blanks and wildcards",
            )
        return cls(text, tuple(literals), tuple(columns))

    def fill(self, values: Sequence[str]) -> str:
        """
        Return the subject for the values of the columns, which were checked.
        """
        pieces = [self.literals[0]]
        for value, literal in zip(values, self.literals[1:], strict=True):
            pieces += (value, literal)
        return "".join(pieces)

    @property
    def pattern(self) -> str:
        """
        The wildcard of all subjects that it makes.
        """
        whole = "\x00".join(self.literals)
        return ".".join("*" if "\x00" in token else token for token in whole.split("."))


class StreamSubjects:
    """
    The subjects that a stream takes; remembers what it was asked.
    """

    def __init__(self, filters: Sequence[str]) -> None:
        self.filters = tuple(filters)
        self._tokens = [each.split(".") for each in filters]
        self.known: set[str] = set()
        """Subjects that the stream takes, as far as they were asked for."""

    def takes(self, subject: str) -> bool:
        """
        Tell whether the stream takes a subject.
        """
        if subject in self.known:
            return True
        tokens = subject.split(".")
        if any(map(bad_token, tokens)) or not any(_covers(each, tokens) for each in self._tokens):
            return False
        if len(self.known) >= KNOWN:
            self.known.clear()
        self.known.add(subject)
        return True

    def may_take(self, pattern: str) -> bool:
        """
        Tell whether the stream takes some of the subjects of a wildcard.
        """
        return any(overlap(each, pattern) for each in self.filters)

    def ledger_rooms(self) -> tuple[str, ...]:
        """
        Return what subjects of a ledger may begin with in this stream, the best first.

        A filter that says it is for a ledger is preferred to others.
        """
        found = []
        open_ended = [each for each in self._tokens if each[-1] == ">" and "*" not in each]
        open_ended.sort(key=lambda each: not any("ledger" in token.lower() for token in each))
        for each in open_ended:
            about = any("ledger" in token.lower() for token in each)
            found.append(".".join([*each[:-1], *(() if about else ("_ledger",))]))
        return tuple(found)


def _covers(tokens: Sequence[str], subject: Sequence[str]) -> bool:
    if tokens[-1] == ">":
        head = tokens[:-1]
        return len(subject) > len(head) and _covers_all(head, subject[: len(head)])
    return len(tokens) == len(subject) and _covers_all(tokens, subject)


def _covers_all(tokens: Sequence[str], subject: Sequence[str]) -> bool:
    return all(one in {"*", two} for one, two in zip(tokens, subject, strict=True))
