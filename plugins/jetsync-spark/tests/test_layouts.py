"""
Writes that are repeated in other partitions, or as another job, without Spark.
"""

import pickle
from unittest import mock

import pyarrow as pa
import pytest
from writing import in_task, lost_and_twice, plan_for, rows_of, run

from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.task import Task
from jetsync_spark.write import layout
from jetsync_spark.write.ledger import LayoutError, OvertakenError
from jetsync_spark.write.options import EXACTLY_ONCE

pytest.importorskip("pyspark", minversion="4.1", reason="Arrow writers need PySpark 4.1")

from pyspark.sql.types import StringType, StructField, StructType

from jetsync_spark.write import writers

SCHEMA = StructType([StructField("subject", StringType()), StructField("data", StringType())])


class Job:
    """
    One run of a write by the data source, as Spark calls it on the driver and in tasks.
    """

    def __init__(self, server, stream, kind=writers.BatchWriter, **options):
        given = {"servers": server.url, "stream": stream.name, "mode": EXACTLY_ONCE, **options}
        self.stream = stream
        self.writer = kind(given, SCHEMA, overwrite=False)

    def task(self, partition, first, end, **fields):
        """Write some rows as a task; return its message."""
        subjects = [f"{self.stream.name}.a"] * (end - first)
        rows = {"subject": subjects, "data": [f"row-{row}" for row in range(first, end)]}
        # Tasks have a copy of the writer.
        copy = pickle.loads(pickle.dumps(self.writer))
        with (
            in_task(partition=partition, **fields) as task,
            mock.patch.object(writers, "this_task", return_value=task),
        ):
            return copy.write(iter([pa.RecordBatch.from_pydict(rows)]))


class TestBatchWrites:
    def test_one_in_foreach_batch_is_known_by_the_micro_batch(self, nats_server, target):
        """
        The driver died before Spark noted the micro-batch: the write is repeated as another job.
        """
        for _ in range(2):
            job = Job(nats_server, target)
            job.writer.commit(
                [job.task(part, part * 25, part * 25 + 25, query="q", batch=3) for part in range(2)]
            )

        assert lost_and_twice(target, 50) == (0, 0)

    def test_two_in_one_micro_batch_need_names(self, nats_server, target):
        """
        Without names, the second write counts as a repetition with other rows, and the error says
        so.
        """
        Job(nats_server, target).task(0, 0, 10, query="q", batch=3)
        with pytest.raises(LayoutError, match="need a writeId each"):
            Job(nats_server, target).task(0, 10, 20, query="q", batch=3)
        Job(nats_server, target, writeId="b").task(0, 10, 20, query="q", batch=3)

        assert lost_and_twice(target, 20) == (0, 0)

    def test_a_thread_of_foreach_batch_needs_a_name(self, nats_server, target):
        """
        A thread of foreachBatch also needs one, because it does not know the query. Otherwise its
        write would have another identity when the micro-batch is repeated.
        """
        with pytest.raises(
            OptionError, match=r"set a writeId .*batchId.*inheritable_thread_target"
        ):
            Job(nats_server, target).task(0, 0, 10)

        assert target.info().state.messages == 0

    def test_one_that_passes_the_micro_batch_is_known_by_it(self, nats_server, target):
        """
        Spark Connect tells tasks no query. Each micro-batch has a number, and is stored once.
        """
        for batch, first in [(0, 0), (1, 10), (1, 10), (2, 10)]:
            job = Job(nats_server, target, writeId="copy", batchId=str(batch))
            job.writer.commit([job.task(0, first, first + 10)])

        assert lost_and_twice(target, 20) == (0, 10)
        with pytest.raises(OvertakenError, match="the ledger is at 2"):
            Job(nats_server, target, writeId="copy", batchId="1").task(0, 10, 20)

    def test_another_number_than_sparks_is_rejected(self, nats_server, target):
        """
        A streaming query knows its micro-batch, and an option cannot replace it.
        """
        job = Job(nats_server, target, writers.StreamWriter, writeId="copy", batchId="3")
        with pytest.raises(OptionError, match="batchId is 3, but Spark writes micro-batch 4"):
            job.task(0, 0, 10, query="q", batch=4)

        assert target.info().state.messages == 0

    def test_a_named_one_in_fewer_partitions_fails(self, nats_server, target):
        """
        The rows of a partition that no longer exists are in another one: the job fails.
        """
        first = Job(nats_server, target, writeId="load")
        first.task(1, 50, 100)
        first.writer.abort([None, None])
        second = Job(nats_server, target, writeId="load")
        message = second.task(0, 0, 100)

        with pytest.raises(LayoutError, match=r"had stored 50 rows as partition 1.* twice"):
            second.writer.commit([message])

        assert lost_and_twice(target, 100) == (0, 50)


