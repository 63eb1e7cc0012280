"""
Queries that read several streams, and checkpoints of earlier versions, planned without Spark.
"""

import contextlib
import json
import random

import pytest
from requests_to_server import asked
from streams_to_read import extend, numbered, remake

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.options import ConnectSettings, read_settings
from jetsync_spark.read.options import ReadOptions
from jetsync_spark.read.ranges import SMALLEST

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

from pyspark.errors import PySparkAttributeError
from pyspark.sql.datasource import InputPartition
from queries import SCHEMA, Query, Rows

from jetsync_spark import registration
from jetsync_spark.read import idle, planner
from jetsync_spark.read.batch import StreamBatchReader
from jetsync_spark.read.micro_batch import StreamMicroBatchReader

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """
    Use cached answers about streams only within the test's moment.
    """
    monkeypatch.setattr(idle, "WAIT", 0.0)
    monkeypatch.setattr(idle, "CHECK", 0.0)
    monkeypatch.setattr(idle, "POLLING", 0.0)
    monkeypatch.setattr(planner, "DISCOVER", 0.0)
    monkeypatch.setattr(planner, "CATCHING_UP", 0.0)


@pytest.fixture
def two(js):
    """
    Two streams with 10 and 20 messages.
    """
    with numbered(js, 10) as one, numbered(js, 20) as other:
        yield one, other


@pytest.fixture
def pair(nats_server, two):
    """
    A factory of queries over both streams that start at the beginning.
    """
    names = ",".join(stream.name for stream in two)
    return lambda **options: Query(nats_server, names, **{"startingOffsets": "earliest", **options})


@contextlib.contextmanager
def family(js, unique, *counts):
    """
    Make streams whose names begin with the same word, with that many messages.
    """
    made = []
    try:
        for number, count in enumerate(counts):
            name = f"{unique}_{number}"
            stream = js.create_stream(
                name, subjects=[f"{name}.>"], allow_direct=True, storage="memory"
            )
            made.append(stream)
            extend(js, stream, count)
        yield made
    finally:
        for stream in made:
            with contextlib.suppress(jetsync.StreamNotFoundError):
                stream.delete()


def batch(server, stream, **options):
    """
    Return the parts of a batch.
    """
    given = {"servers": server.url, "stream": stream, **options}
    reader = StreamBatchReader(
        read_settings(ConnectSettings, given), read_settings(ReadOptions, given), SCHEMA
    )
    found = [part.value for part in reader.partitions()]
    return [(part.stream, part.start, part.end) for ranges in found for part in ranges or ()]


class TestBatch:
    def test_both_streams(self, nats_server, two):
        """A batch reads each stream to its end, in the order of the names."""
        one, other = two
        names = f"{other.name}, {one.name}"
        assert batch(nats_server, names) == [(one.name, 1, 11), (other.name, 1, 21)]
        parts = batch(nats_server, names, minPartitions="3")
        assert parts == [(one.name, 1, 11), (other.name, 1, 11), (other.name, 11, 21)]

    def test_offsets_of_each(self, nats_server, two):
        """Starts and ends are given for each stream, or one for both."""
        one, other = two
        starts = {one.name: {"seq": 5}, other.name: "earliest"}
        ends = {one.name: "latest", other.name: {"seq": 9}}
        found = batch(
            nats_server,
            f"{one.name},{other.name}",
            startingOffsets=json.dumps(starts),
            endingOffsets=json.dumps(ends),
        )
        assert found == [(one.name, 5, 11), (other.name, 1, 9)]

    def test_an_asterisk_in_a_name_matches_any_characters(self, js, nats_server, unique, two):
        """An asterisk stands for any characters; a pattern without a stream is an error."""
        with family(js, unique, 3, 0, 5):
            found = batch(nats_server, f"{unique}_*,{two[0].name}")
            assert sorted(found) == sorted(
                [(two[0].name, 1, 11), (f"{unique}_0", 1, 4), (f"{unique}_2", 1, 6)]
            )
            with pytest.raises(OptionError, match=f"no stream matches {unique}-x"):
                batch(nats_server, f"{unique}-x*")
            starts = json.dumps({f"{unique}_0": {"seq": 2}})
            with pytest.raises(OptionError, match=f"no offset for stream {unique}_1, which the"):
                batch(nats_server, f"{unique}_*", startingOffsets=starts)

    def test_a_filter_has_to_match_one_of_the_streams(self, nats_server, two):
        """A filter has to match one of the streams."""
        one, other = two
        names = f"{one.name},{other.name}"
        assert len(batch(nats_server, names, subjectFilter=f"{one.name}.>")) == 2
        with pytest.raises(OptionError, match=r"matches no subject .*correct it: the stream has"):
            batch(nats_server, names, subjectFilter="neither.>")

    def test_a_missing_stream(self, nats_server, two):
        """Each stream of a list has to exist."""
        with pytest.raises(JetStreamSparkError, match="no_such"):
            batch(nats_server, f"{two[0].name},no_such")


