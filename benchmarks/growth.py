"""
What grows with the size of the work: ``python -m benchmarks growth``.

Each group makes one thing larger: payloads, threads, consumptions, streams, subjects or buckets. A
figure is the time, the CPU and the memory of one message, call, key or consumption. If it stays the
same from the smallest to the largest value, the whole work grows linearly.

Each job runs in a process of its own, so that the peak of its memory is known.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import random
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jetsync
from benchmarks.jobs import measured, payload_of
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from benchmarks.jobs import Sample
    from jetsync import Client, JetStream, KeyValue, Message, Stream

STREAM = "GROWTH"
BUCKET = "GROWTH"
LONG = 300.0
"""Seconds for calls whose time is measured."""

ROUNDS = 3
ENOUGH = 2.0
"""Seconds after which no further round begins."""

CALLS = 2000
"""Calls of a job that measures single calls."""

MIB = 1 << 20


@dataclass
class Figure:
    """
    Hold one measurement, which is one line of a table at one value.
    """

    name: str
    per: str
    """What is counted: messages, calls, keys, subjects or consumptions."""

    count: int
    seconds: float
    """Wall time of all of them."""

    cpu: float
    """User and system seconds of the process, all its threads included."""

    memory: int | None = None
    """Bytes by which the process grew at most, if the job is about memory."""


@dataclass
class Case:
    """
    Describe one job at one value.
    """

    group: str
    job: str
    value: int
    url: str


class Probe:
    """
    Measures the jobs of one process.
    """

    def __init__(self, case: Case) -> None:
        self.value = case.value
        self.client: Client = jetsync.connect(case.url)
        self.js: JetStream = self.client.jetstream(timeout=30.0)
        self.figures: list[Figure] = []

    def measure(
        self,
        name: str,
        per: str,
        count: int,
        work: Callable[[], object],
        *,
        before: Callable[[], object] | None = None,
        rounds: int = ROUNDS,
    ) -> None:
        """
        Run *work* a few times, and keep the figure of the median round.

        Args:
            name: The line of the table.
            per: What is counted.
            count: How many of them one call of *work* has.
            work: The work.
            before: Called before each round, outside of the measurement.
            rounds: How often to run it, unless it takes long.
        """
        samples: list[Sample] = []
        least = resident()
        reset_peak()
        began = time.monotonic()
        while len(samples) < rounds and (not samples or time.monotonic() - began < ENOUGH):
            if before is not None:
                before()
            with measured(count) as sample:
                work()
            samples.append(sample)
        memory = max(0, peak() - least)
        samples.sort(key=lambda sample: sample.seconds)
        middle = samples[len(samples) // 2]
        self.figures.append(Figure(name, per, count, middle.seconds, middle.cpu, memory))

    @contextmanager
    def once(self, name: str, per: str, count: int) -> Iterator[None]:
        """
        Measure the block, which cannot be repeated.
        """
        least = resident()
        reset_peak()
        with measured(count) as sample:
            yield
        memory = max(0, peak() - least)
        self.figures.append(Figure(name, per, count, sample.seconds, sample.cpu, memory))

    def stream(self) -> Stream:
        """
        Return the stream of the group.
        """
        return self.js.stream(STREAM)

    def make_stream(self, **fields: Any) -> Stream:
        """
        Create the stream of the group, in a file.
        """
        return self.js.create_stream(STREAM, subjects=["g.>"], allow_direct=True, **fields)

    def bucket(self) -> KeyValue:
        """
        Return the bucket of the group.
        """
        return self.js.key_value(BUCKET)


def status(name: str) -> int:
    """
    Return a size in bytes that Linux reports about this process, 0 on other systems.
    """
    try:
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), 0)


def resident() -> int:
    """
    Return the bytes of memory that this process has now.
    """
    return status("VmRSS:")


def peak() -> int:
    """
    Return the most bytes of memory that this process had since :func:`reset_peak`.
    """
    return status("VmHWM:")


def reset_peak() -> None:
    """
    Forget the peak so far, where the system allows that.
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


def drain(messages: Iterable[object]) -> None:
    """
    Take all messages and keep none.
    """
    deque(messages, maxlen=0)


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """
    Call *work* with the number of each of so many threads, and wait for all.
    """
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read_all(stream: Stream, count: int, *, size: int | None = None, **fields: Any) -> None:
    """
    Read so many messages of a stream with a new consumer, and a buffer of *size* bytes.
    """
    consumer = stream.create_consumer(
        ack_policy="none", mem_storage=True, inactive_threshold=LONG, **fields
    )
    with consumer.consume(stop_after=count, max_bytes=size) as messages:
        drain(messages)
    stream.delete_consumer(consumer.name)


