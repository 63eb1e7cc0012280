"""
Batches that are made of delivered messages.
"""

import pytest

from jetsync_spark.read.deliveries import MOST_RUNS, Delivered, Deliveries, Run, Runs, runs_of


def first(*pairs):
    """
    Return first deliveries: sequences in the stream and among the consumer's deliveries.
    """
    return [Delivered(sequence, position, True) for sequence, position in pairs]


def again(*pairs):
    """
    Return redeliveries.
    """
    return [Delivered(sequence, position, False) for sequence, position in pairs]


def one_part(_messages):
    """
    Make one part of a batch.
    """
    return 1


class TestRuns:
    @pytest.mark.parametrize(
        ("delivered", "runs"),
        [
            ([], []),
            (first((7, 1)), [Run(7, 7, 1)]),
            (first((7, 1), (8, 2), (9, 3)), [Run(7, 9, 3)]),
            # Other subjects are between them.
            (first((7, 1), (20, 2), (90, 3)), [Run(7, 90, 3)]),
            # Another client got the second delivery.
            (first((7, 1), (20, 3), (90, 4)), [Run(7, 7, 1), Run(20, 90, 2)]),
            # Adjacent sequences have nothing between them.
            (first((7, 1), (8, 3)), [Run(7, 8, 2)]),
            # A message between two redelivered ones may be pending at another client.
            (again((7, 5), (9, 6)), [Run(7, 7, 1), Run(9, 9, 1)]),
            (again((7, 5), (8, 6)), [Run(7, 8, 2)]),
            ([*again((7, 9)), *first((9, 10), (12, 11))], [Run(7, 7, 1), Run(9, 12, 2)]),
        ],
    )
    def test_a_run_has_no_other_message_of_the_consumer(self, delivered, runs):
        """A run contains no message that the consumer may have delivered to another client."""
        assert runs_of(delivered) == runs

    def test_a_consumer_that_skips_matching_messages(self):
        """If a consumer skips messages that match its filters, only adjacent ones form a run."""
        delivered = first((7, 1), (8, 2), (20, 3))
        assert runs_of(delivered, skips_others=False) == [Run(7, 8, 2), Run(20, 20, 1)]

    def test_membership(self):
        """A set of runs knows its sequences, its length and its distant groups."""
        runs = Runs((Run(3, 5, 3), Run(9, 20, 4), Run(100, 100, 1)))
        assert [each for each in range(110) if each in runs] == [3, 4, 5, *range(9, 21), 100]
        assert len(runs) == 8
        assert runs.include(9, 20)
        assert not runs.include(5, 9)
        assert not runs.include(1, 3)
        assert [part.bounds for part in runs.apart(10)] == [(3, 20), (100, 100)]
        assert 1 not in Runs()


class TestDeliveries:
    def test_a_message_is_in_one_batch(self):
        """A redelivered message is in one batch only, and acknowledged again after the commit."""
        held = Deliveries()
        held.add(first((1, 1), (2, 2), (3, 3)))
        held.add(again((2, 4)))
        (batch,) = held.plan(2, one_part)
        assert batch == Runs((Run(1, 2, 2),))
        assert [*held.batch] == [1, 2]
        assert [*held.unacknowledged] == [1, 2, 3]
        held.commit(batch)
        held.add(again((1, 5)))
        assert held.take_again() == [1]
        assert held.take_again() == []
        assert held.plan(9, one_part) == (Runs((Run(3, 3, 1),)),)

    def test_a_batch_is_in_the_order_of_the_stream(self):
        """Redelivered messages come first, because the batch has the order of the stream."""
        held = Deliveries()
        held.add(first((8, 8), (9, 9)))
        held.add(again((2, 10)))
        assert held.plan(9, one_part) == (Runs((Run(2, 2, 1), Run(8, 9, 2))),)

    def test_parts_have_equal_numbers_of_messages(self):
        """The parts of a batch divide its messages, also within a run."""
        held = Deliveries()
        held.add(first(*((10 * n, n) for n in range(1, 8))))
        assert held.plan(9, lambda messages: messages // 3) == (
            Runs((Run(10, 30, 3),)),
            Runs((Run(40, 70, 4),)),
        )
        assert held.plan(9, one_part) == ()

    def test_many_runs_end_a_batch(self):
        """A batch has a limited number of runs, and the other messages are in the next one."""
        held = Deliveries()
        held.add(first(*((2 * n, 2 * n) for n in range(1, 2 * MOST_RUNS))))
        (batch,) = held.plan(10 * MOST_RUNS, one_part)
        assert len(batch.runs) == len(batch) == MOST_RUNS
        assert len(held) == MOST_RUNS - 1
        held.commit(batch)
        (batch,) = held.plan(10 * MOST_RUNS, one_part)
        assert batch.bounds == (2 * MOST_RUNS + 2, 4 * MOST_RUNS - 2)

    def test_a_batch_of_another_process(self):
        """Messages of a batch from the checkpoint are not held, whenever they arrive."""
        held = Deliveries()
        held.add(first((4, 1), (5, 2), (6, 3)))
        held.adopt([4, 5])
        assert [*held.unacknowledged] == [4, 5, 6]
        held.commit(Runs((Run(4, 5, 2),)))
        assert [*held.unacknowledged] == [6]
        held.add(first((5, 4)))
        assert held.take_again() == [5]

    def test_held_messages_of_a_committed_batch(self):
        """Held messages that turn out to be committed are acknowledged."""
        held = Deliveries()
        held.add(first((4, 1), (5, 2), (6, 3)))
        held.commit(Runs((Run(4, 5, 2),)))
        assert held.take_again() == [4, 5]
        assert len(held) == 1

    def test_redelivered_messages_of_an_earlier_batch(self):
        """They are acknowledged again, because the server has lost their acknowledgement."""
        held = Deliveries()
        for runs in (Run(4, 5, 2), Run(6, 6, 1), Run(7, 7, 1)):
            held.commit(Runs((runs,)))
        held.add([*again((5, 8)), *first((8, 9))])
        assert held.take_again() == [5]
        assert len(held) == 1

    def test_a_new_stream(self):
        """Its messages are not those of earlier batches, although they have their sequences."""
        held = Deliveries()
        for runs in (Run(4, 5, 2), Run(6, 6, 1)):
            held.commit(Runs((runs,)))
        held.commit(Runs())
        held.add(again((5, 8), (6, 9)))
        assert held.take_again() == []
        assert len(held) == 2

    def test_another_consumer(self):
        """Messages of a consumer that was deleted are forgotten."""
        held = Deliveries()
        held.add(first((4, 1), (5, 2)))
        held.plan(1, one_part)
        held.clear()
        assert [*held.unacknowledged] == []
