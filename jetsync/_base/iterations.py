"""
Iterations that one thread at a time may run.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeVar

from jetsync.errors import ConflictingUseError

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["one_at_a_time"]

T = TypeVar("T")


def one_at_a_time(running: Generator[T, None, None], what: str) -> Generator[T, None, None]:
    """
    Yield from a generator that other threads may run too.

    Dropping the result does not close the generator.

    Args:
        running: The generator.
        what: What it iterates over, for the error.

    Raises:
        ConflictingUseError: Another thread, or the code below this signal handler, is running it.
    """
    try:
        # `yield from` would close the generator itself together with this one.
        yield from itertools.chain(running)
    except ValueError as error:
        # The interpreter raises this before any step of the generator.
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        raise ConflictingUseError(
            f"another call already waits for a message of this {what}"
        ) from None