class TestManyStreams:
    def test_a_batch_of_many_streams(self, js, nats_server, unique):
        """Small streams share tasks, which read each stream in its order."""
        with family(js, unique, *range(40)) as streams:
            source = {"servers": nats_server.url, "stream": f"{unique}_*"}
            reader = StreamBatchReader(
                read_settings(ConnectSettings, source), read_settings(ReadOptions, source), SCHEMA
            )
            parts = [each.value for each in reader.partitions()]
            assert [len(part) for part in parts] == [2] * 19 + [1]
            found = {stream.name: [] for stream in streams}
            for part in parts:
                taken = [
                    sequence
                    for rows in reader.read(InputPartition(part))
                    for sequence in rows.column("sequence").to_pylist()
                ]
                for each in part:
                    found[each.stream] += taken[: len(each)]
                    del taken[: len(each)]
                assert not taken
            assert found == {
                stream.name: [*range(1, number + 1)] for number, stream in enumerate(streams)
            }

    def test_what_a_task_asks(self, js, nats_server, unique):
        """For each stream, a task asks once for its state and once for its messages."""
        with (
            family(js, unique, *[3] * 40) as streams,
            jetsync.connect(nats_server.url) as client,
        ):
            query = Query(nats_server, f"{unique}_*", startingOffsets="earliest")
            assert query.plan()
            tasks = [part.value for part in query.parts()]
            assert len(tasks) <= 20
            query.read()
            reads = asked(client, query.read)
            for stream in streams:
                name = stream.name
                assert [each for each in reads if each.endswith(f".{name}")] == [
                    f"$JS.API.STREAM.INFO.{name}",
                    f"$JS.API.DIRECT.GET.{name}",
                ]

    def test_one_of_them_loses_messages(self, js, nats_server, unique):
        """A loss is found in each stream of a task, and the others are read."""
        with family(js, unique, *[3] * 40) as streams:
            query = Query(nats_server, f"{unique}_*", startingOffsets="earliest")
            lenient = Query(
                nats_server, f"{unique}_*", startingOffsets="earliest", failOnDataLoss="false"
            )
            assert query.plan()
            assert lenient.plan()
            lost = streams[21]
            lost.purge(sequence=3)
            with pytest.raises(JetStreamSparkError, match=f"sequences 1 to 2 .*{lost.name}"):
                query.read()
            found = lenient.read()
            assert len(found) == 40 * 3 - 2


