import datetime as dt
import decimal
from typing import ClassVar

import pyarrow as pa
import pytest

import jetsync
from jetsync_spark.common.errors import OptionError, RowError
from jetsync_spark.common.subjects import StreamSubjects, SubjectTemplate
from jetsync_spark.write.arrow_rows import batch_messages
from jetsync_spark.write.columns import Columns
from jetsync_spark.write.plan import columns_of
from jetsync_spark.write.rows import Checks, made_messages, row_messages

Row = pytest.importorskip("pyspark.sql").Row


def checks(*subjects):
    """
    Return the checks for a stream.
    """
    return Checks(StreamSubjects(subjects or ("s.>",)), "S", 3)


def messages(way, values, columns=None):
    """
    Make messages of rows, given as mappings, row by row or as batches.
    """
    columns = columns or Columns()
    if way == "rows":
        return list(row_messages([Row(**each) for each in values], columns, checks()))
    half = len(values) // 2
    parts = [part for part in (values[:half], values[half:]) if part]
    whole = pa.RecordBatch.from_pylist(values)
    batches = [pa.RecordBatch.from_pylist(part, schema=whole.schema) for part in parts]
    return list(batch_messages(batches, columns, checks()))


both_ways = pytest.mark.parametrize("way", ["rows", "batches"])


@both_ways
class TestValues:
    def test_a_row_is_a_pair(self, way):
        """
        A row without further columns is a subject and a payload; null means an empty payload.
        """
        made = messages(
            way,
            [{"subject": "s.a", "data": b"x"}, {"subject": "s.b", "data": None}]
            + [{"subject": "s.a", "data": b""}] * 3,
        )

        assert made == [("s.a", b"x"), ("s.b", b"")] + [("s.a", b"")] * 3

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            (None, "the subject is null"),
            ("elsewhere", r"S does not capture its subject .subject elsewhere.: add it"),
            ("s.", "the subject is empty"),
            ("s.a b", "the subject has a space"),
            ("s.>", "the subject has a wildcard"),
        ],
    )
    def test_invalid_subjects(self, way, value, said):
        """
        The error has the row, the partition and the advice.
        """
        good = [{"subject": "s.a", "data": b"x"}] * 5

        with pytest.raises(RowError, match=rf"row 5 of partition 3: .*{said}"):
            messages(way, [*good, {"subject": value, "data": b"x"}])

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            (None, "is null"),
            ("", "is empty"),
            ("a.b", "has a dot: 'a.b'"),
            ("a b", "has a space"),
            ("*", "has a wildcard"),
            ("a\nb", "has a space or a control"),
        ],
    )
    def test_values_that_would_break_a_subject(self, way, value, said):
        """
        The error names the column.
        """
        columns = columns_of("s.{origin}.x", constant=False)
        good = [{"origin": "A", "data": b"x"}] * 5

        with pytest.raises(RowError, match=rf"row 5 .*column origin, .*{said}") as caught:
            messages(way, [*good, {"origin": value, "data": b"x"}], columns)

        assert caught.value.column == "origin"

    def test_types_in_templates(self, way):
        """
        A template accepts text, numbers, dates and booleans.
        """
        columns = columns_of("s.{a}-{b}.{c}.{d}", constant=False)
        row = {"a": "A", "b": 7, "c": dt.date(2026, 1, 2), "d": False, "data": "x"}

        assert [made[0] for made in messages(way, [row], columns)] == ["s.A-7.2026-01-02.false"]

    def test_all_columns(self, way):
        """
        Headers have several values, and sequences 64 bits.
        """
        row = {
            "subject": "s.a",
            "data": b"x",
            "headers": {"a": ["1", "2"]},
            "msg_id": "m",
            "ttl": decimal.Decimal(60),
            "expected_sequence": decimal.Decimal(2**64 - 1),
        }
        if way == "batches":
            schema = pa.schema(
                [
                    ("subject", pa.string()),
                    ("data", pa.binary()),
                    ("headers", pa.map_(pa.string(), pa.list_(pa.string()))),
                    ("msg_id", pa.string()),
                    ("ttl", pa.decimal128(20, 0)),
                    ("expected_sequence", pa.decimal128(20, 0)),
                ]
            )
            batch = pa.RecordBatch.from_pylist(
                [{**row, "headers": list(row["headers"].items())}], schema
            )
            made = list(batch_messages([batch], Columns(), checks()))
        else:
            made = messages(way, [row])

        expect = jetsync.Expect(last_subject_sequence=2**64 - 1)
        assert made == [jetsync.OutboundMessage("s.a", b"x", {"a": ["1", "2"]}, "m", 60, expect)]

    def test_a_negative_sequence_is_refused(self, way):
        """
        The server would interpret it differently, so nothing is sent.
        """
        row = {"subject": "s.a", "data": b"x", "expected_sequence": -1}

        with pytest.raises(RowError, match="must be at least 0, not -1"):
            messages(way, [row])

    def test_headers_of_servers_are_refused(self, way):
        """
        A row is stored unchanged, and cannot make the server drop messages or check an expectation.
        """
        row = {"subject": "s.a", "data": b"x", "headers": [("nats-x", "1"), ("Nats-Rollup", "sub")]}
        if way == "rows":
            row["headers"] = dict(row["headers"])

        with pytest.raises(RowError, match=r"row 0 .* header Nats-Rollup .*: drop it"):
            messages(way, [row])

    def test_a_column_that_is_missing_is_named(self, way):
        """
        The error lists the existing columns.
        """
        with pytest.raises(OptionError, match="no column data: the columns are payload, subject"):
            messages(way, [{"subject": "s.a", "payload": b"x"}])


