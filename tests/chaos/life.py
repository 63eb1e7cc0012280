"""
Clients and handles that are dropped, closed by another thread, forked and signalled.

After each trial the process has no more threads and descriptors than before, and the server has no
connection, no subscription and no open atomic batch more.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings

import attrs
from calls import CALLS, CLOSING, Handles, Striker, handles, server
from trial import LATE, Base, Report, jetsync_threads

import jetsync
from jetsync.devserver import DevServer

WAKE = 5.0
"""Seconds in which everything must end that a close or a drop ends."""
OPEN_BATCHES = 50
"""How many atomic batches of one stream the server allows to be open."""
CHILD_STATUS = 7
ENOUGH = 40
"""Seconds after which a child counts as hanging."""


@attrs.define
class World:
    server: DevServer
    striker: Striker
    base: Base
    warned: list[str]
    """The ResourceWarnings since the last look."""

    @property
    def url(self) -> str:
        return self.server.url

    def connections(self) -> dict[int, list[str]]:
        """
        Return the subscriptions of each connection of the server.

        Without that to the advisories about batches, which lasts as long as the client.
        """
        found = self.server.monitor("connz?subs=1&limit=10000")["connections"]
        return {
            each["cid"]: [
                subject
                for subject in each.get("subscriptions_list", [])
                if "BATCH_ABANDONED" not in subject
            ]
            for each in found
        }


@contextlib.contextmanager
def world():
    warned: list[str] = []

    def show(message, category, filename, lineno, file=None, line=None):
        warned.append(f"{category.__name__}: {message}")

    warnings.showwarning = show
    warnings.simplefilter("always", ResourceWarning)
    with server() as running:
        yield World(running, Striker(), Base(), warned)


@attrs.define
class Owner:
    """
    A client of a trial, and its open handles.
    """

    h: Handles
    subscriptions: int
    """The number of its connection's subscriptions before there were handles."""
    reconnects_after_fork: bool
    open: list[tuple[str, object]] = attrs.Factory(list)
    """The names of the makers, and the handles that they made."""
    waiters: list[threading.Thread] = attrs.Factory(list)
    abandons: bool = False
    """Whether a forked child may have left a batch open."""
    lost: bool = False
    """Whether the client is closed, or an interrupted call may have cut its connection."""


# The makers. Each returns an object in use, which `end` can close.


def subscription(h, chance):
    made = h.client.subscribe("life.core")
    h.client.publish("life.core", b"x")
    if chance.random() < 0.5:
        made.next(timeout=1)
    return made


def publisher(h, chance):
    made = h.js.publisher(window=64)
    for _ in range(chance.randrange(1, 100)):
        made.publish("chaos.publisher", b"x")
    return made


def fast(h, chance):
    made = h.js.fast_publisher(flow=20)
    for _ in range(chance.randrange(1, 60)):
        made.add("chaos.fast", b"x")
    return made


def atomic(h, chance):
    made = h.js.atomic_batch()
    for _ in range(chance.randrange(1, 10)):
        made.add("chaos.atomic", b"x")
    return made


def take(made, chance):
    for _ in itertools.islice(made, chance.randrange(20)):
        pass
    return made


def consumption(h, chance):
    return take(h.busy.consume(expires=chance.choice([1, 5]), max_messages=30), chance)


def consumption_idle(h, chance):
    return h.idle.consume(expires=chance.choice([1, 5]))


def refuse(message):
    # A client that closes does not wait for handlers.
    with contextlib.suppress(jetsync.ConnectionClosedError):
        message.nak(delay=1)


def handler(h, chance):
    return h.busy.consume(refuse, expires=1, max_messages=30)


def ordered(h, chance):
    reader = h.stream.ordered_consumer(filter_subjects="chaos.busy")
    return take(reader.consume(), chance)


def ordered_fetch(h, chance):
    reader = h.stream.ordered_consumer(filter_subjects="chaos.busy")
    return take(reader.fetch(30, expires=2), chance)


def watch(h, chance):
    return take(h.kv.watch(), chance)


def fetch(h, chance):
    return take(h.busy.fetch(30, expires=2), chance)


def fetch_idle(h, chance):
    return h.idle.fetch(10, expires=30)


def scan(h, chance):
    return take(h.stream.scan(page=10), chance)


