"""
What the servers of a cluster say about themselves to a user of the system account.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import jetsync
from helpers.waiting import CLUSTER_CLIENT, blocked, eventually, timed
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

SYSTEM = {"user": "sys", "password": "s", **CLUSTER_CLIENT}
APP = {"user": "app", "password": "a", **CLUSTER_CLIENT}
CONFIG = {
    "accounts": {
        "$SYS": {"users": [{"user": "sys", "password": "s"}]},
        "APP": {"jetstream": "enabled", "users": [{"user": "app", "password": "a"}]},
    },
    # For what checks that the servers are ready.
    "no_auth_user": "app",
}
MODELS = {
    "varz": jetsync.Varz,
    "statsz": jetsync.Statsz,
    "healthz": jetsync.Healthz,
    "connz": jetsync.Connz,
    "subsz": jetsync.Subsz,
    "jsz": jetsync.Jsz,
}
NAMES = ["c-0", "c-1", "c-2"]


@pytest.fixture(scope="module")
def cluster():
    """
    Three servers with a system account.
    """
    with DevServer(cluster=3, name="c", config=CONFIG) as servers:
        yield servers


@pytest.fixture(scope="module")
def app(cluster):
    """
    A client of an ordinary account, with a replicated stream and a consumer.
    """
    with jetsync.connect(cluster.url, name="app", **APP) as client:
        js = client.jetstream()
        stream = js.create_stream("ORDERS", subjects=["orders.>"], num_replicas=3)
        stream.create_consumer("worker")
        js.publish("orders.1", b"x")
        yield client


@contextmanager
def waiting_for_answers(cluster):
    """
    Give a client, its proxy and a call that waits for answers, which the proxy keeps back.
    """
    with (
        CutProxy(cluster.urls[0]) as proxy,
        jetsync.connect(proxy.url, **SYSTEM) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.flush()
        proxy.pause("to_client")
        waiting = pool.submit(client.system(timeout=60).varz)
        blocked(pool)
        yield client, proxy, waiting


@pytest.fixture
def client(cluster):
    """
    A client of the system account.
    """
    with jetsync.connect(cluster.url, **SYSTEM) as client:
        yield client


class TestAll:
    @pytest.mark.parametrize("name", MODELS)
    def test_all_servers_answer(self, client, app, name):
        """
        Each of the three servers answers each request once.
        """
        reports = getattr(client.system(), name)()
        assert [each.server.name for each in reports] == NAMES
        assert {type(each) for each in reports} == {MODELS[name]}
        assert {each.server.cluster for each in reports} == {"c"}
        assert len({each.server.id for each in reports}) == 3
        assert client.statistics().subscriptions <= 2

    @pytest.mark.parametrize("name", MODELS)
    def test_one_server_answers(self, client, app, name):
        """
        The server with the id answers alone.
        """
        [report] = getattr(client.system(), name)(client.server.server_id)
        assert report.server.id == client.server.server_id
        assert report.server.ver == client.server.version

    def test_the_number_of_servers(self, client):
        """
        If the number of servers is known, no call waits for another answer.
        """
        with timed(0.0, 5.0):
            assert len(client.system(servers=3, stall=60, timeout=60).varz()) == 3
            assert len(client.system(servers=2, stall=60, timeout=60).varz()) == 2

    def test_a_server_that_is_stopped(self):
        """
        After one of three servers has stopped, the other two answer.
        """
        with (
            DevServer(cluster=3, name="c", config=CONFIG) as cluster,
            jetsync.connect(cluster.urls[0], **SYSTEM) as client,
        ):
            gone = client.system().varz()[2].server.id
            cluster.kill(2)
            assert eventually(
                lambda: [each.server.name for each in client.system().healthz()] == NAMES[:2]
            )
            with pytest.raises(jetsync.ServerNotFoundError, match="another id") as caught:
                client.system().varz(gone)
            assert caught.value.server_id == gone


class TestReports:
    def test_varz(self, client, cluster):
        """
        General information, with the fields that jetsync does not know.
        """
        report = client.system().varz()[0]
        assert report.version == cluster.version
        assert report.system_account == "$SYS"
        assert report.mem > 0
        assert report.cpu >= 0.0
        assert report.now >= report.start
        assert report.extra["auth_required"] is True
        assert report.server.jetstream
        assert "flags" in report.server.extra

    def test_statsz(self, client):
        """
        Statistics, with the traffic.
        """
        report = client.system().statsz()[0]
        assert report.active_servers == 3
        assert report.received.msgs > 0
        assert report.sent.bytes > 0

    def test_healthz(self, client, app):
        """
        A healthy server says so, and one without the stream says why it is not.
        """
        system = client.system()
        assert eventually(lambda: all(each.ok for each in system.healthz()))
        report = system.healthz(account="APP", stream="MISSING")[0]
        assert (report.ok, report.status_code) == (False, 404)
        assert "MISSING" in report.error
        assert system.healthz(js_server_only=True, js_enabled_only=True)[0].ok

    def test_connz(self, client, app):
        """
        The connections of an account, with their subjects if asked for.
        """
        with app.subscribe("here"):
            app.flush()
            reports = client.system().connz(account="APP", subscriptions=True)
            [found] = [each for report in reports for each in report.connections]
        assert (found.name, found.account, found.authorized_user) == ("app", "APP", "app")
        assert "here" in found.subscriptions_list
        assert found.lang == "python3"
        assert found.start <= found.last_activity
        [report] = client.system().connz(client.server.server_id, sort="cid", limit=1)
        assert (report.limit, report.offset, len(report.connections)) == (1, 0, 1)
        [one] = client.system().connz(client.server.server_id, cid=client.server.client_id)
        assert [each.authorized_user for each in one.connections] == ["sys"]

    def test_subsz(self, client, app):
        """
        The subscriptions that match a subject.
        """
        with app.subscribe("there.*", queue="q"):
            app.flush()
            system = client.system()
            assert system.subsz()[0].subscriptions_list == []
            found = eventually(
                lambda: [
                    each
                    for report in system.subsz(subscriptions=True, account="APP", test="there.x")
                    for each in report.subscriptions_list
                ]
            )
        assert {(each.subject, each.qgroup, each.account) for each in found} == {
            ("there.*", "q", "APP")
        }

    def test_jsz(self, client, app):
        """
        Accounts, streams, consumers and configurations, if asked for.
        """
        plain = client.system().jsz()[0]
        assert (plain.streams, plain.consumers, plain.messages) == (1, 1, 1)
        assert plain.account_details == []
        assert plain.meta_cluster.leader in NAMES
        report = client.system().jsz(account="APP", streams=True, consumers=True, config=True)[0]
        [account] = report.account_details
        [stream] = account.stream_detail
        assert (account.name, stream.name) == ("APP", "ORDERS")
        assert stream.config.subjects == ["orders.>"]
        assert stream.state.messages == 1
        assert [each.name for each in stream.consumer_detail] == ["worker"]
        [leader] = client.system().jsz(leader_only=True)
        assert leader.server.name == plain.meta_cluster.leader


class TestErrors:
    @pytest.mark.parametrize("name", MODELS)
    @pytest.mark.parametrize("is_one", [False, True], ids=["all", "one"])
    def test_another_account(self, app, name, is_one):
        """
        A user of another account gets an error with advice, at once.
        """
        arguments = [app.server.server_id] if is_one else []
        with (
            timed(0.0, 5.0),
            pytest.raises(jetsync.NotSystemAccountError, match="user of the system account"),
        ):
            getattr(app.system(), name)(*arguments)

    def test_an_unknown_server(self, client):
        """
        If no server has the id, the error says so.
        """
        with pytest.raises(jetsync.ServerNotFoundError, match="'NOPE'"):
            client.system().varz("NOPE")

    def test_a_request_that_servers_refuse(self, client):
        """
        A server's error is raised.
        """
        for arguments in ([], [client.server.server_id]):
            with pytest.raises(jetsync.ApiError, match="invalid sorting option"):
                client.system().connz(*arguments, sort="size")

    @pytest.mark.parametrize(
        ("answer", "text"),
        [
            ({"error": {"code": 500, "description": "not me"}}, "not me"),
            ({"server": {"name": "proud"}, "error": {"code": 500}}, "proud"),
            ({"server": {"name": "x"}}, "has no data"),
            (["no object"], "not a JSON object"),
        ],
    )
    def test_a_server_that_alone_refuses(self, client, caplog, answer, text):
        """
        The answers of the other servers are returned, and a refusal or a wrong answer is logged.
        """
        with client.subscribe("$SYS.REQ.SERVER.PING.VARZ") as requests:
            client.flush()
            with ThreadPoolExecutor(1) as pool:
                asking = pool.submit(client.system(servers=4, stall=20, timeout=30).varz)
                client.publish(requests.next(timeout=30).reply, json.dumps(answer))
                reports = asking.result(60)
        assert [each.server.name for each in reports] == NAMES
        assert "report_refused" in caplog.text
        assert text in caplog.text

    def test_silence(self):
        """
        Without an answer, the call ends after its timeout.
        """
        with (
            DevServer(jetstream=False, config=CONFIG) as server,
            jetsync.connect(server.url, **SYSTEM) as alone,
        ):
            server.pause()
            for arguments in ([], [alone.server.server_id]):
                with timed(0.2, 1.0), pytest.raises(jetsync.RequestTimeoutError):
                    alone.system(timeout=0.2).varz(*arguments)
            server.resume()

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("varz", {"server_id": "a.b"}),
            ("varz", {"server_id": ""}),
            ("varz", {"server_id": 5}),
            ("healthz", {"stream": 5}),
            ("healthz", {"js_server_only": 1}),
            ("connz", {"limit": 0}),
            ("connz", {"offset": -1}),
            ("connz", {"cid": "1"}),
            ("connz", {"subscriptions": "yes"}),
            ("subsz", {"test": b"a"}),
            ("jsz", {"account": 5}),
            ("jsz", {"streams": None}),
        ],
    )
    def test_wrong_arguments_send_nothing(self, client, name, arguments):
        """
        Wrong arguments are refused before anything is sent.
        """
        before = client.statistics()
        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
            getattr(client.system(), name)(**arguments)
        assert client.statistics() == before

    def test_a_lost_connection(self, cluster):
        """
        If the connection is lost before all answers have arrived, the call raises that.
        """
        with waiting_for_answers(cluster) as (_, proxy, waiting):
            proxy.cut()
            assert type(waiting.exception(30)) is jetsync.ConnectionLostError

    def test_closing_the_client(self, cluster):
        """
        If another thread closes the client, the call raises that, and not that the time is over.
        """
        with waiting_for_answers(cluster) as (client, _, waiting):
            client.close()
            error = waiting.exception(30)
        assert type(error) is jetsync.ConnectionClosedError
        assert error.sent is True

    @pytest.mark.parametrize(
        "arguments", [{"timeout": -1}, {"stall": 0}, {"servers": 0}, {"servers": 1.5}]
    )
    def test_wrong_limits(self, client, arguments):
        """
        The limits of the calls are checked when the object is made.
        """
        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
            client.system(**arguments)


@pytest.mark.parametrize("version", ["2.10.26", "2.12.8"])
@pytest.mark.versions
def test_older_servers(version):
    """
    Older servers answer too, with fewer fields.
    """
    with (
        DevServer(version, config=CONFIG) as server,
        jetsync.connect(server.url, **SYSTEM) as client,
    ):
        for name, model in MODELS.items():
            for arguments in ([], [client.server.server_id]):
                [report] = getattr(client.system(servers=1), name)(*arguments)
                assert (type(report), report.server.ver) == (model, version)
