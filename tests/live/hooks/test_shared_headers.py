"""
Headers that plugins give to all messages of a publish, a window or a batch, and the result that
wrappers get at the end of a window.
"""

from __future__ import annotations

import threading

import pytest
from waiting import eventually

import jetsync
from jetsync import hookimpl


class Marks:
    """
    Number the operations in a header of their messages, and record the results of windows.
    """

    name = "marks"

    def __init__(self):
        self.operations = []
        self.results = []

    @hookimpl
    def jetsync_shared_headers(self, operation):
        self.operations.append(operation)
        return {"Mark": str(len(self.operations))}

    @hookimpl(wrapper=True)
    def jetsync_publish(self, operation):
        result = yield
        self.results.append((operation, result))


class Others:
    """
    Give all messages a group of headers, one of which some messages already have.
    """

    @hookimpl
    def jetsync_shared_headers(self):
        return {"Own": "shared", "Beside": "shared"}


@pytest.fixture
def marks():
    """The plugin."""
    return Marks()


@pytest.fixture
def js(nats_server, marks):
    """JetStream of a client with this plugin and another one."""
    with jetsync.connect(nats_server.url, plugins=[marks, Others]) as client:
        yield client.jetstream()


def stored(stream):
    """
    Return the headers of each message of the stream, in its order.
    """
    last = stream.info().state.last_seq
    return [stream.get_message(sequence).headers for sequence in range(1, last + 1)]


def marks_of(stream):
    """
    Return the mark of each message of the stream, in its order.
    """
    return [headers.get("Mark") for headers in stored(stream)]


