"""
Fast publishers for tests, what befalls them, and what they have stored.
"""

from __future__ import annotations

import time

from streams import messages_in

from jetsync._proto.fastingest import SUFFIX


def fast(js, **options):
    """
    A fast publisher.
    """
    return js.fast_publisher(**{"timeout": 5.0, **options})


def stored_in(stream):
    """
    The payloads of a stream, in order, as numbers.
    """
    return [int(message.data) for message in messages_in(stream)]


def subscriptions(client):
    """
    How many mailboxes the client listens with.
    """
    return len(client._connection.lane.receivers())


def lose(publisher, count):
    """
    Lose the next messages on their way: they are numbered and never sent.
    """
    publisher._link.engine.claim(count, time.monotonic())


def ranges(events):
    """
    What gap events name.
    """
    return [(event.first, event.last) for event in events]


def end_behind_its_back(js, publisher, seq):
    """
    End the batch of a publisher on the server; the answer goes elsewhere.
    """
    head, gap, _ = publisher._link.engine.prefix.decode().rsplit(".", 2)
    tail = head.split(".")[-2:]
    client = js._context.connection
    reply = ".".join(["nobody", *tail, gap, str(seq)]).encode() + SUFFIX[3]
    subject = publisher._link.engine.subject.encode()
    client.lane.write(b"PUB %b %b 0\r\n\r\n" % (subject, reply), client.deadline(5))
    client.flush(client.deadline(5))
