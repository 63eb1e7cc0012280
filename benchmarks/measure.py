"""
Run one row: the same work by every contender in turn, round after round, each in a process of its
own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.jobs import SERVER_PID, Job, Sample, payload_of
from benchmarks.peers.raw_socket import RawConnection
from benchmarks.rows import WORKER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.rows import Contender, Row
    from jetsync.devserver import DevServer

# Named so that it can be a bucket too.
STREAM = "KV_BENCH"
SUBJECT = "bench.x"
SETTLE_TIMEOUT = 30.0
NO_STORE = "error creating store for stream"


@dataclass(frozen=True)
class Settings:
    """
    Say how much is measured.
    """

    rounds: int
    single: int
    """Messages of a row that measures single calls."""

    bulk: int
    """Messages of a row that measures a rate."""

    size: int
    window: int
    batch: int
    storage: str

    def count(self, row: Row) -> int:
        """
        Return how many messages a row has.
        """
        return self.single if row.latency else max(1, self.bulk // row.part)


@dataclass
class Result:
    """
    Hold what one contender needed, over all rounds.
    """

    contender: Contender
    samples: list[Sample] = field(default_factory=list)
    note: str = ""
    """Why there are no samples."""

    def median(self, value: Callable[[Sample], float | None]) -> float | None:
        """
        Return the median of one value over the rounds; None if a round has no such value.
        """
        values = [v for v in map(value, self.samples) if v is not None]
        return statistics.median(values) if 0 < len(values) == len(self.samples) else None

    @property
    def rate(self) -> float | None:
        """
        Messages per second.
        """
        return self.median(lambda sample: sample.count / sample.seconds)

    @property
    def p50(self) -> float | None:
        """
        Seconds of the median call.
        """
        return self.median(lambda sample: sample.p50)

    @property
    def p99(self) -> float | None:
        """
        Seconds that 99 of 100 calls stay below.
        """
        return self.median(lambda sample: sample.p99)

    @property
    def p999(self) -> float | None:
        """
        Seconds that 999 of 1,000 calls stay below.
        """
        return self.median(lambda sample: sample.p999)

    @property
    def background(self) -> float | None:
        """
        Messages per second of the bulk publisher beside the measured calls, if there was one.
        """
        return self.median(
            lambda s: s.background / s.background_seconds if s.background_seconds else None
        )

    @property
    def cpu(self) -> float | None:
        """
        CPU seconds per message.
        """
        return self.median(lambda sample: sample.cpu / sample.count)

    @property
    def server_cpu(self) -> float | None:
        """
        CPU seconds of the server per message.
        """
        return self.median(lambda s: None if s.server is None else s.server / s.count)


class Worker:
    """
    Own the process of one contender.
    """

    def __init__(self, contender: Contender, url: str, server_pid: int) -> None:
        options = json.dumps(contender.options)
        self._process = subprocess.Popen(
            [*(contender.command or (sys.executable, *WORKER)), contender.peer, url, options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env={**os.environ, SERVER_PID: str(server_pid), **contender.environment},
        )
        hello = self._read()
        self.missing = str(hello.get("missing", ""))
        self.rows: Sequence[str] = hello.get("rows", ())

    def do(self, job: Job) -> dict[str, Any]:
        """
        Let it do one job and return its answer.
        """
        if self._process.stdin is None:
            raise RuntimeError("the worker has no input")
        self._process.stdin.write(job.to_json() + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            ended = f"its process ended with status {self._process.wait()}"
            return {"failed": ended, "missing": ended}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """
        Let the process end, by ending its input; one that does not is killed.
        """
        self._process.stdin.close() if self._process.stdin else None
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close() if self._process.stdout else None


class Stage:
    """
    Prepare the stream before each measurement and check it afterwards.
    """

    def __init__(self, url: str, row: Row, settings: Settings) -> None:
        self._row = row
        self._settings = settings
        self._admin = RawConnection(url)
        self._consumers = 0
        self.count = settings.count(row)
        self._api("STREAM.DELETE", STREAM)
        config = {
            "name": STREAM,
            "subjects": ["bench.>"],
            "storage": settings.storage,
            **row.stream_config,
        }
        deadline = time.monotonic() + SETTLE_TIMEOUT
        while True:
            try:
                self._api("STREAM.CREATE", STREAM, config, must=True)
                break
            except RuntimeError as error:
                # A busy server may still remove the files of the last stream.
                if NO_STORE not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        if row.kind != "publish":
            self._fill()

    def close(self) -> None:
        """
        Remove the stream.
        """
        self._api("STREAM.DELETE", STREAM)
        self._admin.close()

    def job(self, contender: Contender, count: int | None = None) -> Job:
        """
        Make the stream ready and return the job to do.
        """
        count = count or self.count
        consumer = ""
        if self._row.kind == "publish":
            self._api("STREAM.PURGE", STREAM, must=True)
        elif self._row.kind == "read":
            consumer = self._consumer()
        settings = self._settings
        return Job(
            row=self._row.method,
            stream=STREAM,
            subject=SUBJECT,
            consumer=consumer,
            count=count,
            size=settings.size,
            window=settings.window,
            batch=min(self._row.batch or settings.batch, count),
            subjects=self._row.subjects,
            document=self._row.document,
            options=contender.options,
        )

    def check(self, job: Job, sample: Sample) -> str:
        """
        Return what is wrong with the outcome of a job, empty when it did what it should.
        """
        if self._row.kind == "publish":
            expected = sample.count + sample.background
            stored = self._api("STREAM.INFO", STREAM, must=True)["state"]["messages"]
            return "" if stored == expected else f"{stored} messages stored, not {expected}"
        if not job.consumer:
            # Whoever reads without a consumer counts by itself.
            return ""
        path = f"{STREAM}.{job.consumer}"
        # Acks are not answered; the server may still be busy with the last ones.
        deadline = time.monotonic() + SETTLE_TIMEOUT
        while True:
            info = self._api("CONSUMER.INFO", path, must=True)
            delivered = info["delivered"]["consumer_seq"]
            if self._row.own_consumer:
                problem = ""
                break
            # Contenders that buffer messages may get more than they take.
            if delivered < job.count:
                problem = f"{delivered} messages delivered, not {job.count}"
                break
            missing = info["num_ack_pending"] - (delivered - job.count)
            problem = f"{missing} messages not acknowledged"
            if self._row.ack_policy == "none" or missing <= 0:
                problem = ""
                break
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self._api("CONSUMER.DELETE", path)
        return problem

    def _fill(self) -> None:
        """
        Publish what the contenders will read.
        """
        payload = payload_of(self._settings.size, document=self._row.document)
        many = self._row.subjects
        names = [f"{SUBJECT}.{number}" for number in range(many)] if many > 1 else [SUBJECT]
        size = len(payload)
        blocks = [b"PUB %b %d\r\n%b\r\n" % (name.encode(), size, payload) for name in names]
        left = self.count
        while left:
            now = min(left, 1000)
            whole, part = divmod(now, len(blocks))
            self._admin.send(b"".join(blocks) * whole + b"".join(blocks[:part]))
            left -= now
            self._admin.flush()
        deadline = time.monotonic() + SETTLE_TIMEOUT
        while self._api("STREAM.INFO", STREAM, must=True)["state"]["messages"] < self.count:
            if time.monotonic() > deadline:
                raise RuntimeError("the stream could not be filled")
            time.sleep(0.01)

    def _consumer(self) -> str:
        self._consumers += 1
        name = f"c{self._consumers}"
        config = {
            "durable_name": name,
            "ack_policy": self._row.ack_policy,
            # So that no contender waits for acks that another would have sent in the meantime.
            "max_ack_pending": 100_000,
        }
        body = {"stream_name": STREAM, "config": config}
        self._api("CONSUMER.DURABLE.CREATE", f"{STREAM}.{name}", body, must=True)
        return name

    def _api(
        self, endpoint: str, name: str, body: dict[str, Any] | None = None, *, must: bool = False
    ) -> dict[str, Any]:
        answer = self._admin.request(f"$JS.API.{endpoint}.{name}", body)
        if must and "error" in answer:
            raise RuntimeError(f"{endpoint}: {answer['error']}")
        return answer


def run_row(
    server: DevServer,
    row: Row,
    contenders: Sequence[Contender],
    settings: Settings,
    progress: Callable[[str], None],
) -> list[Result]:
    """
    Measure one row and return a result per contender, in their order.

    The contenders take turns within each round, and each round begins with another one, so that a
    busy second of the machine does not always meet the same.
    """
    url, (pid,) = server.url, server.pids
    stage = Stage(url, row, settings)
    results = [Result(contender) for contender in contenders]
    workers = [Worker(contender, url, pid) for contender in contenders]
    try:
        for result, worker in zip(results, workers, strict=True):
            if worker.missing:
                result.note = f"not here: {worker.missing}"
            elif row.method not in worker.rows:
                result.note = "has nothing like it"
            else:
                # Everything once, unmeasured: imports, caches, the first growth of buffers.
                _measure(stage, result, worker, max(1, stage.count // 10))
                result.samples.clear()
        for turn in range(settings.rounds):
            progress(f"{row.name}: round {turn + 1} of {settings.rounds}")
            order = [(turn + place) % len(results) for place in range(len(results))]
            for place in order:
                if not results[place].note:
                    _measure(stage, results[place], workers[place], stage.count)
    finally:
        for worker in workers:
            worker.close()
        stage.close()
    return results


def _measure(stage: Stage, result: Result, worker: Worker, count: int) -> None:
    job = stage.job(result.contender, count)
    answer = worker.do(job)
    if "failed" in answer:
        result.note = str(answer["failed"])
        return
    sample = Sample(**answer)
    result.note = stage.check(job, sample)
    if not result.note:
        result.samples.append(sample)
