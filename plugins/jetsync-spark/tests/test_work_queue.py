"""
Reading through durable consumers as Spark does, without Spark.
"""

import itertools
import types

import pytest
from streams_to_read import extend, numbered, remake
from waiting import eventually

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.clients import client_for
from jetsync_spark.common.errors import JetStreamSparkError

pytest.importorskip("pyspark.sql.streaming.datasource", reason="consumers need PySpark 4.2")

from pyspark.sql.streaming.datasource import ReadMaxRows
from queries import EVERYTHING, SCHEMA, Rows
from queues_to_read import QueueQuery, batches, be_impatient, next_batch, queue, stored

from jetsync_spark.read import durable, work_queue
from jetsync_spark.read.work_queue import QueueReader
from jetsync_spark.source import JetStreamDataSource

pytestmark = pytest.mark.live


class TestBatches:
    def test_messages_are_acknowledged_after_the_commit(self, js, reads):
        """Messages stay in a work queue until Spark has committed their batch."""
        with queue(js, 30) as stream:
            query = reads(stream)
            assert query.plan()
            assert query.read() == query.read() == [*range(1, 31)]
            assert stored(stream) == 30
            assert not query.plan()
            assert stored(stream) == 0
            extend(js, stream, 5)
            assert next_batch(query) == [*range(31, 36)]
            assert stored(stream) == 5
            assert not query.plan()
            assert stored(stream) == 0

    @pytest.mark.parametrize("retention", ["workqueue", "interest", "limits"])
    def test_each_retention(self, js, reads, retention):
        """Streams of each retention can be read through a consumer."""
        with numbered(js, 0, retention=retention) as stream:
            query = reads(stream)
            query.begin()
            extend(js, stream, 25)
            assert query.all(Rows(10)) == [[*range(1, 11)], [*range(11, 21)], [*range(21, 26)]]
            assert stored(stream) == (25 if retention == "limits" else 0)
            assert stream.consumer("spark").cached_info.num_ack_pending == 0

    def test_a_limit(self, js, reads):
        """A batch has at most the given number of messages, and Spark is told this limit."""
        with queue(js, 25) as stream:
            query = reads(stream, maxOffsetsPerTrigger="10")
            assert query.reader.getDefaultReadLimit() == ReadMaxRows(10)
            # A trigger that asks for everything has a limit too, because the planner keeps the
            # sequences of a batch.
            assert [*map(len, query.all())] == [10, 10, 5]

    def test_a_slow_consumer(self, js, reads, monkeypatch):
        """A batch is planned before its messages are redelivered, even if more are available."""
        seconds = itertools.count(step=10.0)
        clock = types.SimpleNamespace(monotonic=lambda: next(seconds))
        monkeypatch.setattr(work_queue, "time", clock)
        monkeypatch.setattr(durable, "AT_ONCE", 5)
        with queue(js, 30) as stream:
            found = reads(stream).all()
            assert len(found) > 1
            assert [sequence for batch in found for sequence in batch] == [*range(1, 31)]

    def test_the_same_question(self, js, reads):
        """If Spark asks twice before it runs a batch, the answer is the same."""
        with queue(js, 5) as stream:
            query = reads(stream)
            begin = query.begin()
            end = query.reader.latestOffset(begin, EVERYTHING)
            extend(js, stream, 5)
            assert query.reader.latestOffset(begin, EVERYTHING) == end

    def test_an_empty_batch(self, js, reads):
        """A batch that only another source has messages for has no parts, also after a restart."""
        with queue(js, 5) as stream:
            query = reads(stream)
            begin = query.begin()
            assert query.reader.partitions(begin, begin) == []
            assert query.plan()
            query.start()
            assert query.reader.partitions(query.ends[-1], query.ends[-1]) == []
            assert not query.plan()
            assert stored(stream) == 0

    def test_parts(self, js, reads):
        """The parts of a batch have equal numbers of messages."""
        with queue(js, 100, subjects=2) as stream:
            query = reads(
                stream,
                subjectFilter=f"{stream.name}.1",
                minPartitions="2",
                maxRecordsPerPartition="20",
            )
            assert query.plan()
            assert [len(part.value.runs) for part in query.parts()] == [16, 17, 17]
            assert query.read() == [*range(1, 101, 2)]

    def test_an_offset_has_few_runs(self, js, reads):
        """Messages of other consumers and removed messages do not make an offset longer."""
        with queue(js, 999, subjects=3) as stream:
            other = stream.create_consumer("other", filter_subject=f"{stream.name}.1")
            for message in other.fetch(333, no_wait=True):
                message.ack_sync()
            stream.delete_message(3)
            query = reads(stream, subjectFilter=f"{stream.name}.0,{stream.name}.2")
            assert query.plan()
            assert query.ends[-1]["parts"] == [[[2, 999, 665]]]
            assert query.read() == [n for n in range(1, 1000) if n % 3 != 1 and n != 3]
            assert not query.plan()
            assert stored(stream) == 0

    def test_without_direct_gets(self, js, reads):
        """Tasks ask the leader for each message if the stream does not allow direct gets."""
        with queue(js, 20, subjects=4, allow_direct=False) as stream:
            query = reads(stream, subjectFilter=f"{stream.name}.1,{stream.name}.2")
            assert query.all() == [[n for n in range(1, 21) if n % 4 in {1, 2}]]

    def test_available_now(self, js, reads):
        """A run to a fixed end reads and acknowledges what is there, in any number of batches."""
        with queue(js, 25) as stream:
            query = reads(stream)
            query.reader.prepareForTriggerAvailableNow()
            found = []
            while query.plan(Rows(10)):
                found.append(query.read())
                extend(js, stream, 10)
            assert [*itertools.chain.from_iterable(found)] == [*range(1, 26)]
            assert stored(stream) == 30

    def test_the_data_source_chooses_the_reader(self, nats_server):
        """The option selects this reader."""
        source = JetStreamDataSource({"servers": nats_server.url, "stream": "S", "consumer": "c"})
        assert isinstance(source.streamReader(SCHEMA), QueueReader)


