"""
Message schedules on real servers.
"""

from __future__ import annotations

import datetime as dt

import pytest

import jetsync
from helpers.traffic import sent_nothing
from helpers.waiting import eventually
from jetsync.values import headers as names
from jetsync.values.codec import parse_time


def soon(seconds=1.0):
    """
    Return the time in so many seconds.
    """
    return dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=seconds)


def planned(js, unique):
    """
    A stream that allows schedules.
    """
    return js.create_stream(
        unique,
        subjects=[f"{unique}.plan.*", f"{unique}.out.*"],
        allow_msg_schedules=True,
        allow_msg_ttl=True,
        allow_direct=True,
        storage="memory",
    )


@pytest.fixture
def plan(js, unique):
    """
    A stream that allows schedules, on the newest server.
    """
    yield planned(js, unique)
    js.delete_stream(unique)


@pytest.fixture
def out(plan):
    """
    Return the messages that its schedules publish.
    """
    with (
        plan.ordered_consumer(filter_subjects=f"{plan.name}.out.*") as ordered,
        ordered.consume() as messages,
    ):
        yield messages


class TestAt:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.12.8", "2.14.6", None])
    def test_a_message_is_published_once_at_its_time(
        self, server_for, nats_server, unique, version
    ):
        """
        The server publishes the message once, and then removes the schedule.
        """
        server = nats_server if version is None else server_for(version)
        with jetsync.connect(server.url) as client:
            js = client.jetstream()
            stream = planned(js, unique)
            at = soon()
            ack = js.schedule(
                f"{unique}.plan.a",
                b"later",
                target=f"{unique}.out.a",
                at=at,
                ttl=60,
                headers={"Kind": "test"},
            )
            assert (ack.stream, ack.sequence) == (unique, 1)
            with stream.ordered_consumer(filter_subjects=f"{unique}.out.a") as ordered:
                message = ordered.next(20)
            assert message.data == b"later"
            assert message.metadata.timestamp >= at
            assert dict(message.headers.items()) == {
                "Kind": "test",
                names.SCHEDULER: f"{unique}.plan.a",
                names.SCHEDULE_NEXT: "purge",
                names.TTL: "60",
            }
            eventually(lambda: stream.info(subjects_filter=">").state.messages == 1)
            js.delete_stream(unique)

    def test_a_time_that_has_passed(self, js, plan, out):
        """
        If the time has passed, the server publishes the message at once.
        """
        name = plan.name
        js.schedule(f"{name}.plan.a", "x", target=f"{name}.out.a", at=soon(-3600))
        assert out.next(timeout=20).data == b"x"

    def test_another_one_takes_its_place(self, js, plan, out):
        """
        A later schedule on a subject replaces the earlier one, and a purge ends it.
        """
        name = plan.name
        js.schedule(f"{name}.plan.a", "first", target=f"{name}.out.a", at=soon(1))
        js.schedule(f"{name}.plan.a", "second", target=f"{name}.out.a", at=soon(1.5))
        js.schedule(f"{name}.plan.b", "never", target=f"{name}.out.b", at=soon(1.2))
        assert plan.purge(f"{name}.plan.b") == 1
        assert out.next(timeout=20).data == b"second"
        assert out.next(timeout=0.3) is None


class TestAgain:
    def test_each_message_of_a_schedule_names_the_next_time(self, js, plan, out):
        """
        Each message of a repeated schedule names the schedule and the next time.
        """
        name = plan.name
        js.schedule(f"{name}.plan.a", "tick", target=f"{name}.out.a", every=1)
        first, second = out.next(timeout=20), out.next(timeout=20)
        for message in (first, second):
            assert message.data == b"tick"
            assert message.headers[names.SCHEDULER] == f"{name}.plan.a"
        due = parse_time(first.headers[names.SCHEDULE_NEXT])
        assert abs((second.metadata.timestamp - due).total_seconds()) < 1
        assert plan.get_last(f"{name}.plan.a").headers[names.SCHEDULE] == "@every 1s"

    def test_cron_source_and_rollup(self, js, plan, out):
        """
        A schedule can publish the newest message of another subject and roll up its target.
        """
        name = plan.name
        js.publish(f"{name}.plan.now", "newest", headers={"Kind": "source"})
        js.schedule(
            f"{name}.plan.a",
            "nothing yet",
            target=f"{name}.out.a",
            cron="* * * * * *",
            time_zone="Europe/Berlin",
            source=f"{name}.plan.now",
            rollup=True,
        )
        first, second = out.next(timeout=20), out.next(timeout=20)
        assert {first.data, second.data} == {b"newest"}
        assert first.headers["Kind"] == "source"
        eventually(
            lambda: (
                plan.info(subjects_filter=f"{name}.out.a").state.subjects == {f"{name}.out.a": 1}
            )
        )

    def test_a_source_without_a_message(self, js, plan, out):
        """
        If the source has no message, the server publishes the payload of the schedule.
        """
        name = plan.name
        js.schedule(
            f"{name}.plan.a",
            "nothing yet",
            target=f"{name}.out.a",
            at=soon(0),
            source=f"{name}.plan.none",
        )
        assert out.next(timeout=20).data == b"nothing yet"


