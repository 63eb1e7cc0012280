"""
The cache of streams that batches go to, and when a client asks the server again.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from jetsync import errors
from jetsync._api.known_streams import StreamCache
from jetsync._base.deadline import Deadline
from jetsync._io.outbox import LaneState
from jetsync.publish.batch_support import require_atomic, require_fast

VERSIONED = {"_nats.ver": "2.15.1", "_nats.level": "5", "_nats.req.level": "2"}


def connected_to(version):
    """
    A context whose server has this version.
    """
    return SimpleNamespace(server=SimpleNamespace(version=version))


class Server:
    """
    A stub of the context: a numbered connection, and an API that answers.
    """

    def __init__(self):
        self.streams = {"S": {"name": "S", "subjects": ["S.>"], "metadata": VERSIONED}}
        self.asked = []
        self.lane = SimpleNamespace(epoch=1, state=LaneState.OPEN, wait_open=self.wait_open)
        self.lane.outbox = self.lane
        self.reconnects = False

    def wait_open(self, deadline):
        if self.lane.state is LaneState.OPEN:
            return self.lane.epoch
        if not self.reconnects:
            raise errors.DisconnectedError(timeout=deadline.total)
        self.lane.epoch += 1
        self.lane.state = LaneState.OPEN
        return self.lane.epoch

    def api(self, endpoint, body, deadline, *, stream=None):
        self.asked.append(endpoint)
        if endpoint == "STREAM.NAMES":
            token = body["subject"].split(".")[0]
            names = [n for n, c in self.streams.items() if f"{token}.>" in c["subjects"]]
            return {"streams": names or None}
        name = endpoint.rpartition(".")[2]
        if name not in self.streams:
            raise errors.StreamNotFoundError
        return {"config": self.streams[name]}


@pytest.fixture
def server():
    """
    A server with stream S over ``S.>``.
    """
    return Server()


@pytest.fixture
def find(server):
    """
    Look a subject up in a cache of that server.
    """
    cache = StreamCache(server)
    return lambda subject, **more: cache.find(subject, Deadline.after(1), **more)


def test_a_stream_is_asked_about_once(server, find):
    """
    One lookup of a stream serves all of its subjects.
    """
    known = find("S.A")
    assert (known.name, known.level, known.version, known.epoch) == ("S", 5, "2.15.1", 1)
    assert find("S.B") is known
    assert server.asked == ["STREAM.NAMES", "STREAM.INFO.S"]


def test_again_if_wanted(server, find):
    """
    With *fresh*, the server is asked again, and later calls see the new answer.
    """
    find("S.A")
    server.streams["S"] = {**server.streams["S"], "allow_atomic": True}
    assert find("S.A").config.allow_atomic is not True
    assert find("S.A", fresh=True).config.allow_atomic is True
    assert find("S.A").config.allow_atomic is True
    assert len(server.asked) == 4


def test_a_lookup_by_name_asks_once_per_connection(server):
    """
    A lookup by name asks once per connection, and again with *fresh*.
    """
    cache = StreamCache(server)
    deadline = Deadline.after(1)
    known = cache.named("S", deadline)
    assert (known.name, known.level) == ("S", 5)
    assert cache.named("S", deadline) is known
    assert cache.find("S.A", deadline) is known
    assert cache.named("S", deadline, fresh=True) is not known
    server.lane.epoch = 2
    assert cache.named("S", deadline).epoch == 2
    assert server.asked == ["STREAM.INFO.S"] * 3
    with pytest.raises(errors.StreamNotFoundError):
        cache.named("OTHER", deadline)


def test_a_new_connection(server, find):
    """
    After a reconnect, the server is asked again: its version may differ.
    """
    server.streams["S"]["allow_atomic"] = True
    require_atomic(find("S.A"), connected_to("2.15.1"), broken_servers=False)
    server.lane.epoch = 2
    # An older server does not know the field, and its answers do not mention it.
    server.streams["S"] = {"name": "S", "subjects": ["S.>"]}
    known = find("S.A")
    assert (known.level, known.version, known.epoch) == (0, None, 2)
    with pytest.raises(errors.NotSupportedError, match=r"2\.10\.26"):
        require_atomic(known, connected_to("2.10.26"), broken_servers=False)


def test_a_lookup_waits_for_the_next_connection(server, find):
    """
    While disconnected, a lookup waits for the next connection and asks its server.
    """
    find("S.A")
    server.lane.state = LaneState.DOWN
    with pytest.raises(errors.DisconnectedError):
        find("S.A")
    server.reconnects = True
    assert find("S.A").epoch == 2
    assert len(server.asked) == 4


def test_a_subject_without_a_stream_is_looked_up_each_time(server, find):
    """
    A subject without a stream is looked up each time.
    """
    for _ in range(2):
        with pytest.raises(errors.NoStreamResponseError, match=r"X\.A"):
            find("X.A")
    assert server.asked == ["STREAM.NAMES"] * 2


def test_deleted_between_the_questions(server, find, monkeypatch):
    """
    A stream that is deleted between the two requests counts as missing.
    """
    api = server.api

    def vanishing(endpoint, body, deadline, **named):
        answer = api(endpoint, body, deadline, **named)
        server.streams.clear()
        return answer

    monkeypatch.setattr(server, "api", vanishing)
    with pytest.raises(errors.NoStreamResponseError):
        find("S.A")


@pytest.mark.parametrize(
    ("version", "level", "allowed", "broken", "error"),
    [
        (None, 0, True, False, errors.NotSupportedError),
        ("2.11.11", 1, True, False, errors.NotSupportedError),
        ("2.11.11", 1, True, True, errors.NotSupportedError),
        ("2.12.0", 2, True, False, errors.NotSupportedError),
        ("2.12.1", 2, True, False, errors.NotSupportedError),
        ("2.12.0", 2, False, True, errors.AtomicPublishDisabledError),
        ("2.12.0", 2, True, True, None),
        ("2.12.8", 3, True, False, None),
        ("2.15.1", 5, True, False, None),
        ("2.15.1", 5, False, False, errors.AtomicPublishDisabledError),
    ],
)
def test_which_streams_take_batches(server, find, version, level, allowed, broken, error):
    """
    Old servers never accept batches, faulty ones only with broken_servers.
    """
    metadata = {} if version is None else {"_nats.ver": version, "_nats.level": str(level)}
    server.streams["S"].update(metadata=metadata, allow_atomic=allowed)
    known = find("S.A")
    if error is None:
        require_atomic(known, connected_to("2.0.0"), broken_servers=broken)
        return
    with pytest.raises(error):
        require_atomic(known, connected_to("2.0.0"), broken_servers=broken)


def test_a_stream_without_acks_is_refused_at_its_lookup(server, find):
    """
    A stream without acks is refused, because a commit would time out.
    """
    server.streams["S"].update(allow_atomic=True, no_ack=True)
    with pytest.raises(errors.NotSupportedError, match="acks"):
        require_atomic(find("S.A"), connected_to("2.15.1"), broken_servers=False)


@pytest.mark.parametrize(("version", "shown"), [("2.12.8", "2.12.8"), (None, "2.10.26")])
def test_fast_ingest_needs_a_server(version, shown):
    """
    The error names the version of the stream's server, or that of the connected one.
    """
    known = SimpleNamespace(level=2, version=version)
    with pytest.raises(errors.NotSupportedError, match=r"2\.14") as caught:
        require_fast(known, connected_to("2.10.26"))
    assert caught.value.server == shown


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"allow_batched": False, "no_ack": False}, errors.FastPublishDisabledError),
        ({"allow_batched": True, "no_ack": True}, errors.NotSupportedError),
        ({"allow_batched": True, "no_ack": False}, None),
    ],
)
def test_fast_ingest_needs_a_stream(fields, error):
    """
    The stream must allow fast ingest and send acks.
    """
    known = SimpleNamespace(
        name="S", level=4, version="2.14.0", config=SimpleNamespace(allow_atomic=True, **fields)
    )
    with pytest.raises(error) if error else nullcontext():
        require_fast(known, connected_to("2.14.0"))
