"""
Policies: their selection, their waits and their ends, without a server.
"""

from __future__ import annotations

import types

import attrs
import pytest
import tenacity

import jetsync
from jetsync_retry import OPERATIONS, Decision, Policy, Retry, RetryCount

SINGLE = jetsync.PublishOperation(subject="a", timeout=30.0)
IN_BULK = jetsync.PublishOperation(name="publish_many", subject="a", timeout=5.0, window=4096)
IN_PUBLISHER = attrs.evolve(IN_BULK, name="publisher")
BATCH = jetsync.BatchCommitOperation(batch_id="b", size=2, timeout=30.0)
REFUSED = jetsync.NoStreamResponseError("a", attempts=1)
UNKNOWN = jetsync.PublishOutcomeUnknownError("a", msg_id="1")


def with_ids(operation, elapsed=0.0):
    """
    Return the operation as one of messages with ids that began *elapsed* seconds ago.
    """
    return attrs.evolve(operation, elapsed=elapsed, has_message_ids=True)


def after(operation, elapsed):
    """
    Return the operation as one that began *elapsed* seconds ago.
    """
    return attrs.evolve(operation, elapsed=elapsed)


def decisions(retry):
    """
    Return the decisions, in order of the names.
    """
    return [count.decision for count in retry.statistics().counts]


class TestWhichPolicy:
    @pytest.mark.parametrize(
        ("operation", "name"),
        [
            (SINGLE, "publish"),
            (IN_BULK, "publish_many"),
            (IN_PUBLISHER, "publisher"),
            (BATCH, "batch_commit"),
        ],
    )
    def test_by_operation(self, operation, name):
        """
        A single publish, a message of a call or of a publisher, and a batch have own policies.
        """
        retry = Retry(Policy(operations=name, wait=0))

        assert retry.jetsync_retry(operation, REFUSED, 1) == 0.0
        for other in {SINGLE, IN_BULK, IN_PUBLISHER, BATCH} - {operation}:
            assert retry.jetsync_retry(other, REFUSED, 1) is None
        assert Decision.NO_POLICY in decisions(retry)

    def test_by_class_of_error(self):
        """
        Subclasses match, and the first matching policy applies.
        """
        retry = Retry(
            Policy(errors=jetsync.NoStreamResponseError, wait=1.0),
            Policy(errors=(jetsync.PublishError, jetsync.TransportError), wait=2.0),
        )

        assert retry.jetsync_retry(SINGLE, REFUSED, 1) == 1.0
        assert retry.jetsync_retry(with_ids(SINGLE), UNKNOWN, 1) == 2.0
        assert retry.jetsync_retry(BATCH, jetsync.ConnectionLostError(), 1) == 2.0
        assert retry.jetsync_retry(BATCH, jetsync.TooManyInflightError(), 1) is None

    def test_by_a_condition(self):
        """
        A policy can have any condition.
        """
        orders = Policy(when=lambda operation, error: operation.subject == "a", wait=0)
        other = jetsync.PublishOperation(subject="b", timeout=1.0)

        assert Retry(orders).jetsync_retry(SINGLE, REFUSED, 1) == 0.0
        assert Retry(orders).jetsync_retry(other, REFUSED, 1) is None

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("operations", "fetch"),
            ("operations", ()),
            ("operations", 5),
            ("operations", [5]),
            ("errors", None),
            ("errors", []),
            ("when", 5),
            ("errors", ValueError("an error, not its class")),
            ("errors", [int]),
            ("wait", -1),
            ("wait", float("nan")),
            ("wait", "soon"),
            ("stop", 0),
            ("stop", None),
        ],
    )
    def test_invalid_policies(self, field, value):
        """
        An invalid policy is an error when it is made.
        """
        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)) as caught:
            Policy(**{field: value})
        assert caught.value.argument == field


