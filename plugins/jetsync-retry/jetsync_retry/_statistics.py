"""
What was decided, in numbers.
"""

from __future__ import annotations

import enum
import threading
from collections import Counter

import attrs


class Decision(str, enum.Enum):
    """
    Name what came of an attempt that failed; the value is stable and fit for a metric's label.
    """

    RETRIED = "retried"
    """Another attempt was asked for."""

    NO_POLICY = "no_policy"
    """No policy is for this operation and error."""

    STOPPED = "stopped"
    """The policy's `stop` says so."""

    OVER_BUDGET = "over_budget"
    """The next attempt would be due after the budget."""

    OUT_OF_TIME = "out_of_time"
    """The next attempt would come after the operation's own time limit."""

    IDS_TOO_OLD = "ids_too_old"
    """
    It may be stored already, and the stream may forget its id before the next attempt comes there.
    """


@attrs.frozen
class RetryCount:
    """
    Say how often one thing was decided about one error of one operation.
    """

    operation: str
    """One of `OPERATIONS`."""

    error: str
    """The error's class."""

    decision: Decision
    count: int


@attrs.frozen
class RetryStatistics:
    """
    Hold what a `Retry` has decided so far.
    """

    counts: tuple[RetryCount, ...] = ()
    """Sorted by operation, error and decision."""

    @property
    def retried(self) -> int:
        """
        How many further attempts were asked for.
        """
        return sum(each.count for each in self.counts if each.decision is Decision.RETRIED)

    @property
    def given_up(self) -> int:
        """
        How many errors were left to whoever made the call.
        """
        return sum(each.count for each in self.counts) - self.retried


class Counters:
    """
    Count decisions; thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._counts: Counter[tuple[str, str, Decision]] = Counter()

    def add(self, operation: str, error: Exception, decision: Decision) -> None:
        """
        Count one decision.
        """
        with self._lock:
            self._counts[operation, type(error).__name__, decision] += 1

    def statistics(self) -> RetryStatistics:
        """
        Return the counters as they are now.
        """
        with self._lock:
            counts = dict(self._counts)
        return RetryStatistics(tuple(RetryCount(*key, counts[key]) for key in sorted(counts)))
