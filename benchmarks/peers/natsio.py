"""
natsio: an asyncio client in pure Python, for Python 3.13 and newer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import natsio

from benchmarks.jobs import measured
from benchmarks.peers._buckets import BUCKET, each_timed, keys_of
from benchmarks.peers._callers import in_tasks
from benchmarks.peers._loop import LoopPeer

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from benchmarks.jobs import Job, Sample
    from benchmarks.peers._callers import Running


class Peer(LoopPeer):
    """
    Do the rows with natsio.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.client = self.run(self._connect(url))
        self.jetstream = self.client.jetstream()

    async def _connect(self, url: str) -> Any:
        return await natsio.connect(url)

    def close(self) -> None:
        """
        Close the connection and the loop.
        """
        self.run(self.client.close())
        self.loop.close()

    def publish(self, job: Job) -> Sample:
        """
        Await each publish with its ack.
        """
        return self.run(self._publish(job))

    async def _publish(self, job: Job) -> Sample:
        payload, times, now = job.payload(), [], time.perf_counter_ns
        with measured(job.count) as sample:
            for _ in range(job.count):
                begin = now()
                await self.jetstream.publish(job.subject, payload)
                times.append(now() - begin)
        sample.latencies(times)
        return sample

    def publish_many(self, job: Job) -> Sample:
        """
        Publish without waiting, and check each ack.
        """
        return self.run(self._publish_many(job))

    async def _publish_many(self, job: Job) -> Sample:
        payload, jetstream = job.payload(), self._with_window(job)
        with measured(job.count) as sample:
            futures = [
                await jetstream.publish_async(job.subject, payload) for _ in range(job.count)
            ]
            for future in futures:
                await future
        return sample

    publisher = publish_many

    def _with_window(self, job: Job) -> Any:
        # By default it gives up after 0.2 s if the window is full.
        return self.client.jetstream(
            publish_async_max_pending=job.window, publish_async_stall_wait=30
        )

    def concurrent(self, job: Job) -> Sample:
        """
        Publish, or read, from several tasks on one connection, which the bulk publish shares.
        """
        payload, jetstream = job.payload(), self._with_window(job)
        reads = job.options.get("call") == "get_last"
        stream = self.run(self._stream(job)) if reads else None

        def call() -> Awaitable[Any]:
            if stream is not None:
                return stream.get_msg(subject=job.subject)  # type: ignore[no-any-return]
            return jetstream.publish(job.subject, payload)  # type: ignore[no-any-return]

        async def bulk(running: Running) -> int:
            futures = []
            while running():
                futures.append(await jetstream.publish_async(job.subject, payload))
            for future in futures:
                await future
            return len(futures)

        return self.run(in_tasks(job, call, bulk))

    async def _fetch(self, job: Job, *, ack: bool) -> Sample:
        consumer, left = await self._consumer(job), job.count
        with measured(job.count) as sample:
            while left:
                messages = await consumer.fetch(min(job.batch, left), timeout=30)
                if ack:
                    for message in messages:
                        await message.ack()
                left -= len(messages)
            if ack:
                await self.client.flush()
        return sample

    def consume(self, job: Job) -> Sample:
        """
        Consume without acks.
        """
        return self.run(self._consume(job, ack=False))

    def consume_ack(self, job: Job) -> Sample:
        """
        Consume and acknowledge each message.
        """
        return self.run(self._consume(job, ack=True))

    async def _consume(self, job: Job, *, ack: bool) -> Sample:
        consumer, left = await self._consumer(job), job.count
        with measured(job.count) as sample:
            async with consumer.consume(max_messages=job.batch) as messages:
                async for message in messages:
                    if ack:
                        await message.ack()
                    left -= 1
                    if not left:
                        break
            if ack:
                await self.client.flush()
        return sample

    async def _stream(self, job: Job) -> Any:
        return await self.jetstream.stream(job.stream)

    async def _consumer(self, job: Job) -> Any:
        stream = await self._stream(job)
        return await stream.consumer(job.consumer)

    def get_last(self, job: Job) -> Sample:
        """
        Await the last message again and again.
        """
        return self.run(self._get_last(job))

    async def _get_last(self, job: Job) -> Sample:
        stream = await self._stream(job)
        return await each_timed(job, lambda _: stream.get_msg(subject=job.subject))

    def kv_put(self, job: Job) -> Sample:
        """
        Await each put.
        """
        return self.run(self._put(job))

    async def _put(self, job: Job) -> Sample:
        kv, payload = await self.jetstream.key_value(BUCKET), job.payload()
        return await each_timed(job, lambda key: kv.put(key, payload))

    def kv_get(self, job: Job) -> Sample:
        """
        Await each get.
        """
        return self.run(self._get(job))

    async def _get(self, job: Job) -> Sample:
        kv, payload = await self.jetstream.key_value(BUCKET), job.payload()
        for key in keys_of(job):
            await kv.put(key, payload)
        return await each_timed(job, kv.get)