class TestMicroBatches:
    def test_other_partitions_are_loud(self, nats_server, target):
        """
        A write has two partitions of which one was stored, then three, then two again. As soon as
        rows may be missing or stored twice, a task or the commit fails. The error does not promise
        that the old number helps.
        """
        rows, errors = 60, []

        def attempt(parts, only=None):
            job = Job(nats_server, target, writers.StreamWriter)
            bounds = [rows * part // parts for part in range(parts + 1)]
            done = []
            for part in only or range(parts):
                try:
                    done.append(job.task(part, bounds[part], bounds[part + 1], query="q", batch=0))
                except LayoutError as error:
                    errors.append(error)
            if len(done) == parts:
                job.writer.commit(done, 0)

        attempt(2, only=[1])
        assert errors == []
        attempt(3)
        assert len(errors) == 1
        attempt(2)
        assert len(errors) == 2
        assert all("is refused as well if a run between" in str(error) for error in errors)
        lost, twice = lost_and_twice(target, rows)
        assert lost == 10
        assert twice == 20

    def test_fewer_partitions_fail_the_commit(self, nats_server, target):
        """
        By then all rows are stored, some of them twice, and the micro-batch is not committed.
        """
        Job(nats_server, target, writers.StreamWriter).task(1, 30, 60, query="q", batch=0)
        job = Job(nats_server, target, writers.StreamWriter)
        done = [job.task(0, 0, 60, query="q", batch=0)]

        with pytest.raises(LayoutError, match=r"had stored 30 rows as partition 1.*exactly_once"):
            job.writer.commit(done, 0)

        assert lost_and_twice(target, 60) == (0, 30)


class TestAgreement:
    @pytest.fixture
    def plan(self, nats_server, target):
        """
        The plan of a write whose driver knows the number of partitions.
        """
        return plan_for(nats_server, target.name, mode=EXACTLY_ONCE, chunk_size=11, write_id="load")

    def test_going_back_ends_with_each_row_once(self, plan, target):
        """
        Three partitions instead of two are refused before a row is stored, so that two work again.
        """
        rows = rows_of(target.name, 60)

        def attempt(parts, only=None):
            layout.record_partitions(plan, Task(query="q", batch=0), parts)
            for part in only or range(parts):
                run(plan, rows[60 * part // parts : 60 * (part + 1) // parts], partition=part)

        attempt(2, only=[1])
        with pytest.raises(LayoutError, match="has 3 partitions, but its first run had 2"):
            attempt(3)
        attempt(2)

        assert lost_and_twice(target, 60) == (0, 0)

    def test_a_named_write_has_a_number_of_partitions(self, plan):
        """
        A named write must be repeated with the same number of partitions, like a micro-batch.
        """
        for _ in range(2):
            layout.record_partitions(plan, Task(), 2)
        with pytest.raises(LayoutError, match="of load has 3 partitions"):
            layout.record_partitions(plan, Task(), 3)

    def test_the_first_message_of_a_stream_stays(self, nats_server, target):
        """
        A plan that replaces the one before it does not remove the first message of the stream,
        which readers would take for a lost one.
        """
        target.update(allow_rollup_hdrs=True)
        plan = plan_for(nats_server, target.name, mode=EXACTLY_ONCE)
        for batch in range(3):
            layout.record_partitions(plan, Task(query="q", batch=batch), 2)
            run(plan, rows_of(target.name, 10), batch=batch)

        state = target.info(subjects_filter="ledger.>").state
        assert state.first_seq == 1
        assert state.subjects[f"ledger.{target.name}.q.plan"] == 1

    @pytest.mark.parametrize(
        "data", [b"mine", b"{}", b'{"batch":"x","partitions":1}', b"[]", b"[" * 100_000]
    )
    def test_a_foreign_plan_is_left_alone(self, plan, target, js, data):
        """
        A message that is not a plan is an error with its subject.
        """
        subject = f"ledger.{target.name}.load.plan"
        js.publish(subject, data)

        with pytest.raises(JetStreamSparkError, match="not written by jetsync-spark") as caught:
            layout.record_partitions(plan, Task(), 2)

        assert subject in str(caught.value)
