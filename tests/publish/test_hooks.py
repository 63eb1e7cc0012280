"""
The windows that plugins wrap, without a connection.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jetsync._base.locks import Level, LongLock
from jetsync._hooks.manager import Plugins
from jetsync.errors import CallInSignalHandlerError, HandleClosedError
from jetsync.publish.hooks import PublishHooks


class Entered:
    """
    Wrappers that were entered: counts how often they are left.
    """

    def __init__(self):
        self.left = 0
        self.error = None

    def leave(self, result, error):
        """
        Count one leaving.
        """
        self.left += 1
        self.error = error


def make(enter, size=2):
    """
    Make the hooks of one caller, whose wrappers *enter* enters.
    """
    plugins = Plugins(enter_publish=enter)
    return PublishHooks(plugins, size)


def test_a_window_that_begins_while_the_caller_closes_is_left_once():
    """
    Its message is refused, and then no window is left open.
    """
    entered = Entered()

    def enter(operation):
        assert not hooks.close()
        return entered

    hooks = make(enter)
    window = hooks.join(object)
    hooks.part(window, HandleClosedError("publisher"))
    for each in hooks.take_over():
        each.leave()
    assert entered.left == 1
    assert hooks.close()


def test_a_window_is_over_when_it_is_full_and_its_messages_have_ended():
    """
    A window with room, or with a message in flight, is not left.
    """
    hooks = make(lambda operation: Entered())
    window = hooks.join(object)
    hooks.part(window, None)
    assert hooks.take_over() == []
    assert hooks.join(object) is window
    assert hooks.take_over() == []
    hooks.part(window, None)
    assert hooks.take_over() == [window]
    assert hooks.close()


def test_a_window_whose_headers_cannot_be_made_is_left():
    """
    If a plugin fails after another one has entered the window, the latter leaves with the error.
    """
    entered, failure = Entered(), LookupError("a bug")

    def fail(operation):
        raise failure

    plugins = Plugins(enter_publish=lambda operation: entered, shared_headers=fail)
    hooks = PublishHooks(plugins, 2)
    with pytest.raises(LookupError):
        hooks.join(object)
    assert (entered.left, entered.error) == (1, failure)
    assert hooks.close()
    # Without a window to leave, the error passes.
    with pytest.raises(LookupError):
        PublishHooks(Plugins(shared_headers=fail), 2).join(object)


def test_a_signal_handler_does_not_wait_for_a_window_that_a_thread_enters():
    """
    That thread runs plugins, which may wait for the call that the handler interrupted.
    """
    entering, may_enter = threading.Event(), threading.Event()

    def enter(operation):
        entering.set()
        may_enter.wait(5)
        return Entered()

    hooks = make(enter)
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(hooks.join, object)
        assert entering.wait(5)
        # As in a handler that has interrupted a call on another handle.
        with LongLock(Level.HANDLE), pytest.raises(CallInSignalHandlerError):
            hooks.join(object)
        may_enter.set()
        assert joined.result(5) is not None
