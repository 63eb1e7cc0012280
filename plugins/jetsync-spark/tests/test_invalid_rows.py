import collections
import itertools
import json
import os
import random
import signal
import time
import traceback

import attrs
import pyarrow as pa
import pytest
from waiting import eventually
from writing import again, in_task, payloads, plan_for, rows_of, run

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.clients import forget
from jetsync_spark.common.errors import JetStreamSparkError, OptionError, RowError
from jetsync_spark.common.task import Task
from jetsync_spark.write import partition as writing
from jetsync_spark.write import plan as planning
from jetsync_spark.write.columns import Columns
from jetsync_spark.write.invalid import InvalidRows
from jetsync_spark.write.ledger import LayoutError
from jetsync_spark.write.metrics import count_written
from jetsync_spark.write.options import WriteOptions
from jetsync_spark.write.plan import columns_of
from jetsync_spark.write.written import Written

Row = pytest.importorskip("pyspark.sql").Row

MODES = ("atleastonce", "atomic", "exactlyonce")
in_each_mode = pytest.mark.parametrize("mode", MODES)
both_ways = pytest.mark.parametrize("way", ["rows", "batches"])

REASON = "Jetsync-Dead-Letter-Reason"


def write(plan, values, way="batches", *, batch=0, partition=0):
    """
    Write rows, given as mappings, as a task does.
    """
    with in_task(partition=partition, query="q", batch=batch):
        if way == "rows":
            return writing.write_rows(plan, [Row(**each) for each in values])
        return writing.write_batches(plan, [pa.RecordBatch.from_pylist(values)])


def good_and_bad(stream, count, bad):
    """
    Return rows of which some have a subject that their stream does not capture.
    """
    return [
        {"subject": "elsewhere" if n in bad else f"{stream}.a", "data": b"%d" % n}
        for n in range(count)
    ]


def stored(stream):
    """
    Return the payloads of rows in order, and the dead letters.
    """
    letters = [each for each in stream.scan() if each.subject == f"{stream.name}.dead"]
    rows = [
        int(each.data)
        for each in stream.scan()
        if each.subject != f"{stream.name}.dead" and not each.subject.startswith("ledger.")
    ]
    return rows, letters


@pytest.fixture
def plan(nats_server, target):
    """
    A factory of plans.
    """

    def make(mode="atleastonce", policy="skip", columns=None, **options):
        if policy == "deadLetter":
            options.setdefault("dead_letter_subject", f"{target.name}.dead")
        return plan_for(
            nats_server, target.name, mode=mode, columns=columns, on_invalid_row=policy, **options
        )

    return make


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


class Picky:
    """
    A plugin that refuses some messages.
    """

    name = "picky"

    @jetsync.hookimpl
    def jetsync_prepare_message(self, message):
        if message.data == b"bad" and "Jetsync-Dead-Letter-Reason" not in (message.headers or {}):
            raise ValueError("bad payload")

    def __eq__(self, other):
        return type(other) is type(self)

    def __hash__(self):
        return 7


class Strict(Picky):
    """
    A plugin that refuses dead letters, too.
    """

    name = "strict"

    @jetsync.hookimpl
    def jetsync_prepare_message(self, message):
        if message.data == b"bad":
            raise ValueError("bad payload")


class Broken(Picky):
    """
    A plugin with an error.
    """

    name = "broken"

    @jetsync.hookimpl
    def jetsync_prepare_message(self, message):
        raise RuntimeError("Broken")


