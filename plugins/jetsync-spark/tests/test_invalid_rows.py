"""
Rows that cannot be stored: what counts as invalid, and what becomes of them.
"""

import json

import attrs
import pyarrow as pa
import pytest
from invalid_rows import (
    REASON,
    Broken,
    Picky,
    Row,
    both_ways,
    good_and_bad,
    in_each_mode,
    stored,
    write,
)
from writing import again, in_task, payloads, plan_for, rows_of, run

import jetsync
from jetsync_spark.common.clients import forget
from jetsync_spark.common.errors import JetStreamSparkError, OptionError, RowError
from jetsync_spark.write import partition as writing
from jetsync_spark.write import plan as planning
from jetsync_spark.write.columns import Columns
from jetsync_spark.write.metrics import count_written
from jetsync_spark.write.options import WriteOptions
from jetsync_spark.write.plan import columns_of
from jetsync_spark.write.written import Written


@in_each_mode
@both_ways
class TestPolicies:
    def test_fail_names_the_row(self, plan, target, mode, way):
        """By default, an invalid row fails the task."""
        with pytest.raises(RowError, match=r"row 30 of partition 0: .* does not capture"):
            write(plan(mode, "fail"), good_and_bad(target.name, 60, {30}), way)

    def test_skip_leaves_the_row_out(self, plan, target, mode, way):
        """The other rows are stored in order, and the invalid rows are counted."""
        bad = {0, 7, 8, 59}

        written = write(plan(mode), good_and_bad(target.name, 60, bad), way)

        assert stored(target)[0] == [n for n in range(60) if n not in bad]
        assert (written.rows, written.stored, written.invalid) == (60, 56, 4)

    def test_a_dead_letter_replaces_the_row(self, plan, target, mode, way):
        """It has the payload of the row, the reason, and where the row came from."""
        bad = {0, 7, 8, 59}

        written = write(plan(mode, "deadLetter"), good_and_bad(target.name, 60, bad), way)

        rows, letters = stored(target)
        assert rows == [n for n in range(60) if n not in bad]
        assert [int(each.data) for each in letters] == sorted(bad)
        headers = letters[1].headers
        assert headers[REASON] == f"stream {target.name} does not capture its subject"
        about = ("Stream", "Subject", "Query", "Batch", "Partition", "Row")
        assert [headers[f"Jetsync-Dead-Letter-{name}"] for name in about] == [
            target.name,
            "elsewhere",
            "q",
            "0",
            "0",
            "7",
        ]
        assert (written.rows, written.stored, written.invalid) == (60, 56, 4)

    def test_all_rows_may_be_invalid(self, plan, target, mode, way):
        """The task ends, and all of them are dead letters."""
        written = write(
            plan(mode, "deadLetter"), good_and_bad(target.name, 1500, set(range(1500))), way
        )

        rows, letters = stored(target)
        assert not rows
        assert len(letters) == 1500
        assert (written.rows, written.stored, written.invalid) == (1500, 0, 1500)


FULL = {
    "subject": pa.string(),
    "data": pa.binary(),
    "headers": pa.map_(pa.string(), pa.list_(pa.string())),
    "msg_id": pa.string(),
    "ttl": pa.string(),
    "expected_sequence": pa.int64(),
}


