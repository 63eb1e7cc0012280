"""
Where micro-batches begin and end, without Spark, a server or a clock.
"""

import random

import pytest
from plans import PARTS, Query, state

from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.options import read_settings
from jetsync_spark.read import matches
from jetsync_spark.read import planner as planning
from jetsync_spark.read.offsets import Offset, Place
from jetsync_spark.read.options import ReadOptions
from jetsync_spark.read.planning import AGAIN, Awaited, Look


class TestAdmission:
    def test_a_batch_ends_where_the_stream_ends(self, query):
        """Each batch has what is new, and without new messages there is none."""
        assert query.plan(state()) == [("S", 1, 11)]
        assert query.plan(state()) is None
        assert query.plan(state(last=12)) == [("S", 11, 13)]

    def test_what_to_wait_for(self, query):
        """After a plan without a batch, the query waits for the message after the last one."""
        query.plan(state())
        assert query.plan(state()) is None
        assert query.planner.awaited == Awaited({"S": 11})

    def test_a_limit_is_shared_in_proportion(self):
        """Streams share a limit in proportion to their messages, and each gets at least one."""
        query = Query("A,B")
        query.begin(state("A", last=10), state("B", last=990))
        assert query.plan(state("A", last=10), state("B", last=990), most=100) == [
            ("A", 1, 2),
            ("B", 1, 100),
        ]

    def test_the_number_of_parts_is_recorded(self, query):
        """A batch that is planned again after a restart has the same parts, with other options."""
        start = query.at
        query.saw(state(last=1_000_000))
        end = query.step()
        first = query.planner.parts(start, end)
        assert len(first) == PARTS
        query.options = read_settings(ReadOptions, {"stream": "S", "minPartitions": "9"})
        query.restart()
        assert query.planner.parts(start, end) == first

    def test_a_least_number_of_messages(self):
        """The query waits for a least number, but not in its first batch, nor after the delay."""
        query = Query(minOffsetsPerTrigger="10", maxTriggerDelay="60s")
        query.begin(state(last=3))
        assert query.plan(state(last=3)) == [("S", 1, 4)]
        assert query.plan(state(last=12)) is None
        assert query.plan(state(last=13)) == [("S", 4, 14)]
        query.now += 59.0
        assert query.plan(state(last=14)) is None
        assert query.planner.awaited == Awaited({"S": 15}, query.now + 1.0)
        query.now += 1.0
        assert query.plan(state(last=14)) == [("S", 14, 15)]

    def test_a_fixed_end(self, query):
        """A query with a fixed end reads what there was when it began, also of new streams."""
        query = Query("S*")
        query.begin(state("S1"))
        query.planner.fix_end()
        assert query.plan(state("S1", last=30), most=7) == [("S1", 1, 8)]
        assert query.plan(state("S1", last=30), state("S2")) == [("S1", 8, 11)]
        assert query.plan(state("S1", last=40), state("S2")) is None

    def test_batches_have_every_message_once(self):
        """Whatever the limits and the restarts are, batches follow each other without gaps."""
        chance = random.Random(7)
        for _ in range(50):
            query = Query("S*")
            ends = {"S1": 5}
            query.begin(state("S1", last=5))
            read = {}
            for _ in range(30):
                if chance.random() < 0.1 and len(ends) < 4:
                    ends[f"S{len(ends) + 1}"] = chance.randrange(1, 9)
                for stream in ends:
                    ends[stream] += chance.choice([0, 0, 1, 50])
                if chance.random() < 0.2:
                    query.restart()
                    query.saw(*(state(stream, last=end) for stream, end in ends.items()))
                most = chance.choice([None, 3, 40])
                states = [state(stream, last=end) for stream, end in ends.items()]
                for stream, start, end in query.plan(*states, most=most) or ():
                    assert start == read.get(stream, 1)
                    read[stream] = end
            states = [state(stream, last=end) for stream, end in ends.items()]
            for stream, start, end in query.plan(*states) or ():
                assert start == read.get(stream, 1)
                read[stream] = end
            assert read == {stream: end + 1 for stream, end in ends.items()}


