"""
Several callers that publish one message at a time, beside a bulk publisher if the job asks for one.

Each caller publishes its share of the messages, or as many as it can in `LIMIT` seconds.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.jobs import measured

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from benchmarks.jobs import Job, Sample

LIMIT = 1.5
"""Seconds of calls. While a full window of bulk publishes is in flight, a call may take 0.2 s."""

HEAD_START = 0.3
"""Seconds that the bulk publisher runs alone, so that its window is full before the first call."""

Running: TypeAlias = "Callable[[], bool]"
"""Whether the bulk publisher should continue."""


def shares(job: Job) -> list[int]:
    """
    Return how many messages each caller publishes.
    """
    whole, rest = divmod(job.count, job.options["callers"])
    return [whole + (number < rest) for number in range(job.options["callers"])]


def in_threads(
    job: Job, calls: Sequence[Callable[[], object]], bulk: Callable[[Running], int]
) -> Sample:
    """
    Run each of *calls* in a thread of its own, and *bulk* in another one if the job asks for it.

    *bulk* publishes while the function it gets returns true, and returns how many were stored.
    """
    together = threading.Barrier(len(calls))
    stop = threading.Event()

    def caller(call: Callable[[], object], count: int) -> list[int]:
        times, now = [], time.perf_counter_ns
        together.wait(30)
        begin = now()
        end = begin + int(LIMIT * 1e9)
        while len(times) < count and begin < end:
            call()
            after = now()
            times.append(after - begin)
            begin = after
        return times

    def publish_in_bulk() -> tuple[int, float]:
        begin = time.perf_counter()
        return bulk(lambda: not stop.is_set()), time.perf_counter() - begin

    with ThreadPoolExecutor(len(calls) + 1) as pool:
        try:
            running = pool.submit(publish_in_bulk) if job.options["bulk"] else None
            if running is not None:
                time.sleep(HEAD_START)
            with measured(job.count) as sample:
                found = list(pool.map(caller, calls, shares(job)))
        finally:
            stop.set()
        if running is not None:
            sample.background, sample.background_seconds = running.result()
    _take(sample, found)
    return sample


async def in_tasks(
    job: Job,
    call: Callable[[], Awaitable[Any]],
    bulk: Callable[[Running], Awaitable[int]],
) -> Sample:
    """
    Do the same with a task per caller.
    """
    stop = asyncio.Event()

    async def caller(count: int) -> list[int]:
        times, now = [], time.perf_counter_ns
        begin = now()
        end = begin + int(LIMIT * 1e9)
        while len(times) < count and begin < end:
            await call()
            after = now()
            times.append(after - begin)
            begin = after
        return times

    async def publish_in_bulk() -> tuple[int, float]:
        begin = time.perf_counter()
        return await bulk(lambda: not stop.is_set()), time.perf_counter() - begin

    running = asyncio.ensure_future(publish_in_bulk()) if job.options["bulk"] else None
    try:
        if running is not None:
            await asyncio.sleep(HEAD_START)
        with measured(job.count) as sample:
            found = await asyncio.gather(*map(caller, shares(job)))
    finally:
        stop.set()
    if running is not None:
        sample.background, sample.background_seconds = await running
    _take(sample, found)
    return sample


def _take(sample: Sample, found: Sequence[Sequence[int]]) -> None:
    sample.latencies([each for times in found for each in times])
    sample.count = sum(map(len, found))
