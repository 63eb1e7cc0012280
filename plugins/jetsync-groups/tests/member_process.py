"""
A member in a process of its own, for the campaign. It writes a line before and after each message.

Usage: member_process.py URL STREAM GROUP MEMBER ACK_WAIT LOG
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time

import jetsync
from jetsync_groups import elastic_group

SLOW = float(os.environ.get("JETSYNC_GROUPS_SLOW", "0.005"))
"""The share of messages that take 50 ms."""


def main() -> None:
    """
    Consume until SIGTERM.
    """
    url, stream, group, member, ack_wait, path = sys.argv[1:]
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def handle(message: jetsync.Message) -> None:
        number = message.data.decode()
        os.write(log, f"{time.time_ns()} start {number}\n".encode())
        if random.random() < SLOW:
            time.sleep(0.05)
        os.write(log, f"{time.time_ns()} end {number}\n".encode())

    with jetsync.connect(url, connect_timeout=60) as client:
        found = elastic_group(client.jetstream().stream(stream, timeout=30), group, timeout=30)
        joined = found.join(member, ack_wait=float(ack_wait), max_ack_pending=1)
        with joined.consume(handle) as consumption:
            while not stop.wait(0.1) and not consumption.closed:
                pass
        if consumption.error is not None:
            os.write(log, f"{time.time_ns()} error {consumption.error!r}\n".encode())


if __name__ == "__main__":
    main()
