"""
The pictures of exchanges show what jetsync and a real server send.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from pathlib import Path

import pytest

import jetsync
from helpers.waiting import unless_late
from jetsync.devserver import DevServer

ROOT = Path(__file__).parents[2]
TOKEN = re.compile(
    r"Nats-[\w-]+: \d+"
    r"|\$JS[.\w]+"
    r"|\b[2-5]\d\d [A-Z]\w+"
    r'|"\w+":(?:\d+|"[A-Za-z]+")'
    r"|500\.fail\.\d+\.\d\.\$FI"
    r"|\+ACK"
)
"""What a picture quotes. Ids and times differ from run to run."""


def atomic(js):
    """
    Publish three messages in an atomic batch.
    """
    js.create_stream("CARTS", subjects=["carts.>"], allow_atomic=True)
    js.publish_batch([("carts.1", b""), ("carts.1.items.1", b""), ("carts.1.items.2", b"")])


def fast(js):
    """
    Publish 1,200 messages with fast ingest.
    """
    js.create_stream("READINGS", subjects=["readings.>"], allow_batched=True)
    with js.fast_publisher() as publisher:
        publisher.add_many(("readings.1", b"") for _ in range(1200))


def pull(js):
    """
    Fetch ten messages where there are two.
    """
    stream = js.create_stream("ORDERS", subjects=["orders.>"])
    js.publish_many((f"orders.{number}", b"") for number in range(2))
    for message in stream.create_consumer("worker").fetch(10, expires=5):
        message.ack()


def direct(js):
    """
    Scan five messages in pages of three.
    """
    stream = js.create_stream("USERS", subjects=["user.>"], allow_direct=True)
    js.publish_many((f"user.{number}", b"") for number in range(5))
    assert len(list(stream.scan(page=3))) == 5


@contextlib.contextmanager
def recorded():
    """
    JetStream on a connection through a recorder, and the bytes of both directions.
    """
    bytes_of = {">": bytearray(), "<": bytearray()}

    def pump(source, target, way):
        with contextlib.suppress(OSError):
            while received := source.recv(65536):
                bytes_of[way] += received
                target.sendall(received)
            target.shutdown(socket.SHUT_WR)

    def serve():
        ours, _ = listener.accept()
        with ours, socket.create_connection((host, int(port))) as theirs:
            back = threading.Thread(target=pump, args=(theirs, ours, "<"))
            back.start()
            pump(ours, theirs, ">")
            back.join()

    with DevServer() as server, socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = server.url.removeprefix("nats://").split(":")
        recorder = threading.Thread(target=serve)
        recorder.start()
        with jetsync.connect(f"nats://127.0.0.1:{listener.getsockname()[1]}") as client:
            yield client.jetstream(), bytes_of
        recorder.join()


@pytest.mark.thorough
@pytest.mark.live
@pytest.mark.parametrize(
    ("page", "place", "work"),
    [
        ("atomic-batches", 0, atomic),
        ("fast-ingest", 0, fast),
        ("fetch", 0, pull),
        ("reading", 0, direct),
    ],
)
def test_the_picture_shows_what_is_sent(page, place, work):
    """
    Each quoted part is sent in the direction of its arrow, in the order of the picture.
    """
    text = (ROOT / "docs" / "howto" / f"{page}.md").read_text("utf-8")
    pictures = re.findall(r"^```\{exchange\}[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)

    def attempt():
        with recorded() as (js, bytes_of):
            work(js)
        return bytes_of

    bytes_of = unless_late(attempt)
    done = {">": 0, "<": 0}
    for line in pictures[place].splitlines():
        way = line[0]
        for token in TOKEN.findall(line) if way in done else ():
            at = bytes_of[way].find(token.encode(), done[way])
            assert at >= 0, f"{token} is not sent after {bytes(bytes_of[way][: done[way]][-80:])}"
            done[way] = at + len(token)
