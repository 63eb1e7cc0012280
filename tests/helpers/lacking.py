"""
Skip tests that use what the system lacks: on Windows, fork and most signals.

Tests name what they use, such as ``os.fork``. If the system lacks it, the error says so. An error
in jetsync's own code is a failure.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import select
import signal
import socket
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jetsync.devserver import _process
from jetsync.errors import DevServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IS_LINUX = _process.sys.platform == "linux"
"""Whether jetsync takes the system for Linux. An environment of tox may imitate another one."""

NO_EPOLL = "this system has no epoll, so no waiting thread reads"
needs_epoll = pytest.mark.skipif(not hasattr(select, "epoll"), reason=NO_EPOLL)

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

_TESTS = str(Path(__file__).parents[1])
_MODULES = {"os": os, "select": select, "signal": signal, "socket": socket}

# What a test or a script in it uses: pausing a server, or a name of a module.
_NAMED = re.compile(
    r"((?:server|victim)\.(?:pause|lame_duck)\()|\b(os|select|signal|socket)\.([A-Za-z]\w+)"
)

# The last lines of the traceback of a script that a test runs.
_LACKING = re.compile(
    r'(?P<code>File "<string>"|File "[^"\n]*helpers[^"\n]*"), line \d+[^\n]*\n(?:    [^\n]*\n)*'
    r"AttributeError: module '(?:os|select|signal|socket)' has no attribute '(?P<name>\w+)'"
    r"|this system has no (?P<signal>SIG\w+)"
)


def skip_if_lacking(output: str) -> None:
    """
    Skip the test if the output of a script says that it used what the system lacks.
    """
    found = _LACKING.search(output)
    if found:
        pytest.skip(f"this system has no {found['name'] or found['signal']}")


def lacking_in(function: Callable[..., object]) -> str | None:
    """
    Return what the source of a test names and the system lacks.
    """
    for server, module, name in _NAMED.findall(inspect.getsource(function)):
        if server and not hasattr(signal, "SIGSTOP"):
            return "SIGSTOP"
        if module and not hasattr(_MODULES[module], name):
            return f"{module}.{name}"
    return None


@contextlib.contextmanager
def skipping_what_is_lacking() -> Iterator[None]:
    """
    Skip the test if the block of code uses what the system lacks.
    """
    try:
        yield
    except AttributeError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if error.obj in _MODULES.values() and last.filename.startswith(_TESTS):
            pytest.skip(f"this system has no {error.name}")
        raise
    except DevServerError as error:
        skip_if_lacking(str(error))
        raise
