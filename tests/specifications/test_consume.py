"""
ADR-37, simplified consuming: one test for each clause, by its id.
"""

from __future__ import annotations

import itertools
import time
from collections import deque

import pytest

import jetsync
from helpers.waiting import at_some_pace, eventually, timed
from jetsync.events import HeartbeatMissedEvent, PullStatusEvent
from jetsync.testing import HookRecorder

everywhere = pytest.mark.parametrize("rig", ["2.10.26", None], indirect=True)

SECOND = 1_000_000_000
PULLS = "$JS.API.CONSUMER.MSG.NEXT.>"


def fill(rig, count, start=0, data=b"%d"):
    """
    Publish numbered messages.
    """
    rig.js.publish_many((rig("a"), data % n) for n in range(start, start + count))


def consumer_of(rig, count=0, name="worker", **config):
    """
    Create a stream with some messages, and a consumer. The frames so far are forgotten.
    """
    stream = rig.stream()
    fill(rig, count)
    consumer = stream.create_consumer(name, **config)
    rig.wire.clear()
    return consumer


def pulls(rig):
    """
    Return the pulls that were sent, as JSON.
    """
    return [frame.json() for frame in rig.wire.published(PULLS)]


def taken(messages, count, timeout=20):
    """
    Take messages of a consumption, and return their payloads.
    """
    return [messages.next(timeout=timeout).data for _ in range(count)]


def numbers(first, last):
    """
    Return the payloads of numbered messages.
    """
    return [b"%d" % number for number in range(first, last)]


def answer_pulls(rig, *statuses, counts=True):
    """
    Answer the next pulls with these statuses in the server's place.

    With *counts*, each says that nothing of its pull was delivered.
    """
    waiting = deque(statuses)

    def drop(frame):
        if not waiting or ".CONSUMER.MSG.NEXT." not in frame.subject:
            return False
        about = {}
        if counts:
            about["Nats-Pending-Messages"] = frame.json().get("batch", 1)
            about["Nats-Pending-Bytes"] = frame.json().get("max_bytes", 0)
        rig.wire.say(frame.reply, waiting.popleft(), **about)
        return True

    rig.wire.drop_sent = drop


def events_of(recorder, kind):
    """
    Return the events of a class that a plugin got.
    """
    found = [call["event"] for call in recorder.of("jetsync_status")]
    return [event for event in found if isinstance(event, kind)]