class TestRestarts:
    def test_before_the_checkpoint(self, js, reads):
        """Messages that were received and never planned are redelivered after the ack wait."""
        with queue(js, 10) as stream:
            query = reads(stream, ackWait="1s")
            query.reader.latestOffset(query.begin(), EVERYTHING)
            query.start()
            assert sorted(batches(query, 10)) == [*range(1, 11)]
            assert not query.plan()
            assert stored(stream) == 0

    @pytest.mark.parametrize("subjects", [1, 2])
    def test_before_the_commit(self, js, reads, subjects):
        """A batch that was planned and not committed is read again, and then acknowledged."""
        with queue(js, 10, subjects=subjects) as stream:
            query = reads(stream, subjectFilter=f"{stream.name}.0", minPartitions="2")
            assert query.plan()
            first, parts = query.read(), query.parts()
            query.start()
            extend(js, stream, 10, subjects=subjects)
            assert [part.value for part in query.parts()] == [part.value for part in parts]
            assert query.read() == first == [*range(subjects, 11, subjects)]
            assert query.plan()
            assert query.read() == [*range(10 + subjects, 21, subjects)]
            assert not query.plan()
            assert stored(stream) == 20 - 20 // subjects

    @pytest.mark.parametrize("acknowledged", [0, 4, 10])
    def test_after_the_commit(self, js, reads, acknowledged):
        """A batch that was committed is acknowledged by the next run, and not read again."""
        with queue(js, 20, subjects=2) as stream:
            query = reads(stream, subjectFilter=f"{stream.name}.0", ackWait="1s")
            assert query.plan()
            assert len(query.read()) == 10
            client = client_for(query.settings)
            for sequence in range(2, 2 * acknowledged + 1, 2):
                client.request(f"$JS.ACK.{stream.name}.spark.1.{sequence}.1.0.0", b"+ACK")
            query.start()
            assert not query.plan()
            assert stored(stream) == 10
            assert stream.consumer("spark").cached_info.num_ack_pending == 0
            assert not query.plan()

    def test_an_acknowledgement_that_is_repeated(self, js, reads):
        """A run that acknowledges a batch again changes nothing."""
        with queue(js, 10) as stream:
            query = reads(stream)
            assert query.plan()
            assert not query.plan()
            query.start()
            assert not query.plan()
            extend(js, stream, 5)
            assert next_batch(query) == [*range(11, 16)]

    def test_a_committed_batch_that_is_delivered_again(self, js, reads):
        """Messages of a committed batch that are redelivered are acknowledged and not read."""
        with queue(js, 10) as stream:
            query = reads(stream, ackWait="1s")
            assert query.plan()
            query.stop()
            consumer = stream.consumer("spark")
            eventually(lambda: [*consumer.fetch(10, no_wait=True)])
            assert not query.plan()
            assert stored(stream) == 0

    def test_another_checkpoint(self, js, reads):
        """A new checkpoint reads what is not acknowledged."""
        with queue(js, 10) as stream:
            old = reads(stream, ackWait="1s")
            assert old.plan(Rows(5))
            assert old.plan(Rows(3))
            old.stop()
            assert sorted(batches(reads(stream), 5)) == [6, 7, 8, 9, 10]

    def test_a_restarted_server(self, monkeypatch):
        """A query continues if the server restarts before the read or before the commit."""
        be_impatient(monkeypatch)
        with DevServer() as server, jetsync.connect(server.url) as client:
            js = client.jetstream()
            with queue(js, 10, storage="file") as stream:
                query = QueueQuery(server, stream, consumer="spark")
                assert query.plan(Rows(5))
                server.restart()
                assert query.read() == [1, 2, 3, 4, 5]
                assert query.plan(Rows(5))
                server.restart()
                assert query.read() == [6, 7, 8, 9, 10]
                assert not query.plan()
                assert stored(stream) == 0
                query.stop()


