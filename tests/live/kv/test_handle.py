"""
Key-value buckets on real servers: single keys, and the bucket itself.
"""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import jetsync
from helpers.domains import domain_link
from helpers.traffic import sent_nothing
from helpers.waiting import eventually
from jetsync import KeyOperation
from jetsync.kv import bucket as bucket_module

CHANGES = {
    "update": lambda kv, last: kv.update("a", b"new", last=last, timeout=20),
    "delete": lambda kv, last: kv.delete("a", last=last, timeout=20),
    "purge": lambda kv, last: kv.purge("a", last=last, timeout=20),
}
"""Changes of a key that is at an expected revision."""
OLD = ("2.10.26", "2.11.11", "2.12.8", "2.14.6")


@pytest.fixture
def kv(make_bucket):
    """
    A bucket that keeps five revisions of each key.
    """
    return make_bucket(history=5, atomic=True)


def basics(kv):
    """
    The basic operations on a key work on every server version.
    """
    assert kv.put("a", b"one") == 1
    assert kv.update("a", "two", last=1) == 2
    with pytest.raises(jetsync.WrongLastRevisionError) as wrong:
        kv.update("a", b"three", last=1)
    assert (wrong.value.key, wrong.value.expected, wrong.value.last_sequence) == ("a", 1, 2)
    assert isinstance(wrong.value, jetsync.WrongLastSequenceError)
    assert kv.get("a").value == b"two"
    assert kv.delete("a") == 3
    with pytest.raises(jetsync.KeyNotFoundError) as gone:
        kv.get("a")
    assert (gone.value.deleted_at, gone.value.reason) == (3, "deleted")
    assert kv.create("a", b"again") == 4
    assert kv.get("a", revision=1).value == b"one"
    assert kv.put("b", b"other") == 5
    with pytest.raises(jetsync.KeyNotFoundError):
        kv.get("a", revision=5)
    assert sorted(kv.keys()) == ["a", "b"]
    assert [entry.operation for entry in kv.history("a")] == [
        KeyOperation.PUT,
        KeyOperation.PUT,
        KeyOperation.DELETE,
        KeyOperation.PUT,
    ]
    with kv.watch() as watch:
        assert [entry.key for entry in watch.initial(timeout=10)] == ["a", "b"]
        kv.purge("a")
        entry = watch.next(timeout=10)
    assert (entry.key, entry.operation, entry.value) == ("a", KeyOperation.PURGE, b"")
    assert [entry.operation for entry in kv.history("a")] == [KeyOperation.PURGE]
    assert kv.purge_deletes(0) == 1
    assert kv.stream.info().state.messages == 1


@pytest.mark.parametrize("history", [1, 5])
def test_a_full_bucket(make_bucket, history):
    """
    A full bucket says so. Keys can be deleted if the mark takes the place of the value.
    """
    kv = make_bucket(history=history, max_bytes=10_000)
    text = r"bucket .*: maximum bytes exceeded \(503, err_code 10077\); raise max_bytes, or remove"
    for number in range(4):
        kv.put(f"k{number}", b"x" * 2000)
    with pytest.raises(jetsync.StreamFullError, match=text):
        kv.put("k4", b"x" * 2000)
    left = 10_000 - kv.status().bytes
    while left > 0:
        try:
            kv.put("other", b"x" * left)
            break
        except jetsync.StreamFullError:
            left -= 1
    changes = (kv.delete, kv.purge, lambda key: kv.put(key, b"y" * 2000))
    for key, change in zip(kv.keys(), changes, strict=False):
        if history == 1:
            change(key)
        else:
            with pytest.raises(jetsync.StreamFullError):
                change(key)
    # The advice of the error.
    assert kv.stream.purge(f"$KV.{kv.bucket}.k3") == 1
    kv.delete("k1")


