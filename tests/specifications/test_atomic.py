"""
ADR-50, atomic batches: one test for each clause, by its id.
"""

from __future__ import annotations

import contextlib
import re
import time

import pytest

import jetsync
from helpers.streams import payloads
from helpers.waiting import at_some_pace, eventually
from jetsync import Expect, OutboundMessage
from jetsync._proto.batch import HeaderRules
from jetsync.devserver import DevServer
from jetsync.events import BatchAbandonedEvent
from jetsync.testing import HookRecorder

OLDEST = "2.12.8"
"""The oldest tested server whose atomic batches work."""

everywhere = pytest.mark.parametrize("rig", [OLDEST, None], indirect=True)
since_2_14 = pytest.mark.parametrize("rig", ["2.14.6", None], indirect=True)

ID, SEQUENCE, COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
ADVISORIES = "$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED"


def control(frame):
    """
    Return the headers by which a message belongs to a batch.
    """
    return tuple(frame.headers.get(name) for name in (ID, SEQUENCE, COMMIT))


def send_any_headers(monkeypatch):
    """
    Let the client send what it refuses, to see what the server says.
    """
    monkeypatch.setattr(HeaderRules, "take", lambda *_: None)


def refusal(rig, **headers):
    """
    Send one message with the given control headers, and return the server's error.
    """
    named = {f"Nats-Batch-{name.title()}": value for name, value in headers.items()}
    with pytest.raises(jetsync.ApiError) as caught:
        rig.js.publish(rig("a"), b"x", headers=named)
    return caught.value


