"""
Operators, accounts and users for tests, with new keys, JWTs and credentials files.

Needs the library nkeys.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import time

import nkeys

CREDENTIALS = """-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""


def encoded(data):
    """
    Return URL-safe base64 without padding, as in tokens.
    """
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def new_key(prefix):
    """
    Return a key pair of a kind, and its public key as text.
    """
    pair = nkeys.from_seed(nkeys.encode_seed(ssl.RAND_bytes(32), prefix))
    return pair, pair.public_key.decode()


def token(subject, issuer, name, nats):
    """
    Return a version 2 NATS JWT for a public key, signed with the issuer's key.
    """
    claims = {
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "name": name,
        "sub": subject,
        "nats": {"version": 2, **nats},
    }
    body = json.dumps(claims, separators=(",", ":"))
    claims["jti"] = base64.b32encode(hashlib.sha256(body.encode()).digest()).rstrip(b"=").decode()
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    parts = [json.dumps(part, separators=(",", ":")).encode() for part in (header, claims)]
    signed = ".".join(encoded(part) for part in parts)
    return f"{signed}.{encoded(issuer.sign(signed.encode()))}"


class Operator:
    """
    An operator with one account, which has JetStream.
    """

    def __init__(self):
        self.key, operator = new_key(nkeys.PREFIX_BYTE_OPERATOR)
        self.account_key, self.account = new_key(nkeys.PREFIX_BYTE_ACCOUNT)
        _, system = new_key(nkeys.PREFIX_BYTE_ACCOUNT)
        limits = dict.fromkeys(
            ("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1
        ) | {"wildcards": True}
        own = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        accounts = {
            self.account: token(
                self.account, self.key, "A", {"type": "account", "limits": limits | own}
            ),
            system: token(system, self.key, "SYS", {"type": "account", "limits": limits}),
        }
        nats = {"type": "operator", "system_account": system}
        self.config = {
            "operator": token(operator, self.key, "O", nats),
            "system_account": system,
            "resolver": "MEMORY",
            "resolver_preload": accounts,
        }

    def credentials(self, path, **permissions):
        """
        Write the credentials file of a new user, and return its seed.
        """
        user, public = new_key(nkeys.PREFIX_BYTE_USER)
        nats = {"type": "user", "subs": -1, "data": -1, "payload": -1, **permissions}
        seed = user.seed.decode()
        jwt = token(public, self.account_key, "U", nats)
        path.write_text(CREDENTIALS.format(jwt=jwt, seed=seed))
        return seed


def token_until(subject, issuer, nats, end):
    """
    Return a JWT that expires at a time.
    """
    header, claims, _ = token(subject, issuer, "U", nats).split(".")
    body = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    body["exp"] = int(end)
    signed = f"{header}.{encoded(json.dumps(body).encode())}"
    return f"{signed}.{encoded(issuer.sign(signed.encode()))}"
