import random

import pytest

from jetsync_spark.read.ranges import (
    DEFAULT_PARTS,
    LARGEST,
    PER_STREAM,
    SMALLEST,
    cut,
    group,
    parts_by_bytes,
    parts_for,
    parts_of,
    shares,
    tasks_of,
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


class TestTasks:
    @pytest.mark.parametrize(
        ("parts", "lengths", "asked", "tasks"),
        [
            ([], [], {}, None),
            # No more parts than tasks: each is read by a task of its own.
            ([1, 1, 2], [5, 5, 9], {}, None),
            ([1, 0, 1, 0, 1, 1], [5, 0, 5, -3, 5, 5], {}, None),
            # More parts share as many tasks.
            ([1] * 8, [5] * 8, {}, (2, 2, 2, 2)),
            ([1] * 1000, [5] * 1000, {}, (250, 250, 250, 250)),
            ([1, 0] * 8, [5, 0] * 8, {}, (2, 2, 2, 2)),
            # A part that is as long as many others has its own task, or a share of one.
            ([1] * 7, [5, 5, 5, 100 * PER_STREAM, 5, 5, 5], {}, (3, 1, 2, 1)),
            ([2] + [1] * 8, [200 * PER_STREAM, *[5] * 8], {"least": 3}, (1, 1, 8)),
            # Tasks that read several parts have limits, too.
            ([1] * 8, [LARGEST] * 8, {}, None),
            ([1] * 8, [LARGEST // 2] * 8, {}, (2, 2, 2, 2)),
            ([1] * 12, [9] * 12, {"most_each": 20}, (2, 2, 2, 2, 2, 2)),
            ([1] * 12, [9] * 12, {"sizes": [30.0] * 12, "most_bytes_each": 60}, (2,) * 6),
            # A filter matches few messages; a limit of the user counts sequences all the same.
            ([1] * 8, [LARGEST] * 8, {"messages": [0] * 8}, (2, 2, 2, 2)),
            ([1] * 8, [LARGEST] * 8, {"messages": [0] * 8, "most_each": LARGEST}, None),
            # There are not more parts than sequences.
            ([9, 1, 1, 1], [1, 1, 1, 1], {}, None),
        ],
    )
    def test_how_many_parts_they_read(self, parts, lengths, asked, tasks):
        """Small parts of many ranges share tasks, which have about as much to do."""
        assert tasks_of(parts, lengths, **{"least": 4, **asked}) == tasks

    def test_they_have_every_part_once(self):
        """Whatever the parts are, each belongs to one task, in order, and no task is too long."""
        chance = random.Random(8)
        for _ in range(300):
            lengths = [chance.choice([0, 1, 50, 3000, 200_000]) for _ in range(50)]
            least = chance.randrange(1, 30)
            parts = parts_of(lengths, least=chance.choice([None, least]))
            ranges = [
                each
                for number, (length, count) in enumerate(zip(lengths, parts, strict=True))
                for each in cut(f"S{number}", "then", 1, length + 1, count)
            ]
            tasks = group(ranges, tasks_of(parts, lengths, least=least))
            assert [each for ranges in tasks for each in ranges] == ranges
            assert min(least, len(ranges)) <= len(tasks) <= max(len(parts), 2 * least + 1)
            assert all(sum(map(len, each)) <= LARGEST for each in tasks if len(each) > 1)

    def test_they_do_not_fit(self):
        """Parts that no task is recorded for are read by tasks of their own."""
        ranges = cut("S", "then", 1, 6, 5)
        assert group(ranges, (2, 1)) == [tuple(ranges[:2]), *((each,) for each in ranges[2:])]
        assert group(ranges[:1], (2, 3)) == [(ranges[0],)]
        assert group([], (2,)) == []


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