class TestFrames:
    @pytest.mark.clause("AB-01")
    @everywhere
    @pytest.mark.parametrize("how", ["add", "publish_batch"])
    def test_the_first_message_is_a_request_with_id_and_sequence_1(self, rig, how):
        """
        The first message has the id, sequence 1 and a reply subject.
        """
        rig.stream(allow_atomic=True)
        if how == "add":
            with rig.js.atomic_batch() as batch:
                batch.add(rig("a"), b"1")
                batch.add(rig("a"), b"2")
                batch.add(rig("a"), b"3")
            batch_id = batch.id
        else:
            batch_id = rig.js.publish_batch([(rig("a"), b"%d" % n) for n in (1, 2, 3)]).batch_id
        first = rig.wire.published(rig(">"))[0]
        assert control(first) == (batch_id, "1", None)
        assert first.reply

    @pytest.mark.clause("AB-02")
    @everywhere
    def test_the_first_answer_is_empty_or_an_error(self, rig, monkeypatch):
        """
        The first `add` waits for an answer: an empty one opens the batch, and an error is raised.
        """
        stream = rig.stream(allow_atomic=True)
        batch = rig.js.atomic_batch(ack_first=True)
        # Servers before 2.14 get the first message with the second one.
        batch.add(rig("a"), b"1")
        batch.add(rig("a"), b"2")
        (answer,) = rig.wire.replies(rig.wire.published(rig(">"))[0])
        assert (answer.data, answer.header) == (b"", None)
        batch.discard()
        stream.update(allow_atomic=False)
        monkeypatch.setattr("jetsync.publish.atomic_messages.require_atomic", lambda *_, **__: None)
        batch = rig.js.atomic_batch(ack_first=True)

        def begin():
            batch.add(rig("a"), b"3")
            batch.add(rig("a"), b"4")

        with pytest.raises(jetsync.AtomicPublishDisabledError):
            begin()
        assert payloads(stream) == []

    @pytest.mark.clause("AB-04", "AB-06", "AB-11")
    @everywhere
    def test_later_messages_count_up_and_ask_for_nothing(self, rig):
        """
        The messages have one id and the sequences from 1. Those in the middle have no reply
        subject and get no answer, and no other message starts or ends the batch.
        """
        stream = rig.stream(allow_atomic=True)
        messages = [(rig("a"), b"%d" % n) for n in range(5)]
        ack = rig.js.publish_batch(messages)
        sent = rig.wire.published(rig(">"))
        assert [frame.data for frame in sent] == payloads(stream) == [data for _, data in messages]
        assert [control(frame)[:2] for frame in sent] == [
            (ack.batch_id, str(number)) for number in range(1, 6)
        ]
        assert [control(frame)[2] for frame in sent] == [None, None, None, None, "1"]
        assert [bool(frame.reply) for frame in sent] == [True, False, False, False, True]
        asked = [frame for frame in sent if frame.reply]
        assert [len(rig.wire.replies(frame)) for frame in asked] == [1, 1]

    @pytest.mark.clause("AB-05")
    @everywhere
    def test_a_later_message_that_asks_is_answered_with_nothing(self, rig):
        """
        With ``ack_every=2``, each second message asks and gets an empty answer.
        """
        rig.stream(allow_atomic=True)
        batch = rig.js.atomic_batch(ack_first=False, ack_every=2)
        for number in range(6):
            batch.add(rig("a"), b"%d" % number)
        batch.commit(rig("a"), b"6")
        asked = [frame for frame in rig.wire.published(rig(">")) if frame.reply]
        assert [control(frame)[1] for frame in asked] == ["2", "4", "6", "7"]
        for frame in asked[:-1]:
            (answer,) = rig.wire.replies(frame)
            assert (answer.data, answer.header) == (b"", None)

    @pytest.mark.clause("AB-07", "AB-27", "AB-28")
    @everywhere
    def test_the_commit_is_stored_and_acknowledged(self, rig):
        """
        A message with ``Nats-Batch-Commit: 1`` is stored. The ack has the id, the number of
        messages and the sequence of the last one, and the others lie right before it.
        """
        stream = rig.stream(allow_atomic=True)
        rig.js.publish(rig("other"), b"before")
        batch = rig.js.atomic_batch()
        batch.add(rig("a"), b"1")
        batch.add(rig("a"), b"2")
        ack = batch.commit(rig("a"), b"3")
        last = rig.wire.published(rig("a"))[-1]
        assert (control(last), last.data) == ((batch.id, "3", "1"), b"3")
        (answer,) = rig.wire.replies(last)
        about = {"stream": rig.name, "seq": 4, "batch": batch.id, "count": 3}
        assert answer.json() == about
        assert (ack.stream, ack.sequence, ack.batch_id, ack.size) == (rig.name, 4, batch.id, 3)
        assert ack.first_sequence == 2
        assert payloads(stream) == [b"before", b"1", b"2", b"3"]

    @pytest.mark.clause("AB-08", "AB-09", "AB-10")
    @since_2_14
    def test_a_commit_without_a_message_is_not_stored(self, rig):
        """
        A commit without a message sends ``eob``, which is not stored and not counted. The last
        stored message then has ``Nats-Batch-Commit: 1``.
        """
        stream = rig.stream(allow_atomic=True)
        batch = rig.js.atomic_batch()
        batch.add(rig("a"), b"1")
        batch.add(rig("a"), b"2")
        ack = batch.commit()
        marker = rig.wire.published(rig(">"))[-1]
        assert (control(marker), marker.data) == ((batch.id, "3", "eob"), b"")
        assert rig.wire.replies(marker)[0].json()["count"] == ack.size == 2
        assert (ack.sequence, payloads(stream)) == (2, [b"1", b"2"])
        assert stream.get_message(2).headers[COMMIT] == "1"
        assert COMMIT not in stream.get_message(1).headers

    @pytest.mark.clause("AB-12")
    @everywhere
    def test_eob_needs_level_4(self, rig):
        """
        On a server below API level 4, the last message that was added commits the batch.
        """
        stream = rig.stream(allow_atomic=True)
        with rig.js.atomic_batch() as batch:
            batch.add(rig("a"), b"1")
            batch.add(rig("a"), b"2")
        level = int(stream.info().config.metadata["_nats.level"])
        commits = [control(frame)[2] for frame in rig.wire.published(rig(">"))]
        assert (level, commits) == {
            OLDEST: (3, [None, "1"]),
            None: (max(level, 4), [None, None, "eob"]),
        }[rig.version]
        assert payloads(stream) == [b"1", b"2"]

    @pytest.mark.clause("AB-13")
    @everywhere
    @pytest.mark.parametrize("place", [0, 1])
    def test_an_api_level_that_is_not_met_drops_the_batch(self, rig, place):
        """
        If a message requires a level that the server lacks, its error is raised and nothing is
        stored.
        """
        stream = rig.stream(allow_atomic=True)
        messages = [OutboundMessage(rig("a"), b"%d" % n) for n in range(3)]
        headers = {"Nats-Required-Api-Level": "99"}
        messages[place] = OutboundMessage(rig("a"), b"x", headers=headers)

        def send():
            with rig.js.atomic_batch(ack_every=1) as batch:
                for message in messages:
                    batch.add(message.subject, message.data, headers=message.headers)

        with pytest.raises(jetsync.ApiLevelRequiredError) as caught:
            send()
        assert (caught.value.code, caught.value.err_code) == (412, 10185)
        assert payloads(stream) == []


