"""
The SQL of `jetsync query`: the tables that a statement names, and JSON keys as columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MOST: Final = 200
"""Keys that become columns at most. A payload may have other data as its keys."""

# Each integer that DuckDB finds is signed here, because a later one may be negative.
_TYPES: Final = {
    "BIGINT": "BIGINT",
    "UBIGINT": "BIGINT",
    "DOUBLE": "DOUBLE",
    "BOOLEAN": "BOOLEAN",
    "VARCHAR": "VARCHAR",
}


def identifier(name: str) -> str:
    """
    Return a name as SQL.
    """
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """
    Return a text as SQL.
    """
    return "'" + text.replace("'", "''") + "'"


def tables(tree: Any) -> tuple[set[str], set[str]]:
    """
    Return the tables that a statement names without a schema, and its common table expressions.

    Args:
        tree: The statement as `json_serialize_sql` of DuckDB returns it.
    """
    named: set[str] = set()
    local: set[str] = set()
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            pending += node.values()
            if node.get("type") == "BASE_TABLE" and not node["schema_name"]:
                named.add(node["table_name"])
            if "cte_map" in node:
                local |= {each["key"] for each in node["cte_map"]["map"]}
    return named, local


def columns(table: str, structure: Mapping[str, Any], taken: Iterable[str]) -> Iterator[str]:
    """
    Yield an expression with a name for each key, which reads the column `json`.

    Args:
        table: The name of the table, for errors of the expressions.
        structure: The types of the keys, as `json_group_structure` of DuckDB returns them.
        taken: The names of the other columns.
    """
    names = {*taken}
    # SQL has no text with this character.
    keys = [key for key in structure if "\0" not in key]
    for key in keys[:MOST]:
        # DuckDB ignores the case of names, and none is empty.
        name = key or "json_"
        while name.lower() in names:
            name = f"json_{name}"
        names.add(name.lower())
        yield f"{_value(table, key, structure[key])} as {identifier(name)}"


def _value(table: str, key: str, found: Any) -> str:
    # A JSON pointer. Paths of DuckDB cannot quote all keys.
    place = literal("/" + key.replace("~", "~0").replace("/", "~1"))
    kind = _TYPES.get(found) if isinstance(found, str) else None
    if kind is None:
        return f"json -> {place}"
    text = f"(json ->> {place})"
    if kind == "VARCHAR":
        return text
    value = f"try_cast({text} as {kind})"
    if kind == "BIGINT":
        # The cast would round.
        value = f"if(json_type(json, {place}) = 'DOUBLE', null, {value})"
    problem = literal(f"{table}: the key {key!r} was {kind} in the sample, and is now: ")
    return f"if({text} is null, null, coalesce({value}, error({problem} || {text})))"
