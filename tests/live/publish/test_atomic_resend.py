"""
Atomic batches that are sent again or refused, and their errors.
"""

from __future__ import annotations

import contextlib

import pytest

import jetsync
from helpers.connections import client_of, redirect
from helpers.streams import batch_stream
from helpers.waiting import eventually
from jetsync._base.deadline import Deadline
from jetsync.devserver import DevServer
from jetsync.hookspecs import hookimpl
from jetsync.testing import CutProxy


class TestDuplicate:
    @pytest.fixture
    def lost(self, proxied, stream):
        """
        A factory of batches of two messages whose commit got no answer.
        """
        js, proxy = proxied()

        def lost(*, stored):
            batch = js.atomic_batch()
            for name in ("first", "last"):
                batch.add(f"{stream.name}.{name}", name, msg_id=name)
            client_of(js).flush(timeout=20)
            proxy.pause("to_client" if stored else "to_server")
            with pytest.raises(jetsync.BatchOutcomeUnknownError):
                batch.commit(timeout=0.2)
            if stored:
                eventually(lambda: stream.info().state.messages >= 2)
            proxy.cut()
            proxy.resume()
            eventually(lambda: client_of(js).statistics().reconnects == 1)
            return batch

        return lost

    @pytest.mark.parametrize("rewritten", [(), ("last",), ("first",)])
    def test_it_was_stored(self, lost, js, stream, rewritten):
        """
        The last message on either subject shows that the batch is stored, and where.
        """
        js.publish(f"{stream.name}.before")
        batch = lost(stored=True)
        first = batch.id
        for name in rewritten:
            js.publish(f"{stream.name}.{name}")
        ack = batch.resend(timeout=20)
        assert (ack.duplicate, ack.first_sequence, ack.sequence, ack.size) == (True, 2, 3, 2)
        assert ack.batch_id == first
        assert batch.ack is ack

    def test_the_outcome_stays_unknown(self, lost, js, stream):
        """
        If both subjects have newer messages, the outcome stays unknown.
        """
        batch = lost(stored=True)
        for name in ("first", "last"):
            js.publish(f"{stream.name}.{name}")
        with pytest.raises(jetsync.BatchOutcomeUnknownError, match="in the stream already") as got:
            batch.resend(timeout=20)
        assert isinstance(got.value.__cause__, jetsync.DuplicateMessageIdError)
        assert got.value.batch is batch

    def test_another_publisher_used_an_id(self, lost, js, stream):
        """
        If another publisher has used an id, the batch is neither stored nor reported as stored.
        """
        batch = lost(stored=False)
        js.publish(f"{stream.name}.other", msg_id="last")
        for _ in range(2):
            with pytest.raises(jetsync.BatchOutcomeUnknownError, match="in the stream already"):
                batch.resend(timeout=20)
        assert stream.info().state.messages == 1


def add_and_commit(js, items):
    """
    Publish a batch, message by message.
    """
    with js.atomic_batch() as batch:
        for item in items:
            batch.add(*item)


