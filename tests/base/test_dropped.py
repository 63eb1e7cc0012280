"""
Handles that are dropped without being closed.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings

import pytest

from jetsync._base.dropped import disown, when_dropped


class Handle:
    """A handle that records its release."""

    def __init__(self, released, what="handle 'a'"):
        self.finalizer = when_dropped(self, what, released.append, "it")


def drop(handles):
    """Drop the handles of a list, also those that refer to themselves."""
    handles.clear()
    gc.collect()


def test_the_warning_of_a_dropped_handle_names_its_line():
    """A dropped handle is released, and the warning points to the line that created it."""
    released = []
    handles = [Handle(released)]
    with pytest.warns(ResourceWarning) as caught:
        drop(handles)
    assert released == ["it"]
    (warning,) = caught
    place = f"{__file__}:{Handle.__init__.__code__.co_firstlineno + 1}"
    assert warning.filename == __file__
    assert str(warning.message) == (
        f"handle 'a' was dropped without being closed; it was created at {place}"
    )


def test_a_handle_that_refers_to_itself_is_collected():
    """A handle that refers to itself is released by the garbage collector."""
    released = []
    handles = [Handle(released)]
    handles[0].itself = handles[0]
    with pytest.warns(ResourceWarning):
        drop(handles)
    assert released == ["it"]


def test_a_closed_handle_is_dropped_silently():
    """A closed handle is dropped silently."""
    released = []
    handles = [Handle(released)]
    handles[0].finalizer.detach()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drop(handles)
    assert (released, caught) == ([], [])


def test_nothing_to_release():
    """There is no warning if there was nothing to release."""
    handles = [Handle([])]
    when_dropped(handles[0], "handle", lambda: False)
    handles[0].finalizer.detach()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drop(handles)
    assert caught == []


def test_warnings_are_errors(monkeypatch):
    """If the warning is an error, Python reports it, and the handle is released all the same."""
    released, seen = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: seen.append(error.exc_type))
    handles = [Handle(released)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drop(handles)
    assert (released, seen) == (["it"], [ResourceWarning])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_and_exit():
    """Nothing happens if a forked child drops a handle, or if a program ends with an open one."""
    program = """
import os, warnings
from jetsync._base.dropped import disown, when_dropped
class Handle: pass
handle = Handle()
when_dropped(handle, "handle", print, "released")
if os.fork() == 0:
    del handle
    os._exit(0)
os.wait()
"""
    command = [sys.executable, "-W", "always", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_disowned_handle_ends_though_its_thread_is_blocked():
    """A handle ends when another thread drops it, although its own thread is blocked."""
    made, goes_on, released, handles = threading.Event(), threading.Event(), [], []

    def later(_seconds, call, *arguments):
        other = threading.Thread(target=call, args=arguments)
        other.start()
        other.join()

    def make():
        handles.append(Handle(released))
        disown(later, handles[0])
        made.set()
        goes_on.wait()

    thread = threading.Thread(target=make)
    thread.start()
    # The collector would end it, too.
    gc.disable()
    try:
        assert made.wait(20)
        with pytest.warns(ResourceWarning):
            handles.clear()
        assert released == ["it"]
    finally:
        gc.enable()
        goes_on.set()
        thread.join()
