import json

import pytest

from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.read.offsets import Offset, Place, Stored, spans

CREATED = "2026-11-23T03:33:41.088358+00:00"

OLD = [
    f'{{"v": 1, "stream": "ORDERS", "created": "{CREATED}", "seq": 420001, "initial": true}}',
    f'{{"v": 1, "stream": "ORDERS", "created": "{CREATED}", "seq": 420031, "from": 420001}}',
    f'{{"v": 1, "stream": "ORDERS", "created": "{CREATED}", "seq": 300001, "from": 1}}',
    f'{{"v": 1, "stream": "ORDERS", "created": "{CREATED}", "seq": 9, "from": 4, "guessed": true}}',
]
"""Offsets from checkpoints that jetsync-spark 0.1.0 wrote."""


def one(sequence, begins=None, created="then", *, guessed=False, first=None):
    """Return a position in the stream S."""
    place = Place(created, sequence, begins, first=first)
    return Offset({"S": place}, initial=begins is None, guessed=guessed)


def several(*, initial=False, guessed=False, **places):
    """Return positions in several streams."""
    return Offset({stream: Place("then", *given) for stream, given in places.items()},
                  initial, guessed)  # fmt: skip


class TestJson:
    @pytest.mark.parametrize(
        "offset",
        [
            one(1),
            one(9, 4),
            one(9, 9),
            one(9, 4, guessed=True),
            one(9, 4, guessed=True, first=2),
            several(initial=True, A=(5,), B=(7,)),
            several(A=(5, 1, 2), B=(7, 7, 0)),
            several(guessed=True, A=(5, 1, None, 1), B=(7, 7, None, 3)),
            several(),
            several(initial=True),
            several(A=(5, 1, 3)),
            several(A=(5, 1, 3, None, Stored(9, CREATED)), B=(1, 1, 0)),
            several(initial=True, A=(5, None, None, None, Stored(4, CREATED))),
            Offset({"A": Place("then", 5, 1, 3), "B": Place("then", 9, 1, 1)}, tasks=(1, 3)),
            Offset({"A": Place("then", 5, 1, 3)}, tasks=(1, 2)),
        ],
    )
    def test_a_restored_offset_has_the_same_text(self, offset):
        """An offset that was restored from a checkpoint has the same text and is equal."""
        text = json.dumps(offset.to_json())
        again = Offset.from_json(json.loads(text))
        assert again == offset
        assert json.dumps(again.to_json()) == text

    @pytest.mark.parametrize("text", OLD)
    def test_old_ones(self, text):
        """Offsets of the first version are read, and written again as the same text."""
        again = Offset.from_json(json.loads(text))
        assert [*again.places] == ["ORDERS"]
        assert again.places["ORDERS"].parts is None
        assert json.dumps(again.to_json()) == text

    def test_the_keys_of_an_offset_have_a_fixed_order(self):
        """The keys have a fixed order: Spark compares texts."""
        offset = Offset({"S": Place("then", 9, 4, 2)})
        assert list(offset.to_json().items()) == [
            ("v", 1), ("stream", "S"), ("created", "then"), ("seq", 9), ("from", 4), ("parts", 2),
        ]  # fmt: skip
        assert one(9).to_json()["initial"] is True
        last = Offset({"S": Place("then", 9, 4, 2, last=Stored(12, CREATED))})
        assert [*last.to_json()][-2:] == ["parts", "last"]
        assert last.to_json()["last"] == [12, CREATED]
        both = several(A=(5, 1, 2), B=(7, 7, 0)).to_json()
        assert json.dumps(both) == (
            '{"v": 2, "streams": {"A": {"created": "then", "seq": 5, "from": 1, "parts": 2}, '
            '"B": {"created": "then", "seq": 7, "from": 7, "parts": 0}}}'
        )
        shared = Offset({"A": Place("then", 5, 1, 2), "B": Place("then", 9, 1, 1)}, tasks=(1, 2))
        assert json.dumps(shared.to_json()) == (
            '{"v": 4, "streams": {"A": {"created": "then", "seq": 5, "from": 1, "parts": 2}, '
            '"B": {"created": "then", "seq": 9, "from": 1, "parts": 1}}, "tasks": [1, 2]}'
        )

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"v": 4, "stream": "S", "created": "then", "seq": 5, "from": 1},
            {"v": 3, "stream": "S", "created": "then", "seq": 5, "from": 1},
            {"v": 4, "streams": {"S": {"created": "then", "seq": 5, "from": 1}}},
            {"v": 4, "streams": {"S": {"created": "then", "seq": 5, "from": 1}}, "tasks": 5},
            {"v": 5, "streams": {"S": {"created": "then", "seq": 5, "from": 1}}, "tasks": [1]},
            {"v": 1, "stream": "S", "created": "then", "seq": 5},
            {"v": 1, "stream": "S", "created": "then", "seq": None, "from": 1},
            {"v": 2, "streams": {"S": {"created": "then", "seq": 5}}},
            {"v": 2, "streams": [5]},
            {"v": 1, "stream": "S", "created": "then", "seq": 5, "from": 1, "last": [7]},
            {"topic": {"0": 5}},
        ],
    )
    def test_others_are_refused(self, given):
        """A checkpoint of another version or source is refused."""
        with pytest.raises(JetStreamSparkError, match=r"cannot parse.*new checkpoint"):
            Offset.from_json(given)


