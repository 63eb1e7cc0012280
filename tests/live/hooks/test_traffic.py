"""
Hooks around the traffic of a real server: each way in which a publish or a fetch begins and ends.
"""

from __future__ import annotations

import statistics
import threading
import time

import attrs
import pytest

import jetsync
from helpers.waiting import eventually
from jetsync.consume.core import ConsumptionCore
from jetsync.events import PullOutcome
from jetsync.hookspecs import hookimpl
from jetsync.testing import HookRecorder


@pytest.fixture
def watched(nats_server, stream):
    """
    A factory of clients whose hooks are recorded; returns a context, a recorder and a consumer.
    """
    clients = []

    def watched(*hooks, plugins=(), **config):
        recorder = HookRecorder(*hooks)
        clients.append(jetsync.connect(nats_server.url, plugins=[recorder, *plugins]))
        stream.create_or_update_consumer("worker", **config)
        js = clients[-1].jetstream()
        worker = js.consumer(stream.name, "worker")
        recorder.clear()
        return js, recorder, worker

    yield watched
    for client in clients:
        client.close()


def fill(js, stream, count):
    """
    Publish *count* messages with their numbers as payload.
    """
    for number in range(count):
        js.publish(f"{stream.name}.A", b"%d" % number)


class TestPublish:
    def test_a_publish_is_one_operation_around_all_of_it(self, watched, stream):
        """
        The wrapper begins before the message is prepared and ends with the ack, in this thread.
        """
        js, recorder, _ = watched()
        ack = js.publish(f"{stream.name}.A", b"x", msg_id="1", timeout=7)
        assert recorder.names == [
            "jetsync_publish",
            "jetsync_shared_headers",
            "jetsync_prepare_message",
        ]
        operation = recorder.calls[0]["operation"]
        assert recorder.calls[1]["operation"] is operation
        assert (operation.subject, operation.messages, operation.window) == (
            f"{stream.name}.A",
            1,
            None,
        )
        assert (operation.timeout, operation.has_message_ids) == (7.0, True)
        assert (recorder.calls[0].result, recorder.calls[0].finished) == (ack, True)
        assert {call.thread for call in recorder} == {threading.current_thread().name}

    def test_messages_refused_locally_are_seen_too(self, watched):
        """
        The wrapper gets the error of a message that was rejected before it was sent.
        """
        js, recorder, _ = watched("jetsync_publish")
        with pytest.raises(jetsync.InvalidSubjectError) as caught:
            js.publish("a b")
        (call,) = recorder.of("jetsync_publish")
        assert (call.error, call.finished) == (caught.value, True)

    def test_each_failed_attempt_is_asked_about(self, watched, unique):
        """
        The hook gets the operation, error and attempt. If it returns None, the error is raised.
        """
        js, recorder, _ = watched("jetsync_retry")
        with pytest.raises(jetsync.NoStreamResponseError):
            js.publish(f"nobody.{unique}")
        (call,) = recorder.of("jetsync_retry")
        assert (call["operation"].subject, call["attempt"]) == (f"nobody.{unique}", 1)
        assert isinstance(call["error"], jetsync.NoStreamResponseError)

    def test_a_plugin_may_publish_while_it_prepares(self, watched, stream, js):
        """
        No lock is held while a hook runs, so it can publish with the same client.
        """

        class Journal:
            js = None

            @hookimpl
            def jetsync_prepare_message(self, message):
                if not message.subject.endswith(".journal"):
                    self.js.publish(message.subject + ".journal", message.data)

        journal = Journal()
        journal.js, _, _ = watched("jetsync_status", plugins=[journal])
        journal.js.publish(f"{stream.name}.A", b"1")
        journal.js.publish_many([(f"{stream.name}.A", b"2")])
        assert [stream.get_message(n).subject.rpartition(".")[2] for n in (1, 2, 3, 4)] == [
            "journal",
            "A",
            "journal",
            "A",
        ]

    def test_a_bulk_publish_prepares_each_message_inside_its_wrapper(self, watched, stream):
        """
        Each message is prepared once, in order, and the wrapper ends after the last ack.
        """
        js, recorder, _ = watched("jetsync_prepare_message", "jetsync_publish")
        js.publish_many(((f"{stream.name}.A", b"%d" % n) for n in range(20)), window=5)
        assert recorder.names == ["jetsync_publish"] + ["jetsync_prepare_message"] * 20
        shown = [call["message"].data for call in recorder.of("jetsync_prepare_message")]
        assert shown == [b"%d" % n for n in range(20)]
        assert recorder.calls[0].finished

    def test_wrappers_cost_next_to_nothing(self, nats_server, stream):
        """
        Bulk publishing with a plugin that does nothing is as fast as without.
        """

        class Idle:
            @hookimpl(wrapper=True)
            def jetsync_publish(self, operation):
                return (yield)

            @hookimpl
            def jetsync_status(self, event):
                pass

        messages = [(f"{stream.name}.A", b"0123456789")] * 10_000

        def seconds(js):
            # CPU time of this process, which does not depend on the load of the machine.
            start = time.process_time()
            js.publish_many(messages)
            return time.process_time() - start

        with (
            jetsync.connect(nats_server.url) as plain,
            jetsync.connect(nats_server.url, plugins=[Idle()]) as plugged,
        ):
            without, along = plain.jetstream(), plugged.jetstream()
            pairs = [(seconds(without), seconds(along)) for _ in range(15)]
        # Medians of alternating turns: on a busy machine a turn costs more than on a quiet one.
        typical_without, typical_along = map(statistics.median, zip(*pairs, strict=True))
        assert typical_without / typical_along >= 0.8, pairs