class TestSharedConsumers:
    def test_two_queries(self, js, reads):
        """Each of two queries on one consumer gets and acknowledges messages of its own."""
        with queue(js, 40) as stream:
            one, two = reads(stream), reads(stream)
            found = []
            for _ in range(2):
                for query in (one, two):
                    assert query.plan(Rows(10))
                    found += query.read()
            assert sorted(found) == [*range(1, 41)]
            assert not one.plan()
            assert stored(stream) == 10
            assert two.read() == [*range(31, 41)]
            assert not two.plan()
            assert stored(stream) == 0

    def test_alternating_messages(self, js, reads):
        """A batch without the messages of another client in between reads exactly its own."""
        with queue(js, 0) as stream:
            query = reads(stream)
            query.begin()
            other = stream.consumer("spark")
            extend(js, stream, 20)
            with other.fetch(1, no_wait=True) as mine:
                taken = [message.sequence for message in mine]
            batch = [message.sequence for message in other.fetch(1, no_wait=True)]
            assert query.plan(Rows(7))
            assert [message.sequence for message in other.fetch(3, no_wait=True)] == [10, 11, 12]
            assert (taken, batch) == ([1], [2])
            assert query.read() == [*range(3, 10)]
            assert query.plan()
            assert query.read() == [*range(13, 21)]

    def test_an_interest_stream(self, js, reads):
        """On an interest stream, a message stays until all its consumers have acknowledged it."""
        with numbered(js, 0, retention="interest") as stream:
            other = stream.create_consumer("other")
            query = reads(stream)
            query.begin()
            extend(js, stream, 10)
            assert query.plan()
            assert jetsync.ack_many(other.fetch(5)) == 5
            assert query.read() == [*range(1, 11)]
            assert not query.plan()
            assert stored(stream) == 5
            assert jetsync.ack_many(other.fetch(5)) == 5
            eventually(lambda: stored(stream) == 0)

    def test_a_long_batch(self, js, reads, nats_server):
        """While a batch runs, the planner restarts the server's wait for redelivery."""
        with queue(js, 3) as stream, jetsync.connect(nats_server.url) as client:
            query = reads(stream, ackWait="1s")
            with client.subscribe(f"$JS.ACK.{stream.name}.spark.*.*.*.*.*") as acks:
                client.flush()
                assert query.plan()
                seen = [acks.next(timeout=30) for _ in range(6)]
            assert {message.data for message in seen} == {b"+WPI"}
            assert [message.subject.split(".")[5] for message in seen] == ["1", "2", "3"] * 2