MAKERS = [
    subscription,
    publisher,
    fast,
    atomic,
    consumption,
    consumption_idle,
    handler,
    ordered,
    ordered_fetch,
    watch,
    fetch,
    fetch_idle,
    scan,
]
WARNS = {
    "subscription": "subscription to",
    "publisher": "publisher was dropped",
    "fast": "fast publisher",
    "atomic": "atomic batch",
}
"""The handles that must not be dropped, and their warnings. Others end without a warning."""


def stays(name):
    """Return whether a thread uses the handle, so that it does not end when it is dropped."""
    return name.startswith(("wait", "loop", "handler"))


def end(made):
    if isinstance(made, jetsync.AtomicBatch):
        made.discard()
    else:
        made.close()


# The waits, which end when another thread closes the handle.


def wait_subscription(h):
    made = h.client.subscribe("life.quiet")
    return made, lambda: made.next(timeout=60)


def wait_subscription_loop(h):
    made = h.client.subscribe("life.quiet")
    return made, lambda: list(made)


def wait_consumption(h):
    made = h.idle.consume(expires=30)
    return made, lambda: made.next(timeout=60)


def wait_consumption_loop(h):
    made = h.idle.consume(expires=30)
    return made, lambda: list(made)


def wait_handler(h):
    made = h.idle.consume(lambda message: None, expires=30)
    return made, lambda: made.wait(timeout=60)


def wait_fetch(h):
    made = h.idle.fetch(10, expires=60)
    return made, lambda: list(made)


def wait_ordered(h):
    reader = h.stream.ordered_consumer(filter_subjects="chaos.idle")
    made = reader.consume()
    return made, lambda: list(made)


def wait_ordered_next(h):
    made = h.stream.ordered_consumer(filter_subjects="chaos.idle")
    return made, lambda: made.next(expires=60)


def wait_ordered_fetch(h):
    reader = h.stream.ordered_consumer(filter_subjects="chaos.idle")
    made = reader.fetch(10, expires=60)
    return made, lambda: list(made)


def wait_watch(h):
    made = h.kv.watch("never")
    return made, lambda: list(made)


def loop_publish(h):
    made = h.js.publisher(window=64)

    def publish():
        while True:
            made.publish("chaos.publisher", b"x")

    return made, publish


def loop_fast(h):
    made = h.js.fast_publisher(flow=20)

    def add():
        while True:
            made.add("chaos.fast", b"x")

    return made, add


WAITERS = [
    wait_subscription,
    wait_subscription_loop,
    wait_consumption,
    wait_consumption_loop,
    wait_handler,
    wait_fetch,
    wait_ordered,
    wait_ordered_next,
    wait_ordered_fetch,
    wait_watch,
    loop_publish,
    loop_fast,
]


