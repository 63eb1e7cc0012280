from __future__ import annotations

import base64
import copy
import datetime as dt
import functools
import json
import pickle
import ssl
import traceback
from pathlib import Path
from urllib.parse import quote

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetsync import options as options_module
from jetsync.errors import ConfigurationError, InvalidArgumentError, InvalidTypeError
from jetsync.options import DEFAULT_URL, ConnectOptions, completed
from jetsync.values.server_urls import user_info

SEED = "SU" + "A" * 56
PUBLIC = "U" + "A" * 55


def secret_of_module():
    """A function of a module, which pickle can store."""
    return "hunter2"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """Remove the variables of the machine."""
    for name in (
        "URL",
        "USER",
        "PASSWORD",
        "TOKEN",
        "CREDS",
        "NKEY",
        "CA",
        "CERT",
        "KEY",
        "CONTEXT",
    ):
        monkeypatch.delenv(f"NATS_{name}", raising=False)


@pytest.fixture
def contexts(tmp_path, monkeypatch):
    """Return a function that saves a context as the nats command line does."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)

    def save(name, **fields):
        blank = dict.fromkeys(("description", "url", "token", "user", "creds", "nkey", "nsc"), "")
        (folder / f"{name}.json").write_text(json.dumps({**blank, **fields}))
        return folder.parent

    return save


class TestServers:
    def test_the_default_is_the_local_server(self):
        """The default is the local server."""
        assert ConnectOptions().server_list() == [DEFAULT_URL] == ["nats://127.0.0.1:4222"]

    def test_nats_url_is_used_only_without_servers(self, monkeypatch):
        """$NATS_URL is used only without servers."""
        monkeypatch.setenv("NATS_URL", "a:1,b:2")
        assert ConnectOptions().server_list() == ["nats://a:1", "nats://b:2"]
        assert ConnectOptions(servers="c").server_list() == ["nats://c:4222"]
        monkeypatch.setenv("NATS_URL", "http://a")
        with pytest.raises(ConfigurationError, match="NATS_URL"):
            ConnectOptions().server_list()

    @pytest.mark.parametrize(
        "servers", ["nats://app:a/b@h", "nats://app:a,b@h", "nats://app:a[b@h", "nats://app:a b@h"]
    )
    def test_special_characters(self, servers):
        """If a password has a special character, the error says how to encode it."""
        with pytest.raises(InvalidArgumentError, match=r"percent-encode.*urllib.parse.quote"):
            ConnectOptions(servers=servers)

    def test_two_halves_of_a_login(self):
        """A password is not combined with the user of a URL, and the error says that."""
        with pytest.raises(InvalidArgumentError, match="not combined"):
            ConnectOptions(servers="nats://app@h", password="x")

    @pytest.mark.parametrize(
        "fields",
        [
            {"tls": ssl.create_default_context()},
            {"tls_ca": "a"},
            {"tls_cert": "a"},
            {"tls_hostname": "a"},
            {"tls_first": True},
        ],
        ids=lambda fields: next(iter(fields)),
    )
    def test_websocket_without_tls(self, fields, monkeypatch):
        """An option that asks for TLS is refused with ws://, also from $NATS_URL."""
        name = next(iter(fields))
        for servers in ("ws://h", ["wss://h", "ws://h"]):
            with pytest.raises(InvalidArgumentError, match=f"{name} .*use wss://"):
                ConnectOptions(servers=servers, **fields)
        options = ConnectOptions(servers="wss://h", **fields).evolve(servers=None)
        monkeypatch.setenv("NATS_URL", "ws://h")
        with pytest.raises(ConfigurationError, match=r"\$NATS_URL: .*use wss://"):
            options.server_list()

    @pytest.mark.parametrize("servers", ["wss://a,ws://b", "ws://a,wss://b", "ws://a,wss://a"])
    def test_websockets_with_and_without_tls_are_not_mixed(self, servers, monkeypatch):
        """A wss:// URL asks for TLS, so ws:// URLs are refused with it, also from $NATS_URL."""
        with pytest.raises(InvalidArgumentError, match="use wss:// for all servers"):
            ConnectOptions(servers=servers)
        monkeypatch.setenv("NATS_URL", servers)
        with pytest.raises(ConfigurationError, match=r"\$NATS_URL: .*use wss:// for all servers"):
            ConnectOptions().server_list()

    @pytest.mark.parametrize(
        ("servers", "urls"),
        [
            ("h", ["nats://h:4222"]),
            ("h:1", ["nats://h:1"]),
            ("nats://h:1", ["nats://h:1"]),
            ("nats://h/", ["nats://h:4222/"]),
            ("tls://h", ["tls://h:4222"]),
            ("ws://h", ["ws://h:80"]),
            ("wss://h/path", ["wss://h:443/path"]),
            (" a , b:2 ,", ["nats://a:4222", "nats://b:2"]),
            (["a", "tls://b,c"], ["nats://a:4222", "tls://b:4222", "nats://c:4222"]),
            (("a", "a"), ["nats://a:4222"]),
            ("nats://user:pass@h", ["nats://user:pass@h:4222"]),
            ("token@h:1", ["nats://token@h:1"]),
            ("nats://[::1]", ["nats://[::1]:4222"]),
        ],
    )
    def test_servers_in_all_forms_become_complete_urls_once(self, servers, urls):
        """One URL, several with commas and lists become complete URLs, each once."""
        assert ConnectOptions(servers=servers).server_list() == urls

    @pytest.mark.parametrize(
        "servers",
        [
            *("", " , ", [], [""], "http://h", "nats://", "nats://:4222", "h:0", "h:x", "h:70000"),
            *("a b", "nats://h/path", "ws://a,nats://b", ["wss://a", "b"], "nats://[::1"),
            *(
                "nats://t:1?x@h",
                "nats://t:1#x@h",
                "ws://t:1#x@h",
                "ws://t/x@h",
                "h\x00",
                "nats://%ff@h",
            ),
        ],
    )
    def test_invalid_urls_and_mixed_transports_are_refused(self, servers):
        """Invalid URLs, and a mix of WebSocket and plain URLs, are refused."""
        with pytest.raises(InvalidArgumentError):
            ConnectOptions(servers=servers)

    @pytest.mark.parametrize(
        ("servers", "shown"),
        [
            ("127.0.0.1:notaport", "port of host '127.0.0.1' must be a number from 1 to 65535"),
            ("localhost:s3cret", r"bad server in 'localhost:\*\*\*': the port of host"),
            ("nats://a:1,b:70000", "the port must be"),
            (["a:1", "nats://b:0"], "port of host 'b' must be"),
            ("nats://app:a@h:x", "the port must be"),
            ("nats://[::1", "not a URL"),
        ],
    )
    def test_wrong_port(self, servers, shown):
        """
        The error names the host whose port is invalid, unless that may be part of a login. A text
        instead of a port may be a password, so it is not shown.
        """
        with pytest.raises(InvalidArgumentError, match=shown) as caught:
            ConnectOptions(servers=servers)
        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize("servers", [5, [5], b"h", {"a"}])
    def test_servers_that_are_not_text_are_refused(self, servers):
        """Servers that are not text raise InvalidTypeError."""
        with pytest.raises(InvalidTypeError):
            ConnectOptions(servers=servers)

    def test_list_is_copied(self):
        """Changing the list afterwards does not change the options."""
        servers = ["a"]
        options = ConnectOptions(servers=servers)
        servers.append("b")
        assert options.server_list() == ["nats://a:4222"]


