"""
Hide what Python on Windows lacks, and imitate what it does differently.

Put this folder on PYTHONPATH; ``tox run -e windows-like`` does. These parts of POSIX stay, because
the standard library needs them on a POSIX system: pipes in ``select``, user ids, and the handlers
of signals that the system sends.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import stat
import struct
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from like import hide_modules, hide_names, tell_jetsync

# Windows accepts no more sockets in one call of `select`.
MAX_SELECTED = 512

# Seconds between two ticks of `time.monotonic` before Python 3.13.
CLOCK_TICK = 1 / 64

# Bytes that each end of a pair of sockets holds.
PAIR_BUFFER = 1 << 16

# As on Windows: Ctrl-C and Ctrl-Break as events of the console, and the signal of Ctrl-Break.
CTRL_C_EVENT, CTRL_BREAK_EVENT, SIGBREAK = 0, 1, 21

SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}


# The event loops.

_select = select.select


def _select_sockets(reads: Any, writes: Any, errors: Any, timeout: float | None = None) -> Any:
    """
    Refuse what ``select`` refuses on Windows: files, epoll objects, too many sockets, and none.
    """
    sources = {*reads, *writes, *errors}
    if not sources:
        raise OSError(10022, "An invalid argument was supplied")
    if max(len(reads), len(writes), len(errors)) > MAX_SELECTED:
        raise ValueError("too many file descriptors in select()")
    for source in sources:
        mode = os.fstat(source if isinstance(source, int) else source.fileno()).st_mode
        if not (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
            raise OSError(10038, "An operation was attempted on something that is not a socket")
    return _select(reads, writes, errors, timeout)


select.select = _select_sockets
selectors.SelectSelector._select = staticmethod(_select_sockets)  # type: ignore[attr-defined]
hide_names(select, [name for name in vars(select) if name.startswith(("EPOLL", "KQ_", "POLL"))])
hide_names(select, ["PIPE_BUF", "devpoll", "epoll", "kevent", "kqueue", "poll"])

_monotonic_ns, _clock_info = time.monotonic_ns, time.get_clock_info


def _monotonic() -> float:
    return _monotonic_ns() // int(CLOCK_TICK * 1e9) * CLOCK_TICK


def _get_clock_info(name: str) -> Any:
    info = _clock_info(name)
    if name == "monotonic":
        info.resolution = CLOCK_TICK
    return info


if sys.version_info < (3, 13):
    time.monotonic, time.get_clock_info = _monotonic, _get_clock_info

# A file of site-packages may have imported it before this one.
hide_names(selectors, ["DevpollSelector", "EpollSelector", "KqueueSelector", "PollSelector"])
selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc]

# When these are imported, they use names that are hidden below.
import asyncio
import multiprocessing.util  # noqa: F401 - as above
import subprocess

subprocess._PopenSelector = selectors.SelectSelector  # type: ignore[attr-defined]


class ProactorEventLoop(asyncio.SelectorEventLoop):
    """
    The default event loop of Windows, which cannot watch sockets for its user.
    """

    def add_reader(self, *_: Any) -> None:
        raise NotImplementedError

    add_writer = remove_reader = remove_writer = add_reader


_policy: Any = getattr(asyncio.events, "_get_event_loop_policy", asyncio.get_event_loop_policy)()
type(_policy)._loop_factory = ProactorEventLoop
asyncio.ProactorEventLoop = ProactorEventLoop  # type: ignore[attr-defined]
if sys.version_info >= (3, 13):
    asyncio.EventLoop = ProactorEventLoop


# Sockets.

_bind, _setsockopt = socket.socket.bind, socket.socket.setsockopt


def _reuse_and_bind(self: socket.socket, address: Any) -> None:
    """
    Bind although old connections of the port have ended a moment ago, which Windows does anyway.
    """
    if self.type == socket.SOCK_STREAM:
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _bind(self, address)


def _set_option(self: socket.socket, level: int, option: int, *value: Any) -> None:
    """
    Set an option; the two integers of SO_LINGER are short on Windows.
    """
    if (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER):
        value = (struct.pack("ii", *struct.unpack("hh", value[0])),)
    _setsockopt(self, level, option, *value)


def _pair() -> tuple[socket.socket, socket.socket]:
    """
    Connect two sockets over the loopback interface, as ``socket.socketpair`` does on Windows.
    """
    with socket.socket() as listener:
        one = socket.socket()
        for end in (listener, one):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PAIR_BUFFER)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PAIR_BUFFER)
        _bind(listener, ("127.0.0.1", 0))
        listener.listen(1)
        one.connect(listener.getsockname())
        while True:
            other, address = listener.accept()
            if address == one.getsockname():
                return one, other
            other.close()


socket.socket.bind = _reuse_and_bind  # type: ignore[method-assign]
socket.socket.setsockopt = _set_option  # type: ignore[method-assign]
socket.socketpair = _pair  # type: ignore[assignment]
hide_names(socket, ["AF_UNIX", "MSG_DONTWAIT", "MSG_NOSIGNAL", "SO_REUSEPORT"])


# Processes and signals.

_kill, _signal, _SIGKILL, _SIGINT = os.kill, signal.signal, signal.SIGKILL, signal.SIGINT


def _kill_or_interrupt(pid: int, number: int) -> None:
    """
    Send Ctrl-C or Ctrl-Break to a process; end it at once for any other number.

    Only Python knows the number of Ctrl-Break. Others, such as a server, get SIGINT, at which they
    shut down.
    """
    is_python = "python" in str(Path(f"/proc/{pid}/exe").readlink())
    if number == CTRL_C_EVENT or (number == CTRL_BREAK_EVENT and not is_python):
        _kill(pid, _SIGINT)
    else:
        _kill(pid, SIGBREAK if number == CTRL_BREAK_EVENT else _SIGKILL)


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    def __init__(self, *arguments: Any, creationflags: int = 0, **options: Any) -> None:
        options["start_new_session"] = bool(creationflags & subprocess.CREATE_NEW_PROCESS_GROUP)  # type: ignore[attr-defined]
        super().__init__(*arguments, **options)

    def send_signal(self, sig: int) -> None:
        if sig not in {CTRL_C_EVENT, CTRL_BREAK_EVENT, signal.SIGTERM}:
            raise ValueError(f"Unsupported signal: {sig}")
        if self.poll() is None:
            _kill_or_interrupt(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGTERM)

    terminate = kill


def _set_handler(number: int, handler: Any) -> Any:
    if number not in signal.valid_signals():
        raise ValueError("signal number out of range")
    return _signal(number, handler)


def _valid_signals() -> set[int]:
    return {*(getattr(signal, name) for name in SIGNALS), SIGBREAK}


# The signal of this number would stop the process.
_signal(SIGBREAK, lambda *_: os._exit(255))
subprocess.Popen = _Popen  # type: ignore[misc]
subprocess.CREATE_NEW_PROCESS_GROUP = 0x200  # type: ignore[attr-defined]
os.kill = _kill_or_interrupt
signal.signal = _set_handler  # type: ignore[assignment]
signal.valid_signals = _valid_signals  # type: ignore[assignment]
signal.CTRL_C_EVENT = CTRL_C_EVENT  # type: ignore[attr-defined]
signal.CTRL_BREAK_EVENT = CTRL_BREAK_EVENT  # type: ignore[attr-defined]
signal.SIGBREAK = SIGBREAK  # type: ignore[attr-defined]
_shown = {"SIG_DFL", "SIG_IGN", "SIGBREAK", *SIGNALS}
hide_names(signal, [name for name in vars(signal) if name.startswith("SIG") and name not in _shown])
hide_names(signal, ["alarm", "getitimer", "pause", "pidfd_send_signal", "pthread_kill"])
hide_names(signal, ["pthread_sigmask", "setitimer", "siginterrupt", "sigpending"])
hide_names(signal, ["sigtimedwait", "sigwait", "sigwaitinfo"])
hide_names(os, ["fork", "forkpty", "getpgid", "killpg", "mkfifo", "pidfd_open", "posix_spawn"])
hide_names(os, ["register_at_fork", "setsid", "uname", "wait", "wait3", "wait4", "waitid"])
hide_modules("fcntl", "pty", "resource", "syslog", "termios", "tty")

tell_jetsync("win32")
