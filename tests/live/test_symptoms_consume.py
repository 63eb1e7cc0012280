"""
Symptoms of programs that consume messages.

`docs/howto/symptoms.md` has the words that each test sees.
"""

from __future__ import annotations

import logging

import pytest

import jetsync
from helpers.symptoms import names, shows
from helpers.waiting import eventually
from jetsync.devserver import DevServer


@pytest.fixture(autouse=True)
def _logs(caplog):
    """
    Log as the page advises.
    """
    caplog.set_level(logging.INFO, "jetsync")


def fill(js, stream, count=3, data=b"x"):
    """
    Publish messages.
    """
    assert js.publish_many([(f"{stream.name}.a", data)] * count).count == count


class TestDelivery:
    def test_messages_that_are_delivered_twice(self, js, stream):
        """
        A message whose `ack_wait` ends in the program is delivered again.
        """
        heading = "Messages are delivered twice"
        worker = stream.create_consumer("worker", ack_wait=0.1)
        fill(js, stream, 1)
        assert worker.next(expires=5).metadata.delivered == 1
        again = worker.next(expires=5)
        assert again.metadata.delivered == 2
        assert worker.info().num_redelivered == 1
        names(heading, "message.metadata.delivered", "num_redelivered", "`ack_wait`")
        default = stream.create_consumer("default").info().config.ack_wait
        assert default == 30.0
        names(heading, "30 seconds")

    def test_a_consumer_that_delivers_nothing_more(self, js, stream):
        """
        With `max_ack_pending` messages unacknowledged, nothing is delivered until one is.
        """
        heading = "A consumer delivers nothing more, although messages wait"
        worker = stream.create_consumer("worker", max_ack_pending=2)
        fill(js, stream, 3)
        first, _ = worker.fetch(2, expires=5)
        assert worker.next(expires=0.3) is None
        info = worker.info()
        assert info.num_ack_pending == info.config.max_ack_pending == 2
        assert info.num_pending == 1
        first.ack_sync()
        assert worker.next(expires=5) is not None
        names(heading, "num_ack_pending", "max_ack_pending", "num_pending", "1,000")

    def test_a_fetch_that_stops_at_1_000(self, js, stream):
        """
        A fetch of 100,000 messages returns 1,000 and no error.
        """
        heading = "fetch(100_000) returns 1,000 messages"
        worker = stream.create_consumer("worker")
        fill(js, stream, 1500)
        assert len(list(worker.fetch(100_000, expires=0.5))) == 1000
        info = worker.info()
        assert info.num_ack_pending == info.config.max_ack_pending == 1000
        names(heading, "max_ack_pending", "num_ack_pending", "1,000")

    def test_a_consumer_of_new_messages(self, js, stream):
        """
        A consumer with `deliver_policy="new"` gets no message that was there before.
        """
        heading = "A new consumer gets no old messages"
        fill(js, stream)
        worker = stream.create_consumer("worker", deliver_policy="new")
        assert worker.next(expires=0.2) is None
        info = worker.info()
        shows(heading, info.config.deliver_policy.value, "new")
        assert info.num_pending == 0
        assert stream.create_consumer("all").info().num_pending == 3
        names(heading, "config.deliver_policy", "num_pending", 'deliver_policy="all"')

    def test_a_filter_without_a_match(self, stream, caplog):
        """
        A filter outside of the subjects of the stream is a warning in the log.
        """
        heading = "A consumer with a filter gets nothing"
        stream.create_consumer("worker", filter_subject="order.eu")
        shows(heading, caplog.text, "filter_outside_subjects", "filters", "subjects")

    def test_a_message_that_is_given_up(self, js, stream):
        """
        After `max_deliver` deliveries, the server delivers a message no more.
        """
        heading = "A message was not acknowledged and is not delivered again"
        worker = stream.create_consumer("worker", max_deliver=1, ack_wait=0.1)
        fill(js, stream, 1)
        assert worker.next(expires=5) is not None
        assert worker.next(expires=0.5) is None
        assert worker.info().num_pending == 0
        assert stream.info().state.messages == 1
        names(heading, "consumer.info().config.max_deliver", "num_pending", "`max_deliver`")

    def test_nothing_arrives(self, worker):
        """
        `next` returns None if no message arrives.
        """
        heading = "'NoneType' object has no attribute 'ack'"
        with pytest.raises(AttributeError) as caught:
            worker.next(expires=0.1).ack()
        shows(heading, caught.value, heading)

    def test_a_payload_that_is_not_json(self, js, stream):
        """
        The error about a payload names the message.
        """
        heading = "DecodeError: cannot decode the payload"
        fill(js, stream, 1)
        with pytest.raises(jetsync.DecodeError) as caught:
            stream.get_last(f"{stream.name}.a").json()
        shows(heading, caught.value, "cannot decode the payload of message 1 on '")


