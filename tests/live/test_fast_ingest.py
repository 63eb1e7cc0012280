"""
Fast ingest on real servers: what is stored, what is reported, and how it goes on or ends.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import threading
import time
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
from patience import eventually, timed

import jetsync
from jetsync import BatchAck, BatchGapEvent, Expect, OutboundMessage, errors
from jetsync._proto.fastingest import SUFFIX
from jetsync.devserver import DevServer
from jetsync.hookspecs import hookimpl
from jetsync.publish import _fast_link
from jetsync.testing import CutProxy, HookRecorder

VERSIONS = ["2.14.6", None]
"""Servers that have fast ingest; None is the newest."""

OLD = ["2.10.26", "2.11.11", "2.12.8"]


def fast_stream(js, name, **fields):
    """
    Make a stream over ``<name>.>`` that takes fast ingest.
    """
    config = {"storage": "memory", "allow_batched": True, **fields}
    return js.create_stream(name=name, subjects=[f"{name}.>"], **config)


def fast(js, **options):
    """
    A fast publisher.
    """
    return js.fast_publisher(**{"timeout": 5.0, **options})


def stored_in(stream):
    """
    The payloads of a stream, in order, as numbers.
    """
    reader = stream.create_consumer(ack_policy="none", deliver_policy="all")
    return [int(message.data) for message in reader.fetch(1_000_000, no_wait=True)]


def subscriptions(client):
    """
    How many mailboxes the client listens with.
    """
    return len(client._session.lane.receivers())


def lose(publisher, count):
    """
    Lose the next messages on their way: they are numbered and never sent.
    """
    publisher._link.engine.claim(count, time.monotonic())


def ranges(events):
    """
    What gap events name.
    """
    return [(event.first, event.last) for event in events]


@pytest.fixture
def stream(js, unique):
    """
    A stream in memory that takes fast ingest.
    """
    made = fast_stream(js, unique)
    yield made
    with contextlib.suppress(jetsync.StreamNotFoundError):
        js.delete_stream(unique)


@pytest.fixture
def cut(victim):
    """
    A proxy before it, to cut connections.
    """
    with CutProxy(victim.url) as proxy:
        yield proxy


@pytest.fixture
def fragile(cut):
    """
    JetStream through the proxy, over a client that reconnects soon.
    """
    with jetsync.connect(cut.url, reconnect_wait=0.05) as client:
        yield client.jetstream()


class TestBasic:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_three(self, server_for, nats_server, unique, version):
        """
        Scenario 93: three messages, numbers from 1, and a commit that counts them.
        """
        server = nats_server if version is None else server_for(version)
        with jetsync.connect(server.url) as client:
            js = client.jetstream()
            stream = fast_stream(js, unique)
            with fast(js) as publisher:
                assert [publisher.add(f"{unique}.a", b"%d" % n) for n in range(3)] == [1, 2, 3]
                assert publisher.ack is None
            ack = publisher.ack
            assert (ack.stream, ack.sequence, ack.size, ack.lost) == (unique, 3, 3, 0)
            assert publisher.acknowledged == 3
            assert stored_in(stream) == [0, 1, 2]
            assert js.delete_stream(unique) is None

    def test_commit_with_a_message(self, js, stream):
        """
        The last message may be the one that commits, and it may be the only one.
        """
        subject = f"{stream.name}.a"
        publisher = fast(js)
        publisher.add(subject, b"0")
        ack = publisher.commit(subject, b"1", headers={"Last": "yes"})
        assert (ack.sequence, ack.size) == (2, 2)
        alone = fast(js).commit(subject, b"2", msg_id="once")
        assert (alone.sequence, alone.size, alone.duplicate) == (3, 1, False)
        again = fast(js).commit(subject, b"2", msg_id="once")
        assert (again.sequence, again.duplicate) == (3, True)
        assert stored_in(stream) == [0, 1, 2]
        assert stream.get_message(2).headers["Last"] == "yes"

    def test_nothing_to_commit(self, client, js, stream):
        """
        Without a message nothing is sent; a commit that is asked for is an error.
        """
        before = subscriptions(client)
        with fast(js) as publisher:
            pass
        assert publisher.ack is None
        publisher.close()
        with fast(js) as publisher:
            with pytest.raises(jetsync.InvalidArgumentError, match="nothing to commit"):
                publisher.commit()
            with pytest.raises(jetsync.InvalidArgumentError, match="needs a subject"):
                publisher.commit(data=b"x")
        assert publisher.statistics().batches == 0
        assert subscriptions(client) == before

    def test_after_the_end(self, client, js, stream):
        """
        A publisher that has committed takes no more; closing it again does nothing.
        """
        before = subscriptions(client)
        publisher = fast(js)
        publisher.add(f"{stream.name}.a", b"0")
        assert subscriptions(client) == before + 1
        publisher.commit()
        assert subscriptions(client) == before
        for call in (
            lambda: publisher.add(f"{stream.name}.a", b"1"),
            lambda: publisher.add_many([(f"{stream.name}.a", b"1")]),
            publisher.commit,
        ):
            with pytest.raises(jetsync.BatchClosedError, match="committed"):
                call()
        publisher.close()
        assert stored_in(stream) == [0]
        assert repr(publisher) == (
            f"<FastPublisher {stream.name} closed added=1 acknowledged=1 lost=0>"
        )

    def test_exception(self, client, js, stream):
        """
        What was added before an exception stays, the exception passes, the batch ends.
        """
        before = subscriptions(client)
        publisher = fast(js)

        def work():
            with publisher:
                for number in range(10):
                    publisher.add(f"{stream.name}.a", b"%d" % number)
                raise LookupError

        with pytest.raises(LookupError):
            work()
        assert publisher.ack is None
        assert subscriptions(client) == before
        eventually(lambda: stream.info().state.messages == 10)
        # The batch has freed its place: the next one gets the whole flow at once.
        with fast(js, flow=500) as other:
            other.add(f"{stream.name}.a", b"10")
            assert other.statistics().flow == 500

    def test_everything_of_a_message(self, js, stream):
        """
        Headers, id and expectation go with a message; the publisher's ttl with those without.
        """
        subject = f"{stream.name}.a"
        js.update_stream(attrs.evolve(stream.info().config, allow_msg_ttl=True))
        with fast(js, ttl=3600) as publisher:
            publisher.add(subject, "0", headers={"X": "y"}, expect=Expect(last_sequence=0))
            publisher.add(subject, b"1", msg_id="one", ttl="never")
            publisher.add_many([(subject, b"2"), OutboundMessage(subject, b"3", ttl=7200)])
            publisher.commit(subject, b"4")
        assert publisher.ack.size == 5
        assert stored_in(stream) == [0, 1, 2, 3, 4]
        headers = [stream.get_message(n).headers for n in range(1, 6)]
        assert [h.get("Nats-TTL") for h in headers] == ["3600", "never", "3600", "7200", "3600"]
        assert headers[0]["X"] == "y"
        assert headers[1]["Nats-Msg-Id"] == "one"

    def test_wrong_messages(self, js, stream, unique):
        """
        What cannot be sent is refused before it is; the batch goes on.
        """
        js.create_stream(name=f"{unique}-other", subjects=[f"{unique}-other.>"], storage="memory")
        subject = f"{stream.name}.a"
        with fast(js) as publisher:
            publisher.add(subject, b"0")
            for wrong, error in (
                ("a b", jetsync.InvalidSubjectError),
                (f"{unique}-other.a", jetsync.InvalidSubjectError),
                (f"nobody.{unique}", jetsync.NoStreamResponseError),
            ):
                with pytest.raises(error):
                    publisher.add(wrong, b"x")
            with pytest.raises(jetsync.InvalidTypeError):
                publisher.add(subject, 5)
            with pytest.raises(jetsync.MaxPayloadError):
                publisher.add(subject, bytes(2 << 20))
            with pytest.raises(jetsync.InvalidTypeError):
                publisher.add_many([(subject, b"1"), (subject, b"2"), None, (subject, b"x")])
            assert publisher.statistics().added == 3
        assert stored_in(stream) == [0, 1, 2]
        assert js.stream(f"{unique}-other").info().state.messages == 0
        js.delete_stream(f"{unique}-other")

    def test_new_subject(self, js, unique):
        """
        A subject that the stream got since is asked for once more.
        """
        stream = fast_stream(js, unique)
        with fast(js) as publisher:
            publisher.add(f"{unique}.a", b"0")
            config = stream.info().config
            subjects = [*config.subjects, f"{unique}-more.>"]
            js.update_stream(attrs.evolve(config, subjects=subjects))
            publisher.add(f"{unique}-more.a", b"1")
        assert stored_in(stream) == [0, 1]
        js.delete_stream(unique)


class TestRefusal:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", OLD)
    def test_old_server(self, server_for, unique, version):
        """
        Nothing at all is sent to a server that would store the messages one by one.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            stream = js.create_stream(name=unique, subjects=[f"{unique}.>"], storage="memory")
            publisher = fast(js)
            for call in (
                lambda: publisher.add(f"{unique}.a", b"0"),
                lambda: publisher.add_many([(f"{unique}.a", b"0")]),
                lambda: publisher.commit(f"{unique}.a", b"0"),
            ):
                with pytest.raises(jetsync.NotSupportedError, match=r"2\.14"):
                    call()
            publisher.close()
            assert stream.info().state.last_seq == 0
            js.delete_stream(unique)

    def test_not_allowed(self, js, unique):
        """
        A stream that could and does not allow it, and one without acks.
        """
        plain = js.create_stream(name=unique, subjects=[f"{unique}.>"], storage="memory")
        with pytest.raises(jetsync.FastPublishDisabledError), fast(js) as publisher:
            publisher.add(f"{unique}.a", b"0")
        assert plain.info().state.messages == 0
        js.delete_stream(unique)
        silent = fast_stream(js, unique, no_ack=True)
        with pytest.raises(jetsync.NotSupportedError, match="acks"), fast(js) as publisher:
            publisher.add(f"{unique}.a", b"0")
        assert silent.info().state.messages == 0
        js.delete_stream(unique)

    def test_disallowed_since(self, js, unique):
        """
        A stream that allowed it when it was asked refuses the first message, and is not lost.
        """
        stream = fast_stream(js, unique)
        with fast(js) as publisher:
            publisher.add(f"{unique}.a", b"0")
        js.update_stream(attrs.evolve(stream.info().config, allow_batched=False))
        with fast(js) as publisher:
            with pytest.raises(jetsync.FastPublishDisabledError):
                publisher.add(f"{unique}.a", b"1")
            assert publisher.statistics().added == 0
        assert stored_in(stream) == [0]
        js.delete_stream(unique)

    def test_permission(self, unique):
        """
        A subject that the user may not publish to is refused by the server, in time.
        """
        allow = ["ok.>", "$JS.API.>"]
        users = [
            {"user": "a", "password": "a"},
            {"user": "u", "password": "u", "permissions": {"publish": {"allow": allow}}},
        ]
        with DevServer(config={"authorization": {"users": users}}) as server:
            url = server.url.replace("nats://", "nats://u:u@")
            with jetsync.connect(url) as client:
                js = client.jetstream()
                js.create_stream(
                    name="P", subjects=["ok.>", "no.>"], storage="memory", allow_batched=True
                )
                with timed(0.0, 2.0), pytest.raises(jetsync.PermissionDeniedError):
                    fast(js).add("no.a", b"0")
                publisher = fast(js)
                publisher.add("ok.a", b"0")
                publisher.add("no.a", b"1")
                with timed(0.0, 4.0), pytest.raises(jetsync.PermissionDeniedError):
                    publisher.commit()
                with pytest.raises(jetsync.BatchClosedError):
                    publisher.add("ok.a", b"2")


