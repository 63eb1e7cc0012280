"""
Logins that jetsync makes, sent to real servers over a plain socket.
"""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import pytest

import jetsync
from jetsync._io.login import make_login
from jetsync.devserver import DevServer
from jetsync.options import ConnectOptions

nkeys = pytest.importorskip("nkeys")

from helpers.credentials import Operator, new_key  # noqa: E402


def answer(url, **options):
    """
    Send the login that is made from options, and return the server's answer to the PING after it.
    """
    options = ConnectOptions(**{"servers": url, **options})
    parts = urlsplit(url)
    with (
        socket.create_connection((parts.hostname, parts.port), timeout=10) as connection,
        connection.makefile("rwb") as stream,
    ):
        info = json.loads(stream.readline().removeprefix(b"INFO "))
        login = make_login(options, url, info.get("nonce"))
        command = {"verbose": False, "protocol": 1, "lang": "test", "version": "1", **login.fields}
        stream.write(b"CONNECT %b\r\nPING\r\n" % json.dumps(command).encode())
        stream.flush()
        for line in stream:
            if not line.startswith(b"INFO"):
                return line.decode().strip()
    return "closed"


REFUSED = "-ERR 'Authorization Violation'"


@pytest.fixture(scope="module")
def key():
    """
    The key pair of a user.
    """
    return new_key(nkeys.PREFIX_BYTE_USER)


@pytest.fixture(scope="module")
def users(key):
    """
    A server with a user whose name and password need escapes, one without a password, and a key.
    """
    login = [
        {"user": "a@b", "password": "p:/?#[]@ %,"},
        {"user": "open", "password": ""},
        {"nkey": key[1]},
    ]
    with DevServer(
        jetstream=False, config={"authorization": {"timeout": 30, "users": login}}
    ) as server:
        yield server


def test_connect_uses_the_login_of_the_environment_for_its_server_only(monkeypatch):
    """
    Without a server, connect uses the login of the environment. With one, it sends none.
    """
    config = "authorization { user: ann, password: secret }"
    with DevServer(jetstream=False, config=config) as server:
        for name, value in {"URL": server.url, "USER": "ann", "PASSWORD": "secret"}.items():
            monkeypatch.setenv(f"NATS_{name}", value)
        for options in (None, ConnectOptions(name="me")):
            jetsync.connect(options=options).close()
        with pytest.raises(jetsync.AuthenticationError, match="sent no user, token or key"):
            jetsync.connect(server.url)
        with pytest.raises(jetsync.AuthenticationError):
            jetsync.connect(token="t")


class TestUsers:
    def test_password_in_the_url(self, users):
        """
        The percent-encoding of user and password is decoded.
        """
        login = "a%40b:p%3A%2F%3F%23%5B%5D%40%20%25%2C@"
        assert answer(users.url.replace("//", f"//{login}")) == "PONG"
        assert answer(users.url.replace("//", "//a%40b:p@")) == REFUSED

    def test_without_password(self, users):
        """
        A user name alone is sent with an empty password, which this user has.
        """
        assert answer(users.url, user="open") == "PONG"
        assert answer(users.url, user="a@b") == REFUSED

    def test_user_and_password_may_be_callables(self, users):
        """
        A user and a password that callables return are sent.
        """
        login = {"user": lambda: "a@b", "password": lambda: "p:/?#[]@ %,"}
        assert answer(users.url, **login) == "PONG"

    def test_signatures_of_seeds_and_callables_are_accepted(self, users, key):
        """
        Signatures made from the seed and by a callable are accepted.
        """
        pair, public = key
        assert answer(users.url, nkey_seed=pair.seed.decode()) == "PONG"
        assert answer(users.url, nkey=public, nkey_signature=pair.sign) == "PONG"
        assert answer(users.url, nkey=public, nkey_signature=lambda _nonce: bytes(64)) == REFUSED

    def test_server_without_keys(self, nats_server, key):
        """
        A server without a login and without nkeys accepts a client that has one.
        """
        assert answer(nats_server.url, nkey_seed=key[0].seed.decode()) == "PONG"


class TestTokens:
    def test_a_token_is_accepted_from_options_callable_and_url(self):
        """
        A token is accepted from the options, a callable and the URL.
        """
        config = {"authorization": {"timeout": 30, "token": "t/o@k"}}
        with DevServer(jetstream=False, config=config) as server:
            assert answer(server.url, token="t/o@k") == "PONG"
            assert answer(server.url, token=lambda: "t/o@k") == "PONG"
            assert answer(server.url.replace("//", "//t%2Fo%40k@")) == "PONG"
            assert answer(server.url, token="t") == REFUSED


class TestCredentials:
    def test_credentials_are_accepted_in_every_form(self, tmp_path):
        """
        Credentials are accepted from files with both kinds of line ends, callables and a signer.
        """
        operator = Operator()
        path = tmp_path / "user.creds"
        seed = operator.credentials(path)
        text = path.read_text()
        windows = tmp_path / "windows.creds"
        windows.write_bytes(text.replace("\n", "\r\n").encode())
        signer = nkeys.from_seed(bytearray(seed.encode())).sign
        with DevServer(config=operator.config) as server:
            for given in (path, windows, lambda: path, lambda: text, text.encode):
                assert answer(server.url, credentials=given) == "PONG"
            without_seed = lambda: text.replace(seed, "")  # noqa: E731
            assert answer(server.url, credentials=without_seed, nkey_signature=signer) == "PONG"
            assert answer(server.url, credentials=path, token="beside it") == "PONG"
            assert answer(server.url) == REFUSED
