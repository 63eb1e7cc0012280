"""
Object stores as a file system of fsspec.
"""

from __future__ import annotations

import errno
import gzip
import multiprocessing
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import fsspec
import pytest
from fsspec.transaction import Transaction

import jetsync
from jetsync.filesystem import JetStreamFileSystem

DATA = bytes(range(256)) * 4000


@pytest.fixture
def store(js, unique):
    """
    An object store in memory, deleted after the test.
    """
    yield js.create_object_store(unique, storage="memory")
    with suppress(jetsync.ObjectStoreNotFoundError):
        js.delete_object_store(unique)


@pytest.fixture
def fs(nats_server):
    """
    The file system of the server, whose connections are closed after the test.
    """
    yield fsspec.filesystem("jetstream", servers=nats_server.url)
    JetStreamFileSystem.clear_instance_cache()


@pytest.fixture
def url(store):
    """
    The URL of a path in the object store; a function.
    """
    return lambda name="": f"jetstream://{store.bucket}/{name}"


class FailedError(Exception):
    """
    An error of the program.
    """


def write_and_fail(opened, data, error):
    """
    Write into a file in a block that an exception ends.
    """
    with opened as file:
        file.write(data)
        raise error


def names(store):
    """
    Return the names of all objects.
    """
    return [info.name for info in store.list()]


class TestReading:
    def test_any_position_can_be_read(self, fs, store, url):
        """
        A file is read from any position, by lines and as a whole.
        """
        store.put("a/data", DATA, chunk_size=10_000)
        with fs.open(url("a/data")) as file:
            assert (file.size, file.seekable(), file.readable()) == (len(DATA), True, True)
            for position in (0, 999_999, 5, 500_000, 9_999, len(DATA) - 3, len(DATA)):
                file.seek(position)
                assert file.read(20_000) == DATA[position : position + 20_000]
            file.seek(-4, 2)
            assert file.read() == DATA[-4:]
            file.seek(0)
            assert file.read() == DATA
        assert fs.cat(url("a/data")) == DATA
        assert fs.cat_file(url("a/data"), 10, 20) == DATA[10:20]
        assert fs.cat_file(url("a/data"), -10, -5) == DATA[-10:-5]
        assert fs.cat_file(url("a/data"), 20, 10) == b""
        assert fs.tail(url("a/data"), 7) == DATA[-7:]
        with fs.open(url("zip"), "wt", compression="gzip") as file:
            file.write("text")
        assert gzip.decompress(store.get_bytes("zip")) == b"text"
        with fs.open(url("zip"), "rt", compression="gzip") as file:
            assert file.read() == "text"
        store.put("text", "one\ntwö\n")
        with fs.open(url("text"), "r", encoding="utf-8") as file:
            assert list(file) == ["one\n", "twö\n"]

    def test_ranges_of_an_object_ask_once_for_its_chunks(self, client, fs, store, url):
        """
        ``cat_ranges`` returns errors in place, and asks once for the sizes of an object's chunks.
        """
        store.put("a", DATA, chunk_size=500)
        starts = list(range(1000, 1_000_000, 50_000))
        with client.subscribe(f"$JS.API.CONSUMER.CREATE.OBJ_{store.bucket}.>") as created:
            client.flush()
            found = fs.cat_ranges(
                [url("a")] * 20 + [url("none"), url("a")],
                [*starts, 0, -5],
                [*(start + 10 for start in starts), 1, None],
            )
            client.flush()
            assert created.next(timeout=5) is not None
            assert created.next(timeout=0) is None
        assert found[:20] == [DATA[start : start + 10] for start in starts]
        assert isinstance(found[20], FileNotFoundError)
        assert found[21] == DATA[-5:]

    def test_a_corrupted_object_is_an_error(self, fs, store, url):
        """
        Reading to the end checks the digest, unless the caller turns that off.
        """
        info = store.put("a", DATA, chunk_size=300_000)
        nats = store.stream
        subject = f"$O.{store.bucket}.C.{info.nuid}"
        sequence = nats.get_last(subject).sequence
        nats.delete_message(sequence)
        with fs.open(url("a")) as file, pytest.raises(jetsync.ObjectCorruptedError):
            file.read()

    def test_links_are_read_like_their_targets(self, fs, store, url):
        """
        A link has the size of its target. One that leads nowhere is listed as something else.
        """
        store.add_link("link", store.put("a", b"data"))
        store.add_store_link("stores", store.bucket)
        store.delete("a")
        assert {each["type"] for each in fs.ls(url())} == {"other"}
        assert fs.info(url("link"))["type"] == "other"
        with pytest.raises(FileNotFoundError):
            fs.open(url("link"))
        store.put("a", b"data")
        (entry,) = (each for each in fs.ls(url()) if each["name"].endswith("/link"))
        assert (entry["type"], entry["size"]) == ("file", 4)
        assert fs.cat(url("link")) == b"data"

    def test_what_is_missing_is_not_found(self, fs, store, url):
        """
        A missing object, directory, store and an invalid store name are FileNotFoundError.
        """
        for path in (url("nope"), "jetstream://no_such_store/a", "jetstream://in.valid/a"):
            assert not fs.exists(path)
            assert not fs.isdir(path)
            for call in (fs.open, fs.info, fs.ls, fs.cat, fs.rm, fs.rm_file):
                with pytest.raises(FileNotFoundError):
                    call(path)
            assert fs.find(path) == fs.glob(f"{path}/*") == []
        with pytest.raises(FileNotFoundError, match="'no_such_store' not found; mkdir creates it"):
            fs.pipe("jetstream://no_such_store/a", b"x")

    def test_an_object_store_is_no_object(self, fs, url):
        """
        The path of an object store cannot be read or replaced.
        """
        fs.pipe(url("a"), b"x")
        for call in (fs.open, fs.cat_file, fs.rm_file):
            with pytest.raises(IsADirectoryError):
                call(url())
        with pytest.raises(IsADirectoryError):
            fs.pipe_file(url(), b"x")
        with pytest.raises(IsADirectoryError):
            fs.cp_file(url("a"), url())
        with pytest.raises(jetsync.InvalidNameError):
            fs.cat_file(url("\ud800"))