class TestErrors:
    @pytest.mark.clause("AB-03")
    @everywhere
    def test_an_id_has_at_most_64_characters(self, rig):
        """
        The client sends an id of 64 characters, and no longer one.
        """
        rig.stream(allow_atomic=True)
        ack = rig.js.publish_batch([(rig("a"), b"1")], batch_id="x" * 64)
        assert ack.batch_id == "x" * 64
        rig.wire.clear()
        for call in (
            lambda: rig.js.atomic_batch(batch_id="x" * 65),
            lambda: rig.js.publish_batch([(rig("a"), b"1")], batch_id="x" * 65),
        ):
            with pytest.raises(jetsync.InvalidArgumentError, match="64"):
                call()
        rig.client.flush()
        assert rig.wire.published() == []
        assert len(rig.js.atomic_batch().id) <= 64

    @pytest.mark.clause("AB-14")
    @everywhere
    def test_a_stream_without_atomic_batches(self, rig):
        """
        The server's refusal of a stream without atomic batches is an error of its own, and
        jetsync raises it before it sends anything.
        """
        stream = rig.stream()
        error = refusal(rig, id="b", sequence="1")
        assert (type(error), error.code) == (jetsync.AtomicPublishDisabledError, 400)
        assert error.err_code == 10174
        rig.wire.clear()
        with pytest.raises(jetsync.AtomicPublishDisabledError) as caught:
            rig.js.publish_batch([(rig("a"), b"1")])
        assert caught.value.err_code == 10174
        assert rig.wire.published(rig(">")) == []
        assert stream.info().state.messages == 0

    @pytest.mark.clause("AB-15", "AB-21", "AB-22")
    @everywhere
    def test_a_gap_or_an_unknown_batch(self, rig):
        """
        A batch with a gap, and a message of a batch that the server does not know, are refused as
        incomplete, and nothing is stored.
        """
        stream = rig.stream(allow_atomic=True)
        error = refusal(rig, id="unknown", sequence="2")
        assert (type(error), error.code) == (jetsync.BatchIncompleteError, 400)
        assert error.err_code == 10176
        rig.wire.drop_sent = lambda frame: frame.headers.get(SEQUENCE) == "2"
        with pytest.raises(jetsync.BatchIncompleteError) as caught:
            rig.js.publish_batch([(rig("a"), b"%d" % n) for n in range(3)])
        assert caught.value.err_code == 10176
        assert payloads(stream) == []

    @pytest.mark.clause("AB-16", "AB-17")
    @everywhere
    @pytest.mark.parametrize(
        ("headers", "error", "err_code"),
        [
            ({"id": "x" * 65, "sequence": "1"}, jetsync.BatchIdInvalidError, 10179),
            ({"id": "b"}, jetsync.BatchSequenceMissingError, 10175),
        ],
    )
    def test_control_headers_that_jetsync_never_sends(self, rig, headers, error, err_code):
        """
        The server's refusals of an invalid id and of a missing sequence have classes of their own.
        """
        stream = rig.stream(allow_atomic=True)
        raised = refusal(rig, **headers)
        assert (type(raised), raised.code, raised.err_code) == (error, 400, err_code)
        assert payloads(stream) == []

    @pytest.mark.clause("AB-18", "AB-33")
    @everywhere
    def test_a_batch_has_at_most_a_thousand_messages(self, rig):
        """
        The server takes 1,000 messages. One more is refused with its limit, and nothing is stored.
        """
        stream = rig.stream(allow_atomic=True)
        messages = [(rig("a"), b"")] * 1000
        with pytest.raises(jetsync.BatchTooLargeError) as caught:
            rig.js.publish_batch([*messages, messages[0]])
        assert (caught.value.err_code, caught.value.limit) == (10199, 1000)
        assert stream.info().state.messages == 0
        refusals = [answer.json() for answer in rig.wire.answers() if b"10199" in answer.data]
        assert [each["error"]["code"] for each in refusals] == [400]
        assert rig.js.publish_batch(messages).size == 1000

    @pytest.mark.clause("AB-19", "AB-34")
    @everywhere
    def test_an_expected_message_id_is_not_supported(self, rig, monkeypatch):
        """
        The client refuses ``last_msg_id`` before it is sent. The server would refuse the batch.
        """
        stream = rig.stream(allow_atomic=True)
        message = OutboundMessage(rig("a"), b"1", expect=Expect(last_msg_id="m"))
        with pytest.raises(jetsync.BatchRuleError, match="Nats-Expected-Last-Msg-Id"):
            rig.js.publish_batch([message, (rig("a"), b"2")])
        assert rig.wire.published(rig(">")) == []
        send_any_headers(monkeypatch)
        with pytest.raises(jetsync.BatchUnsupportedHeaderError) as caught:
            rig.js.publish_batch([message, (rig("a"), b"2")])
        assert (caught.value.code, caught.value.err_code) == (400, 10177)
        assert payloads(stream) == []

    @pytest.mark.clause("AB-20", "AB-36")
    @everywhere
    def test_a_duplicate_message_id_rejects_the_batch(self, rig, monkeypatch):
        """
        An id that the stream knows, or that the batch has twice, rejects the whole batch.
        """
        stream = rig.stream(allow_atomic=True)
        rig.js.publish(rig("a"), b"0", msg_id="known")

        def batch(*ids):
            return [OutboundMessage(rig("a"), b"x", msg_id=each) for each in ids]

        with pytest.raises(jetsync.DuplicateMessageIdError) as caught:
            rig.js.publish_batch(batch("new", "known"))
        assert (caught.value.code, caught.value.err_code) == (400, 10201)
        send_any_headers(monkeypatch)
        with pytest.raises(jetsync.DuplicateMessageIdError) as caught:
            rig.js.publish_batch(batch("twice", "twice"))
        assert caught.value.err_code == 10201
        assert payloads(stream) == [b"0"]

    @pytest.mark.clause("AB-35")
    @pytest.mark.parametrize("rig", ["2.12.0"], indirect=True)
    def test_the_first_release_rejects_message_ids(self, rig):
        """
        The client sends no batch to 2.12.0. If the program insists, an id rejects the batch there.
        """
        stream = rig.stream(allow_atomic=True)
        messages = [OutboundMessage(rig("a"), b"1", msg_id="m"), (rig("a"), b"2")]
        with pytest.raises(jetsync.NotSupportedError, match=r"2\.12\.5"):
            rig.js.publish_batch(messages)
        assert rig.wire.published(rig(">")) == []
        with pytest.raises(jetsync.BatchUnsupportedHeaderError) as caught:
            rig.js.publish_batch(messages[:1], broken_servers=True)
        assert caught.value.err_code == 10177
        assert payloads(stream) == []


