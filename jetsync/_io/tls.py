"""
The TLS set-up of a client: which certificates it trusts and which one it shows.
"""

from __future__ import annotations

import contextlib
import functools
import ssl
from typing import TYPE_CHECKING

from jetsync.errors import ConfigurationError
from jetsync.options import TLS_FIELDS
from jetsync.values.server_urls import wants_tls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetsync.options import ConnectOptions


def asks_tls(options: ConnectOptions) -> bool:
    """
    Return whether the options ask for TLS: by an option that starts with ``tls``, or by a URL.
    """
    asked = any(getattr(options, name) for name in TLS_FIELDS)
    return asked or wants_tls(options.server_list())


def tls_context(options: ConnectOptions) -> ssl.SSLContext:
    """
    Return the TLS context for one attempt to connect.

    It is made for every attempt, because the files of the options may change. It reads files, so it
    must not run in the loop thread.

    Raises:
        ConfigurationError: A file cannot be read or has the wrong contents.
    """
    if options.tls is not None:
        return options.tls
    if options.tls_ca is None:
        context = ssl.create_default_context()
    else:
        # Trust only this authority: a private one is meant to exclude the public ones.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with _named(f"tls_ca {str(options.tls_ca)!r}"):
            context.load_verify_locations(options.tls_ca)
    if options.tls_cert is not None:
        name = f"tls_cert {str(options.tls_cert)!r}"
        if options.tls_key is not None:
            name += f" with tls_key {str(options.tls_key)!r}"
        with _named(name):
            context.load_cert_chain(
                options.tls_cert, options.tls_key, functools.partial(_refuse_password, name)
            )
    return context


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the file in the error if it cannot be used."""
    try:
        yield
    except ssl.SSLError as error:
        hint = "the file is not complete PEM"
        if error.reason == "KEY_VALUES_MISMATCH":
            hint = "the key does not belong to the certificate"
        raise ConfigurationError(f"{name} cannot be used: {hint} ({error})") from error
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be used: {error}") from error


def _refuse_password(name: str) -> str:
    # OpenSSL would ask for it on the terminal, also while the client reconnects.
    raise ConfigurationError(
        f"{name} cannot be used: the private key is encrypted: load it into an SSLContext with its"
        " password, and pass that as the option tls"
    )