def in_thread(report: Report, name: str, function) -> threading.Thread:
    def run():
        try:
            function()
        except jetsync.JetSyncError:
            report.counts["errors"] += 1
        except Exception as error:  # noqa: BLE001 - the trial looks for any error
            report.foreign(name, error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def join(report: Report, thread: threading.Thread, kind: str) -> None:
    thread.join(WAKE + LATE)
    if thread.is_alive():
        frame = sys._current_frames().get(thread.ident)
        stack = "".join(traceback.format_stack(frame)[-8:]) if frame else ""
        report.violation(f"{kind}: {thread.name}", f"still runs\n{stack}")


# The endings of an owner. Each takes the world, the owner, the chance and the report.


def make(world, owner, chance, report):
    maker = chance.choice(MAKERS)
    report.about(f"{report.context}, {maker.__name__}")
    made = report.call(maker.__name__, lambda: maker(owner.h, chance), 10)
    if made is not None and not isinstance(made, jetsync.JetSyncError):
        owner.open.append((maker.__name__, made))
        report.counts["handles"] += 1


def drop(world, owner, chance, report):
    """Drop one handle that ends when it is dropped."""
    droppable = [each for each in owner.open if not stays(each[0])]
    if not droppable:
        return
    chosen = chance.choice(droppable)
    owner.open.remove(chosen)
    name = chosen[0]
    report.about(f"{report.context}, drop {name}")
    world.warned.clear()
    del chosen, droppable
    report.counts["drops"] += 1
    expected = WARNS.get(name)
    wait_for_warning(world, report, name, None if owner.lost else expected)


def wait_for_warning(world, report, name, expected):
    """Wait for a ResourceWarning: the thread of a publisher may refer to it for a moment."""
    limit = time.monotonic() + WAKE + LATE
    while True:
        gc.collect()
        if expected is None or any(expected in text for text in world.warned):
            return
        if time.monotonic() > limit:
            report.violation(f"no warning: {name}", f"only {world.warned}")
            return
        time.sleep(0.005)


def close_one(world, owner, chance, report):
    """Close one handle, in this thread or another."""
    if not owner.open:
        return
    name, made = owner.open.pop(chance.randrange(len(owner.open)))
    report.about(f"{report.context}, close {name}")
    report.counts["closes"] += 1
    if chance.random() < 0.5:
        report.call(f"close {name}", lambda: end(made), WAKE)
    else:
        join(report, in_thread(report, f"close {name}", lambda: end(made)), "close hangs")


def close_while_waiting(world, owner, chance, report):
    """Close a handle while a call of another thread waits in it."""
    waiter = chance.choice(WAITERS)
    report.about(f"{report.context}, {waiter.__name__}")
    made = report.call(waiter.__name__, lambda: waiter(owner.h), 10)
    if made is None or isinstance(made, jetsync.JetSyncError):
        return
    made, function = made
    thread = in_thread(report, waiter.__name__, function)
    del function
    time.sleep(chance.random() * chance.choice([0.001, 0.1]))
    if chance.random() < 0.3:
        # It is woken when its client is closed.
        owner.waiters.append(thread)
        owner.open.append((waiter.__name__, made))
        return
    report.counts["closes while a call waits"] += 1
    report.call(f"close {waiter.__name__}", lambda: end(made), 10)
    join(report, thread, "not woken by close")


def interrupt(world, owner, chance, report):
    """Interrupt a call with Ctrl-C, at a random time."""
    name = chance.choice([name for name in CALLS if name not in CLOSING])
    report.about(f"{report.context}, Ctrl-C during {name}")
    owner.lost = True

    def strike():
        report.counts["Ctrl-C"] += 1
        raise KeyboardInterrupt

    try:
        world.striker.run(
            lambda: CALLS[name](owner.h),
            strike,
            delay=chance.random() * 0.1 if chance.random() < 0.5 else None,
            step=chance.randrange(1, 2000),
        )
    except (KeyboardInterrupt, jetsync.JetSyncError):
        pass
    except Exception as error:  # noqa: BLE001 - the trial looks for any error
        report.foreign(name, error)
    finally:
        owner.h.current = None


def fork(world, owner, chance, report):
    """Fork; the child uses a client and ends in one of several ways."""
    uses = [child_inherits, child_connects, child_works, child_does_nothing]
    use = chance.choice(uses)
    leave = "signal" if use is child_works else chance.choice(["exit", "_exit", "kill", "raise"])
    number = chance.choice([signal.SIGTERM, signal.SIGINT])
    seed = chance.getrandbits(32)
    delay = chance.random() * 0.3
    report.about(f"{report.context}, fork {use.__name__} {leave}")
    report.counts["forks"] += 1
    owner.abandons |= use is child_connects
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            use(world, owner, random.Random(seed), writer)
        except Exception:  # noqa: BLE001 - the parent reports the output on stderr
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        if leave == "_exit":
            os._exit(CHILD_STATUS)
        if leave == "kill":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        # The exit passes through the frames of the trial, as in a program that forks in a function.
        sys.exit(CHILD_STATUS)
    os.close(writer)
    expected = {"kill": -signal.SIGTERM, "signal": 128 + number}.get(leave, CHILD_STATUS)
    if leave == "signal":
        if os.read(reader, 1):
            time.sleep(delay)
            os.kill(pid, number)
        report.counts["signals"] += 1
    os.close(reader)
    status = wait(report, pid, f"{use.__name__} {leave}")
    if status is not None and status != expected:
        report.violation(f"child: {use.__name__} {leave}", f"status {status} instead of {expected}")


def wait(report: Report, pid: int, name: str) -> int | None:
    limit = time.monotonic() + ENOUGH
    while time.monotonic() < limit:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    # faulthandler shows where its threads are.
    os.kill(pid, signal.SIGABRT)
    os.waitpid(pid, 0)
    report.violation(f"child hangs: {name}", f"not over after {ENOUGH} s")
    return None


def child_inherits(world, owner, chance, writer):
    """Use the parent's client and handles, as the option after_fork allows."""
    h = owner.h
    calls = {
        "publish": lambda: h.js.publish("chaos.one", b"child", timeout=10),
        "request": lambda: h.client.request("$JS.API.INFO", timeout=10),
        "fetch": lambda: list(h.busy.fetch(3, expires=1)),
        "info": lambda: h.stream.info(timeout=10),
        "kv": lambda: h.kv.put("child", b"x", timeout=10),
    }
    name = chance.choice(list(calls))
    if h.client.is_closed:
        return
    if owner.reconnects_after_fork:
        calls[name]()
    else:
        try:
            calls[name]()
        except jetsync.ForkedProcessError:
            pass
        else:
            raise AssertionError(f"{name} did not notice the fork")
    for maker, made in owner.open:
        if chance.random() < 0.5:
            continue
        try:
            end(made)
        except jetsync.JetSyncError:
            continue
        except Exception as error:
            raise AssertionError(f"close of the parent's {maker}") from error
    if chance.random() < 0.5:
        owner.open.clear()
        gc.collect()
    if chance.random() < 0.5:
        h.client.close()


def child_connects(world, owner, chance, writer):
    """Make a client, and perhaps forget to close it."""
    with contextlib.ExitStack() as stack:
        own = handles(world.url)
        if chance.random() < 0.5:
            stack.callback(own.client.close)
        made = [chance.choice(MAKERS)(own, chance) for _ in range(chance.randrange(4))]
        if chance.random() < 0.5:
            made.clear()


def child_works(world, owner, chance, writer):
    """Consume until the parent sends a signal."""
    client = jetsync.connect(world.url)
    with client, client.stop_on_signal(timeout=10) as stop:
        work(client, chance.randrange(4), stop, lambda: os.write(writer, b"!"))
    raise AssertionError("stop_on_signal did not end the process")


def child_does_nothing(world, owner, chance, writer):
    """Only end, as many forked processes do."""


def work(client, kind, stop, ready) -> None:
    """Loop until a signal has arrived."""
    js = client.jetstream()
    worker = js.stream("CHAOS").create_consumer(
        jetsync.ConsumerConfig(inactive_threshold=10, mem_storage=True, filter_subject="chaos.busy")
    )
    if kind == 0:
        with worker.consume(max_messages=10) as messages:
            ready()
            for message in messages:
                message.ack()
                time.sleep(0.001)
    elif kind == 1:
        running = worker.consume(lambda message: message.nak(delay=0.1), max_messages=10)
        ready()
        running.wait()
    elif kind == 2:
        ready()
        while not stop.is_set():
            for message in worker.fetch(5, expires=1):
                message.nak()
    else:
        publisher = js.publisher()
        ready()
        while not stop.is_set():
            publisher.publish("chaos.publisher", b"x")
            time.sleep(0.001)


PROGRAM = """
import sys
sys.path[:0] = sys.argv[3:]
import life, jetsync
def ready():
    print("!", flush=True)
with jetsync.connect(sys.argv[1]) as client, client.stop_on_signal(timeout=10) as stop:
    life.work(client, int(sys.argv[2]), stop, ready)
"""


def program(world, owner, chance, report):
    """Run a program, and end it with a signal."""
    kind = chance.randrange(4)
    number = chance.choice([signal.SIGTERM, signal.SIGINT])
    report.about(f"{report.context}, program {kind} {number.name}")
    report.counts["signals"] += 1
    command = [sys.executable, "-c", PROGRAM, world.url, str(kind), *sys.path[:5]]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        time.sleep(chance.random() * 0.3)
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=ENOUGH)
        except subprocess.TimeoutExpired:
            process.kill()
            report.violation("program hangs", f"{kind} {number.name}")
            return
    if (process.returncode, errors) != (128 + number, ""):
        report.violation("program", f"status {process.returncode}\n{errors}")


