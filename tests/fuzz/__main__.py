"""
Compare the functions in Python with their compiled twins, on random valid and spoiled input.

``tox run -e fuzz -- --streams 10000000`` is the campaign. Each stream has a seed, which counts up,
and each difference names the seed of its stream::

    tox run -e fuzz -- --seed 1234 --streams 1

The streams run in a child process. If it crashes, this one names the seed as well.
"""

from __future__ import annotations

import argparse
import faulthandler
import mmap
import os
import random
import struct
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from twins import DifferenceError, check

# Found by the line above.
from helpers.variants import COMPILED, NOT_COMPILED, PYTHON

MOST_DIFFERENCES = 10
"""The run ends with as many."""


def show(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(seed: int, streams: int, seconds: float, current: mmap.mmap) -> int:
    """Run streams from one seed on, and return how many showed a difference."""
    rng, counts, found = random.Random(), Counter(), 0
    begin = time.monotonic()
    reported, number = begin, 0
    for number in range(1, streams + 1):
        struct.pack_into("q", current, 0, seed)
        try:
            counts[check(rng, seed, PYTHON, COMPILED)] += 1
        except DifferenceError as difference:
            found += 1
            show(f"\n{difference}\nagain: tox run -e fuzz -- --seed {seed} --streams 1")
            if found == MOST_DIFFERENCES:
                break
        seed += 1
        if number % 1000 == 0:
            now = time.monotonic()
            if now - reported > 60:
                reported = now
                show(f"{number:,} streams, {number / (now - begin):,.0f} a second")
            if now - begin > seconds:
                break
    passed = time.monotonic() - begin
    cases = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    show(f"{number:,} streams in {passed:,.0f} s, {found} differences: {cases}")
    return found


def watched(seed: int, streams: int, seconds: float) -> int:
    """Run streams in a child, and return the exit status."""
    current = mmap.mmap(-1, 8)
    if not hasattr(os, "fork"):
        return min(run(seed, streams, seconds, current), 1)
    child = os.fork()
    if child == 0:
        faulthandler.enable()
        status = 1
        try:
            status = min(run(seed, streams, seconds, current), 1)
        except KeyboardInterrupt:
            show("interrupted")
        finally:
            os._exit(status)
    try:
        _, status = os.waitpid(child, 0)
    except KeyboardInterrupt:
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in {0, 1}:
        (seed,) = struct.unpack("q", current)
        show(f"the process ended with {code}; again: tox run -e fuzz -- --seed {seed} --streams 1")
    return 1 if code else 0


def main() -> int:
    """Read the arguments, run, and return the exit status."""
    parser = argparse.ArgumentParser(prog="tox run -e fuzz --", description=__doc__)
    parser.add_argument("--seed", type=int, help="the seed of the first stream; counts up")
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    asked = parser.parse_args()
    if not COMPILED:
        show(NOT_COMPILED)
        return 1
    seed = random.randrange(1 << 31) if asked.seed is None else asked.seed
    show(f"from seed {seed}")
    return watched(seed, asked.streams, asked.seconds)


if __name__ == "__main__":
    sys.exit(main())
