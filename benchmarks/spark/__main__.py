"""
The command: ``python -m benchmarks.spark [--rows 300000] [--rounds 3] [--json FILE]``, 3 minutes.

Needs jetsync-spark, nats-py and Java. All contenders share a server and a Spark session on two
threads, and take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyspark
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import jetsync
import jetsync_spark
from benchmarks.spark import tasks
from benchmarks.spark.plain import Plain
from benchmarks.spark.session import KINDS, PROCESSES, cpu_seconds, session
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PARTITIONS: Final = 2 * PROCESSES
"""Partitions of a DataFrame that is read."""

READ: Final = "BENCH_READ"
HEADERS: Final = (0, 2, 8)
"""Headers of the messages in the streams that are read."""

WRITE: Final = "BENCH"


@attrs.define
class Contender:
    """
    One line of a table.
    """

    label: str
    run: Callable[[], Any]
    rows: int
    writes: bool = False
    """Whether the stream has to hold the rows afterwards."""

    seconds: Callable[[Any], float] | None = None
    """Takes the time from what it returned; None measures the call."""

    samples: list[float] = attrs.field(factory=list)
    """Rows per second, one for each round."""

    cpu: list[dict[str, float]] = attrs.field(factory=list)
    """Seconds of CPU for each row in Java, in Python and in the server, one for each round."""

    @property
    def rate(self) -> float:
        """
        Rows per second, the median of the rounds.
        """
        return statistics.median(self.samples)

    def work(self, *kinds: str) -> float:
        """
        Microseconds of CPU for each row in some of KINDS, or in all: the median of the rounds.
        """
        sums = [sum(cpu[kind] for kind in kinds or KINDS) for cpu in self.cpu]
        return statistics.median(sums) * 1e6


@attrs.frozen
class Ratio:
    """
    What is to be shown: a line as a multiple of another one, in the same rounds.
    """

    what: str
    line: str
    of: str
    wanted: float


RATIOS: Final = (
    Ratio("Arrow read / scan of one process", "read", "scan", 0.6),
    Ratio("Arrow read / lists to Arrow", "read", "ceiling: lists", 0.8),
    Ratio("JetStreamSink / nats-py row by row", "sink", "nats-py", 8.0),
    Ratio("JetStreamSink / rows that are only looked at", "sink", "ceiling: rows", 0.6),
    Ratio("Arrow atleastonce / publish_many of two processes", "atleastonce", "publish_many", 0.6),
    Ratio("exactlyonce / publish_batch of two processes", "exactlyonce", "publish_batch", 0.9),
)


class Bench:
    """
    The server's streams, the DataFrames and the contenders.

    Args:
        spark: The session.
        url: Of the server.
        rows: How many rows the fast ones read and write.
        size: Payload bytes.
    """

    def __init__(self, spark: SparkSession, url: str, rows: int, size: int) -> None:
        self._spark = spark
        self._url = url
        self._rows = rows
        self._size = size
        self._options = jetsync.ConnectOptions(servers=url)
        self._client = jetsync.connect(url, name="benchmarks.spark")
        js = self._client.jetstream()
        self._write = js.create_stream(
            WRITE, subjects=["bench.>", "ledger.bench.>"], allow_atomic=True
        )
        payload = b"x" * size
        for count in HEADERS:
            js.create_stream(f"{READ}_{count}", subjects=[f"filled_{count}.>"], allow_direct=True)
            headers = {f"Header-{number}": f"value-{number}" for number in range(count)}
            js.publish_many(
                (f"filled_{count}.{number % 16}", payload, headers) for number in range(rows)
            )
        self._plain = {
            "publish_many": Plain(PROCESSES, "publish", url, WRITE, rows // PROCESSES, size),
            "publish_batch": Plain(PROCESSES, "batches", url, WRITE, rows // PROCESSES, size),
            "scan": Plain(1, "scan", url, f"{READ}_0", rows),
        }
        self._frame = self._frame_of(rows)
        self._few = self._frame_of(max(rows // 20, 1000))

    def _frame_of(self, rows: int) -> Any:
        frame = (
            self._spark.range(0, rows, 1, PROCESSES)
            .select(
                F.concat(F.lit("bench."), (F.col("id") % 16).cast("string")).alias("subject"),
                F.lit("x" * self._size).cast("binary").alias("data"),
            )
            .cache()
        )
        frame.count()
        return frame

    def contenders(self) -> Iterator[Contender]:
        """
        Yield them, in the order in which they are shown.
        """
        rows, few = self._rows, self._few.count()
        publish, scan = self._plain["publish_many"], self._plain["scan"]
        yield Contender("ceiling: read", self._noop_of("ceiling", rows=rows), rows)
        yield Contender("ceiling: lists", self._noop_of("ceiling", rows=rows, form="columns"), rows)
        row_lists = self._noop_of("ceiling", rows=rows, form="rows")
        yield Contender("ceiling: row lists", row_lists, rows)
        yield Contender("scan", scan.run, rows, seconds=float)
        options = {"servers": self._url, "minPartitions": PARTITIONS}
        yield Contender("read", self._noop_of("jetstream", stream=f"{READ}_0", **options), rows)
        for count in HEADERS:
            read = self._noop_of(
                "jetstream", stream=f"{READ}_{count}", includeHeaders="true", **options
            )
            yield Contender(f"read: {count} headers", read, rows)
        yield Contender("ceiling: rows", self._rows_of(tasks.count_rows), rows)
        yield Contender("nats-py", self._nats_py, few, writes=True)
        yield Contender("sink", self._sink, rows, writes=True)
        yield Contender("ceiling: write", self._saved("ceiling"), rows)
        yield Contender("ceiling: mapInArrow", self._mapped, rows)
        yield Contender("publish_many", publish.run, rows, writes=True, seconds=float)
        yield Contender("publish_arrow", self._publish_arrow, rows, writes=True)
        batches = self._plain["publish_batch"]
        yield Contender("publish_batch", batches.run, rows, writes=True, seconds=float)
        for mode in ("atleastonce", "atomic", "exactlyonce"):
            named = {"writeId": "bench"} if mode == "exactlyonce" else {}
            save = self._saved("jetstream", servers=self._url, stream=WRITE, mode=mode, **named)
            yield Contender(mode, save, rows, writes=True)

    def measure(self, contender: Contender) -> None:
        """
        Let a contender work once, and see that it did.

        Raises:
            RuntimeError: rows are missing, or there are too many.
        """
        if contender.writes:
            self._write.purge()
        before = cpu_seconds()
        begin = time.perf_counter()
        returned = contender.run()
        seconds = time.perf_counter() - begin
        if contender.seconds is not None:
            seconds = contender.seconds(returned)
        if contender.writes:
            subjects = self._write.info(subjects_filter="bench.>").state.subjects or {}
            if sum(subjects.values()) != contender.rows:
                raise RuntimeError(f"{contender.label}: {subjects} is not {contender.rows} rows")
        after = cpu_seconds()
        contender.samples.append(contender.rows / seconds)
        contender.cpu.append(
            {kind: (after[kind] - before[kind]) / contender.rows for kind in KINDS}
        )

    def close(self) -> None:
        """
        End the processes of plain Python.
        """
        for each in self._plain.values():
            each.close()
        self._client.close()

    def _noop_of(self, source: str, **options: Any) -> Callable[[], None]:
        def read() -> None:
            reader = self._spark.read.format(source).options(**options)
            if source == "ceiling":
                reader = reader.options(partitions=PARTITIONS, size=self._size)
            reader.load().write.format("noop").mode("overwrite").save()

        return read

    def _saved(self, form: str, **options: Any) -> Callable[[], None]:
        def save() -> None:
            self._frame.write.format(form).mode("append").options(**options).save()

        return save

    def _rows_of(self, function: Callable[[Any], None]) -> Callable[[], None]:
        return lambda: self._frame.foreachPartition(function)

    def _mapped(self) -> None:
        self._frame.mapInArrow(tasks.count_batches, "rows long").collect()

    def _nats_py(self) -> None:
        self._few.foreachPartition(tasks.publish_with_nats_py(self._url))

    def _sink(self) -> None:
        self._frame.foreachPartition(jetsync_spark.JetStreamSink(self._options, stream=WRITE))

    def _publish_arrow(self) -> None:
        jetsync_spark.publish_arrow(self._frame, self._options, stream=WRITE).collect()


def arguments() -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="(%(default)s)")
    parser.add_argument("--size", type=int, default=128, help="payload bytes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--only", help="comma-separated lines")
    parser.add_argument("--json", type=Path, help="write all samples to this file, too")
    return parser.parse_args()


def show(contenders: list[Contender], rows: int, size: int) -> None:
    """
    Print the rates and the ratios.
    """
    print(f"\n{rows:,} rows of {size} bytes, local[{PROCESSES}], medians of the rounds")
    width = max(len(each.label) for each in contenders)
    heads = "".join(f"{head:>8}" for head in (*KINDS, "all"))
    print(f"{'':<{width}}  {'rows/s':>10}  CPU per row, us:{heads}    rows/s of each round")
    for each in contenders:
        cpu = "".join(f"{each.work(*kinds):>8.2f}" for kinds in (*zip(KINDS), ()))
        samples = ", ".join(f"{sample:,.0f}" for sample in each.samples)
        print(f"{each.label:<{width}}  {each.rate:>10,.0f}{'':18}{cpu}    {samples}")
    print()
    found = {each.label: each for each in contenders}
    for ratio in RATIOS:
        if ratio.line in found and ratio.of in found:
            times = found[ratio.line].rate / found[ratio.of].rate
            work = found[ratio.of].work() / found[ratio.line].work()
            print(f"{ratio.what}: {times:.2f} (wanted {ratio.wanted}), by CPU {work:.2f}")


def main() -> int:
    """
    Run all contenders and print their tables.
    """
    asked = arguments()
    with (
        tempfile.TemporaryDirectory() as folder,
        DevServer() as server,
        session(folder) as spark,
    ):
        print(
            f"nats-server {server.version}, PySpark {pyspark.__version__}, "
            f"Python {platform.python_version()}, {os.cpu_count()} cores"
        )
        bench = Bench(spark, server.url, asked.rows, asked.size)
        contenders = list(bench.contenders())
        if asked.only:
            contenders = [each for each in contenders if each.label in asked.only.split(",")]
        try:
            # The first round is for imports, caches and Java's compiler.
            for number in range(asked.rounds + 1):
                for place in range(len(contenders)):
                    bench.measure(contenders[(number + place) % len(contenders)])
                if number == 0:
                    for each in contenders:
                        each.samples.clear()
                        each.cpu.clear()
        finally:
            bench.close()
        show(contenders, asked.rows, asked.size)
        if asked.json:
            samples = {each.label: {"rows": each.samples, "cpu": each.cpu} for each in contenders}
            asked.json.write_text(json.dumps(samples, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
