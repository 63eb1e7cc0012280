"""
Retries against a real server: lost messages are sent again, and none is stored twice.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import threading
import uuid

import pytest
from ledger import Ledger, names_in

import jetsync
from jetsync import hookimpl
from jetsync.devserver import DevServer
from jetsync.testing import HookRecorder
from jetsync_retry import Decision, Policy, Retry

pytestmark = pytest.mark.live

LIMIT = 100.0
"""Seconds for retries until a server is back, also on a busy machine."""


class TestLoaded:
    def test_the_retry_plugin_can_be_loaded_by_name(self, nats_server):
        """
        The plugin can be loaded by the name of its entry point.
        """
        with jetsync.connect(nats_server.url, plugins=["retry"]) as client:
            (info,) = client.plugins

        assert (info.name, info.hooks) == ("retry", ("jetsync_retry",))
        (entry,) = importlib.metadata.entry_points(group="jetsync", name="retry")
        assert entry.load() is Retry


class TestSafe:
    def test_until_there_is_a_stream(self, nats_server, js):
        """
        A message that no stream takes is sent again until a stream exists.
        """
        name = uuid.uuid4().hex
        retry = Retry(Policy(wait=0.05))
        timer = threading.Timer(0.3, js.create_stream, kwargs={"name": name, "subjects": [name]})
        timer.start()
        try:
            with jetsync.connect(nats_server.url, plugins=[retry]) as client:
                ack = client.jetstream().publish(name, b"x", timeout=30)
        finally:
            timer.join()
        js.delete_stream(name)

        assert ack.sequence == 1
        assert retry.statistics().retried >= 2

    def test_a_late_ack(self, nats_server):
        """
        A message without an ack is sent again long before its timeout.
        """
        name, retry, attempts = uuid.uuid4().hex, Retry(), []

        def answer(requests, other):
            for request in requests:
                attempts.append(request)
                if len(attempts) == 2:
                    other.publish(request.reply, b'{"stream":"S","seq":1}')

        with (
            jetsync.connect(nats_server.url) as other,
            jetsync.connect(nats_server.url, plugins=[retry]) as client,
            other.subscribe(name) as requests,
        ):
            other.flush()
            thread = threading.Thread(target=answer, args=(requests, other), daemon=True)
            thread.start()
            ack = client.jetstream().publish(name, b"x", msg_id="1", timeout=LIMIT)
            requests.close()
            thread.join(LIMIT)

        assert ack.sequence == 1
        assert retry.statistics().retried >= 1
        assert {each.reply for each in attempts} == {attempts[0].reply}

    def test_messages_that_fail_together_keep_their_order(self, nats_server, js):
        """
        Messages of a call that no stream takes are stored in order once a stream exists.
        """
        name, retry = uuid.uuid4().hex, Retry(Policy(wait=0.2))

        class Late:
            @hookimpl
            def jetsync_status(self, event):
                if isinstance(event, jetsync.RetryEvent):
                    js.create_or_update_stream(name, subjects=[name])

        with jetsync.connect(nats_server.url, plugins=[retry, Late]) as client:
            client.jetstream().publish_many([(name, f"{n}") for n in range(500)], ack_timeout=30)
        stored = names_in(js.stream(name))
        js.delete_stream(name)

        # Messages that were sent while the stream was created may precede those that had failed.
        failed = retry.statistics().retried
        assert 0 < failed <= 500
        assert stored[-failed:] == sorted(stored[-failed:], key=int)
        assert sorted(stored, key=int) == [f"{n}" for n in range(500)]

    @pytest.mark.parametrize("size", [1, 50])
    def test_a_lost_ack_with_an_id(self, size, behind_proxy, stream):
        """
        The message is sent again, and the stream drops the copy.
        """
        retry, recorder = Retry(), HookRecorder("jetsync_status")
        proxy, js = behind_proxy(retry, recorder)
        proxy.cut_after(to_client=0, reset=True)
        if size == 1:
            ack = js.publish(f"{stream.name}.a", b"0", msg_id="0", timeout=30)
            assert ack.duplicate
        else:
            messages = [
                jetsync.OutboundMessage(f"{stream.name}.a", f"{n}", msg_id=f"{n}")
                for n in range(size)
            ]
            assert js.publish_many(messages, ack_timeout=30).duplicates == size

        assert names_in(stream) == [f"{n}" for n in range(size)]
        assert retry.statistics().retried == size
        events = [call["event"] for call in recorder]
        (told,) = [event for event in events if isinstance(event, jetsync.RetryEvent)]
        assert told.messages == size

    def test_a_lost_ack_of_a_batch_with_ids(self, behind_proxy, js):
        """
        The whole batch is sent again, and recognised if it was stored.
        """
        name = uuid.uuid4().hex
        made = js.create_stream(name, subjects=[f"{name}.>"], allow_atomic=True)
        proxy, behind = behind_proxy(Retry())
        behind.publish_batch([(f"{name}.a", b"before")])
        messages = [jetsync.OutboundMessage(f"{name}.a", f"{n}", msg_id=f"{n}") for n in range(5)]
        proxy.cut_after(to_client=0, reset=True)

        ack = behind.publish_batch(messages, timeout=30)

        assert (ack.size, ack.duplicate) == (5, True)
        assert names_in(made) == ["before", *(f"{n}" for n in range(5))]
        js.delete_stream(name)


class TestUnsafe:
    @pytest.mark.parametrize("size", [1, 50])
    def test_a_lost_ack_without_an_id(self, size, behind_proxy, stream):
        """
        The outcome is unknown, and the message is not sent again.
        """
        retry = Retry()
        proxy, js = behind_proxy(retry)
        proxy.cut_after(to_client=0, reset=True)
        if size == 1:
            with pytest.raises(jetsync.PublishOutcomeUnknownError):
                js.publish(f"{stream.name}.a", b"0", timeout=30)
        else:
            with pytest.raises(jetsync.PublishManyError):
                js.publish_many([(f"{stream.name}.a", f"{n}") for n in range(size)], ack_timeout=30)

        assert names_in(stream) == [f"{n}" for n in range(size)]
        assert retry.statistics().retried == 0

    def test_ids_that_a_stream_forgets(self, behind_proxy, js):
        """
        If the stream's duplicate window is short, a second attempt could be stored, so there is
        none.
        """
        name = uuid.uuid4().hex
        made = js.create_stream(name, subjects=[name], duplicate_window=0.2)
        slow = Policy(wait=1.0)
        careful, careless = Retry(slow, id_window=0.2), Retry(slow)
        stored = {}
        for retry in (careful, careless):
            proxy, behind = behind_proxy(retry)
            proxy.cut_after(to_client=0, reset=True)
            with contextlib.suppress(jetsync.PublishOutcomeUnknownError):
                behind.publish(name, b"x", msg_id=f"{id(retry)}", timeout=30)
            stored[retry] = made.info().state.messages
        js.delete_stream(name)

        assert stored == {careful: 1, careless: 1 + 2}
        assert careful.statistics().counts[0].decision is Decision.IDS_TOO_OLD


class Careless:
    """
    Publish every failed message again, which a correct retry must not do.
    """

    js: jetsync.JetStream

    @hookimpl(wrapper=True)
    def jetsync_publish(self, operation):
        try:
            return (yield)
        except jetsync.PublishOutcomeUnknownError:
            return self.js.publish(operation.subject, operation.subject.split(".")[1])


class Load:
    """
    Threads that publish in every way until they are stopped.

    Half of the messages have ids. A ledger records the reported outcome of each.
    """

    def __init__(self, js, stream):
        self.js = js
        self.prefix = f"{stream.name}."
        self.ledger = Ledger()
        self.errors = []
        self.over = threading.Event()
        ways = (self.singles, self.bulks, self.futures, self.batches)
        self.threads = [
            threading.Thread(target=self.run, args=(way, ids), name=f"{way.__name__}-{ids}")
            for way in ways
            for ids in ((True,) if way == self.batches else (True, False))
        ]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def run(self, way, ids):
        try:
            way(ids, f"{way.__name__}-{ids}")
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.errors.append(error)

    def message(self, name, ids):
        return jetsync.OutboundMessage(self.prefix + name, name, msg_id=name if ids else None)

    def singles(self, ids, kind):
        for number in itertools.count():
            if self.over.is_set():
                return
            name, error = f"{kind}-{number}", None
            message = self.message(name, ids)
            try:
                self.js.publish(message.subject, name, msg_id=message.msg_id, timeout=LIMIT)
            except jetsync.JetSyncError as failure:
                error = failure
            self.ledger.enter(name, error)

    def bulks(self, ids, kind):
        for number in itertools.count():
            if self.over.is_set():
                return
            names = [f"{kind}-{number}-{n}" for n in range(1000)]
            errors = {}
            try:
                self.js.publish_many([self.message(name, ids) for name in names], ack_timeout=LIMIT)
            except jetsync.PublishManyError as failure:
                errors = {each.index: each.error for each in failure.report.failures}
            for n, name in enumerate(names):
                self.ledger.enter(name, errors.get(n))

    def futures(self, ids, kind):
        def report(outcome):
            self.ledger.enter(outcome.message.data, outcome.error)

        with self.js.publisher(on_report=report, ack_timeout=LIMIT) as publisher:
            for number in itertools.count():
                if self.over.wait(0.0005):
                    return
                message = self.message(f"{kind}-{number}", ids)
                publisher.publish(message.subject, message.data, msg_id=message.msg_id)

    def batches(self, ids, kind):
        for number in itertools.count():
            if self.over.is_set():
                return
            names = [f"{kind}-{number}-{n}" for n in range(20)]
            error = None
            try:
                self.js.publish_batch([self.message(name, ids) for name in names], timeout=LIMIT)
            except jetsync.JetSyncError as failure:
                error = failure
            for name in names:
                self.ledger.enter(name, error)


@contextlib.contextmanager
def killed_under_load(retry, *, kills, seconds):
    """
    Kill and restart a server under load several times, and yield the load.

    Repeat this until messages with and without ids were lost in flight.
    """
    with (
        DevServer() as server,
        jetsync.connect(
            server.url, plugins=[retry], reconnect_wait=0.05, max_reconnects=-1
        ) as client,
    ):
        js = client.jetstream()
        stream = js.create_stream(
            "LOAD",
            subjects=["LOAD.>"],
            storage="file",
            allow_atomic=True,
            duplicate_window=6 * LIMIT,
        )
        with Load(js, stream) as load:
            for count in range(1, 5 * kills):
                load.over.wait(seconds)
                server.kill()
                load.over.wait(seconds / 4)
                server.start()
                if count >= kills and load.ledger.unknown and retry.statistics().retried:
                    break
            load.over.wait(seconds)
        yield load, stream


class TestKilledServer:
    @pytest.mark.parametrize(
        ("kills", "seconds"),
        [(3, 0.6), pytest.param(20, 1.0, marks=[pytest.mark.soak, pytest.mark.timeout(900)])],
    )
    def test_nothing_lost_and_nothing_twice(self, kills, seconds):
        """
        A message with an id is stored once. One without an id is stored at most once, and its
        outcome is reported as unknown if necessary.
        """
        retry = Retry(budget=LIMIT, id_window=5 * LIMIT)
        with killed_under_load(retry, kills=kills, seconds=seconds) as (load, stream):
            ledger = load.ledger

            assert load.errors == []
            assert ledger.faults(stream) == {}
            assert [name for name in ledger.unknown if "-True" in name] == []
            assert [name for name in ledger.failed if "-True" in name] == []
            assert ledger.unknown != []
            assert retry.statistics().retried > 0

    def test_an_unsafe_retry_would_be_noticed(self, behind_proxy, stream):
        """
        The check above detects copies: this retry makes some.
        """
        careless, ledger = Careless(), Ledger()
        proxy, careless.js = behind_proxy(careless)
        for number in range(3):
            proxy.wait_open()
            proxy.cut_after(to_client=0, reset=True)
            careless.js.publish(f"{stream.name}.{number}", f"{number}", timeout=30)
            ledger.enter(f"{number}", None)

        assert sorted(ledger.faults(stream)["twice"]) == ["0", "1", "2"]
