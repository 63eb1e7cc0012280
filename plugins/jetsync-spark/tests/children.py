"""
Forked processes that a test kills.
"""

import os
import traceback


def start(work, *arguments):
    """
    Fork a process that does some work, and return its id.

    Its status is what the work returns, 0 for None, and 1 if the work raises.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = work(*arguments) or 0
        except BaseException:  # noqa: BLE001 - the child must not continue as a copy of the test.
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def end(child):
    """
    Wait for the end of a process and return its status, negative for a signal.
    """
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
