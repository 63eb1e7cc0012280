"""
Watching buckets on real servers, and the calls that use a watch: keys, history, clean-up.
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest

import jetsync
from helpers.consuming import RefusesOnce, lose_buffered
from helpers.streams import change_creation
from helpers.waiting import at_some_pace, blocked, eventually, timed
from jetsync import KeyOperation
from jetsync.consume.core import ConsumptionCore
from jetsync.devserver import DevServer
from jetsync.kv import watch
from jetsync.kv.watch import delivered_entry


@pytest.fixture
def kv(make_bucket):
    """
    A bucket in memory that keeps five revisions of each key.
    """
    return make_bucket(history=5)


def seen(entries):
    """
    Key and revision of entries.
    """
    return [(entry.key, entry.revision) for entry in entries]


def fill(kv):
    """
    Seven revisions of three keys, one of which is deleted at the end.
    """
    for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("c.d", b"4"), ("b", b"5")):
        kv.put(key, value)
    kv.delete("c.d")
    kv.put("c.e", b"7")


def test_an_entry_that_is_sent_again_is_not_handed_out_again(kv, monkeypatch):
    """
    If Ctrl-C strikes when an entry is handed out, the entry is returned once, and no other is lost.
    """
    fill(kv)
    hand_out, struck = ConsumptionCore.hand_out, []

    def interrupted(core, frames):
        if not struck:
            struck.append(True)
            raise KeyboardInterrupt
        hand_out(core, frames)

    monkeypatch.setattr(ConsumptionCore, "hand_out", interrupted)
    with kv.watch() as changes:
        with pytest.raises(KeyboardInterrupt):
            changes.next(timeout=20)
        found = [changes.next(timeout=20) for _ in range(4)]
    assert seen(found) == [("a", 3), ("b", 5), ("c.d", 6), ("c.e", 7)]


class TestInitial:
    @pytest.mark.parametrize(
        ("patterns", "options", "expected"),
        [
            ((), {}, [("a", 3), ("b", 5), ("c.d", 6), ("c.e", 7)]),
            ((">",), {}, [("a", 3), ("b", 5), ("c.d", 6), ("c.e", 7)]),
            (("c.*",), {}, [("c.d", 6), ("c.e", 7)]),
            (("a", "c.>"), {}, [("a", 3), ("c.d", 6), ("c.e", 7)]),
            (("a", "*", "b"), {}, [("a", 3), ("b", 5)]),
            (("x",), {}, []),
            ((), {"ignore_deletes": True}, [("a", 3), ("b", 5), ("c.e", 7)]),
            (("c.d",), {"ignore_deletes": True}, []),
            (("a", "b"), {"include_history": True}, [("a", 1), ("b", 2), ("a", 3), ("b", 5)]),
            ((), {"from_revision": 5}, [("b", 5), ("c.d", 6), ("c.e", 7)]),
            ((), {"from_revision": 8}, []),
            ((), {"updates_only": True}, []),
        ],
    )
    def test_existing_entries(self, kv, patterns, options, expected):
        """
        A watch yields each existing entry once, and is current after that.
        """
        fill(kv)
        with kv.watch(*patterns, **options) as watch:
            assert watch.is_current is (not expected and options != {"ignore_deletes": True})
            assert seen(watch.initial(timeout=10)) == expected
            assert watch.is_current
            assert watch.wait_current(timeout=0)
            # The bucket is still empty, and the next entry is an update.
            assert seen(watch.initial(timeout=10)) == []
            for key in ("a", "x", "c.d"):
                kv.put(key, b"new")
            assert watch.next(timeout=10).value == b"new"

    def test_waiting_for_entries_that_this_thread_takes(self, kv):
        """
        A signal handler cannot wait for the initial entries while its thread takes them.
        """
        fill(kv)
        with kv.watch() as watch:
            with watch._reading.turn._lock, pytest.raises(jetsync.ConflictingUseError):
                watch.wait_current(timeout=0)
            assert not watch.wait_current(timeout=0)
            seen(watch.initial(timeout=10))
            with watch._reading.turn._lock:
                assert watch.wait_current(timeout=0)

    def test_a_watch_of_an_empty_bucket_is_current_at_once(self, kv):
        """
        A watch of an empty bucket is current at once.
        """
        with kv.watch() as watch, timed(0, 5):
            assert watch.is_current
            assert list(watch.initial()) == []
            assert watch.next(timeout=0.05) is None
            kv.put("a", b"1")
            assert seen([watch.next(timeout=10)]) == [("a", 1)]

    def test_a_watch_is_current_after_the_first_entries(self, kv):
        """
        Iterating over the watch yields all entries, and ``is_current`` becomes true after the first
        ones are complete.
        """
        fill(kv)
        states = []
        with kv.watch() as watch:
            for entry in watch:
                states.append((entry.key, entry.delta, watch.is_current))
                if watch.is_current:
                    break
            assert watch.revision == 7
        assert states == [("a", 3, False), ("b", 2, False), ("c.d", 1, False), ("c.e", 0, True)]

    def test_meta_only(self, kv):
        """
        With ``meta_only``, entries have names and operations, and no values.
        """
        fill(kv)
        with kv.watch(meta_only=True) as watch:
            entries = list(watch.initial(timeout=10))
        assert {entry.value for entry in entries} == {b""}
        assert [entry.operation is KeyOperation.PUT for entry in entries] == [
            True,
            True,
            False,
            True,
        ]

    def test_entries_that_vanish(self, kv):
        """
        A watch becomes current even if entries are overwritten or removed while it loads.
        """
        for number in range(50):
            kv.put(f"k{number}", b"x" * 100)
        with kv.watch() as watch:
            first = next(watch.initial(timeout=10))
            for number in range(50):
                kv.purge(f"k{number}")
            kv.stream.purge()
            rest = list(watch.initial(timeout=10))
        assert len(rest) <= 100
        assert first.key == "k0"

    def test_the_last_one_is_not_known(self, kv, monkeypatch):
        """
        If the entries after the last one were removed, the watch asks the server whether it is
        complete.
        """
        fill(kv)
        make = jetsync.kv.watch.delivered_entry
        monkeypatch.setattr(
            "jetsync.kv.watch.delivered_entry",
            lambda *arguments: attrs.evolve(make(*arguments), delta=1),
        )
        with kv.watch() as watch:
            assert len(list(watch.initial(timeout=20))) == 4
            assert watch.is_current

    @pytest.mark.parametrize("options", [{}, {"include_history": True}])
    def test_a_writer_that_is_faster(self, kv, options):
        """
        If keys change faster than they are taken, a watch is current after all keys have arrived.
        """
        # More than the buffer holds, or all entries would be in flight before the first change.
        for number in range(600):
            kv.put(f"k{number}", b"")
        came, waited = [], []
        with kv.watch(**options) as watch, ThreadPoolExecutor(1) as pool:
            for entry in watch.initial(timeout=60):
                came.append(entry.key)
                if len(came) in {1, 599, 600}:
                    waited.append(pool.submit(watch.wait_current, timeout=0).result(10))
                # Change two keys for each one taken, so that entries never run out.
                for number in range(2):
                    kv.put(f"k{(2 * len(came) + number) % 600}", b"")
                assert len(came) <= 600
            assert watch.is_current
        assert len(set(came)) == 600
        assert waited.count(True) == 1

    def test_keys_that_never_come(self, kv, monkeypatch):
        """
        A watch becomes current if some keys are gone and others keep changing.
        """
        monkeypatch.setattr("jetsync._proto.watching.MOST", 2)
        for number in range(600):
            kv.put(f"k{number}", b"")
        count = 0
        with kv.watch() as watch:
            for _ in watch.initial(timeout=60):
                count += 1
                if count == 1:
                    # Keys that are not in the buffer yet never arrive, and other changes arrive
                    # without end.
                    for number in range(550, 600):
                        kv.stream.purge(subject=f"$KV.{kv.bucket}.k{number}")
                for number in range(2):
                    kv.put(f"k{(2 * count + number) % 300}", b"")
                assert count <= 1200
            assert watch.is_current

    def test_new_keys_are_not_counted_as_existing_ones(self, make_bucket):
        """
        The initial entries have each key that existed, also if it changes and others are created.
        """
        kv = make_bucket()
        # More than the buffer holds, so that the last ones are not in flight before they change.
        existing = [f"k{number}" for number in range(600)]
        for key in existing:
            kv.put(key, b"")
        with kv.watch() as watch:
            initial = watch.initial(timeout=60)
            came = [next(initial).key]
            for number in range(50):
                kv.put(f"new{number}", b"")
            for key in existing[550:]:
                kv.put(key, b"")
            came += [entry.key for entry in initial]
        assert set(existing).difference(came) == set()

    def test_a_purge_meanwhile(self, kv):
        """
        Entries that are purged while a watch loads are left out, and it becomes current.
        """
        for number in range(1200):
            kv.put(f"k{number}", b"")
        with kv.watch() as watch:
            initial = watch.initial(timeout=60)
            first = next(initial)
            kv.stream.purge()
            rest = list(initial)
            assert first.key == "k0"
            assert len(rest) < 1199
            assert watch.is_current

    def test_entries_that_are_removed_before_they_are_sent(self, nats_server, kv):
        """
        The other entries arrive soon, although servers stop at each removed one.
        """

        class Remove:
            waits = True

            @jetsync.hookimpl(wrapper=True)
            def jetsync_fetch(self, operation):
                # The watch has its consumer, and its first pull is not sent yet.
                if self.waits:
                    self.waits = False
                    kv.purge_deletes(0)
                    kv.put("b", b"1")
                return (yield)

        for number in range(100):
            kv.delete(f"a{number}")
        with jetsync.connect(nats_server.url, plugins=[Remove()]) as client:
            bucket = client.jetstream().key_value(kv.bucket)
            # Heartbeats would also make the server continue, in 30 s.
            with timed(0.0, 15.0), bucket.watch() as watch:
                assert seen(watch.initial(timeout=60)) == [("b", 101)]

    def test_the_deadline_of_initial_ends_a_slow_reader(self, kv):
        """
        The deadline of ``initial`` also ends a slow reader, and the watch continues afterwards.
        """
        for number in range(20):
            kv.put(f"k{number}", b"")

        def attempt(pace):
            with kv.watch() as watch:
                initial = watch.initial(timeout=0.5 * pace)
                first = next(initial)
                # The time that the entries may take.
                time.sleep(0.5 * pace)
                with pytest.raises(
                    jetsync.RequestTimeoutError, match="did not send all entries"
                ) as caught:
                    next(initial)
                assert caught.value.__cause__ is None
                assert caught.value.__context__ is None
                assert not watch.is_current
                rest = list(watch.initial(timeout=60))
            assert seen([first, *rest]) == [(f"k{number}", number + 1) for number in range(20)]

        at_some_pace(attempt)

    def test_from_another_thread(self, kv):
        """
        A thread can wait until another one has taken all initial entries.
        """
        fill(kv)
        cache = {}
        with kv.watch() as watch, ThreadPoolExecutor(1) as pool:
            assert not watch.wait_current(timeout=0.01)
            reader = pool.submit(lambda: cache.update((entry.key, entry.value) for entry in watch))
            assert watch.wait_current(timeout=10)
            eventually(lambda: cache.keys() == {"a", "b", "c.d", "c.e"})
            kv.put("z", b"26")
            eventually(lambda: watch.revision == 8)
            watch.close()
            reader.result(10)
        assert cache["z"] == b"26"

    @pytest.mark.parametrize(
        "options",
        [
            {"updates_only": True, "include_history": True},
            {"updates_only": True, "from_revision": 3},
            {"from_revision": 0},
        ],
    )
    def test_options_of_a_watch_that_do_not_fit_are_refused(self, kv, options):
        """
        Options that exclude each other raise a ValueError.
        """
        with pytest.raises(jetsync.InvalidArgumentError):
            kv.watch(**options)

    def test_overlapping_patterns(self, kv):
        """
        An entry that several patterns match is delivered once.
        """
        kv.put("a.b", b"1")
        kv.put("a.c", b"2")
        with kv.watch("a.*", "*.b", "a.b", "a.*") as watch:
            assert seen(watch.initial(timeout=10)) == [("a.b", 1), ("a.c", 2)]


class TestEnd:
    @pytest.mark.parametrize("how", ["next", "iterate", "initial"])
    def test_stop_wakes(self, kv, how):
        """
        Closing a watch wakes the thread that waits for an entry.
        """
        watch = kv.watch()

        def take():
            if how == "next":
                with pytest.raises(jetsync.HandleClosedError):
                    watch.next(timeout=60)
            elif how == "iterate":
                assert list(watch) == []
            else:
                watch._engine.current = watch._is_current = False
                watch._look = lambda _: None
                with pytest.raises(jetsync.HandleClosedError):
                    list(watch.initial())

        with ThreadPoolExecutor(1) as pool:
            taking = pool.submit(take)
            blocked(pool)
            watch.close()
            taking.result(10)
        assert watch.closed
        assert list(watch) == []
        with pytest.raises(jetsync.HandleClosedError):
            watch.next(timeout=0)
        watch.close()
        eventually(lambda: not list(kv.stream.consumer_names()))

    def test_ctrl_c_during_a_close_keeps_no_entry(self, kv, monkeypatch):
        """
        If Ctrl-C interrupts a call while another thread closes the watch, no entry follows.
        """
        fill(kv)
        with kv.watch() as watch:

            def close_meanwhile(*arguments):
                watch.close()
                return delivered_entry(*arguments)

            def interrupt(*_):
                raise KeyboardInterrupt

            monkeypatch.setattr("jetsync.kv.watch.delivered_entry", close_meanwhile)
            monkeypatch.setattr(ConsumptionCore, "hand_out", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(watch)
            assert list(watch) == []

    def test_a_dropped_watch_leaves_no_consumer(self, kv):
        """
        A watch that is dropped leaves no consumer on the server.
        """
        kv.put("a", b"1")
        for _ in kv.watch():
            break
        kv.watch()
        eventually(lambda: not list(kv.stream.consumer_names()))

    def test_the_client_closes(self, nats_server, js, kv):
        """
        Closing the client ends the iteration.
        """
        with jetsync.connect(nats_server.url) as client:
            watch = client.jetstream().key_value(kv.bucket).watch()
            with ThreadPoolExecutor(1) as pool:
                taking = pool.submit(list, watch)
                blocked(pool)
                client.close()
                assert taking.result(10) == []
        assert watch.closed
        watch.close()

    def test_several_threads_take(self, kv):
        """
        Each entry goes to one of the threads that share a watch.
        """
        taken = []
        with kv.watch() as watch, ThreadPoolExecutor(3) as pool:
            working = [pool.submit(lambda: taken.extend(watch)) for _ in range(3)]
            try:
                for number in range(30):
                    kv.put(f"k{number}", b"")
                eventually(lambda: watch.revision == 30)
            finally:
                watch.close()
            for each in working:
                each.result(10)
        assert sorted(entry.revision for entry in taken) == list(range(1, 31))

    def test_the_bucket_is_deleted(self, js, kv):
        """
        Deleting the bucket ends the watch with BucketNotFoundError, which is raised once.
        """
        kv.put("a", b"1")
        with kv.watch() as watch:
            assert seen(watch.initial(timeout=10)) == [("a", 1)]
            js.delete_key_value(kv.bucket)
            with pytest.raises(jetsync.BucketNotFoundError) as caught:
                watch.next(timeout=60)
            assert caught.value.bucket == kv.bucket
            assert caught.value.reason is None
            assert repr(watch.error) == repr(caught.value)
            assert watch.closed
            assert list(watch) == []
            with pytest.raises(jetsync.HandleClosedError):
                watch.next(timeout=0)

    def test_the_bucket_is_deleted_after_a_quiet_time(self, js, kv):
        """
        A loop over the watch does not end silently if an earlier wait has found no entry.
        """
        with kv.watch() as watch:
            assert watch.next(timeout=0.01) is None
            js.delete_key_value(kv.bucket)
            with pytest.raises(jetsync.BucketNotFoundError):
                list(watch)

    @pytest.mark.parametrize("revisions", [3, 9])
    def test_the_bucket_is_recreated(self, js, kv, revisions):
        """
        A recreated bucket ends the watch, because its revisions start over.
        """
        for number in range(5):
            kv.put("a", b"%d" % number)
        with kv.watch() as watch:
            assert seen(watch.initial(timeout=10)) == [("a", 5)]
            js.delete_key_value(kv.bucket)
            js.create_key_value(kv.bucket, history=5, storage="memory")
            for number in range(revisions):
                kv.put("a", b"%d" % number)
            with pytest.raises(jetsync.BucketNotFoundError, match="another one has its name"):
                watch.next(timeout=60)
            eventually(lambda: not list(kv.stream.consumer_names()))
        # The handle works with the new bucket.
        with kv.watch() as watch:
            assert seen(watch.initial(timeout=10)) == [("a", revisions)]
            kv.stream.delete_consumer(watch._source.cursor.name)
            assert kv.put("b", b"") == revisions + 1
            assert watch.next(timeout=60).key == "b"

    def test_the_bucket_loses_its_memory(self):
        """
        A restart of the server empties a bucket in memory, which ends its watch.
        """
        with DevServer() as server, jetsync.connect(server.url) as client:
            kv = client.jetstream().create_key_value("B", storage="memory")
            kv.put("a", b"1")
            kv.put("a", b"2")
            with kv.watch() as watch:
                assert seen(watch.initial(timeout=10)) == [("a", 2)]
                server.restart()
                with pytest.raises(jetsync.BucketNotFoundError):
                    watch.next(timeout=60)


class TestTrouble:
    def test_overwritten_revisions(self, kv, js):
        """
        A watch that is slow skips revisions that the bucket no longer keeps, but not the last ones.
        """
        count = 5000
        with kv.watch(updates_only=True) as watch:
            report = js.publish_many((f"$KV.{kv.bucket}.a", b"") for _ in range(count))
            seen = [next(watch).revision]
            while seen[-1] < report.last_sequence:
                seen.append(next(watch).revision)

        assert seen == sorted(set(seen))
        assert len(seen) < count
        assert seen[-5:] == [*range(count - 4, count + 1)]

    @pytest.mark.versions
    def test_a_watch_survives_another_time_of_creation(self):
        """
        A watch continues if a server before 2.14 reports another time of creation for the bucket.
        """
        with (
            DevServer("2.12.8") as server,
            jetsync.connect(server.url, reconnect_wait=0.05) as client,
        ):
            js = client.jetstream()
            kv = js.create_key_value("B")
            kv.put("a", b"1")
            with kv.watch() as watch:
                assert seen(watch.initial(timeout=10)) == [("a", 1)]
                change_creation(server, js, "KV_B")
                # The revision that was read last is gone.
                kv.put("a", b"2")
                assert seen([watch.next(timeout=60)]) == [("a", 2)]

    def test_each_revision_is_delivered_once_across_restarts(self, tmp_path):
        """
        Each revision is delivered once across restarts of the server.
        """
        with DevServer(store=tmp_path) as server, jetsync.connect(server.url) as client:
            kv = client.jetstream().create_key_value("B")
            taken, enough = [], threading.Event()

            def put():
                # Each change has its own key, so no entry that the watch still has to read is
                # replaced.
                for number in itertools.count():
                    if enough.is_set():
                        return
                    try:
                        kv.put(f"k{number}", b"", timeout=20)
                    except jetsync.JetSyncError:
                        enough.wait(0.05)

            watch = kv.watch()
            with ThreadPoolExecutor(2) as pool:
                try:
                    reading = pool.submit(lambda: taken.extend(watch))
                    writing = pool.submit(put)
                    for _ in range(2):
                        before = watch.revision
                        eventually(lambda before=before: watch.revision > before + 40, 30)
                        server.restart()
                    before = watch.revision
                    eventually(lambda: watch.revision > before + 40, 30)
                    enough.set()
                    writing.result(60)
                    last = kv.status(timeout=20).last_revision
                    eventually(lambda: watch.revision == last, 30)
                finally:
                    enough.set()
                    watch.close()
                reading.result(20)
                assert [entry.revision for entry in taken] == list(range(1, last + 1))

    def test_initial_over_a_lost_connection(self, tmp_path):
        """
        A watch becomes current even if it loses its connection while it loads.
        """
        with DevServer(store=tmp_path) as server, jetsync.connect(server.url) as client:
            kv = client.jetstream().create_key_value("B")
            for number in range(1500):
                kv.put(f"k{number}", b"")
            with kv.watch() as watch:
                initial = watch.initial(timeout=60)
                first = [next(initial) for _ in range(100)]
                server.restart()
                rest = list(initial)
            assert seen(first + rest) == [(f"k{number}", number + 1) for number in range(1500)]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("how", ["next", "loop", "initial"])
def test_an_entry_that_a_plugin_refuses(nats_server, kv, how, lost):
    """
    A plugin's error ends the watch after the entries before it, and skips none.
    """
    for number in range(8):
        kv.put(f"k{number}", b"%d" % number)
    with jetsync.connect(nats_server.url, plugins=[RefusesOnce(b"3")]) as client:
        watch, got = client.jetstream().key_value(kv.bucket).watch(), []
        if lost:
            lose_buffered(client, watch, 8)
        entries = {"next": iter(lambda: watch.next(timeout=20), None), "loop": watch}
        with pytest.raises(jetsync.PluginError):
            got.extend(entry.key for entry in entries.get(how) or watch.initial())
        assert got == ["k0", "k1", "k2"]
        assert watch.closed


class TestKeys:
    def test_keys_are_filtered_by_the_server_without_values(self, client, js, unique):
        """
        ``keys`` has the server filter, and transfers no values.
        """
        kv = js.create_key_value(unique, storage="memory")
        js.publish_many(
            (f"$KV.{unique}.{'a' if number < 10 else 'b'}.k{number}", b"x" * 100)
            for number in range(10_000)
        )
        kv.delete("a.k3")
        before = client.statistics().bytes_in
        assert kv.keys("a.*") == [f"a.k{number}" for number in range(10) if number != 3]
        # A hundred messages without values would be more.
        assert client.statistics().bytes_in - before < 15_000
        assert len(kv.keys()) == 9_999
        assert kv.keys("x.>") == []
        assert sorted(kv.keys("a.k1", "b.k77", "b.k78")) == ["a.k1", "b.k77", "b.k78"]
        assert not list(kv.stream.consumer_names())
        js.delete_key_value(unique)

    @pytest.mark.thorough
    def test_keys_that_change_meanwhile(self, make_bucket, js):
        """
        ``keys`` returns every key that existed before the call, although threads change keys and
        create others meanwhile.
        """
        kv = make_bucket()
        existing = [f"k{number}" for number in range(8_000)]
        js.publish_many((f"$KV.{kv.bucket}.{key}", b"") for key in existing)
        enough = threading.Event()

        def change(seed):
            with js.publisher(window=64) as publisher:
                for number in itertools.count():
                    if enough.is_set() or number > 20_000:
                        return
                    old = existing[-1 - (7 * number + seed) % 1000]
                    for key in (old, f"new{seed}-{number}"):
                        publisher.publish(f"$KV.{kv.bucket}.{key}", b"")

        with ThreadPoolExecutor(2) as pool:
            changing = [pool.submit(change, seed) for seed in range(2)]
            try:
                missing = [set(existing).difference(kv.keys()) for _ in range(3)]
            finally:
                enough.set()
            for each in changing:
                each.result(60)
        assert missing == [set()] * 3

    @pytest.mark.parametrize("other", [False, True])
    def test_changes_that_the_server_counts_late(self, make_bucket, monkeypatch, other):
        """
        If the server says that nothing follows, although changes are stored, ``keys`` waits for
        them, also if the last change in the bucket is of a key that was not asked for.
        """
        kv = make_bucket()
        keys = [f"k.{number}" for number in range(20)]
        revisions = [kv.put(key, b"") for key in keys]
        opened, delivered = watch.OrderedSource.make, watch.delivered_entry

        def open_late(*arguments, **options):
            for key in keys[:5]:
                kv.put(key, b"changed")
            if other:
                kv.put("other", b"")
            return opened(*arguments, **options)

        def too_early(*arguments):
            entry = delivered(*arguments)
            return attrs.evolve(entry, delta=0) if entry.revision == revisions[-1] else entry

        monkeypatch.setattr(watch.OrderedSource, "make", open_late)
        monkeypatch.setattr(watch, "delivered_entry", too_early)
        assert sorted(kv.keys("k.>")) == sorted(keys)

    @pytest.mark.parametrize("call", ["keys", "purge_deletes"])
    def test_entries_are_not_kept(self, kv, js, monkeypatch, call):
        """
        Reading all keys keeps the keys, but not the entries, which are several times as large.
        """
        js.publish_many((f"$KV.{kv.bucket}.{number}", b"") for number in range(1000))
        make, alive = jetsync.kv.watch.delivered_entry, []

        def counted(bucket, key, message):
            if key == "999":
                alive.append(sum(type(each) is jetsync.Entry for each in gc.get_objects()))
            return make(bucket, key, message)

        monkeypatch.setattr(jetsync.kv.watch, "delivered_entry", counted)
        # Tests before this one may have left some.
        gc.collect()
        getattr(kv, call)()
        assert len(alive) == 1
        # Two runs of entries.
        assert alive[0] < 150

    def test_reading_all_keys_ends_at_its_deadline(self, kv):
        """
        Reading all keys ends at its deadline.
        """
        kv.put("a", b"1")
        with pytest.raises(TimeoutError), timed(0, 5):
            kv.keys(timeout=0)

    def test_the_history_has_the_stored_revisions_oldest_first(self, kv):
        """
        The history has the stored revisions of a key, oldest first.
        """
        for number in range(7):
            kv.put("a", b"%d" % number)
            kv.put("b", b"")
        assert [entry.value for entry in kv.history("a")] == [b"2", b"3", b"4", b"5", b"6"]
        with pytest.raises(jetsync.KeyNotFoundError):
            kv.history("c")

    def test_purge_deletes(self, kv):
        """
        The rest of deleted keys is removed, except for recent markers. The call returns the number
        of keys that it purged.
        """
        fill(kv)
        kv.purge("b")
        assert kv.purge_deletes() == 1
        assert kv.purge_deletes() == 0
        assert seen(kv.history("c.d")) == [("c.d", 6)]
        assert kv.purge_deletes(0) == 2
        assert kv.purge_deletes(0) == 0
        with kv.watch() as watch:
            assert seen(watch.initial(timeout=10)) == [("a", 3), ("c.e", 7)]
        assert len(kv.history("a")) == 2

    def test_purge_deletes_skips_young_markers(self, make_bucket, client):
        """
        A young marker without earlier revisions is not purged.
        """
        kv = make_bucket()
        kv.put("a", b"1")
        kv.delete("a")
        with client.subscribe(f"$JS.API.STREAM.PURGE.KV_{kv.bucket}") as wire:
            client.flush()
            assert kv.purge_deletes() == 0
            client.flush()
            assert wire.next(timeout=0.1) is None
            assert kv.purge_deletes(0) == 1

    def test_purge_deletes_spares_new_values(self, kv, monkeypatch):
        """
        A key that is set again after its marker was read keeps its value.
        """
        kv.put("a", b"1")
        kv.delete("a")
        ask, calls = jetsync.Stream.info, itertools.count()

        def set_first(stream, **options):
            # The first call comes after the marker was read.
            if next(calls) == 0:
                kv.put("a", b"2")
            return ask(stream, **options)

        monkeypatch.setattr(jetsync.Stream, "info", set_first)
        assert kv.purge_deletes(0) == 1
        assert [entry.value for entry in kv.history("a")] == [b"2"]


FORK = """
import sys
import jetsync
from helpers.forks import refusals, run_in_child

with jetsync.connect(sys.argv[1]) as client:
    kv = client.jetstream().key_value(sys.argv[2])
    watch = kv.watch()
    stream = client.jetstream().stream("KV_" + sys.argv[2])
    with stream.ordered_consumer() as ordered:
        messages = ordered.consume()
        waits = (watch.wait_current, messages.wait, messages.next, watch.next)
        assert run_in_child(lambda: refusals(waits)) == 0
        assert len(list(watch.initial(timeout=10))) == 4
        watch.close()
"""


def test_no_call_in_a_forked_child_waits_for_entries_of_its_parent(nats_server, kv):
    """
    In a forked child, each call that would wait for entries raises ForkedProcessError.
    """
    fill(kv)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, nats_server.url, kv.bucket],
        capture_output=True,
        text=True,
        # On a busy machine, this took 15 seconds, most of them for imports.
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (done.returncode, done.stderr) == (0, "")
