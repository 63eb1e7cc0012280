"""
Lanes that are idle, open, on a WebSocket and over TLS.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess

import pytest

from helpers.lanes import LONG, LOOPS, Background, Carried, LaneOnLoop
from helpers.scripted_server import ScriptedServer


@pytest.fixture(params=LOOPS)
def idle(request):
    """A lane that was never connected."""
    if request.param == "uvloop":
        import uvloop

        rig = LaneOnLoop(uvloop.new_event_loop)
    else:
        rig = LaneOnLoop(asyncio.SelectorEventLoop)
    yield rig
    rig.close()


@pytest.fixture
def rig(idle):
    """A lane that is open."""
    idle.connect()
    return idle


@pytest.fixture
def carried(idle):
    """A lane on a WebSocket that has not started yet."""
    pytest.importorskip("aiohttp")
    carried = Carried(idle)
    yield carried
    carried.close()
    assert carried.web.closed


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate with its key, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, found = folder / "key.pem", folder / "both.pem"
    command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    command += f" -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {key}"
    subprocess.run([*command.split(), "-out", found], check=True, capture_output=True)
    with found.open("a") as file:
        file.write(key.read_text())
    return found


@pytest.fixture
def secure(idle, certificate):
    """A lane that is open over TLS; its server speaks TLS too."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate)
    client_context = ssl.create_default_context(cafile=certificate)
    ours, theirs = socket.socketpair()
    theirs.settimeout(LONG)
    accepting = Background(lambda: server_context.wrap_socket(theirs, server_side=True))
    secured = client_context.wrap_socket(ours, server_hostname="localhost")
    idle.server = accepting.get()
    idle.server.settimeout(LONG)
    idle._sockets.append(idle.server)
    idle.attach(secured)
    return idle


@pytest.fixture
def server():
    """A scripted server."""
    server = ScriptedServer()
    yield server
    server.close()
