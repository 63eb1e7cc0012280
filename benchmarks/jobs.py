"""
The messages between controller and workers: a job, and its cost.

Both travel as one line of JSON over the worker's standard input and output.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SERVER_PID = "BENCHMARKS_SERVER_PID"
"""The environment variable with the process id of the server, whose CPU time is measured, too."""


@dataclass(frozen=True)
class Job:
    """
    Describe one measurement; the stream and the consumer exist and are ready.
    """

    row: str
    stream: str
    subject: str
    consumer: str
    """Name of the durable pull consumer, for rows that read."""

    count: int
    """How many messages."""

    size: int
    """Payload bytes of each."""

    window: int
    """How many publishes may be without an ack."""

    batch: int
    """How many messages one fetch asks for."""

    subjects: int = 1
    """How many subjects there are; more than one are :meth:`names`."""

    document: bool = False
    """Whether payloads are JSON documents."""

    options: dict[str, Any] = field(default_factory=dict)
    """What makes this contender differ from others of the same peer."""

    def to_json(self) -> str:
        """
        Return the line that is sent to a worker.
        """
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Job:
        """
        Read the line that the controller sent.
        """
        return cls(**json.loads(line))

    def names(self) -> list[str]:
        """
        Return the subjects of rows that have many.
        """
        return [f"{self.subject}.{number}" for number in range(self.subjects)]

    def payload(self) -> bytes:
        """
        Return the payload to publish; every peer publishes the same.
        """
        return payload_of(self.size, document=self.document)


def payload_of(size: int, *, document: bool = False) -> bytes:
    """
    Return *size* bytes, which are a JSON document on demand; of less than 24 there is none.
    """
    if document:
        head, tail = b'{"number":1,"text":"', b'"}'
        return head + payload_of(max(0, size - len(head) - len(tail))) + tail
    return (b"0123456789abcdef" * (size // 16 + 1))[:size]


@dataclass
class Sample:
    """
    Say what one measurement cost.
    """

    count: int
    seconds: float = 0.0
    cpu: float = 0.0
    """User and system seconds of the worker, all its threads included."""

    server: float | None = None
    """The same of the server; None where the system does not say."""

    p50: float | None = None
    """Median of the single calls in seconds, for rows that measure those."""

    p99: float | None = None

    p999: float | None = None

    background: int = 0
    """Messages that a bulk publisher stored beside the measured calls."""

    background_seconds: float = 0.0
    """How long it ran."""

    def latencies(self, nanoseconds: Sequence[int]) -> None:
        """
        Take the times of the single calls.
        """
        ordered = sorted(nanoseconds)

        def percentile(rank: int, calls: int) -> float | None:
            if len(ordered) < calls:
                return None
            return ordered[len(ordered) * rank // 1000] / 1e9

        # A percentile of too few calls would only be their maximum.
        self.p50, self.p99, self.p999 = (
            percentile(500, 1),
            percentile(990, 100),
            percentile(999, 1000),
        )


def server_cpu() -> float | None:
    """
    Return the CPU seconds of the server so far, or None if they are not known.
    """
    folder = Path("/proc", os.environ.get(SERVER_PID, "-"), "task")
    try:
        # In nanoseconds, where the usual file counts hundredths of a second.
        times = [int(path.read_text("ascii").split()[0]) for path in folder.glob("*/schedstat")]
    except OSError:
        return None
    return sum(times) / 1e9 if times else None


@contextmanager
def measured(count: int) -> Iterator[Sample]:
    """
    Measure the wall time and the CPU time of the block, for *count* messages.

    The garbage of what went before is collected first; during the block the collector works as it
    does in any program.
    """
    sample = Sample(count)
    gc.collect()
    server = server_cpu()
    before = resource.getrusage(resource.RUSAGE_SELF)
    begin = time.perf_counter()
    yield sample
    sample.seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    sample.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if server is not None:
        sample.server = (server_cpu() or server) - server