class TestWriting:
    def test_a_file_is_one_put_at_its_end(self, fs, store, url):
        """
        A file is stored when it is closed, as one object with the given fields.
        """
        with fs.open(url("a"), "wb", description="d", metadata={"k": "v"}, chunk_size=1000) as file:
            assert file.write(b"x" * 700) == 700
            file.flush()
            assert file.write(memoryview(b"y" * 700)) == 700
            assert file.tell() == 1400
            assert names(store) == []
        info = store.info("a")
        assert (info.size, info.chunks, info.description) == (1400, 2, "d")
        assert info.metadata == {"k": "v"}
        file.close()
        assert store.info("a") == info
        with pytest.raises(ValueError, match="closed"):
            file.write(b"z")

    @pytest.mark.parametrize("options", [{}, {"mode": "wt"}, {"compression": "gzip"}])
    def test_a_failed_block_writes_nothing(self, nats_server, fs, store, url, options):
        """
        A block that an exception ends leaves the old object, however the file was opened.
        """
        store.put("a", b"old")
        options = {"mode": "wb", **options}
        data = "half" if options["mode"] == "wt" else b"half"
        for opened in (
            fs.open(url("a"), **options),
            fsspec.open(url("a"), servers=nats_server.url, **options),
        ):
            with pytest.raises(FailedError):
                write_and_fail(opened, data, FailedError)
        assert store.get_bytes("a") == b"old"
        with pytest.raises(KeyboardInterrupt):
            write_and_fail(fs.open(url("new"), **options), data, KeyboardInterrupt)
        assert names(store) == ["a"]

    def test_a_file_may_be_written_while_an_older_exception_is_handled(self, fs, store, url):
        """
        A file that is opened in an except block is stored.
        """
        try:
            raise FailedError
        except FailedError:
            with fs.open(url("a"), "wb") as file:
                file.write(b"fallback")
        assert store.get_bytes("a") == b"fallback"

        def raise_again():
            try:
                raise FailedError
            except FailedError as error:
                write_and_fail(fs.open(url("a"), "wb"), b"half", error)

        with pytest.raises(FailedError):
            raise_again()
        assert store.get_bytes("a") == b"fallback"

    def test_a_dropped_file_writes_nothing(self, fs, store, url):
        """
        A file that is dropped without being closed warns, and writes nothing.
        """
        file = fs.open(url("a"), "wb")
        file.write(b"x")
        files = [file]
        del file
        with pytest.warns(ResourceWarning, match="nothing was written"):
            files.clear()
        assert names(store) == []

    def test_large_data_does_not_stay_in_memory(self, fs, store, url):
        """
        Data above 8 MiB waits in a temporary file.
        """
        block = DATA * 2
        with fs.open(url("a"), "wb") as file:
            for _ in range(10):
                file.write(block)
            assert file._spool._rolled
        assert store.info("a").size == 10 * len(block)

    def test_modes(self, fs, store, url):
        """
        An exclusive file must be new, also when it is closed. Objects cannot be appended to.
        """
        with fs.open(url("a"), "xb") as file:
            file.write(b"1")
        with pytest.raises(FileExistsError):
            fs.open(url("a"), "xb")
        late = fs.open(url("b"), "xb")
        store.put("b", b"other")
        with pytest.raises(FileExistsError):
            late.close()
        assert store.get_bytes("b") == b"other"
        for mode in ("ab", "r+b"):
            with pytest.raises(NotImplementedError):
                fs.open(url("a"), mode)
        for mode, options in (("wb", {"color": 1}), ("rb", {"metadata": {}})):
            with pytest.raises(TypeError, match="has no option"):
                fs.open(url("a"), mode, **options)

    def test_a_transaction_stores_all_files_at_its_end_or_none(self, fs, store, url):
        """
        Files of a transaction of fsspec are stored at its end, and none after an exception.
        """
        with fs.transaction:
            with fs.open(url("a"), "wb") as file:
                file.write(b"a")
            fs.pipe(url("b"), b"b")
            assert names(store) == []
        assert names(store) == ["a", "b"]

        def fail():
            with fs.transaction:
                fs.pipe(url("c"), b"c")
                raise FailedError

        with pytest.raises(FailedError):
            fail()
        assert names(store) == ["a", "b"]

    def test_a_transaction_that_fails_ends(self, monkeypatch, fs, store, url):
        """
        If a file of a transaction cannot be stored, the transaction ends, with any fsspec.
        """

        def complete(self, commit=True):
            # As before fsspec 2026.9.
            while self.files:
                file = self.files.popleft()
                file.commit() if commit else file.discard()

        monkeypatch.setattr(Transaction, "complete", complete)

        def fail():
            with fs.transaction:
                fs.pipe(url("a"), b"a")
                with fs.open(url("b"), "xb") as file:
                    file.write(b"b")
                fs.pipe(url("c"), b"c")
                store.put("b", b"another")

        with pytest.raises(FileExistsError):
            fail()
        assert names(store) == ["a", "b"]
        fs.pipe(url("d"), b"d")
        with fs.transaction:
            fs.pipe(url("e"), b"e")
        assert names(store) == ["a", "b", "d", "e"]

    @pytest.mark.parametrize("compression", [None, "gzip"])
    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
    def test_text_has_the_mark_of_its_encoding(self, fs, store, url, encoding, compression):
        """
        Text in an encoding with a mark at its beginning can be read again.
        """
        options = {"encoding": encoding, "compression": compression, "newline": ""}
        with fs.open(url("a"), "wt", **options) as file:
            file.write("ä\n")
            file.write("b\n")
        with fs.open(url("a"), "rt", **options) as file:
            assert file.read() == "ä\nb\n"
        data = store.get_bytes("a")
        assert (gzip.decompress(data) if compression else data) == "ä\nb\n".encode(encoding)

    def test_a_file_is_written_at_any_position(self, fs, store, url):
        """
        A file that is written can seek, also for libraries that go back to a header.
        """
        with fs.open(url("a"), "wb") as file:
            assert file.seekable()
            file.write(b"12345678")
            assert file.seek(2) == file.tell() == 2
            file.write(b"ab")
            assert file.tell() == 4
            assert file.seek(-1, 2) == 7
            file.write(b"xyz")
        assert store.get_bytes("a") == b"12ab567xyz"
        with fs.open(url("b.zip"), "wb") as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr("name", DATA)
        with fs.open(url("b.zip")) as file, zipfile.ZipFile(file) as archive:
            assert archive.read("name") == DATA

    @pytest.mark.parametrize("mode", ["rb", "wb"])
    def test_a_closed_file_raises_a_value_error(self, fs, store, url, mode):
        """
        Calls of a closed file raise ValueError.
        """
        store.put("a", DATA)
        file = fs.open(url("a"), mode)
        file.close()
        assert not file.seekable()
        calls = [file.tell, file.flush, file.readline, file.read, lambda: next(file)]
        calls += [lambda: file.seek(0), lambda: file.readinto(bytearray(1))]
        calls += [lambda: file.write(b"")]
        for call in calls:
            with pytest.raises(ValueError, match=r"closed|read mode"):
                call()

    def test_a_full_store_has_no_space_left(self, fs, store, url):
        """
        A write into a full store is an OSError with ``ENOSPC``, and files can be removed.
        """
        store.stream.update(max_bytes=300_000)
        fs.pipe(url("a"), DATA[:200_000])
        with pytest.raises(OSError, match="maximum bytes exceeded") as caught:
            fs.pipe(url("b"), DATA)
        assert caught.value.errno == errno.ENOSPC
        fs.rm(url("a"))
        assert names(store) == []

    def test_a_sealed_store_is_read_only(self, fs, store, url):
        """
        A write into a sealed store is an OSError.
        """
        store.seal()
        with pytest.raises(OSError, match="sealed"):
            fs.pipe(url("a"), b"x")