class TestManyStreams:
    """Small streams share tasks."""

    @pytest.fixture
    def names(self):
        """
        The names of 100 streams, in their order.
        """
        return [f"S{number:03}" for number in range(100)]

    def begun(self, names, **options):
        """Return a query that starts at the first messages of these streams."""
        query = Query("S*", **options)
        query.begin(*map(state, names))
        return query

    def test_they_share_tasks(self, names):
        """If more streams have messages than there are tasks by default, they share these."""
        query = self.begun(names)
        assert query.plan(*map(state, names)) == [(name, 1, 11) for name in names]
        assert [len(task) for task in query.tasks] == [25] * PARTS
        new = [state(name, last=10 + (name in names[:PARTS])) for name in names]
        assert query.plan(*new) == [(name, 11, 12) for name in names[:PARTS]]
        assert [len(task) for task in query.tasks] == [1] * PARTS

    def test_limits_of_partitions(self, names):
        """The options of partitions apply to tasks that read several streams."""
        given = [state(name, size=1000) for name in names]
        for options, tasks in (
            ({"minPartitions": "50"}, [2] * 50),
            ({"minPartitions": "100"}, [1] * 100),
            ({"maxRecordsPerPartition": "20"}, [2] * 50),
            ({"maxBytesPerPartition": "5000"}, [5] * 20),
        ):
            query = Query("S*", **options)
            query.begin(*given)
            query.plan(*given)
            assert [len(task) for task in query.tasks] == tasks

    def test_a_large_stream_among_them(self, names):
        """A large stream is read by several tasks, and its share counts."""
        query = self.begun(names)
        given = [state(name, last=4_000_000 if name == "S050" else 10) for name in names]
        query.plan(*given)
        large = [task for task in query.tasks if any(part.stream == "S050" for part in task)]
        assert len(large) == 5
        assert all(len(part) <= 1_000_000 for task in large for part in task)
        assert len(query.tasks) <= 2 * PARTS + 1

    def test_they_are_recorded(self, names):
        """A batch that is planned again after a restart has the same tasks, with other options."""
        query = self.begun(names)
        start = query.at
        query.plan(*map(state, names))
        first = query.tasks
        query.options = read_settings(ReadOptions, {"stream": "S*", "minPartitions": "90"})
        query.restart()
        end = Offset.from_json(query.at.to_json())
        assert query.planner.parts(start, end) == first

    def test_a_batch_of_an_earlier_version(self, names):
        """A batch that a version planned whose tasks read one stream each has the same tasks."""
        places = {name: Place("then", 11, 1, 1) for name in names}
        query = self.begun(names)
        tasks = query.planner.parts(query.at, Offset.from_json(Offset(places).to_json()))
        assert [[part.stream for part in task] for task in tasks] == [[name] for name in names]

    def test_streams_that_were_replaced(self, names):
        """The ranges of other streams stay in their tasks, also if a task has nothing to read."""
        query = self.begun(names, onReplacedStream="restart")
        start = query.at
        query.plan(*map(state, names))
        first, end = query.tasks, Offset.from_json(query.at.to_json())
        query.restart()
        gone = {*names[:1], *names[25:50]}
        query.saw(*(state(name, created="now" if name in gone else "then") for name in names))
        assert query.planner.parts(start, end) == [
            tuple(part for part in task if part.stream not in gone) for task in first
        ]
        assert [len(task) for task in query.planner.parts(start, end)] == [24, 0, 25, 25]

    def test_a_guess(self, names):
        """PySpark 4.0 and 4.1 ask for an end before they tell the start: each stream has a task."""
        query = self.begun(names)
        assert len(query.planner.parts(query.at, query.planner.guess(query.now))) == len(names)


