"""
Atomic batches with an unknown outcome, and retries.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.retrying import RetryPlugin
from helpers.streams import batch_stream, payloads
from helpers.waiting import at_some_pace, blocked, eventually, timed
from jetsync import OutboundMessage
from jetsync.hookspecs import hookimpl
from jetsync.testing import HookRecorder


def with_ids(stream, count=3):
    """
    Return messages that all have ids.
    """
    return [
        OutboundMessage(f"{stream.name}.A", b"%d" % number, msg_id=f"{stream.name}-{number}")
        for number in range(count)
    ]


class TestUnknownOutcome:
    def lose_the_answer(self, js, proxy, stream, messages, count):
        """
        Publish a batch, cut the connection before its answer, and return the error.
        """
        js.publish_batch([(f"{stream.name}.warm", b"")])
        proxy.pause("to_client")
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(js.publish_batch, messages, timeout=20)
            eventually(lambda: stream.info().state.messages == count)
            proxy.cut()
            proxy.resume()
            error = call.exception(20)
        assert isinstance(error, jetsync.BatchOutcomeUnknownError), error
        return error

    def test_it_had_come_through(self, proxied, stream):
        """
        If the answer is lost, sending the batch again finds it in the stream.
        """
        js, proxy = proxied()
        error = self.lose_the_answer(js, proxy, stream, with_ids(stream), 4)
        assert isinstance(error, (jetsync.PublishOutcomeUnknownError, TimeoutError))
        assert (error.has_message_ids, error.batch.size) == (True, 3)
        assert error.batch_id == error.batch.id
        ack = error.batch.resend(timeout=20)
        assert (ack.duplicate, ack.size, ack.stream) == (True, 3, stream.name)
        assert (ack.sequence, ack.first_sequence) == (4, 2)
        assert ack.batch_id == error.batch_id
        assert error.batch.ack is ack
        assert stream.info().state.messages == 4
        with pytest.raises(jetsync.ConflictingUseError):
            error.batch.resend()

    def test_it_had_not(self, proxied, stream):
        """
        If the commit is lost, sending the batch again stores it.
        """
        js, proxy = proxied()
        batch = js.atomic_batch()
        for message in with_ids(stream):
            batch.add(message.subject, message.data, msg_id=message.msg_id)
        proxy.pause("to_server")
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(batch.commit, timeout=20)
            blocked(pool)
            proxy.cut()
            proxy.resume()
            error = call.exception(20)
        assert isinstance(error, jetsync.BatchOutcomeUnknownError)
        assert error.batch is batch
        assert stream.info().state.messages == 0
        ack = batch.resend(timeout=20)
        assert (ack.duplicate, ack.size, ack.first_sequence) == (False, 3, 1)
        assert ack.batch_id == batch.id != error.batch_id
        assert payloads(stream) == [b"0", b"1", b"2"]

    def test_a_commit_without_an_answer_is_found_when_sent_again(self, proxied, stream):
        """
        If the call times out, sending the batch again finds it in the stream.
        """
        js, proxy = proxied()
        js.publish_batch([(f"{stream.name}.warm", b"")])
        proxy.pause("to_client")
        with timed(0.3, 1.0), pytest.raises(jetsync.BatchOutcomeUnknownError) as caught:
            js.publish_batch(with_ids(stream), timeout=0.3)
        assert (caught.value.timeout, caught.value.reason) == (0.3, None)
        proxy.resume()
        assert caught.value.batch.resend().duplicate is True
        assert stream.info().state.messages == 4

    def test_without_ids(self, proxied, stream):
        """
        A batch with an unknown outcome cannot be sent again unless every message has an id.
        """
        js, proxy = proxied()
        messages = [*with_ids(stream), OutboundMessage(f"{stream.name}.A", b"none")]
        error = self.lose_the_answer(js, proxy, stream, messages, 5)
        assert error.has_message_ids is False
        with pytest.raises(ValueError, match="every message needs a msg_id"):
            error.batch.resend()
        assert stream.info().state.messages == 5

    def test_a_refusal_does_not_make_it_known(self, proxied, stream, js):
        """
        After an unknown outcome, an error of the next attempt leaves it unknown.
        """
        far, proxy = proxied()
        error = self.lose_the_answer(far, proxy, stream, with_ids(stream), 4)
        js.delete_stream(stream.name)

        def attempt(pace):
            for _ in range(2):
                unknown = jetsync.BatchOutcomeUnknownError
                with pytest.raises(unknown, match="last one failed") as caught:
                    error.batch.resend(timeout=0.5 * pace)
                assert caught.value.batch is error.batch
                assert isinstance(caught.value.__cause__, jetsync.NoStreamResponseError)

        at_some_pace(attempt)
        batch_stream(js, stream.name)
        assert error.batch.resend().duplicate is False

    def test_a_plugin_asks_for_it(self, proxied, stream):
        """
        If every message has an id, the retry hook decides, and the caller gets the ack.
        """
        again = RetryPlugin()
        js, proxy = proxied(again)
        js.publish_batch([(f"{stream.name}.warm", b"")])
        proxy.pause("to_client")
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(js.publish_batch, with_ids(stream), timeout=20)
            eventually(lambda: stream.info().state.messages == 4)
            proxy.cut()
            proxy.resume()
            ack = call.result(20)
        assert (ack.duplicate, ack.size) == (True, 3)
        assert [type(error) for error in again.errors] == [jetsync.BatchOutcomeUnknownError]
        assert stream.info().state.messages == 4

    def test_no_other_call_sends_it_meanwhile(self, proxied, stream):
        """
        Between two attempts no other call can use the batch.
        """

        class Meddler(RetryPlugin):
            @hookimpl(specname="jetsync_retry")
            def meddle(self, operation, error, attempt):
                with pytest.raises(jetsync.ConflictingUseError):
                    error.batch.resend()
                self.meddled = True

        again = Meddler()
        js, proxy = proxied(again)
        js.publish_batch([(f"{stream.name}.warm", b"")])
        proxy.pause("to_server")
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(js.publish_batch, with_ids(stream), timeout=20)
            blocked(pool)
            proxy.cut()
            proxy.resume()
            assert call.result(20).size == 3
        assert again.meddled
        assert stream.info().state.messages == 4

    def test_a_plugin_is_not_asked_for_harm(self, proxied, stream):
        """
        The retry hook is not called if another attempt might store the batch twice.
        """
        again = RetryPlugin()
        js, proxy = proxied(again)
        self.lose_the_answer(js, proxy, stream, [(f"{stream.name}.A", b"1")] * 2, 3)
        assert again.errors == []
        assert stream.info().state.messages == 3

    def test_a_commit_whose_client_is_closed_is_unknown(self, victim, unique):
        """
        Closing the client while a commit waits leaves its outcome unknown.
        """
        with jetsync.connect(victim.url) as client:
            js = client.jetstream()
            batch_stream(js, unique)
            batch = js.atomic_batch()
            batch.add(f"{unique}.A")
            victim.pause()
            try:
                with ThreadPoolExecutor(1) as pool:
                    call = pool.submit(batch.commit, timeout=20)
                    blocked(pool)
                    client.close(timeout=0.2)
                    assert isinstance(call.exception(20), jetsync.BatchOutcomeUnknownError)
            finally:
                victim.resume()


class TestRetries:
    def test_a_batch_that_no_stream_takes_is_sent_three_times(self, js, unique):
        """
        If no stream takes the batch, it is sent three times by default.
        """
        with timed(0.5, 1.5), pytest.raises(jetsync.NoStreamResponseError) as caught:
            js.publish_batch([(f"{unique}.A", b"")])
        assert (caught.value.subject, caught.value.attempts) == (f"{unique}.A", 3)
        with pytest.raises(jetsync.NoStreamResponseError) as caught:
            js.publish_batch([(f"{unique}.A", b"")], retries=0)
        assert caught.value.attempts == 1
        with pytest.raises(jetsync.NoStreamResponseError) as caught:
            js.atomic_batch().add(f"{unique}.A")
        assert caught.value.attempts == 1

    def test_a_stream_that_appears_meanwhile(self, js, unique):
        """
        A later attempt is stored once the stream exists.
        """
        timer = threading.Timer(0.3, batch_stream, (js, unique))
        timer.start()
        assert js.publish_batch([(f"{unique}.A", b"")] * 3, retries=100).sequence == 3
        timer.join()
        js.delete_stream(unique)

    def test_the_stream_is_looked_up_until_a_leader_exists(self, js, stream, monkeypatch):
        """
        The lookup of the stream is repeated while the cluster has no leader.
        """
        context = type(js._context)
        answers, api = [jetsync.TemporarilyUnavailableError()] * 2, context.api

        def leaderless(self, endpoint, body, deadline, **about):
            if answers:
                raise answers.pop()
            return api(self, endpoint, body, deadline, **about)

        monkeypatch.setattr(context, "api", leaderless)
        with pytest.raises(jetsync.TemporarilyUnavailableError):
            js.publish_batch([(f"{stream.name}.A", b"")], retries=0)
        answers.append(jetsync.TemporarilyUnavailableError())
        assert js.publish_batch([(f"{stream.name}.A", b"")], retry_wait=0.01).size == 1

    def test_within_the_deadline(self, js, unique):
        """
        Retries end by the deadline of the call.
        """

        def attempt(pace):
            options = {"timeout": 0.6 * pace, "retries": 100, "retry_wait": 0.2 * pace}
            with timed(0.3 * pace, 0.8 * pace), pytest.raises(jetsync.NoStreamResponseError):
                js.publish_batch([(f"{unique}.A", b"")], **options)

        at_some_pace(attempt)

    def test_a_stream_that_goes_and_comes_back(self, js, stream):
        """
        If the server reports no responders for a known stream, the batch is sent again.
        """
        js.publish_batch([(f"{stream.name}.A", b"")])
        js.delete_stream(stream.name)
        timer = threading.Timer(0.3, batch_stream, (js, stream.name))
        timer.start()
        assert js.publish_batch([(f"{stream.name}.A", b"")] * 3, retries=100).sequence == 3
        timer.join()

    def test_a_plugin_decides(self, nats_server, unique):
        """
        The retry hook decides about every retry and gets the operation.
        """
        again = RetryPlugin(attempts=4, delay=0.01)
        with (
            jetsync.connect(nats_server.url, plugins=[again]) as client,
            pytest.raises(jetsync.NoStreamResponseError) as caught,
        ):
            client.jetstream().publish_batch([(f"{unique}.A", b"")] * 2, retries=0)
        assert caught.value.attempts == 5
        assert [error.attempts for error in again.errors] == [1, 2, 3, 4, 5]
        operation = again.operations[0]
        assert (operation.name, operation.kind, operation.size) == ("batch_commit", "atomic", 2)

    @pytest.mark.parametrize("expected", [7, 0])
    def test_a_plugin_is_not_asked_about_refusals(self, nats_server, js, stream, expected):
        """
        A refused batch is not sent again, and no plugin is called.
        """
        again = RetryPlugin()
        js.publish(f"{stream.name}.A")
        with jetsync.connect(nats_server.url, plugins=[again]) as client:
            message = OutboundMessage(
                f"{stream.name}.A", expect=jetsync.Expect(last_sequence=expected)
            )
            with pytest.raises(jetsync.WrongLastSequenceError):
                client.jetstream().publish_batch([message])
        assert again.errors == []

    def test_a_batch_that_the_server_gave_up(self, hasty, unique):
        """
        If a plugin asks for a retry, the whole batch is sent again.
        """
        again, recorder = RetryPlugin(), HookRecorder("jetsync_status")
        with jetsync.connect(hasty.url, plugins=[again, recorder]) as client:
            js = client.jetstream()
            stream = batch_stream(js, unique)
            batch = js.atomic_batch()
            batch.add(f"{unique}.A", b"1")
            recorder.wait_for("jetsync_status", timeout=20)
            assert batch.commit(f"{unique}.A", b"2").size == 2
            assert payloads(stream) == [b"1", b"2"]
            assert [type(error) for error in again.errors] == [jetsync.BatchIncompleteError]
