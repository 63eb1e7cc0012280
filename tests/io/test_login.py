from __future__ import annotations

import base64
import builtins
import traceback

import pytest

from jetsync._io.login import make_login
from jetsync.errors import AuthenticationError, ConfigurationError
from jetsync.options import ConnectOptions

URL = "nats://h:4222"
NONCE = "nonce-of-the-server"
PUBLIC = "U" + "A" * 55
SEED = "SUANQDPB2RUOE4ETUA26CNX7FUKE5ZZKFCQIIW63OX225F2CO7UEXTM7ZY"
JWT = "eyJ0eXAiOiJKV1QifQ.eyJzdWIiOiJVIn0.c2lnbmF0dXJl-_"
FILE = f"""-----BEGIN NATS USER JWT-----
{JWT}
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.

-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------

*************************************************************
"""


def fields(nonce=None, url=URL, **options):
    """
    Return the fields of the login that is made from options.
    """
    return dict(make_login(ConnectOptions(**{"servers": URL, **options}), url, nonce).fields)


def failing(nonce=NONCE, **options):
    """
    Return the error of a login that cannot be made; neither its text nor its repr shows a secret.
    """
    with pytest.raises(AuthenticationError) as caught:
        fields(nonce, **options)
    assert SEED not in repr(caught.value)
    assert JWT not in repr(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "no user, token or key"),
        ({"user": "ann", "password": "p"}, "a user and a password"),
        ({"user": "ann"}, "a user"),
        ({"token": "t"}, "a token"),
        ({"servers": "nats://t@h"}, "a token"),
        ({"servers": "nats://u:p@h"}, "a user and a password"),
        ({"user": "a", "token": "t"}, "a user and a token"),
        ({"nkey": PUBLIC, "nkey_signature": lambda _: b"s" * 64}, "an NKey"),
        ({"credentials": lambda: FILE}, "credentials"),
    ],
)
def test_the_kind_of_a_login(options, kind):
    """
    Errors name the parts of a login, and none of its values.
    """
    pytest.importorskip("nkeys")
    options = ConnectOptions(**{"servers": URL, **options})
    assert make_login(options, options.server_list()[0], NONCE).kind == kind


class TestPlainLogins:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, {}),
            ({"user": "ann", "password": "p"}, {"user": "ann", "pass": "p"}),
            ({"user": "ann"}, {"user": "ann", "pass": ""}),
            ({"token": "t"}, {"auth_token": "t"}),
            ({"user": "a", "token": "t"}, {"user": "a", "pass": "", "auth_token": "t"}),
            (
                {"user": lambda: "ann", "password": lambda: "p", "token": lambda: "t"},
                {"user": "ann", "pass": "p", "auth_token": "t"},
            ),
            ({"user": "ann", "password": lambda: ""}, {"user": "ann", "pass": ""}),
        ],
    )
    def test_plain_logins_are_sent_as_given_or_returned(self, options, expected):
        """User, password and token are sent as given, or as their callables return them."""
        assert fields(**options) == expected

    @pytest.mark.parametrize(
        ("login", "expected"),
        [
            ("", {}),
            ("@", {}),
            ("t0ken@", {"auth_token": "t0ken"}),
            ("ann:p@", {"user": "ann", "pass": "p"}),
            ("ann:@", {"user": "ann", "pass": ""}),
            (":p@", {"user": "", "pass": "p"}),
            ("a%40b:p%3A%2F%25%C3%BC+@", {"user": "a@b", "pass": "p:/%ü+"}),
            ("t%2Co%23%3F@", {"auth_token": "t,o#?"}),
            ("100%:p@", {"user": "100%", "pass": "p"}),
        ],
    )
    @pytest.mark.parametrize("scheme", ["nats", "tls", "ws", "wss"])
    def test_the_login_of_a_url_is_percent_decoded(self, scheme, login, expected):
        """A URL has a token, or user and password, with percent-encoding."""
        url = f"{scheme}://{login}h:4222"
        assert fields(servers=url, url=url) == expected

    def test_options_before_url(self):
        """A login in the options replaces the one in the URL as a whole."""
        url = "nats://ann:p@h:4222"
        assert fields(servers=url, url=url, token="t") == {"auth_token": "t"}
        assert fields(servers=url, url=url, user="bob") == {"user": "bob", "pass": ""}

    def test_each_url_has_its_own(self):
        """Each listed server gets the login of its URL; a discovered one gets the first."""
        servers = ["nats://a:1", "nats://ann:p@b:1", "nats://t@c:1"]
        found = [fields(servers=servers, url=url) for url in (*servers, "nats://discovered:1")]
        ann = {"user": "ann", "pass": "p"}
        assert found == [{}, ann, {"auth_token": "t"}, ann]