class TestErrors:
    def test_a_first_message_that_is_denied(self, unique):
        """
        If the user may not publish the first message, the error says so.
        """
        denied = {"publish": {"deny": [f"{unique}.secret"]}}
        users = [{"user": "u", "password": "p", "permissions": denied}]
        with (
            DevServer(config={"authorization": {"timeout": 30, "users": users}}) as server,
            jetsync.connect(server.url, user="u", password="p") as client,
        ):
            js = client.jetstream()
            stream = batch_stream(js, unique)
            messages = [(f"{unique}.secret", b""), (f"{unique}.open", b"")]
            with pytest.raises(jetsync.PermissionDeniedError, match="secret"):
                js.publish_batch(messages)
            assert stream.info().state.messages == 0
            assert js.publish_batch(messages[1:]).size == 1

    @pytest.fixture
    def guarded(self, unique):
        """
        A context whose user may not publish to ``<unique>.secret``.
        """
        denied = {"publish": {"deny": [f"{unique}.secret"]}}
        users = [{"user": "u", "password": "p", "permissions": denied}]
        with (
            DevServer(config={"authorization": {"timeout": 30, "users": users}}) as server,
            jetsync.connect(server.url, user="u", password="p") as client,
        ):
            yield client.jetstream()

    def test_a_later_message_that_is_denied(self, guarded, unique):
        """
        The commit names the subject that the user may not publish to.
        """
        stream = batch_stream(guarded, unique)
        batch = guarded.atomic_batch()
        for subject in ("open", "secret", "open"):
            batch.add(f"{unique}.{subject}")
        with pytest.raises(jetsync.PermissionDeniedError, match="secret"):
            batch.commit()
        with pytest.raises(jetsync.PermissionDeniedError, match="secret"):
            guarded.publish_batch(
                [(f"{unique}.{name}", b"") for name in ("open", "secret", "open")]
            )
        assert stream.info().state.messages == 0

    def test_an_add_after_a_message_that_is_denied(self, guarded, unique):
        """
        An add after the denied message raises the cause as well.
        """
        batch_stream(guarded, unique)
        batch = guarded.atomic_batch(ack_every=3)
        batch.add(f"{unique}.open")
        batch.add(f"{unique}.secret")
        with pytest.raises(jetsync.PermissionDeniedError, match="secret"):
            batch.add(f"{unique}.open")
        # The server reports a gap only if another message follows it.
        batch = guarded.atomic_batch()
        batch.add(f"{unique}.open")
        batch.add(f"{unique}.secret", bytes(2000))
        batch.add(f"{unique}.open", bytes(2000))

        def refused():
            try:
                batch.add(f"{unique}.open", bytes(2000))
            except jetsync.PermissionDeniedError:
                return True
            return False

        eventually(refused)

    def test_an_earlier_denial_is_not_the_cause(self, guarded, unique):
        """
        A permission error from before the batch does not explain why it is incomplete.
        """
        batch_stream(guarded, unique)
        with pytest.raises(jetsync.PermissionDeniedError):
            guarded.publish(f"{unique}.secret")
        batch = guarded.atomic_batch()
        batch.add(f"{unique}.open")
        # The message for the subject is not sent, so the server does not refuse it again.
        batch._attempt.messages.admit((f"{unique}.secret", b""), Deadline.after(10))
        batch._attempt.stop_staging()
        batch._attempt.engine.staged(2)
        with pytest.raises(jetsync.BatchIncompleteError):
            batch.commit()

    @pytest.mark.parametrize("size", [0, 2000])
    def test_a_message_that_is_too_large_for_the_stream(self, nats_server, stream, unique, size):
        """
        If the stream accepts less than jetsync knows, the next batch refuses the message.
        """
        with jetsync.connect(nats_server.url) as client:
            js = client.jetstream()
            js.publish_batch([(f"{unique}.A", b"")])
            stream.update(max_msg_size=500)
            for publish in (
                js.publish_batch,
                lambda items: add_and_commit(js, items),
            ):
                items = [(f"{unique}.A", b"")] * 3
                items.insert(2, (f"{unique}.A", bytes(size + 450)))
                with pytest.raises(jetsync.BatchIncompleteError):
                    publish(items)
                with pytest.raises(jetsync.InvalidArgumentError, match="max_msg_size"):
                    publish(items)
                stream.update(max_msg_size=-1)
                js.publish_batch([(f"{unique}.A", bytes(5000))])
                stream.update(max_msg_size=500)
        assert stream.info().state.messages == 3

    def test_no_stream_for_the_first_message(self, js, stream, unique):
        """
        If no stream takes the first message, the batch is closed.
        """

        def work():
            with js.atomic_batch() as batch:
                with contextlib.suppress(jetsync.NoStreamResponseError):
                    batch.add(f"{unique}-none")
                assert "closed" in repr(batch)
                batch.add(f"{unique}.A")

        with pytest.raises(jetsync.BatchClosedError, match="no stream"):
            work()
        assert stream.info().state.messages == 0

    @pytest.mark.parametrize("step", ["add", "commit"])
    def test_the_error_of_a_lost_connection_says_nothing_is_stored(self, proxied, stream, step):
        """
        If the connection is lost, the error says that nothing is stored.
        """
        js, proxy = proxied()
        batch = js.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        proxy.cut()
        eventually(lambda: client_of(js).statistics().reconnects == 1)
        call = batch.commit if step == "commit" else lambda: batch.add(f"{stream.name}.A")
        with pytest.raises(
            jetsync.ConnectionLostError, match="none of its messages is stored"
        ) as caught:
            call()
        assert type(caught.value) is jetsync.ConnectionLostError

    def test_which_message(self, js, stream):
        """
        Errors of a batch in one call name the message by its index.
        """
        good = (f"{stream.name}.A", b"")
        for bad, error in (
            (("a b", b""), jetsync.InvalidSubjectError),
            ((f"{stream.name}.A", 5), jetsync.InvalidTypeError),
            ("nothing", jetsync.InvalidTypeError),
        ):
            for number in (0, 2):
                with pytest.raises(error, match=rf"^messages\[{number}\]: "):
                    js.publish_batch([good] * number + [bad])
        assert stream.info().state.messages == 0

    @pytest.mark.parametrize("messages", [None, 5])
    def test_no_messages_at_all(self, js, messages):
        """
        Both calls that take an iterable refuse anything else.
        """
        for call in (js.publish_batch, js.publish_many):
            with pytest.raises(jetsync.InvalidTypeError, match="iterable") as caught:
                call(messages)
            assert caught.value.argument == "messages"

    def test_a_stream_without_the_setting(self, js, unique):
        """
        If the stream does not allow batches, the error names the setting.
        """
        batch_stream(js, unique, allow_atomic=False)
        with pytest.raises(jetsync.AtomicPublishDisabledError, match="allow_atomic"):
            js.publish_batch([(f"{unique}.A", b"")])
        with pytest.raises(jetsync.FastPublishDisabledError, match="allow_batched"):
            js.fast_publisher().add(f"{unique}.A", b"")
        js.delete_stream(unique)


