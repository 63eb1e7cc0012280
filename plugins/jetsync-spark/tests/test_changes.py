"""
Rows that change a key-value bucket, without Spark.
"""

import attrs
import pyarrow as pa
import pytest
from changes import DELETE, PURGE, change

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.errors import OptionError, RowError
from jetsync_spark.common.keys import bad_key
from jetsync_spark.common.options import read_settings
from jetsync_spark.write.arrow_rows import batch_messages
from jetsync_spark.write.buckets import KeyChecks
from jetsync_spark.write.chunks import Chunks
from jetsync_spark.write.options import WriteOptions
from jetsync_spark.write.plan import columns_of
from jetsync_spark.write.rows import row_messages

Row = pytest.importorskip("pyspark.sql").Row

both_ways = pytest.mark.parametrize("way", ["rows", "batches"])


SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("operation", pa.string()),
        ("ttl", pa.int64()),
        ("expected_revision", pa.int64()),
    ]
)


def messages(way, values, *, history=False):
    """
    Make messages of rows, given as mappings.
    """
    columns = attrs.evolve(columns_of(None, constant=True, bucket="b"), has_history=history)
    checks = KeyChecks("b", 3)
    if way == "rows":
        return list(row_messages([Row(**each) for each in values], columns, checks))
    fields = [SCHEMA.field(name) for name in values[0]]
    batch = pa.RecordBatch.from_pylist(values, schema=pa.schema(fields))
    return list(batch_messages([batch], columns, checks))


@both_ways
class TestRows:
    def test_a_row_sets_the_value_of_its_key(self, way):
        """
        A row without further columns is a pair, as in a stream.
        """
        made = messages(way, [{"key": "a.b", "value": b"1"}, {"key": "x/=_-", "value": b""}])

        assert made == [("$KV.b.a.b", b"1"), ("$KV.b.x/=_-", b"")]

    def test_operations_are_those_that_the_source_returns(self, way):
        """
        Null is a put. A delete and a purge have no value, and the headers that other clients set.
        """
        made = messages(
            way,
            [
                change("a", b"1"),
                change("a", b"2", "put"),
                change("a", b"ignored", "DEL"),
                change("b", None, "Delete"),
                change("c", None, "PURGE", ttl=60),
            ],
        )

        message = jetsync.OutboundMessage
        assert made == [
            message("$KV.b.a", b"1"),
            message("$KV.b.a", b"2"),
            message("$KV.b.a", b"", DELETE),
            message("$KV.b.b", b"", DELETE),
            message("$KV.b.c", b"", PURGE, ttl=60),
        ]

    def test_rows_that_only_delete_need_no_values(self, way):
        """
        The column `value` may be missing if there are operations.
        """
        made = messages(way, [{"key": "a", "operation": "DEL"}])

        assert made == [jetsync.OutboundMessage("$KV.b.a", b"", DELETE)]
        with pytest.raises(RowError, match=r"row 1 .*the value is null"):
            messages(way, [{"key": k, "operation": o} for k, o in (("a", "DEL"), ("a", "PUT"))])

    def test_a_revision_and_a_time_to_live(self, way):
        """
        They become an expectation of the key's subject and a header.
        """
        made = messages(way, [change("a", b"1", ttl=30, expected=7)])

        expect = jetsync.Expect(last_subject_sequence=7)
        assert made == [jetsync.OutboundMessage("$KV.b.a", b"1", ttl=30, expect=expect)]

    @pytest.mark.parametrize(
        ("row", "said"),
        [
            (change(None, b""), "the key is null"),
            (change("", b""), "the key is empty"),
            (change("a..b", b""), "the key begins or ends with a dot, or has two"),
            (change("a b", b""), "the key has a character .*: 'a b'"),
            (change("a.*", b""), "the key has a character"),
            (change("é", b""), "the key has a character"),
            (change("_ledger.q.0", b""), "the key is reserved for the ledger"),
            (change("a"), "the value is null: .*operation to DEL"),
            (change("a", b"", "UPSERT"), "the operation is 'UPSERT': give PUT, DEL or PURGE"),
            (change("a", b"", ttl=0), "the time-to-live is 0"),
            (change("a", None, "DEL", ttl=9), "a delete marker cannot have a time-to-live"),
            (change("a", b"", expected=-1), "must be at least 0, not -1"),
        ],
    )
    def test_invalid_rows(self, way, row, said):
        """
        The error names row and partition, and no row of the block is sent.
        """
        with pytest.raises(RowError, match=f"row 2 of partition 3: .*{said}"):
            messages(way, [change("a", b"x"), change("b", b"x"), row])

    def test_a_time_to_live_needs_a_bucket_without_history(self, way):
        """
        The previous value would reappear, unless there is none or the new one never expires.
        """
        made = messages(way, [change("a", b"1", ttl=9, expected=0)], history=True)

        assert made[0].ttl == 9
        with pytest.raises(RowError, match="previous value would reappear"):
            messages(way, [change("a", b"1", ttl=9)], history=True)


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "A-/_=9.b",
        "=",
        "a.b.c",
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        "*",
        "a.>",
        "ä",
        "a\n",
        "a:b",
    ],
)
def test_keys_are_those_of_jetsync(key):
    """
    The client refuses the same keys before it sends anything.
    """
    with DevServer() as server, jetsync.connect(server.url) as client:
        bucket = client.jetstream().create_key_value("b")
        try:
            bucket.put(key, b"")
        except jetsync.InvalidKeyError:
            assert bad_key(key) is not None
        else:
            assert bad_key(key) is None


