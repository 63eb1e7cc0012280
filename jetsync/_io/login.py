"""
The login of one connection attempt: the authentication fields of CONNECT.

It is computed for every attempt, because the results of the callables and the files of the options
may change. It reads files and calls code of the application, so it must not run in the loop thread.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync.errors import AuthenticationError, ConfigurationError
from jetsync.values.server_urls import address, user_info

if TYPE_CHECKING:
    from jetsync.options import ConnectOptions

_JWT: Final = re.compile(r"^\s*(eyJ[\w-]+\.[\w-]+\.[\w-]+)\s*$", re.ASCII | re.MULTILINE)
_SEED_LINE: Final = re.compile(r"^\s*(S[A-Z2-7]{57})\s*$", re.MULTILINE)
_SIGNATURE_BYTES: Final = 64

# What errors call the fields of CONNECT.
_KINDS: Final = {
    "jwt": "credentials",
    "nkey": "an NKey",
    "user": "a user",
    "pass": "a password",
    "auth_token": "a token",
}

# Identities are compared within one process. Without the key, they are of no use for guessing.
_IDENTITY_KEY: Final = secrets.token_bytes(32)


@attrs.frozen
class Login:
    """
    One login, ready to send.
    """

    # Fields of CONNECT, some of ``user``, ``pass``, ``auth_token``, ``jwt``, ``nkey`` and ``sig``.
    fields: Mapping[str, str] = attrs.field(repr=lambda fields: str(sorted(fields)))
    # A digest of all fields except ``sig``. It is the same for two attempts with the same login.
    identity: bytes = attrs.field(repr=False)

    @property
    def kind(self) -> str:
        """What the login consists of, in words and without its values."""
        parts = [words for name, words in _KINDS.items() if self.fields.get(name)]
        return " and ".join(parts) or "no user, token or key"


def make_login(options: ConnectOptions, url: str, nonce: str | None) -> Login:
    """
    Return the login for one attempt to connect to a server.

    A login in the options takes precedence over the one in the URL. A server that was discovered
    gets the login of the first URL in the options that has one.

    Args:
        options: The options of the client.
        url: The server.
        nonce: The text to sign, None if the server's INFO has none. Such a server supports no keys,
            so neither a JWT nor an NKey is sent to it. Files and seeds are checked nevertheless.

    Raises:
        AuthenticationError: A file or a callable of the options gives no login.
        ConfigurationError: The login needs the library nkeys, which is not installed.
    """
    fields = _signed_login(options, (nonce or "").encode())
    if not nonce:
        fields = {}
    if options.user is not None:
        fields["user"] = _text("user", options.user)
        # A server can have users without a password, and an auth callout can decide by the name.
        fields["pass"] = "" if options.password is None else _text("password", options.password)
    if options.token is not None:
        fields["auth_token"] = _text("token", options.token)
    fields = fields or _url_login(options, url)
    lasting = {name: value for name, value in fields.items() if name != "sig"}
    text = json.dumps(lasting, sort_keys=True).encode()
    return Login(fields, hashlib.blake2b(text, key=_IDENTITY_KEY).digest())


def _url_login(options: ConnectOptions, url: str) -> dict[str, str]:
    logins = {address(one): user_info(one) for one in options.server_list()}
    some = next(filter(None, logins.values()), None)
    match logins.get(address(url), some):
        case None:
            return {}
        case (token, None):
            return {"auth_token": token}
        case (user, password):
            return {"user": user, "pass": password}


def _signed_login(options: ConnectOptions, nonce: bytes) -> dict[str, str]:
    if options.credentials is not None:
        return _jwt_login(options, nonce)
    if options.nkey is not None:
        return {"nkey": options.nkey, "sig": _call_signer(options, nonce)}
    if options.nkey_seed is None:
        return {}
    try:
        seed = options.nkey_text()
    except ConfigurationError as error:
        raise AuthenticationError(str(error)) from None
    assert seed is not None
    public, signature = _sign(seed, nonce, "nkey_seed")
    return {"nkey": public, "sig": signature}


def _jwt_login(options: ConnectOptions, nonce: bytes) -> dict[str, str]:
    text, source = _read_credentials(options.credentials)
    jwt, seed = _JWT.search(text), _SEED_LINE.search(text)
    if not text.strip():
        raise AuthenticationError(f"{source} is empty")
    if jwt is None and seed is None:
        raise AuthenticationError(f"{source} has neither a user JWT nor a seed")
    if jwt is None:
        raise AuthenticationError(
            f"{source} has a seed but no user JWT; for a login with a seed alone use nkey_seed"
        )
    if options.nkey_signature is not None:
        return {"jwt": jwt[1], "sig": _call_signer(options, nonce)}
    if seed is None:
        raise AuthenticationError(
            f"{source} has a user JWT but no seed; to sign without a seed use nkey_signature"
        )
    return {"jwt": jwt[1], "sig": _sign(seed[1], nonce, source)[1]}


def _read_credentials(given: Any) -> tuple[str, str]:
    """
    Return the text of the credentials, and how errors name them.
    """
    if callable(given):
        found = _call("credentials", given)
        if isinstance(found, (str, bytes)):
            raw = found.encode() if isinstance(found, str) else found
            return raw.decode("utf-8-sig", "replace"), "credentials: what the callable returned"
        if not isinstance(found, os.PathLike):
            kind = type(found).__name__
            raise AuthenticationError(
                f"credentials: the callable must return a path, text or bytes, not {kind}"
            )
        given = found
    path = Path(given).expanduser()
    source = f"credentials file {str(path)!r}"
    try:
        return path.read_bytes().decode("utf-8-sig", "replace"), source
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AuthenticationError(f"{source} cannot be read: {reason}") from error


def _text(name: str, given: str | Callable[[], str]) -> str:
    if isinstance(given, str):
        return given
    value: object = _call(name, given)
    if not isinstance(value, str):
        raise AuthenticationError(
            f"{name}: the callable must return text, not {type(value).__name__}"
        )
    if not value and name != "password":
        raise AuthenticationError(f"{name}: the callable returned an empty text")
    return value


def _call_signer(options: ConnectOptions, nonce: bytes) -> str:
    signer = options.nkey_signature
    assert signer is not None
    if not nonce:
        return ""
    signature: object = _call("nkey_signature", signer, nonce)
    if not isinstance(signature, bytes) or len(signature) != _SIGNATURE_BYTES:
        raise AuthenticationError(
            f"nkey_signature: the callable must return the {_SIGNATURE_BYTES} bytes"
            " of an Ed25519 signature"
        )
    return _encode(signature)


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        # Only the class of the error: its text may contain a secret, and this text is logged.
        raise AuthenticationError(f"{name}: the callable raised {type(error).__name__}") from error


def _sign(seed: str, nonce: bytes, source: str) -> tuple[str, str]:
    """
    Return the public key of a seed, and its signature of the nonce.
    """
    try:
        import nkeys
    except ImportError as error:
        raise ConfigurationError(
            f"this login needs {error.name}:"
            " install the extra, as in python -m pip install 'jetsync[nkeys]'"
        ) from error
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
    except nkeys.NkeysError:
        raise AuthenticationError(f"{source}: the seed is damaged") from None
    signed = pair.public_key.decode(), _encode(pair.sign(nonce))
    pair.wipe()
    return signed


def _encode(signature: bytes) -> str:
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
