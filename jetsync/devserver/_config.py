"""
Compose the configuration file of one server from the settings of `DevServer` and of its user.

Values are written as JSON, which the server's configuration language contains. A user's mapping is
merged key by key. A user's text or file is appended, and if it repeats a top-level key, the server
uses the later one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jetsync.devserver._monitor import HOST
from jetsync.errors import DevServerError

# Blocks that listen on a port of their own. With `"port": -1` they get a reserved one, which
# survives restarts; the server itself would choose another port each time.
LISTENING_BLOCKS = ("gateway", "leafnodes", "mqtt", "websocket")

# The block of a cluster, whose ports `DevServer` reserves itself, and other names of the blocks.
OTHER_LISTENING_BLOCKS = ("cluster", "leaf", "ws")

# The server refuses a lame duck duration below 30 s, but the pause before it starts to close
# clients may be short.
LAME_DUCK = {"lame_duck_duration": "30s", "lame_duck_grace_period": "1s"}

_RESERVED_KEYS = {"listen", "port", "host", "net", "http", "http_port", "monitor_port"}


def merge(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return *base* with *extra* laid over it; mappings are merged, everything else is replaced.
    """
    merged = dict(base)
    for key, value in extra.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def check_user_config(config: Mapping[str, Any]) -> None:
    """
    Refuse keys that would change the ports on which `DevServer` expects a server.

    Raises:
        DevServerError: *config* sets such a key.
    """
    clash = sorted(_RESERVED_KEYS & set(config))
    if clash:
        raise DevServerError(
            f"a DevServer chooses its own addresses: remove {', '.join(clash)} from the "
            "configuration (a fixed client port is the argument `port`)"
        )


def assign_ports(config: Mapping[str, Any], reserve: Callable[[str], int]) -> dict[str, Any]:
    """
    Return *config* with all its listening blocks on loopback, and free ports for ``"port": -1``.

    Args:
        config: The user's configuration.
        reserve: Gives the port for a block's name.
    """
    result = dict(config)
    for block, value in config.items():
        # The server ignores the case of keys.
        if block.lower() not in {*LISTENING_BLOCKS, *OTHER_LISTENING_BLOCKS}:
            continue
        if not isinstance(value, Mapping) or "port" not in value:
            continue
        # Without it, the server listens on all interfaces.
        local = {"host": HOST} if not {"listen", "net"} & set(value) else {}
        result[block] = {**local, **value}
        if value["port"] == -1 and block in LISTENING_BLOCKS:
            result[block]["port"] = reserve(block)
    return result


def include(file: Path, folder: Path) -> str:
    """
    Return the text that includes a user's file into a configuration file in *folder*.

    The server takes a path as relative to that folder, even an absolute one.

    Raises:
        DevServerError: There is no such file, or the two are on different drives of Windows.
    """
    if not file.is_file():
        raise DevServerError(f"configuration file {file} not found")
    try:
        path = os.path.relpath(file, folder)
    except ValueError as error:
        raise DevServerError(f"configuration {file} must be on the drive of {folder}") from error
    return f'include "{Path(path).as_posix()}"'


def render(config: Mapping[str, Any], appended: str = "") -> str:
    """
    Return the text of a configuration file.
    """
    # The server does not know JSON's escapes of other characters than ASCII, as in file names.
    lines = [
        f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in config.items()
    ]
    return "\n".join([*lines, appended, ""])
