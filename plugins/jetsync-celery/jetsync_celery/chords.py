"""
The parts of a chord that are done: a set of parts, so that a part that ran twice counts once.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from jetsync_celery.values import Values

SIZE: Final = 8
"""Bytes that stand for a part. Two of a million parts are equal once in 36 million chords."""

CLOSED: Final = b"closed"
"""The record of a chord whose body was started."""


def part_of(task_id: str, index: int | None) -> bytes:
    """
    Return what stands for a part. One task may be in a chord several times, at different places.
    """
    return hashlib.blake2b(f"{task_id}:{index}".encode(), digest_size=SIZE).digest()


@attrs.frozen
class Parts:
    """
    The parts that are done.
    """

    done: frozenset[bytes] = frozenset()
    """The parts."""

    is_closed: bool = False
    """Whether the body was started."""

    @classmethod
    def of(cls, value: bytes | None) -> Parts:
        """Return what a record says."""
        if value == CLOSED:
            return cls(is_closed=True)
        data = value or b""
        return cls(frozenset(data[at : at + SIZE] for at in range(0, len(data), SIZE)))

    @classmethod
    def read(cls, values: Values, key: str) -> Parts:
        """Return the parts of a chord that are done."""
        return cls.of(values.get(key))

    @classmethod
    def add(cls, values: Values, key: str, part: bytes) -> Parts:
        """Count a part, unless it was counted, and return all of them."""

        def added(old: bytes | None) -> bytes | None:
            parts = cls.of(old)
            return None if parts.is_closed or part in parts.done else (old or b"") + part

        return cls.of(values.change(key, added))

    @staticmethod
    def close(values: Values, key: str) -> None:
        """Record that the body was started."""
        values.put(key, CLOSED)
