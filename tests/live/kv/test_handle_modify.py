"""
Changes of keys with a function, on real servers.
"""

from __future__ import annotations

import datetime as dt
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.retrying import RetryPlugin
from helpers.traffic import sent_nothing
from helpers.waiting import eventually
from jetsync import KeyOperation
from jetsync.kv import bucket as bucket_module

THREADS = 8
INCREMENTS = 25


@pytest.fixture
def kv(make_bucket):
    """
    A bucket that keeps five revisions of each key, and allows a time-to-live.
    """
    return make_bucket(history=5, limit_marker_ttl=60)


def increment(entry):
    """
    Return the number of an entry plus one.
    """
    return b"1" if entry is None else b"%d" % (int(entry.value) + 1)


class TestChange:
    def test_the_result_of_the_function_is_stored(self, kv):
        """
        The function gets the last entry, or None without a value. The call returns the revision.
        """
        found = []

        def change(entry):
            found.append(entry and (entry.key, entry.value, entry.revision))
            return increment(entry)

        assert kv.modify("a", change) == 1
        assert kv.modify("a", change) == 2
        kv.delete("a")
        assert kv.modify("a", change) == 4
        kv.purge("a")
        assert kv.modify("a", change) == 6
        assert found == [None, ("a", b"1", 1), None, None]
        assert kv.get("a").value == b"1"
        # An empty value is a value, too.
        assert kv.modify("a", lambda _: "") == 7
        assert kv.get("a").value == b""

    def test_none_leaves_the_key_as_it_is(self, kv):
        """
        If the function returns None, nothing is stored, whether the key has a value or not.
        """
        assert kv.modify("a", lambda _: None) is None
        kv.put("a", b"1")
        assert kv.modify("a", lambda _: None) is None
        assert kv.status().last_revision == 1

    def test_an_error_of_the_function_leaves_the_key_as_it_is(self, kv):
        """
        The call raises the error, and nothing is stored.
        """
        kv.put("a", b"no number")
        with pytest.raises(ValueError, match="no number"):
            kv.modify("a", increment)
        assert kv.status().last_revision == 1

    @pytest.mark.parametrize("operation", [KeyOperation.DELETE, KeyOperation.PURGE])
    def test_a_key_is_deleted(self, kv, operation):
        """
        An operation deletes or purges the key, at the revision that the function has seen.
        """
        kv.put("a", b"1")
        kv.put("a", b"2")
        assert kv.modify("a", lambda _: operation) == 3
        last = kv.history("a")[-1]
        assert (last.operation, last.value, last.ttl) == (operation, b"", None)
        assert len(kv.history("a")) == (1 if operation is KeyOperation.PURGE else 3)

    def test_codecs_convert_the_key_and_the_values(self, kv):
        """
        The function takes and returns the values that your code uses.
        """
        shop = kv.with_codec(keys=jetsync.Base64Codec(), values=jetsync.JsonCodec())
        shop.put("Table, oak", {"left": 2})

        def take(entry):
            assert entry.key == "Table, oak"
            return {"left": entry.value["left"] - 1}

        shop.modify("Table, oak", take)
        assert shop.get("Table, oak").value == {"left": 1}
        assert kv.get("VGFibGUsIG9haw").value == b'{"left":1}'
        kv.put("VGFibGUsIG9haw", b"no JSON")
        with pytest.raises(jetsync.DecodeError, match="Table, oak"):
            shop.modify("Table, oak", take)
        assert kv.get("VGFibGUsIG9haw").value == b"no JSON"

    def test_a_mirror_modifies_the_value_of_its_origin(self, js, kv, unique):
        """
        The function gets the value of the origin, even if the mirror does not have it yet.
        """
        kv.put("a", b"1")
        mirror = js.create_key_value(f"{unique}-m", mirror=kv.bucket, storage="memory")
        try:
            assert mirror.modify("a", increment) == 2
        finally:
            js.delete_key_value(mirror.bucket)
        assert kv.get("a").value == b"2"

    def test_the_bucket_is_gone(self, js, kv):
        """
        After the bucket is deleted, before or during the call, it raises BucketNotFoundError.
        """

        def delete(_):
            js.delete_key_value(kv.bucket)
            return b"1"

        for _ in range(2):
            with pytest.raises(jetsync.BucketNotFoundError):
                kv.modify("a", delete)


