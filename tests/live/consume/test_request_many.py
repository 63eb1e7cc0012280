"""
Requests with many answers, on a real server.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import jetsync
from helpers.interrupts import interrupted_at
from helpers.waiting import blocked, eventually, timed
from jetsync.consume import subscription as module
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy, HookRecorder


class Responders:
    """
    Subscriptions of another client that answer each request, once or several times.
    """

    def __init__(self, url, subject):
        self.client = jetsync.connect(url)
        self.subject = subject
        self._threads = []

    def add(self, count=1, answer=lambda number, message: [b"%d" % number]):
        """
        Add responders. *answer* returns the payloads of a responder for a request.
        """
        for _ in range(count):
            self._begin(len(self._threads), answer)
        self.client.flush()

    def _begin(self, number, answer):
        asked = self.client.subscribe(self.subject)

        def respond():
            with contextlib.suppress(jetsync.ConnectionClosedError):
                for message in asked:
                    for payload in answer(number, message):
                        self.client.publish(message.reply, payload)

        self._threads.append(threading.Thread(target=respond))
        self._threads[-1].start()

    def close(self):
        self.client.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def responders(nats_server, unique):
    """
    Responders to the test's subject, none at first.
    """
    made = Responders(nats_server.url, unique)
    yield made
    made.close()


class Asked:
    """
    A subscription of another client that gets the requests, so that the test can answer by hand.
    """

    def __init__(self, client, subject):
        self.client = client
        self._requests = client.subscribe(subject)
        client.flush()

    def next(self):
        """Return the next request."""
        return self._requests.next(timeout=20)

    def answer(self, *payloads, reply=None):
        """Answer the next request, or the one with that reply subject; return the subject."""
        reply = self.next().reply if reply is None else reply
        for payload in payloads:
            self.client.publish(reply, payload)
        self.client.flush(timeout=20)
        return reply


@pytest.fixture
def asked(nats_server, unique):
    """
    A client that gets the requests of the test.
    """
    with jetsync.connect(nats_server.url) as other:
        yield Asked(other, unique)


def take_one(answers, taken):
    """Append the next answer to a list; an answer that was returned is in the list."""
    for each in answers:
        taken.append(each)
        break


def open_subscriptions(client):
    """Return how many subscriptions a client has, without the one for replies."""
    return client.statistics().subscriptions - 1


class TestEnds:
    """
    What ends an iteration, and the reason that it gives.
    """

    @pytest.mark.parametrize("count", [1, 3, 100])
    def test_the_count(self, client, responders, count):
        """
        All responders are heard, and the iteration ends with the last wanted answer.
        """
        responders.add(count)
        answers = client.request_many(responders.subject, timeout=30, max_messages=count)
        assert {int(each.data) for each in answers} == set(range(count))
        assert (answers.count, answers.reason) == (count, "count")
        assert open_subscriptions(client) == 0
        assert list(answers) == []

    def test_the_stall(self, client, responders):
        """
        If no answer follows within the stall, the iteration ends long before the timeout.
        """
        responders.add(100)
        with timed(0.3, 20.0):
            answers = client.request_many(responders.subject, timeout=60, stall=0.3)
            assert len(list(answers)) == 100
        assert (answers.count, answers.reason) == (100, "stall")
        assert open_subscriptions(client) == 0

    def test_the_timeout(self, client, responders):
        """
        Without another limit, the iteration ends at the timeout.
        """
        responders.add(5)
        with timed(0.5, 1.5):
            answers = client.request_many(responders.subject, timeout=0.5)
            assert answers.reason is None
            assert len(list(answers)) == 5
        assert answers.reason == "timeout"
        assert open_subscriptions(client) == 0

    def test_a_late_first_answer(self, client, asked, unique):
        """
        The stall does not limit the wait for the first answer.
        """
        answers = client.request_many(unique, timeout=30, stall=0.05)
        message = asked.next()
        time.sleep(0.3)  # Longer than the stall.
        asked.answer(b"late", reply=message.reply)
        assert [each.data for each in answers] == [b"late"]
        assert answers.reason == "stall"

    def test_a_stall_as_long_as_the_timeout(self, client, responders):
        """
        A stall that reaches beyond the timeout does not extend it.
        """
        responders.add(1)
        with timed(0.5, 1.5):
            answers = client.request_many(responders.subject, timeout=0.5, stall=60)
            assert len(list(answers)) == 1
        assert answers.reason == "timeout"

    @pytest.mark.parametrize("payloads", [[b""], [b"1", b"2", b"", b"3"]])
    def test_the_sentinel(self, client, asked, unique, payloads):
        """
        The message for which the function returns true ends the iteration, and is not returned.
        """
        before = payloads[: payloads.index(b"")]
        with timed(0.0, 10.0):
            answers = client.request_many(unique, timeout=60, until=lambda each: not each.data)
            asked.answer(*payloads)
            assert [each.data for each in answers] == before
        assert (answers.count, answers.reason) == (len(before), "sentinel")
        assert open_subscriptions(client) == 0

    def test_a_sentinel_that_never_comes(self, client, responders):
        """
        Without the sentinel, another limit ends the iteration.
        """
        responders.add(3)
        answers = client.request_many(
            responders.subject, timeout=30, stall=0.3, until=lambda each: each.data == b"end"
        )
        assert len(list(answers)) == 3
        assert answers.reason == "stall"

    def test_more_answers_than_wanted(self, client, asked, unique):
        """
        The server sends no more answers than wanted, also if none is taken yet.
        """
        before = client.statistics().bytes_in
        with client.request_many(unique, timeout=30, max_messages=2) as answers:
            asked.answer(*[bytes(1000)] * 100)
            client.flush()
            assert len(list(answers)) == 2
        assert answers.reason == "count"
        assert client.statistics().bytes_in - before < 10_000

    def test_a_loop_may_be_left(self, client, responders):
        """
        A loop that is left continues with the next one, and a closed request has no more answers.
        """
        responders.add(3)
        with client.request_many(responders.subject, timeout=30, max_messages=3) as answers:
            for _ in answers:
                break
            assert (answers.count, answers.reason) == (1, None)
            next(answers)
        assert (answers.count, answers.reason) == (2, "closed")
        assert list(answers) == []
        answers.close()
        assert open_subscriptions(client) == 0

    def test_the_last_wanted_answer_unsubscribes(self, client, asked, unique):
        """
        The call that returns the last wanted answer unsubscribes.
        """
        answers = client.request_many(unique, timeout=30, max_messages=1)
        asked.answer(b"1")
        assert next(answers).data == b"1"
        assert answers.reason == "count"
        assert open_subscriptions(client) == 0

    def test_closing_in_another_thread(self, client, asked, unique):
        """
        A thread that waits for an answer stops when another one closes the request.
        """
        with ThreadPoolExecutor(1) as pool:
            answers = client.request_many(unique, timeout=60)
            waiting = pool.submit(list, answers)
            asked.answer(b"1")
            eventually(lambda: answers.count)
            blocked(pool)
            answers.close()
            assert len(waiting.result(20)) == 1
        assert answers.reason == "closed"

    def test_closing_the_client(self, nats_server, asked, unique):
        """
        The close of the client ends the iteration after the answers that have arrived.
        """
        with ThreadPoolExecutor(1) as pool:
            client = jetsync.connect(nats_server.url)
            first, second = (client.request_many(unique, timeout=60) for _ in range(2))
            waiting = pool.submit(list, first)
            asked.answer(b"1")
            asked.answer(b"2", b"3")
            client.flush()
            eventually(lambda: first.count)
            client.close()
            assert [each.data for each in waiting.result(20)] == [b"1"]
        assert [each.data for each in second] == [b"2", b"3"]
        assert (first.reason, second.reason) == ("closed", "closed")

    @pytest.mark.parametrize("count", [0, 2])
    def test_a_lost_connection(self, nats_server, asked, unique, count):
        """
        If the connection is lost, the iteration ends after the answers that had arrived.
        """
        with (
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, reconnect_wait=0.05) as client,
        ):
            answers = client.request_many(unique, timeout=60, max_messages=3)
            reply = asked.answer(*[b"%d" % number for number in range(count)])
            client.flush()
            proxy.cut()
            eventually(lambda: client.statistics().reconnects == 1)
            assert len(list(answers)) == count
            assert answers.reason == "disconnected"
            # A late answer reaches nobody.
            asked.answer(b"late", reply=reply)
            assert open_subscriptions(client) == 0

    def test_a_connection_that_is_cut_in_the_middle(self, nats_server, responders):
        """
        Whenever the connection is cut, the iteration ends, and its reason fits the answers.
        """
        responders.add(100)
        with (
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, reconnect_wait=0.01) as client,
        ):
            for size in range(0, 6000, 300):
                eventually(lambda: client.is_connected)
                proxy.cut_after(to_client=size)
                try:
                    answers = client.request_many(responders.subject, timeout=30, max_messages=100)
                except jetsync.DisconnectedError:
                    continue
                with timed(0.0, 10.0):
                    got = [int(each.data) for each in answers]
                assert len(got) == len(set(got)) == answers.count
                assert answers.reason == ("count" if len(got) == 100 else "disconnected")
            assert open_subscriptions(client) == 0


class TestErrors:
    def test_no_responders(self, client, unique):
        """
        Without responders, the iteration raises at once, and then ends.
        """
        with client.request_many(unique, timeout=60) as answers, timed(0.0, 5.0):
            with pytest.raises(jetsync.NoRespondersError) as caught:
                next(answers)
            assert list(answers) == []
            assert (answers.count, answers.reason) == (0, None)
        assert caught.value.subject == unique
        assert answers.reason is None
        assert open_subscriptions(client) == 0

    def test_a_silent_responder(self, client, asked, unique):
        """
        If there are responders and none answers, the iteration ends without an error.
        """
        answers = client.request_many(unique, timeout=0.2, stall=0.1)
        assert list(answers) == []
        assert (answers.count, answers.reason) == (0, "timeout")

    @pytest.mark.parametrize(
        "arguments",
        [
            {"subject": "a b"},
            {"subject": "a.*"},
            {"data": 5},
            {"headers": {"a b": "c"}},
            {"timeout": -1},
            {"timeout": "1"},
            {"stall": 0},
            {"stall": -1},
            {"stall": 1e12},
            {"stall": "1"},
            {"max_messages": 0},
            {"max_messages": 1.5},
            {"until": 5},
            {"until": b""},
        ],
    )
    def test_wrong_arguments_send_nothing(self, client, unique, arguments):
        """
        Wrong arguments are refused before anything is sent.
        """
        before = client.statistics()
        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
            client.request_many(**{"subject": unique, **arguments})
        assert client.statistics() == before

    def test_too_large_a_request(self, client, unique):
        """
        A request above max_payload is refused here.
        """
        with pytest.raises(jetsync.MaxPayloadError):
            client.request_many(unique, bytes(client.server.max_payload + 1))
        assert open_subscriptions(client) <= 0

    def test_without_a_connection(self, nats_server, unique):
        """
        If the client does not reconnect in time, the call raises that nothing was sent.
        """
        with (
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, reconnect_wait=0.05) as client,
        ):
            client.flush()
            proxy.refuse()
            proxy.cut()
            eventually(lambda: not client.is_connected)
            with timed(0.2, 1.0), pytest.raises(jetsync.DisconnectedError, match="nothing was"):
                client.request_many(unique, timeout=0.2)
            assert open_subscriptions(client) <= 0

    def test_a_closed_client(self, nats_server, unique):
        """
        A closed client sends no request.
        """
        client = jetsync.connect(nats_server.url)
        client.close()
        with pytest.raises(jetsync.ConnectionClosedError):
            client.request_many(unique)

    def test_an_error_of_the_function(self, client, asked, unique):
        """
        An error of the function reaches the caller and ends the iteration.
        """
        answers = client.request_many(unique, timeout=30, until=lambda each: [].pop())
        asked.answer(b"1")
        with pytest.raises(IndexError):
            next(answers)
        assert list(answers) == []
        assert open_subscriptions(client) == 0

    def test_an_error_of_jetsync_in_the_function(self, client, asked, unique):
        """
        An error of another handle that the function uses ends the iteration, too.
        """

        def until(message):
            raise jetsync.SlowConsumerError("other", 1)

        answers = client.request_many(unique, timeout=30, until=until)
        asked.answer(b"1", b"2")
        with pytest.raises(jetsync.SlowConsumerError):
            next(answers)
        assert list(answers) == []
        assert open_subscriptions(client) == 0

    def test_closed_by_the_function(self, client, asked, unique):
        """
        The answer that the function saw is counted, and is the last one.
        """
        answers = client.request_many(unique, timeout=30, until=lambda _: answers.close())
        asked.answer(b"1", b"2")
        assert [answer.data for answer in answers] == [b"1"]
        assert (answers.count, answers.reason) == (1, "closed")

    def test_permissions(self, unique):
        """
        A refused subject raises that nothing was sent, and a refused inbox that it may have been.
        """
        users = [
            {"user": "a", "password": "a", "permissions": {"publish": {"deny": ["no"]}}},
            {"user": "b", "password": "b", "permissions": {"subscribe": {"deny": ["_INBOX.>"]}}},
        ]
        with DevServer(jetstream=False, config={"authorization": {"users": users}}) as server:
            with jetsync.connect(server.url, user="a", password="a") as client:
                with pytest.raises(jetsync.PermissionDeniedError, match="publish") as caught:
                    list(client.request_many("no", timeout=30))
                assert (caught.value.subject, caught.value.sent) == ("no", False)
                with pytest.raises(jetsync.NoRespondersError):
                    list(client.request_many("yes", timeout=30))
                # Later refusals are still assigned to their requests.
                with pytest.raises(jetsync.PermissionDeniedError) as caught:
                    client.request("no", timeout=30)
                assert caught.value.sent is False
                # A refusal of another message does not concern it.
                with client.subscribe("yes") as requests:
                    answers = client.request_many("yes", timeout=30, max_messages=1)
                    reply = requests.next(timeout=20).reply
                    client.publish("no")
                    with pytest.raises(jetsync.PermissionDeniedError):
                        client.flush(timeout=20)
                    client.publish(reply, b"1")
                    assert [each.data for each in answers] == [b"1"]
            with jetsync.connect(server.url, user="b", password="b") as client:
                with pytest.raises(jetsync.PermissionDeniedError, match="subscribe") as caught:
                    list(client.request_many("yes", timeout=30))
                assert caught.value.sent is True

    def test_a_refusal_after_the_end_proves_nothing_about_others(self):
        """
        If a request ends before its refusal, another request to this subject cannot be certain that
        the refusal is its own.
        """
        user = {"user": "a", "password": "a", "permissions": {"publish": {"deny": ["no"]}}}
        with (
            DevServer(jetstream=False, config={"authorization": {"users": [user]}}) as server,
            CutProxy(server.url) as proxy,
            jetsync.connect(proxy.url, user="a", password="a") as client,
            ThreadPoolExecutor(1) as pool,
        ):
            client.flush()
            proxy.pause("to_client")
            client.request_many("no", timeout=60).close()
            waiting = pool.submit(client.request, "no", timeout=60)
            blocked(pool)
            proxy.resume()
            error = waiting.exception(30)
        assert type(error) is jetsync.PermissionDeniedError
        assert error.sent is True


class TestBuffer:
    def test_a_slow_caller_gets_one_error_and_continues(self, nats_server, asked, unique):
        """
        Answers beyond the limit are dropped, the newest first. The iteration raises once with their
        number, and then returns the buffered ones.
        """
        recorder = HookRecorder("jetsync_status")
        total = module.MAX_PENDING + 500
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            answers = client.request_many(unique, timeout=60, stall=0.2)
            asked.answer(*[b"%d" % number for number in range(total)])
            client.flush(timeout=20)
            with pytest.raises(jetsync.SlowConsumerError, match="500 answers to") as caught:
                next(answers)
            assert (caught.value.subject, caught.value.dropped) == (unique, 500)
            assert [int(each.data) for each in answers] == list(range(module.MAX_PENDING))
            assert answers.reason == "stall"
            events = eventually(lambda: len(recorder.calls) == 2 and recorder.calls)
            assert {call["event"].subject for call in events} == {unique}

    def test_answers_that_have_arrived_are_returned_after_the_timeout(self, client, asked, unique):
        """
        A slow caller gets all answers that have arrived before it notices the timeout.
        """
        answers = client.request_many(unique, timeout=0.3, stall=0.1)
        reply = asked.answer(b"1", b"2", b"3")
        assert next(answers).data == b"1"
        time.sleep(0.5)  # Until the timeout is over.
        client.flush()
        assert next(answers).data == b"2"
        asked.answer(b"too late", reply=reply)
        client.flush()
        assert [each.data for each in answers] == [b"3"]
        assert answers.reason == "timeout"

    def test_an_endless_stream_of_answers_ends(self, client, asked, unique):
        """
        If answers arrive faster than they are taken, the iteration ends all the same.
        """
        answers = client.request_many(unique, timeout=0.3)
        reply = asked.answer(b"x")
        with timed(0.3, 10.0):
            for _ in answers:
                asked.answer(b"x", b"x", reply=reply)
                client.flush(timeout=20)
        assert answers.count > 1
        assert answers.reason == "timeout"


class TestUse:
    def test_the_request_arrives_as_given(self, client, asked, unique):
        """
        Payload and headers of the request arrive, and the answers have theirs.
        """
        answers = client.request_many(unique, "täxt", headers={"A": "b"}, max_messages=1)
        message = asked.next()
        assert (message.data, message.headers["A"]) == ("täxt".encode(), "b")
        with jetsync.connect(client.server.url) as other:
            other.publish(message.reply, b"yes", headers={"C": "d"})
            other.flush()
        [got] = answers
        assert (got.data, got.headers["C"]) == (b"yes", "d")
        assert repr(answers) == f"<Answers to {unique!r} count=1 count>"

    def test_requests_at_the_same_time_are_not_mixed_up(self, client, responders):
        """
        Each of eight threads gets the answers to its own requests.
        """
        responders.add(3, lambda number, message: [message.data + b"-%d" % number] * 2)

        def ask(thread):
            for turn in range(20):
                data = b"%d-%d" % (thread, turn)
                with client.request_many(
                    responders.subject, data, timeout=60, max_messages=6
                ) as answers:
                    got = sorted(each.data for each in answers)
                assert got == sorted([data + b"-%d" % number for number in range(3)] * 2)

        with ThreadPoolExecutor(8) as pool:
            for each in [pool.submit(ask, thread) for thread in range(8)]:
                each.result(120)
        assert open_subscriptions(client) == 0

    def test_threads_share_the_answers(self, client, responders):
        """
        Each answer goes to one of the threads that iterate.
        """
        responders.add(100)
        answers = client.request_many(responders.subject, timeout=30, max_messages=100)
        with ThreadPoolExecutor(4) as pool:
            parts = [pool.submit(list, answers) for _ in range(4)]
            got = [int(each.data) for part in parts for each in part.result(30)]
        assert sorted(got) == list(range(100))

    @pytest.mark.parametrize("taken", [0, 1])
    def test_dropping_it_unsubscribes(self, client, asked, unique, taken):
        """
        If the program drops the answers without closing them, jetsync unsubscribes, silently.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answers = client.request_many(unique, timeout=60)
            reply = asked.answer(b"1", b"2")
            for _ in range(taken):
                next(answers)
            del answers
            gc.collect()
        with pytest.raises(jetsync.NoRespondersError):
            client.request(reply, timeout=20)
        assert open_subscriptions(client) == 0

    @pytest.mark.parametrize("until", [None, lambda message: message.data == b"3"])
    def test_ctrl_c_at_any_step(self, nats_server, asked, unique, until):
        """
        After Ctrl-C, the iteration goes on without a gap and counts each answer once.
        """
        outcomes, step, ended = set(), 0, False
        with jetsync.connect(nats_server.url, reconnect_wait=0.01) as client:
            while not ended:
                step += 1
                eventually(lambda: client.is_connected)
                most = 3 if until is None else None
                answers = client.request_many(unique, timeout=60, max_messages=most, until=until)
                asked.answer(b"0", b"1", b"2", *([] if until is None else [b"3"]))
                client.flush()
                got = []
                ended = interrupted_at(step, partial(take_one, answers, got))
                got += answers
                outcomes.add(answers.reason)
                if answers.reason != "disconnected":
                    assert [each.data for each in got] == [b"0", b"1", b"2"], step
                    assert answers.count == 3, step
                assert list(answers) == []
                assert open_subscriptions(client) == 0
        assert ("count" if until is None else "sentinel") in outcomes

    @pytest.mark.parametrize("is_last", [False, True])
    def test_ctrl_c_in_the_function(self, client, asked, unique, is_last):
        """
        If Ctrl-C strikes in the function, another loop calls it with the same answer again.
        """
        seen = []

        def until(message):
            seen.append(message.data)
            if len(seen) == 2:
                raise KeyboardInterrupt
            return is_last and message.data == b"2"

        answers = client.request_many(unique, timeout=60, max_messages=2, until=until)
        asked.answer(b"1", b"2")
        assert next(answers).data == b"1"
        with pytest.raises(KeyboardInterrupt):
            next(answers)
        assert [each.data for each in answers] == ([] if is_last else [b"2"])
        assert seen == [b"1", b"2", b"2"]
        assert answers.reason == ("sentinel" if is_last else "count")
