"""
Whether a stream continues the sequences of a position, without Spark, a server or a clock.
"""

import attrs
import pytest
from plans import Query, state, stored

from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.read import planner as planning
from jetsync_spark.read.offsets import Offset, Place
from jetsync_spark.read.planning import AGAIN, Look


def doubts(query):
    """
    Return the questions about the position of a query.
    """
    return query.moves.doubts(query.at, lambda name: query.planner.waits_for(name, query.now))


class TestMoves:
    def placed(self, query, *origins, time=None, newer=None):
        """Report states, answer all questions, and return the position in these streams."""
        query.saw(*origins)
        asked = doubts(query)
        if asked is AGAIN:
            query.now += planning.CATCHING_UP
            asked = doubts(query)
        for about in asked:
            query.moves.compared(about, time, newer)
        query.at = query.moves.placed(query.at)
        return {stream: place.next for stream, place in query.at.places.items()}

    @pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}])
    def test_an_old_checkpoint_while_the_leader_lags(self, options):
        """A position without a message waits for a stream that lags, too."""
        query = Query(**options)
        query.at = Offset({"S": Place("then", 11, 1)})
        for last in (8, 10):
            query.saw(state(last=last))
            assert doubts(query) == ()
            query.at = query.moves.placed(query.at)
            assert query.step() is None
            query.now += 1.0
        assert query.plan(state(last=12)) == [("S", 11, 13)]

    def test_the_message_of_a_position(self, query):
        """A position has the first message at or after it that was the last one of the stream."""
        assert query.plan(state(last=10), most=4) == [("S", 1, 5)]
        assert query.at.places["S"].last == stored(10)
        assert query.plan(state(last=30), most=4) == [("S", 5, 9)]
        assert query.at.places["S"].last == stored(10)
        assert query.plan(state(last=40), most=4) == [("S", 9, 13)]
        assert query.at.places["S"].last == stored(40)

    def test_streams_without_new_messages(self):
        """A stream without new messages has a message from the start."""
        query = Query("A,B")
        query.begin(state("A"), state("B"), A=11)
        query.plan(state("A"), state("B", last=12))
        assert query.at.places["A"].last == stored(10)

    def test_a_stream_that_lags(self):
        """A stream that lags keeps its message, as its last one now is before the position."""
        query = Query("A,B")
        query.begin(state("A"), state("B"))
        query.plan(state("A"), state("B"))
        assert query.plan(state("A", last=8), state("B", last=12)) == [("B", 11, 13)]
        assert query.at.places["A"].last == stored(10)

    def test_the_same_last_message(self, query):
        """If the last message is the same, nothing has to be asked."""
        query.plan(state())
        query.saw(state(created="now"))
        assert doubts(query) == ()
        assert self.placed(query, state(created="now")) == {"S": 11}
        assert query.plan(state(created="now", last=12)) == [("S", 11, 13)]

    def test_the_same_message(self, query):
        """If the stream has the message of the position, the query continues."""
        query.plan(state())
        now = state(created="now", last=15)
        query.saw(now)
        (about,) = doubts(query)
        assert (about.stream, about.last) == ("S", stored(10))
        query.moves.compared(about, "at 10", None)
        # Until there is a batch, Spark gives the old position again.
        assert doubts(query) == ()
        assert self.placed(query, now) == {"S": 11}
        assert query.plan(now) == [("S", 11, 16)]

    def test_another_message(self, query):
        """If the message has another time, the query fails, and the error says what can be done."""
        query.plan(state())
        now = state(created="now", last=15)
        self.placed(query, now, time="at noon")
        with pytest.raises(JetStreamSparkError, match=r"10 is from at noon, and .* from at 10, so"):
            query.plan(now)

    def test_a_message_that_a_mirror_may_still_get(self, query):
        """The query asks again for 5 seconds if the stream ends before the message."""
        query.plan(state())
        query.saw(state(created="now", last=9))
        assert doubts(query) is AGAIN
        query.now += planning.CATCHING_UP - 0.1
        assert doubts(query) is AGAIN
        query.saw(state(created="now", last=10))
        assert doubts(query) == ()

    @pytest.mark.parametrize(
        ("how", "last", "newer", "begins"),
        [
            ("continue", 30, None, 11),
            ("continue", 7, None, 8),
            ("newer", 30, 15, 11),
            ("newer", 30, 6, 6),
            ("newer", 7, 8, 8),
            ("restart", 30, None, 1),
        ],
    )
    def test_the_choices(self, how, last, newer, begins):
        """Each choice begins somewhere else."""
        query = Query(onReplacedStream=how)
        query.begin(state())
        query.plan(state())
        now = state(created="now", last=last)
        self.placed(query, now, time="at noon", newer=newer)
        assert query.plan(now) == ([("S", begins, last + 1)] if begins <= last else None)

    def test_a_stream_that_ends_before_the_position(self):
        """If the same stream does not catch up in time, the choice applies, too."""
        query = Query(onReplacedStream="newer")
        query.begin(state())
        query.plan(state())
        now = state(last=7)
        assert self.placed(query, now) == {"S": 11}
        query.now += planning.CATCHING_UP
        assert self.placed(query, now, newer=8) == {"S": 8}
        assert query.plan(state(last=9)) == [("S", 8, 10)]

    def test_a_message_of_the_stream_before(self):
        """A position in another stream has a message of this one."""
        query = Query(onReplacedStream="restart")
        query.begin(state())
        assert query.plan(state(), most=4) == [("S", 1, 5)]
        now = state(created="now", last=30)
        self.placed(query, now, time="at noon")
        assert query.plan(now, most=4) == [("S", 1, 5)]
        assert query.at.places["S"].last == stored(30)

    def test_before_the_first_message(self):
        """A query that has read nothing of a stream reads the next one from its first message."""
        query = Query()
        query.begin(state(last=0))
        query.saw(state(created="now", last=5))
        assert doubts(query) == ()
        assert self.placed(query, state(created="now", last=5)) == {"S": 1}
        assert query.plan(state(created="now", last=5)) == [("S", 1, 6)]

    def test_a_stream_that_went_back_to_another_last_message(self, query):
        """A stream that ends where it did before, with another message, is compared again."""
        query.plan(state(), most=4)
        now = state(last=12)
        assert self.placed(query, now, time="at 10") == {"S": 5}
        query.saw(now)
        assert doubts(query) == ()
        query.saw(attrs.evolve(now, last=stored(12, " again")))
        (about,) = doubts(query)
        assert about.last == stored(10)

    def test_a_stream_that_went_back_while_it_was_read(self, query):
        """A stream that ends earlier than before is compared again, once it has caught up."""
        query.plan(state())
        assert self.placed(query, state(last=12)) == {"S": 11}
        assert query.plan(state(last=12)) == [("S", 11, 13)]
        query.saw(state(last=14))
        assert doubts(query) == ()
        query.saw(state(last=9))
        assert doubts(query) == ()
        query.saw(state(last=14))
        (about,) = doubts(query)
        assert (about.last, about.is_same) == (stored(12), True)
        assert self.placed(query, state(last=14), time="at noon") == {"S": 13}
        with pytest.raises(JetStreamSparkError, match="went back: its message 12 is from at noon"):
            query.plan(state(last=14))

    @pytest.mark.parametrize("is_missing", [False, True])
    def test_a_filter_and_a_stream_that_went_back(self, is_missing):
        """Sequences without a match are searched again, as other messages may have them now."""
        query = Query(subjectFilter="a")
        query.begin(state())
        query.saw(state())
        (look,) = query.step()
        query.planner.found(look, 10)
        assert query.plan(state()) == [("S", 10, 11)]
        query.saw(state(last=500))
        (look,) = query.step()
        query.planner.found(look, None)
        assert query.step() is None
        query.saw(*[] if is_missing else [state(last=20)])
        query.saw(state(last=30))
        assert query.step() == (Look("S", 11),)

    def test_a_message_that_a_limit_removed(self, query):
        """A stream with the same time of creation is the same, if the message was removed."""
        query.plan(state())
        query.saw(state(first=15, last=30))
        (about,) = doubts(query)
        query.moves.compared(about, None, None)
        assert doubts(query) == ()
        with pytest.raises(JetStreamSparkError, match="sequences 11 to 14 are missing"):
            query.plan(state(first=15, last=30))

    def test_a_stream_that_was_missing(self, query):
        """A stream that was missing for a time is compared again."""
        query.plan(state())
        assert self.placed(query, state(last=12)) == {"S": 11}
        assert query.plan(state(last=12)) == [("S", 11, 13)]
        query.saw()
        query.saw(state(last=14))
        (about,) = doubts(query)
        assert (about.last, about.is_same) == (stored(12), True)

    def test_requests_of_a_query_that_does_not_fail(self):
        """The first newer message is only requested if the stream is another one."""
        query = Query(failOnDataLoss="false")
        query.begin(state())
        query.plan(state())
        query.saw(state(first=15, last=30))
        (about,) = doubts(query)
        assert not query.moves.wants_newer(about, None)
        assert not query.moves.wants_newer(about, "at 10")
        assert query.moves.wants_newer(about, "at noon")
        query.saw(state(created="now", last=30))
        (about,) = doubts(query)
        assert query.moves.wants_newer(about, None)