class TestTimeToLive:
    def test_a_new_value_expires(self, make_bucket):
        """
        The new value and the marker of a purge have the time-to-live, a delete marker has none.
        """
        kv = make_bucket(limit_marker_ttl=60)
        kv.modify("a", increment, ttl=dt.timedelta(hours=1))
        assert kv.get("a").ttl == 3600
        kv.modify("a", increment, ttl="never")
        assert kv.get("a").ttl == "never"
        kv.modify("a", increment)
        assert kv.get("a").ttl is None
        for operation, ttl in ((KeyOperation.PURGE, 90), (KeyOperation.DELETE, None)):
            kv.modify("a", lambda _, operation=operation: operation, ttl=90)
            (last,) = kv.history("a")
            assert (last.operation, last.ttl) == (operation, ttl)

    def test_a_function_returns_the_time_to_live(self, make_bucket):
        """
        A function gets the entry and returns the time-to-live, for example the same one again.
        """
        kv = make_bucket(limit_marker_ttl=60)

        def same(entry):
            return 70 if entry is None else entry.ttl + 1

        kv.modify("a", increment, ttl=same)
        kv.modify("a", increment, ttl=same)
        entry = kv.get("a")
        assert (entry.value, entry.ttl) == (b"2", 71)
        with pytest.raises(jetsync.InvalidTtlError):
            kv.modify("a", increment, ttl=lambda _: 0)
        assert kv.get("a") == entry

    def test_the_previous_value_does_not_reappear(self, kv):
        """
        In a bucket with a history, only a key without a value may get a time-to-live.
        """
        assert kv.modify("a", increment, ttl=60) == 1
        with pytest.raises(jetsync.InvalidTtlError, match="would reappear"):
            kv.modify("a", increment, ttl=60)
        assert kv.status().last_revision == 1
        kv.delete("a")
        assert kv.modify("a", increment, ttl=60) == 3

    def test_the_time_to_live_may_depend_on_the_change(self, kv):
        """
        Its function is called after that of the value, and not if the key stays as it is.
        """
        calls = []

        def change(_):
            calls.append("change")
            return b"" if len(calls) == 1 else None

        def ttl(_):
            calls.append("ttl")
            return 60

        for _ in range(2):
            kv.modify("a", change, ttl=ttl)
        assert calls == ["change", "ttl", "change"]


class TestLostRaces:
    def test_no_change_of_many_threads_is_lost(self, kv, nats_server):
        """
        Threads of two clients increment a number, and each increment counts once.
        """
        with jetsync.connect(nats_server.url) as client, ThreadPoolExecutor(THREADS) as pool:
            buckets = [kv, client.jetstream().key_value(kv.bucket)]

            def work(number):
                bucket = buckets[number % 2]
                return [bucket.modify("a", increment, timeout=60) for _ in range(INCREMENTS)]

            revisions = [each for made in pool.map(work, range(THREADS)) for each in made]
        assert sorted(revisions) == list(range(1, THREADS * INCREMENTS + 1))
        assert int(kv.get("a").value) == THREADS * INCREMENTS

    def test_the_function_is_called_again(self, kv):
        """
        If another client changes the key meanwhile, the function gets the new entry.
        """
        found = []

        def change(entry):
            found.append(entry and entry.value)
            if len(found) == 1:
                kv.put("a", b"5")
            elif len(found) == 2:
                kv.delete("a")
            return increment(entry)

        assert kv.modify("a", change, timeout=20) == 3
        assert found == [None, b"5", None]
        assert kv.get("a").value == b"1"

    def test_the_timeout_ends_the_attempts(self, kv):
        """
        If other clients change the key each time, the error has its last revision.
        """
        until = time.monotonic() + 30

        def change(_):
            assert time.monotonic() < until
            kv.put("a", b"other")
            return b"own"

        with pytest.raises(jetsync.WrongLastRevisionError) as caught:
            # It begins no attempt in the last half second, which a busy machine may need for one.
            kv.modify("a", change, timeout=2)
        last = kv.get("a")
        assert last.value == b"other"
        assert (caught.value.key, caught.value.last_sequence) == ("a", last.revision)
        assert caught.value.expected == last.revision - 1

    def test_the_waits_grow(self, kv, monkeypatch):
        """
        Clients that lose races often wait longer, up to half a second.
        """
        waits = []
        monkeypatch.setattr("random.uniform", lambda *limits: waits.append(limits) or 0.0)

        def change(_):
            if len(waits) < 8:
                kv.put("a", b"other")
            return b"own"

        kv.modify("a", change, timeout=60)
        assert waits == [(0.0, min(0.01 * 2**step, 0.5)) for step in range(8)]

    def test_a_wait_ends_when_the_client_closes(self, kv, nats_server, monkeypatch):
        """
        A call that waits after a lost race ends at once if another thread closes the client.
        """
        for name in ("FIRST_CONFLICT_PAUSE", "LONGEST_CONFLICT_PAUSE"):
            monkeypatch.setattr(f"jetsync.kv.handle.{name}", 60.0)
        waits = []
        monkeypatch.setattr("random.uniform", lambda *limits: waits.append(limits) or 60.0)

        def change(_):
            kv.put("a", b"other")
            return b"own"

        with jetsync.connect(nats_server.url) as client, ThreadPoolExecutor(1) as pool:
            other = client.jetstream().key_value(kv.bucket)
            call = pool.submit(other.modify, "a", change, timeout=100)
            eventually(lambda: waits)
            client.close()
            assert isinstance(call.exception(30), jetsync.ConnectionClosedError)
        assert waits == [(0.0, 60.0)]


