"""
Events and operations as values, and the thread that delivers events.
"""

from __future__ import annotations

import logging
import pickle
import re
import threading
from pathlib import Path

import attrs
import pytest

from jetsync import events
from jetsync._hooks import dispatcher as _eventthread
from jetsync._hooks.dispatcher import EVENT_THREAD, Dispatcher
from jetsync._hooks.manager import Plugins
from jetsync.events import ClosedEvent, LameDuckEvent, ReconnectedEvent, StatusKind
from jetsync.hookspecs import hookimpl


def classes_below(parent):
    """
    Return the subclasses of a class. attrs replaces each class by a new one, and the replaced one
    lives until the garbage collector runs.
    """
    return [cls for cls in parent.__subclasses__() if "__slots__" in vars(cls)]


PACKAGE = Path(events.__file__).parent

STATUS_EVENTS = classes_below(events.StatusEvent)
OPERATIONS = classes_below(events.Operation)

SAMPLES = [
    events.PullStatusEvent(
        stream="S",
        consumer="C",
        code=409,
        description="Exceeded MaxRequestBatch of 10",
        outcome=events.PullOutcome.FAILED,
    ),
    events.MessagesLostEvent(stream="S", consumer="C", messages=2),
    events.StrayMessagesEvent(
        stream="S",
        consumer="C",
        reason="foreign",
        messages=2,
        subject="_INBOX.a.1",
        reply="",
        redelivered=False,
    ),
    events.HeartbeatMissedEvent(stream="S", consumer="C", heartbeat=1.0, silent_for=2.0),
    events.DisconnectedEvent(server="127.0.0.1:4222"),
    events.ReconnectedEvent(server="127.0.0.1:4222", reconnects=1),
    events.ClosedEvent(),
    events.LameDuckEvent(server="127.0.0.1:4222"),
    events.ServersDiscoveredEvent(servers=("127.0.0.1:4223",)),
    events.SlowConsumerEvent(subject="a", dropped=3),
    events.PermissionDeniedEvent(subject="a", operation="publish"),
    events.AsyncErrorEvent(error=None),
    events.HandlerErrorEvent(stream="S", consumer="C", error=None, subject="a", sequence=7),
    events.DeadLetterEvent(
        stream="S",
        consumer="C",
        subject="a",
        sequence=7,
        deliveries=3,
        reason="no",
        dead_letter="dead.a",
    ),
    events.OrderedResetEvent(
        stream="S", consumer="C_2", before="C_1", reason="gap", last_sequence=7, attempts=1
    ),
    events.BatchAbandonedEvent(stream="S", batch_id="b", reason="timeout"),
    events.BatchGapEvent(stream="S", batch_id="b", first=3, last=4),
    events.RetryEvent(operation="publish", subject="a", attempts=1, delay=0.1, error=None),
    events.TtlRaisedEvent(stream="S", subject="a", asked=1.0, stored=4.0),
    events.FilterOutsideSubjectsEvent(stream="S", consumer="C", filters=("x",), subjects=("a",)),
    events.PublishOperation(subject="a"),
    events.PublishCountsEvent(
        publish=events.PublishOperation(), acknowledged=3, duplicates=1, failed=2, unknown=1
    ),
    events.BatchCommitOperation(batch_id="b", size=2),
    events.FetchOperation(stream="S", consumer="C", max_messages=10),
    events.DirectReadOperation(stream="S", name="scan", subjects=("a.>",)),
]


@pytest.fixture
def gate():
    """
    An event that a handler can wait for. It is set at the end of the test.
    """
    event = threading.Event()
    yield event
    event.set()


