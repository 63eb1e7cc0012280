"""
Names on the server: any text becomes one token, and arguments are checked before a byte is sent.
"""

from __future__ import annotations

import datetime as dt

import pytest

import jetsync
from jetsync_queue import WorkQueue, token, untoken
from jetsync_queue.times import seconds, start_at

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    "text",
    ["mail", "celery@host.pidbox", "a b", "=", "=40", "*.>", "ä€😀", "a/b\\c", "\n", "\udc80"],
)
def test_any_text_comes_back_from_its_token(text):
    """
    A token can be decoded, and has only characters that subjects and keys allow.
    """
    found = token(text)

    assert untoken(found) == text
    assert all(letter.isascii() and (letter.isalnum() or letter in "-_=") for letter in found)


def test_two_texts_have_two_tokens():
    """
    A name that looks like a token is encoded once more.
    """
    assert token("a=40b") != token("a@b")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {}),
        (7, {}),
        ("x" * 300, {}),
        ("mail", {"prefix": "a.b"}),
        ("mail", {"prefix": ""}),
        ("mail", {"priorities": 0}),
        ("mail", {"priorities": 11}),
        ("mail", {"priorities": True}),
        ("mail", {"result_ttl": 0.5}),
        ("mail", {"result_ttl": 1e9}),
        ("mail", {"storage": "disk"}),
        ("mail", {"ack_wait": "20"}),
        ("mail", {"num_replicas": 6}),
        ("mail", {"results": 1}),
    ],
)
def test_bad_options_of_a_queue_are_refused_before_anything_is_sent(name, options):
    """
    The context is None, so that a request would fail in another way.
    """
    with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
        WorkQueue.open(None, name, **options)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 1e12, "1", True, None])
def test_durations_are_checked(value):
    """
    What is no number of seconds in a sensible range is refused.
    """
    with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
        seconds("delay", value)


def test_a_job_starts_after_its_delay_or_at_its_time():
    """
    A time in the past, and no delay, mean now.
    """
    moment = dt.datetime.fromtimestamp(NOW, dt.timezone.utc)
    later = moment + dt.timedelta(seconds=5)

    assert start_at(None, None, NOW) is None
    assert start_at(0, None, NOW) is None
    assert start_at(dt.timedelta(seconds=2), None, NOW) == NOW + 2
    assert start_at(None, later, NOW) == NOW + 5
    assert start_at(None, moment, NOW) is None


@pytest.mark.parametrize(
    ("delay", "at"),
    [
        (1, dt.datetime.fromtimestamp(NOW, dt.timezone.utc)),
        (None, dt.datetime.fromtimestamp(NOW)),  # noqa: DTZ006 - it must be refused.
        (None, NOW),
        (-1, None),
        (None, dt.datetime(2200, 1, 1, tzinfo=dt.timezone.utc)),
    ],
)
def test_an_unclear_start_is_refused(delay, at):
    """
    Both arguments, a time without a zone, and one that is too far away are refused.
    """
    with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
        start_at(delay, at, NOW)