class TestWhatIsInvalid:
    @pytest.mark.parametrize("mode", ["atleastonce", "exactlyonce"])
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"subject": None}, "the subject is null"),
            ({"subject": "s.a b"}, "the subject has a space"),
            ({"subject": "elsewhere"}, "does not capture its subject"),
            ({"data": b"x" * 2_000_000}, "the payload has 2000000 bytes"),
            ({"headers": [("a b", ["x"])]}, "invalid header 'a b'"),
            ({"headers": [("a", ["x\ny"])]}, "the value contains a line break"),
            ({"headers": [("Nats-Rollup", ["all"])]}, "would have an effect on the server"),
            ({"headers": [("a", ["x" * 1_100_000])]}, "bytes"),
            ({"msg_id": " "}, "the message ID is empty"),
            ({"ttl": "0"}, "the time-to-live is 0"),
            ({"ttl": "soon"}, "the time-to-live is 'soon'"),
            ({"expected_sequence": -1}, "must be at least 0, not -1"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_a_value(self, plan, target, mode, change, said):
        """The reason says what is wrong with the row, and the other rows are stored."""
        good = [
            {"subject": f"{target.name}.a", "data": b"%d" % n, **dict.fromkeys(list(FULL)[2:])}
            for n in range(9)
        ]
        rows = [*good[:5], {**good[0], "data": b"bad", **change}, *good[5:]]
        batch = pa.RecordBatch.from_pylist(rows, pa.schema(list(FULL.items())))

        with in_task(query="q", batch=0):
            written = writing.write_batches(plan(mode, "deadLetter"), [batch])

        kept, (letter,) = stored(target)
        assert kept == list(range(9))
        assert said in letter.headers[REASON]
        assert letter.headers["Jetsync-Dead-Letter-Row"] == "5"
        assert (written.rows, written.stored, written.invalid) == (10, 9, 1)

    @in_each_mode
    def test_too_large_for_the_stream(self, js, nats_server, unique, mode):
        """The limits of the streams apply to rows and to dead letters."""
        stream = js.create_stream(
            unique,
            subjects=[f"{unique}.>"],
            allow_atomic=True,
            allow_direct=True,
            max_msg_size=5000,
        )
        plan = plan_for(
            nats_server,
            unique,
            mode=mode,
            on_invalid_row="deadLetter",
            dead_letter_subject=f"{unique}.dead",
        )
        # With the headers of a batch, the second row is too large, too.
        rows = [{"subject": f"{unique}.a", "data": b"1" * size} for size in (9000, 4990, 100)]
        try:
            written = write(plan, rows)
            letters = [each for each in stream.scan() if each.subject == f"{unique}.dead"]
        finally:
            js.delete_stream(unique)

        assert written.invalid == (1 if mode == "atleastonce" else 2)
        assert len(letters) == written.invalid
        assert letters[0].headers["Jetsync-Dead-Letter-Truncated-From"] == "9000"
        assert letters[0].data == b"1" * (5000 - 4096)

    @in_each_mode
    def test_a_plugin_refuses_it(self, nats_server, target, mode):
        """A message that a plugin refuses with a ValueError, as jetsync-schema does, is invalid."""
        plan = planning.make_plan(
            jetsync.ConnectOptions(servers=nats_server.url, plugins=[Picky()]),
            WriteOptions(
                stream=target.name,
                mode=mode,
                chunk_size=20,
                on_invalid_row="deadLetter",
                dead_letter_subject=f"{target.name}.dead",
            ),
            Columns(),
        )
        rows = rows_of(target.name, 60)
        rows[31] = rows[45] = (f"{target.name}.a", b"bad")

        try:
            written = run(plan, rows)
            replayed = run(again(plan), rows)
        finally:
            forget(plan.settings)

        letters = [each for each in target.scan() if each.subject == f"{target.name}.dead"]
        assert [each.headers["Jetsync-Dead-Letter-Row"] for each in letters[:2]] == ["31", "45"]
        assert "bad payload" in letters[0].headers[REASON]
        assert (written.rows, written.stored, written.invalid) == (60, 58, 2)
        if mode == "exactlyonce":
            assert len(letters) == 2
            assert (replayed.stored, replayed.skipped) == (0, 60)

    @pytest.mark.parametrize("mode", ["atleastonce", "atomic"])
    def test_a_plugin_refuses_all(self, nats_server, target, mode):
        """Dead letters are stored while the rows are read, so that they do not fill the memory."""
        plan = planning.make_plan(
            jetsync.ConnectOptions(servers=nats_server.url, plugins=[Picky()]),
            WriteOptions(
                stream=target.name,
                mode=mode,
                on_invalid_row="deadLetter",
                dead_letter_subject=f"{target.name}.dead",
            ),
            Columns(),
        )
        seen = []

        def rows():
            yield from [(f"{target.name}.a", b"bad")] * 20_000
            seen.append(target.info().state.messages)

        try:
            written = run(plan, rows())
        finally:
            forget(plan.settings)

        assert (written.rows, written.stored, written.invalid) == (20_000, 0, 20_000)
        assert target.info().state.messages == 20_000
        assert seen[0] >= 10_000

    @in_each_mode
    def test_a_plugin_fails(self, nats_server, target, mode):
        """Another error of a plugin may concern all messages, so that the task fails."""
        plan = planning.make_plan(
            jetsync.ConnectOptions(servers=nats_server.url, plugins=[Broken()]),
            WriteOptions(stream=target.name, mode=mode, on_invalid_row="skip"),
            Columns(),
        )

        with pytest.raises(JetStreamSparkError, match="Broken"):
            run(plan, rows_of(target.name, 5))
        assert not payloads(target)

    @in_each_mode
    def test_a_sequence_that_the_stream_does_not_have(self, plan, target, mode):
        """It depends on the state of the stream, not only on the row, so that the task fails."""
        rows = [
            {"subject": f"{target.name}.a", "data": b"1", "expected_sequence": sequence}
            for sequence in (None, 9)
        ]
        rows[1]["subject"] = f"{target.name}.b"

        with pytest.raises(JetStreamSparkError, match="10071"):
            write(plan(mode), rows)

    def test_a_full_stream(self, js, nats_server, unique):
        """Rows that a full stream rejects are not invalid, so that the task fails."""
        js.create_stream(unique, subjects=[f"{unique}.>"], max_msgs=3, discard="new")
        plan = plan_for(nats_server, unique, on_invalid_row="skip", retry_timeout=0.1)

        try:
            with pytest.raises(JetStreamSparkError, match="could not be stored"):
                run(plan, rows_of(unique, 5))
        finally:
            js.delete_stream(unique)

    def test_a_function_makes_the_messages(self, plan, target):
        """A row for which the function raises is invalid, and the dead letter has its columns."""

        def make(row):
            return f"{target.name}.a", b"%d" % (1 // row.n)

        made = attrs.evolve(plan("atleastonce", "deadLetter"), make=make)
        with in_task():
            written = writing.write_rows(made, [Row(n=1, x="y"), Row(n=0, x="y")])

        (_, (letter,)) = stored(target)
        assert written.invalid == 1
        assert json.loads(letter.headers["Jetsync-Dead-Letter-Columns"]) == {"n": 0, "x": "y"}
        assert letter.headers[REASON] == "integer division or modulo by zero"


class TestPlanning:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"on_invalid_row": "drop"}, "give fail, skip or deadLetter"),
            ({"on_invalid_row": "deadLetter"}, "deadLetter needs a subject: set deadLetterSubject"),
            ({"dead_letter_subject": "x"}, "no effect with onInvalidRow fail"),
            ({"on_invalid_row": "skip", "dead_letter_subject": "x"}, "no effect with .* skip"),
            ({"on_invalid_row": "deadLetter", "dead_letter_subject": "a.*"}, "has a wildcard"),
            ({"on_invalid_row": "deadLetter", "dead_letter_subject": "a.{b}"}, "has braces"),
            ({"on_invalid_row": "skip", "fast_ingest": True}, "leave out fastIngest"),
        ],
    )
    def test_options_that_do_not_fit(self, options, said):
        """The error says which option to change."""
        with pytest.raises(OptionError, match=said):
            WriteOptions(stream="S", **options)

    def test_exactly_once_needs_the_same_stream(self, nats_server, target):
        """Otherwise the server could not store rows and dead letters together."""
        with pytest.raises(OptionError, match=r"does not capture their subject dead\.x: add it"):
            plan_for(
                nats_server,
                target.name,
                mode="exactlyonce",
                on_invalid_row="deadLetter",
                dead_letter_subject="dead.x",
            )

    def test_no_stream_for_the_dead_letters(self, nats_server, target):
        """The plan fails before a row is sent."""
        with pytest.raises(JetStreamSparkError, match="no stream captures the subject of the dead"):
            plan_for(
                nats_server,
                target.name,
                on_invalid_row="deadLetter",
                dead_letter_subject="dead.nowhere",
            )

    def test_one_subject_for_both(self, nats_server, target):
        """Readers could not tell rows from dead letters."""
        with pytest.raises(OptionError, match="rows and dead letters have the same subject"):
            plan_for(
                nats_server,
                target.name,
                columns=columns_of(f"{target.name}.a", constant=True),
                on_invalid_row="deadLetter",
                dead_letter_subject=f"{target.name}.a",
            )

    def test_the_subject_of_the_ledger(self, nats_server, target):
        """A dead letter there would be taken for an entry of the ledger."""
        with pytest.raises(OptionError, match="because the ledger has"):
            plan_for(
                nats_server,
                target.name,
                mode="exactlyonce",
                on_invalid_row="deadLetter",
                dead_letter_subject=f"ledger.{target.name}.dead",
            )

    def test_a_stream_for_small_messages_only(self, js, nats_server, target, unique):
        """Dead letters need room for their headers."""
        js.create_stream(f"{unique}-DEAD", subjects=[f"dead.{unique}"], max_msg_size=1000)
        try:
            with pytest.raises(JetStreamSparkError, match="max_msg_size below 4096"):
                plan_for(
                    nats_server,
                    target.name,
                    on_invalid_row="deadLetter",
                    dead_letter_subject=f"dead.{unique}",
                )
        finally:
            js.delete_stream(f"{unique}-DEAD")