class TestFetch:
    def test_a_next_is_one_operation(self, watched, js, stream):
        """
        A `next` is one operation. Its wrapper ends before the call returns.
        """
        _, recorder, worker = watched("jetsync_fetch", "jetsync_message_received")
        fill(js, stream, 1)
        message = worker.next(12)
        call, shown = recorder.calls
        operation = call["operation"]
        assert (operation.name, operation.stream, operation.consumer) == (
            "next",
            stream.name,
            "worker",
        )
        assert (operation.max_messages, operation.expires, operation.heartbeat) == (1, 12.0, 5.0)
        assert (call.finished, call.error) == (True, None)
        assert shown["message"] is message

    def test_a_fetch_that_is_left_early(self, watched, js, stream):
        """
        The wrapper ends without an error. Plugins do not get messages that were not taken.
        """
        _, recorder, worker = watched("jetsync_fetch", "jetsync_message_received")
        fill(js, stream, 10)
        for taken, _ in enumerate(worker.fetch(10, expires=5), 1):
            if taken == 3:
                break
        (call,) = recorder.of("jetsync_fetch")
        assert (call.finished, call.error) == (True, None)
        assert [shown["message"].data for shown in recorder.of("jetsync_message_received")] == [
            b"0",
            b"1",
            b"2",
        ]

    @pytest.mark.parametrize("ordered", [False, True])
    def test_a_fetch_that_is_interrupted(self, watched, js, stream, monkeypatch, ordered):
        """
        If Ctrl-C ends the wait for a message, the wrapper gets it as the error.
        """
        context, recorder, worker = watched("jetsync_fetch")
        fill(js, stream, 2)
        if ordered:
            worker = context.stream(stream.name).ordered_consumer()
        messages = iter(worker.fetch(5, expires=20))
        assert [next(messages).data for _ in range(2)] == [b"0", b"1"]

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(ConsumptionCore, "wait_for_frame", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            next(messages)
        (call,) = recorder.of("jetsync_fetch")
        assert (call.error, call.finished) == (caught.value, True)

    def test_a_fetch_that_is_not_iterated(self, watched):
        """
        Closing a batch that was never iterated ends the wrapper.
        """
        _, recorder, worker = watched("jetsync_fetch")
        batch = worker.fetch(10, expires=5)
        (call,) = recorder.of("jetsync_fetch")
        assert not call.finished
        batch.close()
        assert (call.finished, call.error) == (True, None)

    def test_a_fetch_that_ends_with_an_error(self, watched, js, stream):
        """
        The wrapper gets the error after the messages, and the status is a separate event.
        """
        _, recorder, worker = watched("jetsync_fetch", "jetsync_status")
        fill(js, stream, 2)
        messages = iter(worker.fetch(5, expires=20))
        assert [next(messages).data for _ in range(2)] == [b"0", b"1"]
        stream.delete_consumer("worker")
        with pytest.raises(jetsync.ConsumerDeletedError) as caught:
            next(messages)
        (call,) = recorder.of("jetsync_fetch")
        assert (call.error, call.finished) == (caught.value, True)
        (status,) = recorder.of("jetsync_status")
        event = status["event"]
        assert (event.code, event.description, event.outcome) == (
            409,
            "Consumer Deleted",
            PullOutcome.FAILED,
        )

    def test_a_plugin_changes_and_vetoes_messages(self, watched, js, stream):
        """
        The caller gets a replaced message. A veto raises in the caller, and no ack is sent.
        """

        class Filter:
            name = "filter"

            @hookimpl
            def jetsync_message_received(self, message):
                if message.data == b"1":
                    raise ValueError("not this one")
                return jetsync.Message(
                    b"changed", message.raw_reply, None, message.data.upper(), message._acker
                )

        _, _, worker = watched("jetsync_status", plugins=[Filter()], ack_wait=30)
        fill(js, stream, 3)
        messages = iter(worker.fetch(3, expires=5))
        first = next(messages)
        assert first.subject == "changed"
        first.ack_sync()
        with pytest.raises(jetsync.PluginError) as caught:
            next(messages)
        assert (caught.value.plugin, caught.value.hook) == ("filter", "jetsync_message_received")
        # The vetoed message and the one after it were not taken, so both were given back.
        rest = stream.consumer("worker")
        again = [rest.next(5) for _ in range(2)]
        assert sorted(message.data for message in again) == [b"1", b"2"]
        assert {message.metadata.delivered for message in again} == {2}
        assert stream.consumer("worker").info().num_ack_pending == 2

    @pytest.mark.parametrize("policy", ["explicit", "all"])
    @pytest.mark.parametrize("how", ["next", "fetch", "iterate", "handler", "ack_many"])
    def test_a_replaced_message_acknowledges_the_original(self, watched, js, stream, policy, how):
        """
        A plugin replaces payload and headers, and the server gets the acks of the copies, however
        the program takes and acknowledges them.
        """
        taken, originals = [], []

        class Opening:
            @hookimpl
            def jetsync_message_received(self, message):
                originals.append(message)
                return message.replace(data=message.data.upper(), headers={"Opened": "yes"})

        _, _, worker = watched("jetsync_status", plugins=[Opening()], ack_policy=policy)
        js.publish_many([(f"{stream.name}.a", b"a"), (f"{stream.name}.a", b"b")])
        match how:
            case "next":
                for _ in range(2):
                    taken.append(worker.next(expires=30))
                    taken[-1].ack_sync()
            case "fetch":
                batch = worker.fetch(2, expires=30)
                taken += batch
                batch.ack()
            case "iterate":
                with worker.consume(ack="auto", stop_after=2) as messages:
                    taken += messages
            case "handler":
                auto = "auto" if policy == "explicit" else "explicit"
                run = lambda message: (taken.append(message), auto == "auto" or message.ack())  # noqa: E731
                with worker.consume(run, ack=auto, stop_after=2) as running:
                    assert running.wait(timeout=30)
            case _:
                taken += worker.fetch(2, expires=30)
                jetsync.ack_many(taken)
        assert [(each.data, each.headers["Opened"]) for each in taken] == [
            (b"A", "yes"),
            (b"B", "yes"),
        ]
        eventually(lambda: stream.consumer("worker").info().num_ack_pending == 0)
        assert originals[-1].is_acked
        assert stream.consumer("worker").info().num_redelivered == 0

    def test_a_plugin_sees_that_a_payload_was_left_out(self, watched, js, stream):
        """
        The messages of a consumer with `headers_only` have the sizes of their payloads.
        """
        _, recorder, worker = watched("jetsync_message_received", headers_only=True)
        js.publish_many([(f"{stream.name}.a", data) for data in (b"abc", b"")])
        for message in worker.fetch(2, expires=30):
            message.ack()
        seen = [call["message"] for call in recorder.of("jetsync_message_received")]
        assert [(each.data, each.omitted_bytes) for each in seen] == [(b"", 3), (b"", None)]

    @pytest.mark.parametrize("how", ["ack", "ack_sync", "term"])
    def test_a_plugin_ends_no_message_with_cumulative_acks(self, watched, js, stream, how):
        """
        With ``ack_policy="all"``, a hook cannot term a message, but the caller can acknowledge it.
        """
        refused = []

        class Ending:
            @hookimpl
            def jetsync_message_received(self, message):
                message.in_progress()
                try:
                    getattr(message, how)()
                except jetsync.JetSyncError as error:
                    refused.append(error)

        _, _, worker = watched("jetsync_status", plugins=[Ending()], ack_policy="all")
        fill(js, stream, 2)
        first, second = worker.fetch(2, expires=30)
        assert [type(error) for error in refused] == [jetsync.ConflictingUseError] * 2
        assert stream.consumer("worker").info().num_ack_pending == 2
        second.ack_sync()
        assert (first.is_acked, second.is_acked) == (False, True)
        assert stream.consumer("worker").info().num_ack_pending == 0

    def test_a_veto_with_cumulative_acks_ends_a_consumption(self, watched, js, stream):
        """
        The error is raised once, and messages that were not taken are given back.
        """

        class Filter:
            @hookimpl
            def jetsync_message_received(self, message):
                if message.data == b"1":
                    raise ValueError("not this one")

        _, _, worker = watched("jetsync_status", plugins=[Filter()], ack_policy="all")
        fill(js, stream, 4)
        with worker.consume() as messages:
            next(messages).ack_sync()
            with pytest.raises(jetsync.PluginError):
                next(messages)
            assert next(messages, None) is None
            assert isinstance(messages.error, jetsync.PluginError)
        again = stream.consumer("worker").fetch(3, expires=30)
        assert sorted(message.data for message in again) == [b"1", b"2", b"3"]

    def test_plugins_get_a_limit_marker_first(self, watched, js, stream):
        """
        The hook gets the marker of an expired message and the reason.
        """
        stream.update(allow_msg_ttl=True, subject_delete_marker_ttl=5, max_msgs_per_subject=1)
        _, recorder, worker = watched("jetsync_ttl_marker", "jetsync_message_received")
        js.publish(f"{stream.name}.A", b"short", ttl=1)
        marker = eventually(lambda: (found := worker.next(5)) and found.marker and found)
        assert (marker.subject, marker.data) == (f"{stream.name}.A", b"")
        (told,) = recorder.of("jetsync_ttl_marker")
        assert (told["message"], told["reason"]) == (marker, jetsync.MarkerReason.MAX_AGE)
        assert recorder.names[-2:] == ["jetsync_ttl_marker", "jetsync_message_received"]

    def test_the_later_plugin_gets_the_final_message(self, watched, js, stream):
        """
        The plugin that runs later gets the final message.
        """

        class Route:
            @hookimpl(tryfirst=True)
            def jetsync_prepare_message(self, message):
                return attrs.evolve(message, subject=f"{stream.name}.routed")

        client, recorder, _ = watched("jetsync_prepare_message", plugins=[Route()])
        client.publish(f"{stream.name}.A", b"x")
        (call,) = recorder.calls
        assert call["message"].subject == f"{stream.name}.routed"
        assert stream.get_message(1).subject == f"{stream.name}.routed"


class Changing:
    """
    A plugin that changes messages, and refuses empty ones.
    """

    @hookimpl
    def jetsync_prepare_message(self, message):
        message.subject += ".prepared"
        if not message.data:
            raise ValueError("empty")

    @hookimpl
    def jetsync_message_received(self, message):
        if not message.data:
            raise ValueError("empty")
        return message.replace(data=message.data + b" received")


class TestCoreNats:
    def test_a_library_passes_messages_through_the_hooks(self, nats_server):
        """
        prepare_message and receive_message return what the plugins make of a message, or raise.
        """
        with jetsync.connect(nats_server.url, plugins=[Changing()]) as client:
            message = jetsync.Message(b"a", b"", None, b"x")

            assert (
                client.prepare_message(jetsync.OutboundMessage("a", b"x")).subject == "a.prepared"
            )
            assert client.receive_message(message).data == b"x received"
            with pytest.raises(jetsync.PluginError, match="empty"):
                client.prepare_message(jetsync.OutboundMessage("a"))
            with pytest.raises(jetsync.PluginError, match="empty"):
                client.receive_message(jetsync.Message(b"a", b"", None, b""))

    def test_without_plugins_a_message_stays(self, nats_server):
        """
        Without plugins, both return the given object.
        """
        with jetsync.connect(nats_server.url) as client:
            sent, received = jetsync.OutboundMessage("a"), jetsync.Message(b"a", b"", None, b"")

            assert client.prepare_message(sent) is sent
            assert client.receive_message(received) is received