class TestSizes:
    def test_a_limit_in_bytes(self):
        """A batch has no more bytes than the limit, by the mean size of the stream's messages."""
        query = Query()
        query.begin(state(last=1000, size=1_000_000))
        assert query.plan(state(last=1000, size=1_000_000), size=100_000) == [("S", 1, 101)]
        assert query.plan(state(last=1000, size=1_000_000), size=250_000) == [("S", 101, 351)]

    def test_larger_messages_follow_small_ones(self):
        """Messages that arrive while the query runs count with their own size."""
        query = Query()
        query.begin(state(last=1000, size=100_000))
        query.plan(state(last=1000, size=100_000))
        later = state(last=1100, size=100_000 + 100 * 1_000_000)
        assert query.plan(later, size=10_000_000) == [("S", 1001, 1011)]
        last = state(last=2100, size=later.bytes + 1000 * 100)
        assert query.plan(last, size=90_050_000) == [("S", 1011, 1601)]

    def test_a_message_that_exceeds_the_limit(self):
        """A batch has at least one message of each stream."""
        query = Query("A,B")
        given = [state("A", last=5, size=5_000_000), state("B", last=3, size=300)]
        query.begin(*given)
        assert query.plan(*given, size=1) == [("A", 1, 2), ("B", 1, 2)]

    def test_both_limits(self):
        """If both limits are given, the smaller batch counts."""
        query = Query()
        given = state(last=1000, size=1_000_000)
        query.begin(given)
        assert query.plan(given, most=50, size=100_000) == [("S", 1, 51)]
        assert query.plan(given, most=500, size=100_000) == [("S", 51, 151)]

    def test_messages_were_removed_meanwhile(self):
        """If messages were removed, the new ones count with the mean size of all."""
        query = Query(failOnDataLoss="false")
        query.begin(state(last=100, size=10_000))
        query.plan(state(last=100, size=10_000))
        assert query.plan(state(first=51, last=200, size=150_000), size=10_000) == [("S", 101, 111)]

    def test_parts_have_a_limit_in_bytes(self):
        """A part has at most 128 MiB by default, and what the option says otherwise."""
        for options, parts in (({}, 8), ({"maxBytesPerPartition": "64m"}, 16)):
            query = Query(**options)
            given = state(last=1024, size=1 << 30)
            query.begin(given)
            assert len(query.plan(given)) == parts

    def test_a_long_query_keeps_few_sizes(self):
        """However long a query runs, sizes stay about right."""
        query = Query()
        size = 0
        query.begin(state(last=0))
        for last in range(1, 3000):
            size += 1000 if last % 2 else 3000
            assert query.plan(state(last=last, size=size)) is not None
        assert query.plan(state(last=4000, size=size + 1001 * 500), size=50_000) == [
            ("S", 3000, 3100)
        ]


class TestLoss:
    def test_a_start_that_was_removed(self):
        """A start before the first message is a loss."""
        query = Query()
        with pytest.raises(JetStreamSparkError, match="sequences 5 to 10 are missing"):
            query.begin(state(first=11, last=30), S=5)
        query = Query(failOnDataLoss="false")
        query.begin(state(first=11, last=30), S=5)
        assert query.plan(state(first=11, last=30)) == [("S", 11, 31)]

    def test_messages_that_were_purged(self, query):
        """Messages that were purged unread end the query, or are skipped."""
        query.plan(state())
        with pytest.raises(JetStreamSparkError, match="sequences 11 to 20 are missing"):
            query.plan(state(first=21, last=30))
        query = Query(failOnDataLoss="false")
        query.begin(state())
        query.plan(state())
        assert query.plan(state(first=21, last=30)) == [("S", 21, 31)]
        # The offset moves even if nothing is left.
        assert query.plan(state(first=41, last=40)) == []
        assert query.plan(state(first=41, last=40)) is None

    def test_messages_that_new_ones_replace(self):
        """A stream that regularly removes old messages loses them without an error."""
        query = Query()
        query.begin(state(drops_old=True))
        assert query.plan(state(first=5, drops_old=True)) == [("S", 5, 11)]

    def test_a_stream_that_was_created_again(self, query):
        """Another stream of the name ends the query, or is read from its first message."""
        query.plan(state())
        with pytest.raises(JetStreamSparkError, match="was created again"):
            query.plan(state(created="now", last=3))
        query = Query(failOnDataLoss="false")
        query.begin(state())
        query.plan(state())
        assert query.plan(state(created="now", last=3)) == [("S", 1, 4)]

    def test_a_stream_that_lags(self, query):
        """A stream that ends before the offset has 5 seconds to catch up."""
        query.plan(state())
        assert query.plan(state(last=7)) is None
        assert query.planner.awaited is None
        query.now += planning.CATCHING_UP - 0.1
        assert query.plan(state(last=7)) is None
        assert query.plan(state(last=11)) == [("S", 11, 12)]
        assert query.plan(state(last=7)) is None
        query.now += planning.CATCHING_UP
        with pytest.raises(JetStreamSparkError, match=r"up to sequence 11, and .* ends at 7"):
            query.plan(state(last=7))

    def test_a_stream_that_lags_before_a_fixed_end(self, query):
        """A run to a fixed end asks again, for at most 5 seconds."""
        query.plan(state())
        query.saw(state(last=7))
        query.planner.fix_end()
        assert query.step() is AGAIN
        query.now += planning.CATCHING_UP
        with pytest.raises(JetStreamSparkError, match="the stream went back"):
            query.step()

    def test_a_stream_that_is_missing(self):
        """A missing stream has 5 seconds to return; then the others are read, or none."""
        for lenient in (False, True):
            query = Query("A,B", failOnDataLoss=str(not lenient).lower())
            query.begin(state("A"), state("B"))
            query.plan(state("A"), state("B"))
            assert query.plan(state("B", last=11)) == [("B", 11, 12)]
            query.now += planning.CATCHING_UP
            if not lenient:
                with pytest.raises(JetStreamSparkError, match=r"the stream was deleted .*A"):
                    query.plan(state("B", last=11))
                continue
            # The checkpoint forgets the stream.
            assert query.plan(state("B", last=11)) == []
            assert [*query.at.places] == ["B"]
            assert query.plan(state("A", last=3), state("B", last=11)) == [("A", 1, 4)]

    def test_a_checkpoint_of_other_streams(self, query):
        """A checkpoint that has only other streams is rejected."""
        with pytest.raises(JetStreamSparkError, match="the checkpoint belongs to stream T"):
            query.planner.begin_of_next(Offset({"T": Place("then", 5, 1)}).to_json())


