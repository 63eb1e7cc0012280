"""
What a user sees when something fails: the texts of errors, and the errors that they are chained to.
"""

from __future__ import annotations

import os
import signal
import threading

import pytest

import jetsync


def chain(error):
    """
    Return the errors that Python prints before *error*.
    """
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [] if before is None else [*chain(before), before]


def interrupted(call):
    """
    Press Ctrl-C while *call* waits, and return the exception.
    """
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            call()
    finally:
        timer.join()
    return caught.value


class TestChains:
    def test_ctrl_c_in_a_consumption(self, js, unique):
        stream = js.create_stream(unique, storage="memory")
        with stream.create_consumer("c").consume() as consumption:
            assert chain(interrupted(lambda: next(consumption))) == []

    def test_ctrl_c_in_an_ordered_consumption(self, js, unique):
        stream = js.create_stream(unique, storage="memory")
        with stream.ordered_consumer() as ordered, ordered.consume() as consumption:
            assert chain(interrupted(lambda: next(consumption))) == []

    @pytest.mark.parametrize("filled", [False, True])
    def test_ctrl_c_in_a_watch(self, js, unique, filled):
        kv = js.create_key_value(unique, storage="memory")
        if filled:
            kv.put("a", b"1")
        with kv.watch() as watch:
            if filled:
                next(watch)
            assert chain(interrupted(lambda: next(watch))) == []

    def test_the_subject_of_a_publisher(self, js):
        with js.publisher() as publisher, pytest.raises(jetsync.InvalidSubjectError) as caught:
            publisher.publish("a b", b"")
        assert chain(caught.value) == []

    def test_a_missing_key(self, js, unique):
        kv = js.create_key_value(unique, storage="memory")
        with pytest.raises(jetsync.KeyNotFoundError) as caught:
            kv.get("x")
        assert chain(caught.value) == []
