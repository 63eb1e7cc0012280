"""
Ctrl-C at random moments of all blocking calls, of ``connect``, ``with`` blocks and ``close``.
"""

from __future__ import annotations

import traceback

from calls import CALLS, CLOSING, handles
from signals import World, check_client, world
from trial import Report

__all__ = ["trial", "world"]


def trial(world: World, chance, report: Report) -> None:
    """Interrupt one call by a KeyboardInterrupt. The call may raise nothing else."""
    # 40 % of the trials are for calls that start and end threads and sockets.
    lives = ["connect", "with_block", "close", "drain", "reconnect"]
    name = chance.choice(lives if chance.random() < 0.4 else list(CALLS))
    seconds, steps = world.striker.measure(name, lambda: handles(world.url))
    timed = chance.random() < 0.5
    delay = chance.random() * seconds if timed else None
    step = chance.randrange(steps) + 1
    where = f"{delay:.4f} s" if timed else f"step {step} of {steps}"
    report.about(f"Ctrl-C during {name} at {where}")
    h = handles(world.url)
    struck = False

    def interrupt():
        nonlocal struck
        struck = True
        raise KeyboardInterrupt

    finalizers = report.noise.interrupts
    raised = None
    try:
        world.striker.run(lambda: CALLS[name](h), interrupt, delay=delay, step=step)
    except BaseException as error:  # noqa: BLE001 - the trial looks for any error
        raised = error
    report.counts["interrupts"] += struck
    if struck and raised is None and report.noise.interrupts == finalizers:
        report.violation("swallowed", "the call returned as if there had been no Ctrl-C")
    elif raised is not None and not (struck and isinstance(raised, KeyboardInterrupt)):
        trace = "".join(traceback.format_exception(raised))
        report.violation(f"{type(raised).__name__} instead of KeyboardInterrupt", trace)
    raised = None
    h.current = None
    check_client(report, h, closed=name in CLOSING)
    h = None
    world.base.check(report)
