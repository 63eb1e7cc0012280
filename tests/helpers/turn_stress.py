"""
Signals at random moments in programs that use turns: ``python turn_stress.py INTERRUPTS SECONDS``.

A timer sends SIGALRM at random moments. Its handler tries calls, compares what they do with where
the interrupted code says that it is, and mostly raises. Half of these raise through a real SIGINT.
The program prints a line of JSON: ``fired``, how often the handler ran; ``seen``, how often at each
place; ``wrong``, what contradicted the rule; and ``rival``, how often another thread had the turn.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time

from jetsync import CallInSignalHandlerError, ConflictingUseError, WaitTimeoutError
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.turn import Turn, is_inside, outside, refuse_inside, waiting

TURN, OTHER, THIRD = Turn("one"), Turn("other"), Turn("third")
KINDS = 6

# Where the interrupted code is: "out", "in", "hook", or "?" where it changes.
place = ["?"]
seen = {"out": 0, "in": 0, "hook": 0, "?": 0}
wrong: list[str] = []
counts = {"fired": 0}
chance = random.Random()


def outcome(call):
    """
    Return what a call of the handler does.
    """
    try:
        call()
    except CallInSignalHandlerError:
        return "refused"
    except ConflictingUseError:
        return "conflict"
    return "allowed"


WANT = {"out": "allowed", "in": "refused", "hook": "allowed"}


def judge(where):
    """
    Compare the calls of the handler with the rule.
    """
    calls = [
        lambda: THIRD.run(FOREVER, len, ""),
        refuse_inside,
    ]
    if where == "in":
        calls += [lambda: TURN.run(FOREVER, len, ""), lambda: OTHER.run(FOREVER, len, "")]
    for number, call in enumerate(calls):
        got = outcome(call)
        if got != WANT[where]:
            wrong.append(f"call {number} in {where}: {got}")
    if where == "hook":
        got = outcome(lambda: TURN.run(FOREVER, len, ""))
        if TURN.owned() and got != "conflict":
            wrong.append(f"a hook got the turn of its handle: {got}")


def strike(*_):
    """
    Handle SIGALRM.
    """
    counts["fired"] += 1
    where = place[0]
    seen[where] += 1
    place[0] = "?"
    try:
        if where != "?":
            judge(where)
    finally:
        place[0] = where
    if chance.random() < 0.7:
        if chance.random() < 0.5:
            signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt


def steps(count):
    """
    Make some steps at which a handler may run.
    """
    for number in range(count):
        len(str(number))


def hook():
    """
    Use another handle, and wait.
    """
    place[0] = "hook"
    steps(2)
    place[0] = "?"
    OTHER.run(FOREVER, work, 1)
    waiting(work, 1)
    place[0] = "hook"
    steps(1)
    place[0] = "?"


def work(count, *, hooked=False, fails=False):
    """
    Be inside a call.
    """
    place[0] = "in"
    steps(count)
    place[0] = "?"
    if hooked:
        outside(hook)
        place[0] = "in"
        steps(1)
        place[0] = "?"
    if fails:
        raise ValueError


def waits():
    """
    Be inside a call, before, during and after a wait.
    """
    place[0] = "in"
    waiting(steps, 1)
    OTHER.attempt(bool)
    place[0] = "?"


def once(kind):
    """
    Make one call of a kind.
    """
    place[0] = "?"
    try:
        if kind == 0:
            TURN.run(Deadline.after(5.0), work, 3)
        elif kind == 1:
            TURN.run(FOREVER, lambda: work(1, hooked=True))
        elif kind == 2:
            waiting(work, 2)
        elif kind == 3:
            TURN.run(FOREVER, lambda: work(1, fails=True))
        elif kind == 4:
            TURN.run(FOREVER, waits)
        else:
            TURN.run(Deadline.after(chance.random() * 1e-4), work, 1)
    except (ValueError, WaitTimeoutError):
        pass
    place[0] = "out"
    steps(2)


def burst():
    """
    Make calls until the timer has fired.
    """
    signal.setitimer(signal.ITIMER_REAL, chance.random() * 150e-6 + 1e-6)
    while signal.getitimer(signal.ITIMER_REAL)[0]:
        once(chance.randrange(KINDS))


def caught(call):
    """
    Make a call that an interrupt may end.
    """
    try:
        call()
        len("")
    except KeyboardInterrupt:
        pass


def check():
    """
    Check that no turn was left taken.
    """
    place[0] = "?"
    held = [turn.what for turn in (TURN, OTHER, THIRD) if turn.owned()]
    if held or is_inside():
        wrong.append(f"left taken: {held}")


def main(interrupts, seconds):
    """
    Interrupt that many times, or for that long, and return the result.
    """
    stop = threading.Event()
    had = [0]

    def count():
        had[0] += 1

    def rival():
        while not stop.is_set():
            TURN.run(FOREVER, count)
            time.sleep(chance.random() * 2e-4)

    sys.setswitchinterval(2e-5)
    signal.signal(signal.SIGALRM, strike)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    other = threading.Thread(target=rival, daemon=True)
    other.start()
    end, begun = time.monotonic() + seconds, 0

    def rounds():
        nonlocal begun
        while counts["fired"] < interrupts and not wrong and time.monotonic() < end:
            begun = had[0]
            caught(burst)
            caught(lambda: signal.setitimer(signal.ITIMER_REAL, 0))
            check()

    ended = False
    while not ended:
        try:
            rounds()
            ended = True
        except KeyboardInterrupt:
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    stop.set()
    other.join(30)
    if other.is_alive():
        wrong.append("the other thread never gets the turn")
    return {**counts, "seen": seen, "wrong": wrong[:5], "rival": had[0]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(int(sys.argv[1]), float(sys.argv[2]))))