class TestKeys:
    def test_the_basic_operations_work_and_missing_keys_are_errors(self, kv):
        """
        The basic operations work, and missing keys are errors.
        """
        basics(kv)

    def test_a_default_replaces_only_the_error_for_a_missing_key(self, kv):
        """
        A key that was never set, was deleted, or did not have the revision has the default.
        """
        kv.put("a", b"one")
        kv.put("b", b"")
        kv.delete("b")

        assert kv.get("a", default=None).value == b"one"
        assert kv.get("never", default=None) is None
        assert kv.get("b", default=7) == 7
        assert kv.get("a", 2, default=7) == kv.get("a", 99, default=7) == 7
        for key in ("a b", ">"):
            with pytest.raises(jetsync.InvalidKeyError):
                kv.get(key, default=None)
        kv.stream.delete()
        with pytest.raises(jetsync.BucketNotFoundError):
            kv.get("a", default=None)

    def test_in_says_whether_a_key_has_a_value(self, kv):
        """
        A key with a value is in the bucket, also if the value is empty; a deleted key is not.
        """
        kv.put("a", b"")
        kv.put("b", b"x")
        kv.purge("b")

        assert "a" in kv
        assert "b" not in kv
        assert "never" not in kv
        with pytest.raises(jetsync.InvalidKeyError):
            assert "a.*" in kv
        with pytest.raises(jetsync.InvalidTypeError):
            assert 5 in kv

    @pytest.mark.versions
    @pytest.mark.parametrize("version", OLD)
    def test_the_basic_operations_work_on_every_server(self, server_for, unique, version):
        """
        The basic operations work on every server from 2.10 on.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            kv = js.create_key_value(unique, history=5, storage="memory")
            basics(kv)
            js.delete_key_value(unique)

    @pytest.mark.versions
    @pytest.mark.parametrize("storage", ["memory", "file"])
    @pytest.mark.parametrize("version", OLD)
    def test_several_patterns_work_on_every_server(self, server_for, unique, version, storage):
        """
        Several patterns find all keys on every server, also where one of them hides another.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            kv = js.create_key_value(unique, storage=storage)
            for key in ("b", "c.d", "a.b.c", "a", "a.b"):
                kv.put(key, b"")
            assert kv.keys("*", "a.>") == kv.keys("a.>", "*") == ["b", "a.b.c", "a", "a.b"]
            assert kv.keys("*.d", "a", "a.b") == ["c.d", "a", "a.b"]
            with kv.watch("a.*", "*") as changes:
                assert [entry.key for entry in changes.initial(timeout=10)] == ["b", "a", "a.b"]
                kv.put("c.d", b"")
                revision = kv.put("a.b", b"")
                assert changes.next(timeout=10).revision == revision
            with kv.watch("a.*", "*", from_revision=4) as changes:
                found = [entry.revision for entry in changes.initial(timeout=10)]
            assert found == [4, revision]
            js.delete_key_value(unique)

    @pytest.mark.parametrize(
        ("value", "stored"),
        [
            (b"", b""),
            ("ä", "ä".encode()),
            (bytearray(b"x"), b"x"),
            (memoryview(b"\x00\r\n"), b"\x00\r\n"),
        ],
    )
    def test_a_value_is_returned_unchanged_even_if_empty(self, kv, value, stored):
        """
        A value is returned unchanged. An empty value is a value too.
        """
        before = dt.datetime.now(dt.timezone.utc) - dt.timedelta(minutes=1)
        revision = kv.put("a/b=c.d_e-f", value)
        entry = kv.get("a/b=c.d_e-f")

        assert entry == kv.get("a/b=c.d_e-f", revision)
        assert (entry.bucket, entry.key, entry.value) == (kv.bucket, "a/b=c.d_e-f", stored)
        assert (entry.revision, entry.operation, entry.delta) == (revision, KeyOperation.PUT, 0)
        assert not entry.is_deleted
        assert before < entry.created < before + dt.timedelta(minutes=2)

    def test_invalid_names(self, client, js, kv):
        """
        Invalid names are rejected before anything is sent.
        """
        sent = client.statistics().bytes_out
        for key in ("", ".a", "a..b", "a b", ">", "*", "a.*"):
            for call in (
                lambda key=key: kv.get(key),
                lambda key=key: kv.put(key, b""),
                lambda key=key: kv.create(key, b""),
                lambda key=key: kv.update(key, b"", last=1),
                lambda key=key: kv.delete(key),
                lambda key=key: kv.purge(key),
                lambda key=key: kv.history(key),
            ):
                with pytest.raises(ValueError, match="invalid key") as caught:
                    call()
                assert isinstance(caught.value, jetsync.InvalidKeyError)
        for bucket in ("a.b", "", "a b", ">"):
            for call in (js.key_value, js.delete_key_value):
                with pytest.raises(jetsync.InvalidBucketError):
                    call(bucket)
            with pytest.raises(jetsync.InvalidBucketError):
                js.create_key_value(bucket)
        for pattern in ("a..b", ">.a", ""):
            with pytest.raises(jetsync.InvalidKeyError):
                kv.keys(pattern)
            with pytest.raises(jetsync.InvalidKeyError):
                kv.watch(pattern)
        with pytest.raises(jetsync.InvalidTypeError):
            kv.put("a", 5)
        with pytest.raises(jetsync.InvalidTypeError):
            kv.update("a", b"", last="1")
        with pytest.raises(jetsync.InvalidTypeError):
            kv.update("a", b"", last=None)
        with pytest.raises(TypeError):
            kv.purge("a", 7)
        with pytest.raises(jetsync.InvalidArgumentError):
            kv.delete("a", last=-1)
        assert sent_nothing(client, sent)

    def test_expectations_of_deletes(self, kv):
        """
        A delete and a purge can expect a revision. If the server rejects them, nothing changes.
        """
        kv.put("a", b"1")
        last = kv.put("a", b"2")
        for refused in (lambda: kv.delete("a", last=1), lambda: kv.purge("a", last=1)):
            with pytest.raises(jetsync.WrongLastRevisionError) as wrong:
                refused()
            assert wrong.value.last_sequence == last
        assert kv.get("a").value == b"2"
        last = kv.delete("a", last=last)
        assert kv.purge("a", last=last) == last + 1
        with pytest.raises(jetsync.KeyNotFoundError, match="purged at revision 4"):
            kv.get("a")
        with pytest.raises(jetsync.KeyNotFoundError, match=r"4 in bucket .*: purged at revision 4"):
            kv.get("a", revision=4)

    def test_only_a_key_without_a_value_is_created(self, kv):
        """
        Only a key without a value is created, whatever marker it has.
        """
        assert kv.create("a", b"1") == 1
        with pytest.raises(jetsync.KeyExistsError) as caught:
            kv.create("a", b"2")
        assert (caught.value.key, caught.value.last_sequence) == ("a", 1)
        kv.delete("a")
        assert kv.create("a", b"3") == 3
        kv.purge("a")
        assert kv.create("a", b"4") == 5
        assert kv.get("a").value == b"4"

    def test_creating_a_deleted_key_does_not_pause(self, kv, monkeypatch):
        """
        A key with a marker is created without a pause, because no other client has changed it.
        """
        pauses = []
        kv.put("a", b"1")
        kv.delete("a")
        closing = SimpleNamespace(wait=pauses.append)
        monkeypatch.setattr(kv._bucket.context.connection, "closing", closing)
        assert kv.create("a", b"2") == 3
        assert pauses == [0.0]

    def test_a_create_ends_when_the_client_closes(self, kv, nats_server, monkeypatch):
        """
        A create that pauses after a conflict ends at once if another thread closes the client.
        """
        for name in ("FIRST_CONFLICT_PAUSE", "LONGEST_CONFLICT_PAUSE"):
            monkeypatch.setattr(f"jetsync.kv.handle.{name}", 60.0)

        write, conflicts = type(kv._bucket).write, []

        def conflict(bucket, *arguments, **options):
            if client.is_closed:
                return write(bucket, *arguments, **options)
            conflicts.append(bucket)
            raise jetsync.WrongLastSequenceError

        monkeypatch.setattr(type(kv._bucket), "write", conflict)
        monkeypatch.setattr(type(kv._bucket), "last_at_origin", lambda *_: None)
        with jetsync.connect(nats_server.url) as client, ThreadPoolExecutor(1) as pool:
            other = client.jetstream().key_value(kv.bucket)
            call = pool.submit(other.create, "a", b"1", timeout=60)
            # There is no pause after the first conflict.
            eventually(lambda: len(conflicts) == 2)
            client.close()
            assert isinstance(call.exception(30), jetsync.ConnectionClosedError)

    def test_one_thread_creates(self, kv):
        """
        If many threads create a key at once, exactly one succeeds, even after a deletion.
        """

        def attempt(number):
            try:
                return kv.create("a", b"%d" % number)
            except jetsync.KeyExistsError:
                return None

        with ThreadPoolExecutor(8) as pool:
            for _ in range(10):
                made = [found for found in pool.map(attempt, range(8)) if found]
                assert [kv.get("a").revision] == made
                kv.delete("a")

    def test_a_bucket_without_direct_gets_is_read_from_its_leader(self, kv, js):
        """
        A bucket without direct gets is read from its leader, even if it had them before.
        """
        kv.put("a", b"1")
        kv.stream.update(allow_direct=False)
        other = js.key_value(kv.bucket)
        kv.stream.update(allow_direct=True)
        assert kv.get("a").value == other.get("a").value == b"1"
        js.stream(f"KV_{kv.bucket}").update(allow_direct=False)
        assert kv.get("a").value == b"1"
        assert kv.get("a", direct=False).value == b"1"
        with pytest.raises(jetsync.DirectNotSupportedError):
            kv.get("a", direct=True)

    def test_the_bucket_is_gone(self, nats_server, kv, js):
        """
        After the bucket is deleted, every call raises BucketNotFoundError.
        """
        kv.put("a", b"1")
        begun = kv.atomic(timeout=10)
        begun.put("a", b"2")
        js.delete_key_value(kv.bucket)
        calls = (
            begun.commit,
            lambda: kv.get("a"),
            lambda: kv.get("a", 1),
            lambda: kv.put("a", b"", timeout=10),
            lambda: kv.create("a", b"", timeout=10),
            lambda: kv.delete("a", timeout=10),
            kv.keys,
            kv.watch,
            lambda: kv.history("a"),
            lambda: kv.get_many(">"),
            kv.status,
            kv.purge_deletes,
            lambda: js.key_value(kv.bucket),
            lambda: js.update_key_value(kv.bucket),
            lambda: js.delete_key_value(kv.bucket),
        )
        for call in calls:
            with pytest.raises(jetsync.BucketNotFoundError) as caught:
                call()
            assert caught.value.bucket == kv.bucket
        # A connection without cached information learns of it at once.
        js.create_key_value(kv.bucket, storage="memory", atomic=True)
        with jetsync.connect(nats_server.url) as client:
            other = client.jetstream().key_value(kv.bucket)
            js.delete_key_value(kv.bucket)
            with pytest.raises(jetsync.BucketNotFoundError):
                other.atomic()

    def test_a_value_over_the_limit_of_the_bucket_is_not_stored(self, make_bucket):
        """
        A value over the bucket's limit is rejected, and nothing is stored.
        """
        kv = make_bucket(max_value_size=100)
        with pytest.raises(jetsync.MessageTooLargeError):
            kv.put("a", b"x" * 101)
        assert kv.keys() == []


