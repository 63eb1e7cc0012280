"""
Reading parts of streams, without Spark.
"""

import datetime as dt

import pytest
from streams_to_read import asked, extend, numbered, origin_now, part_of, remake
from waiting import eventually
from writing import plan_for, rows_of, run

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.options import ConnectSettings
from jetsync_spark.common.retry import Retry
from jetsync_spark.common.task import Task
from jetsync_spark.read.origin import sequence_at, start_of
from jetsync_spark.read.range_reader import RangeReader
from jetsync_spark.read.ranges import cut
from jetsync_spark.read.tables import STREAM_COLUMNS, Table
from jetsync_spark.write import layout

pytestmark = pytest.mark.live


def read(js, stream, start=1, end=None, part=None, **options):
    """List the sequences of a part, and check that each message is the one of its sequence."""
    part = part or part_of(js, stream, start, end)
    found = []
    for page in RangeReader(stream, part, asked(stream, **options)).pages():
        assert [int(data.split(b" ")[0]) for data in page.data] == page.sequences
        found += page.sequences
    return found


def test_rows_of_a_page(js):
    """Rows are the same, made from the bytes of a page or message by message."""
    types = pytest.importorskip("pyspark.sql.types")
    schema = types.StructType().add("timestamp_ns", "long").add("sequence", "long")
    schema.add("timestamp", "timestamp").add("data", "binary").add("subject", "string")
    table = Table(schema, STREAM_COLUMNS)
    with numbered(js, 30, subjects=3) as stream:
        js.publish(f"{stream.name}.ü", b"31", headers={"Nats-Subject": "other", "a": "b"})
        stream.delete_message(7)
        pages = [*RangeReader(stream, part_of(js, stream), asked(stream, fetchBatch="20")).pages()]
        assert [len(page) for page in pages] == [20, 10]
        for page in pages:
            made = table.of_page(page, stream.name)
            assert made == table.of_page(jetsync.StoredPage(list(page)), stream.name)
            assert made.column(1).to_pylist() == page.sequences


class TestRequests:
    @pytest.mark.parametrize(("filters", "requests"), [("", 1), ("a.*", 4), ("a.0,a.1", 6)])
    def test_what_a_part_asks_the_leader(self, nats_server, js, filters, requests):
        """
        The stream's state is requested when a scan begins and after a page that lacks sequences. If
        the last message does not match the filter, the end of the scan and of the part need one
        each.
        """
        options = {"subjectFilter": filters} if filters else {}
        with numbered(js, 100, subjects=3) as stream, jetsync.connect(nats_server.url) as client:
            stream.update(subjects=["a.*", "b"])
            js.publish_many((f"a.{n % 2}", b"%d " % n) for n in range(101, 151))
            js.publish("b", b"151 ")
            read(js, stream, **options)
            part = part_of(js, stream)
            seen = client.subscribe(f"$JS.API.STREAM.INFO.{stream.name}")
            client.flush()
            assert read(js, stream, part=part, **options)
            client.flush()

            assert seen.pending == requests


