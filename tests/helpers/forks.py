"""
Forked children of the scripts that tests run.
"""

import os
import traceback
import warnings
from collections.abc import Callable, Iterable

import jetsync


def fork() -> int:
    """
    Fork as ``os.fork`` does, without its warning.

    From Python 3.12 on, a fork beside other threads is a warning, and pytest has another thread.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def run_in_child(function: Callable[[], object], leave: Callable[[int], object] = os._exit) -> int:
    """
    Call a function in a forked child, and return the child's exit status: 0 unless it raised.
    """
    pid = fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        except BaseException:  # noqa: BLE001 - the parent sees the output
            traceback.print_exc()
        leave(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def refusals(calls: Iterable[Callable[[], object]]) -> list[str]:
    """
    Return the texts of the ForkedProcessErrors that the calls raise; each call has to raise one.
    """
    texts = []
    for number, call in enumerate(calls):
        try:
            call()
        except jetsync.ForkedProcessError as error:
            texts.append(str(error))
        else:
            raise SystemExit(f"call {number} did not notice the fork")
    return texts
