from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from jetsync._base.locks import SIGNAL_CHECK
from jetsync._io import wakeups
from jetsync._io.wakeups import Reminder, Signal


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


class TestReminder:
    def test_many_ask_for_one_call(self):
        """A call that is due is scheduled once, and again after it has begun."""
        scheduled = []
        reminder = Reminder(scheduled.append, "call")
        reminder.ask()
        reminder.ask()
        assert (scheduled, reminder.due) == (["call"], True)
        reminder.due = False
        reminder.ask()
        assert scheduled == ["call"] * 2

    def test_a_call_that_begins_at_once(self):
        """A call that begins before the reminder returns can be asked for again."""

        def begin():
            reminder.due = False

        reminder = Reminder(begin)
        reminder.ask()
        assert not reminder.due

    def test_ctrl_c(self):
        """If Ctrl-C strikes while the call is scheduled, the next one who asks schedules it."""

        def interrupt():
            raise KeyboardInterrupt

        reminder = Reminder(interrupt)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                reminder.ask()

    def test_a_closed_loop(self):
        """A loop that is closed makes no call, which is no error."""
        loop = asyncio.new_event_loop()
        loop.close()
        Reminder(loop.call_soon_threadsafe, print).ask()
