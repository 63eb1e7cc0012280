"""
Core NATS on a real server: publish, request, subscribe, and their limits.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import threading
import time
import tracemalloc

import pytest

import jetsync
from helpers.connections import connection_of
from helpers.lacking import needs_epoll
from helpers.traffic import sent_nothing
from helpers.waiting import eventually, timed
from jetsync.testing import HookRecorder


def publish_for(client, subject, seconds):
    """
    Publish in bursts for a while; return the number of messages.
    """
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for _ in range(50):
            client.publish(subject, b"x")
        count += 50
        client.flush()
    client.flush()
    return count


@pytest.fixture
def responder(nats_server, unique):
    """
    A service of another client that answers each request with its payload, doubled.
    """
    with jetsync.connect(nats_server.url) as other, other.subscribe(f"{unique}.double") as asked:
        other.flush()

        def answer():
            for message in asked:
                other.publish(message.reply, message.data * 2, headers=message.headers)

        thread = threading.Thread(target=answer)
        thread.start()
        yield asked.subject
        asked.close()
        thread.join(5)


class TestPublish:
    @pytest.mark.parametrize("data", [b"bytes", bytearray(b"array"), memoryview(b"view"), "täxt"])
    def test_every_kind_of_payload_arrives_as_its_bytes(self, client, unique, data):
        """
        Every kind of payload arrives as its bytes; text as UTF-8.
        """
        with client.subscribe(unique) as subscription:
            client.publish(unique, data)
            message = subscription.next(timeout=5)
        expected = data.encode() if isinstance(data, str) else bytes(data)
        assert (message.data, message.subject, message.reply) == (expected, unique, "")

    def test_buffers_may_be_reused(self, client, unique):
        """
        A buffer may be changed as soon as publish has returned.
        """
        data = bytearray(b"first")
        with client.subscribe(unique) as subscription:
            client.publish(unique, data)
            data[:] = b"later"
            assert subscription.next(timeout=5).data == b"first"

    def test_reply_and_headers(self, client, unique):
        """
        Reply subject and headers arrive, and the caller's headers stay unchanged.
        """
        headers = {"A": ["1", "2"]}
        with client.subscribe(unique) as subscription:
            client.publish(unique, b"x", headers=headers, reply=f"{unique}.reply")
            message = subscription.next(timeout=5)
        assert (message.reply, message.headers.get_all("A")) == (f"{unique}.reply", ["1", "2"])
        assert headers == {"A": ["1", "2"]}

    @pytest.mark.parametrize("subject", ["", "a b", "a..b", ".a", "a.", "a.*", "a.>", "a\r\nPING"])
    def test_a_bad_subject_sends_nothing(self, client, subject):
        """
        An invalid subject is refused before anything is sent.
        """
        before = client.statistics().bytes_out
        for call in (client.publish, client.request, client.jetstream().publish):
            with pytest.raises(jetsync.InvalidSubjectError):
                call(subject, b"")
        assert sent_nothing(client, before)

    def test_too_large_a_message_is_refused_here(self, client, js, stream):
        """
        One byte more than max_payload is a local error, and the connection stays.
        """
        limit = client.server.max_payload
        subject = f"{stream.name}.a"
        for call in (client.publish, client.request, js.publish):
            with pytest.raises(jetsync.MaxPayloadError) as caught:
                call(subject, b"x" * (limit + 1))
            assert (caught.value.size, caught.value.limit) == (limit + 1, limit)
        assert js.publish(subject, b"x" * limit).sequence == 1
        assert client.statistics().reconnects == 0

    def test_headers_and_payload_share_max_payload(self, client, js, stream):
        """
        Headers and payload together may be as large as max_payload, and no larger.
        """
        limit = client.server.max_payload
        subject = f"{stream.name}.a"
        block = len("NATS/1.0\r\nA: b\r\n\r\n")
        for call in (client.publish, client.request, js.publish):
            with pytest.raises(jetsync.MaxPayloadError) as caught:
                call(subject, b"x" * (limit - block + 1), headers={"A": "b"})
            assert caught.value.size == limit + 1
        assert js.publish(subject, b"x" * (limit - block), headers={"A": "b"}).sequence == 1
        with pytest.raises(jetsync.MaxPayloadError):
            client.publish(subject, headers={"A": "b" * limit})
        client.flush()
        assert client.statistics().reconnects == 0


class TestRequest:
    def test_the_reply_is_returned(self, client, responder):
        """
        A request returns payload and headers of the first reply.
        """
        reply = client.request(responder, b"ab", headers={"K": "v"}, timeout=5)
        assert (reply.data, reply.headers["K"]) == (b"abab", "v")

    def test_many_at_once_are_not_mixed_up(self, client, responder):
        """
        Each of sixteen threads gets the answers to its own requests.
        """

        def ask(number):
            data = [b"%d-%d;" % (number, turn) for turn in range(50)]
            return [client.request(responder, one, timeout=20).data for one in data] == [
                one * 2 for one in data
            ]

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            assert list(pool.map(ask, range(16))) == [True] * 16
        assert client.statistics().requests_in_flight == 0

    def test_a_request_without_responders_raises_at_once(self, client, unique):
        """
        Without responders, NoRespondersError with the subject is raised at once.
        """
        with timed(0.0, 1.0), pytest.raises(jetsync.NoRespondersError) as caught:
            client.request(unique, timeout=5)
        assert caught.value.subject == unique

    def test_a_late_answer_to_a_request_is_dropped(self, client, unique):
        """
        Without an answer, RequestTimeoutError is raised after the timeout; a late answer is
        dropped.
        """
        with client.subscribe(unique) as subscription:
            with pytest.raises(jetsync.RequestTimeoutError) as caught:
                client.request(unique, timeout=0.2)
            assert (caught.value.subject, caught.value.timeout) == (unique, 0.2)
            client.publish(subscription.next(timeout=5).reply, b"late")
            client.flush()
        assert client.statistics().requests_in_flight == 0
        with pytest.raises(jetsync.NoRespondersError):
            client.request(unique, timeout=5)

    @needs_epoll
    def test_after_an_ended_subscription(self, client, unique):
        """
        A request is sent after the end of an earlier subscription of its thread, even if another
        thread was writing then and the loop is busy. So the server knows that nothing listens.
        """
        outbox = connection_of(client).lane.outbox
        held, release, idle = threading.Event(), threading.Event(), threading.Event()

        def write():
            with outbox.write_lock:
                held.set()
                release.wait(30)

        subscription = client.subscribe(unique)
        client.flush()
        outbox._loop.call_soon_threadsafe(idle.wait, 30)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert held.wait(30)
            subscription.close()
            release.set()
            writer.join()
            with pytest.raises(jetsync.NoRespondersError):
                client.request(unique, timeout=20)
        finally:
            release.set()
            idle.set()


class TestSubscribe:
    def test_messages_come_in_order(self, client, unique):
        """
        Messages of one publisher arrive in order, also through wildcards.
        """
        with client.subscribe(f"{unique}.*") as star, client.subscribe(f"{unique}.>") as rest:
            for number in range(1000):
                client.publish(f"{unique}.a", b"%d" % number)
            expected = [b"%d" % number for number in range(1000)]
            assert [star.next(timeout=5).data for _ in range(1000)] == expected
            assert [rest.next(timeout=5).data for _ in range(1000)] == expected

    def test_next_times_out(self, client, unique):
        """
        next() returns None after its timeout, and with 0 at once.
        """
        with client.subscribe(unique) as subscription:
            with timed(0.2, 0.7):
                assert subscription.next(timeout=0.2) is None
            assert subscription.next(timeout=0) is None
            client.publish(unique, b"1")
            client.flush()
            assert subscription.next(timeout=0).data == b"1"

    def test_closing_a_shared_subscription_raises_nothing_unexpected(self, client, unique):
        """
        Threads that take messages while another one closes the subscription get no unexpected
        error.
        """

        def take(subscription):
            with contextlib.suppress(jetsync.HandleClosedError):
                while True:
                    assert subscription.next(timeout=10) is not None

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for _ in range(30):
                subscription = client.subscribe(unique)
                client.flush()
                taking = [pool.submit(take, subscription) for _ in range(3)]
                for number in range(20):
                    client.publish(unique, b"%d" % number)
                client.flush()
                subscription.close()
                assert [each.result(5) for each in taking] == [None] * 3

    def test_closing_ends_the_iteration(self, client, unique):
        """
        An iterating thread stops, next() raises that the subscription is closed, and the server has
        removed it.
        """
        subscription = client.subscribe(unique)
        got = []
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            iterating = pool.submit(got.extend, subscription)
            client.publish(unique, b"1")
            eventually(lambda: got)
            subscription.close()
            iterating.result(5)
        assert [message.data for message in got] == [b"1"]
        with pytest.raises(jetsync.HandleClosedError):
            subscription.next(timeout=5)
        subscription.close()
        with pytest.raises(jetsync.NoRespondersError):
            client.request(unique, timeout=5)

    def test_next_on_a_closed_client(self, nats_server, client, unique):
        """
        Messages that have arrived can still be taken, and then next() raises that it is closed.
        """
        with jetsync.connect(nats_server.url) as other:
            subscription = other.subscribe(unique)
            other.flush()
            client.publish(unique, b"1")
            eventually(lambda: subscription.pending)
        assert subscription.next(timeout=0).data == b"1"
        with pytest.raises(jetsync.ConnectionClosedError):
            subscription.next(timeout=5)

    def test_draining_keeps_buffered_messages(self, client, unique):
        """
        After drain() the buffered messages can be taken, and then the iteration ends.
        """
        subscription = client.subscribe(unique)
        for number in range(10):
            client.publish(unique, b"%d" % number)
        client.flush()
        subscription.drain()
        client.publish(unique, b"too late")
        client.flush()
        assert [message.data for message in subscription] == [b"%d" % n for n in range(10)]

    def test_a_drain_ends_when_the_client_closes(self, nats_server, unique):
        """
        A drain that waits for messages to be taken ends if another thread closes the client.
        """
        with (
            jetsync.connect(nats_server.url) as client,
            concurrent.futures.ThreadPoolExecutor(1) as pool,
        ):
            subscription = client.subscribe(unique)
            client.publish(unique)
            eventually(lambda: subscription.pending)
            call = pool.submit(client.drain, timeout=60)
            # It does not look for messages before it has unsubscribed.
            eventually(lambda: " closed " in repr(subscription))
            client.close()
            assert call.exception(30) is None

    def test_draining_a_client_loses_nothing(self, nats_server, client, unique):
        """
        A queue group member that drains gets all messages that the server sent it before it left.
        """
        for _ in range(5):
            with (
                concurrent.futures.ThreadPoolExecutor(3) as pool,
                jetsync.connect(nats_server.url) as leaving,
                client.subscribe(unique, queue="q") as staying,
            ):
                parts = [pool.submit(list, leaving.subscribe(unique, queue="q"))]
                leaving.flush()
                before = leaving.statistics().bytes_in
                parts.append(pool.submit(list, staying))
                sent = pool.submit(publish_for, client, unique, 0.2)
                eventually(lambda at=before: leaving.statistics().bytes_in > at)
                leaving.drain()
                count = sent.result(5)
                client.flush()
                staying.drain()
                assert sum(len(part.result(5)) for part in parts) == count
                assert leaving.statistics().strays == 0

    def test_threads_share_a_subscription(self, client, unique):
        """
        Each message goes to one of the threads that take.
        """
        subscription = client.subscribe(unique)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            parts = [pool.submit(list, subscription) for _ in range(4)]
            for number in range(400):
                client.publish(unique, b"%d" % number)
            client.flush()
            eventually(lambda: not subscription.pending)
            subscription.drain()
            got = [int(message.data) for part in parts for message in part.result(5)]
        assert sorted(got) == list(range(400))

    def test_queue_groups_share_the_messages(self, nats_server, client, unique):
        """
        Each message goes to one member of each group, and to every subscription without a group.
        """
        with jetsync.connect(nats_server.url) as other:
            members = [client.subscribe(unique, queue="q"), other.subscribe(unique, queue="q")]
            alone = [other.subscribe(unique, queue="r"), other.subscribe(unique)]
            other.flush()
            client.flush()
            for number in range(200):
                client.publish(unique, b"%d" % number)
            client.flush()
            other.flush()
            counts = [subscription.pending for subscription in (*members, *alone)]
            assert counts[2:] == [200, 200]
            assert sum(counts[:2]) == 200
            assert min(counts[:2]) > 20
            taken = collections.Counter(
                member.next(timeout=1).data for member in members for _ in range(member.pending)
            )
            assert taken == collections.Counter(b"%d" % number for number in range(200))
            members[0].close()

    @pytest.mark.parametrize("is_dropped", [False, True])
    @pytest.mark.filterwarnings("ignore:.*dropped:ResourceWarning")
    def test_a_queue_group_member_leaves_at_once(self, client, unique, monkeypatch, is_dropped):
        """
        The server learns at once that a member was closed or dropped, for the sake of the others.
        """
        posted = []
        outbox = connection_of(client).lane.outbox
        member = client.subscribe(unique, queue="q")
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "post_nowait", lambda block, **how: posted.append((block, how)))
            if not is_dropped:
                member.close()
            del member
        assert [(block[:5], how) for block, how in posted] == [(b"UNSUB", {"is_urgent": True})]

    def test_without_echo_own_messages_do_not_come_back(self, nats_server, client, unique):
        """
        With echo=False, a client gets only messages of other clients.
        """
        with (
            jetsync.connect(nats_server.url, echo=False) as quiet,
            quiet.subscribe(unique) as subscription,
        ):
            quiet.publish(unique, b"own")
            quiet.flush()
            client.publish(unique, b"other")
            assert subscription.next(timeout=5).data == b"other"
            assert subscription.next(timeout=0) is None

    def test_a_slow_consumer_gets_one_error_and_continues(self, nats_server, unique, caplog):
        """
        Messages beyond the limit are dropped, the newest first. The next call raises once with
        their number, and later calls return the buffered messages.
        """
        recorder = HookRecorder("jetsync_status")
        with (
            jetsync.connect(nats_server.url, plugins=[recorder]) as client,
            client.subscribe(unique, max_pending=100) as subscription,
            caplog.at_level("WARNING", "jetsync.subscription"),
        ):
            for number in range(1000):
                client.publish(unique, b"%d" % number)
            client.flush(timeout=20)
            assert (subscription.pending, subscription.dropped) == (100, 900)
            with pytest.raises(jetsync.SlowConsumerError) as caught:
                subscription.next(timeout=0)
            assert (caught.value.subject, caught.value.dropped) == (unique, 900)
            assert [subscription.next(timeout=0).data for _ in range(100)] == [
                b"%d" % number for number in range(100)
            ]
            assert subscription.next(timeout=0) is None
            for number in range(101):
                client.publish(unique, b"%d" % number)
            client.flush(timeout=20)
            with pytest.raises(jetsync.SlowConsumerError) as caught:
                next(subscription)
            assert (caught.value.dropped, subscription.dropped) == (1, 901)
            assert next(subscription).data == b"0"
            events = eventually(
                lambda: len(recorder.calls) == 4 and [call["event"] for call in recorder.calls]
            )
            assert {(event.kind.value, event.subject) for event in events} == {
                ("slow_consumer", unique)
            }
            assert [events[1].dropped, events[3].dropped] == [900, 1]
            told = [record.fields["subject"] for record in caplog.records]
            assert told == [unique] * 2
            assert caplog.records[1].fields["dropped"] == 1
            assert client.statistics().reconnects == 0

    def test_the_buffer_is_limited_in_bytes(self, nats_server, unique):
        """
        A subscription that is not read keeps no more bytes than its limit.
        """
        payload = bytes(1 << 20)
        tracemalloc.start()
        try:
            with (
                jetsync.connect(nats_server.url) as client,
                client.subscribe(unique, max_pending_bytes=4 << 20) as subscription,
            ):
                # A message may not be larger than the server's max_payload, headers included.
                for _ in range(100):
                    client.publish(unique, payload[:-100], headers={"A": "b"})
                    # The server disconnects a client once it has to buffer 64 MiB for it.
                    client.flush(timeout=20)
                assert subscription.pending == 4
                assert subscription.dropped == 96
                current, peak = tracemalloc.get_traced_memory()
                assert current < 10 << 20
                assert peak < 30 << 20
                with pytest.raises(jetsync.SlowConsumerError, match="96 messages"):
                    subscription.next(timeout=0)
                assert len([subscription.next(timeout=0) for _ in range(4)]) == 4
                client.publish(unique, b"more")
                assert subscription.next(timeout=5).data == b"more"
        finally:
            tracemalloc.stop()

    def test_one_message_is_always_kept(self, client, unique):
        """
        A message that is larger than the limit is delivered if the buffer is empty.
        """
        with client.subscribe(unique, max_pending_bytes=10) as subscription:
            client.publish(unique, b"x" * 100)
            assert subscription.next(timeout=5).data == b"x" * 100

    @pytest.mark.parametrize("limit", [{"max_pending": 0}, {"max_pending_bytes": -1}])
    def test_a_bad_limit(self, client, unique, limit):
        """
        A limit of a subscription is at least one.
        """
        with pytest.raises(jetsync.InvalidArgumentError):
            client.subscribe(unique, **limit)

    @pytest.mark.parametrize("subject", ["", "a b", "a..b", "a.>.b", "a\r\n"])
    def test_a_bad_filter_sends_nothing(self, client, subject):
        """
        Invalid subjects are refused before anything is sent.
        """
        before = client.statistics()
        with pytest.raises(jetsync.InvalidArgumentError):
            client.subscribe(subject)
        assert client.statistics() == before

    def test_a_queue_group_with_a_wildcard(self, client, unique):
        """
        The name of a queue group is one word. Dots and wildcards have no meaning in it.
        """
        with client.subscribe(unique, queue="a.*.>") as member, client.subscribe(unique, queue="é"):
            client.publish(unique, b"x")
            assert member.next(timeout=20).data == b"x"
