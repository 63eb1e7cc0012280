"""
`jetsync tail --no-follow` if the messages or the server go away meanwhile.
"""

from __future__ import annotations

import contextlib

import pytest

import jetsync
from jetsync.cli import tail
from jetsync.devserver import DevServer

COUNT = 3000
"""More messages than a consumption buffers."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """
    The command looks soon why no message arrives.
    """
    monkeypatch.setattr(tail, "_MESSAGE_WAIT", 0.1)


def stored(client):
    """
    Create a stream with messages.
    """
    js = client.jetstream()
    stream = js.create_stream("S", subjects=["s.*"], storage="memory")
    js.publish_many((f"s.{number % 2}", b"") for number in range(COUNT))
    return stream


def follow(server, *subjects, **start):
    """
    Return the messages that the command would print.
    """
    options = jetsync.ConnectOptions(servers=server.url, connect_timeout=1, request_timeout=1)
    start = dict.fromkeys(("last", "seq", "since"), None) | {"new": False, **start}
    return contextlib.closing(tail.follow(options, "S", subjects, None, no_follow=True, **start))


@pytest.mark.parametrize("start", [{"seq": 1}, {"last": COUNT}])
@pytest.mark.parametrize("subjects", [(), ("s.0",)])
def test_messages_that_are_removed_meanwhile(start, subjects):
    """
    The command ends after the messages that are left, also those of some subjects.
    """
    with (
        DevServer() as server,
        jetsync.connect(server.url) as client,
        follow(server, *subjects, **start) as found,
    ):
        stream = stored(client)
        first = next(found)
        stream.purge(subject=first.subject)
        client.jetstream().publish("s.1", b"")
        rest = list(found)
    assert len(rest) < COUNT
    assert first.subject == "s.0"


def test_a_server_that_dies_meanwhile():
    """
    The command fails if no server answers in time, because it has not printed all messages.
    """
    with DevServer() as server, follow(server, seq=1) as found:
        with jetsync.connect(server.url) as client:
            stored(client)
        next(found)
        server.kill()
        with pytest.raises(jetsync.DisconnectedError):
            list(found)
