"""
Three instances under load, of which one is killed and one is stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import jetsync
from jetsync.testing import eventually
from jetsync_services import ping

pytestmark = [pytest.mark.live, pytest.mark.soak]

PROGRAM = """
import os, sys, jetsync
from jetsync_services import Service

client = jetsync.connect(sys.argv[1], connect_timeout=60, drain_timeout=60)
service = Service(client, sys.argv[2], version="1.0.0")
log = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

@service.endpoint("echo", subject=sys.argv[2], threads=4, max_waiting=100_000)
def echo(request):
    os.write(log, request.data + b"\\n")
    return request.data

service.run()
"""

SECONDS = float(os.environ.get("JETSYNC_SERVICES_SECONDS", "20"))
ROUNDS = int(os.environ.get("JETSYNC_SERVICES_ROUNDS", "5"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_no_request_is_lost_but_those_in_the_killed_instance(nats_server, name, tmp_path, number):
    """
    Of all requests, each is answered, except those that the killed instance had. The stopped
    instance exits with 143. What was answered was handled once.
    """
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, nats_server.url, name, tmp_path / f"{n}"])
        for n in range(3)
    ]
    try:
        check(nats_server, name, tmp_path, programs)
    finally:
        for program in programs:
            program.kill()


def check(nats_server, name, tmp_path, programs):
    """
    Send requests to three programs, kill one, stop one, and compare what was handled and answered.
    """
    killed, stopped, left = programs
    sent, answered = 0, set()
    with jetsync.connect(nats_server.url) as client, jetsync.connect(nats_server.url) as other:
        eventually(lambda: len(ping(other, name, stall=2)) == 3, timeout=60)
        answers = client.subscribe(f"got.{name}.*", max_pending=1 << 20)

        def read():
            for answer in answers:
                # Errors, too: the caller knows the outcome.
                answered.add(int(answer.subject.rpartition(".")[2]))

        reader = threading.Thread(target=read)
        reader.start()
        begin = time.monotonic()
        while (now := time.monotonic() - begin) < SECONDS:
            other.publish(name, b"%d" % sent, reply=f"got.{name}.{sent}")
            sent += 1
            if sent % 100 == 0 and sent - len(answered) > 5000:
                time.sleep(0.01)
            if now > SECONDS / 3 and killed.poll() is None:
                killed.kill()
                killed.wait()
            if now > SECONDS * 2 / 3 and stopped.poll() is None:
                stopped.send_signal(signal.SIGTERM)
                # Under load until it has ended.
                stopping = stopped
                stopped = killed
        other.flush()
        assert stopping.wait(120) == 143
        before = -1
        while len(answered) != before:
            before = len(answered)
            time.sleep(2)
        left.send_signal(signal.SIGTERM)
        assert left.wait(120) == 143
        answers.drain()
        reader.join(60)
    handled = [[int(line) for line in (tmp_path / f"{n}").read_text().split()] for n in range(3)]
    unanswered = set(range(sent)) - answered
    print(  # noqa: T201 - the figures of the campaign.
        f"sent {sent:,}, handled {[len(each) for each in handled]}, unanswered {len(unanswered)}"
    )

    # Others have answered all that they got, so what is missing went to the killed one.
    assert not unanswered & {*handled[1], *handled[2]}
    every = handled[0] + handled[1] + handled[2]
    assert len(every) == len(set(every))
    # It is killed a third of the time after the start. Later requests have answers.
    last = max(handled[0], default=0)
    assert all(each <= last + 20_000 for each in unanswered)
