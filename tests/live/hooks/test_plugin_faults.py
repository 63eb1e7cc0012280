"""
Plugins that fail or return invalid values. They cannot hide that a message was sent or stored, pass
a message around other plugins, or outlive their client.
"""

from __future__ import annotations

import threading

import pytest

import jetsync
from helpers.waiting import eventually, timed
from jetsync import hookimpl
from jetsync.testing import HookRecorder


class Contract:
    """
    Reject all messages whose headers it can read.
    """

    def __init__(self):
        self.seen = []

    @hookimpl
    def jetsync_prepare_message(self, message):
        self.seen.append(message)
        if message.headers is None or hasattr(message.headers, "items"):
            raise ValueError("never")


class BrokenRetry:
    """
    Raise in `jetsync_retry`.
    """

    def __init__(self):
        self.asked = []

    @hookimpl
    def jetsync_retry(self, error):
        self.asked.append(error)
        raise LookupError("no idea")


class Broken:
    """
    Raise at the start or the end of each publish.
    """

    def __init__(self, *, at_end=False):
        self.at_end = at_end

    @hookimpl(wrapper=True)
    def jetsync_publish(self):
        if not self.at_end:
            raise OSError("no more")
        yield
        raise OSError("no more")


def outcome(call):
    """
    Return the error of a publish, or its only failure.
    """
    with pytest.raises(jetsync.JetSyncError) as caught:
        call()
    if isinstance(caught.value, jetsync.PublishManyError):
        (failure,) = caught.value.report.failures
        return failure.error
    return caught.value


class TestHeaders:
    @pytest.mark.parametrize("make", [list, iter])
    def test_pairs_pass_no_plugin_by(self, nats_server, stream, make):
        """
        Headers of a wrong type are rejected on every path, before plugins get the message.
        """
        stream.update(allow_atomic=True)
        contract, subject = Contract(), f"{stream.name}.A"

        def bad():
            return make([("A", "b")])

        with jetsync.connect(nats_server.url, plugins=[contract]) as client:
            js = client.jetstream()
            with js.publisher() as publisher:
                for call in (
                    lambda: js.publish(subject, b"bad", headers=bad()),
                    lambda: js.publish_many([(subject, b"bad", bad())]),
                    lambda: js.publish_many([jetsync.OutboundMessage(subject, b"", bad())]),
                    lambda: publisher.publish(subject, b"bad", headers=bad()),
                    lambda: js.publish_batch([(subject, b"bad", bad())]),
                ):
                    assert isinstance(outcome(call), jetsync.InvalidTypeError)
        assert contract.seen == []
        assert stream.info().state.messages == 0

    def test_headers_that_a_plugin_returns_are_checked_too(self, nats_server, stream):
        """
        A plugin cannot pass headers of a wrong type to the next one.
        """

        class Pairs:
            @hookimpl(tryfirst=True)
            def jetsync_prepare_message(self, message):
                message.headers = [("A", "b")]

        contract = Contract()
        with (
            jetsync.connect(nats_server.url, plugins=[contract, Pairs()]) as client,
            pytest.raises(jetsync.InvalidTypeError),
        ):
            client.jetstream().publish(f"{stream.name}.A", b"bad")
        assert contract.seen == []

    @pytest.mark.parametrize("subject", [b"bytes", None, 5])
    def test_a_subject_that_is_no_text_is_the_callers_mistake(self, nats_server, stream, subject):
        """
        A subject that is not a string is rejected before plugins get the message.
        """
        contract = Contract()
        with (
            jetsync.connect(nats_server.url, plugins=[contract]) as client,
            client.jetstream().publisher() as publisher,
        ):
            js = client.jetstream()
            for call in (
                lambda: js.publish(subject, b""),
                lambda: js.publish_many([(subject, b"")]),
                lambda: publisher.publish(subject, b""),
                lambda: js.publish_batch([(subject, b"")]),
            ):
                assert isinstance(outcome(call), jetsync.InvalidTypeError)
        assert contract.seen == []

    def test_without_plugins_they_are_refused_as_well(self, js, client, stream):
        """
        Without plugins, the same messages are rejected.
        """
        subject, pairs = f"{stream.name}.A", [("A", "b")]
        for call in (
            lambda: js.publish(subject, b"", headers=pairs),
            lambda: js.publish_many([(subject, b"", pairs)]),
            lambda: client.publish(subject, b"", headers=pairs),
        ):
            assert isinstance(outcome(call), jetsync.InvalidTypeError)
        js.publish(subject, b"", headers=jetsync.Headers(pairs))
        assert stream.get_message(1).headers.items() == pairs