class TestMicroBatches:
    def test_each_batch_reads_what_is_new_in_each_stream(self, js, two, pair):
        """Each batch reads what is new in each stream, also across restarts."""
        one, other = two
        query = pair()
        assert query.plan()
        assert query.ranges() == [(one.name, 1, 11), (other.name, 1, 21)]
        assert query.read() == [*range(1, 11), *range(1, 21)]
        extend(js, other, 5)
        assert query.plan()
        assert query.ranges() == [(other.name, 21, 26)]
        query.start()
        assert not query.plan()
        extend(js, one, 2)
        assert query.plan()
        assert query.ranges() == [(one.name, 11, 13)]
        latest = query.reader.reportLatestOffset()["streams"]
        assert [latest[each.name]["seq"] for each in two] == [13, 26]

    def test_the_first_batch_is_planned_again(self, js, two, pair):
        """Spark does not keep the first offset, so the end holds the start of each stream."""
        one, other = two
        query = pair(startingOffsets="latest")
        query.begin()
        extend(js, other, 5)
        assert query.plan()
        extend(js, one, 3)
        extend(js, other, 3)
        query.start()
        assert query.ranges() == [(other.name, 21, 26)]
        assert query.plan()
        assert query.ranges() == [(one.name, 11, 14), (other.name, 26, 29)]

    def test_a_limit_is_shared(self, js, two, pair):
        """The streams share a limit in proportion, and none of them stands still."""
        one, other = two
        query = pair()
        extend(js, other, 970)
        assert query.plan(Rows(100))
        assert query.ranges() == [(one.name, 1, 2), (other.name, 1, 100)]
        assert sum(map(len, query.all(Rows(100)))) == 9 + 990 - 99
        assert [place["seq"] for place in query.ends[-1]["streams"].values()] == [11, 991]

    def test_a_least_number_is_the_sum(self, js, two, pair):
        """A query waits until all streams together have enough messages."""
        one, other = two
        query = pair(minOffsetsPerTrigger="10")
        assert query.plan()
        extend(js, one, 5)
        extend(js, other, 4)
        assert not query.plan()
        extend(js, one, 1)
        assert query.plan()
        assert query.ranges() == [(one.name, 11, 17), (other.name, 21, 25)]

    def test_a_stream_without_a_matching_message_is_not_read(self, js, two, pair):
        """A stream without a matching message is not read."""
        one, other = two
        query = pair(subjectFilter=f"{other.name}.>")
        assert query.plan()
        assert query.ranges() == [(other.name, 1, 21)]
        extend(js, one, 5)
        assert not query.plan()
        extend(js, other, 5)
        assert query.plan()
        assert query.ranges() == [(other.name, 21, 26)]

    def test_available_now_reads_what_each_stream_had_at_its_start(self, js, two, pair):
        """A run to a fixed end reads what each stream had at its start."""
        one, other = two
        query = pair()
        query.reader.prepareForTriggerAvailableNow()
        extend(js, one, 50)
        found = []
        while query.plan(Rows(7)):
            found += query.ranges()
            extend(js, other, 50)
        assert sum(end - start for _, start, end in found) == 30

    def test_starts_of_each(self, js, two, pair):
        """A query may start at another offset in each stream."""
        one, other = two
        starts = json.dumps({one.name: "latest", other.name: {"seq": 15}})
        query = pair(startingOffsets=starts)
        assert query.plan()
        assert query.ranges() == [(other.name, 15, 21)]
        extend(js, one, 1)
        assert query.plan()
        assert query.ranges() == [(one.name, 11, 12)]

    def test_the_start_of_each_stream_is_known_after_the_first_end(
        self, js, nats_server, two, pair
    ):
        """PySpark 4.0 and 4.1 first ask for an end; from then on the start is known."""
        one, other = two
        reader = pair().reader

        def parts(reader, start, end):
            found = [part.value for part in reader.partitions(start, end)]
            return [(part.stream, part.start, part.end) for ranges in found for part in ranges]

        end = reader.latestOffset()
        first = [(one.name, 1, 11), (other.name, 1, 21)]
        assert parts(reader, reader.initialOffset(), end) == first
        assert reader.latestOffset() == end
        extend(js, other, 5)
        again = pair(startingOffsets="latest").reader
        assert parts(again, again.initialOffset(), end) == first
        # After a restart, and with one more stream.
        with numbered(js, 30) as third:
            third.purge(sequence=11)
            names = f"{one.name},{other.name},{third.name}"
            again = Query(nats_server, names).reader
            guess = again.latestOffset()
            assert sorted(parts(again, end, guess)) == sorted(
                [(other.name, 21, 26), (third.name, 11, 31)]
            )
            assert again.latestOffset() == guess