class TestRange:
    def test_parts_are_the_stream(self, js):
        """Parts that are read in any order, twice or half-way, add up to the stream."""
        with numbered(js, 1000) as stream:
            whole = part_of(js, stream)
            parts = cut(stream.name, whole.created, 1, 1001, 4)
            extend(js, stream, 50)
            again = {part.start: read(js, stream, part=part) for part in reversed(parts)}
            for part in parts:
                pages = RangeReader(stream, part, asked(stream, fetchBatch="100")).pages()
                assert next(pages).sequences == [*range(part.start, part.start + 100)]
                pages.close()
            found = [read(js, stream, part=part, fetchBatch="77") for part in parts]
            assert [each[0] for each in found] == [1, 251, 501, 751]
            assert [n for each in found for n in each] == [*range(1, 1001)]
            assert [again[part.start] for part in parts] == found

    @pytest.mark.parametrize("allow_direct", [True, False])
    def test_a_part_has_exactly_its_messages(self, js, allow_direct):
        """A part has exactly its messages, with direct gets and without."""
        with numbered(js, 30, subjects=3, allow_direct=allow_direct) as stream:
            for sequence in (2, 9, 10, 11, 30):
                stream.delete_message(sequence)
            there = [n for n in range(1, 31) if n not in {2, 9, 10, 11, 30}]
            assert read(js, stream) == there
            assert read(js, stream, 5, 20, fetchBatch="4") == [n for n in there if 5 <= n < 20]
            assert read(js, stream, 9, 12) == []
            assert read(js, stream, 29, 31) == [29]
            assert read(js, stream, 7, 8) == [7]
            some = f"{stream.name}.1"
            assert read(js, stream, subjectFilter=some) == [n for n in there if n % 3 == 1]
            assert read(js, stream, 5, 8, subjectFilter=some) == [7]
            assert read(js, stream, subjectFilter="nothing.here") == []
            both = f"{some},{stream.name}.2"
            wanted = [n for n in there if n % 3]
            assert read(js, stream, subjectFilter=both, fetchBatch="5") == wanted

    @pytest.mark.parametrize("allow_direct", [True, False])
    @pytest.mark.parametrize(
        ("filters", "rests"),
        [
            ("{0}.>,{0}.2", {0, 1, 2}),
            ("{0}.2,{0}.*", {0, 1, 2}),
            ("{0}.*,{0}.>,>", {0, 1, 2}),
            ("{0}.2,{0}.2", {2}),
            ("{0}.2,{0}.1,{0}.2", {1, 2}),
            ("*.2,{0}.*", {0, 1, 2}),
            ("*.2,{0}.1,{0}.2.>", {1, 2}),
            ("*.2.>,{0}.*.x,{0}.1", {1}),
        ],
    )
    def test_filters_may_overlap(self, js, allow_direct, filters, rests):
        """A message that matches several filters is one row, with direct gets and without."""
        with numbered(js, 30, subjects=3, allow_direct=allow_direct) as stream:
            wanted = filters.format(stream.name)
            there = [n for n in range(3, 31) if n % 3 in rests]
            assert read(js, stream, 3, subjectFilter=wanted, fetchBatch="4") == there

    def test_a_range_of_an_empty_stream_has_no_rows(self, js):
        """An empty stream has no rows."""
        with numbered(js, 0) as stream:
            assert read(js, stream) == []

    @pytest.mark.parametrize("allow_direct", [True, False])
    @pytest.mark.parametrize("filters", ["{0}.>", "{0}.0,{0}.1"])
    def test_pages_have_their_size(self, js, allow_direct, filters):
        """The messages and bytes of one request are limited."""
        with numbered(js, 100, subjects=2, size=10_000, allow_direct=allow_direct) as stream:
            given = {"fetchBatch": "30", "subjectFilter": filters.format(stream.name)}

            def sizes(most):
                options = asked(stream, fetchMaxBytes=most, **given)
                pages = [*RangeReader(stream, part_of(js, stream), options).pages()]
                assert [n for page in pages for n in page.sequences] == [*range(1, 101)]
                return list(map(len, pages))

            assert 30 in sizes("1000000")
            assert 1 < max(sizes("100000")) <= 10
            assert max(sizes("5000")) == 1

    @pytest.mark.parametrize("allow_direct", [True, False])
    def test_rows_have_the_headers_in_order_with_all_values(self, js, allow_direct):
        """Headers are those of the message, in order and with all values."""
        with numbered(js, 0, allow_direct=allow_direct) as stream:
            sent = jetsync.Headers([("B", "1"), ("a", "2"), ("B", "3")])
            js.publish(f"{stream.name}.x", b"", headers=sent)
            (page,) = RangeReader(stream, part_of(js, stream), asked(stream)).pages()
            assert page[0].headers.items() == sent.items()
            assert page.subjects == [f"{stream.name}.x"]


class TestLedger:
    @pytest.mark.parametrize("allow_direct", [True, False])
    def test_messages_of_ledgers_are_no_rows(self, js, nats_server, target, allow_direct):
        """Messages of a writer's ledger are left out, unless they are requested."""
        pytest.importorskip(
            "pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python"
        )
        # It needs them, and other tests of this file do not.
        from pyspark.sql import types

        from jetsync_spark.read.batch import read_ranges

        kinds = {"data": "binary", "subject": "string"}
        js.update_stream(target.info().config, allow_direct=allow_direct)
        plan = plan_for(nats_server, target.name, mode="exactlyonce", chunk_size=11)
        layout.record_partitions(plan, Task(query="q", batch=0), 1)
        rows = [*rows_of(target.name, 30), (f"{target.name}.x", b'{"v":1,"key":"of a row"}')]
        run(plan, rows)

        def found(column="data", **options):
            table = Table(types.StructType().add(column, kinds[column]), STREAM_COLUMNS)
            settings, part = ConnectSettings(servers=nats_server.url), part_of(js, target)
            batches = read_ranges(settings, asked(target, **options), table, (part,))
            return [row for batch in batches for row in batch.column(0).to_pylist()]

        assert found() == found(fetchBatch="1") == [data for _, data in rows]
        # Without the payloads among the columns, too.
        assert found("subject") == [subject for subject, _ in rows]
        assert len(found(includeLedger="true")) == target.info().state.messages == 36


