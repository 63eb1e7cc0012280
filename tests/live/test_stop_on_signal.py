"""
Programs that a signal ends, each in a process of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import jetsync
from helpers.streams import fill
from helpers.thorough import thorough_except
from helpers.waiting import eventually
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

# On Windows, SIGTERM cannot be sent, and SIGINT only from a terminal. So these tests send
# Ctrl-Break, as a supervisor would.
WINDOWS = hasattr(signal, "SIGBREAK")
SENT = {signal.SIGTERM: signal.CTRL_BREAK_EVENT} if WINDOWS else {}
ARRIVED = {128 + signal.SIGBREAK: 128 + signal.SIGTERM} if WINDOWS else {}

PROGRAMS = {
    "iterator": """
    with worker.consume(max_messages=10) as messages:
        for message in messages:
            work(message)
""",
    "handler": """
    running = worker.consume(work, max_messages=10)
    running.wait()
""",
    "fetch": """
    while not stop.is_set():
        for message in worker.fetch(5, expires=1):
            work(message)
""",
}

# Loops with a long body. A client stops them when the time after the signal is over.
SLOW = {
    "iterator": """
    with worker.consume() as messages:
        for message in messages:
            slow(message)
""",
    "handler": """
    running = worker.consume(slow)
    running.wait()
""",
    "threads": """
    running = worker.consume(slow, threads=2, ordered_by="subject")
    running.wait()
""",
    "fetch": """
    for message in worker.fetch(100):
        slow(message)
""",
    "ordered": """
    for message in client.jetstream().stream(sys.argv[2]).ordered_consumer().fetch(100):
        slow(message)
""",
    "subscription": """
    subscription = client.subscribe("slow")
    for _ in range(100):
        client.publish("slow", b"")
    client.flush()
    for message in subscription:
        slow(message)
""",
}

# Calls that wait for a message that never arrives.
WAITS = {
    "next": "assert worker.next(expires=300) is None",
    "next again": """
    while not stop.is_set():
        assert worker.next(expires=300) is None
    assert worker.next(expires=300) is None""",
    "fetch": "assert list(worker.fetch(5, expires=300)) == []",
    "consume": "assert worker.consume().next(timeout=300) is None",
    "subscription": "assert client.subscribe('nothing').next(timeout=300) is None",
    "ordered next": """
    ordered = client.jetstream().stream(sys.argv[2]).ordered_consumer(deliver_policy="new")
    assert ordered.next(expires=300) is None""",
    "ordered consume": """
    ordered = client.jetstream().stream(sys.argv[2]).ordered_consumer(deliver_policy="new")
    assert ordered.consume().next(timeout=300) is None""",
    "watch": """
    bucket = client.jetstream().create_key_value(sys.argv[2] + "-kv", storage="memory")
    watch = bucket.watch()
    assert list(watch.initial()) == []
    assert watch.next(timeout=300) is None""",
}

START = """
import sys, time, jetsync
done = []
def work(message):
    if len(done) == 3:
        print("ready", flush=True)
        while not stop.is_set():
            time.sleep(0.01)
    done.append(message.sequence)
    message.ack()
def slow(message):
    done.append(message)
    if len(done) == 1:
        print("ready", flush=True)
        stop.wait()
    time.sleep(2)
    if message.subject != "slow" and message.metadata.consumer == "worker":
        message.ack()
limit = float(sys.argv[3])
with jetsync.connect(sys.argv[1]) as client, client.stop_on_signal(timeout=limit) as stop:
    worker = client.jetstream().consumer(sys.argv[2], "worker")
"""


@pytest.fixture
def program(nats_server, stream, worker):
    """
    A factory of a process that consumes and is stopped by signals while it works.
    """
    processes = []

    def program(body, *numbers, server=nats_server, name=stream.name, timeout=60, before=None):
        process = subprocess.Popen(
            [sys.executable, "-c", START + body, server.url, name, str(timeout)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP if WINDOWS else 0,
        )
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        if before is not None:
            before()
        for number in numbers:
            process.send_signal(SENT.get(number, number))
        _, errors = process.communicate(timeout=60)
        status = process.returncode
        return ARRIVED.get(status, status), errors

    yield program
    for process in processes:
        with process:
            process.kill()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *([] if WINDOWS else [pytest.param(signal.SIGINT, marks=pytest.mark.thorough)]),
    ],
)
@pytest.mark.parametrize("body", thorough_except(PROGRAMS, "iterator"))
def test_it_finishes_the_buffered_messages(js, stream, worker, program, body, number):
    """
    Messages that have arrived are handled and acknowledged, and the exit status names the signal.
    """
    fill(js, stream, 100)
    assert program(body, number) == (128 + number, "")
    # The server counts acks a moment after it received them.
    eventually(lambda: worker.info().ack_floor.stream_seq >= 4)
    assert worker.info().ack_floor.stream_seq <= 30

    def is_settled():
        for message in worker.fetch(10, no_wait=True):
            message.ack_sync()
        return worker.info().num_ack_pending == 0

    # Messages in flight at the signal are given back, so they come at once. The ack wait is 30 s.
    eventually(is_settled)


def test_a_signal_stops_the_clients_of_nested_blocks(js, stream, worker, program):
    """
    The block of another client inside does not keep the signal from the client outside.
    """
    fill(js, stream, 100)
    body = """
    with jetsync.connect(sys.argv[1]) as other, other.stop_on_signal():
        with worker.consume(max_messages=10) as messages:
            for message in messages:
                work(message)
