import itertools

import attrs
import pyarrow as pa
import pytest
from writing import in_task, payloads, plan_for, restarting, rows_of, run

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.errors import JetStreamSparkError, OptionError, RowError
from jetsync_spark.write import chunks as chunking
from jetsync_spark.write import partition as writing
from jetsync_spark.write.chunks import Chunks
from jetsync_spark.write.options import WriteOptions
from jetsync_spark.write.plan import columns_of

ALL = pytest.mark.parametrize(
    "options",
    [
        {"mode": "atleastonce"},
        {"mode": "atleastonce", "fast_ingest": True},
        {"mode": "atomic", "chunk_size": 50},
        {"mode": "exactlyonce", "chunk_size": 50},
    ],
    ids=["atleastonce", "fast", "atomic", "exactlyonce"],
)


@ALL
class TestModes:
    def test_all_is_stored_when_a_task_ends(self, nats_server, target, options):
        """
        All rows are stored in order, and counted.
        """
        rows = rows_of(target.name, 320)

        written = run(plan_for(nats_server, target.name, **options), rows)

        assert payloads(target) == [data for _, data in rows]
        assert (written.rows, written.stored, written.duplicates) == (320, 320, 0)
        assert written.last_sequence is not None

    def test_no_rows_are_no_messages(self, nats_server, target, options):
        """
        Spark also runs empty partitions.
        """
        written = run(plan_for(nats_server, target.name, **options), [])

        assert (written.rows, written.stored, written.last_sequence) == (0, 0, None)

    def test_an_error_of_the_rows_ends_the_task(self, nats_server, target, options):
        """
        The error is raised unchanged, after the earlier rows are acknowledged.
        """

        def broken():
            yield from rows_of(target.name, 120)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run(plan_for(nats_server, target.name, **options), broken())


