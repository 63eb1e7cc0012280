"""
Ids and expectations in atomic batches, and servers that do not support them.
"""

from __future__ import annotations

import pytest

import jetsync
from helpers.streams import Batches
from jetsync import Expect, OutboundMessage
from jetsync._proto.batch import HeaderRules

VERSIONS = ["2.12.8", "2.14.6", None]
"""Servers whose batches differ; None is the newest."""

OLD = ["2.10.26", "2.11.11", "2.12.0"]
"""Servers that no batch is sent to."""


class TestIds:
    def test_ids_of_batches(self, batches):
        """
        A batch id may have 64 characters, and generated ids are unique.
        """
        js = batches.js
        ack = js.publish_batch([(batches("A"), b"")], batch_id="x" * 64)
        assert ack.batch_id == "x" * 64
        with pytest.raises(ValueError, match="1 to 64 bytes"):
            js.atomic_batch(batch_id="x" * 65)
        with pytest.raises(ValueError, match="1 to 64 bytes"):
            js.publish_batch([(batches("A"), b"")], batch_id="")
        assert len({js.atomic_batch().id for _ in range(10_000)}) == 10_000
        odd = js.publish_batch([(batches("A"), b"%d")] * 2, batch_id="100 %d é*>")
        assert (odd.batch_id, odd.size) == ("100 %d é*>", 2)

    @pytest.mark.versions
    def test_ids_of_messages(self, everywhere):
        """
        One duplicate id makes the server refuse the batch and forget its other ids.
        """
        s = everywhere
        s.js.publish(s("A"), b"0", msg_id="m1")
        batch = s.js.atomic_batch()
        batch.add(s("A"), b"1", msg_id="m1")
        with pytest.raises(jetsync.DuplicateMessageIdError) as caught:
            batch.commit(s("A"), b"2", msg_id="m3")
        assert (caught.value.err_code, s.stored()) == (10201, [b"0"])
        assert s.js.publish(s("A"), b"3", msg_id="m3").duplicate is False
        messages = [OutboundMessage(s("A"), b"4", msg_id=f"n{n}") for n in range(3)]
        assert s.js.publish_batch(messages).size == 3
        assert s.js.publish(s("A"), b"5", msg_id="n1").duplicate is True
        with pytest.raises(jetsync.DuplicateMessageIdError):
            s.js.publish_batch(messages)
        assert s.stored() == [b"0", b"3", b"4", b"4", b"4"]

    def test_the_same_id_twice(self, batches):
        """
        A second message with the same id is refused, and the batch is unchanged.
        """
        with batches.js.atomic_batch() as batch:
            batch.add(batches("A"), b"1", msg_id="m")
            with pytest.raises(jetsync.DuplicateMessageIdError):
                batch.add(batches("A"), b"2", msg_id="m")
        assert batches.stored() == [b"1"]


