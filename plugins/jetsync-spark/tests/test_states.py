"""
Requests for the states of streams, without Spark.
"""

import contextlib
import operator
import types

import attrs
import pytest
from requests_to_server import asked
from streams_to_read import numbered

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.options import read_settings
from jetsync_spark.read import states
from jetsync_spark.read.options import ReadOptions
from jetsync_spark.read.states import StreamStates

pytestmark = pytest.mark.live


@contextlib.contextmanager
def family(js, prefix, count):
    """
    Make that many streams with 1, 2, 3 and so on messages.
    """
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(numbered(js, number + 1, prefix=prefix)) for number in range(count)
        ]


def states_of(stream):
    """
    Return the requests of a query that reads these streams.
    """
    return StreamStates(read_settings(ReadOptions, {"stream": stream}))


def ends(found):
    """
    Return the last sequence of each stream that was found, the least first.
    """
    last = {name: stream.cached_info.state.last_seq for name, stream in found.streams.items()}
    return dict(sorted(last.items(), key=operator.itemgetter(1)))


@pytest.fixture(scope="module")
def server():
    """
    A server of its own, so that the streams of other tests are not listed.
    """
    with DevServer() as made:
        yield made


@pytest.fixture
def client(server):
    """
    A client of this server.
    """
    with jetsync.connect(server.url) as made:
        yield made


@pytest.fixture
def js(client):
    """
    Its JetStream context.
    """
    return client.jetstream()


def test_many_streams_are_asked_for_with_one_request(js, client):
    """The states of many streams and the matches of a pattern need one request."""
    with family(js, "F", 12) as streams:
        names = [stream.name for stream in streams]
        wanted = {name: number + 1 for number, name in enumerate(names)}
        asks, found = states_of(",".join(names)), []
        assert len(asked(client, lambda: found.append(asks.ask(js, names)))) == 1
        assert ends(found[0]) == wanted
        asks = states_of("F*")
        # The names come first, to know that there are many.
        assert ends(asks.ask(js, (), discover=True)) == wanted
        with numbered(js, 3, prefix="F") as new:
            requests = asked(client, lambda: found.append(asks.ask(js, names, discover=True)))
            assert requests == ["$JS.API.STREAM.LIST"]
            assert ends(found[1]) == {**wanted, new.name: 3}
            assert found[1].matched == {*names, new.name}


def test_few_streams_are_asked_for_one_by_one(js, client):
    """A list would have all streams of the account."""
    with family(js, "F", 2) as streams:
        names = [stream.name for stream in streams]
        asks, found = states_of(",".join(names)), []
        requests = asked(client, lambda: found.append(asks.ask(js, names)))
        assert requests == [f"$JS.API.STREAM.INFO.{name}" for name in sorted(names)]
        assert ends(found[0]) == {names[0]: 1, names[1]: 2}
        assert found[0].matched is None


def test_a_large_account_is_not_listed(js, client, monkeypatch):
    """If a list needs more requests than it saves, streams are asked for one by one."""
    monkeypatch.setattr(states, "PAGE", 2)
    with family(js, "F", 5) as streams:
        names = [stream.name for stream in streams[1:]]
        asks = states_of(",".join(names))
        for _ in range(2):
            assert [*ends(asks.ask(js, names)).values()] == [2, 3, 4, 5]
        requests = asked(client, lambda: asks.ask(js, names))
        assert {request.split(".")[3] for request in requests} == {"INFO"}


def test_a_missing_stream(js):
    """A stream that does not exist is left out, unless each named one has to exist."""
    with family(js, "F", 5) as streams:
        names = [stream.name for stream in streams]
        asks = states_of(",".join([*names, "no_such"]))
        assert [*ends(asks.ask(js, [*names, "no_such"])).values()] == [1, 2, 3, 4, 5]
        with pytest.raises(jetsync.StreamNotFoundError, match="no_such"):
            asks.ask(js, [*names, "no_such"], strict=True)
        with pytest.raises(jetsync.StreamNotFoundError, match="alone"):
            states_of("alone").ask(js, ["alone"])


def test_a_stream_is_known_until_the_client_changes(js, client, server):
    """A stream that was found needs no other request, but only over the same connection."""
    with family(js, "F", 5) as streams:
        name = streams[0].name
        asks = states_of("F*")
        asks.ask(js, (), discover=True)
        assert asked(client, lambda: asks.handle(js, name)) == []
        with jetsync.connect(server.url) as other:
            assert asks.handle(other.jetstream(), name).name == name


def test_without_permission_to_list(monkeypatch):
    """A user who may not list streams asks for each, and does not try again."""
    config = (
        "authorization { users = [{user: admin, password: x}, {user: reader, password: x, "
        'permissions: {publish: {deny: "$JS.API.STREAM.LIST"}}}] }'
    )
    with (
        DevServer(config=config) as server,
        jetsync.connect(server.url, user="admin", password="x") as admin,
        jetsync.connect(server.url, user="reader", password="x") as reader,
        family(admin.jetstream(), "F", 5) as streams,
    ):
        asks, js = states_of("F*"), reader.jetstream()
        assert [*ends(asks.ask(js, (), discover=True)).values()] == [1, 2, 3, 4, 5]
        names = [stream.name for stream in streams]
        requests = asked(admin, lambda: asks.ask(js, names))
        assert requests == [f"$JS.API.STREAM.INFO.{name}" for name in sorted(names)]


def test_a_cluster_without_a_leader_of_its_metadata(js, client, monkeypatch):
    """If the list fails or is slow, streams are asked for one by one for a while."""

    def fails(*_, **__):
        raise jetsync.RequestTimeoutError("$JS.API.STREAM.LIST", 5.0)

    with family(js, "F", 5) as streams:
        names = [stream.name for stream in streams]
        asks = states_of(",".join(names))
        with monkeypatch.context() as patch:
            patch.setattr(jetsync.JetStream, "streams", fails)
            assert [*ends(asks.ask(js, names)).values()] == [1, 2, 3, 4, 5]
        assert len(asked(client, lambda: asks.ask(js, names))) == 5


def test_a_slow_list_may_lack_streams(js, client, monkeypatch):
    """A cluster leaves out streams that do not answer in time, so the names are requested too."""
    real = jetsync.JetStream.streams

    with family(js, "F", 5) as streams:
        names = [stream.name for stream in streams]
        monkeypatch.setattr(
            jetsync.JetStream,
            "streams",
            lambda *_: (each for each in real(js) if each.name != names[2]),
        )
        monkeypatch.setattr(states, "SLOW", 0.0)
        others = [*names[:2], *names[3:]]
        found = states_of(",".join([*others, "F*"])).ask(js, others, discover=True, strict=True)
        assert found.matched == {*names}
        assert [*ends(found).values()] == [1, 2, 3, 4, 5]


def test_a_stream_without_a_leader_is_asked_for(js, client, monkeypatch):
    """A list may have an old state of a stream without a leader, so the stream is asked."""
    real = jetsync.JetStream.streams

    with family(js, "F", 5) as streams:
        names = [stream.name for stream in streams]

        def leaderless(*given, **options):
            for stream in real(*given, **options):
                info = stream.cached_info
                if stream.name == names[2]:
                    info = attrs.evolve(info, cluster=jetsync.ClusterInfo(name="C"))
                yield types.SimpleNamespace(name=stream.name, cached_info=info)

        monkeypatch.setattr(jetsync.JetStream, "streams", leaderless)
        asks = states_of(",".join(names))
        requests = asked(client, lambda: asks.ask(js, names))
        assert f"$JS.API.STREAM.INFO.{names[2]}" in requests
        assert len(requests) == 2
