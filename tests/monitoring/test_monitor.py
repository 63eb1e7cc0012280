"""
The arguments of a monitor, and the readings that it returns.
"""

from __future__ import annotations

import datetime as dt

import pytest

import jetsync
from jetsync.monitoring import ConsumerReading, Monitor
from jetsync.monitoring.monitor import FEW, Names

NOW = dt.datetime(2026, 11, 29, 12, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("given", "matches", "others"),
    [
        ("*", ["a", "b-1"], []),
        ("orders-*", ["orders-", "orders-eu"], ["orders", "ORDERS-eu"]),
        (["a", "b*d"], ["a", "bd", "bcd"], ["ab", "b", "bcde"]),
        ("a+b", ["a+b"], ["aab"]),
        ([], [], ["a", ""]),
    ],
)
def test_names(given, matches, others):
    """
    A `*` stands for any text, and every other character for itself.
    """
    names = Names("stream", given)

    assert [name for name in [*matches, *others] if names.match(name)] == matches


def test_few_names_are_asked_one_by_one():
    """
    Up to 16 names are asked one by one. A pattern, or more names, take a list.
    """
    some = [f"a{number}" for number in range(FEW + 1)]

    assert Names("stream", some[:FEW]).are_few
    assert not Names("stream", some).are_few
    assert not Names("stream", [*some[:2], "b*"]).are_few
    assert not Names("stream", ()).are_few


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"streams": "a b"}, jetsync.InvalidNameError),
        ({"streams": ["a", ""]}, jetsync.InvalidNameError),
        ({"consumers": ["a.b*"]}, jetsync.InvalidNameError),
        ({"consumers": [1]}, jetsync.InvalidTypeError),
        ({"streams": 1}, jetsync.InvalidTypeError),
        ({"lookups": -1}, jetsync.InvalidArgumentError),
        ({"lookups": 1.5}, jetsync.InvalidTypeError),
    ],
)
def test_wrong_arguments(arguments, error):
    """
    A wrong argument is an error before anything is sent.
    """
    with pytest.raises(error):
        Monitor(None, **arguments)


def reading(oldest, **fields):
    """
    Return the reading of a consumer.
    """
    return ConsumerReading(info=jetsync.ConsumerInfo(ts=NOW, **fields), oldest=oldest)


def test_the_age_of_the_oldest_message():
    """
    It is 0 if no message waits, and unknown if no one knows the message that waits longest.
    """
    past = NOW - dt.timedelta(seconds=90)

    assert reading(None).oldest_age == 0
    assert reading(None, num_pending=1).oldest_age is None
    assert reading(past, num_pending=1).oldest_age == 90
    assert reading(past, num_ack_pending=1).oldest_age == 90
    # Clocks of servers differ.
    assert reading(NOW + dt.timedelta(seconds=1), num_pending=1).oldest_age == 0
