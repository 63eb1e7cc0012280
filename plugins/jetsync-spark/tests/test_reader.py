"""
The calls that Spark makes to the data source before it starts a task, without Spark.
"""

import pickle

import pytest
from streams_to_read import extend, numbered
from waiting import eventually

from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.read.ranges import SMALLEST

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import jetsync
import jetsync_spark
from jetsync.devserver import DevServer
from jetsync_spark.common import clients
from jetsync_spark.common.options import ConnectSettings, read_settings
from jetsync_spark.read import idle
from jetsync_spark.read.origin import matching
from jetsync_spark.source import JetStreamDataSource

pytestmark = pytest.mark.live

KEYS = StructType([StructField("revision", LongType())])
SCHEMA = StructType([StructField("sequence", LongType()), StructField("data", BinaryType())])


@pytest.fixture
def source(nats_server):
    """
    A factory of data sources.
    """
    return lambda **options: JetStreamDataSource({"servers": nats_server.url, **options})


def planned(source, schema=SCHEMA):
    """Return the parts that a source plans to read."""
    reader = pickle.loads(pickle.dumps(source.reader(schema)))
    found = [part.value for part in reader.partitions()]
    return [part for each in found for part in (each if isinstance(each, tuple) else [each])]


def bounds(parts):
    """Return the starts and ends of parts."""
    return [(part.start, part.end) for part in parts]


class TestSchema:
    def test_of_a_stream(self, source):
        """Some columns are only there on request."""
        plain = "subject string, data binary, stream string, sequence bigint, timestamp timestamp"
        assert source(stream="S").schema() == plain
        more = source(stream="S", includeheaders="true", timestampnanos="true").schema()
        assert more == (
            "subject string, data binary, headers map<string,array<string>>, stream string, "
            "sequence bigint, timestamp timestamp, timestamp_ns bigint"
        )

    def test_of_a_bucket(self, source):
        """A bucket is a table of its keys."""
        assert source(bucket="B").schema() == (
            "key string, value binary, revision bigint, created timestamp, operation string"
        )

    def test_a_schema_with_other_columns_is_refused(self, source):
        """A schema with other columns is refused, and the error names them."""
        other = StructType([StructField("value", BinaryType())])
        with pytest.raises(OptionError, match="no column value"):
            source(stream="S").reader(other)
        with pytest.raises(OptionError, match="no column value"):
            source(stream="S").streamReader(other)


class TestFilters:
    def test_of_unknown_subjects(self, js, source):
        """They would give no rows, so the error lists existing subjects; existing ones are read."""
        with numbered(js, 20) as stream:
            name = stream.name
            for wanted in ("other.>", f"{name}.0,other", name):
                with pytest.raises(OptionError, match=f"matches no subject .*has {name}.>"):
                    planned(source(stream=name, subjectfilter=wanted))
                with pytest.raises(OptionError, match=f"matches no subject .*has {name}.>"):
                    source(stream=name, subjectfilter=wanted).streamReader(SCHEMA).initialOffset()
            for wanted in (">", "*.5", f"{name}.>", f"{name}.0,{name}.0.>"):
                assert len(planned(source(stream=name, subjectfilter=wanted))) == 1
            js.update_stream(stream.info().config, subjects=[f"new.{name}"])
            assert len(planned(source(stream=name, subjectfilter=f"{name}.0"))) == 1

    def test_of_a_stream_with_sources(self, js, source, caplog):
        """Future subjects are not known, so an unknown one is a warning."""
        with numbered(js, 5) as stream:
            name = f"{stream.name}-all"
            js.create_stream(
                name,
                sources=[jetsync.StreamSource(name=stream.name)],
                allow_direct=True,
                storage="memory",
            )
            try:
                eventually(lambda: js.stream(name).info().state.messages == 5, 30)
                assert planned(source(stream=name, subjectfilter=f"{stream.name}.0"))
                assert "nothing_of_filter" not in caplog.text
                planned(source(stream=name, subjectfilter="other"))
                assert "nothing_of_filter" in caplog.text
            finally:
                js.delete_stream(name)

    def test_of_a_stream_that_transforms(self, js, source, unique, caplog):
        """The stored subjects differ from the accepted ones, so an unknown one is a warning."""
        transform = jetsync.SubjectTransform(src=f"{unique}.>", dest="out.>")
        js.create_stream(
            unique, subjects=[f"{unique}.>"], subject_transform=transform, storage="memory"
        )
        try:
            assert source(stream=unique, subjectfilter="out.>").streamReader(SCHEMA).initialOffset()
            assert "nothing_of_filter" in caplog.text
        finally:
            js.delete_stream(unique)