class TestContext:
    @pytest.mark.clause("SC-01", "SC-02", "SC-03", "SC-04", "SC-05", "SC-06", "SC-12")
    @everywhere
    def test_streams(self, rig):
        """
        The context adds, updates, gets, lists and deletes streams, and returns the account.
        """
        js = rig.client.jetstream()
        made = js.create_stream(rig.name, subjects=[rig("a")], storage="memory")
        assert made.info().config.subjects == [rig("a")]
        js.update_stream(rig.name, subjects=[rig("a"), rig("b")])
        assert js.stream(rig.name).info().config.subjects == [rig("a"), rig("b")]
        assert rig.name in {info.config.name for info in js.streams()}
        assert rig.name in set(js.stream_names())
        assert js.account_info().streams >= 1
        js.delete_stream(rig.name)
        with pytest.raises(jetsync.StreamNotFoundError):
            js.stream(rig.name)
        assert rig.name not in set(js.stream_names())

    @pytest.mark.clause("SC-07", "SC-08", "SC-09", "SC-10", "SC-11", "SC-13")
    @everywhere
    def test_consumers(self, rig):
        """
        The context creates, gets, updates and deletes consumers by the names of stream and
        consumer, without a request about the stream.
        """
        rig.stream()
        rig.wire.clear()
        js = rig.js
        assert js.create_consumer(rig.name, "one", ack_wait=20).info().config.ack_wait == 20
        with pytest.raises(jetsync.ConsumerExistsError):
            js.create_consumer(rig.name, "one", ack_wait=21)
        js.update_consumer(rig.name, "one", ack_wait=22)
        assert js.consumer(rig.name, "one").info().config.ack_wait == 22
        with pytest.raises(jetsync.ConsumerNotFoundError):
            js.update_consumer(rig.name, "two", ack_wait=22)
        js.create_or_update_consumer(rig.name, "two", ack_wait=23)
        js.create_or_update_consumer(rig.name, "two", ack_wait=24)
        assert js.consumer(rig.name, "two").info().config.ack_wait == 24
        js.delete_consumer(rig.name, "two")
        with pytest.raises(jetsync.ConsumerNotFoundError):
            js.consumer(rig.name, "two")
        assert rig.wire.published("$JS.API.STREAM.>") == []

    @pytest.mark.clause("SC-14", "SC-15", "SC-16", "SC-17", "SC-18", "SC-26")
    @everywhere
    def test_consumers_of_a_stream(self, rig):
        """
        A stream does the same with its consumers, and calls can be chained.
        """
        stream = rig.stream()
        stream.create_consumer("one", ack_wait=20)
        stream.update_consumer("one", ack_wait=21)
        assert stream.consumer("one").info().config.ack_wait == 21
        stream.create_or_update_consumer("two", ack_wait=22)
        stream.create_or_update_consumer("two", ack_wait=23)
        fill(rig, 1)
        chained = rig.js.stream(rig.name).consumer("two")
        assert chained.next(expires=5).data == b"0"
        assert chained.info().config.ack_wait == 23
        stream.delete_consumer("two")
        with pytest.raises(jetsync.ConsumerNotFoundError):
            stream.consumer("two")

    @pytest.mark.clause("SC-19", "SC-20", "SC-21", "SC-22")
    @everywhere
    def test_messages_of_a_stream(self, rig):
        """
        A stream returns its info and single messages, deletes one, and is purged with options.
        """
        stream = rig.stream()
        fill(rig, 10)
        rig.js.publish(rig("b"), b"other")
        assert stream.info().state.messages == 11
        assert stream.get_message(3).data == b"2"
        assert stream.get_last(rig("a")).data == b"9"
        stream.delete_message(3)
        with pytest.raises(jetsync.MessageNotFoundError):
            stream.get_message(3)
        stream.purge(keep=4)
        assert stream.info().state.first_seq == 8
        stream.purge(sequence=10)
        assert stream.info().state.first_seq == 10
        stream.purge(subject=rig("a"))
        assert stream.get_message(11).data == b"other"
        assert stream.info().state.messages == 1
        stream.purge()
        assert stream.info().state.messages == 0

    @pytest.mark.clause("SC-23", "SC-24", "SC-25", "SC-103", "SC-104")
    @everywhere
    def test_a_consumer(self, rig):
        """
        A consumer has fetch, next and consume. Its info is asked for or known already, and it can
        be deleted.
        """
        consumer = consumer_of(rig, 3)
        assert [message.data for message in consumer.fetch(1)] == [b"0"]
        assert consumer.next().data == b"1"
        with consumer.consume() as messages:
            assert taken(messages, 1) == [b"2"]
        assert consumer.info().delivered.consumer_seq == 3
        rig.wire.clear()
        assert consumer.cached_info.delivered.consumer_seq == 3
        assert rig.wire.published() == []
        consumer.delete()
        with pytest.raises(jetsync.ConsumerNotFoundError):
            consumer.info()

    @pytest.mark.clause("SC-104")
    def test_a_user_who_may_not_delete_can_read(self, rig):
        """
        If the API that deletes a consumer does not answer, the rest works.
        """
        consumer = consumer_of(rig, 1)
        rig.wire.drop_sent = lambda frame: ".CONSUMER.DELETE." in frame.subject
        with pytest.raises(jetsync.JetSyncError):
            consumer.delete(timeout=0.3)
        assert consumer.next(expires=5).data == b"0"

    @pytest.mark.clause("SC-27")
    @everywhere
    def test_reading_sends_pulls_and_acks_only(self, rig):
        """
        Reads never create or change a consumer.
        """
        consumer = consumer_of(rig, 6)
        before = consumer.info().config
        rig.wire.clear()
        for message in consumer.fetch(2):
            message.ack()
        consumer.next().ack()
        with consumer.consume(stop_after=3, ack="auto") as messages:
            assert taken(messages, 3) == numbers(3, 6)
        rig.client.flush()
        subjects = {frame.subject for frame in rig.wire.published()}
        assert all(s.startswith(("$JS.API.CONSUMER.MSG.NEXT.", "$JS.ACK.")) for s in subjects)
        assert consumer.info().config == before

    @pytest.mark.clause("SC-105")
    def test_subscribe_is_another_api(self, rig):
        """
        A core subscription gets what is published, and creates no consumer.
        """
        stream = rig.stream()
        assert not hasattr(rig.js, "subscribe")
        with rig.client.subscribe(rig("a")) as subscription:
            fill(rig, 1)
            assert subscription.next(timeout=5).data == b"0"
        assert list(stream.consumer_names()) == []


