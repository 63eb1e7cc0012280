"""
Backups and restores that are interrupted, cut off, too slow or not permitted.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

import jetsync
from helpers.backups import VERSIONS, files_in, large, make, names, stop_at
from helpers.waiting import eventually
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy


class TestInterruptions:
    @pytest.mark.parametrize("own", VERSIONS, indirect=True)
    def test_ctrl_c_leaves_nothing(self, own, tmp_path):
        """Ctrl-C leaves no folder of a backup, and no stream of a restore; both can be repeated."""
        _, js = own
        stream = large(js, "S")
        with pytest.raises(KeyboardInterrupt):
            stream.backup(tmp_path / "b", on_progress=stop_at(10 << 20))
        assert files_in(tmp_path) == []
        # The server may need a moment to notice that nobody listens any more.
        made = eventually(lambda: _unless_refused(lambda: stream.backup(tmp_path / "b")))
        stream.delete()
        for count in (1, 6 << 20):
            with pytest.raises(KeyboardInterrupt):
                js.restore_stream(made.path, on_progress=stop_at(count))
            assert names(js) == []
        assert js.restore_stream(made.path).cached_info.state.messages == 240

    def test_a_killed_backup_leaves_a_part_beside(self, nats_server, js, unique, tmp_path):
        """If the process is killed, the folder does not exist, and its part has another name."""
        stream = large(js, unique)
        code = (
            "import jetsync, os, signal, sys\n"
            "def die(done, total):\n"
            "    if done > 10 << 20: os.kill(os.getpid(), signal.SIGKILL)\n"
            "with jetsync.connect(sys.argv[1]) as client:\n"
            "    client.jetstream().stream(sys.argv[2]).backup(sys.argv[3], on_progress=die)\n"
        )
        if sys.platform == "win32":
            pytest.skip("needs SIGKILL")
        run = [sys.executable, "-c", code, nats_server.url, unique, str(tmp_path / "b")]
        assert subprocess.run(run, check=False).returncode == -signal.SIGKILL
        (left,) = files_in(tmp_path)
        assert left.endswith(".part")
        made = eventually(lambda: _unless_refused(lambda: stream.backup(tmp_path / "b")))
        assert made.state.messages == 240
        stream.delete()

    def test_a_killed_server(self, own, tmp_path):
        """If the server is killed, the backup fails without files, and the restore says so."""
        server, js = own
        stream = large(js, "S")
        made = stream.backup(tmp_path / "b")

        def kill(done, total):
            if done > 5 << 20:
                server.kill()

        with pytest.raises(jetsync.BackupError, match="the connection was lost"):
            stream.backup(tmp_path / "c", on_progress=kill)
        assert files_in(tmp_path) == ["b"]
        server.start()
        eventually(lambda: _unless_refused(stream.delete) or "S" not in names(js))
        with pytest.raises(jetsync.RestoreError) as caught:
            js.restore_stream(made.path, on_progress=kill, timeout=1)
        assert caught.value.outcome == "part"
        assert "delete it before you restore" in str(caught.value)

    @pytest.mark.parametrize("own", VERSIONS, indirect=True)
    def test_a_lost_connection_during_a_restore(self, own, tmp_path):
        """If the connection comes back soon, jetsync removes what the server has made."""
        server, js = own
        stream = large(js, "S")
        made = stream.backup(tmp_path / "b")
        stream.delete()
        with CutProxy(server.url) as proxy, jetsync.connect(proxy.url) as client:
            proxy.cut_after(to_server=12 << 20)
            with pytest.raises(jetsync.RestoreError, match="connection was lost") as caught:
                client.jetstream().restore_stream(made.path)
        assert caught.value.outcome == "nothing"
        assert isinstance(caught.value.__cause__, jetsync.ConnectionLostError)
        assert 0 < caught.value.done < 12 << 20
        assert names(js) == []

    @pytest.mark.parametrize("own", [VERSIONS[0], VERSIONS[-1]], indirect=True)
    def test_a_lost_connection_after_ctrl_c(self, own, tmp_path):
        """Ctrl-C that cuts off a chunk ends the connection. The next one cleans up."""
        _, js = own
        made = large(js, "S").backup(tmp_path / "b")
        js.delete_stream("S")
        connection = js._context.connection

        def lose(*arguments, **options):
            del connection.exchange
            raise jetsync.ConnectionLostError(subject="restore")

        def stop(done, total):
            if done > 5 << 20:
                connection.exchange = lose
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            js.restore_stream(made.path, on_progress=stop)
        assert names(js) == []

    def test_a_stream_that_replaced_the_restored_one_stays(self, own, tmp_path):
        """If another client replaces the stream during a restore, Ctrl-C does not delete it."""
        _, js = own
        made = large(js, "S").backup(tmp_path / "b")
        js.delete_stream("S")

        def replace(done, total):
            if done > 5 << 20:
                js.delete_stream("S")
                js.create_stream("S", subjects=["other"])
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            js.restore_stream(made.path, on_progress=replace)
        assert js.stream("S").config.subjects == ["other"]

    def test_a_lost_connection_at_the_end_of_a_restore(self, own, tmp_path):
        """If only the last answer is lost, the stream may be complete, and jetsync keeps it."""
        server, js = own
        made = make(js, "S").backup(tmp_path / "b")
        js.delete_stream("S")
        with CutProxy(server.url) as proxy, jetsync.connect(proxy.url) as client:
            restoring = client.jetstream()
            proxy_context = restoring._context.connection

            def cut_before(*arguments, **options):
                proxy.cut_after(to_client=0)
                return type(proxy_context).exchange(proxy_context, *arguments, **options)

            def report(done, total):
                if done == total:
                    proxy_context.exchange = cut_before

            with pytest.raises(jetsync.RestoreError, match="compare its last sequence") as caught:
                restoring.restore_stream(made.path, on_progress=report)
        assert caught.value.outcome == "unknown"
        assert eventually(lambda: js.stream("S").cached_info.state.messages == 10)

    def test_a_lost_connection_during_a_backup(self, nats_server, js, unique, tmp_path):
        """A backup does not continue on another connection, because chunks were lost."""
        stream = large(js, unique)
        with CutProxy(nats_server.url) as proxy, jetsync.connect(proxy.url) as client:
            proxy.cut_after(to_client=12 << 20)
            with pytest.raises(jetsync.BackupError, match="the connection was lost"):
                client.jetstream().stream(unique, lookup=False).backup(tmp_path / "b")
        assert files_in(tmp_path) == []
        stream.delete()

    def test_no_progress(self, nats_server, js, unique, tmp_path):
        """The timeout is for progress: a connection that stands still ends backup and restore."""
        stream = large(js, unique)
        made = stream.backup(tmp_path / "b")
        with CutProxy(nats_server.url) as proxy, jetsync.connect(proxy.url) as client:
            slow = client.jetstream()

            def stall(done, total):
                if 5 << 20 < done < total:
                    proxy.pause()

            with pytest.raises(jetsync.BackupError, match=r"no data arrived within 0\.5 s"):
                slow.stream(unique, lookup=False).backup(
                    tmp_path / "c", timeout=0.5, on_progress=stall
                )
            proxy.resume()
            stream.delete()
            with pytest.raises(jetsync.RestoreError, match=r"no chunk was confirmed within 0\.5"):
                slow.restore_stream(made.path, timeout=0.5, on_progress=stall)
            proxy.resume()
        js.delete_stream(unique)

    def test_a_restore_waits_for_confirmations(self, nats_server, js, unique, tmp_path):
        """At most 8 MiB are in flight that the server has not confirmed."""
        stream = large(js, unique)
        made = stream.backup(tmp_path / "b")
        stream.delete()
        with CutProxy(nats_server.url) as proxy, jetsync.connect(proxy.url) as client:
            before = client.statistics().bytes_out
            with pytest.raises(jetsync.RestoreError, match="no chunk was confirmed"):
                client.jetstream().restore_stream(
                    made.path, timeout=0.5, on_progress=lambda *_: proxy.pause("to_client")
                )
            # 8 MiB when the first was confirmed, and for those that were confirmed with it.
            assert client.statistics().bytes_out - before < 17 << 20 < made.size
            proxy.resume()
        js.delete_stream(unique)

    @pytest.mark.thorough
    def test_a_slow_reader_is_told(self, own, tmp_path):
        """If the client takes longer than the server waits, the error says why."""
        _, js = own
        stream = large(js, "S")

        def slow(done, total):
            if done < total:
                # Longer than the server waits, which no event shows.
                time.sleep(6)

        with pytest.raises(jetsync.BackupError, match="too slow"):
            stream.backup(tmp_path / "b", on_progress=slow)
        assert files_in(tmp_path) == []


def _unless_refused(call):
    """
    Return the result of a call; None if the server refuses it.
    """
    try:
        return call()
    except jetsync.JetSyncError:
        return None


BACKUP = ["$JS.API.STREAM.SNAPSHOT.S", "$JS.SNAPSHOT.ACK.S.>"]
RESTORE = ["$JS.API.STREAM.RESTORE.S", "$JS.SNAPSHOT.RESTORE.S.>"]


class TestPermissions:
    @pytest.mark.parametrize(
        ("allowed", "missing"),
        [
            (BACKUP, None),
            (BACKUP[1:], BACKUP[0]),
            (BACKUP[:1], r"\$JS\.SNAPSHOT\.ACK\.S\."),
        ],
    )
    def test_a_backup_needs_two_subjects(self, tmp_path, allowed, missing):
        """A user with these permissions makes a backup; without one, the error names it."""
        with _users(allowed) as (server, js):
            large(js, "S")
            with jetsync.connect(server.url, user="few", password="x") as client:
                stream = client.jetstream().stream("S", lookup=False)
                if missing is None:
                    assert stream.backup(tmp_path / "b").state.messages == 240
                else:
                    pattern = missing if "\\" in missing else missing.replace("$", r"\$")
                    with pytest.raises(jetsync.PermissionDeniedError, match=pattern):
                        stream.backup(tmp_path / "b")
                    assert files_in(tmp_path) == []

    @pytest.mark.parametrize("without", [None, 0, 1])
    def test_a_restore_needs_two_subjects(self, tmp_path, without):
        """A user with these permissions restores; without one, the error names it."""
        allowed = [each for number, each in enumerate(RESTORE) if number != without]
        with _users(allowed) as (server, js):
            made = large(js, "S").backup(tmp_path / "b")
            js.delete_stream("S")
            with jetsync.connect(server.url, user="few", password="x") as client:
                restoring = client.jetstream()
                if without is None:
                    assert restoring.restore_stream(made.path).cached_info.state.messages == 240
                    return
                with pytest.raises(jetsync.JetSyncError) as caught:
                    restoring.restore_stream(made.path)
                denied = caught.value if without == 0 else caught.value.__cause__
                assert isinstance(denied, jetsync.PermissionDeniedError)
                assert RESTORE[without].rstrip(">") in str(caught.value)


class _users:  # noqa: N801 - used as a function
    """
    A server with an administrator and a user with few permissions.
    """

    def __init__(self, allowed):
        permissions = {"publish": {"allow": allowed}, "subscribe": {"allow": ["_INBOX.>"]}}
        users = [
            {"user": "few", "password": "x", "permissions": permissions},
            {"user": "admin", "password": "x"},
        ]
        self._server = DevServer(config={"authorization": {"timeout": 30, "users": users}})

    def __enter__(self):
        self._server.start()
        self._client = jetsync.connect(self._server.url, user="admin", password="x")
        return self._server, self._client.jetstream()

    def __exit__(self, *exc_info):
        self._client.close()
        self._server.close()