class TestLedger:
    def test_of_a_bucket(self, js, source, unique):
        """A table does not show the ledger of writes to the bucket, unless it names its keys."""
        kv = js.create_key_value(unique, storage="memory")
        try:
            for key in ("a", "_ledger.q.0", "_ledgers"):
                kv.put(key, b"")

            def revisions(**options):
                reader = source(bucket=unique, **options).reader(KEYS)
                (part,) = reader.partitions()
                return [each for rows in reader.read(part) for each in rows[0].to_pylist()]

            assert sorted(revisions()) == [1, 3]
            assert sorted(revisions(keys="*")) == [1, 3]
            assert revisions(keys="_ledger.>") == [2]
        finally:
            js.delete_key_value(unique)


class TestMoments:
    def test_of_a_bucket_without_history(self, js, source, unique):
        """Keys that are written during the read would be missing, so the bucket is refused."""
        kv = js.create_key_value(unique, storage="memory")
        try:
            for number in range(4):
                last = kv.put(f"k{number % 2}", b"%d" % number)
            assert planned(source(bucket=unique, atrevision=str(last)), KEYS) == [last]
            with pytest.raises(OptionError, match="one revision per key: values of"):
                planned(source(bucket=unique, atrevision="2"), KEYS)
            with pytest.raises(OptionError, match="leave out atTimestamp"):
                planned(source(bucket=unique, attimestamp="1000"), KEYS)
            assert planned(source(bucket=unique, attimestamp="4102444800000"), KEYS) == [last]
        finally:
            js.delete_key_value(unique)

    def test_of_a_future_revision(self, js, source, unique):
        """A revision that does not exist yet is refused."""
        kv = js.create_key_value(unique, history=5, storage="memory")
        try:
            kv.put("k", b"1")
            with pytest.raises(OptionError, match="ends at revision 1, before atRevision 2"):
                planned(source(bucket=unique, atrevision="2"), KEYS)
        finally:
            js.delete_key_value(unique)