"""
    assert program(body, signal.SIGTERM) == (143, "")


def test_a_wait_for_messages_ends(js, stream, worker, program):
    """
    A loop that waits for its next message ends at once.
    """
    fill(js, stream, 4)
    body = PROGRAMS["iterator"] + "    print('drained')\n"
    assert program(body, signal.SIGTERM) == (143, "")
    eventually(lambda: worker.info().num_ack_pending == 0)


@pytest.mark.parametrize("body", thorough_except(SLOW, "iterator"))
def test_after_the_timeout_buffered_messages_are_given_back(js, stream, worker, program, body):
    """
    The message that is being handled is acknowledged, and the buffered ones are given back.
    """
    fill(js, stream, 100)
    body += "    assert len(done) < 50\n"
    assert program(body, signal.SIGTERM, timeout=1) == (143, "")
    if "worker" in body:
        # Not after the ack wait of 30 seconds.
        assert worker.next(expires=20).metadata.delivered == 2
        assert worker.info().ack_floor.stream_seq


@pytest.mark.parametrize("body", thorough_except(WAITS, "next"))
def test_a_call_that_waits(program, body):
    """
    A call that waits for a message returns as if nothing arrived, and so do later calls.
    """
    ready = """
    import threading
    threading.Timer(1, print, ["ready"], {"flush": True}).start()
    """
    assert program(ready + body.lstrip(), signal.SIGTERM) == (143, "")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "wait", ["stop.wait()", "worker.next(expires=300)", "running.wait()", "list(ordered)"]
)
def test_a_signal_without_a_server(program, wait):
    """
    If the server is down, the exit status is the same, and one line says that the drain failed.
    """
    body = f"""
    running = worker.consume(work)
    ordered = client.jetstream().stream("DOWN").ordered_consumer().consume()
    print("ready", flush=True)
    while client.is_connected:
        time.sleep(0.01)
    {wait}
"""
    with DevServer() as server:
        with jetsync.connect(server.url) as client:
            stream = client.jetstream().create_stream("DOWN", subjects=["down"])
            stream.create_consumer("worker")
        status, errors = program(
            body, signal.SIGTERM, server=server, name="DOWN", timeout=1, before=server.stop
        )
    assert status == 143
    assert errors.startswith("jetsync: at exit: the client was not drained")
    assert errors.count("\n") == 1


def test_a_second_signal_ends_a_program_that_is_stuck(js, stream, program):
    """
    A second signal ends a program that is stuck.
    """
    fill(js, stream, 4)
    body = """
    for message in worker.fetch(4):
        work(message)
    import signal
    while True:
        # Those within half a second of the first signal are ignored.
        signal.raise_signal(getattr(signal, "SIGBREAK", signal.SIGTERM))
        time.sleep(0.01)
"""
    assert program(body, signal.SIGTERM) == (143, "")


def test_reads_that_begin_afterwards(js, stream, worker, program):
    """
    A consumption, a fetch or a subscription that begins after the signal ends without a message.
    """
    fill(js, stream, 100)
    body = """
    for message in worker.fetch(4):
        work(message)
    with worker.consume(work) as running:
        running.wait()
    assert list(worker.fetch(4)) == list(client.subscribe("later")) == []
    assert len(done) == 4
"""
    assert program(body, signal.SIGTERM) == (143, "")
    eventually(lambda: worker.info().num_ack_pending == 0)


@pytest.mark.parametrize(
    ("error", "argument", "signals", "options"),
    [
        (jetsync.InvalidTypeError, "signals", ["SIGTERM"], {}),
        (jetsync.InvalidTypeError, "signals", [True], {}),
        (jetsync.InvalidTypeError, "signals", [[signal.SIGTERM]], {}),
        (jetsync.InvalidArgumentError, "signals", [0], {}),
        (jetsync.InvalidArgumentError, "exit_code", [], {"exit_code": 256}),
        (jetsync.InvalidArgumentError, "timeout", [], {"timeout": -1}),
    ],
)
def test_wrong_arguments_of_a_stop_signal_are_named(client, error, argument, signals, options):
    """
    Invalid signals, exit statuses and timeouts are refused, and the error names the argument.
    """
    with pytest.raises(error) as caught:
        client.stop_on_signal(*signals, **options)
    assert caught.value.argument == argument


def test_messages_in_flight_at_the_signal_are_yielded(nats_server):
    """
    A loop over a subscription yields what the server had sent before it handled the unsubscription.
    """
    with CutProxy(nats_server.url) as proxy, jetsync.connect(nats_server.url) as other:
        client = jetsync.connect(proxy.url)
        subscription = client.subscribe("flight")
        client.flush()
        proxy.pause("to_client")
        for _ in range(100):
            other.publish("flight")
        other.flush()

        def run():
            with client.stop_on_signal(signal.SIGTERM):
                signal.raise_signal(signal.SIGTERM)
                proxy.resume("to_client")
                yielded.extend(subscription)

        yielded = []
        with pytest.raises(SystemExit):
            run()

        assert len(yielded) == 100
