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
"""Begins the record of a chord whose body was started. Parts that return after that are kept behind
it, because the same signature may be applied again."""


def part_of(task_id: str, index: int | None) -> bytes:
    """
    Return what stands for a part. One task may be in a chord several times, at different places.
    """
    return hashlib.blake2b(f"{task_id}:{index}".encode(), digest_size=SIZE).digest()


def name_of_part(part: bytes, index: int | None) -> str:
    """
    Return the name of a part, which sorts by its place in the header; last if it has none.
    """
    place = "z" if index is None else f"{index:010d}"
    return f"{place}-{part.hex()}"


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
        data = value or b""
        is_closed = data.startswith(CLOSED)
        data = data.removeprefix(CLOSED)
        parts = frozenset(data[at : at + SIZE] for at in range(0, len(data), SIZE))
        return cls(parts, is_closed)

    @classmethod
    def read(cls, values: Values, key: str) -> Parts:
        """Return the parts of a chord that are done."""
        return cls.of(values.get(key))

    @classmethod
    def add(cls, values: Values, key: str, part: bytes) -> Parts:
        """Count a part, unless it was counted, and return all of them."""

        def added(old: bytes | None) -> bytes | None:
            return None if part in cls.of(old).done else (old or b"") + part

        return cls.of(values.change(key, added))

    @staticmethod
    def close(values: Values, key: str) -> None:
        """Record that the body was started."""
        values.put(key, CLOSED)

    @staticmethod
    def reopen(values: Values, key: str) -> None:
        """Forget that the body was started."""

        def opened(old: bytes | None) -> bytes | None:
            return old.removeprefix(CLOSED) if old and old.startswith(CLOSED) else None

        values.change(key, opened)
