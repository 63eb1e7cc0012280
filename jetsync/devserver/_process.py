"""
Own one nats-server child process.

Guarantees:

- Only the process started here is ever signalled, by its handle and never by name.
- It does not outlive this Python process, however that ends. Linux does this by a parent-death
  signal; elsewhere the interpreter has to exit cleanly.
- A terminal's Ctrl-C does not reach it, so the program under test ends first.

Windows has no signals. A server there shuts down at Ctrl-Break, which needs a console and a group
of processes of its own, and it can neither be paused nor be put into lame duck mode.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from jetsync._base.deadline import Deadline
from jetsync._base.locks import SIGNAL_CHECK, interrupt_safe_lock
from jetsync.errors import DevServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# How much of the log goes into an error message.
LOG_TAIL = 20

if sys.platform == "win32":
    _SHUT_DOWN = signal.CTRL_BREAK_EVENT
    # Ctrl-C is for the group of the program under test, and Ctrl-Break for this one alone.
    _CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    _SHUT_DOWN = signal.SIGTERM
    _CREATION_FLAGS = 0

# The parent-death signal is set between fork and exec by a tiny Python program of its own rather
# than by `preexec_fn`, which may deadlock in a process with threads. The parent may have died
# before the signal was armed, hence the check. Python ignores SIGPIPE, and an ignored signal stays
# ignored across exec.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerProcess:
    """
    Start, signal and stop one server process. Not thread-safe: `DevServer` serialises the calls.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._arguments = list(arguments)
        self._log = log
        self._popen: subprocess.Popen[bytes] | None = None
        self.paused = False

    @property
    def pid(self) -> int | None:
        """
        The process id while it runs, else ``None``.
        """
        if self._popen is None or self._popen.poll() is not None:
            return None
        return self._popen.pid

    @property
    def running(self) -> bool:
        """
        Whether the process exists; a paused one does.
        """
        return self.pid is not None

    def start(self) -> None:
        """
        Start the process without waiting until it is ready. Does nothing if it runs already.
        """
        if self.running:
            return
        self.paused = False
        with self._log.open("ab") as log:
            self._popen = _spawn(self._arguments, log.fileno())

    def wait_exit(self, timeout: float) -> bool:
        """
        Wait for the process to end.

        Args:
            timeout: Seconds.

        Returns:
            Whether it is gone.
        """
        if self._popen is None:
            return True
        deadline = Deadline.after(timeout)
        while True:
            try:
                # On Windows, Ctrl-C does not interrupt this wait.
                self._popen.wait(deadline.at_most(SIGNAL_CHECK).remaining())
            except subprocess.TimeoutExpired:
                if deadline.expired():
                    return False
            else:
                return True

    def signal(self, name: str) -> None:
        """
        Send the signal of this name to the process.

        Raises:
            DevServerError: It does not run, or the system has no such signal.
        """
        number = getattr(signal, name, None)
        if number is None:
            raise DevServerError(f"this system has no {name}, so server {self.name} cannot get it")
        if self._popen is None or self._popen.poll() is not None:
            raise DevServerError(f"server {self.name} is not running")
        self._popen.send_signal(number)

    def terminate(self) -> None:
        """
        Ask the process to shut down, even if it is paused. Does nothing if it has ended.

        A server without a console on Windows cannot be asked, and ends at once.
        """
        if self._popen is None:
            return
        paused, self.paused = self.paused, False
        try:
            self._popen.send_signal(_SHUT_DOWN)
        except OSError:
            self._popen.terminate()
        if paused:
            # A stopped process keeps the signal pending until it is continued. Unlike `resume`,
            # this does nothing if the process has ended. Nothing is paused on Windows.
            self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """
        Kill the process and reap it. Does nothing if it has ended.
        """
        if self._popen is not None and self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        self.paused = False

    def pause(self) -> None:
        """
        Pause the process. Its sockets stay open.
        """
        self.signal("SIGSTOP")
        # The kernel delivers the stop asynchronously. After this wait the server answers nothing.
        popen = self._popen
        if popen is not None and hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.paused = True

    def resume(self) -> None:
        """
        Let a paused process run again.
        """
        if hasattr(signal, "SIGCONT"):  # Elsewhere nothing can be paused.
            self.signal("SIGCONT")
        self.paused = False

    def failure(self, what: str) -> DevServerError:
        """
        Return an error that says *what* went wrong and ends with the last lines of the log.
        """
        code = None if self._popen is None else self._popen.poll()
        state = "still running" if code is None else f"exit status {code}"
        return DevServerError(
            f"server {self.name} {what} ({state}); its log ends:\n{self.log_tail()}"
        )

    def log_text(self) -> str:
        """
        Return everything the server wrote so far, over all its starts.
        """
        try:
            return self._log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def log_tail(self) -> str:
        """
        Return the last lines of the log.
        """
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL:])

    def poll_until(self, ready: Callable[[], bool], deadline: Deadline, what: str) -> None:
        """
        Wait until *ready* returns true or the process ends.

        Raises:
            DevServerError: The process ended, or the deadline passed.
        """
        while not ready():
            # Waiting for the exit is also the pause between two checks.
            if self.wait_exit(0.01):
                raise self.failure("ended before it was ready")
            if deadline.expired():
                raise self.failure(f"was not ready within {deadline.total:g} s: {what}")


def _spawn(arguments: Sequence[str], log: int) -> subprocess.Popen[bytes]:
    """
    Start a process from a thread that lives as long as this process does.

    The kernel sends the parent-death signal when the *thread* that forked ends, so a server started
    from a short-lived worker thread would die with it.
    """
    if sys.platform != "linux":
        return _popen(arguments, log)
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
    call: Callable[[], subprocess.Popen[bytes]] = lambda: _popen([*launcher, *arguments], log)  # noqa: E731
    if threading.current_thread() is threading.main_thread():
        return call()
    return _Spawner.current().run(call)


def _popen(arguments: Sequence[str], log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - a list of arguments, no shell
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        creationflags=_CREATION_FLAGS,
    )


class _Spawner:
    """
    Run calls in a daemon thread that never ends. Each process has one, started on first use.
    """

    _lock = interrupt_safe_lock()
    _instance: _Spawner | None = None

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        # Daemon: it must never keep the interpreter alive, and there is nothing to finish.
        threading.Thread(target=self._loop, name="jetsync-devserver", daemon=True).start()

    @classmethod
    def current(cls) -> _Spawner:
        with cls._lock:
            # After a fork the thread exists only in the parent.
            if cls._instance is None or cls._instance.owner != os.getpid():
                cls._instance = cls()
            return cls._instance

    def run(self, call: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        done: Future[subprocess.Popen[bytes]] = Future()
        self._calls.put((call, done))
        return done.result()

    def _loop(self) -> None:
        while True:
            call, done = self._calls.get()
            try:
                done.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                done.set_exception(error)
