"""
The table of outcomes: what became of a publish, and whether another attempt may follow.
"""

from __future__ import annotations

import itertools

import pytest

from jetsync import errors
from jetsync._proto.outcome import OUTCOME_RULES, Again, Cause, Ending, cause_of, outcome_of

COMBINATIONS = list(itertools.product(Cause, (False, True), (False, True), (False, True)))

STORED, NOT_STORED, UNKNOWN = Ending.STORED, Ending.NOT_STORED, Ending.UNKNOWN

# For each cause: what a first attempt ends as that was not sent, and one that was, without and with
# safety. Then what a later attempt ends as after one with an unknown outcome, likewise.
NEVER, ONCE, COUNTED = Again.NEVER, Again.ONCE, Again.COUNTED
ASK, PATIENT, BATCHES, LOOK = Again.ASK, Again.PATIENT, Again.BATCHES, Again.LOOK
FIRST = {
    Cause.ACK: [(STORED, NEVER)] * 4,
    Cause.SPLIT: [(Ending.SPLIT, NEVER)] * 4,
    Cause.OWN_CONDITION: [(NOT_STORED, NEVER)] * 4,
    Cause.NO_STREAM: [(NOT_STORED, COUNTED)] * 4,
    Cause.UNAVAILABLE: [(NOT_STORED, BATCHES)] * 4,
    Cause.BUSY: [(NOT_STORED, PATIENT)] * 4,
    Cause.IN_PROCESS: [(NOT_STORED, PATIENT)] * 4,
    Cause.UNPROCESSED: [(NOT_STORED, ONCE)] * 4,
    Cause.SILENT: [(NOT_STORED, NEVER)] * 2 + [(UNKNOWN, NEVER), (UNKNOWN, ASK)],
    Cause.LOST: [(NOT_STORED, ASK)] * 2 + [(UNKNOWN, NEVER), (UNKNOWN, ASK)],
    Cause.DOWN: [(NOT_STORED, ASK)] * 4,
    Cause.CLOSED: [(NOT_STORED, NEVER)] * 2 + [(UNKNOWN, NEVER)] * 2,
    Cause.DENIED: [(NOT_STORED, NEVER)] * 2 + [(UNKNOWN, NEVER), (UNKNOWN, ASK)],
    Cause.UNREADABLE: [(NOT_STORED, NEVER)] * 2 + [(UNKNOWN, NEVER), (UNKNOWN, ASK)],
    Cause.INTERRUPTED: [(NOT_STORED, NEVER)] * 2 + [(UNKNOWN, NEVER)] * 2,
    Cause.REFUSED: [(NOT_STORED, NEVER)] * 4,
    Cause.INVALID: [(NOT_STORED, NEVER)] * 4,
}
LATER = {
    **FIRST,
    **dict.fromkeys((Cause.REFUSED, Cause.INVALID, Cause.CLOSED), [(UNKNOWN, NEVER)] * 4),
    **dict.fromkeys((Cause.UNPROCESSED, Cause.INTERRUPTED), [(UNKNOWN, NEVER)] * 4),
    Cause.OWN_CONDITION: [(UNKNOWN, LOOK)] * 4,
    Cause.NO_STREAM: [(UNKNOWN, COUNTED)] * 4,
    Cause.UNAVAILABLE: [(UNKNOWN, BATCHES)] * 4,
    Cause.BUSY: [(UNKNOWN, PATIENT)] * 4,
    Cause.IN_PROCESS: [(UNKNOWN, ASK)] * 4,
    Cause.LOST: [(UNKNOWN, ASK)] * 2 + [(UNKNOWN, NEVER), (UNKNOWN, ASK)],
    Cause.DOWN: [(UNKNOWN, ASK)] * 4,
    **dict.fromkeys(
        (Cause.DENIED, Cause.SILENT, Cause.UNREADABLE), [(UNKNOWN, NEVER)] * 3 + [(UNKNOWN, ASK)]
    ),
}

