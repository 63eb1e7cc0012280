"""Stub until the real one is merged."""

from __future__ import annotations
import base64
import attrs
from urllib.parse import urlsplit, unquote


@attrs.frozen
class Login:
    fields: dict = attrs.field(repr=False)
    identity: bytes = attrs.field(repr=False)


def make_login(options, url, nonce):
    f = {}
    if nonce and options.credentials is not None:
        import nkeys

        lines = open(options.credentials).read().splitlines()
        jwt = lines[1]
        seed = next(l for l in lines if l.startswith("SU"))
        f["jwt"] = jwt
        f["sig"] = base64.b64encode(
            nkeys.from_seed(bytearray(seed.encode())).sign(nonce.encode())
        ).decode()
    elif nonce and options.nkey_seed is not None:
        import nkeys

        kp = nkeys.from_seed(bytearray(options.nkey_text().encode()))
        f["nkey"] = kp.public_key.decode()
        f["sig"] = base64.b64encode(kp.sign(nonce.encode())).decode()
    if options.user is not None:
        f["user"] = options.user
        f["pass"] = options.password or ""
    if options.token is not None:
        f["auth_token"] = options.token
    if not f:
        p = urlsplit(url)
        if p.password is not None:
            f = {"user": unquote(p.username), "pass": unquote(p.password)}
        elif p.username:
            f = {"auth_token": unquote(p.username)}
    return Login(f, repr(sorted((k, v) for k, v in f.items() if k != "sig")).encode())
