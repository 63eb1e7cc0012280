"""
Atomic batches when servers or connections fail, or the timeout passes.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.connections import client_of, redirect
from helpers.retrying import RetryPlugin
from helpers.streams import batch_stream, payloads
from helpers.waiting import at_some_pace, blocked, eventually, timed
from jetsync.devserver import DevServer
from jetsync.events import BatchAbandonedEvent, PermissionDeniedEvent
from jetsync.testing import CutProxy, HookRecorder

HASTY = {"limits": {"batch": {"timeout": "1s"}}}
"""Configuration of JetStream in a server that drops batches after an idle second."""
OPEN_BATCHES = 50
"""Batches that servers keep for one stream (ADR-50)."""


def events_of(recorder, kind):
    """
    Return the events of a class that a plugin got.
    """
    found = [call["event"] for call in recorder.of("jetsync_status")]
    return [event for event in found if isinstance(event, kind)]


class TestDropped:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.12.8", None])
    def test_plugins_and_the_next_add_get_the_reason(self, version, unique):
        """
        Plugins get an event when the server drops the batch, and its next call raises the reason.
        """
        recorder = HookRecorder("jetsync_status")
        with (
            DevServer(version, config={"jetstream": HASTY}) as server,
            jetsync.connect(server.url, plugins=[recorder]) as client,
        ):
            js = client.jetstream()
            stream = batch_stream(js, unique)
            batch = js.atomic_batch()
            # Servers before 2.14 get the first message with the second one.
            for data in (b"1", b"2"):
                batch.add(f"{unique}.A", data)
            (event,) = eventually(lambda: events_of(recorder, BatchAbandonedEvent), timeout=20)
            assert (event.stream, event.batch_id, event.reason) == (unique, batch.id, "timeout")
            with pytest.raises(jetsync.BatchIncompleteError, match="timeout") as caught:
                batch.add(f"{unique}.A", b"3")
            assert (caught.value.err_code, caught.value.stream) == (10176, unique)
            with pytest.raises(jetsync.BatchClosedError, match="timeout"):
                batch.commit()
            assert (batch.size, payloads(stream)) == (2, [])

    def test_a_commit_raises_the_reason(self, hasty, unique):
        """
        The commit of a dropped batch raises the reason, and the whole batch can be sent again.
        """
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(hasty.url, plugins=[recorder]) as client:
            js = client.jetstream()
            stream = batch_stream(js, unique)
            batch = js.atomic_batch()
            batch.add(f"{unique}.A", b"1")
            recorder.wait_for("jetsync_status", timeout=20)
            with pytest.raises(jetsync.BatchIncompleteError, match="timeout, which is 10 s"):
                batch.commit(f"{unique}.A", b"2")
            assert payloads(stream) == []
            assert batch.resend().size == 2
            assert payloads(stream) == [b"1", b"2"]

    def test_another_batch_of_the_stream_goes_on(self, unique):
        """
        If the server drops one batch, other batches on its stream continue. There is one event.
        """

        def attempt(pace):
            recorder = HookRecorder("jetsync_status")
            config = {"jetstream": {"limits": {"batch": {"timeout": f"{pace}s"}}}}
            with (
                DevServer(config=config) as server,
                jetsync.connect(server.url, plugins=[recorder]) as client,
            ):
                js = client.jetstream()
                batch_stream(js, unique)
                idle, busy = js.atomic_batch(), js.atomic_batch(ack_every=1)
                idle.add(f"{unique}.A")
                ended = []
                while not ended:
                    busy.add(f"{unique}.A")
                    with contextlib.suppress(TimeoutError):
                        ended = recorder.wait_for("jetsync_status", timeout=0.1)
                assert busy.commit().size > 1
                dropped = events_of(recorder, BatchAbandonedEvent)
                assert [event.batch_id for event in dropped] == [idle.id]

        at_some_pace(attempt)

    def test_a_user_who_may_not_read_advisories(self, unique):
        """
        A client asks for advisories once. Without them, an error says when servers drop batches.
        """
        users = [
            {"user": "u", "password": "p", "permissions": {"subscribe": {"deny": "$JS.EVENT.>"}}},
            {"user": "watcher", "password": "p"},
        ]
        config = {"authorization": {"timeout": 30, "users": users}, "jetstream": HASTY}
        recorder = HookRecorder("jetsync_status")
        with (
            DevServer(config=config) as server,
            jetsync.connect(server.url, user="u", password="p", plugins=[recorder]) as client,
            jetsync.connect(server.url, user="watcher", password="p") as watcher,
            watcher.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.*") as advisories,
        ):
            watcher.flush()
            js = client.jetstream()
            stream = batch_stream(js, unique)
            for _ in range(5):
                js.atomic_batch().commit(f"{unique}.A")
            eventually(lambda: events_of(recorder, PermissionDeniedEvent))
            batch = js.atomic_batch()
            batch.add(f"{unique}.A", b"1")
            assert advisories.next(timeout=20)
            with pytest.raises(jetsync.BatchIncompleteError, match="10 s without"):
                batch.commit()
            assert stream.info().state.messages == 5
            assert len(events_of(recorder, PermissionDeniedEvent)) == 1

    @pytest.mark.clause("AB-37", "AB-39")
    @pytest.mark.parametrize("version", [pytest.param("2.12.8", marks=pytest.mark.versions), None])
    @pytest.mark.parametrize("at_once", [True, False])
    def test_a_refused_batch_is_reported(self, version, at_once, unique):
        """
        Plugins get an event about each batch that the server drops, also after its refusal.
        """
        recorder = HookRecorder("jetsync_status")
        limits = {"batch": {"max_msgs": 3}}
        with (
            DevServer(version, config={"jetstream": {"limits": limits}}) as server,
            jetsync.connect(server.url, plugins=[recorder]) as client,
            client.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.*") as advisories,
        ):
            js = client.jetstream()
            stream = batch_stream(js, unique)
            messages = [(f"{unique}.A", b"%d" % number) for number in range(5)]

            def one_by_one():
                with js.atomic_batch() as batch:
                    for message in messages:
                        batch.add(*message)

            with pytest.raises(jetsync.JetSyncError):
                js.publish_batch(messages) if at_once else one_by_one()
            wanted = advisories.next(timeout=20).json()
            assert wanted["type"] == "io.nats.jetstream.advisory.v1.stream_batch_abandoned"
            (event,) = eventually(lambda: events_of(recorder, BatchAbandonedEvent), timeout=20)
            assert event == BatchAbandonedEvent(
                stream=unique, batch_id=wanted["batch"], reason="large"
            )
            assert payloads(stream) == []

    @pytest.mark.clause("AB-41")
    @pytest.mark.parametrize("version", [pytest.param("2.14.6", marks=pytest.mark.versions), None])
    def test_a_batch_that_needs_another_api_level_is_reported(self, version, unique):
        """
        Plugins get an event with the reason ``unsupported`` if a message needs a newer server.
        """
        recorder = HookRecorder("jetsync_status")
        with (
            DevServer(version) as server,
            jetsync.connect(server.url, plugins=[recorder]) as client,
        ):
            js = client.jetstream()
            stream = batch_stream(js, unique)
            needs = jetsync.OutboundMessage(
                f"{unique}.A", b"2", {"Nats-Required-Api-Level": "1000"}
            )
            with pytest.raises(jetsync.JetSyncError):
                js.publish_batch([(f"{unique}.A", b"1"), needs, (f"{unique}.A", b"3")])
            (event,) = eventually(lambda: events_of(recorder, BatchAbandonedEvent), timeout=20)
            assert (event.stream, event.reason) == (unique, "unsupported")
            assert payloads(stream) == []

    def test_a_batch_that_was_discarded_is_not_reported(self, nats_server, unique):
        """
        There is no event about a batch that the program has discarded.
        """
        recorder = HookRecorder("jetsync_status")
        with (
            jetsync.connect(nats_server.url, plugins=[recorder]) as client,
            client.subscribe(f"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{unique}") as advisories,
        ):
            js = client.jetstream()
            batch_stream(js, unique)
            batch = js.atomic_batch()
            batch.add(f"{unique}.A")
            batch.discard()
            assert advisories.next(timeout=20)
            client.flush()
            js.delete_stream(unique)
        assert events_of(recorder, BatchAbandonedEvent) == []

    @pytest.mark.parametrize("ack_every", [0, 1])
    def test_a_batch_with_a_lost_message_stores_nothing(
        self, client, stream, monkeypatch, ack_every
    ):
        """
        If one message is lost, the server stores nothing of the batch.
        """
        js = client.jetstream()
        batch = js.atomic_batch(ack_every=ack_every)
        batch.add(f"{stream.name}.A", b"1")
        batch._attempt.stop_staging()
        # The next message has the number after this one.
        batch._attempt.engine.staged(2)
        if ack_every:
            with pytest.raises(jetsync.BatchIncompleteError) as caught:
                batch.add(f"{stream.name}.A", b"3")
            assert caught.value.err_code == 10176
        else:
            batch.add(f"{stream.name}.A", b"3")
            with pytest.raises(jetsync.BatchIncompleteError):
                batch.commit()
        assert payloads(stream) == []


class TestSlots:
    def test_the_51st_open_batch_is_refused_until_another_ends(self, js, stream):
        """
        The server refuses the 51st open batch until another one is committed or discarded.
        """
        batches = [js.atomic_batch() for _ in range(OPEN_BATCHES)]
        for batch in batches:
            batch.add(f"{stream.name}.A", b"1")

        def one_more():
            batch = js.atomic_batch()
            batch.add(f"{stream.name}.A", b"2")
            return batch

        with pytest.raises(jetsync.TooManyInflightError) as caught:
            one_more()
        assert (caught.value.code, caught.value.err_code) == (429, 10210)
        batches.pop().commit()
        batches.append(one_more())
        with pytest.raises(jetsync.TooManyInflightError):
            one_more()
        for batch in batches:
            batch.discard()
        batches = [one_more() for _ in range(OPEN_BATCHES)]
        for batch in batches:
            batch.discard()
        assert payloads(stream) == [b"1"]

    @pytest.mark.parametrize("end", [jetsync.Client.close, jetsync.Client.drain])
    def test_the_end_of_a_client_frees_the_places_of_its_batches(
        self, nats_server, js, stream, end
    ):
        """
        A client that closes or drains discards its open batches, so the server frees their places.
        """

        def fill(context):
            batches = [context.atomic_batch() for _ in range(OPEN_BATCHES)]
            for batch in batches:
                batch.add(f"{stream.name}.A", b"1")
            return batches

        with jetsync.connect(nats_server.url) as client:
            batches = fill(client.jetstream())
            end(client)
            with pytest.raises(jetsync.ConnectionClosedError):
                batches[0].commit()
        for batch in fill(js):
            batch.discard()
        assert payloads(stream) == []

    @pytest.mark.versions
    def test_fifty_on_an_older_server(self, server_for, unique):
        """
        Servers before 2.14 refuse the 51st open batch as incomplete.
        """
        with jetsync.connect(server_for("2.12.8").url) as client:
            js = client.jetstream()
            stream = batch_stream(js, unique)
            batches = [js.atomic_batch() for _ in range(OPEN_BATCHES + 1)]
            for batch in batches:
                batch.add(f"{unique}.A", b"1")
            for batch in batches[:-1]:
                batch.add(f"{unique}.A", b"2")
            with pytest.raises(jetsync.BatchIncompleteError):
                batches[-1].add(f"{unique}.A", b"2")
            batches[0].discard()
            js.publish_batch([(f"{unique}.A", b"3")] * 2)
            assert payloads(stream) == [b"3", b"3"]
            for batch in batches[1:]:
                batch.discard()
            js.delete_stream(unique)

    def test_a_place_that_becomes_free(self, nats_server, js, stream):
        """
        A plugin can retry a batch in one call until the server has room for it.
        """
        batches = [js.atomic_batch() for _ in range(OPEN_BATCHES)]
        for batch in batches:
            batch.add(f"{stream.name}.A", b"1")
        again = RetryPlugin(attempts=1000, delay=0.02)
        with jetsync.connect(nats_server.url, plugins=[again]) as client:
            timer = threading.Timer(0.1, batches[0].discard)
            timer.start()
            messages = [(f"{stream.name}.A", b"2")] * 2
            assert client.jetstream().publish_batch(messages).size == 2
            timer.join()
        assert {type(error) for error in again.errors} == {jetsync.TooManyInflightError}
        for batch in batches:
            batch.discard()

    def test_an_add_without_an_answer(self, proxied, js, stream):
        """
        A batch whose add timed out frees its place on the server.
        """
        far, proxy = proxied()
        far.publish_batch([(f"{stream.name}.A", b"0")])
        proxy.pause("to_client")
        batch = far.atomic_batch(timeout=0.2)
        with timed(0.2, 1.0), pytest.raises(jetsync.RequestTimeoutError):
            batch.add(f"{stream.name}.A", b"1")
        with pytest.raises(jetsync.BatchClosedError):
            batch.commit()
        batches = []

        def one_more():
            with contextlib.suppress(jetsync.TooManyInflightError):
                batch = js.atomic_batch()
                batch.add(f"{stream.name}.A", b"2")
                batches.append(batch)
            return len(batches) == OPEN_BATCHES

        # The slot is freed over another connection. Otherwise the server frees it after ten
        # seconds.
        eventually(one_more, 2)
        for batch in batches:
            batch.discard()
        proxy.resume()
        assert payloads(stream) == [b"0"]


class TestConnection:
    def test_a_restart_in_the_middle_of_a_batch_stores_nothing(self, victim, fragile, unique):
        """
        None of the batch's messages is stored. Its next use closes it, and jetsync never sends it
        again.
        """
        stream = batch_stream(fragile, unique, storage="file")
        batch = fragile.atomic_batch()
        for number in range(5):
            batch.add(f"{unique}.A", b"%d" % number)
        victim.restart()
        with timed(0.0, 5.0), pytest.raises(jetsync.ConnectionLostError):
            batch.commit(timeout=20)
        with pytest.raises(jetsync.BatchClosedError):
            batch.add(f"{unique}.A")
        eventually(lambda: fragile.account_info(timeout=20))
        assert payloads(stream) == []
        assert batch.resend(timeout=20).size == 5
        assert payloads(stream) == [b"0", b"1", b"2", b"3", b"4"]
        fragile.delete_stream(unique)

    def test_a_cut_between_two_adds(self, proxied, stream):
        """
        After a reconnect, the next add ends the batch at once.
        """
        js, proxy = proxied()
        batch = js.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        proxy.cut()
        eventually(lambda: client_of(js).statistics().reconnects == 1)
        with timed(0.0, 0.5), pytest.raises(jetsync.ConnectionLostError):
            batch.add(f"{stream.name}.A", b"2")
        with js.atomic_batch() as batch:
            batch.add(f"{stream.name}.A", b"3")
        assert payloads(stream) == [b"3"]

    def test_a_batch_begins_without_a_connection(self, proxied, stream):
        """
        The first add and a batch in one call wait for a connection until their deadline.
        """
        js, proxy = proxied()
        js.publish_batch([(f"{stream.name}.A", b"0")])
        proxy.refuse()
        proxy.cut()
        eventually(lambda: not client_of(js).is_connected)
        for call in (
            lambda: js.atomic_batch().add(f"{stream.name}.A", timeout=0.3),
            lambda: js.publish_batch([(f"{stream.name}.A", b"")], timeout=0.3),
        ):
            with timed(0.3, 1.0), pytest.raises(jetsync.DisconnectedError):
                call()
        timer = threading.Timer(0.2, proxy.accept)
        timer.start()
        batch = js.atomic_batch(timeout=30)
        batch.add(f"{stream.name}.A", b"1")
        batch.commit()
        timer.join()
        assert payloads(stream) == [b"0", b"1"]

    def test_another_server_is_asked_again(self, server_for, nats_server, unique):
        """
        After a reconnect to a server without support for batches, none is sent.
        """
        old = server_for("2.11.11")
        with (
            jetsync.connect(old.url) as direct,
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, reconnect_wait=0.05) as client,
        ):
            behind = direct.jetstream().create_stream(
                unique, subjects=[f"{unique}.>"], storage="memory"
            )
            js = client.jetstream()
            batch_stream(js, unique)
            batch = js.atomic_batch()
            batch.add(f"{unique}.A")
            js.publish_batch([(f"{unique}.A", b"")])
            redirect(proxy, old.port)
            proxy.cut()
            eventually(lambda: client.server.version == "2.11.11")
            with pytest.raises(jetsync.NotSupportedError):
                js.publish_batch([(f"{unique}.A", b"")])
            with pytest.raises(jetsync.ConnectionLostError):
                batch.add(f"{unique}.A")
            batch.discard()
            assert behind.info().state.last_seq == 0


@pytest.fixture
def patient(victim):
    """
    JetStream on the server that tests may pause, with a long timeout.
    """
    with jetsync.connect(victim.url, reconnect_wait=0.05) as client:
        yield client.jetstream(timeout=60)


class TestDeadlines:
    def test_every_call_of_a_batch_ends_by_its_deadline(self, victim, fragile, patient, unique):
        """
        Every call ends by its deadline, and its error states what is known.
        """
        batch_stream(fragile, unique)
        fresh, batch = patient.atomic_batch(), fragile.atomic_batch()
        batch.add(f"{unique}.A")
        started = patient.atomic_batch(ack_every=1)
        started.add(f"{unique}.A")
        victim.pause()
        try:
            for call, error in (
                (lambda: batch.commit(timeout=0.2), jetsync.BatchOutcomeUnknownError),
                (lambda: started.add(f"{unique}.A", timeout=0.2), jetsync.RequestTimeoutError),
                (lambda: fresh.add(f"{unique}.A", timeout=0.2), jetsync.RequestTimeoutError),
                (
                    lambda: fragile.publish_batch([(f"{unique}.A", b"")], timeout=0.2),
                    jetsync.BatchOutcomeUnknownError,
                ),
                (
                    lambda: fragile.publish_batch([(f"{unique}-no", b"")], timeout=0.2),
                    jetsync.RequestTimeoutError,
                ),
            ):
                with timed(0.2, 0.7), pytest.raises(error):
                    call()
            # A request would wait for a minute.
            with timed(0.0, 10.0):
                fresh.discard()
                started.discard()
        finally:
            victim.resume()
        fragile.delete_stream(unique, timeout=10)

    def test_more_than_the_socket_takes(self, victim, fragile, unique):
        """
        A batch that is larger than all buffers ends by its deadline and is not stored.
        """
        stream = batch_stream(fragile, unique)
        fragile.publish_batch([(f"{unique}.A", b"")])
        victim.pause()
        try:
            messages = [(f"{unique}.A", bytes(1 << 19))] * 100
            with timed(0.5, 2.0), pytest.raises(jetsync.DisconnectedError):
                fragile.publish_batch(messages, timeout=0.5)
        finally:
            victim.resume()
        assert stream.info(timeout=10).state.messages == 1
        fragile.delete_stream(unique, timeout=10)

    def test_another_thread_has_it(self, victim, fragile, unique):
        """
        A call that waits for another thread's call on the batch ends by its deadline.
        """
        batch_stream(fragile, unique)
        batch = fragile.atomic_batch(ack_every=1)
        batch.add(f"{unique}.A")
        victim.pause()
        try:
            with ThreadPoolExecutor(1) as pool:
                call = pool.submit(batch.add, f"{unique}.A", timeout=1.0)
                blocked(pool)
                with timed(0.2, 0.7), pytest.raises(jetsync.WaitTimeoutError):
                    batch.add(f"{unique}.A", timeout=0.2)
                assert isinstance(call.exception(20), jetsync.RequestTimeoutError)
        finally:
            victim.resume()
        fragile.delete_stream(unique, timeout=10)
