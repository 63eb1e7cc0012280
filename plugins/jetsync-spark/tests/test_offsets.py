import json

import pytest

from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.read.offsets import Offset, span


def place(sequence, begins=None, created="then", *, guessed=False):
    """Return a place in the stream S."""
    return Offset("S", created, sequence, begins, guessed)


class TestJson:
    @pytest.mark.parametrize(
        "offset", [place(1), place(9, 4), place(9, 9), place(9, 4, guessed=True)]
    )
    def test_it_survives_a_checkpoint(self, offset):
        """What a checkpoint has is the same text and the same offset."""
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
        """A checkpoint of another version or source is not taken for one of this."""
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
            # The end of the last batch is where nothing new is.
            (place(10, 1), place(10, 1), (10, 10)),
            (place(10), place(10), (10, 10)),
            # The first offset was made anew after a restart, by when the latest is another place.
            (place(300), place(203, 200), (200, 203)),
            (place(100), place(203, 200), (200, 203)),
            # Messages were lost and are passed over.
            (place(10, 1), place(60, 50), (50, 60)),
            (place(10, 1), place(50, 50), (50, 50)),
            # A place that was guessed is that of a first batch and of no other.
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
    def test_what_is_read(self, start, end, read):
        """The end of a batch knows where it begins."""
        what = span(start, end)
        assert (what.start, what.end) == read
        assert what.created == end.created