class TestExpectations:
    @pytest.mark.clause("AB-23")
    @everywhere
    def test_expectations_are_about_the_stream_before_the_batch(self, rig):
        """
        The server compares at the commit, with the stream as it was before the batch.
        """
        stream = rig.stream(allow_atomic=True)
        rig.js.publish(rig("a"), b"0")
        batch = rig.js.atomic_batch(ack_every=1)
        batch.add(rig("b"), b"1", expect=Expect(last_sequence=1))
        batch.add(rig("a"), b"2", expect=Expect(last_subject_sequence=1))
        assert batch.commit().size == 2
        batch = rig.js.atomic_batch(ack_every=1)
        batch.add(rig("c"), b"3", expect=Expect(last_sequence=3))
        batch.add(rig("c"), b"4")
        # It matched until now.
        rig.js.publish(rig("other"), b"5")
        with pytest.raises(jetsync.WrongLastSequenceError) as caught:
            batch.commit(rig("c"), b"6")
        assert (caught.value.err_code, caught.value.last_sequence) == (10071, 4)
        assert payloads(stream) == [b"0", b"1", b"2", b"5"]

    @pytest.mark.clause("AB-24")
    @everywhere
    def test_only_the_first_message_expects_a_last_sequence(self, rig, monkeypatch):
        """
        The client refuses the expectation on a later message, which the server would refuse, too.
        """
        stream = rig.stream(allow_atomic=True)
        late = OutboundMessage(rig("a"), b"2", expect=Expect(last_sequence=1))
        with pytest.raises(jetsync.BatchRuleError, match="only the first message"):
            rig.js.publish_batch([(rig("a"), b"1"), late])
        assert rig.wire.published(rig(">")) == []
        send_any_headers(monkeypatch)
        with pytest.raises(jetsync.WrongLastSequenceError):
            rig.js.publish_batch([(rig("a"), b"1"), late])
        assert payloads(stream) == []

    @pytest.mark.clause("AB-25")
    @everywhere
    def test_no_expectation_about_a_subject_of_the_batch(self, rig, monkeypatch):
        """
        The client refuses an expectation about a subject that the batch has written, as the server
        does. Another subject can be expected.
        """
        stream = rig.stream(allow_atomic=True)
        expect = Expect(last_subject_sequence=0)
        written = OutboundMessage(rig("a"), b"2", expect=expect)
        with pytest.raises(jetsync.WrongLastSequenceError):
            rig.js.publish_batch([(rig("a"), b"1"), written])
        assert rig.wire.published(rig(">")) == []
        other = OutboundMessage(rig("b"), b"2", expect=expect)
        assert rig.js.publish_batch([(rig("a"), b"1"), other]).size == 2
        send_any_headers(monkeypatch)
        with pytest.raises(jetsync.WrongLastSequenceError) as caught:
            rig.js.publish_batch([(rig("c"), b"1"), OutboundMessage(rig("c"), b"2", expect=expect)])
        assert caught.value.err_code == 10164
        assert payloads(stream) == [b"1", b"2"]


