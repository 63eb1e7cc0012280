from __future__ import annotations

import ssl

import pytest

from jetsync._io.tls import tls_context
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
    context = tls_context(ConnectOptions(**fields))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize("servers", [None, "nats://h", "ws://h"])
def test_tls_is_off_if_nothing_asks_for_it(servers):
    """Without any of these, TLS is off."""
    assert tls_context(ConnectOptions(servers=servers)) is None


def test_own_context():
    """An SSLContext is used unchanged."""
    context = ssl.create_default_context()
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
