"""
Messages for tests to read: numbered, in streams that may have trouble meanwhile.
"""

from __future__ import annotations

import contextlib

from patience import eventually

import jetsync


def fill_in_trouble(js, stream, count, start=0):
    """
    Publish numbered messages in order, each exactly once, while servers come and go.
    """
    for number in range(start, start + count):

        def stored(number=number):
            # What is lost on its way is sent again; by its id the stream knows it.
            with contextlib.suppress(
                jetsync.PublishOutcomeUnknownError,
                jetsync.NoStreamResponseError,
                jetsync.DisconnectedError,
            ):
                data, msg_id = b"%d" % number, f"{stream.name}-{number}"
                return js.publish(f"{stream.name}.A", data, msg_id=msg_id, timeout=2)

        eventually(stored, 40)