class TestLoss:
    @pytest.mark.parametrize("allow_direct", [True, False])
    def test_purged_before(self, js, allow_direct):
        """Messages that were purged after planning are an error with both numbers, or skipped."""
        with numbered(js, 30, allow_direct=allow_direct) as stream:
            part = part_of(js, stream, 5, 25)
            stream.purge(sequence=15)
            with pytest.raises(
                JetStreamSparkError,
                match=rf"sequences 5 to 14 are missing.*begins at 15 .stream {stream.name}.*"
                "failOnDataLoss to false",
            ):
                read(js, stream, part=part)
            assert read(js, stream, part=part, failOnDataLoss="false") == [*range(15, 25)]
            stream.purge()
            with pytest.raises(JetStreamSparkError, match=r"5 to 24 are missing.*begins at 31"):
                read(js, stream, part=part)
            assert read(js, stream, part=part, failOnDataLoss="false") == []

    def test_a_purge_before_the_part(self, js):
        """A purge of earlier messages does not affect the part."""
        with numbered(js, 30) as stream:
            part = part_of(js, stream, 15, 25)
            stream.purge(sequence=15)
            assert read(js, stream, part=part) == [*range(15, 25)]

    @pytest.mark.parametrize("fails", ["true", "false"])
    def test_purged_meanwhile(self, js, fails):
        """The same holds if some of the part has been read."""
        with numbered(js, 300) as stream:
            options = asked(stream, fetchBatch="20", failOnDataLoss=fails)
            pages = RangeReader(stream, part_of(js, stream), options).pages()
            found = next(pages).sequences
            stream.purge(sequence=200)
            if fails == "true":
                with pytest.raises(JetStreamSparkError, match="begins at 200"):
                    list(pages)
                return
            for page in pages:
                found += page.sequences
            gap = [n for n in range(1, 301) if n not in found]
            assert gap == [*range(gap[0], 200)]
            assert gap[0] in {21, 41, 61}

    def test_read_and_then_purged(self, js):
        """A purge of messages that were read is no loss, also if there was a gap."""
        with numbered(js, 300) as stream:
            stream.delete_message(5)
            stream.delete_message(150)
            pages = RangeReader(
                stream, part_of(js, stream), asked(stream, fetchBatch="100")
            ).pages()
            found = next(pages).sequences
            stream.purge(sequence=50)
            found += next(pages).sequences
            stream.purge(sequence=180)
            for page in pages:
                found += page.sequences
            assert found == [n for n in range(1, 301) if n not in {5, 150}]

    def test_deleted_ones_are_no_loss(self, js):
        """Deleted messages are skipped, also if they are deleted after planning."""
        with numbered(js, 30) as stream:
            part = part_of(js, stream)
            for sequence in (2, 3, 29, 30):
                stream.delete_message(sequence)
            assert read(js, stream, part=part) == [1, *range(4, 29)]

    @pytest.mark.parametrize("allow_direct", [True, False])
    def test_a_recreated_stream_is_not_the_planned_one(self, js, allow_direct):
        """A stream with the same name is not the one that was planned."""
        with numbered(js, 30, allow_direct=allow_direct) as stream:
            part = part_of(js, stream)
            remake(js, stream, 40)
            with pytest.raises(
                JetStreamSparkError, match="created again or restored: it is from 2"
            ):
                read(js, stream, part=part)
            assert read(js, stream, part=part, failOnDataLoss="false") == []

    @pytest.mark.parametrize("allow_direct", [True, False])
    @pytest.mark.parametrize("fails", ["true", "false"])
    def test_made_again_meanwhile(self, js, allow_direct, fails):
        """Rows of another stream are not returned as those that were planned."""
        with numbered(js, 300, allow_direct=allow_direct) as stream:
            options = asked(stream, fetchBatch="20", failOnDataLoss=fails)
            pages = RangeReader(stream, part_of(js, stream), options).pages()
            next(pages)
            remake(js, stream, 300, size=9)
            if fails == "true":
                with pytest.raises(JetStreamSparkError, match="was created again"):
                    list(pages)
            else:
                assert {len(data) for page in pages for data in page.data} <= {8}

    def test_another_mirror_meanwhile(self, js):
        """A mirror of another stream has messages that are older than the part's first page."""
        with numbered(js, 300) as one, numbered(js, 300) as other:
            copy = js.create_stream(
                "COPY", mirror=jetsync.StreamSource(name=one.name), allow_direct=True
            )
            eventually(lambda: copy.info().state.messages == 300)
            pages = RangeReader(copy, part_of(js, copy), asked(copy, fetchBatch="20")).pages()
            next(pages)
            copy.delete()
            again = js.create_stream(
                "COPY", mirror=jetsync.StreamSource(name=other.name), allow_direct=True
            )
            eventually(lambda: again.info().state.messages == 300)
            with pytest.raises(JetStreamSparkError, match="was created again"):
                list(pages)
            again.delete()

    def test_gaps_are_expected_if_new_messages_replace_old_ones(self, js):
        """If new messages replace old ones, gaps are expected, unless configured otherwise."""
        with numbered(js, 30, subjects=10, max_msgs_per_subject=1) as stream:
            part = part_of(js, stream, 21, 31)
            extend(js, stream, 5, subjects=10)
            assert read(js, stream, part=part) == [*range(26, 31)]
            with pytest.raises(JetStreamSparkError, match="sequences 21 to 25"):
                read(js, stream, part=part, failOnDataLoss="true")


