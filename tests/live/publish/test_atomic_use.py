"""
Atomic batches with plugins, threads and options, and invalid input.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

import jetsync
from helpers.connections import client_of, connection_of
from helpers.streams import batch_stream, payloads
from helpers.waiting import eventually
from jetsync import Expect, OutboundMessage
from jetsync.devserver import DevServer
from jetsync.hookspecs import hookimpl
from jetsync.publish.atomic_attempt import BatchAttempt
from jetsync.publish.stage import MOST_STAGED, MOST_STAGED_BYTES, STAGING_PAUSE
from jetsync.testing import HookRecorder

OPEN_BATCHES = 50
"""Batches that servers keep for one stream (ADR-50)."""

NO_SECRETS = {"permissions": {"publish": {"deny": ["*.secret"]}}}


@pytest.fixture
def with_plugins(nats_server):
    """
    A factory of JetStream contexts whose client has plugins.
    """
    with contextlib.ExitStack() as stack:

        def with_plugins(*plugins):
            client = jetsync.connect(nats_server.url, plugins=plugins)
            return stack.enter_context(client).jetstream()

        yield with_plugins


def asked(js):
    """
    Return a list that collects the subjects of all requests from now on.
    """
    subjects = []
    core = connection_of(js)
    exchange = core.exchange

    def counting(subject, *arguments, **keywords):
        subjects.append(subject)
        return exchange(subject, *arguments, **keywords)

    core.exchange = counting
    return subjects


def drop(batches):
    """
    Drop the batches of a list without ending them.
    """
    batches.clear()
    gc.collect()


class Upper:
    """
    Change messages, and veto some.
    """

    @hookimpl
    def jetsync_prepare_message(self, message):
        if message.data == b"veto":
            raise LookupError("vetoed")
        return attrs.evolve(message, data=bytes(message.data).upper())


class TestPrepare:
    def test_every_message_is_prepared(self, with_plugins, stream):
        """
        Plugins see each message once, however it is sent.
        """
        recorder = HookRecorder("jetsync_prepare_message")
        js = with_plugins(Upper(), recorder)
        subject = f"{stream.name}.A"
        with js.atomic_batch() as batch:
            batch.add(subject, b"a")
            batch.add(subject, b"b", msg_id="b")
            batch.commit(subject, b"c")
        js.publish_batch([(subject, b"d"), OutboundMessage(subject, b"e")])
        assert payloads(stream) == [b"A", b"B", b"C", b"D", b"E"]
        assert len(recorder.of("jetsync_prepare_message")) == 5

    def test_a_message_that_a_plugin_refuses_leaves_the_batch_open(self, with_plugins, stream):
        """
        A message that a plugin refuses is not added, and the batch stays usable.
        """
        js = with_plugins(Upper())
        subject = f"{stream.name}.A"
        with js.atomic_batch() as batch:
            with pytest.raises(jetsync.PluginError, match="vetoed"):
                batch.add(subject, b"veto")
            batch.add(subject, b"a")
            with pytest.raises(jetsync.PluginError):
                batch.commit(subject, b"veto")
            assert batch.size == 1
        with pytest.raises(jetsync.PluginError):
            js.publish_batch([(subject, b"b"), (subject, b"veto")])
        assert payloads(stream) == [b"A"]


class TestCommitHook:
    def test_a_commit_is_one_operation(self, with_plugins, stream):
        """
        The hook gets the batch and its ack, in the caller's thread.
        """
        recorder = HookRecorder("jetsync_batch_commit")
        js = with_plugins(recorder)
        subject = f"{stream.name}.A"
        batch = js.atomic_batch(timeout=7)
        batch.add(subject)
        first = batch.commit(f"{stream.name}.B")
        second = js.publish_batch([(subject, b"")] * 3)
        calls = recorder.of("jetsync_batch_commit")
        operations = [call["operation"] for call in calls]
        assert [call.result for call in calls] == [first, second]
        assert [
            (each.name, each.kind, each.size, each.subject, each.batch_id) for each in operations
        ] == [
            ("batch_commit", "atomic", 2, f"{stream.name}.B", first.batch_id),
            ("batch_commit", "atomic", 3, None, second.batch_id),
        ]
        assert [each.stream for each in operations] == [stream.name] * 2
        assert operations[0].timeout == 7.0
        assert {call.thread for call in calls} == {threading.current_thread().name}

    def test_its_error(self, with_plugins, stream):
        """
        The hook gets the same error as the caller.
        """
        recorder = HookRecorder("jetsync_batch_commit")
        js = with_plugins(recorder)
        message = OutboundMessage(f"{stream.name}.A", expect=Expect(last_sequence=9))
        with pytest.raises(jetsync.WrongLastSequenceError) as refused:
            js.publish_batch([message])
        with pytest.raises(jetsync.NoStreamResponseError) as nobody:
            js.publish_batch([(f"{stream.name}-no", b"")], retries=0)
        errors = [call.error for call in recorder.of("jetsync_batch_commit")]
        assert errors == [refused.value, nobody.value]

    def test_no_lock_is_held(self, with_plugins, stream):
        """
        Plugins may use the batch in any thread.
        """

        class Nosy:
            seen = ()
            batch = None

            @hookimpl
            def jetsync_prepare_message(self, message):
                if message.data == b"outer":
                    with ThreadPoolExecutor(1) as pool:
                        pool.submit(self.batch.add, message.subject, b"inner").result(5)

            @hookimpl(wrapper=True)
            def jetsync_batch_commit(self, operation):
                for call in (self.batch.commit, self.batch.resend, self.batch.discard):
                    with ThreadPoolExecutor(1) as pool:
                        self.seen += (type(pool.submit(call).exception(5)),)
                return (yield)

        nosy = Nosy()
        js = with_plugins(nosy)
        nosy.batch = js.atomic_batch()
        nosy.batch.add(f"{stream.name}.A", b"outer")
        assert nosy.batch.commit().size == 2
        assert nosy.seen == (jetsync.BatchClosedError, jetsync.ConflictingUseError, type(None))
        assert payloads(stream) == [b"inner", b"outer"]

    def test_a_plugin_that_raises_after_the_commit(self, with_plugins, stream):
        """
        If a plugin raises after the commit, the batch keeps its ack and cannot be sent again.
        """

        class Late:
            @hookimpl(wrapper=True)
            def jetsync_batch_commit(self, operation):
                yield
                raise LookupError("late")

        batch = with_plugins(Late()).atomic_batch()
        batch.add(f"{stream.name}.A", b"1", msg_id="m")
        with pytest.raises(jetsync.PluginError, match="late"):
            batch.commit()
        assert batch.ack.size == 1
        with pytest.raises(jetsync.ConflictingUseError):
            batch.resend()
        assert payloads(stream) == [b"1"]

    def test_a_plugin_that_raises_before_it(self, with_plugins, stream):
        """
        If a plugin prevents the commit, the batch is closed and can be sent again.
        """

        class Never:
            stop = True

            @hookimpl(wrapper=True)
            def jetsync_batch_commit(self, operation):
                if self.stop:
                    raise LookupError("not now")
                return (yield)

        plugin = Never()
        batch = with_plugins(plugin).atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        with pytest.raises(jetsync.PluginError, match="not now"):
            batch.commit(f"{stream.name}.A", b"2")
        assert batch.ack is None
        plugin.stop = False
        assert batch.resend().size == 2
        assert payloads(stream) == [b"1", b"2"]


class TestThreads:
    def test_of_one_batch(self, js, stream):
        """
        Messages of four threads are all stored once, in the order of each thread.
        """
        batch = js.atomic_batch(ack_every=50)

        def work(thread):
            for number in range(200):
                batch.add(f"{stream.name}.{thread}", b"%d-%d" % (thread, number))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert batch.commit().size == 800
        found = payloads(stream)
        for thread in range(4):
            own = [data for data in found if data.startswith(b"%d-" % thread)]
            assert own == [b"%d-%d" % (thread, number) for number in range(200)]

    def test_a_block_that_discards_during_an_add_ends_without_an_error(
        self, js, stream, monkeypatch
    ):
        """
        A block that discards its batch ends without an error, also if another thread adds.
        """
        adding, left = threading.Event(), threading.Event()
        add = BatchAttempt.add

        def waits(attempt, *arguments):
            add(attempt, *arguments)
            adding.set()
            left.wait(10)

        monkeypatch.setattr(BatchAttempt, "add", waits)
        with ThreadPoolExecutor(1) as pool:
            try:
                with js.atomic_batch(timeout=0.1) as batch:
                    call = pool.submit(batch.add, f"{stream.name}.A", b"1", timeout=5)
                    assert adding.wait(10)
                    batch.discard()
            finally:
                left.set()
            call.result()
        with pytest.raises(jetsync.BatchClosedError, match="discarded"):
            batch.add(f"{stream.name}.A", b"2")
        assert payloads(stream) == []

    def test_of_one_client(self, js, stream):
        """
        Batches of four threads are complete, and no batch interrupts another.
        """

        def work(thread):
            for turn in range(10):
                with js.atomic_batch(ack_every=7) as batch:
                    for _ in range(20):
                        batch.add(f"{stream.name}.{thread}", b"%d-%d" % (thread, turn))
                acks.append(batch.ack)
                messages = [(f"{stream.name}.{thread}", b"%d-x%d" % (thread, turn))] * 20
                acks.append(js.publish_batch(messages))

        acks = []
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert len({ack.batch_id for ack in acks}) == 80
        found = payloads(stream)
        assert len(found) == 1600
        for ack in acks:
            own = set(found[ack.first_sequence - 1 : ack.sequence])
            assert (len(own), ack.size) == (1, 20)

    def test_adds_during_a_commit(self, js, stream):
        """
        The commit stores each message whose add has returned before it, and later adds fail.
        """
        for _ in range(20):
            batch = js.atomic_batch()
            batch.add(f"{stream.name}.A")
            barrier = threading.Barrier(4)

            def add():
                added = 0
                barrier.wait(20)  # noqa: B023
                with contextlib.suppress(jetsync.BatchClosedError):
                    while added < 200:
                        batch.add(f"{stream.name}.A")  # noqa: B023
                        added += 1
                return added

            with ThreadPoolExecutor(3) as pool:
                calls = [pool.submit(add) for _ in range(3)]
                barrier.wait(20)
                ack = batch.commit()
                assert ack.size == 1 + sum(call.result(20) for call in calls)

    def test_two_commit(self, js, stream):
        """
        If two threads commit, one of them gets BatchClosedError.
        """
        for _ in range(20):
            batch = js.atomic_batch()
            batch.add(f"{stream.name}.A")
            with ThreadPoolExecutor(2) as pool:
                calls = [pool.submit(batch.commit) for _ in range(2)]
            errors = [call.exception() for call in calls]
            assert sorted(map(str, map(type, errors))) == sorted(
                map(str, (type(None), jetsync.BatchClosedError))
            )
        assert stream.info().state.messages == 20


class TestOptions:
    @pytest.mark.parametrize(("first", "answers"), [(True, 11), (False, 10)])
    def test_answers_that_are_waited_for(self, js, stream, first, answers):
        """
        The call waits for the answers to every tenth message and to the commit.
        """
        waited = []
        core = connection_of(js)
        exchange = core.exchange

        def counting(subject, *arguments, **keywords):
            waited.append(subject)
            return exchange(subject, *arguments, **keywords)

        js.publish_batch([(f"{stream.name}.A", b"")])
        core.exchange = counting
        batch = js.atomic_batch(ack_first=first, ack_every=10)
        for _ in range(99):
            batch.add(f"{stream.name}.A")
        assert batch.commit(f"{stream.name}.B").size == 100
        assert waited == [f"{stream.name}.A".encode()] * (answers - 1) + [
            f"{stream.name}.B".encode()
        ]

    def test_one_answer_by_default(self, js, stream):
        """
        By default only the first message and the commit ask for an answer.
        """
        js.publish_batch([(f"{stream.name}.A", b"")])
        before = client_of(js).statistics().bytes_in
        with js.atomic_batch() as batch:
            for _ in range(500):
                batch.add(f"{stream.name}.A")
        assert client_of(js).statistics().bytes_in - before < 300

    @pytest.mark.parametrize("options", [{"ack_every": -1}, {"ttl": 0}, {"timeout": -1}])
    def test_invalid_options_of_a_batch_are_refused_at_once(self, js, options):
        """
        Invalid options are refused at once.
        """
        with pytest.raises(ValueError):  # noqa: PT011 - each has its own text.
            js.atomic_batch(**options)


class TestRuns:
    """
    Small messages are written together, long before the commit.
    """

    def sent(self, js):
        """
        The bytes that were sent so far.
        """
        return client_of(js).statistics().bytes_out

    @pytest.fixture
    def batch(self, js, stream, monkeypatch):
        """
        A batch with one message, to which others are added without a pause.
        """
        monkeypatch.setattr("jetsync.publish.atomic_attempt.STAGING_PAUSE", 60.0)
        with js.atomic_batch() as batch:
            batch.add(f"{stream.name}.A", b"0")
            yield batch

    def test_a_full_run_is_sent(self, js, stream, batch):
        """
        The message that fills a run sends the whole run.
        """
        before = self.sent(js)
        for number in range(1, MOST_STAGED):
            batch.add(f"{stream.name}.A", b"%d" % number)
        assert self.sent(js) == before
        batch.add(f"{stream.name}.A", b"%d" % MOST_STAGED)
        assert self.sent(js) > before + MOST_STAGED * 50
        batch.add(f"{stream.name}.A", b"last")
        assert batch.commit().size == MOST_STAGED + 2
        assert payloads(stream) == [
            *(b"%d" % number for number in range(MOST_STAGED + 1)),
            b"last",
        ]

    def test_a_message_after_a_pause_is_sent(self, js, stream):
        """
        A program that adds slowly has its messages on the server without delay.
        """
        with js.atomic_batch() as batch:
            for number in range(4):
                before = self.sent(js)
                batch.add(f"{stream.name}.A", b"%d" % number)
                assert self.sent(js) > before
                time.sleep(2 * STAGING_PAUSE)
        assert payloads(stream) == [b"0", b"1", b"2", b"3"]

    def test_a_large_message_is_sent(self, js, stream, batch):
        """
        A large message is sent at once, with the small ones before it.
        """
        before = self.sent(js)
        batch.add(f"{stream.name}.A", b"1")
        batch.add(f"{stream.name}.A", bytes(MOST_STAGED_BYTES))
        assert self.sent(js) > before + MOST_STAGED_BYTES
        assert batch.commit().size == 3

    @pytest.mark.parametrize(
        ("subject", "data", "error"),
        [
            ("{}.A B", b"", jetsync.InvalidSubjectError),
            ("{}.*", b"", jetsync.InvalidSubjectError),
            ([], b"", TypeError),
            ("{}.A", 5, TypeError),
            ("{}.A", bytes(2 << 20), jetsync.MaxPayloadError),
        ],
    )
    def test_a_bad_message_is_refused_by_its_add(self, js, stream, batch, subject, data, error):
        """
        A bad message is refused before it joins those that wait, and they stay in the batch.
        """
        before = self.sent(js)
        batch.add(f"{stream.name}.A", b"1")
        subject = subject.format(stream.name) if isinstance(subject, str) else subject
        with pytest.raises(error):
            batch.add(subject, data)
        batch.add(f"{stream.name}.A", b"2")
        assert (batch.size, self.sent(js)) == (3, before)
        assert batch.commit().size == 3
        assert payloads(stream) == [b"0", b"1", b"2"]

    def test_the_limit_is_kept(self, stream, batch):
        """
        A batch that is full refuses the next message, although its last ones are not sent yet.
        """
        batch._attempt.engine._limit = 10
        batch.add(f"{stream.name}.A", bytes(MOST_STAGED_BYTES))
        for number in range(8):
            batch.add(f"{stream.name}.A", b"%d" % number)
        with pytest.raises(jetsync.BatchTooLargeError):
            batch.add(f"{stream.name}.A", b"too many")
        assert batch.commit().size == 10

    @pytest.mark.parametrize("level", [4, 99])
    def test_staged_messages_are_sent_again(self, js, stream, monkeypatch, level):
        """
        Another attempt sends all messages in their order, whether they were staged or written.

        With the higher level, the server needs a message for the commit, so none is staged.
        """
        monkeypatch.setattr("jetsync.publish.atomic_attempt.MARKER_LEVEL", level)
        batch, sent = js.atomic_batch(ack_every=50), []
        for number in range(2 * MOST_STAGED):
            data = bytes(MOST_STAGED_BYTES) if number == 70 else b"\r\n%d" % number
            headers = {"A": str(number)} if number % 7 == 0 else None
            batch.add(f"{stream.name}.{number % 3}", data, headers=headers)
            sent.append((f"{stream.name}.{number % 3}", data, headers))
        with monkeypatch.context() as patched:
            patched.setattr(BatchAttempt, "send", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                batch.commit()
        assert batch.resend().size == batch.size == len(sent)
        stored = [stream.get_message(number) for number in range(1, len(sent) + 1)]
        found = [(each.subject, each.data, each.headers.get("A")) for each in stored]
        assert found == [
            (subject, data, (headers or {}).get("A")) for subject, data, headers in sent
        ]

    def test_a_mix(self, stream, batch):
        """
        Messages with and without headers, of several subjects, are stored in their order.
        """
        for number in range(1, 100):
            headers = {"A": "1"} if number % 7 == 0 else None
            batch.add(f"{stream.name}.{number % 3}", b"%d" % number, headers=headers)
        assert batch.commit().size == 100
        assert payloads(stream) == [b"%d" % number for number in range(100)]
        assert stream.get_message(8).headers["A"] == "1"

    def test_a_discard_drops_those_that_wait(self, js, stream, batch):
        """
        Messages that were not sent are dropped with the batch.
        """
        batch.add(f"{stream.name}.A", b"1")
        batch.discard()
        client_of(js).flush(timeout=5)
        assert payloads(stream) == []


class TestNotAllowed:
    def test_a_stream_without_batches_can_be_changed_to_allow_them(self, js, unique):
        """
        Nothing is sent to a stream that does not allow batches. It can be changed to allow them.
        """
        stream = batch_stream(js, unique, allow_atomic=False)
        for call in (
            lambda: js.atomic_batch().add(f"{unique}.A"),
            lambda: js.atomic_batch(ack_first=False).add(f"{unique}.A"),
            lambda: js.atomic_batch().commit(f"{unique}.A"),
            lambda: js.publish_batch([(f"{unique}.A", b"")]),
        ):
            with pytest.raises(jetsync.AtomicPublishDisabledError) as caught:
                call()
            assert (caught.value.err_code, caught.value.stream) == (10174, unique)
        assert stream.info().state.last_seq == 0
        stream.update(allow_atomic=True)
        assert js.publish_batch([(f"{unique}.A", b"")]).size == 1
        js.delete_stream(unique)

    @pytest.mark.parametrize("ack_first", [True, False])
    def test_a_stream_that_allows_them_no_more(self, js, stream, ack_first):
        """
        If the stream no longer allows batches, the first answer or the commit raises the error.
        """
        js.publish_batch([(f"{stream.name}.A", b"0")])
        stream.update(allow_atomic=False)
        batch = js.atomic_batch(ack_first=ack_first)
        if not ack_first:
            batch.add(f"{stream.name}.A", b"1")
        call = batch.commit if not ack_first else lambda: batch.add(f"{stream.name}.A", b"1")
        with pytest.raises(jetsync.AtomicPublishDisabledError) as caught:
            call()
        assert caught.value.err_code == 10174
        with pytest.raises(jetsync.AtomicPublishDisabledError):
            js.publish_batch([(f"{stream.name}.A", b"2")] * 5)
        assert payloads(stream) == [b"0"]

    def test_mirrors_and_asynchronous_streams(self, js, stream, unique):
        """
        Mirrors and asynchronous streams cannot allow batches.
        """
        name = f"{unique}-x"
        slow = {"storage": "file", "persist_mode": "async"}
        with pytest.raises(jetsync.StreamConfigInvalidError):
            batch_stream(js, name, **slow)
        with pytest.raises(jetsync.ApiError) as caught:
            js.create_stream(name, mirror=jetsync.StreamSource(stream.name), allow_atomic=True)
        assert caught.value.err_code == 10198
        plain = batch_stream(js, name, allow_atomic=False, **slow)
        with pytest.raises(jetsync.AtomicPublishDisabledError):
            js.publish_batch([(f"{name}.A", b"")])
        assert plain.info().state.last_seq == 0
        js.delete_stream(name)

    def test_batches_need_a_stream_with_acks(self, js, unique):
        """
        A stream without acks is refused before anything is sent.
        """
        stream = batch_stream(js, unique, no_ack=True)
        with pytest.raises(jetsync.NotSupportedError, match="acks"):
            js.publish_batch([(f"{unique}.A", b"")])
        assert stream.info().state.last_seq == 0
        js.delete_stream(unique)

    def test_a_subject_that_the_user_may_not_publish(self, unique):
        """
        A permission error ends the batch, and nothing is stored.
        """
        users = [{"user": "u", "password": "p", **NO_SECRETS}]
        with (
            DevServer(config={"authorization": {"timeout": 30, "users": users}}) as server,
            jetsync.connect(server.url, user="u", password="p") as client,
        ):
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=["A.>"], storage="memory", allow_atomic=True)
            batch = js.atomic_batch()
            batch.add("A.open")
            with pytest.raises(jetsync.PermissionDeniedError):
                batch.commit("A.secret")
            with pytest.raises(jetsync.PermissionDeniedError):
                batch.resend()
            assert stream.info().state.last_seq == 0


class TestInput:
    @pytest.mark.parametrize(
        ("subject", "more", "error"),
        [
            ("{}.A B", {}, jetsync.InvalidSubjectError),
            ("{}.*", {}, jetsync.InvalidSubjectError),
            ("", {}, jetsync.InvalidSubjectError),
            (5, {}, TypeError),
            ("{}.A", {"data": 5}, TypeError),
            ("{}.A", {"data": "\ud800"}, ValueError),
            ("{}.A", {"data": bytes(2 << 20)}, jetsync.MaxPayloadError),
            ("{}.A", {"headers": {"A\n": "1"}}, jetsync.InvalidHeaderError),
            ("{}.A", {"headers": {"Nats-Batch-Commit": "1"}}, jetsync.BatchRuleError),
            ("{}.A", {"msg_id": ""}, ValueError),
            ("{}.A", {"ttl": 0.1}, jetsync.InvalidTtlError),
            ("{}.A", {"expect": 5}, TypeError),
            ("{}.A", {"timeout": -1}, ValueError),
            ("{}-other.A", {}, jetsync.InvalidSubjectError),
            ("{}-none.A", {}, jetsync.NoStreamResponseError),
        ],
    )
    @pytest.mark.parametrize("when", ["second", "last"])
    def test_invalid_messages(self, js, stream, unique, subject, more, error, when):
        """
        Each invalid message raises its own error, and the batch is unchanged.
        """
        other = batch_stream(js, f"{unique}-other")
        subject = subject.format(unique) if isinstance(subject, str) else subject
        batch = js.atomic_batch()
        batch.add(f"{unique}.A", b"1", expect=Expect(last_sequence=0))
        with pytest.raises(error):
            (batch.add if when == "second" else batch.commit)(subject, **more)
        assert batch.size == 1
        batch.add(f"{unique}.A", b"2")
        assert batch.commit().size == 2
        assert payloads(stream) == [b"1", b"2"]
        js.delete_stream(other.name)

    def test_a_first_message_that_can_not_be_sent(self, js, stream, unique):
        """
        An invalid first message does not decide the stream, and the next message is the first one.
        """
        other = batch_stream(js, f"{unique}-other")
        batch = js.atomic_batch()
        for data, headers in ((5, None), (b"", {"Nats-Batch-Id": "x"}), (bytes(2 << 20), None)):
            with pytest.raises((TypeError, ValueError)):
                batch.add(f"{unique}-other.A", data, headers=headers)
        assert batch.size == 0
        batch.add(f"{unique}.A", b"1", expect=Expect(last_sequence=0))
        assert batch.commit().stream == unique
        assert other.info().state.last_seq == 0
        js.delete_stream(other.name)

    def test_a_bad_subject_sends_no_request(self, js):
        """
        An invalid subject is refused before anything is sent.
        """
        subjects = asked(js)
        for subject in ("a b", "a.*", "", "a..b"):
            with pytest.raises(jetsync.InvalidSubjectError):
                js.atomic_batch().add(subject)
            with pytest.raises(jetsync.InvalidSubjectError):
                js.publish_batch([(subject, b"")])
        assert subjects == []

    def test_larger_than_the_stream_takes(self, js, unique):
        """
        A message over the current max_msg_size is refused when it is added.
        """
        stream = batch_stream(js, unique, max_msg_size=500)
        batch = js.atomic_batch()
        batch.add(f"{unique}.A", b"1")
        with pytest.raises(ValueError, match="max_msg_size"):
            batch.add(f"{unique}.A", bytes(500))
        batch.add(f"{unique}.A", bytes(350))
        stream.update(max_msg_size=5000)
        batch.add(f"{unique}.A", bytes(500))
        assert batch.commit().size == 3
        js.delete_stream(unique)

    def test_a_subject_that_is_new(self, js, stream, unique):
        """
        A subject that the stream got after the batch began is accepted.
        """
        batch = js.atomic_batch()
        batch.add(f"{unique}.A", b"1")
        stream.update(subjects=[f"{unique}.>", f"{unique}-new"])
        batch.add(f"{unique}-new", b"2")
        assert batch.commit().size == 2
        assert payloads(stream) == [b"1", b"2"]

    def test_a_batch_may_change_counters_several_times(self, js, unique):
        """
        A batch may change counters several times.
        """
        stream = batch_stream(js, unique, allow_msg_counter=True, allow_direct=True)
        with js.atomic_batch() as batch:
            batch.add(f"{unique}.hits", headers={"Nats-Incr": "+1"})
            batch.add(f"{unique}.hits", headers={"Nats-Incr": "+2"})
        assert stream.get_last(f"{unique}.hits").data == b'{"val":"3"}'
        js.delete_stream(unique)


class Broken(dict):
    """Headers whose items cannot be read."""

    def items(self):
        raise LookupError("the caller's error")


def test_an_error_of_the_callers_headers_leaves_the_batch_open(js, stream):
    """
    If the headers of a message raise an error, the call raises it, and the batch continues.
    """
    batch = js.atomic_batch()
    for _ in range(2):
        with pytest.raises(LookupError, match="the caller's error"):
            batch.add(f"{stream.name}.A", headers=Broken())
        batch.add(f"{stream.name}.A")
    with pytest.raises(LookupError, match="the caller's error"):
        batch.commit(f"{stream.name}.A", headers=Broken())
    assert "open" in repr(batch)
    assert batch.commit().size == 2


class TestNothingIsLeft:
    def test_batches_leave_no_subscription(self, client, stream):
        """
        Batches leave no subscription that statistics count, and no request in flight.
        """
        js = client.jetstream()
        subject = f"{stream.name}.A"
        before = client.statistics().subscriptions
        committed, discarded, refused, forgotten = (js.atomic_batch() for _ in range(4))
        for batch in (committed, discarded, forgotten):
            batch.add(subject)
        refused.add(subject, expect=Expect(last_sequence=99))
        committed.commit()
        discarded.discard()
        with pytest.raises(jetsync.WrongLastSequenceError):
            refused.commit()
        batches = [forgotten]
        del forgotten, batch
        with pytest.warns(ResourceWarning):
            drop(batches)
        for _ in range(3):
            js.publish_batch([(subject, b"")])
            with pytest.raises(TypeError):
                js.atomic_batch().add(subject, 5)
        assert client.statistics().subscriptions == before
        assert client.statistics().requests_in_flight == 0

    def test_a_dropped_batch_frees_its_place(self, js, stream):
        """
        The server drops a batch that is garbage-collected, and a warning names its creator.
        """
        batches = [js.atomic_batch() for _ in range(OPEN_BATCHES)]
        line = inspect.currentframe().f_lineno - 1
        for batch in batches:
            batch.add(f"{stream.name}.A", b"1")
        del batch
        with pytest.warns(ResourceWarning) as caught:
            drop(batches)
        assert {(each.filename, each.lineno) for each in caught} == {(__file__, line)}
        assert len(caught) == OPEN_BATCHES
        assert "atomic batch" in str(caught[0].message)

        def free():
            with contextlib.suppress(jetsync.TooManyInflightError):
                return js.publish_batch([(f"{stream.name}.A", b"2")] * 2)

        # Otherwise the server frees the slots after ten seconds.
        assert eventually(free, 5).size == 2
        assert payloads(stream) == [b"2", b"2"]

    def test_a_batch_that_has_ended_is_dropped_silently(self, nats_server, js, stream):
        """
        Only a batch that holds something emits a warning.
        """
        subject = f"{stream.name}.A"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            js.atomic_batch()
            with js.atomic_batch() as batch:
                batch.add(subject)
            with contextlib.suppress(LookupError), js.atomic_batch() as batch:
                batch.add(subject)
                raise LookupError
            with contextlib.suppress(jetsync.ApiError), js.atomic_batch() as batch:
                batch.add(subject, expect=Expect(last_sequence=99))
            js.publish_batch([(subject, b"")])
            with jetsync.connect(nats_server.url) as other:
                closed = [other.jetstream().atomic_batch()]
                closed[0].add(subject)
            drop(closed)

    def test_the_end_of_the_client_closes_an_open_batch(self, nats_server, stream):
        """
        The end of the client discards an open batch, which then shows that it is closed.
        """
        with jetsync.connect(nats_server.url) as client:
            batch = client.jetstream().atomic_batch()
            batch.add(f"{stream.name}.A", b"1")
            assert "open" in repr(batch)
        assert "closed" in repr(batch)
        assert stream.info().state.messages == 0
