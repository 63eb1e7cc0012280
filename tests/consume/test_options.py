from __future__ import annotations

import datetime as dt
import inspect
import types

import pytest

from jetsync._base.deadline import Deadline
from jetsync._proto.pull_size import UNBOUNDED_BATCH
from jetsync.consume.consumer import Consumer
from jetsync.consume.consumption import Consumption
from jetsync.consume.options import (
    cached_request,
    consume_options,
    fetch_request,
    handler_options,
    push_options,
)
from jetsync.consume.ordered import OrderedConsumer
from jetsync.consume.ordered_consumption import OrderedConsumption
from jetsync.errors import InvalidArgumentError, InvalidTypeError
from jetsync.values.consumer_config import ConsumerConfig


def options(config=None, **changes):
    """
    The options of a consumption.
    """
    return consume_options("S", "C", config or ConsumerConfig(), **changes)


def test_fetch_defaults():
    """
    None for `expires` and `heartbeat` is the default: 30 seconds, and a heartbeat every 5.
    """
    request, wait = fetch_request(max_messages=10, expires=None, heartbeat=None)
    assert (request.expires, wait, request.heartbeat) == (30.0, 30.0, 5.0)


def test_fetch_by_bytes():
    """
    A fetch that is only limited by bytes asks for as many messages as possible.
    """
    request, _ = fetch_request(max_bytes=1000, expires=2)
    assert (request.max_messages, request.max_bytes) == (UNBOUNDED_BATCH, 1000)
    assert request.heartbeat is None


def test_fetch_no_wait():
    """
    A pull with `no_wait` has no expiry and no heartbeat, and waits only briefly for a connection.
    """
    request, wait = fetch_request(max_messages=10, no_wait=True)
    assert (request.no_wait, request.expires, request.heartbeat, wait) == (True, 0.0, None, 2.0)


def test_fetch_heartbeat():
    """
    A heartbeat is at most half of `expires`.
    """
    request, _ = fetch_request(max_messages=1, expires=10, heartbeat=5)
    assert request.heartbeat == 5.0
    with pytest.raises(InvalidArgumentError, match=r"half of expires \(5 s\), not 5.1 s"):
        fetch_request(max_messages=1, expires=10, heartbeat=5.1)


@pytest.mark.parametrize("wrong", [True, 1.0])
def test_fetch_checks_the_type_each_time(wrong):
    """
    True and 1.0 are refused, although they are equal to a count that was accepted before.
    """
    cached_request(max_messages=1)
    with pytest.raises(InvalidTypeError):
        cached_request(max_messages=wrong)


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
    assert options(expires=1).expires == 1.0


def test_a_full_buffer_needs_no_pull():
    """
    The threshold is lower than the buffer, which otherwise would have no room for the pull.
    """
    assert options(max_messages=1).threshold == 0
    assert options(max_messages=10, threshold_messages=10).threshold == 9
    assert options(max_bytes=100, threshold_bytes=100).threshold == 99


def test_options_keep_to_the_limits_of_the_consumer():
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
        ("expires", {"expires": 0.9}),
        ("heartbeat", {"expires": 4, "heartbeat": 3}),
        ("priority", {"priority": 10}),
    ],
)
def test_an_invalid_option_of_a_pull_is_named(argument, changes):
    """
    The error names the argument.
    """
    with pytest.raises(InvalidArgumentError, match=argument) as caught:
        options(**changes)
    assert caught.value.argument == argument


@pytest.fixture
def consumer():
    """
    A consumer without a connection, for calls that fail before they send anything.
    """
    consumer = Consumer.__new__(Consumer)
    consumer._info = types.SimpleNamespace(config=ConsumerConfig(), name="C")
    consumer._stream_name = "S"
    return consumer


@pytest.fixture
def ordered():
    """
    An ordered consumer without a connection.
    """
    cursor = types.SimpleNamespace(name="C")
    context = types.SimpleNamespace(
        lane=types.SimpleNamespace(later=lambda *_: None),
        deadline=Deadline.after,
    )
    source = types.SimpleNamespace(
        stream="S", cursor=cursor, limits=ConsumerConfig(), context=context
    )
    return OrderedConsumer(source)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("consumer", "fetch"),
        ("consumer", "next"),
        ("consumer", "consume"),
        ("ordered", "fetch"),
        ("ordered", "next"),
        ("ordered", "consume"),
    ],
)
def test_each_argument_has_a_default_and_is_checked(request, kind, name):
    """
    The signature has every argument with its default. The error of a wrong value names it.
    """
    call = getattr(request.getfixturevalue(kind), name)
    parameters = inspect.signature(call).parameters
    needed = {"max_messages": 1} if "max_messages" in parameters else {}
    for argument, parameter in parameters.items():
        assert parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
        assert parameter.default is not parameter.empty
        with pytest.raises((InvalidArgumentError, InvalidTypeError)) as caught:
            call(**{**needed, argument: object()})
        assert caught.value.argument == argument


