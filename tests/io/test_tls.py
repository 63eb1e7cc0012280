from __future__ import annotations

import ssl

import pytest

from jetsync._io.tls import asks_tls, tls_context
from jetsync.errors import ConfigurationError
from jetsync.options import ConnectOptions


@pytest.mark.parametrize(
    "fields",
    [
        {"servers": "tls://h"},
        {"servers": "a,tls://h"},
        {"servers": "wss://h"},
        {"tls_hostname": "h"},
        {"tls_first": True},
    ],
)
def test_asked_for(fields):
    """The scheme, or any field that begins with tls, enables TLS with verification."""
    options = ConnectOptions(**fields)
    assert asks_tls(options)
    context = tls_context(options)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize("servers", [None, "nats://h", "ws://h"])
def test_tls_is_off_if_nothing_asks_for_it(servers):
    """Without any of these, TLS is off."""
    assert not asks_tls(ConnectOptions(servers=servers))


def test_own_context():
    """An SSLContext is used unchanged."""
    context = ssl.create_default_context()
    assert asks_tls(ConnectOptions(tls=context))
    assert tls_context(ConnectOptions(tls=context)) is context


@pytest.mark.parametrize("field", ["tls_ca", "tls_cert"])
def test_bad_file(tmp_path, field):
    """A missing or invalid file raises ConfigurationError with its name."""
    path = tmp_path / "file.pem"
    with pytest.raises(ConfigurationError, match=f"{field}.*file.pem"):
        tls_context(ConnectOptions(**{field: path}))
    path.write_text("no certificate")
    with pytest.raises(ConfigurationError, match=f"{field}.*file.pem"):
        tls_context(ConnectOptions(**{field: path}))


def test_missing_key(tmp_path):
    """If tls_key is missing, the error names it."""
    cert = tmp_path / "cert.pem"
    cert.write_text("no certificate")
    options = ConnectOptions(tls_cert=cert, tls_key=tmp_path / "gone.key")
    with pytest.raises(ConfigurationError, match=r"tls_key.*gone\.key"):
        tls_context(options)