class TestCallables:
    def test_called_for_each_login(self):
        """A callable is called for every attempt."""
        tokens = iter(["1", "2"])
        options = ConnectOptions(servers=URL, token=lambda: next(tokens))
        assert [make_login(options, URL, None).fields["auth_token"] for _ in range(2)] == ["1", "2"]

    @pytest.mark.parametrize("name", ["user", "password", "token", "credentials"])
    def test_one_that_raises(self, name):
        """The error names the option and the kind of error, and has the original as its cause."""

        def broken():
            raise LookupError("hunter2")

        error = failing(**{"user": "ann", name: broken})
        assert str(error) == f"{name}: the callable raised LookupError"
        assert isinstance(error.__cause__, LookupError)
        assert isinstance(error, OSError)

    @pytest.mark.parametrize("name", ["user", "password", "token", "credentials"])
    @pytest.mark.parametrize("value", [None, 5])
    def test_one_that_returns_something_else(self, name, value):
        """The error says what the callable must return, and does not show the returned value."""
        error = failing(**{"user": "ann", name: lambda: value})
        assert str(error).startswith(f"{name}: the callable must return ")
        assert str(error).endswith(f"not {type(value).__name__}")

    @pytest.mark.parametrize("name", ["user", "token"])
    def test_one_that_returns_nothing(self, name):
        """An empty user or token is refused, as it is in the options."""
        assert "empty" in str(failing(**{name: lambda: ""}))


class TestKeys:
    def test_the_seed_signs_the_nonce(self, tmp_path):
        """The seed signs the nonce, and the public key is sent with the signature."""
        nkeys = pytest.importorskip("nkeys")
        pair = nkeys.from_seed(bytearray(SEED.encode()))
        path = tmp_path / "user.nk"
        path.write_text(f"# key\n{SEED}\n")
        for given in (SEED, str(path)):
            found = fields(NONCE, nkey_seed=given, token="t")
            signature = base64.urlsafe_b64decode(found.pop("sig") + "==")
            assert found == {"nkey": pair.public_key.decode(), "auth_token": "t"}
            assert pair.verify(NONCE.encode(), signature)

    def test_not_a_seed(self, tmp_path):
        """If a value is neither a seed nor a file with one, the error does not show it."""
        for given in ("hunter2", str(tmp_path / "hunter2")):
            error = failing(nkey_seed=given)
            assert "nkey_seed" in str(error)
            assert "hunter2" not in "".join(traceback.format_exception(error))

    def test_damaged_seed(self):
        """The error about a seed with an impossible prefix does not show it."""
        pytest.importorskip("nkeys")
        seed = "SB" + "7" * 56
        error = failing(nkey_seed=seed)
        assert str(error) == "nkey_seed: the seed is damaged"
        assert seed not in "".join(traceback.format_exception(error))

    def test_the_signature_callable_signs_the_nonce_of_a_key(self):
        """The callable gets the nonce, and its signature is sent with the public key."""
        asked = []

        def sign(nonce):
            asked.append(nonce)
            return b"\xff" * 64

        found = fields(NONCE, nkey=PUBLIC, nkey_signature=sign)
        assert asked == [NONCE.encode()]
        assert found == {"nkey": PUBLIC, "sig": "_" * 85 + "w"}

    @pytest.mark.parametrize("signature", [None, "x" * 64, b"", b"x" * 63, b"x" * 86])
    def test_bad_signature(self, signature):
        """A signature that does not have 64 bytes is an error."""
        error = failing(nkey=PUBLIC, nkey_signature=lambda _nonce: signature)
        assert "64 bytes" in str(error)

    def test_signature_that_raises(self):
        """The error has the callable's error as its cause."""
        error = failing(nkey=PUBLIC, nkey_signature=lambda _nonce: 1 / 0)
        assert str(error) == "nkey_signature: the callable raised ZeroDivisionError"
        assert isinstance(error.__cause__, ZeroDivisionError)

    @pytest.mark.parametrize("nonce", [None, ""])
    def test_without_nonce(self, nonce, tmp_path):
        """A server that sends no nonce takes no signatures; the other fields are sent."""
        pytest.importorskip("nkeys")
        path = tmp_path / "user.creds"
        path.write_text(FILE)
        assert fields(nonce, nkey_seed=SEED) == {}
        assert fields(nonce, credentials=path, token="t") == {"auth_token": "t"}
        assert fields(nonce, nkey=PUBLIC, nkey_signature=lambda _nonce: 1 / 0) == {}

    @pytest.mark.parametrize(
        ("option", "reason"),
        [
            ({"credentials": "/missing.creds"}, "'/missing.creds' cannot be read"),
            ({"nkey_seed": "SUxx"}, "neither a seed nor a file with one"),
        ],
    )
    def test_errors_without_nonce(self, option, reason):
        """A login that cannot be read is an error, though the server would not get it."""
        with pytest.raises(AuthenticationError, match=reason):
            fields(None, **option)

    def test_missing_library(self, monkeypatch):
        """Without the library, the error names the extra to install."""
        real = builtins.__import__

        def fake(name, *arguments):
            if name == "nkeys":
                raise ModuleNotFoundError("No module named 'nkeys'", name="nkeys")
            return real(name, *arguments)

        monkeypatch.setattr(builtins, "__import__", fake)
        with pytest.raises(ConfigurationError, match=r"needs nkeys.*jetsync\[nkeys\]"):
            fields(NONCE, nkey_seed=SEED)