class TestColumns:
    @pytest.mark.parametrize(
        ("types", "said"),
        [
            ({"key": "string"}, r"no column value: .*to_json\(struct\(a, b\)\) as value"),
            ({"value": "binary"}, r"no column key: .*concat_ws\('.', a, b\) as key"),
            ({"key": "int", "value": "string"}, "column key has the type int"),
            ({"key": "string", "value": "int"}, "column value has the type int"),
            (
                {"key": "string", "value": "string", "operation": "boolean"},
                "column operation has the type boolean: make it a string: PUT, DEL or PURGE",
            ),
            (
                {"key": "string", "value": "string", "revision": "bigint"},
                "no use for column revision: rename revision to expected_revision .*or drop",
            ),
            (
                {"key": "string", "value": "string", "subject": "string", "headers": "string"},
                "no use for columns subject, headers: .*known are key, value, operation, ttl",
            ),
        ],
    )
    def test_wrong_columns(self, types, said):
        """
        The error is found from the schema, and says which columns a bucket has.
        """

        def check():
            found = columns_of(None, constant=True, bucket="b").within(types)
            found.check_types(types)
            found.check_known(types)

        with pytest.raises(OptionError, match=said):
            check()

    def test_columns_are_found_in_any_case(self):
        """
        As for streams.
        """
        found = columns_of(None, constant=True, bucket="b").within(
            {"Key": "string", "VALUE": "string", "Expected_Revision": "bigint"}
        )

        assert found.used() == ["Key", "VALUE", "Expected_Revision"]

    def test_arguments_for_columns(self):
        """
        The columns of a bucket have fixed names.
        """
        for name in ("subject", "data", "headers", "msg_id", "ttl", "expected_sequence"):
            given = {"subject": "subject", name: "x"}
            with pytest.raises(OptionError, match=f"argument {name} does not apply to a bucket"):
                columns_of(given.pop("subject"), constant=False, bucket="b", **given)


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"stream": "S"}, "both stream and bucket"),
            ({"bucket": "a.b"}, "option bucket is 'a.b': .*letters, digits"),
            ({"subject": "s"}, "subject does not apply to a bucket"),
            ({"fastIngest": "true"}, "fastIngest does not apply to a bucket"),
            ({"mode": "exactlyonce", "ledgerSubject": "l"}, "ledgerSubject does not apply"),
            (
                {
                    "mode": "exactlyonce",
                    "onInvalidRow": "deadLetter",
                    "deadLetterSubject": "dead.x",
                },
                "would store dead letters in the bucket",
            ),
        ],
    )
    def test_contradictions(self, options, said):
        """
        They are found before anything is sent.
        """
        with pytest.raises(OptionError, match=said):
            read_settings(WriteOptions, {"bucket": "b", **options})

    def test_the_stream_of_a_bucket(self):
        """
        A bucket is a stream, so its name appears in logs, and a copy of the options is equal.
        """
        made = WriteOptions(bucket="b", mode="exactlyonce")

        assert made.streams == ("KV_b",)
        assert attrs.evolve(made, write_id="w").stream == "KV_b"


def test_a_chunk_ends_before_a_change_that_refers_to_an_earlier_one():
    """
    The server compares expectations and purges with the state before an atomic batch.
    """
    message = jetsync.OutboundMessage
    expect = jetsync.Expect(last_subject_sequence=1)
    changes = [
        ("$KV.b.a", b"1"),
        ("$KV.b.a", b"2"),
        message("$KV.b.b", b"3", expect=expect),
        message("$KV.b.a", b"", PURGE),
        ("$KV.b.a", b"4"),
        message("$KV.b.a", b"5", expect=expect),
        message("$KV.b.a", b"", DELETE),
    ]
    chunks = Chunks(iter(changes), of_keys=True)

    sizes, more = [], True
    while more:
        chunk, more = chunks.take(100)
        sizes.append(len(chunk))

    assert sizes == [3, 2, 2]
    assert chunks.taken == 7
