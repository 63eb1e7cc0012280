"""
Queries whose streams were restored, renamed, mirrored or moved to another cluster, without Spark.
"""

import contextlib
import json
import shutil

import pytest
from backups import backup_of, restore
from streams_to_read import extend, remake
from waiting import eventually

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.options import read_settings
from jetsync_spark.read.options import ReadOptions

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

from moving import again, first_ranges, kept, restored
from queries import Query, Rows

from jetsync_spark.read import planner

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("impatient")]


class TestRestore:
    def test_a_restored_stream_continues(self, client, js, earliest):
        """A query continues after the restore of a backup that has all that it has read."""
        with kept(js, 30) as stream:
            query = earliest(stream)
            assert query.all() == [[*range(1, 31)]]
            before = stream.info().created
            restored(client, stream, backup_of(client, stream.name))
            assert stream.info().created > before
            assert again(query).all() == []
            extend(js, stream, 5)
            assert query.all() == [[*range(31, 36)]]
            assert query.ends[-1]["created"] == stream.info().created.isoformat()
            assert again(query).all() == []

    def test_while_it_runs(self, client, js, earliest):
        """A running query continues, too."""
        with kept(js, 30) as stream:
            query = earliest(stream)
            assert query.all(Rows(20)) == [[*range(1, 21)], [*range(21, 31)]]
            backup = backup_of(client, stream.name)
            extend(js, stream, 5)
            restored(client, stream, backup)
            extend(js, stream, 3)
            assert query.all() == [[*range(31, 34)]]

    def test_a_backup_with_newer_messages(self, client, js, earliest):
        """Messages that the backup has, and the query has not read, are read."""
        with kept(js, 30) as stream:
            query = earliest(stream)
            assert query.plan(Rows(10))
            restored(client, stream, backup_of(client, stream.name))
            assert again(query).all() == [[*range(11, 31)]]

    def test_a_batch_that_was_not_committed(self, client, js, earliest):
        """The batch of the checkpoint has the same rows in the same parts."""
        with kept(js, 30) as stream:
            query = earliest(stream, minPartitions="3")
            assert query.plan(Rows(10))
            assert query.plan(Rows(10))
            ranges = query.ranges()
            restored(client, stream, backup_of(client, stream.name))
            assert again(query, minPartitions="7").ranges() == ranges
            assert query.read() == [*range(11, 21)]
            assert query.all() == [[*range(21, 31)]]

    def test_the_first_batch_was_not_committed(self, client, js, earliest):
        """The first batch is the same, although Spark asks for the start again."""
        with kept(js, 30) as stream:
            query = earliest(stream)
            assert query.plan(Rows(10))
            restored(client, stream, backup_of(client, stream.name))
            assert again(query, startingOffsets="latest").read() == [*range(1, 11)]
            assert query.all() == [[*range(11, 31)]]

    def test_an_older_backup(self, client, js, earliest):
        """
        If the backup lacks messages that the query has read, the query fails, although new
        messages have their sequences. With newer, it reads what was stored since the restore.
        """
        with kept(js, 20) as stream:
            backup = backup_of(client, stream.name)
            extend(js, stream, 10)
            query = earliest(stream)
            assert query.all() == [[*range(1, 31)]]
            restored(client, stream, backup)
            with pytest.raises(JetStreamSparkError, match="it has no message 30"):
                again(query).plan()
            extend(js, stream, 15)
            with pytest.raises(JetStreamSparkError, match="its message 30 is from 2"):
                again(query).plan()
            assert again(query, onReplacedStream="newer").plan(Rows(5))
            assert query.read() == [*range(21, 26)]
            # The position no longer has a message of the stream before the restore.
            del query.options["onReplacedStream"]
            assert again(query).all() == [[*range(26, 36)]]
            assert again(query).all() == []

    def test_an_older_backup_and_an_open_batch(self, client, js, earliest):
        """Of a batch that was not committed, only restored messages are read, and new ones once."""
        with kept(js, 20) as stream:
            backup = backup_of(client, stream.name)
            extend(js, stream, 10)
            query = earliest(stream)
            assert query.plan(Rows(15))
            assert query.plan(Rows(10))
            restored(client, stream, backup)
            extend(js, stream, 15)
            with pytest.raises(JetStreamSparkError, match="or restored"):
                again(query).read()
            assert again(query, onReplacedStream="newer").read() == [*range(16, 21)]
            assert query.all() == [[*range(21, 36)]]

    def test_the_choices(self, client, js, earliest):
        """Each choice does what the error says."""
        for how, read in (
            ("continue", [*range(31, 36)]),
            ("newer", [*range(21, 36)]),
            ("restart", [*range(1, 36)]),
        ):
            with kept(js, 20) as stream:
                backup = backup_of(client, stream.name)
                extend(js, stream, 10)
                query = earliest(stream)
                assert query.all() == [[*range(1, 31)]]
                restored(client, stream, backup)
                extend(js, stream, 15)
                with pytest.raises(JetStreamSparkError) as caught:
                    again(query).plan()
                text = str(caught.value)
                assert "failOnDataLoss" not in text
                assert "With continue, it continues at sequence 31, whatever" in text
                assert "reads rows again that the stream still has" in text
                assert again(query, onReplacedStream=how).all() == [read]

    def test_without_errors(self, client, js, earliest):
        """With failOnDataLoss=false, the query reads no message twice, whatever the backup has."""
        with kept(js, 20) as stream:
            backup = backup_of(client, stream.name)
            query = earliest(stream, failOnDataLoss="false")
            assert query.all() == [[*range(1, 21)]]
            restored(client, stream, backup)
            assert again(query).all() == []
            extend(js, stream, 5)
            assert query.all() == [[*range(21, 26)]]
            restored(client, stream, backup)
            extend(js, stream, 2)
            assert again(query).all() == [[21, 22]]

    def test_a_stream_that_removes_old_messages(self, client, js, earliest):
        """Such a stream fails, too: otherwise a restore would store rows twice."""
        with kept(js, 30, max_msgs_per_subject=30) as stream:
            query = earliest(stream)
            assert query.all() == [[*range(1, 31)]]
            remake(js, stream, 30)
            with pytest.raises(JetStreamSparkError, match="or restored"):
                again(query).plan()

    def test_an_old_checkpoint(self, client, js, earliest):
        """A checkpoint without the times of messages is read, and continues by option only."""
        with kept(js, 30) as stream:
            query = earliest(stream)
            assert query.all() == [[*range(1, 31)]]
            del query.ends[-1]["last"]
            extend(js, stream, 5)
            assert again(query).all() == [[*range(31, 36)]]
            del query.ends[-1]["last"]
            restored(client, stream, backup_of(client, stream.name))
            with pytest.raises(JetStreamSparkError, match="does not say how to compare"):
                again(query).plan()
            extend(js, stream, 2)
            assert again(query, onReplacedStream="continue").all() == [[36, 37]]

    def test_where_spark_does_not_say(self, client, js, earliest):
        """PySpark 4.0 and 4.1, which ask for an end first, continue, too."""
        with kept(js, 30) as stream:
            query = earliest(stream)
            assert query.all() == [[*range(1, 31)]]
            restored(client, stream, backup_of(client, stream.name))
            extend(js, stream, 5)
            assert first_ranges(again(query)) == [(stream.name, 31, 36)]

    def test_a_message_that_was_removed(self, client, js, earliest):
        """If the message of the position was removed, the query continues by option only."""
        with kept(js, 30) as stream:
            query = earliest(stream)
            assert query.all() == [[*range(1, 31)]]
            extend(js, stream, 5)
            stream.delete_message(30)
            restored(client, stream, backup_of(client, stream.name))
            with pytest.raises(JetStreamSparkError, match="it has no message 30"):
                again(query).plan()
            assert again(query, onReplacedStream="continue").all() == [[*range(31, 36)]]

    def test_a_copy_of_the_disk(self, tmp_path):
        """A copy of the server's files has the same time of creation, and is noticed, too."""
        old, copy = tmp_path / "old", tmp_path / "copy"
        query = None
        for store, count in ((old, 20), (old, 10), (copy, 15)):
            with (
                DevServer(store=store) as server,
                jetsync.connect(server.url) as client,
            ):
                js = client.jetstream()
                if query is None:
                    js.create_stream("S", subjects=["S.>"], allow_direct=True)
                    query = Query(server, "S", startingOffsets="earliest")
                stream = js.stream("S")
                extend(js, stream, count)
                again(query, servers=server.url)
                if count == 10:
                    assert query.all() == [[*range(1, 31)]]
                if store == copy:
                    with pytest.raises(JetStreamSparkError, match="went back: its message 30 is"):
                        query.plan()
                    with pytest.raises(JetStreamSparkError, match="went back: its message 30 is"):
                        again(query).read()
                    # PySpark 4.0 and 4.1 ask for an end first.
                    with pytest.raises(JetStreamSparkError, match="went back: its message 30 is"):
                        first_ranges(again(query))
                    for how, begins in (
                        ("newer", 21),
                        ("continue", 31),
                        ("restart", 1),
                    ):
                        again(query, onReplacedStream=how)
                        assert first_ranges(query) == [("S", begins, 36)]
                    again(query, onReplacedStream="newer")
                    assert query.read() == [*range(1, 21)]
                    assert query.all() == [[*range(21, 36)]]
                    del query.options["onReplacedStream"]
                    assert again(query).all() == []
            if count == 20:
                shutil.copytree(old, copy)

    def test_several_streams(self, client, js, earliest):
        """One of several streams is restored."""
        with kept(js, 10) as one, kept(js, 20) as other:
            query = earliest(f"{one.name},{other.name}")
            assert query.all() == [[*range(1, 11), *range(1, 21)]]
            extend(js, other, 5)
            assert query.all() == [[*range(21, 26)]]
            restored(client, one, backup_of(client, one.name))
            extend(js, one, 5)
            extend(js, other, 5)
            again(query)
            assert query.plan()
            assert query.ranges() == [(one.name, 11, 16), (other.name, 26, 31)]

    def test_a_restore_while_another_stream_is_read(self, client, js, earliest):
        """With failOnDataLoss=false, a query continues at a stream that was away for a time."""
        with kept(js, 10) as one, kept(js, 20) as other:
            query = earliest(f"{one.name},{other.name}", failOnDataLoss="false")
            assert query.all() == [[*range(1, 11), *range(1, 21)]]
            backup = backup_of(client, one.name)
            one.delete()
            eventually(query.plan)
            assert query.ranges() == []
            extend(js, other, 5)
            assert query.all() == [[*range(21, 26)]]
            restore(client, backup)
            assert query.all() == []
            extend(js, one, 5)
            assert query.plan()
            assert query.read() == [*range(11, 16)]
            extend(js, one, 2)
            assert query.all() == [[16, 17]]
            assert again(query).all() == []


