"""
Partitions of a real network, also in one direction, and connections whose other end has vanished.

The process of this part leaves the network of the machine for one of its own, and makes a namespace
for each server. Nothing outside sees them, and they end with the process. So the addresses below
are used nowhere else. Packets are dropped by the firewall of the namespace that receives them.

A server has an address for the jobs of `faults`, one for the observer, and one for the other
servers.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import threading
import time
from pathlib import Path

import attrs
from faults import Jobs, answer, end_all, make_streams, patiently, settle, wait_for
from trial import Base, Report, Skipped

import jetsync
from helpers.namespaces import add_host, add_hub, leave, missing, run
from jetsync.devserver import DevServer, find_server
from jetsync.devserver._process import ServerProcess

SECONDS = 5.0
"""Seconds in which one round makes faults."""
UNSENT = 60.0
"""Seconds in which the kernels send what connections still hold."""
SIZE = 3
JOBS, OBSERVER, ROUTES = range(3)
"""The third byte of the addresses that are used by the jobs, the observer and the servers."""
FIREWALLS = {
    "nft": (
        [
            "nft add table ip jetsync",
            "nft add chain ip jetsync in { type filter hook input priority 0; }",
        ],
        "nft add rule ip jetsync in ip {end} {address} drop",
        "nft flush chain ip jetsync in",
    ),
    "iptables": ([], "iptables -A INPUT --{end} {address} -j DROP", "iptables -F INPUT"),
}
"""How to prepare, drop packets, and stop that. *end* is saddr or daddr, for iptables src or dst."""


def address(plane: int, index: int) -> str:
    return f"10.77.{plane}.{10 + index}"


class Net:
    """
    The namespaces of the servers, and a bridge that connects them with this process.
    """

    def __init__(self) -> None:
        self._firewall = next(name for name in FIREWALLS if shutil.which(name))
        prepare, *_ = FIREWALLS[self._firewall]
        add_hub(*(f"10.77.{plane}.1/24" for plane in range(3)))
        for index in range(SIZE):
            add_host(f"s{index}", *(f"{address(plane, index)}/24" for plane in range(3)))
        for name in (None, *(f"s{index}" for index in range(SIZE))):
            for command in prepare:
                run(command, name)

    def drop(self, end: str, dropped: str, namespace: str | None) -> None:
        """Drop the packets from (*end* is "saddr") or to ("daddr") an address on arrival."""
        if self._firewall == "iptables":
            end = {"saddr": "src", "daddr": "dst"}[end]
        run(FIREWALLS[self._firewall][1].format(end=end, address=dropped), namespace)

    def heal(self) -> None:
        """Let all packets through."""
        for name in (None, *(f"s{index}" for index in range(SIZE))):
            run(FIREWALLS[self._firewall][2], name)

    def link(self, index: int, state: str) -> None:
        """Set the link of a server "up" or "down"."""
        run(f"ip link set to-s{index} {state}")


class Servers:
    """
    Servers in the namespaces.
    """

    def __init__(self, size: int, stack) -> None:
        self.size = size
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        binary = find_server().path
        routes = [f"nats://{address(ROUTES, index)}:6222" for index in range(size)]
        self._processes = []
        for index in range(size):
            config = {
                "server_name": f"s{index}",
                "listen": "0.0.0.0:4222",
                "jetstream": {"store_dir": str(folder / f"s{index}")},
            }
            if size > 1:
                config["cluster"] = {
                    "name": "chaos",
                    "listen": f"{address(ROUTES, index)}:6222",
                    "routes": routes,
                    # A client must not learn the addresses of other planes.
                    "no_advertise": True,
                }
            file = folder / f"s{index}.conf"
            file.write_text("\n".join(f"{key}: {json.dumps(each)}" for key, each in config.items()))
            inside = [shutil.which("ip"), "netns", "exec", f"s{index}"]
            arguments = [*inside, str(binary), "--config", str(file)]
            process = ServerProcess(f"s{index}", arguments, folder / f"s{index}.log")
            self._processes.append(process)
            # The kernel also ends it with this process.
            stack.callback(process.kill)
            process.start()

    def restart_silently(self, index: int) -> None:
        """Kill a server, and start it again."""
        self._processes[index].kill()
        self._processes[index].start()

    def urls(self, plane: int) -> list[str]:
        return [f"nats://{address(plane, index)}:4222" for index in range(self.size)]


@attrs.define
class World:
    base: Base
    net: Net


@contextlib.contextmanager
def world():
    lacking = missing(*FIREWALLS)
    if lacking:
        raise Skipped(f"needs {', '.join(lacking)}")
    try:
        leave()
        net = Net()
    except OSError as error:
        raise Skipped(f"network namespaces cannot be made: {error}") from error
    with DevServer() as server, jetsync.connect(server.url):
        # The first event loop of a process opens a pipe that stays.
        pass
    yield World(Base(), net)


def trial(world: World, chance, report: Report) -> None:
    """Run one round, on one server or a cluster."""
    play(world, chance, report, size=[1, SIZE][report.seed % 2])
    world.base.check(report)


def play(world: World, chance, report: Report, *, size: int) -> None:
    made = f"{size} server{'s' * (size > 1)}:"
    report.about(made)
    with contextlib.ExitStack() as stack:
        stack.callback(world.net.heal)
        servers = Servers(size, stack)
        quick = {
            "reconnect_wait": 0.05,
            "max_reconnect_wait": 0.5,
            "ping_interval": 0.5,
            "connect_timeout": 2,
        }
        observer = connect(stack, servers.urls(OBSERVER), quick)
        stream, kv = make_streams(observer, size)
        stop = threading.Event()
        echo = threading.Thread(target=answer, args=(observer, stop), daemon=True)
        echo.start()
        client = connect(stack, servers.urls(JOBS), quick)
        jobs = Jobs(client, report, chance)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(chance.random() * 0.5)
            fault = chance.choice([*CLIENT_FAULTS, *(ROUTE_FAULTS if size > 1 else [])])
            made += f" {fault.__name__}"
            report.about(made)
            chosen = chance.sample(range(size), chance.choice([1, size]))
            fault(world.net, servers, chosen, chance)
            world.net.heal()
            report.counts["faults"] += 1
        settle(jobs, report, stream, kv, wait_sent)
        report.counts["reconnects"] += client.statistics().reconnects
        end_all(jobs, report)
        stop.set()
        echo.join(5)


def connect(stack, urls, quick) -> jetsync.Client:
    """Connect to servers that may have to start first."""
    return stack.enter_context(patiently(lambda: jetsync.connect(urls, **quick)))


def wait_sent() -> None:
    """
    Wait until all kernels have sent what connections still hold, closed ones and routes included.

    A kernel repeats lost packets after a close, too, so a message of a call that has failed may
    arrive seconds later.
    """
    wait_for(lambda: not any(map(unsent, [None, *(f"s{index}" for index in range(SIZE))])), UNSENT)
    # A replica still has to store what has just arrived.
    time.sleep(0.5)


def unsent(namespace: str | None) -> bool:
    """Return whether a connection has data, or an end, that the other side has not confirmed."""
    lines = run("cat /proc/net/tcp", namespace).splitlines()[1:]
    ending = {"04", "09", "0B"}  # FIN_WAIT1, LAST_ACK, CLOSING
    fields = [line.split() for line in lines]
    return any(state in ending or int(queues[:8], 16) for _, _, _, state, queues, *_ in fields)


# The faults. Each lasts a moment, and is ended afterwards.


def wait(chance) -> None:
    time.sleep(0.2 + 2.0 * chance.random())


def to_server(net, servers, chosen, chance) -> None:
    """The client's packets are lost, but those of the server arrive."""
    for index in chosen:
        net.drop("daddr", address(JOBS, index), f"s{index}")
    wait(chance)


