"""
`jetsync bench`: measure how fast a server stores and delivers messages.

Each test has a stream of its own, which is removed at its end. The folder `benchmarks` of the
repository compares jetsync with other clients; this command measures one server.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import attrs
import click

import jetsync
from jetsync._base import speedups
from jetsync._base.locks import SIGNAL_CHECK
from jetsync.cli._bench_tests import (
    CONSUMER,
    TESTS,
    USUAL,
    USUAL_OF_CALLS,
    Part,
    Plan,
    Settings,
    Test,
)
from jetsync.cli._connection import Command, connect
from jetsync.cli._output import (
    WARNING,
    Styled,
    duration,
    json_option,
    print_json,
    print_table,
    progress,
    say,
    size,
    warn,
)
from jetsync.cli._signals import delayed_interrupts
from jetsync.cli._units import number_option, size_option
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@attrs.frozen
class Result:
    """
    What a test measured.
    """

    test: Test
    size: int
    count: int
    seconds: float | None = None
    cpu: float | None = None
    """Seconds of CPU time of this process."""

    times: list[float] = attrs.field(factory=list)
    note: str = ""
    """Why there is no result."""

    def percentile(self, percent: int) -> float | None:
        """
        Return the seconds within which so many of the calls end. A percentile of few is their
        maximum, and left out.
        """
        if len(self.times) < (1 if percent <= 50 else 100):
            return None
        return sorted(self.times)[(len(self.times) * percent - 1) // 100]

    def as_json(self) -> dict[str, Any]:
        """
        Return it as `--json` prints it.
        """
        rate = None if self.seconds is None else round(self.count / self.seconds, 1)
        p50, p99 = (
            None if each is None else round(each * 1000, 4)
            for each in (self.percentile(50), self.percentile(99))
        )
        return {
            "test": self.test.title,
            "size": self.size,
            "messages": self.count,
            "seconds": self.seconds and round(self.seconds, 6),
            "messages_per_second": rate,
            "bytes_per_second": rate and round(rate * self.size),
            "p50_ms": p50,
            "p99_ms": p99,
            "cpu_seconds": self.cpu and round(self.cpu, 6),
            "note": self.note or None,
        }


def result_of(plan: Plan, **measured: Any) -> Result:
    """
    Return what was measured, or why nothing was.
    """
    return Result(plan.test, len(plan.payload), plan.count, **measured)


@click.command(cls=Command)
@click.argument(
    "tests",
    nargs=-1,
    type=click.Choice(list(dict.fromkeys(test.name for test in TESTS))),
    metavar="[TESTS]...",
)
@number_option(
    "--msgs",
    "messages",
    help=f"Messages of each test.  [default: {USUAL:,}, or {USUAL_OF_CALLS:,} for"
    " pub, atomic and kv]",
)
@size_option(
    "--size",
    "sizes",
    multiple=True,
    default=("128",),
    help="Size of a payload, such as 1KB. May be repeated.  [default: 128]",
)
@number_option(
    "--batch", default=100, show_default=True, help="Messages of each atomic batch and each fetch."
)
@number_option("--clients", default=1, show_default=True, help="Number of connections.")
@number_option(
    "--threads", default=1, show_default=True, help="Threads that share each connection."
)
@click.option(
    "--storage",
    type=click.Choice(["file", "memory"]),
    default="file",
    show_default=True,
    help="Where the server stores the messages.",
)
@number_option("--replicas", default=1, show_default=True, help="Number of copies in a cluster.")
@json_option
def bench(
    *,
    options: jetsync.ConnectOptions,
    tests: tuple[str, ...],
    sizes: tuple[int, ...],
    as_json: bool,
    **settings: Any,
) -> None:
    """
    Measure how fast a server stores and delivers messages.

    TESTS are pub, many, publisher, atomic, fast, fetch, consume, scan and kv; the default is all.
    Without a server from --server, --context or the environment, the command starts one and stops
    it after the tests.

    Each test creates a stream or bucket with a new name that starts with jetsync_bench, and removes
    it at the end, even after Ctrl-C. The threads share the messages of a test. They run in one
    process, so more threads rarely mean more messages per second.

    p50 and p99 are the times of the calls that wait for the server: one message, one batch or one
    fetch. For publisher, they are the times until a message is acknowledged. cpu/msg is the CPU
    time of this process for each message.
    """
    chosen = Settings(**settings)
    if min(sizes) < 0:
        raise click.UsageError("--size needs a size of 0 or more.")
    callers = chosen.threads * chosen.clients
    if chosen.messages is not None and chosen.messages < callers:
        raise click.UsageError(f"{callers:,} threads need at least {callers:,} messages.")
    selected = [test for test in TESTS if not tests or test.name in tests]
    with contextlib.ExitStack() as stack:
        own = options.servers is None
        if own:
            options = options.evolve(servers=stack.enter_context(DevServer()).url)
        # This connection creates and removes the streams. The tests have others.
        client = stack.enter_context(connect(options))
        server = client.server
        if not as_json:
            where = f"nats-server {server.version} at {server.url}"
            say(where + (", started for these tests" if own else ""), err=True)
            say(f"jetsync {jetsync.__version__}, {speedups.VARIANT}", err=True)
        show_progress = stack.enter_context(progress("bench", len(selected) * len(sizes)))
        results: list[Result] = []
        for each, test in itertools.product(sizes, selected):
            show_progress(completed=len(results), description=test.title)
            plan = Plan(test, chosen, secrets.token_bytes(each))
            results.append(run_one(client.jetstream(), options, plan))
    if as_json:
        about = {"version": server.version, "url": server.url, "temporary": own}
        found = [result.as_json() for result in results]
        used = {"version": jetsync.__version__, "variant": speedups.VARIANT}
        print_json(
            {
                "client": used,
                "server": about,
                "settings": attrs.asdict(chosen),
                "results": found,
            }
        )
    else:
        show(results)


def run_one(js: jetsync.JetStream, options: jetsync.ConnectOptions, plan: Plan) -> Result:
    """
    Run one test on a stream of its own.
    """
    try:
        with prepared(js, plan):
            result = measure(options, plan)
            stored = js.stream(plan.stream).info().state.messages
            if stored != plan.count:
                raise click.ClickException(
                    f"{plan.test.title}: {stored:,} of {plan.count:,} messages are stored"
                )
            return result
    except jetsync.NotSupportedError as error:
        return result_of(plan, note=str(error))


@contextlib.contextmanager
def prepared(js: jetsync.JetStream, plan: Plan) -> Iterator[None]:
    """
    Create what a test needs, and remove it at the end.
    """
    name, test, count = plan.name, plan.test, plan.count
    common: Any = {
        "description": "made by `jetsync bench`",
        "storage": plan.settings.storage,
        "num_replicas": plan.settings.replicas,
    }
    try:
        if test.bucket:
            js.create_key_value(name, **common)
        else:
            flags: Any = {} if test.flag is None else {test.flag: True}
            js.create_stream(name, subjects=[f"{name}.>"], **common, **flags)
        if test.reads and test.bucket:
            js.publish_many((f"$KV.{name}.k{number}", plan.payload) for number in range(count))
        elif test.reads:
            js.publish_many(itertools.repeat(plan.message, count))
            js.create_consumer(name, CONSUMER, max_ack_pending=-1)
        yield
    except BaseException:
        try:
            remove(js, plan.stream)
        except click.ClickException as error:
            # The first error says why.
            warn(error.format_message())
        raise
    remove(js, plan.stream)


def remove(js: jetsync.JetStream, stream: str) -> None:
    """
    Remove a stream. Ctrl-C and SIGTERM take effect after that.
    """
    with delayed_interrupts():
        try:
            js.delete_stream(stream)
        except jetsync.StreamNotFoundError:
            # It was not created.
            pass
        except jetsync.JetSyncError as error:
            text = f"the stream {stream} may be left on the server: {error}"
            raise click.ClickException(text) from error


def measure(options: jetsync.ConnectOptions, plan: Plan) -> Result:
    """
    Let all threads do their parts, and measure the time of all.
    """
    clients_wanted, count = plan.settings.clients, plan.count
    callers = clients_wanted * plan.settings.threads
    begin_together = threading.Event()

    def work(part: Part) -> None:
        begin_together.wait()
        plan.test.run(part)

    with ThreadPoolExecutor(callers, "bench") as pool, contextlib.ExitStack() as stack:
        # If a thread fails or Ctrl-C ends the wait, the stack closes the clients. So the calls of
        # the other threads fail, and the pool ends.
        stack.callback(begin_together.set)
        clients = [stack.enter_context(connect(options)) for _ in range(clients_wanted)]
        parts, running = [], []
        for number in range(callers):
            first, end = count * number // callers, count * (number + 1) // callers
            js = clients[number % len(clients)].jetstream()
            parts.append(Part(js, plan, first, end - first))
            running.append(pool.submit(work, parts[-1]))
        cpu, begin = time.process_time(), time.perf_counter()
        begin_together.set()
        left = set(running)
        while left:
            # The system may give a signal to another thread, which does not end a wait of this one.
            done, left = wait(left, SIGNAL_CHECK, FIRST_EXCEPTION)
            for each in done:
                each.result()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    times = [each for part in parts for each in part.times]
    return result_of(plan, seconds=seconds, cpu=cpu, times=times)


def show(results: Sequence[Result]) -> None:
    """
    Print a table.
    """
    numbers = ("size", "messages", "time", "msgs/s", "bytes/s", "p50", "p99", "cpu/msg")
    print_table(("test", *numbers, ""), map(row_of, results), numbers=numbers)


def row_of(result: Result) -> tuple[object, ...]:
    """
    Return a row of the table.
    """
    about = (result.test.title, size(result.size), f"{result.count:,}")
    if result.seconds is None:
        return (*about, *[""] * 6, Styled(result.note, WARNING))
    rate = result.count / result.seconds
    return (
        *about,
        duration(round(result.seconds, 2 if result.seconds >= 1 else 3)),
        f"{rate:,.0f}",
        size(rate * result.size),
        short(result.percentile(50)),
        short(result.percentile(99)),
        short(None if result.cpu is None else result.cpu / result.count),
        "",
    )


def short(seconds: float | None) -> str:
    """
    Return a time of less than a second with three digits.
    """
    if seconds is None:
        return ""
    return f"{seconds * 1e6:.3g} µs" if seconds < 0.001 else f"{seconds * 1000:.3g} ms"
