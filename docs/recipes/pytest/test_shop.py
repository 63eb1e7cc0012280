"""
Tests with a real server, which jetsync's fixtures start.
"""

import pytest
from shop import place_order, ship

import jetsync


def test_orders_are_shipped_once(js, stream):
    place_order(js, f"{stream.name}.eu", "two chairs", 1)

    assert ship(stream) == ["two chairs"]
    assert ship(stream) == []


def test_an_order_without_a_stream_is_refused(js):
    with pytest.raises(jetsync.NoStreamResponseError):
        place_order(js, "elsewhere", "two chairs", 1)