class TestFlow:
    def test_small_window(self, js, stream):
        """
        Scenario 94: never more in flight than flow times outstanding acks; multiples do not stall.
        """
        publisher = fast(js, flow=2)
        subject = f"{stream.name}.a"
        ahead = []
        for number in range(9):
            publisher.add(subject, b"%d" % number)
            ahead.append(publisher.statistics().pending)
        assert max(ahead) <= 4
        assert publisher.commit().size == 9
        for outstanding, count in itertools.product((1, 2, 3), (8, 12, 13)):
            with timed(0.0, 0.9), fast(js, flow=4, max_outstanding_acks=outstanding) as publisher:
                publisher.add_many((subject, b"%d" % n) for n in range(count))
            assert publisher.ack.size == count
            assert publisher.statistics().pings == 0

    def test_hundred_thousand(self, js, stream):
        """
        Scenario 94: all arrive, in order, and memory stays flat.
        """
        count = 100_000
        subject = f"{stream.name}.a"
        # The first one learns what is learnt once.
        with fast(js) as publisher:
            publisher.add_many((subject, b"%d" % n) for n in range(count))
        assert (publisher.ack.size, publisher.ack.sequence) == (count, count)
        assert stored_in(stream) == list(range(count))
        stream.purge()
        tracemalloc.start()
        try:
            with fast(js) as publisher:
                publisher.add_many((subject, b"x") for _ in range(count // 4))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2_000_000

    def test_lazy(self, js, stream):
        """
        A slow iterable is sent as it yields, and at most a block is taken ahead.
        """
        subject = f"{stream.name}.a"
        publisher = fast(js)
        late = []

        def slow():
            for number in range(160):
                if number > 60:
                    time.sleep(0.01)
                    late.append(number - publisher.statistics().added)
                yield subject, b"%d" % number

        with publisher:
            assert publisher.add_many(slow()) == 160
        assert max(late[-8:]) <= 16
        assert stored_in(stream) == list(range(160))

    def test_iterable_that_raises(self, js, stream):
        """
        What it gave before is sent.
        """

        def broken():
            for number in range(700):
                yield f"{stream.name}.a", b"%d" % number
            raise LookupError

        with fast(js) as publisher:
            with pytest.raises(LookupError):
                publisher.add_many(broken())
            assert publisher.statistics().added == 700
        assert stored_in(stream) == list(range(700))

    def test_large_messages(self, js, stream):
        """
        Blocks end by their bytes, too.
        """
        subject = f"{stream.name}.a"
        body = bytes(300_000)
        with fast(js) as publisher:
            assert publisher.add_many((subject, body) for _ in range(40)) == 40
        assert publisher.ack.size == 40
        assert stream.info().state.bytes > 40 * len(body)

    def test_many_publishers(self, js, stream):
        """
        Servers share the flow among batches, and give it back; all is stored all the same.
        """
        subject = f"{stream.name}.a"
        publishers = [fast(js, flow=500) for _ in range(5)]
        flows = set()
        for turn in range(40):
            for publisher in publishers:
                publisher.add_many((subject, b"%d" % turn) for _ in range(25))
                flows.add(publisher.statistics().flow)
        for publisher in publishers:
            assert publisher.commit().size == 1000
        assert min(flows) < 500
        assert stream.info().state.messages == 5000

    def test_four_threads(self, js, stream):
        """
        Threads share one publisher: numbers are given once, each thread's order is kept.
        """
        subject = f"{stream.name}.a"
        numbers = [[] for _ in range(4)]

        def work(mine):
            for n in range(1500):
                numbers[mine].append(publisher.add(subject, b"%d" % (mine * 10_000 + n)))
            return publisher.add_many(
                (subject, b"%d" % (mine * 10_000 + n)) for n in range(1500, 3000)
            )

        with fast(js) as publisher, ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(4))) == [1500] * 4
        assert publisher.ack.size == 12_000
        given = [number for each in numbers for number in each]
        assert len(set(given)) == 6000
        assert all(each == sorted(each) for each in numbers)
        stored = stored_in(stream)
        for mine in range(4):
            own = [n for n in stored if n // 10_000 == mine]
            assert own == list(range(mine * 10_000, mine * 10_000 + 3000))

    def test_timeout(self, fragile, cut, unique):
        """
        Without acks a call ends by its deadline, nothing of it was sent, and it can be repeated.
        """
        stream = fast_stream(fragile, unique)
        subject = f"{unique}.a"
        with fast(fragile, flow=5) as publisher:
            publisher.add(subject, b"0")
            cut.pause()
            for number in range(1, 10):
                publisher.add(subject, b"%d" % number)
            with timed(0.3, 1.0), pytest.raises(jetsync.WaitTimeoutError):
                publisher.add(subject, b"x", timeout=0.4)
            with timed(0.2, 0.8), pytest.raises(jetsync.WaitTimeoutError):
                publisher.add_many([(subject, b"x")], timeout=0.3)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(publisher.add, subject, b"10", timeout=3)
                time.sleep(0.1)
                with timed(0.1, 0.6), pytest.raises(jetsync.WaitTimeoutError, match="turn"):
                    publisher.add(subject, b"x", timeout=0.2)
                cut.resume()
                assert waiting.result() == 11
        assert publisher.ack.size == 11
        assert stored_in(stream) == list(range(11))
        fragile.delete_stream(unique)


class TestGaps:
    @pytest.mark.parametrize("how", ["add", "commit", "exit"])
    def test_fail(self, js, stream, how):
        """
        Scenario 95: sequences 1, 2, 5, 6 in ``fail``: the first two are stored, the next call says
        what is missing, and later ones that it is over.
        """
        subject = f"{stream.name}.a"
        publisher = fast(js)
        publisher.add(subject, b"1")
        publisher.add(subject, b"2")
        lose(publisher, 2)
        assert publisher.add(subject, b"5") == 5
        publisher.add(subject, b"6")
        eventually(lambda: publisher._link._box.frames)
        time.sleep(0.05)
        calls = {
            "add": lambda: publisher.add(subject, b"7"),
            "commit": publisher.commit,
            "exit": publisher.close,
        }
        with pytest.raises(jetsync.BatchGapError) as caught:
            calls[how]()
        assert (caught.value.first_missing, caught.value.sequence) == (3, 5)
        assert publisher.acknowledged == 2
        assert publisher.ack is None
        with pytest.raises(jetsync.BatchClosedError):
            publisher.add(subject, b"8")
        publisher.close()
        assert stored_in(stream) == [1, 2]

    def test_ok(self, nats_server, unique):
        """
        Scenario 95: the same in ``ok``: the gap is reported, four are stored, and the commit counts
        them, not what the server counts.
        """
        events = []
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            js = client.jetstream()
            stream = fast_stream(js, unique)
            subject = f"{unique}.a"
            publisher = fast(js, gap="ok", on_gap=events.append)
            publisher.add(subject, b"1", msg_id="one")
            publisher.add(subject, b"2")
            lose(publisher, 2)
            publisher.add(subject, b"5")
            publisher.add(subject, b"1", msg_id="one")
            ack = publisher.commit()
            batch = ack.batch_id
            assert ack == BatchAck(unique, 3, batch, 4, lost=2)
            gap = BatchGapEvent(stream=unique, batch_id=batch, first=3, last=4)
            assert events == [gap]
            assert stored_in(stream) == [1, 2, 5]
            told = lambda: [  # noqa: E731
                call["event"]
                for call in recorder.of("jetsync_status")
                if isinstance(call["event"], BatchGapEvent)
            ]
            assert eventually(told) == [gap]
            js.delete_stream(unique)

    def test_on_gap_runs_without_the_lock(self, js, stream):
        """
        It may use the publisher, and if it raises, the publisher goes on.
        """
        subject = f"{stream.name}.a"
        seen = []

        def on_gap(event):
            seen.append((event.first, event.last, publisher.add(subject, b"100")))
            raise LookupError

        publisher = fast(js, gap="ok", on_gap=on_gap)
        publisher.add(subject, b"1")
        lose(publisher, 1)
        publisher.add(subject, b"3")
        eventually(lambda: publisher._link._box.frames)
        publisher.add(subject, b"4")
        assert seen == [(2, 2, 5)]
        ack = publisher.commit()
        assert (ack.size, ack.lost) == (4, 1)
        assert publisher.statistics().callback_errors == 1
        assert stored_in(stream) == [1, 3, 4, 100]

    def test_error_of_one_message(self, js, stream):
        """
        In ``ok`` a refused message is reported with the server's error; in ``fail`` it is the end.
        """
        subject = f"{stream.name}.a"
        events = []
        with fast(js, gap="ok", on_gap=events.append) as publisher:
            publisher.add(subject, b"0")
            publisher.add(subject, b"1", expect=Expect(last_sequence=77))
            publisher.add(subject, b"2")
        assert ranges(events) == [(2, 2)]
        assert isinstance(events[0].error, jetsync.WrongLastSequenceError)
        assert (publisher.ack.size, publisher.ack.lost) == (2, 1)
        strict = fast(js)
        strict.add(subject, b"3")
        strict.add(subject, b"4", expect=Expect(last_sequence=77))
        with pytest.raises(jetsync.WrongLastSequenceError):
            strict.commit(subject, b"5")
        assert strict.acknowledged == 1
        assert stored_in(stream) == [0, 2, 3]

    def test_error_of_the_first_message(self, js, stream):
        """
        In ``fail`` it ends the batch before it began; in ``ok`` it is one as any other.
        """
        subject = f"{stream.name}.a"
        wrong = Expect(last_sequence=77)
        strict = fast(js)
        strict.add(subject, b"0", expect=wrong)
        with pytest.raises(jetsync.WrongLastSequenceError):
            strict.commit()
        events = []
        with fast(js, gap="ok", on_gap=events.append) as publisher:
            publisher.add(subject, b"0", expect=wrong)
            publisher.add(subject, b"1")
        assert ranges(events) == [(1, 1)]
        assert publisher.ack.size == 1
        assert 1 in stored_in(stream)

    def test_error_of_the_commit(self, js, stream):
        """
        In ``ok`` the batch is committed without its last message; in ``fail`` the error is raised.
        """
        subject = f"{stream.name}.a"
        wrong = Expect(last_sequence=77)
        events = []
        publisher = fast(js, gap="ok", on_gap=events.append)
        publisher.add(subject, b"0")
        ack = publisher.commit(subject, b"1", expect=wrong)
        assert (ack.size, ack.lost, ranges(events)) == (1, 1, [(2, 2)])
        strict = fast(js)
        strict.add(subject, b"2")
        with pytest.raises(jetsync.WrongLastSequenceError):
            strict.commit(subject, b"3", expect=wrong)
        for gap in ("ok", "fail"):
            with contextlib.suppress(jetsync.WrongLastSequenceError):
                alone = fast(js, gap=gap).commit(subject, b"4", expect=wrong)
                assert (gap, alone.size, alone.lost, alone.sequence) == ("ok", 0, 1, 0)
        assert stored_in(stream) == [0, 2]

    def test_too_large(self, js, unique):
        """
        A message that the stream finds too large is lost alone, and reported once.
        """
        stream = fast_stream(js, unique, max_msg_size=100)
        events = []
        with fast(js, gap="ok", on_gap=events.append) as publisher:
            publisher.add(f"{unique}.a", b"0")
            publisher.add(f"{unique}.a", bytes(200))
            publisher.add(f"{unique}.a", b"2")
        assert ranges(events) == [(2, 2)]
        assert isinstance(events[0].error, jetsync.MessageTooLargeError)
        assert publisher.ack.size == 2
        strict = fast(js)
        strict.add(f"{unique}.a", b"3")
        strict.add(f"{unique}.a", bytes(200))
        with pytest.raises(jetsync.MessageTooLargeError):
            strict.commit()
        assert stored_in(stream) == [0, 2, 3]
        js.delete_stream(unique)

    def test_full_stream(self, js, unique):
        """
        A stream that is full refuses each message: that many errors neither stall nor add up.
        """
        stream = fast_stream(js, unique, max_msgs=3, discard="new")
        events = []
        with fast(js, gap="ok", on_gap=events.append, flow=10) as publisher:
            publisher.add_many((f"{unique}.a", b"%d" % n) for n in range(500))
        assert (publisher.ack.size, publisher.ack.lost) == (3, 497)
        assert sum(event.last - event.first + 1 for event in events) == 497
        assert {type(event.error) for event in events} == {jetsync.MaxMessagesError}
        assert publisher.statistics().pings == 0
        assert stored_in(stream) == [0, 1, 2]
        strict = fast(js, flow=10)
        with pytest.raises(jetsync.MaxMessagesError):
            strict.add_many((f"{unique}.a", b"%d" % n) for n in range(500))
        js.delete_stream(unique)


class TestLoss:
    def test_connection_in_ok_mode(self, fragile, cut, unique):
        """
        After a cut it goes on, on the next connection; what is not reported lost is stored.
        """
        stream = fast_stream(fragile, unique)
        events = []

        def numbers():
            for number in range(1, 30_001):
                if number % 10_000 == 5000:
                    cut.cut_after(to_server=20_000)
                yield f"{unique}.a", b"%d" % number

        with fast(fragile, gap="ok", on_gap=events.append, timeout=10) as publisher:
            publisher.add_many(numbers())
        ack = publisher.ack
        lost = {n for event in events for n in range(event.first, event.last + 1)}
        assert cut.statistics().cuts >= 3
        assert (ack.size, ack.lost) == (30_000 - len(lost), len(lost))
        stored = stored_in(stream)
        assert len(set(stored)) == len(stored)
        assert set(range(1, 30_001)) - lost == set(stored)
        fragile.delete_stream(unique)

    @pytest.mark.parametrize("call", ["add", "commit"])
    def test_connection_in_fail_mode(self, fragile, cut, unique, call):
        """
        A cut ends the batch, and the error says how much is confirmed.
        """
        stream = fast_stream(fragile, unique)
        publisher = fast(fragile, flow=10)
        for number in range(15):
            publisher.add(f"{unique}.a", b"%d" % number)
        eventually(lambda: stream.info().state.messages == 15)
        cut.cut()
        eventually(lambda: publisher._link._box.lost_epoch)
        calls = {"add": lambda: publisher.add(f"{unique}.a", b"x"), "commit": publisher.commit}
        with pytest.raises(jetsync.PublishOutcomeUnknownError, match="10 of 15"):
            calls[call]()
        with pytest.raises(jetsync.BatchClosedError):
            publisher.commit()
        assert publisher.acknowledged == 10
        fragile.delete_stream(unique)

    @pytest.mark.parametrize("gap", ["ok", "fail"])
    def test_answer_of_the_commit(self, fragile, cut, unique, gap):
        """
        A commit whose answer is lost is not made twice: its outcome is unknown.
        """
        stream = fast_stream(fragile, unique)
        publisher = fast(fragile, gap=gap)
        publisher.add(f"{unique}.a", b"0")
        time.sleep(0.1)
        cut.cut_after(to_client=0)
        with timed(0.0, 3.0), pytest.raises(jetsync.PublishOutcomeUnknownError):
            publisher.commit(f"{unique}.a", b"1")
        assert stored_in(stream) == [0, 1]
        fragile.delete_stream(unique)

    @pytest.mark.parametrize("gap", ["ok", "fail"])
    def test_commit_on_its_way(self, fragile, cut, unique, gap):
        """
        A commit that never arrived is sent again, with its message, once.
        """
        stream = fast_stream(fragile, unique)
        publisher = fast(fragile, gap=gap)
        publisher.add(f"{unique}.a", b"0")
        time.sleep(0.1)
        cut.cut_after(to_server=0)
        with timed(0.0, 3.0):
            ack = publisher.commit(f"{unique}.a", b"1")
        assert (ack.size, ack.lost) == (2, 0)
        assert stored_in(stream) == [0, 1]
        fragile.delete_stream(unique)

    def test_restart_of_the_server(self, victim, fragile, unique):
        """
        A server that has forgotten the batch gets a new one; what was not confirmed is reported.
        """
        stream = fast_stream(fragile, unique, storage="file")
        events = []
        with fast(fragile, gap="ok", on_gap=events.append, flow=10, timeout=15) as publisher:
            for number in range(1, 26):
                publisher.add(f"{unique}.a", b"%d" % number)
            eventually(lambda: stream.info().state.messages == 25)
            victim.restart()
            assert publisher.add(f"{unique}.a", b"26") == 26
            assert publisher.statistics().batches == 2
        assert ranges(events) == [(21, 25)]
        assert isinstance(events[0].error, errors.FastBatchUnknownError)
        assert (publisher.ack.size, publisher.ack.lost) == (21, 5)
        assert publisher.acknowledged == 21
        assert stored_in(stream) == list(range(1, 27))
        fragile.delete_stream(unique)

    def test_no_connection(self, fragile, cut, unique):
        """
        Without a connection a call ends by its deadline, and says so.
        """
        fast_stream(fragile, unique)
        publisher = fast(fragile, gap="ok")
        publisher.add(f"{unique}.a", b"0")
        cut.refuse()
        cut.cut()
        eventually(lambda: publisher._link._box.lost_epoch)
        with timed(0.3, 1.0), pytest.raises(jetsync.DisconnectedError):
            publisher.add(f"{unique}.a", b"1", timeout=0.4)
        with timed(0.3, 1.0), pytest.raises(jetsync.DisconnectedError):
            fast(fragile).add(f"{unique}.a", b"1", timeout=0.4)
        cut.accept()
        assert publisher.add(f"{unique}.a", b"1") == 2
        assert publisher.commit().size == 2
        fragile.delete_stream(unique)

    def test_client_closed(self, victim, unique):
        """
        A client that is closed meanwhile ends it, and what is not confirmed is unknown.
        """
        with jetsync.connect(victim.url) as client:
            js = client.jetstream()
            fast_stream(js, unique)
            publisher = fast(js)
            publisher.add(f"{unique}.a", b"0")
        with pytest.raises(jetsync.ConnectionClosedError):
            publisher.add(f"{unique}.a", b"1")
        with pytest.raises((jetsync.ConnectionClosedError, jetsync.PublishOutcomeUnknownError)):
            publisher.close()
        assert not publisher.acknowledged

    def test_forgotten_commit(self, js, stream, monkeypatch):
        """
        If the server forgot the batch, a commit without a message has an outcome that is unknown.
        """
        monkeypatch.setattr(_fast_link, "QUIET", 1e9)
        publisher = fast(js, gap="ok")
        publisher.add(f"{stream.name}.a", b"0")
        end_behind_its_back(js, publisher, 2)
        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            publisher.commit()

    def test_forgotten(self, js, stream):
        """
        If the server forgot the batch, ``ok`` begins another one, and ``fail`` ends.
        """
        subject = f"{stream.name}.a"
        events = []
        publisher = fast(js, gap="ok", on_gap=events.append)
        publisher.add(subject, b"0")
        end_behind_its_back(js, publisher, 2)
        publisher.add(subject, b"1")
        eventually(lambda: publisher._link._box.frames)
        publisher.add(subject, b"2")
        ack = publisher.commit()
        assert (ack.size, ack.lost, ranges(events)) == (1, 2, [(1, 2)])
        strict = fast(js)
        strict.add(subject, b"3")
        end_behind_its_back(js, strict, 2)
        strict.add(subject, b"4")
        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            strict.commit()
        assert stored_in(stream) == [0, 2, 3]


def end_behind_its_back(js, publisher, seq):
    """
    End the batch of a publisher on the server; the answer goes elsewhere.
    """
    head, gap, _ = publisher._link.engine.prefix.decode().rsplit(".", 2)
    tail = head.split(".")[-2:]
    client = js._session.core
    reply = ".".join(["nobody", *tail, gap, str(seq)]).encode() + SUFFIX[3]
    subject = publisher._link.engine.subject.encode()
    client.lane.write(b"PUB %b %b 0\r\n\r\n" % (subject, reply), client.deadline(5))
    client.flush(client.deadline(5))


class TestQuiet:
    def test_kept_alive(self, js, stream):
        """
        A publisher whose user takes more than 10 s goes on: it is kept alive meanwhile.
        """
        subject = f"{stream.name}.a"
        with fast(js, gap="ok") as lenient, fast(js, gap="fail") as strict:
            for publisher in (lenient, strict):
                publisher.add(subject, b"0")
            time.sleep(10.6)
            for publisher in (lenient, strict):
                publisher.add(subject, b"1")
        for publisher in (lenient, strict):
            assert (publisher.ack.size, publisher.ack.lost) == (2, 0)
            assert publisher.statistics().pings in {1, 2, 3}
        assert stored_in(stream) == [0, 0, 1, 1]

    def test_forgotten_publisher(self, client, js, stream, monkeypatch):
        """
        A publisher that nobody holds is not kept alive, and leaves its subscription.
        """
        monkeypatch.setattr(_fast_link, "TICK", 0.05)
        monkeypatch.setattr(_fast_link, "QUIET", 0.1)
        before = subscriptions(client)
        held = [fast(js)]
        held[0].add(f"{stream.name}.a", b"0")
        eventually(lambda: held[0].statistics().pings >= 3)
        gone = weakref.ref(held[0]._link)
        held.clear()
        gc.collect()
        eventually(lambda: gone() is None)
        eventually(lambda: subscriptions(client) == before)


class TestHooks:
    def test_commit_is_wrapped(self, nats_server, unique):
        """
        Wrapper hooks run around the commit, with what is known of the batch.
        """
        recorder = HookRecorder("jetsync_batch_commit")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            js = client.jetstream()
            fast_stream(js, unique)
            with fast(js) as publisher:
                publisher.add_many((f"{unique}.a", b"x") for _ in range(20))
            fast(js).commit(f"{unique}.a", b"x")
            with fast(js):
                pass
            js.delete_stream(unique)
        first, second = recorder.of("jetsync_batch_commit")
        operation = first["operation"]
        assert (operation.kind, operation.size, operation.subject) == ("fast", 20, None)
        assert (operation.stream, operation.batch_id) == (unique, publisher.ack.batch_id)
        assert (second["operation"].size, second["operation"].subject) == (1, f"{unique}.a")
        assert first.finished
        assert second.finished

    def test_messages_are_prepared(self, nats_server, unique):
        """
        Plugins see each message before it is sent, and may refuse it.
        """

        class Stamp:
            name = "stamp"

            @hookimpl
            def jetsync_prepare_message(self, message):
                if message.data == b"no":
                    raise ValueError("no")
                return attrs.evolve(message, headers={"Stamp": "yes"})

        with jetsync.connect(nats_server.url, plugins=[Stamp()]) as client:
            js = client.jetstream()
            stream = fast_stream(js, unique)
            with fast(js) as publisher:
                publisher.add(f"{unique}.a", b"0")
                publisher.add_many((f"{unique}.a", b"1") for _ in range(3))
                with pytest.raises(jetsync.PluginError):
                    publisher.add(f"{unique}.a", b"no")
                publisher.commit(f"{unique}.a", b"2")
            assert publisher.ack.size == 5
            headers = [stream.get_message(n).headers["Stamp"] for n in range(1, 6)]
            assert headers == ["yes"] * 5
            js.delete_stream(unique)


@pytest.mark.cluster
class TestCluster:
    def test_leader_steps_down(self):
        """
        While there is no leader messages are lost; ``ok`` reports them and goes on, ``fail`` ends.
        """
        with (
            DevServer(cluster=3) as servers,
            jetsync.connect(servers.urls, reconnect_wait=0.05) as client,
        ):
            js = client.jetstream()
            stream = fast_stream(js, "HA", num_replicas=3)
            events = []
            stop = threading.Event()

            def numbers():
                for number in itertools.count(1):
                    if stop.is_set():
                        return
                    yield "HA.a", b"%d" % number

            with (
                fast(js, gap="ok", on_gap=events.append, timeout=20) as publisher,
                ThreadPoolExecutor(1) as pool,
            ):
                running = pool.submit(publisher.add_many, numbers())
                try:
                    for _ in range(3):
                        self._wait_for_more(publisher, running)
                        self._step_down(client, servers)
                    self._wait_for_more(publisher, running)
                finally:
                    # Without it the thread would go on for ever, and the block not be left.
                    stop.set()
                count = running.result(30)
            ack = publisher.ack
            lost = {n for event in events for n in range(event.first, event.last + 1)}
            assert (ack.size, ack.lost) == (count - len(lost), len(lost))
            stored = self._read(servers, stream)
            assert len(set(stored)) == len(stored)
            assert set(stored) >= set(range(1, count + 1)) - lost
            self._fail(servers, js)

    def _wait_for_more(self, publisher, running):
        """Wait until 2,000 more messages are acknowledged, or adding has failed."""
        enough = publisher.acknowledged + 2000
        eventually(lambda: running.done() or publisher.acknowledged > enough, 30)
        if running.done():
            running.result()

    def _step_down(self, client, servers):
        """Have the stream's leader step down; one that is not chosen yet cannot."""

        def stepped():
            servers.wait_stream_leader("HA", timeout=30)
            with contextlib.suppress(jetsync.RequestTimeoutError, jetsync.NoRespondersError):
                answer = client.request("$JS.API.STREAM.LEADER.STEPDOWN.HA", timeout=5)
                return json.loads(answer.data).get("success")

        eventually(stepped, 30)

    def _fail(self, servers, js):
        """The same with gaps that fail, and the leader killed."""
        strict = fast(js, timeout=20)
        stream = js.stream("HA")
        stream.purge()
        try:
            strict.add_many(self._over_a_kill(servers, stream, strict))
        except (jetsync.BatchGapError, jetsync.PublishOutcomeUnknownError):
            with pytest.raises(jetsync.BatchClosedError):
                strict.add("HA.a", b"0")
        else:
            # Replicas know of the batch: if all in flight had reached one, it goes on.
            strict.close()
            assert strict.ack.size == strict.statistics().added
        stored = self._read(servers, stream)
        assert stored == list(range(1, len(stored) + 1))
        assert len(stored) >= strict.acknowledged > 0

    def _read(self, servers, stream):
        """What the stream has, once the cluster can tell; a replica may lag behind its leader."""
        end = time.monotonic() + 40
        while time.monotonic() < end:
            servers.wait_stream_leader("HA", timeout=30)
            with contextlib.suppress(jetsync.RequestTimeoutError, jetsync.ApiError):
                stored = stored_in(stream)
                if len(stored) == stream.info().state.messages:
                    return stored
        pytest.fail("the cluster cannot tell what it has")

    def _over_a_kill(self, servers, stream, publisher):
        """Messages, their leader's death, and more if the batch takes them."""

        def leader():
            # Monitoring may name one that has stepped down; this is the leader's own word.
            with contextlib.suppress(jetsync.RequestTimeoutError, jetsync.ApiError):
                found = stream.info(timeout=2).cluster
                return found and found.leader

        def messages():
            return (("HA.a", b"%d" % number) for number in numbers)

        numbers = itertools.count(1)
        yield from itertools.islice(messages(), 5000)
        servers.kill(int(eventually(leader, 30).rpartition("-")[2]))
        enough = publisher.acknowledged + 5000
        yield from itertools.takewhile(lambda _: publisher.acknowledged < enough, messages())
