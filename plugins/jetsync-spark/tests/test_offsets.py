import json

import pytest

from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.read.offsets import Offset, span


def place(sequence, begins=None, created="then", *, guessed=False):
    """Return a position in the stream S."""
    return Offset("S", created, sequence, begins, guessed)


class TestJson:
    @pytest.mark.parametrize(
        "offset", [place(1), place(9, 4), place(9, 9), place(9, 4, guessed=True)]
    )
    def test_round_trip(self, offset):
        """An offset that was restored from a checkpoint has the same text and is equal."""
        text = json.dumps(offset.to_json())
        again = Offset.from_json(json.loads(text), "S")
        assert again == offset
        assert json.dumps(again.to_json()) == text

    def test_form(self):
        """The keys have a fixed order: Spark compares texts."""
        assert list(place(9, 4).to_json().items()) == [
            ("v", 1), ("stream", "S"), ("created", "then"), ("seq", 9), ("from", 4),
        ]  # fmt: skip
        assert place(9).to_json()["initial"] is True

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"v": 2, "stream": "S", "created": "then", "seq": 5, "from": 1},
            {"v": 1, "stream": "S", "created": "then", "seq": 5},
            {"v": 1, "stream": "S", "created": "then", "seq": None, "from": 1},
            {"topic": {"0": 5}},
        ],
    )
    def test_others_are_refused(self, given):
        """A checkpoint of another version or source is refused."""
        with pytest.raises(JetStreamSparkError, match=r"cannot parse.*new checkpoint"):
            Offset.from_json(given, "S")

    def test_another_stream(self):
        """A checkpoint belongs to one stream."""
        with pytest.raises(JetStreamSparkError, match="checkpoint belongs to stream S"):
            Offset.from_json(place(5, 1).to_json(), "T")


class TestSpan:
    @pytest.mark.parametrize(
        ("start", "end", "read"),
        [
            (place(10, 1), place(20, 10), (10, 20)),
            # The end of the last batch, if there are no new messages.
            (place(10, 1), place(10, 1), (10, 10)),
            (place(10), place(10), (10, 10)),
            # The first offset is made again after a restart, when the latest is another sequence.
            (place(300), place(203, 200), (200, 203)),
            (place(100), place(203, 200), (200, 203)),
            # Lost messages are skipped.
            (place(10, 1), place(60, 50), (50, 60)),
            (place(10, 1), place(50, 50), (50, 50)),
            # A guessed position is only the start of a first batch.
            (place(300), place(20, 5, guessed=True), (5, 20)),
            (place(10, 1), place(20, 5, guessed=True), (10, 20)),
            (place(10, 1), place(20, 15, guessed=True), (10, 20)),
            (place(10, 1), place(10, 5, guessed=True), (10, 10)),
            (place(10, 5, guessed=True), place(20, 10), (10, 20)),
            (place(20, 1), place(10, 5, guessed=True), (20, 20)),
            # The stream was created again.
            (place(500, 1), place(8, 3, "later"), (3, 8)),
            (place(500, 1), place(8, 8, "later", guessed=True), (1, 8)),
        ],
    )
    def test_the_start_of_a_batch(self, start, end, read):
        """The end of a batch contains its start."""
        what = span(start, end)
        assert (what.start, what.end) == read
        assert what.created == end.created
