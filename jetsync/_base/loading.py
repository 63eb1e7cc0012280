"""
Modules that are imported on first use, within a deadline.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from jetsync._base.locks import Latch, keep_interrupts
from jetsync.errors import WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._base.deadline import Deadline


class Loading:
    """
    Imports that any thread may ask for. They are made in a thread of their own.

    Ctrl-C strikes only in the main thread, where it would leave a module half imported. The caller
    can stop waiting at its deadline, because the import goes on without it.

    Args:
        load: Imports the modules. Several threads may call it at the same time.
    """

    def __init__(self, load: Callable[[], object]) -> None:
        self._load = load
        self._is_done = False

    def wait(self, deadline: Deadline) -> None:
        """
        Wait until the modules are imported.

        Raises:
            WaitTimeoutError: The deadline has passed. The import continues.
            Exception: The import raised this error. The next call tries again.
        """
        if self._is_done:
            return
        over = Latch()
        failures: list[BaseException] = []
        thread = threading.Thread(target=self._run, args=(over, failures), name="jetsync-import")
        with keep_interrupts():
            thread.start()
        try:
            over.wait(deadline.remaining())
        finally:
            # Also after Ctrl-C. An interrupted join would not wait for the end of the thread.
            if over.wait(deadline.remaining()):
                thread.join()
        if not over.is_set():
            raise WaitTimeoutError("the import of the client's modules", deadline.total)
        if failures:
            raise failures[0]

    def _run(self, over: Latch, failures: list[BaseException]) -> None:
        try:
            self._load()
            self._is_done = True
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for.
            failures.append(error)
        finally:
            over.set()