class TestAway:
    @pytest.mark.parametrize("allow_direct", [True, False])
    def test_reading_continues_after_a_restart_of_the_server(self, allow_direct):
        """Reading continues after the last message."""
        with DevServer() as server, jetsync.connect(server.url, reconnect_wait=0.05) as client:
            js = client.jetstream()
            with numbered(js, 500, storage="file", allow_direct=allow_direct) as stream:
                options = asked(stream, fetchBatch="50")
                pages = RangeReader(stream, part_of(js, stream), options).pages()
                found = next(pages).sequences
                server.restart()
                for page in pages:
                    found += page.sequences
                assert found == [*range(1, 501)]
                eventually(lambda: client.is_connected)

    def test_for_too_long(self):
        """A server that stays down raises an error in time, with advice."""
        with (
            DevServer() as server,
            jetsync.connect(
                server.url, reconnect_wait=0.05, max_reconnect_wait=0.05, request_timeout=5
            ) as client,
        ):
            js = client.jetstream()
            with numbered(js, 500, storage="file") as stream:
                options = asked(stream, fetchBatch="50", retryTimeoutMs="500")
                pages = RangeReader(stream, part_of(js, stream), options).pages()
                next(pages)
                server.kill()
                with pytest.raises(
                    JetStreamSparkError, match=r"reading failed on .*check that the servers"
                ):
                    list(pages)
                server.restart()


class TestReplicas:
    @pytest.fixture
    def replica(self, js, monkeypatch):
        """
        A factory of a replica with that many messages of a stream, which that many consumers use.
        """
        made = []

        def behind(stream, count, times):
            source = jetsync.StreamSource(name=stream.name)
            replica = js.create_stream(f"{stream.name}-2", mirror=source, storage="memory")
            made.append(replica)
            eventually(lambda: replica.info().state.last_seq == stream.info().state.last_seq)
            for sequence in range(count + 1, replica.info().state.last_seq + 1):
                replica.delete_message(sequence)
            consumer = jetsync.Stream.ordered_consumer
            ask = iter([replica] * times)
            monkeypatch.setattr(
                jetsync.Stream,
                "ordered_consumer",
                lambda self, **options: consumer(next(ask, self), **options),
            )

        yield behind
        for each in made:
            each.delete()

    @pytest.mark.parametrize("there", [0, 20])
    @pytest.mark.parametrize("wanted", [None, "1", "2,1"])
    def test_one_that_is_behind(self, js, replica, there, wanted):
        """Messages that a consumer on the replica does not find are requested from the leader."""
        with numbered(js, 30, subjects=3, allow_direct=False) as stream:
            replica(stream, there, 2)
            for sequence in (21, 28, 29):
                stream.delete_message(sequence)
            options = {}
            if wanted:
                filters = [f"{stream.name}.{each}" for each in wanted.split(",")]
                options["subjectFilter"] = ",".join(filters)
            left = [n for n in range(1, 30) if n not in {21, 28, 29}]
            left = [n for n in left if not wanted or str(n % 3) in wanted]
            assert read(js, stream, 1, 30, **options) == left

    def test_one_that_stays_behind(self, js, replica):
        """A replica that never catches up raises an error in time, rather than ending the read."""
        with numbered(js, 30, allow_direct=False) as stream:
            replica(stream, 20, 1000)
            with pytest.raises(
                JetStreamSparkError,
                match=rf"replica lags behind: the leader has sequence 21, .* from 21 on .stream "
                rf"{stream.name}.: .*raise retryTimeoutMs",
            ):
                read(js, stream, retryTimeoutMs="500")


