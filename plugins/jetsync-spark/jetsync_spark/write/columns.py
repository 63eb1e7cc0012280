"""
Which column of a row becomes which part of a message.

Errors in the columns are found from the schema, before a row is read.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.subjects import SubjectTemplate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["OPTIONAL", "Columns"]

OPTIONAL: Final = ("headers", "msg_id", "ttl", "expected_sequence")
"""Parts of a message that need no column. Each has the name of its default column."""

_WHOLE: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_HEADERS: Final = frozenset({"map<string,array<string>>", "map<string,string>"})

_TYPES: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "subject": (frozenset({"string"}), "a string"),
    "data": (frozenset({"binary", "string"}), "binary or a string"),
    "headers": (_HEADERS, "map<string,array<string>> or map<string,string>"),
    "msg_id": (frozenset({"string"}), "a string"),
    "ttl": (
        _WHOLE | {"string", "float", "double"},
        "seconds as a number, an interval, or a string such as 'never'",
    ),
    "expected_sequence": (_WHOLE, "a whole number: bigint or decimal(20,0)"),
}
_IN_SUBJECT: Final = _WHOLE | {"string", "boolean", "date"}
"""Types of columns that a subject template may contain."""


@attrs.frozen(kw_only=True)
class Columns:
    """
    The columns that messages are built from.
    """

    subject: str | None = "subject"
    """Column of the subject. None if a template or constant defines it."""

    template: SubjectTemplate | None = None
    constant: str | None = None
    data: str = "data"
    headers: str | None = None
    msg_id: str | None = None
    ttl: str | None = None
    expected_sequence: str | None = None

    @property
    def plain(self) -> bool:
        """Whether messages have only a subject and a payload."""
        return not any(getattr(self, part) for part in OPTIONAL)

    def named(self) -> dict[str, str]:
        """
        Return the column of each part, without the columns of the template.
        """
        parts = {part: getattr(self, part) for part in ("subject", "data", *OPTIONAL)}
        return {part: column for part, column in parts.items() if column is not None}

    def used(self) -> list[str]:
        """
        Return all columns that are used.
        """
        return [*self.named().values(), *(self.template.columns if self.template else ())]

    def within(self, there: Iterable[str]) -> Columns:
        """
        Add the optional columns that exist under their default names.

        Args:
            there: The columns of the rows.

        Raises:
            OptionError: A required column is missing.
        """
        found = set(there)
        added: dict[str, Any] = {
            part: part
            for part in OPTIONAL
            if getattr(self, part) is None and part in found and part not in self.used()
        }
        columns = attrs.evolve(self, **added)
        for name in columns.used():
            if name not in found:
                raise _missing(name, columns, found)
        return columns

    def check_types(self, types: Mapping[str, str]) -> None:
        """
        Check the types of the columns.

        Args:
            types: The SQL type of each column, such as ``array<string>``.

        Raises:
            OptionError: A column has the wrong type.
        """
        for part, column in self.named().items():
            kind = types[column].lower()
            allowed, said = _TYPES[part]
            interval = part == "ttl" and kind.startswith("interval day")
            decimal = part in {"expected_sequence", "ttl"} and kind.startswith("decimal")
            if kind in allowed or interval or (decimal and kind.endswith(",0)")):
                continue
            cure = f"make it {said}"
            if part == "data":
                cure += ", for example with to_json(struct('*'))"
            raise OptionError(f"column {column} has the type {kind}", option=column, cure=cure)
        for column in self.template.columns if self.template else ():
            kind = types[column].lower()
            if kind not in _IN_SUBJECT:
                raise OptionError(
                    f"column {column} of the subject has the type {kind}",
                    option=column,
                    cure="cast it to a string of one token",
                )

    def check_known(self, there: Iterable[str]) -> None:
        """
        Reject columns that would not be written.

        Raises:
            OptionError: There are such columns.
        """
        used = set(self.used())
        unknown = [name for name in there if name not in used]
        if unknown:
            near = difflib.get_close_matches(unknown[0], ["subject", "data", *OPTIONAL], 1)
            hint = f"did you mean {near[0]}? " if near and near[0] not in used else ""
            raise OptionError(
                f"there is no use for column{'s' * (len(unknown) > 1)} {', '.join(unknown)}",
                option=unknown[0],
                cure=f"{hint}drop them, or put them into data; known are subject, data, "
                f"{', '.join(OPTIONAL)} and the columns in the option subject",
            )


def _missing(name: str, columns: Columns, there: set[str]) -> OptionError:
    cure = f"the columns are {', '.join(sorted(there)) or 'none'}"
    if name == columns.subject:
        cure += '; give another one, a template with {braces}, or add it with lit("...")'
    elif name == columns.data:
        cure += "; name the column of the payload, or add one with to_json(struct('*'))"
    return OptionError(f"there is no column {name}", option=name, cure=cure)


def types_of(schema: Any) -> dict[str, str]:
    """
    Return the type of each column of a Spark schema.

    Raises:
        OptionError: Two columns have the same name.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if len(types) < len(schema.fields):
        seen = [field.name for field in schema.fields]
        twice = next(name for name in seen if seen.count(name) > 1)
        raise OptionError(
            f"two columns are named {twice}", option=twice, cure="rename or drop one of them"
        )
    return types
