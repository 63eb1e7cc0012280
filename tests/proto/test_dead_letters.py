from __future__ import annotations

import pytest

from jetsync._proto.dead_letters import (
    LONGEST_PAUSE,
    SCAN_EVERY,
    SETTLE,
    DeadLetterEngine,
    is_last,
    last_settled,
)


@pytest.mark.parametrize(
    ("delivered", "limit", "last"),
    [
        (1, 3, False),
        (2, 3, False),
        (3, 3, True),
        (4, 3, True),
        (1, 1, True),
        (9, 0, False),
        (9, -1, False),
    ],
)
def test_the_last_delivery(delivered, limit, last):
    """
    The delivery that reaches `max_deliver` is the last one. Without a limit, there is none.
    """
    assert is_last(delivered, limit) is last


def test_no_message_is_pending_up_to_there():
    """
    Everything that was delivered is settled if nothing is pending, and otherwise up to the floor.
    """
    assert last_settled(pending=0, delivered=9, floor=3) == 9
    assert last_settled(pending=1, delivered=9, floor=3) == 3


def test_it_scans_at_once():
    """
    A new engine looks for messages that were given up before.
    """
    engine = DeadLetterEngine(5.0)
    assert engine.next_scan == engine.wakes_at() == 5.0


def test_an_advisory_is_acted_on_at_once():
    """
    A message that the server gave up is due at once, and only once.
    """
    engine = DeadLetterEngine(0.0)
    engine.advised(7, 1.0)
    engine.advised(7, 2.0)
    assert (engine.next_due(0.5), engine.next_due(1.0), engine.wakes_at()) == (None, 7, 0.0)
    assert not engine.is_quiet
    engine.ended(7)
    assert engine.next_due(9.0) is None
    assert engine.is_quiet


def test_a_scan_is_believed_if_it_is_repeated():
    """
    A message that a scan has found is due if the next scan finds it as well: it may have been
    acknowledged a moment before the first one.
    """
    engine = DeadLetterEngine(0.0)
    engine.scanned([3, 4], 0.0)
    assert engine.next_due(100.0) is None
    assert engine.next_scan == SETTLE
    assert not engine.is_quiet
    engine.scanned([4, 5], SETTLE)
    assert engine.next_due(SETTLE) == 4
    assert engine.next_scan == 2 * SETTLE
    engine.ended(4)
    engine.scanned([], 2 * SETTLE)
    assert engine.next_due(2 * SETTLE) is None
    assert engine.next_scan == 2 * SETTLE + SCAN_EVERY
    assert engine.is_quiet


def test_failures_are_repeated_after_pauses():
    """
    A dead letter that is not stored is tried again after 1, 2, 4, ... seconds, at most 30.
    """
    engine = DeadLetterEngine(0.0)
    engine.scanned([], 0.0)
    engine.advised(7, 0.0)
    engine.advised(8, 0.0)
    engine.failed(7, 0.0)
    assert engine.next_due(0.0) == 8
    engine.ended(8)
    assert (engine.next_due(0.9), engine.next_due(1.0)) == (None, 7)
    engine.failed(7, 1.0)
    assert engine.wakes_at() == 3.0
    # It may never succeed, so it does not prevent the end of an iteration that is idle.
    assert engine.is_quiet
    for _ in range(10):
        engine.failed(7, 10.0)
    assert (engine.next_due(10.0 + LONGEST_PAUSE), engine.next_due(39.0)) == (7, None)


def test_what_was_lost_is_looked_for():
    """
    A scan follows at once if advisories may have been lost, and soon if a scan failed.
    """
    engine = DeadLetterEngine(0.0)
    engine.scanned([], 0.0)
    engine.look_again(4.0)
    assert engine.next_scan == 4.0
    engine.look_again(9.0)
    assert engine.next_scan == 4.0
    engine.scan_failed(10.0)
    assert engine.next_scan == 10.0 + SETTLE
