"""
The dev server with real servers: restarts, kills, and that no process or file is left.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from helpers.lacking import IS_LINUX, needs_fork
from helpers.waiting import eventually
from jetsync.devserver import DevServer, _monitor
from jetsync.devserver._ports import PortReservation
from jetsync.errors import DevServerError


def alive(pid: int) -> bool:
    """Return whether a process exists and runs."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def request(port: int, subject: str, body: bytes = b"") -> dict:
    """Make one raw request to a server and return its JSON answer."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        connection.sendall(
            b"SUB in 1\r\nPUB %s in %d\r\n%s\r\n" % (subject.encode(), len(body), body)
        )
        reader = connection.makefile("rb")
        while True:
            line = reader.readline()
            assert line, "the server closed the connection"
            if line.startswith(b"MSG "):
                return json.loads(reader.read(int(line.split()[-1])))


def create_stream(server: DevServer, name: str, replicas: int = 1) -> dict:
    """Create a stream in file storage."""
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": replicas}
    return request(server.port, f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode())


@pytest.fixture(scope="module")
def own_server():
    """
    A server for this file alone. Its tests may stop, kill and pause it.
    """
    with DevServer() as server:
        yield server


class TestOneServer:
    def test_ready_when_entered(self, own_server):
        """The block starts when JetStream answers and the server's version is known."""
        assert "error" not in request(own_server.port, "$JS.API.INFO")
        assert own_server.version_tuple >= (2, 10)
        assert own_server.url == f"nats://127.0.0.1:{own_server.port}"
        assert own_server.monitor("varz")["version"] == own_server.version
        assert own_server.stream_leader("absent") is None
        assert "running=1/1" in repr(own_server)

    @pytest.mark.parametrize("how", ["restart", "kill"])
    def test_restart_keeps_port_and_store(self, own_server, unique, how):
        """After any restart another process serves the same port and the same streams."""
        create_stream(own_server, unique)
        request(own_server.port, f"{unique}.a", b"x")
        port, pids = own_server.port, own_server.pids
        if how == "restart":
            own_server.restart()
        else:
            own_server.kill()
            assert own_server.pids == []
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 5)
            own_server.start()
        assert own_server.port == port
        assert own_server.pids != pids
        assert request(port, f"$JS.API.STREAM.INFO.{unique}")["state"]["messages"] == 1
        assert own_server.stream_leader(unique) == 0

    def test_start_again_does_nothing(self, own_server):
        """Starting a running server has no effect."""
        pids = own_server.pids
        own_server.start()
        assert own_server.pids == pids

    def test_a_paused_server_answers_nothing_until_it_is_resumed(self, own_server):
        """A paused server accepts connections but answers nothing until it is resumed."""
        own_server.pause()
        with socket.create_connection(("127.0.0.1", own_server.port), 5) as connection:
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            own_server.resume()
            connection.settimeout(5)
            assert connection.recv(4) == b"INFO"

    def test_a_paused_server_can_be_stopped(self, own_server):
        """Stopping resumes the server first, so it does not hang."""
        own_server.pause()
        own_server.stop()
        own_server.stop()
        assert own_server.pids == []
        with pytest.raises(DevServerError, match="does not answer"):
            own_server.monitor("varz")
        own_server.start()
        assert own_server.monitor("varz")["version"] == own_server.version

    def test_a_paused_server_that_was_killed_can_be_stopped(self, own_server):
        """Stopping a paused server does nothing if another program has killed it."""
        own_server.pause()
        (pid,) = own_server.pids
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not own_server.pids)
        own_server.stop()
        own_server.start()
        assert own_server.monitor("varz")["version"] == own_server.version

    def test_a_server_in_lame_duck_mode_ends_by_itself(self, own_server):
        """A server in lame duck mode ends without being stopped."""
        own_server.lame_duck()
        own_server.wait_exit(timeout=30)
        own_server.start()
        assert len(own_server.pids) == 1
        assert "lame duck" in own_server.log().lower()


