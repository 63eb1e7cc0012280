"""
A test that stops its own server.
"""

import pytest
from shop import place_order

import jetsync
from jetsync.devserver import DevServer


def test_orders_are_stored_once_after_an_outage():
    with DevServer() as server, jetsync.connect(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream("ORDERS", subjects=["orders.>"])
        place_order(js, "orders.eu", "two chairs", 1)

        server.stop()
        with pytest.raises((jetsync.DisconnectedError, jetsync.PublishOutcomeUnknownError)):
            js.publish("orders.eu", "a table", msg_id="order-2", timeout=1)
        server.start()
        client.rtt(timeout=30)

        place_order(js, "orders.eu", "a table", 2)
        assert stream.info().state.messages == 2