def test_opentelemetry_counts_rows_by_their_outcome(monkeypatch):
    """
    Each outcome is counted for the stream and the query. Rows that do not exist are not counted.
    """
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = export.InMemoryMetricReader()
    monkeypatch.setattr("opentelemetry.metrics.get_meter", sdk.MeterProvider([reader]).get_meter)

    counts = count_written("S", "q", [Written(stored=3, invalid=1), Written(stored=2)])

    assert counts == {"stored": 5, "duplicates": 0, "skipped": 0, "invalid": 1}
    (metric,) = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == "jetsync.spark.written"
    found = {each.attributes["jetsync.spark.outcome"]: each for each in metric.data.data_points}
    assert {outcome: each.value for outcome, each in found.items()} == {"stored": 5, "invalid": 1}
    assert found["invalid"].attributes["messaging.destination.name"] == "S"
    assert found["invalid"].attributes["jetsync.spark.query"] == "q"


class TestFail:
    @pytest.mark.parametrize(
        "change",
        [
            {"subject": None},
            {"data": b"x" * 2_000_000},
            {"headers": [("a b", ["x"])]},
            {"ttl": "0"},
            {"expected_sequence": -1},
        ],
        ids=lambda value: next(iter(value)),
    )
    def test_nothing_of_the_batch_is_sent(self, plan, target, change):
        """A batch of Arrow is checked as a whole, so that a retry stores few rows twice."""
        good = {"subject": f"{target.name}.a", "data": b"1", **dict.fromkeys(list(FULL)[2:])}
        rows = [{**good}, *([good] * 4998), {**good, **change}]
        batch = pa.RecordBatch.from_pylist(rows, pa.schema(list(FULL.items())))

        with in_task(), pytest.raises(RowError, match="row 4999 of partition 0"):
            writing.write_batches(plan(policy="fail"), [batch])

        assert target.info().state.messages == 0
