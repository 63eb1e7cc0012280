"""
The names that a group uses on the server. They are those of orbit.go.
"""

from __future__ import annotations

import re
from typing import Final

import jetsync

ELASTIC_BUCKET: Final = "elastic-consumer-groups"
STATIC_BUCKET: Final = "static-consumer-groups"

PRIORITY_GROUP: Final = "PCG"
"""The priority group of every member's consumer."""

_NAME: Final = re.compile(r"[-_=A-Za-z0-9]+")


def check_name(argument: str, name: object) -> str:
    """
    Return a name that can be part of a key, of a stream's name and of a consumer's name.

    A dot would make keys ambiguous: ``A.b.c`` could be the group ``c`` or ``b.c``.
    """
    if not isinstance(name, str):
        text = f"{argument} must be text, not {type(name).__name__}"
        raise jetsync.InvalidTypeError(text, argument=argument)
    if not _NAME.fullmatch(name):
        raise jetsync.InvalidArgumentError(
            f"{argument} {name!r} may only have letters, digits, '-', '_' and '='",
            argument=argument,
        )
    return name


def key_of(stream: str, group: str) -> str:
    """
    Return the key of a group in its bucket.
    """
    return f"{stream}.{group}"


def buffer_of(stream: str, group: str) -> str:
    """
    Return the name of the stream of an elastic group.
    """
    return f"{stream}-{group}"


def durable_of(group: str, member: str) -> str:
    """
    Return the name of the consumer of a static group's member.
    """
    return f"{group}-{member}"


def published_subject(subject: str) -> str:
    """
    Return the subject without the partition in front.
    """
    return subject.partition(".")[2] or subject