class TestAcks:
    def test_a_consumer_without_acks(self, js, stream, caplog):
        """
        An acknowledgement that the server ignores is a warning in the log.
        """
        heading = "Acknowledgements have no effect"
        worker = stream.create_consumer("worker", ack_policy="none")
        fill(js, stream)
        worker.next(expires=5).ack()
        shows(heading, caplog.text, "ack_ignored")
        with pytest.raises(jetsync.AcksNotWantedError) as caught:
            worker.next(expires=5).ack_sync()
        shows(heading, caught.value, "takes no acknowledgements")

    def test_an_account_that_does_not_import_acks(self):
        """
        Without `$JS.ACK.>` among the imports, messages arrive and acknowledgements are lost.
        """
        heading = "All messages of another account are redelivered"
        api = "$JS.API.>"
        config = {
            "accounts": {
                "HUB": {
                    "jetstream": "enabled",
                    "users": [{"user": "hub", "password": "p"}],
                    "exports": [{"service": api, "response_type": "stream"}],
                },
                "SHOP": {
                    "users": [{"user": "shop", "password": "p"}],
                    "imports": [{"service": {"account": "HUB", "subject": api}, "to": "hub.api.>"}],
                },
            }
        }
        with DevServer(config=config) as server:
            with jetsync.connect(server.url, user="hub", password="p") as client:
                js = client.jetstream()
                stream = js.create_stream("ORDERS", subjects=["orders.>"], storage="memory")
                stream.create_consumer("worker")
                js.publish_many([("orders.eu", b"")] * 2)
            with jetsync.connect(server.url, user="shop", password="p") as client:
                worker = client.jetstream(prefix="hub.api").consumer("ORDERS", "worker")
                first, second = worker.next(expires=5), worker.next(expires=5)
                first.ack()
                with pytest.raises(jetsync.NoRespondersError) as caught:
                    second.ack_sync()
                assert worker.info().num_ack_pending == 2
        shows(heading, caught.value, "no responders on '$JS.ACK.")
        names(heading, "`$JS.ACK.>`", "num_ack_pending")

    def test_a_second_ack(self, js, stream, worker):
        """
        A message is acknowledged once.
        """
        heading = "MessageAlreadyAckedError: is already acknowledged"
        fill(js, stream, 1)
        message = worker.next(expires=5)
        message.ack()
        with pytest.raises(jetsync.MessageAlreadyAckedError) as caught:
            message.ack()
        shows(heading, caught.value, "is already acknowledged")
        assert message.is_acked
        names(heading, "message.is_acked")


class TestHandlers:
    def test_an_async_handler(self, worker):
        """
        A handler that is an async function is refused.
        """
        heading = "handler must be a plain function, not async"

        async def handle(message):
            message.ack()

        with pytest.raises(jetsync.InvalidTypeError) as caught:
            worker.consume(handle)
        shows(heading, caught.value, heading)

    def test_a_handler_that_fails(self, js, stream, worker, caplog, monkeypatch):
        """
        An exception of a handler is in the log and in the statistics.
        """
        heading = "handler_failed in the log"
        monkeypatch.setattr("threading.excepthook", lambda _: None)
        fill(js, stream, 1)

        def handle(message):
            raise ValueError(message.subject)

        with worker.consume(handle) as running:
            eventually(lambda: running.statistics().failures)
        words = ("handler_failed", "stream", "consumer", "sequence", "delivered")
        shows(heading, caplog.text, *words)
        names(heading, "statistics().failures")


