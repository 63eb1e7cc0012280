"""
Decide from the monitoring endpoints whether servers are ready, and which one leads.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from jetsync._base.deadline import Deadline
from jetsync.devserver import _monitor
from jetsync.errors import DevServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jetsync.devserver._members import Member

# Seconds between two requests. Another process has no event to wait for.
POLL_INTERVAL = 0.01


def wait_ready(
    members: Sequence[Member], starting: Sequence[Member], *, jetstream: bool, timeout: float
) -> dict[str, Any]:
    """
    Wait until the servers that were started accept connections and JetStream answers.

    Args:
        members: All servers.
        starting: Those to wait for.
        jetstream: Whether they have JetStream.
        timeout: Seconds for all of it.

    Returns:
        The INFO of the last one that came up; empty if *starting* is empty.

    Raises:
        DevServerError: A server ended, listens on another address than one of loopback, or the time
            is over.
    """
    deadline = Deadline.after(timeout)
    info: dict[str, Any] = {}
    for member in starting:
        # The monitoring port is the first one that a server opens.
        member.process.poll_until(
            partial(_on_loopback, member), deadline, "its monitoring port does not answer"
        )
    for member in starting:
        member.process.poll_until(
            partial(_accepts, member, info), deadline, "it does not accept connections"
        )
    clustered = len(members) > 1
    answering = [member for member in members if member.answers]
    if not jetstream or (clustered and len(answering) * 2 <= len(members)):
        # Without a majority no leader can be elected.
        return info
    query = "?js-server-only=true" if clustered else ""
    for member in starting:
        member.process.poll_until(
            partial(_monitor.healthy, member.http_port, query), deadline, "JetStream is not ready"
        )
    if clustered:
        poll(
            answering,
            partial(_meta_ready, answering, len(members)),
            deadline.remaining(),
            "no meta leader that all servers follow",
        )
        for member in starting:
            # A request is lost until the servers know where to send it.
            member.process.poll_until(
                partial(_monitor.answers_requests, member.port),
                deadline,
                "JetStream does not answer requests",
            )
    return info


def poll(members: Sequence[Member], ready: Callable[[], bool], timeout: float, what: str) -> None:
    """
    Ask until the answer is true.

    Raises:
        DevServerError: The time is over. The text has *what* is wrong and the ends of the logs.
    """
    deadline = Deadline.after(timeout)
    while not ready():
        if deadline.expired():
            logs = "\n".join(f"{member.name}: {member.process.log_tail()}" for member in members)
            raise DevServerError(f"{what} after {timeout:g} s; the logs end:\n{logs}")
        time.sleep(POLL_INTERVAL)


def stream_leader(members: Sequence[Member], stream: str, account: str) -> int | None:
    """
    Return the index of the server that says it leads the stream, ``None`` while none does.
    """
    for member in members:
        if member.answers and (account, stream) in _monitor.led_streams(
            member.http_port, member.name
        ):
            return member.index
    return None


def meta_leader(members: Sequence[Member]) -> int | None:
    """
    Return the index of the server that says it leads the meta group, ``None`` while none does.
    """
    for member in members:
        if member.answers and _monitor.meta_view(member.http_port).get("leader") == member.name:
            return member.index
    return None


def _on_loopback(member: Member) -> bool:
    """
    Return whether the server says where it listens.

    Raises:
        DevServerError: It listens on an address that other hosts may reach.
    """
    varz = _monitor.ask(member.http_port, "/varz")
    if not varz:
        return False
    wrong = [
        f"{block} on {host}"
        for block, host in _monitor.addresses(varz).items()
        if not _monitor.is_loopback(host)
    ]
    if wrong:
        raise DevServerError(
            f"a DevServer listens on loopback only, but its configuration opens {', '.join(wrong)}:"
            f' give the block `host: "{_monitor.HOST}"`'
        )
    return True


def _accepts(member: Member, found: dict[str, Any]) -> bool:
    info = _monitor.read_info(member.port)
    if info is None:
        return False
    if not info:
        # With TLS first, the INFO follows the handshake. The monitoring port has the same data.
        info = _monitor.ask(member.http_port, "/varz")
    found.update(info)
    return bool(info)


def _meta_ready(members: Sequence[Member], size: int) -> bool:
    """
    Return whether one server leads, all follow it, and it sees them all as current.
    """
    names = {member.name for member in members}
    views = {member.name: _monitor.meta_view(member.http_port) for member in members}
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
    return view.get("cluster_size") == size and names <= current | {leader}
