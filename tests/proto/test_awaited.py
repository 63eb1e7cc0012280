"""
How many bytes the pulls of a lost connection could have brought.
"""

from __future__ import annotations

import pytest

from helpers.consuming import options
from jetsync._proto.consume import ConsumeEngine
from jetsync._proto.open_pulls import OpenPulls
from jetsync._proto.origin import Origin

MB = 1_000_000


def frame(*, delivered=1, pending=1000, size=MB):
    """
    Return a message of the consumer.
    """
    reply = f"$JS.ACK.S.C.{delivered}.5.5.1700000000000000000.{pending}"
    return b"or", reply.encode(), None, bytes(size)


def engine_of(*frames, taken=0, **limits):
    """
    Return an engine that has received messages, of which a thread has taken some.
    """
    engine = ConsumeEngine(OpenPulls(b"_INBOX.c", Origin("S", "C")), options(**limits))
    engine.back(0.0)
    engine.pulls.open(engine.next_pull(0.0), 0.0)
    engine.receive(list(frames), 0.0)
    for _ in range(taken):
        engine.buffer.popleft()
    return engine


def awaited(*frames, **changes):
    """
    Return what such an engine awaits, in MB.
    """
    total, size = engine_of(*frames, **changes).awaited()
    return round(total / MB), round(size / MB)


class TestAwaited:
    @pytest.mark.parametrize("taken", [0, 1, 2])
    def test_messages_of_the_pulls(self, taken):
        """
        The open pulls may bring as many messages as they lack, of the size of those that arrived.
        """
        limits = {"max_messages": 500, "threshold": 250}
        assert awaited(frame(), frame(), taken=taken, **limits) == (498, 1)

    def test_messages_of_the_stream(self):
        """
        The stream may have fewer messages.
        """
        assert awaited(frame(pending=7), max_messages=500, threshold=250) == (7, 1)

    def test_messages_to_be_redelivered(self):
        """
        The number that a redelivered message has leaves others of that kind out.
        """
        message = frame(delivered=2, pending=0)
        assert awaited(message, max_messages=500, threshold=250) == (499, 1)

    def test_a_limit_in_bytes(self):
        """
        A limit in bytes limits what may arrive.
        """
        assert awaited(frame(), max_bytes=32 * MB, threshold=16 * MB) == (31, 1)

    def test_different_sizes(self):
        """
        The size is a mean of the messages in the buffer and the last one.
        """
        frames = [frame(size=4 * MB), frame(size=MB)]
        assert awaited(*frames, max_messages=500, threshold=250) == (996, 2)

    def test_nothing_has_arrived(self):
        """
        Nothing is known before the first message.
        """
        assert awaited(max_messages=500, threshold=250) == (0, 0)


class TestOverload:
    def test_too_much(self):
        """
        More than a server keeps for a slow client is reported once.
        """
        engine = engine_of(frame(), max_messages=500, threshold=250)
        assert engine.overload() == engine.awaited()
        assert engine.overload() is None

    @pytest.mark.parametrize(
        "limits", [{"max_messages": 60, "threshold": 30}, {"max_bytes": 64 << 20, "threshold": 1}]
    )
    def test_no_more_than_a_server_keeps(self, limits):
        """
        Pulls that ask for no more than that are no reason.
        """
        assert engine_of(frame(), **limits).overload() is None
