"""
Ctrl-C at random moments of all kinds of reads, which continue with the same object afterwards.
"""

from __future__ import annotations

import contextlib
import time

import attrs
from calls import Striker
from trial import LATE, Report

import jetsync
from helpers.interrupted_reads import KINDS, Sources
from jetsync.devserver import DevServer


@attrs.define
class World:
    client: jetsync.Client
    rig: Sources
    striker: Striker
    known: dict[str, tuple[float, int]] = attrs.Factory(dict)
    """How many seconds and steps each read takes undisturbed."""


@contextlib.contextmanager
def world():
    with DevServer() as server, jetsync.connect(server.url, reconnect_wait=0.01) as client:
        yield World(client, Sources(client, "CHAOS"), Striker())


def trial(world: World, chance, report: Report) -> None:
    """Interrupt one read by a KeyboardInterrupt, and continue until it is complete or says why."""
    name = chance.choice(list(KINDS))
    if name not in world.known:
        world.known[name] = measure(world, name)
    seconds, steps = world.known[name]
    timed = chance.random() < 0.5
    delay = chance.random() * seconds if timed else None
    step = chance.randrange(steps) + 1
    where = f"{delay:.4f} s" if timed else f"step {step} of {steps}"
    report.about(f"Ctrl-C during {name} at {where}")

    def interrupt():
        report.counts["interrupts"] += 1
        raise KeyboardInterrupt

    read, got = begin(world, name), []
    try:
        world.striker.run(lambda: read.take(got), interrupt, delay=delay, step=step)
    except KeyboardInterrupt:
        pass
    except Exception as error:  # noqa: BLE001 - the trial looks for any error
        report.foreign("the read", error)
        return
    try:
        wrong = read.missing(got)
    except Exception as error:  # noqa: BLE001 - as above
        report.foreign("the read that continues", error)
    else:
        if wrong:
            report.violation(f"{name} is not whole", wrong)
    with contextlib.suppress(jetsync.JetSyncError):
        read.close()


def begin(world: World, name: str):
    """Begin a read. The interrupt of the last trial may have ended the connection."""
    end = time.monotonic() + 5 + LATE
    while True:
        try:
            world.client.flush(timeout=5)
            return KINDS[name](world.rig)
        except (jetsync.TransportError, jetsync.RequestTimeoutError):
            if time.monotonic() > end:
                raise


def measure(world: World, name: str) -> tuple[float, int]:
    """Return how many seconds and how many steps a read takes."""
    read = begin(world, name)
    started = time.monotonic()
    read.take([])
    seconds = time.monotonic() - started
    read.close()
    read = begin(world, name)
    steps = world.striker.steps(lambda: read.take([]))
    read.close()
    return seconds, steps