class TestMoves:
    def test_a_renamed_stream(self, client, js, earliest):
        """A backup that is restored with another name continues."""
        with kept(js, 30) as stream:
            query = earliest(stream)
            assert query.plan(Rows(10))
            assert query.plan(Rows(10))
            backup = backup_of(client, stream.name)
            stream.delete()
            new = f"{stream.name}_2"
            restore(client, backup, name=new)
            with pytest.raises(JetStreamSparkError, match=f'movedStreams {{"{stream.name}": '):
                again(query, stream=new).plan()
            again(query, movedStreams=json.dumps({stream.name: new}))
            # The last batch was not committed.
            assert query.read() == [*range(11, 21)]
            assert query.all() == [[*range(21, 31)]]
            del query.options["movedStreams"]
            extend(js, js.stream(new), 0)
            assert again(query).all() == []
            js.delete_stream(new)

    def test_a_mirror(self, js, earliest):
        """A query continues at a mirror."""
        with kept(js, 30) as stream:
            query = earliest(stream)
            assert query.all() == [[*range(1, 31)]]
            new = f"{stream.name}_M"
            mirror = js.create_stream(
                new, mirror=jetsync.StreamSource(stream.name), allow_direct=True
            )
            try:
                extend(js, stream, 5)
                eventually(lambda: mirror.info().state.last_seq == 35)
                again(query, stream=new, movedStreams=json.dumps({stream.name: new}))
                assert query.all() == [[*range(31, 36)]]
            finally:
                mirror.delete()

    def test_a_mirror_that_lags(self, js, earliest, monkeypatch):
        """A query waits for a mirror that does not have its messages yet."""
        with kept(js, 30) as stream:
            query = earliest(stream)
            assert query.all() == [[*range(1, 31)]]
            monkeypatch.setattr(planner, "CATCHING_UP", 30.0)
            with kept(js, 0) as copy:
                again(
                    query,
                    stream=copy.name,
                    movedStreams=json.dumps({stream.name: copy.name}),
                )
                copy.delete()
                js.create_stream(
                    copy.name,
                    mirror=jetsync.StreamSource(stream.name),
                    allow_direct=True,
                )
                assert query.all() == []

    def test_another_cluster(self, js, earliest):
        """A query continues on another cluster, at a mirror with the same name or a backup."""
        with (
            kept(js, 30) as stream,
            DevServer() as other,
            jetsync.connect(other.url) as there,
        ):
            query = earliest(stream)
            assert query.all() == [[*range(1, 31)]]
            with jetsync.connect(query.options["servers"]) as here:
                restore(there, backup_of(here, stream.name))
            again(query, servers=other.url)
            moved = there.jetstream()
            extend(moved, moved.stream(stream.name), 5)
            assert query.all() == [[*range(31, 36)]]

    def test_another_stream(self, js, earliest):
        """A stream with other messages does not continue."""
        with kept(js, 30) as stream, kept(js, 50) as other:
            query = earliest(stream)
            assert query.all() == [[*range(1, 31)]]
            again(
                query,
                stream=other.name,
                movedStreams=json.dumps({stream.name: other.name}),
            )
            with pytest.raises(JetStreamSparkError, match=f"which was {stream.name}.*message 30"):
                query.plan()

    def test_one_of_several(self, client, js, earliest):
        """One of several streams is renamed; the others stay where they are."""
        with kept(js, 10) as one, kept(js, 20) as other:
            query = earliest(f"{one.name},{other.name}")
            (rows,) = query.all()
            assert sorted(rows) == sorted([*range(1, 11), *range(1, 21)])
            new = f"{one.name}_2"
            backup = backup_of(client, one.name)
            one.delete()
            restore(client, backup, name=new)
            with pytest.raises(JetStreamSparkError, match="movedStreams"):
                again(query, stream=f"{new},{other.name}").plan()
            again(query, movedStreams=json.dumps({one.name: new}))
            assert query.all() == []
            extend(js, other, 1)
            assert query.all() == [[21]]
            assert [*query.ends[-1]["streams"]] == sorted([new, other.name])
            js.delete_stream(new)

    def test_both_names(self, js, earliest):
        """A stream with a position of its own cannot continue another one."""
        with kept(js, 10) as one, kept(js, 20) as other:
            query = earliest(f"{one.name},{other.name}")
            assert query.plan()
            with pytest.raises(JetStreamSparkError, match="each stream continues one stream"):
                again(
                    query,
                    stream=other.name,
                    movedStreams=json.dumps({one.name: other.name}),
                ).plan()


