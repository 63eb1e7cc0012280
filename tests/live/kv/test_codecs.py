"""
Buckets with codecs on real servers.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import jetsync
from helpers.traffic import sent_nothing
from helpers.waiting import eventually
from jetsync import Base64Codec, ChainCodec, JsonCodec, KeyOperation, PathCodec

PATHS = ChainCodec(PathCodec(), Base64Codec())


@pytest.fixture
def raw(make_bucket):
    """
    A bucket that keeps five revisions of each key.
    """
    return make_bucket(history=5, atomic=True, limit_marker_ttl=60)


@pytest.fixture
def kv(raw):
    """
    The same bucket, with paths as keys and JSON as values.
    """
    return raw.with_codec(keys=PATHS, values=JsonCodec())


@pytest.fixture
def encoded(raw):
    """
    The same bucket, with base64 of keys and values.
    """
    return raw.with_codec(keys=Base64Codec(), values=Base64Codec())


def stored(raw):
    """
    Return the keys that the stream has.
    """
    info = raw.stream.info(subjects_filter=">")
    return {subject.removeprefix(f"$KV.{raw.bucket}.") for subject in info.state.subjects}


class TestMethods:
    def test_each_method_takes_and_returns_decoded_keys_and_values(self, raw, kv):
        """
        All methods of a bucket work through codecs.
        """
        assert kv.put("/chairs/oak 1", {"left": 2}) == 1
        assert kv.create("/chairs/pine", [1, "ü"]) == 2
        assert kv.update("/chairs/pine", None, last=2) == 3

        entry = kv.get("/chairs/oak 1")
        assert (entry.key, entry.value, entry.revision) == ("/chairs/oak 1", {"left": 2}, 1)
        assert kv.get("/chairs/pine").value is None
        assert kv.get("/chairs/pine", 2).value == [1, "ü"]
        assert kv.get("/chairs/beech", default=None) is None
        assert "/chairs/pine" in kv
        assert "/chairs/beech" not in kv

        assert sorted(kv.keys()) == ["/chairs/oak 1", "/chairs/pine"]
        assert kv.keys("/chairs/*") == kv.keys("/chairs/>") == kv.keys()
        assert kv.keys("/tables/>", "/chairs/pine") == ["/chairs/pine"]
        found = kv.get_many(["/chairs/*", "/tables/1"])
        assert {key: entry.value for key, entry in found.items()} == {
            "/chairs/oak 1": {"left": 2},
            "/chairs/pine": None,
        }
        assert [each.value for each in kv.history("/chairs/pine")] == [[1, "ü"], None]

        assert kv.delete("/chairs/pine") == 4
        assert kv.purge("/chairs/oak 1", ttl=60) == 5
        marker = kv.history("/chairs/pine")[-1]
        assert (marker.key, marker.value, marker.is_deleted) == ("/chairs/pine", b"", True)
        assert kv.keys() == []
        assert kv.get_many(">") == {}
        assert kv.purge_deletes(0) == 2
        assert kv.status().values == raw.stream.info().state.messages == 0

    def test_a_watch_shows_decoded_entries(self, kv):
        """
        A watch takes patterns and yields decoded entries, also for markers.
        """
        kv.put("/a/1", 1)
        with kv.watch("/a/*") as watch:
            assert [(entry.key, entry.value) for entry in watch.initial()] == [("/a/1", 1)]
            kv.put("/b/1", 1)
            kv.put("/a/2", {})
            kv.delete("/a/1")
            entries = [watch.next(timeout=10) for _ in range(2)]
        assert [(entry.key, entry.value) for entry in entries] == [("/a/2", {}), ("/a/1", b"")]
        with kv.watch(meta_only=True, ignore_deletes=True) as watch:
            found = [(entry.key, entry.value) for entry in watch.initial()]
        assert found == [("/b/1", b""), ("/a/2", b"")]

    def test_a_transaction_takes_decoded_keys_and_values(self, kv):
        """
        A transaction encodes its changes, and names keys as the caller gave them.
        """
        kv.put("/a/1", 1)
        kv.delete("/a/1")
        with kv.atomic() as tx:
            tx.create("/a/1", {"n": 1})
            tx.put("/a/2", [2])
        assert tx.revisions == {"/a/1": 3, "/a/2": 4}
        assert kv.get("/a/1").value == {"n": 1}

        tx = kv.atomic()
        tx.put("/a/3", 0)
        tx.create("/a/2", 0)
        with pytest.raises(jetsync.KeyExistsError) as exists:
            tx.commit()
        assert exists.value.key == "/a/2"
        tx = kv.atomic()
        with pytest.raises(jetsync.InvalidKeyError):
            tx.put("a.b", 1)
        with pytest.raises(jetsync.InvalidArgumentError, match="value of key '/a/4'"):
            tx.put("/a/4", b"bytes")
        tx.put("/a/5", 1)
        with pytest.raises(jetsync.InvalidArgumentError, match="already changes key '/a/5'"):
            tx.purge("/a/5")

    def test_errors_name_the_keys_of_the_caller(self, kv):
        """
        Errors about keys and revisions have the decoded key.
        """
        kv.put("/a/1", 1)
        with pytest.raises(jetsync.KeyNotFoundError) as missing:
            kv.get("/a/2")
        with pytest.raises(jetsync.KeyNotFoundError) as no_history:
            kv.history("/a/2")
        with pytest.raises(jetsync.KeyExistsError) as exists:
            kv.create("/a/1", 1)
        with pytest.raises(jetsync.WrongLastRevisionError) as wrong:
            kv.update("/a/1", 1, last=9)
        keys = [caught.value.key for caught in (missing, no_history, exists, wrong)]
        assert keys == ["/a/2", "/a/2", "/a/1", "/a/1"]

    def test_no_method_leaks_a_key(self, client, raw, encoded):
        """
        The stream has only encoded keys, and refused keys and patterns send nothing.
        """
        encoded.put("a b.c", b"1")
        encoded.create("ü", "ü")
        encoded.delete("never set")
        encoded.purge("*")
        with encoded.atomic() as tx:
            tx.put("x:y", b"2")
        assert stored(raw) == {"YSBi.Yw", "w7w", "bmV2ZXIgc2V0", "Kg", "eDp5"}
        assert raw.get("w7w").value == b"w7w"

        sent = client.statistics().bytes_out
        for key in ("", "a..b", ".a", "\ud800", 5):
            for call in (
                encoded.get,
                encoded.delete,
                encoded.purge,
                encoded.history,
                encoded.get_many if isinstance(key, str) else encoded.get,
                encoded.watch,
                encoded.keys,
                lambda key: encoded.put(key, b""),
                lambda key: encoded.create(key, b""),
                lambda key: encoded.update(key, b"", last=1),
            ):
                with pytest.raises((jetsync.InvalidKeyError, jetsync.InvalidTypeError)):
                    call(key)
        assert sent_nothing(client, sent)

    def test_history_takes_a_key_that_looks_like_a_pattern(self, encoded):
        """
        The history of the key `*` is not that of all keys.
        """
        encoded.put("*", b"1")
        encoded.put("a", b"2")
        assert [entry.key for entry in encoded.history("*")] == ["*"]
        assert encoded.get("*").value == b"1"
        assert sorted(encoded.keys("*")) == ["*", "a"]

    def test_a_mirror_is_read_and_written_through_codecs(self, js, raw, encoded):
        """
        A bucket that mirrors another one shows the same decoded keys.
        """
        encoded.put("a b", b"1")
        name = f"{raw.bucket}_copy"
        copy = js.create_key_value(name, mirror=raw.bucket).with_codec(keys=Base64Codec())
        with copy.watch() as watch:
            assert watch.next(timeout=10).key == "a b"
            copy.put("c d", "2")
            assert watch.next(timeout=10).key == "c d"
        assert encoded.keys() == ["a b", "c d"]
        js.delete_key_value(name)


class TestForeignEntries:
    @pytest.fixture
    def mixed(self, raw, encoded):
        """
        Entries of the codecs, and between them a foreign key and a foreign value.
        """
        encoded.put("first", b"1")
        raw.put("not/base64", b"2")
        raw.put("YQ", b"not base64!")
        encoded.put("last", b"4")
        raw.delete("also/foreign")
        return encoded

    def test_reads_raise_an_error_that_names_the_entry(self, raw, mixed):
        """
        A read of a foreign entry raises DecodeError; writes and deletes do not.
        """
        with pytest.raises(jetsync.DecodeError) as value:
            mixed.get("a")
        error = value.value
        assert (error.what, error.key, error.sequence) == ("value", "a", 3)
        assert (error.bucket, error.stream) == (raw.bucket, raw.stream.name)
        assert error.subject == f"$KV.{raw.bucket}.YQ"
        assert "not base64!" not in str(error)
        assert "a" in mixed

        for call in (mixed.keys, lambda: mixed.get_many(">")):
            with pytest.raises(jetsync.DecodeError) as key:
                call()
            assert (key.value.what, key.value.key, key.value.sequence) == ("key", "not/base64", 2)
        with pytest.raises(jetsync.DecodeError):
            mixed.history("a")
        assert mixed.keys("YQ.>") == []
        mixed.put("a", b"5")
        assert mixed.get("a").value == b"5"
        assert mixed.delete("a") == 7

    def test_a_function_gets_the_errors_and_the_entries_are_left_out(self, mixed):
        """
        With `on_undecodable`, reads of many entries return the others.
        """
        skipped = []
        kv = mixed.with_codec(keys=Base64Codec(), on_undecodable=skipped.append)
        assert kv.keys() == ["first", "a", "last"]
        assert [(error.what, error.key) for error in skipped] == [("key", "not/base64")]
        skipped.clear()
        assert [*kv.get_many(">")] == ["first", "last"]
        assert kv.history("a") == []
        with kv.watch() as watch:
            assert [entry.key for entry in watch.initial()] == ["first", "last"]
            assert watch.is_current
        found = [(error.what, error.key) for error in skipped]
        key, value, marker = ("key", "not/base64"), ("value", "a"), ("key", "also/foreign")
        assert found == [key, value, value, key, value, marker]
        with pytest.raises(jetsync.DecodeError):
            kv.get("a")

    def test_a_watch_continues_after_an_entry_that_it_cannot_decode(self, raw, mixed):
        """
        The call for a foreign entry raises; the next call takes the next entry.
        """
        with mixed.watch() as watch:
            seen = []
            while not watch.is_current:
                try:
                    seen.extend(entry.key for entry in watch.initial(timeout=10))
                except jetsync.DecodeError as error:
                    seen.append(error.sequence)
            assert seen == ["first", 2, 3, "last", 5]
            assert (watch.closed, watch.error) == (False, None)
            raw.put("foreign/again", b"")
            mixed.put("more", b"")
            with pytest.raises(jetsync.DecodeError):
                watch.next(timeout=10)
            for entry in watch:
                assert entry.key == "more"
                break

    def test_an_error_of_the_function_reaches_the_caller(self, mixed):
        """
        What `on_undecodable` raises ends the call, but not the watch.
        """

        def refuse(error):
            raise LookupError(error.key)

        kv = mixed.with_codec(keys=Base64Codec(), on_undecodable=refuse)
        with pytest.raises(LookupError):
            kv.keys()
        with kv.watch() as watch:
            assert watch.next(timeout=10).key == "first"
            with pytest.raises(LookupError):
                watch.next(timeout=10)
            with pytest.raises(LookupError):
                watch.next(timeout=10)
            assert watch.next(timeout=10).key == "last"

    def test_the_function_stays_with_the_handle(self, raw):
        """
        A handle with another codec calls the same function.
        """
        skipped = []
        kv = raw.with_codec(values=JsonCodec(), on_undecodable=skipped.append)
        raw.put("a", b"no JSON")
        assert kv.with_codec(keys=PathCodec()).history("a") == []
        assert [error.key for error in skipped] == ["a"]

    def test_foreign_entries_do_not_extend_a_wait(self, raw):
        """
        If entries that are left out arrive all the time, a wait for the next one ends in time.
        """
        most, skipped = 5000, []

        def put_more(error):
            skipped.append(error)
            for number in range(2 if len(skipped) < most else 0):
                raw.put(f"key{len(skipped)}.{number}", b"no JSON")

        raw.put("key", b"no JSON")
        with raw.with_codec(values=JsonCodec(), on_undecodable=put_more).watch() as watch:
            assert watch.next(timeout=0.5) is None
        assert 0 < len(skipped) < most

    def test_a_call_without_a_wait_returns_the_next_entry_that_has_arrived(self, raw):
        """
        With a timeout of 0, an entry is returned though others before it are left out.
        """
        skipped = []
        raw.put("good", b"1")
        for number in range(3):
            raw.put(f"bad{number}", b"no JSON")
        done = raw.put("last", b"2")
        kv = raw.with_codec(values=JsonCodec(), on_undecodable=skipped.append)
        with kv.watch() as watch:
            assert watch.next(timeout=10).key == "good"
            eventually(lambda: len(watch._core.buffer) == 4)
            entry = watch.next(timeout=0)
            assert (entry.key, entry.revision) == ("last", done)
            assert watch.next(timeout=0) is None
        assert [error.key for error in skipped] == ["bad0", "bad1", "bad2"]

    def test_a_call_without_a_wait_ends_though_foreign_entries_arrive(self, raw):
        """
        With a timeout of 0, only entries are tried that have arrived when the first is left out.
        """
        most, skipped = 200, []

        def put_more(error):
            skipped.append(error)
            if len(skipped) < most:
                raw.put(f"key{len(skipped)}", b"no JSON")
                eventually(lambda: watch._core.refill() and watch._core.buffer)

        raw.put("first", b"1")
        raw.put("key", b"no JSON")
        with raw.with_codec(values=JsonCodec(), on_undecodable=put_more).watch() as watch:
            assert watch.next(timeout=10).key == "first"
            eventually(lambda: len(watch._core.buffer) == 1)
            assert watch.next(timeout=0) is None
        assert 0 < len(skipped) < most

    def test_values_that_vanish_are_named_as_the_caller_knows_them(self, raw, encoded, monkeypatch):
        """
        The error for an incomplete snapshot has decoded keys.
        """

        class Lossy:
            """
            A read that has lost a key.
            """

            missing = (f"$KV.{raw.bucket}.YSBi",)
            vanished = 1
            _reader = SimpleNamespace()

            def __iter__(self):
                return iter(())

        encoded.put("a b", b"1")
        monkeypatch.setattr(jetsync.Stream, "get_last_for", lambda *_, **__: Lossy())
        with pytest.raises(jetsync.KeysVanishedError) as caught:
            encoded.get_many(">", at=1)
        assert caught.value.keys == ("a b",)

    def test_foreign_markers_are_purged(self, raw, mixed):
        """
        Removing markers works on stored keys, so none is left.
        """
        assert mixed.purge_deletes(0) == 1
        assert "also/foreign" not in stored(raw)

    def test_ctrl_c_in_a_codec_loses_no_entry(self, raw):
        """
        The entry whose decoding was interrupted is returned by the next call of an open watch.
        """
        interrupts = [KeyboardInterrupt, None]

        class Slow(JsonCodec):
            """
            Is interrupted once.
            """

            def decode(self, key, value):
                """
                Raise the next interrupt.
                """
                stop = interrupts.pop(0) if interrupts else None
                if stop is not None:
                    raise stop
                return super().decode(key, value)

        raw.put("a", "1")
        raw.put("b", "2")
        with raw.with_codec(values=Slow()).watch() as watch:
            with pytest.raises(KeyboardInterrupt):
                watch.next(timeout=10)
            assert [watch.next(timeout=10).value for _ in range(2)] == [1, 2]
        interrupts.append(KeyboardInterrupt)
        with raw.with_codec(values=Slow()).watch() as watch:
            with pytest.raises(KeyboardInterrupt):
                watch.next(timeout=10)
            watch.close()
            assert list(watch) == []


class TestHandles:
    def test_a_codec_that_is_not_given_stays(self, raw):
        """
        Each call of with_codec replaces the codecs that it is given, and keeps the others.
        """
        kv = raw.with_codec(keys=PathCodec()).with_codec(values=JsonCodec())
        assert repr(kv) == f"<KeyValue {raw.bucket!r} keys=PathCodec() values=JsonCodec()>"
        kv.put("/a", [1])
        assert raw.get("_root_.a").json() == [1]
        assert kv.with_codec(values=Base64Codec()).keys() == ["/a"]
        assert repr(raw) == f"<KeyValue {raw.bucket!r}>"

    def test_an_entry_that_a_codec_decoded_needs_no_json(self, raw):
        """
        `json()` of a decoded value raises an error that says so.
        """
        raw.put("a", "{}")
        assert raw.get("a").json() == {}
        with pytest.raises(jetsync.DecodeError, match=r"use entry\.value"):
            raw.with_codec(values=JsonCodec()).get("a").json()

    @pytest.mark.parametrize(
        "codecs",
        [
            {},
            {"keys": JsonCodec()},
            {"keys": Base64Codec},
            {"values": PathCodec()},
            {"keys": ChainCodec(PathCodec(), JsonCodec())},
            {"keys": PathCodec(), "on_undecodable": "skip"},
        ],
    )
    def test_what_is_not_a_codec_is_refused(self, raw, codecs):
        """
        A codec without the methods, or a class, is refused at once.
        """
        with pytest.raises((jetsync.InvalidTypeError, jetsync.InvalidArgumentError)):
            raw.with_codec(**codecs)

    def test_codecs_get_the_key(self, raw):
        """
        A codec of values can bind a value to its key.
        """

        class Bound:
            """
            Stores the key before the value.
            """

            def encode(self, key, value):
                """
                Add the key.
                """
                return f"{key}={value}"

            def decode(self, key, value):
                """
                Check the key.
                """
                stored, _, text = value.decode().partition("=")
                if stored != key:
                    raise jetsync.InvalidArgumentError(f"it belongs to {stored!r}")
                return text

        kv = raw.with_codec(keys=PathCodec(), values=Bound())
        kv.put("a/b", "x")
        assert raw.get("a.b").value == b"a/b=x"
        assert kv.get("a/b").value == "x"
        raw.put("a.c", raw.get("a.b").value)
        with pytest.raises(jetsync.DecodeError, match="it belongs to 'a/b'"):
            kv.get("a/c")
        assert kv.history("a/b")[0].operation is KeyOperation.PUT
