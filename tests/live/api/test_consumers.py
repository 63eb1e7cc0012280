"""
Consumers on real servers, from 2.10 to the newest.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
import time

import pytest

import jetsync
from helpers.traffic import sent_nothing
from helpers.waiting import at_some_pace, timed, unless_late
from jetsync.devserver import DevServer

OLD = ["2.10.26", "2.11.11", "2.12.0", "2.12.8", "2.14.6"]
UTC = dt.timezone.utc


@pytest.fixture
def filled(js, stream):
    """
    The test's stream with ten messages on one subject.
    """
    for number in range(10):
        js.publish(f"{stream.name}.A", f"{number + 1}")
    return stream


@pytest.fixture
def old_stream(server_for, unique):
    """
    Return a factory of streams on older servers.
    """
    clients = []

    def make(version):
        client = jetsync.connect(server_for(version).url)
        clients.append(client)
        js = client.jetstream()
        return js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")

    yield make
    for client in clients:
        client.close()


def requests_seen(client, subscription):
    """
    Return the subjects and requests that a subscription has received.
    """
    client.flush()
    seen = []
    while True:
        try:
            message = subscription.next(timeout=0.05)
        except TimeoutError:
            return seen
        if message is None:
            return seen
        seen.append((message.subject, json.loads(message.data or b"null")))


def wait_until_gone(stream, name, within):
    """
    Wait until a consumer is deleted, and return how long that took.
    """
    start = time.monotonic()
    pause = threading.Event()
    while time.monotonic() - start < within:
        try:
            stream.consumer(name)
        except jetsync.ConsumerNotFoundError:
            return time.monotonic() - start
        pause.wait(0.05)
    pytest.fail(f"consumer {name} was still there after {within} s")


class TestCreateAndUpdate:
    def test_creating_the_same_consumer_again_changes_nothing(self, stream):
        """
        The second call returns the existing consumer.
        """
        first = stream.create_consumer("c", max_deliver=5)
        again = stream.create_consumer("c", max_deliver=5)
        assert again.cached_info.created == first.cached_info.created

    def test_creating_another_consumer_of_that_name_is_refused(self, stream):
        """
        A different configuration raises ConsumerExistsError (10148).
        """
        stream.create_consumer("c", max_deliver=5)
        with pytest.raises(jetsync.ConsumerExistsError) as caught:
            stream.create_consumer("c", max_deliver=6)
        assert (caught.value.err_code, caught.value.stream) == (10148, stream.name)

    def test_updating_a_missing_consumer_is_refused(self, js, stream):
        """
        The server refuses an object (10149). With keywords, the read before the update fails.
        """
        with pytest.raises(jetsync.ConsumerDoesNotExistError) as caught:
            stream.update_consumer(jetsync.ConsumerConfig(durable_name="none"))
        assert caught.value.err_code == 10149
        with pytest.raises(jetsync.ConsumerNotFoundError):
            js.update_consumer(stream.name, "none", max_deliver=5)

    def test_create_or_update_of_a_consumer_goes_both_ways(self, js, stream):
        """
        The first call creates, the second updates.
        """
        config = jetsync.ConsumerConfig(durable_name="c", max_deliver=5)
        assert stream.create_or_update_consumer(config).cached_info.config.max_deliver == 5
        again = js.create_or_update_consumer(stream.name, config, max_deliver=6)
        assert again.cached_info.config.max_deliver == 6

    def test_keywords_change_the_current_configuration(self, stream):
        """
        Keywords keep the other fields. An object replaces the whole configuration.
        """
        stream.create_consumer("c", max_deliver=5, description="kept", ack_wait=7.25)
        changed = stream.update_consumer("c", max_deliver=6).cached_info.config
        assert (changed.max_deliver, changed.description, changed.ack_wait) == (6, "kept", 7.25)
        replaced = stream.update_consumer(jetsync.ConsumerConfig(durable_name="c"))
        assert replaced.cached_info.config.description is None

    def test_an_update_that_changes_nothing_changes_nothing(self, client, stream):
        """
        Nanoseconds, times and unknown fields are sent back unchanged.
        """
        config = {
            "durable_name": "c",
            "ack_policy": "explicit",
            "deliver_policy": "by_start_time",
            "opt_start_time": "2020-01-01T00:00:00.123456789Z",
            "ack_wait": 98257898496283823,
            "backoff": [1, 98257898496283823],
            "max_deliver": 4,
            "pause_until": "2060-01-01T00:00:00.123456789Z",
            "metadata": {"a": "b"},
        }
        request = json.dumps({"stream_name": stream.name, "config": config}).encode()
        client.request(f"$JS.API.CONSUMER.CREATE.{stream.name}.c", request)

        def raw():
            answer = client.request(f"$JS.API.CONSUMER.INFO.{stream.name}.c", b"")
            return json.loads(answer.data)["config"]

        before = raw()
        stream.update_consumer("c")
        assert raw() == before
        stream.update_consumer(stream.consumer("c").cached_info.config)
        assert raw() == before

    def test_an_immutable_field_of_a_consumer_is_refused(self, stream):
        """
        The server refuses the change (10012), and the configuration stays.
        """
        stream.create_consumer("c")
        with pytest.raises(jetsync.ConsumerConfigInvalidError) as caught:
            stream.update_consumer("c", ack_policy="all")
        assert caught.value.err_code == 10012
        assert stream.consumer("c").cached_info.config.ack_policy is jetsync.AckPolicy.EXPLICIT

    def test_the_default_acknowledges_explicitly(self, client, stream):
        """
        Consumers are created and updated with ``explicit`` by default.
        """
        stream.create_consumer(name="x")
        answer = client.request(f"$JS.API.CONSUMER.INFO.{stream.name}.x", b"")
        assert json.loads(answer.data)["config"]["ack_policy"] == "explicit"
        stream.update_consumer(jetsync.ConsumerConfig(name="x", description="d"))
        assert stream.consumer("x").cached_info.config.ack_policy == "explicit"
        assert stream.create_consumer(ack_policy="none").cached_info.config.ack_policy == "none"

    def test_a_random_name(self, stream):
        """
        A consumer without a name gets a random one and is ephemeral.
        """
        made = [stream.create_consumer(ack_wait=5) for _ in range(3)]
        assert len({consumer.name for consumer in made}) == 3
        assert set(stream.consumer_names()) == {consumer.name for consumer in made}
        assert made[0].cached_info.config.durable_name is None
        assert made[0].cached_info.config.inactive_threshold == 5

    @pytest.mark.parametrize(
        "fields",
        [
            {"name": "a.b"},
            {"durable_name": "a b"},
            {"name": "a", "durable_name": "b"},
            {"name": "a", "filter_subject": ".a"},
            {"name": "a", "filter_subject": "a."},
            {"name": "a", "filter_subjects": ["a", "a..b"]},
            {"name": "a", "filter_subjects": "a"},
            {"name": "a", "ack_wait": -1},
            {"name": "a", "ack_policy": "maybe"},
            {"name": "a", "opt_start_time": dt.datetime(2026, 1, 1)},  # noqa: DTZ001
            {"name": "a", "max_delivery": 5},
            {"name": "a", "backoff": [1, 10, 60], "max_deliver": 2},
        ],
    )
    def test_a_wrong_argument_of_a_consumer_sends_nothing(self, client, stream, fields):
        """
        A wrong argument raises an error before anything is sent.
        """
        before = client.statistics().bytes_out
        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
            stream.create_consumer(**fields)
        assert sent_nothing(client, before)


class TestFilters:
    @pytest.mark.parametrize(
        ("fields", "error", "err_code"),
        [
            ({"filter_subjects": ["A", ">"]}, jetsync.OverlappingFilterSubjectsError, 10138),
            (
                {"filter_subjects": ["A"], "filter_subject": "A"},
                jetsync.DuplicateFilterSubjectsError,
                10136,
            ),
            ({"filter_subjects": ["A", ""]}, jetsync.EmptyFilterSubjectError, 10139),
        ],
    )
    def test_filters_that_a_server_refuses(self, stream, fields, error, err_code):
        """
        Servers refuse overlapping filters, both fields together, and an empty filter in a list.
        """

        def full(value):
            return f"{stream.name}.{value}" if value else value

        given = {
            key: full(value) if isinstance(value, str) else [full(item) for item in value]
            for key, value in fields.items()
        }
        with pytest.raises(error) as caught:
            stream.create_consumer(name="c", **given)
        assert caught.value.err_code == err_code

    def test_a_filter_outside_the_stream_is_warned_about(self, nats_server, unique, caplog):
        """
        The server accepts it. jetsync logs a warning and tells the plugins.
        """
        events = []

        class Listener:
            @jetsync.hookimpl
            def jetsync_status(self, event):
                events.append(event)

        with jetsync.connect(nats_server.url, plugins=[Listener()]) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.A"], storage="memory")
            with caplog.at_level(logging.WARNING, logger="jetsync"):
                stream.create_consumer(name="in", filter_subject=f"{unique}.A")
                stream.create_consumer(name="all", filter_subject=f"{unique}.>")
                assert caplog.records == []
                stream.create_consumer(name="out", filter_subjects=[f"{unique}.A", f"{unique}.B"])
                js.create_consumer(unique, name="out2", filter_subject="elsewhere")
            messages = [record.getMessage() for record in caplog.records]
            assert len(messages) == 2
            assert f"filters=['{unique}.B']" in messages[0]
            assert "filter_outside_subjects" in messages[1]
            assert "elsewhere" in messages[1]
            stream.delete()
        warned = [one for one in events if isinstance(one, jetsync.FilterOutsideSubjectsEvent)]
        assert [(one.stream, one.consumer, one.filters) for one in warned] == [
            (unique, "out", (f"{unique}.B",)),
            (unique, "out2", ("elsewhere",)),
        ]

    def test_no_warning_after_the_stream_has_grown(self, js, stream, caplog):
        """
        A warning is based on the current configuration, not on the handle's older one.
        """
        js.update_stream(stream.name, subjects=[f"{stream.name}.>", f"{stream.name}-more"])
        with caplog.at_level(logging.WARNING, logger="jetsync"):
            stream.create_consumer(name="c", filter_subject=f"{stream.name}-more")
        assert caplog.records == []

    def test_the_filter_is_in_the_request_subject(self, client, stream):
        """
        A single filter is part of the subject, so that permissions can restrict it.
        """
        name = stream.name
        with client.subscribe(f"$JS.API.CONSUMER.CREATE.{name}.>") as requests:
            stream.create_consumer(name="one", filter_subject=f"{name}.A")
            stream.create_consumer(name="wild", filter_subject=f"{name}.*.>")
            stream.create_consumer(name="two", filter_subjects=[f"{name}.A", f"{name}.B"])
            stream.create_consumer("none")
            stream.create_or_update_consumer("none")
            stream.update_consumer(jetsync.ConsumerConfig(durable_name="none"))
            seen = requests_seen(client, requests)
        prefix = f"$JS.API.CONSUMER.CREATE.{name}"
        assert [subject for subject, _ in seen] == [
            f"{prefix}.one.{name}.A",
            f"{prefix}.wild.{name}.*.>",
            f"{prefix}.two",
            f"{prefix}.none",
            f"{prefix}.none",
            f"{prefix}.none",
        ]
        actions = [request.get("action") for _, request in seen]
        assert actions == ["create"] * 4 + [None, "update"]
        assert seen[3][1]["config"] == {"durable_name": "none", "ack_policy": "explicit"}


class TestInfo:
    def test_info_is_fresh_and_cached_info_is_not(self, js, stream):
        """
        info() asks the server, and cached_info is the last answer.
        """
        consumer = stream.create_consumer("c")
        for _ in range(5):
            js.publish(f"{stream.name}.A", b"")
        taken = list(consumer.fetch(2, expires=5))
        assert len(taken) == 2
        assert (consumer.cached_info.num_pending, consumer.cached_info.num_ack_pending) == (0, 0)
        info = consumer.info()
        assert (info.num_pending, info.num_ack_pending) == (3, 2)
        assert info.delivered.stream_seq == 2
        assert consumer.cached_info is info
        assert (info.stream_name, info.name) == (stream.name, "c")

    def test_a_consumer_that_is_not_there(self, js, stream):
        """
        Each call raises the same error, which names the stream.
        """
        for ask in (
            stream.consumer,
            stream.delete_consumer,
            lambda name: js.consumer(stream.name, name),
            lambda name: js.delete_consumer(stream.name, name),
        ):
            with pytest.raises(jetsync.ConsumerNotFoundError) as caught:
                ask("none")
            assert caught.value.stream == stream.name
        with pytest.raises(jetsync.StreamNotFoundError):
            js.consumer(f"{stream.name}-none", "none")

    def test_a_push_consumer_can_not_be_fetched_from(self, client, stream):
        """
        The error is raised before a pull is sent.
        """
        push = stream.create_consumer(name="p", deliver_subject=f"{stream.name}-to")
        with client.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.>") as pulls:
            with pytest.raises(jetsync.NotPullConsumerError):
                list(push.fetch(1, expires=1))
            assert requests_seen(client, pulls) == []

    def test_a_crowd_is_listed_in_pages(self, js, unique):
        """
        300 consumers are listed in pages, and none is repeated after deletions.
        """
        stream = js.create_stream(unique, subjects=[unique], storage="memory")
        expected = [f"c{number:03d}" for number in range(300)]
        for name in expected:
            stream.create_consumer(name)
        assert list(stream.consumer_names()) == expected
        assert [consumer.name for consumer in stream.consumers()] == expected
        seen = []
        for number, consumer in enumerate(stream.consumers()):
            seen.append(consumer.name)
            consumer.delete()
            if number < 200 and number % 10 == 0:
                stream.delete_consumer(expected[-1 - number // 10])
        assert seen == expected[:280]
        assert list(stream.consumer_names()) == []
        stream.delete()

    def test_an_idle_ephemeral_is_deleted(self, stream):
        """
        The server deletes an ephemeral consumer ``inactive_threshold`` seconds after the last pull.
        """
        consumer = stream.create_consumer(inactive_threshold=1)
        assert wait_until_gone(stream, consumer.name, within=20) > 0.5

    def test_a_waiting_pull_keeps_it(self, stream):
        """
        The consumer exists after three times the threshold.
        """

        def attempt(pace):
            consumer = stream.create_consumer(inactive_threshold=pace)
            assert list(consumer.fetch(1, expires=3 * pace)) == []
            assert stream.consumer(consumer.name).name == consumer.name

        at_some_pace(attempt)


class TestReset:
    def test_nothing_acknowledged_begins_at_the_start(self, filled):
        """
        All messages are pending again.
        """
        consumer = filled.create_consumer("c")
        list(consumer.fetch(5, expires=5))
        reset = filled.reset_consumer("c")
        assert (reset.reset_seq, reset.info.num_pending) == (1, 10)

    def test_acknowledged_messages_are_done(self, filled):
        """
        With messages 1 to 3 acknowledged, it continues at 4.
        """
        consumer = filled.create_consumer("c")
        for message in consumer.fetch(5, expires=5):
            if message.sequence <= 3:
                message.ack_sync()
        assert filled.reset_consumer("c").reset_seq == 4
        (first,) = consumer.fetch(1, expires=5)
        assert first.sequence == 4

    def test_to_a_sequence(self, filled):
        """
        A reset can move a consumer forwards and backwards.
        """
        filled.create_consumer("c")
        reset = filled.reset_consumer("c", 7)
        assert (reset.reset_seq, reset.info.num_pending) == (7, 4)
        assert filled.reset_consumer("c", sequence=2).info.num_pending == 9

    def test_before_its_own_start(self, filled):
        """
        The server refuses a sequence before the start of the consumer (10204).
        """
        filled.create_consumer("c", deliver_policy="by_start_sequence", opt_start_seq=5)
        with pytest.raises(jetsync.InvalidResetError) as caught:
            filled.reset_consumer("c", 3)
        assert caught.value.err_code == 10204

    def test_a_reset_of_a_missing_consumer_raises_without_waiting(self, stream):
        """
        The server does not answer. jetsync raises an error without waiting.
        """
        with timed(0.0, 1), pytest.raises(jetsync.ConsumerNotFoundError):
            stream.reset_consumer("none")

    def test_of_a_consumer_that_is_deleted_meanwhile(self, stream, monkeypatch):
        """
        If it is deleted between the two requests, the error says so before the deadline.
        """
        context = stream._context
        plain = type(context).api

        def api(self, endpoint, body, deadline, **named):
            if endpoint.startswith("CONSUMER.RESET."):
                plain(self, f"CONSUMER.DELETE.{stream.name}.c", None, deadline)
            return plain(self, endpoint, body, deadline, **named)

        monkeypatch.setattr(type(context), "api", api)

        def attempt(pace):
            stream.create_or_update_consumer("c")
            with timed(0.5 * pace, pace), pytest.raises(jetsync.ConsumerNotFoundError):
                stream.reset_consumer("c", timeout=pace)

        at_some_pace(attempt)

    def test_by_a_user_who_may_not_ask_for_information(self):
        """
        A user without permission for consumer info can still send the command.
        """
        deny = ["$JS.API.CONSUMER.INFO.>"]
        users = [
            {"user": "a", "password": "a"},
            {"user": "b", "password": "b", "permissions": {"publish": {"deny": deny}}},
        ]
        config = {"authorization": {"timeout": 30, "users": users}}
        with (
            DevServer(config=config) as server,
            jetsync.connect(server.url, user="a", password="a") as client,
            jetsync.connect(server.url, user="b", password="b") as limited,
        ):
            client.jetstream().create_stream("S", storage="memory").create_consumer("c")
            stream = limited.jetstream().stream("S")
            assert stream.reset_consumer("c").reset_seq == 1
            assert not stream.resume_consumer("c").paused
            with pytest.raises(jetsync.RequestTimeoutError):
                stream.reset_consumer("none", timeout=0.2)

    @pytest.mark.parametrize("sequence", [0, -1, "1"])
    def test_the_sequence_of_a_reset_is_a_number_from_one(self, stream, sequence):
        """
        Other values raise an error before anything is sent.
        """
        with pytest.raises((ValueError, TypeError)):
            stream.reset_consumer("c", sequence)


class TestPauseAndUnpin:
    def test_pause_and_resume(self, filled):
        """
        A paused consumer delivers nothing, and its configuration has the end of the pause.
        """
        consumer = filled.create_consumer("c")
        until = dt.datetime(2060, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
        state = filled.pause_consumer("c", until)
        assert (state.paused, state.pause_until) == (True, until)
        assert state.pause_remaining is not None
        assert state.pause_remaining > 10**9
        info = consumer.info()
        assert (info.paused, info.config.pause_until) == (True, until)
        assert unless_late(lambda: list(consumer.fetch(1, expires=0.2))) == []
        state = filled.resume_consumer("c")
        assert (state.paused, state.pause_until) == (False, None)
        assert len(list(consumer.fetch(1, expires=20))) == 1

    def test_a_pause_until_the_past_does_not_pause(self, stream):
        """
        The answer says that the consumer is not paused.
        """
        stream.create_consumer("c")
        past = dt.datetime(2020, 1, 1, tzinfo=UTC)
        assert not stream.pause_consumer("c", past).paused

    def test_a_naive_time_is_refused(self, stream):
        """
        A naive datetime raises an error before anything is sent.
        """
        with pytest.raises(jetsync.InvalidArgumentError, match="time zone"):
            stream.pause_consumer("c", dt.datetime(2060, 1, 1))  # noqa: DTZ001

    def test_after_an_unpin_the_next_pull_gets_another_pin(self, filled):
        """
        The next pull gets another pin. An unknown group raises an error (10160).
        """
        consumer = filled.create_consumer(
            "c",
            priority_groups=["A"],
            priority_policy="pinned_client",
            priority_timeout=60,
        )
        assert len(list(consumer.fetch(1, expires=5, group="A"))) == 1
        (group,) = consumer.info().priority_groups
        assert group.group == "A"
        assert group.pinned_client_id
        filled.unpin_consumer("c", "A")
        (group,) = consumer.info().priority_groups
        assert not group.pinned_client_id
        with pytest.raises(jetsync.PriorityGroupNotFoundError) as caught:
            filled.unpin_consumer("c", "B")
        assert caught.value.err_code == 10160

    def test_commands_for_a_missing_consumer_raise_not_found(self, stream):
        """
        Each command raises ConsumerNotFoundError.
        """
        until = dt.datetime(2060, 1, 1, tzinfo=UTC)
        for command in (
            lambda: stream.pause_consumer("none", until),
            lambda: stream.resume_consumer("none"),
            lambda: stream.unpin_consumer("none", "A"),
        ):
            with pytest.raises(jetsync.ConsumerNotFoundError):
                command()


@pytest.mark.versions
class TestOlderServers:
    @pytest.mark.parametrize("version", OLD)
    def test_values_that_old_servers_add_to_a_consumer_are_no_error(self, old_stream, version):
        """
        Values that servers add, change or omit raise no error.
        """
        stream = old_stream(version)
        for fields in (
            {"durable_name": "a"},
            {"name": "b", "durable_name": "b"},
            {"name": "c", "ack_wait": 7, "backoff": [1, 2], "max_deliver": 5},
            {"name": "d", "max_deliver": 0, "ack_policy": "none", "max_ack_pending": 5},
            {"name": "e", "filter_subject": ">", "sample_freq": "50%", "headers_only": True},
            {"name": "f", "priority_policy": "none", "metadata": {"a": "b"}},
            {"name": "g", "max_batch": 5, "max_expires": 5, "max_bytes": 5, "mem_storage": True},
            {"name": "h", "deliver_subject": "d", "flow_control": True, "idle_heartbeat": 5},
        ):
            made = stream.create_consumer(**fields)
            assert stream.create_or_update_consumer(**fields).name == made.name
            stream.update_consumer(made.name, description="changed")
        stream.delete()

    @pytest.mark.parametrize(
        ("version", "fields", "feature"),
        [
            ("2.10.26", {"pause_until": dt.datetime(2060, 1, 1, tzinfo=UTC)}, "pause_until"),
            (
                "2.10.26",
                {"priority_groups": ["A"], "priority_policy": "overflow"},
                "priority_groups",
            ),
            (
                "2.11.11",
                {"priority_groups": ["A"], "priority_policy": "prioritized"},
                "priority_policy 'prioritized'",
            ),
            (
                "2.10.26",
                {"ack_policy": "flow_control", "deliver_subject": "d"},
                "ack_policy 'flow_control'",
            ),
            (
                "2.12.8",
                {"ack_policy": "flow_control", "deliver_subject": "d"},
                "ack_policy 'flow_control'",
            ),
            ("2.11.11", {"sourcing": True}, "sourcing"),
            ("2.12.0", {"sourcing": True}, "sourcing"),
        ],
    )
    def test_unknown_fields_are_reported(self, old_stream, version, fields, feature):
        """
        The error is the same for servers that drop a field and servers that refuse it.
        """
        stream = old_stream(version)
        with pytest.raises(jetsync.NotSupportedError) as caught:
            stream.create_consumer(name="c", **fields)
        assert (caught.value.feature, caught.value.server) == (feature, version)
        made = list(stream.consumer_names()) == ["c"]
        assert ("was created without" in str(caught.value)) is made
        stream.delete()

    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11", "2.12.8"])
    def test_commands_that_the_server_does_not_have(self, old_stream, version):
        """
        Such servers do not answer, and jetsync raises an error without waiting.
        """
        stream = old_stream(version)
        stream.create_consumer("c")
        until = dt.datetime(2060, 1, 1, tzinfo=UTC)
        commands = {
            "consumer reset": stream.reset_consumer,
            "consumer pause": lambda name: stream.pause_consumer(name, until),
            "consumer unpin": lambda name: stream.unpin_consumer(name, "A"),
        }
        missing = commands if version < "2.11" else {"consumer reset"}
        with timed(0.0, 1):
            for feature in missing:
                with pytest.raises(jetsync.NotSupportedError) as caught:
                    commands[feature]("c")
                assert (caught.value.feature, caught.value.server) == (feature, version)
                with pytest.raises(jetsync.ConsumerNotFoundError):
                    commands[feature]("none")
        stream.delete()
