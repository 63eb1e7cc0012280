from __future__ import annotations

from jetsync.values.pub_acks import BatchAck, PubAck, PublishReport


def test_defaults_of_acks():
    """An ack that only says where a message is stored reports neither loss nor repetition."""
    ack = PubAck("S", 1)
    assert (ack.duplicate, ack.value, ack.batch_id, ack.batch_size) == (False, None, None, None)
    batch = BatchAck("S", 3, "id", 2)
    assert (batch.first_sequence, batch.lost, batch.duplicate) == (None, 0, False)
    report = PublishReport(1, 0, 1, 1)
    assert (report.failures, report.exhausted, report.streams) == ((), True, frozenset())
