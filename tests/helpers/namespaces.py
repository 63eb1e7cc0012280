"""
Hosts on one machine: network namespaces that a bridge connects with this thread.

`leave` gives the calling thread a network of its own, in which the namespaces are made. Nothing
outside sees them, and they end with their processes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMESPACES = 0x40000000 | 0x00020000
"""CLONE_NEWNET and CLONE_NEWNS of Linux: a network and mounts of our own."""
NEW_USER = 0x10000000
"""CLONE_NEWUSER, in which a process without privileges may make the others."""


def missing(*firewalls: str) -> list[str]:
    """
    Return what this machine lacks for hosts with one of these firewalls.
    """
    needed = {
        "Linux": sys.platform == "linux",
        "ip (iproute2)": shutil.which("ip"),
        " or ".join(firewalls): any(map(shutil.which, firewalls)),
    }
    return [what for what, there in needed.items() if not there]


def run(command: str, namespace: str | None = None) -> str:
    """
    Run a command, perhaps in a namespace, and return its output.
    """
    inside = f"ip netns exec {namespace} " if namespace else ""
    done = subprocess.run(f"{inside}{command}".split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{inside}{command}: {done.stderr.strip()}")
    return done.stdout


def leave() -> None:
    """
    Get a network and mounts of our own; `ip netns` keeps its names below /run.
    """
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NAMESPACES):
        if libc.unshare(NAMESPACES | NEW_USER):
            number = ctypes.get_errno()
            raise OSError(number, f"unshare: {os.strerror(number)}")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    run("mount --make-rprivate /")
    run("mount -t tmpfs jetsync /run")


def add_hub(*addresses: str) -> None:
    """
    Make the bridge, with addresses of this thread such as "10.77.0.1/24".
    """
    run("ip link set lo up")
    run("ip link add hub type bridge")
    for address in addresses:
        run(f"ip address add {address} dev hub")
    run("ip link set hub up")


def add_host(name: str, *addresses: str) -> None:
    """
    Make a namespace with these addresses, and connect it with the bridge.
    """
    run(f"ip netns add {name}")
    run(f"ip link add to-{name} type veth peer name eth0 netns {name}")
    run(f"ip link set to-{name} master hub up")
    for address in addresses:
        run(f"ip address add {address} dev eth0", name)
    run("ip link set lo up", name)
    run("ip link set eth0 up", name)