class TestPartitions:
    """Writers identify partitions by number, so those of a planned batch keep theirs."""

    def tasks(self, query, **names):
        """Return what each task of the last batch reads. Renamed streams have their old names."""
        return [
            [(names.get(each.stream, each.stream), each.start, each.end) for each in part.value]
            for part in query.parts()
        ]

    @pytest.fixture(params=[2, 40], ids=["a task for each", "shared tasks"])
    def streams(self, request, js):
        """
        A few streams, and so many that they share tasks, with 3 messages each.
        """
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(kept(js, 3, prefix=f"S{number:02}-"))
                for number in range(request.param)
            ]

    def test_a_renamed_stream(self, client, js, earliest, streams):
        """A stream whose new name sorts differently is read by the same task."""
        first, *others = (stream.name for stream in streams)
        query = earliest(",".join([first, *others]))
        assert query.plan()
        before = self.tasks(query)
        backup, new = backup_of(client, first), f"Z{first}"
        js.delete_stream(first)
        restore(client, backup, name=new)
        moved = json.dumps({first: new})
        again(query, stream=",".join([new, *others]), movedStreams=moved)
        assert self.tasks(query, **{new: first}) == before
        extend(js, js.stream(new), 0)
        assert query.all() == []
        js.delete_stream(new)

    @pytest.mark.parametrize("how", ["newer", "restart"])
    def test_a_stream_that_was_replaced(self, client, js, earliest, streams, how):
        """If a batch has no messages of a stream any more, its other streams keep their tasks."""
        query = earliest(",".join(stream.name for stream in streams))
        assert query.plan()
        backup = backup_of(client, streams[0].name)
        for stream in streams:
            extend(js, stream, 3)
        assert query.plan()
        before = self.tasks(query)
        restored(client, streams[0], backup)
        again(query, onReplacedStream=how)
        assert self.tasks(query) == [
            [each for each in task if each[0] != streams[0].name] for task in before
        ]
        assert query.read() == [4, 5, 6] * (len(streams) - 1)

    def test_a_stream_that_was_deleted(self, js, earliest, streams, monkeypatch):
        """With failOnDataLoss=false, a batch is read again without a stream that was deleted."""
        query = earliest(",".join(stream.name for stream in streams), failOnDataLoss="false")
        assert query.plan()
        for stream in streams:
            extend(js, stream, 3)
        assert query.plan()
        before = self.tasks(query)
        streams[0].delete()
        again(query)
        assert self.tasks(query) == [
            [each for each in task if each[0] != streams[0].name] for task in before
        ]
        assert query.read() == [4, 5, 6] * (len(streams) - 1)
        # A stream that is missing for a moment is read.
        monkeypatch.setattr(planner, "CATCHING_UP", 30.0)
        again(query)
        missing = iter([True, True])
        ask = query.reader._states.ask

        def ask_in_vain(*given, **more):
            found = ask(*given, **more)
            if next(missing, False):
                del found.streams[streams[1].name]
            else:
                monkeypatch.setattr(planner, "CATCHING_UP", 0.0)
            return found

        query.reader._states.ask = ask_in_vain
        assert query.read() == [4, 5, 6] * (len(streams) - 1)
        query.options["failOnDataLoss"] = "true"
        with pytest.raises(JetStreamSparkError, match="not found"):
            again(query).read()

    def test_a_stream_that_is_replaced_before_it_is_read(self, js, earliest, streams):
        """Its task fails. With failOnDataLoss=false, it reads its other streams."""
        name = ",".join(stream.name for stream in streams)
        strict, lenient = earliest(name), earliest(name, failOnDataLoss="false")
        planned = [(query.reader, query.plan(), query.parts()) for query in (strict, lenient)]
        remake(js, streams[0], 3)
        (reader, _, parts), (spared, _, others) = planned
        with pytest.raises(JetStreamSparkError, match=f"created again.*{streams[0].name}"):
            list(reader.read(parts[0]))
        found = [
            rows.column("sequence").to_pylist() for each in others for rows in spared.read(each)
        ]
        assert found == [[1, 2, 3]] * (len(streams) - 1)

    def test_a_part_of_a_stream(self, client, js, earliest):
        """Parts whose messages an older backup lacks become shorter or empty."""
        with kept(js, 6) as stream:
            query = earliest(stream, minPartitions="3")
            backup = backup_of(client, stream.name)
            extend(js, stream, 6)
            assert query.plan()
            restored(client, stream, backup)
            again(query, onReplacedStream="newer")
            name = stream.name
            assert self.tasks(query) == [[(name, 1, 5)], [(name, 5, 7)], []]

    def test_no_batch(self, client, js, earliest):
        """Between an offset and itself, there is nothing to read, also after a restore."""
        with kept(js, 6) as stream:
            query = earliest(stream)
            assert query.plan()
            restored(client, stream, backup_of(client, stream.name))
            (end,) = query.ends
            assert again(query).reader.partitions(end, end) == []


