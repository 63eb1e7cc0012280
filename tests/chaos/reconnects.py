"""
Reconnects that meet junk in place of a server, for a while, before the honest server is back.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import attrs
import calls
from hostile import LIMIT, OPTIONS, Waiters, recover
from middleman import Middleman, swallow
from mutations import ERRORS, INFOS
from test_websocket import self_signed
from trial import Base, Report

import jetsync
from helpers.credentials import Operator
from jetsync.devserver import DevServer

INFO = b'INFO {"server_id":"junk","version":"2.12.0","max_payload":1048576,"headers":true}\r\n'
STARTS = [
    b"",
    b"\0" * 100,
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    b"\x15\x03\x01\x00\x02\x02\x28",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"INFO",
    b"INFO {",
    INFO[:30],
    b"PONG\r\n",
    b"MSG quiet 1 4\r\nEVIL\r\n",
    INFO + b"PONG\r\nPONG\r\n" + INFO,
    INFO + b"MSG quiet 1 4\r\nEVIL\r\nPONG\r\n",
    *(b"INFO " + info + b"\r\n" for info in INFOS),
    *(INFO + f"-ERR '{error}'\r\n".encode() for error in ERRORS),
]
FILES = [
    "",
    "\r\n",
    "-----BEGIN NATS USER JWT-----\n",
    "-----BEGIN USER NKEY SEED-----\n",
    "\0" * 100,
    "half",
    "seed only",
    None,
]
"""The contents of a credentials file while it is being written; None means no file."""


@attrs.define
class World:
    port: int
    operator: Operator
    operator_port: int
    tls_port: int
    certificate: str
    folder: Path
    base: Base


@contextlib.contextmanager
def world():
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificate, key = self_signed(folder)
        operator = Operator()
        url = stack.enter_context(calls.server()).url
        guarded = stack.enter_context(DevServer(config=operator.config))
        tls = {"cert_file": certificate, "key_file": key}
        secure = stack.enter_context(DevServer(config={"tls": tls}))
        yield World(
            int(url.rsplit(":", 1)[1]),
            operator,
            guarded.port,
            secure.port,
            certificate,
            folder,
            Base(),
        )


def trial(world: World, chance, report: Report) -> None:
    """Connect, cut the connection, answer with junk, then be honest again."""
    kind = chance.choice(["tcp", "tcp", "tls", "credentials"])
    target = {"tls": world.tls_port, "credentials": world.operator_port}.get(kind, world.port)
    with Middleman(target, frames=False) as middleman:
        file = world.folder / "user.creds"
        options = dict(OPTIONS)
        if kind == "tls":
            options["tls_ca"] = world.certificate
        if kind == "credentials":
            world.operator.credentials(file)
            options["credentials"] = file
        client = report.call(
            "connect", lambda: jetsync.connect(f"nats://127.0.0.1:{middleman.port}", **options), 3
        )
        if not isinstance(client, jetsync.Client):
            report.violation("no connection", repr(client))
            return
        with Waiters(client, report):
            if kind == "credentials":
                spoil_file(chance, report, middleman, file)
            else:
                junk(chance, report, middleman)
            recover(client, report, middleman, chance)
            report.call("close", lambda: client.close(timeout=3), LIMIT)
            if not client.is_closed:
                report.violation("not closed after close", repr(client))
    client = None
    world.base.check(report)


def junk(chance, report: Report, middleman: Middleman) -> None:
    """Answer new connections with junk for a while."""
    start = chance.choice(STARTS)
    silence = chance.choice([0.0, 0.0, 0.5, 5.0])
    report.about(f"reconnects get {start[:80]!r}, silent for {silence} s")

    async def answer(reader, writer) -> None:
        report.counts["junk"] += 1
        writer.write(start)
        await writer.drain()
        if silence:
            await swallow(reader, silence)
        elif start:
            # Wait, so that the client reads it before the connection ends.
            await swallow(reader, 0.02)

    middleman.greet = lambda: answer
    disturb(report, middleman)
    middleman.greet = None
    # Connections that are still silent belong to the junk.
    middleman.drop()


def spoil_file(chance, report: Report, middleman: Middleman, file: Path) -> None:
    """Let reconnects find a credentials file that is not whole."""
    text = file.read_text()
    spoiled = chance.choice(FILES)
    if spoiled == "half":
        spoiled = text[: chance.randrange(len(text))]
    elif spoiled == "seed only":
        spoiled = text[text.index("-----BEGIN USER NKEY SEED") :]
    report.about(f"credentials file with {'nothing' if spoiled is None else repr(spoiled[:80])}")
    report.counts["spoiled files"] += 1
    if spoiled is None:
        file.unlink()
    else:
        file.write_text(spoiled)
    disturb(report, middleman)
    file.write_text(text)


def disturb(report: Report, middleman: Middleman) -> None:
    """Cut the connection and let reconnects fail for a second; they may not use a whole core."""
    before = middleman.accepted
    middleman.drop()
    cpu, begin = time.process_time(), time.monotonic()
    time.sleep(1.0)
    share = (time.process_time() - cpu) / (time.monotonic() - begin)
    if share > 0.8:
        report.violation("busy", f"{share:.0%} of a core while nothing can be reached")
    report.counts["reconnects"] += middleman.accepted - before