class TestChangesInProgress:
    """
    A leader refuses an expectation, without a number, while it stores another change of the key.
    """

    @pytest.fixture
    def refuse(self, monkeypatch):
        """
        A function that refuses so many of the next changes, each after a call of *meanwhile*.
        """
        publish_one = bucket_module.publish_one

        def refuse(times, meanwhile=bool):
            left = iter(range(times))

            def publish(*arguments, **options):
                if next(left, None) is None:
                    return publish_one(*arguments, **options)
                meanwhile()
                raise jetsync.WrongLastSequenceError(
                    code=400, err_code=10164, description="wrong last sequence"
                )

            monkeypatch.setattr(bucket_module, "publish_one", publish)

        return refuse

    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("last", [0, 1])
    def test_a_change_that_is_never_stored(self, kv, refuse, change, last):
        """
        If the key still has the expected revision, the change is made after all.
        """
        if last:
            kv.put("a", b"old")
        refuse(2)
        assert CHANGES[change](kv, last) == last + 1

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_change_that_is_stored(self, kv, js, refuse, change):
        """
        Once the key has another revision, the error names it.
        """
        kv.put("a", b"old")
        refuse(1, lambda: js.publish(f"$KV.{kv.bucket}.a", b"other"))
        with pytest.raises(jetsync.WrongLastRevisionError, match="not at revision 1: it is at 2"):
            CHANGES[change](kv, 1)
        assert kv.get("a").value == b"other"

    def test_a_change_that_lasts_until_the_deadline(self, kv, refuse):
        """
        The error does not say that the key is at another revision than the expected one.
        """
        kv.put("a", b"old")
        refuse(1000)
        with pytest.raises(jetsync.WrongLastRevisionError) as caught:
            kv.update("a", b"new", last=1, timeout=0.1)
        assert "is still at revision 1; another change is in progress" in str(caught.value)
        assert (caught.value.expected, caught.value.last_sequence) == (1, 1)


