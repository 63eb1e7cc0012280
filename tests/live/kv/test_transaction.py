"""
Many keys at once, on real servers: transactions and consistent snapshots.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.traffic import sent_nothing
from helpers.waiting import eventually, timed
from jetsync import KeyOperation
from jetsync.devserver import DevServer
from jetsync.kv import transaction
from jetsync.testing import CutProxy


@pytest.fixture
def kv(make_bucket):
    """
    A bucket in memory that keeps ten revisions of each key.
    """
    return make_bucket(history=10, atomic=True)


def values(entries):
    """
    The values by key.
    """
    return {key: entry.value for key, entry in entries.items()}


def attempt(kv, *changes):
    """
    Make changes in one transaction: the name of a method, key, value and expected revision.
    """
    with kv.atomic() as tx:
        for name, key, *value_and_last in changes:
            value, last = value_and_last[:1], value_and_last[1:]
            getattr(tx, name)(key, *value, **({"last": last[0]} if last else {}))
    return tx


class TestTransactions:
    def test_all_changes_of_a_transaction_are_stored_together(self, kv):
        """
        All changes of a block are stored together at its end.
        """
        kv.put("b", b"old")
        last = kv.put("c", b"old")
        kv.put("d", b"old")
        with kv.atomic() as tx:
            tx.put("a", b"1")
            tx.create("new", "2")
            tx.update("c", b"3", last=last)
            tx.delete("b")
            tx.purge("d")
            assert len(tx) == 5
            assert tx.revisions == {}
            assert kv.status().last_revision == 3
        assert tx.revisions == {"a": 4, "new": 5, "c": 6, "b": 7, "d": 8}
        assert tx.ack.size == 5
        assert values(kv.get_many(">")) == {"a": b"1", "new": b"2", "c": b"3"}
        assert [entry.operation for entry in kv.history("d")] == [KeyOperation.PURGE]
        assert kv.get("c").revision == 6

    def test_an_exception_drops_it(self, client, kv):
        """
        An exception in the block discards the changes without sending them.
        """
        tx = kv.atomic()
        sent = client.statistics().bytes_out

        def fail():
            with tx:
                tx.put("a", b"1")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        assert sent_nothing(client, sent)
        assert kv.keys() == []
        for call in (lambda: tx.put("b", b""), tx.commit):
            with pytest.raises(jetsync.BatchClosedError, match="transaction"):
                call()
        tx.discard()

    def test_a_conflict_that_cannot_be_explained(self, kv, monkeypatch):
        """
        If the keys cannot be read after a refusal, the error still says that a revision is wrong.
        """
        kv.put("a", b"1")
        failure = jetsync.RequestTimeoutError("x", timeout=1.0)

        def fail(*arguments):
            raise failure

        monkeypatch.setattr("jetsync.kv.bucket.Bucket.last_at_origin", fail)
        with pytest.raises(jetsync.WrongLastRevisionError) as wrong:
            attempt(kv, ("update", "a", b"2", 9))
        assert wrong.value.bucket == kv.bucket
        assert wrong.value.__cause__ is failure
        assert isinstance(failure.__cause__, jetsync.WrongLastSequenceError)

    @pytest.mark.parametrize("refusals", [2, 1000])
    def test_another_change_is_in_progress(self, kv, monkeypatch, refusals):
        """
        A transaction is sent again if it was refused although its keys have the right revisions.
        """
        revision, publish_batch = kv.put("a", b"1"), transaction.publish_batch
        left = iter(range(refusals))

        def publish(*arguments):
            if next(left, None) is None:
                return publish_batch(*arguments)
            raise jetsync.WrongLastSequenceError(code=400, err_code=10164)

        monkeypatch.setattr(transaction, "publish_batch", publish)
        monkeypatch.setattr(transaction, "CONFLICT_PAUSE", 0.001)
        if refusals > transaction.ATTEMPTS:
            with pytest.raises(jetsync.WrongLastRevisionError):
                attempt(kv, ("update", "a", b"2", revision))
        else:
            attempt(kv, ("update", "a", b"2", revision))
        assert kv.get("a").value == (b"1" if refusals > transaction.ATTEMPTS else b"2")

    def test_a_transaction_without_changes_sends_nothing(self, client, kv):
        """
        A block without changes sends nothing.
        """
        tx = kv.atomic()
        sent = client.statistics().bytes_out
        with tx:
            pass
        assert sent_nothing(client, sent)
        assert tx.revisions == {}
        assert tx.ack is None

    def test_a_conflict_stores_nothing_and_names_the_key(self, kv):
        """
        If a key has another revision, nothing is stored, and the error names the key.
        """
        kv.put("a", b"1")
        kv.put("b", b"2")
        kv.put("b", b"3")
        with pytest.raises(jetsync.WrongLastRevisionError) as wrong:
            attempt(kv, ("update", "a", b"x", 1), ("update", "b", b"x", 2), ("put", "c", b"x"))
        assert (wrong.value.key, wrong.value.expected, wrong.value.last_sequence) == ("b", 2, 3)
        assert isinstance(wrong.value.__cause__, jetsync.WrongLastSequenceError)
        assert values(kv.get_many(">")) == {"a": b"1", "b": b"3"}
        with pytest.raises(jetsync.KeyExistsError) as exists:
            attempt(kv, ("put", "c", b"x"), ("create", "a", b"x"))
        assert (exists.value.key, exists.value.last_sequence) == ("a", 1)
        for change in ("delete", "purge"):
            tx = kv.atomic()
            getattr(tx, change)("missing", last=7)
            with pytest.raises(jetsync.WrongLastRevisionError) as wrong:
                tx.commit()
            assert (wrong.value.key, wrong.value.last_sequence) == ("missing", 0)
        assert kv.status().last_revision == 3

    def test_create_over_markers(self, kv):
        """
        A transaction can create several deleted, purged and new keys.
        """
        for key in ("a", "b", "c"):
            kv.put(key, b"old")
        kv.delete("a")
        kv.purge("b")
        kv.delete("c")
        with kv.atomic() as tx:
            for key in ("a", "new", "b", "c"):
                tx.create(key, key)
        assert values(kv.get_many(">")) == {"a": b"a", "b": b"b", "c": b"c", "new": b"new"}
        with pytest.raises(jetsync.KeyExistsError):
            attempt(kv, ("create", "d", b""), ("create", "b", b""))

    def test_a_key_twice(self, kv):
        """
        A key can be put several times. Only its first change can expect a revision.
        """
        with kv.atomic() as tx:
            tx.create("a", b"1")
            tx.put("a", b"2")
            tx.put("b", b"3")
            tx.put("a", b"4")
            for wrong in (
                lambda: tx.create("a", b""),
                lambda: tx.update("b", b"", last=1),
                lambda: tx.delete("a", last=1),
                lambda: tx.purge("b"),
            ):
                with pytest.raises(jetsync.InvalidArgumentError, match="already"):
                    wrong()
        assert tx.revisions == {"a": 4, "b": 3}
        assert [entry.value for entry in kv.history("a")] == [b"1", b"2", b"4"]

    def test_bad_changes(self, kv):
        """
        An invalid change is rejected by its call, and the rest can be committed.
        """
        with kv.atomic() as tx:
            for wrong in (
                lambda: tx.put("a..b", b""),
                lambda: tx.put("a", 5),
                lambda: tx.update("a", b"", last=-1),
                lambda: tx.update("a", b"", last=None),
                lambda: tx.delete("*"),
                lambda: tx.put("a", b"", ttl=0),
            ):
                with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
                    wrong()
            tx.put("a", b"1")
        assert kv.get("a").value == b"1"

    def test_a_transaction_with_too_many_changes_is_rejected(self, kv):
        """
        A transaction with too many changes is rejected as a whole.
        """
        with pytest.raises(jetsync.BatchTooLargeError):
            attempt(kv, *(("put", f"k{number}", b"") for number in range(1001)))
        assert kv.keys() == []
        with kv.atomic() as tx:
            for number in range(1000):
                tx.put(f"k{number}", b"")
        assert len(kv.keys()) == 1000

    def test_atomic_needs_a_bucket_that_allows_transactions(self, js, unique):
        """
        ``atomic()`` raises an error if the bucket or its origin does not allow transactions.
        """
        kv = js.create_key_value(unique, storage="memory")
        copy = js.create_key_value(f"{unique}-copy", mirror=unique, storage="memory")
        text = rf"^bucket '{unique}': .* update_key_value\('{unique}', atomic=True\)"
        for handle in (kv, copy):
            with pytest.raises(jetsync.AtomicPublishDisabledError, match=text):
                handle.atomic()
        js.delete_key_value(copy.bucket)
        js.update_key_value(unique, storage="memory", atomic=True)
        with kv.atomic() as tx:
            tx.put("a", b"1")
        assert kv.get("a").value == b"1"
        js.delete_key_value(unique)

    def test_exactly_one_of_conflicting_transactions_is_stored(self, kv):
        """
        Of conflicting transactions in many threads, exactly one is stored.
        """
        kv.put("a", b"0")
        kv.put("b", b"0")

        def add(_):
            while True:
                found = kv.get_many(["a", "b"])
                try:
                    with kv.atomic() as tx:
                        for key in ("a", "b"):
                            new = b"%d" % (int(found[key].value) + 1)
                            tx.update(key, new, last=found[key].revision)
                except jetsync.WrongLastRevisionError:
                    continue
                else:
                    return

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(add, range(20)))
        assert values(kv.get_many(["a", "b"])) == {"a": b"20", "b": b"20"}

    def test_lost_answer(self, nats_server, kv):
        """
        If the commit is not answered, the outcome is unknown: all changes are stored, or none.
        """
        with (
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, reconnect_wait=0.05) as client,
        ):
            other = client.jetstream().key_value(kv.bucket)
            tx = other.atomic(timeout=1)
            tx.put("a", b"1")
            tx.put("b", b"1")
            proxy.pause()
            with pytest.raises(jetsync.PublishOutcomeUnknownError) as lost:
                tx.commit()
            assert lost.value.batch_id
            proxy.resume()
            assert len(kv.get_many(">")) in {0, 2}
            assert tx.revisions == {}

    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.12.8", "2.14.6"])
    def test_transactions_work_on_older_servers(self, server_for, unique, version):
        """
        Transactions work on every server from 2.12.5 on.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            kv = js.create_key_value(unique, storage="memory", atomic=True)
            kv.put("a", b"1")
            kv.delete("a")
            with kv.atomic() as tx:
                tx.put("b", b"2")
                tx.create("a", b"2")
            with pytest.raises(jetsync.WrongLastRevisionError) as wrong:
                attempt(kv, ("put", "b", b"3"), ("update", "a", b"3", 1), ("put", "c", b"3"))
            assert wrong.value.key == "a"
            assert values(kv.get_many(">")) == {"a": b"2", "b": b"2"}
            js.delete_key_value(unique)

    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.11.11", "2.12.0"])
    def test_refused_by_old_servers(self, server_for, unique, version):
        """
        Servers before 2.12.5 are rejected before anything is stored.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            kv = js.create_key_value(unique, storage="memory")
            with pytest.raises(jetsync.NotSupportedError, match=r"2\.12"):
                kv.atomic()
            js.delete_key_value(unique)


class TestGetMany:
    def test_keys_and_patterns(self, kv):
        """
        Keys and patterns are read. Keys without a value are left out.
        """
        for key in ("a", "b.1", "b.2", "c"):
            kv.put(key, key)
        kv.delete("b.2")
        assert values(kv.get_many(["a", "b.*", "missing"])) == {"a": b"a", "b.1": b"b.1"}
        assert values(kv.get_many("c")) == {"c": b"c"}
        assert values(kv.get_many(">")) == {"a": b"a", "b.1": b"b.1", "c": b"c"}
        assert values(kv.get_many(key for key in ("a", "a", "*"))) == {"a": b"a", "c": b"c"}
        assert kv.get_many("missing.*") == {}
        entry = kv.get_many("a")["a"]
        assert entry == kv.get("a")

    def test_of_an_earlier_revision(self, kv):
        """
        The snapshot can be that of an earlier revision or time.
        """
        kv.put("a", b"1")
        kv.put("b", b"2")
        between = kv.get("b").created + dt.timedelta(microseconds=1)
        kv.put("a", b"3")
        kv.delete("b")
        kv.put("c", b"5")
        assert values(kv.get_many(">", at=1)) == {"a": b"1"}
        assert values(kv.get_many(">", at=3)) == {"a": b"3", "b": b"2"}
        assert values(kv.get_many(">", at=between)) == {"a": b"1", "b": b"2"}
        assert values(kv.get_many(">", at=4)) == {"a": b"3"}
        assert values(kv.get_many(["a", "c"], at=99)) == {"a": b"3", "c": b"5"}

    @pytest.mark.parametrize(
        ("keys", "at"),
        [
            ([], None),
            ("a..b", None),
            (["a", 5], None),
            (5, None),
            ("a", 0),
            ("a", "now"),
            ("a", True),
            ("a", dt.datetime(2026, 1, 1)),  # noqa: DTZ001 - the call refuses it
        ],
    )
    def test_bad_input(self, client, kv, keys, at):
        """
        Invalid arguments are rejected before anything is sent.
        """
        sent = client.statistics().bytes_out
        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
            kv.get_many(keys, at)
        assert sent_nothing(client, sent)

    def test_more_keys_than_a_request_takes(self, js, kv):
        """
        A snapshot of more than 1,024 keys is consistent too.
        """
        js.publish_many((f"$KV.{kv.bucket}.k{number}", b"%d" % number) for number in range(1500))
        found = kv.get_many(">", timeout=60)
        assert values(found) == {f"k{number}": b"%d" % number for number in range(1500)}

    def test_a_writer(self, js, unique):
        """
        A snapshot never contains a part of a transaction, even without history.
        """
        kv = js.create_key_value(unique, storage="memory", atomic=True)
        keys = [f"k{number}" for number in range(30)]
        stop = threading.Event()

        def write():
            number = 0
            while not stop.is_set():
                number += 1
                with kv.atomic() as tx:
                    for key in keys:
                        tx.put(key, b"%d" % number)

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            try:
                for _ in range(30):
                    found = kv.get_many("*", timeout=20)
                    assert len(found) in {0, 30}
                    assert len({entry.value for entry in found.values()}) <= 1
            finally:
                stop.set()
            writing.result(20)
        js.delete_key_value(unique)

    def test_values_that_vanish_make_get_many_read_a_later_snapshot(self, kv, monkeypatch):
        """
        If values vanish during the read, a later snapshot is read. With ``at``, the error names the
        keys.
        """
        kv.put("a", b"1")
        kv.put("b", b"2")
        ask, lost = jetsync.Stream.get_last_for, []

        class Lossy:
            """
            A read that has lost a key.
            """

            missing = (f"$KV.{kv.bucket}.b",)
            vanished = 1

            def __init__(self, batch):
                self._reader = batch._reader
                self.batch = [message for message in batch if not message.subject.endswith("b")]

            def __iter__(self):
                return iter(self.batch)

        def read(*arguments, **options):
            batch = ask(*arguments, **options)
            if len(lost) < 2:
                lost.append(1)
                return Lossy(batch)
            return batch

        monkeypatch.setattr(jetsync.Stream, "get_last_for", read)
        assert values(kv.get_many(">")) == {"a": b"1", "b": b"2"}
        lost.clear()
        with pytest.raises(jetsync.KeysVanishedError) as caught:
            kv.get_many(">", at=2)
        assert (caught.value.keys, caught.value.revision) == (("b",), 2)

    def test_reading_many_keys_ends_at_its_deadline(self, kv):
        """
        Reading many keys ends at its deadline, even if values keep vanishing.
        """
        for number in range(3):
            kv.put(f"k{number}", b"")
        with pytest.raises(TimeoutError), timed(0, 5):
            kv.get_many(">", timeout=0)
        assert len(kv.get_many(">", timeout=10)) == 3

    def test_no_direct_gets(self, kv):
        """
        ``get_many`` needs direct gets.
        """
        kv.put("a", b"1")
        kv.stream.update(allow_direct=False)
        with pytest.raises(jetsync.DirectNotSupportedError):
            kv.get_many(">")


@pytest.mark.cluster
def test_leader_reads_in_a_cluster_see_all_transactions():
    """
    With three replicas, reads from the leader see all committed transactions while leaders change.
    """

    def patiently(call):
        # While there is no leader, requests get no answer or an error.
        errors = (jetsync.PublishError, jetsync.RequestTimeoutError, jetsync.ApiError)

        def answered():
            with contextlib.suppress(*errors):
                return [call()]

        return eventually(answered, 60)[0]

    with DevServer(cluster=3) as server, jetsync.connect(server.url) as client:
        js = client.jetstream(timeout=5)
        kv = patiently(lambda: js.create_key_value("B", num_replicas=3, history=5, atomic=True))
        patiently(lambda: kv.put("a", b"0"))

        def step(number):
            entry = kv.get("a", direct=False)
            if entry.value != b"%d" % number:
                attempt(
                    kv,
                    ("update", "a", b"%d" % number, entry.revision),
                    ("put", "b", b"%d" % number),
                )

        for number in range(1, 3):
            patiently(lambda number=number: step(number))
            client.request("$JS.API.STREAM.LEADER.STEPDOWN.KV_B", b"", timeout=20)
        for key in ("a", "b"):
            assert patiently(lambda key=key: kv.get(key, direct=False).value) == b"2"
