"""
Times-to-live of messages on real servers: accepted values, and their effects.
"""

from __future__ import annotations

import datetime as dt
import time
from contextlib import suppress

import pytest

import jetsync
from helpers.waiting import eventually
from jetsync import MarkerReason
from jetsync.testing import HookRecorder

VERSIONS = ("2.11.11", "2.12.8", "2.14.6")

TAKEN = {
    "5": 5,
    "1": 1,
    "5s": 5,
    "1m30s": 90,
    "1h": 3600,
    "1000ms": 1,
    "1500ms": 1.5,
    "1.5s": 1.5,
    "never": "never",
    "NEVER": "never",
    "Never": "never",
    "": None,
    "00": None,
    "99999999999": 99999999999,
}
"""Values of ``Nats-TTL`` that servers accept, and their meaning (facts 5.1)."""

REFUSED = (
    *("0", "0s", "500ms", "999ms", "-1", "-5s", "0.5", "1.5", "+5", "1e3", "5d", "1w", "5S"),
    *("abc", "5 ", "0x10", "9999999999999999999", "2562048h"),
)
"""Values that servers refuse."""


@pytest.fixture
def timed_stream(js, unique):
    """
    A stream in memory that allows times-to-live.
    """
    yield js.create_stream(
        unique,
        subjects=[f"{unique}.>"],
        storage="memory",
        allow_msg_ttl=True,
        allow_direct=True,
    )
    with suppress(jetsync.StreamNotFoundError):
        js.delete_stream(unique)


@pytest.fixture
def raising(nats_server, js, unique):
    """
    Make a stream with markers, which raises shorter times-to-live to 50 seconds.

    The result is a JetStream context, and a function that lists the events of its plugin: stream,
    subject, and the time that was asked for and stored.
    """
    recorder = HookRecorder("jetsync_status")

    def raised():
        events = [call["event"] for call in recorder.of("jetsync_status")]
        return [
            (event.stream, event.subject, event.asked, event.stored)
            for event in events
            if isinstance(event, jetsync.TtlRaisedEvent)
        ]

    def make(**options):
        js.create_stream(
            unique,
            subjects=[f"{unique}.>"],
            storage="memory",
            subject_delete_marker_ttl=50,
            **options,
        )
        return client.jetstream(), raised

    with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
        yield make
    js.delete_stream(unique)


def read_soon(js, stream, *, direct=None, **options):
    """
    Publish a message and read it before it expires. Repeat it if the machine was too slow.
    """
    for _ in range(5):
        ack = js.publish(f"{stream.name}.a", b"x", **options)
        with suppress(jetsync.MessageNotFoundError):
            return stream.get_message(ack.sequence, direct=direct)
    raise AssertionError("the message is never there")


def check_header(js, stream, value):
    """
    Publish a message with the header *value*, and return the outcome.
    """
    subject = f"{stream.name}.a"
    headers = {"Nats-TTL": value}
    if value in TAKEN:
        for direct in (True, False):
            stored = read_soon(js, stream, direct=direct, headers=headers)
            assert stored.headers["Nats-TTL"] == value
            assert stored.ttl == TAKEN[value]
    else:
        with pytest.raises(jetsync.MessageTtlInvalidError):
            js.publish(subject, b"x", headers=headers)


