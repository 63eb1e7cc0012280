"""
Errors of nats-py as errors of jetsync.
"""

from __future__ import annotations

import asyncio
import errno
import ssl

import nats.aio.client
import nats.aio.transport
import nats.errors
import pytest

from jetsync._io.translate import (
    no_server_error,
    tls_reason,
    translate_closed,
    translate_connect_error,
)
from jetsync.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionClosedError,
)


class TestTranslation:
    @pytest.mark.parametrize(
        ("error", "kind", "text"),
        [
            (OSError(111, "refused"), ConnectError, "connection refused"),
            (ssl.SSLError(1, "bad certificate"), ConnectError, "bad certificate"),
            (nats.errors.NoServersError(), ConnectError, "no servers available for connection"),
            (asyncio.TimeoutError(), ConnectError, "TimeoutError"),
            (nats.errors.AuthorizationError(), AuthenticationError, "authorization failed"),
            (
                nats.errors.Error("nats: 'Authorization Violation'"),
                AuthenticationError,
                "Authorization Violation",
            ),
            (
                nats.errors.Error("nats: 'User Authentication Expired'"),
                AuthenticationError,
                "User Authentication Expired",
            ),
            (nats.errors.Error("nats: empty response"), ConnectError, "empty response"),
            (OSError("no authorization here"), ConnectError, "no authorization here"),
            (ValueError("nats://me:secret@host"), ConnectError, "nats://***@host"),
        ],
    )
    def test_every_error_of_connecting_becomes_one_of_jetsync(self, error, kind, text):
        """
        Every error of connecting becomes one of jetsync's, without prefix, quotes and secrets.
        """
        found = translate_connect_error(error)
        assert type(found) is kind
        assert text in str(found)
        assert "nats: " not in str(found)
        assert "secret" not in str(found)

    @pytest.mark.parametrize(
        ("text", "hint"),
        [
            ("certificate verify failed: unable to get local issuer certificate", "tls_ca"),
            ("self-signed certificate in certificate chain", "tls_ca"),
            ("tlsv13 alert certificate required", "tls_cert and tls_key"),
            ("SSLV3_ALERT_BAD_CERTIFICATE", "tls_cert and tls_key"),
            ("WRONG_VERSION_NUMBER", "does not speak TLS here"),
            ("RECORD_LAYER_FAILURE", "does not speak TLS here"),
        ],
    )
    def test_a_tls_error_suggests_a_fix(self, text, hint):
        """A TLS error suggests a fix, also if another library wraps it."""
        error, wrapper = ssl.SSLError(1, text), OSError("Cannot connect")
        wrapper.os_error = error
        for one in (error, wrapper):
            reason = tls_reason(one)
            assert reason.startswith("TLS handshake failed: ")
            assert hint in reason
        assert tls_reason(OSError("refused")) is None

    def test_the_server_is_named(self):
        """An error names its server in plain words."""
        refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 1)")
        found = no_server_error([("nats://one:1", refused)])
        assert str(found) == "connection refused (nats://one:1); is a server running there?"

    def test_several_servers(self):
        """
        Each server has its reason. If a server refuses the login, AuthenticationError is raised.
        """
        refused = ConnectionRefusedError(errno.ECONNREFUSED, "no")
        denied = nats.errors.Error("nats: 'Authorization Violation'")
        found = no_server_error([("nats://one:1", refused), ("nats://two:2", denied)])
        assert type(found) is AuthenticationError
        assert "connection refused (nats://one:1)" in str(found)
        assert "Authorization Violation (nats://two:2)" in str(found)

    def test_an_error_of_jetsync_is_not_translated(self):
        """An error of jetsync stays as it is."""
        error = AuthenticationError("no")
        assert translate_connect_error(error) is error

    def test_calls_on_a_closed_client_raise_the_reason(self):
        """Calls on a closed client raise an error with the reason, if there is one."""
        assert str(translate_closed(None)) == "the client is closed"
        cause = nats.errors.Error("nats: nats://me:secret@host is gone")
        error = translate_closed(cause)
        assert type(error) is ConnectionClosedError
        assert str(error) == "the client is closed: nats://***@host is gone"
        assert error.__cause__ is cause
        assert str(translate_closed(KeyError())) == "the client is closed: KeyError"
