"""
The process that runs the trials of one part, and the checks after each trial.

``trial.py PART SEED`` runs trials from SEED on until it is killed, and writes one line of JSON for
each.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import itertools
import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[1:1] = [str(TESTS), str(TESTS / "live" / "io")]

import jetsync  # noqa: E402

LATE = float(os.environ.get("JETSYNC_TEST_LATE", "2.5"))
"""Seconds by which a busy machine may be late, as in waiting.py."""


class Skipped(Exception):  # noqa: N818 - it is no error
    """
    A part cannot run on this machine; the text says why.
    """


class Report:
    """
    Collect what one trial counts and which guarantees it saw violated.
    """

    def __init__(self, seed: int, noise: Noise) -> None:
        self.seed = seed
        self.noise = noise
        self.counts: Counter[str] = Counter()
        self.violations: list[tuple[str, str]] = []
        self.context = ""

    def about(self, context: str) -> None:
        """Note the next action of the trial, for its findings and for reports of a hang."""
        self.context = context
        say(doing=context)

    def violation(self, kind: str, text: str) -> None:
        """Note a violation; one of a kind is enough for a trial."""
        if any(known == kind for known, _ in self.violations):
            return
        self.violations.append((kind, f"{self.context}: {text}" if self.context else text))

    def foreign(self, name: str, error: Exception) -> None:
        """Note an exception that is not a JetSyncError."""
        trace = "".join(traceback.format_exception(error))
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/jetsync/" in frame.filename]
        place = f"{Path(ours[-1].filename).name} {ours[-1].name}" if ours else "elsewhere"
        self.violation(f"{type(error).__name__} from {place}", f"{name}: {error!r}\n{trace}")

    def call(self, name, function, limit):
        """
        Make a public call, which may raise only a JetSyncError and has *limit* seconds.

        Returns its result, or the JetSyncError.
        """
        begin = time.monotonic()
        try:
            result = function()
        except jetsync.JetSyncError as error:
            self.counts["errors"] += 1
            result = error
        except Exception as error:  # noqa: BLE001 - the trial looks for any error
            self.foreign(name, error)
            result = None
        self.counts["calls"] += 1
        seconds = time.monotonic() - begin
        if seconds > limit + LATE:
            self.violation("late", f"{name} took {seconds:.1f} s, allowed are {limit:g} s")
        return result


def jetsync_threads() -> list[threading.Thread]:
    # Ctrl-C inside Thread.start may leave a thread in Python's list that never began.
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("jetsync-") and thread.is_alive()
    ]


def descriptors() -> dict[str, str]:
    """Return the open descriptors of this process, and their targets."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:
            # The folder itself.
            continue
    return found


def memory(field: str = "VmRSS") -> int:
    """Return a memory figure of this process in bytes; VmHWM is the highest since `forget_peak`."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


class Base:
    """
    The threads and descriptors of the process before any client.
    """

    def __init__(self) -> None:
        self.take()

    def take(self) -> None:
        """Take the present threads and descriptors as the base."""
        self.threads = set(jetsync_threads())
        self.descriptors = descriptors()

    def check(self, report: Report, within: float = 3.0) -> None:
        """Wait until everything is as before, or report the leftovers, once."""
        end = time.monotonic() + within + LATE
        while True:
            gc.collect()
            threads = [thread.name for thread in jetsync_threads() if thread not in self.threads]
            now = descriptors()
            more = len(now) - len(self.descriptors)
            if not threads and more <= 0:
                return
            if time.monotonic() > end:
                break
            time.sleep(0.02)
        if threads:
            report.violation("threads left", ", ".join(threads))
        if more > 0:
            new = [what for name, what in now.items() if self.descriptors.get(name) != what]
            report.violation("descriptors left", f"{more} more: {', '.join(new)}")
        self.take()


class Noise(logging.Handler):
    """
    Actions that a library must avoid: writing to stderr, letting threads die, logging tracebacks of
    its own bugs.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._found: list[tuple[str, str]] = []
        self.interrupts = 0
        """The number of Ctrl-Cs that hit a finalizer, where Python can only print them."""
        faulthandler.enable(os.fdopen(os.dup(2), "w"))
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        os.dup2(self._file.fileno(), 2)
        threading.excepthook = self._died
        sys.unraisablehook = self._unraisable
        # The other loggers stay as in a program that has not configured logging: their warnings go
        # to stderr.
        logging.getLogger("jetsync").addHandler(self)

    def _died(self, args) -> None:
        trace = "".join(traceback.format_exception(args.exc_value))
        self._found.append(("thread died", f"{args.thread.name}: {args.exc_value!r}\n{trace}"))

    def _unraisable(self, args) -> None:
        if isinstance(args.exc_value, KeyboardInterrupt):
            self.interrupts += 1
            return
        trace = "".join(traceback.format_exception(args.exc_value))
        self._found.append(("unraisable", f"{args.exc_value!r} in {args.object!r}\n{trace}"))

    def emit(self, record: logging.LogRecord) -> None:
        # jetsync may log that a server made an error. A traceback is a bug of jetsync.
        if record.exc_info:
            text = logging.Formatter().format(record)
            self._found.append(("logged", f"{record.name} {record.levelname}: {text}"))

    def check(self, report: Report) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size:
            text = os.pread(self._file.fileno(), min(size, 4000), 0).decode(errors="replace")
            # Only this descriptor writes there, and it appends from the start again.
            os.ftruncate(self._file.fileno(), 0)
            os.lseek(2, 0, os.SEEK_SET)
            self._found.append(("stderr", text))
        found, self._found = self._found, []
        for kind, text in found:
            report.violation(kind, text)
        if self.interrupts:
            report.counts["in finalizers"] += self.interrupts
            self.interrupts = 0


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(name: str, first: int) -> None:
    """Run trials until the process is killed."""
    part = importlib.import_module(name)
    noise = Noise()
    process = os.getpid()
    with contextlib.ExitStack() as stack:
        try:
            world = stack.enter_context(part.world())
        except Skipped as reason:
            say(skipped=str(reason))
            return
        say(doing="start")
        for seed in itertools.count(first):
            report = Report(seed, noise)
            try:
                part.trial(world, random.Random(seed), report)
            except BaseException as error:
                if os.getpid() != process:
                    # A forked child ends.
                    raise
                report.violation(
                    f"trial failed: {type(error).__name__}",
                    "".join(traceback.format_exception(error)),
                )
                # The next trial must not be blamed for leftovers of this one.
                world.base.take()
            noise.check(report)
            say(seed=seed, counts=report.counts, violations=report.violations)


if __name__ == "__main__":
    # Parts import this module by its name and must get this instance.
    sys.modules["trial"] = sys.modules["__main__"]
    main(sys.argv[1], int(sys.argv[2]))
