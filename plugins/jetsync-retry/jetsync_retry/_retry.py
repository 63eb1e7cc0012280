"""
The plugin, which jetsync calls after each failed attempt.

Guarantees:

- Nothing is stored twice. After an unknown outcome, jetsync calls the plugin only if an ID or an
  expectation lets the stream recognise a duplicate. If an ID does, the plugin gives up before the
  stream may forget it.
- No attempt is due after the budget. An attempt without a connection starts when there is one,
  within the operation's own timeout.
- Messages of a bulk publish that failed together wait equally long, so they keep their order.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync import hookimpl
from jetsync_retry._policy import Policy, call_state
from jetsync_retry._statistics import Counters, Decision

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tenacity

    from jetsync.typing import Seconds
    from jetsync_retry._statistics import RetryStatistics

BUDGET: Final = 60.0
"""Default budget in seconds, enough to restart a server."""

ID_WINDOW: Final = 100.0
"""
Default of `id_window` in seconds. Streams remember IDs for two minutes by default. The difference
is for the time that a message needs to reach the stream.
"""

TOGETHER: Final = 0.05
"""Messages of a bulk publish failed together if at most so many seconds lie between failures."""


class Retry:
    """
    Retry failed operations if a retry is safe.

    Threads and clients may share one object.

    Args:
        policies: The first policy that matches an operation and its error applies. Without
            arguments, one policy matches everything.

        budget: Maximum seconds from the start of an operation to its last attempt. Without a
            connection, that attempt may start later. The operation's own timeout applies too. The
            default is `$JETSYNC_RETRY_BUDGET`, or 60.

        id_window: Seconds for which all streams are sure to remember message IDs. Choose less than
            the shortest `duplicate_window` of the streams, which is two minutes by default. The
            default is 100.

        name: The plugin's name in errors and `$JETSYNC_BLOCK_PLUGINS`. Two of these plugins in one
            client need different names.

    Raises:
        jetsync.InvalidArgumentError, jetsync.InvalidTypeError: A value is invalid.
        jetsync.ConfigurationError: `$JETSYNC_RETRY_BUDGET` is not a number of seconds.
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
                    f"policies must be Policy objects, not {type(policy).__name__}",
                    argument="policies",
                )
        self.name = name
        self.policies = policies or (Policy(),)
        self.budget = budget_of(os.environ) if budget is None else _seconds("budget", budget)
        self.id_window = _seconds("id_window", id_window)
        self._counters = Counters()
        self._lock = jetsync.interrupt_safe_lock()
        self._last: dict[tuple[int, int, type[Exception]], tuple[float, float]] = {}
        """The last waits of bulk publishes: when each was last used, and its seconds."""

    def __repr__(self) -> str:
        statistics = self.statistics()
        return f"<Retry retried={statistics.retried} given_up={statistics.given_up}>"

    def statistics(self) -> RetryStatistics:
        """
        Return the counts of all decisions. Thread-safe.

        In addition, all plugins receive a `jetsync.RetryEvent` for each retry. Messages of a bulk
        publish that fail together share one event.
        """
        return self._counters.statistics()

    @hookimpl
    def jetsync_retry(
        self, operation: jetsync.Operation, error: Exception, attempt: int
    ) -> float | None:
        """
        Return the seconds until the next attempt, or None to raise the error.
        """
        decision, delay = self._decide(operation, error, attempt)
        self._counters.add(operation.name, error, decision)
        return delay if decision is Decision.RETRIED else None

    def _decide(
        self, operation: jetsync.Operation, error: Exception, attempt: int
    ) -> tuple[Decision, float]:
        found = (each for each in self.policies if each.covers(operation, error))
        policy = next(found, None)
        if policy is None:
            return Decision.NO_POLICY, 0.0
        state = call_state(operation, error, attempt)
        in_bulk = isinstance(operation, jetsync.PublishOperation) and operation.window is not None
        if in_bulk:
            delay = self._wait_together(policy, state, type(error))
        else:
            delay = wait_of(policy, state)
        state.upcoming_sleep = delay
        if policy.stop(state):
            return Decision.STOPPED, delay
        if operation.elapsed + delay > self.budget:
            return Decision.OVER_BUDGET, delay
        limit = operation.timeout or 0.0
        if not in_bulk and operation.elapsed + delay >= limit:
            return Decision.OUT_OF_TIME, delay
        if rests_on_ids(operation, error):
            # The latest time at which the duplicate can reach the stream. A single publish and a
            # batch end with their timeout. A message of a bulk publish has the timeout for each
            # attempt, and the first attempt started at most one timeout before `elapsed` began to
            # count.
            latest = operation.elapsed + delay + 2 * limit if in_bulk else limit
            if latest > self.id_window:
                return Decision.IDS_TOO_OLD, delay
        return Decision.RETRIED, delay

    def _wait_together(
        self, policy: Policy, state: tenacity.RetryCallState, error: type[Exception]
    ) -> float:
        """
        Return the wait of a message of a bulk publish.

        Messages that failed together wait equally long, so that they keep their order. The wait is
        not shorter than that of messages that failed before and still wait. All of them start to
        wait after the last decision, which takes a while for thousands of messages.
        """
        key = (id(policy), state.attempt_number, error)
        now = time.monotonic()
        with self._lock:
            asked, delay = self._last.get(key, (0.0, 0.0))
            if now - asked > TOGETHER:
                # Remove waits that are over, as there is one per attempt number.
                self._last = {
                    k: last for k, last in list(self._last.items()) if now < sum(last) + TOGETHER
                }
                delay = max(wait_of(policy, state), delay if key in self._last else 0.0)
            self._last[key] = (now, delay)
        return delay


def wait_of(policy: Policy, state: tenacity.RetryCallState) -> float:
    """
    Return the seconds that the policy's strategy waits.

    Raises:
        jetsync.InvalidArgumentError: The strategy returned a negative number or NaN.
    """
    delay = float(policy.wait(state))
    if not delay >= 0:
        raise jetsync.InvalidArgumentError(
            f"the wait strategy {policy.wait!r} returned {delay} seconds", argument="wait"
        )
    return delay


def rests_on_ids(operation: jetsync.Operation, error: Exception) -> bool:
    """
    Tell whether only message IDs prevent another attempt from storing a duplicate.
    """
    if isinstance(operation, jetsync.PublishOperation) and not operation.has_message_ids:
        # It is not stored, or it expects a last sequence, which a duplicate cannot match.
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
            f"JETSYNC_RETRY_BUDGET must be 0 or more seconds, not {text!r}"
        ) from None


def _seconds(name: str, value: Seconds) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise jetsync.InvalidTypeError(f"{name} must be seconds, not {value!r}", argument=name)
    if not value >= 0:
        raise jetsync.InvalidArgumentError(f"{name} must be 0 or more seconds", argument=name)
    return float(value)