class TestTree:
    def test_directories_are_the_parts_of_names(self, fs, store, url):
        """
        Listings, walks and wildcards see directories where names have slashes.
        """
        for name in ("a/b/1", "a/2", "ü x", "a2/3"):
            store.put(name, name)
        root = store.bucket
        assert root in fs.ls("", detail=False)
        assert fs.ls(url(), detail=False) == [f"{root}/a", f"{root}/a2", f"{root}/ü x"]
        kinds = {each["name"]: (each["type"], each["size"]) for each in fs.ls(url("a"))}
        assert kinds == {f"{root}/a/2": ("file", 3), f"{root}/a/b": ("directory", 0)}
        assert fs.ls(url("a/2"), detail=False) == [f"{root}/a/2"]
        assert fs.find(url("a/")) == [f"{root}/a/2", f"{root}/a/b/1"]
        assert fs.find(url("a"), maxdepth=1, withdirs=True) == [
            f"{root}/a",
            f"{root}/a/2",
            f"{root}/a/b",
        ]
        assert fs.find(url("a/2")) == [f"{root}/a/2"]
        assert f"{root}/a/2" in fs.find("")
        assert fs.glob(url("*/[0-9]")) == [f"{root}/a/2", f"{root}/a2/3"]
        assert fs.glob(url("**/1")) == [f"{root}/a/b/1"]
        assert [(place, dirs, files) for place, dirs, files in fs.walk(url("a"))] == [
            (f"{root}/a", ["b"], ["2"]),
            (f"{root}/a/b", [], ["1"]),
        ]
        assert fs.du(root) == sum(len(name.encode()) for name in names(store))
        assert (fs.isdir(url("a")), fs.isfile(url("a"))) == (True, False)
        assert (fs.isdir(url("a/2")), fs.isfile(url("a/2"))) == (False, True)
        assert fs.modified(url("a/2")) == store.info("a/2").modified

    def test_objects_are_copied_moved_and_removed(self, fs, store, url):
        """
        Copies keep the headers and the metadata. Objects and directories are moved and removed.
        """
        store.put("a/1", DATA, headers={"H": "v"}, metadata={"k": "v"}, description="d")
        store.put("a/b/2", b"2")
        fs.cp(url("a"), url("c"), recursive=True)
        assert names(store) == ["a/1", "a/b/2", "c/1", "c/b/2"]
        info = store.info("c/1")
        assert (info.headers["H"], info.metadata, info.description) == ("v", {"k": "v"}, "d")
        assert info.digest == store.info("a/1").digest
        nuid = store.info("a/1").nuid
        fs.mv(url("a/1"), url("moved"))
        assert store.get_bytes("moved") == DATA
        assert store.info("moved").nuid == nuid
        assert store.info("moved").headers["H"] == "v"
        store.put("taken", b"old")
        fs.mv(url("moved"), url("taken"))
        fs.mv(url("taken"), url("moved"))
        assert store.get_bytes("moved") == DATA
        assert store.info("moved").nuid != nuid
        fs.cp(url("moved"), url("moved"))
        fs.mv(url("c"), url("d"), recursive=True)
        assert names(store) == ["a/b/2", "d/1", "d/b/2", "moved"]
        with pytest.raises(FileNotFoundError):
            fs.mv(url("nope"), url("x"))
        with pytest.raises(FileNotFoundError):
            fs.rm(url("d"))
        fs.rm(url("d"), recursive=True)
        fs.rm(url("mov*"))
        assert names(store) == ["a/b/2"]

    @pytest.mark.parametrize("name", ["a*", "a?", "a[1]", "a[1]/x"])
    def test_a_name_that_is_also_a_pattern(self, fs, store, url, tmp_path, name):
        """
        A name with wildcards is refused if it matches others. Calls for one file take it as it is.
        """
        start = name.partition("/")[0]
        target = str(tmp_path / "copy")
        for recursive in (start != name, True):
            store.put(name, b"it")
            store.put("b", b"another")
            fs.rm([url(start), url("b*")], recursive=recursive)
            assert names(store) == []
        store.put(name, b"it")
        others = ["a1", "a1/x"]
        for each in others:
            store.put(each, b"another")
        recursive = start != name
        for call in (
            lambda: fs.rm(url(start), recursive=recursive),
            lambda: fs.mv(url(start), url("b"), recursive=recursive),
            lambda: fs.cp(url(start), url("b"), recursive=recursive),
            lambda: fs.get(url(start), target, recursive=recursive),
            lambda: fs.cat([url("a1"), url(start)], recursive=recursive),
        ):
            with pytest.raises(jetsync.InvalidArgumentError, match="is a name, and also a pattern"):
                call()
        assert names(store) == sorted([name, *others])
        assert not (tmp_path / "copy").exists()
        assert fs.cat_file(url(name)) == fs.open(url(name)).read() == b"it"
        fs.get_file(url(name), target)
        assert (tmp_path / "copy").read_bytes() == b"it"
        fs.rm_file(url(name))
        assert names(store) == others

    def test_local_files(self, fs, store, url, tmp_path):
        """
        Uploads and downloads copy local files and folders, and report their progress.
        """
        (tmp_path / "in" / "sub").mkdir(parents=True)
        (tmp_path / "in" / "a").write_bytes(DATA)
        (tmp_path / "in" / "sub" / "b").write_bytes(b"b")
        fs.put(str(tmp_path / "in"), url("up"), recursive=True)
        assert names(store) == ["up/a", "up/sub/b"]
        fs.get(url("up"), str(tmp_path / "out"), recursive=True)
        assert (tmp_path / "out" / "a").read_bytes() == DATA
        assert (tmp_path / "out" / "sub" / "b").read_bytes() == b"b"
        done = fsspec.callbacks.Callback()
        fs.put_file(str(tmp_path / "in" / "a"), url("one"), callback=done)
        assert (done.size, done.value) == (len(DATA), len(DATA))
        done = fsspec.callbacks.Callback()
        fs.get_file(url("one"), str(tmp_path / "one"), callback=done)
        assert (done.size, done.value) == (len(DATA), len(DATA))

    def test_names_do_not_leave_a_local_folder(self, fs, store, url, tmp_path):
        """
        An object whose name has ``..`` is not written outside of the folder of a recursive get.
        """
        store.put("up/../../evil", b"data")
        for path in (url("up"), url()):
            # Older versions of fsspec do not check this themselves.
            with pytest.raises(ValueError, match=r"\.\."):
                fs.get(path, str(tmp_path / "a" / "b"), recursive=True)
        with pytest.raises(jetsync.InvalidArgumentError):
            fs.get_file(url("up/../../evil"), str(tmp_path / "a" / ".." / "evil"))
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        fs.get_file(url("up/../../evil"), tmp_path / "named")
        assert (tmp_path / "named").read_bytes() == b"data"

    def test_not_all_stores_are_removed_at_once(self, fs, store):
        """
        The path of all object stores cannot be removed, and no object store is.
        """
        for path in ("", "/", "jetstream://"):
            with pytest.raises(IsADirectoryError):
                fs.rm(path, recursive=True)
        assert fs.exists(store.bucket)

    def test_stores_are_directories(self, fs, js, unique):
        """
        Object stores are created like directories, and removed if empty or recursively.
        """
        url = f"jetstream://{unique}"
        fs.mkdir(url, storage="memory", description="d")
        assert js.object_store(unique).status().description == "d"
        with pytest.raises(FileExistsError):
            fs.mkdir(url)
        fs.makedirs(url, exist_ok=True)
        fs.makedirs(f"{url}/any/folder")
        fs.pipe(f"{url}/a", b"1")
        with pytest.raises(OSError, match="not empty"):
            fs.rmdir(url)
        fs.rm(url, recursive=True)
        assert not fs.exists(url)
        fs.makedirs(url)
        fs.rmdir(url)
        assert not fs.exists(url)


