from __future__ import annotations

import datetime as dt
import time
from types import SimpleNamespace

import attrs
import pytest

from jetsync import StreamConfig, StreamSource, SubjectTransform, errors
from jetsync._api.known_streams import KnownStream, StreamCache
from jetsync._api.mirrors import TRUSTED_FOR, agrees, known_answers, may_answer
from jetsync._base.deadline import Deadline
from jetsync.values.codec import to_wire

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


class Server:
    """An account whose server knows both streams. A request about the origin may fail."""

    def __init__(self):
        outbox = SimpleNamespace(wait_open=lambda deadline: 1)
        self.lane = SimpleNamespace(outbox=outbox, epoch=1)
        self.configs = {config.name: to_wire(config) for config in (mirror(), ORIGIN)}
        # Called while the next request about the origin fails.
        self.meanwhile = None

    def api(self, endpoint, body, deadline, *, stream):
        if stream == "S" and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            raise errors.RequestTimeoutError(endpoint, 1.0)
        return {"config": self.configs[stream]}


def test_a_failed_lookup_does_not_undo_that_of_another_thread(monkeypatch):
    """If a stream does not answer, its last configuration counts; a newer one stays."""
    server = Server()
    streams = StreamCache(server)
    context = SimpleNamespace(streams=streams)

    def another_thread():
        server.configs["S"] = to_wire(attrs.evolve(ORIGIN, max_age=120.0))
        streams.named("S", Deadline.after(1), fresh=True)

    assert may_answer(context, "M", "S", "history", Deadline.after(1))
    monkeypatch.setattr("jetsync._api.mirrors.TRUSTED_FOR", -1.0)
    server.meanwhile = another_thread
    assert may_answer(context, "M", "S", "history", Deadline.after(1))
    assert streams.last("S").config.max_age == 120.0
    assert not may_answer(context, "M", "S", "history", Deadline.after(1))
