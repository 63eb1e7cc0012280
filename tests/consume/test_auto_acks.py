from __future__ import annotations

from types import SimpleNamespace

import pytest

from jetsync._io.outbox import LaneState
from jetsync.consume.auto_acks import answer_soon, nak_body
from jetsync.values.message import Message


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_an_answer_without_a_connection_uses_up_the_original(copies):
    """
    Without a connection, an answer to a message or its copy is posted once for all of them.
    """
    posted = []
    lane = SimpleNamespace(
        state=LaneState.DOWN, post_nowait=lambda block, keep: posted.append(block)
    )
    family = [Message(b"a", b"$JS.ACK.S.C.1.1.1.5.0", None, b"", SimpleNamespace())]
    for _ in range(copies):
        family.append(family[-1].replace(data=b"x"))
    answer_soon(lane, family[-1], b"+ACK")
    assert all(message.is_acked for message in family)
    for message in family:
        answer_soon(lane, message, b"+ACK")
    assert len(posted) == 1


@pytest.mark.parametrize(
    ("delivered", "seconds"), [(2, 1), (3, 2), (6, 16), (7, 30), (12, 30), (10**6, 30)]
)
def test_a_message_that_fails_again(delivered, seconds):
    """
    The first redelivery is immediate, and the delay of later ones doubles up to 30 seconds.
    """
    assert nak_body(1) == b"-NAK"
    assert nak_body(delivered) == b'-NAK {"delay": %d000000000}' % seconds
