"""
TLS, logins and several servers, on real servers. No secret is shown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import attrs
import celery
import kombu
import pytest
from celery import Celery
from celery.app.utils import bugreport
from kombu.utils.json import dumps
from waiting import free_port
from workers import WorkerProcess

from jetsync.devserver import DevServer
from jetsync_celery.links import of_connection, of_url, without_password

pytest.importorskip("helpers.certificates", reason="only in the repository")

from helpers.certificates import Authority, tls_block
from helpers.credentials import Operator, new_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD = "pa55;w0rd,of/ann@home:"
TOKEN = "t0ken-that-nobody-may-see"
ANN = {"timeout": 30, "user": "ann", "password": PASSWORD}


@attrs.frozen
class Login:
    """
    How to reach a server that refuses everyone else.
    """

    config: dict[str, Any]
    secret: str
    url_part: str = ""
    connect: dict[str, Any] = attrs.field(factory=dict)
    scheme: str = "jetstream"


def by_password(folder: Path) -> Login:
    """
    A user and a password in the URL.
    """
    return Login({"authorization": ANN}, PASSWORD, f"ann:{quote(PASSWORD, safe='')}@")


def by_token(folder: Path) -> Login:
    """
    A token in the URL.
    """
    return Login({"authorization": {"timeout": 30, "token": TOKEN}}, TOKEN, f":{TOKEN}@")


def by_option(folder: Path) -> Login:
    """
    A password in the options.
    """
    connect = {"user": "ann", "password": PASSWORD}
    return Login({"authorization": ANN}, PASSWORD, connect=connect)


def by_nkey(folder: Path) -> Login:
    """
    A seed of an NKey.
    """
    import nkeys

    pair, public = new_key(nkeys.PREFIX_BYTE_USER)
    seed = pair.seed.decode()
    config = {"authorization": {"timeout": 30, "users": [{"nkey": public}]}}
    return Login(config, seed, connect={"nkey_seed": seed})


def by_credentials(folder: Path) -> Login:
    """
    A file with credentials.
    """
    operator, path = Operator(), folder / "user.creds"
    secret = operator.credentials(path)
    return Login(operator.config, secret, connect={"credentials": str(path)})


def over_tls(folder: Path) -> Login:
    """
    TLS with an authority of our own, and a password.
    """
    authority = Authority(folder, "ours")
    config = {"authorization": ANN, "tls": tls_block(authority.issue("server"))}
    login = f"ann:{quote(PASSWORD, safe='')}@"
    return Login(config, PASSWORD, login, {"tls_ca": authority.path}, "jetstreams")


LOGINS = [by_password, by_token, by_option, by_nkey, by_credentials, over_tls]


@pytest.fixture(params=LOGINS, ids=lambda each: each.__name__)
def login(request: pytest.FixtureRequest, tmp_path: Path) -> Login:
    """
    Each way to log in.
    """
    found: Login = request.param(tmp_path)
    return found


def url_of(server: DevServer, login: Login) -> str:
    """
    Return the URL with the login.
    """
    return f"{login.scheme}://{login.url_part}127.0.0.1:{server.port}/shop"


@pytest.fixture
def app(login: Login) -> Iterator[Celery]:
    """
    An app that logs in.
    """
    with DevServer(config=login.config) as server:
        url = url_of(server, login)
        with Celery("test", broker=url, backend=url, set_as_current=False) as app:
            app.conf.broker_transport_options = {"connect": login.connect}
            app.conf.result_backend_transport_options = {"connect": login.connect}
            yield app
            app.backend.values.close()


@pytest.mark.live
def test_each_login_works_and_shows_no_secret(
    app: Celery, login: Login, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Tasks and results get through, and logs, URLs, reports and the answers of workers have no
    secret.
    """
    caplog.set_level(logging.DEBUG)
    app.send_task("a", (1,))
    with app.connection() as connection:
        message = connection.default_channel.basic_get("celery")
        assert message.headers["task"] == "a"
        message.ack()
        # What `inspect stats` answers with.
        answer = {name: each for name, each in connection.info().items() if name != "password"}
        shown = [
            connection.as_uri(),
            repr(connection),
            repr(connection.transport_options),
            repr(connection.transport.settings),
            dumps(answer),
        ]
    app.backend.store_result("a", 1, "SUCCESS")
    assert app.backend.get_result("a") == 1

    shown += [app.backend.as_uri(), bugreport(app), caplog.text]
    for text in shown:
        assert login.secret not in text
        assert quote(login.secret, safe="") not in text


@pytest.mark.live
def test_connections_with_equal_options_share_a_pool(app: Celery, login: Login) -> None:
    """
    Others have pools of their own, because kombu compares options by their repr.
    """
    pool = kombu.pools.connections[app.connection()]
    other = app.connection(transport_options={"connect": {**login.connect, "name": "other"}})
    used = app.connection()
    assert used.transport is not None

    assert kombu.pools.connections[app.connection()] is pool
    assert kombu.pools.connections[used.clone()] is kombu.pools.connections[used]
    assert kombu.pools.connections[other] is not pool
    kombu.pools.reset()


