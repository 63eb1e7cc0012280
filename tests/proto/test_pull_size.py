from __future__ import annotations

import pytest

from helpers.consuming import options
from jetsync._proto.pull_request import PullRequest
from jetsync._proto.pull_size import SHORTEST_REST, UNBOUNDED_BATCH, pull_size, rest_of


@pytest.mark.parametrize(("held", "messages"), [(0, 10), (1, 9), (9, 1), (10, 0), (15, 0)])
def test_a_pull_asks_for_everything_that_is_missing(held, messages):
    """A pull fills the buffer, and none is sent if the buffer is full."""
    assert pull_size(options(), held, 100) == (messages, None)


@pytest.mark.parametrize(
    ("limits", "size"),
    [({}, 300), ({"max_batch_bytes": 250}, 250), ({"max_batch_bytes": 500}, 300)],
)
def test_a_limit_in_bytes_decides_the_bytes(limits, size):
    """With a limit in bytes, a pull asks for the bytes that are missing and any number."""
    limited = options(max_messages=UNBOUNDED_BATCH, max_bytes=400, threshold=200, **limits)
    assert pull_size(limited, 100, 0) == (UNBOUNDED_BATCH, size)


def test_no_pull_asks_for_no_bytes():
    """If no byte is missing, no pull is sent, even with a threshold as high as the limit."""
    assert pull_size(options(max_bytes=400, threshold=400), 400, 0)[0] == 0


@pytest.mark.parametrize(("promised", "messages"), [(0, 7), (4, 3), (7, 0), (8, 0)])
@pytest.mark.parametrize("max_bytes", [None, 400])
def test_a_pull_stops_at_the_last_wanted_message(max_bytes, promised, messages):
    """Arrived and pending messages together never exceed ``stop_after``."""
    limited = options(max_bytes=max_bytes, stop_after=7)
    assert pull_size(limited, 0, promised)[0] == messages


def test_a_pull_keeps_to_the_limit_of_the_consumer():
    """A pull asks for no more messages than the consumer allows."""
    assert pull_size(options(max_batch=4), 0, 0) == (4, None)
    assert pull_size(options(max_batch=40), 0, 0) == (10, None)


def test_the_rest_of_a_pull():
    """The rest asks for what has not arrived, within the time that is left."""
    request = PullRequest(max_messages=10, max_bytes=400, expires=30.0, heartbeat=5.0)
    rest = rest_of(request, 4, 150, 20.0)
    assert (rest.max_messages, rest.max_bytes, rest.expires) == (6, 250, 20.0)


@pytest.mark.parametrize(("seconds", "heartbeat"), [(20.0, 5.0), (10.0, 5.0), (9.9, None)])
def test_the_rest_has_no_heartbeat_that_the_server_refuses(seconds, heartbeat):
    """The server refuses a heartbeat that is longer than half of the time that is left."""
    request = PullRequest(max_messages=10, expires=30.0, heartbeat=5.0)
    assert rest_of(request, 1, 0, seconds).heartbeat == heartbeat


def test_nothing_is_left_of_a_pull():
    """No pull follows if all messages or bytes have arrived, or if no time is left."""
    request = PullRequest(max_messages=10, max_bytes=400, expires=30.0)
    assert rest_of(request, 10, 100, 20.0) is None
    assert rest_of(request, 1, 400, 20.0) is None
    assert rest_of(request, 1, 100, SHORTEST_REST / 2.0) is None
    assert rest_of(request, 9, 399, SHORTEST_REST) is not None
