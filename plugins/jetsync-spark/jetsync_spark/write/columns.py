"""
Which column of a row becomes which part of a message.

Errors in the columns are found from the schema, before a row is read.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.names import find_name
from jetsync_spark.common.subjects import SubjectTemplate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

__all__ = ["OF_BUCKETS", "OPTIONAL", "Columns", "Types", "no_field", "types_of"]

Types: TypeAlias = "Mapping[str, str | Types]"
"""The SQL type of each column, such as ``array<string>``. A struct is a mapping of its fields."""

OPTIONAL: Final = ("headers", "msg_id", "ttl", "expected_sequence")
"""Parts of a message that need no column. Each has the name of its default column."""

OF_BUCKETS: Final = {
    "operation": "operation",
    "ttl": "ttl",
    "expected_sequence": "expected_revision",
}
"""Parts of a change of a bucket that need no column, and their columns."""

_WHOLE: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_HEADERS: Final = frozenset(
    {"map<string,array<string>>", "map<string,string>"}
    # The type of Kafka's source.
    | {"array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"}
)

_TYPES: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "subject": (frozenset({"string"}), "a string"),
    "data": (frozenset({"binary", "string"}), "binary or a string"),
    "headers": (
        _HEADERS,
        (
            "map<string,array<string>>, map<string,string> or Kafka's "
            "array<struct<key:string,value:binary>>"
        ),
    ),
    "msg_id": (frozenset({"string"}), "a string"),
    "stream": (frozenset({"string"}), "a string"),
    "operation": (frozenset({"string"}), "a string: PUT, DEL or PURGE"),
    "ttl": (
        _WHOLE | {"string", "float", "double"},
        "seconds as a number, an interval, or a string such as 'never'",
    ),
    "expected_sequence": (_WHOLE, "a whole number: bigint or decimal(20,0)"),
}
PARTS: Final = ("subject", "data", *OPTIONAL, "operation", "stream")
"""All parts of a message that come from a column."""

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
    data: str | None = "data"
    """Column of the payload. None if the rows only delete keys of a bucket."""

    headers: str | None = None
    msg_id: str | None = None
    ttl: str | None = None
    expected_sequence: str | None = None
    stream: str | None = None
    """Column of the stream that has to store the row."""

    many_streams: bool = False
    """Whether rows go to several streams, so that they may have a column ``stream``."""

    case_sensitive: bool = False
    """Whether names of columns have to match exactly."""

    bucket: str | None = None
    """The bucket that the rows change. The subject of a row is then its key."""

    operation: str | None = None
    """Column that tells what a row does to its key."""

    has_history: bool = False
    """Whether the bucket keeps several revisions of a key."""

    @property
    def plain(self) -> bool:
        """Whether messages have only a subject and a payload."""
        return not any(getattr(self, part) for part in (*OPTIONAL, "operation"))

    def named(self) -> dict[str, str]:
        """
        Return the column of each part, without the columns of the template.
        """
        parts = {part: getattr(self, part) for part in PARTS}
        return {part: column for part, column in parts.items() if column is not None}

    def used(self) -> list[str]:
        """
        Return all columns that are used.
        """
        paths = self.template.paths if self.template else ()
        return [*self.named().values(), *(path[0] for path in paths)]

    def within(self, there: Iterable[str] | Types) -> Columns:
        """
        Find the columns, and add the optional ones that exist under their default names.

        Args:
            there: The columns of the rows. With their types, nested fields are found, too.

        Raises:
            OptionError: A required column is missing, or several could be meant.
        """
        names = list(there)
        if self.bucket is not None and self._is_without_values(names):
            return attrs.evolve(self, data=None).within(there)
        found: dict[str, Any] = {
            part: self._found(column, names) for part, column in self.named().items()
        }
        template = self.template
        if template is not None:
            types = there if isinstance(there, Mapping) else None
            paths = [
                # A column whose name has a dot needs no backticks, unless a struct could be meant.
                (column,) if column in names else self._nested(column, path, names, types)
                for column, path in zip(template.columns, template.paths, strict=True)
            ]
            template = attrs.evolve(template, paths=tuple(paths))
        columns = attrs.evolve(self, template=template, **found)
        added: dict[str, Any] = {}
        for part, default in self._defaults().items():
            name = find_name(default, names, case_sensitive=self.case_sensitive)
            if getattr(self, part) is None and name is not None and name not in columns.used():
                added[part] = name
        return attrs.evolve(columns, **added)

    def _defaults(self) -> Mapping[str, str]:
        """Return the default columns of the optional parts."""
        if self.bucket is not None:
            return OF_BUCKETS
        parts = (*OPTIONAL, "stream") if self.many_streams else OPTIONAL
        return {part: part for part in parts}

    def _is_without_values(self, names: list[str]) -> bool:
        """Return whether the rows have operations, but no values."""
        operation = self.operation or OF_BUCKETS["operation"]
        has = [
            find_name(name, names, case_sensitive=self.case_sensitive) is not None
            for name in (self.data, operation)
            if name is not None
        ]
        return has == [False, True]

    def _found(self, name: str, names: list[str]) -> str:
        found = find_name(name, names, case_sensitive=self.case_sensitive)
        if found is None:
            raise _missing(name, self, names)
        return found

    def _nested(
        self, column: str, path: tuple[str, ...], names: list[str], types: Types | None
    ) -> tuple[str, ...]:
        """Return a path of existing names."""
        root = find_name(path[0], names, case_sensitive=self.case_sensitive)
        if root is None:
            raise _missing(column, self, names)
        found = [root]
        if types is None:
            return (root, *path[1:])
        inner = types[root]
        for name in path[1:]:
            fields = inner if isinstance(inner, Mapping) else {}
            field = find_name(name, fields, case_sensitive=self.case_sensitive)
            if field is None:
                raise no_field(".".join(found), name, fields)
            found.append(field)
            inner = fields[field]
        return tuple(found)

    def check_types(self, types: Types) -> None:
        """
        Check the types of the columns.

        Args:
            types: The types of the columns.

        Raises:
            OptionError: A column has the wrong type.
        """
        for part, column in self.named().items():
            kind = _text_of(types[column])
            allowed, said = _TYPES[part]
            interval = part == "ttl" and kind.startswith("interval day")
            decimal = part in {"expected_sequence", "ttl"} and kind.startswith("decimal")
            if kind in allowed or interval or (decimal and kind.endswith(",0)")):
                continue
            cure = f"make it {said}"
            if part == "data":
                cure += ", for example with to_json(struct('*'))"
            raise OptionError(f"column {column} has the type {kind}", option=column, cure=cure)
        for path in self.template.paths if self.template else ():
            inner: str | Types = types
            for name in path:
                assert not isinstance(inner, str)
                inner = inner[name]
            kind, column = _text_of(inner), ".".join(path)
            if kind not in _IN_SUBJECT:
                raise OptionError(
                    f"column {column} of the subject has the type {kind}",
                    option=column,
                    cure="cast it to a string of one token"
                    if isinstance(inner, str)
                    else f"name one of its fields: {', '.join(inner)}",
                )

    def check_known(self, there: Iterable[str]) -> None:
        """
        Reject columns that would not be written.

        Raises:
            OptionError: There are such columns.
        """
        used = set(self.used())
        unknown = [name for name in there if name not in used]
        if not unknown:
            return
        them = "them" if len(unknown) > 1 else "it"
        if self.bucket is not None:
            hint = ""
            if "revision" in unknown:
                hint = (
                    "rename revision to expected_revision to change only keys that still have that "
                    "revision, or "
                )
            where = "value, for example with to_json(struct(...))"
            known = f"key, value, {', '.join(OF_BUCKETS.values())}"
        else:
            hint = self._hint_for(unknown[0], used)
            where = "data"
            known = f"subject, data, {', '.join(OPTIONAL)} and the columns in the option subject"
        raise OptionError(
            f"there is no use for column{'s' * (len(unknown) > 1)} {', '.join(unknown)}",
            option=unknown[0],
            cure=f"{hint}drop {them}, or put {them} into {where}; known are {known}",
        )

    def _hint_for(self, unknown: str, used: set[str]) -> str:
        """Return what may be meant by a column that would not be written to a stream."""
        if self.subject is None and unknown.lower() == "subject":
            how = "from a template" if self.template else "for all rows"
            raise OptionError(
                f"there is a column {unknown}, and the option subject gives a subject {how}",
                option=unknown,
                cure="leave out the option, or drop the column",
            )
        if unknown == "stream":
            return "name the streams of all rows in the option stream, as in A,B, or "
        near = difflib.get_close_matches(unknown, ["subject", "data", *OPTIONAL], 1)
        return f"did you mean {near[0]}? " if near and near[0] not in used else ""


def no_field(column: str, name: str, fields: Iterable[str]) -> OptionError:
    """
    Return the error of a template that names a missing field of a struct.
    """
    known = ", ".join(fields)
    return OptionError(
        f"column {column} has no field {name}",
        option="subject",
        cure=f"its fields are {known}" if known else "it is not a struct",
    )


def _text_of(kind: str | Types) -> str:
    return kind.lower() if isinstance(kind, str) else "struct"


def _missing(name: str, columns: Columns, there: Iterable[str]) -> OptionError:
    cure = f"the columns are {', '.join(sorted(there)) or 'none'}"
    if columns.bucket is not None and name in {columns.subject, columns.data}:
        cure += f"; add it with selectExpr, as in concat_ws('.', a, b) as {name}"
        if name == columns.data:
            cure = cure.replace("concat_ws('.', a, b)", "to_json(struct(a, b))")
    elif name == columns.subject:
        cure += '; give another one, a template with {braces}, or add it with lit("...")'
    elif name == columns.data:
        cure += "; name the column of the payload, or add one with to_json(struct('*'))"
    return OptionError(f"there is no column {name}", option=name, cure=cure)


def types_of(schema: Any) -> dict[str, str | Types]:
    """
    Return the type of each column of a Spark schema.

    Raises:
        OptionError: Two columns have the same name.
    """
    types = {field.name: _type_of(field.dataType) for field in schema.fields}
    if len(types) < len(schema.fields):
        seen = [field.name for field in schema.fields]
        twice = next(name for name in seen if seen.count(name) > 1)
        raise OptionError(
            f"two columns are named {twice}", option=twice, cure="rename or drop one of them"
        )
    return types


def _type_of(kind: Any) -> str | Types:
    if kind.typeName() == "struct":
        return {field.name: _type_of(field.dataType) for field in kind.fields}
    return str(kind.simpleString())