class TestRetry:
    def test_an_unknown_outcome_stays_one(self, proxied, stream):
        """
        The error of a publish says that it may be stored, and the plugin's failure is the cause.
        """
        broken = BrokenRetry()
        js, proxy = proxied(broken)
        proxy.cut_after(to_client=0, reset=True)

        error = outcome(lambda: js.publish(f"{stream.name}.A", b"x", msg_id="1", timeout=30))

        assert type(error) is jetsync.PublishOutcomeUnknownError
        assert isinstance(error.__cause__, jetsync.PluginError)
        assert error in broken.asked
        assert stream.info().state.messages == 1

    def test_of_a_window(self, proxied, stream):
        """
        The same holds for one message of a bulk publish.
        """
        broken = BrokenRetry()
        js, proxy = proxied(broken)
        proxy.cut_after(to_client=0, reset=True)
        message = jetsync.OutboundMessage(f"{stream.name}.A", b"x", msg_id="1")

        error = outcome(lambda: js.publish_many([message], ack_timeout=30))

        assert type(error) is jetsync.PublishOutcomeUnknownError
        assert isinstance(error.__cause__, jetsync.PluginError)

    def test_a_plugin_may_send_an_atomic_batch_again(self, proxied, stream):
        """
        The same holds for an atomic batch, which can be sent again.
        """
        stream.update(allow_atomic=True)
        broken = BrokenRetry()
        js, proxy = proxied(broken)
        batch = js.atomic_batch(timeout=30)
        batch.add(f"{stream.name}.A", b"1", msg_id="1")
        proxy.cut_after(to_client=0, reset=True)

        error = outcome(lambda: batch.commit(f"{stream.name}.A", b"2", msg_id="2"))

        assert type(error) is jetsync.BatchOutcomeUnknownError
        assert isinstance(error.__cause__, jetsync.PluginError)
        assert error.batch is batch

    def test_where_nothing_is_stored(self, nats_server, unique):
        """
        The plugin's failure is the error.
        """
        with jetsync.connect(nats_server.url, plugins=[BrokenRetry()]) as client:
            js = client.jetstream()
            for call in (
                lambda: js.publish(unique, b"x"),
                lambda: js.publish_many([(unique, b"x")]),
            ):
                assert isinstance(outcome(call), jetsync.PluginError)

    def test_a_wait_beyond_the_deadline_is_not_waited_for(self, nats_server, unique):
        """
        If no time is left for another attempt, the call ends at once.
        """

        class Patient:
            @hookimpl
            def jetsync_retry(self):
                return 60.0

        with (
            jetsync.connect(nats_server.url, plugins=[Patient]) as client,
            timed(0.0, 10.0),
            pytest.raises(jetsync.NoStreamResponseError),
        ):
            client.jetstream().publish(unique, b"x", timeout=30)


class TestBulk:
    def test_a_wrapper_that_raises_before_the_yield(self, nats_server, stream):
        """
        Nothing is sent, and the report says that the messages were not read.
        """
        with (
            jetsync.connect(nats_server.url, plugins=[Broken()]) as client,
            pytest.raises(jetsync.PluginError) as caught,
        ):
            client.jetstream().publish_many([(f"{stream.name}.A", b"")] * 3)
        report = caught.value.report
        assert (report.count, report.failures, report.exhausted) == (0, (), False)
        assert stream.info().state.messages == 0

    def test_a_wrapper_that_raises_after_all_messages_were_stored(self, nats_server, stream):
        """
        If no message failed, the error is the PluginError, with the report.
        """
        with (
            jetsync.connect(nats_server.url, plugins=[Broken(at_end=True)]) as client,
            pytest.raises(jetsync.PluginError) as caught,
        ):
            client.jetstream().publish_many([(f"{stream.name}.A", b"")] * 250, window=100)
        report = caught.value.report
        assert (report.count, report.failures, report.exhausted) == (250, (), True)
        assert stream.info().state.messages == 250

    def test_a_wrapper_that_raises_after_some_messages_failed(self, nats_server, stream):
        """
        The caller learns which messages failed, and the cause is the PluginError.
        """

        class Hides:
            @hookimpl(wrapper=True)
            def jetsync_publish(self):
                try:
                    yield
                except jetsync.PublishManyError:
                    raise OSError("no more") from OSError("a defect")

        subject = f"{stream.name}.A"
        with (
            jetsync.connect(nats_server.url, plugins=[Hides]) as client,
            pytest.raises(jetsync.PublishManyError) as caught,
        ):
            client.jetstream().publish_many([(subject, b""), ("bad subject", b"")])
        report = caught.value.report
        assert (report.count, [failure.index for failure in report.failures]) == (1, [1])
        assert isinstance(caught.value.__cause__, jetsync.PluginError)

    def test_a_wrapper_may_replace_the_outcome(self, nats_server, stream):
        """
        The call returns the report that a wrapper returns in place of the error.
        """

        class Tolerant:
            @hookimpl(wrapper=True)
            def jetsync_publish(self):
                try:
                    return (yield)
                except jetsync.PublishManyError as error:
                    return error.report

        with jetsync.connect(nats_server.url, plugins=[Tolerant]) as client:
            report = client.jetstream().publish_many([("bad subject", b"")])
        assert [failure.index for failure in report.failures] == [0]


