"""
`jetsync tail` and `watch` with --no-follow if the messages or the server go away meanwhile.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

import jetsync
from jetsync.cli import _watching, tail
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


@pytest.fixture
def bucket():
    """
    A server, and a client of it, with a bucket of many keys.
    """
    with DevServer() as server, jetsync.connect(server.url) as client:
        client.jetstream().create_key_value("B", storage="memory")
        client.jetstream().publish_many((f"$KV.B.{key}", b"") for key in range(COUNT))
        yield server, client


def test_a_server_that_dies_while_a_bucket_is_read(bucket):
    """
    `watch --no-follow` fails likewise.
    """
    server, _ = bucket
    shown = []

    def show(entry):
        if not shown:
            server.kill()
        shown.append(entry.key)

    with pytest.raises(jetsync.DisconnectedError):
        _watching.print_changes(
            jetsync.ConnectOptions(servers=server.url, request_timeout=1),
            lambda js: js.key_value("B").watch(),
            show,
            dict,
            as_json=False,
            count=None,
            no_follow=True,
        )
    assert shown == [str(key) for key in range(len(shown))]
    assert len(shown) < COUNT


def test_a_bucket_that_is_read_slowly(bucket):
    """
    `watch --no-follow` continues if not all entries arrive within --timeout.
    """
    _, client = bucket
    flushes = []

    def flush():
        flushes.append(client.flush())

    impatient = SimpleNamespace(options=SimpleNamespace(request_timeout=0.001), flush=flush)
    with client.jetstream().key_value("B").watch() as watch:
        found = [entry.key for entry in _watching.stored(impatient, watch)]
    assert found == [str(key) for key in range(COUNT)]
    assert flushes
