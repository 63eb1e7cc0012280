"""
nats-py, used as its documentation says.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import nats

from benchmarks.jobs import measured
from benchmarks.peers._buckets import AwaitedBuckets
from benchmarks.peers._callers import in_tasks
from benchmarks.peers._loop import LoopPeer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.jobs import Job, Sample
    from benchmarks.peers._callers import Running


class Peer(AwaitedBuckets, LoopPeer):
    """
    Do the rows with nats-py.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.client = self.run(nats.connect(url))
        self.jetstream = self.client.jetstream()

    def close(self) -> None:
        """
        Close the connection and the loop.
        """
        self.run(self.client.close())
        self.loop.close()

    def publish(self, job: Job) -> Sample:
        """
        Await each publish.
        """
        return self.run(self._publish(job))

    async def _publish(self, job: Job) -> Sample:
        payload = job.payload()
        times = []
        now = time.perf_counter_ns
        with measured(job.count) as sample:
            for _ in range(job.count):
                begin = now()
                await self.jetstream.publish(job.subject, payload)
                times.append(now() - begin)
        sample.latencies(times)
        return sample

    def publish_many(self, job: Job) -> Sample:
        """
        Hand everything to publish_async, which keeps its window of 4000, and look at every ack.
        """
        return self.run(self._publish_many(job))

    async def _publish_many(self, job: Job) -> Sample:
        payload = job.payload()
        # nats-py's own default is 4000; a larger one is only allowed here if the run asks for it.
        context = self.client.jetstream(publish_async_max_pending=min(job.window, 4000))
        wait = job.options.get("wait_stall")
        failures = 0

        def look(future: Any) -> None:
            nonlocal failures
            if future.exception() is not None:
                failures += 1

        with measured(job.count) as sample:
            for _ in range(job.count):
                # With the default wait of None a full window is waited for without a limit.
                future = await context.publish_async(job.subject, payload, wait_stall=wait)
                future.add_done_callback(look)
            await context.publish_async_completed()
        if failures:
            raise RuntimeError(f"{failures} publishes failed")
        return sample

    publisher = publish_many

    def ordered(self, job: Job) -> Sample:
        """
        Subscribe with its ordered consumer, to which the server pushes.
        """
        return self.run(self._ordered(job))

    async def _ordered(self, job: Job) -> Sample:
        with measured(job.count) as sample:
            subscription = await self.jetstream.subscribe(
                job.subject, stream=job.stream, ordered_consumer=True
            )
            for _ in range(job.count):
                await subscription.next_msg(30)
        await subscription.unsubscribe()
        return sample

    # There is no consume for pull consumers; its users fetch in a loop.
    consume = LoopPeer.fetch
    consume_ack = LoopPeer.fetch_ack

    async def _fetch(self, job: Job, *, ack: bool) -> Sample:
        subscription = await self.jetstream.pull_subscribe_bind(job.consumer, job.stream)
        left = job.count
        with measured(job.count) as sample:
            while left:
                messages = await subscription.fetch(min(job.batch, left), timeout=30)
                if ack:
                    for message in messages:
                        await message.ack()
                left -= len(messages)
            if ack:
                await self.client.flush()
        await subscription.unsubscribe()
        return sample

    def get_last(self, job: Job) -> Sample:
        """
        Await the last message again and again.
        """

        async def get_last() -> None:
            await self.jetstream.get_last_msg(job.stream, job.subject, direct=True)

        return self.run(self._timed(job, get_last))

    def get_last_for(self, job: Job) -> Sample:
        """
        Await the last message of each subject, all at once: there is no call for many.
        """
        names = job.names()

        async def get_last_for() -> None:
            get = self.jetstream.get_last_msg
            await asyncio.gather(*[get(job.stream, name, direct=True) for name in names])

        return self.run(self._timed(job, get_last_for))

    def concurrent(self, job: Job) -> Sample:
        """
        Publish, or read, from several tasks on one connection, which the bulk publish shares.
        """
        payload, reads = job.payload(), job.options.get("call") == "get_last"

        async def call() -> None:
            if reads:
                await self.jetstream.get_last_msg(job.stream, job.subject, direct=True)
            else:
                await self.jetstream.publish(job.subject, payload)

        async def bulk(running: Running) -> int:
            context = self.client.jetstream(publish_async_max_pending=min(job.window, 4000))
            futures = []
            while running():
                futures.append(await context.publish_async(job.subject, payload))
            await context.publish_async_completed()
            return sum(future.exception() is None for future in futures)

        return self.run(in_tasks(job, call, bulk))

    async def _timed(self, job: Job, call: Callable[[], Awaitable[None]]) -> Sample:
        times = []
        now = time.perf_counter_ns
        with measured(job.count) as sample:
            for _ in range(job.count):
                begin = now()
                await call()
                times.append(now() - begin)
        sample.latencies(times)
        return sample
