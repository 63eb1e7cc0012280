"""
What names, versions and other settings may be. Everything is checked before a byte is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import jetsync

NAME: Final = re.compile(r"[A-Za-z0-9_-]+")

_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_PART: Final = r"(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
VERSION: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-{_PART}(?:\.{_PART})*)?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)
"""The pattern of semver.org, which the other clients use, too."""

# What servers reject, and a surrogate, which is no UTF-8.
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\ud800-\udfff]")

MOST: Final = 10_000
"""The most threads of an endpoint. More would be a mistake."""


LONGEST: Final = 1e9
"""The longest duration in seconds, about 31 years. A longer one has another unit."""


def text(name: str, value: Any) -> str:
    """
    Return a value that must be text.
    """
    if not isinstance(value, str):
        raise jetsync.InvalidTypeError(
            f"{name} must be a str, not {type(value).__name__}", argument=name
        )
    return value


def name_of(kind: str, value: Any) -> str:
    """
    Return the name of a service or an endpoint.
    """
    if NAME.fullmatch(text(kind, value)) is None:
        raise jetsync.InvalidNameError(kind, value, "use letters, digits, '-' and '_'")
    return str(value)


def version_of(value: Any) -> str:
    """
    Return a version of semver.org.
    """
    if VERSION.fullmatch(text("version", value)) is None:
        raise jetsync.InvalidArgumentError(
            f"version must be a semantic version such as 1.2.0, not {value!r}", argument="version"
        )
    return str(value)


def subject_of(value: Any, *, refused: str = "", name: str = "subject") -> str:
    """
    Return a subject or a prefix of subjects.

    Args:
        value: The subject.
        refused: The wildcards that it must not have.
        name: The name of the argument.
    """
    tokens = text(name, value).split(".")
    reason = None
    if "" in tokens:
        reason = "a token is empty"
    elif _FORBIDDEN.search(value):
        reason = "it has a space, a control character or a surrogate"
    elif wildcard := next((each for each in refused if each in tokens), None):
        reason = f"{wildcard!r} is not allowed"
    elif ">" in tokens[:-1]:
        reason = "'>' must be the last token"
    if reason is not None:
        raise jetsync.InvalidSubjectError(value, reason)
    return str(value)


def queue_of(value: Any) -> str | None:
    """
    Return the name of a queue group, or None.
    """
    if value is None:
        return None
    if not text("queue_group", value) or _FORBIDDEN.search(value):
        raise jetsync.InvalidNameError("queue group", value, "it is empty, or has a space")
    return str(value)


def metadata_of(value: Mapping[Any, Any] | None) -> dict[str, str]:
    """
    Return a copy of metadata.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise jetsync.InvalidTypeError(
            f"metadata must be a mapping of str to str, not {type(value).__name__}",
            argument="metadata",
        )
    for key, entry in value.items():
        if not (isinstance(key, str) and isinstance(entry, str)):
            raise jetsync.InvalidTypeError(
                f"metadata must be a mapping of str to str, and has {key!r}: {entry!r}",
                argument="metadata",
            )
        encodable(key, "metadata")
        encodable(entry, "metadata")
    return dict(value)


def encodable(value: str, name: str) -> str:
    """
    Return text that is valid UTF-8.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise jetsync.InvalidArgumentError(
            f"{name} must be valid UTF-8, not {value!r}", argument=name
        ) from None
    return value


def function(name: str, value: Any) -> Any:
    """
    Return something that can be called, and whose call runs its code.
    """
    if not callable(value):
        raise jetsync.InvalidTypeError(f"{name} must be a function, not {value!r}", argument=name)
    jetsync.check_function(name, value)
    return value


def count(name: str, value: Any, least: int) -> int:
    """
    Return a whole number of at least *least*.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise jetsync.InvalidTypeError(
            f"{name} must be a whole number, not {value!r}", argument=name
        )
    most = MOST if name == "threads" else 1 << 31
    if not least <= value <= most:
        limit = f"{least} or more" if value < least else f"at most {most:,}"
        raise jetsync.InvalidArgumentError(f"{name} must be {limit}, not {value}", argument=name)
    return value


def seconds(name: str, value: Any, *, zero: bool = False) -> float | None:
    """
    Return a duration in seconds, or None for no limit. With *zero*, it may be 0.
    """
    if value is None:
        return None
    if hasattr(value, "total_seconds"):
        value = value.total_seconds()
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise jetsync.InvalidTypeError(
            f"{name} must be seconds or a timedelta, not {value!r}", argument=name
        )
    if not (value > 0 or (zero and value == 0)):
        limit = "0 seconds or more" if zero else "more than 0 seconds"
        raise jetsync.InvalidArgumentError(f"{name} must be {limit}, not {value}", argument=name)
    if value > LONGEST:
        raise jetsync.InvalidArgumentError(
            f"{name} must be at most 31 years, not {value} seconds: is it in another unit?",
            argument=name,
        )
    return float(value)