@pytest.mark.parametrize("mode", ["atleastonce", "atomic", "exactlyonce"])
def test_a_server_that_restarts_loses_nothing(mode):
    """
    The task continues after the restart, and the modes that promise it store no row twice.
    """
    with DevServer() as server, jetsync.connect(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream(
            "S", subjects=["S.>", "ledger.S.>"], allow_atomic=True, allow_direct=True
        )
        rows = rows_of("S", 400)
        plan = plan_for(server, "S", mode=mode, chunk_size=50)
        with restarting(server, plan) as restart:

            def interrupted():
                for number, row in enumerate(rows):
                    if number == 200:
                        restart()
                    yield row

            run(plan, interrupted())
        client.flush(timeout=30)
        found = payloads(stream)

    assert set(found) == {data for _, data in rows}
    if mode == "exactlyonce":
        assert len(found) == 400


class TestMoved:
    @pytest.fixture
    def moved(self, js, unique):
        """
        Two streams, and a function that moves all subjects of the first one to the second one.
        """
        flags = {"allow_atomic": True, "allow_batched": True}
        mine = js.create_stream(unique, subjects=[f"{unique}.>"], **flags)
        other = f"{unique}-other"

        def move():
            js.update_stream(attrs.evolve(mine.info().config, subjects=["moved"]))
            js.create_stream(other, subjects=[f"{unique}.>"], **flags)

        yield mine, move
        js.delete_stream(unique)
        js.delete_stream(other)

    @ALL
    def test_rows_that_another_stream_has_stored_fail_the_task(self, nats_server, moved, options):
        """
        The subjects were moved after planning. The error says so, and the next plan sees it.
        """
        mine, move = moved
        plan = plan_for(nats_server, mine.name, **options)
        move()

        said = f"stream {mine.name}-other has stored rows for stream {mine.name}"
        with pytest.raises(JetStreamSparkError, match=said):
            run(plan, rows_of(mine.name, 30))

        with pytest.raises(JetStreamSparkError, match="does not capture this subject"):
            plan_for(nats_server, mine.name, columns=columns_of(f"{mine.name}.a", constant=True))


def test_atomic_chunks_have_no_ids(nats_server, target):
    """
    The task could not be repeated. The chunks before the row are stored, as with any invalid row.
    """
    rows = rows_of(target.name, 70)
    rows[66] = jetsync.OutboundMessage(f"{target.name}.x", b"", msg_id="m")

    with pytest.raises(RowError, match=r"row 66 of partition 0: it has a msg_id.* atleastonce"):
        run(plan_for(nats_server, target.name, mode="atomic", chunk_size=50), rows)

    assert len(payloads(target)) == 50


class TestAtLeastOnce:
    def test_ids_that_the_stream_knows_are_counted(self, nats_server, target):
        """
        Rows with ids are stored once within the duplicate window.
        """
        rows = [
            jetsync.OutboundMessage(f"{target.name}.a", b"%d" % row, msg_id=f"id-{row}")
            for row in range(50)
        ]
        plan = plan_for(nats_server, target.name)

        run(plan, rows)
        written = run(plan, rows)

        assert (written.stored, written.duplicates) == (0, 50)
        assert len(payloads(target)) == 50

    def test_rows_that_may_be_lost_are_sent_again(self, nats_server, target, monkeypatch):
        """
        They are sent before the remaining rows, and acknowledged rows are not sent again.
        """
        publish = jetsync.JetStream.publish_many
        calls = []

        def losing(js, messages, **settings):
            report = publish(js, messages if calls else list(messages)[:-2], **settings)
            calls.append(report.count)
            if len(calls) == 1:
                failed = tuple(
                    jetsync.PublishFailure(
                        100 + n,
                        jetsync.OutboundMessage(f"{target.name}.x", b"late-%d" % n),
                        jetsync.PublishOutcomeUnknownError("x"),
                    )
                    for n in range(2)
                )
                raise jetsync.PublishManyError(
                    jetsync.PublishReport(report.count, 0, 1, report.count, failed)
                )
            return report

        monkeypatch.setattr(jetsync.JetStream, "publish_many", losing)
        written = run(plan_for(nats_server, target.name), rows_of(target.name, 102))

        assert calls == [100, 2]
        assert written.stored == 102
        assert payloads(target)[-2:] == [b"late-0", b"late-1"]

    def test_no_row_is_left_out_if_sending_again_fails(self, nats_server, target, monkeypatch):
        """
        ``publish_many`` stops after many failures, also among the rows that it gets again.
        """
        publish = jetsync.JetStream.publish_many
        most = iter([70, 30])

        def failing(js, messages, **settings):
            read = [*itertools.islice(messages, next(most, None))]
            if len(read) not in {70, 30}:
                return publish(js, read, **settings)
            failures = tuple(
                jetsync.PublishFailure(
                    number, jetsync.OutboundMessage(*row), jetsync.RequestTimeoutError("x", 1.0)
                )
                if type(row) is tuple
                else jetsync.PublishFailure(number, row, jetsync.RequestTimeoutError("x", 1.0))
                for number, row in enumerate(read)
            )
            raise jetsync.PublishManyError(
                jetsync.PublishReport(0, 0, None, None, failures, exhausted=False)
            )

        monkeypatch.setattr(jetsync.JetStream, "publish_many", failing)
        written = run(plan_for(nats_server, target.name), rows_of(target.name, 102))

        assert written.stored == 102
        assert sorted(payloads(target)) == sorted(data for _, data in rows_of(target.name, 102))

    def test_a_row_that_the_server_refuses_is_named(self, nats_server, target):
        """
        The error has the server's code and the subject.
        """
        rows = rows_of(target.name, 70)
        rows[66] = jetsync.OutboundMessage(
            f"{target.name}.x", b"", expect=jetsync.Expect(last_subject_sequence=9)
        )

        with pytest.raises(JetStreamSparkError, match="row 66 of partition 0") as caught:
            run(plan_for(nats_server, target.name), rows)

        assert "10071" in str(caught.value)
        assert caught.value.subject == f"{target.name}.x"
        assert caught.value.stream == target.name


class TestSeveralStreams:
    @pytest.fixture
    def names(self, js, unique):
        """
        Two streams, of which the first one accepts only small messages.
        """
        js.create_stream(f"{unique}a", subjects=[f"{unique}.a.>"], max_msg_size=500)
        js.create_stream(f"{unique}b", subjects=[f"{unique}.b.>"])
        yield f"{unique}a", f"{unique}b"
        js.delete_stream(f"{unique}a")
        js.delete_stream(f"{unique}b")

    def write(self, server, names, values, **options):
        """
        Write rows with the columns stream, subject and data.
        """
        plan = plan_for(server, ", ".join(names), **options)
        rows = [dict(zip(("stream", "subject", "data"), each, strict=True)) for each in values]
        with in_task():
            return writing.write_batches(plan, [pa.RecordBatch.from_pylist(rows)])

    def test_the_subject_says_where_a_row_goes(self, js, nats_server, names, unique):
        """Each stream stores the rows whose subjects it captures."""
        rows = [(f"{unique}.{'ab'[n % 2]}.x", b"%d" % n) for n in range(20)]

        written = run(plan_for(nats_server, ",".join(names)), rows)

        assert written.stored == 20
        assert [js.stream(name).info().state.messages for name in names] == [10, 10]

    def test_a_column_names_the_stream(self, js, nats_server, names, unique):
        """A row whose stream does not capture its subject, or is not known, is invalid."""
        a, b = names
        values = [
            (a, f"{unique}.a.x", b"1"),
            (b, f"{unique}.b.x", b"2"),
            (b, f"{unique}.a.x", b"3"),
            ("other", f"{unique}.a.x", b"4"),
            (None, f"{unique}.a.x", b"5"),
        ]

        for place, said in (
            (2, f"stream {b} does not capture"),
            (3, "no stream other"),
            (4, "null"),
        ):
            with pytest.raises(RowError, match=f"row 2 .*{said}"):
                self.write(nats_server, names, [*values[:2], values[place]])
        written = self.write(nats_server, names, values, on_invalid_row="skip")

        assert (written.stored, written.invalid) == (2, 3)

    @pytest.mark.parametrize("limit", [None, 2000])
    def test_a_row_that_is_too_large_for_its_stream(self, js, nats_server, names, unique, limit):
        """Each stream has its own limit, which the server checks."""
        js.stream(names[1]).update(max_msg_size=limit)
        values = [(name, f"{unique}.{name[-1]}.x", b"1" * 900) for name in names]

        written = self.write(nats_server, names, values, on_invalid_row="skip")

        assert (written.stored, written.invalid) == (1, 1)
        assert js.stream(names[1]).info().state.messages == 1

    @pytest.mark.parametrize(
        "options", [{"mode": "atomic"}, {"mode": "exactlyonce"}, {"fast_ingest": True}]
    )
    def test_batches_belong_to_one_stream(self, options):
        """Modes with batches of the server are refused."""
        with pytest.raises(OptionError, match="writes to one stream, not to A,B"):
            WriteOptions(stream="A,B", **options)

    @pytest.mark.parametrize("stream", ["A,", "A_*"])
    def test_names_only(self, stream):
        """The option of a writer has no patterns."""
        with pytest.raises(OptionError, match="option stream is"):
            WriteOptions(stream=stream)


class TestChunks:
    def test_there_are_more_until_there_are_none(self):
        """
        A chunk states whether it is the last one.
        """
        chunks = Chunks(iter([("s", b"x")] * 5))

        assert [(len(chunk), more) for chunk, more in (chunks.take(2) for _ in range(4))] == [
            (2, True),
            (2, True),
            (1, False),
            (0, False),
        ]
        assert chunks.taken == 5

    def test_large_rows_make_small_chunks(self, monkeypatch):
        """
        A chunk has at least one row, however large it is.
        """
        monkeypatch.setattr(chunking, "CHUNK_BYTES", 10)
        rows = [("s", b"x" * size) for size in (4, 4, 4, 40, 1)]
        chunks = Chunks(iter(rows))

        taken = []
        more = True
        while more:
            chunk, more = chunks.take(4)
            taken.append([len(data) for _, data in chunk])

        assert taken == [[4, 4], [4], [40], [1]]

    @pytest.mark.parametrize(
        "row",
        [
            ("s", b"x" * 6),
            ("s", "ä" * 3),
            ("s", b"", {"name": "value"}),
            jetsync.OutboundMessage("s", b"", {"name": ["value"]}),
        ],
        ids=["bytes", "text", "headers", "message"],
    )
    def test_one_row_is_read_ahead(self, monkeypatch, row):
        """
        Only the row that no longer fits is read ahead. Text counts as it is sent, and headers count
        too.
        """
        monkeypatch.setattr(chunking, "CHUNK_BYTES", 10)
        rows = iter([row] * 9)

        chunk, more = Chunks(rows).take(8)

        assert (len(chunk), more, len(list(rows))) == (1, True, 7)
