"""
Runs the pipeline, kills its streaming driver in the middle, and compares with the batch answer.

The stages of the pipeline are processes that are started from here, without a Spark session.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pyspark

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.demo import pipeline
from jetsync_spark.demo.data import Totals, totals_of, unpack
from jetsync_spark.demo.picture import draw

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Request", "run"]

DESCRIPTION: Final = "made by `python -m jetsync_spark.demo`"
"""The description that marks streams and buckets of an earlier demo, which may be replaced."""

BATCHES: Final = 8
"""The approximate number of micro-batches."""

KILLED_AFTER: Final = 3
"""The driver is killed after the transaction of this micro-batch."""

PATIENCE: Final = 900.0
"""Seconds that a stage may take."""

PING_TIMEOUT: Final = 0.5
"""Seconds between two checks whether a stage has ended."""

SHOWN: Final = 30
"""The number of output lines that are shown of a failed stage."""


@attrs.frozen
class Request:
    """
    The options of the demo.
    """

    flights: int
    """The maximum number of flights."""

    picture: Path
    server: str | None = None
    """URL of a server; None starts one."""

    keep: bool = False
    """Whether to keep stream and buckets on that server."""


def run(request: Request) -> bool:
    """
    Run the pipeline with a kill, print what happens, and return whether all totals are right.

    Raises:
        JetStreamSparkError: A package is missing, or a stage failed.
        jetsync.JetSyncError: The server could not be used.
    """
    with contextlib.ExitStack() as stack:
        server = request.server or stack.enter_context(DevServer()).url
        client = stack.enter_context(jetsync.connect(server, name="jetsync demo"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jetsync-demo-")))
        say(
            f"nats-server {client.server.version} at {client.server.url}, "
            f"PySpark {pyspark.__version__}"
        )
        flights = unpack(folder, request.flights)
        js = client.jetstream()
        remove(js)
        try:
            stream, bucket = make(js)
            publish(stream, server, folder, flights)
            killed = follow(bucket, server, folder, flights)
            found = read(bucket)
        finally:
            if not (request.keep and request.server):
                remove(js)
        expected = totals_of(folder)
    note = f"the driver was killed after micro-batch {killed} and continued from its checkpoint"
    draw(found, request.picture, note="" if killed is None else note)
    say(f"picture: {request.picture.resolve()}")
    same = found == expected and killed is not None
    say(
        f"{sum(each.flights for each in found.values()):,} flights in {len(found):,} weekly totals,"
        f" {'equal to' if found == expected else 'DIFFERENT from'} the batch answer"
        f"{'' if killed is not None else ', but nothing was killed'}",
        good=same,
    )
    return same


def say(line: str, *, good: bool | None = None) -> None:
    """
    Print a line; a result in colour if the output is a terminal.
    """
    if good is not None and sys.stdout.isatty():
        line = f"\x1b[1;{32 if good else 31}m{line}\x1b[0m"
    print(line, flush=True)


def remove(js: jetsync.JetStream) -> None:
    """
    Remove the streams and buckets of an earlier demo. Others with these names are an error.

    Raises:
        JetStreamSparkError: There is such a stream or bucket.
    """
    for name in (pipeline.STREAM, f"KV_{pipeline.AIRLINES}", f"KV_{pipeline.DELAYS}"):
        with contextlib.suppress(jetsync.StreamNotFoundError):
            left = js.stream(name)
            if left.cached_info.config.description != DESCRIPTION:
                raise JetStreamSparkError(
                    f"the server has a stream {name} that is not the demo's",
                    cure="give another server, or remove it",
                )
            left.delete()


def make(js: jetsync.JetStream) -> tuple[jetsync.Stream, jetsync.KeyValue]:
    """
    Create the stream of flights and both buckets, and return the bucket of totals.
    """
    stream = js.create_stream(
        pipeline.STREAM,
        description=DESCRIPTION,
        subjects=["flights.>", "ledger.flights.>"],
        allow_atomic=True,
        allow_direct=True,
    )
    js.create_key_value(pipeline.AIRLINES, description=DESCRIPTION)
    return stream, js.create_key_value(pipeline.DELAYS, description=DESCRIPTION, atomic=True)


def publish(stream: jetsync.Stream, server: str, folder: Path, flights: int) -> None:
    """
    Run the stage that publishes the flights, and count them.

    Raises:
        JetStreamSparkError: The stage failed, or flights are missing.
    """
    began = time.monotonic()
    with stage("publish", server, folder) as driver:
        finish(driver)
    subjects = stream.info(subjects_filter="flights.>").state.subjects or {}
    stored = sum(subjects.values())
    say(f"{stored:,} flights published by two jobs in {time.monotonic() - began:.0f} s")
    if stored != flights:
        raise JetStreamSparkError(f"{stored} of {flights} flights were published")


def follow(bucket: jetsync.KeyValue, server: str, folder: Path, flights: int) -> int | None:
    """
    Run the stage that computes the totals, with a driver that is killed and one that continues.

    Returns:
        The micro-batch after which the first driver was killed; None if it ended before.

    Raises:
        JetStreamSparkError: The stage failed.
    """
    per_batch = max(flights // BATCHES, 1)
    with bucket.watch(pipeline.PROGRESS, updates_only=True) as watch:
        with stage("totals", server, folder, str(per_batch)) as driver:
            killed = _kill_in_the_middle(driver, watch)
        if killed is None:
            return None
        say(f"micro-batch {killed} is in the bucket: killed the streaming driver")
        with stage("totals", server, folder, str(per_batch)) as driver:
            say("started another one from the checkpoint")
            for batch in _batches(driver, watch):
                say(f"micro-batch {batch}")
    return killed


def _kill_in_the_middle(driver: Stage, watch: jetsync.Watch) -> int | None:
    for batch in _batches(driver, watch):
        say(f"micro-batch {batch}")
        if batch >= KILLED_AFTER:
            # Spark has not yet noted that this micro-batch is done.
            driver.kill()
            return batch
    return None


def _batches(driver: Stage, watch: jetsync.Watch) -> Iterator[int]:
    """
    Yield the micro-batches that arrive in the bucket, until the driver has ended.
    """
    ended = False
    while not ended:
        ended = driver.ended()
        while (entry := watch.next(timeout=0 if ended else PING_TIMEOUT)) is not None:
            yield json.loads(entry.value)["batch"]
    driver.check()


def read(bucket: jetsync.KeyValue) -> dict[str, Totals]:
    """
    Return a consistent snapshot of the totals in the bucket.
    """
    found = {}
    for key, entry in bucket.get_many("*.*").items():
        value = json.loads(entry.value)
        found[key] = Totals(*(value[name] for name in ("airline", "flights", "arrived", "minutes")))
    return found


class Stage:
    """
    A process that runs one stage of the pipeline.

    Spark's output goes to a file, whose end is shown if the stage fails.
    """

    def __init__(self, name: str, log: Path, *arguments: str) -> None:
        self._name = name
        self._log = log
        self._until = time.monotonic() + PATIENCE
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", pipeline.__name__, name, *arguments],
                stdin=subprocess.DEVNULL,
                stderr=file,
                # Spark's workers must use this interpreter.
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                # Its process group is killed as a whole: Python and the driver's Java.
                start_new_session=True,
            )

    def ended(self) -> bool:
        """
        Return whether the process has ended.

        Raises:
            JetStreamSparkError: It takes too long.
        """
        if self._process.poll() is not None:
            return True
        if time.monotonic() > self._until:
            self.kill()
            raise JetStreamSparkError(f"stage {self._name} took more than {PATIENCE:.0f} s")
        return False

    def check(self) -> None:
        """
        Raise JetStreamSparkError if the stage failed.
        """
        if self._process.wait():
            said = self._log.read_text("utf-8", "replace").splitlines()[-SHOWN:]
            print(*said, sep="\n", file=sys.stderr)
            raise JetStreamSparkError(
                f"stage {self._name} of the pipeline ended with {self._process.returncode}",
                cure="the end of its output is above",
            )

    def kill(self) -> None:
        """
        Kill the process with the Java of its driver; safe to repeat.
        """
        if self._process.poll() is None:
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def stage(name: str, server: str, folder: Path, *more: str) -> Iterator[Stage]:
    """
    Run a stage during a block of code, and then kill it if it has not ended.
    """
    started = Stage(name, folder / f"{name}.log", server, str(folder), *more)
    try:
        yield started
    finally:
        started.kill()


def finish(driver: Stage) -> None:
    """
    Wait until a stage has ended, and raise JetStreamSparkError if it failed.
    """
    while not driver.ended():
        time.sleep(PING_TIMEOUT)
    driver.check()
