"""
Planning micro-batches as Spark does, without Spark.
"""

import itertools
import pickle
import time

import attrs
import pytest
from streams_to_read import extend, numbered, remake
from waiting import eventually

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.options import ConnectSettings, read_settings
from jetsync_spark.read.options import ReadOptions

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

from queries import SCHEMA, Query, Rows

from jetsync_spark.read import matches, micro_batch, planner
from jetsync_spark.read.micro_batch import StreamMicroBatchReader

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("impatient")]


def news(reader, end):
    """
    Return the next end as PySpark 4.0 asks for it, or None if there is none after *end*.
    """
    found = reader.latestOffset()
    return None if found == end else found


def parts(reader, start, end):
    """
    Return the start and the end of each range of a batch.
    """
    found = reader.partitions(start, end)
    return [(part.start, part.end) for each in found for part in each.value]


class TestBatches:
    def test_batches_follow_each_other_across_restarts(self, js, earliest):
        """
        Batches follow each other, also across restarts; without new messages there is no batch.
        """
        with numbered(js, 30) as stream:
            query = earliest(stream)
            assert query.all() == [[*range(1, 31)]]
            extend(js, stream, 10)
            assert query.all() == [[*range(31, 41)]]
            query.start()
            assert query.all() == []
            extend(js, stream, 5)
            assert query.all() == [[*range(41, 46)]]
            assert query.ends[-1]["seq"] == 46
            assert query.ends[-1]["from"] == 41

    def test_a_least_number(self, js, earliest):
        """
        After the first batch, the query waits until there are enough messages.
        """
        with numbered(js, 5) as stream:
            query = earliest(stream, minOffsetsPerTrigger="10")
            assert query.all() == [[*range(1, 6)]]
            extend(js, stream, 9)
            assert query.all() == []
            extend(js, stream, 1)
            assert query.all() == [[*range(6, 16)]]

    def test_a_least_number_that_does_not_come(self, js, earliest):
        """
        After the delay, a smaller batch is read; a run to a fixed end does not wait at all.
        """
        with numbered(js, 5) as stream:
            patient = earliest(stream, minOffsetsPerTrigger="10")
            hasty = earliest(stream, minOffsetsPerTrigger="10", maxTriggerDelay="0ms")
            assert patient.all() == hasty.all() == [[*range(1, 6)]]
            extend(js, stream, 2)
            assert hasty.all() == [[6, 7]]
            assert patient.all() == []
            patient.reader.prepareForTriggerAvailableNow()
            assert patient.all() == [[6, 7]]

    def test_nothing_for_the_filter(self, js, earliest):
        """
        Messages that match no filter make no batch of their own, and none is lost.
        """
        with numbered(js, 0) as stream:
            query = earliest(stream, subjectFilter=f"{stream.name}.1,{stream.name}.2")
            extend(js, stream, 9, subjects=10)
            assert query.all() == [[1, 2]]
            js.publish(f"{stream.name}.3", b"10")
            query.start()
            assert query.all() == []
            js.publish(f"{stream.name}.2", b"11")
            js.publish(f"{stream.name}.3", b"12")
            assert query.all() == [[11]]
            assert query.all() == []

    def test_limits_remove_what_the_filter_leaves_out(self, js, earliest):
        """
        A stream's limits may remove messages that no filter matched, but none that one matches.
        """
        with numbered(js, 10, max_msgs=30) as stream:
            query = earliest(stream, subjectFilter=f"{stream.name}.0")
            assert query.all() == [[*range(1, 11)]]
            for _ in range(5):
                js.publish_many((f"{stream.name}.5", b"") for _ in range(20))
                if query.plan():
                    # Without rows, to move the offset.
                    assert query.read() == []
            js.publish(f"{stream.name}.0", b"111")
            assert query.plan()
            js.publish_many((f"{stream.name}.5", b"") for _ in range(20))
            assert query.read() == [111]
            assert not query.plan()
            js.publish_many((f"{stream.name}.0", b"") for _ in range(31))
            with pytest.raises(JetStreamSparkError, match=r"sequences 132 to 132 are missing"):
                query.plan()

    def test_an_offset_behind_what_the_filter_leaves_out(self, js, earliest, monkeypatch):
        """
        The offset does not stay in the older half of a stream, so that a restart finds no loss.
        """
        monkeypatch.setattr(matches, "SKIPPED", 20)
        with numbered(js, 10) as stream:
            query = earliest(stream, subjectFilter=f"{stream.name}.0")
            assert query.all() == [[*range(1, 11)]]
            js.publish_many((f"{stream.name}.5", b"") for _ in range(19))
            assert not query.plan()
            js.publish(f"{stream.name}.5", b"")
            assert query.plan()
            assert query.ranges() == []
            assert query.ends[-1]["seq"] == 31
            assert not query.plan()
            stream.purge(sequence=31)
            query.start()
            js.publish(f"{stream.name}.0", b"31")
            assert query.all() == [[31]]

    def test_a_filter_without_permission(self, js, earliest, monkeypatch):
        """
        A user who may not ask the leader for a message reads all that match.
        """

        def refused(*_, **__):
            raise jetsync.PermissionDeniedError("$JS.API.STREAM.MSG.GET", "publish")

        with numbered(js, 9, subjects=3) as stream:
            monkeypatch.setattr(jetsync.Stream, "get_next", refused)
            query = earliest(stream, subjectFilter=f"{stream.name}.1,{stream.name}.2")
            assert query.all() == [[1, 2, 4, 5, 7, 8]]
            js.publish(f"{stream.name}.0", b"10")
            assert query.all() == [[]]

    def test_a_limit_in_a_span_without_matches(self, js, earliest):
        """
        A limit counts from the first message that matches, so that the query does not stand still.
        """
        with numbered(js, 1) as stream:
            extend(js, stream, 20, subjects=2)
            query = earliest(stream, subjectFilter=f"{stream.name}.0")
            query.plan(Rows(1))
            js.publish_many((f"{stream.name}.5", b"") for _ in range(30))
            js.publish_many((f"{stream.name}.0", b"") for _ in range(3))
            found = itertools.chain.from_iterable(query.all(Rows(2)))
            assert [*found] == [*range(2, 21, 2), 52, 53, 54]

    def test_a_limit(self, js, earliest):
        """A batch has at most the given number of sequences, gaps included."""
        with numbered(js, 25) as stream:
            stream.delete_message(5)
            query = earliest(stream, maxOffsetsPerTrigger="10")
            batches = query.all(Rows(10))
            assert [*map(len, batches)] == [9, 10, 5]
            extend(js, stream, 20)
            # A trigger may still ask for everything.
            assert query.all() == [[*range(26, 46)]]

    def test_the_default_limit(self, js, earliest):
        """Spark gets the limit of an option, or one in bytes."""
        datasource = pytest.importorskip("pyspark.sql.streaming.datasource")
        with numbered(js, 0) as stream:
            limited = earliest(stream, maxOffsetsPerTrigger="10").reader
            assert limited.getDefaultReadLimit() == datasource.ReadMaxRows(10)
            small = earliest(stream, maxBytesPerTrigger="1m").reader
            assert small.getDefaultReadLimit() == datasource.ReadMaxBytes(1 << 20)
            both = earliest(stream, maxOffsetsPerTrigger="10", maxBytesPerTrigger="1m").reader
            assert both.getDefaultReadLimit() == datasource.ReadMaxRows(10)
            unlimited = earliest(stream).reader
            assert unlimited.getDefaultReadLimit() == datasource.ReadMaxBytes(256 << 20)

    def test_a_limit_in_bytes(self, js, earliest):
        """A batch has about as many bytes as the limit, by the sizes that the server reports."""
        datasource = pytest.importorskip("pyspark.sql.streaming.datasource")
        with numbered(js, 50, size=100_000) as stream:
            query = earliest(stream, maxBytesPerTrigger="1m", maxBytesPerPartition="256k")
            assert query.plan(query.reader.getDefaultReadLimit())
            assert 4 <= len(query.ranges()) <= 5
            assert query.read() == [*range(1, 11)]
            # Smaller messages arrive, and their size is known exactly.
            extend(js, stream, 1000, size=10)
            batches = query.all(query.reader.getDefaultReadLimit())
            assert [*map(len, batches[:3])] == [10] * 3
            assert sum(map(len, batches)) == 1040
            assert len(batches) <= 5
            extend(js, stream, 50, size=100_000)
            rows = earliest(stream, maxBytesPerTrigger="1m", maxOffsetsPerTrigger="5")
            assert rows.plan(datasource.ReadMaxRows(5))
            assert len(rows.read()) == 5

    def test_the_parts_depend_only_on_offsets_and_options(self, js, earliest):
        """The parts of a batch depend only on its offsets and the options."""
        with numbered(js, 100) as stream:
            query = earliest(stream, minPartitions="3", maxRecordsPerPartition="30")
            begin = query.begin()
            query.plan()
            first = query.reader.partitions(begin, query.ends[0])
            assert [len(part) for each in first for part in each.value] == [25] * 4
            query.start()
            again = query.reader.partitions(begin, query.ends[0])
            assert [part.value for part in again] == [part.value for part in first]

    def test_a_query_with_available_now_ends(self, js, earliest):
        """A query with availableNow ends, although messages are published all the time."""
        with numbered(js, 25) as stream:
            query = earliest(stream)
            query.reader.prepareForTriggerAvailableNow()
            found = []
            for _ in range(10):
                extend(js, stream, 20)
                if not query.plan(Rows(10)):
                    break
                found += query.read()
            assert found == [*range(1, 26)]
            # The next run takes the messages from before its start, and not later ones.
            query.start()
            last = stream.info().state.last_seq
            query.reader.prepareForTriggerAvailableNow()
            extend(js, stream, 20)
            assert query.all() == [[*range(26, last + 1)]]

    def test_the_latest_is_reported(self, js, earliest):
        """The progress shows the last sequence of the stream."""
        with numbered(js, 25) as stream:
            query = earliest(stream)
            assert query.reader.reportLatestOffset() is None
            query.plan(Rows(5))
            assert query.reader.reportLatestOffset()["seq"] == 26


