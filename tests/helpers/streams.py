"""
Streams for tests, numbered messages, and their contents.
"""

from __future__ import annotations

import contextlib

import attrs

import jetsync
from helpers.waiting import eventually


def memory_stream(js, name, **fields):
    """
    Create a stream with the subjects ``<name>.>``, by default in memory.
    """
    return js.create_stream(name, subjects=[f"{name}.>"], **{"storage": "memory", **fields})


def batch_stream(js, name, **fields):
    """
    Create a stream that accepts atomic batches.
    """
    return memory_stream(js, name, **{"allow_atomic": True, **fields})


def fast_stream(js, name, **fields):
    """
    Create a stream that accepts fast ingest.
    """
    return memory_stream(js, name, **{"allow_batched": True, **fields})


class Batches:
    """
    A stream that accepts batches, and its subjects.
    """

    def __init__(self, js, name):
        self.js = js
        self.name = name
        self.stream = batch_stream(js, name, allow_direct=True)

    def __call__(self, subject):
        """
        Return a subject of the stream.
        """
        return f"{self.name}.{subject}"

    def stored(self):
        """
        Return the payloads that are in the stream, in order.
        """
        return payloads(self.stream)


def messages_in(stream, **config):
    """
    Return the messages of a stream in order. A busy machine has 60 s for that.

    The consumer is deleted, because a stream has 1,000 at most and some tests read in each step.
    """
    reader = stream.create_consumer(ack_policy="none", deliver_policy="all", **config)
    waiting = reader.cached_info.num_pending
    messages = list(reader.fetch(waiting, expires=60)) if waiting else []
    stream.delete_consumer(reader.name)
    return messages


def payloads(stream):
    """
    Return the payloads of a stream, in order.
    """
    found = []
    for sequence in range(1, stream.info().state.last_seq + 1):
        with contextlib.suppress(jetsync.MessageNotFoundError):
            found.append(stream.get_message(sequence).data)
    return found


def fill(js, stream, count, start=0, subject="A", size=0):
    """
    Publish *count* messages with their numbers as payload, filled up to *size* bytes.
    """
    name = f"{stream.name}.{subject}"
    js.publish_many((name, (b"%d" % number).ljust(size)) for number in range(start, start + count))


def fill_in_trouble(js, stream, count, start=0):
    """
    Publish numbered messages in order, each exactly once, while servers come and go.
    """
    for number in range(start, start + count):

        def stored(number=number):
            # Lost messages are sent again. The id removes duplicates.
            with contextlib.suppress(
                jetsync.PublishOutcomeUnknownError,
                jetsync.NoStreamResponseError,
                jetsync.DisconnectedError,
            ):
                data, msg_id = b"%d" % number, f"{stream.name}-{number}"
                return js.publish(f"{stream.name}.A", data, msg_id=msg_id, timeout=2)

        eventually(stored, 40)


def numbers(messages):
    """
    Return the payloads of messages that :func:`fill` published.
    """
    return [int(message.data) for message in messages]


def change_creation(server, js, name):
    """
    Make a server before 2.14 report a later time of creation for a stream that stays the same.
    """
    before = js.stream(name).info()
    server.restart()
    config = attrs.evolve(before.config, description="changed")
    eventually(lambda: answered(lambda: js.update_stream(config)))
    server.restart()
    after = eventually(lambda: answered(js.stream(name).info))
    assert after.created > before.created


def answered(call):
    """
    Return the result of a call, or None while the server is not ready.
    """
    try:
        return call()
    except (jetsync.ApiError, jetsync.TransportError, jetsync.RequestTimeoutError):
        return None
