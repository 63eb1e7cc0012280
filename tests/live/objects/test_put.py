"""
Storing objects on real servers.
"""

from __future__ import annotations

import io
import os
import threading
import time
import tracemalloc
from contextlib import suppress

import pytest

import jetsync
from jetsync import hookimpl
from jetsync.objects import bucket, upload

DATA = os.urandom(1_000_001)


def chunks(store):
    """
    Return the subjects of chunks with the numbers of their messages.
    """
    found = store.stream.info(subjects_filter=f"$O.{store.bucket}.C.>").state.subjects
    return {subject.rpartition(".")[2]: count for subject, count in found.items()}


class TestData:
    @pytest.mark.parametrize("size", [0, 1, 131071, 131072, 131073, len(DATA)])
    def test_sizes_around_a_chunk(self, store, size):
        """An object of any size is stored, and comes back."""
        info = store.put("a", DATA[:size])
        assert (info.size, info.chunks) == (size, -(-size // 131072))
        assert store.get_bytes("a") == DATA[:size]
        assert chunks(store) == ({info.nuid: info.chunks} if size else {})

    @pytest.mark.parametrize(
        "make",
        [
            lambda: DATA,
            lambda: bytearray(DATA),
            lambda: memoryview(DATA),
            lambda: io.BytesIO(DATA),
            lambda: (DATA[at : at + 7777] for at in range(0, len(DATA), 7777)),
        ],
    )
    def test_kinds_of_data(self, store, make):
        """Bytes, files and iterables are stored in equal chunks."""
        info = store.put("a", make())
        assert (info.size, info.chunks) == (len(DATA), 8)
        assert store.get_bytes("a") == DATA

    def test_a_file_is_stored_from_its_path(self, store, tmp_path):
        """The contents of a file are stored, and written into another file."""
        source, target = tmp_path / "a", tmp_path / "b"
        source.write_bytes(DATA)
        progress = []
        info = store.put_file("a", source, on_progress=lambda *each: progress.append(each))
        assert progress[-1] == (len(DATA), len(DATA))
        target.write_bytes(b"old")
        assert store.get_file("a", str(target)) == store.info("a")
        assert target.read_bytes() == DATA
        assert info.size == len(DATA)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
        with pytest.raises(FileNotFoundError):
            store.put_file("a", tmp_path / "missing")

    def test_a_new_put_replaces_the_old_data(self, store):
        """A put replaces the object, and removes its old chunks."""
        store.put("a", DATA)
        info = store.put("a", b"new")
        assert store.get_bytes("a") == b"new"
        assert chunks(store) == {info.nuid: 1}

    def test_more_data_than_the_window_holds(self, store):
        """An object that is larger than the window is stored with many chunks in flight."""
        data = os.urandom(20 << 20)
        done = []
        info = store.put("a", data, on_progress=lambda *each: done.append(each))
        assert info.chunks == 160
        assert store.get_bytes("a") == data
        assert [size for size, _ in done] == sorted(size for size, _ in done)
        assert done[-1] == (len(data), len(data))

    def test_progress_before_the_window_is_full(self, store):
        """A source that gives data slowly has progress before its end."""
        done, before_the_end = [], []

        def source():
            until = time.monotonic() + 30
            while not done and time.monotonic() < until:
                time.sleep(0.001)
                yield b"x"
            before_the_end.extend(done)

        store.put("a", source(), chunk_size=1, on_progress=lambda *each: done.append(each))
        assert before_the_end

    def test_a_put_keeps_no_more_than_the_window(self, store, tmp_path):
        """The memory of a put is that of the chunks in flight, whatever the size of the file."""
        path = tmp_path / "a"
        path.write_bytes(DATA * 40)
        tracemalloc.start()
        try:
            store.put_file("a", path)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 12 << 20
        assert store.get_bytes("a") == DATA * 40

    def test_many_small_chunks(self, store):
        """Small chunks are in flight by their number."""
        info = store.put("a", DATA[:20_000], chunk_size=1)
        assert info.chunks == 20_000
        assert store.get_bytes("a") == DATA[:20_000]


class TestArguments:
    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"chunk_size": 0}, jetsync.InvalidArgumentError),
            ({"chunk_size": 1 << 20}, jetsync.InvalidArgumentError),
            ({"chunk_size": 1.5}, jetsync.InvalidTypeError),
            ({"description": 5}, jetsync.InvalidTypeError),
            ({"headers": [("a", "b")]}, jetsync.InvalidTypeError),
            ({"headers": {"a\n": "b"}}, jetsync.InvalidHeaderError),
            ({"metadata": {"a": 5}}, jetsync.InvalidTypeError),
            ({"metadata": 5}, jetsync.InvalidTypeError),
            ({"metadata": {"a": "x" * (1 << 20)}}, jetsync.MaxPayloadError),
            ({"expect": "old"}, jetsync.InvalidTypeError),
            ({"on_progress": 5}, jetsync.InvalidTypeError),
            ({"timeout": -1}, jetsync.InvalidArgumentError),
        ],
    )
    def test_wrong_arguments_are_refused_before_anything_is_sent(self, store, fields, error):
        """A wrong argument raises an error, and nothing is stored."""
        with pytest.raises(error):
            store.put("a", b"data", **fields)
        with pytest.raises(jetsync.InvalidTypeError):
            store.put("a", 5)
        assert store.stream.info().state.messages == 0

    def test_chunks_fit_into_the_messages_of_the_stream(self, js, store):
        """The default chunk size is smaller if the stream accepts only smaller messages."""
        store.stream.update(max_msg_size=4096)
        again = js.object_store(store.bucket)
        info = again.put("a", DATA[:100_000])
        assert info.chunk_size < 4096
        assert again.get_bytes("a") == DATA[:100_000]
        with pytest.raises(jetsync.InvalidArgumentError):
            again.put("a", b"", chunk_size=4096)


