"""
Tables for notebooks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from html import escape
from typing import Any, Final

import attrs

# Items of a list to show. A report may have a hundred thousand failures.
_ITEMS: Final = 20

_LEFT: Final = 'style="text-align: left; vertical-align: top"'


def html_table(model: Any) -> str:
    """
    Return the fields of an attrs object as an HTML table: what its ``repr`` shows.

    Fields that are ``None`` or empty are left out. Assign this function to ``_repr_html_``.
    """
    name = escape(type(model).__name__)
    return f"<table><caption {_LEFT}>{name}</caption>{_fields(model)}</table>"


def _fields(model: Any) -> str:
    rows = []
    for field in attrs.fields(type(model)):
        value = getattr(model, field.name)
        if not field.repr or field.name.startswith("_") or _is_missing(value):
            continue
        shown = escape(field.repr(value)) if callable(field.repr) else _cell(value)
        rows.append(_row(field.name, shown))
    return f"<tbody>{''.join(rows)}</tbody>"


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, Collection) and not value)


def _cell(value: Any) -> str:
    """Return a value as HTML. Everything but the tags of tables is escaped."""
    if attrs.has(type(value)) and hasattr(value, "_repr_html_"):
        return f"<table>{_fields(value)}</table>"
    if isinstance(value, Mapping):
        found = [_row(name, _cell(item)) for name, item in list(value.items())[:_ITEMS]]
        return f"<table><tbody>{''.join(found)}</tbody></table>{_rest(len(value))}"
    if isinstance(value, (list, tuple, frozenset)):
        return "<br>".join(map(_cell, list(value)[:_ITEMS])) + _rest(len(value))
    # The repr of an enumeration or a time is hard to read.
    return escape(str(value) if isinstance(value, (str, dt.datetime)) else repr(value))


def _row(name: object, shown: str) -> str:
    return f"<tr><th {_LEFT}>{escape(str(name))}</th><td {_LEFT}>{shown}</td></tr>"


def _rest(count: int) -> str:
    return f"<br>and {count - _ITEMS:,} more" if count > _ITEMS else ""
