"""
Lay out the servers of one `DevServer`: their names, ports, folders and configuration files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from jetsync.devserver import _config
from jetsync.devserver._monitor import HOST
from jetsync.devserver._ports import PortReservation
from jetsync.devserver._process import ServerProcess
from jetsync.errors import DevServerError


@attrs.frozen(kw_only=True)
class Layout:
    """
    The arguments of `DevServer`.
    """

    binary: Path
    folder: Path
    """For configuration files and logs; removed at the end."""

    store: Path
    size: int
    port: int
    """0 takes a free one."""

    name: str | None
    jetstream: bool
    config: Mapping[str, Any]
    text: str


@attrs.frozen
class Member:
    """
    One server, with what does not change when it restarts.
    """

    index: int
    name: str
    ports: dict[str, PortReservation]
    process: ServerProcess

    @property
    def port(self) -> int:
        """
        The client port.
        """
        return self.ports["nats"].port

    @property
    def http_port(self) -> int:
        """
        The monitoring port.
        """
        return self.ports["monitor"].port

    @property
    def answers(self) -> bool:
        """
        Whether the server runs and is not paused, so that it can answer.
        """
        return self.process.running and not self.process.paused

    def start(self) -> None:
        """
        Start the process without waiting until it is ready. Does nothing if it runs already.
        """
        for held in self.ports.values():
            held.let_listen()
        self.process.start()

    def release(self) -> None:
        """
        Release the ports.
        """
        for held in self.ports.values():
            held.release()


def make_members(layout: Layout) -> list[Member]:
    """
    Reserve ports, write the configuration files and return the servers, none of them started.

    Raises:
        DevServerError: The port that was asked for is taken.
    """
    reserved = _reserve(layout)
    members = []
    for index, ports in enumerate(reserved):
        if layout.size > 1:
            # A cluster finds its raft state again by server name, which must therefore not change
            # with the ports.
            name = f"{layout.name or 'node'}-{index}"
            store = layout.store / name
        else:
            name = layout.name or f"dev-{ports['nats'].port}"
            store = layout.store
        file = layout.folder / f"server-{index}.conf"
        file.write_text(_text(layout, name, ports, reserved), encoding="utf-8")
        # Options take precedence over the user's text or file.
        arguments = [str(layout.binary), "--config", str(file), "--addr", HOST]
        arguments += ["--port", str(ports["nats"].port)]
        arguments += ["--http_port", str(ports["monitor"].port)]
        if layout.jetstream:
            arguments += ["--store_dir", str(store)]
        process = ServerProcess(name, arguments, layout.folder / f"server-{index}.log")
        members.append(Member(index, name, ports, process))
    return members


def _reserve(layout: Layout) -> list[dict[str, PortReservation]]:
    purposes = ["nats", "monitor", *(["cluster"] if layout.size > 1 else [])]
    reserved: list[dict[str, PortReservation]] = [{} for _ in range(layout.size)]
    try:
        for ports in reserved:
            for purpose in purposes:
                ports[purpose] = PortReservation(layout.port if purpose == "nats" else 0)
    except OSError as error:
        for ports in reserved:
            for held in ports.values():
                held.release()
        raise DevServerError(f"port {layout.port or 'any'} is not free: {error}") from error
    return reserved


def _text(
    layout: Layout,
    name: str,
    ports: dict[str, PortReservation],
    everyone: list[dict[str, PortReservation]],
) -> str:
    cluster = None
    if layout.size > 1:
        cluster = {
            "name": layout.name or "jetsync",
            "listen": f"{HOST}:{ports['cluster'].port}",
            "routes": [f"nats://{HOST}:{other['cluster'].port}" for other in everyone],
        }

    def reserve(block: str) -> int:
        ports[block] = PortReservation()
        return ports[block].port

    base = _config.base_config(
        name=name,
        jetstream=layout.jetstream,
        cluster=cluster,
    )
    user = _config.assign_ports(layout.config, reserve)
    # There is no option for the host of the monitoring port, and the last one counts.
    last = _config.render({"http": f"{HOST}:{ports['monitor'].port}"})
    return _config.render(_config.merge(base, user), layout.text) + last
