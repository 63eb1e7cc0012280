"""
Start each broker on a free port of this machine, with its data in a folder of its own.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import attrs

from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_TIMEOUT = 60.0


@attrs.frozen
class Broker:
    """
    A broker that runs.
    """

    url: str
    backend: str
    pid: int


def free_port() -> int:
    """
    Return a free port.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(port: int) -> None:
    """
    Wait until something listens on a port.
    """
    end = time.monotonic() + START_TIMEOUT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


@contextmanager
def program(command: list[str], port: int, **environment: str) -> Iterator[int]:
    """
    Run a program until the block ends, and return the id of its process.
    """
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_for(port)
            yield process.pid
        finally:
            process.terminate()


@contextmanager
def jetstream(_: Path) -> Iterator[Broker]:
    """
    Run a nats-server, with streams in files.
    """
    with DevServer() as server:
        url = server.url.replace("nats://", "jetstream://")
        yield Broker(url, url, server.pids[0])


@contextmanager
def redis(folder: Path) -> Iterator[Broker]:
    """
    Run Redis with an append-only file: without one it loses tasks when it stops.
    """
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with program([*command, "--appendonly", "yes", "--save", ""], port) as pid:
        url = f"redis://127.0.0.1:{port}"
        yield Broker(f"{url}/0", f"{url}/1", pid)


@contextmanager
def rabbitmq(folder: Path) -> Iterator[Broker]:
    """
    Run RabbitMQ, with results over `rpc`, which Celery recommends for it.
    """
    port, distribution, mapper = free_port(), free_port(), free_port()
    home = folder / "home"
    home.mkdir()
    environment = {
        # A cookie and a list of nodes of its own, apart from an installed broker.
        "HOME": str(home),
        "ERL_EPMD_PORT": str(mapper),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    with ExitStack() as stack:
        stack.enter_context(program(["epmd", "-port", str(mapper)], mapper))
        # The script that Debian installs changes to another user.
        script = "/usr/lib/rabbitmq/bin/rabbitmq-server"
        stack.enter_context(program([script], port, **environment))
        # The script waits for it, and ends when it does.
        pid = int((folder / "pid").read_text())
        stack.callback(os.kill, pid, 15)
        yield Broker(f"amqp://guest:guest@127.0.0.1:{port}//", "rpc://", pid)


BROKERS = {"jetstream": jetstream, "redis": redis, "rabbitmq": rabbitmq}
PROGRAMS = {"redis": "redis-server", "rabbitmq": "rabbitmq-server"}


def installed() -> list[str]:
    """
    Return the names of the brokers that this machine can run.
    """
    return [name for name in BROKERS if name not in PROGRAMS or shutil.which(PROGRAMS[name])]
