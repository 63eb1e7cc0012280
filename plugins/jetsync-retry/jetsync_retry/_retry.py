"""
The plugin: asked by jetsync after each attempt that failed, it answers with a wait or not at all.

Guarantees
- Nothing is stored twice. jetsync asks about an unknown outcome only where an id or a condition
  makes the stream tell a copy; where it is an id, and the copy could come there after the stream
  has forgotten it, this plugin gives up.
- No attempt is due after the budget. One that finds no connection then begins once there is one,
  as late as the operation's own time limit allows.
- Messages of a window that failed together wait equally long, and so keep their order.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync import hookimpl
from jetsync_retry._policy import Policy, call_state, kind_of
from jetsync_retry._statistics import Counters, Decision

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tenacity

    from jetsync.typing import Seconds
    from jetsync_retry._statistics import RetryStatistics

BUDGET: Final = 60.0
"""Seconds: long enough for a server to be restarted."""

ID_WINDOW: Final = 100.0
"""
Seconds: streams remember ids for two minutes unless they are configured otherwise; the rest is for
what a message takes to get there.
"""

TOGETHER: Final = 0.05
"""Seconds from one message of a window to the next, both of which failed together then."""


class Retry:
    """
    Have operations tried again that failed, where that is safe.

    One object may serve any number of clients and threads.

    Args:
        policies: What holds for which operations and errors; the first one that fits counts. None
            given is one that fits all of them.

        budget: Seconds from an operation's beginning within which its last attempt is due; for want
            of a connection it may begin later. The operation's own time limit holds besides: a
            single publish is over when its `timeout` is. By default `$JETSYNC_RETRY_BUDGET`, or 60.

        id_window: Seconds for which streams remember message ids for certain; less than their
            `duplicate_window`, which is two minutes by default.

        name: What errors and the environment call the plugin; two of them in one client need
            different names.

    Raises:
        jetsync.InvalidArgumentError, jetsync.InvalidTypeError: A value that means nothing.
        jetsync.ConfigurationError: `$JETSYNC_RETRY_BUDGET` is no number of seconds.
    """

    def __init__(
        self,
        *policies: Policy,
        budget: Seconds | None = None,
        id_window: Seconds = ID_WINDOW,
        name: str = "retry",
    ) -> None:
        for policy in policies:
            if not isinstance(policy, Policy):
                raise jetsync.InvalidTypeError(
                    f"policies must be of the class Policy, not {type(policy).__name__}",
                    argument="policies",
                )
        self.name = name
        self.policies = policies or (Policy(),)
        self.budget = budget_of(os.environ) if budget is None else _seconds("budget", budget)
        self.id_window = _seconds("id_window", id_window)
        self._counters = Counters()
        self._lock = threading.RLock()
        self._last: dict[tuple[int, int, type[Exception]], tuple[float, float]] = {}
        """The last wait of messages of windows: when it was last asked for, and how long it is."""

    def __repr__(self) -> str:
        statistics = self.statistics()
        return f"<Retry retried={statistics.retried} given_up={statistics.given_up}>"

    def statistics(self) -> RetryStatistics:
        """
        Return what was decided so far; any thread.

        What is tried again is told to all plugins besides, in a `jetsync.RetryEvent`.
        """
        return self._counters.statistics()

    @hookimpl
    def jetsync_retry(
        self, operation: jetsync.Operation, error: Exception, attempt: int
    ) -> float | None:
        """
        Return the seconds until the next attempt, or leave the error to whoever made the call.
        """
        kind = kind_of(operation)
        decision, delay = self._decide(kind, operation, error, attempt)
        self._counters.add(kind, error, decision)
        return delay if decision is Decision.RETRIED else None

    def _decide(
        self, kind: str, operation: jetsync.Operation, error: Exception, attempt: int
    ) -> tuple[Decision, float]:
        found = (each for each in self.policies if each.covers(kind, operation, error))
        policy = next(found, None)
        if policy is None:
            return Decision.NO_POLICY, 0.0
        state = call_state(operation, error, attempt)
        if kind == "window":
            delay = self._wait_together(policy, state, type(error))
        else:
            delay = wait_of(policy, state)
        state.upcoming_sleep = delay
        if policy.stop(state):
            return Decision.STOPPED, delay
        if operation.elapsed + delay > self.budget:
            return Decision.OVER_BUDGET, delay
        limit = operation.timeout or 0.0
        if kind != "window" and operation.elapsed + delay >= limit:
            return Decision.OUT_OF_TIME, delay
        if rests_on_ids(operation, error):
            # When the copy comes to the stream, at the latest. A single publish and a batch end
            # with their time limit. A message of a window has the limit for each attempt, and the
            # first one was made at most one limit before the time that has been counted.
            latest = operation.elapsed + delay + 2 * limit if kind == "window" else limit
            if latest > self.id_window:
                return Decision.IDS_TOO_OLD, delay
        return Decision.RETRIED, delay

    def _wait_together(
        self, policy: Policy, state: tenacity.RetryCallState, error: type[Exception]
    ) -> float:
        """
        Return how long a message of a window waits: as long as those beside it, which are put into
        one order by it, and no shorter than those that failed before and wait still.

        All that are judged together begin to wait once the last of them is judged, which takes a
        while where they are thousands.
        """
        key = (id(policy), state.attempt_number, error)
        now = time.monotonic()
        with self._lock:
            asked, delay = self._last.get(key, (0.0, 0.0))
            if now - asked > TOGETHER:
                # Waits that are over are of no use any more, and there may be many attempts.
                self._last = {
                    k: last for k, last in list(self._last.items()) if now < sum(last) + TOGETHER
                }
                delay = max(wait_of(policy, state), delay if key in self._last else 0.0)
            self._last[key] = (now, delay)
        return delay


def wait_of(policy: Policy, state: tenacity.RetryCallState) -> float:
    """
    Return how long the policy's strategy says to wait, in seconds.

    Raises:
        jetsync.InvalidArgumentError: It says something that is no time.
    """
    delay = float(policy.wait(state))
    if not delay >= 0:
        raise jetsync.InvalidArgumentError(
            f"{policy.wait!r} says to wait {delay} seconds", argument="wait"
        )
    return delay


def rests_on_ids(operation: jetsync.Operation, error: Exception) -> bool:
    """
    Tell whether only message ids keep another attempt from storing something twice.
    """
    if isinstance(operation, jetsync.PublishOperation) and not operation.has_message_ids:
        # It is not stored, or it expects a last sequence that no copy can meet.
        return False
    return isinstance(error, jetsync.PublishOutcomeUnknownError)


def budget_of(environment: Mapping[str, str]) -> float:
    """
    Read the budget from the environment.
    """
    text = environment.get("JETSYNC_RETRY_BUDGET", "").strip()
    if not text:
        return BUDGET
    try:
        return _seconds("budget", float(text))
    except ValueError:
        raise jetsync.ConfigurationError(
            f"JETSYNC_RETRY_BUDGET is a number of seconds, 0 or more, not {text!r}"
        ) from None


def _seconds(name: str, value: Seconds) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise jetsync.InvalidTypeError(f"{name} must be seconds, not {value!r}", argument=name)
    if not value >= 0:
        raise jetsync.InvalidArgumentError(f"{name} must be 0 or more seconds", argument=name)
    return float(value)