class TestWait:
    def test_the_default_doubles_and_is_jittered(self):
        """
        Waits differ, grow, and never exceed two seconds.
        """
        retry = Retry(budget=1e9)
        waits = {
            attempt: [retry.jetsync_retry(SINGLE, REFUSED, attempt) for _ in range(200)]
            for attempt in (1, 3, 20)
        }

        assert all(len(set(each)) > 100 for each in waits.values())
        assert max(waits[1]) <= 0.05 < max(waits[3]) <= 0.2 < max(waits[20]) <= 2.0

    def test_strategies_of_tenacity(self):
        """
        Strategies of tenacity get the attempt, the error, the elapsed time and the operation.
        """
        seen = []

        def look(retry_state):
            seen.append(
                (retry_state.attempt_number, retry_state.outcome.exception(), retry_state.args)
            )
            return round(retry_state.seconds_since_start, 3)

        retry = Retry(Policy(wait=tenacity.wait_fixed(1) + look))
        operation = after(SINGLE, 2.5)

        assert retry.jetsync_retry(operation, REFUSED, 3) == 3.5
        assert seen == [(3, REFUSED, (operation,))]

    def test_messages_of_a_call_wait_together(self):
        """
        Messages of a call that failed together wait equally long; each attempt has its own wait.
        """
        retry = Retry(Policy(wait=tenacity.wait_random(5, 10)), budget=60)

        waits = [retry.jetsync_retry(IN_BULK, REFUSED, 1) for _ in range(100)]
        others = [retry.jetsync_retry(IN_BULK, REFUSED, 2) for _ in range(100)]

        assert len(set(waits)) <= 2  # more than one only if the machine was paused meanwhile
        assert waits[0] != others[0]

    def test_messages_of_a_call_stay_in_order_however_long_they_are_judged(self, monkeypatch):
        """
        A wait is shared until no message has failed for a moment. The next one is not shorter while
        the last one lasts.
        """
        clock = types.SimpleNamespace(monotonic=lambda: now)
        monkeypatch.setattr("jetsync_retry._retry.time", clock)
        waits = iter([1.0, 0.1, 3.0, 0.2])
        retry = Retry(Policy(wait=lambda state: next(waits)), budget=60)
        now, judged = 100.0, []

        for pause in [0.0, *[0.02] * 20, 0.8, 0.02, 0.8, 3.2]:
            now += pause
            judged.append(retry.jetsync_retry(IN_BULK, REFUSED, 1))

        assert judged == [1.0] * 23 + [3.0, 0.2]

    @pytest.mark.parametrize("seconds", [-1.0, float("nan")])
    def test_a_strategy_that_returns_no_time(self, seconds):
        """
        The error names the strategy, and there is no retry without a wait.
        """
        retry = Retry(Policy(wait=lambda state: seconds))

        with pytest.raises(jetsync.InvalidArgumentError, match="seconds"):
            retry.jetsync_retry(SINGLE, REFUSED, 1)


class TestEnd:
    def test_after_a_number_of_attempts(self):
        """
        The number includes the first attempt, so 1 means no retry.
        """
        retry = Retry(Policy(stop=3, wait=0))
        never = Retry(Policy(stop=1))

        answers = [retry.jetsync_retry(SINGLE, REFUSED, attempt) for attempt in (1, 2, 3)]
        assert answers == [0.0, 0.0, None]
        assert never.jetsync_retry(SINGLE, REFUSED, 1) is None
        assert decisions(never) == [Decision.STOPPED]

    def test_by_a_strategy_of_tenacity(self):
        """
        A strategy may use the next wait.
        """
        retry = Retry(Policy(stop=tenacity.stop_before_delay(3), wait=1))

        assert retry.jetsync_retry(after(SINGLE, 1.5), REFUSED, 5) == 1.0
        assert retry.jetsync_retry(after(SINGLE, 2.5), REFUSED, 5) is None

    @pytest.mark.parametrize("operation", [SINGLE, IN_BULK])
    def test_at_the_end_of_the_budget(self, operation):
        """
        No attempt is due after the budget, however many there were.
        """
        retry = Retry(Policy(wait=1), budget=10)

        assert retry.jetsync_retry(after(operation, 8.9), REFUSED, 99) == pytest.approx(1.0)
        assert retry.jetsync_retry(after(operation, 9.1), REFUSED, 2) is None
        assert Decision.OVER_BUDGET in decisions(retry)

    def test_at_the_end_of_the_time_of_the_call(self):
        """
        A wait beyond the timeout of a single publish is not begun; in bulk the timeout limits
        each attempt.
        """
        retry = Retry(Policy(wait=1), budget=100)

        assert retry.jetsync_retry(after(SINGLE, 29.5), REFUSED, 2) is None
        assert decisions(retry) == [Decision.OUT_OF_TIME]
        assert retry.jetsync_retry(after(IN_BULK, 29.5), REFUSED, 2) == pytest.approx(1.0)


