from __future__ import annotations

import threading
from types import SimpleNamespace

from jetsync._base.locks import SIGNAL_CHECK
from jetsync._io import wakeups
from jetsync._io.wakeups import Signal


class TestSignal:
    def test_remembered_once(self):
        """A raise while no thread waits ends the next wait, and only that one."""
        signal = Signal()
        assert signal.wait(0) is False
        signal.set()
        signal.set()
        assert signal.wait(0) is True
        assert signal.wait(0) is False

    def test_a_raised_signal_wakes_the_waiting_thread(self):
        """A raise wakes the thread that waits."""
        signal, result = Signal(), []
        thread = threading.Thread(target=lambda: result.append(signal.wait(10.0)))
        thread.start()
        signal.set()
        thread.join(10.0)
        assert result == [True]

    def test_windows_waits_in_slices(self, monkeypatch):
        """On Windows a long wait is many short ones, because Ctrl-C interrupts none of them."""
        slices = []
        signal = Signal()

        def acquire(timeout):
            slices.append(timeout)

        signal._lock = SimpleNamespace(acquire=acquire)
        monkeypatch.setattr(wakeups, "sys", SimpleNamespace(platform="win32"))

        assert not signal.wait(2.25 * SIGNAL_CHECK)

        assert slices == [SIGNAL_CHECK, SIGNAL_CHECK, 0.25 * SIGNAL_CHECK]

    def test_a_deadline_that_has_passed_ends_the_wait_at_once(self):
        """A deadline that has passed ends the wait at once."""
        assert Signal().wait(-1.0) is False
