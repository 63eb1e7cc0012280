from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from helpers.certificates import Authority
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


def test_a_private_authority_excludes_those_of_the_system(tmp_path, monkeypatch):
    """With tls_ca, only the authorities in that file are trusted."""
    system, own = (Authority(tmp_path, name) for name in ("system", "own"))
    monkeypatch.setenv("SSL_CERT_FILE", str(system.path))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    certificates = [
        ssl.PEM_cert_to_DER_cert(Path(each.path).read_text(encoding="ascii"))
        for each in (system, own)
    ]
    context = tls_context(ConnectOptions(servers="tls://h"))
    assert certificates[0] in context.get_ca_certs(binary_form=True)
    context = tls_context(ConnectOptions(tls_ca=own.path))
    assert context.get_ca_certs(binary_form=True) == certificates[1:]


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
