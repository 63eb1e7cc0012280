"""
The options of a connection on the command line, and the environment.
"""

from __future__ import annotations

import pytest

from jetsync.cli._connection import make_options
from jetsync.errors import ConfigurationError, InvalidArgumentError


class TestConnection:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch):
        """
        Start from an environment with a server and a login.
        """
        monkeypatch.delenv("NATS_CONTEXT", raising=False)
        monkeypatch.setenv("NATS_URL", "nats://one:4222")
        monkeypatch.setenv("NATS_USER", "ann")
        monkeypatch.setenv("NATS_PASSWORD", "secret")

    def test_the_environment_counts(self):
        """
        Without options, the environment variables apply.
        """
        options = make_options()

        assert options.server_list() == ["nats://one:4222"]
        assert (options.user, options.password) == ("ann", "secret")
        assert options.name == "jetsync command line"

    def test_options_go_over_the_environment(self):
        """
        The command line takes precedence over the environment.
        """
        options = make_options(
            servers="nats://two:4222", jetstream_domain="hub", tls_ca="ca.pem", timeout=1.5
        )

        assert options.server_list() == ["nats://two:4222"]
        assert options.jetstream_domain == "hub"
        assert options.tls_ca == "ca.pem"
        assert (options.connect_timeout, options.request_timeout) == (1.5, 1.5)

    @pytest.mark.parametrize(
        ("url", "server", "used"),
        [
            ("nats://one:4222", "nats://two:4222", False),
            ("nats://one:4222", "nats://one:4223", False),
            ("nats://one:4222", "nats://one,nats://two", False),
            ("nats://one:4222", "one", True),
            ("nats://one:4222", "nats://bob:b@one:4222", True),
            ("nats://one,nats://two", "nats://two:4222", True),
            ("", "nats://two:4222", True),
        ],
    )
    def test_a_login_belongs_to_the_server_of_its_source(self, monkeypatch, url, server, used):
        """
        Another server than that of NATS_URL does not get the login of the environment.
        """
        monkeypatch.setenv("NATS_URL", url)
        monkeypatch.setenv("NATS_CERT", "/cert")

        options = make_options(servers=server)

        found = (options.user, options.password, options.tls_cert)
        assert found == (("ann", "secret", "/cert") if used else (None, None, None))

    def test_a_context_of_the_environment_is_not_used_for_another_server(
        self, tmp_path, monkeypatch
    ):
        """
        The login of the context in NATS_CONTEXT does not go to another server, either.
        """
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setenv("NATS_CONTEXT", "prod")
        for variable in ("NATS_URL", "NATS_USER", "NATS_PASSWORD"):
            monkeypatch.delenv(variable)
        folder = tmp_path / "nats" / "context"
        folder.mkdir(parents=True)
        (folder / "prod.json").write_text('{"token": "t"}')

        assert make_options(servers="nats://two").token is None
        assert make_options(servers="nats://127.0.0.1").token == "t"
        assert make_options().server_list() == ["nats://127.0.0.1:4222"]

    def test_a_certificate_is_replaced_with_its_key(self, monkeypatch):
        """
        A certificate on the command line is not used with the key of the environment.
        """
        monkeypatch.setenv("NATS_CERT", "/cert")
        monkeypatch.setenv("NATS_KEY", "/key")
        monkeypatch.setenv("NATS_CA", "/ca")

        options = make_options(tls_cert="own.pem")

        assert (options.tls_cert, options.tls_key, options.tls_ca) == ("own.pem", None, "/ca")

    def test_a_login_is_replaced_as_a_whole(self):
        """
        A token on the command line replaces a user and password of the environment.
        """
        options = make_options(token="t")

        assert (options.token, options.user, options.password) == ("t", None, None)

    def test_a_user_alone_keeps_the_password(self):
        """
        A user on the command line keeps the password of the environment, where it is safer.
        """
        options = make_options(user="bob")

        assert (options.user, options.password) == ("bob", "secret")

    def test_a_context_replaces_the_environment(self, tmp_path, monkeypatch):
        """
        A context replaces all settings of the environment.
        """
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        folder = tmp_path / "nats" / "context"
        folder.mkdir(parents=True)
        (folder / "prod.json").write_text('{"url": "nats://prod:4222", "token": "t"}')

        options = make_options(context="prod", jetstream_domain="hub")

        assert options.server_list() == ["nats://prod:4222"]
        assert (options.user, options.token, options.jetstream_domain) == (None, "t", "hub")

    def test_bad_settings_are_refused(self, tmp_path, monkeypatch):
        """
        Options and contexts are checked as in a program.
        """
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

        with pytest.raises(ConfigurationError):
            make_options(context="missing")
        with pytest.raises(InvalidArgumentError):
            make_options(servers="http://one")
