from __future__ import annotations

import pytest

from helpers.consuming import options
from jetsync._proto.pull_size import UNBOUNDED_BATCH, pull_size


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
