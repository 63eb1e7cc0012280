"""
The tests of `jetsync bench`: what each thread does, with which messages, on which stream.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

import jetsync

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = "jetsync_bench"
"""The start of the names of all streams and buckets; a random part follows."""

CONSUMER: Final = "bench"

USUAL: Final = 100_000
USUAL_OF_CALLS: Final = 10_000
"""Messages of a test, and of one that waits for the server again and again."""

SAMPLE: Final = 64
"""Of how many messages of a publisher the time of one is measured."""

ARRIVAL: Final = 30.0
"""Seconds to wait for messages that are stored."""


@attrs.frozen
class Part:
    """
    What one thread does of a test.
    """

    js: jetsync.JetStream
    plan: Plan
    first: int
    """The number of its first message, from 0."""

    count: int
    times: list[float] = attrs.field(factory=list)
    """Seconds of the calls that wait for the server."""

    @property
    def keys(self) -> Iterator[str]:
        """
        The keys to put or to get.
        """
        return (f"k{number}" for number in range(self.first, self.first + self.count))

    def timed(self, call: Callable[[], int | object]) -> Any:
        """
        Call a function and note how long it takes.
        """
        begin = time.perf_counter()
        result = call()
        self.times.append(time.perf_counter() - begin)
        return result

    def sizes(self) -> Iterator[int]:
        """
        Yield the sizes of the batches.
        """
        batch = self.plan.settings.batch
        for start in range(0, self.count, batch):
            yield min(batch, self.count - start)


def publish_each(part: Part) -> None:
    """
    Publish one message after the other.
    """
    publish = partial(part.js.publish, *part.plan.message)
    for _ in range(part.count):
        part.timed(publish)


def publish_many(part: Part) -> None:
    """
    Publish an iterable.
    """
    part.js.publish_many(itertools.repeat(part.plan.message, part.count))


def publish_later(part: Part) -> None:
    """
    Give messages to a publisher, and measure how long some of them take to be stored.
    """

    def note(begin: float, _future: object) -> None:
        part.times.append(time.perf_counter() - begin)

    with part.js.publisher() as publisher:
        for number in range(part.count):
            begin = time.perf_counter()
            future = publisher.publish(*part.plan.message)
            if number % SAMPLE == 0:
                future.add_done_callback(partial(note, begin))


def publish_atomic(part: Part) -> None:
    """
    Publish one atomic batch after the other.
    """
    for count in part.sizes():
        part.timed(partial(part.js.publish_batch, [part.plan.message] * count))


def publish_fast(part: Part) -> None:
    """
    Publish with fast ingest.
    """
    with part.js.fast_publisher() as fast:
        fast.add_many(itertools.repeat(part.plan.message, part.count))


def fetch(part: Part) -> None:
    """
    Fetch and acknowledge one batch after the other.
    """
    consumer = part.js.consumer(part.plan.name, CONSUMER)

    def take(count: int) -> int:
        batch = consumer.fetch(count, expires=ARRIVAL)
        found = sum(1 for _ in batch)
        batch.ack()
        return found

    check(part, sum(part.timed(partial(take, count)) for count in part.sizes()))


def consume(part: Part) -> None:
    """
    Iterate over a consumption and acknowledge each message.
    """
    consumer = part.js.consumer(part.plan.name, CONSUMER)
    with consumer.consume(stop_after=part.count) as messages:
        for message in messages:
            message.ack()


def scan(part: Part) -> None:
    """
    Read a range of the stream without a consumer.
    """
    stream = part.js.stream(part.plan.name)
    found = stream.scan(start=part.first + 1, end=part.first + part.count)
    check(part, sum(1 for _ in found))


def put(part: Part) -> None:
    """
    Put one key after the other.
    """
    bucket = part.js.key_value(part.plan.name)
    for key in part.keys:
        part.timed(partial(bucket.put, key, part.plan.payload))


def get(part: Part) -> None:
    """
    Get one key after the other.
    """
    bucket = part.js.key_value(part.plan.name)
    for key in part.keys:
        part.timed(partial(bucket.get, key))


def check(part: Part, found: int) -> None:
    """
    Fail unless every message of a part was read.
    """
    if found != part.count:
        raise click.ClickException(f"only {found:,} of {part.count:,} messages were read")


@attrs.frozen
class Test:
    """
    One test.
    """

    name: str
    title: str
    run: Callable[[Part], None]
    waits: bool = False
    """Whether it waits for the server again and again, and so has fewer messages."""

    reads: bool = False
    bucket: bool = False
    """Whether it uses a bucket."""

    flag: str | None = None
    """What the stream has to allow."""


TESTS: Final = (
    Test("pub", "publish one", publish_each, waits=True),
    Test("many", "publish many", publish_many),
    Test("publisher", "publisher", publish_later),
    Test("atomic", "atomic batches", publish_atomic, waits=True, flag="allow_atomic"),
    Test("fast", "fast ingest", publish_fast, flag="allow_batched"),
    Test("fetch", "fetch", fetch, reads=True),
    Test("consume", "consume", consume, reads=True),
    Test("scan", "scan", scan, reads=True, flag="allow_direct"),
    Test("kv", "kv put", put, waits=True, bucket=True),
    Test("kv", "kv get", get, waits=True, reads=True, bucket=True),
)


@attrs.frozen
class Settings:
    """
    How much is measured, and how.
    """

    messages: int | None
    batch: int
    threads: int
    clients: int
    storage: str
    replicas: int


@attrs.frozen
class Plan:
    """
    A test with one size of messages, and the stream or bucket that it creates.
    """

    test: Test
    settings: Settings
    payload: bytes
    name: str = attrs.field(factory=lambda: f"{NAME}_{secrets.token_hex(8)}")
    """The stream or the bucket."""

    @property
    def stream(self) -> str:
        """
        The stream, also that of a bucket.
        """
        return f"KV_{self.name}" if self.test.bucket else self.name

    @property
    def message(self) -> tuple[str, bytes]:
        """
        The message to publish.
        """
        return f"{self.name}.a", self.payload

    @property
    def count(self) -> int:
        """
        The number of messages.
        """
        return self.settings.messages or (USUAL_OF_CALLS if self.test.waits else USUAL)