class TestChanges:
    def test_new_streams(self, js, nats_server, unique):
        """A stream that matches later is read from its first message, also after a restart."""
        pattern = f"{unique}_*"
        query = Query(nats_server, pattern, startingOffsets="earliest")
        assert not query.plan()
        with family(js, unique, 5) as (one,):
            assert query.plan()
            assert query.ranges() == [(one.name, 1, 6)]
            assert query.ends[-1]["v"] == 1
            name = f"{unique}_9"
            other = js.create_stream(name, subjects=[f"{name}.>"], storage="memory")
            try:
                assert not query.plan()
                extend(js, other, 4)
                query.options["startingOffsets"] = "latest"
                query.start()
                assert query.plan()
                assert query.ranges() == [(name, 1, 5)]
                assert not query.plan()
            finally:
                other.delete()

    def test_deleted_streams(self, js, two, pair):
        """A deleted stream is a data loss; if it is created again, it is read from its start."""
        one, other = two
        query, lenient = pair(), pair(failOnDataLoss="false")
        assert query.plan()
        assert lenient.plan()
        config = one.info().config
        one.delete()
        with pytest.raises(JetStreamSparkError, match=f"stream was deleted.*{one.name}"):
            query.plan()
        assert lenient.plan()
        assert lenient.ranges() == []
        assert not lenient.plan()
        extend(js, other, 1)
        assert lenient.plan()
        assert lenient.ranges() == [(other.name, 21, 22)]
        extend(js, js.create_stream(config), 3)
        assert lenient.plan()
        assert lenient.ranges() == [(one.name, 1, 4)]

    def test_a_stream_that_is_missing_for_a_moment(self, js, two, pair, monkeypatch):
        """A stream that a server does not find at first is not lost."""
        one, other = two
        query = pair(failOnDataLoss="false")
        assert query.plan()
        monkeypatch.setattr(planner, "CATCHING_UP", 60.0)
        with monkeypatch.context() as patch:
            real = jetsync.JetStream.stream

            def missing(js, name):
                if name == one.name:
                    raise jetsync.StreamNotFoundError(stream=name)
                return real(js, name)

            patch.setattr(jetsync.JetStream, "stream", missing)
            assert not query.plan()
            extend(js, other, 1)
            assert query.plan()
            assert query.ranges() == [(other.name, 21, 22)]
        extend(js, one, 1)
        assert query.plan()
        assert query.ranges() == [(one.name, 11, 12)]

    def test_made_again_and_purged(self, js, two, pair):
        """A loss of one stream does not change the position in the other one."""
        one, other = two
        query, lenient = pair(), pair(failOnDataLoss="false")
        for each in (query, lenient):
            assert each.plan(Rows(20))
        remake(js, one, 4)
        other.purge(sequence=18)
        with pytest.raises(JetStreamSparkError, match="was created again"):
            query.plan()
        assert lenient.plan()
        assert lenient.ranges() == [(one.name, 1, 5), (other.name, 18, 21)]
        lenient.start()
        assert lenient.ranges() == [(one.name, 1, 5), (other.name, 18, 21)]
        assert not lenient.plan()

    def test_another_list(self, js, two, pair):
        """A stream that leaves the list is a data loss, and one that joins is read completely."""
        one, other = two
        query = pair()
        assert query.plan()
        with numbered(js, 3) as third:
            query.options["stream"] = f"{other.name},{third.name}"
            query.options["startingOffsets"] = "latest"
            query.start()
            with pytest.raises(JetStreamSparkError, match=f"option stream does not .*{one.name}"):
                query.plan()
            query.options["failOnDataLoss"] = "false"
            query.start()
            assert query.plan()
            assert query.ranges() == [(third.name, 1, 4)]
            query.options["stream"] = one.name
            query.start()
            with pytest.raises(JetStreamSparkError, match=r"checkpoint belongs to stream .*own"):
                query.plan()

    def test_one_lags_behind(self, js, two, pair):
        """Batches with a limit end both streams, also if only one of them grows."""
        one, other = two
        query = pair()
        found = {one.name: [], other.name: []}
        chance = random.Random(7)
        for _ in range(20):
            extend(js, chance.choice([one, other, other]), chance.randrange(1, 40))
            if chance.random() < 0.3:
                query.start()
            if query.plan(Rows(25)):
                for stream, start, end in query.ranges():
                    found[stream] += range(start, end)
        while query.plan(Rows(25)):
            for stream, start, end in query.ranges():
                found[stream] += range(start, end)
        for stream in two:
            assert found[stream.name] == [*range(1, stream.info().state.last_seq + 1)]


def old(stream, sequence, begins=None):
    """
    Return an offset as jetsync-spark 0.1.0 wrote it.
    """
    created = stream.info().created.isoformat()
    place = {"v": 1, "stream": stream.name, "created": created, "seq": sequence}
    return {**place, **({"initial": True} if begins is None else {"from": begins})}


