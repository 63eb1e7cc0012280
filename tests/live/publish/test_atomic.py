"""
Atomic batches on real servers: the stored messages, and the time at which they appear.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress

import pytest

import jetsync
from helpers.connections import connection_of
from helpers.streams import Batches
from helpers.waiting import eventually
from jetsync import OutboundMessage
from jetsync.devserver import DevServer

VERSIONS = ["2.12.8", "2.14.6", None]
"""Servers whose batches differ; None is the newest."""

OLD = ["2.10.26", "2.11.11", "2.12.0"]
"""Servers that no batch is sent to."""


@pytest.mark.versions
class TestCommit:
    def test_nothing_is_seen_before(self, everywhere):
        """
        Before the commit, other clients see no message of the batch and can store their own.
        """
        s = everywhere
        batch = s.js.atomic_batch()
        for number in range(3):
            batch.add(s("A"), b"%d" % number)
        assert (batch.size, batch.ack, s.stream.info().state.messages) == (3, None, 0)
        assert s.js.publish(s("other"), b"before").sequence == 1
        ack = batch.commit(s("A"), b"3")
        assert ack == jetsync.BatchAck(s.name, 5, batch.id, 4, first_sequence=2)
        assert batch.ack is ack
        assert s.stored() == [b"before", b"0", b"1", b"2", b"3"]

    @pytest.mark.parametrize("ack_first", [True, False])
    def test_empty_answers(self, everywhere, ack_first):
        """
        An empty answer confirms a message of a batch that does not commit.
        """
        s = everywhere
        with s.js.atomic_batch(ack_first=ack_first, ack_every=1) as batch:
            for number in range(5):
                batch.add(s("A"), b"%d" % number)
        assert s.stored() == [b"0", b"1", b"2", b"3", b"4"]

    def test_without_a_last_message(self, everywhere):
        """
        A commit without a message stores the added messages and marks the last one.
        """
        s = everywhere
        batch = s.js.atomic_batch()
        batch.add(s("A"), b"1")
        batch.add(s("A"), b"2")
        ack = batch.commit()
        assert (ack.size, ack.sequence, ack.first_sequence) == (2, 2, 1)
        headers = s.stream.get_message(2).headers
        assert (headers["Nats-Batch-Id"], headers["Nats-Batch-Sequence"]) == (batch.id, "2")
        assert headers["Nats-Batch-Commit"] == "1"
        assert s.stream.info().state.last_seq == 2

    def test_of_one_message(self, everywhere):
        """
        A batch may have only one message, added before or given to the commit.
        """
        s = everywhere
        batch = s.js.atomic_batch()
        batch.add(s("A"), b"1")
        assert batch.commit().size == 1
        assert s.js.atomic_batch().commit(s("A"), b"2").size == 1
        assert s.js.publish_batch([(s("A"), b"3")]).size == 1
        assert s.stored() == [b"1", b"2", b"3"]

    def test_a_thousand(self, everywhere):
        """
        A batch takes 1,000 messages, however they are added.
        """
        s = everywhere
        messages = [(s("A"), b"%d" % number) for number in range(1000)]
        batch = s.js.atomic_batch()
        for message in messages[:-1]:
            batch.add(*message)
        assert batch.commit(*messages[-1]).size == 1000
        with s.js.atomic_batch() as batch:
            for message in messages:
                batch.add(*message)
        assert (batch.ack.size, batch.ack.sequence) == (1000, 2000)
        assert s.js.publish_batch(messages).sequence == 3000

    def test_more_than_a_thousand(self, everywhere):
        """
        The server refuses a batch that is too large. The next batch knows the limit.
        """
        s = everywhere
        messages = [(s("A"), b"%d" % number) for number in range(1001)]
        batch = s.js.atomic_batch()

        def fill():
            for message in [*messages, messages[0]]:
                batch.add(*message)

        with pytest.raises(jetsync.BatchTooLargeError) as caught:
            fill()
        assert (caught.value.limit, batch.size) in {(1000, 1001), (1000, 1002)}
        again = s.js.atomic_batch()
        for message in messages[:-1]:
            again.add(*message)
        with pytest.raises(jetsync.BatchTooLargeError) as caught:
            again.add(*messages[-1])
        assert (caught.value.limit, again.size) == (1000, 1000)
        with pytest.raises(jetsync.BatchTooLargeError):
            s.js.publish_batch(messages)
        assert s.stream.info().state.messages == 0
        assert again.commit().size == 1000

    @pytest.mark.parametrize("version", VERSIONS)
    def test_another_limit(self, version):
        """
        The client learns the limit from the server's error, and keeps it until it reconnects.
        """

        def one_by_one(js, messages):
            with js.atomic_batch() as batch:
                for message in messages:
                    batch.add(*message)
            return batch.ack

        limits = {"batch": {"max_msgs": 100}}
        with DevServer(version, config={"jetstream": {"limits": limits}}) as server:
            for publish in (one_by_one, lambda js, messages: js.publish_batch(messages)):
                # Another client has to learn the limit itself.
                with jetsync.connect(server.url) as client:
                    s = Batches(client.jetstream(), "S")
                    messages = [(s("A"), b"%d" % number) for number in range(101)]
                    for _ in range(2):
                        with pytest.raises(jetsync.BatchTooLargeError) as caught:
                            publish(s.js, messages)
                        assert (caught.value.limit, s.stored()) == (100, [])
                    assert publish(s.js, messages[1:]).size == 100
                    assert s.js._context.streams.batch_limits == {
                        connection_of(client).lane.epoch: 100
                    }
                    s.js.delete_stream("S")

    @pytest.mark.parametrize("count", [1001, 1002, 1500])
    def test_more_than_a_thousand_at_once(self, everywhere, count):
        """
        A batch in one call learns the limit, too.
        """
        s = everywhere
        for _ in range(2):
            with pytest.raises(jetsync.BatchTooLargeError) as caught:
                s.js.publish_batch([(s("A"), b"")] * count)
            assert caught.value.limit == 1000
            assert f"{count} messages; the limit is 1000" in str(caught.value)
        assert s.stream.info().state.messages == 0

    def test_with_and_without_headers(self, everywhere):
        """
        One call may mix messages with headers and without.
        """
        s = everywhere
        messages = [
            (s("A"), b"1"),
            (s("A"), "2", None),
            (s("A"), b"3", {"B": ["x", "y"]}),
            OutboundMessage(s("A"), b"4", headers=None),
            OutboundMessage(s("A"), b"5", headers={}, msg_id="five"),
        ]
        assert s.js.publish_batch(messages).size == 5
        assert s.stored() == [b"1", b"2", b"3", b"4", b"5"]
        assert s.stream.get_message(3).headers.get_all("B") == ["x", "y"]

    def test_the_ttl_of_a_batch_applies_to_messages_without_one(self, everywhere):
        """
        The ttl of the batch applies to messages without their own.
        """
        s = everywhere
        s.stream.update(allow_msg_ttl=True)
        batch = s.js.atomic_batch(ttl=dt.timedelta(seconds=1))
        batch.add(s("A"), b"goes")
        batch.add(s("A"), b"stays", ttl="never")
        batch.commit(s("A"), b"goes too")
        assert s.stream.info().state.messages == 3
        eventually(lambda: s.stream.info().state.messages == 1)
        assert s.stored() == [b"stays"]

    def test_rolled_up(self, everywhere):
        """
        The first message of each subject in a batch may roll it up.
        """
        s = everywhere
        s.stream.update(allow_rollup_hdrs=True)
        s.js.publish(s("A"), b"old")
        s.js.publish(s("B"), b"old")
        with s.js.atomic_batch() as batch:
            batch.add(s("A"), b"1", headers={"Nats-Rollup": "sub"})
            batch.add(s("B"), b"2", headers={"Nats-Rollup": "sub"})
            with pytest.raises(jetsync.BatchRuleError):
                batch.add(s("B"), b"3", headers={"Nats-Rollup": "sub"})
            batch.add(s("B"), b"4")
        assert s.stored() == [b"1", b"2", b"4"]


class TestBlock:
    def test_it_commits(self, batches):
        """
        Leaving the block commits, unless the block has committed.
        """
        with batches.js.atomic_batch() as batch:
            batch.add(batches("A"), b"1")
            assert repr(batch) == f"<AtomicBatch {batch.id} open size=1>"
        assert batch.ack.size == 1
        assert repr(batch) == f"<AtomicBatch {batch.id} committed size=1>"
        with batches.js.atomic_batch() as batch:
            batch.add(batches("A"), b"2")
            ack = batch.commit()
        assert batch.ack is ack
        assert batches.stored() == [b"1", b"2"]

    def test_an_exception_stores_nothing(self, batches):
        """
        If the block raises, its error is raised unchanged and nothing is stored.
        """
        error = LookupError("own")
        batch = batches.js.atomic_batch()

        def work():
            with batch:
                batch.add(batches("A"), b"1")
                batch.add(batches("A"), b"2")
                raise error

        with pytest.raises(LookupError) as caught:
            work()
        assert caught.value is error
        with pytest.raises(jetsync.BatchClosedError, match="discarded"):
            batch.add(batches("A"), b"3")
        assert (batch.ack, batches.stored()) == (None, [])

    def test_discarded_or_empty(self, batches):
        """
        Leaving the block of a discarded or an empty batch raises nothing.
        """
        with batches.js.atomic_batch() as batch:
            batch.add(batches("A"), b"1")
            batch.discard()
            batch.discard()
        with batches.js.atomic_batch() as empty:
            pass
        assert (batch.ack, empty.ack, batches.stored()) == (None, None, [])

    def test_a_loss_that_was_overheard(self, batches):
        """
        If an add loses the batch and the block continues, the end of the block raises.
        """

        def work():
            with batches.js.atomic_batch(ack_every=1) as batch:
                batch.add(batches("A"), b"1")
                batches.stream.update(allow_atomic=False)
                with contextlib.suppress(jetsync.AtomicPublishDisabledError):
                    batch.add(batches("A"), b"2")

        with pytest.raises(jetsync.BatchClosedError, match="atomic publish is disabled"):
            work()
        batches.stream.update(allow_atomic=True)
        with batches.js.atomic_batch() as batch:
            batch.add(batches("A"), b"1")
            batches.stream.update(allow_atomic=False)
            with pytest.raises(jetsync.AtomicPublishDisabledError):
                batch.commit()
        assert batches.stored() == []

    def test_an_empty_batch_stays_open_after_a_commit(self, batches):
        """
        Committing an empty batch raises an error, and messages can be added afterwards.
        """
        batch = batches.js.atomic_batch()
        with pytest.raises(ValueError, match="at least one message"):
            batch.commit()
        with pytest.raises(ValueError, match="needs a subject"):
            batch.commit(data=b"x")
        batch.add(batches("A"), b"1")
        assert batch.commit().size == 1

    def test_it_is_over(self, batches):
        """
        A committed batch takes no message and no second commit, and cannot be sent again.
        """
        batch = batches.js.atomic_batch()
        batch.add(batches("A"), b"1")
        with pytest.raises(jetsync.ConflictingUseError):
            batch.resend()
        batch.commit()
        for call in (lambda: batch.add(batches("A")), batch.commit):
            with pytest.raises(jetsync.BatchClosedError):
                call()
        with pytest.raises(jetsync.ConflictingUseError):
            batch.resend()
        batch.discard()
        assert batches.stored() == [b"1"]

    def test_a_discarded_batch_is_not_sent_again(self, batches):
        """
        A discarded batch cannot be sent again, because messages may be missing.
        """
        batch = batches.js.atomic_batch()
        batch.add(batches("A"), b"1")
        batch.discard()
        with pytest.raises(jetsync.ConflictingUseError):
            batch.resend()


class TestIterables:
    @pytest.mark.parametrize("kind", [list, tuple, iter, lambda items: (i for i in items)])
    def test_of_all_kinds(self, batches, kind):
        """
        Any iterable of messages is accepted.
        """
        messages = kind([(batches("A"), b"%d" % number) for number in range(4)])
        assert batches.js.publish_batch(messages).size == 4
        assert batches.stored() == [b"0", b"1", b"2", b"3"]

    def test_that_raise(self, batches):
        """
        If the iterable raises, the error is raised unchanged and nothing is stored.
        """

        def broken():
            for number in range(3):
                yield batches("A"), b"%d" % number
            raise LookupError("own")

        with pytest.raises(LookupError, match="own"):
            batches.js.publish_batch(broken())
        assert batches.stored() == []

    def test_that_are_empty(self, batches):
        """
        An empty iterable is an error.
        """
        with pytest.raises(ValueError, match="at least one message"):
            batches.js.publish_batch([])

    @pytest.mark.parametrize(
        ("item", "error"),
        [
            (5, TypeError),
            ((), TypeError),
            (("a b", b""), jetsync.InvalidSubjectError),
            (("{}.*", b""), jetsync.InvalidSubjectError),
            (("{}.A", 5), TypeError),
            (("{}.A", b"", {"Nats-Batch-Id": "x"}), jetsync.BatchRuleError),
            (("{}.A", bytes(2 << 20)), jetsync.MaxPayloadError),
        ],
    )
    @pytest.mark.parametrize("place", [0, 1])
    def test_with_invalid_messages(self, batches, item, error, place):
        """
        An invalid message is refused in any place, and nothing is stored.
        """
        if isinstance(item, tuple) and item:
            item = (item[0].format(batches.name), *item[1:])
        messages = [(batches("A"), b"1"), (batches("A"), b"2")]
        messages.insert(place, item)
        with pytest.raises(error):
            batches.js.publish_batch(messages)
        assert batches.stored() == []


@pytest.mark.filterwarnings("ignore:parameter 'timeout' of type:DeprecationWarning")
class TestDoors:
    def through(self, client):
        """
        Store batches in both ways over a connection, and read them back.
        """
        js = client.jetstream()
        stream = Batches(js, "S")
        with js.atomic_batch(ack_every=3) as batch:
            for number in range(10):
                batch.add(stream("A"), b"%d" % number)
        large = [(stream("B"), bytes([number]) * 20_000) for number in range(200)]
        assert js.publish_batch(large).size == 200
        assert stream.stored() == [b"%d" % n for n in range(10)] + [data for _, data in large]
        assert client.statistics().strays == 0

    def test_batches_work_over_websocket(self):
        """
        Batches work over a WebSocket.
        """
        pytest.importorskip("aiohttp")
        with DevServer(config={"websocket": {"port": -1, "no_tls": True}}) as server:
            url = f"ws://127.0.0.1:{server.ports()['websocket']}"
            with jetsync.connect(url) as client:
                self.through(client)

    def test_batches_work_over_tls(self, tmp_path):
        """
        Batches work over TLS.
        """
        x509 = pytest.importorskip("cryptography.x509")
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        secret = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "batches")])
        host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        now, day = dt.datetime.now(dt.timezone.utc), dt.timedelta(days=1)
        builder = x509.CertificateBuilder().issuer_name(name).subject_name(name).serial_number(1)
        builder = builder.not_valid_before(now - day).not_valid_after(now + day)
        builder = builder.add_extension(x509.SubjectAlternativeName([host]), critical=False)
        builder = builder.public_key(secret.public_key())
        encoding = serialization.Encoding.PEM
        certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
        certificate.write_bytes(builder.sign(secret, hashes.SHA256()).public_bytes(encoding))
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key.write_bytes(secret.private_bytes(encoding, form, plain))
        config = {"tls": {"cert_file": str(certificate), "key_file": str(key)}}
        with (
            DevServer(config=config) as server,
            jetsync.connect(server.url, tls_ca=str(certificate)) as client,
        ):
            self.through(client)
