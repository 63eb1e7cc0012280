"""
Counts of the rows that a task has written.
"""

from __future__ import annotations

import attrs

__all__ = ["Written"]


@attrs.define
class Written:
    """
    Counts of one task.
    """

    partition: int = 0
    rows: int = 0
    """Rows that the task received."""

    stored: int = 0
    """Messages that it stored."""

    duplicates: int = 0
    """Messages that the stream already had, by their ID."""

    skipped: int = 0
    """Rows that an earlier run had stored, according to the ledger."""

    invalid: int = 0
    """Rows that cannot be stored, which were left out or stored as dead letters."""

    first_sequence: int | None = None
    last_sequence: int | None = None

    def note(self, count: int, first: int | None, last: int | None, duplicates: int = 0) -> None:
        """
        Count stored messages.
        """
        self.stored += count - duplicates
        self.duplicates += duplicates
        if first is not None and (self.first_sequence is None or first < self.first_sequence):
            self.first_sequence = first
        if last is not None and (self.last_sequence is None or last > self.last_sequence):
            self.last_sequence = last