class TestOrigin:
    @pytest.mark.parametrize("policy", ["workqueue", "interest"])
    def test_a_stream_that_removes_consumed_messages_is_refused(self, js, policy):
        """A stream that removes consumed messages is refused, and the error gives the reason."""
        with (
            numbered(js, 3, retention=policy) as stream,
            pytest.raises(JetStreamSparkError, match=f"retention {policy} cannot be read by seq"),
        ):
            origin_now(js, stream.name)

    def test_the_error_of_a_missing_stream_has_advice(self, js):
        """The error has the stream, the server's code and the advice."""
        with pytest.raises(JetStreamSparkError, match=r"no_such.*10059.*create the stream"):
            Retry(5.0).call(lambda: origin_now(js, "no_such"), "planning failed", "no_such")

    def test_a_server_that_starts(self):
        """For some seconds, a server may answer that it has no JetStream."""
        answers = [jetsync.JetStreamNotEnabledError(), jetsync.JetStreamNotEnabledError(), None]

        def call():
            answer = answers.pop(0)
            if answer is not None:
                raise answer
            return "started"

        assert Retry(5.0).call(call, "planning failed", "any") == "started"

    def test_sequences_that_no_long_holds(self, js):
        """Sequences have 64 bits without a sign, and none is truncated."""
        largest = (1 << 63) - 1
        with numbered(js, 0, first_seq=largest - 4) as stream:
            js.publish(f"{stream.name}.0", b"%d ." % (largest - 4))
            assert read(js, stream, start=largest - 4) == [largest - 4]
            js.publish_many((f"{stream.name}.0", b"") for _ in range(5))
            with pytest.raises(
                JetStreamSparkError, match=f"sequence is {1 << 63}, which exceeds Spark's"
            ):
                origin_now(js, stream.name)

    def test_the_start_is_a_word_a_sequence_or_a_time(self, js):
        """The start is a word, a sequence or a time."""
        with numbered(js, 30) as stream:
            stream.purge(sequence=11)
            origin = origin_now(js, stream.name)
            assert (origin.first, origin.next) == (11, 31)

            def begin(**options):
                return start_of(asked(stream, **options), stream, origin, default="latest")

            assert begin() == 31
            assert begin(startingOffsets="earliest") == 11
            assert begin(startingOffsets='{"seq": 20}') == 20
            assert begin(startingOffsets='{"seq": 31}') == 31
            assert begin(startingOffsets='{"seq": 3}') == 3
            with pytest.raises(OptionError, match="ends at sequence 30, before startingOffsets 32"):
                begin(startingOffsets='{"seq": 32}')
            assert begin(startingTimestamp="0", startingOffsets="latest") == 11
            millisecond = stream.get_message(20).timestamp_ns // 1_000_000
            first = next(
                n for n in range(11, 31)
                if stream.get_message(n).timestamp_ns >= millisecond * 1_000_000
            )  # fmt: skip
            assert begin(startingTimestamp=str(millisecond)) == first
            later = stream.get_message(30).timestamp + dt.timedelta(hours=1)
            future = later.isoformat()
            with pytest.raises(OptionError, match="no message since startingTimestamp"):
                begin(startingTimestamp=future)
            latest = {"startingOffsetsByTimestampStrategy": "latest"}
            assert begin(startingTimestamp=future, **latest) == 31
            assert sequence_at(js.stream(origin.stream), later) is None
