"""
The messages that are remembered as answers.
"""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace

import jetsync
from jetsync._base.deadline import Deadline
from jetsync.monitoring.oldest import Found, KnownMessages, OldestMessages

NOW = dt.datetime(2026, 11, 29, 12, tzinfo=dt.timezone.utc)


def found(position, sequence, checked=0.0):
    """
    Return a message that was found at or after a position.
    """
    return Found(position, sequence, NOW, checked)


def test_a_message_is_the_answer_for_all_positions_before_it():
    """
    A message that was found from a position is the first one from each position up to its own.
    """
    known = KnownMessages()
    known.add(found(10, 20))
    known.add(found(30, 30))

    assert [known.get(each) is not None for each in (9, 10, 15, 20, 21, 29, 30, 31)] == [
        False, True, True, True, False, False, True, False,
    ]  # fmt: skip
    assert known.get(15).sequence == 20


def test_a_second_look_only_adds_positions():
    """
    A later look from another position does not forget the earlier positions.
    """
    known = KnownMessages()
    known.add(found(10, 20))
    known.add(found(15, 20))
    assert known.get(11).sequence == 20
    known.add(found(5, 20))
    assert known.get(5).sequence == 20


def test_old_answers_are_forgotten():
    """
    A message that may be gone, or that was read long ago, is no answer any more.
    """
    known = KnownMessages()
    known.add(found(1, 5, checked=100.0))
    known.add(found(6, 9, checked=50.0))

    known.keep(0, 60.0)
    assert known.get(6) is None
    assert known.get(1).sequence == 5
    known.keep(6, 60.0)
    assert known.get(1) is None


def a_stream(get_next=None):
    """
    Return a stream with ten messages.
    """
    state = jetsync.StreamState(
        messages=10, first_seq=1, last_seq=10, first_ts=NOW - dt.timedelta(days=1), last_ts=NOW
    )
    info = jetsync.StreamInfo(
        config=jetsync.StreamConfig(name="S", subjects=["s.>"]), state=state, created=NOW
    )
    return SimpleNamespace(name="S", cached_info=info, get_next=get_next)


def a_consumer(name, **config):
    """
    Return a consumer with a message in flight, which has no acknowledged position yet.
    """
    return jetsync.ConsumerInfo(
        name=name,
        stream_name="S",
        created=NOW - dt.timedelta(hours=1),
        num_ack_pending=1,
        config=jetsync.ConsumerConfig(**config),
    )


def test_no_message_is_older_than_the_start_of_its_consumer():
    """
    A consumer of new messages waits for none from before it was created.
    """
    consumers = [
        a_consumer("all"),
        a_consumer("new", deliver_policy="new"),
        a_consumer(
            "late", deliver_policy="by_start_time", opt_start_time=NOW - dt.timedelta(hours=2)
        ),
    ]

    found = OldestMessages(0).find([(a_stream(), each) for each in consumers], Deadline.after(5))

    assert {name: NOW - time for (_, name), time in found.items()} == {
        "all": dt.timedelta(days=1),
        "new": dt.timedelta(hours=1),
        "late": dt.timedelta(hours=2),
    }


def test_a_stream_whose_messages_are_refused_is_asked_once():
    """
    Without permission, or without an answer, a reading does not ask for each consumer.
    """
    asked = []

    def refuse(subject, _, **__):
        asked.append(subject)
        raise jetsync.RequestTimeoutError("x", 1.0)

    stream = a_stream(refuse)
    consumers = [a_consumer(name, filter_subject=f"s.{name}") for name in "abc"]

    oldest = OldestMessages(64)

    assert oldest.find([(stream, each) for each in consumers], Deadline.after(5)) == {}
    assert asked == ["s.a"]
    assert oldest.lookups == 1
