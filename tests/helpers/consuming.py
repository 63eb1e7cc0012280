"""
Consumptions: options for tests of engines, and the events that plugins saw.
"""

from __future__ import annotations

import jetsync
from helpers.waiting import eventually
from jetsync._proto.pull_request import ConsumeOptions


def options(**changes):
    """
    Return options for a buffer of ten messages that is refilled at half.
    """
    plain = {
        "max_messages": 10,
        "max_bytes": None,
        "threshold": 5,
        "expires": 30.0,
        "heartbeat": 5.0,
    }
    return ConsumeOptions(**{**plain, **changes})


def seen(recorder, kind):
    """
    Return the status events of one kind that a recorder saw.
    """
    events = [call["event"] for call in recorder.of("jetsync_status")]
    return [event for event in events if event.kind.value == kind]


class RefusesOnce:
    """
    A plugin that refuses the first message with a payload, once.
    """

    def __init__(self, data):
        self.data = data

    @jetsync.hookimpl
    def jetsync_message_received(self, message):
        if message.data == self.data:
            self.data = None
            raise OSError("refused")


def lose_buffered(client, read, count):
    """
    Have an ordered read lose its consumer once *count* messages wait in its buffer.
    """
    core = read._core

    def holds(done):
        core.refill()
        return done()

    eventually(lambda: holds(lambda: len(core.buffer) == count))
    client.reconnect()
    eventually(lambda: holds(lambda: core.engine.error is not None))