class Again:
    """
    A plugin that asks for another attempt.
    """

    def __init__(self, delay=0.0):
        self.delay = delay
        self.asked = []

    @jetsync.hookimpl
    def jetsync_retry(self, operation, error, attempt):
        self.asked.append((operation, error))
        return self.delay


class TestRetries:
    """
    Changes of keys with a plugin that asks for another attempt.
    """

    def sent(self, kv, revision):
        """
        The id of a stored revision.
        """
        return kv.stream.get_message(revision).headers.get("Nats-Msg-Id")

    @pytest.mark.parametrize("change", ["put", "create", *CHANGES])
    def test_a_lost_answer(self, proxied, kv, change):
        """
        The change is sent again, and made once.
        """
        again = Again()
        js, proxy = proxied(again)
        other, last = js.key_value(kv.bucket), 0
        if change in CHANGES:
            last = kv.put("a", b"old")
        proxy.cut_after(to_client=0, reset=True)
        if change in CHANGES:
            revision = CHANGES[change](other, last)
        else:
            revision = getattr(other, change)("a", b"new", timeout=20)
        assert revision == last + 1
        assert kv.stream.info().state.last_seq == revision
        assert self.sent(kv, revision)
        ((operation, error),) = again.asked
        assert operation.has_message_ids
        assert isinstance(error, jetsync.PublishOutcomeUnknownError)

    def test_without_such_a_plugin(self, kv):
        """
        A change has no id, because it is never sent again.
        """
        assert self.sent(kv, kv.put("a", b"x")) is None

    @pytest.mark.parametrize(("timeout", "has_id"), [(5.0, True), (5.1, False)])
    def test_a_short_memory(self, proxied, make_bucket, timeout, has_id):
        """
        A change has no id if the bucket may forget it before the call and its copies have ended.
        """
        kv = make_bucket(ttl=10)
        js, _ = proxied(Again())
        revision = js.key_value(kv.bucket).put("a", b"x", timeout=timeout)
        assert (self.sent(kv, revision) is not None) == has_id

    def test_a_later_change(self, proxied, kv, monkeypatch):
        """
        If another change followed, the outcome of a conditional one stays unknown.
        """
        js, proxy = proxied(Again())
        other = js.key_value(kv.bucket)
        proxy.cut_after(to_client=0, reset=True)
        leader_get = bucket_module.leader_get

        def later(*arguments):
            kv.put("a", b"later")
            return leader_get(*arguments)

        monkeypatch.setattr(bucket_module, "leader_get", later)
        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            other.create("a", b"new", timeout=20)
        assert kv.get("a", 1).value == b"new"

    def test_a_mirror(self, proxied, js, kv, unique):
        """
        A change through a mirror has no id, because the memory of its origin is unknown.
        """
        mirror = js.create_key_value(f"{unique}-m", mirror=kv.bucket, storage="memory")
        other, _ = proxied(Again())
        revision = other.key_value(mirror.bucket).put("a", b"x")
        js.delete_key_value(mirror.bucket)
        assert self.sent(kv, revision) is None

    def test_an_unknown_outcome(self, proxied, kv):
        """
        The error does not advise to use the id again, because callers cannot pass it.
        """
        js, proxy = proxied(Again(delay=None))
        other = js.key_value(kv.bucket)
        proxy.cut_after(to_client=0, reset=True)
        with pytest.raises(jetsync.PublishOutcomeUnknownError, match="without a msg_id") as caught:
            other.put("a", b"x")
        assert caught.value.msg_id is None
        assert isinstance(caught.value.__cause__, jetsync.ConnectionLostError)


