from __future__ import annotations

import datetime as dt

import pytest

from jetsync._proto.pull import UNBOUNDED_BATCH, Priorities
from jetsync.consume.options import cached_request, consume_options, fetch_request
from jetsync.errors import InvalidArgumentError, InvalidTypeError
from jetsync.values.consumer_config import ConsumerConfig

NOTHING = dict.fromkeys(
    (
        "max_messages",
        "max_bytes",
        "expires",
        "heartbeat",
        "threshold_messages",
        "threshold_bytes",
        "stop_after",
    )
)


def options(config=None, **changes):
    """
    The options of a consumption, all of them None except for *changes*.
    """
    return consume_options("S", "C", config or ConsumerConfig(), **{**NOTHING, **changes})


def test_fetch_defaults():
    """
    None for `expires` and `heartbeat` is the default: 30 seconds, and a heartbeat every 5.
    """
    request, wait = fetch_request(10, None, None, None, no_wait=False)
    assert (request.expires, wait, request.heartbeat) == (30.0, 30.0, 5.0)


def test_fetch_by_bytes():
    """
    A fetch that is only limited by bytes asks for as many messages as possible.
    """
    request, _ = fetch_request(None, 1000, 2, None, no_wait=False)
    assert (request.max_messages, request.max_bytes) == (UNBOUNDED_BATCH, 1000)
    assert request.heartbeat is None


def test_fetch_no_wait():
    """
    A pull with `no_wait` has no expiry and no heartbeat, and waits only briefly for a connection.
    """
    request, wait = fetch_request(10, None, None, None, no_wait=True)
    assert (request.no_wait, request.expires, request.heartbeat, wait) == (True, 0.0, None, 2.0)


@pytest.mark.parametrize("wrong", [True, 1.0])
def test_fetch_checks_the_type_each_time(wrong):
    """
    True and 1.0 are refused, although they are equal to a count that was accepted before.
    """
    arguments = (None, None, None, False, None, None, None, None)
    cached_request(1, *arguments)
    with pytest.raises(InvalidTypeError):
        cached_request(wrong, *arguments)


def test_consume_defaults():
    """
    A buffer of 500 messages that is refilled at half, and 30 seconds with a heartbeat every 15.
    """
    found = options()
    assert (found.max_messages, found.max_bytes, found.threshold) == (500, None, 250)
    assert (found.expires, found.heartbeat) == (30.0, 15.0)


def test_consume_durations():
    """
    Durations are seconds or timedeltas, and a heartbeat is half of a short `expires`.
    """
    found = options(expires=dt.timedelta(seconds=4))
    assert (found.expires, found.heartbeat) == (4.0, 2.0)


def test_a_full_buffer_needs_no_pull():
    """
    The threshold is lower than the buffer, which otherwise would have no room for the pull.
    """
    assert options(max_messages=1).threshold == 0
    assert options(max_messages=10, threshold_messages=10).threshold == 9
    assert options(max_bytes=100, threshold_bytes=100).threshold == 99


def test_limits_of_the_consumer():
    """
    Pulls keep to the limits of the consumer.
    """
    found = options(ConsumerConfig(max_expires=2, max_batch=7, max_bytes=70))
    assert (found.expires, found.heartbeat) == (2.0, 1.0)
    assert (found.max_batch, found.max_batch_bytes) == (7, 70)


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("max_messages", {"max_messages": 1, "max_bytes": 1}),
        ("threshold_messages", {"max_bytes": 10, "threshold_messages": 1}),
        ("threshold_bytes", {"threshold_bytes": 1}),
        ("threshold_messages", {"max_messages": 2, "threshold_messages": 3}),
        ("expires", {"expires": 0.5}),
        ("heartbeat", {"expires": 4, "heartbeat": 3}),
        ("priority", {"priorities": Priorities(priority=10)}),
    ],
)
def test_invalid(argument, changes):
    """
    The error names the argument.
    """
    with pytest.raises(InvalidArgumentError, match=argument) as caught:
        options(**changes)
    assert caught.value.argument == argument