class TestValues:
    @pytest.mark.parametrize("value", [*TAKEN, *REFUSED])
    def test_each_form_of_the_ttl_header_is_read_as_measured(self, js, timed_stream, value):
        """
        Each form of the header is accepted or refused as measured, and read correctly.
        """
        check_header(js, timed_stream, value)

    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_headers_on_older_servers(self, server_for, unique, version):
        """
        All servers from 2.11 on accept the same forms.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            stream = js.create_stream(
                unique,
                subjects=[f"{unique}.>"],
                storage="memory",
                allow_msg_ttl=True,
                allow_direct=True,
            )
            for value in (*TAKEN, *REFUSED):
                check_header(js, stream, value)
            js.delete_stream(unique)

    @pytest.mark.parametrize(
        ("ttl", "meaning"),
        [
            (1, 1),
            (1.0, 1),
            (2.5, 2.5),
            (dt.timedelta(hours=1), 3600),
            ("never", "never"),
            (dt.timedelta(seconds=9_223_372_036), 9_223_372_036),
        ],
    )
    def test_servers_accept_every_valid_ttl(self, js, timed_stream, ttl, meaning):
        """
        Servers accept every valid ``ttl``, and it is read back unchanged.
        """
        assert read_soon(js, timed_stream, ttl=ttl).ttl == meaning

    def test_two_headers(self, js, timed_stream):
        """
        The first of two headers counts. The name is case-sensitive.
        """
        subject = f"{timed_stream.name}.a"
        headers = jetsync.Headers([("Nats-TTL", "5"), ("Nats-TTL", "10")])
        assert timed_stream.get_message(js.publish(subject, headers=headers).sequence).ttl == 5
        ack = js.publish(subject, headers={"nats-ttl": "abc"})
        assert timed_stream.get_message(ack.sequence).ttl is None

    def test_a_stream_without_ttl_refuses_each_message_with_one(self, js, stream):
        """
        A stream without times-to-live refuses valid and invalid ones with different errors.
        """
        subject = f"{stream.name}.a"
        for ttl in (5, "never"):
            with pytest.raises(jetsync.MessageTtlDisabledError):
                js.publish(subject, b"x", ttl=ttl)
        for value in ("0", "abc"):
            with pytest.raises(jetsync.MessageTtlInvalidError):
                js.publish(subject, b"x", headers={"Nats-TTL": value})
        assert stream.info().state.messages == 0

    @pytest.mark.versions
    def test_before_they_existed(self, server_for, unique):
        """
        Servers before 2.11 would ignore the header, so the stream is refused.
        """
        with jetsync.connect(server_for("2.10.26").url) as client:
            js = client.jetstream()
            with pytest.raises(jetsync.NotSupportedError, match=r"allow_msg_ttl.*2\.11"):
                js.create_stream(unique, subjects=[unique], allow_msg_ttl=True)
            js.delete_stream(unique)


class TestExpiry:
    def test_a_message_expires_after_whole_seconds(self, js, timed_stream):
        """
        A message expires after whole seconds. ``never`` outlives the limit of the stream.
        """
        timed_stream.update(max_age=2.0, duplicate_window=2.0)
        name = timed_stream.name
        start = time.monotonic()
        js.publish(f"{name}.cut", ttl=1.9)
        js.publish(f"{name}.stays", ttl="never")
        js.publish(f"{name}.old", ttl=3600)
        eventually(lambda: timed_stream.info().state.messages < 3)
        assert time.monotonic() - start > 0.9
        eventually(
            lambda: timed_stream.info(subjects_filter=">").state.subjects == {f"{name}.stays": 1}
        )

    @pytest.mark.parametrize(("history", "stored"), [(1, 1), (3, 4), (-1, 4)])
    def test_a_ttl_shorter_than_that_of_markers_is_raised(self, js, unique, history, stored):
        """
        The server raises a time that is shorter than that of the markers.
        """
        stream = js.create_stream(
            unique,
            subjects=[f"{unique}.>"],
            storage="memory",
            max_msgs_per_subject=history,
            subject_delete_marker_ttl=4,
        )
        assert read_soon(js, stream, ttl=1).ttl == stored
        assert read_soon(js, stream, ttl=9).ttl == 9
        js.delete_stream(unique)

    @pytest.mark.parametrize("history", [1, 3])
    def test_a_batch_reports_raised_times(self, raising, unique, history, caplog):
        """
        Plugins get an event for each raised time of an atomic batch once it is stored.
        """
        js, raised = raising(max_msgs_per_subject=history, allow_atomic=True)
        a, b = f"{unique}.a", f"{unique}.b"
        with js.atomic_batch(ttl=2) as batch:
            for _ in range(3):
                batch.add(a, b"1")
            batch.add(a, b"1", ttl=90)
            batch.add(a, b"1", ttl="never")
            batch.add(b, b"1", ttl=dt.timedelta(seconds=3))
            assert raised() == []
        expected = [(unique, a, 2.0, 50.0), (unique, b, 3.0, 50.0)] if history > 1 else []
        assert raised() == expected
        js.publish_batch([(a, b"1")], ttl=4)
        expected += [(unique, a, 4.0, 50.0)] if history > 1 else []
        assert raised() == expected
        with pytest.raises(jetsync.WrongLastSequenceError), js.atomic_batch(ttl=5) as batch:
            batch.add(a, expect=jetsync.Expect(last_sequence=99))
        assert raised() == expected
        assert ("ttl_raised" in caplog.text) == (history > 1)
        assert js.stream(unique).get_last(b).ttl == (50 if history > 1 else 3)

    def test_a_fast_publisher_reports_raised_times(self, raising, unique):
        """
        Plugins get one event for each time that a fast publisher uses.
        """
        js, raised = raising(max_msgs_per_subject=3, allow_batched=True)
        a = f"{unique}.a"
        with js.fast_publisher(ttl=2) as publisher:
            for _ in range(3):
                publisher.add(a, b"1")
            assert [event[2] for event in raised()] == [2.0]
            publisher.add(a, b"1", ttl=3)
            publisher.add(a, b"1", ttl=90)
            publisher.add_many([jetsync.OutboundMessage(a, ttl=4), (a, b"1")])
            assert [event[2] for event in raised()] == [2.0, 3.0, 4.0]
            publisher.commit(a, ttl=5)
        assert raised() == [(unique, a, ttl, 50.0) for ttl in (2.0, 3.0, 4.0, 5.0)]

    def test_a_marker_of_a_ttl_is_recognised_by_every_read(self, js, unique):
        """
        The last message of a subject leaves a marker, which every kind of read recognises.
        """
        stream = js.create_stream(
            unique,
            subjects=[f"{unique}.>"],
            storage="memory",
            max_msgs_per_subject=1,
            allow_direct=True,
            subject_delete_marker_ttl=60,
        )
        subject = f"{unique}.a"
        consumer = stream.create_consumer("d")
        js.publish(subject, b"x", ttl=2)
        first, marker = (consumer.next(expires=10) for _ in range(2))
        assert (first.marker, first.data) == (None, b"x")
        stored = [
            stream.get_last(subject, direct=True),
            stream.get_last(subject, direct=False),
            stream.get_message(2),
            *stream.get_last_for(subject),
            *stream.scan(),
            *stream.get_batch(5),
        ]
        assert len(stored) == 6
        for message in (marker, *stored):
            assert message.marker is MarkerReason.MAX_AGE
            assert (message.data, message.sequence) == (b"", 2)
            assert message.ttl == 60
            assert message.headers["Nats-Rollup"] == "sub"
        # A marker is a message, so the expectation of an empty subject fails.
        with pytest.raises(jetsync.WrongLastSequenceError) as wrong:
            js.publish(subject, expect=jetsync.Expect(last_subject_sequence=0))
        assert wrong.value.last_sequence == 2
        js.delete_stream(unique)

    @pytest.mark.parametrize("how", ["publish", "publish_many", "on_ack", "publisher"])
    def test_other_publishes_report_raised_times(self, raising, unique, how):
        """
        Plugins get raised times also for streams whose configuration this client has not read.
        """
        js, raised = raising(max_msgs_per_subject=3)
        a = f"{unique}.a"
        messages = [jetsync.OutboundMessage(a, ttl=ttl) for ttl in (2, 2, 90, "never", 3)]
        if how == "publish":
            for message in messages[1:]:
                js.publish(a, ttl=message.ttl)
        elif how == "publisher":
            with js.publisher() as publisher:
                for message in messages:
                    publisher.publish(a, ttl=message.ttl)
        else:
            js.publish_many(messages, on_ack=print if how == "on_ack" else None)
        expected = [(unique, a, 2.0, 50.0), (unique, a, 3.0, 50.0)]
        eventually(lambda: raised() == expected)
        with pytest.raises(jetsync.PublishManyError):
            js.publish_many([jetsync.OutboundMessage(f"none.{unique}", ttl=4)], retries=0)
        assert raised() == expected