class TestFetch:
    @pytest.mark.clause("SC-31", "SC-33", "SC-34")
    @everywhere
    def test_it_ends_with_the_number_of_messages(self, rig):
        """
        A fetch sends one pull when it is called, and its iterator ends with the last message.
        """
        consumer = consumer_of(rig, 5)
        assert pulls(rig) == []
        with timed(0.0, 2.0):
            assert [message.data for message in consumer.fetch(3, expires=30)] == numbers(0, 3)
        assert [pull["batch"] for pull in pulls(rig)] == [3]

    @pytest.mark.clause("SC-32", "SC-82")
    @everywhere
    def test_it_ends_with_its_time(self, rig):
        """
        The status 408 ends the fetch with what has arrived, and is no error.
        """
        consumer = consumer_of(rig, 2)
        with timed(0.5, 1.5):
            assert [message.data for message in consumer.fetch(5, expires=0.5)] == numbers(0, 2)
        assert 408 in {frame.status for frame in rig.wire.answers()}

    @pytest.mark.clause("SC-35", "SC-72", "SC-108")
    @everywhere
    def test_it_ends_with_the_number_of_bytes(self, rig):
        """
        A fetch can be limited in bytes: subjects, reply subjects, headers and payloads. It ends at
        once when they have arrived, although the server sends no status then.
        """
        stream = rig.stream()
        for number in range(5):
            rig.js.publish(rig("a"), b"%d" % number, headers={"Own": "yes"})
        # The reply subjects of both consumers are equally long.
        assert len(list(stream.create_consumer("one").fetch(2))) == 2
        sizes = [
            len(frame.subject) + len(frame.reply) + len(frame.header) + len(frame.data)
            for frame in rig.wire.answers(rig("a"))
        ]
        consumer = stream.create_consumer("two")
        rig.wire.clear()
        with timed(0.0, 2.0):
            found = [m.data for m in consumer.fetch(max_bytes=sum(sizes), expires=30)]
        assert found == numbers(0, 2)
        (pull,) = pulls(rig)
        assert pull["max_bytes"] == sum(sizes)
        assert [frame.status for frame in rig.wire.answers() if frame.status] == []

    @pytest.mark.clause("SC-36", "SC-39")
    @everywhere
    def test_the_fields_of_a_pull(self, rig):
        """
        The pull has all four fields, and times are nanoseconds.
        """
        consumer = consumer_of(rig, 1)
        batch = consumer.fetch(7, max_bytes=10_000, expires=12, heartbeat=2)
        assert next(iter(batch)).data == b"0"
        batch.close()
        assert pulls(rig)[0] == {
            "batch": 7,
            "expires": 12 * SECOND,
            "max_bytes": 10_000,
            "idle_heartbeat": 2 * SECOND,
        }

    @pytest.mark.clause("SC-37", "SC-42", "SC-43")
    @everywhere
    @pytest.mark.parametrize("how", ["fetch", "next"])
    def test_heartbeats_are_on_for_long_pulls(self, rig, how):
        """
        With 31 s, heartbeats are on by default. They can be set for shorter ones.
        """
        consumer = consumer_of(rig, 3)
        for options in ({"expires": 31}, {"expires": 2}, {"expires": 2, "heartbeat": 1}):
            if how == "fetch":
                assert len(list(consumer.fetch(1, **options))) == 1
            else:
                assert consumer.next(**options) is not None
        long, short, own = pulls(rig)
        assert long["expires"] == 31 * SECOND
        assert 0 < long["idle_heartbeat"] <= 31 * SECOND // 2
        assert (short["expires"], short.get("idle_heartbeat")) == (2 * SECOND, None)
        assert own["idle_heartbeat"] == SECOND

    @pytest.mark.clause("SC-38")
    def test_a_limit_is_required(self, rig):
        """
        Without a number of messages or bytes, nothing is sent.
        """
        consumer = consumer_of(rig)
        with pytest.raises(jetsync.InvalidArgumentError):
            consumer.fetch()
        rig.client.flush()
        assert pulls(rig) == []

    @pytest.mark.clause("SC-40", "SC-41")
    @everywhere
    def test_next(self, rig):
        """
        ``next`` pulls one message when it is called.
        """
        consumer = consumer_of(rig, 3)
        rig.client.flush()
        assert pulls(rig) == []
        for count in (1, 2):
            assert consumer.next(expires=5).data == b"%d" % (count - 1)
            assert [pull["batch"] for pull in pulls(rig)] == [1] * count
        assert consumer.info().num_ack_pending == 2

    @pytest.mark.clause("SC-30")
    @everywhere
    def test_the_client_waits_longer_than_the_server(self, rig):
        """
        If the status is lost, the fetch ends after its time with an error of the client.
        """
        consumer = consumer_of(rig, 1)
        rig.wire.drop_received = lambda frame: frame.status == 408
        found = []
        with timed(1.0, 4.0), pytest.raises(jetsync.RequestTimeoutError):
            found.extend(message.data for message in consumer.fetch(5, expires=0.5))
        assert found == [b"0"]