@pytest.fixture(params=[pytest.param(OLDEST, marks=pytest.mark.versions), None])
def hasty(request, unique):
    """
    A context of a server that drops batches after a second, its stream and its events.
    """
    recorder = HookRecorder("jetsync_status")
    limits = {"batch": {"timeout": "1s", "max_inflight_total": 3}}
    with (
        DevServer(request.param, config={"jetstream": {"limits": limits}}) as server,
        jetsync.connect(server.url, plugins=[recorder]) as client,
    ):
        js = client.jetstream()
        for name in (unique, f"{unique}-2"):
            js.create_stream(name, subjects=[f"{name}.>"], storage="memory", allow_atomic=True)

        def events():
            found = [call["event"] for call in recorder.of("jetsync_status")]
            return [event for event in found if isinstance(event, BatchAbandonedEvent)]

        with client.subscribe(f"{ADVISORIES}.>") as advisories:
            client.flush()
            yield js, unique, events, advisories


def open_batch(js, name, count=2):
    """
    Return a batch whose first message has reached the server; old ones get it with the second.
    """
    batch = js.atomic_batch()
    for number in range(count):
        batch.add(f"{name}.a", b"%d" % number)
    return batch


class TestAbandoned:
    @pytest.mark.clause("AB-26", "AB-38")
    def test_a_batch_without_messages_is_dropped(self, hasty):
        """
        The server drops an idle batch and answers nothing. Plugins get an event with the reason
        ``timeout``, the next call raises it, and nothing is stored.
        """
        js, name, events, advisories = hasty
        batch = open_batch(js, name)
        assert advisories.next(timeout=20).json()["reason"] == "timeout"
        (event,) = eventually(events)
        assert (event.stream, event.batch_id, event.reason) == (name, batch.id, "timeout")
        with pytest.raises(jetsync.BatchIncompleteError, match="timeout"):
            batch.add(f"{name}.a", b"3")
        assert js.stream(name).info().state.messages == 0

    @pytest.mark.clause("AB-32")
    def test_the_time_of_a_batch_counts_from_its_last_message(self, unique):
        """
        A batch that gets a message now and then outlives the time after which idle ones are lost.
        """

        def attempt(pace):
            limits = {"batch": {"timeout": f"{pace}s"}}
            with (
                DevServer(config={"jetstream": {"limits": limits}}) as server,
                jetsync.connect(server.url) as client,
            ):
                js = client.jetstream()
                js.create_stream(unique, subjects=[f"{unique}.>"], allow_atomic=True)
                batch = js.atomic_batch(ack_every=1)
                for _ in range(6):
                    batch.add(f"{unique}.a", b"x")
                    # Nothing else makes time pass for the server.
                    time.sleep(0.4 * pace)
                assert batch.commit().size == 6

        at_some_pace(attempt)

    @pytest.mark.clause("AB-31")
    def test_a_server_has_a_limit_of_open_batches(self, hasty):
        """
        The server refuses another batch on any stream while it has as many as it allows.
        """
        js, name, _, _ = hasty
        batches = [open_batch(js, each) for each in (name, name, f"{name}-2")]
        with pytest.raises((jetsync.TooManyInflightError, jetsync.BatchIncompleteError)) as caught:
            open_batch(js, f"{name}-2", 3)
        too_many = isinstance(caught.value, jetsync.TooManyInflightError)
        level = int(js.stream(name).info().config.metadata["_nats.level"])
        assert too_many is (level >= 4)
        for batch in batches:
            batch.discard()

    @pytest.mark.clause("AB-30")
    @everywhere
    def test_a_stream_has_at_most_50_open_batches(self, rig):
        """
        The server refuses the 51st batch of a stream: 2.14 with an error of its own.
        """
        rig.stream(allow_atomic=True)
        batches = [open_batch(rig.js, rig.name) for _ in range(50)]
        with pytest.raises((jetsync.TooManyInflightError, jetsync.BatchIncompleteError)) as caught:
            open_batch(rig.js, rig.name, 3)
        assert caught.value.err_code == {OLDEST: 10176, None: 10210}[rig.version]
        for batch in batches:
            batch.discard()

    @pytest.mark.clause("AB-40")
    @everywhere
    def test_a_gap_is_reported_as_incomplete(self, rig_on, rig):
        """
        A batch that loses a message gives an event with the reason ``incomplete``.
        """
        recorder = HookRecorder("jetsync_status")
        watched = rig_on(rig.version, plugins=[recorder])
        rig.stream(allow_atomic=True)
        watched.wire.drop_sent = lambda frame: frame.headers.get(SEQUENCE) == "2"
        batch = watched.js.atomic_batch()
        with contextlib.suppress(jetsync.BatchIncompleteError):
            for number in range(4):
                batch.add(rig("a"), bytes(70_000) + b"%d" % number)
        (event,) = eventually(
            lambda: [
                call["event"]
                for call in recorder.of("jetsync_status")
                if isinstance(call["event"], BatchAbandonedEvent)
            ]
        )
        assert (event.batch_id, event.reason) == (batch.id, "incomplete")
        batch.discard()


