"""
The TLS set-up of a client: which certificates it trusts and which one it shows.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from jetsync.errors import ConfigurationError
from jetsync.options import TLS_FIELDS
from jetsync.values.server_urls import wants_tls

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from jetsync.options import ConnectOptions


def tls_context(options: ConnectOptions) -> ssl.SSLContext | None:
    """
    Return the TLS context; ``None`` if the options do not ask for TLS.

    TLS is used if an option that starts with ``tls`` is set, or if a URL has the scheme ``tls`` or
    ``wss``.

    Raises:
        ConfigurationError: A file cannot be read or has the wrong contents.
    """
    if options.tls is not None:
        return options.tls
    asked = any(getattr(options, name) for name in TLS_FIELDS)
    if not asked and not wants_tls(options.server_list()):
        return None
    context = ssl.create_default_context()
    if options.tls_ca is not None:
        # Trust only this authority: a private one is meant to exclude the public ones.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load("tls_ca", options.tls_ca, context.load_verify_locations)
    if options.tls_cert is not None:
        key = options.tls_key
        _load("tls_cert", options.tls_cert, lambda path: context.load_cert_chain(path, key))
    return context


def _load(
    option: str, path: str | os.PathLike[str], load: Callable[[str | os.PathLike[str]], None]
) -> None:
    try:
        load(path)
    except OSError as error:
        raise ConfigurationError(f"{option}: {str(path)!r} cannot be used: {error}") from error
