"""
Signal handlers that use the client, at random moments of all blocking calls of the main thread.

A handler that interrupts a call may make every call that never waits. Other calls work, or are
refused at once.
"""

from __future__ import annotations

import contextlib
import time
import traceback

import attrs
import busy
from calls import ACTION_LIMIT, ACTIONS, CALLS, CLOSING, Handles, Striker, handles, server
from trial import LATE, Base, Report

import jetsync

CALL_LIMIT = 4.0
"""Seconds that an interrupted call may take after its handler: its own time-out and some more."""

AT_ONCE = 0.0
"""Seconds that an action may take that is refused."""

NEVER_WAITS = {"close", "drain", "subscription.close"}
"""Actions that are never refused."""

BUSY = 10
"""One of so many trials uses the busy publisher."""


@attrs.define
class World:
    url: str
    striker: Striker
    busy: busy.BusyPublisher
    base: Base


@contextlib.contextmanager
def world():
    with server() as running:
        striker = Striker()
        publisher = busy.BusyPublisher(handles(running.url))
        try:
            yield World(running.url, striker, publisher, Base())
        finally:
            publisher.close()


def trial(world: World, chance, report: Report) -> None:
    """Interrupt one call by one handler, or many calls by many handlers of a busy publisher."""
    if report.seed % BUSY == 0:
        busy.trial(world, chance, report)
        return
    name = chance.choice(list(CALLS))
    action = chance.choice(list(ACTIONS))
    seconds, steps = world.striker.measure(name, lambda: handles(world.url))
    timed = chance.random() < 0.5
    delay = chance.random() * seconds if timed else None
    step = chance.randrange(steps) + 1
    where = f"{delay:.4f} s" if timed else f"step {step} of {steps}"
    report.about(f"{action} in a handler during {name} at {where}")
    h = handles(world.url)
    strike(world, report, h, name, action, delay, step)
    check_client(report, h, closed=name in CLOSING or action in {"close", "drain"})
    h = None
    world.base.check(report)


def strike(world, report, h: Handles, name, action, delay, step) -> None:
    """Make the call, run the handler in its middle, and check both outcomes."""
    handled = 0.0

    def handler():
        nonlocal handled
        report.counts["signals"] += 1
        limit = ACTION_LIMIT
        begin = time.monotonic()
        try:
            ACTIONS[action](h)
        except jetsync.CallInSignalHandlerError:
            report.counts["refused"] += 1
            limit = AT_ONCE
            if action in NEVER_WAITS:
                report.violation("handler: refused", traceback.format_exc())
        except jetsync.JetSyncError:
            report.counts["errors"] += 1
        except Exception as error:  # noqa: BLE001 - the trial looks for any error
            report.foreign("the handler", error)
        handled = time.monotonic() - begin
        if handled > limit + LATE:
            report.violation("handler: late", f"took {handled:.1f} s")

    begin = time.monotonic()
    try:
        world.striker.run(lambda: CALLS[name](h), handler, delay=delay, step=step)
    except jetsync.JetSyncError:
        report.counts["calls that failed"] += 1
    except Exception as error:  # noqa: BLE001 - the trial looks for any error
        report.foreign("the call", error)
    seconds = time.monotonic() - begin - handled
    if seconds > CALL_LIMIT + LATE:
        report.violation("call: late", f"took {seconds:.1f} s")
    h.current = None


def works_again(h: Handles) -> None:
    """Use the client; the interrupted call may have cut its connection."""
    end = time.monotonic() + 5 + LATE
    while True:
        try:
            h.client.flush(timeout=5)
            h.js.publish("chaos.one", b"after", timeout=5)
        except (jetsync.TransportError, jetsync.PublishOutcomeUnknownError):
            # An interrupted reconnect drops the connection a moment later.
            if time.monotonic() > end or h.client.is_closed:
                raise
        else:
            return


def check_client(report: Report, h: Handles, *, closed: bool) -> None:
    """After the call the client works, unless it was closed, and it closes in time."""
    if not closed:
        try:
            works_again(h)
        except Exception:  # noqa: BLE001 - the campaign continues
            report.violation("client does not work afterwards", traceback.format_exc())
    report.call("close", lambda: h.client.close(timeout=3), 3)
    if not h.client.is_closed:
        report.violation("not closed after close", repr(h.client))
