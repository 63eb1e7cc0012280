"""
Fast ingest on real servers: stored and refused messages.
"""

from __future__ import annotations

import contextlib

import attrs
import pytest

import jetsync
from helpers.fast_publishers import fast, stored_in, subscriptions
from helpers.streams import fast_stream
from helpers.waiting import eventually, timed
from jetsync import Expect, OutboundMessage
from jetsync.devserver import DevServer
from jetsync.hookspecs import hookimpl
from jetsync.testing import HookRecorder

VERSIONS = ["2.14.6", None]
"""Servers that have fast ingest; None is the newest."""

OLD = ["2.10.26", "2.11.11", "2.12.8"]


class TestBasic:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_three_messages_and_a_commit_are_numbered_and_counted(
        self, server_for, nats_server, unique, version
    ):
        """
        Three messages with numbers from 1, and a commit whose ack counts them.
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
        The last message may commit, and it may be the only one.
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

    def test_a_fast_batch_without_a_message_sends_nothing(self, client, js, stream):
        """
        Without a message nothing is sent, and an explicit commit is an error.
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
        assert publisher.statistics().added == 0
        assert subscriptions(client) == before

    def test_after_the_end(self, client, js, stream):
        """
        A publisher that has committed accepts no more messages; closing it again has no effect.
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

    @pytest.mark.parametrize(("timeout", "seconds"), [(None, 5.0), (7, 7.0)])
    def test_time_of_a_commit(self, js, stream, monkeypatch, timeout, seconds):
        """
        A commit has its own timeout, and that of the publisher by default.
        """
        publisher, totals = fast(js), []
        commit = publisher._link.commit

        def noted(item, deadline):
            totals.append(deadline.total)
            commit(item, deadline)

        monkeypatch.setattr(publisher._link, "commit", noted)
        assert publisher.commit(f"{stream.name}.a", b"0", timeout=timeout).size == 1
        assert totals == [seconds]

    @pytest.mark.clause("FI-01")
    def test_messages_before_an_error_of_the_block_are_stored(self, client, js, stream):
        """
        If the block raises, the messages before the error are stored, the error passes, and the
        batch ends.
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
        # The batch has freed its slot: the next one gets the whole flow at once.
        with fast(js, flow=500) as other:
            other.add(f"{stream.name}.a", b"10")
            assert other.statistics().flow == 500

    @pytest.mark.parametrize("count", [0, 5])
    def test_calls_after_an_error_of_the_block_say_that_the_publisher_is_closed(
        self, js, stream, count
    ):
        """
        After a block that raised, calls say that the publisher is closed, and no loss is reported.
        """
        events = []
        publisher = fast(js, gap="ok", on_gap=events.append)
        with contextlib.suppress(LookupError), publisher:
            for number in range(count):
                publisher.add(f"{stream.name}.a", b"%d" % number)
            raise LookupError
        with pytest.raises(jetsync.BatchClosedError) as caught:
            publisher.add(f"{stream.name}.a", b"5")
        assert "interrupted" not in str(caught.value)
        publisher.close()
        assert events == []

    @pytest.mark.clause("FI-61")
    def test_everything_of_a_message(self, js, stream):
        """
        Headers, id and expectation are sent with a message; the publisher's ttl applies to messages
        without one.
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
        An invalid message is refused before it is sent, and the batch stays usable.
        """
        js.create_stream(f"{unique}-other", subjects=[f"{unique}-other.>"], storage="memory")
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
        A subject that the stream got later is accepted after another lookup.
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
        Nothing is sent to a server that would store the messages one by one.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
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

    def test_a_stream_without_fast_ingest_or_acks_is_refused(self, js, unique):
        """
        A stream that does not allow fast ingest, or has no acks, is refused.
        """
        plain = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
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
        If the stream no longer allows fast ingest, it refuses the first message, and no message is
        lost.
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

    def test_a_fast_publish_to_a_denied_subject_ends_in_time(self, unique):
        """
        The server refuses a subject that the user may not publish to, and the call ends in time.
        """
        allow = ["ok.>", "$JS.API.>"]
        users = [
            {"user": "a", "password": "a"},
            {"user": "u", "password": "u", "permissions": {"publish": {"allow": allow}}},
        ]
        with DevServer(config={"authorization": {"timeout": 30, "users": users}}) as server:
            url = server.url.replace("nats://", "nats://u:u@")
            with jetsync.connect(url) as client:
                js = client.jetstream()
                js.create_stream(
                    "P", subjects=["ok.>", "no.>"], storage="memory", allow_batched=True
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


class TestHooks:
    def test_commit_is_wrapped(self, nats_server, unique):
        """
        Wrapper hooks run around the commit, and get the counts of the batch.
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

    def test_plugins_see_each_message_of_a_fast_batch_first(self, nats_server, unique):
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

    def test_the_last_message_is_prepared_before_the_commit_is_wrapped(self, nats_server, unique):
        """
        Plugins see the message of the commit before the wrappers of the commit begin.
        """
        recorder = HookRecorder("jetsync_prepare_message", "jetsync_batch_commit")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            js = client.jetstream()
            fast_stream(js, unique)
            fast(js).commit(f"{unique}.a", b"x")
            js.delete_stream(unique)
        names = [call.hook for call in recorder.calls]
        assert names == ["jetsync_prepare_message", "jetsync_batch_commit"]
