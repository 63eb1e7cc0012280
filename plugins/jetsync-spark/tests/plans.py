"""
Queries without Spark, a server or a clock: what the planner is told, and what it says.
"""

from __future__ import annotations

from jetsync_spark.common.options import read_settings
from jetsync_spark.read.moves import Moves
from jetsync_spark.read.offsets import Offset, Stored
from jetsync_spark.read.options import ReadOptions
from jetsync_spark.read.origin import Origin
from jetsync_spark.read.planner import Planner
from jetsync_spark.read.planning import Limit

PARTS = 4
"""The default number of parts of a batch."""


def state(stream="S", *, first=1, last=10, created="then", drops_old=False, size=0):
    """
    Return the state of a stream whose messages have that many bytes in all.
    """
    return Origin(
        stream,
        created,
        first,
        last + 1,
        drops_old,
        (),
        last + 1 - first,
        size,
        stored(last) if last else None,
    )


def stored(sequence, when=""):
    """
    Return a message that was stored at a time of its own.
    """
    return Stored(sequence, f"at {sequence}{when}")


class Query:
    """
    A query with a clock that moves only when the test says so.
    """

    def __init__(self, stream="S", **options):
        self.options = read_settings(ReadOptions, {"stream": stream, **options})
        self.now = 1000.0
        self.at = None
        self.tasks = []
        self.restart()

    def restart(self):
        """Forget everything but the checkpoint."""
        self.moves = Moves(self.options)
        self.planner = Planner(self.options, PARTS, self.moves)

    def saw(self, *origins, matched=None):
        """Report the states of all streams that exist."""
        found = {origin.stream: origin for origin in origins}
        self.planner.saw(found, matched, self.now)

    def begin(self, *origins, **starts):
        """Start the query at these sequences, or at the first ones."""
        self.saw(*origins)
        given = {origin.stream: origin.first for origin in origins} | starts
        self.at = self.planner.begins(given)

    def step(self, most=None, size=None):
        """Return what the planner says."""
        return self.planner.plan(self.at, Limit(most, size), self.now)

    def plan(self, *origins, most=None, size=None):
        """Report states and plan a batch; return its ranges, or None if there is none."""
        self.saw(*origins)
        end = self.step(most, size)
        if end is None:
            return None
        assert isinstance(end, Offset), end
        # The checkpoint keeps JSON.
        start, end = Offset.from_json(self.at.to_json()), Offset.from_json(end.to_json())
        self.tasks = self.planner.parts(start, end)
        self.at = end
        return [(part.stream, part.start, part.end) for task in self.tasks for part in task]
