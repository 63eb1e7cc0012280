"""
The rows about key-value buckets, for the peers that have such.

The stream of the run is laid out as the stream behind a bucket. Every row ends with one revision of
as many keys as it has messages, which those that read have put there before.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from benchmarks.jobs import measured

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from benchmarks.jobs import Job, Sample
    from benchmarks.peers._loop import LoopPeer

BUCKET = "BENCH"
"""The bucket whose stream the run makes."""


def keys_of(job: Job) -> list[str]:
    """
    Return the keys of a job.
    """
    return [f"k{number}" for number in range(job.count)]


def parts(keys: Sequence[str], size: int) -> list[Sequence[str]]:
    """
    Return the keys in runs of *size*.
    """
    return [keys[start : start + size] for start in range(0, len(keys), size)]


class BlockingBuckets:
    """
    The rows with jetsync.
    """

    jetstream: Any

    def kv_put(self, job: Job) -> Sample:
        """
        Put one key after the other.
        """
        kv, payload = self.jetstream.key_value(BUCKET), job.payload()
        return self._each(job, lambda key: kv.put(key, payload))

    def kv_get(self, job: Job) -> Sample:
        """
        Get one key after the other.
        """
        kv = self._filled(job)
        return self._each(job, kv.get)

    def kv_watch(self, job: Job) -> Sample:
        """
        Read what there is with a watch.
        """
        kv = self._filled(job)
        with measured(job.count) as sample, kv.watch() as watch:
            found = sum(1 for _ in watch.initial())
        _check(found, job)
        return sample

    def kv_get_many(self, job: Job) -> Sample:
        """
        Read a hundred keys at a time, each time at one moment.
        """
        kv, found = self._filled(job), 0
        runs = parts(keys_of(job), job.batch)
        with measured(job.count) as sample:
            for keys in runs:
                found += len(kv.get_many(keys))
        _check(found, job)
        return sample

    def _each(self, job: Job, call: Any) -> Sample:
        times, now = [], time.perf_counter_ns
        with measured(job.count) as sample:
            for key in keys_of(job):
                begin = now()
                call(key)
                times.append(now() - begin)
        sample.latencies(times)
        return sample

    def _filled(self, job: Job) -> Any:
        payload = job.payload()
        self.jetstream.publish_many((f"$KV.{BUCKET}.{key}", payload) for key in keys_of(job))
        return self.jetstream.key_value(BUCKET)


async def each_timed(job: Job, call: Callable[[str], Awaitable[Any]]) -> Sample:
    """
    Call *call* with each key of a job, one after the other, and time each call.
    """
    times, now = [], time.perf_counter_ns
    with measured(job.count) as sample:
        for key in keys_of(job):
            begin = now()
            await call(key)
            times.append(now() - begin)
    sample.latencies(times)
    return sample


class AwaitedBuckets:
    """
    The rows with nats-py.
    """

    jetstream: Any

    def kv_put(self: Any, job: Job) -> Sample:
        """
        Await each put.
        """
        return _run(self, self._put(job))

    def kv_get(self: Any, job: Job) -> Sample:
        """
        Await each get.
        """
        return _run(self, self._get(job))

    def kv_watch(self: Any, job: Job) -> Sample:
        """
        Read what there is with a watcher.
        """
        return _run(self, self._watch(job))

    def kv_get_many(self: Any, job: Job) -> Sample:
        """
        Gather the gets of a hundred keys at a time, which is as near as it comes.
        """
        return _run(self, self._get_many(job))

    async def _put(self, job: Job) -> Sample:
        kv, payload = await self.jetstream.key_value(BUCKET), job.payload()
        return await each_timed(job, lambda key: kv.put(key, payload))

    async def _get(self, job: Job) -> Sample:
        kv = await self._filled(job)
        return await each_timed(job, kv.get)

    async def _watch(self, job: Job) -> Sample:
        kv, found = await self._filled(job), 0
        with measured(job.count) as sample:
            watcher = await kv.watchall()
            async for entry in watcher:
                if entry is None:
                    break
                found += 1
            await watcher.stop()
        _check(found, job)
        return sample

    async def _get_many(self, job: Job) -> Sample:
        kv, found = await self._filled(job), 0
        runs = parts(keys_of(job), job.batch)
        with measured(job.count) as sample:
            for keys in runs:
                found += len(await asyncio.gather(*map(kv.get, keys)))
        _check(found, job)
        return sample

    async def _filled(self, job: Job) -> Any:
        kv, payload = await self.jetstream.key_value(BUCKET), job.payload()
        for keys in parts(keys_of(job), 500):
            await asyncio.gather(*(kv.put(key, payload) for key in keys))
        return kv


def _run(peer: LoopPeer, work: Any) -> Sample:
    sample: Sample = peer.run(work)
    return sample


def _check(found: int, job: Job) -> None:
    if found != job.count:
        raise RuntimeError(f"{found} of {job.count} keys were read")