class TestConfiguration:
    def test_a_mapping_is_merged_into_the_configuration(self):
        """A mapping is merged into our configuration; further listeners keep their port."""
        config = {
            "max_payload": 4096,
            "jetstream": {"domain": "hub"},
            "websocket": {"port": -1, "no_tls": True},
        }
        with DevServer(config=config) as server:
            assert server.monitor("jsz")["config"]["domain"] == "hub"
            assert server.monitor("varz")["max_payload"] == 4096
            before = server.ports()["websocket"]
            server.restart()
            assert server.ports()["websocket"] == before
            connection = http.client.HTTPConnection("127.0.0.1", before, timeout=5)
            connection.request("GET", "/")
            assert connection.getresponse().status >= 400
            connection.close()

    def test_text_and_store(self, tmp_path):
        """Text is appended, including a jetstream block of the user, whose store is kept."""
        text = "max_payload: 4096\njetstream { domain: hub }\nauthorization { token: t }\n"
        with DevServer(config=text, store=tmp_path / "store") as server:
            assert server.monitor("jsz")["config"]["domain"] == "hub"
            assert server.store == tmp_path / "store"
        assert (tmp_path / "store" / "jetstream").is_dir()

    def test_a_file_is_included(self, tmp_path):
        """A file may include others beside it, and the addresses in it are ignored."""
        (tmp_path / "more.conf").write_text("authorization { token: t }\nhttp_port: 1\n")
        file = tmp_path / "nats.conf"
        file.write_text('listen: "0.0.0.0:1"\nhttp: "0.0.0.0:1"\ninclude more.conf\n')
        with DevServer(config=file) as server:
            varz = server.monitor("varz")
            assert varz["auth_required"]
            assert (varz["host"], varz["port"]) == ("127.0.0.1", server.port)
            ports = ("127.0.0.1", server.ports()["monitor"])
            assert (varz["http_host"], varz["http_port"]) == ports

    @pytest.mark.parametrize(
        ("name", "block"),
        [
            ("websocket", "no_tls: true"),
            ("mqtt", ""),
            ("leafnodes", ""),
            ("gateway", "name: g"),
            ("cluster", "name: c"),
        ],
    )
    def test_a_block_on_all_interfaces_is_refused(self, tmp_path, name, block):
        """
        A server with a listening block on all interfaces is stopped; one on loopback or given as a
        mapping runs.
        """
        held = PortReservation()
        held.release()
        port = held.port
        file = tmp_path / "nats.conf"
        more = tmp_path / "more.conf"
        file.write_text("include more.conf\n")
        jetstream = name not in {"gateway", "cluster"}
        for address in (f"port: {port}", f'listen: "0.0.0.0:{port}"'):
            more.write_text(f"{name} {{ {address}\n {block} }}\n")
            server = DevServer(config=file, jetstream=jetstream)
            with pytest.raises(DevServerError, match=f"{name} on 0.0.0.0: give the block `host"):
                server.start()
            assert server.pids == []
            server.close()
        more.write_text(f'{name} {{ host: "127.0.0.1"\n port: {port}\n {block} }}\n')
        fields = dict(line.split(": ") for line in block.splitlines())
        fields = {key: True if value == "true" else value for key, value in fields.items()}
        for config in (file, {name: {"port": port, **fields}}):
            with DevServer(config=config, jetstream=jetstream):
                socket.create_connection(("127.0.0.1", port), 5).close()
                # Another address of loopback, which a server on all interfaces accepts.
                with pytest.raises(OSError):  # noqa: PT011 - systems differ.
                    socket.create_connection(("127.0.0.2", port), 5).close()

    def test_without_jetstream(self):
        """A server without JetStream is ready when it accepts connections."""
        with DevServer(jetstream=False) as server:
            info = _monitor.read_info(server.port)
            assert info is not None
            assert "jetstream" not in info

    def test_bad_configuration(self):
        """The error has the server's message about its configuration, and no process is left."""
        server = DevServer(config="max_payload: banana")
        with pytest.raises(DevServerError, match=r"server-0.conf:5"):
            server.start()
        assert server.pids == []
        folder = server.store.parent
        server.close()
        assert not folder.exists()

    @pytest.mark.versions
    def test_another_version_runs_beside_the_newest_one(self, server_for):
        """Another version is installed and run beside the newest one."""
        assert server_for("2.10.26").version == "2.10.26"


