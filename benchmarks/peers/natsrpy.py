"""
natsrpy: asyncio futures over the Rust client.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from natsrpy import Nats

from benchmarks.jobs import measured
from benchmarks.peers._buckets import BUCKET, each_timed, keys_of
from benchmarks.peers._callers import in_tasks
from benchmarks.peers._loop import LoopPeer

if TYPE_CHECKING:
    from benchmarks.jobs import Job, Sample
    from benchmarks.peers._callers import Running


class Peer(LoopPeer):
    """
    Do the rows with natsrpy.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.run(self._connect(url))

    async def _connect(self, url: str) -> None:
        # Its calls need a running loop already when they are made.
        self.client = Nats(addrs=[url])
        await self.client.startup()
        self.jetstream = await self.client.jetstream()

    def close(self) -> None:
        """
        Close the connection and the loop.
        """
        self.run(self._close())
        self.loop.close()

    async def _close(self) -> None:
        await self.client.shutdown()

    def publish(self, job: Job) -> Sample:
        """
        Await each publish with its ack.
        """
        return self.run(self._publish(job))

    async def _publish(self, job: Job) -> Sample:
        payload = job.payload()
        times = []
        now = time.perf_counter_ns
        with measured(job.count) as sample:
            for _ in range(job.count):
                begin = now()
                await self.jetstream.publish(job.subject, payload, wait=True)
                times.append(now() - begin)
        sample.latencies(times)
        return sample

    def publish_many(self, job: Job) -> Sample:
        """
        Keep a window of futures: natsrpy has no bulk publish of its own.
        """
        return self.run(self._publish_many(job))

    async def _publish_many(self, job: Job) -> Sample:
        payload = job.payload()
        publish = self.jetstream.publish
        pending: deque[Any] = deque()
        with measured(job.count) as sample:
            for _ in range(job.count):
                pending.append(publish(job.subject, payload, wait=True))
                if len(pending) >= job.window:
                    await pending.popleft()
            while pending:
                await pending.popleft()
        return sample

    publisher = publish_many

    def concurrent(self, job: Job) -> Sample:
        """
        Publish, or read, from several tasks on one connection, which the bulk publish shares.
        """
        payload = job.payload()
        publish = self.jetstream.publish
        reads = job.options.get("call") == "get_last"
        stream = self.run(self._stream(job)) if reads else None

        async def one() -> None:
            if stream is not None:
                await stream.direct_get_last_for_subject(job.subject)
            else:
                await publish(job.subject, payload, wait=True)

        async def bulk(running: Running) -> int:
            pending: deque[Any] = deque()
            count = 0
            while running() or pending:
                if running():
                    pending.append(publish(job.subject, payload, wait=True))
                if len(pending) >= job.window or not running():
                    await pending.popleft()
                    count += 1
            return count

        return self.run(in_tasks(job, one, bulk))

    async def _fetch(self, job: Job, *, ack: bool) -> Sample:
        stream = await self.jetstream.streams.get(job.stream)
        consumer = await stream.consumers.get_pull(job.consumer)
        left = job.count
        with measured(job.count) as sample:
            while left:
                messages = await consumer.fetch(max_messages=min(job.batch, left), expires=30)
                if ack:
                    # All are sent before the first is waited for: one at a time is slower.
                    for sent in [message.ack() for message in messages]:
                        await sent
                left -= len(messages)
            if ack:
                await self.client.flush()
        return sample

    # Its own consume is slower than fetching in a loop.
    consume = LoopPeer.fetch
    consume_ack = LoopPeer.fetch_ack

    def get_last(self, job: Job) -> Sample:
        """
        Await the last message again and again.
        """
        return self.run(self._get_last(job))

    async def _stream(self, job: Job) -> Any:
        return await self.jetstream.streams.get(job.stream)

    async def _get_last(self, job: Job) -> Sample:
        stream = await self._stream(job)
        get = stream.direct_get_last_for_subject
        return await each_timed(job, lambda _: get(job.subject))

    def kv_put(self, job: Job) -> Sample:
        """
        Await each put.
        """
        return self.run(self._put(job))

    async def _put(self, job: Job) -> Sample:
        kv, payload = await self.jetstream.kv.get(BUCKET), job.payload()
        return await each_timed(job, lambda key: kv.put(key, payload))

    def kv_get(self, job: Job) -> Sample:
        """
        Await each get.
        """
        return self.run(self._get(job))

    async def _get(self, job: Job) -> Sample:
        kv, payload = await self.jetstream.kv.get(BUCKET), job.payload()
        for key in keys_of(job):
            await kv.put(key, payload)
        return await each_timed(job, kv.get)