class TestValues:
    @pytest.mark.parametrize("cls", [*STATUS_EVENTS, *OPERATIONS])
    def test_every_class_is_exported_and_sampled(self, cls):
        """
        Each class is in `__all__`, and has a sample here.
        """
        assert cls.__name__ in events.__all__
        assert cls in {type(sample) for sample in SAMPLES}

    @pytest.mark.parametrize("cls", [*STATUS_EVENTS, *OPERATIONS])
    def test_every_class_is_emitted(self, cls):
        """
        The package creates events and operations of each class.
        """
        made = re.compile(rf"(?<!class ){cls.__name__}\(")

        assert any(made.search(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py"))

    def test_each_kind_has_one_class(self):
        """
        Each kind has one class, and each class one kind.
        """
        kinds = [event.kind for event in SAMPLES if isinstance(event, events.StatusEvent)]

        assert sorted(kinds) == sorted(StatusKind)

    @pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
    def test_frozen_and_picklable(self, sample):
        """
        Values can be compared, hashed and pickled, but not changed.
        """
        copy = pickle.loads(pickle.dumps(sample))

        assert copy == sample
        assert hash(copy) == hash(sample)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            sample.stream = "OTHER"

    @pytest.mark.parametrize("cls", STATUS_EVENTS)
    def test_the_kind_can_not_be_given(self, cls):
        """
        The kind of an event is fixed by its class.
        """
        with pytest.raises(TypeError, match="kind"):
            cls(kind=StatusKind.CLOSED)

    def test_operation_names_are_stable(self):
        """
        The names of operations do not depend on the data, so they can be used as labels.
        """
        names = {
            type(sample).__name__: sample.name for sample in SAMPLES if hasattr(sample, "name")
        }

        assert names == {
            "PublishOperation": "publish",
            "BatchCommitOperation": "batch_commit",
            "FetchOperation": "fetch",
            "DirectReadOperation": "scan",
        }


class TestDispatcher:
    def test_delivers_in_order_in_its_own_thread(self):
        """
        Events are delivered in order, in the dispatcher's thread.
        """
        seen = []
        dispatcher = Dispatcher(
            lambda event: seen.append((event.reconnects, threading.current_thread().name))
        )

        for number in range(100):
            dispatcher.emit_later(ReconnectedEvent(reconnects=number))

        assert dispatcher.close(10)
        assert seen == [(number, EVENT_THREAD) for number in range(100)]
        assert repr(dispatcher) == "<Dispatcher closed, 0 pending, 0 dropped>"

    def test_no_thread_without_an_event(self):
        """
        The first event starts the thread. Closing without an event does not wait.
        """
        dispatcher = Dispatcher(lambda event: None)

        assert repr(dispatcher) == "<Dispatcher idle, 0 pending, 0 dropped>"
        assert dispatcher._thread is None
        assert dispatcher.close()

    def test_the_thread_is_a_daemon(self):
        """
        The thread is a daemon, so a handler that hangs does not keep the process alive.
        """
        daemon = []
        dispatcher = Dispatcher(lambda event: daemon.append(threading.current_thread().daemon))

        dispatcher.emit_later(ClosedEvent())
        dispatcher.close(10)

        assert daemon == [True]

    def test_emit_never_waits_for_a_handler(self, gate):
        """
        Events can be emitted while a handler is busy. `close` stops waiting after its timeout.
        """
        seen = []

        def slow(event):
            gate.wait(10)
            seen.append(event)

        dispatcher = Dispatcher(slow)
        dispatcher.emit_later(ClosedEvent())
        dispatcher.emit_later(LameDuckEvent())

        assert seen == []
        assert not dispatcher.close(0.01)
        gate.set()
        assert dispatcher.close(10)
        assert seen == [ClosedEvent(), LameDuckEvent()]

    def test_events_beyond_the_queue_are_counted_and_logged_once(self, gate, monkeypatch, caplog):
        """
        Events that do not fit in the queue are counted, and logged once.
        """
        monkeypatch.setattr(_eventthread, "MAX_EVENTS", 3)
        started = threading.Event()

        def hang(event):
            started.set()
            gate.wait(10)

        dispatcher = Dispatcher(hang)
        dispatcher.emit_later(ClosedEvent())
        assert started.wait(10)

        with caplog.at_level(logging.WARNING, "jetsync"):
            for _ in range(5):
                dispatcher.emit_later(ClosedEvent())

        assert repr(dispatcher) == "<Dispatcher running, 3 pending, 2 dropped>"
        assert [record.event for record in caplog.records] == ["events.dropped"]
        gate.set()
        dispatcher.close(10)

    def test_a_handler_may_close(self):
        """
        A handler can call `close`, which does not wait. Queued events are still delivered.
        """
        results = []
        finished = threading.Event()

        def handler(event):
            if isinstance(event, LameDuckEvent):
                results.append(dispatcher.close())
            else:
                finished.set()

        dispatcher = Dispatcher(handler)
        with dispatcher._lock:
            dispatcher.emit_later(LameDuckEvent())
            dispatcher.emit_later(ClosedEvent())

        assert finished.wait(10)
        assert dispatcher.close(10)
        assert results == [False]

    def test_nothing_after_close(self):
        """
        Events after `close` are ignored, and `close` can be repeated.
        """
        seen = []
        dispatcher = Dispatcher(seen.append)
        dispatcher.emit_later(ClosedEvent())
        dispatcher.close(10)

        dispatcher.emit_later(LameDuckEvent())

        assert dispatcher.close(10)
        assert seen == [ClosedEvent()]
        assert repr(dispatcher) == "<Dispatcher closed, 0 pending, 0 dropped>"

    def test_the_thread_survives_an_exit(self, caplog):
        """
        SystemExit in a handler does not end the thread, and further events are delivered.
        """
        seen = []

        def handler(event):
            seen.append(event)
            raise SystemExit(3)

        dispatcher = Dispatcher(handler)
        with caplog.at_level(logging.ERROR, "jetsync"):
            dispatcher.emit_later(ClosedEvent())
            dispatcher.emit_later(LameDuckEvent())
            dispatcher.close(10)

        assert seen == [ClosedEvent(), LameDuckEvent()]
        assert len(caplog.records) == 2

    def test_an_interpreter_that_ends_starts_no_thread(self, monkeypatch):
        """
        If the interpreter is shutting down, events are dropped without an error.
        """

        def refuse(self):
            raise RuntimeError("can't create new thread at interpreter shutdown")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        dispatcher = Dispatcher(lambda event: None)

        dispatcher.emit_later(ClosedEvent())

        assert dispatcher.close()


class TestPluginsAndDispatcher:
    def test_events_reach_the_plugin(self):
        """
        A plugin that implements jetsync_status gets the events of the dispatcher.
        """
        seen = []

        class Plugin:
            @hookimpl
            def jetsync_status(self, event):
                seen.append((event.kind, threading.current_thread().name))

        plugins = Plugins.load([Plugin], {})
        plugins.dispatcher.emit_later(ClosedEvent())
        plugins.status(LameDuckEvent())

        assert plugins.close(10)
        assert sorted(seen) == sorted(
            [
                (StatusKind.CLOSED, EVENT_THREAD),
                (StatusKind.LAME_DUCK, threading.current_thread().name),
            ]
        )

    def test_an_exit_is_logged_once(self, caplog):
        """
        SystemExit of a plugin is logged once. The other plugins get every event.
        """
        seen = []

        class Plugin:
            @hookimpl
            def jetsync_status(self, event):
                seen.append(event.kind)

        class Exits:
            @hookimpl
            def jetsync_status(self, event):
                raise SystemExit(3)

        plugins = Plugins.load([Plugin, Exits], {})
        with caplog.at_level(logging.ERROR, "jetsync"):
            for event in (LameDuckEvent(), ReconnectedEvent(), ClosedEvent()):
                plugins.dispatcher.emit_later(event)
            plugins.close(10)

        assert seen == [StatusKind.LAME_DUCK, StatusKind.RECONNECTED, StatusKind.CLOSED]
        assert [record.fields["plugin"] for record in caplog.records] == ["Exits"]