class TestStart:
    def test_the_latest_at_first(self, js, nats_server):
        """A query that begins with the latest keeps that start, however often it is asked."""
        with numbered(js, 10) as stream:
            query = Query(nats_server, stream)
            begin = query.begin()
            extend(js, stream, 5)
            assert query.begin() == begin
            assert query.all() == [[*range(11, 16)]]

    def test_the_first_batch_fails(self, js, nats_server):
        """Spark does not keep the first offset: after a restart the first batch is the same."""
        with numbered(js, 10) as stream:
            query = Query(nats_server, stream)
            query.begin()
            extend(js, stream, 5)
            assert query.plan()
            extend(js, stream, 7)
            query.start()
            assert query.read() == [*range(11, 16)]
            assert query.all() == [[*range(16, 23)]]

    def test_the_start_of_a_stream_is_known_after_the_first_end(self, js, earliest):
        """PySpark 4.0 and 4.1 first ask for an end; from then on the start is known."""
        with numbered(js, 10) as stream:
            options = {"maxOffsetsPerTrigger": "4"}
            reader = earliest(stream, **options).reader

            end = reader.latestOffset()
            start = reader.initialOffset()
            assert parts(reader, start, end) == [(1, 11)]
            assert reader.latestOffset() == end
            extend(js, stream, 10)
            # The first batch is repeated after a restart, when the latest is another sequence.
            again = earliest(stream, startingOffsets="latest", **options).reader
            assert parts(again, again.initialOffset(), end) == [(1, 11)]
            found = []
            for _ in range(3):
                start, end = end, reader.latestOffset()
                found += parts(reader, start, end)
            assert found == [(11, 15), (15, 19), (19, 21)]
            assert reader.latestOffset() == end
            extend(js, stream, 6)
            for places in ("earliest", "latest", '{"seq": 5}', '{"seq": 90}'):
                again = earliest(stream, startingOffsets=places, **options).reader
                assert parts(again, end, again.latestOffset()) == [(21, 27)]

    def test_an_end_that_is_kept_while_a_batch_is_repeated(self, js, earliest):
        """
        PySpark 4.0 and 4.1 can ask for the end of a run before a batch that failed is repeated.
        """
        with numbered(js, 10) as stream:
            end = earliest(stream).reader.latestOffset()
            extend(js, stream, 5)
            again = earliest(stream).reader
            last = again.latestOffset()
            extend(js, stream, 3)
            assert parts(again, again.initialOffset(), end) == [(1, 11)]
            assert parts(again, end, last) == [(11, 16)]
            assert parts(again, last, again.latestOffset()) == [(16, 19)]

    def test_a_start_that_is_not_known_at_first(self, js, earliest):
        """
        With PySpark 4.0 and 4.1, a query whose start was not known in time fails.

        Its first end does not contain the start, so the batch would begin at the first message.
        """
        with numbered(js, 10) as stream:
            reader = earliest(stream, startingOffsets='{"seq": 12}').reader
            reader.latestOffset()
            extend(js, stream, 5)
            with pytest.raises(JetStreamSparkError, match="before startingOffsets 12"):
                reader.initialOffset()
            pickle.loads(pickle.dumps(reader))
            reader.latestOffset()
            assert reader.initialOffset()["seq"] == 12

    def test_a_restart_without_news_where_spark_does_not_say(self, js, earliest):
        """
        With PySpark 4.0 and 4.1, a query that restarts after its first batch reads no row twice.
        """
        with numbered(js, 10) as stream:
            options = {"maxOffsetsPerTrigger": "4"}
            end = earliest(stream, **options).reader.latestOffset()
            reader = earliest(stream, **options).reader
            for _ in range(3):
                assert reader.latestOffset() == end
            extend(js, stream, 2)

            (task,) = reader.partitions(end, eventually(lambda: news(reader, end), 10))
            assert [(part.start, part.end) for part in task.value] == [(11, 13)]

    def test_a_least_number_where_spark_does_not_say(self, js, earliest):
        """
        With PySpark 4.0 and 4.1, only the first batch of a run may be smaller than asked for.
        """
        with numbered(js, 5) as stream:
            reader = earliest(stream, minOffsetsPerTrigger="10").reader
            end = reader.latestOffset()
            reader.partitions(reader.initialOffset(), end)
            extend(js, stream, 9)
            assert news(reader, end) is None
            extend(js, stream, 1)

            assert eventually(lambda: news(reader, end), 10)["seq"] == 16

    def test_made_again_where_spark_does_not_say(self, js, earliest):
        """PySpark 4.0 and 4.1 notice another stream when its first batch is planned."""
        with numbered(js, 10) as stream:
            reader = earliest(stream).reader
            end = reader.latestOffset()
            remake(js, stream, 20)
            again = earliest(stream).reader
            with pytest.raises(JetStreamSparkError, match="was created again"):
                again.partitions(end, again.latestOffset())
            lenient = earliest(stream, failOnDataLoss="false").reader
            (task,) = lenient.partitions(end, lenient.latestOffset())
            assert [(part.start, part.end) for part in task.value] == [(1, 21)]

    def test_purged_before_it_begins(self, js, earliest):
        """A first offset that was purged is a loss, too."""
        with numbered(js, 30) as stream:
            stream.purge(sequence=11)
            with pytest.raises(JetStreamSparkError, match="sequences 5 to 10 are missing"):
                earliest(stream, startingOffsets='{"seq": 5}').begin()
            query = earliest(stream, startingOffsets='{"seq": 5}', failOnDataLoss="false")
            assert query.all() == [[*range(11, 31)]]

    def test_options_of_batches(self, js, earliest):
        """Invalid options are refused when the query is created."""
        with numbered(js, 0) as stream, pytest.raises(OptionError, match="endingOffsets does not"):
            earliest(stream, endingOffsets="latest")

    def test_a_query_of_a_missing_stream_ends_with_advice(self, nats_server):
        """The query ends with the reason and the advice."""
        options = {"servers": nats_server.url, "stream": "no_such"}
        reader = StreamMicroBatchReader(
            read_settings(ConnectSettings, options), read_settings(ReadOptions, options), SCHEMA
        )
        with pytest.raises(JetStreamSparkError, match=r"'no_such'.*10059.*create the stream"):
            reader.initialOffset()


