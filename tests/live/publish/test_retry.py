"""
Retries of messages that may be stored already.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

import jetsync
from helpers.waiting import at_some_pace, timed
from jetsync import hookimpl
from jetsync.publish import one
from jetsync.testing import CutProxy, HookRecorder

BUSY = b'{"error":{"code":409,"err_code":10158,"description":"in process"},"stream":"S"}'
FULL = b'{"error":{"code":400,"err_code":10077,"description":"maximum messages"},"stream":"S"}'


@pytest.fixture
def publish_to(publish, client, unique):
    """
    A function that publishes a message to a function in place of a stream, and returns the errors.
    """

    def run(respond, js):
        messages = [jetsync.OutboundMessage(unique, b"1", msg_id="1")]
        with client.subscribe(unique) as requests, ThreadPoolExecutor(1) as pool:
            client.flush()
            answers = pool.submit(respond, requests)
            errors = publish(js, messages, ack_timeout=30)
            answers.result(30)
        return errors

    return run


class Again:
    """
    A plugin that asks for another attempt and records the operations.
    """

    def __init__(self, delay=0.0):
        self.delay = delay
        self.asked = []
        self.also = bool

    @hookimpl
    def jetsync_retry(self, operation, error, attempt):
        self.asked.append((operation, error, attempt))
        self.also()
        return self.delay


@pytest.fixture
def behind_proxy(nats_server):
    """
    A function that connects with plugins through a proxy and returns proxy and JetStream.
    """
    with contextlib.ExitStack() as stack:

        def connect(*plugins):
            proxy = stack.enter_context(CutProxy(nats_server.url))
            client = stack.enter_context(
                jetsync.connect(proxy.url, plugins=plugins, reconnect_wait=0.02)
            )
            return proxy, client.jetstream()

        yield connect


def bulk(js, messages, **options):
    """
    Publish with `publish_many` and return the errors.
    """
    try:
        js.publish_many(messages, **options)
    except jetsync.PublishManyError as error:
        return [failure.error for failure in error.report.failures]
    return []


def one_by_one(js, messages, **options):
    """
    Publish with a publisher and return the errors.
    """
    with js.publisher(**options) as publisher:
        futures = [publisher.publish(m.subject, m.data, msg_id=m.msg_id) for m in messages]
        return [error for future in futures if (error := future.exception()) is not None]


def stored(stream):
    """
    Return the numbers that are in a stream.
    """
    return [int(message.data) for message in stream.ordered_consumer().fetch(1000, no_wait=True)]


def retries(recorder):
    """
    Return the events of messages that were sent again.
    """
    events = [call["event"] for call in recorder]
    return [event for event in events if isinstance(event, jetsync.RetryEvent)]


@pytest.mark.parametrize("publish", [bulk, one_by_one])
class TestWindows:
    def test_messages_with_ids_go_again(self, publish, behind_proxy, stream):
        """
        After a lost connection, messages with ids are sent again without a gap or a copy.
        """
        again = Again()
        proxy, js = behind_proxy(again)
        proxy.cut_after(to_client=2000, reset=True)
        subject = f"{stream.name}.A"
        messages = [jetsync.OutboundMessage(subject, b"%d" % n, msg_id=f"{n}") for n in range(500)]

        assert publish(js, messages, ack_timeout=30) == []

        assert proxy.statistics().cuts == 1
        assert sorted(stored(stream)) == list(range(500))
        assert again.asked
        for operation, error, attempt in again.asked:
            assert isinstance(error, jetsync.PublishOutcomeUnknownError)
            assert operation.has_message_ids
            assert attempt >= 1
            assert operation.elapsed >= 0.0

    def test_messages_without_ids_never_do(self, publish, behind_proxy, stream):
        """
        Another attempt could store them twice, so plugins are not asked.
        """
        again = Again()
        proxy, js = behind_proxy(again)
        proxy.cut_after(to_client=2000, reset=True)
        subject = f"{stream.name}.A"
        messages = [jetsync.OutboundMessage(subject, b"%d" % n) for n in range(500)]

        errors = publish(js, messages, ack_timeout=30)

        assert {type(error) for error in errors} == {jetsync.PublishOutcomeUnknownError}
        assert again.asked == []
        assert len(stored(stream)) == len(set(stored(stream)))

    def test_without_a_plugin_nothing_goes_again(self, publish, behind_proxy, stream):
        """
        The built-in rule retries only messages that no stream took.
        """
        proxy, js = behind_proxy()
        proxy.cut_after(to_client=2000, reset=True)
        subject = f"{stream.name}.A"
        messages = [jetsync.OutboundMessage(subject, b"%d" % n, msg_id=f"{n}") for n in range(500)]

        errors = publish(js, messages, ack_timeout=30)

        assert {type(error) for error in errors} == {jetsync.PublishOutcomeUnknownError}

    def test_a_message_without_an_ack_is_sent_again_by_the_plugin(
        self, publish, behind_proxy, stream
    ):
        """
        A message without an ack is sent again, and the plugin gets the elapsed time.
        """
        again = Again()
        proxy, js = behind_proxy(again)
        again.also = proxy.resume

        def attempt(pace):
            stream.purge()
            again.asked.clear()
            proxy.pause("to_client")
            message = jetsync.OutboundMessage(f"{stream.name}.A", b"x", msg_id=f"{pace}")

            assert publish(js, [message], ack_timeout=0.3 * pace) == []

            assert stream.info().state.messages == 1
            assert again.asked[0][0].elapsed >= 0.3 * pace

        at_some_pace(attempt)

    def test_a_message_that_the_server_is_storing_goes_again(
        self, publish_to, behind_proxy, client
    ):
        """
        A server refuses a copy while it stores the first one. A later copy is a duplicate.
        """
        again = Again()
        proxy, js = behind_proxy(again)

        def respond(requests):
            assert requests.next(timeout=30) is not None
            proxy.cut()
            for answer in (BUSY, BUSY, b'{"stream":"S","seq":1,"duplicate":true}'):
                request = requests.next(timeout=30)
                client.publish(request.reply, answer)

        assert publish_to(respond, js) == []
        assert [attempt for _, _, attempt in again.asked] == [1, 2, 3]
        assert {type(error) for _, error, _ in again.asked} == {jetsync.PublishOutcomeUnknownError}

    def test_a_copy_of_another_program_does_not_go_again(self, publish_to, behind_proxy, client):
        """
        Without an earlier attempt, the server stores a message of another program.
        """
        again = Again(delay=None)
        _, js = behind_proxy(again)

        def respond(requests):
            client.publish(requests.next(timeout=30).reply, BUSY)

        (error,) = publish_to(respond, js)
        assert isinstance(error, jetsync.DuplicateMessageInProcessError)
        assert again.asked == []

    def test_another_refusal_ends_the_retries(self, publish_to, behind_proxy, client):
        """
        The server would refuse each copy, and the earlier attempt may be stored.
        """
        again = Again()
        proxy, js = behind_proxy(again)

        def give_up():
            again.delay = 0.0 if len(again.asked) == 1 else None

        again.also = give_up

        def respond(requests):
            assert requests.next(timeout=30) is not None
            proxy.cut()
            client.publish(requests.next(timeout=30).reply, FULL)

        (error,) = publish_to(respond, js)
        assert isinstance(error, jetsync.PublishOutcomeUnknownError)
        assert isinstance(error.__cause__, jetsync.ApiError)
        assert [attempt for _, _, attempt in again.asked] == [1]

    def test_a_refusal_does_not_decide_the_earlier_attempt(self, publish, behind_proxy, js, stream):
        """
        An unknown outcome stays unknown, and the later error is its cause.
        """
        again = Again()
        proxy, behind = behind_proxy(again)
        proxy.pause("to_client")
        message = jetsync.OutboundMessage(f"{stream.name}.A", b"x", msg_id="one")

        def remove():
            if len(again.asked) == 1:
                js.delete_stream(stream.name)
                proxy.cut(reset=True)
                proxy.resume()
            again.delay = 0.0 if len(again.asked) < 3 else None

        again.also = remove
        (error,) = publish(behind, [message], ack_timeout=5)

        assert isinstance(error, jetsync.PublishOutcomeUnknownError)
        assert isinstance(error.__cause__, jetsync.NoStreamResponseError)
        assert [attempt for _, _, attempt in again.asked] == [1, 2, 3]
        assert {type(each) for _, each, _ in again.asked} == {type(error)}


class TestSingle:
    def test_an_id_of_a_plugin_counts(self, behind_proxy, stream):
        """
        The retry hook considers ids that plugins have added.
        """

        class Ids:
            @hookimpl
            def jetsync_prepare_message(self, message):
                return attrs.evolve(message, msg_id="given")

        again = Again()
        proxy, js = behind_proxy(again, Ids)
        proxy.cut_after(to_client=0, reset=True)

        assert js.publish(f"{stream.name}.A", b"x", timeout=20).duplicate

        assert [operation.has_message_ids for operation, _, _ in again.asked] == [True]

    def test_a_condition_on_the_last_sequence_is_as_good_as_an_id(self, behind_proxy, stream):
        """
        The server refuses the copy, so a retry is safe, and the outcome stays unknown.
        """
        again = Again()
        proxy, js = behind_proxy(again)
        proxy.cut_after(to_client=0, reset=True)

        with pytest.raises(jetsync.PublishOutcomeUnknownError) as caught:
            js.publish(f"{stream.name}.A", b"x", expect=jetsync.Expect(last_sequence=0), timeout=20)

        assert len(again.asked) == 1
        assert isinstance(caught.value.__cause__, jetsync.WrongLastSequenceError)
        assert stream.info().state.messages == 1

    @pytest.mark.parametrize(
        "expect",
        [
            None,
            jetsync.Expect(last_subject_sequence=0),
            jetsync.Expect(last_msg_id="before"),
        ],
    )
    def test_other_conditions_are_not(self, expect, behind_proxy, stream):
        """
        They hold again once the first copy is removed, so plugins are not asked.
        """
        again = Again()
        proxy, js = behind_proxy(again)
        proxy.pause("to_client")

        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            js.publish(f"{stream.name}.A", b"x", expect=expect, timeout=0.3)
        proxy.resume()

        assert again.asked == []


class TestLateAcks:
    """
    A function in place of a stream leaves the first attempts without an ack.
    """

    ACK = b'{"stream":"S","seq":7}'

    @pytest.fixture
    def publish(self, nats_server, unique, monkeypatch):
        """
        A function that publishes with a plugin. Another one returns the answers to each attempt.
        """
        monkeypatch.setattr(one, "LATE", 0.05)

        def publish(respond, *plugins, msg_id="1", **options):
            attempts = []

            def run(requests):
                for request in requests:
                    attempts.append(request)
                    for answer in respond(len(attempts)):
                        other.publish(request.reply, answer)

            with (
                jetsync.connect(nats_server.url) as other,
                jetsync.connect(nats_server.url, plugins=plugins) as client,
                other.subscribe(unique) as requests,
                ThreadPoolExecutor(1) as pool,
            ):
                other.flush()
                done = pool.submit(run, requests)
                try:
                    return client.jetstream().publish(unique, b"x", msg_id=msg_id, **options)
                finally:
                    published.extend(attempts)
                    requests.close()
                    done.result(30)

        published = []
        publish.attempts = published
        return publish

    @pytest.mark.parametrize("answered", [2, 4])
    def test_a_message_with_an_id_is_sent_again(self, publish, answered):
        """
        It is sent again on the same reply subject, before the deadline of the call.
        """
        again, recorder = Again(), HookRecorder("jetsync_status")

        def respond(number):
            return [self.ACK] * (number == answered)

        assert publish(respond, again, recorder, timeout=30).sequence == 7
        attempts = publish.attempts
        assert len(attempts) >= answered
        assert {attempt.reply for attempt in attempts} == {attempts[0].reply}
        numbers = list(range(1, answered))
        assert [attempt for _, _, attempt in again.asked][: answered - 1] == numbers
        assert [event.attempts for event in retries(recorder)][: answered - 1] == numbers
        operation, error, _ = again.asked[0]
        assert isinstance(error, jetsync.PublishOutcomeUnknownError)
        assert 0 < error.timeout < 30
        assert 0 < operation.elapsed < 30

    def test_the_ack_of_the_first_attempt_counts(self, publish):
        """
        A slow server is waited for, and the answers to the copies are dropped.
        """
        again = Again()
        ack = publish(lambda number: [self.ACK] * 3 if number == 3 else [], again, timeout=30)
        assert ack.sequence == 7

    def test_an_ack_ends_the_pause_before_the_next_attempt(self, publish):
        """
        The plugin wants to wait long, and the ack comes first.
        """
        asked = threading.Event()
        again = Again(delay=20.0)
        again.also = asked.set

        def respond(number):
            assert asked.wait(30)
            return [self.ACK]

        with timed(0.0, 10.0):
            assert publish(respond, again, timeout=30).sequence == 7
        assert len(publish.attempts) == 1

    def test_a_plugin_that_does_not_want_it(self, publish):
        """
        The message is sent once, its late ack counts, and the plugin is asked once.
        """
        asked = threading.Event()
        again = Again(delay=None)
        again.also = asked.set

        def respond(number):
            assert asked.wait(30)
            return [self.ACK]

        assert publish(respond, again, timeout=30).sequence == 7
        assert (len(publish.attempts), len(again.asked)) == (1, 1)

        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            publish(lambda number: [], again, timeout=0.3)
        assert len(again.asked) == 2

    def test_an_outcome_stays_unknown(self, publish):
        """
        If the second attempt is refused, the first one may still be stored.
        """
        with pytest.raises(jetsync.PublishOutcomeUnknownError, match="earlier attempt"):
            publish(lambda number: [FULL] * (number == 2), Again(), timeout=30)

    def test_a_plugin_that_fails(self, publish):
        """
        The error of a plugin does not hide that the outcome is unknown.
        """
        again = Again()

        def fail():
            raise ValueError("broken")

        again.also = fail
        with pytest.raises(jetsync.PublishOutcomeUnknownError) as caught:
            publish(lambda number: [], again, timeout=30)
        assert isinstance(caught.value.__cause__, jetsync.PluginError)

    @pytest.mark.parametrize(
        ("plugin", "msg_id"), [(None, "1"), (Again(), None)], ids=["no plugin", "no id"]
    )
    def test_other_messages_are_sent_once(self, publish, plugin, msg_id):
        """
        Without a plugin that decides about retries, or without an id, there is one attempt.
        """
        plugins = [] if plugin is None else [plugin]
        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            publish(lambda number: [], *plugins, msg_id=msg_id, timeout=0.4)
        assert len(publish.attempts) == 1
        assert plugin is None or plugin.asked == []


class TestTold:
    def test_sending_again_is_an_event(self, behind_proxy, stream):
        """
        There is one event for all messages of a call that are sent again together.
        """
        recorder = HookRecorder("jetsync_status")
        proxy, js = behind_proxy(Again(), recorder)
        subject = f"{stream.name}.A"
        messages = [jetsync.OutboundMessage(subject, b"%d" % n, msg_id=f"{n}") for n in range(9)]
        js.publish_many(messages)
        assert retries(recorder) == []
        proxy.cut_after(to_client=0, reset=True)

        js.publish_many([jetsync.OutboundMessage(subject, b"x", msg_id=f"{n}x") for n in range(9)])

        first = retries(recorder)[0]
        assert (first.operation, first.subject, first.messages) == ("publish_many", subject, 9)
        assert (first.attempts, first.delay) == (1, 0.0)
        assert isinstance(first.error, jetsync.PublishOutcomeUnknownError)

    def test_the_built_in_rule_emits_it_too(self, nats_server, unique):
        """
        There is also an event if no plugin decides about retries.
        """
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            js = client.jetstream()
            with pytest.raises(jetsync.NoStreamResponseError):
                js.publish(unique, b"x", retries=2, retry_wait=0.01)
            with pytest.raises(jetsync.PublishManyError):
                js.publish_many([(unique, b"x")] * 3, retries=2, retry_wait=0.01)

        told = [(event.attempts, event.messages, event.delay) for event in retries(recorder)]
        assert told[:2] == [(1, 1, 0.01), (2, 1, 0.01)]
        assert sum(messages for _, messages, _ in told[2:]) == 6
