"""
ADR-43, time-to-live of messages: one test for each clause, by its id.
"""

from __future__ import annotations

import datetime as dt
import re

import pytest

import jetsync
from helpers.streams import payloads
from helpers.waiting import eventually
from jetsync import KeyOperation, MarkerReason, OutboundMessage, StreamSource
from jetsync.testing import HookRecorder

everywhere = pytest.mark.parametrize("rig", ["2.11.11", None], indirect=True)

TTL, REASON = "Nats-TTL", "Nats-Marker-Reason"


def sent_ttls(rig):
    """
    Return the header of each message that was sent to the stream.
    """
    return [frame.headers.get(TTL) for frame in rig.wire.published(rig(">"))]


def last_of(stream, subject):
    """
    Return the last message of a subject, or None.
    """
    try:
        return stream.get_last(subject, direct=False)
    except jetsync.MessageNotFoundError:
        return None


def invalid(call, text):
    """
    Check that the server refuses a configuration with this text, and return the error.
    """
    with pytest.raises(jetsync.StreamConfigInvalidError) as caught:
        call()
    assert (caught.value.code, caught.value.err_code) == (500, 10052)
    assert text in caught.value.description
    assert text in str(caught.value)
    return caught.value


class TestValues:
    @pytest.mark.clause("TTL-01", "TTL-02", "TTL-06")
    @everywhere
    def test_seconds_and_durations(self, rig):
        """
        Whole seconds are sent as a number and others as a Go duration. Without a ttl there is no
        header. Durations of other clients are read.
        """
        stream = rig.stream(allow_msg_ttl=True)
        for options in ({"ttl": 60}, {"ttl": dt.timedelta(hours=1)}, {"ttl": 2.5}, {}):
            rig.js.publish(rig("a"), b"x", **options)
        rig.js.publish(rig("a"), b"x", headers={TTL: "1h"})
        number, hour, fraction, none, header = sent_ttls(rig)
        assert (number, hour, none, header) == ("60", "3600", None, "1h")
        assert re.fullmatch(r"[\d.]+(ms|s)", fraction)
        found = [stream.get_message(n) for n in range(1, 6)]
        assert [message.ttl for message in found] == [60, 3600, 2.5, None, 3600]
        assert found[3].headers.get(TTL) is None

    @pytest.mark.clause("TTL-04", "TTL-05")
    @everywhere
    def test_never(self, rig):
        """
        ``never`` is sent as such, and the message outlives the stream's ``max_age``.
        """
        stream = rig.stream(allow_msg_ttl=True, max_age=1, duplicate_window=1)
        rig.js.publish(rig("stays"), b"x", ttl="never")
        rig.js.publish(rig("goes"), b"x")
        assert sent_ttls(rig) == ["never", None]
        eventually(lambda: last_of(stream, rig("goes")) is None)
        assert last_of(stream, rig("stays")).ttl == "never"

    @pytest.mark.clause("TTL-03")
    @everywhere
    def test_a_message_expires(self, rig):
        """
        A message is removed when its time is over.
        """
        stream = rig.stream(allow_msg_ttl=True)
        rig.js.publish(rig("goes"), b"x", ttl=1)
        rig.js.publish(rig("stays"), b"x", ttl=3600)
        eventually(lambda: stream.info().state.messages == 1)
        assert last_of(stream, rig("stays")) is not None

    @pytest.mark.clause("TTL-07", "TTL-10", "TTL-33")
    @everywhere
    @pytest.mark.parametrize(("ttl", "header"), [(0, "0"), (0.5, "500ms"), (-1, "-1")])
    def test_less_than_a_second(self, rig, ttl, header):
        """
        The client refuses 0 and less than a second before it sends anything. The server's refusal
        of such a header is an error.
        """
        stream = rig.stream(allow_msg_ttl=True)
        for call in (
            lambda: rig.js.publish(rig("a"), b"x", ttl=ttl),
            lambda: rig.js.publish_batch([(rig("a"), b"x")], ttl=ttl),
        ):
            with pytest.raises(jetsync.InvalidTtlError):
                call()
        rig.client.flush()
        assert rig.wire.published(rig(">")) == []
        with pytest.raises(jetsync.MessageTtlInvalidError) as caught:
            rig.js.publish(rig("a"), b"x", headers={TTL: header})
        assert (caught.value.code, caught.value.err_code) == (400, 10165)
        assert payloads(stream) == []

    @pytest.mark.clause("TTL-09", "TTL-41")
    @everywhere
    def test_a_value_that_cannot_be_parsed(self, rig):
        """
        The error of the ack is raised, and the message is dropped.
        """
        stream = rig.stream(allow_msg_ttl=True)
        for value in ("abc", "5d", "1e3"):
            with pytest.raises(jetsync.MessageTtlInvalidError) as caught:
                rig.js.publish(rig("a"), b"x", headers={TTL: value})
            assert (caught.value.code, caught.value.err_code) == (400, 10165)
        assert payloads(stream) == []

    @pytest.mark.clause("TTL-11", "TTL-40")
    @everywhere
    def test_a_stream_without_the_feature(self, rig):
        """
        A stream without the feature refuses a message with a ttl.
        """
        stream = rig.stream()
        for ttl in (60, "never"):
            with pytest.raises(jetsync.MessageTtlDisabledError) as caught:
                rig.js.publish(rig("a"), b"x", ttl=ttl)
            assert (caught.value.code, caught.value.err_code) == (400, 10166)
        assert payloads(stream) == []

    @pytest.mark.clause("TTL-48")
    def test_every_way_to_publish_has_a_ttl(self, rig):
        """
        Each way to publish sends the ttl of a message, and batches and publishers have one for all.
        """
        rig.stream(allow_msg_ttl=True, allow_atomic=True, allow_batched=True)
        message = OutboundMessage(rig("a"), b"x", ttl=60)
        rig.js.publish(rig("a"), b"x", ttl=60)
        rig.js.publish_many([message])
        with rig.js.publisher() as publisher:
            publisher.publish(rig("a"), b"x", ttl=60)
        rig.js.publish_batch([message])
        rig.js.publish_batch([(rig("a"), b"x")], ttl=60)
        with rig.js.atomic_batch() as batch:
            batch.add(rig("a"), b"x", ttl=60)
            batch.commit(rig("a"), b"x", ttl=60)
        with rig.js.atomic_batch(ttl=60) as batch:
            batch.commit(rig("a"), b"x")
        with rig.js.fast_publisher() as fast:
            fast.add(rig("a"), b"x", ttl=60)
            fast.add_many([message])
            fast.commit(rig("a"), b"x", ttl=60)
        with rig.js.fast_publisher(ttl=60) as fast:
            fast.commit(rig("a"), b"x")
        assert sent_ttls(rig) == ["60"] * 12
        store = rig.js.create_key_value(rig.name, storage="memory", limit_marker_ttl=5)
        store.create("key", b"x", ttl=60)
        (put,) = rig.wire.published(f"$KV.{rig.name}.key")
        assert put.headers[TTL] == "60"

    @pytest.mark.clause("TTL-30")
    @pytest.mark.parametrize("rig", ["2.10.26"], indirect=True)
    def test_a_server_without_the_feature(self, rig):
        """
        A server that drops the setting raises an error, and no message with a ttl is sent to it.
        """
        with pytest.raises(jetsync.NotSupportedError, match="allow_msg_ttl"):
            rig.stream(allow_msg_ttl=True)
        rig.wire.clear()
        with pytest.raises(jetsync.NotSupportedError, match=r"2\.11"):
            rig.js.publish(rig("a"), b"x", ttl=60)
        rig.client.flush()
        assert rig.wire.published(rig(">")) == []


