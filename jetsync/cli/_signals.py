"""
Ctrl-C and SIGTERM while a command has something to clean up.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """
    Let SIGTERM act like Ctrl-C, so that the command cleans up.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def delayed_interrupts() -> Iterator[None]:
    """
    Delay Ctrl-C and SIGTERM until the block has ended.
    """
    arrived: list[int] = []

    def delay(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, delay) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
    if arrived:
        signal.raise_signal(arrived[0])
