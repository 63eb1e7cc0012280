import random

import pytest

from jetsync_spark.read.ranges import DEFAULT_PARTS, LARGEST, SMALLEST, cut, parts_for


class TestParts:
    @pytest.mark.parametrize(
        ("length", "asked", "parts"),
        [
            (0, {}, 0),
            (-5, {"least": 4}, 0),
            (1, {}, 1),
            (SMALLEST, {}, 1),
            (SMALLEST + 1, {}, 2),
            (100 * SMALLEST, {}, DEFAULT_PARTS),
            (100 * LARGEST, {}, 100),
            # A filter matches few of them.
            (100 * LARGEST, {"messages": 10}, 1),
            (100 * SMALLEST, {"messages": 0}, 1),
            # The requested number of parts, without empty ones.
            (1000, {"least": 4}, 4),
            (3, {"least": 4}, 3),
            (10 * LARGEST, {"least": 4}, 10),
            # No part is larger than requested.
            (1000, {"most_each": 300}, 4),
            (1000, {"most_each": 300, "least": 7}, 7),
            (10 * LARGEST, {"most_each": 10 * LARGEST, "least": 2}, 2),
            (1000, {"most_each": 300, "messages": 0}, 4),
        ],
    )
    def test_how_many(self, length, asked, parts):
        """Parts are large enough for a task, and small enough to be read again."""
        assert parts_for(length, **asked) == parts


class TestCut:
    def test_parts_are_the_whole(self):
        """Each sequence is in exactly one part; the parts are in order and of similar length."""
        chance = random.Random(6)
        for _ in range(300):
            start, length = chance.randrange(1, 1 << 60), chance.randrange(1, 5000)
            parts = chance.randrange(1, length + 1)
            ranges = cut("S", "then", start, start + length, parts)
            assert len(ranges) == parts
            assert [each.start for each in ranges] == [start, *[each.end for each in ranges[:-1]]]
            assert ranges[-1].end == start + length
            lengths = [len(each) for each in ranges]
            assert max(lengths) - min(lengths) <= 1

    def test_nothing(self):
        """An empty range has no parts."""
        assert cut("S", "then", 5, 5, 0) == []
        assert cut("S", "then", 6, 5, 3) == []