ACTIONS = [
    *[make] * 8,
    *[drop] * 5,
    *[close_one] * 3,
    *[close_while_waiting] * 3,
    *[fork] * 3,
    *[interrupt] * 2,
]


def trial(world: World, chance, report: Report) -> None:
    """Make clients and handles, do random things to them, end all, and look for leftovers."""
    report.about("")
    before = set(world.connections())
    owners = [connect(world, chance) for _ in range(chance.randrange(1, 4))]
    report.counts["clients"] += len(owners)
    for _ in range(chance.randrange(5, 20)):
        chance.choice(ACTIONS)(world, chance.choice(owners), chance, report)
    if chance.random() < 0.1:
        program(world, None, chance, report)
    if chance.random() < 0.5:
        end_handles(world, owners, chance, report)
    # An interrupted client may have reconnected, and the server keeps the batches of a connection
    # that is lost.
    abandoned = any(owner.lost or owner.abandons for owner in owners)
    while owners:
        end_client(world, owners.pop(), chance, report)
    gc.collect()
    world.base.check(report, WAKE)
    check_server(world, before, report)
    check_batches(world, abandoned, report)
    foreign = [text for text in world.warned if "was dropped without being closed" not in text]
    if foreign:
        report.violation("warning", "; ".join(foreign))
    world.warned.clear()