# Payloads.


def of_payloads(size: int) -> int:
    """
    Return how many messages of a size are enough: at most 128 MiB.
    """
    return max(100, min(50_000, (128 * MIB) // size))


def payload_fill(probe: Probe) -> None:
    """
    Publish messages of one size.
    """
    count, data = of_payloads(probe.value), payload_of(probe.value)
    stream = probe.make_stream()
    probe.measure(
        "publish_many",
        "message",
        count,
        lambda: probe.js.publish_many(("g.x", data) for _ in range(count)),
        before=stream.purge,
    )


def payload_read(probe: Probe) -> None:
    """
    Read them in three ways.
    """
    count, stream = of_payloads(probe.value), probe.stream()
    # Servers disconnect a client that reads more slowly than they send, at 64 MiB.
    size = 32 * MIB if probe.value > 64 << 10 else None
    probe.measure("consume", "message", count, lambda: read_all(stream, count, size=size))
    probe.measure("scan", "message", count, lambda: drain(stream.scan()))
    calls = min(count, CALLS)
    first = stream.info().state.first_seq
    numbers = range(first, first + calls)
    probe.measure("get_message", "call", calls, lambda: drain(map(stream.get_message, numbers)))


def payload_publish(probe: Probe) -> None:
    """
    Publish one message after the other.
    """
    data, calls = payload_of(probe.value), min(of_payloads(probe.value), CALLS)
    probe.measure(
        "publish", "call", calls, lambda: [probe.js.publish("g.x", data) for _ in range(calls)]
    )


# Threads.


def threads_publish(probe: Probe) -> None:
    """
    Publish from many threads, and through one publisher that they share.
    """
    probe.make_stream()
    data, threads = payload_of(128), probe.value
    share = 8000 // threads

    def publish(_: int) -> None:
        for _number in range(share):
            probe.js.publish("g.x", data)

    probe.measure("publish", "call", share * threads, lambda: in_threads(threads, publish))
    part = 100_000 // threads
    with probe.js.publisher() as publisher:

        def feed(_: int) -> None:
            for _number in range(part):
                publisher.publish("g.x", data)

        def shared() -> None:
            in_threads(threads, feed)
            publisher.flush()

        probe.measure("publisher.publish", "message", part * threads, shared)


def threads_read(probe: Probe) -> None:
    """
    Handle messages in many threads of one consumption, and read keys from many threads.
    """
    stream, threads, count = probe.stream(), probe.value, 100_000
    drain(stream.get_batch(1))

    def handle() -> None:
        consumer = stream.create_consumer(
            ack_policy="none", mem_storage=True, inactive_threshold=LONG
        )
        with consumer.consume(stop_after=count, handler=lambda _: None, threads=threads) as running:
            running.wait()
        stream.delete_consumer(consumer.name)

    probe.measure("consume with a handler", "message", count, handle)
    bucket = probe.js.create_key_value(BUCKET)
    bucket.put("key", b"value")
    share = 8000 // threads

    def get(_: int) -> None:
        for _number in range(share):
            bucket.get("key")

    probe.measure("kv.get", "call", share * threads, lambda: in_threads(threads, get))


# Consumptions.

TO_CONSUMPTIONS = 50_000
"""Messages for all consumptions together."""

IDLE = 5.0
"""Seconds for which idle consumptions are watched."""


class Count:
    """
    Counts messages of many threads.
    """

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self._lock = threading.Lock()
        self._complete = threading.Event()

    def __call__(self, _: Message) -> None:
        """Count one."""
        with self._lock:
            self.missing -= 1
        if self.missing <= 0:
            self._complete.set()

    def wait(self) -> None:
        """Wait until all have come."""
        self._complete.wait(LONG)


def consumptions_handle(probe: Probe) -> None:
    """
    Run so many consumptions, each with a consumer, a handler and a thread of its own.
    """
    count, running = TO_CONSUMPTIONS // probe.value * probe.value, _consumers(probe)
    arrived = Count(count)
    with probe.once("handlers: start", "consumption", probe.value):
        consumptions = [consumer.consume(handler=arrived) for consumer in running]
    with probe.once("handlers: publish and handle", "message", count):
        _send(probe, count)
        arrived.wait()
    with probe.once("handlers: CPU of one idle second", "consumption", probe.value):
        time.sleep(IDLE)
    idle = probe.figures[-1]
    idle.seconds = idle.cpu = idle.cpu / IDLE
    with probe.once("handlers: close", "consumption", probe.value):
        for each in consumptions:
            each.close()
        for each in consumptions:
            each.wait()


def consumptions_poll(probe: Probe) -> None:
    """
    Run so many consumptions that one thread asks in turn.
    """
    count = TO_CONSUMPTIONS // probe.value * probe.value
    consumers = [probe.stream().consumer(f"c{each}") for each in range(probe.value)]
    with probe.once("one thread: start", "consumption", probe.value):
        running = [consumer.consume() for consumer in consumers]
    with probe.once("one thread: publish and take", "message", count):
        _send(probe, count)
        missing = count
        while missing > 0:
            for each in running:
                while each.next(timeout=0) is not None:
                    missing -= 1
    with probe.once("one thread: close", "consumption", probe.value):
        for each in running:
            each.close()


def _consumers(probe: Probe) -> list[Any]:
    """Create a stream, and a consumer for each consumption."""
    stream = probe.make_stream(storage="memory")
    with probe.once("create_consumer", "call", probe.value):
        return [
            stream.create_consumer(
                f"c{each}", filter_subject=f"g.{each}", ack_policy="none", mem_storage=True
            )
            for each in range(probe.value)
        ]


def _send(probe: Probe, count: int) -> None:
    """Publish the messages, evenly over the consumptions."""
    data = payload_of(128)
    probe.js.publish_many((f"g.{number % probe.value}", data) for number in range(count))


# Streams.


def stream_fill(probe: Probe) -> None:
    """
    Fill a stream with so many small messages.
    """
    probe.make_stream()
    with probe.once("publish_many", "message", probe.value):
        probe.js.publish_many(("g.x", b"0123456789abcdef") for _ in range(probe.value))


def stream_calls(probe: Probe) -> None:
    """
    Make single calls on a stream of that length.
    """
    stream, calls = probe.stream(), CALLS
    numbers = [random.randint(1, probe.value) for _ in range(calls)]
    probe.measure("get_message", "call", calls, lambda: drain(map(stream.get_message, numbers)))
    probe.measure("get_last", "call", calls, lambda: [stream.get_last("g.x") for _ in range(calls)])
    probe.measure("stream.info", "call", 200, lambda: [stream.info() for _ in range(200)])
    middle = probe.value // 2 + 1
    probe.measure(
        "500 messages from the middle",
        "message",
        500,
        lambda: read_all(stream, 500, deliver_policy="by_start_sequence", opt_start_seq=middle),
    )
    probe.measure(
        "publish", "call", calls, lambda: [probe.js.publish("g.x", b"x") for _ in range(calls)]
    )


def stream_consume(probe: Probe) -> None:
    """
    Consume the whole stream.
    """
    stream, count = probe.stream(), probe.value
    probe.measure("consume", "message", count, lambda: read_all(stream, count))


def stream_ordered(probe: Probe) -> None:
    """
    Read the whole stream in order.
    """
    stream, count = probe.stream(), probe.value

    def read() -> None:
        with stream.ordered_consumer().consume() as messages:
            for number, _ in enumerate(messages, 1):
                if number == count:
                    return

    probe.measure("ordered consumer", "message", count, read)


def stream_scan(probe: Probe) -> None:
    """
    Scan the whole stream.
    """
    stream, count = probe.stream(), probe.value
    probe.measure("scan", "message", count, lambda: drain(stream.scan(end=count)))


# Subjects.

ON_SUBJECTS = 200_000
"""Messages on all subjects together, at least one each."""


def subjects_fill(probe: Probe) -> None:
    """
    Publish to so many subjects.
    """
    count, data = max(ON_SUBJECTS, probe.value), payload_of(128)
    probe.make_stream()
    with probe.once("publish_many", "message", count):
        probe.js.publish_many(
            (f"g.{number % 10}.{number % probe.value}", data) for number in range(count)
        )


def subjects_read(probe: Probe) -> None:
    """
    Read all messages, and those of a part of the subjects.
    """
    stream, count = probe.stream(), max(ON_SUBJECTS, probe.value)
    part = count // 10
    probe.measure("consume", "message", count, lambda: read_all(stream, count))
    probe.measure(
        "consume a tenth of the subjects",
        "message",
        part,
        lambda: read_all(stream, part, filter_subject="g.3.*"),
    )
    probe.measure("scan", "message", count, lambda: drain(stream.scan()))
    probe.measure(
        "scan a tenth of the subjects", "message", part, lambda: drain(stream.scan(subject="g.3.*"))
    )
    names = [f"g.{n % 10}.{n}" for n in (random.randrange(probe.value) for _ in range(CALLS))]
    probe.measure("get_last", "call", CALLS, lambda: [*map(stream.get_last, names)])


def subjects_last(probe: Probe) -> None:
    """
    Read the last message of each subject.
    """
    stream = probe.stream()
    probe.measure(
        'get_last_for(">")',
        "subject",
        probe.value,
        lambda: drain(stream.get_last_for(">", timeout=LONG)),
    )


def subjects_info(probe: Probe) -> None:
    """
    List the subjects.
    """
    stream = probe.stream()
    probe.measure(
        'info(subjects_filter=">")',
        "subject",
        probe.value,
        lambda: stream.info(subjects_filter=">", timeout=LONG),
    )


# Buckets.


def bucket_fill(probe: Probe) -> None:
    """
    Fill a bucket with so many keys.
    """
    probe.js.create_key_value(BUCKET)
    prefix = f"$KV.{BUCKET}."
    with probe.once("publish_many", "key", probe.value):
        probe.js.publish_many((f"{prefix}k{n}", b"0123456789abcdef") for n in range(probe.value))


def bucket_calls(probe: Probe) -> None:
    """
    Read and write single keys, and read a thousand.
    """
    bucket = probe.bucket()
    keys = [f"k{random.randrange(probe.value)}" for _ in range(CALLS)]
    probe.measure("get", "call", CALLS, lambda: [*map(bucket.get, keys)])
    probe.measure("put", "call", CALLS, lambda: [bucket.put(key, b"x") for key in keys])
    some = [f"k{number}" for number in random.sample(range(probe.value), 500)]
    probe.measure("get_many of 500 keys", "key", 500, lambda: bucket.get_many(some))


def bucket_keys(probe: Probe) -> None:
    """
    List the keys.
    """
    bucket = probe.bucket()
    probe.measure("keys", "key", probe.value, lambda: bucket.keys(timeout=LONG))


def bucket_watch(probe: Probe) -> None:
    """
    Watch the bucket until all entries have come, and keep none.
    """
    bucket = probe.bucket()

    def watch() -> None:
        with bucket.watch(timeout=LONG) as entries:
            drain(entries.initial(timeout=LONG))

    probe.measure("watch", "key", probe.value, watch)


def bucket_get_many(probe: Probe) -> None:
    """
    Read all entries at one moment, and keep them.
    """
    bucket = probe.bucket()
    probe.measure(
        "get_many of all keys",
        "key",
        probe.value,
        lambda: bucket.get_many(">", timeout=LONG),
    )


@dataclass(frozen=True)
class Group:
    """
    Describe what one table makes larger.
    """

    title: str
    unit: str
    values: Sequence[int]
    jobs: Sequence[Callable[[Probe], None]]
    """In this order; the first one creates the stream or the bucket."""


GROUPS = {
    "payload": Group(
        "Payloads",
        "bytes",
        (16, 1 << 10, 64 << 10, 1 << 20),
        (payload_fill, payload_read, payload_publish),
    ),
    "threads": Group("Threads", "threads", (1, 4, 16), (threads_publish, threads_read)),
    "consumptions": Group(
        "Consumptions",
        "consumptions",
        (1, 100, 1_000),
        (consumptions_handle, consumptions_poll),
    ),
    "stream": Group(
        "Streams",
        "messages",
        (1_000, 1_000_000, 10_000_000),
        (stream_fill, stream_calls, stream_consume, stream_ordered, stream_scan),
    ),
    "subjects": Group(
        "Subjects",
        "subjects",
        (1_000, 100_000, 1_000_000),
        (subjects_fill, subjects_read, subjects_last, subjects_info),
    ),
    "bucket": Group(
        "Buckets",
        "keys",
        (1_000, 100_000, 1_000_000),
        (bucket_fill, bucket_calls, bucket_keys, bucket_watch, bucket_get_many),
    ),
}


def run_case(case: Case) -> int:
    """
    Run one job in this process, and print its figures as JSON.
    """
    probe = Probe(case)
    job = next(each for each in GROUPS[case.group].jobs if each.__name__ == case.job)
    job(probe)
    print(json.dumps([dataclasses.asdict(figure) for figure in probe.figures]))
    probe.client.close()
    return 0


@dataclass
class Table:
    """
    Hold the figures of a group.
    """

    group: str
    values: list[int]
    figures: dict[int, list[Figure]] = field(default_factory=dict)

    def lines(self) -> dict[tuple[str, str], dict[int, Figure]]:
        """
        Return the figures by line, and by value.
        """
        found: dict[tuple[str, str], dict[int, Figure]] = {}
        for value in self.values:
            for figure in self.figures.get(value, ()):
                found.setdefault((figure.name, figure.per), {})[value] = figure
        return found

    def render(self) -> str:
        """
        Return the table in Markdown.
        """
        group = GROUPS[self.group]
        heads = [f"{value:,}" for value in self.values]
        rows = [[group.unit, "per", *heads], ["---", "---", *["---:"] * len(heads)]]
        for (name, per), by_value in self.lines().items():
            cells = [cell(by_value.get(value)) for value in self.values]
            rows.append([f"`{name}`", per, *cells])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell(figure: Figure | None) -> str:
    """
    Return the wall time and the CPU of one message, and the memory of all.
    """
    if figure is None:
        return ""
    memory = "" if figure.memory is None else f", {figure.memory / MIB:,.0f} MiB"
    wall, cpu = figure.seconds / figure.count, figure.cpu / figure.count
    return f"{micros(wall)} ({micros(cpu)}){memory}"


def micros(seconds: float) -> str:
    """
    Return a time in microseconds with two digits.
    """
    number = seconds * 1e6
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def main(given: Sequence[str] | None = None) -> int:
    """
    Run the groups that were asked for and print their tables.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description=__doc__)
    parser.add_argument("--groups", help=f"comma-separated: {','.join(GROUPS)}")
    parser.add_argument(
        "--jobs", help="comma-separated parts of their names; the first always runs"
    )
    parser.add_argument("--values", help="comma-separated numbers, instead of those of the group")
    parser.add_argument("--server", help="nats-server version (the installed one)")
    parser.add_argument("--json", type=Path, help="write all figures to this file, too")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    if asked.case:
        return run_case(Case(**json.loads(asked.case)))
    names = asked.groups.split(",") if asked.groups else [*GROUPS]
    tables = []
    with DevServer(asked.server) as server:
        print(
            f"nats-server {server.version}, Python {platform.python_version()}, "
            f"{os.cpu_count()} cores; microseconds of time (of CPU), growth of the process"
        )
        for name in names:
            values = [int(value) for value in asked.values.split(",")] if asked.values else None
            table = Table(name, values or [*GROUPS[name].values])
            tables.append(table)
            for value in table.values:
                table.figures[value] = list(figures_of(name, value, server.url, asked.jobs or ""))
            print(f"\n{GROUPS[name].title}\n\n{table.render()}", flush=True)
        if asked.json:
            run = {"server": server.version, "tables": [dataclasses.asdict(t) for t in tables]}
            asked.json.write_text(json.dumps(run, indent=2) + "\n")
    return 0


def figures_of(name: str, value: int, url: str, wanted: str) -> Iterator[Figure]:
    """
    Run the jobs of a group at one value, each in its process, and remove what they stored.
    """
    first, *others = GROUPS[name].jobs
    parts = wanted.split(",")
    chosen = [job for job in others if any(part in job.__name__ for part in parts)]
    for job in [first, *chosen]:
        case = Case(name, job.__name__, value, url)
        print(f"{name} {value:,} {case.job}", file=sys.stderr, flush=True)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.growth", "--case", json.dumps(vars(case))],
                stdout=subprocess.PIPE,
                cwd=Path(__file__).parents[1],
                check=True,
                timeout=LONG,
            )
        except subprocess.SubprocessError as error:
            print(error, file=sys.stderr)
            continue
        for figure in json.loads(done.stdout):
            yield Figure(**figure)
    with jetsync.connect(url) as client:
        js = client.jetstream(timeout=60.0)
        for each in [*js.stream_names()]:
            js.delete_stream(each)


if __name__ == "__main__":
    sys.exit(main())