class TestDeadLetters:
    def test_in_another_stream(self, js, nats_server, target, unique):
        """In modes without exactly once, any stream may have the dead letters."""
        other = js.create_stream(f"{unique}-DEAD", subjects=[f"dead.{unique}"], allow_direct=True)
        try:
            for mode in ("atleastonce", "atomic"):
                plan = plan_for(
                    nats_server,
                    target.name,
                    mode=mode,
                    on_invalid_row="deadLetter",
                    dead_letter_subject=f"dead.{unique}",
                )
                written = write(plan, good_and_bad(target.name, 3000, {n * 2 for n in range(1500)}))
                assert (written.rows, written.stored, written.invalid) == (3000, 1500, 1500)
            letters = [int(each.data) for each in other.scan()]
        finally:
            js.delete_stream(other.name)

        assert letters == [n * 2 for n in range(1500)] * 2
        assert written.last_sequence == target.info().state.last_seq

    def test_the_subject_was_moved(self, js, nats_server, target, unique):
        """The task fails if another stream stored them, and the next plan knows this stream."""

        def planned():
            return plan_for(
                nats_server,
                target.name,
                on_invalid_row="deadLetter",
                dead_letter_subject=f"dead.{unique}",
            )

        values = good_and_bad(target.name, 3, {1})
        js.create_stream(f"{unique}-1", subjects=[f"dead.{unique}"])
        plan = planned()
        js.delete_stream(f"{unique}-1")
        js.create_stream(f"{unique}-2", subjects=[f"dead.{unique}"])
        try:
            with pytest.raises(
                JetStreamSparkError,
                match=f"stream {unique}-2 has stored dead letters for stream {unique}-1",
            ):
                write(plan, values)
            assert write(planned(), values).invalid == 1
        finally:
            js.delete_stream(f"{unique}-2")

    @pytest.mark.parametrize(
        "row",
        [
            {"subject": "\ud800" * 99, "data": b"x"},
            {"subject": "a\r\nb" * 5000, "data": "ä" * 3_000_000},
            {"subject": None, "data": None},
            {"subject": " ", "data": "\udfff"},
            {"subject": 7, "data": object()},
            {"subject": "x", "data": b"x", "headers": {"a\nb": ["\x00" * 9000]}},
        ],
        ids=str.__class__,
    )
    def test_they_are_always_valid(self, plan, target, row):
        """A dead letter is stored, no matter what the row has."""
        written = write(plan("atleastonce", "deadLetter"), [row], "rows")

        assert written.invalid == 1
        assert len(stored(target)[1]) == 1

    def test_a_long_payload_is_cut_off(self, plan, target):
        """The dead letter has the start of the payload, and says how long the payload was."""
        write(
            plan("exactlyonce", "deadLetter"),
            [{"subject": f"{target.name}.a", "data": b"x" * 3_000_000}],
        )

        (_, (letter,)) = stored(target)
        assert letter.headers["Jetsync-Dead-Letter-Truncated-From"] == "3000000"
        assert 1_000_000 < len(letter.data) < 1 << 20

    def test_other_columns(self, plan, target):
        """The columns other than the payload are in a header, as JSON."""
        columns = columns_of(f"{target.name}.{{region}}", constant=False)
        write(
            plan("atleastonce", "deadLetter", columns),
            [{"region": "a.b", "msg_id": "m", "data": b"x"}],
        )

        (_, (letter,)) = stored(target)
        found = json.loads(letter.headers["Jetsync-Dead-Letter-Columns"])
        assert found == {"region": "a.b", "msg_id": "m"}
        assert letter.headers[REASON].startswith("column region, which is part of the subject, has")


def test_rows_of_messages(plan):
    """An error names the row of a message, also between rows that have no message."""
    gone = [0, 3, 4, 5, 9]
    invalid = InvalidRows(plan("exactlyonce"), Task(), 1 << 20)
    for row in gone:
        invalid.replace(RowError("bad", partition=0, row=row), {}, None, None)

    assert [invalid.row_of(n) for n in range(7)] == [1, 2, 6, 7, 8, 10, 11]
    assert (invalid.missing, invalid.count) == (5, 5)