class TestRefused:
    def test_invalid_schedules_are_refused_before_sending(self, client, js, plan):
        """
        Invalid schedules are refused before anything is sent.
        """
        name = plan.name
        before = client.statistics().bytes_out
        for changes in (
            {"every": 0.5},
            {"every": 5, "target": f"{name}.plan.a"},
            {"every": 5, "target": f"{name}.out.*"},
            {"every": 5, "headers": {"Nats-Schedule": "@daily"}},
            {},
        ):
            with pytest.raises(jetsync.InvalidArgumentError):
                js.schedule(f"{name}.plan.a", **{"target": f"{name}.out.a", **changes})
        with pytest.raises(TypeError):
            js.schedule(f"{name}.plan.a", every=5)
        assert sent_nothing(client, before)

    def test_by_the_server(self, js, plan):
        """
        The server's errors have their own classes.
        """
        name = plan.name
        for changes, error, code in (
            ({"target": "elsewhere"}, jetsync.ScheduleTargetInvalidError, 10190),
            ({"cron": "61 * * * * *"}, jetsync.SchedulePatternInvalidError, 10189),
            ({"source": "elsewhere"}, jetsync.ScheduleSourceInvalidError, 10203),
            ({"time_zone": "Mars/North"}, jetsync.ScheduleTimeZoneInvalidError, 10223),
        ):
            options = {"target": f"{name}.out.a", "cron": "@daily", **changes}
            with pytest.raises(error) as caught:
                js.schedule(f"{name}.plan.a", **options)
            assert caught.value.err_code == code
        by_hand = {
            names.SCHEDULE: "@every 500ms",
            names.SCHEDULE_TARGET: f"{name}.out.a",
        }
        for changes, error, code in (
            ({}, jetsync.SchedulePatternInvalidError, 10189),
            (
                {names.SCHEDULE: "@daily", names.SCHEDULE_TARGET: f"{name}.plan.a"},
                jetsync.ScheduleTargetInvalidError,
                10190,
            ),
            (
                {names.SCHEDULE: "@daily", names.SCHEDULE_ROLLUP: "all"},
                jetsync.ScheduleRollupInvalidError,
                10192,
            ),
            (
                {names.SCHEDULE: "@daily", names.SCHEDULE_TTL: "0.5s"},
                jetsync.ScheduleTtlInvalidError,
                10191,
            ),
        ):
            with pytest.raises(error) as caught:
                js.publish(f"{name}.plan.a", headers={**by_hand, **changes})
            assert caught.value.err_code == code
        assert plan.info().state.messages == 0

    def test_a_stream_without_schedules_stores_nothing(self, js, stream):
        """
        If the stream does not allow schedules, nothing is stored.
        """
        with pytest.raises(jetsync.SchedulesDisabledError) as caught:
            js.schedule(f"{stream.name}.a", target=f"{stream.name}.b", at=soon())
        assert (caught.value.err_code, caught.value.stream) == (10188, stream.name)
        assert stream.info().state.messages == 0
        with pytest.raises(jetsync.NoStreamResponseError):
            js.schedule("nobody.takes.this", target=f"{stream.name}.b", at=soon())

    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11"])
    def test_on_servers_without_schedules(self, server_for, unique, version):
        """
        Servers before 2.12 would store the schedule and ignore it, so nothing is sent.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"])
            with pytest.raises(jetsync.NotSupportedError, match=r"server 2\.12 or later"):
                js.schedule(f"{unique}.a", target=f"{unique}.b", at=soon())
            assert stream.info().state.messages == 0
            js.delete_stream(unique)

    def test_on_servers_that_know_times_only(self, server_for, unique):
        """
        Nothing is sent to server 2.12 that it would ignore or refuse.
        """
        with jetsync.connect(server_for("2.12.8").url) as client:
            js = client.jetstream()
            stream = planned(js, unique)
            for options in (
                {"every": 5},
                {"cron": "@daily"},
                {"at": soon(), "source": f"{unique}.plan.b"},
                {"at": soon(), "rollup": True},
            ):
                with pytest.raises(jetsync.NotSupportedError, match=r"server 2\.14 or later"):
                    js.schedule(f"{unique}.plan.a", target=f"{unique}.out.a", **options)
            assert stream.info().state.messages == 0
            js.delete_stream(unique)