class TestOptions:
    @pytest.mark.clause("SC-46", "SC-58", "SC-59", "SC-90", "SC-106")
    @everywhere
    def test_all_options_reach_the_pulls(self, rig):
        """
        ``consume`` has a limit of messages or bytes, their thresholds, ``expires`` and
        ``heartbeat``. A limit in messages sends none in bytes, and heartbeats are always asked for.
        """
        consumer = consumer_of(rig)
        for options in (
            {"max_messages": 10, "threshold_messages": 4},
            {"max_bytes": 5000, "threshold_bytes": 100},
        ):
            with consumer.consume(expires=5, heartbeat=1, **options) as messages:
                assert messages.next(timeout=0.1) is None
        first, second = pulls(rig)
        assert first == {"batch": 10, "expires": 5 * SECOND, "idle_heartbeat": SECOND}
        assert (second["max_bytes"], second["idle_heartbeat"]) == (5000, SECOND)
        with pytest.raises(jetsync.InvalidArgumentError, match="heartbeat"):
            consumer.consume(heartbeat=0)

    @pytest.mark.clause("SC-48", "SC-50", "SC-51", "SC-52")
    def test_defaults(self, rig):
        """
        The defaults are 500 messages, no limit in bytes, 30 s, and heartbeats of half of that, from
        0.5 s to 30 s.
        """
        consumer = consumer_of(rig)
        for options in ({}, {"expires": 1}, {"expires": 200}):
            with consumer.consume(**options) as messages:
                assert messages.next(timeout=0.1) is None
        found = [(pull["expires"], pull["idle_heartbeat"]) for pull in pulls(rig)]
        assert found == [
            (30 * SECOND, 15 * SECOND),
            (1 * SECOND, SECOND // 2),
            (200 * SECOND, 30 * SECOND),
        ]
        assert [(pull["batch"], "max_bytes" in pull) for pull in pulls(rig)] == [(500, False)] * 3
        for wrong in ({"expires": 0.9}, {"heartbeat": 0.4}, {"expires": 200, "heartbeat": 31}):
            with pytest.raises(jetsync.InvalidArgumentError):
                consumer.consume(**wrong)

    @pytest.mark.clause("SC-47", "SC-60")
    @pytest.mark.parametrize(
        "options",
        [
            {"max_messages": 10, "max_bytes": 1000},
            {"max_messages": 10, "threshold_messages": 11},
            {"max_bytes": 1000, "threshold_bytes": 1001},
        ],
    )
    def test_options_that_exclude_each_other(self, rig, options):
        """
        Both limits, or a threshold above its limit, are refused before anything is sent.
        """
        consumer = consumer_of(rig)
        with pytest.raises(jetsync.InvalidArgumentError):
            consumer.consume(**options)
        rig.client.flush()
        assert pulls(rig) == []

    @pytest.mark.clause("SC-49")
    @everywhere
    def test_a_limit_in_bytes_has_a_large_batch(self, rig):
        """
        A pull by bytes asks for 1,000,000 messages.
        """
        consumer = consumer_of(rig, 1)
        with consumer.consume(max_bytes=10_000) as messages:
            assert taken(messages, 1) == [b"0"]
        pull = pulls(rig)[0]
        assert (pull["batch"], pull["max_bytes"]) == (1_000_000, 10_000)

    @pytest.mark.clause("SC-56", "SC-57")
    @everywhere
    def test_one_subscription(self, rig):
        """
        One subscription takes the answers to all pulls. Each has a reply subject below it.
        """
        consumer = consumer_of(rig, 40)
        with consumer.consume(max_messages=4) as messages:
            assert taken(messages, 40) == numbers(0, 40)
        replies = [frame.reply for frame in rig.wire.published(PULLS)]
        assert len(replies) > 5
        assert len(set(replies)) == len(replies)
        (prefix,) = {reply.rpartition(".")[0] for reply in replies}
        subscribed = [frame.subject for frame in rig.wire.sent if frame.verb == "SUB"]
        assert [subject for subject in subscribed if subject.startswith(prefix)] == [f"{prefix}.*"]


class TestBuffer:
    @pytest.mark.clause("SC-44", "SC-53", "SC-61", "SC-62", "SC-64")
    @everywhere
    @pytest.mark.parametrize(("options", "threshold"), [({}, 5), ({"threshold_messages": 3}, 3)])
    def test_it_is_refilled_at_the_threshold(self, rig, options, threshold):
        """
        The buffer is filled ahead. When as many messages as the threshold are left, half by
        default, the next pull asks for what is missing.
        """
        consumer = consumer_of(rig, 30)
        with consumer.consume(max_messages=10, **options) as messages:
            taken(messages, 1)
            eventually(lambda: len(rig.wire.answers(rig("a"))) == 10)
            for left in range(9, threshold, -1):
                assert [pull["batch"] for pull in pulls(rig)] == [10], left
                taken(messages, 1)
            # The thread that takes the next message sends the pull at the latest.
            taken(messages, 1)
            eventually(lambda: len(pulls(rig)) == 2)
            assert pulls(rig)[1]["batch"] in {10 - threshold, 11 - threshold}

    @pytest.mark.clause("SC-54", "SC-63", "SC-107")
    @everywhere
    @pytest.mark.parametrize(
        ("options", "threshold"), [({}, 5000), ({"threshold_bytes": 2000}, 2000)]
    )
    def test_it_is_refilled_at_the_threshold_of_bytes(self, rig, options, threshold):
        """
        The buffer never holds more than its size. When as many bytes as the threshold are left,
        half by default, the next pull asks for what is missing.
        """
        stream = rig.stream()
        fill(rig, 200, data=b"%0250d")
        consumer = stream.create_consumer(ack_policy="none")
        rig.wire.clear()
        with consumer.consume(max_bytes=10_000, **options) as messages:
            for count in range(1, 101):
                taken(messages, 1)
                arrived = rig.wire.answers(rig("a"))
                held = sum(len(f.subject) + len(f.reply) + len(f.data) for f in arrived[count:])
                assert held <= 10_000
        asked = [pull["max_bytes"] for pull in pulls(rig)]
        size = 300 + 2 * len(rig.name)
        assert asked[0] == 10_000
        assert all(
            10_000 - threshold <= each <= 10_000 - threshold + 2 * size for each in asked[1:]
        )
        assert len(asked) > 2

    @pytest.mark.clause("SC-65", "SC-100")
    @everywhere
    def test_pending_counts(self, rig):
        """
        What open pulls may still deliver counts as in the buffer. A message subtracts one, and a
        heartbeat nothing.
        """
        consumer = consumer_of(rig, 4)
        with consumer.consume(max_messages=10, expires=30, heartbeat=0.5) as messages:
            assert taken(messages, 4) == numbers(0, 4)
            assert messages.next(timeout=1.3) is None
            assert len([f for f in rig.wire.answers() if f.status == 100]) >= 2
            # Six messages of the pull are missing, which is above the threshold.
            assert [pull["batch"] for pull in pulls(rig)] == [10]
            fill(rig, 1, start=4)
            assert taken(messages, 1) == [b"4"]
            assert messages.next(timeout=0.1) is None
            assert [pull["batch"] for pull in pulls(rig)] == [10, 5]

    @pytest.mark.clause("SC-66")
    @everywhere
    def test_a_pull_that_expires_is_subtracted(self, rig):
        """
        After a 408, the next pull asks for what that one had left.
        """
        consumer = consumer_of(rig, 2)
        with consumer.consume(max_messages=10, expires=1) as messages:
            assert taken(messages, 2) == numbers(0, 2)
            eventually(lambda: messages.next(timeout=0.1) or len(pulls(rig)) >= 2)
            (expired,) = [f for f in rig.wire.answers() if f.status == 408][:1]
            assert expired.headers["Nats-Pending-Messages"] == "8"
            assert pulls(rig)[1]["batch"] == 10

    @pytest.mark.clause("SC-67", "SC-83")
    @everywhere
    def test_a_message_that_does_not_fit_the_rest(self, rig):
        """
        409 Message Size Exceeds MaxBytes ends a fetch without an error. A consumption subtracts the
        rest of the pull, and gets the message with the next one.
        """
        stream = rig.stream()
        fill(rig, 10, data=b"%0400d")
        size = 400 + len(rig("a")) + 120
        batch = stream.create_consumer("one").fetch(10, max_bytes=2 * size, expires=30)
        with timed(0.0, 2.0):
            assert 0 < len(list(batch)) < 10
        assert batch.status.description == "Message Size Exceeds MaxBytes"
        rig.wire.clear()
        consumer = stream.create_consumer("two")
        with consumer.consume(max_bytes=2 * size, threshold_bytes=0) as messages:
            assert [int(data) for data in taken(messages, 10)] == list(range(10))
        texts = [frame.header for frame in rig.wire.answers() if frame.status == 409]
        assert any(b"Message Size Exceeds MaxBytes" in text for text in texts)
        asked = [pull["max_bytes"] for pull in pulls(rig)]
        assert all(0 < each <= 2 * size for each in asked)

    @pytest.mark.clause("SC-69", "SC-70", "SC-71", "SC-84", "SC-85", "SC-87")
    @pytest.mark.parametrize(
        "status",
        [
            "408 Interest Expired",
            "423 Nats-Wrong-Pin-Id",
            "409 Something New",
            "404 No Messages",
            "409 Exceeded MaxRequestBatch of 50",
            "409 Exceeded MaxRequestExpires of 40s",
            "409 Exceeded MaxWaiting",
            "409 Leadership Change",
        ],
    )
    def test_a_status_with_counts_is_subtracted(self, rig, status):
        """
        After a status that names the rest of its pull, a consumption continues with another pull
        that asks for as much again.
        """
        consumer = consumer_of(rig, 3)
        answer_pulls(rig, status)
        with consumer.consume(max_messages=10) as messages:
            assert taken(messages, 3) == numbers(0, 3)
        assert [pull["batch"] for pull in pulls(rig)][:2] == [10, 10]
        assert messages.error is None

    @pytest.mark.clause("SC-73", "SC-101")
    @pytest.mark.parametrize("status", ["409 Leadership Change", "408 Request Timeout", "503"])
    def test_a_status_without_counts_ends_its_pull(self, rig, status):
        """
        A status without the two headers ends its pull, too, and nothing of it stays counted.
        """
        consumer = consumer_of(rig, 3)
        answer_pulls(rig, status, counts=False)
        with consumer.consume(max_messages=10) as messages:
            assert taken(messages, 3) == numbers(0, 3)
        assert [pull["batch"] for pull in pulls(rig)][:2] == [10, 10]

    @pytest.mark.clause("SC-29", "SC-45")
    @everywhere
    def test_a_drain_empties_the_buffer(self, rig):
        """
        After a drain, the messages that have arrived are handed out, and no pull is sent.
        """
        consumer = consumer_of(rig, 10)
        messages = consumer.consume(max_messages=4, threshold_messages=0)
        assert taken(messages, 1) == [b"0"]
        eventually(lambda: len(rig.wire.answers(rig("a"))) == 4)
        messages.drain()
        assert [message.data for message in messages] == numbers(1, 4)
        rig.client.flush()
        assert len(pulls(rig)) == 1

    @pytest.mark.clause("SC-28")
    @everywhere
    def test_a_consumption_can_be_stopped(self, rig):
        """
        After ``close``, no message is handed out and no pull is sent.
        """
        consumer = consumer_of(rig, 10)
        messages = consumer.consume(max_messages=4)
        assert taken(messages, 1) == [b"0"]
        messages.close()
        assert list(messages) == []
        rig.client.flush()
        sent = len(pulls(rig))
        fill(rig, 5, start=10)
        rig.client.flush()
        assert len(pulls(rig)) == sent


class TestStatuses:
    @pytest.mark.clause("SC-74", "SC-75", "SC-76", "SC-89")
    @pytest.mark.parametrize(
        ("status", "error", "ends"),
        [
            ("400 Bad Request - invalid character", jetsync.BadPullRequestError, True),
            ("409 Consumer Deleted", jetsync.ConsumerDeletedError, True),
            ("409 Consumer is push based", jetsync.NotPullConsumerError, True),
        ],
    )
    def test_errors(self, rig, status, error, ends):
        """
        These statuses are errors of a fetch, and end a consumption.
        """
        consumer = consumer_of(rig, 3)
        answer_pulls(rig, status, status, status, counts=False)
        with timed(0.0, 2.0), pytest.raises(error):
            list(consumer.fetch(1, expires=30))
        with timed(0.0, 2.0), pytest.raises(error):
            consumer.next(expires=30)
        messages = consumer.consume()
        with timed(0.0, 2.0), pytest.raises(error):
            messages.next(timeout=30)
        assert messages.closed is ends

    @pytest.mark.clause("SC-75", "SC-89")
    @everywhere
    def test_a_consumer_that_is_deleted(self, rig):
        """
        If the consumer is deleted, the consumption hands out what has arrived and ends.
        """
        consumer = consumer_of(rig, 3)
        messages = consumer.consume()
        assert taken(messages, 1) == [b"0"]
        eventually(lambda: len(rig.wire.answers(rig("a"))) == 3)
        consumer.delete()
        assert taken(messages, 2) == numbers(1, 3)
        with timed(0.0, 2.0), pytest.raises(jetsync.ConsumerDeletedError):
            messages.next(timeout=30)
        assert messages.closed

    @pytest.mark.clause("SC-77", "SC-78", "SC-79", "SC-80")
    @pytest.mark.parametrize(
        ("status", "error"),
        [
            ("409 Exceeded MaxRequestBatch of 20", jetsync.MaxRequestBatchError),
            ("409 Exceeded MaxRequestExpires of 20s", jetsync.MaxRequestExpiresError),
            ("409 Exceeded MaxRequestMaxBytes of 2000", jetsync.MaxRequestMaxBytesError),
            ("409 Exceeded MaxWaiting", jetsync.MaxWaitingError),
        ],
    )
    def test_warnings(self, rig_on, rig, status, error):
        """
        These statuses are reported to plugins. A consumption continues after them, and a fetch
        raises them.
        """
        recorder = HookRecorder("jetsync_status")
        watched = rig_on(None, plugins=[recorder])
        rig.stream().create_consumer("worker")
        fill(rig, 3)
        consumer = watched.js.consumer(rig.name, "worker")
        answer_pulls(watched, status, status, counts=False)
        with pytest.raises(error):
            list(consumer.fetch(1, expires=30))
        with consumer.consume(max_bytes=5000) as messages:
            assert taken(messages, 3) == numbers(0, 3)
        found = events_of(recorder, PullStatusEvent)
        reported = [f"{event.code} {event.description}" for event in found]
        assert reported.count(status) == 2

    @pytest.mark.clause("SC-81")
    @everywhere
    def test_no_messages_is_no_error(self, rig):
        """
        A fetch without a wait ends with the status 404 if there is nothing, and raises nothing.
        """
        consumer = consumer_of(rig)
        assert list(consumer.fetch(5, no_wait=True)) == []
        assert 404 in {frame.status for frame in rig.wire.answers()}

    @pytest.mark.clause("SC-86")
    @pytest.mark.parametrize("status", ["423 Nats-Wrong-Pin-Id", "409 Leadership Change"])
    def test_a_fetch_pulls_again_after_a_temporary_refusal(self, rig, status):
        """
        A pull that was refused for a temporary reason does not end ``fetch`` and ``next``.
        """
        consumer = consumer_of(rig, 2)
        answer_pulls(rig, status, counts=False)
        assert [message.data for message in consumer.fetch(1, expires=10)] == [b"0"]
        answer_pulls(rig, status, counts=False)
        assert consumer.next(expires=10).data == b"1"
        assert len(pulls(rig)) == 4


class TestHeartbeats:
    @pytest.mark.clause("SC-91", "SC-94")
    @everywhere
    def test_missing_heartbeats_are_reported(self, rig_on, rig):
        """
        If nothing arrives for two heartbeats, plugins get an event, and the consumption continues.
        """
        recorder = HookRecorder("jetsync_status")
        watched = rig_on(rig.version, plugins=[recorder])
        rig.stream().create_consumer("worker")
        consumer = watched.js.consumer(rig.name, "worker")
        with consumer.consume(heartbeat=0.5, expires=10) as messages:
            assert messages.next(timeout=0.1) is None
            watched.wire.drop_received = lambda frame: frame.status == 100
            start = time.monotonic()
            eventually(
                lambda: messages.next(timeout=0.1) or events_of(recorder, HeartbeatMissedEvent)
            )
            assert time.monotonic() - start > 0.5
            (event, *_) = events_of(recorder, HeartbeatMissedEvent)
            assert event.silent_for >= 1.0
            watched.wire.drop_received = lambda _frame: False
            fill(rig, 1)
            assert taken(messages, 1) == [b"0"]
            assert messages.error is None

    @pytest.mark.clause("SC-92")
    def test_whatever_arrives_restarts_the_timer(self, rig_on, rig):
        """
        Messages, heartbeats and other statuses each keep heartbeats from being missed.
        """
        rig.stream().create_consumer("worker")
        sent = itertools.count()

        def attempt(pace):
            recorder = HookRecorder("jetsync_status")
            watched = rig_on(None, plugins=[recorder])

            def message():
                fill(rig, 1, start=next(sent))

            def status():
                # It ends no pull.
                watched.wire.say(watched.wire.published(PULLS)[-1].reply, "150 Note")

            def missed():
                return events_of(recorder, HeartbeatMissedEvent)

            consumer = watched.js.consumer(rig.name, "worker")
            with consumer.consume(heartbeat=0.5 * pace, expires=60) as messages:
                assert messages.next(timeout=0.1) is None
                for sends, drops in ((message, {100}), (status, {100}), (lambda: None, set())):
                    watched.wire.drop_received = lambda frame, drops=drops: frame.status in drops
                    # A heartbeat is missed after two intervals in which nothing arrives.
                    for _ in range(5):
                        sends()
                        messages.next(timeout=0.4 * pace)
                assert missed() == []
                watched.wire.drop_received = lambda frame: frame.status == 100
                eventually(lambda: messages.next(timeout=0.1) or missed(), 20)
            assert len(pulls(watched)) == 1

        at_some_pace(attempt)

    @pytest.mark.clause("SC-93", "SC-95", "SC-96", "SC-97", "SC-98", "SC-99")
    @everywhere
    def test_a_reconnect(self, rig_on, rig):
        """
        A consumption survives lost connections. While there is none, it sends no pull and misses
        no heartbeat. After the reconnect it sends a new pull, and does not ask for the consumer.
        """
        recorder = HookRecorder("jetsync_status")
        watched = rig_on(rig.version, plugins=[recorder])
        rig.stream().create_consumer("worker")
        consumer = watched.js.consumer(rig.name, "worker")
        with consumer.consume(max_messages=10, heartbeat=0.5, expires=20) as messages:
            for turn in range(2):
                fill(rig, 1, start=turn)
                assert taken(messages, 1) == [b"%d" % turn]
                watched.wire.clear()
                watched.wire.refusing = True
                watched.wire.cut()
                eventually(lambda: not watched.client.is_connected)
                # Three heartbeats would arrive in this time.
                assert messages.next(timeout=1.6) is None
                assert pulls(watched) == []
                watched.wire.refusing = False
                eventually(lambda: messages.next(timeout=0.1) or len(pulls(watched)) >= 1)
                assert [pull["batch"] for pull in pulls(watched)] == [10]
            fill(rig, 1, start=2)
            assert taken(messages, 1) == [b"2"]
            assert watched.wire.published("$JS.API.CONSUMER.INFO.>") == []
        assert watched.client.statistics().reconnects == 2
        assert events_of(recorder, HeartbeatMissedEvent) == []
        assert len(events_of(recorder, jetsync.DisconnectedEvent)) == 2
        assert len(events_of(recorder, jetsync.ReconnectedEvent)) == 2
