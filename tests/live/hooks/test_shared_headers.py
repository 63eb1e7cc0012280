"""
Headers that plugins give to all messages of an operation.
"""

from __future__ import annotations

import threading

import pytest

import jetsync
from jetsync import hookimpl


class Marks:
    """
    Number the operations in a header of their messages, and record the wrapped ones.
    """

    name = "marks"

    def __init__(self):
        self.operations = []
        self.wrapped = []

    @hookimpl
    def jetsync_shared_headers(self, operation):
        self.operations.append(operation)
        return {"Mark": str(len(self.operations))}

    @hookimpl(wrapper=True)
    def jetsync_publish(self, operation):
        self.wrapped.append(operation)
        yield


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


def publish_by_future(js, subject):
    """
    Publish one message with a publisher of its own.
    """
    with js.publisher() as publisher:
        publisher.publish(subject).result(5)


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
        assert marks.wrapped == marks.operations

    def test_of_a_bulk_publish(self, js, stream, marks):
        """
        Every message of a call has its headers, whatever the type of the message.
        """
        subject = f"{stream.name}.A"
        messages = [
            (subject, b"1"),
            (subject, "2"),
            (subject, b"3", {"Own": "mine"}),
            jetsync.OutboundMessage(subject, b"4", ttl=None, msg_id="4"),
        ]
        js.publish_many(messages * 2, window=4)
        js.publish_many(messages[:1])
        assert marks_of(stream) == ["1"] * 7 + ["2"]  # One is a duplicate.
        assert stream.get_message(3).headers["Own"] == "mine"
        assert stream.get_message(4).headers["Nats-Msg-Id"] == "4"
        assert messages[3].headers is None
        assert marks.wrapped == marks.operations

    def test_of_a_publisher_that_threads_share(self, js, stream, marks):
        """
        All messages have the same headers, whichever thread publishes them.
        """
        with js.publisher(window=4) as publisher:
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
        assert marks_of(stream) == ["1"] * 8
        assert stream.get_message(8).headers["Own"] == "mine"
        assert marks.wrapped == marks.operations

    def test_the_hook_is_called_once_per_atomic_batch(self, js, stream, marks):
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
        If the hook raises, the call sends nothing. The next one calls the hook again.
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
            with js.fast_publisher() as fast, js.atomic_batch() as batch:
                for call in (
                    lambda: js.publish(subject),
                    lambda: js.publish_many([(subject, b"")]),
                    lambda: js.publish_batch([(subject, b"")]),
                    lambda: publish_by_future(js, subject),
                    lambda: fast.add(subject),
                    lambda: batch.add(subject),
                ):
                    with pytest.raises(jetsync.PluginError, match="no headers"):
                        call()
                    call()
        assert stream.info().state.messages == 6
