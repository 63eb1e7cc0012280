import itertools
import pickle

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

from pyspark.sql import types as T  # noqa: N812 - as Spark's users name it.

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.source import JetStreamDataSource

pytestmark = pytest.mark.live

DOCUMENT = T.StructType(
    [
        T.StructField("id", T.LongType(), nullable=False),
        T.StructField("price", T.DoubleType()),
        T.StructField("tags", T.ArrayType(T.StringType())),
        T.StructField("more", T.MapType(T.StringType(), T.BooleanType())),
        T.StructField("item", T.StructType([T.StructField("name", T.StringType())])),
    ]
)
SCHEMA = T.StructType([T.StructField("sequence", T.LongType()), T.StructField("json", DOCUMENT)])

GOOD = b'{"id": 1, "price": 2, "tags": ["a"], "more": {"x": true}, "item": {"name": "n"}, "new": 1}'


@pytest.fixture
def prices(js, unique):
    """
    A stream of JSON.
    """
    yield js.create_stream(unique, subjects=[f"{unique}.>"], allow_direct=True)
    js.delete_stream(unique)


@pytest.fixture
def dead(js, unique):
    """
    A stream of dead letters.
    """
    yield js.create_stream(
        f"{unique}-DEAD", subjects=[f"dead.{unique}.>", f"dead.{unique}"], allow_direct=True
    )
    js.delete_stream(f"{unique}-DEAD")


@pytest.fixture
def read(nats_server, prices):
    """
    A function that reads the stream as Spark does, and returns its rows.
    """

    def rows(schema=SCHEMA, **options):
        source = JetStreamDataSource({"servers": nats_server.url, "stream": prices.name, **options})
        reader = pickle.loads(pickle.dumps(source.reader(schema)))
        found = []
        for part in reader.partitions():
            for batch in reader.read(part):
                found += batch.to_pylist()
        return found

    return rows


def publish(js, stream, *payloads):
    """
    Store payloads.
    """
    js.publish_many((f"{stream.name}.x", payload, {"a": "b"}) for payload in payloads)


class TestDocuments:
    def test_a_payload_is_a_row(self, js, prices, read):
        """Fields that the type does not name are ignored, and missing ones are null."""
        publish(js, prices, GOOD, b'{"id": 2}')

        found = read()

        assert found[0]["json"] == {
            "id": 1,
            "price": 2.0,
            "tags": ["a"],
            "more": [("x", True)],
            "item": {"name": "n"},
        }
        assert found[1]["json"] == dict.fromkeys(DOCUMENT.names) | {"id": 2}

    @pytest.mark.parametrize(
        ("payload", "said"),
        [
            (b"oops", "Expecting value"),
            (b"", "Expecting value"),
            (b"[1]", r"\$ is no object"),
            (b"null", r"\$ is no object"),
            (b'{"id": NaN}', "NaN is no JSON"),
            (b'{"id": 1} {"id": 2}', "Extra data"),
            (b'{"id": "1"}', r"\$\.id is no whole number"),
            (b'{"id": 1.5}', r"\$\.id is no whole number"),
            (b'{"id": true}', r"\$\.id is no whole number"),
            (
                b'{"id": 9223372036854775808}',
                r"\$\.id is no whole number from -9223372036854775808",
            ),
            (b"{}", r"\$\.id is missing or null"),
            (b'{"id": null}', r"\$\.id is missing or null"),
            (b'{"id": 1, "price": "2"}', r"\$\.price is no number"),
            (b'{"id": 1, "price": false}', r"\$\.price is no number"),
            (b'{"id": 1, "price": 1e999}', r"\$\.price is no number"),
            (b'{"id": 1, "tags": "a"}', r"\$\.tags is no array"),
            (b'{"id": 1, "tags": [1]}', r"\$\.tags is no string"),
            (b'{"id": 1, "more": {"a": 1}}', r"\$\.more is no boolean"),
            (b'{"id": 1, "more": []}', r"\$\.more is no object"),
            (b'{"id": 1, "item": 5}', r"\$\.item is no object"),
            (b'{"id": 1, "item": {"name": 5}}', r"\$\.item\.name is no string"),
            (b'{"id": 1, "item": {"name": "\\ud800"}}', r"\$\.item\.name has an unpaired"),
            (b"\xff", "utf-8"),
            (b"[" * 100_000, "recursion"),
        ],
    )
    def test_an_invalid_payload_fails_the_query(self, js, prices, read, payload, said):
        """The error names the stream, the sequence and the reason, without the value."""
        publish(js, prices, GOOD, payload, GOOD)

        with pytest.raises(
            JetStreamSparkError, match=f"message 2 is invalid: .*({said})"
        ) as caught:
            read()

        assert caught.value.stream == prices.name
        assert "onInvalidMessage" in str(caught.value)

    def test_types_that_json_does_not_have(self, read):
        """The plan names the column."""
        schema = T.StructType(
            [T.StructField("json", T.StructType([T.StructField("at", T.TimestampType())]))]
        )

        with pytest.raises(OptionError, match=r"json\.at has the type timestamp.* as string"):
            read(schema)

    def test_only_a_struct(self, read):
        """A column with another type is refused."""
        schema = T.StructType([T.StructField("json", T.StringType())])

        with pytest.raises(OptionError, match="the column json is struct, not string"):
            read(schema)