class TestBatches:
    def test_a_slice_is_read_from_its_own_rows(self):
        """
        Spark passes slices of larger batches.
        """
        whole = pa.record_batch({"subject": ["s.a", "s.b", "s.c"], "data": ["1", "2", "3"]})

        assert list(batch_messages([whole.slice(1, 1)], Columns(), checks())) == [("s.b", b"2")]

    def test_other_types_of_payloads_are_refused(self):
        """
        The error has advice.
        """
        batch = pa.record_batch({"subject": ["s.a"], "data": [7]})

        with pytest.raises(OptionError, match=r"payloads have the type int64.*to_json"):
            list(batch_messages([batch], Columns(), checks()))

    def test_without_rows_there_is_nothing(self):
        """
        Spark also runs empty partitions.
        """
        batch = pa.record_batch(
            {"subject": pa.array([], pa.string()), "data": pa.array([], "binary")}
        )

        assert list(batch_messages([batch], Columns(), checks())) == []
        assert list(row_messages([], Columns(), checks())) == []


class TestFunction:
    @pytest.mark.parametrize(
        ("made", "said"),
        [
            (None, "has to return an OutboundMessage"),
            (("elsewhere", b""), "does not capture"),
            (("s.\ud800", b""), r"subject is not valid UTF-8: '\\ud800'"),
            (("s.a", "\ud800"), "surrogates not allowed: correct or drop"),
            (jetsync.OutboundMessage("s.a", "\ud800"), "surrogates not allowed"),
            (("s.a", None), "payload that the function returns is NoneType"),
            (jetsync.OutboundMessage("s.a", {"a": 1}), "is dict, neither bytes nor text"),
        ],
    )
    def test_invalid_results_are_refused(self, made, said):
        """
        The error has the number of the row.
        """
        with pytest.raises(RowError, match=f"row 0 of partition 3: .*{said}"):
            list(made_messages([1], lambda _: made, checks()))

    def test_its_errors_have_the_row(self):
        """
        The row is in the text, because Spark keeps only the text.
        """
        with pytest.raises(RowError, match="row 1 of partition 3: division by zero"):
            list(made_messages([1, 0], lambda row: ("s.a", b"%d" % (1 / row)), checks()))


class TestColumns:
    TYPES: ClassVar = {
        "subject": "string",
        "data": "binary",
        "headers": "map<string,array<string>>",
    }

    @pytest.mark.parametrize(
        ("column", "kind", "said"),
        [
            ("data", "struct<a:int>", r"make it binary or a string, .*to_json"),
            ("subject", "bigint", "make it a string"),
            ("headers", "map<string,int>", "map<string,array<string>>"),
            ("ttl", "timestamp", "seconds as a number"),
            ("expected_sequence", "string", r"decimal\(20,0\)"),
        ],
    )
    def test_types_that_do_not_fit_are_named(self, column, kind, said):
        """
        The error names the expected type.
        """
        types = {**self.TYPES, column: kind}

        with pytest.raises(OptionError, match=f"column {column} has the type .*{said}"):
            Columns().within(types).check_types(types)

    def test_unused_columns_are_refused(self):
        """
        Otherwise a misspelt name would lose a column.
        """
        types = {**self.TYPES, "header": "string", "more": "string"}

        with pytest.raises(OptionError, match="no use for columns header, more"):
            Columns().within(types).check_known(types)

    def test_columns_of_the_subject_are_of_use(self):
        """
        Columns of the template need not be stored again.
        """
        types = {"origin": "string", "data": "string"}
        columns = columns_of("s.{origin}", constant=True).within(types)

        columns.check_types(types)
        columns.check_known(types)


class TestTemplates:
    @pytest.mark.parametrize(
        "text", ["s.{a", "s.{}", "s.{a!r}", "s.{a:>5}", "s..{a}", "s.{a} b", ".{a}", "s.{0}"]
    )
    def test_invalid_templates_are_refused(self, text):
        """
        Braces contain the name of a column, and the rest is a subject.
        """
        with pytest.raises(OptionError, match="subject"):
            SubjectTemplate.parse(text)

    def test_its_wildcard_covers_what_it_makes(self):
        """
        A stream that accepts none of the subjects is therefore found before a row is read.
        """
        assert SubjectTemplate.parse("a.x-{b}.{c}{d}").pattern == "a.*.*"

    @pytest.mark.parametrize(
        ("filters", "subject", "takes"),
        [
            (["a.>"], "a.b.c", True),
            (["a.>"], "a", False),
            (["a.*"], "a.b", True),
            (["a.*"], "a.b.c", False),
            (["x", "*.b"], "a.b", True),
            ([">"], "a", True),
        ],
    )
    def test_which_subjects_a_stream_takes(self, filters, subject, takes):
        """
        Subjects match by the rules of wildcards.
        """
        assert StreamSubjects(filters).takes(subject) is takes

    @pytest.mark.parametrize(
        ("filters", "found"),
        [
            (["orders.>"], ("orders._ledger",)),
            (["orders.>", "ledger.orders.>"], ("ledger.orders", "orders._ledger")),
            (["orders.*"], ()),
            (["*.>"], ()),
            ([">"], ("_ledger",)),
        ],
    )
    def test_where_a_ledger_is_kept(self, filters, found):
        """
        A ledger is kept in subjects that are meant for it, or below others.
        """
        assert StreamSubjects(filters).ledger_prefixes() == found
