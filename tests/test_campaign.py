"""
The runner of the campaign of random faults: a part that has shown nothing is a failure.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent / "chaos" / "__main__.py"


@pytest.fixture(scope="module")
def runner():
    """
    The runner as a module.
    """
    spec = importlib.util.spec_from_file_location("campaign_runner", RUNNER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checked(runner, *, is_whole=True, trials=3, skipped="", **counts):
    """
    Return the violations of a part with these findings.
    """
    result = runner.Result()
    result.trials, result.skipped = trials, skipped
    result.counts.update(counts)
    result.check_work(
        runner.Part("hostile", 1.0, 1.0, work=("frames", "attacks")), 7, is_whole=is_whole
    )
    return [text for found in result.violations.values() for _, text in found]


class TestWork:
    def test_a_part_without_a_trial_fails(self, runner):
        """
        A part that ran no trial has a violation, also if certain trials were asked for.
        """
        assert checked(runner, trials=0) == ["no trial was run"]
        assert checked(runner, trials=0, is_whole=False) == ["no trial was run"]

    def test_trials_that_did_nothing_fail(self, runner):
        """
        A part whose trials never did what they are for has a violation.
        """
        assert checked(runner, errors=5) == ["no frames or attacks in 3 trials"]

    def test_one_kind_of_work_is_enough(self, runner):
        """
        A part that did some of its work has none.
        """
        assert checked(runner, attacks=1) == []

    def test_a_few_trials_may_miss(self, runner):
        """
        Trials that were asked for may end before their faults.
        """
        assert checked(runner, is_whole=False, trials=1) == []

    def test_a_part_that_this_machine_cannot_run(self, runner):
        """
        A part that was skipped with a reason has none.
        """
        assert checked(runner, trials=0, skipped="no network namespaces") == []

    def test_every_part_names_its_work(self, runner):
        """
        Each part says what it counts.
        """
        assert all(part.work for part in runner.PARTS)