class TestMarkers:
    @pytest.mark.clause("TTL-12", "TTL-13", "TTL-15")
    @everywhere
    @pytest.mark.parametrize("cause", ["max_age", "ttl"])
    def test_the_last_message_of_a_subject_leaves_a_marker(self, rig, cause):
        """
        If the last message of a subject expires by ``max_age`` or by its own time, the marker has
        the reason ``MaxAge`` and the ttl of the stream, as a Go duration.
        """
        limits = {"max_age": 1, "duplicate_window": 1} if cause == "max_age" else {}
        stream = rig.stream(subject_delete_marker_ttl=60, max_msgs_per_subject=1, **limits)
        rig.js.publish(rig("a"), b"x", **({"ttl": 1} if cause == "ttl" else {}))
        marker = eventually(
            lambda: (found := last_of(stream, rig("a"))) and found.sequence == 2 and found
        )
        assert (marker.headers[REASON], marker.headers[TTL]) == ("MaxAge", "1m0s")
        assert (marker.marker, marker.ttl, marker.data) == (MarkerReason.MAX_AGE, 60, b"")

    @pytest.mark.clause("TTL-16")
    @everywhere
    def test_no_markers_without_the_setting(self, rig):
        """
        Without ``subject_delete_marker_ttl``, an expired message leaves nothing.
        """
        stream = rig.stream(allow_msg_ttl=True)
        rig.js.publish(rig("a"), b"x", ttl=1)
        eventually(lambda: stream.info().state.messages == 0)
        assert stream.info().state.last_seq == 1

    @pytest.mark.clause("TTL-18", "TTL-20")
    @pytest.mark.parametrize(
        ("text", "reason"), [("Remove", MarkerReason.REMOVE), ("Purge", MarkerReason.PURGE)]
    )
    def test_markers_of_the_api_are_read_everywhere(self, rig, text, reason):
        """
        A marker with the reason ``Remove`` or ``Purge``, which no server stores yet, is recognised
        by each read.
        """
        stream = rig.stream(allow_direct=True)
        rig.js.publish(rig("a"), b"", headers={REASON: text})
        consumer = stream.create_consumer("worker")
        (fetched,) = consumer.fetch(1)
        fetched.nak()
        one = consumer.next()
        one.nak()
        with consumer.consume(stop_after=1) as consumption:
            (consumed,) = consumption
        with stream.ordered_consumer() as ordered:
            (in_order,) = ordered.fetch(1)
        found = [
            *(fetched, one, consumed, in_order),
            *(stream.get_message(1, direct=direct) for direct in (True, False)),
            *(stream.get_last(rig("a"), direct=direct) for direct in (True, False)),
            *(stream.get_next(rig("a"), direct=direct) for direct in (True, False)),
            *stream.get_batch(1),
            *stream.get_last_for([rig("a")]),
            *stream.scan(),
            *(page[0] for page in stream.scan().pages()),
        ]
        assert len(found) == 14
        assert {message.marker for message in found} == {reason}

    @pytest.mark.clause("TTL-20")
    @pytest.mark.parametrize(
        ("text", "operation"), [("Remove", KeyOperation.DELETE), ("Purge", KeyOperation.PURGE)]
    )
    def test_markers_of_the_api_in_buckets(self, rig, text, operation):
        """
        In a bucket, a marker removes the key: reads find none, and watches and the history have
        the operation.
        """
        store = rig.js.create_key_value(rig.name, storage="memory", history=5)
        store.put("key", b"x")
        rig.js.publish(f"$KV.{rig.name}.key", b"", headers={REASON: text})
        with pytest.raises(jetsync.KeyNotFoundError):
            store.get("key")
        assert store.keys() == []
        assert store.history("key")[-1].operation is operation
        with store.watch("key") as watch:
            assert watch.next(timeout=5).operation is operation

    @pytest.mark.clause("TTL-21", "TTL-49")
    @everywhere
    def test_programs_learn_of_removals(self, rig_on, rig):
        """
        Consumers and watches get the marker of a removal, and plugins are called with it.
        """
        recorder = HookRecorder("jetsync_ttl_marker")
        js = rig_on(rig.version, plugins=[recorder]).js
        stream = rig.stream(subject_delete_marker_ttl=60, max_msgs_per_subject=1)
        consumer = js.stream(rig.name).create_consumer("worker")
        rig.js.publish(rig("a"), b"x", ttl=2)
        first, marker = (consumer.next(expires=20) for _ in range(2))
        assert (first.data, first.marker) == (b"x", None)
        assert marker.marker is MarkerReason.MAX_AGE
        (call,) = recorder.of("jetsync_ttl_marker")
        assert (call["message"].sequence, call["reason"]) == (2, MarkerReason.MAX_AGE)
        assert stream.info().state.last_seq == 2
        store = rig.js.create_key_value(rig.name, storage="memory", limit_marker_ttl=60)
        with store.watch("key") as watch:
            store.create("key", b"x", ttl=2)
            put, removed = (watch.next(timeout=20) for _ in range(2))
        assert (put.operation, removed.operation) == (KeyOperation.PUT, KeyOperation.PURGE)

    @pytest.mark.clause("TTL-22")
    @everywhere
    def test_a_tombstone_can_have_a_ttl(self, rig):
        """
        ``purge`` with a ttl stores a tombstone that expires.
        """
        store = rig.js.create_key_value(rig.name, storage="memory", limit_marker_ttl=1)
        store.put("key", b"x")
        rig.wire.clear()
        store.purge("key", ttl=1)
        (sent,) = rig.wire.published(f"$KV.{rig.name}.key")
        assert (sent.headers["KV-Operation"], sent.headers[TTL]) == ("PURGE", "1")
        eventually(lambda: store.stream.info().state.messages == 0)


