"""
The offsets of queries that read through a consumer.
"""

import json

import pytest

from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.read.deliveries import Run, Runs
from jetsync_spark.read.queue_offsets import QueueOffset

OFFSET = QueueOffset(
    "ORDERS",
    "2026-11-26T00:00:00+00:00",
    "spark",
    "2026-11-26T00:00:01+00:00",
    ("orders.>",),
    (Runs((Run(1, 500, 500),)), Runs((Run(501, 502, 2), Run(510, 600, 50)))),
)


def test_an_offset_in_json():
    """The JSON of an offset is small, has a fixed order, and gives the same offset again."""
    text = json.dumps(OFFSET.to_json())
    assert text.endswith(
        '"filters": ["orders.>"], "parts": [[[1, 500]], [[501, 502], [510, 600, 50]]]}'
    )
    assert QueueOffset.from_json(json.loads(text)) == OFFSET
    assert json.dumps(QueueOffset.from_json(json.loads(text)).to_json()) == text


def test_the_parts_of_an_offset():
    """Each part of an offset becomes a task, and all runs together are the batch."""
    one, two = OFFSET.tasks()
    assert (one.stream, one.filters) == ("ORDERS", ("orders.>",))
    assert len(one.runs) == 500
    assert two.runs.bounds == (501, 600)
    assert OFFSET.runs.bounds == (1, 600)
    assert len(OFFSET.runs) == 552


def test_an_offset_of_another_kind():
    """A checkpoint of a query without a consumer is refused."""
    with pytest.raises(JetStreamSparkError, match="of a query without option consumer"):
        QueueOffset.from_json({"v": 1, "stream": "ORDERS", "created": "", "seq": 5, "from": 1})


@pytest.mark.parametrize(
    "changes",
    [{"parts": [[5]]}, {"parts": [[["a", 5]]]}, {"parts": None}, {"stream": ...}, {"v": ...}],
)
def test_a_malformed_offset(changes):
    """An offset that cannot be parsed is refused, and the error shows it."""
    given = {**OFFSET.to_json(), **changes}
    given = {key: value for key, value in given.items() if value is not ...}
    with pytest.raises(JetStreamSparkError, match="this version cannot parse"):
        QueueOffset.from_json(given)