class TestLostAnswers:
    """
    The connection is lost after the function was called.
    """

    @pytest.fixture
    def cut(self, proxied, kv):
        """
        A bucket behind a proxy, and a function that cuts the connection at the next bytes.
        """

        def cut(*plugins, bucket=kv.bucket, **where):
            js, proxy = proxied(*plugins)
            other, calls = js.key_value(bucket), []

            def change(entry):
                calls.append(entry)
                proxy.cut_after(reset=True, **where)
                return increment(entry)

            return other, change, calls

        return cut

    def test_a_change_that_is_stored(self, cut, kv):
        """
        The call finds its change and returns the revision, and the change is made once.
        """
        kv.put("a", b"1")
        other, change, calls = cut(to_client=0)
        assert other.modify("a", change, timeout=20) == 2
        assert len(calls) == 1
        assert kv.get("a").value == b"2"
        assert kv.status().last_revision == 2

    def test_a_change_through_a_mirror(self, js, kv, cut, unique):
        """
        The call finds its change in the origin, also after a longer time than streams know ids.
        """
        kv.put("a", b"1")
        mirror = js.create_key_value(f"{unique}-m", mirror=kv.bucket, storage="memory")
        try:
            other, change, calls = cut(to_client=0, bucket=mirror.bucket)
            assert other.modify("a", change, timeout=1000) == 2
        finally:
            js.delete_key_value(mirror.bucket)
        assert len(calls) == 1
        assert kv.get("a").value == b"2"

    def test_a_change_that_did_not_arrive(self, cut, kv):
        """
        The outcome is unknown, because the server may still get the change.
        """
        kv.put("a", b"1")
        other, change, calls = cut(to_server=0)
        with pytest.raises(jetsync.PublishOutcomeUnknownError, match="without a msg_id") as caught:
            other.modify("a", change, timeout=20)
        assert caught.value.msg_id is None
        assert len(calls) == 1
        assert kv.get("a").value == b"1"

    def test_a_later_change(self, cut, kv, monkeypatch):
        """
        If another client has changed the key since, the outcome is unknown.
        """
        changes = []
        other, change, calls = cut(to_client=0)
        leader_get = bucket_module.leader_get

        def later(*arguments):
            if calls and not changes:
                changes.append(b"later")
                kv.modify("a", lambda _: b"later")
            return leader_get(*arguments)

        monkeypatch.setattr(bucket_module, "leader_get", later)
        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            other.modify("a", change, timeout=20)
        assert len(calls) == 1
        assert kv.get("a", 1).value == b"1"

    def test_a_stream_that_forgets_ids_too_soon(self, cut, kv):
        """
        If its duplicate window may end before a copy arrives, no plugin sends the change again.
        """
        kv.stream.update(duplicate_window=30.0)
        other, change, _ = cut(RetryPlugin(), to_client=0)
        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            other.modify("a", change, timeout=20)
        assert kv.get("a").value == b"1"

    def test_a_mirror(self, js, kv, unique, proxied):
        """
        The duplicate window of the origin is not known, so no plugin sends the change again.
        """
        mirror = js.create_key_value(f"{unique}-m", mirror=kv.bucket, storage="memory")
        through, proxy = proxied(RetryPlugin())
        other = through.key_value(mirror.bucket)

        def change(entry):
            proxy.cut_after(reset=True, to_client=0)
            return increment(entry)

        try:
            with pytest.raises(jetsync.PublishOutcomeUnknownError):
                other.modify("a", change, timeout=20)
        finally:
            js.delete_key_value(mirror.bucket)

    @pytest.mark.parametrize("where", ["to_client", "to_server"])
    def test_a_plugin_that_sends_changes_again(self, cut, kv, where):
        """
        With jetsync-retry, the change is sent again and made once, whether it was stored or not.
        """
        other, change, calls = cut(RetryPlugin(), **{where: 0})
        assert other.modify("a", change, timeout=20) == 1
        assert len(calls) == 1
        assert kv.get("a").value == b"1"


def test_bad_arguments_send_nothing(client, kv):
    """
    An invalid argument raises an error before anything is sent.
    """

    async def later(_):
        return b""

    def several(_):
        yield b""

    sent = client.statistics().bytes_out
    for change in (None, b"value", later, several):
        with pytest.raises(jetsync.InvalidTypeError, match="change must be a"):
            kv.modify("a", change)
    for ttl in (0, "1h", True, [5]):
        with pytest.raises(jetsync.InvalidTtlError):
            kv.modify("a", increment, ttl=ttl)
    with pytest.raises(jetsync.InvalidTypeError, match="ttl must be a"):
        kv.modify("a", increment, ttl=later)
    for key in ("", "a b", "a.*"):
        with pytest.raises(jetsync.InvalidKeyError):
            kv.modify(key, increment)
    with pytest.raises(jetsync.InvalidArgumentError):
        kv.modify("a", increment, timeout=-1)
    assert sent_nothing(client, sent)
    # The values of functions are known later. Nothing is stored.
    for value in (5, [b"1"], KeyOperation.PUT):
        with pytest.raises(jetsync.InvalidTypeError):
            kv.modify("a", lambda _, value=value: value)
    assert kv.status().last_revision == 0
