"""
The age of messages when they were read.
"""

from __future__ import annotations

from dataclasses import dataclass

import jetsync

PROGRAMS = 1000
"""How many programs are counted separately. A header can have any value, and memory is limited."""

OTHERS = "(others)"
"""The name under which the messages of all other programs are counted."""


@dataclass(frozen=True)
class AgeStatistics:
    """
    The age of messages when they were read, in seconds.
    """

    count: int = 0
    total: float = 0.0
    greatest: float = 0.0

    @property
    def mean(self) -> float:
        """
        The mean age, or 0 without messages.
        """
        return self.total / self.count if self.count else 0.0


class Ages:
    """
    Count ages by the program that sent the messages. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = jetsync.interrupt_safe_lock()
        self._by_program: dict[str, AgeStatistics] = {}

    def add(self, program: str, age: float) -> None:
        """
        Count one message.
        """
        with self._lock:
            if program not in self._by_program and len(self._by_program) >= PROGRAMS:
                program = OTHERS
            before = self._by_program.get(program, AgeStatistics())
            self._by_program[program] = AgeStatistics(
                before.count + 1, before.total + age, max(before.greatest, age)
            )

    def statistics(self) -> dict[str, AgeStatistics]:
        """
        Return the ages so far, by program.
        """
        with self._lock:
            return dict(self._by_program)