class TestLosses:
    def test_an_ordered_consumer(self, js, stream, caplog):
        """
        An ordered consumer whose consumer is deleted continues with another one.
        """
        heading = "consumer_reset in the log"
        fill(js, stream, 1)
        with stream.ordered_consumer() as ordered, ordered.consume() as messages:
            assert next(messages).sequence == 1
            (info,) = stream.consumers()
            stream.delete_consumer(info.name)
            fill(js, stream, 1)
            assert next(messages).sequence == 2
        shows(heading, caplog.text, "consumer_reset", "reason", "sequence")

    def test_a_slow_subscription(self, client, caplog):
        """
        A core subscription whose buffer is full drops messages, and says so.
        """
        heading = "SlowConsumerError: messages were dropped"
        with client.subscribe("ticks", max_pending=10) as ticks:
            for _ in range(50):
                client.publish("ticks", b"")
            client.flush()
            with pytest.raises(jetsync.SlowConsumerError) as caught:
                ticks.next(timeout=5)
            eventually(lambda: "slow_consumer" in caplog.text)
        dropped = "slow consumer: the subscription to 'ticks' dropped"
        advice = "take messages faster, or raise max_pending and max_pending_bytes"
        shows(heading, caught.value, dropped, advice)
        shows(heading, caplog.text, "slow_consumer", "subject", "dropped")

    def test_large_messages(self, caplog):
        """
        A server drops a client that pulls 500 messages of 1 MB. A warning says what to pass.
        """
        heading = "Consumption of large messages hardly moves"
        # The server gives up early, so that the client loses its connection on every machine.
        with (
            DevServer(config={"max_pending": 16 << 20}) as server,
            jetsync.connect(server.url, reconnect_wait=0.05) as client,
        ):
            js = client.jetstream()
            stream = js.create_stream("BIG", subjects=["BIG.>"], storage="memory")
            fill(js, stream, 100, bytes(1_000_000))
            worker = stream.create_consumer("worker", ack_wait=1)
            with worker.consume() as messages:

                def warned() -> bool:
                    # A loss after most messages arrived is none of these. They come again.
                    messages.next(timeout=0.1)
                    return "pull_too_large" in caplog.text

                eventually(warned, timeout=30)
                assert messages.statistics().connections_lost
            shows(
                heading,
                caplog.text,
                "pull_too_large",
                "message_size",
                "the server may have dropped this client as a slow consumer",
                "max_bytes=33554432",
            )
            assert "consumer='worker' message_size=1000000" in caplog.text
            assert "or max_messages=33" in caplog.text
            assert caplog.text.count("pull_too_large") == 1
            shows(heading, server.log(), "Slow Consumer Detected")
            names(heading, "statistics().connections_lost", "64 MiB")

    def test_large_messages_within_a_limit(self, caplog):
        """
        Without a pull that could bring too much, a lost connection is no such warning.
        """
        with DevServer() as server, jetsync.connect(server.url, reconnect_wait=0.05) as client:
            js = client.jetstream()
            stream = js.create_stream("BIG", subjects=["BIG.>"])
            fill(js, stream, 100, bytes(1_000_000))
            worker = stream.create_consumer("worker")
            with worker.consume(max_bytes=33554432) as messages:
                assert messages.next(timeout=20) is not None
                server.kill()
                server.start()
                eventually(
                    lambda: messages.next(timeout=0.1) and messages.statistics().connections_lost
                )
        assert "disconnected" in caplog.text
        assert "pull_too_large" not in caplog.text