class TestOldCheckpoints:
    def test_a_batch_is_planned_again(self, js, nats_server):
        """A batch of an earlier version is cut as that version did, and the query continues."""
        with numbered(js, 10) as stream:
            js.publish_many((f"{stream.name}.0", b"") for _ in range(2 * SMALLEST))
            ends = [old(stream, 11, 1), old(stream, 2 * SMALLEST + 11, 11)]
            query = Query(nats_server, stream, ends, startingOffsets="latest")
            middle = SMALLEST + 11
            parts = [(stream.name, 11, middle), (stream.name, middle, 2 * SMALLEST + 11)]
            assert query.ranges() == parts
            assert not query.plan()
            # Text that differs would be a batch for Spark.
            assert query.reader.latestOffset(ends[-1], None) is ends[-1]
            extend(js, stream, 5)
            assert query.plan()
            assert query.ranges() == [(stream.name, 2 * SMALLEST + 11, 2 * SMALLEST + 16)]

    def test_the_start_is_kept(self, js, nats_server):
        """A first offset in a checkpoint is the start, wherever the latest message is now."""
        with numbered(js, 10) as stream:
            query = Query(nats_server, stream, [old(stream, 6)])
            assert query.plan()
            assert query.ranges() == [(stream.name, 6, 11)]

    def test_a_list_with_the_old_stream(self, js, nats_server, two):
        """The old stream continues at its offset, and the new one is read completely."""
        one, other = two
        names = f"{one.name},{other.name}"
        query = Query(nats_server, names, [old(one, 6, 1)])
        assert query.plan()
        assert query.ranges() == [(one.name, 6, 11), (other.name, 1, 21)]
        query.start()
        assert query.ranges() == [(one.name, 6, 11), (other.name, 1, 21)]


class TestParts:
    def test_they_are_recorded(self, js, nats_server, two, pair):
        """A batch that is planned again has the same parts, whatever the options are then."""
        query = pair(minPartitions="6")
        assert query.plan()
        parts = query.ranges()
        assert [part[0] for part in parts] == [two[0].name] * 2 + [two[1].name] * 4
        query.options["minPartitions"] = "1"
        query.options["maxRecordsPerPartition"] = "2"
        query.start()
        assert query.ranges() == parts

    @pytest.mark.parametrize(("parallelism", "parts"), [(None, 4), (1, 2), (2, 4), (100, 4)])
    def test_they_depend_on_the_cores(self, js, nats_server, parallelism, parts):
        """A batch has twice as many parts as tasks run at once, and is planned again like this."""
        with numbered(js, 1) as stream:
            js.publish_many((f"{stream.name}.0", b"") for _ in range(3 * SMALLEST))
            query = Query(nats_server, stream, startingOffsets="earliest")
            query.reader = StreamMicroBatchReader(
                query.reader._settings, query.reader._options, SCHEMA, parallelism
            )
            assert query.plan()
            first = query.ranges()
            assert len(first) == parts
            query.start()
            assert query.ranges() == first


class Session:
    """
    The settings of a session, with a context unless it is remote.
    """

    def __init__(self, remote=False, **settings):
        self.conf = {f"spark.{name.replace('__', '.')}": each for name, each in settings.items()}
        self._remote = remote

    @property
    def sparkContext(self):  # noqa: N802 - Spark's name.
        if self._remote:
            raise PySparkAttributeError("there is no context")
        return Context()


class Context:
    """
    A context whose executors have registered four cores.
    """

    defaultParallelism = 4  # noqa: N815 - Spark's name.


@pytest.mark.parametrize(
    ("session", "parallelism"),
    [
        (Session(), None),
        (Session(master="spark://host:7077"), None),
        (Session(master="local[*]"), 4),
        (Session(master="local[*]", remote=True), None),
        (Session(master="local[*]", default__parallelism="10", remote=True), 10),
        (Session(master="k8s://host", executor__cores="4", executor__instances="5"), 20),
        (Session(master="yarn", executor__cores="4"), None),
    ],
)
def test_how_many_tasks_run_at_once(session, parallelism):
    """Only settings count, because executors may still be starting."""
    assert registration._parallelism(session) == parallelism