def read_in_child(pickled, path, answers):
    """
    Read a file with a file system of another process.
    """
    answers.put(pickle.loads(pickled).cat(path))


class TestLife:
    def test_threads_share_a_connection(self, nats_server, fs, store, url):
        """
        Each thread has a file system, and all of them use one connection.
        """
        store.put("a", DATA)

        def read(_):
            mine = fsspec.filesystem("jetstream", servers=nats_server.url)
            return mine.cat(url("a")) == DATA, mine._client()

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(read, range(20)))
        assert {good for good, _ in found} == {True}
        assert {id(client) for _, client in found} == {id(fs._client())}
        assert fsspec.filesystem("jetstream", servers=nats_server.url) is fs

    # Newer versions of Python warn of a fork beside other threads.
    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
    @pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
    def test_other_processes_read(self, fs, store, url, method):
        """
        A file system that is pickled reads in a process of every kind.
        """
        store.put("a", b"data")
        assert fs.cat(url("a")) == b"data"
        context = multiprocessing.get_context(method)
        answers = context.Queue()
        child = context.Process(target=read_in_child, args=(pickle.dumps(fs), url("a"), answers))
        child.start()
        assert answers.get(timeout=60) == b"data"
        child.join(60)
        assert child.exitcode == 0
        assert fs.cat(url("a")) == b"data"

    def test_a_file_is_pickled_with_its_position(self, fs, store, url):
        """
        A copy of a file that is read continues at the same position.
        """
        store.put("a", DATA)
        with fs.open(url("a")) as file:
            file.seek(1000)
            with pickle.loads(pickle.dumps(file)) as copy:
                assert copy.read(10) == DATA[1000:1010]

    def test_a_closed_connection_is_replaced(self, fs, store, url):
        """
        A file system connects again after its connection has ended for good.
        """
        store.put("a", b"data")
        assert fs.cat(url("a")) == b"data"
        fs._client().close()
        assert fs.cat(url("a")) == b"data"
        JetStreamFileSystem.clear_instance_cache()
        assert fs.cat(url("a")) == b"data"

    def test_a_store_that_was_created_again_is_found(self, fs, js, store, url):
        """
        A file system notices that an object store was deleted and created again.
        """
        fs.pipe(url("a"), b"1")
        js.delete_object_store(store.bucket)
        assert not fs.exists(url("a"))
        js.create_object_store(store.bucket, storage="memory")
        fs.pipe(url("a"), b"2")
        assert fs.cat(url("a")) == b"2"

    def test_options_are_checked_when_the_file_system_is_made(self):
        """
        An unknown option, or one with a bad value, is an error before anything is sent.
        """
        with pytest.raises(jetsync.InvalidTypeError, match="did you mean 'servers'"):
            JetStreamFileSystem(server="nats://127.0.0.1:1")
        with pytest.raises(jetsync.InvalidArgumentError):
            JetStreamFileSystem("nats://127.0.0.1:1", connect_timeout=-1)
        JetStreamFileSystem("nats://127.0.0.1:1", use_listings_cache=False)

    def test_a_server_that_is_not_there_is_an_error(self):
        """
        Without a server, no call says that a file does not exist.
        """
        lost = JetStreamFileSystem("nats://127.0.0.1:1", connect_timeout=0.2)
        for call in (lost.exists, lost.isfile, lost.isdir, lost.ls, lost.open):
            with pytest.raises(jetsync.ConnectError):
                call("a/b")