@pytest.mark.parametrize("wrong", [None, "yes", 1, []])
def test_no_wait_is_true_or_false(consumer, wrong):
    """
    `no_wait` is checked like all arguments, also if it cannot be hashed.
    """
    with pytest.raises(InvalidTypeError, match="no_wait must be True or False, not "):
        consumer.fetch(1, no_wait=wrong)


@pytest.mark.parametrize(
    ("argument", "wrong"), [("threads", True), ("threads", 1.0), ("keep_alive", 0)]
)
def test_a_value_that_equals_the_default_is_checked(consumer, argument, wrong):
    """
    The options of a handler are checked by type, also if there is no handler.
    """
    with pytest.raises(InvalidTypeError, match=argument):
        consumer.consume(**{argument: wrong})


@pytest.mark.parametrize(
    ("changes", "config", "problem"),
    [
        ({"handler": None}, {}, "dead_letter need a handler"),
        ({"ack": "explicit"}, {}, "dead_letter needs ack='auto'"),
        ({}, {"ack_policy": "none"}, "ack_policy is 'none'"),
        ({}, {"ack_policy": "all"}, "ack_policy is 'all'"),
        ({}, {"headers_only": True}, "delivers headers only"),
        ({"dead_letter": "dead.*"}, {}, "wildcard"),
        ({"dead_letter": ""}, {}, "empty"),
    ],
)
def test_dead_letters_need_what_they_build_on(consumer, changes, config, problem):
    """
    Dead letters are refused with options and consumers that do not allow them; nothing is sent.
    """
    consumer._info.config = ConsumerConfig(**config)
    wanted = {"handler": print, "ack": "auto", "dead_letter": "dead.orders", **changes}
    with pytest.raises(InvalidArgumentError, match=problem):
        consumer.consume(**wanted)


@pytest.mark.parametrize("kind", [Consumption, OrderedConsumption])
def test_wait_takes_its_timeout_by_name(kind):
    """
    The error of a timeout that is given by position says what to write.
    """
    with pytest.raises(InvalidTypeError, match="by name: timeout"):
        kind.__new__(kind).wait(2)


@pytest.mark.parametrize(
    ("fields", "changes", "size", "threshold"),
    [
        ({"max_deliver": 3}, {}, 4, 3),
        ({"max_deliver": 3}, {"max_messages": 1}, 4, 3),
        ({"max_deliver": 3}, {"max_messages": 14}, 14, 9),
        ({"max_deliver": 3, "ack_policy": "none"}, {}, 500, 252),
        ({"max_deliver": -1}, {}, 500, 252),
        ({}, {}, 500, 252),
        ({}, {"max_messages": 2}, 4, 3),
        ({}, {"max_messages": 14, "threshold_messages": 2}, 14, 2),
    ],
)
def test_the_buffer_of_handlers(fields, changes, size, threshold):
    """
    Four threads have room for four messages at least. On a consumer that gives up messages, that is
    also the default. The next pull is due when half of what they cannot work on is left.
    """
    config = ConsumerConfig(**fields)
    handling = handler_options(config, handler=print, threads=4)
    found = consume_options("S", "C", config, handling, **changes)
    assert (found.max_messages, found.threshold) == (size, threshold)


def test_last_deliveries_of_a_push_consumer():
    """
    With a handler, the limit of deliveries also counts for a push consumer, and otherwise not.
    """
    config = ConsumerConfig(deliver_subject="d", max_deliver=3, max_ack_pending=1)
    handling = handler_options(config, handler=print)
    assert push_options("S", "C", config, handling).max_deliver == 3
    assert push_options("S", "C", config).max_deliver == 0


def test_the_buffer_of_an_iterator():
    """
    The buffer of an iterator does not depend on the consumer's limit of deliveries.
    """
    found = options(ConsumerConfig(max_deliver=3))
    assert (found.max_messages, found.threshold) == (500, 250)
    assert (found.threads, found.max_deliver) == (0, 0)
