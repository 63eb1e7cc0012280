"""
Programs that a signal ends, each in a process of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from streams import fill

import jetsync

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
with jetsync.connect(sys.argv[1]) as client, client.stop_on_signal() as stop:
    worker = client.jetstream().consumer(sys.argv[2], "worker")
"""


@pytest.fixture
def program(nats_server, stream, worker):
    """
    A factory of a process that consumes and is stopped by signals while it works.
    """
    processes = []

    def program(body, *numbers):
        process = subprocess.Popen(
            [sys.executable, "-c", START + body, nats_server.url, stream.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        for number in numbers:
            process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors

    yield program
    for process in processes:
        with process:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS)
def test_it_finishes_the_buffered_messages(js, stream, worker, program, body, number):
    """
    Messages that have arrived are handled and acknowledged, and the exit status names the signal.
    """
    fill(js, stream, 100)
    assert program(body, number) == (128 + number, "")
    info = worker.info()
    assert info.num_ack_pending == 0
    assert 4 <= info.ack_floor.stream_seq <= 30


def test_a_wait_for_messages_ends(js, stream, worker, program):
    """
    A loop that waits for its next message ends at once.
    """
    fill(js, stream, 4)
    body = PROGRAMS["iterator"] + "    print('drained')\n"
    assert program(body, signal.SIGTERM) == (143, "")
    assert worker.info().num_ack_pending == 0


def test_a_second_signal(js, stream, program):
    """
    A second signal ends a program that is stuck.
    """
    fill(js, stream, 4)
    body = """
    for message in worker.fetch(4):
        work(message)
    import os, signal
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
    assert program(body, signal.SIGTERM) == (143, "")


def test_a_consumption_that_begins_afterwards(js, stream, worker, program):
    """
    A consumption that begins after the signal ends without a message.
    """
    fill(js, stream, 100)
    body = """
    for message in worker.fetch(4):
        work(message)
    with worker.consume(work) as running:
        running.wait()
    assert len(done) == 4
"""
    assert program(body, signal.SIGTERM) == (143, "")
    assert worker.info().num_ack_pending == 0


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
def test_wrong_arguments(client, error, argument, signals, options):
    """
    Invalid signals, exit statuses and timeouts are refused, and the error names the argument.
    """
    with pytest.raises(error) as caught:
        client.stop_on_signal(*signals, **options)
    assert caught.value.argument == argument
