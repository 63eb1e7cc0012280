"""
List and cancel the schedules of streams on real servers.
"""

from __future__ import annotations

import datetime as dt

import pytest

import jetsync
from helpers.waiting import timed
from jetsync import schedules
from jetsync.devserver import DevServer

SOON = 1.0


def later(seconds=3600.0):
    """
    Return the time in so many seconds.
    """
    return dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=seconds)


@pytest.fixture
def plan(js, unique):
    """
    A stream that allows schedules, and no direct gets.
    """
    yield js.create_stream(
        unique,
        subjects=[f"{unique}.plan.*", f"{unique}.out.*"],
        allow_msg_schedules=True,
        allow_msg_ttl=True,
        storage="memory",
    )
    js.delete_stream(unique)


def test_schedules_are_listed_with_their_options(js, plan):
    """
    The list has each schedule with its options, and no other messages.
    """
    name, at = plan.name, later()
    assert plan.schedules() == []
    js.publish(f"{name}.out.a", b"no schedule")
    js.publish(f"{name}.plan.a", b"no schedule")
    js.schedule(f"{name}.plan.b", b"x" * 1000, target=f"{name}.out.b", at=at, ttl=60)
    js.schedule(f"{name}.plan.c", target=f"{name}.out.c", every=5400, rollup=True)
    js.schedule(
        f"{name}.plan.d",
        target=f"{name}.out.d",
        cron="0 30 9 * * 1-5",
        time_zone="Europe/Berlin",
        source=f"{name}.plan.a",
    )
    js.schedule(f"{name}.plan.c", target=f"{name}.out.e", every=7200)

    once, cron, again = plan.schedules()
    assert (once.subject, once.target, once.at) == (f"{name}.plan.b", f"{name}.out.b", at)
    assert (once.every, once.ttl, once.rollup) == (None, 60, False)
    assert plan.get_message(once.sequence).data == b"x" * 1000
    assert (cron.pattern, cron.time_zone) == ("0 30 9 * * 1-5", "Europe/Berlin")
    assert (cron.source, cron.at, cron.every) == (f"{name}.plan.a", None, None)
    assert (again.target, again.every, again.at) == (f"{name}.out.e", 7200, None)
    assert abs((again.created - later(0)).total_seconds()) < 600
    assert plan.schedules(f"{name}.plan.b") == [once]
    assert plan.schedules([f"{name}.plan.d", f"{name}.plan.b"]) == [once, cron]
    assert plan.schedules(f"{name}.out.*") == []


def test_more_schedules_than_one_page(js, plan):
    """
    All schedules are listed, however many there are.
    """
    name = plan.name
    headers = {"Nats-Schedule": "@daily", "Nats-Schedule-Target": f"{name}.out.a"}
    js.publish_many((f"{name}.plan.{n}", b"", headers) for n in range(2500))
    assert len(plan.schedules(f"{name}.plan.*", timeout=60)) == 2500


@pytest.mark.versions
@pytest.mark.parametrize("version", ["2.12.8", "2.14.6", None])
def test_a_cancelled_schedule_publishes_nothing(server_for, nats_server, unique, version):
    """
    The server publishes nothing for a cancelled schedule; other messages of the subject stay.
    """
    server = nats_server if version is None else server_for(version)
    with jetsync.connect(server.url) as client:
        js = client.jetstream()
        plan = js.create_stream(
            unique,
            subjects=[f"{unique}.plan.*", f"{unique}.out.*"],
            allow_msg_schedules=True,
            storage="memory",
        )
        js.schedule(f"{unique}.plan.a", "never", target=f"{unique}.out.a", at=later(SOON))
        js.schedule(f"{unique}.plan.b", "later", target=f"{unique}.out.b", at=later(SOON + 1))
        assert [each.subject for each in plan.schedules()] == [
            f"{unique}.plan.a",
            f"{unique}.plan.b",
        ]
        assert plan.cancel_schedule(f"{unique}.plan.a") is True
        assert plan.cancel_schedule(f"{unique}.plan.a") is False
        with plan.ordered_consumer(filter_subjects=f"{unique}.out.*") as out:
            # The later one has come, so the cancelled one would have come before it.
            assert out.next(20).data == b"later"
        assert plan.cancel_schedule(f"{unique}.plan.b") is False
        assert plan.schedules() == []
        js.delete_stream(unique)


def test_only_schedules_are_cancelled(js, plan):
    """
    An ordinary message is not removed, and its subject has no schedule.
    """
    name = plan.name
    js.publish(f"{name}.out.a", b"x")
    assert plan.cancel_schedule(f"{name}.out.a") is False
    assert plan.cancel_schedule(f"{name}.plan.never") is False
    assert plan.info().state.messages == 1
    with pytest.raises(jetsync.InvalidSubjectError):
        plan.cancel_schedule(f"{name}.plan.*")


def test_a_repeated_schedule_ends(js, plan):
    """
    A schedule that has published messages is cancelled, and its messages stay.
    """
    name = plan.name
    js.schedule(f"{name}.plan.a", "tick", target=f"{name}.out.a", every=1)
    with plan.ordered_consumer(filter_subjects=f"{name}.out.a") as out:
        assert out.next(20).data == b"tick"
        assert plan.cancel_schedule(f"{name}.plan.a") is True
        left = plan.info(subjects_filter=">").state.subjects
        assert [*left] == [f"{name}.out.a"]
        published = left[f"{name}.out.a"]
        js.schedule(f"{name}.plan.b", "end", target=f"{name}.out.b", at=later(2.5))
        with plan.ordered_consumer(filter_subjects=f"{name}.out.b") as end:
            assert end.next(20).data == b"end"
        assert plan.info(subjects_filter=">").state.subjects[f"{name}.out.a"] == published


def test_a_stream_without_schedules(js, stream):
    """
    Listing raises an error that names the option; there is nothing to cancel.
    """
    with pytest.raises(jetsync.SchedulesDisabledError, match="allow_msg_schedules=True") as caught:
        stream.schedules()
    assert caught.value.stream == stream.name
    assert stream.cancel_schedule(f"{stream.name}.a") is False


def test_a_deadline_ends_the_list(js, plan):
    """
    A list that takes too long raises RequestTimeoutError.
    """
    with pytest.raises(jetsync.RequestTimeoutError):
        plan.schedules(timeout=0)


def test_a_server_that_stops_answering_does_not_extend_the_list(unique, monkeypatch):
    """
    If the server is silent after it has created the consumer, the call still ends by its timeout.
    """
    create = schedules.open_ordered
    with DevServer() as server, jetsync.connect(server.url) as client:
        js = client.jetstream(timeout=60)
        plan = js.create_stream(unique, subjects=[unique], allow_msg_schedules=True)

        def create_and_pause(*arguments, **options):
            made = create(*arguments, **options)
            server.pause()
            return made

        monkeypatch.setattr(schedules, "open_ordered", create_and_pause)
        try:
            with timed(2.5, 30.0), pytest.raises(jetsync.RequestTimeoutError, match="all sched"):
                plan.schedules(timeout=2.5)
        finally:
            server.resume()
