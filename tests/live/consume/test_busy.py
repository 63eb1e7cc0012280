"""
Programs that are busy for longer than servers keep an idle consumer.
"""

from __future__ import annotations

import gc
import time

import pytest

import jetsync
from helpers.streams import fill
from helpers.waiting import at_some_pace, eventually

# Seconds after which the server deletes the consumers of these tests if nothing pulls from them.
THRESHOLD = 0.6

# Seconds of work: longer than a pull and the threshold together.
WORK = 3.0


def is_gone(worker):
    """
    Whether the server has deleted a consumer.
    """
    try:
        worker.info()
    except jetsync.ConsumerNotFoundError:
        return True
    return False


class TestConsumption:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11", "2.12.8", "2.14.6", None])
    def test_the_consumer_stays(self, server_for, nats_server, unique, version):
        """
        The consumer outlives work that takes longer than its pulls and its threshold.
        """
        url = (nats_server if version is None else server_for(version)).url
        with jetsync.connect(url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"])
            fill(js, stream, 5)

            def attempt(pace):
                worker = stream.create_consumer(inactive_threshold=THRESHOLD * pace, ack_wait=300)
                with worker.consume(expires=pace, max_messages=2, threshold_messages=1) as messages:
                    first = messages.next(timeout=20)
                    time.sleep(WORK * pace)
                    first.ack_sync()
                    # Two in the buffer, and the first one. Nothing else was delivered meanwhile.
                    assert worker.info().delivered.consumer_seq == 3
                    for number in range(1, 5):
                        message = messages.next(timeout=20)
                        assert int(message.data) == number
                        message.ack()

            at_some_pace(attempt)
            js.delete_stream(unique)

    def test_a_busy_handler(self, js, stream):
        """
        The same holds while the only worker calls a handler.
        """

        def attempt(pace):
            stream.purge()
            ephemeral = stream.create_consumer(inactive_threshold=THRESHOLD * pace, ack_wait=300)
            seen = []

            def handler(message):
                seen.append(int(message.data))
                if not seen[1:]:
                    time.sleep(WORK * pace)

            with ephemeral.consume(handler, expires=pace, max_messages=1, ack="auto") as running:
                fill(js, stream, 2)
                eventually(lambda: running.closed or seen == [0, 1], 10 * pace)
                fill(js, stream, 1, start=2)
                eventually(lambda: running.closed or seen == [0, 1, 2])
                assert running.error is None

        at_some_pace(attempt)

    @pytest.mark.parametrize("resets", [0, 1])
    def test_a_busy_program_keeps_its_ordered_consumer(self, js, stream, resets):
        """
        The consumer behind an ordered consumer is not replaced because the program was busy.
        """
        fill(js, stream, 5)

        def attempt(pace):
            with stream.ordered_consumer(inactive_threshold=THRESHOLD * pace) as ordered:
                messages = ordered.consume(expires=pace, max_messages=1)
                assert int(messages.next(timeout=20).data) == 0
                if resets:
                    stream.delete_consumer(ordered.name)
                assert [int(messages.next(timeout=20).data) for _ in range(2)] == [1, 2]
                before = ordered.statistics().resets
                assert bool(before) is bool(resets)
                time.sleep(WORK * pace)
                assert [int(messages.next(timeout=20).data) for _ in range(2)] == [3, 4]
                assert ordered.statistics().resets == before

        at_some_pace(attempt)

    @pytest.mark.parametrize("end", ["close", "drop"])
    def test_not_after_its_end(self, stream, end):
        """
        After the end of the consumption, the server deletes the consumer as usual.
        """
        ephemeral = stream.create_consumer(inactive_threshold=THRESHOLD)
        messages = ephemeral.consume(expires=1)
        if end == "close":
            messages.close()
        del messages
        gc.collect()
        eventually(lambda: is_gone(ephemeral))
