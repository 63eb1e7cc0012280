"""
The messages that are remembered as answers.
"""

from __future__ import annotations

import datetime as dt

from jetsync.monitoring.oldest import Found, KnownMessages

NOW = dt.datetime(2026, 11, 29, 12, tzinfo=dt.timezone.utc)


def found(position, sequence, checked=0.0):
    """
    Return a message that was found at or after a position.
    """
    return Found(position, sequence, NOW, checked)


def test_a_message_is_the_answer_for_all_positions_before_it():
    """
    A message that was found from a position is the first one from each position up to its own.
    """
    known = KnownMessages()
    known.add(found(10, 20))
    known.add(found(30, 30))

    assert [known.get(each) is not None for each in (9, 10, 15, 20, 21, 29, 30, 31)] == [
        False, True, True, True, False, False, True, False,
    ]  # fmt: skip
    assert known.get(15).sequence == 20


def test_a_second_look_only_adds_positions():
    """
    A later look from another position does not forget the earlier positions.
    """
    known = KnownMessages()
    known.add(found(10, 20))
    known.add(found(15, 20))
    assert known.get(11).sequence == 20
    known.add(found(5, 20))
    assert known.get(5).sequence == 20


def test_old_answers_are_forgotten():
    """
    A message that may be gone, or that was read long ago, is no answer any more.
    """
    known = KnownMessages()
    known.add(found(1, 5, checked=100.0))
    known.add(found(6, 9, checked=50.0))

    known.keep(0, 60.0)
    assert known.get(6) is None
    assert known.get(1).sequence == 5
    known.keep(6, 60.0)
    assert known.get(1) is None