class TestCopies:
    @pytest.mark.clause("TTL-23", "TTL-24", "TTL-25")
    @everywhere
    def test_copies_with_and_without_the_setting(self, rig):
        """
        Copies store messages with the header. With ``allow_msg_ttl`` they remove them, and without
        it they keep them.
        """
        rig.stream(allow_msg_ttl=True)
        copies = {
            (kind, allowed): rig.js.create_stream(
                f"{rig.name}-{kind}-{allowed}", storage="memory", allow_msg_ttl=allowed, **source
            )
            for kind, source in (
                ("mirror", {"mirror": StreamSource(rig.name)}),
                ("sources", {"sources": [StreamSource(rig.name)]}),
            )
            for allowed in (True, False)
        }
        rig.js.publish(rig("a"), b"x", ttl=2)
        for copy in copies.values():
            eventually(lambda copy=copy: copy.info().state.last_seq == 1)
        for (_, allowed), copy in copies.items():
            if allowed:
                eventually(lambda copy=copy: copy.info().state.messages == 0)
        for (_, allowed), copy in copies.items():
            if not allowed:
                assert copy.get_message(1).headers[TTL] == "2"

    @pytest.mark.clause("TTL-26")
    @everywhere
    def test_a_stream_with_sources_places_markers(self, rig):
        """
        A stream with sources may set ``subject_delete_marker_ttl``, and stores markers.
        """
        rig.stream(allow_msg_ttl=True)
        copy = rig.js.create_stream(
            f"{rig.name}-S",
            sources=[StreamSource(rig.name)],
            storage="memory",
            max_msgs_per_subject=1,
            subject_delete_marker_ttl=60,
        )
        rig.js.publish(rig("a"), b"x", ttl=1)
        marker = eventually(
            lambda: (found := last_of(copy, rig("a"))) and found.sequence == 2 and found
        )
        assert marker.marker is MarkerReason.MAX_AGE

    @pytest.mark.clause("TTL-27", "TTL-43", "TTL-47")
    @everywhere
    def test_a_mirror_has_no_markers(self, rig):
        """
        A mirror may not set ``subject_delete_marker_ttl``.
        """
        rig.stream(allow_msg_ttl=True)
        invalid(
            lambda: rig.js.create_stream(
                f"{rig.name}-M",
                mirror=StreamSource(rig.name),
                storage="memory",
                subject_delete_marker_ttl=60,
            ),
            "subject delete markers forbidden on mirrors",
        )


