"""
A server that lowers its ``max_payload`` while clients are connected. It does not tell them, and
ends the connection over the next message that is too large.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.waiting import eventually
from jetsync.devserver import DevServer

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "SIGHUP"), reason="servers reload their configuration at SIGHUP"
)

HIGH, LOW = 1 << 20, 4096
BIG = b"x" * (LOW + 1)
REASON = "the server refused a message that is larger than its max_payload"


class Limited:
    """
    A server with a limit, and a client that knows only the first one.
    """

    def __init__(self, server, file):
        self.server, self.file = server, file
        self.reloads = 0
        self.client = jetsync.connect(
            server.url, reconnect_wait=0.05, connect_timeout=20, request_timeout=20
        )
        self.js = self.client.jetstream()
        self.name = f"T{os.getpid()}"
        self.stream = self.js.create_stream(
            self.name,
            subjects=[f"{self.name}.>"],
            allow_direct=True,
            allow_atomic=True,
            allow_batched=True,
        )
        self.subject = f"{self.name}.a"

    def set_limit(self, limit):
        self.file.write_text(json.dumps({"max_payload": limit})[1:-1])
        os.kill(self.server.pids[0], signal.SIGHUP)
        self.reloads += 1
        text = "Reloaded server configuration"
        eventually(lambda: self.server.log().count(text) == self.reloads)

    def stored(self):
        return self.stream.info().state.messages

    def payloads(self):
        return [len(message.data) for message in self.stream.scan()]


@pytest.fixture
def limited(tmp_path):
    """
    A server that has just lowered its limit.
    """
    file = tmp_path / "limit.conf"
    file.write_text(json.dumps({"max_payload": HIGH})[1:-1])
    # The server reads included files relative to the folder of its configuration.
    steps = "../" * 20
    with DevServer(config=f'include "{steps}{file}"') as server:
        made = Limited(server, file)
        made.set_limit(LOW)
        assert made.client.server.max_payload == HIGH
        yield made
        made.client.close()


CALLS = {
    "publish": lambda one: one.js.publish(one.subject, BIG),
    "headers": lambda one: one.js.publish(one.subject, b"x" * LOW, headers={"A": "b"}),
    "request": lambda one: one.client.request(one.subject, BIG),
    "publish_batch": lambda one: one.js.publish_batch([(one.subject, b"1"), (one.subject, BIG)]),
    "publisher": lambda one: one.js.publisher().publish(one.subject, BIG).result(timeout=20),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_single_message(limited, call):
    """
    The call raises MaxPayloadError with the new limit, and nothing is stored.
    """
    with pytest.raises(jetsync.MaxPayloadError) as caught:
        CALLS[call](limited)
    assert caught.value.limit == LOW
    assert caught.value.size > LOW
    assert limited.stored() == 0
    limited.js.publish(limited.subject, b"1")
    assert limited.client.statistics().reconnects == 1


def test_messages_before_one_that_is_too_large_stay_unknown(limited):
    """
    Messages in flight stay unknown, with the reason. The last one was not processed, so it is sent
    again.
    """
    with pytest.raises(jetsync.PublishManyError) as caught:
        limited.js.publish_many([(limited.subject, data) for data in (b"1", BIG, b"333")])
    report = caught.value.report
    assert [failure.index for failure in report.failures if failure.index] == [1]
    for failure in report.failures:
        assert isinstance(failure.error, jetsync.PublishOutcomeUnknownError)
        assert REASON in str(failure.error)
    assert limited.payloads() == [1, 3]


def test_a_small_message_after_a_large_one(limited):
    """
    A message that follows the refused one was not processed, so it is sent again and stored once.
    """
    limited.client.publish("core", BIG)
    assert limited.js.publish(limited.subject, b"1").sequence == 1
    assert limited.payloads() == [1]


def test_other_calls(limited):
    """
    Other calls in flight fail with the reason, as the server may have processed them.
    """
    served, answer = threading.Event(), threading.Event()
    with (
        jetsync.connect(limited.server.url, connect_timeout=20) as other,
        other.subscribe("slow") as subscription,
        ThreadPoolExecutor(2) as pool,
    ):
        other.flush()

        def serve():
            subscription.next(timeout=20)
            served.set()
            answer.wait(20)

        serving = pool.submit(serve)
        waiting = pool.submit(limited.client.request, "slow")
        assert served.wait(20)
        # The other thread may still be about to leave its write, and then sends this message, too.
        with pytest.raises((jetsync.MaxPayloadError, jetsync.PublishOutcomeUnknownError)):
            limited.js.publish(limited.subject, BIG)
        with pytest.raises(jetsync.ConnectionLostError, match=REASON) as caught:
            waiting.result(20)
        answer.set()
        serving.result(20)
    assert caught.value.sent
    assert caught.value.reason == REASON


def test_the_next_server_refuses_it_too(limited, monkeypatch):
    """
    If the next server announces a higher limit than it accepts, the call raises the reason once.
    """
    monkeypatch.setattr("jetsync._io.connection.Connection.check_size", lambda *_: None)
    with pytest.raises(jetsync.ConnectionLostError, match=REASON) as caught:
        limited.client.request(limited.subject, BIG)
    assert not caught.value.sent
    with pytest.raises(jetsync.ConnectionLostError, match=REASON) as caught:
        limited.js.publish(limited.subject, BIG)
    assert not caught.value.sent
    assert limited.stored() == 0


def test_an_atomic_batch(limited):
    """
    The server drops a batch that contains such a message, and the error gives the reason.
    """
    batch = limited.js.atomic_batch()
    batch.add(limited.subject, b"1")
    batch.add(limited.subject, BIG)
    with pytest.raises(
        jetsync.ConnectionLostError, match="none of its messages is stored"
    ) as caught:
        batch.commit()
    assert REASON in str(caught.value)
    assert not caught.value.sent
    assert limited.stored() == 0


@pytest.mark.parametrize("gap", ["ok", "fail"])
def test_a_fast_publisher(limited, gap):
    """
    The error, or the count of lost messages, is right, and the error gives the reason.
    """
    publisher = limited.js.fast_publisher(gap=gap)
    publisher.add(limited.subject, b"1")
    publisher.add(limited.subject, BIG)
    failure = None
    try:
        ack = publisher.commit(limited.subject, b"333")
    except (jetsync.PublishError, jetsync.MaxPayloadError) as error:
        failure = error
    if failure is None:
        assert ack.lost == 1
    else:
        assert REASON in f"{failure} {failure.__cause__}"
    assert BIG not in [message.data for message in limited.stream.scan()]