class TestFields:
    def test_options_have_the_documented_defaults(self):
        """The documented defaults."""
        options = ConnectOptions()
        assert (options.connect_timeout, options.request_timeout) == (5.0, 5.0)
        assert (options.drain_timeout, options.max_reconnects) == (30.0, -1)
        assert (options.retry_on_failed_connect, options.echo, options.tls_first) == (
            False,
            True,
            False,
        )
        assert options.ignore_discovered_servers is False
        assert (options.loop, options.plugins, options.inbox_prefix) == ("auto", (), "_INBOX")

    def test_durations_of_options_become_float_seconds(self):
        """Durations accept a timedelta, and are float seconds."""
        options = ConnectOptions(connect_timeout=dt.timedelta(minutes=1), ping_interval=2)
        assert (options.connect_timeout, options.ping_interval) == (60.0, 2.0)
        assert ConnectOptions(reconnect_wait=0).reconnect_wait == 0.0
        waits = ConnectOptions(reconnect_jitter=dt.timedelta(seconds=3), max_reconnect_wait=4)
        assert (waits.reconnect_jitter, waits.max_reconnect_wait) == (3.0, 4.0)
        assert ConnectOptions().reconnect_jitter is None

    def test_a_tilde_in_a_path_means_the_home_directory(self):
        """Paths are text or Path objects, and a tilde means the home directory."""
        options = ConnectOptions(credentials=Path("a.creds"), tls_ca="~/ca.pem")
        assert options.credentials == "a.creds"
        assert options.tls_ca == str(Path.home() / "ca.pem")

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"connect_timeout": 0}, InvalidArgumentError),
            ({"request_timeout": -1}, InvalidArgumentError),
            ({"drain_timeout": "5"}, InvalidTypeError),
            ({"reconnect_wait": -1}, InvalidArgumentError),
            ({"max_reconnect_wait": None}, InvalidTypeError),
            ({"reconnect_jitter": -1}, InvalidArgumentError),
            ({"reconnect_jitter": "1"}, InvalidTypeError),
            ({"choose_server": "nats://h"}, InvalidTypeError),
            ({"ping_interval": None}, InvalidTypeError),
            ({"max_reconnects": -2}, InvalidArgumentError),
            ({"max_reconnects": 1.5}, InvalidTypeError),
            ({"max_outstanding_pings": 0}, InvalidArgumentError),
            ({"echo": 1}, InvalidTypeError),
            ({"tls_first": "yes"}, InvalidTypeError),
            ({"loop": "trio"}, InvalidArgumentError),
            ({"inbox_prefix": "a.>"}, InvalidArgumentError),
            ({"inbox_prefix": "a."}, InvalidArgumentError),
            ({"jetstream_domain": "a.b"}, InvalidArgumentError),
            ({"jetstream_domain": "a", "jetstream_prefix": "b"}, InvalidArgumentError),
            ({"password": "p"}, InvalidArgumentError),
            ({"user": ""}, InvalidArgumentError),
            ({"token": 5}, InvalidTypeError),
            ({"tls_key": "k"}, InvalidArgumentError),
            ({"tls": True}, InvalidTypeError),
            ({"credentials": ""}, InvalidArgumentError),
            ({"credentials": 5}, InvalidTypeError),
            ({"plugins": "retry"}, InvalidTypeError),
            ({"plugins": 5}, InvalidTypeError),
            ({"credentials": SEED}, InvalidArgumentError),
            ({"credentials": "eyJ0.eyJ0.c2ln"}, InvalidArgumentError),
            ({"password": str}, InvalidArgumentError),
            ({"nkey": PUBLIC}, InvalidArgumentError),
            ({"nkey": SEED, "nkey_signature": bytes}, InvalidArgumentError),
            ({"nkey": 5, "nkey_signature": bytes}, InvalidArgumentError),
            ({"nkey_signature": bytes}, InvalidArgumentError),
            ({"nkey_signature": bytes, "nkey_seed": SEED}, InvalidArgumentError),
            ({"nkey": PUBLIC, "nkey_signature": b""}, InvalidTypeError),
            ({"nkey": PUBLIC, "nkey_signature": bytes, "nkey_seed": SEED}, InvalidArgumentError),
            ({"nkey": PUBLIC, "nkey_signature": bytes, "credentials": "c"}, InvalidArgumentError),
            ({"retry_refused_logins": 1}, InvalidTypeError),
            ({"ignore_discovered_servers": 1}, InvalidTypeError),
        ],
    )
    def test_an_invalid_option_is_named(self, fields, error):
        """Invalid options raise an error that names the option."""
        with pytest.raises(error) as caught:
            ConnectOptions(**fields)
        assert caught.value.argument

    def test_tls_twice(self):
        """A context together with file names is refused."""
        context = ssl.create_default_context()
        with pytest.raises(InvalidArgumentError, match="excludes"):
            ConnectOptions(tls=context, tls_ca="ca.pem")

    def test_every_field_is_documented(self):
        """Each field has a text below it."""
        text = Path(options_module.__file__).read_text(encoding="utf-8")
        for field in attrs.fields(ConnectOptions):
            after = text.split(f"\n    {field.name}: ")[-1]
            assert '"""' in after.split("\n\n")[0], field.name