class TestDiscovery:
    def test_patterns_are_looked_up_again(self):
        """A query looks for the streams that match a pattern every 5 seconds."""
        query = Query("S,T*")
        assert query.planner.wants(None, query.now).discover
        query.saw(state("S"), state("T1"), matched={"T1"})
        query.now += planning.DISCOVER - 0.1
        wanted = query.planner.wants(None, query.now)
        assert wanted.streams == {"S", "T1"}
        assert not wanted.discover
        query.now += 0.1
        assert query.planner.wants(None, query.now).discover

    def test_names_are_not_looked_up(self, query):
        """A query without a pattern asks only for the streams that it knows."""
        wanted = query.planner.wants(query.at, query.now + 1000.0)
        assert wanted.streams == {"S"}
        assert not wanted.discover

    def test_a_stream_of_the_checkpoint_is_wanted(self):
        """A stream of the checkpoint is asked for even if no list has it, but not if unnamed."""
        query = Query("S*")
        at = Offset({"S1": Place("then", 5, 1), "T": Place("then", 5, 1)})
        assert query.planner.wants(at, query.now).streams == {"S1"}

    def test_a_new_stream_is_read_from_its_first_message(self):
        """A stream that the query finds later is read from its first message."""
        query = Query("S*")
        query.begin(state("S1"), S1=11)
        found = query.plan(state("S1"), state("S2", first=4, last=6))
        assert found == [("S2", 4, 7)]


