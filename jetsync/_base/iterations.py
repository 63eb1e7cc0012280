"""
Iterators that only one thread at a time may advance.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeVar

from jetsync.errors import ConflictingUseError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

T = TypeVar("T")


def one_at_a_time(running: Iterator[T], what: str) -> Generator[T, None, None]:
    """
    Yield the items of a generator, or raise if another call is running it.

    Dropping the result does not close the generator.

    Args:
        running: The generator.
        what: The kind of object that is iterated over, for the error.

    Raises:
        ConflictingUseError: Another thread is running it, or this is a signal handler that
            interrupted it.
    """
    try:
        # A plain `yield from running` would close `running` when this generator is closed.
        yield from itertools.chain(running)
    except ValueError as error:
        # The interpreter raises this without running the generator, so no frame follows this one.
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        raise ConflictingUseError(
            f"another call already waits for a message of this {what}"
        ) from None
