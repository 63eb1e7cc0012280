"""
Reading objects from real servers.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import sys
import threading
from contextlib import suppress

import pytest

import jetsync
from helpers.waiting import eventually, timed
from jetsync.consume.ordered_consumption import OrderedConsumption

DATA = os.urandom(1_000_001)

# Calls that need an open file, and their arguments.
READS = [
    *((name, ()) for name in ("read", "read1", "peek", "readline", "readlines", "tell")),
    *((name, ()) for name in ("readable", "seekable", "flush", "__iter__", "__next__")),
    *((name, (bytearray(4),)) for name in ("readinto", "readinto1")),
    ("seek", (0,)),
]


def changed(store, change, info):
    """
    Replace or delete an object, or remove its chunks.
    """
    if change == "put":
        store.put(info.name, b"new")
    elif change == "delete":
        store.delete(info.name)
    else:
        store.stream.purge(f"$O.{store.bucket}.C.{info.nuid}")


def rewrite(js, store, name, **changes):
    """
    Change the document of an object behind the back of the client.
    """
    document = {**store.info(name).document, **changes}
    token = jetsync._proto.object_names.encode_name(name)
    js.publish(f"$O.{store.bucket}.M.{token}", json.dumps(document))


class TestFile:
    def test_it_is_a_binary_file(self, store):
        """A reader has the methods of a binary file."""
        store.put("a", DATA)
        with store.get("a") as reader:
            assert reader.info == store.info("a")
            assert repr(reader) == "<ObjectReader 'a' at 0 of 1000001>"
            assert isinstance(reader, io.BufferedIOBase)
            assert reader.readable()
            assert reader.seekable()
            assert not reader.writable()
            assert reader.read(0) == b""
            assert reader.read(10) == DATA[:10]
            assert reader.tell() == 10
            buffer = bytearray(200_000)
            assert reader.readinto(buffer) == 200_000
            assert buffer == DATA[10:200_010]
            assert reader.peek(4)[:4] == DATA[200_010:200_014]
            assert reader.read1() == DATA[200_010 : 2 * 131072]
            assert reader.readinto1(buffer) == 131072
            assert reader.read() == DATA[3 * 131072 :]
            assert reader.read() == reader.read(5) == reader.read1() == reader.peek() == b""
            assert reader.readinto(buffer) == 0
        assert reader.closed
        reader.close()

    @pytest.mark.parametrize(("name", "arguments"), READS)
    def test_a_closed_reader_raises_a_value_error(self, store, name, arguments):
        """Calls of a closed reader raise ValueError, as those of other closed files."""
        store.put("a", DATA)
        reader = store.get("a")
        for file in (io.BufferedReader(io.BytesIO(DATA)), reader):
            file.close()
            with pytest.raises(ValueError, match="closed"):
                getattr(file, name)(*arguments)
        with pytest.raises(jetsync.HandleClosedError):
            list(reader.chunks())

    def test_lines_are_iterated_over(self, store):
        """A loop over a reader yields lines."""
        lines = [b"x" * (number % 300) + b"\n" for number in range(5000)]
        store.put("a", b"".join(lines), chunk_size=1000)
        with store.get("a") as reader:
            assert list(reader) == lines
        with store.get("a") as reader, io.TextIOWrapper(reader) as text:
            assert text.readline() == "\n"

    def test_libraries_read_it(self, store):
        """Libraries that read files can read an object."""
        store.put("a", gzip.compress(DATA))
        with store.get("a") as reader, gzip.open(reader) as file:
            assert file.read() == DATA

    def test_an_empty_object_ends_at_once(self, store):
        """An empty object has no data."""
        store.put("a", b"")
        with store.get("a") as reader:
            assert reader.read() == b""
            assert reader.seek(0, 2) == 0


class TestSeek:
    @pytest.mark.parametrize("chunk_size", [1000, 131072, 500_000])
    def test_any_position_can_be_read(self, store, chunk_size):
        """A reader reads from any position, forwards and backwards."""
        store.put("a", DATA, chunk_size=chunk_size)
        with store.get("a") as reader:
            for position in (0, 999_999, 5, 500_000, 499_999, 131_071, 131_072, 700_000, 0):
                assert reader.seek(position) == position
                assert reader.read(150_000) == DATA[position : position + 150_000]
            assert reader.seek(-10, io.SEEK_END) == len(DATA) - 10
            assert reader.read() == DATA[-10:]
            assert reader.seek(-20, io.SEEK_CUR) == len(DATA) - 20
            assert reader.read(5) == DATA[-20:-15]
            assert reader.seek(10, io.SEEK_END) == len(DATA) + 10
            assert reader.read() == b""
            assert reader.seek(0) == 0
            assert reader.read() == DATA

    def test_chunks_of_different_sizes(self, js, store):
        """Chunks may have any sizes, as some clients write them."""
        info = store.put("a", DATA, chunk_size=200_000)
        subject = f"$O.{store.bucket}.C.{info.nuid}"
        store.stream.purge(subject)
        sizes = [1, 299_999, 0, 400_000, 7, 299_994]
        at = 0
        for size in sizes:
            js.publish(subject, DATA[at : at + size])
            at += size
        assert at == len(DATA)
        assert store.get_bytes("a") == DATA
        with store.get("a") as reader:
            for position in (999_000, 300_000, 299_999, 700_006, 0):
                reader.seek(position)
                assert reader.read(1000) == DATA[position : position + 1000]

    @pytest.mark.parametrize(("offset", "whence"), [(-1, 0), (-1, 1), (-1_000_002, 2), (0, 3)])
    def test_wrong_positions_are_refused(self, store, offset, whence):
        """A position before the start is refused, and the position stays."""
        store.put("a", DATA)
        with store.get("a") as reader:
            with pytest.raises(jetsync.InvalidArgumentError):
                reader.seek(offset, whence)
            assert reader.tell() == 0

    def test_wrong_types_are_refused(self, store):
        """A size that is no whole number is refused, and so is a read-only buffer."""
        store.put("a", DATA)
        with store.get("a") as reader:
            for call in (reader.read, reader.read1, reader.seek):
                with pytest.raises(jetsync.InvalidTypeError):
                    call(1.5)
            with pytest.raises(jetsync.InvalidTypeError):
                reader.readinto(b"12345")
            assert reader.read() == DATA

    def test_a_whole_read_after_a_seek_is_checked(self, js, store):
        """If the data is read from its beginning to its end after all, the digest is checked."""
        store.put("a", DATA)
        rewrite(js, store, "a", digest="SHA-256=" + "A" * 43 + "=")
        with store.get("a") as reader:
            reader.seek(-10, io.SEEK_END)
            assert reader.read() == DATA[-10:]
            reader.seek(0)
            with pytest.raises(jetsync.ObjectCorruptedError):
                reader.read()


CHUNK = 128 << 10


@pytest.fixture
def transferred(client):
    """
    The bytes that the client has received since the test began; a function.
    """
    begin = client.statistics().bytes_in
    return lambda: client.statistics().bytes_in - begin


class TestTransfer:
    @pytest.fixture
    def data(self, store):
        """
        The data of an object of 192 chunks, which are three pages.
        """
        data = os.urandom(24 << 20)
        store.put("a", data)
        return data

    def test_a_read_after_a_seek_requests_only_its_chunks(self, store, data, transferred):
        """A read after a seek transfers the chunks that it needs, also in several pages."""
        with store.get("a") as reader:
            before = transferred()
            for position, size, count in (
                (len(data) - 8, 1000, 1),
                (10 * CHUNK, 1000, 1),
                (CHUNK - 100, 1000, 2),
                (20 * CHUNK, CHUNK, 1),
                (5 * CHUNK, 100 * CHUNK, 100),
                # At the start, at least 1 MiB.
                (0, 1000, 8),
            ):
                reader.seek(position)
                assert reader.read(size) == data[position : position + size]
                used, before = transferred() - before, transferred()
                assert used < (count + 1) * CHUNK

    def test_reading_on_requests_as_much_again(self, store, data, client, transferred):
        """If small reads follow a seek, they transfer at most twice their data, in few requests."""
        with store.get("a") as reader:
            at = reader.seek(5 * CHUNK + 7)
            before, requests = transferred(), client.statistics().bytes_out
            while read := reader.read(50_000):
                assert read == data[at : at + 50_000]
                at += len(read)
                assert transferred() - before < 2 * (at - 5 * CHUNK) + 3 * CHUNK
            assert at == len(data)
            # About twelve requests of 200 bytes, and those for the sizes.
            assert client.statistics().bytes_out - requests < 10_000

    @pytest.mark.parametrize("direct", [True, False])
    def test_short_seeks_forward_read_the_chunks_between(
        self, store, data, client, transferred, direct
    ):
        """After short seeks forward, no byte is transferred twice, and requests are few."""
        store.stream.update(allow_direct=direct)
        store = client.jetstream().object_store(store.bucket)
        with store.get("a") as reader:
            reader.seek(5 * CHUNK)
            reader.read(1)
            before, requests = transferred(), client.statistics().bytes_out
            for at in range(6 * CHUNK, len(data), 150_000):
                reader.seek(at)
                assert reader.read(100) == data[at : at + 100]
            assert transferred() - before < 1.1 * len(data)
            assert client.statistics().bytes_out - requests < 10_000

    def test_the_sizes_of_the_chunks_are_kept(self, store, transferred):
        """Only the first seek in an object asks for the sizes of its chunks, in all readers."""
        for name in ("a", "b"):
            data = os.urandom(1_000_000)
            store.put(name, data, chunk_size=1000)
            for count in (300_000, 5000):
                with store.get(name) as reader:
                    before = transferred()
                    reader.seek(500_000)
                    assert reader.read(1000) == data[500_000:501_000]
                    assert transferred() - before < count

    def test_chunks_that_are_removed_later_are_missed(self, store, data):
        """If chunks after those that a read requested are gone, reading on says so."""
        with store.get("a") as reader:
            reader.seek(10 * CHUNK)
            assert reader.read(10) == data[10 * CHUNK : 10 * CHUNK + 10]
            store.stream.delete_message(12)
            with pytest.raises(jetsync.ObjectCorruptedError):
                reader.read(CHUNK)
            assert reader.tell() == 10 * CHUNK + 10


class TestChecks:
    @pytest.mark.parametrize(
        "changes",
        [
            {"digest": "SHA-256=" + "A" * 43 + "="},
            {"size": len(DATA) - 1},
            {"size": len(DATA) + 1},
            {"size": 10},
            {"chunks": 7},
            {"chunks": 9},
        ],
    )
    def test_wrong_data_is_found_before_its_end(self, js, store, changes):
        """If the count, the size or the digest is wrong, the end of the data is not returned."""
        store.put("a", DATA)
        rewrite(js, store, "a", **changes)
        with pytest.raises(jetsync.ObjectCorruptedError) as caught:
            store.get_bytes("a")
        assert caught.value.name == "a"
        got = b""
        with store.get("a") as reader, suppress(jetsync.ObjectCorruptedError):
            while data := reader.read1():
                got += data
        assert len(got) < len(DATA)

    def test_no_file_is_written_from_wrong_data(self, js, store, tmp_path):
        """If the data is wrong, the file keeps its old contents, and no other file is left."""
        store.put("a", DATA)
        rewrite(js, store, "a", digest="SHA-256=" + "A" * 43 + "=")
        path = tmp_path / "a"
        path.write_bytes(b"old")
        with pytest.raises(jetsync.ObjectCorruptedError):
            store.get_file("a", path)
        assert path.read_bytes() == b"old"
        assert [each.name for each in tmp_path.iterdir()] == ["a"]

    @pytest.mark.skipif(sys.platform == "win32", reason="needs the files of POSIX systems")
    def test_a_file_is_replaced_as_it_was(self, store, tmp_path):
        """The new file keeps the permissions, a link stays, and a pipe is refused at once."""
        store.put("a", DATA)
        secret, link, pipe = tmp_path / "secret", tmp_path / "link", tmp_path / "pipe"
        secret.write_bytes(b"old")
        secret.chmod(0o600)
        link.symlink_to(secret)
        os.mkfifo(pipe)

        store.get_file("a", link)
        with pytest.raises(OSError, match="not a regular file"):
            store.get_file("missing", pipe)

        assert link.is_symlink()
        assert secret.read_bytes() == DATA
        assert secret.stat().st_mode & 0o777 == 0o600
        assert pipe.is_fifo()

    def test_an_interrupt_leaves_no_part_of_a_file(self, store, tmp_path):
        """Ctrl-C while an object is written into a file leaves the old file and no other."""
        store.put("a", DATA)
        # As long as the names of files may be.
        path = tmp_path / ("x" * 255)
        path.write_bytes(b"old")

        def interrupt(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.get_file("a", path, on_progress=interrupt)
        assert [each.name for each in tmp_path.iterdir()] == [path.name]
        assert path.read_bytes() == b"old"
        store.get_file("a", path)
        assert path.read_bytes() == DATA

    def test_the_digest_can_be_left_unchecked(self, js, store):
        """With ``verify=False``, a wrong or missing digest does not matter, but the size does."""
        store.put("a", DATA)
        rewrite(js, store, "a", digest="")
        with pytest.raises(jetsync.ObjectCorruptedError):
            store.get("a")
        assert store.get_bytes("a", verify=False) == DATA
        rewrite(js, store, "a", digest="", size=5)
        with pytest.raises(jetsync.ObjectCorruptedError):
            store.get_bytes("a", verify=False)

    @pytest.mark.parametrize("change", [str.lower, lambda text: text])
    def test_digests_of_other_clients(self, js, store, change):
        """A digest without padding, or whose hash is in lower case, is that of the data."""
        digest = store.put("a", DATA).digest
        written = change(digest[:8]) + digest[8:].rstrip("=")
        rewrite(js, store, "a", digest=written)
        assert store.get_bytes("a") == DATA

    def test_missing_chunks_are_an_error(self, store):
        """If chunks are gone, a read fails at once."""
        info = store.put("a", DATA)
        store.stream.purge(f"$O.{store.bucket}.C.{info.nuid}")
        with pytest.raises(jetsync.ObjectCorruptedError, match="0 of 8 chunks"):
            store.get_bytes("a", timeout=30)
        with store.get("a") as reader:
            reader.seek(999_999)
            with pytest.raises(jetsync.ObjectCorruptedError):
                reader.read()

    @pytest.mark.parametrize("allow_direct", [True, False])
    @pytest.mark.parametrize("position", [400_000, 450_000, 500_000])
    def test_a_chunk_is_not_taken_for_another_one(self, js, store, allow_direct, position):
        """If a chunk is removed after a seek, a read there does not return the next chunk."""
        store.stream.update(allow_direct=allow_direct)
        store = js.object_store(store.bucket)
        store.put("a", DATA, chunk_size=100_000)
        with store.get("a") as reader:
            # Before the end, so that the last chunk does not show the fault.
            assert reader.seek(-150_000, io.SEEK_END)
            assert reader.read(10) == DATA[-150_000:-149_990]
            store.stream.delete_message(6)
            reader.seek(position)
            with pytest.raises(jetsync.ObjectCorruptedError):
                reader.read(150_000)
            assert reader.tell() == position
            reader.seek(-150_000, io.SEEK_END)
            assert reader.read() == DATA[-150_000:]

    @pytest.mark.parametrize("direct", [True, False])
    @pytest.mark.parametrize("change", ["put", "delete", "purge"])
    @pytest.mark.parametrize("version", [None, pytest.param("2.10.26", marks=pytest.mark.versions)])
    def test_an_object_that_changes_during_a_read(self, js_of, unique, version, change, direct):
        """A read of an object that was replaced or deleted meanwhile says so at once."""
        js = js_of(version)
        store = js.create_object_store(unique, storage="memory")
        store.stream.update(allow_direct=direct)
        store = js.object_store(unique)
        # More than a consumer sends before it is asked for more.
        data = os.urandom(17 << 20)
        expected = jetsync.ObjectCorruptedError if change == "purge" else jetsync.ObjectChangedError
        try:
            for position in (0, 8 << 20):
                info = store.put("a", data)
                with store.get("a", timeout=60) as reader, timed(0, 30):
                    reader.seek(position)
                    assert reader.read(10) == data[position : position + 10]
                    changed(store, change, info)
                    with pytest.raises(expected) as caught:
                        reader.read()
                    assert reader.tell() == position + 10
            if change != "purge":
                text = f"object 'a' of object store {unique!r} was replaced or deleted while it"
                assert str(caught.value).startswith(text)
        finally:
            js.delete_object_store(unique)

    @pytest.mark.parametrize("change", ["put", "delete", "purge"])
    def test_an_object_that_changes_during_a_seek(self, monkeypatch, store, change):
        """If an object changes while the sizes of its chunks arrive, the read says so at once."""
        data = os.urandom(20_000)
        info = store.put("a", data, chunk_size=2)
        add = jetsync._proto.object_names.ChunkIndex.add

        def add_and_change(index, sequence, size):
            if not len(index):
                changed(store, change, info)
            add(index, sequence, size)

        monkeypatch.setattr(jetsync._proto.object_names.ChunkIndex, "add", add_and_change)
        expected = jetsync.ObjectCorruptedError if change == "purge" else jetsync.ObjectChangedError
        with store.get("a", timeout=60) as reader, timed(0, 30):
            reader.seek(10_000)
            with pytest.raises(expected):
                reader.read(1)

    def test_chunks_in_flight_are_waited_for(self, monkeypatch, js, unique):
        """If the server has sent all chunks, a read waits for those that have not arrived."""
        store = js.create_object_store(unique, storage="memory")
        store.put("a", DATA, chunk_size=len(DATA) // 3)
        store.stream.update(allow_direct=False)
        store, take = js.object_store(unique), OrderedConsumption.next
        calls, held = itertools.count(1), []

        def late(messages, *, timeout):
            number = next(calls)
            if number == 3:
                return held.pop()
            message = take(messages, timeout=timeout)
            if number != 2:
                return message
            # The reader now asks the server, which has nothing left to send.
            worker = store.stream.consumer(message.metadata.consumer)
            eventually(lambda: not worker.info().num_pending)
            held.append(message)
            return None

        monkeypatch.setattr(OrderedConsumption, "next", late)
        assert store.get_bytes("a", timeout=20) == DATA
        js.delete_object_store(unique)

    @pytest.mark.parametrize("direct", [True, False])
    def test_a_slow_server_is_waited_for(self, monkeypatch, fragile, unique, victim, direct):
        """Chunks that arrive late are no sign of a change."""
        store = fragile.create_object_store(unique, storage="memory")
        store.stream.update(allow_direct=direct)
        store = fragile.object_store(unique)
        data = os.urandom(20 << 20)
        store.put("a", data)
        monkeypatch.setattr(jetsync.objects.reader, "QUIET", 0.01)
        with store.get("a", timeout=60) as reader:
            assert reader.read(10) == data[:10]
            victim.pause()
            try:
                timer = threading.Timer(1, victim.resume)
                timer.start()
                assert reader.read() == data[10:]
            finally:
                timer.join()
