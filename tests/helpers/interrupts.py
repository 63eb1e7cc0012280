"""
Interrupt a call at a chosen step.
"""

from __future__ import annotations

import _thread
import gc
import itertools
import os
import signal
import sys
import threading


def interrupt_main_thread():
    """
    Interrupt the main thread, as Ctrl-C does.

    On Windows, no process can send Ctrl-C to another one alone, and nothing ends a wait of the
    operating system.
    """
    if hasattr(signal, "SIGBREAK"):
        _thread.interrupt_main()
    else:
        os.kill(os.getpid(), signal.SIGINT)


def is_step(frame, event, function):
    """
    Return whether an event of the profiler is a step at which Ctrl-C may strike.

    From Python 3.14 on, the profiler sees that ``with`` calls the ``__enter__`` of a lock. From
    3.15.2 on, Ctrl-C does not strike after this call. Before, it may leave a lock of `threading`
    held for ever, and then no thread of the process can start or end. No program survives that.
    """
    if event == "c_return":
        if function.__name__ != "__enter__":
            return True
        return sys.version_info < (3, 15, 2) and frame.f_code.co_filename != threading.__file__
    return event == "call"


def interrupted_at(step, call, error=KeyboardInterrupt):
    """
    Raise *error* at one step of a call; return whether it ended before that step.
    """
    steps = itertools.count(1)
    # A collection would run finalizers of other tests during the call. The interpreter swallows an
    # interrupt that hits a finalizer.
    gc.disable()

    def strike(frame, event, argument):
        if is_step(frame, event, argument) and next(steps) == step:
            sys.setprofile(None)
            raise error

    sys.setprofile(strike)
    try:
        call()
    except error:
        return False
    finally:
        sys.setprofile(None)
        gc.enable()
    return True


def steps_of(call):
    """
    Count the steps at which a call can be interrupted; the call is made once.
    """
    steps = itertools.count()

    def count(frame, event, argument):
        if is_step(frame, event, argument):
            next(steps)

    gc.disable()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return next(steps)


def is_locked(lock):
    """
    Return whether a lock is kept from another thread, which takes it for a moment if it is free.
    """
    taken = []

    def attempt():
        if lock.acquire(blocking=False):
            taken.append(lock)
            lock.release()

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return not taken


def shows_holder(lock):
    """
    Return whether any thread holds an ``RLock``, for tests that wait until one does.

    It does not touch the lock: others may just try to take it. Only the text of an ``RLock`` says
    this before Python 3.14.
    """
    return repr(lock).startswith("<locked")


def handled_at(step, call, handler):
    """
    Call *handler* at one step of *call*, as a signal would; return whether *call* ended before it.

    Returns what *call* returned, too: ``(ended, result)``.
    """
    steps = itertools.count(1)
    struck = []
    gc.disable()

    def strike(frame, event, argument):
        if is_step(frame, event, argument) and next(steps) == step:
            sys.setprofile(None)
            struck.append(step)
            handler()

    sys.setprofile(strike)
    try:
        result = call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return not struck, result


class Interrupt:
    """
    Raise *error*, as a signal handler does, instead of calling a method, once.
    """

    def __init__(self, monkeypatch, owner, name, error=KeyboardInterrupt):
        method = getattr(owner, name)

        def interrupted(*args, **kwargs):
            if not self.came:
                self.came = True
                raise error
            return method(*args, **kwargs)

        self.came = False
        monkeypatch.setattr(owner, name, interrupted)