class TestIds:
    def test_not_after_the_duplicate_window(self):
        """
        A message that may be stored is sent again only while the stream remembers its id.
        """
        retry = Retry(Policy(wait=1), budget=1000, id_window=20)

        assert retry.jetsync_retry(with_ids(IN_BULK, 8.5), UNKNOWN, 2) == pytest.approx(1.0)
        assert retry.jetsync_retry(with_ids(IN_BULK, 9.5), UNKNOWN, 2) is None
        assert retry.jetsync_retry(with_ids(SINGLE), UNKNOWN, 1) is None
        assert retry.jetsync_retry(BATCH, jetsync.BatchOutcomeUnknownError("a"), 1) is None
        assert Decision.IDS_TOO_OLD in decisions(retry)

    def test_a_refused_message_needs_no_id(self):
        """
        A refusal is certain, whenever it arrives.
        """
        retry = Retry(Policy(wait=1), budget=1000, id_window=20)

        assert retry.jetsync_retry(with_ids(SINGLE, 25.0), REFUSED, 2) == 1.0
        assert retry.jetsync_retry(BATCH, jetsync.ConnectionLostError(), 2) == 1.0

    def test_a_condition_does_not_expire(self):
        """
        A stream's last sequence only grows, so the server always refuses the copy.
        """
        retry = Retry(Policy(wait=1), budget=1000, id_window=20)
        unknown = jetsync.PublishOutcomeUnknownError("a")

        assert retry.jetsync_retry(after(SINGLE, 25.0), unknown, 2) == 1.0


class TestRetry:
    def test_decisions_are_counted_by_operation_and_error(self):
        """
        Decisions are counted by operation, error and decision.
        """
        retry = Retry(Policy(stop=2, wait=0))
        for attempt in (1, 1, 2):
            retry.jetsync_retry(SINGLE, REFUSED, attempt)

        statistics = retry.statistics()
        name = "NoStreamResponseError"
        assert statistics.counts == (
            RetryCount("publish", name, Decision.RETRIED, 2),
            RetryCount("publish", name, Decision.STOPPED, 1),
        )
        assert (statistics.retried, statistics.given_up) == (2, 1)
        assert repr(retry) == "<Retry retried=2 given_up=1>"

    def test_the_environment_gives_the_budget(self, monkeypatch):
        """
        The environment variable configures a plugin that is loaded by name.
        """
        monkeypatch.setenv("JETSYNC_RETRY_BUDGET", "2.5")

        assert Retry().budget == 2.5
        assert Retry(budget=9).budget == 9.0

    @pytest.mark.parametrize("text", ["soon", "-1", "nan"])
    def test_an_invalid_budget(self, text, monkeypatch):
        """
        The error about an invalid variable names it.
        """
        monkeypatch.setenv("JETSYNC_RETRY_BUDGET", text)

        with pytest.raises(jetsync.ConfigurationError, match="JETSYNC_RETRY_BUDGET"):
            Retry()

    @pytest.mark.parametrize("wrong", [{"budget": -1}, {"budget": "1"}, {"id_window": True}])
    def test_wrong_arguments_are_refused(self, wrong):
        """
        Seconds must be numbers that are not negative.
        """
        with (
            pytest.raises(jetsync.InvalidArgumentError)
            if wrong == {"budget": -1}
            else pytest.raises(jetsync.InvalidTypeError)
        ):
            Retry(**wrong)

    def test_policies_are_policies(self):
        """
        A budget that is passed as a policy is an error.
        """
        with pytest.raises(jetsync.InvalidTypeError):
            Retry(30)

    def test_every_operation_has_a_policy_by_default(self):
        """
        Without arguments, the plugin retries everything that jetsync allows.
        """
        retry = Retry()

        for operation in (SINGLE, IN_BULK, IN_PUBLISHER, BATCH):
            assert retry.jetsync_retry(operation, REFUSED, 1) is not None
        assert {count.operation for count in retry.statistics().counts} == set(OPERATIONS)