class TestSpans:
    @pytest.mark.parametrize(
        ("start", "end", "read"),
        [
            (one(10, 1), one(20, 10), (10, 20)),
            # The end of the last batch, if there are no new messages.
            (one(10, 1), one(10, 1), None),
            (one(10), one(10), None),
            # The first offset is made again after a restart, when the latest is another sequence.
            (one(300), one(203, 200), (200, 203)),
            (one(100), one(203, 200), (200, 203)),
            # Lost messages are skipped.
            (one(10, 1), one(60, 50), (50, 60)),
            (one(10, 1), one(50, 50), None),
            # A guessed position is only the start of a first batch.
            (one(300), one(20, 5, guessed=True), (5, 20)),
            (one(10, 1), one(20, 5, guessed=True), (10, 20)),
            (one(10, 1), one(20, 15, guessed=True), (10, 20)),
            (one(10, 1), one(10, 5, guessed=True), None),
            (one(10, 5, guessed=True), one(20, 10), (10, 20)),
            (one(20, 1), one(10, 5, guessed=True), None),
            # The stream was created again.
            (one(500, 1), one(8, 3, "later"), (3, 8)),
            (one(500, 1), one(8, 8, "later", guessed=True), (1, 8)),
            (one(500, 1), one(8, 8, "later", guessed=True, first=4), (4, 8)),
        ],
    )
    def test_the_start_of_a_batch(self, start, end, read):
        """The end of a batch contains its start."""
        found = spans(start, end)
        assert [(what.start, what.end) for what in found] == [read] * (read is not None)
        assert all(what.created == end.places["S"].created for what in found)

    @pytest.mark.parametrize(
        ("start", "end", "read"),
        [
            (several(A=(5, 1), B=(7, 3)), several(A=(9, 5, 2), B=(8, 7, 1)),
             [("A", 5, 9, 2), ("B", 7, 8, 1)]),
            # Nothing new in one of them.
            (several(A=(5, 1), B=(7, 3)), several(A=(5, 5, 0), B=(8, 7, 1)), [("B", 7, 8, 1)]),
            # A stream that is new, and one that was deleted.
            (several(A=(5, 1)), several(A=(9, 5, 1), B=(8, 3, 1)),
             [("A", 5, 9, 1), ("B", 3, 8, 1)]),
            (several(A=(5, 1), B=(7, 3)), several(B=(8, 7, 1)), [("B", 7, 8, 1)]),
            (several(), several(A=(5, 1, 1)), [("A", 1, 5, 1)]),
            # The first batch is the same, even if one of its streams was found later.
            (several(initial=True, A=(50,), B=(70,), C=(9,)), several(A=(5, 2, 1), B=(7, 7, 0)),
             [("A", 2, 5, 1)]),
            # A guess says where a stream begins that the last batch did not have.
            (several(A=(5, 1)), several(guessed=True, A=(9, 2, None, 1), B=(8, 8, None, 3)),
             [("A", 5, 9, None), ("B", 3, 8, None)]),
        ],
    )  # fmt: skip
    def test_each_stream_has_its_own_start_in_order_of_names(self, start, end, read):
        """Each stream has its own start, and the order is that of the names."""
        found = spans(start, end)
        assert [(what.stream, what.start, what.end, what.parts) for what in found] == read