class TestOldBuckets:
    """Buckets as old clients created them."""

    @pytest.mark.parametrize("old", [{"discard": "old"}, {"allow_direct": False}])
    def test_create_again_repairs_the_bucket(self, make_bucket, js, old):
        """
        A bucket that differs only as old clients created buckets is changed, and keeps its keys.
        """
        kv = make_bucket()
        kv.put("a", b"1")
        js.update_stream(f"KV_{kv.bucket}", **old)
        again = make_bucket()
        config = js.stream(f"KV_{kv.bucket}").cached_info.config
        assert (config.discard, config.allow_direct) == ("new", True)
        assert again.get("a").value == b"1"

    def test_another_difference_is_refused(self, make_bucket, js):
        """
        A bucket that differs in more raises an error and stays as it is.
        """
        kv = make_bucket(history=5)
        js.update_stream(f"KV_{kv.bucket}", discard="old")
        with pytest.raises(jetsync.StreamNameInUseError):
            make_bucket(history=7)
        config = js.stream(f"KV_{kv.bucket}").cached_info.config
        assert (config.discard, config.max_msgs_per_subject) == ("old", 5)

    def test_an_update_repairs_the_bucket(self, js, kv):
        """
        A bucket that discards old values refuses new ones instead after an update.
        """
        js.update_stream(f"KV_{kv.bucket}", discard="old")
        js.create_or_update_key_value(kv.bucket, history=7)
        config = js.stream(f"KV_{kv.bucket}").cached_info.config
        assert (config.discard, config.max_msgs_per_subject) == ("new", 7)


