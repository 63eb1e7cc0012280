"""
The speed of jetsync and of nats-py with the same messages: one server, one run, in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import statistics
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import nats

import jetsync

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Payloads = list[tuple[str, bytes]]

__all__ = ["COUNT", "ROUNDS", "NatsPyError", "Speed", "compare"]

COUNT: Final = 30_000
"""Messages of a round."""

ROUNDS: Final = 3
"""Rounds. The result of a task is the median of its rounds."""

BATCH: Final = 5000
"""Messages per fetch."""

TIMEOUT: Final = 30.0
"""Seconds to wait for a batch of messages, or for the last acknowledgements."""

PUBLISH: Final = "publish"
READ: Final = "fetch and acknowledge"


class NatsPyError(Exception):
    """
    nats-py failed, so its speed is not known.
    """


class Speed(NamedTuple):
    """
    The messages per second of both clients at one task.
    """

    task: str
    jetsync: float
    nats_py: float

    @property
    def ratio(self) -> float:
        """How many times as fast jetsync is."""
        return self.jetsync / self.nats_py


def compare(
    client: jetsync.Client, server: str, stream: jetsync.Stream, messages: Payloads
) -> list[Speed]:
    """
    Publish the messages and read them back, with each client in turn.

    Both keep their default number of messages in flight, look at every acknowledgement, fetch
    batches of the same size and acknowledge each message. Both use uvloop if it is installed.

    Args:
        client: The client of jetsync.
        server: The URL of the server, for nats-py.
        stream: A stream for these messages only. It is purged.
        messages: The subject and payload of each message.

    Raises:
        NatsPyError: nats-py failed.
    """
    name = stream.name
    seconds: dict[str, list[float]] = defaultdict(list)

    def measure(what: str, work: Callable[[], int]) -> None:
        begin = time.perf_counter()
        count = work()
        seconds[what].append(time.perf_counter() - begin)
        if count != len(messages):
            failure = NatsPyError if what.startswith("nats-py") else click.ClickException
            raise failure(f"{what}: {count:,} of {len(messages):,} messages")

    with _nats_py(server) as run:
        for _ in range(ROUNDS):
            stream.purge()
            measure("nats-py publish", lambda: run(_publish_with_nats_py, messages))
            stream.purge()
            measure("jetsync publish", lambda: client.jetstream().publish_many(messages).count)
            for reader in ("nats-py", "jetsync"):
                with contextlib.suppress(jetsync.ConsumerNotFoundError):
                    stream.delete_consumer(reader)
                stream.create_consumer(reader, max_ack_pending=2 * BATCH, ack_wait=120)
            measure("nats-py read", lambda: run(_read_with_nats_py, name, len(messages)))
            measure("jetsync read", lambda: _read_with_jetsync(client, stream, len(messages)))
    rates = {what: len(messages) / statistics.median(times) for what, times in seconds.items()}
    return [
        Speed(PUBLISH, rates["jetsync publish"], rates["nats-py publish"]),
        Speed(READ, rates["jetsync read"], rates["nats-py read"]),
    ]


def _read_with_jetsync(client: jetsync.Client, stream: jetsync.Stream, count: int) -> int:
    worker = stream.consumer("jetsync")
    received = 0
    while received < count:
        before = received
        batch = worker.fetch(min(BATCH, count - received), expires=TIMEOUT)
        for message in batch:
            received += bool(message.data)
        batch.ack()
        if received == before:
            break
    client.flush()
    return received


@contextlib.contextmanager
def _nats_py(server: str) -> Iterator[Callable[..., Any]]:
    """
    Connect nats-py, and provide a function that runs a coroutine with its client to the end.
    """
    fast = importlib.util.find_spec("uvloop") is not None
    loop = importlib.import_module("uvloop").new_event_loop() if fast else asyncio.new_event_loop()
    # Otherwise asyncio logs a traceback for each task and each future that a failure leaves behind.
    loop.set_exception_handler(lambda _loop, _context: None)

    reported: list[Exception] = []

    async def report(error: Exception) -> None:
        reported.append(error)

    def wait(call: Awaitable[Any]) -> Any:
        try:
            return loop.run_until_complete(call)
        except Exception as error:
            # An error that belongs to no call, such as a denied permission, explains a timeout.
            cause = reported[-1] if reported else error
            text = f"{type(cause).__name__}: {cause}".removesuffix(": ")
            raise NatsPyError(text) from error

    try:
        # The server is known to be reachable, so many attempts would only delay the failure.
        client = wait(nats.connect(server.split(","), error_cb=report, max_reconnect_attempts=1))

        def run(work: Callable[..., Awaitable[int]], *arguments: Any) -> Any:
            return wait(work(client, *arguments))

        try:
            yield run
        finally:
            # All measurements are complete, or an earlier error is more important.
            with contextlib.suppress(NatsPyError):
                wait(client.close())
    finally:
        loop.close()


async def _publish_with_nats_py(client: Any, messages: Payloads) -> int:
    context = client.jetstream()
    futures = [
        await context.publish_async(subject, data, wait_stall=TIMEOUT) for subject, data in messages
    ]
    await asyncio.wait_for(context.publish_async_completed(), TIMEOUT)
    return sum(future.exception() is None for future in futures)


async def _read_with_nats_py(client: Any, stream: str, count: int) -> int:
    subscription = await client.jetstream().pull_subscribe_bind("nats-py", stream)
    received = 0
    while received < count:
        batch = await subscription.fetch(min(BATCH, count - received), timeout=TIMEOUT)
        for message in batch:
            received += bool(message.data)
            await message.ack()
    await client.flush()
    await subscription.unsubscribe()
    return received
