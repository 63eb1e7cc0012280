"""
A worker of the campaign: URL PREFIX LOG RESULTS.

It writes the time and the number of a job when its handler begins, and when it has done its work.
"""

from __future__ import annotations

import os
import random
import sys
import time

import jetsync
from jetsync_queue import WorkQueue


def main(url, prefix, log, results):
    """
    Work until killed, or until a signal.
    """
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(kind, job):
        os.write(out, f"{time.time():.6f} {kind} {job.data}\n".encode())

    def handle(job):
        note("begin", job)
        time.sleep(random.random() * 0.004)
        if job.data % 50 == 0 and job.attempt == 1:
            raise ValueError("the first attempt fails")
        note("end", job)
        return job.data

    with jetsync.connect(url) as client, client.stop_on_signal(exit_code=0):
        queue = WorkQueue.open(
            client.jetstream(), "work", prefix=prefix, priorities=3, results=results == "1"
        )
        queue.work(handle, threads=4, retries=1, wait=1, crashes=100)


if __name__ == "__main__":
    main(*sys.argv[1:])
