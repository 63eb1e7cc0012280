"""
Millions of messages through one client: memory stays constant after the first tenth.

``JETSYNC_SOAK_MESSAGES`` is the number of messages (10 million).
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

import jetsync
from jetsync.devserver import DevServer

SIZE = 128

# The growth that a run may have after its first tenth: only the allocator's slack.
ALLOWED_GROWTH = 32 << 20

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc"
)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Watch:
    """
    Sample the resident memory at every hundredth of a run.
    """

    def __init__(self, total: int) -> None:
        self._every = max(1, total // 100)
        self.samples: list[int] = []

    def passed(self, number: int) -> None:
        if number % self._every == 0:
            self.samples.append(resident())

    def growth(self) -> int:
        """Return how much the memory grew between the first tenth and its highest point later."""
        tenth = len(self.samples) // 10
        return max(self.samples[tenth:]) - self.samples[tenth]


@pytest.mark.parametrize(
    "total",
    [
        20_000,
        pytest.param(
            int(os.environ.get("JETSYNC_SOAK_MESSAGES", "10_000_000")), marks=pytest.mark.soak
        ),
    ],
)
def test_publish_many_and_fetch_need_bounded_memory(total, record_property):
    """A generator of any length goes through publish_many and fetch in bounded memory."""
    out, back = Watch(total), Watch(total)

    def messages():
        for number in range(total):
            out.passed(number)
            yield "soak.x", b"%-*d" % (SIZE, number)

    with DevServer() as server, jetsync.connect(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream("SOAK", subjects=["soak.>"], storage="file")
        report = js.publish_many(messages())
        assert (report.count, report.failures) == (total, ())
        assert (report.first_sequence, report.last_sequence) == (1, total)
        consumer = stream.create_consumer("back", max_ack_pending=50_000)
        gc.collect()
        expected = 0
        while expected < total:
            batch = consumer.fetch(min(1000, total - expected), expires=10)
            for message in batch:
                assert int(message.data) == expected
                back.passed(expected)
                expected += 1
            batch.ack()
        client.flush()
        info = consumer.info()
        assert (info.num_pending, info.num_redelivered) == (0, 0)
    for name, watch in (("publish", out), ("fetch", back)):
        record_property(f"resident_{name}", watch.samples)
        assert watch.growth() < ALLOWED_GROWTH, [sample >> 20 for sample in watch.samples]
