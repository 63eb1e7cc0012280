"""
jetsync, from plain blocking code.

The module is called like the package; imports are absolute, so that the package is what is meant.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import jetsync
from benchmarks.jobs import measured
from benchmarks.peers._buckets import BlockingBuckets
from benchmarks.peers._callers import in_threads
from benchmarks.plugins import make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.jobs import Job, Sample
    from benchmarks.peers._callers import Running


class IdlePlugin:
    """
    A plugin that looks at every message on its way out, and does nothing.
    """

    @jetsync.hookimpl
    def jetsync_prepare_message(self, message: jetsync.OutboundMessage) -> None:
        """
        Keep the message as it is.
        """


class Peer(BlockingBuckets):
    """
    Do the rows with jetsync.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        plugins: list[object] = [make(name) for name in options.get("plugins", ())]
        if options.get("plugin"):
            plugins.append(IdlePlugin())
        self.url = url
        try:
            self.client = jetsync.connect(url, loop=options.get("loop", "auto"), plugins=plugins)
        except jetsync.ConfigurationError as error:
            # Without uvloop, the run leaves this contender out.
            raise ImportError(str(error)) from error
        self.jetstream = self.client.jetstream()
        self.bulk_client = (
            jetsync.connect(url, loop=options.get("loop", "auto")) if options.get("two") else None
        )

    def close(self) -> None:
        """
        Close the clients.
        """
        self.client.close()
        if self.bulk_client is not None:
            self.bulk_client.close()

    def publish(self, job: Job) -> Sample:
        """
        Publish one message after the other.
        """
        payload = job.payload()
        publish = self.jetstream.publish
        times = []
        now = time.perf_counter_ns
        with measured(job.count) as sample:
            for _ in range(job.count):
                begin = now()
                publish(job.subject, payload)
                times.append(now() - begin)
        sample.latencies(times)
        return sample

    def publish_many(self, job: Job) -> Sample:
        """
        Hand an iterable to publish_many.
        """
        messages = itertools.repeat((job.subject, job.payload()), job.count)
        with measured(job.count) as sample:
            report = self.jetstream.publish_many(messages, window=job.window)
        if report.count != job.count:
            raise RuntimeError(f"{report.count} of {job.count} messages were stored")
        return sample

    def publisher(self, job: Job) -> Sample:
        """
        Give a publisher message after message; what fails is raised at its end.
        """
        payload = job.payload()
        with measured(job.count) as sample:
            with self.jetstream.publisher(window=job.window) as publisher:
                publish = publisher.publish
                for _ in range(job.count):
                    publish(job.subject, payload)
            acknowledged = publisher.statistics().acknowledged
        if acknowledged != job.count:
            raise RuntimeError(f"{acknowledged} of {job.count} messages were stored")
        return sample

    def atomic(self, job: Job) -> Sample:
        """
        Publish batch after batch, each in one call, or message by message when the options say so.
        """
        message = (job.subject, job.payload())
        by_message = bool(job.options.get("add"))
        left = job.count
        with measured(job.count) as sample:
            while left:
                size = min(job.batch, left)
                if by_message:
                    with self.jetstream.atomic_batch() as batch:
                        for _ in range(size):
                            batch.add(*message)
                else:
                    self.jetstream.publish_batch([message] * size)
                left -= size
        return sample

    def fast_ingest(self, job: Job) -> Sample:
        """
        Hand an iterable to a fast publisher, or message by message when the options say so.
        """
        message = (job.subject, job.payload())
        with measured(job.count) as sample, self.jetstream.fast_publisher() as fast:
            if job.options.get("add"):
                for _ in range(job.count):
                    fast.add(*message)
            else:
                fast.add_many(itertools.repeat(message, job.count))
        return sample

    def fetch(self, job: Job) -> Sample:
        """
        Fetch batch after batch, or take one message after the other when the options say so.
        """
        consumer = self.jetstream.consumer(job.stream, job.consumer)
        left = job.count
        with measured(job.count) as sample:
            if job.options.get("next"):
                while left:
                    left -= consumer.next(30) is not None
            while left:
                for _ in consumer.fetch(min(job.batch, left), expires=30):
                    left -= 1
        return sample

    def fetch_ack(self, job: Job) -> Sample:
        """
        Fetch batch after batch; acknowledge each message, or each batch when the options say so.
        """
        consumer = self.jetstream.consumer(job.stream, job.consumer)
        whole = bool(job.options.get("batch_ack"))
        left = job.count
        with measured(job.count) as sample:
            if job.options.get("next"):
                while left:
                    message = consumer.next(30)
                    if message is not None:
                        message.ack()
                        left -= 1
            while left:
                batch = consumer.fetch(min(job.batch, left), expires=30)
                if whole:
                    for _ in batch:
                        left -= 1
                    batch.ack()
                else:
                    for message in batch:
                        message.ack()
                        left -= 1
            self.client.flush()
        return sample

    def ordered(self, job: Job) -> Sample:
        """
        Iterate over an ordered consumer, or fetch from it when the options say so.
        """
        stream = self.jetstream.stream(job.stream)
        left = job.count
        with measured(job.count) as sample, stream.ordered_consumer() as ordered:
            if job.options.get("fetch"):
                while left:
                    for _ in ordered.fetch(min(job.batch, left)):
                        left -= 1
            else:
                for _ in ordered.consume(stop_after=job.count):
                    left -= 1
        if left:
            raise RuntimeError(f"{left} messages did not come")
        return sample

    def consume(self, job: Job) -> Sample:
        """
        Iterate over a consumption, or have a handler called when the options say so.
        """
        return self._consume(job, ack=False)

    def consume_ack(self, job: Job) -> Sample:
        """
        Do the same and acknowledge each message, or have it acknowledged.
        """
        return self._consume(job, ack=True)

    def _consume(self, job: Job, *, ack: bool) -> Sample:
        consumer = self.jetstream.consumer(job.stream, job.consumer)
        auto = bool(job.options.get("auto"))
        with measured(job.count) as sample:
            if job.options.get("handler"):
                handler = jetsync.Message.ack if ack else type
                running = consumer.consume(handler, stop_after=job.count)
                running.wait(timeout=60)
            else:
                with consumer.consume(
                    stop_after=job.count, ack="auto" if auto else "explicit"
                ) as messages:
                    for message in messages:
                        if ack and not auto:
                            message.ack()
            if ack:
                self.client.flush()
        return sample

    def scan(self, job: Job) -> Sample:
        """
        Iterate over the stream.
        """
        stream = self.jetstream.stream(job.stream)
        left = job.count
        with measured(job.count) as sample:
            for _ in stream.scan(end=job.count, page=job.batch):
                left -= 1
        if left:
            raise RuntimeError(f"{left} messages were not read")
        return sample

    def get_last(self, job: Job) -> Sample:
        """
        Read the last message again and again.
        """
        stream = self.jetstream.stream(job.stream)
        return self._timed(job, lambda: stream.get_last(job.subject, direct=True))

    def get_last_for(self, job: Job) -> Sample:
        """
        Read the last messages of all subjects in one call, again and again.
        """
        stream = self.jetstream.stream(job.stream)
        names = job.names()
        sample = self._timed(job, lambda: list(stream.get_last_for(names)))
        if len(list(stream.get_last_for(names))) != job.subjects:
            raise RuntimeError("messages are missing")
        return sample

    def concurrent(self, job: Job) -> Sample:
        """
        Publish, or read, from several threads, which share a client unless the options say that
        each has one; a bulk publish shares it unless the options say two.
        """
        if not job.options.get("each"):
            return self._concurrent(job, [self.jetstream] * job.options["callers"])
        with contextlib.ExitStack() as stack:
            connect = partial(jetsync.connect, self.url, loop=job.options.get("loop", "auto"))
            clients = [stack.enter_context(connect()) for _ in range(job.options["callers"])]
            return self._concurrent(job, [client.jetstream() for client in clients])

    def _concurrent(self, job: Job, contexts: Sequence[jetsync.JetStream]) -> Sample:
        message = (job.subject, job.payload())
        calls: list[Callable[[], object]] = [partial(each.publish, *message) for each in contexts]
        if job.options.get("call") == "get_last":
            streams = [each.stream(job.stream) for each in contexts]
            calls = [partial(each.get_last, job.subject, direct=True) for each in streams]
        bulk_jetstream = self.bulk_client.jetstream() if self.bulk_client else self.jetstream

        def bulk(running: Running) -> int:
            def messages() -> Iterator[tuple[str, bytes]]:
                while running():
                    yield from itertools.repeat(message, 100)

            return bulk_jetstream.publish_many(messages(), window=job.window).count

        return in_threads(job, calls, bulk)

    @staticmethod
    def _timed(job: Job, call: Callable[[], object]) -> Sample:
        times = []
        now = time.perf_counter_ns
        with measured(job.count) as sample:
            for _ in range(job.count):
                begin = now()
                call()
                times.append(now() - begin)
        sample.latencies(times)
        return sample
