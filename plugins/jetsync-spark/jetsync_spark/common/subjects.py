"""
Subjects of streams, and templates that build subjects from columns.

This module does no I/O.
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import attrs

from jetsync_spark.common.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "StreamSubjects",
    "SubjectTemplate",
    "bad_filter",
    "bad_token",
    "escaped",
    "is_template",
    "overlap",
    "path_of",
    "token_text",
    "without_covered",
]

_BAD: Final = re.compile(r"[\s.*>\x00-\x1f\x7f\ud800-\udfff]")
"""Characters that a token of a subject cannot contain."""

_PART: Final = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
"""A part of a column's path. Backticks quote a name, as in SQL."""

_ESCAPED: Final = re.compile(r"[\s*>%+\x00-\x1f\x7f]")
"""Characters that are escaped, besides the dot. ``url_decode`` takes a plus sign for a space."""

ESCAPE: Final = "e"
"""The conversion of a column that is escaped."""

KNOWN: Final = 65536
"""Size of the cache of valid subjects. Most jobs write to few subjects."""


def is_template(subject: str) -> bool:
    """
    Tell whether a subject contains columns in braces.
    """
    return "{" in subject or "}" in subject


def bad_token(value: str) -> str | None:
    """
    Return why a value is not a valid token of a subject, or None if it is valid.
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
        return f"is not valid UTF-8: {value!r}"
    return f"has a space or a control character: {value!r}"


def bad_filter(subject: str) -> str | None:
    """
    Return which token makes a filter invalid, or None if the filter is valid.
    """
    *head, last = subject.split(".")
    tokens = [*head, *([] if last == ">" else [last])]
    return next(filter(None, (bad_token(each) for each in tokens if each != "*")), None)


def overlap(one: str, two: str) -> bool:
    """
    Tell whether two filters match a common subject.
    """
    ours, theirs = one.split("."), two.split(".")
    for mine, other in zip(ours, theirs, strict=False):
        if ">" in {mine, other}:
            return True
        if mine != other and "*" not in {mine, other}:
            return False
    return len(ours) == len(theirs)


def without_covered(filters: Sequence[str]) -> tuple[str, ...]:
    """
    Leave out filters that another one covers, because servers reject overlapping filters.
    """
    each_once = tuple(dict.fromkeys(filters))
    return tuple(
        one
        for one in each_once
        if not any(_is_part(one, other) for other in each_once if other != one)
    )


def token_text(value: object) -> str:
    """
    Return the text of a column's value in a subject, as Arrow formats it.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def escaped(text: str) -> str:
    """
    Return a text as a token, in which ``%`` and two digits replace each byte that is not allowed.

    SQL's ``url_decode`` returns the original text.
    """
    return _ESCAPED.sub(lambda found: quote(found[0], safe=""), text).replace(".", "%2E")


def path_of(column: str) -> tuple[str, ...]:
    """
    Return the name of a column and those of its nested fields, such as ``a.b`` or ```a.b`.c``.

    Raises:
        ValueError: A part is empty, or a backtick is unmatched.
    """
    parts: list[str] = []
    at = -1
    while at < len(column):
        part = _PART.match(column, at + 1)
        if part is None or (part.end() < len(column) and column[part.end()] != "."):
            raise ValueError(f"{column!r} is not the name of a column or of a nested field")
        parts.append(part[2] or part[1].replace("``", "`"))
        at = part.end()
    return tuple(parts)


@attrs.frozen
class SubjectTemplate:
    """
    A subject with columns in braces, such as ``flights.{origin}.{plane.model}``.
    """

    text: str
    literals: tuple[str, ...]
    """The texts before, between and after the columns."""

    columns: tuple[str, ...]
    """The columns as they are written."""

    paths: tuple[tuple[str, ...], ...]
    """The name of each column, and those of its nested fields."""

    escapes: tuple[bool, ...]
    """Whether the values of each column are escaped."""

    @classmethod
    def parse(cls, text: str) -> SubjectTemplate:
        """
        Parse a template.

        Raises:
            OptionError: A brace is unmatched, or contains more than the name of a column.
        """
        literals: list[str] = [""]
        columns: list[str] = []
        paths: list[tuple[str, ...]] = []
        escapes: list[bool] = []
        cure = (
            "write each column as {name} or {struct.field}, with !e before the closing brace to "
            "escape its values, and nothing else in braces; write {{ and }} for braces themselves"
        )
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise OptionError(f"subject {text!r}: {error}", option="subject", cure=cure) from None
        for literal, column, form, conversion in parts:
            literals[-1] += literal
            if column is None:
                continue
            if not column or form or conversion not in {None, ESCAPE} or column.isdigit():
                raise OptionError(
                    f"subject {text!r} has braces that do not contain exactly a column name",
                    option="subject",
                    cure=cure,
                )
            try:
                paths.append(path_of(column))
            except ValueError as error:
                raise OptionError(
                    f"subject {text!r}: {error}", option="subject", cure=cure
                ) from None
            columns.append(column)
            escapes.append(conversion is not None)
            literals.append("")
        # Check the literal parts with a valid token in place of each column.
        checked = "x".join(literals)
        if any(bad_token(token) for token in checked.split(".")):
            raise OptionError(
                f"subject {text!r} has an invalid token around its columns",
                option="subject",
                cure="separate tokens with dots, and do not use spaces or wildcards",
            )
        return cls(text, tuple(literals), tuple(columns), tuple(paths), tuple(escapes))

    def fill(self, values: Sequence[str]) -> str:
        """
        Return the subject for checked values of the columns.
        """
        pieces = [self.literals[0]]
        for value, literal in zip(values, self.literals[1:], strict=True):
            pieces += (value, literal)
        return "".join(pieces)

    @property
    def pattern(self) -> str:
        """
        The filter that matches all subjects of the template.
        """
        whole = "\x00".join(self.literals)
        return ".".join("*" if "\x00" in token else token for token in whole.split("."))


class StreamSubjects:
    """
    The subjects that a stream captures, with a cache.
    """

    def __init__(self, filters: Sequence[str]) -> None:
        self.filters = tuple(filters)
        self._tokens = [each.split(".") for each in filters]
        self.known: set[str] = set()
        """Subjects that were found to match."""

    def takes(self, subject: str) -> bool:
        """
        Tell whether the stream captures a subject.
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
        Tell whether the stream captures some of the subjects that a filter matches.
        """
        return any(overlap(each, pattern) for each in self.filters)

    def ledger_prefixes(self) -> tuple[str, ...]:
        """
        Return possible prefixes of ledger subjects in this stream, the best first.

        Filters with "ledger" in their name come first.
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


def _is_part(one: str, other: str) -> bool:
    """Tell whether one filter matches only subjects that the other one matches."""
    ours, theirs = one.split("."), other.split(".")
    for place, wanted in enumerate(theirs):
        if wanted == ">":
            return place < len(ours)
        if place == len(ours) or ours[place] == ">" or wanted not in {"*", ours[place]}:
            return False
    return len(ours) == len(theirs)