@pytest.mark.cluster
class TestCluster:
    def test_three_servers(self):
        """A cluster is ready once it has a leader, and its servers can be stopped one by one."""
        with DevServer(cluster=3, config={"jetstream": {"max_memory_store": 1 << 26}}) as servers:
            assert len(set(servers.urls)) == len(set(servers.pids)) == 3
            meta = servers.meta_leader()
            answer = create_stream(servers, "R3", replicas=3)
            assert "error" not in answer
            leader = servers.wait_stream_leader("R3")
            assert answer["cluster"]["leader"] == f"node-{leader}"
            # It leads neither the stream nor the meta group, so no election is needed: those are in
            # tests/soak.
            follower = ({0, 1, 2} - {meta, leader}).pop()
            servers.kill(follower)
            assert len(servers.pids) == 2
            assert servers.stream_leader("R3") == leader
            servers.start(follower)
            assert len(servers.pids) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal")
class TestNothingIsLeft:
    SCRIPT = textwrap.dedent(
        """
        import os, signal, sys, threading
        from jetsync.devserver import DevServer

        server = DevServer()
        if "thread" in sys.argv:
            # Not the main thread, which outlives the start.
            starter = threading.Thread(target=server.start)
            starter.start()
            starter.join()
        else:
            server.start()
        print(server.pids[0], server.store.parent, flush=True)
        if "fork" in sys.argv:
            if os.fork() == 0:
                sys.exit(0)
            os.wait()
            server.monitor("varz")
            print("survived", flush=True)
        if "exit" not in sys.argv:
            signal.pause()
        """
    )

    @pytest.fixture(autouse=True)
    def folder(self, monkeypatch, tmp_path):
        """
        A temporary folder that pytest removes: a killed process leaves its files.
        """
        monkeypatch.setenv("TMPDIR", str(tmp_path))

    def run(self, *arguments: str) -> tuple[subprocess.Popen, int, Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT, *arguments], stdout=subprocess.PIPE, text=True
        )
        pid, folder = process.stdout.readline().split()
        return process, int(pid), Path(folder)

    @staticmethod
    def wait_gone(pid: int) -> bool:
        """Wait until a process that is no child of ours is gone."""
        return eventually(lambda: not alive(pid))

    @pytest.mark.thorough
    @pytest.mark.skipif(not IS_LINUX, reason="this system has no parent-death signal")
    @pytest.mark.parametrize("thread", ["main", "thread"])
    def test_parent_is_killed(self, thread):
        """A server ends with the process that started it, whichever thread started it."""
        process, pid, _ = self.run(thread)
        with process:
            assert alive(pid)
            process.kill()
            process.wait(10)
        assert self.wait_gone(pid)

    def test_interpreter_exits(self):
        """
        A server that was not closed is closed when the interpreter exits, and its store removed.
        """
        process, pid, folder = self.run("exit", "thread")
        with process:
            assert process.wait(20) == 0
        assert self.wait_gone(pid)
        assert not folder.exists()

    @needs_fork
    def test_forked_child_exits(self):
        """A forked child that exits does not stop its parent's server."""
        process, pid, _ = self.run("fork", "exit")
        with process:
            assert process.stdout.readline() == "survived\n"
            assert process.wait(20) == 0
        assert self.wait_gone(pid)

    def test_thread_that_started_it_ends(self):
        """A server outlives the thread that started it."""
        server = DevServer()
        starter = threading.Thread(target=server.start)
        starter.start()
        starter.join()
        try:
            assert server.monitor("varz")["version"] == server.version
        finally:
            server.close()

    def test_interrupt_of_the_terminal(self):
        """Ctrl-C, which a terminal sends to the whole process group, does not reach the server."""
        with DevServer() as server:
            assert os.getpgid(server.pids[0]) != os.getpgid(0)
            assert signal.getsignal(signal.SIGINT) is not None