class TestConsumers:
    def test_a_restored_work_queue(self, client, js, reads):
        """
        A query with a consumer fails, and says so; else it reads what the consumer delivers.
        """
        # They need PySpark 4.2.
        from queues_to_read import next_batch, queue

        with queue(js, 10, storage="file") as stream:
            query = reads(stream)
            assert next_batch(query, Rows(4)) == [1, 2, 3, 4]
            assert next_batch(query, Rows(4)) == [5, 6, 7, 8]
            # The first batch is acknowledged, and the second one is not.
            backup = backup_of(client, stream.name)
            assert next_batch(query) == [9, 10]
            query.stop()
            restored(client, stream, backup)
            query.start()
            with pytest.raises(JetStreamSparkError, match="rows of later micro-batches are read"):
                query.plan()
            query.options["failOnDataLoss"] = "false"
            query.start()
            assert query.read() == []
            stream.update_consumer("spark", ack_wait=1.0)
            found = []
            while len(found) < 6:
                found += next_batch(query)
            assert sorted(found) == [5, 6, 7, 8, 9, 10]


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"movedStreams": "A"}, 'such as {"ORDERS": "ORDERS_2"}'),
            ({"movedStreams": "{}"}, "the present name"),
            ({"movedStreams": '{"A": 5}'}, "the present name"),
            ({"movedStreams": '{"A": "C"}'}, "moves A to C, which is not read"),
            ({"movedStreams": '{"B": "B"}'}, "the same name"),
            (
                {"stream": "B*", "movedStreams": '{"A": "B*"}'},
                "moves A to B*, which is a pattern",
            ),
            (
                {"movedStreams": '{"A": "B", "C": "B"}'},
                "the new name of several streams",
            ),
            ({"onReplacedStream": "resume"}, "fail or newer or continue or restart"),
            (
                {"consumer": "x", "onReplacedStream": "continue"},
                "does not apply to a query with",
            ),
        ],
    )
    def test_what_is_refused(self, nats_server, given, text):
        """Moves that cannot be meant are refused before the query starts."""
        with pytest.raises(OptionError) as caught:
            Query(nats_server, given.pop("stream", "B"), **given)
        assert text in str(caught.value)

    @pytest.mark.parametrize(
        "options", [{"movedStreams": '{"A": "B"}'}, {"onReplacedStream": "newer"}]
    )
    def test_batches(self, options):
        """Batches and buckets have no positions."""
        asked = read_settings(ReadOptions, {"stream": "B", **options})
        with pytest.raises(OptionError, match="does not apply to a batch"):
            asked.for_batch()
        with pytest.raises(OptionError, match="does not apply to a bucket"):
            read_settings(ReadOptions, {"bucket": "B", **options})
