from __future__ import annotations

import datetime as dt
import time
from types import SimpleNamespace

import pytest

from jetsync import StreamConfig, StreamSource, SubjectTransform
from jetsync._api.known_streams import KnownStream
from jetsync._api.mirrors import TRUSTED_FOR, agrees, known_answers

ORIGIN = StreamConfig(
    name="S", max_age=60.0, max_msgs=1000, max_bytes=-1, max_msgs_per_subject=5, max_msg_size=-1
)
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def mirror(*, source=None, **config):
    """Return a mirror with the limits of the stream, or with the given ones."""
    limits = {"max_age": 60.0, "max_msgs": 1000, "max_msgs_per_subject": 5}
    of = StreamSource(**{"name": "S", **(source or {})})
    return StreamConfig(**{"name": "M", "mirror": of, **limits, **config})


@pytest.mark.parametrize(
    ("config", "answers"),
    [
        ({}, "message last history"),
        ({"source": {"filter_subject": ">"}}, "message last history"),
        ({"source": {"opt_start_seq": 1}}, "message last history"),
        ({"max_age": None, "max_msgs": -1, "max_msgs_per_subject": 0}, "message last history"),
        ({"max_age": 61.0, "max_bytes": -1, "discard": "new"}, ""),
        ({"max_msgs_per_subject": 1}, "message last"),
        ({"source": {"filter_subject": "a"}}, "message"),
        ({"source": {"opt_start_seq": 2}}, "message"),
        ({"source": {"opt_start_time": NOW}}, "message"),
        ({"max_age": 59.0}, "message"),
        ({"max_msgs": 999}, "message"),
        ({"max_bytes": 1 << 30}, "message"),
        ({"max_msg_size": 100}, ""),
        ({"source": {"subject_transforms": [SubjectTransform(src="a", dest="b")]}}, ""),
        ({"source": {"name": "other"}}, ""),
        ({"mirror": None}, ""),
    ],
)
def test_which_mirrors_may_answer(config, answers):
    """A mirror may answer a read if its configuration lets it have all of its messages."""
    found = [
        each for each in ("message", "last", "history") if agrees(mirror(**config), ORIGIN, each)
    ]
    assert " ".join(found) == answers


@pytest.mark.parametrize("old", [(), ("M",), ("S",)])
def test_known_mirrors_answer_until_a_configuration_is_old(old):
    """A known mirror may answer while both configurations were fetched a short time ago."""
    now = time.monotonic()
    known = {
        config.name: KnownStream(
            name=config.name,
            config=config,
            level=1,
            version=None,
            epoch=1,
            asked=now - 2 * TRUSTED_FOR if config.name in old else now,
        )
        for config in (mirror(), ORIGIN)
    }
    streams = SimpleNamespace(mirrors=lambda _: frozenset({"M"}), last=known.get)
    found = known_answers(SimpleNamespace(streams=streams), "S", "history")
    assert found == (frozenset() if old else {b"M"})
