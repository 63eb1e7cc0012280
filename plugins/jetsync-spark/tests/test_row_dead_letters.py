"""
The dead letters of rows that cannot be stored, also under kills.
"""

import collections
import itertools
import json
import os
import random
import signal
import time

import attrs
import pyarrow as pa
import pytest
from children import end, start
from invalid_rows import (
    REASON,
    Picky,
    Row,
    Strict,
    good_and_bad,
    stored,
    write,
)
from waiting import eventually
from writing import again, in_task, plan_for, run

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.clients import forget
from jetsync_spark.common.errors import JetStreamSparkError, RowError
from jetsync_spark.common.task import Task
from jetsync_spark.write import partition as writing
from jetsync_spark.write import plan as planning
from jetsync_spark.write.columns import Columns
from jetsync_spark.write.invalid import InvalidRows
from jetsync_spark.write.ledger import LayoutError
from jetsync_spark.write.options import WriteOptions
from jetsync_spark.write.plan import columns_of


class TestDeadLetters:
    def test_a_plugin_changes_its_mind(self, nats_server, target):
        """A chunk of which rows are refused twice still names the right rows."""
        seen = []

        class Stricter(Picky):
            @jetsync.hookimpl
            def jetsync_prepare_message(self, message):
                if REASON in (message.headers or {}):
                    return
                seen.append(message.data)
                # The first attempt ends at the bad row, and then each row is checked.
                if message.data == b"bad" or (
                    message.data == b"later" and seen.count(b"later") > 1
                ):
                    raise ValueError("bad payload")

        plan = planning.make_plan(
            jetsync.ConnectOptions(servers=nats_server.url, plugins=[Stricter()]),
            WriteOptions(
                stream=target.name,
                mode="atomic",
                on_invalid_row="deadLetter",
                dead_letter_subject=f"{target.name}.dead",
            ),
            Columns(),
        )
        payloads = [b"%d" % n for n in range(10)]
        payloads[3], payloads[7] = b"bad", b"later"
        try:
            written = run(plan, [(f"{target.name}.a", each) for each in payloads])
        finally:
            forget(plan.settings)

        assert (written.stored, written.invalid) == (8, 2)
        letters = target.scan(subject=f"{target.name}.dead")
        found = {bytes(each.data): each.headers["Jetsync-Dead-Letter-Row"] for each in letters}
        assert found == {b"bad": "3", b"later": "7"}

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

    work = write_on, nats_server, target.name, commits
    kills, until = 0, 6
    while kills < 15:
        before = target.info().state.last_seq
        child = start(*work, until)
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
    assert end(start(*work, until)) == 0

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
