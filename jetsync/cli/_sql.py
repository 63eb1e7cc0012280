"""
The SQL of `jetsync query`: the tables that a statement names, and JSON keys as columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MOST: Final = 200
"""Keys that become columns at most. A payload may have other data as its keys."""

# Types of columns, and the types of JSON values that they take. DuckDB finds BIGINT only for
# negative integers. A column has both.
_TYPES: Final = {
    "VARCHAR": ["VARCHAR"],
    "BOOLEAN": ["BOOLEAN"],
    "BIGINT": ["BIGINT", "UBIGINT"],
    "DOUBLE": ["BIGINT", "UBIGINT", "DOUBLE"],
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


def tables(tree: Any) -> set[str]:
    """
    Return the tables that a statement names without a schema, without common table expressions.

    Args:
        tree: The statement as `json_serialize_sql` of DuckDB returns it.
    """
    named: set[str] = set()
    # Each node, and the expressions that it sees. DuckDB ignores the case of their names.
    pending: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while pending:
        node, local = pending.pop()
        if isinstance(node, list):
            pending += [(each, local) for each in node]
        elif isinstance(node, dict):
            if "cte_name" in node:
                # A recursive expression sees itself.
                local |= {node["cte_name"].lower()}
            for each in node.get("cte_map", {}).get("map", ()):
                pending.append((each["value"], local))
                local |= {each["key"].lower()}
            pending += [(each, local) for key, each in node.items() if key != "cte_map"]
            if node.get("type") == "BASE_TABLE" and not node["schema_name"]:
                name = node["table_name"]
                if name.lower() not in local:
                    named.add(name)
    return named


def columns(
    table: str, structure: Mapping[str, Iterable[str]], taken: Iterable[str]
) -> Iterator[str]:
    """
    Yield an expression with a name for each key, which reads the column `json`.

    Args:
        table: The name of the table, for errors of the expressions.
        structure: The types of the values of each key, as `json_each` of DuckDB returns them.
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


def _value(table: str, key: str, found: Iterable[str]) -> str:
    # A JSON pointer. Paths of DuckDB cannot quote all keys.
    place = literal("/" + key.replace("~", "~0").replace("/", "~1"))
    text = f"(json ->> {place})"
    values = {*found} - {"NULL"}
    kinds = [kind for kind, taken in _TYPES.items() if values and values <= {*taken}]
    if not kinds:
        return f"json -> {place}"
    kind = kinds[0]
    if kind == "VARCHAR":
        return text
    # A cast alone would round a number, and make 1 of true or of a text.
    value = f"if(json_type(json, {place}) in {_TYPES[kind]}, try_cast({text} as {kind}), null)"
    problem = literal(
        f"{table}: the key {key!r} was {kind} in the sample, so give a larger --sample or read it "
        "from the column json; it is now: "
    )
    return f"if({text} is null, null, coalesce({value}, error({problem} || {text})))"