class TestPolicies:
    def test_skip(self, js, prices, read):
        """Invalid messages are left out, also if a whole page is invalid."""
        publish(js, prices, *([GOOD, b"oops"] * 50))

        assert [row["sequence"] for row in read(oninvalidmessage="skip")] == list(range(1, 100, 2))
        assert not read(
            oninvalidmessage="SKIP", startingoffsets='{"seq": 2}', endingoffsets='{"seq": 3}'
        )

    def test_dead_letters(self, js, prices, dead, read):
        """They have the payload, and headers with the origin and the reason; a retry adds none."""
        publish(js, prices, GOOD, b"oops", GOOD)
        policy = {"oninvalidmessage": "deadLetter", "deadlettersubject": f"dead.{prices.name}"}

        for _ in range(2):
            assert [row["sequence"] for row in read(**policy)] == [1, 3]

        (letter,) = list(dead.scan())
        assert letter.data == b"oops"
        found = {name: letter.headers[f"Jetsync-Dead-Letter-{name}"] for name in ABOUT}
        assert found == {
            "Reason": "Expecting value: line 1 column 1 (char 0)",
            "Stream": prices.name,
            "Subject": f"{prices.name}.x",
            "Sequence": "2",
            "Columns": '{"headers": {"a": ["b"]}}',
        }

    def test_dead_letters_of_two_batches(self, js, prices, dead, read):
        """Batch queries with subjects of their own do not drop each other's dead letters."""
        publish(js, prices, b"oops")
        for subject in ("a", "b"):
            read(oninvalidmessage="deadLetter", deadlettersubject=f"dead.{prices.name}.{subject}")
        assert [letter.subject[-2:] for letter in dead.scan()] == [".a", ".b"]

    def test_no_dead_letter_is_left_out(self, js, prices, dead, read, monkeypatch):
        """``publish_many`` stops after many failures, and the other dead letters follow."""
        publish_many = jetsync.JetStream.publish_many
        most = iter([7, 3])

        def failing(js, messages, **settings):
            number = next(most, None)
            if number is None:
                return publish_many(js, messages, **settings)
            failures = tuple(
                jetsync.PublishFailure(place, message, jetsync.RequestTimeoutError("x", 1.0))
                for place, message in enumerate(itertools.islice(messages, number))
            )
            raise jetsync.PublishManyError(
                jetsync.PublishReport(0, 0, None, None, failures, exhausted=False)
            )

        publish(js, prices, *(b"oops %d" % n for n in range(20)))
        monkeypatch.setattr(jetsync.JetStream, "publish_many", failing)
        policy = {"oninvalidmessage": "deadLetter", "deadlettersubject": f"dead.{prices.name}"}
        assert not read(**policy)
        assert {letter.data for letter in dead.scan()} == {b"oops %d" % n for n in range(20)}

    def test_marked_by_a_plugin(self, js, nats_server, prices, dead, monkeypatch, tmp_path):
        """A message that violates its contract is invalid; the query needs no column of JSON."""
        pytest.importorskip("jetsync_schema")
        (tmp_path / "index.json").write_text(
            '{"contracts": [{"subjects": ">", "schema": {"type": "object", "required": ["id"]}}]}'
        )
        monkeypatch.setenv("JETSYNC_SCHEMA_DIRECTORY", str(tmp_path))
        monkeypatch.setenv("JETSYNC_SCHEMA_RECEIVE", "mark")
        monkeypatch.setenv("JETSYNC_SCHEMA_PUBLISH", "no")
        publish(js, prices, GOOD, b"{}", GOOD)
        source = JetStreamDataSource(
            {
                "servers": nats_server.url,
                "stream": prices.name,
                "plugins": "schema",
                "oninvalidmessage": "deadletter",
                "deadlettersubject": f"dead.{prices.name}",
            }
        )
        reader = source.reader(T.StructType([T.StructField("sequence", T.LongType())]))

        rows = [
            row
            for part in reader.partitions()
            for batch in reader.read(part)
            for row in batch.to_pylist()
        ]

        assert [row["sequence"] for row in rows] == [1, 3]
        (letter,) = list(dead.scan())
        assert "breaks contract" in letter.headers["Jetsync-Dead-Letter-Reason"]


ABOUT = ("Reason", "Stream", "Subject", "Sequence", "Columns")


class TestPlanning:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"oninvalidmessage": "drop"}, "give fail or skip or deadLetter"),
            ({"oninvalidmessage": "deadLetter"}, "needs a subject: set deadLetterSubject"),
            ({"deadlettersubject": "x"}, "no effect with onInvalidMessage fail"),
        ],
    )
    def test_options_that_do_not_fit(self, read, options, said):
        """The plan says which option to change."""
        with pytest.raises(OptionError, match=said):
            read(**options)

    def test_nothing_to_check(self, read):
        """Without a type or a plugin, no message is invalid."""
        schema = T.StructType([T.StructField("data", T.BinaryType())])

        with pytest.raises(OptionError, match="has nothing to check: read a column json"):
            read(schema, oninvalidmessage="skip")

    @pytest.mark.parametrize("filters", [{}, {"subjectfilter": ">"}])
    def test_its_own_dead_letters(self, read, prices, filters):
        """A query that reads its own dead letters would never end."""
        with pytest.raises(OptionError, match="would read its own dead letters"):
            read(
                oninvalidmessage="deadLetter",
                deadlettersubject=f"{prices.name}.dead",
                **filters,
            )

    def test_no_stream_for_them(self, read):
        """The plan fails before a message is read."""
        with pytest.raises(JetStreamSparkError, match="no stream captures the subject of the dead"):
            read(oninvalidmessage="deadLetter", deadlettersubject="dead.nowhere")

    def test_a_bucket_has_none(self, nats_server):
        """The option is refused for buckets."""
        source = JetStreamDataSource(
            {"servers": nats_server.url, "bucket": "b", "oninvalidmessage": "skip"}
        )
        with pytest.raises(OptionError, match="onInvalidMessage does not apply to a bucket"):
            source.schema()
