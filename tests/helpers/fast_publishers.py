"""
Fast publishers for tests, faults for them, and the messages that they have stored.
"""

from __future__ import annotations

import time

from helpers.connections import connection_of
from helpers.streams import messages_in
from jetsync._proto.fastingest import SUFFIX


def fast(js, **options):
    """
    Return a fast publisher.
    """
    return js.fast_publisher(**{"timeout": 5.0, **options})


def stored_in(stream):
    """
    Return the payloads of a stream as numbers, in order.
    """
    return [int(message.data) for message in messages_in(stream)]


def subscriptions(client):
    """
    Return the number of receivers of the client.
    """
    return client.statistics().subscriptions


def lose(publisher, count):
    """
    Lose the next messages: they get sequences and are never sent.
    """
    link, engine = publisher._link, publisher._link.engine
    for _ in range(count):
        link.call(engine.claim, time.monotonic(), engine.subject)


def unread(publisher):
    """
    Return the answers of the server that the publisher has not read yet.
    """
    return publisher._link._box.frames


def has_lost_connection(publisher):
    """
    Return whether the connection of the publisher's batch is lost, which it has not noticed yet.
    """
    return bool(publisher._link._box.lost_epoch)


def ranges(events):
    """
    Return the sequences of gap events.
    """
    return [(event.first, event.last) for event in events]


def end_on_server(js, publisher, seq):
    """
    End the batch of a publisher on the server, without an answer to the publisher.
    """
    head, gap, _ = publisher._link.engine.prefix.decode().rsplit(".", 2)
    tail = head.split(".")[-2:]
    client = connection_of(js)
    reply = ".".join(["nobody", *tail, gap, str(seq)]).encode() + SUFFIX[3]
    subject = publisher._link.engine.subject.encode()
    client.lane.write(b"PUB %b %b 0\r\n\r\n" % (subject, reply), client.deadline(5))
    client.flush(client.deadline(5))
