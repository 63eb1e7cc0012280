"""
A real nats-server, started, stopped, killed and paused from Python.

General layout, lowest first: ``_binary`` finds or installs the executable, ``_ports`` keeps ports
reserved, ``_config`` composes configuration, ``_process`` owns one child process, ``_monitor`` asks
one server how it is, ``_members`` lays out the servers of a cluster, ``_ready`` waits for them, and
``_server`` puts them together into `DevServer`. Nothing here imports the client: tests, plugins and
the command line use it on its own.
"""

from __future__ import annotations

from jetsync.devserver._binary import ServerBinary, find_server
from jetsync.devserver._server import DevServer

__all__ = [
    "DevServer",
    "ServerBinary",
    "find_server",
]