class TestValue:
    def test_options_do_not_change(self):
        """Options do not change."""
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            ConnectOptions().name = "x"

    def test_options_come_back_from_pickle_equal(self):
        """Options come back from pickle equal."""
        options = ConnectOptions(
            servers=["a", "b"],
            user="u",
            password="p",
            nkey_seed=SEED,
            plugins=["retry"],
            tls_ca="ca",
        )
        assert pickle.loads(pickle.dumps(options)) == options

    def test_ssl_context_can_not_be_pickled(self):
        """Options with an SSLContext can be copied. The error of pickling suggests a way."""
        options = ConnectOptions(tls=ssl.create_default_context())
        with pytest.raises(ConfigurationError, match="tls_ca"):
            pickle.dumps(options)
        assert copy.copy(options) == copy.deepcopy(options) == options

    def test_options_with_callables_can_be_compared_and_copied(self):
        """Options with callables can be compared, copied and evolved."""
        login = {"user": str, "password": str, "token": str, "credentials": str}
        options = ConnectOptions(**login, nkey_signature=bytes)
        assert options == ConnectOptions(**login, nkey_signature=bytes) == copy.copy(options)
        assert hash(options) == hash(copy.copy(options))
        assert options != options.evolve(token=repr)
        assert options.evolve(name="a").user is str

    def test_callables_and_pickle(self):
        """Functions of modules can be pickled. For others, the error names the option."""
        options = ConnectOptions(token=len, credentials=len)
        assert pickle.loads(pickle.dumps(options)) == options
        local = lambda: "hunter2"  # noqa: E731
        for fields in (
            {"user": local},
            {"user": "u", "password": local},
            {"token": functools.partial(local, "hunter2")},
            {"credentials": local},
            {"nkey": PUBLIC, "nkey_signature": local},
        ):
            with pytest.raises(ConfigurationError, match=f"callable in {list(fields)[-1]}") as e:
                pickle.dumps(ConnectOptions(**fields))
            assert "hunter2" not in "".join(traceback.format_exception(e.value)[:-1])

    def test_repr_of_callables(self):
        """The repr of a callable is not shown, because it may contain a secret."""
        secret = functools.partial(str, "hunter2")
        login = {"user": secret, "password": secret, "token": secret, "credentials": secret}
        shown = repr(ConnectOptions(**login, nkey_signature=secret))
        assert "hunter2" not in shown
        assert shown.count("=<callable>") == 5

    def test_evolving_options_changes_and_checks_a_copy(self):
        """Evolving changes the given fields of a copy, and checks them."""
        options = ConnectOptions(name="a", servers="h")
        assert options.evolve(name="b") == ConnectOptions(name="b", servers="h")
        assert options.name == "a"
        with pytest.raises(InvalidArgumentError):
            options.evolve(connect_timeout=-1)
        with pytest.raises(InvalidTypeError, match="conect_timeout"):
            options.evolve(conect_timeout=1)

    def test_repr_shows_no_secret(self):
        """Password, token, seed and the user part of URLs are not in the repr."""
        secret = "hunter2"
        for options in (
            ConnectOptions(user="app", password=secret),
            ConnectOptions(token=secret),
            ConnectOptions(nkey_seed=secret),
            ConnectOptions(servers=f"nats://app:{secret}@h:1"),
            ConnectOptions(servers=[f"nats://{secret}@h:1", f"app:{secret}@h:2"]),
        ):
            assert secret not in repr(options)
            assert "***" in repr(options)
        assert "h:1" in repr(ConnectOptions(servers=f"nats://app:{secret}@h:1"))

    @pytest.mark.parametrize(
        "fields",
        [
            {"servers": "nats://app:hunter2@h:x"},
            {"servers": "nats://app:hunter2@h:1,http://b"},
            {"servers": "nats://app:hun,hunter2@h:1"},
            {"credentials": "-----BEGIN NATS USER JWT-----\nhunter2\n"},
            {"token": b"hunter2"},
            {"password": "hunter2"},
        ],
    )
    def test_errors_show_no_secret(self, fields):
        """Errors do not contain values that may be secret, not even as their cause."""
        with pytest.raises((InvalidArgumentError, InvalidTypeError)) as caught:
            ConnectOptions(**fields)
        assert "hunter2" not in repr(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


FORMS = (
    "nats://u:{}@h:1",
    "nats://{}@h:1",
    "nats://u:{}",
    "nats://u:{}@",
    "nats://{}@",
    "tls://u:{}@h/path",
    "//u:{}@h",
    "u:{}@h",
    "u:{}",
    "{}@h",
    "nats:{}",
    "http://u:{}@h",
    "ws://h?token={}",
    "wss://h:1/path?a=b&token={}#x",
    "wss://u:{0}@h?token={0}",
    "wss://h#{}",
    "nats://a:1,nats://u:{}@b:1",
    "a:1,u:{}@b:1",
    "nats://u:{}@h:1?x",
    "nats://u:{}@h:x",
    "nats://u:{}@[::1",
)
"""Values of ``servers`` that contain a secret, well-formed or not."""


class TestSecretUrls:
    @staticmethod
    def everything(make):
        """Return the repr and traceback of the options or of their error."""
        try:
            options = make()
        except (InvalidArgumentError, ConfigurationError) as error:
            texts = [repr(error), repr(vars(error)), *traceback.format_exception(error)]
            return "\n".join(texts)
        return f"{options!r} {options.evolve(name='x')}"

    @staticmethod
    def listed():
        """Read $NATS_URL in the same way as connect."""
        options = ConnectOptions()
        options.server_list()
        return options

    @given(st.sampled_from(FORMS), st.text(max_size=12), st.booleans())
    def test_never_shown(self, form, text, encoded):
        """Neither a repr nor an error contains the secret, for any form of URL."""
        secret = f"S3CRET{text}terceS"
        url = form.format(quote(secret, safe="") if encoded else secret)
        for make in (
            lambda: ConnectOptions(servers=url),
            lambda: ConnectOptions(servers=["nats://first:1", url]),
            lambda: ConnectOptions.from_env({"NATS_URL": url}),
        ):
            shown = self.everything(make)
            for hidden in (secret, quote(secret, safe=""), repr(secret)[1:-1]):
                assert hidden not in shown

    @pytest.mark.parametrize("form", FORMS)
    def test_contexts_and_environment(self, contexts, monkeypatch, form):
        """Saved contexts and $NATS_URL do not show the secret, either."""
        # Tracebacks contain lines of this file, so the secret is assembled at run time.
        secret = "2retnuh"[::-1]
        url = form.format(secret)
        contexts("dev", url=url)
        assert secret not in self.everything(lambda: ConnectOptions.from_context("dev"))
        monkeypatch.setenv("NATS_URL", url)
        assert secret not in self.everything(self.listed)


class TestEnvironment:
    def test_each_variable_of_the_nats_command_line_sets_its_field(self, monkeypatch):
        """Each variable of the nats command line sets its field."""
        for name, value in {
            "URL": "nats://a:1",
            "USER": "u",
            "PASSWORD": "p",
            "CA": "/ca",
            "CERT": "/cert",
            "KEY": "/key",
        }.items():
            monkeypatch.setenv(f"NATS_{name}", value)
        assert ConnectOptions.from_env() == ConnectOptions(
            servers="nats://a:1",
            user="u",
            password="p",
            tls_ca="/ca",
            tls_cert="/cert",
            tls_key="/key",
        )

    @pytest.mark.parametrize(
        ("name", "field"), [("TOKEN", "token"), ("CREDS", "credentials"), ("NKEY", "nkey_seed")]
    )
    def test_each_way_to_log_in_has_a_variable(self, name, field):
        """Each way to log in has a variable."""
        options = ConnectOptions.from_env({f"NATS_{name}": "x"})
        assert getattr(options, field) == "x"

    def test_empty_is_not_set(self):
        """Empty variables count as not set."""
        assert ConnectOptions.from_env({"NATS_URL": "", "NATS_CONTEXT": ""}) == ConnectOptions()

    def test_contradicting_variables_are_refused(self):
        """Contradicting variables raise ConfigurationError."""
        with pytest.raises(ConfigurationError, match="environment"):
            ConnectOptions.from_env({"NATS_PASSWORD": "p"})

    def test_variables_override_fields_of_the_context(self, contexts, monkeypatch):
        """Variables override fields of the context, and a login replaces its login."""
        contexts("dev", url="nats://ctx:1", user="u", password="p", ca="/ca")
        monkeypatch.setenv("NATS_CONTEXT", "dev")
        assert ConnectOptions.from_env() == ConnectOptions.from_context("dev")
        monkeypatch.setenv("NATS_TOKEN", "t")
        assert ConnectOptions.from_env() == ConnectOptions(
            servers="nats://ctx:1", token="t", tls_ca="/ca"
        )


class TestCompleted:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch):
        """An environment with a server, a login, and TLS files."""
        monkeypatch.setenv("NATS_URL", "tls://env")
        monkeypatch.setenv("NATS_USER", "ann")
        monkeypatch.setenv("NATS_PASSWORD", "secret")
        monkeypatch.setenv("NATS_CA", "/ca")
        monkeypatch.setenv("NATS_CERT", "/cert")
        monkeypatch.setenv("NATS_KEY", "/key")

    def test_options_without_a_server_are_those_of_the_environment(self):
        """Options that name no server get the server, the login and the files."""
        given = {"name": "me", "request_timeout": 3, "echo": False, "max_reconnects": 0}
        options = completed(ConnectOptions(**given))
        environment = ConnectOptions.from_env()
        assert options == environment.evolve(**given)
        assert environment.user == "ann"

    def test_a_server_excludes_the_environment(self, monkeypatch):
        """If the options name a server, the environment is not even read."""
        monkeypatch.setenv("NATS_CONTEXT", "missing")
        options = ConnectOptions(servers="nats://other")
        assert completed(options) is options

    @pytest.mark.parametrize(
        "login",
        [
            {"token": "t"},
            {"user": "bob"},
            {"user": "bob", "password": "b"},
            {"credentials": "/creds"},
            {"nkey_seed": SEED},
            {"nkey": PUBLIC, "nkey_signature": bytes},
            {"user": secret_of_module, "password": secret_of_module},
        ],
    )
    def test_a_login_replaces_that_of_the_environment(self, login):
        """A login in the options is used as it is, with the server and files of the environment."""
        options = completed(ConnectOptions(**login))
        expected = ConnectOptions.from_env().evolve(**{"user": None, "password": None, **login})
        assert options == expected

    def test_a_login_makes_a_broken_one_of_the_environment_irrelevant(self, monkeypatch):
        """Variables of a login that contradict each other do no harm if the login is given."""
        monkeypatch.delenv("NATS_USER")
        assert completed(ConnectOptions(token="t")).token == "t"
        with pytest.raises(ConfigurationError, match="the environment: password needs user"):
            completed(ConnectOptions())

    def test_a_certificate_is_not_mixed_with_another_key(self):
        """A certificate in the options replaces the key, and a context replaces all files."""
        options = completed(ConnectOptions(tls_cert="/own"))
        assert (options.tls_ca, options.tls_cert, options.tls_key) == ("/ca", "/own", None)
        options = completed(ConnectOptions(tls=ssl.create_default_context()))
        assert (options.tls_ca, options.tls_cert, options.tls_key) == (None, None, None)
        assert completed(ConnectOptions(tls_ca="/own")).tls_key == "/key"

    def test_a_context_gives_its_login_to_its_own_server(self, contexts, monkeypatch):
        """A context without a server is one for the default server, not for $NATS_URL."""
        contexts("dev", token="t")
        options = completed(ConnectOptions.from_context("dev"))
        assert (options.server_list(), options.token) == ([DEFAULT_URL], "t")

    def test_the_default_server(self, monkeypatch):
        """Without a server in the environment, its login is for the default server."""
        monkeypatch.delenv("NATS_URL")
        options = completed(ConnectOptions())
        assert (options.server_list(), options.user) == ([DEFAULT_URL], "ann")

    def test_variables_that_cannot_be_used(self, monkeypatch):
        """An error names the environment, and shows no secret."""
        monkeypatch.setenv("NATS_URL", "http://u:hunter2@h")
        with pytest.raises(ConfigurationError, match="the environment: ") as caught:
            completed(ConnectOptions())
        assert "hunter2" not in str(caught.value)


