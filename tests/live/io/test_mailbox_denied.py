"""
Servers that stop accepting the subscriptions for replies while a client runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import jetsync
from helpers.waiting import eventually
from jetsync.devserver import DevServer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="servers reload at a signal")

UNKNOWN = (
    jetsync.PublishOutcomeUnknownError,
    jetsync.BatchOutcomeUnknownError,
)
DENIED = {"subscribe": {"deny": ["_INBOX.>"]}}


class Reloaded:
    """
    A server that can deny the inboxes of the user ``worker`` while it runs.
    """

    def __init__(self, folder):
        self._file = folder / "rules.conf"
        self._write({})
        self.dev = DevServer(config=f'include "../{folder.name}/{self._file.name}"')

    def _write(self, permissions):
        users = [
            {"user": "boss", "password": "b"},
            {"user": "worker", "password": "w", "permissions": permissions},
        ]
        self._file.write_text(f"authorization: {json.dumps({'users': users})}")

    def change(self, permissions):
        self._write(permissions)
        before = self._reloads()
        os.kill(self.dev.pids[0], signal.SIGHUP)
        eventually(lambda: self._reloads() > before)

    def _reloads(self):
        return self.dev.log().count("Reloaded server configuration")


@pytest.fixture
def reloaded():
    """
    A server whose rules a test can change.
    """
    # The path of the file is relative to the folder of the server's own, which is a sibling.
    with tempfile.TemporaryDirectory() as folder:
        rules = Reloaded(Path(folder))
        with rules.dev:
            yield rules


@pytest.fixture
def stream(reloaded):
    """
    The stream, seen by a user whom no rule concerns.
    """
    login = {"user": "boss", "password": "b", "connect_timeout": 30}
    with jetsync.connect(reloaded.dev.url, **login) as client:
        features = {"allow_atomic": True, "allow_batched": True, "allow_direct": True}
        yield client.jetstream().create_stream("F", subjects=["f.>"], **features)


@pytest.fixture
def client(reloaded, stream):
    """
    A client of the user whose inboxes a test denies.
    """
    login = {"user": "worker", "password": "w", "reconnect_wait": 0.05, "connect_timeout": 30}
    with jetsync.connect(reloaded.dev.url, **login) as client:
        yield client


class Counts:
    """
    The events that count messages of puts.
    """

    def __init__(self):
        self.events = []

    @jetsync.hookimpl
    def jetsync_status(self, event):
        """
        Keep the event.
        """
        if isinstance(event, jetsync.events.PublishCountsEvent):
            self.events.append(event)


class Ledger:
    """
    The outcome of each message, as the calls reported it.

    Args:
        client: The client that publishes.
        first: The number of the first message, which is its data.
    """

    def __init__(self, client, first=0):
        self._js = client.jetstream(timeout=5)
        self._number = first
        self.stored = set()
        self.unknown = set()
        self.not_stored = set()
        self.calls = [self.single, self.many, self.publisher, self.whole, self.atomic, self.fast]

    def names(self, count):
        self._number += count
        return [b"%d" % n for n in range(self._number - count, self._number)]

    def note(self, call, names):
        try:
            call(names)
        except UNKNOWN:
            self.unknown.update(names)
        except jetsync.PublishManyError as error:
            failed = {failure.message.data: failure.error for failure in error.report.failures}
            for name in names:
                self.note_one(name, failed.get(name))
        except jetsync.JetSyncError:
            self.not_stored.update(names)
        else:
            self.stored.update(names)

    def note_one(self, name, error):
        if error is None:
            self.stored.add(name)
        else:
            (self.unknown if isinstance(error, UNKNOWN) else self.not_stored).add(name)

    def single(self):
        self.note(lambda names: self._js.publish("f.a", names[0]), self.names(1))

    def many(self):
        messages = lambda names: [("f.a", name) for name in names]  # noqa: E731
        self.note(lambda names: self._js.publish_many(messages(names)), self.names(5))

    def publisher(self):
        futures = {}
        with contextlib.suppress(jetsync.JetSyncError), self._js.publisher() as publisher:
            for name in self.names(5):
                futures[name] = publisher.publish("f.a", name)
        for name, future in futures.items():
            self.note_one(name, future.exception(10))

    def whole(self):
        messages = lambda names: [("f.a", name) for name in names]  # noqa: E731
        self.note(lambda names: self._js.publish_batch(messages(names)), self.names(3))

    def atomic(self):
        def batch(names):
            with self._js.atomic_batch() as batch:
                for name in names:
                    batch.add("f.a", name)

        self.note(batch, self.names(3))

    def fast(self):
        def batch(names):
            with self._js.fast_publisher() as publisher:
                for name in names:
                    publisher.add("f.a", name)

        self.note(batch, self.names(3))

    def check(self, stream):
        """
        Compare the outcomes with the messages that are stored.
        """
        stored = {message.data for message in stream.scan()}
        assert self.stored <= stored
        assert not self.not_stored & stored


def run_while_denied(reloaded, client, ways):
    """
    Publish in one thread for each way while ``f.>`` is denied again and again.
    """
    ledgers = [Ledger(client, 1_000_000 * number) for number in range(len(ways))]
    over = threading.Event()

    def work(ledger, way):
        while not over.is_set():
            getattr(ledger, way)()

    parts = zip(ledgers, ways, strict=True)
    threads = [threading.Thread(target=work, args=part) for part in parts]
    for thread in threads:
        thread.start()

    def wait_for_more():
        pairs = [(ledger, len(ledger.stored)) for ledger in ledgers]
        eventually(lambda: all(len(ledger.stored) > count for ledger, count in pairs))

    def refused():
        return sum(len(ledger.not_stored) + len(ledger.unknown) for ledger in ledgers)

    try:
        for _ in range(5):
            wait_for_more()
            before = refused()
            reloaded.change({"publish": {"deny": ["f.>"]}})
            eventually(lambda: refused() > before)  # noqa: B023
            reloaded.change({})
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return ledgers


class TestDeniedSubject:
    @pytest.mark.thorough
    def test_under_load(self, reloaded, client, stream):
        """
        No stored message is reported as not stored while a subject in use is denied.

        The server does not say which of the messages in flight it has refused.
        """
        ways = ["single"] * 3 + ["many"] * 2 + ["publisher"]
        ledgers = run_while_denied(reloaded, client, ways)
        assert any(ledger.not_stored for ledger in ledgers)
        for ledger in ledgers:
            ledger.check(stream)

    @pytest.mark.thorough
    def test_with_batches(self, reloaded, client, stream):
        """
        The same is true if messages of batches are in flight, too.
        """
        ways = ["single", "many", "whole", "atomic", "fast"]
        ledgers = run_while_denied(reloaded, client, ways)
        for ledger in ledgers:
            ledger.check(stream)

    def test_each_refusal_in_one_thread_is_certain(self, reloaded, client, stream):
        """
        With one call at a time, every refusal is certain.
        """
        reloaded.change({"publish": {"deny": ["f.>"]}})
        ledger = Ledger(client)
        for call in ledger.calls:
            call()
        assert len(ledger.not_stored) == 20
        reloaded.change({})
        ledger.single()
        assert len(ledger.stored) == 1
        ledger.check(stream)

    def test_each_refused_message_of_a_full_window_is_not_stored(self, reloaded, client, stream):
        """
        If the server refuses every message of a full window, each one is known not to be stored.
        """
        reloaded.change({"publish": {"deny": ["f.>"]}})
        with pytest.raises(jetsync.PublishManyError) as caught:
            client.jetstream().publish_many([("f.a", b"x")] * 300, window=100)
        errors = {type(failure.error) for failure in caught.value.report.failures}
        assert errors == {jetsync.PermissionDeniedError}

    def test_core_messages(self, reloaded, client, stream):
        """
        A refusal that may be about a core message leaves the outcome of a publish unknown.
        """
        js = client.jetstream()
        reloaded.change({"publish": {"deny": ["f.>"]}})
        client.publish("f.a", b"core")
        with pytest.raises(
            jetsync.PublishOutcomeUnknownError, match="does not say which"
        ) as caught:
            js.publish("f.a", b"1")
        assert isinstance(caught.value.__cause__, jetsync.PermissionDeniedError)
        with pytest.raises(jetsync.PermissionDeniedError):
            js.publish("f.b", b"2")


class TestDeniedInbox:
    def test_no_stored_message_is_reported_as_not_stored(self, reloaded, client, stream):
        """
        No message that is stored is reported as not stored while replies are denied.
        """
        ledger = Ledger(client)
        for call in ledger.calls:
            call()
        assert not ledger.unknown | ledger.not_stored
        reloaded.change(DENIED)
        for call in ledger.calls * 2:
            call()
        assert ledger.not_stored
        ledger.check(stream)
        reloaded.change({})

    @pytest.mark.thorough
    def test_during_calls(self, reloaded, client, stream):
        """
        Each way to publish continues once replies are allowed again, and no outcome is wrong.
        """
        ledgers = [Ledger(client, 1_000_000 * number) for number in range(6)]
        over = threading.Event()

        def work(number, ledger):
            while not over.is_set():
                ledger.calls[number]()

        threads = [threading.Thread(target=work, args=each) for each in enumerate(ledgers)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                reloaded.change(DENIED)
                reloaded.change({})
                stored = [len(ledger.stored) for ledger in ledgers]
                eventually(
                    lambda: all(
                        len(ledger.stored) > count
                        for ledger, count in zip(ledgers, stored, strict=True)  # noqa: B023
                    ),
                    # A call whose replies were denied may wait for two of its timeouts first.
                    40,
                )
        finally:
            over.set()
            for thread in threads:
                thread.join()
        for ledger in ledgers:
            ledger.check(stream)
        assert client.statistics().reconnects == 0

    def test_a_put_of_an_object_sends_nothing(self, reloaded):
        """
        While replies are denied, a put fails at once, and plugins get a chunk that is not stored.
        """
        boss = jetsync.connect(reloaded.dev.url, user="boss", password="b")
        login = {"user": "worker", "password": "w", "plugins": [counts := Counts()]}
        with boss, jetsync.connect(reloaded.dev.url, **login) as client:
            made = boss.jetstream().create_object_store("b", storage="memory")
            store, old = client.jetstream().object_store("b"), made.put("a", b"old")
            before = made.stream.info().state

            def is_denied():
                try:
                    client.jetstream().account_info(timeout=1)
                except jetsync.JetSyncError as error:
                    return isinstance(error, jetsync.PermissionDeniedError)

            def pieces():
                reloaded.change(DENIED)
                eventually(is_denied)
                yield b"new"

            with pytest.raises(jetsync.PermissionDeniedError, match="_INBOX"):
                store.put("a", pieces(), expect=old)
            assert made.stream.info().state == before
            assert client.statistics().requests_in_flight == 0
        eventually(lambda: counts.events)
        assert [(event.failed, event.unknown) for event in counts.events] == [(1, 0)]

    def test_a_reconnect_with_the_permission_publishes_again(self, reloaded, client, stream):
        """
        After a reconnect with the permission, the next publish is stored and acknowledged.
        """
        js = client.jetstream(timeout=5)
        reloaded.change(DENIED)
        with pytest.raises((jetsync.PublishOutcomeUnknownError, jetsync.PermissionDeniedError)):
            js.publish("f.a", b"1")
        with pytest.raises(jetsync.PermissionDeniedError, match="may not subscribe"):
            js.publish("f.a", b"2")
        reloaded.change({})
        client.reconnect()
        js.publish("f.a", b"3")
        assert b"2" not in [message.data for message in stream.scan()]