class TestLoss:
    def test_removed_messages(self, js, reads):
        """If messages of a batch are removed before they are read, the query fails."""
        with queue(js, 10) as stream:
            query = reads(stream)
            assert query.plan()
            stream.delete_message(4)
            with pytest.raises(JetStreamSparkError, match="1 messages between sequences 1 and 10"):
                query.read()
            stream.purge(sequence=7)
            with pytest.raises(JetStreamSparkError, match="sequences 1 to 6 are missing"):
                query.read()

    def test_removed_messages_that_do_not_matter(self, js, reads):
        """With failOnDataLoss=false, the query reads what is left."""
        with queue(js, 10) as stream:
            query = reads(stream, failOnDataLoss="false")
            assert query.plan()
            stream.delete_message(4)
            stream.purge(sequence=3)
            assert query.read() == [3, 5, 6, 7, 8, 9, 10]
            stream.purge()
            assert query.read() == []
            assert not query.plan()

    def test_messages_that_the_server_gave_up(self, js, reads):
        """Messages of a batch are read and removed, although the server delivers them no more."""
        with queue(js, 10) as stream:
            stream.create_consumer("spark", max_deliver=1, ack_wait=1, headers_only=True)
            query = reads(stream)
            assert query.plan()
            query.start()
            consumer = stream.consumer("spark")
            eventually(
                lambda: (
                    not [*consumer.fetch(1, no_wait=True)] and not consumer.info().num_ack_pending
                )
            )
            assert query.read() == [*range(1, 11)]
            assert not query.plan()
            assert stored(stream) == 0

    def test_a_work_queue_without_its_consumer(self, js, reads):
        """If the consumer of a work queue is deleted, the query creates it and loses nothing."""
        with queue(js, 10) as stream:
            query = reads(stream)
            assert query.plan(Rows(4))
            stream.consumer("spark").delete()
            assert query.read() == [1, 2, 3, 4]
            assert query.plan()
            assert query.read() == [5, 6, 7, 8, 9, 10]
            assert not query.plan()
            eventually(lambda: stored(stream) == 0)

    def test_an_interest_stream_without_its_consumer(self, js, reads):
        """If the consumer of an interest stream is deleted, the query fails."""
        with numbered(js, 0, retention="interest") as stream:
            stream.create_consumer("other")
            query = reads(stream)
            query.begin()
            extend(js, stream, 5)
            assert query.plan()
            stream.consumer("spark").delete()
            with pytest.raises(JetStreamSparkError, match="consumer spark was created again"):
                query.plan()
            query.options["failOnDataLoss"] = "false"
            query.start()
            assert not query.plan()
            extend(js, stream, 5)
            assert next_batch(query) == [*range(6, 11)]

    def test_another_stream_with_the_name(self, js, reads):
        """If the stream was created again, the query fails, or reads the new one."""
        with queue(js, 10) as stream:
            query = reads(stream)
            assert query.plan()
            remake(js, stream, 3)
            with pytest.raises(JetStreamSparkError, match="the stream was created again"):
                query.read()
            with pytest.raises(JetStreamSparkError, match="the stream was created again"):
                query.plan()
            query.options["failOnDataLoss"] = "false"
            query.start()
            assert query.read() == []
            assert next_batch(query) == [1, 2, 3]

    def test_another_stream_after_a_commit(self, js, reads):
        """Messages of a new stream are read, although a committed batch had their sequences."""
        with queue(js, 10) as stream:
            query = reads(stream, failOnDataLoss="false")
            assert query.plan()
            assert query.read() == [*range(1, 11)]
            assert not query.plan()
            remake(js, stream, 3)
            assert next_batch(query) == [1, 2, 3]

    def test_another_consumer_in_the_checkpoint(self, js, reads):
        """A checkpoint of another consumer is refused."""
        with queue(js, 1) as stream:
            query = reads(stream)
            assert query.plan()
            query.options["consumer"] = "other"
            query.start()
            with pytest.raises(JetStreamSparkError, match="belongs to consumer spark of stream"):
                query.plan()
