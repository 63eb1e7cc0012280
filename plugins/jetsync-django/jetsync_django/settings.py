"""
What the settings of caches and task backends have in common: dicts with names in capital letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured

__all__ = ["check_names", "choice", "count", "number"]


def check_names(options: Any, known: Iterable[str], setting: str) -> Mapping[str, Any]:
    """
    Return the options if they are a dict that has only known names.

    Raises:
        ImproperlyConfigured: They are not, and *setting* names them in the text.
    """
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(f"{setting} must be a dict, not {type(options).__name__}")
    unknown = sorted(map(str, {*options} - {*known}))
    if unknown:
        raise ImproperlyConfigured(
            f"{setting} has no option {', '.join(unknown)}. The options are"
            f" {', '.join(sorted(known))}."
        )
    return options


def count(options: Mapping[str, Any], name: str, default: int, setting: str, least: int = 1) -> int:
    """
    Return an option that is a whole number of at least *least*.

    Raises:
        ImproperlyConfigured: It is not.
    """
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ImproperlyConfigured(
            f"{setting}: {name} must be a whole number of at least {least}, not {value!r}"
        )
    return value


def choice(options: Mapping[str, Any], name: str, values: tuple[str, ...], setting: str) -> str:
    """
    Return an option that is one of *values*, by default the first one.

    Raises:
        ImproperlyConfigured: It is not.
    """
    value = options.get(name, values[0])
    if value not in values:
        raise ImproperlyConfigured(
            f"{setting}: {name} must be one of {', '.join(values)}, not {value!r}"
        )
    return str(value)


def number(value: Any, name: str, setting: str, least: float) -> float:
    """
    Return an option that is a number of seconds of at least *least*.

    Raises:
        ImproperlyConfigured: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
        raise ImproperlyConfigured(
            f"{setting}: {name} must be seconds, at least {least:g}, not {value!r}"
        )
    return float(value)
