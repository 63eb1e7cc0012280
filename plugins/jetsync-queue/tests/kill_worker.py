"""
A worker that kills itself at one step of a job, for tests: URL PREFIX STEP LOG.

It writes a line to the log when a handler begins, and another one when it has done its work.
"""

from __future__ import annotations

import os
import signal
import sys

import jetsync
from jetsync_queue import WorkQueue, delivery, records
from jetsync_queue.core import Core

STEPS = ("fetched", "begun", "worked", "result", "acked", "retry", "buried", "dead-result")


def die(*_, **__):
    """
    End the process as a power cut does.
    """
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def after(function):
    """
    Return the function, followed by death.
    """

    def call(*args, **kwargs):
        function(*args, **kwargs)
        die()

    return call


def main(url, prefix, step, log):
    """
    Work until the step.
    """
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(job):
        os.write(out, f"begin {job.data}\n".encode())
        if step == "begun":
            die()
        if step in {"retry", "buried", "dead-result"}:
            raise ValueError("fails")
        os.write(out, f"end {job.data}\n".encode())
        if step == "worked":
            die()
        return job.data

    if step in {"result", "dead-result"}:
        records.Records.put = after(records.Records.put)
    elif step == "retry":
        Core.publish = after(Core.publish)
    elif step == "buried":
        delivery.bury = after(delivery.bury)
    with jetsync.connect(url) as client:
        queue = WorkQueue.open(client.jetstream(), "mail", prefix=prefix, priorities=2, ack_wait=1)
        if step == "fetched":
            with queue.receive() as receiver:
                receiver.get(timeout=60)
                die()
        if step == "acked":
            # The acknowledgement is collected, and not sent yet.
            delivery.Delivery.ack = after(delivery.Delivery.ack)
        queue.work(handle, retries=1 if step == "retry" else 0, wait=0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
