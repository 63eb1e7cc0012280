import itertools
import threading

import attrs
import pytest
from waiting import eventually
from writing import again, entries, payloads, plan_for, rows_of, run

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.clients import forget
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.task import Task
from jetsync_spark.write import plan as planning
from jetsync_spark.write.layout import record_partitions
from jetsync_spark.write.ledger import (
    LayoutError,
    LedgerRemovedError,
    OvertakenError,
)
from jetsync_spark.write.options import EXACTLY_ONCE


@pytest.fixture
def plan(nats_server, target):
    """
    The plan of a write that stores each row once.
    """
    return plan_for(nats_server, target.name, mode=EXACTLY_ONCE, chunk_size=11)


class FailedError(Exception):
    """
    The error that ends a task.
    """


def dies_after(rows, count):
    """
    Yield the first rows, then fail.
    """
    yield from itertools.islice(rows, count)
    raise FailedError


def subjects(stream, *filters):
    """
    Return the existing subjects of a stream.
    """
    return [
        subject
        for each in filters
        for subject in stream.info(subjects_filter=each).state.subjects or ()
    ]


class TestRows:
    def test_each_row_is_stored_in_order(self, plan, target):
        """
        Each chunk of ten rows is stored with an entry of the ledger, and the last one is marked.
        """
        rows = rows_of(target.name, 35)

        written = run(plan, rows)

        assert payloads(target) == [data for _, data in rows]
        assert (written.rows, written.stored, written.skipped) == (35, 35, 0)
        assert (written.first_sequence, written.last_sequence) == (1, 38)
        found = entries(target, f"ledger.{target.name}.q.0")
        assert [(entry.rows, entry.done) for entry in found] == [
            (10, False),
            (20, False),
            (30, False),
            (35, True),
        ]

    def test_one_ledger_message_remains(self, nats_server, plan, target):
        """
        On a stream that allows rollups, each entry of the ledger replaces the one before it.

        This includes entries that were written before the stream allowed them.
        """
        rows = rows_of(target.name, 45)
        with pytest.raises(FailedError):
            run(plan, dies_after(rows, 25))
        before = entries(target, f"ledger.{target.name}.q.0")
        target.update(allow_rollup_hdrs=True)
        # As another worker plans, or this one some time later.
        planning._configurations.clear()
        plan = plan_for(nats_server, target.name, mode=EXACTLY_ONCE, chunk_size=11)

        written = run(plan, rows)
        run(plan, rows, batch=1)

        assert [entry.rows for entry in before] == [10, 20]
        assert written.skipped == 20
        assert payloads(target) == [data for _, data in rows] * 2
        (entry,) = entries(target, f"ledger.{target.name}.q.0")
        assert (entry.batch, entry.rows, entry.done) == (1, 45, True)

    def test_a_whole_chunk_ends_a_partition(self, plan, target):
        """
        The last chunk is marked even if it is full.
        """
        run(plan, rows_of(target.name, 20))

        assert entries(target, "ledger.>")[-1].done

    def test_an_empty_partition_stores_nothing(self, plan, target):
        """
        An empty partition needs no entry in the ledger.
        """
        assert run(plan, []).rows == 0
        assert target.info().state.messages == 0

    @pytest.mark.parametrize("died_at", [0, 5, 10, 15, 34, 35])
    def test_a_retry_stores_what_is_missing(self, plan, target, died_at):
        """
        Wherever the first run failed, each row is stored once and in order.
        """
        rows = rows_of(target.name, 35)
        with pytest.raises(FailedError):
            run(plan, dies_after(rows, died_at))

        written = run(again(plan), rows, attempt=1)

        assert payloads(target) == [data for _, data in rows]
        assert written.skipped + written.stored == 35
        assert written.skipped == max(died_at - 1, 0) // 10 * 10

    def test_a_replay_of_a_whole_partition_stores_nothing(self, plan, target):
        """
        A driver may be killed before Spark's commit; the repeated rows may come in another order.
        """
        rows = rows_of(target.name, 35)
        run(plan, rows)
        before = target.info().state.last_seq

        written = run(again(plan), list(reversed(rows)))

        assert (written.skipped, written.stored) == (35, 0)
        assert target.info().state.last_seq == before

    def test_micro_batches_follow_each_other(self, plan, target):
        """
        Each micro-batch has its own rows, and the ledger has one subject per partition.
        """
        for batch in range(3):
            for partition in range(2):
                rows = rows_of(target.name, 12, first=100 * batch + 50 * partition)
                run(again(plan), rows, partition=partition, batch=batch)

        assert len(set(payloads(target))) == 72
        assert {entry.batch for entry in entries(target, f"ledger.{target.name}.q.1")} == {0, 1, 2}

    def test_queries_are_independent(self, plan, target):
        """
        Two queries may write equal rows to one stream.
        """
        rows = rows_of(target.name, 12)
        run(plan, rows, query="one")
        run(plan, rows, query="two")

        assert len(payloads(target)) == 24

    def test_rows_of_large_payloads_go_in_smaller_chunks(self, nats_server, target):
        """
        A chunk has at most some megabytes, because it is kept in memory.
        """
        plan = plan_for(nats_server, target.name, mode=EXACTLY_ONCE)
        rows = [(f"{target.name}.a", bytes([row]) * 500_000) for row in range(40)]

        run(plan, rows)

        assert len(payloads(target)) == 40
        assert len(entries(target, "ledger.>")) == 3