class TestExactlyOnce:
    @pytest.mark.parametrize("policy", ["skip", "deadLetter"])
    @pytest.mark.parametrize("stop", [0, 9, 10, 11, 25, 38])
    def test_a_retry_stores_what_is_missing(self, plan, target, policy, stop):
        """Wherever the first run fails, each row and each dead letter is stored once."""
        bad = {0, 9, 10, 11, 33, 39}
        values = good_and_bad(target.name, 40, bad)
        plan = plan("exactlyonce", policy, chunk_size=6)

        def interrupted():
            for number in range(0, 40, 3):
                if number > stop:
                    raise ZeroDivisionError
                yield pa.RecordBatch.from_pylist(values[number : number + 3])

        with in_task(query="q", batch=0), pytest.raises(ZeroDivisionError):
            writing.write_batches(plan, interrupted())
        written = write(again(plan), values)

        rows, letters = stored(target)
        assert rows == [n for n in range(40) if n not in bad]
        assert [int(each.data) for each in letters] == (sorted(bad) if policy != "skip" else [])
        assert written.invalid == 6
        assert written.stored + written.skipped == 34

    def test_reasons_that_differ_in_each_run(self, plan, target):
        """A reason may have the address of an object, and a replay is accepted nevertheless."""
        runs = itertools.count()

        def make(row):
            if row.n % 4 == 0:
                raise ValueError(f"run {next(runs)} of {object()}")
            return f"{target.name}.a", b"%d" % row.n

        made = attrs.evolve(plan("exactlyonce", "deadLetter", chunk_size=6), make=make)
        rows = [Row(n=n) for n in range(40)]

        def interrupted():
            yield from rows[:25]
            raise ZeroDivisionError

        with in_task(query="q", batch=0):
            with pytest.raises(ZeroDivisionError):
                writing.write_rows(made, interrupted())
            written = writing.write_rows(again(made), rows)
            replayed = writing.write_rows(again(made), rows[::-1])

        found, letters = stored(target)
        assert found == [n for n in range(40) if n % 4]
        assert len(letters) == 10
        assert written.skipped + written.stored == 30
        assert (replayed.stored, replayed.skipped, replayed.invalid) == (0, 30, 10)

    @pytest.mark.parametrize(
        ("policies", "subjects"),
        [
            (("deadLetter", "skip"), ("dead", None)),
            (("skip", "deadLetter"), (None, "dead")),
            (("deadLetter", "deadLetter"), ("dead", "dead2")),
        ],
    )
    def test_other_options(self, plan, target, policies, subjects):
        """A replay that treats invalid rows in another way is rejected, and stores nothing."""
        values = good_and_bad(target.name, 20, {3})
        first, second = (
            plan(
                "exactlyonce",
                policy,
                chunk_size=6,
                dead_letter_subject=subject and f"{target.name}.{subject}",
            )
            for policy, subject in zip(policies, subjects, strict=True)
        )

        def interrupted():
            yield pa.RecordBatch.from_pylist(values[:12])
            raise ZeroDivisionError

        with in_task(query="q", batch=0), pytest.raises(ZeroDivisionError):
            writing.write_batches(first, interrupted())
        before = target.info().state.last_seq
        with pytest.raises(LayoutError):
            write(second, values)

        assert before
        assert target.info().state.last_seq == before

    def test_dead_letters_after_a_failed_run(self, plan, target):
        """A replay may begin to replace rows for which the first run failed."""
        values = good_and_bad(target.name, 20, {13})
        with in_task(query="q", batch=0), pytest.raises(RowError):
            writing.write_batches(
                plan("exactlyonce", "fail", chunk_size=6),
                (pa.RecordBatch.from_pylist(values[n : n + 5]) for n in range(0, 20, 5)),
            )
        before = target.info().state.messages
        written = write(plan("exactlyonce", "deadLetter", chunk_size=6), values)

        rows, letters = stored(target)
        assert before
        assert rows == [n for n in range(20) if n != 13]
        assert [int(each.data) for each in letters] == [13]
        assert written.skipped

    def test_a_refused_chunk_has_no_dead_letter(self, plan, target):
        """Dead letters are stored together with the rows around them, or not at all."""
        rows = [
            {"subject": f"{target.name}.a", "data": b"1", "expected_sequence": sequence}
            for sequence in (None, -1, None)
        ]
        # The stream does not have this sequence, so the server refuses the whole chunk.
        rows.append({"subject": f"{target.name}.b", "data": b"1", "expected_sequence": 9})

        with pytest.raises(JetStreamSparkError, match="10071"):
            write(plan("exactlyonce", "deadLetter"), rows)

        assert target.info().state.last_seq == 0

    def test_a_plugin_refuses_dead_letters(self, nats_server, target):
        """The task fails, because the row would be lost otherwise."""
        plan = planning.make_plan(
            jetsync.ConnectOptions(servers=nats_server.url, plugins=[Strict()]),
            WriteOptions(
                stream=target.name,
                mode="exactlyonce",
                on_invalid_row="deadLetter",
                dead_letter_subject=f"{target.name}.dead",
            ),
            Columns(),
        )

        try:
            with pytest.raises(JetStreamSparkError, match="bad payload"):
                run(plan, [(f"{target.name}.a", b"bad")])
        finally:
            forget(plan.settings)
        assert target.info().state.last_seq == 0

    def test_a_row_that_became_valid(self, js, plan, target):
        """A run that finds other rows invalid than the ledger is rejected, and stores nothing."""
        values = good_and_bad(target.name, 40, {3})
        write(plan("exactlyonce", "deadLetter", chunk_size=6), values)
        before = target.info().state.last_seq
        values[3]["subject"] = f"{target.name}.a"

        with pytest.raises(LayoutError):
            write(plan("exactlyonce", "deadLetter", chunk_size=6), values)

        assert target.info().state.last_seq == before


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


