"""
What a streaming read costs: ``python -m benchmarks.spark.streaming [--rows 2000000]``, 3 minutes.

Each line is a query with one micro-batch that keeps no rows. ``rate`` is Spark's own source, which
needs no Python. The ``ceiling`` lines are Python sources of rows in memory. ``stream`` is
``format("jetstream")``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final

import attrs

import jetsync
from benchmarks.spark.session import KINDS, PROCESSES, cpu_seconds, session
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

STREAM: Final = "BENCH_STREAMING"
SIZE: Final = 128
PARTITIONS: Final = 2 * PROCESSES


@attrs.frozen
class Sample:
    """
    What one query took.
    """

    rate: float
    """Rows per second of its micro-batch."""

    cpu: dict[str, float]
    """Microseconds of CPU for each row in each of KINDS. They include the start of the query."""


def run(spark: SparkSession, form: str, options: Mapping[str, object], rows: int) -> Sample:
    """
    Let a query read all rows.

    Raises:
        RuntimeError: It did not.
    """
    before = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        query = (
            spark.readStream.format(form)
            .options(**options)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", folder)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found: list[Any] = [each for each in query.recentProgress if each["numInputRows"]]
    after = cpu_seconds()
    (progress,) = found
    if progress["numInputRows"] != rows:
        raise RuntimeError(f"{form}: {progress['numInputRows']} is not {rows} rows")
    seconds = progress["durationMs"]["triggerExecution"] / 1000
    return Sample(
        rows / seconds, {kind: (after[kind] - before[kind]) * 1e6 / rows for kind in KINDS}
    )


def main() -> int:
    """
    Measure all sources in turns and print the medians.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.streaming")
    parser.add_argument("--rows", type=int, default=2_000_000, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    asked = parser.parse_args()
    rows: int = asked.rows
    with (
        tempfile.TemporaryDirectory() as folder,
        DevServer() as server,
        jetsync.connect(server.url, name="benchmarks.spark") as client,
        session(folder) as spark,
    ):
        js = client.jetstream()
        js.create_stream(STREAM, subjects=["streaming.>"], allow_direct=True)
        payload = b"x" * SIZE
        js.publish_many((f"streaming.{number % 16}", payload) for number in range(rows))
        memory = {"rows": rows, "partitions": PARTITIONS, "size": SIZE}
        stream = {
            "servers": server.url,
            "stream": STREAM,
            "startingOffsets": "earliest",
            "minPartitions": PARTITIONS,
            "maxOffsetsPerTrigger": rows,
        }
        lines: dict[str, tuple[str, Mapping[str, object]]] = {
            "rate": ("rate-micro-batch", {"rowsPerBatch": rows, "numPartitions": PARTITIONS}),
            "ceiling: lists": ("ceiling", {**memory, "form": "columns"}),
            "ceiling: row lists": ("ceiling", {**memory, "form": "rows"}),
            "stream": ("jetstream", stream),
        }
        samples: dict[str, list[Sample]] = {label: [] for label in lines}
        # The first round is for imports, caches and Java's compiler.
        for number in range(asked.rounds + 1):
            for label, (form, options) in lines.items():
                sample = run(spark, form, options, rows)
                if number:
                    samples[label].append(sample)
    heads = "".join(f"{kind:>8}" for kind in KINDS)
    print(f"{rows:,} rows of {SIZE} bytes, local[{PROCESSES}], medians of the rounds")
    print(f"{'':<20}{'rows/s':>10}  CPU per row, us:{heads}    rows/s of each round")
    for label, each in samples.items():
        cpu = "".join(f"{statistics.median(one.cpu[kind] for one in each):>8.2f}" for kind in KINDS)
        rates = ", ".join(f"{one.rate:,.0f}" for one in each)
        rate = statistics.median(one.rate for one in each)
        print(f"{label:<20}{rate:>10,.0f}{'':18}{cpu}    {rates}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