class TestFetch:
    @pytest.mark.parametrize("where", [0, 4, 9])
    def test_a_refused_message_without_acks(self, nats_server, js, stream, where):
        """
        The server does not redeliver without acks, so iterating again yields the next messages.
        """

        class Veto:
            @hookimpl
            def jetsync_message_received(self, message):
                if message.data == b"%d" % where:
                    raise ValueError("not this one")

        js.publish_many([(f"{stream.name}.A", b"%d" % number) for number in range(10)])
        stream.create_consumer("n", ack_policy="none")
        taken = []
        with jetsync.connect(nats_server.url, plugins=[Veto()]) as client:
            batch = client.jetstream().consumer(stream.name, "n").fetch(10, expires=10)
            with pytest.raises(jetsync.PluginError):
                # Unlike a comprehension, this keeps the messages from before the error.
                taken.extend(message.data for message in batch)
            taken.extend(message.data for message in batch)
            assert list(batch) == []
        assert taken == [b"%d" % number for number in range(10) if number != where]

    def test_a_batch_that_is_closed_after_a_veto_yields_no_more(self, nats_server, js, stream):
        """
        A batch that is closed after a veto yields no more messages.
        """

        class Veto:
            @hookimpl
            def jetsync_message_received(self):
                raise ValueError("none")

        js.publish_many([(f"{stream.name}.A", b"")] * 3)
        stream.create_consumer("n", ack_policy="none")
        with jetsync.connect(nats_server.url, plugins=[Veto()]) as client:
            batch = client.jetstream().consumer(stream.name, "n").fetch(3, expires=10)
            with batch, pytest.raises(jetsync.PluginError):
                next(iter(batch))
            assert list(batch) == []


class TestConnect:
    def test_a_failed_connect_is_a_closed_event_with_the_error(self):
        """
        If connecting fails, plugins get a closed event with the error, and no thread is left.
        """
        before = threading.active_count()
        recorder = HookRecorder("jetsync_status")
        with pytest.raises(jetsync.ConnectError) as caught:
            jetsync.connect("nats://127.0.0.1:1", plugins=[recorder], connect_timeout=10)
        (event,) = [call["event"] for call in recorder]
        assert isinstance(event, jetsync.ClosedEvent)
        assert event.error is caught.value
        eventually(lambda: threading.active_count() <= before)


class TestPublisher:
    @pytest.mark.parametrize("plugins", [[], [HookRecorder]])
    def test_its_thread_ends_with_the_client(self, nats_server, stream, plugins):
        """
        The thread ends with a client that was closed or dropped, and open wrappers are left.
        """

        def threads():
            return {t for t in threading.enumerate() if t.name == "jetsync-publisher"}

        before = threads()
        recorders = [make("jetsync_publish") for make in plugins]
        with jetsync.connect(nats_server.url, plugins=recorders) as client:
            kept = client.jetstream().publisher()
            for publisher in (kept, client.jetstream().publisher()):
                publisher.publish(f"{stream.name}.A", b"").result(30)
            del publisher
            mine = threads() - before
            assert len(mine) == 2
        for thread in mine:
            thread.join(30)
        assert not any(thread.is_alive() for thread in mine)
        for recorder in recorders:
            results = [call.result for call in recorder.of("jetsync_publish")]
            assert [result.acknowledged for result in results] == [1, 1]
        with pytest.raises(jetsync.ConnectionClosedError):
            kept.publish(f"{stream.name}.A", b"")
        kept.close()