class TestStreams:
    @pytest.mark.clause("TTL-28", "TTL-32", "TTL-34", "TTL-46", "TTL-47")
    @everywhere
    def test_the_setting_can_be_switched_on_and_not_off(self, rig):
        """
        ``allow_msg_ttl`` is off by default, can be switched on and not off again, and makes the
        stream require API level 1.
        """
        stream = rig.stream()
        assert not stream.info().config.allow_msg_ttl
        stream.update(allow_msg_ttl=True)
        info = stream.info()
        assert info.config.allow_msg_ttl is True
        assert info.config.metadata["_nats.req.level"] == "1"
        rig.js.publish(rig("a"), b"x", ttl=60)
        invalid(
            lambda: stream.update(allow_msg_ttl=False), "message TTL status can not be disabled"
        )
        stream.update(description="another field")
        assert stream.info().config.allow_msg_ttl is True

    @pytest.mark.clause("TTL-29", "TTL-35", "TTL-36")
    @everywhere
    def test_markers_are_configured_in_nanoseconds(self, rig):
        """
        ``subject_delete_marker_ttl`` is sent in nanoseconds. The server sets what markers need,
        against the values of the program.
        """
        stream = rig.stream(subject_delete_marker_ttl=90.5, deny_purge=True)
        (request,) = rig.wire.published("$JS.API.STREAM.CREATE.>")
        assert request.json()["subject_delete_marker_ttl"] == 90_500_000_000
        config = stream.info().config
        assert config.subject_delete_marker_ttl == 90.5
        assert config.allow_rollup_hdrs is True
        assert not config.deny_purge

    @pytest.mark.clause("TTL-33", "TTL-42", "TTL-47")
    @everywhere
    def test_markers_live_for_at_least_a_second(self, rig):
        """
        The server refuses less than a second, and the error has the reason.
        """
        invalid(
            lambda: rig.stream(subject_delete_marker_ttl=0.5),
            "subject delete marker TTL must be at least 1 second",
        )
        assert rig.stream(subject_delete_marker_ttl=1).config.subject_delete_marker_ttl == 1

    @pytest.mark.clause("TTL-45", "TTL-47")
    @everywhere
    def test_rollups_need_purges(self, rig):
        """
        A stream with roll-ups that denies purges is refused with the reason.
        """
        invalid(
            lambda: rig.stream(allow_rollup_hdrs=True, deny_purge=True),
            "roll-ups require the purge permission",
        )

    @pytest.mark.clause("TTL-37", "TTL-38", "TTL-39")
    @everywhere
    @pytest.mark.parametrize("history", [1, 3])
    def test_the_ttl_of_markers_is_the_minimum(self, rig_on, rig, history):
        """
        A shorter ttl is raised to that of markers, in whole seconds, and reported. With one message
        per subject it is not.
        """
        recorder = HookRecorder("jetsync_status")
        js = rig_on(rig.version, plugins=[recorder]).js
        stream = rig.stream(subject_delete_marker_ttl=50, max_msgs_per_subject=history)
        js.publish(rig("a"), b"x", ttl=20)
        js.publish(rig("b"), b"x", ttl=90)
        stored = [stream.get_message(n).headers[TTL] for n in (1, 2)]
        assert stored == ["50" if history > 1 else "20", "90"]

        def raised():
            return [
                (call["event"].asked, call["event"].stored)
                for call in recorder.of("jetsync_status")
                if isinstance(call["event"], jetsync.TtlRaisedEvent)
            ]

        if history > 1:
            eventually(raised)
        assert raised() == ([(20.0, 50.0)] if history > 1 else [])