def connect(world, chance) -> Owner:
    after_fork = chance.choice(["error", "reconnect"])
    h = handles(world.url, after_fork=after_fork, loop=chance.choice(["asyncio", "auto", "auto"]))
    h.client.flush()
    subscriptions = len(world.connections()[h.client.server.client_id])
    return Owner(h, subscriptions, after_fork == "reconnect")


def end_handles(world, owners, chance, report) -> None:
    """End all handles; their clients have no subscription and no thread for them any more."""
    for owner in owners:
        while owner.open:
            waited = any(stays(name) for name, _ in owner.open)
            (close_one if waited or chance.random() < 0.3 else drop)(world, owner, chance, report)
        for thread in owner.waiters:
            join(report, thread, "not woken by close")
        owner.waiters.clear()
        # A consumer keeps the subscriptions of its fetches for later ones.
        owner.h.busy = owner.h.idle = None
    limit = time.monotonic() + WAKE + LATE
    report.about(f"{report.context}, all handles ended")
    while True:
        gc.collect()
        now = world.connections()
        more = {}
        for owner in owners:
            if not owner.h.client.is_connected:
                continue
            found = now.get(owner.h.client.server.client_id, [])
            if len(found) > owner.subscriptions:
                more[owner.h.client.server.client_id] = found
        threads = [each.name for each in jetsync_threads() if "-io-" not in each.name]
        if not more and not threads:
            return
        if time.monotonic() > limit:
            break
        time.sleep(0.05)
    if more:
        report.violation("subscriptions left by handles", str(more))
    if threads:
        report.violation("threads left by handles", ", ".join(threads))


def end_client(world, owner: Owner, chance, report) -> None:
    """Close, drain or drop a client, with the handles that are still open."""
    client = owner.h.client
    kept = any(stays(name) for name, _ in owner.open)
    ways = {
        "close": lambda: client.close(timeout=3),
        "drain": lambda: client.drain(timeout=3),
        "close in a thread": lambda: join(
            report,
            in_thread(report, "client.close", lambda: client.close(timeout=3)),
            "close hangs",
        ),
    }
    # The thread of a handler keeps its client.
    way = chance.choice([*ways, *([] if kept or owner.waiters else ["drop"] * 3)])
    report.about(f"{report.context}, {way} client with {[name for name, _ in owner.open]}")
    report.counts[f"clients: {way}"] += 1
    world.warned.clear()
    if way == "drop":
        lost = owner.lost or client.is_closed
        del client, ways
        owner.open.clear()
        owner.h = None
        wait_for_warning(world, report, "client", None if lost else "client was dropped")
        return
    report.call(way, ways[way], 3)
    for thread in owner.waiters:
        join(report, thread, f"not woken by {way} of the client")


def check_server(world, before: set[int], report: Report) -> None:
    """Wait until the server has closed all connections, then open as many batches as it allows."""
    report.about(f"{report.context}, at the end")
    limit = time.monotonic() + WAKE + LATE
    while True:
        left = {cid: subs for cid, subs in world.connections().items() if cid not in before}
        if not left:
            break
        if time.monotonic() > limit:
            report.violation("connections left", str(left))
            break
        time.sleep(0.02)


def check_batches(world, abandoned: bool, report: Report) -> None:
    """Wait until no batch is open; the server itself ends one that is *abandoned*, after 10 s."""
    limit = time.monotonic() + WAKE + LATE + (10 if abandoned else 0)
    report.counts["abandoned batches"] += abandoned
    while (opened := open_batches(world.url)) < OPEN_BATCHES:
        if time.monotonic() > limit:
            report.violation("open batches", f"{OPEN_BATCHES - opened} are still open")
            return
        time.sleep(0.5)


def open_batches(url: str) -> int:
    """Open as many batches as the server allows, and return how many these are."""
    with jetsync.connect(url) as client:
        js = client.jetstream()
        batches = [js.atomic_batch() for _ in range(OPEN_BATCHES)]
        opened = 0
        with contextlib.suppress(jetsync.TooManyInflightError):
            for batch in batches:
                batch.add("chaos.atomic", b"x")
                opened += 1
        for batch in batches:
            batch.discard()
        return opened