@pytest.mark.live
@pytest.mark.parametrize("given", ["ann:wr0ng@", ":wr0ng@", ""])
def test_the_error_of_a_refused_login_has_no_secret(
    given: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    It says that the server refuses the login.
    """
    caplog.set_level(logging.DEBUG)
    with DevServer(config={"authorization": ANN}) as server:
        url = f"jetstream://{given}127.0.0.1:{server.port}"
        connection = kombu.Connection(url, connect_timeout=2)
        with pytest.raises(connection.connection_errors) as raised:
            connection.connect()

    assert "uthori" in str(raised.value)
    assert "wr0ng" not in f"{raised.value} {raised.value.__cause__} {caplog.text}"


@pytest.mark.parametrize(
    "url",
    [
        "jetstream://s3cret@host",
        "jetstream://ann:s3c/ret@host",
        "jetstream://ann:s3,cret@host",
        "jetstream://ann:1/s3cret@host",
        "jetstream://ann:s3cret@host:port",
    ],
)
def test_errors_about_urls_show_no_secret(url: str) -> None:
    """
    A user without a password may be a token, and a password with special characters may look like
    another part of the URL.
    """
    with pytest.raises(ValueError, match="password") as raised:
        of_url(url, {})

    assert "s3c" not in str(raised.value)
    assert "ret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("jetstream://host:4222/a", "jetstream://host:4222/a"),
        ("jetstream://ann:s3cret@host/a", "jetstream://ann:**@host/a"),
        ("jetstream://:s3cret@host", "jetstream://:**@host"),
        ("jetstream://u:s3@a;jetstream://u:s3@b", "jetstream://u:**@a;jetstream://u:**@b"),
        ("jetstream://u:s3@a;u:s3@b", "jetstream://u:**@a;u:**@b"),
        ("jetstream://u:s3/cret@a", "jetstream://**"),
        ("jetstream://s3cret@a", "jetstream://**"),
    ],
)
def test_passwords_are_replaced_in_urls(url: str, shown: str) -> None:
    """
    If it is not clear what the password is, only the scheme is shown.
    """
    assert without_password(url) == shown


def test_several_urls_have_one_path() -> None:
    """
    Otherwise, a failover would lead to other queues.
    """
    urls = "jetstream://a/shop;jetstream://b"
    assert of_url("jetstream://a/shop;b", {}).prefix == "shop"
    with pytest.raises(ValueError, match="the same path, not celery and shop"):
        of_url(urls, {})
    with pytest.raises(ValueError, match="the same path"):
        of_connection(kombu.Connection(urls), {})


@pytest.mark.live
def test_a_worker_uses_tls_and_the_second_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its log and its statistics show no secret.
    """
    login = over_tls(tmp_path)
    with DevServer(config=login.config) as server:
        dead = f"{login.scheme}://{login.url_part}127.0.0.1:{free_port()}/shop"
        url = f"{dead};{url_of(server, login)}"
        options = {
            "broker_use_ssl": {"ca_certs": login.connect["tls_ca"]},
            "broker_connection_timeout": 1,
            "result_backend_transport_options": {"connect": login.connect},
        }
        app = Celery("program", broker=url, backend=url, set_as_current=False)
        app.conf.update(options)
        with WorkerProcess(url, "-P", "solo", **options) as worker:
            assert app.send_task("program.add", (1, 2)).get(timeout=60) == 3
            statistics = app.control.inspect(timeout=5, limit=1).stats()
            log = worker.stop()
        app.close()
        app.backend.values.close()

    assert statistics
    # Celery hides the further URLs since 5.7.
    shown = [log, repr(statistics)] if celery.VERSION >= (5, 7) else [log]
    for text in shown:
        assert PASSWORD not in text
        assert quote(PASSWORD, safe="") not in text


@pytest.mark.live
def test_a_worker_goes_on_when_its_server_of_a_cluster_dies() -> None:
    """
    Tasks that are sent while a member is dead run, whichever it was.
    """
    options = {
        "broker_transport_options": {"num_replicas": 3, "connect": {"reconnect_wait": 0.1}},
        "result_backend_transport_options": {"num_replicas": 3, "connect": {"reconnect_wait": 0.1}},
    }
    with DevServer(cluster=3) as cluster:
        url = ";".join(each.replace("nats://", "jetstream://") for each in cluster.urls)
        app = Celery("program", broker=url, backend=url, set_as_current=False)
        app.conf.update(options)
        with WorkerProcess(url, "-P", "solo", **options):
            assert app.send_task("program.add", (1, 2)).get(timeout=60) == 3
            # The first URL is the one that both use.
            cluster.kill(0)
            results = [app.send_task("program.add", (1, n)) for n in range(5)]
            assert [each.get(timeout=60) for each in results] == [1, 2, 3, 4, 5]
        app.close()
        app.backend.values.close()
