"""
Ctrl-C and the signals that end a command.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

ENDS: Final = (signal.SIGTERM,) if sys.platform == "win32" else (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command: from supervisors, and from a terminal that is closed."""

INTERRUPTS: Final = (signal.SIGINT, *ENDS)


@contextlib.contextmanager
def ends_interrupt() -> Iterator[None]:
    """
    Let SIGTERM and SIGHUP act like Ctrl-C, so that a command cleans up: half a stream that it
    restores would look complete.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # `nohup` lets a command ignore SIGHUP.
    numbers = [each for each in ENDS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def delayed_interrupts() -> Iterator[None]:
    """
    Delay Ctrl-C, SIGTERM and SIGHUP until the block has ended.
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