class TestBucket:
    def test_create_again(self, make_bucket, kv, js):
        """
        Creating a bucket again returns it. With other settings, it is an error.
        """
        kv.put("a", b"1")
        again = make_bucket(history=5, atomic=True)
        assert again.get("a").value == b"1"
        with pytest.raises(jetsync.StreamNameInUseError):
            make_bucket(history=6)
        assert kv.bucket in list(js.key_value_names())
        assert js.key_value(kv.bucket).get("a").value == b"1"

    def test_the_status_has_the_configuration_and_the_contents(self, make_bucket):
        """
        The status has the configuration and the contents of the bucket.
        """
        kv = make_bucket(
            history=3,
            ttl=60,
            limit_marker_ttl=5,
            storage="file",
            compression=True,
            atomic=True,
        )
        kv.put("a", b"1")
        kv.put("a", b"2")
        status = kv.status()
        assert (status.bucket, status.values, status.last_revision) == (kv.bucket, 2, 2)
        assert status.bytes > 0
        assert (status.history, status.ttl, status.limit_marker_ttl) == (3, 60, 5)
        assert (status.is_compressed, status.allows_ttl, status.allows_atomic) == (True,) * 3

    def test_an_update_allows_transactions(self, make_bucket, js, unique):
        """
        Transactions are off by default, and an update allows them.
        """
        assert make_bucket(atomic=False).status().allows_atomic is False
        assert make_bucket().status().allows_atomic is False
        with pytest.raises(jetsync.StreamNameInUseError):
            make_bucket(atomic=True)
        assert js.update_key_value(unique, atomic=True).status().allows_atomic is True
        assert js.update_key_value(unique, description="new").status().allows_atomic is True
        assert js.update_key_value(unique, atomic=False).status().allows_atomic is False

    def test_an_update_of_a_bucket_keeps_fields_it_does_not_know(self, js, make_bucket):
        """
        An update changes the given fields and keeps fields that it does not know.
        """
        kv = make_bucket(history=2, description="before", metadata={"a": "b"}, atomic=True)
        kv.stream.update(consumer_limits=jetsync.ConsumerLimits(max_ack_pending=7))
        kv.put("a", b"1")
        changed = js.update_key_value(kv.bucket, history=4, ttl=60, limit_marker_ttl=2)
        config = changed.stream.config
        assert (config.max_msgs_per_subject, config.max_age) == (4, 60)
        assert config.duplicate_window == 60
        assert config.description == "before"
        assert config.metadata["a"] == "b"
        assert config.consumer_limits.max_ack_pending == 7
        assert config.allow_atomic is True
        assert config.storage is jetsync.StorageType.MEMORY
        assert changed.get("a").value == b"1"
        # The other handle learns of it when it next needs the limit.
        kv.delete("a")
        assert kv.create("a", b"2", ttl=60) == 3
        again = js.create_or_update_key_value(
            kv.bucket, history=1, storage="memory", ttl=0, limit_marker_ttl=0
        )
        assert again.status().history == 1
        assert again.status().limit_marker_ttl is None
        assert again.status().ttl is None
        assert again.stream.config.duplicate_window == 120

    def test_update_leaves_alone(self, js, make_bucket):
        """
        An update keeps all other fields and the contents of the bucket.
        """
        limits = {"history": 10, "ttl": 3600, "max_bytes": 100_000, "max_value_size": 100}
        kv = make_bucket(**limits, limit_marker_ttl=5)
        for number in range(5):
            kv.put("a", b"%d" % number)
        before = kv.stream.config
        after = js.update_key_value(kv.bucket, description="new").stream.config
        assert after.description == "new"
        for name in ("max_msgs_per_subject", "max_age", "max_bytes", "max_msg_size"):
            assert getattr(after, name) == getattr(before, name)
        assert after.subject_delete_marker_ttl == 5
        assert after.allow_msg_ttl
        assert after.duplicate_window == before.duplicate_window
        assert len(kv.history("a")) == 5
        # A limit that was set by other means counts, too.
        kv.stream.update(duplicate_window=60.0)
        again = js.update_key_value(kv.bucket, max_bytes=0, max_value_size=0).stream.config
        assert (again.max_bytes, again.max_msg_size, again.duplicate_window) == (-1, -1, 60)
        assert (again.max_msgs_per_subject, again.max_age) == (10, 3600)

    def test_create_or_update(self, js, unique):
        """
        A missing bucket is created.
        """
        kv = js.create_or_update_key_value(unique, storage="memory", history=2)
        assert kv.status().history == 2
        js.delete_key_value(unique)

    def test_a_stream_that_is_not_a_bucket(self, js, unique):
        """
        A stream that keeps all messages of a subject is not opened as a bucket.
        """
        js.create_stream(f"KV_{unique}", subjects=[f"{unique}.>"], storage="memory")
        with pytest.raises(jetsync.InvalidBucketError, match="does not limit"):
            js.key_value(unique)
        js.delete_stream(f"KV_{unique}")

    def test_bad_configurations(self, js):
        """
        Invalid configurations are rejected.
        """
        for call in (
            lambda: js.create_key_value(None),
            lambda: js.create_key_value("a", nonsense=1),
            lambda: js.update_key_value(jetsync.StreamConfig(name="KV_a")),
        ):
            with pytest.raises(jetsync.InvalidTypeError):
                call()

    @pytest.mark.versions
    def test_limit_markers_need_a_server(self, server_for, unique):
        """
        If the server is too old for a field, the error says so, and no bucket is created.
        """
        with jetsync.connect(server_for("2.10.26").url) as client:
            js = client.jetstream()
            with pytest.raises(jetsync.NotSupportedError, match=r"2\.11.*and deleted again"):
                js.create_key_value(unique, limit_marker_ttl=5)
            with pytest.raises(jetsync.NotSupportedError, match=r"2\.12"):
                js.create_key_value(f"{unique}a", atomic=True)
            assert not {unique, f"{unique}a"}.intersection(js.key_value_names())
            kv = js.create_key_value(f"{unique}b")
            for ttl in (lambda: kv.put("a", b"", ttl=5), lambda: kv.purge("a", ttl=5)):
                with pytest.raises(jetsync.NotSupportedError, match=r"2\.11"):
                    ttl()
            with pytest.raises(jetsync.NotSupportedError, match=r"2\.12"):
                kv.atomic()
            with pytest.raises(jetsync.NotSupportedError):
                kv.get_many(">")
            assert kv.stream.info().state.messages == 0