class TestCredentials:
    @pytest.fixture
    def path(self, tmp_path):
        """The path of a credentials file that does not exist yet."""
        return tmp_path / "user.creds"

    @pytest.mark.parametrize(
        "text",
        [
            FILE,
            FILE.replace("\n", "\r\n"),
            FILE.replace("\n", "\n\n\n"),
            FILE.replace("\n", "  \n\t"),
            f"\ufeff{JWT}\n{SEED}",
            f"text before\n{FILE}text after\n",
            FILE.strip(),
        ],
        ids=["usual", "CRLF", "blank lines", "spaces", "bare", "text around", "no last line end"],
    )
    def test_credentials_may_have_any_line_ends_and_text_around(self, path, text):
        """A file is read with any line ends, and with any text around the JWT and the seed."""
        nkeys = pytest.importorskip("nkeys")
        path.write_bytes(text.encode())
        found = fields(NONCE, credentials=path)
        assert found["jwt"] == JWT
        signature = base64.urlsafe_b64decode(found["sig"] + "==")
        assert nkeys.from_seed(bytearray(SEED.encode())).verify(NONCE.encode(), signature)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "is empty"),
            (" \r\n", "is empty"),
            ("no credentials", "has neither a user JWT nor a seed"),
            (FILE[:60], "has neither a user JWT nor a seed"),
            (f"{SEED}\n", "has a seed but no user JWT"),
            (FILE.replace(JWT, ""), "has a seed but no user JWT"),
            (JWT, "has a user JWT but no seed"),
            (FILE[: FILE.index(SEED) + 30], "has a user JWT but no seed"),
            (FILE.replace(SEED, SEED.lower()), "has a user JWT but no seed"),
            (FILE.replace(SEED, "SB" + "7" * 56), "the seed is damaged"),
        ],
    )
    def test_incomplete_files(self, path, text, reason):
        """The error names the file and the missing part, and does not show the other one."""
        pytest.importorskip("nkeys")
        path.write_text(text)
        error = failing(credentials=path)
        assert repr(str(path)) in str(error)
        assert reason in str(error)
        assert "hunter" not in str(error)

    def test_unreadable_files(self, path, tmp_path):
        """A missing file and a folder are errors with the path and the reason."""
        assert "No such file" in str(failing(credentials=path))
        assert "Is a directory" in str(failing(credentials=tmp_path))
        assert "cannot be read" in str(failing(credentials="a\x00b"))

    def test_file_is_read_each_time(self, path):
        """A login that fails with a half-written file works once the file is whole."""
        pytest.importorskip("nkeys")
        failing(credentials=path)
        path.write_text(FILE[:200])
        failing(credentials=path)
        path.write_text(FILE)
        assert fields(NONCE, credentials=path)["jwt"] == JWT

    def test_a_callable_returns_a_path_or_the_contents(self, path):
        """A callable returns a path as a Path, or the contents as text or bytes."""
        pytest.importorskip("nkeys")
        path.write_text(FILE)
        expected = fields(NONCE, credentials=path)
        for returned in (path, FILE, FILE.encode()):
            assert fields(NONCE, credentials=lambda returned=returned: returned) == expected
        error = failing(credentials=lambda: str(path))
        assert str(error) == (
            "credentials: what the callable returned has neither a user JWT nor a seed"
        )

    def test_the_signature_callable_signs_for_the_jwt(self, path):
        """The signature callable signs for the JWT, with a seed in the file and without."""
        for text in (FILE, JWT):
            path.write_text(text)
            found = fields(NONCE, credentials=path, nkey_signature=lambda _nonce: bytes(64))
            assert found == {"jwt": JWT, "sig": "A" * 86}


class TestIdentity:
    def test_same_login(self):
        """The nonce does not count, so the same login has the same identity."""
        pytest.importorskip("nkeys")
        options = ConnectOptions(servers=URL, credentials=lambda: FILE)
        first, second = make_login(options, URL, "1"), make_login(options, URL, "2")
        assert first.fields["sig"] != second.fields["sig"]
        assert first.identity == second.identity

    def test_other_login(self):
        """A difference in any other field is a different login."""
        logins = [{}, {"token": "t"}, {"user": "t"}, {"user": "t", "password": "p"}]
        made = [make_login(ConnectOptions(servers=URL, **each), URL, None) for each in logins]
        assert len({login.identity for login in made}) == len(logins)

    def test_the_repr_of_an_identity_shows_no_values(self):
        """The repr names the fields without their values."""
        login = make_login(ConnectOptions(servers=URL, user="ann", password="pw"), URL, None)
        assert repr(login) == "Login(fields=['pass', 'user'])"