def test_a_block_without_messages(js):
    """
    The end of a block without messages commits nothing.
    """
    with js.atomic_batch() as batch:
        pass
    assert batch.ack is None


def test_plugins_get_the_ids(nats_server, stream):
    """
    Plugins get the id of each attempt.
    """

    class Watch:
        ids = ()

        @hookimpl(wrapper=True)
        def jetsync_batch_commit(self, operation):
            self.ids += (operation.batch_id,)
            return (yield)

    watch = Watch()
    with jetsync.connect(nats_server.url, plugins=[watch]) as client:
        js = client.jetstream()
        js.publish(f"{stream.name}.A", msg_id="1")
        batch = js.atomic_batch(batch_id="mine")
        batch.add(f"{stream.name}.A", msg_id="1")
        with pytest.raises(jetsync.DuplicateMessageIdError):
            batch.commit()
        stream.purge()
        with pytest.raises(jetsync.DuplicateMessageIdError):
            batch.resend()
        assert watch.ids == ("mine", batch.id)


def test_a_next_server_that_takes_less(nats_server, unique):
    """
    A message that is too large for the next server is not sent again.
    """
    with (
        DevServer(config={"max_payload": 1000}) as small,
        jetsync.connect(small.url) as direct,
        CutProxy(nats_server.url) as proxy,
        jetsync.connect(proxy.url, reconnect_wait=0.05) as client,
    ):
        batch_stream(direct.jetstream(), unique)
        js = client.jetstream()
        batch_stream(js, unique)
        batch = js.atomic_batch()
        batch.add(f"{unique}.A", bytes(2000))
        redirect(proxy, small.port)
        proxy.cut()
        eventually(lambda: client.statistics().reconnects == 1)
        assert client.server.max_payload == 1000
        with pytest.raises(jetsync.ConnectionLostError):
            batch.commit()
        with pytest.raises(jetsync.MaxPayloadError):
            batch.resend(timeout=20)
        client.flush()
        assert client.statistics().reconnects == 1
