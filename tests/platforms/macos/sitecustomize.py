"""
Hide what Python on macOS lacks, and imitate what it does differently.

Put this folder on PYTHONPATH; ``tox run -e macos-like`` does. There is no kqueue here. The loop
polls, and at the end of a connection finds its socket readable and writable, as with kqueue.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import selectors
import signal
import socket
import stat
import sys
import termios
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from like import hide_names, tell_jetsync

hide_names(select, ["epoll", *(name for name in vars(select) if name.startswith("EPOLL"))])
hide_names(selectors, ["EpollSelector"])
selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc]

# Imported after that, because asyncio takes the default selector.
import multiprocessing.context

# Forked children of macOS crash in system libraries, so they are not the default.
multiprocessing.context._default_context._default_context = multiprocessing.get_context("spawn")  # type: ignore[attr-defined]

_ioctl = fcntl.ioctl


def _ioctl_of_files(fd: Any, request: int, *arguments: Any) -> Any:
    """
    Refuse to count the unsent bytes of a socket.
    """
    number = fd if isinstance(fd, int) else fd.fileno()
    if request == termios.TIOCOUTQ and stat.S_ISSOCK(os.fstat(number).st_mode):
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
    return _ioctl(fd, request, *arguments)


fcntl.ioctl = _ioctl_of_files
hide_names(os, ["eventfd", "memfd_create", "pidfd_open", "sched_getaffinity", "sched_setaffinity"])
if sys.version_info < (3, 13):
    hide_names(os, ["waitid"])
hide_names(signal, ["SIGPOLL", "SIGPWR", "SIGRTMAX", "SIGRTMIN", "SIGSTKFLT"])
hide_names(signal, ["pidfd_send_signal", "sigtimedwait", "sigwaitinfo"])
hide_names(socket, ["AF_NETLINK", "AF_PACKET", "MSG_NOSIGNAL", "SOCK_CLOEXEC", "SOCK_NONBLOCK"])

tell_jetsync("darwin")
