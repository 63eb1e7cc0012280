"""
Backups of streams, buckets and object stores on real servers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc

import pytest

import jetsync
from helpers.backups import FIXTURES, VERSIONS, content, files_in, make, names, stop_at
from helpers.waiting import eventually
from jetsync import backups
from jetsync.devserver import DevServer


class TestRoundTrip:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_a_stream_comes_back_with_its_consumers(self, js_of, version, unique, tmp_path):
        """Messages, gaps, times, headers and the places of consumers are as before."""
        js = js_of(version)
        stream = make(js, unique)
        js.publish(f"{unique}.h", b"with headers", headers={"A": "1"})
        stream.delete_message(4)
        worker = stream.create_consumer("worker")
        for message in worker.fetch(3, expires=5):
            message.ack_sync()
        stream.create_consumer("other")
        before = content(stream)

        made = stream.backup(tmp_path / "backup", check=True)
        assert (made.config.name, made.state.last_seq, made.state.consumer_count) == (unique, 11, 2)
        assert made.format == ("tar" if version else "archive")
        assert jetsync.read_backup(tmp_path / "backup") == made
        stream.delete()
        restored = js.restore_stream(tmp_path / "backup")
        assert restored.cached_info.state.last_seq == 11
        assert content(restored) == before
        restored.delete()

    def test_consumers_can_be_left_out(self, js, unique, tmp_path):
        """With `consumers=False`, the restored stream has no consumers."""
        stream = make(js, unique)
        stream.create_consumer("worker")
        made = stream.backup(tmp_path / "b", consumers=False)
        stream.delete()
        restored = js.restore_stream(made.path)
        assert (restored.info().state.messages, list(restored.consumers())) == (10, [])
        restored.delete()

    def test_fields_and_the_name_can_be_changed(self, js, unique, tmp_path):
        """A newer backup is restored under another name and with other fields, beside the old."""
        stream = make(js, unique)
        made = stream.backup(str(tmp_path / "b"))
        copy = js.restore_stream(
            made.path, f"{unique}-2", subjects=[f"{unique}-2.>"], storage="memory", max_age=3600
        )
        config = copy.info().config
        assert (config.storage.value, config.max_age) == ("memory", 3600)
        assert [each[1:] for each in content(copy)[0]] == [each[1:] for each in content(stream)[0]]
        stream.delete()
        copy.delete()

    def test_none_takes_a_field_out(self, js, unique, tmp_path):
        """A keyword that is None takes the field out of the configuration; the others stay."""
        republish = jetsync.Republish(src=f"{unique}.>", dest=f"{unique}-copies.>")
        stream = make(js, unique, description="orders", republish=republish)
        made = stream.backup(tmp_path / "b")
        stream.delete()
        restored = js.restore_stream(made.path, republish=None)
        config = restored.cached_info.config
        assert (config.republish, config.description) == (None, "orders")
        restored.delete()

    @pytest.mark.versions
    def test_an_old_backup_is_restored_by_the_newest_server(self, js_of, unique, tmp_path):
        """Servers restore backups of older ones, under the same name only."""
        stream = make(js_of("2.12.8"), unique)
        made = stream.backup(tmp_path / "b")
        js = js_of(None)
        with pytest.raises(jetsync.InvalidArgumentError, match="another name"):
            js.restore_stream(made.path, f"{unique}-2")
        restored = js.restore_stream(made.path)
        assert content(restored) == content(stream)
        restored.delete()
        stream.delete()

    @pytest.mark.versions
    def test_a_new_backup_is_refused_by_an_old_server(self, js_of, unique, tmp_path):
        """Servers before 2.15 get nothing of a backup that they cannot read."""
        stream = make(js_of(None), unique)
        made = stream.backup(tmp_path / "b")
        stream.delete()
        js = js_of("2.14.6")
        with pytest.raises(jetsync.NotSupportedError, match=r"needs server 2\.15 or later"):
            js.restore_stream(made.path)
        assert unique not in names(js)

    @pytest.mark.parametrize(
        ("name", "version"),
        [
            ("nats-tar", None),
            ("nats-archive", None),
            pytest.param("nats-tar", "2.10.26", marks=pytest.mark.versions),
        ],
    )
    def test_a_backup_of_the_nats_command_line_is_restored(self, name, version):
        """The stored backups were made by the library of the `nats` command line."""
        with DevServer(version) as server, jetsync.connect(server.url) as client:
            js = client.jetstream()
            stream = js.restore_stream(FIXTURES / name)
            messages, places = content(stream)
            assert [each[:3] for each in messages] == [
                (each + 1, "orders.eu" if each % 2 else "orders.us", f"order {each}".encode())
                for each in range(10)
                if each != 3
            ]
            assert [each[4] for each in messages][:1] == [{"Number": ["0"]}]
            assert places == [("worker", 6, 3)]

    def test_the_files_are_those_of_the_nats_command_line(self, js, unique, tmp_path):
        """`backup.json` has the two keys that other programs read, and others read the digests."""
        stream = make(js, unique)
        folder = stream.backup(tmp_path / "b").path
        assert files_in(folder) == ["SHA256SUMS", "backup.json", "stream.tar.s2"]
        about = json.loads((folder / "backup.json").read_text("utf-8"))
        known = json.loads((FIXTURES / "nats-archive" / "backup.json").read_text("utf-8"))
        assert about.keys() == known.keys() == {"config", "state"}
        assert about["state"]["last_seq"] == 10
        if shutil.which("sha256sum"):
            subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, check=True)
        stream.delete()

    def test_buckets_and_object_stores(self, js, unique, tmp_path):
        """Their handles make backups, too, and say that a bucket is gone."""
        bucket, store = js.create_key_value(unique, history=3), js.create_object_store(unique)
        bucket.put("a", b"1")
        bucket.put("a", b"2")
        store.put("file", b"data" * 100_000)
        paths = [
            handle.backup(tmp_path / name).path for name, handle in (("k", bucket), ("o", store))
        ]
        js.delete_key_value(unique)
        js.delete_object_store(unique)
        with pytest.raises(jetsync.BucketNotFoundError):
            bucket.backup(tmp_path / "again")
        with pytest.raises(jetsync.ObjectStoreNotFoundError):
            store.backup(tmp_path / "again", check=True)
        for path in paths:
            js.restore_stream(path)
        assert [each.value for each in js.key_value(unique).history("a")] == [b"1", b"2"]
        assert js.object_store(unique).get_bytes("file") == b"data" * 100_000
        js.delete_key_value(unique)
        js.delete_object_store(unique)

    @pytest.mark.parametrize("version", [pytest.param("2.10.26", marks=pytest.mark.versions), None])
    def test_a_cluster(self, version, tmp_path):
        """A stream with three replicas comes back with three, after a failed attempt, too."""
        with (
            DevServer(version, cluster=3) as server,
            jetsync.connect(server.url) as client,
        ):
            js = client.jetstream(timeout=30)
            stream = make(js, "S", count=120, size=100_000, num_replicas=3)
            for message in stream.create_consumer("worker").fetch(3, expires=5):
                message.ack_sync()
            before = content(stream)
            made = stream.backup(tmp_path / "b")
            stream.delete()
            with pytest.raises(KeyboardInterrupt):
                js.restore_stream(made.path, on_progress=stop_at(5 << 20))
            assert names(js) == []
            restored = js.restore_stream(made.path)
            assert restored.cached_info.config.num_replicas == 3
            assert eventually(lambda: content(restored) == before)


class TestRefusals:
    def test_a_stream_that_exists_stays_as_it_is(self, js, unique, tmp_path):
        """The server refuses to begin if the stream exists, and jetsync deletes nothing."""
        stream = make(js, unique)
        made = stream.backup(tmp_path / "b")
        js.publish(f"{unique}.new", b"new")
        with pytest.raises(jetsync.ApiError) as caught:
            js.restore_stream(made.path)
        assert caught.value.err_code == 10130
        assert stream.info().state.messages == 11
        stream.delete()

    @pytest.mark.parametrize("name", ["nats-tar", "nats-archive"])
    def test_a_stream_that_another_client_makes_meanwhile_stays(self, own, monkeypatch, name):
        """A single server does not reserve the name; jetsync does not delete the other stream."""
        server, js = own

        send = backups._Restore._send

        def create_first(restore, file):
            other.create_stream("ORDERS", subjects=["other"])
            send(restore, file)

        monkeypatch.setattr(backups._Restore, "_send", create_first)
        with jetsync.connect(server.url) as client:
            other = client.jetstream()
            with pytest.raises(jetsync.RestoreError, match="already in use") as caught:
                js.restore_stream(FIXTURES / name)
            assert caught.value.outcome == "nothing"
            assert other.stream("ORDERS").config.subjects == ["other"]

    @pytest.mark.parametrize("file", ["stream.tar.s2", "backup.json"])
    def test_a_changed_byte_is_found_before_anything_is_sent(
        self, client, js, unique, tmp_path, file
    ):
        """A backup with a changed byte is refused, and the server hears nothing of it."""
        stream = make(js, unique)
        folder = stream.backup(tmp_path / "b").path
        stream.delete()
        data = bytearray((folder / file).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / file).write_bytes(data)
        before = client.statistics().bytes_out
        with pytest.raises(jetsync.BackupDamagedError, match=re.escape(file)):
            js.restore_stream(folder)
        assert client.statistics().bytes_out == before

    @pytest.mark.parametrize(
        ("name", "cut"), [("nats-tar", 1), ("nats-tar", 600), ("nats-archive", 1)]
    )
    def test_data_without_digests_that_is_cut_off_is_found(self, js, tmp_path, name, cut):
        """Backups of the `nats` command line have no digests, but data that is cut off is found."""
        shutil.copytree(FIXTURES / name, tmp_path / "b")
        data = (tmp_path / "b" / "stream.tar.s2").read_bytes()
        (tmp_path / "b" / "stream.tar.s2").write_bytes(data[:-cut])
        with pytest.raises(jetsync.BackupDamagedError, match="is cut off"):
            js.restore_stream(tmp_path / "b")

    @pytest.mark.parametrize("name", ["nats-tar", "nats-archive"])
    def test_a_server_that_refuses_the_data_keeps_nothing(self, own, tmp_path, name):
        """Damage that only the server finds leaves no stream."""
        _, js = own
        shutil.copytree(FIXTURES / name, tmp_path / "b")
        data = bytearray((tmp_path / "b" / "stream.tar.s2").read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / "b" / "stream.tar.s2").write_bytes(data)
        with pytest.raises(jetsync.RestoreError, match="the server has nothing of it") as caught:
            js.restore_stream(tmp_path / "b")
        assert (caught.value.outcome, type(caught.value.__cause__)) == ("nothing", jetsync.ApiError)
        assert names(js) == []

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"config": 1, "state": {}}', "\ud800"])
    def test_a_description_that_cannot_be_read(self, tmp_path, content):
        """`backup.json` has to describe a stream."""
        shutil.copytree(FIXTURES / "nats-tar", tmp_path / "b")
        (tmp_path / "b" / "backup.json").write_bytes(content.encode("utf-8", "surrogatepass"))
        with pytest.raises(jetsync.BackupDamagedError):
            jetsync.read_backup(tmp_path / "b")

    def test_missing_files_and_wrong_arguments(self, js, unique, tmp_path):
        """Missing files, taken folders and wrong arguments are errors before anything is sent."""
        stream = js.stream(unique, lookup=False)
        with pytest.raises(FileNotFoundError):
            js.restore_stream(tmp_path / "missing")
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken" / "file").touch()
        with pytest.raises(FileExistsError):
            stream.backup(tmp_path / "taken")
        with pytest.raises(FileNotFoundError):
            stream.backup(tmp_path / "missing" / "folder")
        with pytest.raises(jetsync.InvalidTypeError):
            stream.backup(tmp_path / "b", on_progress=1)
        with pytest.raises(jetsync.InvalidTypeError):
            js.restore_stream(FIXTURES / "nats-tar", replicas=3)
        with pytest.raises(jetsync.StreamNotFoundError):
            stream.backup(tmp_path / "b")
        assert files_in(tmp_path) == ["taken"]

    @pytest.mark.versions
    def test_a_stream_in_memory_of_an_old_server(self, js_of, unique, tmp_path):
        """Servers before 2.15 refuse backups of streams in memory."""
        stream = make(js_of("2.14.6"), unique, storage="memory")
        with pytest.raises(jetsync.ApiError, match="snapshot failed"):
            stream.backup(tmp_path / "b")
        assert files_in(tmp_path) == []


def test_memory_does_not_grow_with_the_stream(js, unique, tmp_path):
    """Backup and restore of 60 MB need less than 25 MB of Python's memory."""
    stream = make(js, unique, count=600, size=100_000)
    tracemalloc.start()
    try:
        made = stream.backup(tmp_path / "b")
        backup = tracemalloc.get_traced_memory()[1]
        stream.delete()
        tracemalloc.reset_peak()
        js.restore_stream(made.path).delete()
        restore = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max(backup, restore) < 25 << 20, (backup, restore)


def test_a_signal_handler_sends_nothing(js, unique, tmp_path):
    """In a signal handler that interrupts a wait, both calls raise before they send anything."""
    if sys.platform == "win32":
        pytest.skip("needs SIGUSR1")
    stream = make(js, unique)
    made = stream.backup(tmp_path / "b")
    consumer = stream.create_consumer("worker", deliver_policy="new")
    found = []

    def handle(*_):
        for call in (
            lambda: stream.backup(tmp_path / "c"),
            lambda: js.restore_stream(made.path, f"{unique}-2"),
        ):
            with pytest.raises(jetsync.CallInSignalHandlerError):
                call()
            found.append(files_in(tmp_path))

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert consumer.next(expires=1.0) is None
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == [["b"], ["b"]]
    stream.delete()