class TestFilters:
    @pytest.fixture
    def query(self):
        """
        A query with a filter that has read 10 of 100 messages.
        """
        made = Query(subjectFilter="a")
        made.begin(state())
        made.saw(state())
        (look,) = made.step()
        made.planner.found(look, 1)
        assert made.plan(state()) == [("S", 1, 11)]
        return made

    def looks(self, query, *origins, most=None):
        """Report states and return the planner's questions."""
        query.saw(*origins)
        step = query.step(most)
        return step if isinstance(step, tuple) else ()

    def test_messages_without_a_match_make_no_batch(self, query):
        """If no message matches, there is no batch, and only later messages are looked at."""
        assert self.looks(query, state(last=20)) == (Look("S", 11),)
        query.planner.found(Look("S", 11), None)
        assert query.step() is None
        assert query.planner.awaited == Awaited({"S": 21})
        assert self.looks(query, state(last=20)) == ()
        assert self.looks(query, state(last=25)) == (Look("S", 21),)
        query.planner.found(Look("S", 21), 23)
        assert query.plan(state(last=25)) == [("S", 23, 26)]

    def test_a_limit_counts_from_the_match(self, query):
        """A limit counts from the first match, so that the query moves."""
        assert self.looks(query, state(last=200))
        query.planner.found(Look("S", 11), 150)
        assert query.plan(state(last=200), most=2) == [("S", 150, 152)]

    def test_a_known_match_is_not_looked_up_again(self, query):
        """A match is known until a batch has read it, however much the stream grows."""
        query.options = read_settings(
            ReadOptions,
            {"stream": "S", "subjectFilter": "a", "minOffsetsPerTrigger": "5"},
        )
        assert self.looks(query, state(last=20))
        query.planner.found(Look("S", 11), 15)
        assert self.looks(query, state(last=30)) == ()
        assert query.plan(state(last=30)) == [("S", 15, 31)]
        assert self.looks(query, state(last=31)) == (Look("S", 31),)

    def test_limits_remove_what_matches_no_filter(self, query):
        """Messages that were removed and matched no filter are no loss."""
        assert self.looks(query, state(last=20))
        query.planner.found(Look("S", 11), None)
        assert query.step() is None
        # The offset moves.
        assert query.plan(state(first=21, last=20)) == []
        assert self.looks(query, state(first=21, last=20)) == ()
        assert query.at.places["S"].next == 21
        with pytest.raises(JetStreamSparkError, match="sequences 21 to 24 are missing"):
            query.plan(state(first=25, last=30))

    def test_a_long_span_without_a_match_is_skipped(self, query, monkeypatch):
        """In the older half of a stream, an empty batch skips many messages without a match."""
        monkeypatch.setattr(matches, "SKIPPED", 20)
        assert self.looks(query, state(last=29))
        query.planner.found(Look("S", 11), None)
        assert query.step() is None
        assert self.looks(query, state(last=30))
        query.planner.found(Look("S", 30), None)
        assert query.plan(state(last=30)) == []
        assert query.at.places["S"].next == 31

    def test_another_stream_is_looked_through_from_its_beginning(self, query):
        """What is known about matches does not count for another stream of the name."""
        lenient = Query(subjectFilter="a", failOnDataLoss="false")
        lenient.begin(state())
        assert self.looks(lenient, state())
        lenient.planner.found(Look("S", 1), None)
        assert lenient.step() is None
        assert lenient.plan(state(created="now", last=5)) == [("S", 1, 6)]


class TestGuess:
    """PySpark 4.0 and 4.1 ask for an end before they tell the start."""

    def test_the_first_batch(self):
        """The first end holds the start of the query."""
        query = Query()
        query.begin(state(), S=4)
        assert query.planner.begin_of_next(None) is None
        end = query.planner.guess(query.now)
        assert query.planner.guessed == end
        parts = query.planner.parts(query.at, end)
        assert [(part.start, part.end) for (part,) in parts] == [(4, 11)]
        assert query.planner.begin_of_next(None) == end

    def test_a_restart(self):
        """After a restart, Spark's start counts, and the start that was guessed does not."""
        query = Query()
        query.begin(state(last=20))
        end = query.planner.guess(query.now)
        parts = query.planner.parts(Offset({"S": Place("then", 11, 1)}), end)
        assert [(part.start, part.end) for (part,) in parts] == [(11, 21)]

    def test_a_restart_while_the_leader_lags(self):
        """If the first end is before Spark's start, the next batch begins at Spark's start."""
        query = Query()
        query.begin(state(last=5))
        end = query.planner.guess(query.now)
        assert query.planner.parts(Offset({"S": Place("then", 11, 1)}), end) == []
        query.at = query.planner.begin_of_next(None)
        assert query.plan(state(last=12)) == [("S", 11, 13)]

    def test_another_stream(self):
        """A stream that was created again is noticed when the batch is read."""
        start = Offset({"S": Place("before", 11, 1)})
        query = Query()
        query.begin(state())
        end = query.planner.guess(query.now)
        query.restart()
        assert query.planner.needs_states(start, end)
        query.saw(state())
        with pytest.raises(JetStreamSparkError, match="was created again"):
            query.planner.parts(start, end)