@pytest.mark.versions
class TestExpectations:
    def test_failing_expectations(self, everywhere):
        """
        The server checks expectations at the commit, and then stores nothing.
        """
        s = everywhere
        s.js.publish(s("A"), b"0")
        batch = s.js.atomic_batch(ack_every=1)
        batch.add(s("A"), b"1", expect=Expect(last_sequence=7))
        batch.add(s("A"), b"2")
        with pytest.raises(jetsync.WrongLastSequenceError) as caught:
            batch.commit()
        assert (caught.value.err_code, caught.value.last_sequence) == (10071, 1)
        with pytest.raises(jetsync.BatchClosedError, match="wrong last sequence"):
            batch.add(s("A"))
        assert s.stored() == [b"0"]

    def test_matching_expectations(self, everywhere):
        """
        A batch is stored if all its expectations hold.
        """
        s = everywhere
        s.js.publish(s("A"), b"0")
        with s.js.atomic_batch() as batch:
            batch.add(s("A"), b"1", expect=Expect(stream=s.name, last_sequence=1))
            batch.add(s("B"), b"2", expect=Expect(last_subject_sequence=0))
            about = Expect(last_subject_sequence=0, last_subject_sequence_subject=s("C"))
            batch.add(s("B"), b"3", expect=about)
            batch.add(s("C"), b"4", expect=Expect(last_subject_sequence=0))
        assert batch.ack.size == 4

    def test_only_on_the_first(self, everywhere):
        """
        Only the first message may expect the last sequence. The batch stays usable.
        """
        s = everywhere
        with s.js.atomic_batch() as batch:
            batch.add(s("A"), b"1", expect=Expect(last_sequence=0))
            with pytest.raises(ValueError, match="only the first message"):
                batch.add(s("A"), b"2", expect=Expect(last_sequence=0))
            with pytest.raises(ValueError, match="Nats-Expected-Last-Msg-Id"):
                batch.add(s("A"), b"2", expect=Expect(last_msg_id="m"))
            batch.add(s("A"), b"2")
        assert s.stored() == [b"1", b"2"]

    def test_of_a_subject_of_the_batch(self, everywhere):
        """
        A message cannot have an expectation about a subject that the batch has written.
        """
        s = everywhere
        batch = s.js.atomic_batch()
        batch.add(s("A"), b"1")
        with pytest.raises(jetsync.WrongLastSequenceError) as caught:
            batch.commit(s("A"), b"2", expect=Expect(last_subject_sequence=0))
        assert caught.value.err_code == 10164
        assert batch.commit(s("B"), b"2", expect=Expect(last_subject_sequence=0)).size == 2
        assert s.stored() == [b"1", b"2"]

    def test_of_wildcards(self, everywhere):
        """
        Several messages may have an expectation about the same wildcard.
        """
        s = everywhere

        def order(last):
            expect = Expect(last_subject_sequence=last, last_subject_sequence_subject=s("1.>"))
            subjects = [s("1.made"), s("1.paid"), s("1.paid")]
            return [OutboundMessage(subject, b"x", expect=expect) for subject in subjects]

        assert s.js.publish_batch(order(0)).sequence == 3
        assert s.js.publish_batch(order(3)).sequence == 6
        with pytest.raises(jetsync.WrongLastSequenceError):
            s.js.publish_batch(order(3))
        assert s.stream.info().state.messages == 6

    def test_of_another_subject_without_a_sequence(self, everywhere):
        """
        An expectation about another subject needs a sequence. The server checks the stream's name.
        """
        s = everywhere
        batch = s.js.atomic_batch()
        name = "Nats-Expected-Last-Subject-Sequence-Subject"
        with pytest.raises(ValueError, match="needs Nats-Expected-Last-Subject-Sequence"):
            batch.add(s("A"), headers={name: s("B")})
        batch.add(s("A"), b"1", expect=Expect(stream="OTHER"))
        with pytest.raises(jetsync.WrongStreamError) as caught:
            batch.commit()
        assert (caught.value.err_code, s.stored()) == (10060, [])

    @pytest.mark.parametrize(
        ("first", "second", "err_code"),
        [
            ({}, {"Nats-Expected-Last-Sequence": "0"}, 10071),
            ({}, {"Nats-Expected-Last-Msg-Id": "m"}, 10177),
            ({}, {"Nats-Expected-Last-Subject-Sequence": "0"}, 10164),
            ({}, {"Nats-Expected-Last-Subject-Sequence-Subject": "{}.B"}, 10193),
            ({"Nats-Msg-Id": "m"}, {"Nats-Msg-Id": "m"}, 10201),
            ({}, {"Nats-Rollup": "sub"}, 10111),
            ({}, {"Nats-Rollup": "all"}, 10111),
        ],
    )
    def test_the_rules_are_the_servers(self, everywhere, monkeypatch, first, second, err_code):
        """
        The client refuses only headers that the server would refuse at the commit.
        """
        s = everywhere
        s.stream.update(allow_rollup_hdrs=True)
        second = {name: value.format(s.name) for name, value in second.items()}
        batch = s.js.atomic_batch()
        batch.add(s("A"), b"1", headers=first)
        with pytest.raises((jetsync.BatchRuleError, jetsync.ApiError)):
            batch.add(s("A"), b"2", headers=second)
        monkeypatch.setattr(HeaderRules, "take", lambda *_: None)
        batch.add(s("A"), b"2", headers=second)
        with pytest.raises(jetsync.ApiError) as caught:
            batch.commit()
        assert (caught.value.err_code, s.stored()) == (err_code, [])