class TestLoss:
    def test_messages_purged_unread_end_the_query_or_are_skipped(self, js, earliest):
        """Messages that were purged unread end the query with both numbers, or are skipped."""
        with numbered(js, 30) as stream:
            query = earliest(stream)
            lenient = earliest(stream, failOnDataLoss="false")
            for each in (query, lenient):
                assert each.plan(Rows(10))
            stream.purge(sequence=21)
            with pytest.raises(
                JetStreamSparkError, match=r"sequences 11 to 20 are missing, and .* begins at 21"
            ):
                query.plan()
            assert lenient.all(Rows(6)) == [[*range(21, 27)], [*range(27, 31)]]
            assert lenient.ends[1]["from"] == 21
            # The batch that had been planned was purged with it.
            with pytest.raises(JetStreamSparkError, match="sequences 1 to 10 are missing"):
                query.read(0)
            assert lenient.read(0) == []

    def test_everything_is_purged(self, js, earliest):
        """Only the loss has to be skipped, once."""
        with numbered(js, 30) as stream:
            query = earliest(stream, failOnDataLoss="false")
            assert query.plan(Rows(10))
            stream.purge()
            assert query.all() == [[]]
            extend(js, stream, 5)
            assert query.all() == [[*range(31, 36)]]

    def test_a_recreated_stream_ends_the_query_or_is_read_again(self, js, earliest):
        """A recreated stream has other sequences; the query ends, or reads it from its start."""
        with numbered(js, 30) as stream:
            query = earliest(stream)
            lenient = earliest(stream, failOnDataLoss="false")
            for each in (query, lenient):
                assert each.all()
            remake(js, stream, 50)
            with pytest.raises(JetStreamSparkError, match="was created again"):
                query.plan()
            assert lenient.all() == [[*range(1, 51)]]
            lenient.start()
            assert lenient.read() == [*range(1, 51)]
            assert lenient.all() == []

    def test_back_in_time(self, js, earliest, monkeypatch):
        """A stream that ends before the query's position is a loss after a wait."""
        with numbered(js, 30) as stream:
            query = earliest(stream)
            lenient = earliest(stream, failOnDataLoss="false")
            for each in (query, lenient):
                assert each.all()
            real = micro_batch.readable_origin_of

            def behind(*given):
                return attrs.evolve(real(*given), next=21)

            with monkeypatch.context() as patch:
                patch.setattr(micro_batch, "readable_origin_of", behind)
                assert not query.plan()
                assert not lenient.plan()
                time.sleep(0.25)
                with pytest.raises(
                    JetStreamSparkError, match=r"has read up to sequence 30, and .* ends at 20"
                ):
                    query.plan()
                assert lenient.all() == [[]]
            # Messages from there on are new.
            assert lenient.plan()
            assert lenient.read() == [*range(21, 31)]

    def test_back_in_time_with_a_filter(self, js, earliest, monkeypatch):
        """Sequences that matched no filter before the loss are searched again."""
        with numbered(js, 30) as stream:
            query = earliest(stream, subjectFilter=f"{stream.name}.0", failOnDataLoss="false")
            assert query.all()
            js.publish_many((f"{stream.name}.5", b"") for _ in range(10))
            assert not query.plan()
            real = micro_batch.readable_origin_of

            def behind(*given):
                return attrs.evolve(real(*given), next=21)

            with monkeypatch.context() as patch:
                patch.setattr(planner, "CATCHING_UP", 0.0)
                patch.setattr(micro_batch, "readable_origin_of", behind)
                assert query.all() == [[]]
            assert query.all() == [[*range(21, 31)]]

    def test_back_in_time_where_the_end_is_fixed(self, js, earliest, monkeypatch):
        """Spark asks for the end once, so the wait for a lagging stream happens there."""
        with numbered(js, 30) as stream:
            query = earliest(stream)
            lenient = earliest(stream, failOnDataLoss="false")
            for each in (query, lenient):
                assert each.all()
                each.start()
            real = micro_batch.readable_origin_of
            late = []

            def behind(*given):
                late.append(1)
                return attrs.evolve(real(*given), next=21 if len(late) < 4 else 31)

            with monkeypatch.context() as patch:
                patch.setattr(planner, "CATCHING_UP", 60.0)
                patch.setattr(micro_batch, "CATCH_UP_PAUSE", 0.0)
                patch.setattr(micro_batch, "readable_origin_of", behind)
                query.reader.prepareForTriggerAvailableNow()
                assert not query.plan()
                assert len(late) >= 4
            with monkeypatch.context() as patch:
                patch.setattr(
                    micro_batch,
                    "readable_origin_of",
                    lambda *given: attrs.evolve(real(*given), next=21),
                )
                for each in (query, lenient):
                    each.start()
                    each.reader.prepareForTriggerAvailableNow()
                with pytest.raises(
                    JetStreamSparkError, match=r"has read up to sequence 30, and .* ends at 20"
                ):
                    query.plan()
                assert lenient.all() == [[]]

    def test_a_query_continues_if_new_messages_replace_old_ones(self, js, earliest):
        """If new messages replace old ones, the query continues, unless configured otherwise."""
        with numbered(js, 30, subjects=10, max_msgs_per_subject=1) as stream:
            query = earliest(stream, startingOffsets='{"seq": 1}')
            strict = {"startingOffsets": '{"seq": 1}', "failOnDataLoss": "true"}
            with pytest.raises(JetStreamSparkError, match="begins at 21"):
                earliest(stream, **strict).begin()
            assert query.all() == [[*range(21, 31)]]


def test_a_planner_waits_a_bounded_time_for_servers(earliest):
    """A planner waits a bounded time for servers that are down."""
    with DevServer() as server, jetsync.connect(server.url, reconnect_wait=0.05) as client:
        js = client.jetstream()
        with numbered(js, 10, storage="file") as stream:
            query = Query(server, stream, startingOffsets="earliest", requestTimeoutMs="300")
            assert query.all() == [[*range(1, 11)]]
            server.restart()
            eventually(lambda: client.is_connected, 30)
            extend(js, stream, 5)
            found = list(itertools.chain(*query.all()))
            assert found == [*range(11, 16)]
            query.options["retryTimeoutMs"] = "300"
            query.start()
            server.kill()
            with pytest.raises(
                JetStreamSparkError, match=r"connecting to .* failed on .*: check that"
            ):
                query.plan()
            server.restart()
