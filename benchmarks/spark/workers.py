"""
How reads scale with workers: ``python -m benchmarks.spark.workers [--rows 300000]``, 7 minutes.

A server on the same machine shares its cores with Spark, and two workers already keep two cores
busy. So the workers connect through a proxy that gives each connection the latency and the rate of
a distant server. One worker then leaves most of the machine idle, and more workers show whether
anything but the connections limits a read.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Final

import jetsync
from benchmarks.spark.session import session
from benchmarks.spark.streaming import run
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

STREAM: Final = "BENCH_WORKERS"
SIZE: Final = 128
WORKERS: Final = (1, 2, 4)
PARTITIONS: Final = max(WORKERS)
CHUNK: Final = 1 << 16
"""Bytes that the proxy passes on at once."""


class DistantServer:
    """
    A proxy of a server that delays all bytes, and limits how fast each connection receives.

    Args:
        port: Of the server.
        delay: Seconds in each direction.
        rate: Bytes per second of each connection.
    """

    def __init__(self, port: int, delay: float, rate: float) -> None:
        self._port = port
        self._delay = delay
        self._rate = rate

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """
        Pass on the bytes of one connection.
        """
        server = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(
            self._pass_on(reader, server[1], float("inf")),
            self._pass_on(server[0], writer, self._rate),
        )

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float
    ) -> None:
        loop = asyncio.get_running_loop()
        free = 0.0
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(CHUNK):
                free = max(free, loop.time()) + len(chunk) / rate
                await asyncio.sleep(free - loop.time())
                loop.call_later(self._delay, writer.write, chunk)
        loop.call_later(self._delay, writer.close)


@contextlib.contextmanager
def distant(port: int, delay: float, rate: float) -> Iterator[str]:
    """
    Yield the URL of a proxy in a thread of its own.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    started = asyncio.start_server(DistantServer(port, delay, rate).serve, "127.0.0.1", 0)
    server = asyncio.run_coroutine_threadsafe(started, loop).result()
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def batch_rate(spark: SparkSession, options: Mapping[str, object], rows: int) -> float:
    """
    Return the rows per second of a batch read.
    """
    begin = time.perf_counter()
    frame = spark.read.format("jetstream").options(**options).load()
    frame.write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - begin)


def main() -> int:
    """
    Measure both kinds of reads with each number of workers, and print the medians.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.workers")
    parser.add_argument("--rows", type=int, default=300_000, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--delay", type=float, default=5, help="ms each way (%(default)s)")
    parser.add_argument("--rate", type=float, default=5, help="MB/s per connection (%(default)s)")
    asked = parser.parse_args()
    rows: int = asked.rows
    samples: dict[str, dict[int, list[float]]] = {"batch": {}, "streaming": {}}
    with (
        tempfile.TemporaryDirectory() as folder,
        DevServer() as server,
        jetsync.connect(server.url, name="benchmarks.spark") as client,
        distant(server.port, asked.delay / 1000, asked.rate * 1e6) as url,
    ):
        js = client.jetstream()
        js.create_stream(STREAM, subjects=["workers.>"], allow_direct=True)
        payload = b"x" * SIZE
        js.publish_many((f"workers.{number % 16}", payload) for number in range(rows))
        batch = {"servers": url, "stream": STREAM, "minPartitions": PARTITIONS}
        streaming = {**batch, "startingOffsets": "earliest", "maxOffsetsPerTrigger": rows}
        for workers in WORKERS:
            with session(folder, workers) as spark:
                # The first round is for imports, caches and Java's compiler.
                for number in range(asked.rounds + 1):
                    read = {
                        "batch": batch_rate(spark, batch, rows),
                        "streaming": run(spark, "jetstream", streaming, rows).rate,
                    }
                    if number:
                        for kind, rate in read.items():
                            samples[kind].setdefault(workers, []).append(rate)
    print(f"{rows:,} rows of {SIZE} bytes, {asked.rate:g} MB/s per connection, {asked.delay:g} ms")
    print(f"{'':<10}{'workers':>8}{'rows/s':>10}{'ratio':>8}    rows/s of each round")
    for kind, found in samples.items():
        medians = {workers: statistics.median(rates) for workers, rates in found.items()}
        for workers, rates in found.items():
            ratio = medians[workers] / medians[WORKERS[0]]
            shown = ", ".join(f"{rate:,.0f}" for rate in rates)
            print(f"{kind:<10}{workers:>8}{medians[workers]:>10,.0f}{ratio:>8.2f}    {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
