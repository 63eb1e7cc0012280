"""
Messages as record batches of Arrow.
"""

import datetime as dt
import inspect

import pytest

import jetsync
from jetsync_spark.common.errors import OptionError

pytest.importorskip("pyarrow")

from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from jetsync_spark.read.tables import BUCKET_COLUMNS, STREAM_COLUMNS, Table, schema_text

KINDS = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "bigint": types.LongType(),
    "timestamp": types.TimestampType(),
    "map<string,array<string>>": types.MapType(
        types.StringType(), types.ArrayType(types.StringType())
    ),
}


def schema(known, *names):
    """Return a schema of these columns, or of all but the documents, whose type the user gives."""
    return types.StructType(
        [
            types.StructField(name, KINDS[known[name]])
            for name in names or [each for each in known if each != "json"]
        ]
    )


def stored(sequence, *, subject="s.1", headers=(), data=b"x", time=1):
    """Make a message."""
    return jetsync.StoredMessage("S", subject, sequence, time, jetsync.Headers(list(headers)), data)


@pytest.mark.parametrize("known", [STREAM_COLUMNS, BUCKET_COLUMNS])
def test_what_spark_expects(known):
    """The schema of a batch is exactly the one that Spark derives from the columns."""
    asked = schema(known)
    extra = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    )
    expected = to_arrow_schema(asked, **extra)
    table = Table(asked, known)
    made = (
        table.of_page(jetsync.StoredPage([]), "S")
        if known is STREAM_COLUMNS
        else table.of_entries([])
    )
    assert made.schema.names == expected.names
    if extra:
        assert made.schema == expected


def test_a_row_of_a_stream_has_the_fields_of_its_message():
    """A row has the fields of the message."""
    page = jetsync.StoredPage(
        [
            stored(1, data=b"", time=1_700_000_000_123_456_789),
            stored(2, headers=[("B", "1"), ("a", "2"), ("B", "3")]),
            stored((1 << 63) - 1, subject="s.ä"),
        ]
    )
    rows = Table(schema(STREAM_COLUMNS), STREAM_COLUMNS).of_page(page, "S").to_pylist()
    assert rows[0] == {
        "subject": "s.1",
        "data": b"",
        "headers": [],
        "stream": "S",
        "sequence": 1,
        "timestamp": dt.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.timezone.utc),
        "timestamp_ns": 1_700_000_000_123_456_789,
        "server_headers": [],
    }
    assert rows[1]["headers"] == [("B", ["1", "3"]), ("a", ["2"])]
    assert (rows[2]["sequence"], rows[2]["subject"]) == ((1 << 63) - 1, "s.ä")


def test_headers_of_servers():
    """Headers that servers obey have their own column, which a copy does not write."""
    headers = [("A", "1"), ("Nats-Msg-Id", "m"), ("nats-b", "2"), ("KV-Operation", "DEL")]
    page = jetsync.StoredPage([stored(1, headers=headers)])
    (row,) = Table(schema(STREAM_COLUMNS), STREAM_COLUMNS).of_page(page, "S").to_pylist()
    assert row["headers"] == [("A", ["1"]), ("nats-b", ["2"]), ("KV-Operation", ["DEL"])]
    assert row["server_headers"] == [("Nats-Msg-Id", ["m"])]


def test_a_part_of_the_columns():
    """A schema with fewer columns in another order gives these columns."""
    page = jetsync.StoredPage([stored(5, data=b"five")])
    made = Table(schema(STREAM_COLUMNS, "sequence", "data"), STREAM_COLUMNS).of_page(page, "S")
    assert made.schema.names == ["sequence", "data"]
    assert made.to_pylist() == [{"sequence": 5, "data": b"five"}]


def test_a_schema_may_name_columns_in_any_case():
    """A schema may name the columns in any case, and the batch has the names of the schema."""
    fields = [("Sequence", "bigint"), ("DATA", "binary")]
    some = types.StructType([types.StructField(name, KINDS[kind]) for name, kind in fields])
    made = Table(some, STREAM_COLUMNS).of_page(jetsync.StoredPage([stored(5, data=b"five")]), "S")
    assert made.to_pylist() == [{"Sequence": 5, "DATA": b"five"}]


def test_invalid_utf8():
    """Bytes of subjects and headers that are not UTF-8 are shown as escapes."""
    page = jetsync.StoredPage([stored(5, subject="s.\udcff", headers=[("A", "\udcfe")])])
    (row,) = Table(schema(STREAM_COLUMNS), STREAM_COLUMNS).of_page(page, "S").to_pylist()
    assert row["subject"] == "s.\N{REPLACEMENT CHARACTER}"
    assert row["headers"] == [("A", ["\N{REPLACEMENT CHARACTER}"])]


def test_no_columns():
    """A batch without columns has no number of rows."""
    with pytest.raises(OptionError, match=r"has no columns: .* some of subject"):
        Table(types.StructType([]), STREAM_COLUMNS)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (
            types.StructField("value", types.BinaryType()),
            "no column value: .*subject, data",
        ),
        (types.StructField("data", types.StringType()), "column data is binary, not string"),
        (types.StructField("sequence", types.IntegerType()), "sequence is bigint, not int"),
    ],
)
def test_other_columns_are_refused(field, said):
    """The error about a schema with an unknown column names it."""
    with pytest.raises(OptionError, match=said):
        Table(types.StructType([field]), STREAM_COLUMNS)


def test_the_schema_as_text():
    """Columns that were not requested are left out."""
    assert schema_text(STREAM_COLUMNS, ["headers", "timestamp_ns", "server_headers", "json"]) == (
        "subject string, data binary, stream string, sequence bigint, timestamp timestamp"
    )


def test_a_row_of_a_bucket_has_the_fields_of_its_revision():
    """A row of a bucket has the fields of the revision."""
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.timezone.utc)
    entry = jetsync.Entry("B", "a.b", b"v", 7, moment)
    (row,) = Table(schema(BUCKET_COLUMNS), BUCKET_COLUMNS).of_entries([entry]).to_pylist()
    assert row == {
        "key": "a.b",
        "value": b"v",
        "revision": 7,
        "created": moment,
        "operation": "PUT",
    }


def test_no_object_for_a_message(js, unique, monkeypatch):
    """A page from a server becomes a batch with all columns without an object for each message."""
    stream = js.create_stream(unique, subjects=[unique], storage="memory", allow_direct=True)
    sent = [{"A": ["1", "2"], "Nats-Msg-Id": "m", "B": "x"}, None, {"Nats-Expected-Stream": unique}]
    for headers in sent:
        js.publish(unique, b"x", headers=headers)
    (page,) = stream.scan().pages()
    monkeypatch.delattr(jetsync.StoredPage, "__iter__")
    rows = Table(schema(STREAM_COLUMNS), STREAM_COLUMNS).of_page(page, unique).to_pylist()
    assert [row["headers"] for row in rows] == [[("A", ["1", "2"]), ("B", ["x"])], [], []]
    assert [row["server_headers"] for row in rows] == [
        [("Nats-Msg-Id", ["m"])],
        [],
        [("Nats-Expected-Stream", [unique])],
    ]
    js.delete_stream(unique)