class TestStreams:
    @pytest.mark.clause("AB-42", "AB-43", "AB-44")
    @everywhere
    def test_the_setting_is_off_and_can_be_switched(self, rig):
        """
        ``allow_atomic`` is off by default, an update switches it on and off, and it makes the
        stream require API level 2.
        """
        stream = rig.stream()
        assert not stream.info().config.allow_atomic
        with pytest.raises(jetsync.AtomicPublishDisabledError):
            rig.js.publish_batch([(rig("a"), b"1")])
        stream.update(allow_atomic=True)
        info = stream.info()
        assert info.config.allow_atomic is True
        assert info.config.metadata["_nats.req.level"] == "2"
        assert rig.js.publish_batch([(rig("a"), b"1")]).size == 1
        stream.update(allow_atomic=False)
        assert not stream.info().config.allow_atomic
        with pytest.raises(jetsync.AtomicPublishDisabledError):
            rig.js.publish_batch([(rig("a"), b"2")])

    @pytest.mark.clause("AB-29", "AB-45")
    @everywhere
    def test_a_stream_that_persists_later_has_no_atomic_batches(self, rig):
        """
        The server refuses both settings together, so no batch can reach such a stream.
        """
        with pytest.raises(jetsync.StreamConfigInvalidError, match="atomic batch"):
            rig.stream(storage="file", persist_mode="async", allow_atomic=True)
        stream = rig.stream(storage="file", persist_mode="async")
        with pytest.raises(jetsync.AtomicPublishDisabledError):
            rig.js.publish_batch([(rig("a"), b"1")])
        assert refusal(rig, id="b", sequence="1").code >= 400
        assert stream.info().state.messages == 0

    @pytest.mark.clause("AB-46")
    @everywhere
    def test_a_mirror_cannot_have_the_setting(self, rig):
        """
        The server refuses a mirror with ``allow_atomic``.
        """
        rig.stream(allow_atomic=True)
        with pytest.raises(jetsync.MirrorAtomicError) as caught:
            rig.js.create_stream(
                f"{rig.name}-M", mirror=jetsync.StreamSource(rig.name), allow_atomic=True
            )
        assert (caught.value.code, caught.value.err_code) == (400, 10198)

    @pytest.mark.clause("AB-47", "AB-48")
    @everywhere
    @pytest.mark.parametrize("kind", ["mirror", "sources"])
    def test_copies_ignore_the_headers_of_batches(self, rig, kind):
        """
        A mirror, and a stream with sources that has the setting, copy each message of a batch by
        itself, without the headers, although its expectation does not hold there.
        """
        rig.stream(allow_atomic=True)
        assert rig.js.publish(rig("a"), b"0").sequence == 1
        if kind == "mirror":
            fields = {"mirror": jetsync.StreamSource(rig.name, opt_start_seq=2)}
        else:
            fields = {
                "sources": [jetsync.StreamSource(rig.name, opt_start_seq=2)],
                "allow_atomic": True,
            }
        copy = rig.js.create_stream(f"{rig.name}-C", storage="memory", **fields)
        expect = Expect(last_subject_sequence=1)
        rig.js.publish_batch([OutboundMessage(rig("a"), b"1", expect=expect), (rig("b"), b"2")])
        eventually(lambda: copy.info().state.messages == 2)
        found = [
            copy.get_message(number)
            for number in range(1, copy.info().state.last_seq + 1)
            if number >= copy.info().state.first_seq
        ]
        assert [message.data for message in found] == [b"1", b"2"]
        # The copies have none of them.
        assert [(SEQUENCE in message.headers) for message in found] == [False, False]

    @pytest.mark.clause("AB-49")
    @since_2_14
    def test_a_stream_allows_both_kinds_of_batches(self, rig):
        """
        One stream takes an atomic and a fast batch at the same time.
        """
        stream = rig.stream(allow_atomic=True, allow_batched=True)
        with rig.js.atomic_batch() as atomic, rig.js.fast_publisher() as fast:
            atomic.add(rig("a"), b"1")
            fast.add(rig("b"), b"2")
            atomic.add(rig("a"), b"3")
            fast.add(rig("b"), b"4")
        assert sorted(payloads(stream)) == [b"1", b"2", b"3", b"4"]

    @pytest.mark.clause("AB-50")
    @everywhere
    def test_all_messages_are_stored_or_none_and_none_is_seen_before(self, rig):
        """
        Before the commit no message is visible, after it all are. A failed commit stores none.
        """
        stream = rig.stream(allow_atomic=True)
        consumer = stream.create_consumer("worker")
        batch = rig.js.atomic_batch(ack_every=1)
        for number in range(3):
            batch.add(rig("a"), b"%d" % number)
        assert stream.info().state.messages == 0
        assert list(consumer.fetch(1, no_wait=True)) == []
        batch.commit()
        assert [message.data for message in consumer.fetch(3)] == [b"0", b"1", b"2"]
        wrong = OutboundMessage(rig("b"), b"x", expect=Expect(last_subject_sequence=7))
        with pytest.raises(jetsync.WrongLastSequenceError):
            rig.js.publish_batch([(rig("a"), b"3"), wrong, (rig("a"), b"4")])
        assert payloads(stream) == [b"0", b"1", b"2"]

    @pytest.mark.clause("AB-51")
    @pytest.mark.parametrize("rig", ["2.10.26", "2.11.11"], indirect=True)
    def test_a_server_without_atomic_batches_gets_none(self, rig):
        """
        The client raises before it sends a message to a server that would store each by itself.
        """
        stream = rig.stream()
        for call in (
            lambda: rig.js.atomic_batch().add(rig("a"), b"1"),
            lambda: rig.js.publish_batch([(rig("a"), b"1")]),
        ):
            with pytest.raises(jetsync.NotSupportedError, match=re.escape("2.12")):
                call()
        assert rig.wire.published(rig(">")) == []
        assert stream.info().state.last_seq == 0
