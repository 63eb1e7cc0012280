"""
Fast ingest with failures at bad moments: Ctrl-C, other servers, other threads.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from unittest.mock import Mock

import attrs
import pytest

import jetsync
from helpers.connections import redirect
from helpers.fast_publishers import fast, has_lost_connection, ranges, subscriptions, unread
from helpers.streams import fast_stream, payloads
from helpers.waiting import eventually, timed
from jetsync import OutboundMessage, errors
from jetsync._io.mailbox import KEPT_DENIALS
from jetsync._proto.fastingest import FastIngest, Phase
from jetsync.devserver import DevServer
from jetsync.hookspecs import hookimpl
from jetsync.publish import fast_link as _fast_link
from jetsync.testing import CutProxy


def interrupt(monkeypatch, publisher, *, times=1, error=KeyboardInterrupt):
    """
    Raise *error* while the publisher waits for the server.
    """
    lane = publisher._link._lane
    wait, left = lane.wait, [None] * times

    def waits(box, deadline, *until):
        if left and deadline.remaining() and box is publisher._link._box:
            left.pop()
            raise error
        return wait(box, deadline, *until)

    monkeypatch.setattr(lane, "wait", waits)


class TestLostCommit:
    def test_no_next_connection(self, fragile, cut, unique):
        """
        A commit that was sent is never reported as not sent, even if there is no next connection.
        """
        stream = fast_stream(fragile, unique)
        publisher = fast(fragile, gap="ok")
        publisher.add(f"{unique}.a", b"0")
        cut.cut_after(to_client=0)
        cut.refuse()
        with timed(0.0, 5.0), pytest.raises(jetsync.PublishOutcomeUnknownError):
            publisher.commit(f"{unique}.a", b"1", timeout=4)
        with timed(0.0, 1.0):
            publisher.close()
            with pytest.raises(jetsync.BatchClosedError):
                publisher.commit()
        cut.accept()
        assert payloads(stream) == [b"0", b"1"]
        fragile.delete_stream(unique)

    def test_a_lookup_without_a_leader(self, js, stream, monkeypatch):
        """
        A lookup that the server cannot answer yet is repeated; without JetStream it fails at once.
        """
        streams, answers = type(js._context.streams), [errors.TemporarilyUnavailableError()] * 2
        find = streams.find

        def find_later(*arguments, **options):
            if answers:
                raise answers.pop()
            return find(*arguments, **options)

        monkeypatch.setattr(streams, "find", find_later)
        with fast(js) as publisher:
            publisher.add(f"{stream.name}.a", b"0")
        assert (answers, payloads(stream)) == ([], [b"0"])
        answers += [errors.JetStreamNotEnabledError()] * 2
        with pytest.raises(jetsync.JetStreamNotEnabledError):
            fast(js).add(f"{stream.name}.a", b"1")
        assert len(answers) == 1

    def test_ctrl_c_in_a_commit_leaves_its_outcome_unknown(self, client, js, stream, monkeypatch):
        """
        Ctrl-C in a commit closes the publisher and leaves its outcome unknown, which is raised
        once.
        """
        before = subscriptions(client)
        publisher = fast(js)
        publisher.add(f"{stream.name}.a", b"0")
        interrupt(monkeypatch, publisher)
        with pytest.raises(KeyboardInterrupt):
            publisher.commit()
        with timed(0.0, 1.0):
            with pytest.raises(jetsync.PublishOutcomeUnknownError, match="interrupted"):
                publisher.add(f"{stream.name}.a", b"1")
            assert subscriptions(client) == before
            with pytest.raises(jetsync.BatchClosedError):
                publisher.add(f"{stream.name}.a", b"1")
            publisher.close()
        assert payloads(stream) == [b"0"]

    def test_failure_is_not_kept(self, js, stream, monkeypatch):
        """
        The garbage collector frees a publisher that raised the failure of its batch.
        """

        def fail():
            publisher = fast(js)
            publisher.add(f"{stream.name}.a", b"0")
            interrupt(monkeypatch, publisher)
            with pytest.raises(KeyboardInterrupt):
                publisher.commit()
            # The traceback of the failure refers to the publisher.
            with pytest.raises(jetsync.PublishOutcomeUnknownError):
                publisher.close()
            return weakref.ref(publisher)

        gone = fail()
        monkeypatch.undo()
        # The loop looks at the publisher once more.
        eventually(lambda: gc.collect() >= 0 and gone() is None)

    def test_interrupted_after_the_answer(self, js, stream, monkeypatch):
        """
        Ctrl-C after the answer has no effect: the commit succeeded, and close() returns.
        """
        publisher = fast(js)
        publisher.add(f"{stream.name}.a", b"0")
        link = publisher._link
        take_in = link.receive

        def takes_in():
            take_in()
            if link.engine.phase is Phase.DONE:
                raise KeyboardInterrupt

        monkeypatch.setattr(link, "receive", takes_in)
        with pytest.raises(KeyboardInterrupt):
            publisher.commit()
        for _ in range(2):
            with timed(0.0, 1.0):
                publisher.close()
            assert (publisher.ack.sequence, publisher.ack.size) == (1, 1)


class TestNotSent:
    @pytest.mark.parametrize("at", ["start", "commit"])
    def test_a_message_that_was_not_sent_can_be_sent_again(self, js, unique, monkeypatch, at):
        """
        If the server accepts no data until the timeout, a later call sends the message.
        """
        stream = fast_stream(js, unique)
        publisher = fast(js)
        lane = publisher._link._lane

        def refuse(*_arguments, **_options):
            raise errors.DisconnectedError(reason="the server does not accept more data")

        def attempt(call, data, *, fails):
            if fails:
                with monkeypatch.context() as patch:
                    patch.setattr(lane, "write", refuse)
                    with pytest.raises(errors.DisconnectedError):
                        call(f"{unique}.a", data)
            return call(f"{unique}.a", data)

        assert attempt(publisher.add, b"0", fails=at == "start") == 1
        attempt(publisher.commit, b"1", fails=at == "commit")
        assert payloads(stream) == [b"0", b"1"]


class TestInterruptedStart:
    def test_ctrl_c_before_the_first_answer_ends_the_batch(self, js, stream, monkeypatch):
        """
        After Ctrl-C before the answer to the first message, the next call ends the batch, which
        frees its slot on the server.
        """
        publisher = fast(js)
        interrupt(monkeypatch, publisher)
        with pytest.raises(KeyboardInterrupt):
            publisher.add(f"{stream.name}.a", b"0")
        with timed(0.0, 1.0):
            with pytest.raises(jetsync.PublishOutcomeUnknownError, match="0 of 1"):
                publisher.close()
            publisher.close()
            with fast(js) as other:
                other.add(f"{stream.name}.a", b"1")
                assert other.statistics().flow == 500
        assert payloads(stream) == [b"0", b"1"]

    def test_ctrl_c_in_a_block_reports_the_messages_in_flight(self, js, stream, monkeypatch):
        """
        If Ctrl-C in a call ends the block, the messages that may be lost are a gap.
        """
        events = []
        publisher = fast(js, gap="ok", on_gap=events.append)
        publisher.add(f"{stream.name}.a", b"0")
        confirmed = publisher.acknowledged
        interrupt(monkeypatch, publisher)
        with pytest.raises(KeyboardInterrupt), publisher:
            publisher.commit(f"{stream.name}.a", b"1")
        assert ranges(events) == [(confirmed + 1, 2)]
        assert "interrupted" in str(events[0].error)
        assert publisher.statistics().pending == 0

    def test_an_error_of_a_signal_handler_before_the_first_answer(self, js, stream, monkeypatch):
        """
        If a signal handler raises an error of jetsync there, the outcome of the first message is
        unknown, and the next one starts another batch.
        """
        publisher = fast(js)
        error = jetsync.DisconnectedError()
        interrupt(monkeypatch, publisher, error=error)
        with pytest.raises(jetsync.PublishOutcomeUnknownError, match="first message") as caught:
            publisher.add(f"{stream.name}.a", b"0")
        assert caught.value.__cause__ is error
        assert publisher.add(f"{stream.name}.a", b"1") == 1
        assert publisher.commit().size == 1

    def test_ctrl_c_before_the_first_write_ends_the_batch(self, js, stream, monkeypatch):
        """
        Ctrl-C before the first message is written has the same effect.
        """
        publisher = fast(js)
        lane = publisher._link._lane
        write, left = lane.write, [None]

        def writes(block, *arguments, **named):
            if b".0.$FI" in block and left:
                left.pop()
                raise KeyboardInterrupt
            return write(block, *arguments, **named)

        monkeypatch.setattr(lane, "write", writes)
        with pytest.raises(KeyboardInterrupt):
            publisher.add(f"{stream.name}.a", b"0")
        with timed(0.0, 1.0):
            with pytest.raises(jetsync.PublishOutcomeUnknownError, match="0 of 1"):
                publisher.add(f"{stream.name}.a", b"1")
            with pytest.raises(jetsync.BatchClosedError, match="begin another batch"):
                publisher.add(f"{stream.name}.a", b"1")
        assert payloads(stream) == []

    def test_ctrl_c_while_the_stream_is_looked_up_closes_the_publisher(
        self, client, js, stream, monkeypatch
    ):
        """
        After Ctrl-C before anything was sent, the publisher is closed and ``close`` raises nothing.
        """
        before = subscriptions(client)
        publisher = fast(js)

        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(publisher._link.stream, "look_up", interrupted)
        with pytest.raises(KeyboardInterrupt):
            publisher.add(f"{stream.name}.a", b"0")
        with pytest.raises(jetsync.BatchClosedError, match="begin another batch"):
            publisher.add(f"{stream.name}.a", b"0")
        publisher.close()
        assert (subscriptions(client), publisher.ack) == (before, None)

    def test_refusal_is_not_kept(self, client, js, unique):
        """
        A publisher whose first message was refused is freed with its last reference.
        """
        stream = fast_stream(js, unique)
        with fast(js) as publisher:
            publisher.add(f"{unique}.a", b"0")
        js.update_stream(attrs.evolve(stream.info().config, allow_batched=False))
        before = subscriptions(client)
        publisher = fast(js)
        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(jetsync.FastPublishDisabledError):
                publisher.add(f"{unique}.a", b"1")
            assert publisher.statistics().added == 0
            gone = weakref.ref(publisher._link)
            del publisher
            # The loop thread unsubscribes.
            eventually(lambda: gone() is None)
            assert subscriptions(client) == before
        finally:
            gc.enable()
        js.delete_stream(unique)


@pytest.fixture
def moving(unique):
    """
    A client, and a function that moves its connection to a server with a smaller max_payload.
    """
    with (
        DevServer() as large,
        DevServer(config={"max_payload": 4096}) as small,
        CutProxy(large.url) as proxy,
        jetsync.connect(proxy.url, reconnect_wait=0.05) as client,
    ):
        for server in (large, small):
            with jetsync.connect(server.url) as other:
                fast_stream(other.jetstream(), unique)

        def move():
            redirect(proxy, small.port)
            proxy.cut()
            eventually(lambda: client.statistics().reconnects == 1)

        yield client, move


class TestOtherServer:
    """
    jetsync refuses a message that is too large for the next server, and the connection stays.
    """

    def test_fast_ingest_refuses_a_message_too_large_for_the_server(self, moving, unique):
        """
        Fast ingest refuses the message, and begins its batch with the next one.
        """
        client, move = moving
        js = client.jetstream()
        publisher = fast(js, gap="ok")
        move()
        for call in (publisher.add, publisher.commit):
            with pytest.raises(jetsync.MaxPayloadError):
                call(f"{unique}.a", bytes(5000))
        publisher.add(f"{unique}.a", b"1")
        publisher.close()
        assert client.statistics().reconnects == 1
        assert js.stream(unique).info().state.messages == 1

    def test_publish_many_fails_only_the_large_message(self, moving, unique):
        """
        In publish_many, only the large message fails.
        """
        client, move = moving
        js = client.jetstream()

        def messages():
            for number in range(10):
                if number == 5:
                    move()
                yield f"{unique}.a", bytes(5000 if number in {4, 7} else 10)

        with pytest.raises(jetsync.PublishManyError) as caught:
            js.publish_many(messages())
        failures = caught.value.report.failures
        assert [failure.index for failure in failures] == [4, 7]
        assert all(isinstance(each.error, jetsync.MaxPayloadError) for each in failures)
        assert client.statistics().reconnects == 1
        assert js.stream(unique).info().state.messages == 8

    def test_a_publisher_fails_only_the_large_message(self, moving, unique):
        """
        In a publisher, only the large message fails, whether it is sent or staged.
        """
        client, move = moving
        js = client.jetstream()
        with js.publisher() as publisher:
            publisher.publish(f"{unique}.a", bytes(5000)).result(20)
            move()
            for _ in range(2):
                with pytest.raises(jetsync.MaxPayloadError):
                    publisher.publish(f"{unique}.a", bytes(5000)).result(20)
            publisher.publish(f"{unique}.a", b"1").result(20)
            assert client.statistics().reconnects == 1
            assert js.stream(unique).info().state.messages == 1
            with contextlib.suppress(jetsync.PublishManyError):
                publisher.flush()


class TestPrepare:
    @pytest.fixture
    def stamped(self, nats_server):
        """
        JetStream with a plugin that counts messages and refuses some.
        """

        class Stamp:
            name = "stamp"

            @hookimpl
            def jetsync_prepare_message(self, message):
                if message.data == b"no":
                    raise ValueError("no")
                return attrs.evolve(message, data=message.data + b"!")

        with jetsync.connect(nats_server.url, plugins=[Stamp()]) as client:
            yield client.jetstream()

    def test_messages_are_prepared_once_if_the_window_is_small(self, stamped, stream, unique):
        """
        Messages are prepared once, also if the iterable raises and the window is small.
        """

        def broken():
            for number in range(200):
                yield f"{unique}.a", b"%d" % number
            raise LookupError

        with fast(stamped, flow=3) as publisher:
            publisher.add(f"{unique}.a", b"first")
            with pytest.raises(LookupError):
                publisher.add_many(broken())
            assert publisher.statistics().added == 201
        assert payloads(stream) == [b"first!", *(b"%d!" % n for n in range(200))]

    @pytest.mark.parametrize("wrong", ["veto", "type"])
    def test_messages_before_an_error(self, stamped, stream, unique, wrong):
        """
        The messages before an invalid one are sent, and the messages after it are not.
        """
        subject = f"{unique}.a"
        bad, error = {
            "veto": ((subject, b"no"), jetsync.PluginError),
            "type": (None, jetsync.InvalidTypeError),
        }[wrong]
        with fast(stamped, ttl=None) as publisher:
            with pytest.raises(error):
                publisher.add_many([(subject, b"0"), (subject, b"1"), bad, (subject, b"3")])
            assert publisher.statistics().added == 2
        assert payloads(stream) == [b"0!", b"1!"]


class TestArguments:
    @pytest.mark.parametrize("subject", [None, 5, ("a", "b"), b"a.b"])
    def test_a_first_subject_that_is_no_text_is_not_looked_up(self, js, subject):
        """
        A first subject that is not text is refused before the stream is looked up.
        """
        for call in (
            lambda p: p.add(subject, b"0"),
            lambda p: p.add_many([(subject, b"0")]),
            lambda p: p.add_many([OutboundMessage(subject, b"0")]),
        ):
            with pytest.raises(jetsync.InvalidTypeError):
                call(fast(js))

    @pytest.mark.parametrize("subject", [None, 5, ["a"], b"a.b"])
    def test_a_later_subject_that_is_no_text_is_refused(self, js, stream, subject):
        """
        A later subject that is not text is refused, and the batch continues.
        """
        with fast(js) as publisher:
            publisher.add(f"{stream.name}.a", b"0")
            with pytest.raises(jetsync.InvalidTypeError):
                publisher.add(subject, b"x")
            with pytest.raises(jetsync.InvalidTypeError):
                publisher.add_many([(subject, b"x")])
            publisher.add(f"{stream.name}.a", b"1")
        assert payloads(stream) == [b"0", b"1"]

    def test_values_that_are_no_messages_are_refused_by_fast_ingest(self, js):
        """
        Values that are not a message, or not an iterable of messages, are refused.
        """
        for wrong in (None, 5, "a.b"):
            with pytest.raises(jetsync.InvalidTypeError, match="iterable"):
                fast(js).add_many(wrong)
        for wrong in ((), ("a",), None):
            with pytest.raises(jetsync.InvalidTypeError):
                fast(js).add_many([wrong])

    def test_on_gap(self, js):
        """
        ``on_gap`` is not called if a gap ends the batch.
        """
        with pytest.raises(jetsync.InvalidArgumentError, match="on_gap"):
            js.fast_publisher(on_gap=print)

    def test_zero_is_no_payload(self, js, stream):
        """
        The last message's payload is checked like that of any other.
        """
        publisher = fast(js)
        publisher.add(f"{stream.name}.a", b"0")
        with pytest.raises(jetsync.InvalidTypeError):
            publisher.commit(f"{stream.name}.a", 0)
        publisher.commit(f"{stream.name}.a")
        assert payloads(stream) == [b"0", b""]


class TestFailure:
    def test_with_fail_a_message_that_is_too_large_ends_the_batch(self, js, unique):
        """
        With ``gap="fail"``, a message that the stream refuses ends the batch, and the counts are
        right.
        """
        stream = fast_stream(js, unique, max_msg_size=100)
        publisher = fast(js)
        for size in (1, 2, 3, 1000):
            publisher.add(f"{unique}.a", bytes(size))
        eventually(lambda: unread(publisher))
        with timed(0.0, 0.9), pytest.raises(jetsync.MessageTooLargeError):
            publisher.add(f"{unique}.a", b"x")
        assert publisher.acknowledged == stream.info().state.messages == 3
        js.delete_stream(unique)


class TestOtherThreads:
    def test_left_while_another_waits(self, fragile, cut, unique):
        """
        An exception in the block ends it without waiting, and ends a call that waits for room.
        """
        fast_stream(fragile, unique)
        publisher = fast(fragile, flow=2)
        publisher.add(f"{unique}.a", b"0")
        cut.pause("to_client")
        ended = []

        def work():
            try:
                for _ in range(20):
                    publisher.add(f"{unique}.a", b"x")
            except jetsync.JetSyncError as error:
                ended.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        eventually(lambda: publisher.statistics().pending == 4)
        with timed(0.0, 2.5):
            publisher.__exit__(LookupError, LookupError(), None)
            worker.join(20.0)
        cut.resume()
        assert isinstance(ended[0], jetsync.BatchClosedError)

        def flow_of_the_next():
            with fast(fragile) as other:
                other.add(f"{unique}.a", b"1")
                return other.statistics().flow

        # The batch ends soon, so the next one has the whole flow. Otherwise the server would end it
        # after ten seconds.
        eventually(lambda: flow_of_the_next() == 500, 5)
        fragile.delete_stream(unique)


class TestIdle:
    def test_nothing_piles_up(self, js, stream, monkeypatch):
        """
        The server answers the pings of an idle publisher, and the answers do not accumulate.
        """
        monkeypatch.setattr(_fast_link, "PING_AFTER", 0.02)
        publisher = fast(js)
        publisher.add(f"{stream.name}.a", b"0")
        eventually(lambda: publisher.statistics().pings >= 10)
        assert len(unread(publisher)) <= 3
        assert publisher.commit().size == 1

    def test_loop_thread(self, js, stream, monkeypatch):
        """
        The pings of the loop thread carry the sequence of the last message.
        """
        sequences = []
        ping = FastIngest.ping

        def pings(engine):
            sequences.append(ping(engine))
            return sequences[-1]

        monkeypatch.setattr(FastIngest, "ping", pings)
        monkeypatch.setattr(_fast_link, "PING_AFTER", 0.02)
        subject = f"{stream.name}.a"
        publisher = fast(js, flow=5)
        for number in range(1, 21):
            assert publisher.add(subject, b"%d" % number) == number
            before = publisher.statistics().pings
            eventually(lambda before=before: publisher.statistics().pings >= before + 2)
            assert sequences[-1] == number
        assert (publisher.commit().size, publisher.ack.lost) == (20, 0)

    def test_a_lost_message(self, js, stream, monkeypatch):
        """
        A lost message is noticed while the publisher is idle, and reported by the next call.
        """
        monkeypatch.setattr(_fast_link, "PING_AFTER", 0.02)
        events = []
        publisher = fast(js, gap="ok", on_gap=events.append)
        publisher.add(f"{stream.name}.a", b"0")
        publisher._link.engine.claim(time.monotonic(), f"{stream.name}.a")
        eventually(lambda: publisher.statistics().lost == 1)
        assert events == []
        publisher.add(f"{stream.name}.a", b"2")
        assert [(event.first, event.last) for event in events] == [(2, 2)]
        assert (publisher.commit().size, publisher.ack.lost) == (2, 1)

    def test_a_lost_connection(self, fragile, cut, unique, monkeypatch):
        """
        The messages of calls that only staged them count as lost, as all others do.
        """
        monkeypatch.setattr(_fast_link, "PING_AFTER", 1e9)
        fast_stream(fragile, unique)
        publisher = fast(fragile, gap="ok")
        for number in range(1, 13):
            assert publisher.add(f"{unique}.a", b"%d" % number) == number
        cut.cut()
        link = publisher._link
        eventually(lambda: has_lost_connection(publisher))
        link._lane.later(0.0, _fast_link._keep_alive, link._lane, weakref.ref(link))
        eventually(lambda: link.engine.is_over)
        found = publisher.statistics()
        assert (found.pending, found.acknowledged + found.lost) == (0, 12)
        with pytest.raises(jetsync.PublishOutcomeUnknownError, match="of 12 messages"):
            publisher.add(f"{unique}.a", b"13")
        fragile.delete_stream(unique)

    @pytest.mark.parametrize("interrupted", [False, True])
    def test_an_interrupted_call_leaves_a_batch_that_is_not_kept(
        self, js, stream, monkeypatch, interrupted
    ):
        """
        The loop thread pings the batch of an idle publisher, unless its last call was interrupted.
        """
        monkeypatch.setattr(_fast_link, "PING_AFTER", 1e9)
        publisher = fast(js)
        publisher.add(f"{stream.name}.a", b"0")
        link, looked = publisher._link, threading.Event()
        if interrupted:
            # Not in a wait: on a busy machine, each answer may come before the call waits for it.
            with monkeypatch.context() as patch:
                patch.setattr(link, "_make_room", Mock(side_effect=KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    publisher.add_many([(f"{stream.name}.b", b"1")] * 10)
        link.added_before = link.added
        link._lane.later(0.0, _fast_link._keep_alive, link._lane, weakref.ref(link))
        link._lane.later(0.0, looked.set)
        assert looked.wait(20)
        assert link.engine.pings == (not interrupted)
        with contextlib.suppress(jetsync.PublishOutcomeUnknownError):
            publisher.close()

    def test_denials_are_bounded(self, js):
        """
        Denials for other publishers of the client do not accumulate.
        """
        box = fast(js)._link._box
        for _ in range(KEPT_DENIALS + 5):
            box.denied("publish", b"other", errors.PermissionDeniedError("other", "publish"))
        assert len(box.take_denials()) == KEPT_DENIALS