class TestParts:
    def test_from_after_its_end(self, js, source):
        """A start time after the end sequence is found when it is looked up."""
        with numbered(js, 20) as stream:
            given = {"startingtimestamp": "1000", "endingoffsets": '{"seq": 5}'}
            assert bounds(planned(source(stream=stream.name, **given))) == [(1, 5)]
            stream.purge(sequence=11)
            with pytest.raises(OptionError, match=r"begins at sequence 11 .*after its end, .* 5"):
                planned(source(stream=stream.name, **given))

    def test_of_the_present_stream(self, js, source):
        """Both ends are fixed when the query is planned."""
        with numbered(js, 20) as stream:
            stream.purge(sequence=4)
            one = planned(source(stream=stream.name))
            assert bounds(one) == [(4, 21)]
            extend(js, stream, 10)
            parts = planned(source(stream=stream.name, minpartitions="3"))
            assert bounds(parts) == [(4, 13), (13, 22), (22, 31)]
            assert parts[0].created == one[0].created
            small = planned(source(stream=stream.name, maxrecordsperpartition="10"))
            assert [len(part) for part in small] == [9, 9, 9]

    def test_of_a_given_range(self, js, source):
        """Ends are exclusive, and may not be after the end of the stream."""
        with numbered(js, 20) as stream:

            def parts(**options):
                return bounds(planned(source(stream=stream.name, **options)))

            assert parts(startingoffsets='{"seq": 5}', endingoffsets='{"seq": 9}') == [(5, 9)]
            assert parts(startingoffsets='{"seq": 5}', endingoffsets="latest") == [(5, 21)]
            assert parts(endingoffsets='{"seq": 21}') == [(1, 21)]
            time = stream.get_message(9).timestamp_ns // 1_000_000
            ((start, _),) = parts(startingtimestamp=str(time))
            assert start == next(
                n for n in range(1, 21) if stream.get_message(n).timestamp_ns >= time * 1_000_000
            )
            assert parts(endingtimestamp=str(time + 3_600_000)) == [(1, 21)]
            with pytest.raises(OptionError, match="ends at sequence 20, before endingOffsets 22"):
                parts(endingoffsets='{"seq": 22}')
            with pytest.raises(OptionError, match="ends at sequence 20, before startingOffsets 22"):
                parts(startingoffsets='{"seq": 22}')

    def test_of_nothing(self, js, source):
        """The result is one part without rows, because Spark needs at least one."""
        with numbered(js, 20) as stream:
            for options in (
                {"startingoffsets": '{"seq": 21}'},
                {"startingoffsets": '{"seq": 9}', "endingoffsets": '{"seq": 9}'},
                {"endingtimestamp": "0"},
            ):
                reader = source(stream=stream.name, **options).reader(SCHEMA)
                (part,) = reader.partitions()
                assert part.value is None
                assert list(reader.read(part)) == []

    def test_of_few_that_match(self, js, source):
        """If a filter matches few messages of a long range, there are few parts."""
        with numbered(js, 0) as stream:
            js.publish(f"{stream.name}.rare", b"")
            js.publish_many((f"{stream.name}.x", b"") for _ in range(2 * SMALLEST))
            assert len(planned(source(stream=stream.name))) == 3
            rare = planned(source(stream=stream.name, subjectfilter=f"{stream.name}.rare"))
            assert bounds(rare) == [(1, 2 * SMALLEST + 2)]
            both = f"{stream.name}.rare,{stream.name}.x"
            assert len(planned(source(stream=stream.name, subjectfilter=both))) == 3

    def test_a_start_that_was_purged(self, js, source):
        """A start that was purged is an error, or skipped."""
        with numbered(js, 20) as stream:
            stream.purge(sequence=11)
            with pytest.raises(JetStreamSparkError, match="sequences 5 to 10 are missing"):
                planned(source(stream=stream.name, startingoffsets='{"seq": 5}'))
            lenient = {"startingoffsets": '{"seq": 5}', "failondataloss": "false"}
            assert bounds(planned(source(stream=stream.name, **lenient))) == [(11, 21)]


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({}, "option stream is missing"),
            ({"stream": "S", "startingoffsets": "latest"}, "a batch from startingOffsets latest"),
            (
                {"stream": "S", "maxoffsetspertrigger": "5"},
                "maxOffsetsPerTrigger does not apply to",
            ),
            ({"stream": "S", "mode": "atomic"}, "there is no option mode"),
            ({"stream": "S", "startingofsets": "latest"}, "did you mean startingOffsets"),
            ({"stream": "S", "servers": ""}, "option servers is empty"),
        ],
    )
    def test_invalid_options_are_refused_before_any_lookup(self, source, options, said):
        """Invalid options are refused before the stream is looked up."""
        with pytest.raises(OptionError, match=said):
            source(**options).reader(SCHEMA)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"stream": "no_such"}, r"'no_such'.*10059.*create the stream"),
            ({"bucket": "no_such"}, r"'no_such'.*create the bucket, .* option bucket"),
            (
                {"stream": "S", "servers": "nats://127.0.0.1:1", "retrytimeoutms": "300"},
                r"127.0.0.1:1 failed.*can reach the",
            ),
            ({"stream": "a.b"}, "a.b"),
        ],
    )
    def test_the_error_names_the_missing_object_with_advice(self, source, options, said):
        """The error names the missing object, and has advice."""
        with pytest.raises(JetStreamSparkError, match=said):
            planned(source(**options)) if "stream" in options else planned(
                source(**options), StructType([StructField("revision", LongType())])
            )

    def test_an_invalid_filter(self, js, source):
        """A filter that is not a valid subject is refused at planning."""
        with (
            numbered(js, 3) as stream,
            pytest.raises(JetStreamSparkError, match=r"subjectFilter.*a\.\.b"),
        ):
            planned(source(stream=stream.name, subjectfilter="a..b"))