def write_on(server, name, commits, until):
    """
    Write all micro-batches that are not committed, like a driver that is restarted.
    """
    plan = plan_for(
        server,
        name,
        mode="exactlyonce",
        chunk_size=50,
        on_invalid_row="deadLetter",
        dead_letter_subject=f"{name}.dead",
    )
    for batch in range(len(list(commits.iterdir())), until):
        for partition in range(2):
            first = (2 * batch + partition) * 300
            values = [
                {
                    "subject": "elsewhere" if n % 7 == 0 else f"{name}.a",
                    "data": b"%d" % n,
                }
                for n in range(first, first + 300)
            ]
            write(plan, values, batch=batch, partition=partition)
        (commits / str(batch)).touch(exist_ok=False)


# Newer Pythons warn of forks in processes with threads; these children use none of the parent's.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_each_dead_letter_is_stored_once(nats_server, target, tmp_path):
    """
    Processes are killed at fifteen random moments of one run: no dead letter and no row is lost,
    and none is stored twice.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails.
    random.seed(seed)
    commits = tmp_path / "commits"
    commits.mkdir()

    def start(until):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                write_on(nats_server, target.name, commits, until)
                status = 0
            except BaseException:  # noqa: BLE001 - the child must not continue as a copy of the test.
                traceback.print_exc()
            finally:
                os._exit(status)
        return child

    def end(child):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    kills, until = 0, 6
    while kills < 15:
        before = target.info().state.last_seq
        child = start(until)
        eventually(
            lambda before=before, until=until: (
                target.info().state.last_seq > before or len(list(commits.iterdir())) == until
            ),
            60,
        )
        time.sleep(random.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        kills += end(child) < 0
        if len(list(commits.iterdir())) == until:
            until += 6
    assert end(start(until)) == 0

    rows, letters = stored(target)
    assert collections.Counter(rows) == collections.Counter(n for n in range(until * 600) if n % 7)
    assert collections.Counter(int(each.data) for each in letters) == collections.Counter(
        range(0, until * 600, 7)
    )


def test_a_restarted_server_loses_no_dead_letter():
    """The dead letters are sent again after the restart."""
    with DevServer() as server, jetsync.connect(server.url) as client:
        stream = client.jetstream().create_stream("S", subjects=["S.>"], allow_direct=True)
        plan = plan_for(server, "S", on_invalid_row="deadLetter", dead_letter_subject="S.dead")
        values = good_and_bad("S", 60, {3, 50})

        def batches():
            yield pa.RecordBatch.from_pylist(values[:30])
            server.kill()
            server.restart()
            yield pa.RecordBatch.from_pylist(values[30:])

        try:
            with in_task():
                writing.write_batches(plan, batches())
        finally:
            forget(plan.settings)
        client.flush(timeout=30)
        rows, letters = stored(stream)

    assert set(rows) == set(range(60)) - {3, 50}
    assert {int(each.data) for each in letters} == {3, 50}
