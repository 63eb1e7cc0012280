"""
The blocking calls of a client, each short, and the actions of a signal handler meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
import sys
import time

import attrs

import jetsync
from jetsync.devserver import DevServer

WAIT = 0.15
"""Seconds that calls wait for a message that never comes."""


@attrs.define
class Handles:
    """
    A client for one trial, with the handles that were made from it.
    """

    url: str
    client: jetsync.Client
    js: jetsync.JetStream
    stream: jetsync.Stream
    busy: jetsync.Consumer
    """A consumer of a stream with messages."""
    idle: jetsync.Consumer
    """A consumer for which no messages come."""
    subscription: jetsync.Subscription
    kv: jetsync.KeyValue
    current: object = None
    """The consumption, watch, publisher or batch that the interrupted call uses."""


@contextlib.contextmanager
def server():
    """Run a server with the streams and messages that the calls need; yield it."""
    with DevServer() as running, jetsync.connect(running.url) as client:
        js = client.jetstream()
        stream = js.create_stream(
            jetsync.StreamConfig(
                name="CHAOS",
                subjects=["chaos.>"],
                storage="memory",
                # The readers need their thousand messages, whatever else is published.
                max_msgs_per_subject=1000,
                allow_atomic=True,
                allow_batched=True,
                allow_direct=True,
            )
        )
        js.publish_many(("chaos.busy", b"%d" % number) for number in range(1000))
        kv = js.create_key_value(jetsync.KeyValueConfig(bucket="kv", storage="memory", history=2))
        for number in range(20):
            kv.put(f"key{number}", b"value")
        del stream
        yield running


def handles(url: str, **options) -> Handles:
    """Connect, and make everything that calls and handlers use."""
    client = jetsync.connect(
        url, request_timeout=2.0, reconnect_wait=0.05, max_reconnect_wait=0.5, **options
    )
    js = client.jetstream()
    stream = js.stream("CHAOS")

    def consumer(**fields) -> jetsync.Consumer:
        config = jetsync.ConsumerConfig(inactive_threshold=10, mem_storage=True, **fields)
        return stream.create_consumer(config)

    return Handles(
        url=url,
        client=client,
        js=js,
        stream=stream,
        busy=consumer(filter_subject="chaos.busy"),
        idle=consumer(filter_subject="chaos.idle"),
        subscription=client.subscribe("quiet"),
        kv=js.key_value("kv"),
    )


# The calls. An undisturbed call takes at most a second.


def connect(h):
    jetsync.connect(h.url).close()


def with_block(h):
    with jetsync.connect(h.url) as client, client.subscribe("own"):
        client.flush()


def next_(h):
    h.idle.next(expires=WAIT)


def fetch(h):
    for message in h.busy.fetch(50, expires=WAIT):
        message.ack()


def fetch_idle(h):
    list(h.idle.fetch(10, expires=WAIT))


def consume(h):
    with h.busy.consume(expires=1, stop_after=100) as h.current:
        for message in h.current:
            message.ack()


def consume_idle(h):
    with h.idle.consume(expires=1) as h.current:
        h.current.next(timeout=WAIT)


def consume_handler(h):
    def handle(message):
        # The signal handler may have closed the client.
        with contextlib.suppress(jetsync.ConnectionClosedError):
            message.ack()

    with h.busy.consume(handle, expires=1, stop_after=50) as h.current:
        h.current.wait(timeout=WAIT)


def ordered(h):
    with h.stream.ordered_consumer() as reader, reader.consume(stop_after=100) as h.current:
        for _ in h.current:
            pass


def subscription_next(h):
    h.subscription.next(timeout=WAIT)


def request(h):
    h.client.request("$JS.API.INFO", timeout=1)


def request_unanswered(h):
    with contextlib.suppress(jetsync.RequestTimeoutError):
        h.client.request("quiet", timeout=WAIT)


def core_publish(h):
    for _ in range(50):
        h.client.publish("chaos.core", b"x" * 100)
    h.client.flush()


def publish(h):
    for _ in range(5):
        h.js.publish("chaos.one", b"x")


def publish_many(h):
    h.js.publish_many(("chaos.many", b"x") for _ in range(500))


def publisher(h):
    with h.js.publisher(window=64) as h.current:
        for _ in range(200):
            h.current.publish("chaos.publisher", b"x")
        h.current.flush(timeout=2)


def atomic(h):
    with h.js.atomic_batch() as h.current:
        for _ in range(10):
            h.current.add("chaos.atomic", b"x")
        h.current.commit()


def fast(h):
    with h.js.fast_publisher(flow=20) as h.current:
        for _ in range(100):
            h.current.add("chaos.fast", b"x")


def kv_get_put(h):
    for number in range(5):
        h.kv.put(f"key{number}", b"other")
        h.kv.get(f"key{number}")


def kv_watch(h):
    with h.kv.watch() as h.current, contextlib.suppress(jetsync.WaitTimeoutError):
        for _ in h.current.initial(timeout=1):
            pass
        h.current.next(timeout=WAIT)


def scan(h):
    for _ in itertools.islice(h.stream.scan(page=50), 200):
        pass


def flush(h):
    h.client.flush()


def rtt(h):
    h.client.rtt()


def info(h):
    h.stream.info()


def reconnect(h):
    h.client.reconnect(timeout=2)


def close(h):
    h.client.close()


def drain(h):
    h.client.drain(timeout=2)


CALLS = {
    function.__name__.rstrip("_"): function
    for function in (
        connect,
        with_block,
        next_,
        fetch,
        fetch_idle,
        consume,
        consume_idle,
        consume_handler,
        ordered,
        subscription_next,
        request,
        request_unanswered,
        core_publish,
        publish,
        publish_many,
        publisher,
        atomic,
        fast,
        kv_get_put,
        kv_watch,
        scan,
        flush,
        rtt,
        info,
        reconnect,
        close,
        drain,
    )
}
CLOSING = {"close", "drain"}
"""Calls after which the client is closed."""


def stop_current(h):
    """Close or use the handle that the interrupted call used."""
    current = h.current
    if isinstance(current, jetsync.Publisher):
        current.publish("chaos.publisher", b"handler")
        current.flush(timeout=1)
    elif isinstance(current, jetsync.AtomicBatch | jetsync.FastPublisher):
        current.add("chaos.batch", b"handler", timeout=1)
    elif current is not None:
        current.close()


ACTIONS = {
    "close": lambda h: h.client.close(timeout=1),
    "drain": lambda h: h.client.drain(timeout=1),
    "core publish": lambda h: h.client.publish("chaos.core", b"handler"),
    "request": lambda h: h.client.request("$JS.API.INFO", timeout=1),
    "publish": lambda h: h.js.publish("chaos.one", b"handler", timeout=1),
    "publish_many": lambda h: h.js.publish_many([("chaos.one", b"h")] * 5, ack_timeout=1),
    "fetch": lambda h: list(h.busy.fetch(5, expires=WAIT)),
    "next": lambda h: h.idle.next(expires=WAIT),
    "subscription.next": lambda h: h.subscription.next(timeout=WAIT),
    "subscription.close": lambda h: h.subscription.close(),
    "subscribe": lambda h: h.client.subscribe("handler").close(),
    "stop": stop_current,
    "flush": lambda h: h.client.flush(timeout=1),
    "rtt": lambda h: h.client.rtt(timeout=1),
    "statistics": lambda h: (h.client.statistics(), repr(h.client), h.client.is_connected),
    "info": lambda h: h.stream.info(timeout=1),
    "kv.put": lambda h: h.kv.put("handler", b"x", timeout=1),
    "connect": lambda h: jetsync.connect(h.url, connect_timeout=1).close(timeout=1),
}
ACTION_LIMIT = 3.0
"""Seconds that an action may take: its timeout, plus the allowances of fetch and close."""


class Striker:
    """
    Run a function in the middle of a call of this thread: at a random time, or a random step.

    Random times find the waits. Steps, counted in calls of Python functions and returns from C
    functions, find the moments between two instructions.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, int]] = {}
        signal.signal(signal.SIGALRM, self._arrived)
        self._act = None

    def _arrived(self, signum, frame):
        act, self._act = self._act, None
        if act is not None:
            act()

    def measure(self, name: str, make_handles) -> tuple[float, int]:
        """Return how many seconds and how many steps a call takes undisturbed."""
        if name not in self._known:
            h = make_handles()
            begin = time.monotonic()
            CALLS[name](h)
            seconds = time.monotonic() - begin
            h.client.close()
            h = make_handles()
            steps = self.steps(lambda: CALLS[name](h))
            h.client.close()
            self._known[name] = seconds, steps
        return self._known[name]

    @staticmethod
    def steps(call) -> int:
        """Return how many steps *call* takes undisturbed."""
        steps = 0

        def count(frame, event, argument):
            nonlocal steps
            steps += event in {"call", "c_return"}

        sys.setprofile(count)
        call()
        sys.setprofile(None)
        return steps

    def run(self, call, act, *, delay: float | None, step: int) -> None:
        """Run *call*, and run *act* in its middle, unless the call ends first."""
        self._act = act
        # A collection would run finalizers, which swallow exceptions. Objects whose last reference
        # ends here are still finalized.
        gc.disable()
        try:
            if delay is None:
                steps = itertools.count(1)

                def strike(frame, event, argument):
                    if event in {"call", "c_return"} and next(steps) == step:
                        sys.setprofile(None)
                        signal.raise_signal(signal.SIGALRM)

                sys.setprofile(strike)
            else:
                signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-6))
            call()
        finally:
            self._act = None
            sys.setprofile(None)
            signal.setitimer(signal.ITIMER_REAL, 0)
            gc.enable()
