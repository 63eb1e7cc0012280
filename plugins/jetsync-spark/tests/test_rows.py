import datetime as dt
import decimal
from types import SimpleNamespace
from typing import ClassVar
from urllib.parse import unquote_plus

import pyarrow as pa
import pytest

import jetsync
from jetsync_spark.common.errors import OptionError, RowError
from jetsync_spark.common.names import is_case_sensitive
from jetsync_spark.common.subjects import StreamSubjects, SubjectTemplate
from jetsync_spark.write.arrow_rows import batch_messages
from jetsync_spark.write.checks import Checks
from jetsync_spark.write.columns import Columns
from jetsync_spark.write.plan import columns_of
from jetsync_spark.write.rows import made_messages, row_messages

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
            ("elsewhere", r"S does not capture its subject .subject elsewhere.: add the subject"),
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

    @pytest.mark.parametrize(
        ("value", "token"),
        [
            ("a.b@x", "a%2Eb@x"),
            ("a b+c", "a%20b%2Bc"),
            ("*>", "%2A%3E"),
            ("100%", "100%25"),
            ("a\n\u00a0ä", "a%0A%C2%A0ä"),
            ("plain", "plain"),
        ],
    )
    def test_values_are_escaped(self, way, value, token):
        """
        The token of an escaped column has no character that subjects do not allow.
        """
        columns = columns_of("s.{a!e}", constant=False)

        made = messages(way, [{"a": value, "data": "x"}], columns)

        assert [subject for subject, _ in made] == [f"s.{token}"]
        assert unquote_plus(token) == value

    @pytest.mark.parametrize("value", [None, "", "\ud800"])
    def test_values_that_cannot_be_escaped(self, value, way):
        """
        A value without characters, or that is not UTF-8, stays invalid.
        """
        if way == "batches" and value == "\ud800":
            pytest.skip("Arrow has no such strings")
        columns = columns_of("s.{a!e}", constant=False)

        with pytest.raises(RowError, match="column a, which is part of the subject, is"):
            messages(way, [{"a": value, "data": "x"}, {"a": "x", "data": "x"}], columns)

    def test_escaped_braces(self, way):
        """
        Doubled braces stand for themselves, also in a subject without columns.
        """
        row = {"a": "A", "data": "x"}

        for text, subject in (("s.{{{a}}}", "s.{A}"), ("s.{{a}}", "s.{a}"), ("s.}}", "s.}")):
            made = messages(way, [row, row], columns_of(text, constant=False))
            assert [each[0] for each in made] == [subject] * 2

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

    @pytest.mark.parametrize(
        ("headers", "sent"),
        [
            (None, None),
            ({}, None),
            ({"a": ["1", None, "2"], "b": None, "c": [], "d": [None]}, {"a": ["1", "2"]}),
            ({"a": "1", "b": None}, {"a": ["1"]}),
            ([("a", b"1"), ("b", None), ("a", b"\xc3\xb6")], {"a": ["1", "\u00f6"]}),
            ([("a", "1"), ("b", None)], {"a": ["1"]}),
            ([("b", None)], {}),
        ],
        ids=["none", "empty", "lists", "texts", "kafka", "kafka's texts", "nothing"],
    )
    def test_nulls_in_headers_are_left_out(self, way, headers, sent):
        """
        A null map, list or value is no header, for each type of the column.
        """
        (made,) = self.with_headers(way, headers)

        left = {name: values for name, values in (made.headers or {}).items() if values}
        assert left == (sent or {})

    @pytest.mark.parametrize(
        ("headers", "said"),
        [
            ([("a", b"1"), (None, b"2")], "name of a header is null: drop it"),
            ([("a", b"1"), None], "a header is null: drop it"),
            ([("a", b"\xff")], r"value of header a is not valid UTF-8: .* base64"),
            ([("Nats-Rollup", b"sub")], "header Nats-Rollup would have an effect"),
        ],
    )
    def test_headers_that_cannot_be_sent(self, way, headers, said):
        """
        Headers of Kafka's type may have no name, and bytes that are not text.
        """
        with pytest.raises(RowError, match=f"row 0 of partition 3: .*{said}"):
            self.with_headers(way, headers)

    @staticmethod
    def with_headers(way, headers):
        """
        Make a message with headers of any type: a mapping, or Kafka's pairs.
        """
        if way == "rows":
            value = headers
            if isinstance(headers, list):
                pair = Row("key", "value")
                value = [None if each is None else pair(*each) for each in headers]
            row = Row(subject="s.a", data=b"x", headers=value)
            return list(row_messages([row], Columns(), checks()))
        if isinstance(headers, list):
            texts = any(isinstance(each[1], str) for each in headers if each)
            item = [("key", pa.string()), ("value", pa.string() if texts else pa.binary())]
            kind = pa.list_(pa.struct(item))
            value = [each and {"key": each[0], "value": each[1]} for each in headers]
        else:
            texts = any(isinstance(each, str) for each in (headers or {}).values())
            kind = pa.map_(pa.string(), pa.string() if texts else pa.list_(pa.string()))
            value = None if headers is None else list(headers.items())
        schema = pa.schema([("subject", "string"), ("data", "binary"), ("headers", kind)])
        batch = pa.RecordBatch.from_pylist(
            [{"subject": "s.a", "data": b"x", "headers": value}], schema
        )
        return list(batch_messages([batch], Columns(), checks()))

    def test_nested_fields_in_templates(self, way):
        """
        A template reaches fields of structs in structs. Backticks quote names with dots.
        """
        columns = columns_of("s.{a.b}.{a.c.d}.{`e.f`.g}.{h.i}", constant=False)
        inner = {"b": 1, "c": {"d": "x"}}
        row = {"a": inner, "e.f": {"g": "y"}, "h.i": "z", "data": b""}

        assert self.nested(way, [row], columns) == [("s.1.x.y.z", b"")]

    @pytest.mark.parametrize(
        ("row", "column"),
        [
            ({"a": None}, "a.b.c"),
            ({"a": {"b": None}}, "a.b.c"),
            ({"a": {"b": {"c": None}}}, "a.b.c"),
        ],
        ids=["struct", "inner struct", "field"],
    )
    def test_a_null_struct_is_a_null_field(self, way, row, column):
        """
        The row fails like one with a null column.
        """
        columns = columns_of("s.{a.b.c}", constant=False)
        good = [{"a": {"b": {"c": "x"}}, "data": b""}] * 5
        said = rf"row 5 of partition 3: column {column}, which is part of the subject, is null"

        with pytest.raises(RowError, match=said) as caught:
            self.nested(way, [*good, {**row, "data": b""}], columns)

        assert caught.value.column == column

    @pytest.mark.parametrize(
        ("subject", "said"),
        [
            ("s.{a.x}", "column a has no field x: its fields are b"),
            ("s.{a.b.c}", r"column a\.b has no field c: it is not a struct"),
            ("s.{x.b}", r"no column x\.b: the columns are a, data"),
        ],
    )
    def test_a_missing_field_is_named(self, way, subject, said):
        """
        The error lists the existing fields.
        """
        with pytest.raises(OptionError, match=said):
            self.nested(way, [{"a": {"b": 1}, "data": b""}], columns_of(subject, constant=False))

    @staticmethod
    def nested(way, values, columns):
        """
        Make messages of rows with structs.
        """

        def row(value):
            return Row(**{k: row(v) for k, v in value.items()}) if type(value) is dict else value

        if way == "rows":
            return list(row_messages(map(row, values), columns, checks()))
        return messages(way, values, columns)

    def test_a_column_is_found_in_any_case(self, way):
        """
        A column is found in any case, unless the session tells names apart.
        """
        rows = [{"Subject": "s.a", "DATA": b"x", "Msg_ID": "m"}]
        made = messages(way, rows)

        assert [(each.subject, each.data, each.msg_id) for each in made] == [("s.a", b"x", "m")]
        with pytest.raises(OptionError, match="no column subject: the columns are DATA, Msg_ID"):
            messages(way, rows, Columns(case_sensitive=True))

    def test_exact_names_come_first(self, way):
        """
        Names that differ only in their case are two columns.
        """
        rows = [{"SUBJECT": "s.b", "subject": "s.a", "data": b"x"}]
        assert messages(way, rows) == [("s.a", b"x")]

        with pytest.raises(OptionError, match="column subject could be SUBJECT or Subject"):
            messages(way, [{"SUBJECT": "s.b", "Subject": "s.a", "data": b"x"}])

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
    def test_nested_fields_are_found_with_their_types(self):
        """
        Fields of a struct are found like columns, and have to be values of one token.
        """
        types = {"Plane": {"Model": "string", "Seats": {"n": "int"}}, "data": "string"}
        columns = columns_of("s.{plane.model}.{plane.seats.n}", constant=True).within(types)
        columns.check_types(types)
        columns.check_known(types)
        assert columns.template.paths == (("Plane", "Model"), ("Plane", "Seats", "n"))

        with pytest.raises(OptionError, match=r"column Plane has no field x: .* Model, Seats"):
            columns_of("s.{plane.x}", constant=True).within(types)
        struct = columns_of("s.{plane.seats}", constant=True).within(types)
        with pytest.raises(OptionError, match=r"Plane\.Seats .* type struct: name one .*: n"):
            struct.check_types(types)

    @pytest.mark.parametrize(
        "text",
        [
            "s.{a..b}",
            "s.{.a}",
            "s.{a.}",
            "s.{`a}",
            "s.{`a`b}",
            "s.{a",
            "s.{}",
            "s.{a!r}",
            "s.{a:>5}",
            "s..{a}",
            "s.{a} b",
            ".{a}",
            "s.{0}",
        ],
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


@pytest.mark.parametrize(
    ("setting", "sensitive"), [("true", True), ("TRUE", True), ("false", False)]
)
def test_the_session_says_whether_case_matters(setting, sensitive):
    """Spark returns a setting as the program has written it."""
    session = SimpleNamespace(conf={"spark.sql.caseSensitive": setting})
    assert is_case_sensitive(session) is sensitive
