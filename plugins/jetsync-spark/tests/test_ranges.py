import random

import pytest

from jetsync_spark.read.ranges import (
    DEFAULT_PARTS,
    LARGEST,
    SMALLEST,
    cut,
    parts_by_bytes,
    parts_for,
    parts_of,
    shares,
)


def test_parts_have_a_maximum_size():
    """Ranges with more bytes have more parts, and empty ones have none."""
    assert parts_by_bytes([2, 1, 0, 3], [100.0, 301.0, 0.0, 0.0], 100) == [2, 4, 0, 3]


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
        asked = {**asked, "messages": [asked["messages"]]} if "messages" in asked else asked
        assert parts_of([length], **asked) == [parts]

    @pytest.mark.parametrize(
        ("lengths", "asked", "parts"),
        [
            ([], {}, []),
            ([0, 0], {}, [0, 0]),
            ([1, 0, 1], {}, [1, 0, 1]),
            ([10, 20, 30], {"least": 6}, [1, 2, 3]),
            ([10, 20, 30], {"least": 4}, [1, 2, 2]),
            ([2 * SMALLEST, 100], {}, [3, 1]),
            ([LARGEST, 9 * LARGEST], {}, [2, 15]),
            ([LARGEST, 9 * LARGEST], {"default": 4}, [1, 9]),
            ([100, 10], {"most_each": 20}, [6, 1]),
            ([LARGEST, LARGEST], {"messages": [0, 10]}, [1, 1]),
        ],
    )
    def test_of_several_ranges(self, lengths, asked, parts):
        """Ranges share the parts in proportion, and each has one."""
        assert parts_of(lengths, **asked) == parts


class TestShares:
    @pytest.mark.parametrize(
        ("lengths", "most", "found"),
        [
            ([], 5, []),
            ([3, 2], 5, [3, 2]),
            ([10], 5, [5]),
            ([10, 30], 20, [5, 15]),
            ([1, 0, 999], 100, [1, 0, 99]),
            ([1, 1, 1], 2, [1, 1, 1]),
        ],
    )
    def test_they_are_proportional(self, lengths, most, found):
        """Each range with messages gets a share, so that none of them stands still."""
        assert shares(lengths, most) == found


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

    def test_an_empty_range_has_no_parts(self):
        """An empty range has no parts."""
        assert cut("S", "then", 5, 5, 0) == []
        assert cut("S", "then", 6, 5, 3) == []
