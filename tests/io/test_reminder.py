"""
Calls that the loop makes soon.
"""

from __future__ import annotations

import asyncio

import pytest

from jetsync._io.reminder import Reminder


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
        """If Ctrl-C strikes while the call is scheduled, whoever asked meanwhile gets it anyway."""
        scheduled = []

        def interrupt():
            scheduled.append("call")
            if len(scheduled) == 1:
                # Another thread, which does not schedule the call itself.
                reminder.ask()
                raise KeyboardInterrupt

        reminder = Reminder(interrupt)
        with pytest.raises(KeyboardInterrupt):
            reminder.ask()
        assert (len(scheduled), reminder.due) == (2, False)
        reminder.ask()
        assert (len(scheduled), reminder.due) == (3, True)

    def test_a_closed_loop(self):
        """A loop that is closed makes no call, which is no error."""
        loop = asyncio.new_event_loop()
        loop.close()
        Reminder(loop.call_soon_threadsafe, print).ask()
