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

    size: int
    port: int
    """0 takes a free one."""

    name: str | None
    jetstream: bool
    store: Path | None
    # Of these three, a user gives at most one. The others are empty.
    config: Mapping[str, Any]
    text: str
    file: Path | None

    def store_in(self, folder: Path) -> Path:
        """
        Return the folder for JetStream's files. *folder* is that of the configuration files.
        """
        return folder / "store" if self.store is None else self.store


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


def make_members(layout: Layout, binary: Path, folder: Path) -> list[Member]:
    """
    Reserve ports, write the configuration files and return the servers, none of them started.

    Args:
        layout: The arguments of `DevServer`.
        binary: The executable.
        folder: For configuration files and logs.

    Raises:
        DevServerError: The port that was asked for is taken, or a file cannot be included.
    """
    text = layout.text if layout.file is None else _config.include(layout.file, folder)
    reserved = _reserve(layout)
    members = []
    for index, ports in enumerate(reserved):
        store = layout.store_in(folder)
        if layout.size > 1:
            # A cluster finds its raft state again by server name, which must therefore not change
            # with the ports.
            name = f"{layout.name or 'node'}-{index}"
            store /= name
        else:
            name = layout.name or f"dev-{ports['nats'].port}"
        settings = _settings(layout, name, ports, reserved)
        # There is no option for the host of the monitoring port, and the last one counts.
        last = _config.render({"http": f"{HOST}:{ports['monitor'].port}"})
        file = folder / f"server-{index}.conf"
        file.write_text(_config.render(settings, text) + last, encoding="utf-8")
        # Options take precedence over the user's text or file.
        arguments = [str(binary), "--config", str(file), "--addr", HOST]
        arguments += ["--port", str(ports["nats"].port)]
        arguments += ["--http_port", str(ports["monitor"].port)]
        if layout.jetstream:
            arguments += ["--store_dir", str(store)]
        process = ServerProcess(name, arguments, folder / f"server-{index}.log")
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


def _settings(
    layout: Layout,
    name: str,
    ports: dict[str, PortReservation],
    everyone: list[dict[str, PortReservation]],
) -> dict[str, Any]:
    base: dict[str, Any] = {"server_name": name, **_config.LAME_DUCK}
    if layout.jetstream:
        # The store folder is given on the command line: appended text may replace the block.
        base["jetstream"] = {}
    if layout.size > 1:
        base["cluster"] = {
            "name": layout.name or "jetsync",
            "listen": f"{HOST}:{ports['cluster'].port}",
            "routes": [f"nats://{HOST}:{other['cluster'].port}" for other in everyone],
        }

    def reserve(block: str) -> int:
        ports[block] = PortReservation()
        return ports[block].port

    return _config.merge(base, _config.assign_ports(layout.config, reserve))
