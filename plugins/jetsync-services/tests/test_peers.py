"""
Services and callers in other languages and with other clients, both ways.

nats-py is always there. `JETSYNC_GO_PEER` names a program over the package `micro` of nats.go with
the commands `micro-serve`, `micro-ping`, `micro-info`, `micro-stats` and `micro-call`, and
`JETSYNC_NATSIO` a Python that has natsio.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from jetsync.testing import eventually
from jetsync_services import (
    Service,
    ServiceError,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    call,
    info,
    stats,
)
from jetsync_services.documents import decode, encode_document

pytestmark = pytest.mark.live

HERE = Path(__file__).parent
GO = os.environ.get("JETSYNC_GO_PEER")
NATSIO = os.environ.get("JETSYNC_NATSIO")
KINDS = {"PING": ServicePing, "INFO": ServiceInfo, "STATS": ServiceStats}


class GoPeer:
    """
    A program over nats.go.
    """

    def __init__(self, url):
        self.url = url

    def serve(self, name):
        return [GO, "micro-serve", self.url, name, "1.0.0", "-group", name, "-meta", "a<b=c&d"]

    def ask(self, verb, name):
        return [GO, f"micro-{verb.lower()}", self.url, name]

    def call(self, subject, data):
        return [GO, "micro-call", self.url, subject, data]


class PythonPeer:
    """
    A program over nats-py or natsio.
    """

    def __init__(self, python, file, url):
        self.start = [python, str(HERE / file)]
        self.url = url

    def serve(self, name):
        return [*self.start, "serve", self.url, name]

    def ask(self, verb, name):
        return [*self.start, "ask", self.url, verb, name]

    def call(self, subject, data):
        return [*self.start, "call", self.url, subject, data]


@pytest.fixture(params=["go", "nats-py", "natsio"])
def peer(request, nats_server):
    """
    One of the other clients.
    """
    if request.param == "go":
        if GO is None:
            pytest.skip("JETSYNC_GO_PEER is not set")
        return GoPeer(nats_server.url)
    if request.param == "natsio":
        if NATSIO is None:
            pytest.skip("JETSYNC_NATSIO is not set")
        return PythonPeer(NATSIO, "peer_natsio.py", nats_server.url)
    return PythonPeer(sys.executable, "peer_natspy.py", nats_server.url)


def run(command):
    """
    Return the lines of JSON that a program prints.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def served(peer, caller, name):
    """
    The id of a service of the other client, which serves `NAME.echo` and `NAME.faulty`.
    """
    program = subprocess.Popen(
        peer.serve(name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        started = json.loads(program.stdout.readline())["id"]
        # It does not wait until the server knows its subjects.
        eventually(lambda: [found for found in info(caller, name) if len(found.endpoints) == 2])
        yield started
    finally:
        program.stdin.close()
        program.terminate()
        program.wait(60)
        program.stdout.close()


class TestTheyServe:
    def test_calls(self, served, caller, name):
        """
        We call their service, and get their errors.
        """
        assert call(caller, f"{name}.echo", "text", timeout=30).data == b"text"
        with pytest.raises(ServiceError, match="handler error") as caught:
            call(caller, f"{name}.faulty", timeout=30)
        assert caught.value.code == 500

    def test_documents(self, peer, served, caller, name):
        """
        We read their documents. Those of nats.go have the same bytes as ours would have.
        """
        for verb, kind in KINDS.items():
            answer = caller.request(f"$SRV.{verb}.{name}.{served}", timeout=30)
            document = decode(kind, answer)

            assert (document.name, document.id, document.version) == (name, served, "1.0.0")
            if isinstance(peer, GoPeer):
                # It has null for no metadata of an endpoint, and up to nine digits of a second.
                theirs = answer.data.replace(b'"metadata":null', b'"metadata":{}')
                theirs = re.sub(
                    rb"(:\d\d)\.?(\d{,6})\d*Z",
                    lambda found: b"%b.%bZ" % (found[1], found[2].ljust(6, b"0")),
                    theirs,
                )
                assert encode_document(document) == theirs

    def test_statistics(self, served, caller, name):
        """
        We read their statistics.
        """
        for _ in range(3):
            call(caller, f"{name}.echo", b"x", timeout=30)

        (found,) = stats(caller, name, timeout=30, stall=1)
        assert {each.name: each.num_requests for each in found.endpoints} == {
            "echo": 3,
            "faulty": 0,
        }


class TestWeServe:
    @pytest.fixture
    def ours(self, service_client, name):
        """
        Our service. nats-py reads only statistics with data, which nats.go and we leave out.
        """
        service = Service(
            service_client, name, version="1.2.0", metadata={"a<b": "c&d"}, on_stats=attrs.asdict
        )

        @service.endpoint("echo", subject=f"{service.name}.echo", metadata={"unit": "m<s"})
        def echo(request):
            return request.data

        @service.endpoint("faulty", subject=f"{service.name}.faulty", queue_group=None)
        def faulty(request):
            raise ServiceError(418, "teapot")

        with service:
            yield service

    def test_calls(self, peer, ours):
        """
        They call our service, and get our errors.
        """
        assert run(peer.call(f"{ours.name}.echo", "text"))[0]["data"] == "text"

        (answer,) = run(peer.call(f"{ours.name}.faulty", ""))

        assert "418" in json.dumps(answer["headers"])
        assert "teapot" in json.dumps(answer["headers"])

    @pytest.mark.parametrize("verb", list(KINDS))
    def test_documents(self, peer, ours, verb):
        """
        They find our service, and read the same values that we have.
        """
        run(peer.call(f"{ours.name}.echo", "text"))
        own = {"PING": ours.ping, "INFO": ours.info, "STATS": ours.stats}[verb]()

        (theirs,) = run(peer.ask(verb, ours.name))

        theirs = {key: value for key, value in theirs.items() if key != "started"}
        expected = json.loads(encode_document(own))
        assert theirs == {key: value for key, value in expected.items() if key != "started"}