class TestExpect:
    def test_a_new_object_needs_a_free_name(self, store):
        """With ``expect="new"``, the name must be free or that of a deleted object."""
        info = store.put("a", b"1", expect="new")
        with pytest.raises(jetsync.ObjectExistsError) as caught:
            store.put("a", b"2", expect="new")
        assert (caught.value.name, caught.value.last_sequence) == ("a", info.revision)
        assert isinstance(caught.value, jetsync.WrongLastSequenceError)
        store.delete("a")
        store.put("a", b"3", expect="new")

    def test_an_info_must_be_the_current_one(self, store):
        """With an info, the object must not have changed since."""
        first = store.put("a", b"1")
        second = store.put("a", b"2", expect=first)
        with pytest.raises(jetsync.ObjectChangedError) as caught:
            store.put("a", b"3", expect=first)
        assert caught.value.last_sequence == second.revision
        assert store.get_bytes("a") == b"2"
        assert chunks(store) == {second.nuid: 1}
        with pytest.raises(jetsync.InvalidArgumentError):
            store.put("b", b"", expect=first)

    @pytest.mark.parametrize("expect", [None, "new"])
    @pytest.mark.parametrize("size", [0, 5])
    def test_another_put_during_a_put_is_a_conflict(self, store, expect, size):
        """If another client stores the object during a put, the put fails and leaves nothing."""

        def pieces():
            yield DATA[:size]
            if size:
                yield DATA[: 1 << 17]
            pieces.other = store.put("a", b"other")

        if not size and expect is None:
            # Without a chunk, the put begins after the other one.
            assert store.put("a", pieces()).size == 0
            return
        with pytest.raises(jetsync.ObjectChangedError):
            store.put("a", pieces(), expect=expect)
        assert store.get_bytes("a") == b"other"
        assert chunks(store) == {pieces.other.nuid: 1}

    def test_two_writers_never_lose_an_update(self, store):
        """Writers that add to what they read lose nothing."""
        store.put("a", b"")

        def add(letter):
            for _ in range(10):
                while True:
                    # A read fails, too, if the object changes meanwhile.
                    with suppress(jetsync.ObjectChangedError):
                        with store.get("a") as reader:
                            info, data = reader.info, reader.read()
                        store.put("a", data + letter, expect=info)
                        break

        threads = [threading.Thread(target=add, args=(letter,)) for letter in (b"x", b"y")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(store.get_bytes("a")) == sorted(b"xy" * 10)


class TestFailures:
    def test_an_error_of_the_source_leaves_nothing(self, store):
        """If the iterable raises, the put raises that error and removes its chunks."""
        old = store.put("a", b"old")

        def pieces():
            yield DATA
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.put("a", pieces())
        assert store.get_bytes("a") == b"old"
        assert chunks(store) == {old.nuid: 1}

    def test_an_interrupt_leaves_nothing(self, store):
        """Ctrl-C in the middle of a put removes its chunks."""

        def interrupt(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as caught:
            store.put("a", DATA, on_progress=interrupt)
        assert not hasattr(caught.value, "nuid")
        assert store.list() == []
        assert chunks(store) == {}

    def test_a_description_that_is_too_large(self, store):
        """A description that no message can hold is an error before any data is taken."""
        given = []

        def pieces():
            given.append(1)
            yield DATA

        with pytest.raises(jetsync.MaxPayloadError):
            store.put("a", pieces(), description="x" * (1 << 20))
        assert not given

    def test_a_full_store_refuses_an_object(self, js, unique):
        """If the object store is full, the put fails and leaves nothing."""
        store = js.create_object_store(unique, storage="memory", max_bytes=500_000)
        try:
            with pytest.raises(jetsync.StreamFullError):
                store.put("a", DATA)
            assert store.list() == []
            assert chunks(store) == {}
        finally:
            js.delete_object_store(unique)


class Watcher:
    """
    A plugin that notes operations and events.
    """

    def __init__(self):
        self.operations = []
        self.events = []

    @hookimpl(wrapper=True)
    def jetsync_publish(self, operation):
        """
        Note the operation and its outcome.
        """
        result = yield
        self.operations.append(operation.name)
        return result

    @hookimpl
    def jetsync_status(self, event):
        """
        Note the event.
        """
        self.events.append(event)

    @hookimpl
    def jetsync_shared_headers(self, operation):
        """
        Add a header, as tracing does.
        """
        return {"Trace": operation.name}


class Collector:
    """
    A plugin that keeps the data of all messages.
    """

    def __init__(self):
        self.data = []

    @hookimpl
    def jetsync_prepare_message(self, message):
        """
        Keep the data.
        """
        self.data.append(message.data)
        return message


class TestPlugins:
    def test_plugins_may_keep_the_data(self, proxied, store):
        """The data that a plugin keeps does not change, although a put uses memory again."""
        plugin = Collector()
        js, _ = proxied(plugin)
        data = os.urandom(10 << 20)
        js.object_store(store.bucket).put("a", data)
        assert b"".join(plugin.data[:80]) == data
        assert store.get_bytes("a") == data

    def test_plugins_see_the_chunks_and_the_document(self, proxied, store):
        """Plugins wrap the chunks as one operation and the document as another, and add headers."""
        plugin = Watcher()
        js, _ = proxied(plugin)
        info = js.object_store(store.bucket).put("a", DATA)
        assert plugin.operations == ["put", "publish"]
        counts = [each for each in plugin.events if isinstance(each, jetsync.PublishCountsEvent)]
        assert sum(each.acknowledged for each in counts) == 8
        assert counts[0].publish.name == "put"
        subject = f"$O.{store.bucket}.C.{info.nuid}"
        assert store.stream.get_last(subject).headers["Trace"] == "put"
        assert store.get_bytes("a") == DATA

    def test_a_failed_put_waits_for_answers(self, proxied, store, monkeypatch):
        """A put that fails first waits for the answers to its chunks, so plugins can count them."""
        monkeypatch.setattr(bucket, "CLEANUP", 120.0)
        monkeypatch.setattr(upload, "LAST_ANSWERS", 60.0)
        plugin, old = Watcher(), store.put("a", b"")
        js, proxy = proxied(plugin)

        def pieces():
            proxy.delay(0.1, "to_client")
            yield from (DATA[:1000], DATA[:1000])
            raise EOFError

        with pytest.raises(EOFError):
            js.object_store(store.bucket).put(
                "a", pieces(), chunk_size=1000, expect=old, timeout=240
            )
        counts = [each for each in plugin.events if isinstance(each, jetsync.PublishCountsEvent)]
        assert sum(each.acknowledged for each in counts) == 2
        assert sum(each.unknown for each in counts) == 0

    def test_plugins_see_unknown_chunks(self, proxied, store, monkeypatch):
        """If a put fails before it has all answers, plugins get the others as unknown."""
        monkeypatch.setattr(bucket, "CLEANUP", 0.2)
        monkeypatch.setattr(upload, "LAST_ANSWERS", 0.0)
        plugin, old = Watcher(), store.put("a", b"")
        js, proxy = proxied(plugin)

        def pieces():
            proxy.pause("to_client")
            yield from (DATA[:1000], DATA[:1000])
            raise EOFError

        with pytest.raises(EOFError):
            js.object_store(store.bucket).put("a", pieces(), chunk_size=1000, expect=old)
        proxy.resume()
        counts = [each for each in plugin.events if isinstance(each, jetsync.PublishCountsEvent)]
        assert [(each.acknowledged, each.failed, each.unknown) for each in counts] == [(0, 2, 2)]
