"""
A publisher that lives across trials, which another thread and signal handlers use all the time.

Its own thread writes almost always, so handlers meet it at each step of a write.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time

import jetsync

SIGNALS = 400
"""Handlers of one trial."""

LONGEST = 6.0
"""Seconds of one trial. With handlers this frequent, calls hardly advance on a busy machine."""

PERIOD = 0.001
"""Seconds between two signals. A signal during a handler is ignored."""


def publish(h):
    h.js.publish("chaos.one", b"x")


def core_publish(h):
    for _ in range(20):
        h.client.publish("chaos.core", b"x" * 100)


def publish_many(h):
    h.js.publish_many(("chaos.many", b"x") for _ in range(200))


def request(h):
    h.client.request("$JS.API.INFO", timeout=2)


def kv_put(h):
    h.kv.put("busy", b"x")


def fetch(h):
    for message in h.busy.fetch(20, no_wait=True):
        message.ack()


CALLS = (publish, core_publish, publish_many, request, kv_put, fetch)
"""The calls that are interrupted, each many times."""


class BusyPublisher:
    """
    A client with a publisher, and a thread that publishes with it while :meth:`pumping`.
    """

    def __init__(self, handles) -> None:
        self.handles = handles
        # The other trials take longer than the consumers of a trial last.
        fields = {"filter_subject": "chaos.busy", "mem_storage": True}
        handles.busy = handles.stream.create_consumer("BUSY", **fields)
        # A busy machine may be late by more than the default.
        self.publisher = handles.js.publisher(ack_timeout=60)
        # The messages that had failed before the trial.
        self.failed = 0
        self._pumping = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()
        self.future = self.publisher.publish("chaos.publisher", b"first")

    def _pump(self) -> None:
        while True:
            self._pumping.wait()
            if self._over:
                return
            for _ in range(100):
                self.publisher.publish("chaos.publisher", b"x" * 100)

    @contextlib.contextmanager
    def pumping(self):
        """Publish in the other thread during the block."""
        self._pumping.set()
        try:
            yield
        finally:
            self._pumping.clear()

    def act(self, chance) -> None:
        """Use the publisher, in a signal handler."""
        publisher, choice = self.publisher, chance.random()
        if choice < 0.6:
            self.future = publisher.publish("chaos.publisher", b"handler")
        elif choice < 0.7:
            publisher.statistics()
        elif choice < 0.8:
            publisher.flush(timeout=0.2)
        elif choice < 0.9:
            self.future.add_done_callback(lambda _: None)
        else:
            with contextlib.suppress(jetsync.WaitTimeoutError):
                self.future.result(timeout=0.2)

    def close(self) -> None:
        self._over = True
        self._pumping.set()
        self._thread.join(10)
        self.handles.client.close(timeout=5)


def trial(world, chance, report) -> None:
    """Make one call again and again, and interrupt it by hundreds of handlers."""
    busy, call = world.busy, chance.choice(CALLS)
    report.about(f"a busy publisher in handlers during {call.__name__}")
    handled = 0
    is_handling = False

    def handler(signum, frame):
        nonlocal handled, is_handling
        if is_handling:
            return
        is_handling = True
        report.counts["signals"] += 1
        handled += 1
        try:
            busy.act(chance)
        except jetsync.CallInSignalHandlerError:
            report.counts["refused"] += 1
        except jetsync.JetSyncError as error:
            report.violation("handler: failed", repr(error))
        except Exception as error:  # noqa: BLE001 - the trial looks for any error
            report.foreign("the handler", error)
        finally:
            is_handling = False

    before = signal.signal(signal.SIGALRM, handler)
    end = time.monotonic() + LONGEST
    try:
        with busy.pumping():
            signal.setitimer(signal.ITIMER_REAL, PERIOD, PERIOD)
            while handled < SIGNALS and time.monotonic() < end:
                call(busy.handles)
    except jetsync.JetSyncError as error:
        report.violation("call: failed", repr(error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    left = busy.publisher.flush(timeout=5)
    failed, busy.failed = busy.failed, busy.publisher.statistics().failed
    failed = busy.failed - failed
    if left or failed:
        losses = busy.handles.client.statistics().reconnects
        text = f"{left} messages have no outcome, {failed} failed, {losses} reconnects so far"
        report.violation("publisher", text)