def test_a_subject_that_exceeds_its_limit(js, unique):
    """
    A server may store a part of a batch that exceeds the limit of a subject. Then the error is
    an AtomicityError, and otherwise nothing is stored.
    """
    for number in range(10):
        name = f"{unique}-{number}"
        stream = js.create_stream(
            name,
            subjects=[f"{name}.>"],
            storage="memory",
            allow_atomic=True,
            discard="new",
            discard_new_per_subject=True,
            max_msgs=100,
            max_msgs_per_subject=2,
        )
        with pytest.raises((jetsync.StreamFullError, jetsync.AtomicityError)) as caught:
            js.publish_batch([(f"{name}.{subject}", b"") for subject in "bbcb"])
        is_split = caught.type is jetsync.AtomicityError
        assert (stream.info().state.last_seq > 0) is is_split
        stream.delete()


@pytest.mark.versions
class TestOldServers:
    @pytest.mark.parametrize("version", OLD)
    def test_nothing_is_sent(self, js_of, unique, version):
        """
        Nothing is sent to a server that would store the messages one by one.
        """
        js = js_of(version)
        stream = js.create_stream(
            unique, subjects=[f"{unique}.>"], storage="memory", allow_atomic=version == OLD[-1]
        )
        batch = js.atomic_batch()
        for call in (
            lambda: batch.add(f"{unique}.A"),
            lambda: batch.commit(f"{unique}.A"),
            lambda: js.publish_batch([(f"{unique}.A", b"")] * 3),
        ):
            with pytest.raises(jetsync.NotSupportedError, match=r"2\.12") as caught:
                call()
            assert caught.value.server == version
        assert stream.info().state.last_seq == 0
        js.delete_stream(unique)

    def test_broken_but_wanted(self, js_of, unique):
        """
        ``broken_servers`` accepts 2.12.0, and the last message commits there.
        """
        js = js_of("2.12.0")
        s = Batches(js, unique)
        with js.atomic_batch(broken_servers=True) as batch:
            batch.add(s("A"), b"1")
            batch.add(s("A"), b"2")
        js.publish_batch([(s("A"), b"3"), (s("A"), b"4")], broken_servers=True)
        assert s.stored() == [b"1", b"2", b"3", b"4"]
        with pytest.raises(jetsync.NotSupportedError, match="broken_servers=True"):
            js.publish_batch([(s("A"), b"5")])
        js.delete_stream(unique)

    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11"])
    def test_a_server_without_support(self, js_of, unique, version, monkeypatch):
        """
        If a server without support gets a batch, its first answer ends the batch.
        """
        js = js_of(version)
        js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
        monkeypatch.setattr("jetsync.publish.atomic_messages.require_atomic", lambda *_, **__: None)
        for broken in (
            lambda: js.atomic_batch().commit(f"{unique}.A", b"1"),
            lambda: js.publish_batch([(f"{unique}.A", b"2")]),
        ):
            with pytest.raises(jetsync.AtomicityError) as caught:
                broken()
            assert caught.value.stream == unique
        batch = js.atomic_batch()
        batch.add(f"{unique}.A", b"3")
        with pytest.raises(jetsync.AtomicityError) as caught:
            batch.add(f"{unique}.A", b"4")
        assert caught.value.sequence == 3
        batch.discard()
        with pytest.raises(jetsync.ConflictingUseError):
            batch.resend()
        assert js.stream(unique).info().state.last_seq == 3
        js.delete_stream(unique)