class TestContext:
    def test_fields_of_the_nats_command_line_become_options(self, contexts):
        """The fields that the nats command line writes become options."""
        contexts(
            "prod",
            url="nats://a:1,nats://b:2",
            creds="/u.creds",
            ca="/ca",
            cert="/cert",
            key="/key",
            inbox_prefix="_IN.me",
            jetstream_domain="hub",
            tls_first=True,
        )
        assert ConnectOptions.from_context("prod") == ConnectOptions(
            servers="nats://a:1,nats://b:2",
            credentials="/u.creds",
            tls_ca="/ca",
            tls_cert="/cert",
            tls_key="/key",
            inbox_prefix="_IN.me",
            jetstream_domain="hub",
            tls_first=True,
        )

    def test_login_order(self, contexts):
        """
        If a context has several logins, jetsync uses the same one as the command line, and the
        token with it.
        """
        contexts("many", user="u", password="p", creds="/c", nkey="/n", token="t")
        found = ConnectOptions.from_context("many")
        assert found == ConnectOptions(servers=DEFAULT_URL, user="u", password="p", token="t")
        contexts("nkey", nkey="/n", token="t")
        found = ConnectOptions.from_context("nkey")
        assert found == ConnectOptions(servers=DEFAULT_URL, nkey_seed="/n", token="t")

    @pytest.mark.parametrize("path", ["C://creds/me.creds", r"C:\creds\me.creds", "C:/me.creds"])
    def test_a_drive_is_no_scheme(self, contexts, path):
        """A path that starts with a drive of Windows is the path of a file."""
        contexts("dev", creds=path, ca=path)
        found = ConnectOptions.from_context("dev")
        assert [Path(found.credentials), Path(found.tls_ca)] == [Path(path)] * 2

    def test_prefix_before_domain(self, contexts):
        """If a context has a prefix and a domain, the prefix is used."""
        contexts("both", jetstream_domain="hub", jetstream_api_prefix="$JS.x.API")
        assert ConnectOptions.from_context("both").jetstream_prefix == "$JS.x.API"

    def test_without_a_name_the_selected_context_is_used(self, contexts):
        """Without a name, the selected context is used."""
        folder = contexts("dev", url="nats://dev:1")
        with pytest.raises(ConfigurationError, match="selected"):
            ConnectOptions.from_context()
        (folder / "context.txt").write_text("dev\n")
        assert ConnectOptions.from_context().servers == "nats://dev:1"

    def test_without_xdg_config_home_contexts_are_in_dot_config(
        self, contexts, monkeypatch, tmp_path
    ):
        """Without $XDG_CONFIG_HOME, contexts are in ~/.config."""
        contexts("dev", url="nats://dev:1")
        monkeypatch.delenv("XDG_CONFIG_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        (tmp_path / "home").mkdir()
        (tmp_path / "nats").rename(tmp_path / "home" / "nats")
        (tmp_path / "home" / ".config").mkdir()
        (tmp_path / "home" / "nats").rename(tmp_path / "home" / ".config" / "nats")
        assert ConnectOptions.from_context("dev").servers == "nats://dev:1"

    def test_the_error_of_an_unknown_context_lists_the_known_ones(self, contexts):
        """The error about an unknown context lists the known ones."""
        contexts("dev")
        contexts("prod")
        with pytest.raises(ConfigurationError, match="known: dev, prod"):
            ConnectOptions.from_context("test")

    @pytest.mark.parametrize("name", ["", "../x", "a/b", "a\\b"])
    def test_bad_name(self, contexts, name):
        """A name with path separators is refused."""
        with pytest.raises(ConfigurationError, match="name"):
            ConnectOptions.from_context(name)

    @pytest.mark.parametrize("text", ["{password: hunter2", "[]", "5", "\udcff", "[" * 100_000])
    def test_the_error_of_an_invalid_context_hides_its_contents(self, contexts, text):
        """The error about an invalid file does not show its contents."""
        folder = contexts("dev")
        path = folder / "context" / "dev.json"
        path.write_text(text, errors="surrogateescape")
        with pytest.raises(ConfigurationError, match="dev") as caught:
            ConnectOptions.from_context("dev")
        assert "hunter2" not in repr(caught.value)
        assert caught.value.__cause__ is None

    def test_broken_selection(self, contexts):
        """If the selected name cannot be read, the error names the file."""
        folder = contexts("dev")
        (folder / "context.txt").write_bytes(b"\xff")
        with pytest.raises(ConfigurationError, match=r"context\.txt cannot be read"):
            ConnectOptions.from_context()

    @pytest.mark.parametrize("field", ["nsc", "user_jwt", "socks_proxy"])
    def test_a_context_with_an_unsupported_setting_is_refused(self, contexts, field):
        """A context with an unsupported setting is refused."""
        contexts("dev", **{field: "x"})
        with pytest.raises(ConfigurationError, match=field):
            ConnectOptions.from_context("dev")

    def test_wrong_values(self, contexts):
        """Invalid values in a context raise ConfigurationError."""
        contexts("dev", url=5, token={})
        with pytest.raises(ConfigurationError, match="url should be text"):
            ConnectOptions.from_context("dev")
        contexts("dev", url="http://x")
        with pytest.raises(ConfigurationError, match="scheme"):
            ConnectOptions.from_context("dev")


JWT = "eyJ0eXAi.eyJqdGki.c2ln"
CREDENTIALS = f"-----BEGIN NATS USER JWT-----\n{JWT}\n------\n{SEED}\n------"


def data(text, kind=""):
    """Return a reference with a text in it, as the command line writes it."""
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


class TestReferences:
    """Values of a context that say where a login is."""

    @pytest.fixture(params=["env", "file", "data", "DATA", "ENV"])
    def refer(self, request, tmp_path, monkeypatch):
        """Return a function that stores a text and returns a reference to it."""

        def refer(text):
            match request.param.lower():
                case "env":
                    monkeypatch.setenv("APP_LOGIN", text)
                    return f"{request.param}://APP_LOGIN"
                case "file":
                    (tmp_path / "login").write_text(text)
                    monkeypatch.setenv("WHERE", str(tmp_path))
                    return "file://${WHERE}/login"
                case _:
                    return data(text, "text/plain").replace("data:", f"{request.param}:")

        return refer

    @pytest.mark.parametrize(
        ("fields", "wanted"),
        [
            ({"user": "u", "password": "s3cret\n"}, {"user": "u", "password": "s3cret"}),
            ({"token": "s3cret"}, {"token": "s3cret"}),
        ],
    )
    def test_texts(self, contexts, refer, fields, wanted):
        """A password or a token is read from where the context says, without a line end."""
        hidden = next(reversed(fields))
        contexts("dev", **{**fields, hidden: refer(fields[hidden])})
        options = ConnectOptions.from_context("dev")
        assert options == ConnectOptions(servers=DEFAULT_URL, **wanted)

    def test_credentials(self, contexts, refer):
        """Credentials are a file, which each login reads, or the text of such a file."""
        reference = refer(CREDENTIALS)
        contexts("dev", creds=reference)
        options = ConnectOptions.from_context("dev")
        given = options.credentials
        assert (given() if callable(given) else Path(given).read_text()) == CREDENTIALS
        assert options == ConnectOptions.from_context("dev")
        again = pickle.loads(pickle.dumps(options))
        assert again == options
        assert callable(again.credentials) is not reference.startswith("file")

    def test_nkey(self, contexts, refer):
        """An NKey is a file or a text with a seed."""
        contexts("dev", nkey=refer(f"-----BEGIN USER NKEY SEED-----\n{SEED}\n"))
        assert ConnectOptions.from_context("dev").nkey_text() == SEED

    def test_a_jwt_and_its_seed(self, contexts, refer):
        """A JWT and a seed are used together, each from where the context says."""
        contexts("dev", user_jwt=JWT, user_seed=refer(SEED))
        assert ConnectOptions.from_context("dev").credentials() == f"{JWT}\n{SEED}"

    def test_tls_files(self, contexts, monkeypatch):
        """TLS files are paths or references to files, with variables as the command line reads."""
        monkeypatch.setenv("CERTS", "/certs")
        contexts("dev", ca="file:///ca", cert="$CERTS/cert", key="file://${CERTS}/key")
        assert ConnectOptions.from_context("dev") == ConnectOptions(
            servers=DEFAULT_URL, tls_ca="/ca", tls_cert="/certs/cert", tls_key="/certs/key"
        )

    @pytest.mark.parametrize("text", ["a:b", "http://x", "vault:secret", "C:\\x"])
    def test_a_password_may_look_like_a_url(self, contexts, text):
        """A text with another scheme is the password or the token itself."""
        contexts("dev", user="u", password=text, token=text)
        options = ConnectOptions.from_context("dev")
        assert (options.password, options.token) == (text, text)

    @pytest.mark.parametrize(
        ("field", "value", "said"),
        [
            ("creds", "op://vault/item/S3CRET", r"creds refers to op://, .* use file:// or env://"),
            ("creds", "nsc://o/a/S3CRET", r"creds refers to nsc://, "),
            ("token", "OP://vault/item/S3CRET", r"token refers to op://, "),
            ("password", "op://S3CRET", r"password refers to op://, "),
            ("nkey", "nsc://S3CRET", r"nkey refers to nsc://, "),
            ("nkey", "vault://S3CRET", r"nkey refers to vault:, but must be a file"),
            ("ca", "data:;base64,S3CRET", r"ca refers to data:, but must be a file"),
            ("token", "env://NOT_SET", r"token refers to \$NOT_SET, which is not set"),
            ("token", "file:///nowhere", r"token cannot be read: No such file"),
            ("token", "data:,S3CRET", r"token refers to data: with a text that is not valid"),
            ("token", "data:;base64,S3CRET", r"token refers to data: with a text"),
            ("token", data("S3CRET") + "!", r"token refers to data: with a text"),
            ("token", data("\n"), r"token refers to an empty text"),
            ("nkey", data("S3CRET"), r"nkey refers to a text without a seed"),
            ("user_jwt", "S3CRET", r"user_jwt needs user_seed"),
        ],
    )
    def test_a_reference_that_cannot_be_read(self, contexts, field, value, said):
        """The error names the context and the field, and shows no value."""
        contexts("dev", **{"user": "u" if field == "password" else "", field: value})
        with pytest.raises(ConfigurationError, match=f"context 'dev': {said}") as caught:
            ConnectOptions.from_context("dev")
        error = caught.value
        assert "S3CRET" not in repr(error) + repr(error.__cause__) + repr(vars(error))

    def test_nothing_shows_a_secret(self, contexts, monkeypatch):
        """Neither the options nor their error shows what a reference leads to."""
        secret = "2retnuh"[::-1]
        for fields in (
            {"creds": data(secret)},
            {"user": "u", "password": data(secret)},
            {"token": data(secret)},
            {"nkey": data(SEED), "token": "t"},
            {"user_jwt": data(secret), "user_seed": data(secret)},
        ):
            contexts("dev", **fields)
            options = ConnectOptions.from_context("dev")
            for hidden in (secret, SEED):
                assert hidden not in repr(options)
                assert hidden not in repr(options.credentials)


class TestNkey:
    def test_the_nkey_option_accepts_the_seed_itself(self):
        """The option accepts the seed itself."""
        assert ConnectOptions().nkey_text() is None
        assert ConnectOptions(nkey_seed=f" {SEED}\n").nkey_text() == SEED

    def test_the_nkey_option_accepts_a_file_with_the_seed(self, tmp_path):
        """The option accepts a file with the seed, with or without comments."""
        path = tmp_path / "user.nk"
        path.write_text(f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END------\n")
        assert ConnectOptions(nkey_seed=str(path)).nkey_text() == SEED

    def test_the_error_of_an_invalid_nkey_does_not_show_it(self, tmp_path):
        """The error about any other value does not show it."""
        (tmp_path / "empty").write_text("nothing")
        for seed in ("SUWRONG", str(tmp_path / "empty"), "a\x00b"):
            with pytest.raises(ConfigurationError) as caught:
                ConnectOptions(nkey_seed=seed).nkey_text()
            assert seed not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("nats://a:4222", None),
        ("nats://@a:4222", None),
        ("nats://token@a:4222", ("token", None)),
        ("nats://u:@a:4222", ("u", "")),
        ("nats://:p@a:4222", ("", "p")),
        ("nats://u%40x:p%3A@a:4222", ("u@x", "p:")),
    ],
)
def test_login_of_a_url(url, login):
    """
    The user and the password of a URL are decoded; a user without a password is a token.
    """
    assert user_info(url) == login