# Errors of attempts, with their causes and whether the attempt was sent.
ERRORS = [
    (None, Cause.SILENT, True),
    (errors.RequestTimeoutError("a", 1.0), Cause.SILENT, True),
    (errors.NoRespondersError("a"), Cause.NO_STREAM, True),
    (errors.NoStreamResponseError("a"), Cause.NO_STREAM, True),
    (errors.ConnectionLostError(), Cause.LOST, True),
    (errors.ConnectionLostError(sent=False), Cause.LOST, False),
    (errors.DisconnectedError(), Cause.DOWN, False),
    (errors.ConnectionClosedError(sent=True), Cause.CLOSED, True),
    (errors.ConnectionClosedError(), Cause.CLOSED, False),
    (errors.PermissionDeniedError("a", "publish", sent=True), Cause.DENIED, True),
    (errors.PermissionDeniedError("a", "publish"), Cause.DENIED, False),
    (errors.ProtocolError("x"), Cause.UNREADABLE, True),
    (errors.AtomicityError("b"), Cause.SPLIT, True),
    (errors.WrongLastSequenceError(), Cause.OWN_CONDITION, True),
    (errors.WrongLastMessageIdError(), Cause.OWN_CONDITION, True),
    (errors.DuplicateMessageIdError(), Cause.OWN_CONDITION, True),
    (errors.DuplicateMessageInProcessError(), Cause.IN_PROCESS, True),
    (errors.TemporarilyUnavailableError(), Cause.UNAVAILABLE, True),
    (errors.InsufficientResourcesError(), Cause.BUSY, True),
    (errors.InsufficientResourcesError(code=400, err_code=10028), Cause.REFUSED, True),
    (errors.TooManyRequestsError(), Cause.BUSY, True),
    (errors.TooManyInflightError(), Cause.BUSY, True),
    (errors.BatchIncompleteError(), Cause.BUSY, True),
    (errors.StreamSealedError(), Cause.REFUSED, True),
    (errors.InvalidArgumentError("x"), Cause.INVALID, False),
    (errors.MaxPayloadError(9, 1), Cause.INVALID, False),
    (errors.CallInSignalHandlerError(), Cause.INVALID, False),
]


class TestTable:
    @pytest.mark.parametrize("cause", Cause)
    def test_each_combination_has_one_outcome(self, cause):
        """Each cause has an outcome for every combination of the three questions."""
        for earlier, expected in ((False, FIRST), (True, LATER)):
            found = [
                outcome_of(cause, sent=sent, earlier=earlier, safe=safe)
                for sent, safe in itertools.product((False, True), repeat=2)
            ]
            assert [(rule.ending, rule.again) for rule in found] == expected[cause]

    def test_every_rule_applies(self):
        """No rule is hidden by those before it."""
        found = {
            outcome_of(cause, sent=sent, earlier=earlier, safe=safe)
            for cause, sent, earlier, safe in COMBINATIONS
        }
        assert found == set(OUTCOME_RULES)

    @pytest.mark.parametrize("cause", Cause)
    def test_an_unknown_outcome_stays_unknown(self, cause):
        """Only an ack decides an earlier attempt that may be stored."""
        for sent, safe in itertools.product((False, True), repeat=2):
            rule = outcome_of(cause, sent=sent, earlier=True, safe=safe)
            decided = cause in {Cause.ACK, Cause.SPLIT}
            assert (rule.ending is UNKNOWN) is not decided

    @pytest.mark.parametrize("cause", Cause)
    def test_no_attempt_may_store_a_message_twice(self, cause):
        """A first attempt that may be stored is repeated only if the stream drops the copy."""
        for sent in (False, True):
            rule = outcome_of(cause, sent=sent, safe=False)
            if rule.ending is not NOT_STORED:
                assert not rule.may_repeat_message
                assert not rule.may_repeat_batch

    def test_which_attempts_may_follow(self):
        """Batches are repeated whenever messages are, and in two more cases."""
        for rule in OUTCOME_RULES:
            assert rule.may_repeat_message is (rule.again in {ASK, COUNTED})
            assert rule.may_repeat_batch is (rule.again in {ASK, COUNTED, BATCHES, PATIENT, ONCE})
            assert rule.counts_batch is (rule.again in {COUNTED, BATCHES})
            assert rule.repeats_whole_batch is (rule.causes == (Cause.LOST,) and not rule.sent)


class TestCauses:
    @pytest.mark.parametrize(
        ("error", "cause", "sent"), ERRORS, ids=lambda value: type(value).__name__
    )
    def test_of_an_error(self, error, cause, sent):
        """An error tells its cause, and whether the attempt was sent."""
        assert cause_of(error) == (cause, sent)

    @pytest.mark.parametrize(
        ("error", "cause", "sent"), ERRORS, ids=lambda value: type(value).__name__
    )
    def test_of_an_unknown_outcome(self, error, cause, sent):
        """An error about an unknown outcome has the cause of the error that it came from."""
        unknown = errors.PublishOutcomeUnknownError("a")
        unknown.__cause__ = error
        assert cause_of(unknown) == (cause, sent)