def test_partitions_of_large_messages(js, source):
    """A partition has about as many bytes as the limit, and the same ones after the stream grew."""
    with numbered(js, 40, size=100_000) as stream:
        given = {"endingoffsets": '{"seq": 41}', "maxbytesperpartition": "1m"}
        before = planned(source(stream=stream.name, **given))
        assert len(before) == 4
        extend(js, stream, 100)
        assert planned(source(stream=stream.name, **given)) == before


def test_messages_after_the_end_do_not_change_the_estimate(js):
    """A batch with fixed ends and a filter has the same partitions after the stream has grown."""
    with numbered(js, 30) as stream:

        def estimate():
            return matching(stream, 5, 25, (f"{stream.name}.>",))

        before = estimate()
        extend(js, stream, 10)

        assert before == estimate() == 20


def test_messages_that_are_stored_during_the_estimate_do_not_lower_it(js, monkeypatch):
    """The estimate is too high if the stream grows meanwhile, but not larger than the range."""
    with numbered(js, 30) as stream:
        get_batch = jetsync.Stream.get_batch

        def grows(handle, *arguments, **options):
            batch = get_batch(handle, *arguments, **options)
            extend(js, stream, 100)
            return batch

        monkeypatch.setattr(jetsync.Stream, "get_batch", grows)

        assert matching(stream, 5, 25, (f"{stream.name}.>",)) == 20


class TestAway:
    @pytest.mark.parametrize("what", ["plan", "read", "micro-batch", "plan bucket", "read bucket"])
    def test_for_longer_than_a_connection_is_waited_for(self, monkeypatch, what):
        """A dropped connection is made again until a server answers."""
        monkeypatch.setattr(clients, "PING_TIMEOUT", 0.1)
        with DevServer() as server, jetsync.connect(server.url) as client:
            js = client.jetstream()
            stream = js.create_stream("S", subjects=["s"], allow_direct=True)
            js.publish("s", b"")
            js.create_key_value("B").put("k", b"")
            options = {"servers": server.url, "retrytimeoutms": "30000"}
            bucket = JetStreamDataSource({**options, "bucket": "B"}).reader(KEYS)
            source = JetStreamDataSource({**options, "stream": stream.name})
            batch, micro = source.reader(SCHEMA), source.streamReader(SCHEMA)
            begin = micro.initialOffset()

            def read(reader, part):
                return [value for rows in reader.read(part) for value in rows[0].to_pylist()]

            (part,), (moment,) = batch.partitions(), bucket.partitions()
            call, wanted = {
                "plan": (lambda: [each.value for each in batch.partitions()], [part.value]),
                "read": (lambda: read(batch, part), [1]),
                "micro-batch": (lambda: micro.latestOffset(begin, None), begin),
                "plan bucket": (lambda: [each.value for each in bucket.partitions()], [None]),
                "read bucket": (lambda: read(bucket, moment), [1]),
            }[what]
            assert call() == wanted
            server.kill()
            settings = read_settings(ConnectSettings, options)
            eventually(lambda: not clients._pool[settings].client.is_connected)
            connect, tries = clients._connect, []

            def late(*args):
                tries.append(args)
                if len(tries) == 3:
                    server.restart()
                return connect(*args)

            monkeypatch.setattr(clients, "_connect", late)
            monkeypatch.setattr(idle, "CHECK", 0.0)
            assert call() == wanted
            assert len(tries) >= 3
            clients.forget(settings)


def test_the_facade():
    """The class can be imported from the documented module."""
    assert jetsync_spark.JetStreamDataSource is JetStreamDataSource
    assert JetStreamDataSource.name() == "jetstream"
