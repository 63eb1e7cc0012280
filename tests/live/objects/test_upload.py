"""
Puts of objects that fit into one chunk, with faults: the chunk is a single request, with the
promises of many chunks.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.forks import fork
from helpers.interrupts import interrupted_at, steps_of
from helpers.lacking import needs_fork
from helpers.waiting import eventually
from jetsync import hookimpl
from jetsync._api import replica_or_leader
from jetsync._io.requests import Request
from jetsync._proto.outcome import Cause, outcome_of
from jetsync.devserver import DevServer
from jetsync.objects import upload
from jetsync.testing import CutProxy

REFUSAL = b'{"error":{"code":%d,"err_code":%d,"description":"no"},"stream":"S"}'

# Answers to a chunk, with the causes that they are.
ANSWERS = [
    (Cause.UNREADABLE, b"nonsense"),
    (Cause.BUSY, REFUSAL % (503, 10008)),
    (Cause.BUSY, REFUSAL % (503, 10023)),
    (Cause.BUSY, REFUSAL % (429, 10167)),
    (Cause.IN_PROCESS, REFUSAL % (409, 10158)),
    (Cause.OWN_CONDITION, REFUSAL % (400, 10071)),
    # The limit of an account, which is the same on all servers.
    (Cause.REFUSED, REFUSAL % (400, 10002)),
    (Cause.REFUSED, REFUSAL % (400, 10077)),
]

DATA = os.urandom(1000)
OLD = os.urandom(300_000)


@pytest.fixture
def broken(nats_server, observer):
    """
    The same object store through a proxy, with the client and the proxy.
    """
    with (
        CutProxy(nats_server.url) as proxy,
        jetsync.connect(proxy.url, reconnect_wait=0.05) as client,
    ):
        yield client.jetstream().object_store(observer.bucket), client, proxy


def check(observer, *allowed):
    """
    Check that the object is whole, and that its chunks are the only ones.
    """
    objects = observer.list()
    assert (observer.get_bytes("a") if objects else None) in allowed
    subjects = f"$O.{observer.bucket}.C.>"
    found = observer.stream.info(subjects_filter=subjects).state.subjects
    assert {subject.rpartition(".")[2] for subject in found} == {each.nuid for each in objects}


class Misdirect:
    """
    Send the first messages of a put to a subject without a stream, as if it had no leader.
    """

    def __init__(self, times, subject="nowhere"):
        self._left = times
        self._subject = subject

    @hookimpl
    def jetsync_prepare_message(self, message):
        """
        Change the subject of the chunk.
        """
        if ".C." in message.subject and self._left:
            self._left -= 1
            message.subject = self._subject
        return message


class TestWire:
    def test_a_put_needs_no_subscription(self, client, observer):
        """The answers to chunks come through the subscription that all requests share."""
        before = client.statistics()
        during = []
        for size in (1000, 400_000):
            observer.put(
                "a",
                os.urandom(size),
                on_progress=lambda *_: during.append(client.statistics().subscriptions),
            )
        assert set(during) == {before.subscriptions}
        after = client.statistics()
        assert (after.subscriptions, after.requests_in_flight) == (before.subscriptions, 0)

    @pytest.mark.parametrize("name", ["abc", pytest.param("a", id="a name with padding")])
    @pytest.mark.parametrize("size", [0, 1000, 100_000])
    def test_a_new_object_takes_two_writes(self, client, observer, monkeypatch, name, size):
        """The requests for the old description are written in front of the chunk, then the new."""
        lane, blocks = client._connection.lane, []
        write = lane.write

        def note(block, *arguments, **keywords):
            blocks.append(bytes(block))
            return write(block, *arguments, **keywords)

        monkeypatch.setattr(lane, "write", note)
        # The compiled call writes without it.
        monkeypatch.setattr(client._connection.session, "ask", None)
        observer.put(name, os.urandom(size))
        monkeypatch.undo()
        lookups = 1 if name == "abc" else 2
        if size:
            assert len(blocks) == 2
            assert blocks[0].count(b"STREAM.MSG.GET.") == lookups
            assert blocks[0].index(b"STREAM.MSG.GET.") < blocks[0].index(b".C.")
        else:
            # The description alone.
            assert len(blocks) == lookups + 1
        assert client.statistics().requests_in_flight == 0

    def test_threads_put_at_the_same_time(self, observer):
        """Threads that share a store put small objects at the same time."""

        def put(number):
            for version in range(30):
                observer.put(f"{number}", b"%d-%d" % (number, version))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put, range(4)))
        assert [observer.get_bytes(f"{number}") for number in range(4)] == [
            b"%d-29" % number for number in range(4)
        ]


class TestFaults:
    @pytest.mark.parametrize("replaces", [False, True])
    @pytest.mark.parametrize("to_client", [0, 1, 60, 200, 500])
    def test_lost_answers(self, broken, observer, to_client, replaces):
        """If the answers to the chunk or to the later requests are lost, the put is completed."""
        store, client, proxy = broken
        if replaces:
            observer.put("a", OLD)
        proxy.cut_after(to_client=to_client)
        info = store.put("a", DATA, timeout=20)
        assert (info.chunks, info.revision) == (1, observer.info("a").revision)
        observer.collect_garbage(0)
        check(observer, DATA)
        assert client.statistics().requests_in_flight == 0

    @pytest.mark.parametrize("to_server", [0, 1, 100, 600, 1100, 1300, 1600])
    def test_lost_requests(self, broken, observer, to_server):
        """If the chunk or a later request is lost, it is sent again."""
        store, client, proxy = broken
        observer.put("a", OLD)
        proxy.cut_after(to_server=to_server)
        store.put("a", DATA, timeout=20)
        observer.collect_garbage(0)
        check(observer, DATA)
        assert client.statistics().requests_in_flight == 0

    @pytest.mark.parametrize("size", [len(DATA), len(OLD)])
    def test_a_lost_answer_to_the_first_read(self, client, observer, monkeypatch, size):
        """If the answer to an early request for the old description is lost, it is sent again."""
        # With another handle: one that has put the object asks for no description.
        client.jetstream().object_store(observer.bucket).put("a", OLD)
        lost = []

        class Lossy(Request):
            __slots__ = ()

            def deliver(self, frame):
                if lost:
                    super().deliver(frame)
                else:
                    lost.append(frame)
                    # As if it had not arrived.
                    self._session.router._waiters[self.address] = self

        monkeypatch.setattr(replica_or_leader, "Request", Lossy)
        data = os.urandom(size)
        observer.put("a", data)
        assert lost
        check(observer, data)
        assert client.statistics().requests_in_flight == 0

    def test_a_cut_before_the_description(self, broken, observer):
        """If the connection is cut after the chunk is stored, the description follows."""
        store, _, proxy = broken
        observer.put("a", OLD)
        store.put("a", DATA, on_progress=lambda *_: proxy.cut(), timeout=20)
        check(observer, DATA)

    def test_a_stream_without_a_leader(self, proxied, observer):
        """A chunk that no stream takes is sent again, and stored once."""
        js, _ = proxied(Misdirect(2))
        info = js.object_store(observer.bucket).put("a", DATA)
        subject = f"$O.{observer.bucket}.C.{info.nuid}"
        assert observer.stream.info(subjects_filter=subject).state.subjects == {subject: 1}
        check(observer, DATA)

    def test_a_stream_that_never_has_a_leader(self, proxied, observer):
        """If no stream takes the chunk, the put fails in time and leaves the old object."""
        observer.put("a", OLD)
        js, _ = proxied(Misdirect(10_000))
        with pytest.raises(jetsync.RequestTimeoutError) as caught:
            js.object_store(observer.bucket).put("a", DATA, timeout=0.5)
        assert isinstance(caught.value.__cause__, jetsync.NoStreamResponseError)
        check(observer, OLD)

    @pytest.mark.parametrize(("cause", "answer"), ANSWERS)
    def test_an_answer_that_is_no_ack(self, client, proxied, observer, unique, cause, answer):
        """A chunk is sent again if its outcome is unknown, or if the server asks for patience."""
        js, _ = proxied(Misdirect(1, unique))
        rule = outcome_of(cause, sent=True, safe=True)

        def respond():
            client.publish(requests.next(timeout=60).reply, answer)

        with client.subscribe(unique) as requests, contextlib.ExitStack() as stack:
            client.flush()
            thread = threading.Thread(target=respond)
            thread.start()
            if not rule.may_repeat_batch:
                stack.enter_context(pytest.raises(jetsync.ApiError))
            js.object_store(observer.bucket).put("a", DATA, timeout=20)
        thread.join()
        check(observer, DATA if rule.may_repeat_batch else None)

    def test_a_silent_server(self, broken, observer):
        """Without an answer, the put fails in time, and the chunk is garbage."""
        store, client, proxy = broken
        proxy.pause("to_client")
        with pytest.raises(jetsync.RequestTimeoutError) as caught:
            store.put("a", DATA, timeout=0.5)
        proxy.resume()
        subject = f"$O.{observer.bucket}.C.{caught.value.nuid}"
        eventually(lambda: client.statistics().requests_in_flight == 0)
        # The request that removes the chunk may arrive late, too.
        observer.collect_garbage(0)
        assert subject not in observer.stream.info(subjects_filter=">").state.subjects
        check(observer, None)

    def test_a_limit_of_chunks_in_flight(self, broken, observer, monkeypatch):
        """If many small chunks have no answers, a put waits before it takes more data."""
        monkeypatch.setattr(upload, "MOST_CHUNKS", 10)
        store, client, proxy = broken
        old, given = store.put("a", OLD), []

        def pieces():
            proxy.pause("to_client")
            for number in range(30):
                given.append(number)
                yield b"%d" % (number % 10)

        with pytest.raises(jetsync.RequestTimeoutError):
            store.put("a", pieces(), chunk_size=1, expect=old, timeout=0.5)
        assert len(given) == 10
        proxy.resume()
        eventually(lambda: client.statistics().requests_in_flight == 0)
        assert store.put("a", b"0123456789" * 3, chunk_size=1, timeout=20).chunks == 30
        observer.collect_garbage(0)
        check(observer, b"0123456789" * 3)

    def test_a_client_that_closes(self, broken, observer):
        """If another thread closes the client, the put ends and names the chunk that stays."""
        store, client, proxy = broken
        proxy.pause("to_client")
        caught = []

        def put():
            try:
                store.put("a", DATA, timeout=60)
            except jetsync.ConnectionClosedError as error:
                caught.append(error)

        thread = threading.Thread(target=put)
        thread.start()
        eventually(lambda: observer.stream.info().state.messages)
        client.close(timeout=0.1)
        thread.join(60)
        assert caught[0].nuid
        assert observer.list() == []
        assert observer.collect_garbage(0) == 1

    @pytest.mark.parametrize("conditional", [False, True])
    def test_a_conflict_leaves_nothing(self, observer, conditional):
        """If another put stores the object after the chunk, the put fails and removes it."""
        expect = observer.put("a", OLD) if conditional else None
        with pytest.raises(jetsync.ObjectChangedError) as caught:
            observer.put(
                "a", DATA, expect=expect, on_progress=lambda *_: observer.put("a", b"other")
            )
        assert not hasattr(caught.value, "nuid")
        check(observer, b"other")

    def test_a_chunk_that_may_not_be_published(self):
        """If the server refuses the subject of the chunk, the put fails and stores nothing."""
        denied = {"publish": {"deny": ["$O.b.C.>"]}}
        users = [
            {"user": "u", "password": "p", "permissions": denied},
            {"user": "admin", "password": "p"},
        ]
        with (
            DevServer(config={"authorization": {"users": users}}) as server,
            jetsync.connect(server.url, user="admin", password="p") as admin,
            jetsync.connect(server.url, user="u", password="p") as client,
        ):
            store = admin.jetstream().create_object_store("b", storage="memory")
            with pytest.raises(jetsync.PermissionDeniedError, match=r"\$O\.b\.C\."):
                client.jetstream().object_store("b").put("a", DATA)
            check(store, None)
            assert client.statistics().requests_in_flight == 0

    def test_a_description_that_may_not_be_read(self, monkeypatch):
        """If the server refuses the request for the old description, a long put fails early."""
        monkeypatch.setattr(upload, "WINDOW", 50_000)
        denied = {"publish": {"deny": ["$JS.API.STREAM.MSG.GET.>"]}}
        users = [
            {"user": "u", "password": "p", "permissions": denied},
            {"user": "admin", "password": "p"},
        ]
        given = []

        def pieces():
            for number in range(100):
                given.append(number)
                yield DATA * 10

        with (
            DevServer(config={"authorization": {"users": users}}) as server,
            jetsync.connect(server.url, user="admin", password="p") as admin,
            jetsync.connect(server.url, user="u", password="p") as client,
        ):
            store = admin.jetstream().create_object_store("b", storage="memory")
            with pytest.raises(jetsync.PermissionDeniedError, match=r"STREAM\.MSG\.GET"):
                client.jetstream().object_store("b").put("a", pieces(), chunk_size=10_000)
            assert len(given) < 20
            check(store, None)
            assert client.statistics().requests_in_flight == 0


@needs_fork
class TestForks:
    @pytest.mark.parametrize("moment", ["before an answer", "after the last answer", "exit"])
    def test_a_put_belongs_to_the_parent(self, broken, observer, moment):
        """A child that is forked during a put cannot continue it, and it removes no chunks."""
        _, _, proxy = broken
        parent, statuses, data = os.getpid(), [], os.urandom(50_000)

        def fork_here():
            child = fork()
            if child:
                statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                proxy.resume()
            elif moment == "exit":
                raise SystemExit

        def pieces():
            yield data[:20_000]
            eventually(lambda: observer.stream.info().state.messages)
            if moment == "exit":
                fork_here()
            proxy.pause("to_client")
            yield data[20_000:]
            if moment == "before an answer":
                fork_here()
            elif os.getpid() == parent:
                proxy.resume()

        def progress(done, _):
            if moment == "after the last answer" and done == len(data):
                fork_here()

        with jetsync.connect(proxy.url, after_fork="reconnect") as client:
            store = client.jetstream().object_store(observer.bucket)
            old, status = store.put("a", OLD), 1
            try:
                store.put("a", pieces(), chunk_size=10_000, expect=old, on_progress=progress)
            except (jetsync.ForkedProcessError, SystemExit):
                status = 7
            finally:
                if os.getpid() != parent:
                    os._exit(status)
        assert statuses == [7]
        check(observer, data)


class TestInterrupts:
    @pytest.mark.thorough
    @pytest.mark.parametrize("conditional", [False, True])
    def test_an_interrupt_at_any_step(self, broken, observer, conditional):
        """Ctrl-C at any step of a small put leaves the old object or the new one, and no chunks."""
        store, client, _ = broken
        old = [observer.put("a", OLD)]

        def put():
            store.put("a", DATA, expect=old[0] if conditional else None)

        for step in sorted(random.Random(7).sample(range(1, steps_of(put)), 60)):
            old[0] = observer.put("a", OLD)
            interrupted_at(step, put)
            observer.collect_garbage(0)
            check(observer, OLD, DATA)
            store.put("a", b"next")
        assert client.statistics().subscriptions == 1
        assert client.statistics().requests_in_flight == 0