class TestSharedHeaders:
    def test_of_a_publish(self, js, stream, marks):
        """
        A single publish is one operation. The message keeps its own headers.
        """
        js.publish(f"{stream.name}.A", b"1")
        js.publish(f"{stream.name}.A", b"2", headers={"Own": "mine", "More": "1"}, msg_id="id")
        assert [headers.to_dict() for headers in stored(stream)] == [
            {"Mark": ["1"], "Own": ["shared"], "Beside": ["shared"]},
            {"Own": ["mine"], "More": ["1"], "Mark": ["2"], "Nats-Msg-Id": ["id"]},
        ]
        assert [operation for operation, _ in marks.results] == marks.operations

    def test_of_the_windows_of_a_bulk_publish(self, js, stream, marks):
        """
        Every message of a window has the window's headers, whatever its type.
        """
        subject = f"{stream.name}.A"
        messages = [
            (subject, b"1"),
            (subject, "2"),
            (subject, b"3", {"Own": "mine"}),
            jetsync.OutboundMessage(subject, b"4", ttl=None, msg_id="4"),
        ]
        js.publish_many(messages * 2, window=4)
        assert marks_of(stream) == ["1"] * 4 + ["2"] * 3  # One is a duplicate.
        assert stream.get_message(3).headers["Own"] == "mine"
        assert stream.get_message(4).headers["Nats-Msg-Id"] == "4"
        assert messages[3].headers is None
        assert [operation for operation, _ in marks.results] == marks.operations

    def test_of_a_publisher_that_threads_share(self, js, stream, marks):
        """
        A message gets the headers of its window, whichever thread publishes it.
        """
        with js.publisher(window=8) as publisher:
            publisher.publish(f"{stream.name}.A", b"first")
            threads = [
                threading.Thread(target=publisher.publish, args=(f"{stream.name}.A", b"more"))
                for _ in range(7)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            publisher.flush()
            publisher.publish(f"{stream.name}.A", b"next", headers={"Own": "mine"})
        assert marks_of(stream) == ["1"] * 8 + ["2"]
        assert len(marks.operations) == 2

    def test_of_an_atomic_batch(self, js, stream, marks):
        """
        The hook is called once per batch, with the id of the commit.
        """
        stream.update(allow_atomic=True)
        with js.atomic_batch() as batch:
            batch.add(f"{stream.name}.A", b"1")
            batch.add(f"{stream.name}.A", b"2", headers={"Own": "mine"})
            batch.commit(f"{stream.name}.A", b"3")
        js.publish_batch([(f"{stream.name}.A", b"4"), (f"{stream.name}.A", b"5")], ttl=None)
        assert marks_of(stream) == ["1"] * 3 + ["2"] * 2
        first, _ = marks.operations
        assert (first.kind, first.batch_id, first.size) == ("atomic", batch.ack.batch_id, 0)
        assert stream.get_message(2).headers["Own"] == "mine"

    @pytest.mark.parametrize("ttl", [None, 3600])
    def test_of_fast_ingest(self, js, stream, marks, ttl):
        """
        The hook is called once per publisher, for single messages and for many at a time.
        """
        stream.update(allow_batched=True, allow_msg_ttl=True)
        with js.fast_publisher(ttl=ttl) as fast:
            fast.add(f"{stream.name}.A", b"1")
            fast.add_many([(f"{stream.name}.A", b"2"), (f"{stream.name}.A", b"3", {"Own": "m"})])
            fast.commit(f"{stream.name}.A", b"4")
        assert marks_of(stream) == ["1"] * 4
        assert stream.get_message(3).headers["Own"] == "m"
        assert [operation.kind for operation in marks.operations] == ["fast"]

    def test_are_there_when_messages_are_prepared(self, nats_server, marks, stream):
        """
        Plugins that prepare messages see the headers, and cannot change them for other messages.
        """

        class Spoiler:
            name = "spoiler"

            @hookimpl
            def jetsync_prepare_message(self, message):
                assert message.headers["Mark"] == "1"
                if message.data == b"spoil":
                    message.headers.add("Mark", "7")

        with jetsync.connect(nats_server.url, plugins=[marks, Spoiler()]) as client:
            messages = [(f"{stream.name}.A", data) for data in (b"1", b"spoil", b"3")]
            with pytest.raises(jetsync.PublishManyError) as caught:
                client.jetstream().publish_many(messages)
        (failure,) = caught.value.report.failures
        assert (failure.index, failure.error.plugin) == (1, "spoiler")
        assert marks_of(stream) == ["1", "1"]

    def test_an_error_fails_the_call_and_the_next_one_calls_again(self, nats_server, stream):
        """
        If the hook raises, the call sends nothing. The next operation calls the hook again.
        """

        class Broken:
            name = "broken"
            faults = 0

            @hookimpl
            def jetsync_shared_headers(self):
                self.faults += 1
                if self.faults % 2:
                    raise OSError("no headers")

        stream.update(allow_atomic=True, allow_batched=True)
        subject = f"{stream.name}.A"
        with jetsync.connect(nats_server.url, plugins=[Broken()]) as client:
            js = client.jetstream()
            with (
                js.publisher() as publisher,
                js.fast_publisher() as fast,
                js.atomic_batch() as batch,
            ):
                for call in (
                    lambda: js.publish(subject),
                    lambda: js.publish_many([(subject, b"")]),
                    lambda: js.publish_batch([(subject, b"")]),
                    lambda: publisher.publish(subject).result(5),
                    lambda: fast.add(subject),
                    lambda: batch.add(subject),
                ):
                    with pytest.raises(jetsync.PluginError, match="no headers"):
                        call()
                    call()
        assert stream.info().state.messages == 6


class TestWindowResult:
    def test_of_a_bulk_publish(self, js, stream, marks):
        """
        Each window counts its messages, and all failures are counted once.
        """
        subject = f"{stream.name}.A"
        wrong = jetsync.OutboundMessage(
            subject, b"", expect=jetsync.Expect(last_subject_sequence=70)
        )
        with pytest.raises(jetsync.PublishManyError):
            js.publish_many([(subject, b"")] * 9 + [wrong, ("a b", b""), (subject, b"")], window=5)
        results = [result for _, result in marks.results]
        assert [result.messages for result in results] == [5, 5, 2]
        assert {result.stream for result in results} == {stream.name}
        assert sum(result.failed for result in results) == 2
        assert sum(result.acknowledged for result in results) == 10
        assert {type(result.error) for result in results if result.failed} <= {
            jetsync.WrongLastSequenceError,
            jetsync.InvalidSubjectError,
        }

    def test_failures_are_counted_in_their_window(self, nats_server, stream, marks):
        """
        A message that is rejected while the previous window is in flight counts in its own window.
        """

        class Veto:
            @hookimpl
            def jetsync_prepare_message(self, message):
                if message.data == b"no":
                    raise ValueError("no")

        subject = f"{stream.name}.A"
        messages = [(subject, b"yes"), *[(subject, b"no")] * 6]
        with (
            jetsync.connect(nats_server.url, plugins=[marks, Veto()]) as client,
            pytest.raises(jetsync.PublishManyError) as caught,
        ):
            client.jetstream().publish_many(messages, window=4)
        results = [result for _, result in marks.results]
        assert [(result.messages, result.failed) for result in results] == [(4, 3), (3, 3)]
        assert caught.value.report.count == sum(result.acknowledged for result in results) == 1

    def test_of_an_iterable_that_raises(self, js, stream, marks):
        """
        The messages before the error are published and counted, and the result has the error.
        """

        def source():
            yield from [(f"{stream.name}.A", b"")] * 3
            raise LookupError("no more rows")

        with pytest.raises(LookupError, match="no more rows") as caught:
            js.publish_many(source())
        ((_, result),) = marks.results
        assert (result.messages, result.acknowledged, result.failed) == (3, 3, 0)
        assert result.error is caught.value
        assert result.stream == stream.name

    def test_of_a_publisher(self, js, stream, marks):
        """
        Failed messages are counted in their own window.
        """
        subject = f"{stream.name}.A"
        with js.publisher(window=3) as publisher:
            for _ in range(2):
                publisher.publish(subject)
            refused = publisher.publish(subject, expect=jetsync.Expect(last_sequence=70))
            assert isinstance(refused.exception(10), jetsync.WrongLastSequenceError)
            publisher.publish(subject)
        eventually(lambda: len(marks.results) == 2)
        first, second = (result for _, result in marks.results)
        assert (first.messages, first.failed, first.acknowledged) == (3, 1, 2)
        assert first.stream == second.stream == stream.name
        assert isinstance(first.error, jetsync.WrongLastSequenceError)
        assert (second.messages, second.failed, second.error) == (1, 0, None)
