"""
Which partition a key has, and which member has a partition.

Both are those of nats-server (the subject transform ``partition``) and of orbit.go, so members in
Go and Python share a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jetsync

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["assigned_partitions", "partition"]

_OFFSET, _PRIME, _MASK = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


def partition(tokens: str | Iterable[str], n: int) -> int:
    """
    Return the partition of a key, from 0 to *n* - 1.

    It is the FNV-1a hash (32 bits) of the tokens, joined without a separator, modulo *n*.

    Args:
        tokens: The tokens of the subject that a group partitions by, in the order of its
            ``partition_by``. For a group that partitions by the whole subject: the subject.
        n: The number of partitions, ``max_members`` of the group.

    Raises:
        InvalidArgumentError: *n* is not a positive whole number.
    """
    count = whole("n", n)
    text = tokens if isinstance(tokens, str) else "".join(tokens)
    found = _OFFSET
    for byte in text.encode("utf-8", "surrogateescape"):
        found = ((found ^ byte) * _PRIME) & _MASK
    return found % count


def assigned_partitions(members: Iterable[str], n: int, member: str) -> list[int]:
    """
    Return the partitions of a member, in ascending order.

    Duplicates count once. Only the first *n* names in the order of their code points get
    partitions. Each gets ``n // len(members)`` neighbours, and the rest goes round from the first.

    Args:
        members: The names of all members.
        n: The number of partitions, ``max_members`` of the group.
        member: The member. If it is not among the first *n*, it has no partitions.

    Raises:
        InvalidArgumentError: *n* is not a positive whole number.
    """
    count = whole("n", n)
    names = sorted(set(members))[:count]
    if member not in names:
        return []
    place, each = names.index(member), count // len(names)
    own = list(range(place * each, (place + 1) * each))
    shared = len(names) * each
    return own + [number for number in range(shared, count) if number - shared == place]


def whole(name: str, value: object, least: int = 1) -> int:
    """
    Return a whole number of at least *least*.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        text = f"{name} must be a whole number, not {type(value).__name__}"
        raise jetsync.InvalidTypeError(text, argument=name)
    if value < least:
        raise jetsync.InvalidArgumentError(
            f"{name} must be at least {least}, not {value}", argument=name
        )
    return value