def to_client(net, servers, chosen, chance) -> None:
    """The server's packets are lost, but those of the client arrive."""
    for index in chosen:
        net.drop("saddr", address(JOBS, index), None)
    wait(chance)


def both_ways(net, servers, chosen, chance) -> None:
    for index in chosen:
        net.drop("daddr", address(JOBS, index), f"s{index}")
        net.drop("saddr", address(JOBS, index), None)
    wait(chance)


def links_down(net, servers, chosen, chance) -> None:
    """The links are down for a moment, and the connections may survive it."""
    for index in chosen:
        net.link(index, "down")
    wait(chance)
    for index in chosen:
        net.link(index, "up")


def half_open(net, servers, chosen, chance) -> None:
    """The server vanishes without a FIN or RST. When it is back, it does not know the client."""
    index = chosen[0]
    net.link(index, "down")
    servers.restart_silently(index)
    if chance.random() < 0.5:
        wait(chance)
    net.link(index, "up")


def one_way_between(net, servers, chosen, chance) -> None:
    """A server does not hear one or both of the others, but they hear it."""
    deaf = chosen[0]
    for index in range(servers.size):
        if index != deaf and (len(chosen) > 1 or chance.random() < 0.5):
            net.drop("saddr", address(ROUTES, index), f"s{deaf}")
    wait(chance)


def isolated(net, servers, chosen, chance) -> None:
    """A server, which may lead, reaches no other server, only clients; long enough for a vote."""
    apart = chosen[0]
    for index in range(servers.size):
        if index != apart:
            net.drop("saddr", address(ROUTES, index), f"s{apart}")
            net.drop("saddr", address(ROUTES, apart), f"s{index}")
    wait(chance)
    wait(chance)


CLIENT_FAULTS = [to_server, to_client, both_ways, links_down, half_open]
ROUTE_FAULTS = [one_way_between, isolated]
