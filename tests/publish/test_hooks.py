"""
The plugins of bulk publishes and batches, without a connection.
"""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jetsync._base.deadline import FOREVER
from jetsync._base.turn import Turn
from jetsync._hooks import calls
from jetsync._hooks.manager import Plugins
from jetsync._proto.pipeline import Tally
from jetsync.errors import (
    CallInSignalHandlerError,
    NoStreamResponseError,
    PublishOutcomeUnknownError,
)
from jetsync.events import PublishOperation
from jetsync.publish import hooks as module
from jetsync.publish.hooks import BatchHooks, BulkHooks, OutcomeReports
from jetsync.values.headers import SharedHeaders
from jetsync.values.pub_acks import PubAck

OPERATION = PublishOperation(name="publisher", messages=None, window=10)
UNKNOWN = PublishOutcomeUnknownError("a")
REFUSED = NoStreamResponseError("a", attempts=1)


class Entered(calls.Entered):
    """
    Wrappers that were entered: records the outcomes with which they are left.
    """

    def __init__(self):
        super().__init__("jetsync_publish")
        self.left = []

    def leave(self, result, error):
        """
        Record one leaving, and raise the error as the real one does.
        """
        self.left.append((result, error))
        if error is not None:
            raise error


def failing(_):
    """
    Raise the error of a plugin.
    """
    raise LookupError("a bug")


def begun(plugins):
    """
    Return the hooks of an operation that has begun.
    """
    hooks = BulkHooks(plugins)
    hooks.begin(lambda: OPERATION, Tally())
    return hooks


@pytest.fixture
def reports():
    """
    Reports of an operation without messages so far, their events, and the tally of the acks.
    """
    seen, tally = [], Tally()
    return OutcomeReports(seen.append, OPERATION, tally), seen, tally


class TestOutcomeReports:
    def test_an_event_counts_what_has_ended_since_the_event_before(self, reports):
        """
        Each message is counted once, and unknown outcomes are failures too.
        """
        reports, seen, tally = reports
        tally.add(PubAck("S", 1))
        tally.add(PubAck("S", 1, duplicate=True))
        reports.note([REFUSED, UNKNOWN])
        reports.send()
        tally.add(PubAck("S", 2))
        reports.note([])
        reports.send()
        first, second = seen
        assert (first.acknowledged, first.duplicates, first.failed, first.unknown) == (2, 1, 2, 1)
        assert (first.error, first.stream) == (REFUSED, "S")
        assert (second.acknowledged, second.duplicates, second.failed) == (1, 0, 0)
        assert (second.unknown, second.error, second.stream) == (0, None, "S")
        assert first.publish is second.publish is OPERATION

    def test_there_is_no_event_if_no_message_has_ended(self, reports):
        """
        The end of an operation without messages, or of one that has just reported, is silent.
        """
        reports, seen, _ = reports
        assert not reports.note([])
        reports.send()
        assert (seen, reports.due) == ([], math.inf)

    def test_a_report_waits_for_the_messages_that_end_within_the_interval(
        self, reports, monkeypatch
    ):
        """
        The first message that ends decides when the report is due, and later ones join it.
        """
        reports, _, tally = reports
        assert not reports.note([REFUSED])
        due = reports.due
        tally.add(PubAck("S", 1))
        assert not reports.note([UNKNOWN])
        assert reports.due == due < math.inf
        reports.send()
        assert reports.due == math.inf
        monkeypatch.setattr(module, "REPORT_INTERVAL", 0.0)
        assert reports.note([REFUSED])

    def test_messages_in_flight_after_an_interrupt_are_unknown(self, reports):
        """
        No ack of theirs is read any more, and they have no error of their own.
        """
        reports, seen, _ = reports
        reports.send(interrupted=3)
        (event,) = seen
        assert (event.acknowledged, event.failed, event.unknown, event.error) == (0, 3, 3, None)


class TestBulkHooks:
    def test_wrappers_are_left_if_the_shared_headers_cannot_be_made(self):
        """
        If a plugin fails after another one has been entered, the latter leaves with the error.
        """
        entered = Entered()
        plugins = Plugins(enter_publish=lambda _: entered, shared_headers=failing)
        with pytest.raises(LookupError) as caught:
            begun(plugins)
        assert entered.left == [(None, caught.value)]
        # Without wrappers, the error passes.
        with pytest.raises(LookupError):
            begun(Plugins(shared_headers=failing))

    def test_leaving_raises_only_errors_of_the_wrappers(self):
        """
        The thread of a publisher raises its own error by itself.
        """
        entered = Entered()
        hooks = begun(Plugins(enter_publish=lambda _: entered))
        error = OSError()
        hooks.leave("statistics", error)
        assert entered.left == [("statistics", error)]
        entered.leave = lambda result, _: failing(result)
        with pytest.raises(LookupError):
            hooks.leave("statistics")

    def test_messages_change_only_if_a_plugin_gives_headers_or_prepares_them(self):
        """
        A publisher skips the plugins otherwise, also if the shared headers are none.
        """
        headers = SharedHeaders({"A": "1"})
        for plugins, changes in (
            (Plugins(), False),
            (Plugins(shared_headers=lambda _: None), False),
            (Plugins(shared_headers=lambda _: headers), True),
            (Plugins(prepare=lambda message: message), True),
        ):
            assert begun(plugins).changes_messages is changes


class TestBatchHooks:
    def test_plugins_are_asked_once_per_batch(self):
        """
        All messages get the same headers, also if there are none.
        """
        for given in (None, SharedHeaders({"A": "1"})):
            asked = []
            plugins = Plugins(
                shared_headers=lambda operation, given=given, asked=asked: (
                    asked.append(operation) or given
                )
            )
            hooks = BatchHooks(plugins)
            sent = [hooks.prepared(("a", b""), lambda: "batch") for _ in range(2)]
            assert asked == ["batch"]
            assert sent == [("a", b"") if given is None else ("a", b"", given)] * 2

    def test_a_message_of_the_plugin_that_is_asked_has_no_headers(self):
        """
        The plugin adds a message to the same batch while it makes the headers.
        """
        added = []

        def ask(_):
            added.append(hooks.prepared(("own", b""), object))
            return SharedHeaders({"A": "1"})

        hooks = BatchHooks(Plugins(shared_headers=ask))
        assert len(hooks.prepared(("a", b""), object)) == 3
        assert added == [("own", b"")]

    def test_a_signal_handler_does_not_wait_for_a_thread_that_asks(self):
        """
        That thread runs plugins, which may wait for the call that the handler interrupted.
        """
        asking, may_answer = threading.Event(), threading.Event()

        def ask(_):
            asking.set()
            may_answer.wait(5)
            return SharedHeaders({"A": "1"})

        hooks = BatchHooks(Plugins(shared_headers=ask))
        with ThreadPoolExecutor(1) as pool:
            prepared = pool.submit(hooks.prepared, ("a", b""), object)
            assert asking.wait(5)
            # As in a handler that has interrupted a call on another handle.
            with pytest.raises(CallInSignalHandlerError):
                Turn().run(FOREVER, hooks.prepared, ("a", b""), object)
            may_answer.set()
            assert len(prepared.result(5)) == 3