class TestFencing:
    def test_a_run_that_comes_late_is_refused(self, plan, target):
        """
        If two runs of a task overlap, the overtaken one stores nothing more.
        """
        rows = rows_of(target.name, 40)
        slow, fast = plan, again(plan)
        half, finished = threading.Event(), threading.Event()
        caught = []

        def hesitating():
            for number, row in enumerate(rows):
                if number == 15:
                    half.set()
                    assert finished.wait(30)
                yield row

        def zombie():
            try:
                run(slow, hesitating())
            except OvertakenError as error:
                caught.append(error)

        thread = threading.Thread(target=zombie)
        thread.start()
        try:
            assert half.wait(30)
            # The chunk before is in flight while rows are read.
            eventually(lambda: entries(target, "ledger.>"), 30)
            run(fast, rows, attempt=1)
        finally:
            finished.set()
            thread.join(30)

        assert payloads(target) == [data for _, data in rows]
        assert caught[0].err_code == 10071
        assert target.name in str(caught[0])

    def test_a_task_of_an_older_micro_batch_is_refused(self, plan, target):
        """
        The task resumes after its micro-batch and the next one were committed.
        """
        run(plan, rows_of(target.name, 12), batch=6)

        with pytest.raises(OvertakenError, match="micro-batch 5 of q, but the ledger is at 6"):
            run(again(plan), rows_of(target.name, 12), batch=5)

        assert len(payloads(target)) == 12

    def test_of_many_runs_at_once_each_row_is_stored_once(self, plan, target):
        """
        Four runs of the same task: those that lose stop, and the next one continues.
        """
        rows = rows_of(target.name, 95)
        outcomes = []

        def attempt(number):
            while True:
                try:
                    outcomes.append(run(again(plan), rows, attempt=number))
                    return
                except OvertakenError:
                    continue

        threads = [threading.Thread(target=attempt, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert len(outcomes) == 4
        assert payloads(target) == [data for _, data in rows]


class TestLayout:
    def test_other_rows_are_refused(self, plan, target):
        """
        The repeated partition begins with other rows than the stored ones.
        """
        rows = rows_of(target.name, 35)
        with pytest.raises(FailedError):
            run(plan, dies_after(rows, 25))

        with pytest.raises(LayoutError, match="begins with other rows than the 20") as caught:
            run(again(plan), rows[3:])

        assert "minPartitions" in str(caught.value)
        assert payloads(target) == [data for _, data in rows[:20]]

    @pytest.mark.parametrize(
        ("count", "said"),
        [(30, "has 30 rows, but the ledger counts 35"), (36, "has more than the 35 rows")],
    )
    def test_another_number_of_rows_is_refused(self, plan, target, count, said):
        """
        The partition was complete: neither fewer nor more rows are accepted.
        """
        run(plan, rows_of(target.name, 35))

        with pytest.raises(LayoutError, match=said):
            run(again(plan), rows_of(target.name, count))

        assert len(payloads(target)) == 35

    def test_a_replay_that_ends_too_early_is_refused(self, plan, target):
        """
        More rows were expected, so those that are missing would be lost.
        """
        with pytest.raises(FailedError):
            run(plan, dies_after(rows_of(target.name, 40), 35))

        with pytest.raises(
            LayoutError, match="ends after 30 rows, although the first run had more"
        ):
            run(again(plan), rows_of(target.name, 30))

        assert run(again(plan), rows_of(target.name, 40)).stored == 10

    def test_as_many_rows_but_others_are_refused(self, plan, target):
        """
        An equal number of rows does not make them equal.
        """
        run(plan, rows_of(target.name, 35))

        with pytest.raises(LayoutError, match="35 rows like the first run, but different ones"):
            run(again(plan), rows_of(target.name, 35, first=1))

    def test_a_partly_repeated_micro_batch_is_reported(self, plan, target):
        """
        Its repetition moved rows from other partitions, and those of this one are stored twice.
        """
        with pytest.raises(FailedError):
            run(plan, dies_after(rows_of(target.name, 35), 25), batch=1)

        with pytest.raises(LayoutError, match="micro-batch 1 of q was committed with 20 rows"):
            run(again(plan), rows_of(target.name, 5), batch=2)


class TestRemoved:
    def test_a_ledger_that_is_deleted_during_use(self, plan, target):
        """
        The error says that the next run stores the rows again, rather than that it is safe.
        """

        def purging():
            for number, row in enumerate(rows_of(target.name, 40)):
                if number == 25:
                    target.purge(subject=f"ledger.{target.name}.>")
                yield row

        with pytest.raises(
            LedgerRemovedError, match=r"next run .* stores its rows again"
        ) as caught:
            run(plan, purging())

        assert "nothing of it was stored twice" not in str(caught.value)
        assert target.name in str(caught.value)


class TestRequests:
    @pytest.mark.parametrize("mode", ["atleastonce", "atomic", EXACTLY_ONCE])
    def test_what_a_task_asks_the_leader(self, nats_server, target, mode):
        """
        The driver finds out about the stream. A task only reads its ledger, if it has one.

        The first task of a connection also looks up the stream.
        """
        plan = plan_for(nats_server, target.name, mode=mode)
        with jetsync.connect(nats_server.url) as client:
            seen = client.subscribe("$JS.API.>")
            client.flush()

            def asked(batch):
                run(plan, rows_of(target.name, 20), batch=batch)
                client.flush()
                return [seen.next().subject.split(".", 2)[2] for _ in range(seen.pending)]

            first, later = asked(0), asked(1) + asked(2)

        # Other tests may have used this worker's connection before.
        assert len(first) <= {"atleastonce": 0, "atomic": 2, EXACTLY_ONCE: 6}[mode]
        reads = [f"STREAM.MSG.GET.{target.name}"] if mode == EXACTLY_ONCE else []
        assert later == reads * 2


class TestStaging:
    def test_a_stream_that_sources_the_rows_has_no_ledger(self):
        """
        Rows and ledger are written to one stream. Another one gets only the rows, in their order
        and once, even if a task runs again and the server is killed.

        Rows that the other stream has may be purged from the first one, and the other one may have
        any limits.
        """
        rows = rows_of("flights", 300)
        with DevServer() as server, jetsync.connect(server.url) as client:
            js = client.jetstream()
            staging = js.create_stream(
                "STAGING",
                subjects=["flights.>", "ledger.flights.>"],
                allow_atomic=True,
                allow_rollup_hdrs=True,
            )
            flights = js.create_stream(
                "FLIGHTS",
                sources=[jetsync.StreamSource(name="STAGING", filter_subject="flights.>")],
                max_age=3600,
                allow_direct=True,
            )

            def has(count):
                eventually(lambda: flights.info(timeout=30).state.messages == count, 60)

            plan = plan_for(server, "STAGING", mode=EXACTLY_ONCE, chunk_size=11)
            try:
                for batch in range(3):
                    part = rows[100 * batch : 100 * batch + 100]
                    with pytest.raises(FailedError):
                        run(plan, dies_after(part, 45), batch=batch)
                    server.kill()
                    server.restart()
                    run(again(plan), part, batch=batch)
                    if batch == 1:
                        has(200)
                        staging.purge(subject="flights.>", timeout=30)
            finally:
                forget(plan.settings)
            has(300)
            found = [(message.subject, bytes(message.data)) for message in flights.scan()]
            left = staging.info(subjects_filter="ledger.>").state.subjects

        assert found == rows
        assert left == {"ledger.flights.q.0": 1}


class TestPlace:
    @pytest.fixture
    def growing(self, js, unique):
        """
        A stream without subjects for a ledger, and a function that adds some; removed afterwards.
        """
        name = f"{unique}-g"
        stream = js.create_stream(name, subjects=[f"{name}.>"], allow_atomic=True)

        def grow():
            config = stream.info().config
            js.update_stream(attrs.evolve(config, subjects=[f"{name}.>", f"ledger.{name}.>"]))
            # As another worker sees the stream, or this one some time later.
            planning._configurations.clear()

        yield stream, grow
        js.delete_stream(name)

    def test_the_place_of_a_ledger(self, nats_server, growing):
        """
        If the stream gets subjects for a ledger later, the existing ledger is still found.
        """
        stream, grow = growing
        rows = rows_of(stream.name, 35)
        options = {"mode": EXACTLY_ONCE, "chunk_size": 11}
        with pytest.raises(FailedError):
            run(plan_for(nats_server, stream.name, **options), dies_after(rows, 25))
        grow()

        written = run(plan_for(nats_server, stream.name, **options), rows, attempt=1)
        run(plan_for(nats_server, stream.name, **options), rows, query="new")

        assert (written.skipped, written.stored) == (20, 15)
        places = {subject.rsplit(".", 2)[0] for subject in subjects(stream, "*.*.q.>", "*.*.new.>")}
        assert places == {f"{stream.name}._ledger", f"ledger.{stream.name}"}

    def test_the_number_of_partitions_is_found(self, nats_server, growing):
        """
        The number of partitions that the driver agreed on is found in the ledger.
        """
        stream, grow = growing
        options = {"mode": EXACTLY_ONCE, "write_id": "load"}
        record_partitions(plan_for(nats_server, stream.name, **options), Task(), 4)
        grow()

        with pytest.raises(LayoutError, match="has 3 partitions, but its first run had 4"):
            record_partitions(plan_for(nats_server, stream.name, **options), Task(), 3)


class TestLostAnswers:
    @pytest.mark.parametrize("stored", [True, False])
    def test_the_ledger_decides_after_a_lost_answer(self, plan, target, monkeypatch, stored):
        """
        If the answer to a commit is lost, the chunk is sent again only if the ledger lacks it.
        """
        publish = jetsync.JetStream.publish_batch
        calls = itertools.count(1)

        def losing(js, messages, **settings):
            lost = next(calls) == 2
            ack = publish(js, messages, **settings) if stored or not lost else None
            if lost:
                raise jetsync.BatchOutcomeUnknownError("x", batch_id="b")
            return ack

        monkeypatch.setattr(jetsync.JetStream, "publish_batch", losing)
        rows = rows_of(target.name, 35)

        written = run(plan, rows)

        assert written.stored == 35
        assert payloads(target) == [data for _, data in rows]

    def test_a_late_attempt_is_noticed(self, plan, target, monkeypatch):
        """
        The attempt is stored after the ledger was read and before the chunk is sent again.
        """
        publish = jetsync.JetStream.publish_batch
        calls = itertools.count(1)
        late = []

        def losing(js, messages, **settings):
            number = next(calls)
            if number == 2:
                late.append(messages)
                raise jetsync.BatchOutcomeUnknownError("x", batch_id="b")
            if number == 3:
                publish(js, late.pop(), **settings)
            return publish(js, messages, **settings)

        monkeypatch.setattr(jetsync.JetStream, "publish_batch", losing)
        rows = rows_of(target.name, 35)

        assert run(plan, rows).stored == 35
        assert payloads(target) == [data for _, data in rows]

    def test_a_server_that_does_not_come_back_ends_it(self, nats_server, target, monkeypatch):
        """
        After the retry time the task fails, and the error says that the next run decides.
        """
        plan = plan_for(nats_server, target.name, mode=EXACTLY_ONCE, retry_timeout=0.2)

        def losing(*_, **__):
            raise jetsync.BatchOutcomeUnknownError("x", batch_id="b")

        monkeypatch.setattr(jetsync.JetStream, "publish_batch", losing)

        with pytest.raises(JetStreamSparkError, match="may be stored, which the next run finds"):
            run(plan, rows_of(target.name, 5))


class TestRefused:
    def test_the_expectation_of_a_row_is_not_another_run(self, plan, target):
        """
        If a row expects another sequence of its subject, the error says that.
        """
        row = jetsync.OutboundMessage(
            f"{target.name}.a", b"x", expect=jetsync.Expect(last_subject_sequence=77)
        )

        with pytest.raises(JetStreamSparkError, match="10071") as caught:
            run(plan, [row])

        assert not isinstance(caught.value, OvertakenError)
        assert "rows 0 to 0 of partition 0" in str(caught.value)
        assert target.info().state.messages == 0

    def test_a_write_outside_of_a_query_needs_a_name(self, plan, target):
        """
        Without a name, a second run could not be told from another write.
        """
        with pytest.raises(OptionError, match="set a writeId"):
            run(plan, rows_of(target.name, 5), query=None)

    def test_a_name_makes_a_batch_job_repeatable(self, nats_server, target):
        """
        A job that runs again stores nothing.
        """
        plan = plan_for(nats_server, target.name, mode=EXACTLY_ONCE, write_id="load-1")
        rows = rows_of(target.name, 5)

        assert run(plan, rows, query=None).stored == 5
        assert run(again(plan), rows, query=None).skipped == 5

    def test_a_foreign_ledger_is_left_alone(self, plan, target, js):
        """
        A message that is not an entry is not overwritten.
        """
        js.publish(f"ledger.{target.name}.q.0", b"mine")

        with pytest.raises(JetStreamSparkError, match="not written by jetsync-spark"):
            run(plan, rows_of(target.name, 5))


def test_the_key_has_the_name_of_the_write(nats_server, target):
    """
    A query that writes twice per micro-batch names its writes.
    """
    plan = plan_for(nats_server, target.name, mode=EXACTLY_ONCE, write_id="late")
    run(plan, rows_of(target.name, 3), query="q")

    assert [entry.key for entry in entries(target, "ledger.>")] == ["q-late"]