def test_changes_and_reads_of_a_bucket_call_the_hooks(nats_server, kv):
    """
    Changes and reads call the hooks of publishes and reads.
    """
    calls = []

    class Plugin:
        @jetsync.hookimpl
        def jetsync_prepare_message(self, message):
            calls.append(("prepare", message.subject.rpartition(".")[2]))

        @jetsync.hookimpl(wrapper=True)
        def jetsync_publish(self, operation):
            calls.append("publish")
            return (yield)

        @jetsync.hookimpl(wrapper=True)
        def jetsync_batch_commit(self, operation):
            calls.append(("commit", operation.size))
            return (yield)

        @jetsync.hookimpl(wrapper=True)
        def jetsync_fetch(self, operation):
            calls.append(operation.name)
            return (yield)

    def called():
        found = list(calls)
        calls.clear()
        return found

    with jetsync.connect(nats_server.url, plugins=[Plugin()]) as client:
        other = client.jetstream().key_value(kv.bucket)
        other.put("a", b"1")
        other.delete("a")
        assert called() == ["publish", ("prepare", "a")] * 2
        with other.atomic() as tx:
            tx.put("b", b"1")
            tx.put("c", b"1")
        found = called()
        assert ("commit", 2) in found
        assert [each for each in found if each[0] == "prepare"] == [
            ("prepare", "b"),
            ("prepare", "c"),
        ]
        other.get("b")
        assert called() == ["get_last"]
        other.get("b", 3)
        assert called() == ["get_message"]
        other.get_many(["b", "c"])
        assert called() == ["get_last_for"]
        with other.watch() as watch:
            assert len(list(watch.initial(timeout=10))) == 3
        assert set(called()) <= {"consume"}


def test_threads_can_share_a_bucket(kv):
    """
    Threads can share a handle.
    """

    def work(number):
        for round_ in range(20):
            kv.put(f"k{number}", b"%d" % round_)
            assert kv.get(f"k{number}").value == b"%d" % round_

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert sorted(kv.keys()) == [f"k{number}" for number in range(6)]


def test_put_while_the_domain_is_out_of_reach(nats_server, client, unique):
    """
    A change that no stream stores raises NoStreamResponseError if the bucket cannot be looked up.
    """
    with domain_link(nats_server.url):
        js = client.jetstream(domain="hub")
        kv = js.create_key_value(unique, storage="memory")
    with pytest.raises(jetsync.NoStreamResponseError):
        kv.put("key", b"value")
    client.jetstream().delete_key_value(unique)
