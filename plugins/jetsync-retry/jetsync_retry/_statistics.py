"""
Counts of decisions.
"""

from __future__ import annotations

import enum
from collections import Counter

import attrs

import jetsync


class Decision(str, enum.Enum):
    """
    The decision after a failed attempt. The values are stable, for use as metric labels.
    """

    RETRIED = "retried"
    """The operation was retried."""

    NO_POLICY = "no_policy"
    """No policy applies to this operation and error."""

    STOPPED = "stopped"
    """The policy's `stop` ended the retries."""

    OVER_BUDGET = "over_budget"
    """The next attempt would be due after the budget."""

    OUT_OF_TIME = "out_of_time"
    """The next attempt would start after the operation's own timeout."""

    IDS_TOO_OLD = "ids_too_old"
    """
    The message may be stored, and the stream may forget its ID before the next attempt arrives.
    """


@attrs.frozen
class RetryCount:
    """
    How often the plugin made one decision about one operation and error.
    """

    operation: str
    """One of `OPERATIONS`."""

    error: str
    """The error's class."""

    decision: Decision
    """The decision."""

    count: int
    """The number of these decisions."""


@attrs.frozen
class RetryStatistics:
    """
    The decisions of a `Retry` so far.
    """

    counts: tuple[RetryCount, ...] = ()
    """Sorted by operation, error and decision."""

    @property
    def retried(self) -> int:
        """
        The number of retries.
        """
        return sum(each.count for each in self.counts if each.decision is Decision.RETRIED)

    @property
    def given_up(self) -> int:
        """
        The number of decisions against another attempt. Each raises an error to the caller, unless
        a late ack still arrives.
        """
        return sum(each.count for each in self.counts) - self.retried


class Counters:
    """
    Counts decisions. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = jetsync.interrupt_safe_lock()
        self._counts: Counter[tuple[str, str, Decision]] = Counter()

    def add(self, operation: str, error: Exception, decision: Decision) -> None:
        """
        Count one decision.
        """
        with self._lock:
            self._counts[operation, type(error).__name__, decision] += 1

    def statistics(self) -> RetryStatistics:
        """
        Return the current counts.
        """
        with self._lock:
            counts = dict(self._counts)
        return RetryStatistics(tuple(RetryCount(*key, counts[key]) for key in sorted(counts)))
