"""
What users read when they have made a mistake: the name that they gave, the unit, and what to do.
"""

import pytest

import jetsync
import jetsync_spark
from jetsync.devserver import DevServer
from jetsync_spark.common import clients
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.options import ConnectSettings, check_names, read_settings
from jetsync_spark.read.offsets import Offset
from jetsync_spark.read.options import ReadOptions
from jetsync_spark.read.queue_offsets import QueueOffset
from jetsync_spark.write.options import WriteOptions
from jetsync_spark.write.plan import Plan, columns_of

SERVERS = {"servers": "nats://127.0.0.1:1"}
OF_CONSUMER = {"v": 3, "stream": "S", "created": "2026", "consumer": "worker", "made": "2026"}


def reading(**options):
    """Create the options of a reader."""
    return lambda: read_settings(ReadOptions, {"stream": "S", **options})


def writing(**options):
    """Create the options of a writer."""
    return lambda: read_settings(WriteOptions, {"stream": "S", **options})


def connecting(**options):
    """Create the options of a connection."""
    return lambda: read_settings(ConnectSettings, {**SERVERS, **options})


def unused(subject, *columns):
    """Check columns that are all strings."""

    def check():
        types = dict.fromkeys(columns, "string")
        columns_of(subject, constant=True).within(types).check_known(types)

    return check


def sink(**arguments):
    """Create a sink in a program."""
    options = jetsync.ConnectOptions(servers="nats://127.0.0.1:1")
    return lambda: jetsync_spark.JetStreamSink(options, stream="S", **arguments)


TIME = "give milliseconds since 1970, or a time with its zone such as 2026-11-29T10:40:00Z"

TEXTS = [
    # Times
    (
        reading(startingTimestamp="1795948800"),
        (
            "option startingTimestamp is '1795948800', which looks like seconds: give "
            "milliseconds since 1970, such as 1795948800000, or a time with its zone such as "
            "2026-11-29T10:40:00Z"
        ),
    ),
    (
        reading(endingTimestamp="1795948800"),
        (
            "option endingTimestamp is '1795948800', which looks like seconds: give milliseconds "
            "since 1970, such as 1795948800000, or a time with its zone such as "
            "2026-11-29T10:40:00Z"
        ),
    ),
    (reading(startingTimestamp="yesterday"), f"option startingTimestamp is 'yesterday': {TIME}"),
    (reading(startingTimestamp="-1"), f"option startingTimestamp is '-1': {TIME}"),
    (
        reading(startingTimestamp="1795948800000000"),
        "option startingTimestamp is '1795948800000000', which is after the year 2261: " + TIME,
    ),
    (
        reading(startingTimestamp="2026-11-31T00:00:00Z"),
        "option startingTimestamp is '2026-11-31T00:00:00Z', which is no time: " + TIME,
    ),
    (
        reading(startingTimestamp="2026-11-29T10:40.5Z"),
        "option startingTimestamp is '2026-11-29T10:40.5Z': " + TIME,
    ),
    (
        reading(startingTimestamp="0026-11-30T00:00:00Z"),
        "option startingTimestamp is '0026-11-30T00:00:00Z', which is not from 1970 to 2261: "
        + TIME,
    ),
    (
        reading(startingTimestamp="2026-11-29 10:40:00"),
        (
            "option startingTimestamp is '2026-11-29 10:40:00', which has no time zone: give "
            "one, such as 2026-11-29 10:40:00Z for UTC, because Spark does not pass on the zone "
            "of the session. For a datetime from collect(), pass its astimezone()"
        ),
    ),
    (
        reading(startingTimestamp="2026-11-29"),
        "option startingTimestamp is '2026-11-29', which has no time of day: " + TIME,
    ),
    (
        lambda: reading(startingTimestamp="2026-11-29T10:40Z", endingTimestamp="5")().for_batch(),
        (
            "startingTimestamp 2026-11-29 10:40:00+00:00 is after endingTimestamp 1970-01-01 "
            "00:00:00.005000+00:00: exchange them, or leave one of them out"
        ),
    ),
    # Other units
    (
        connecting(connectTimeoutMs="5s"),
        "option connectTimeoutMs is '5s': give milliseconds, from 1 to 999999999999, such as 30000",
    ),
    (
        writing(retryTimeoutMs="5000000000000"),
        (
            "option retryTimeoutMs is '5000000000000': give milliseconds, from 1 to "
            "999999999999, such as 30000"
        ),
    ),
    # Buckets
    (
        lambda: read_settings(ReadOptions, {"bucket": "b", "startingOffsets": "earliest"}),
        (
            "option startingOffsets does not apply to a bucket: leave it out, or read the changes "
            "with stream KV_b instead"
        ),
    ),
    (
        reading(keys="a"),
        "option keys does not apply to a stream: leave it out, or give bucket instead of stream",
    ),
    # Streams that were moved
    (
        reading(movedStreams=str({"A": "S"})),
        (
            "option movedStreams is \"{'A': 'S'}\": give a JSON object, with the name in the "
            'checkpoint and the present name of each moved stream, such as {"ORDERS": "ORDERS_2"}'
        ),
    ),
    # Names of other clients
    (
        lambda: check_names({"url": "nats://127.0.0.1:1"}, ConnectSettings, ReadOptions),
        "there is no option url: did you mean servers?",
    ),
    # Micro-batches, before the query starts
    (
        reading(minOffsetsPerTrigger="9", maxOffsetsPerTrigger="5"),
        (
            "minOffsetsPerTrigger 9 is greater than maxOffsetsPerTrigger 5: exchange them, or "
            "leave one of them out"
        ),
    ),
    # Checkpoints of other queries
    (
        lambda: Offset.from_json({**OF_CONSUMER, "filters": [], "parts": []}),
        (
            "the checkpoint is of a query with option consumer worker (stream S): give that "
            "option again, or start with a new checkpoint"
        ),
    ),
    (
        lambda: QueueOffset.from_json({"v": 1, "stream": "S", "created": "2026", "seq": 1}),
        (
            "the checkpoint is of a query without option consumer: leave out the option "
            "consumer, or start with a new checkpoint"
        ),
    ),
    # Columns
    (
        unused("orders.new", "subject", "data"),
        (
            "there is a column subject, and the option subject gives a subject for all rows: "
            "leave out the option, or drop the column"
        ),
    ),
    (
        unused("orders.{region}", "region", "Subject", "data"),
        (
            "there is a column Subject, and the option subject gives a subject from a template: "
            "leave out the option, or drop the column"
        ),
    ),
    (
        unused("orders.new", "data", "size"),
        (
            "there is no use for column size: drop it, or put it into data; known are subject, "
            "data, headers, msg_id, ttl, expected_sequence and the columns in the option subject"
        ),
    ),
    # TLS, and other options of the connection
    (connecting(tlsKeyFile="/x"), "option tlsKeyFile needs tlsCertFile: correct it"),
    (
        connecting(servers="ws://127.0.0.1:1", tlsCaFile="/etc/tls_ca/tls_ca.pem"),
        "option tlsCaFile has no effect with ws://: use wss://: correct it",
    ),
    (
        connecting(inboxPrefix="a..b"),
        "option inboxPrefix: invalid subject 'a..b': it has an empty token: correct it",
    ),
    (
        connecting(jetstreamDomain="a.b"),
        "option jetstreamDomain: invalid domain name 'a.b': it contains '.': correct it",
    ),
    (
        connecting(jetstreamDomain="a", jetstreamPrefix="b"),
        "both jetstreamDomain and jetstreamPrefix are given: give one of them",
    ),
    # Modes
    (
        writing(mode="append"),
        (
            "option mode is 'append', which is a save mode of Spark: use .mode(\"append\"), and "
            "leave out the option, or give atleastonce, atomic or exactlyonce"
        ),
    ),
    # Arguments of programs have other names than options.
    (
        sink(write_id="w"),
        (
            "option write_id is for mode exactlyonce, not atleastonce: leave it out, or set mode "
            "to exactlyonce"
        ),
    ),
    (
        sink(mode="exactlyonce", batch_id=5),
        (
            "option batch_id needs a write_id: set a write_id that no other query of the stream "
            "uses, and that stays the same when the query restarts"
        ),
    ),
    (
        sink(on_invalid_row="deadLetter"),
        (
            "on_invalid_row deadLetter needs a subject: set dead_letter_subject to a subject "
            "that a stream captures"
        ),
    ),
    (sink(chunk_size=1), "chunk_size is 1: give a number from 2 to 1000"),
    (
        lambda: jetsync_spark.JetStreamSink(
            jetsync.ConnectOptions(servers="nats://127.0.0.1:1", jetstream_domain="hub"),
            bucket="b",
        ).write([]),
        (
            "rows cannot be written to a bucket of another JetStream domain or account: connect "
            "to a server of that domain or account, without jetstream_domain and jetstream_prefix"
        ),
    ),
]


@pytest.mark.parametrize(("mistake", "text"), TEXTS, ids=[text[:60] for _, text in TEXTS])
def test_an_error_names_what_was_given_and_what_to_do(mistake, text):
    """
    The text is the same wherever the options come from: a reader, a query, SQL or Spark Connect.
    """
    with pytest.raises(JetStreamSparkError) as caught:
        mistake()

    assert str(caught.value) == text


class TestWriters:
    """
    Writers of the data source, which Spark creates.
    """

    @pytest.fixture
    def writers(self):
        pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources")
        from jetsync_spark.write import writers

        return writers

    @pytest.mark.parametrize(
        ("kind", "cure"),
        [
            ("BatchWriter", 'use .mode("append"), or INSERT INTO in SQL'),
            (
                "StreamWriter",
                (
                    'use .outputMode("append"), or write the rows of each micro-batch in '
                    "foreachBatch with jetsync_spark.exactly_once, which takes all output modes"
                ),
            ),
        ],
    )
    def test_overwriting(self, writers, kind, cure):
        """
        The cure is a call of the writer that the user has: a DataFrame's, or a query's.
        """
        with pytest.raises(OptionError) as caught:
            getattr(writers, kind)({}, None, overwrite=True)

        assert str(caught.value) == f"a stream cannot be overwritten: {cure}"

    def test_continuous_processing(self, writers):
        """
        Spark drops the rows of continuous processing, and then commits without a task's report.
        """
        writer = object.__new__(writers.StreamWriter)
        writer._plan = Plan(
            settings=None, options=WriteOptions(stream="S"), columns=columns_of(None, constant=True)
        )

        with pytest.raises(JetStreamSparkError) as caught:
            writer.commit([None, None], 0)

        assert str(caught.value) == (
            "continuous processing does not give the rows to a sink in Python, so none of them is "
            "stored (stream S): stop the query, and start it with another trigger, such as "
            'processingTime="1 second", and with a new checkpoint'
        )


class TestTimes:
    @pytest.mark.parametrize(
        "text",
        [
            "1795948800123",
            "2026-11-29T08:00:00.123Z",
            "2026-11-29 08:00:00.123+00:00",
            "2026-11-29T13:30:00.123+0530",
            " 2026-11-29t00:00:00,123000 -08 ",
        ],
    )
    def test_a_time_is_milliseconds_or_iso_8601(self, text):
        """All forms are the same time. PySpark passes a datetime as text with a space."""
        found = reading(startingTimestamp=text)().starting_timestamp

        assert found.timestamp() == 1795939200.123 + (9600 if text.isdecimal() else 0)

    def test_a_time_has_microseconds(self):
        """The first message at or after it is the same as in the column timestamp."""
        made = read_settings(
            ReadOptions, {"bucket": "B", "atTimestamp": "2026-11-29T08:00:00.000001Z"}
        )

        assert made.at_timestamp.microsecond == 1

    def test_zero_is_the_beginning(self):
        """Small numbers are milliseconds, as before."""
        assert reading(startingTimestamp="0")().starting_timestamp.timestamp() == 0


class TestConnections:
    def test_a_wrong_password(self, monkeypatch):
        """The text also fits if the options are given, and a secret is wrong."""
        monkeypatch.setenv("A_USER", "ann")
        monkeypatch.setenv("A_SECRET", "wrong")
        login = {"authorization": {"user": "ann", "password": "right"}}

        with DevServer(config=login) as server:
            made = connecting(servers=server.url, userEnv="A_USER", passwordEnv="A_SECRET")()
            with pytest.raises(JetStreamSparkError) as caught:
                clients.client_for(made)

        assert "the client sent a user and a password" in str(caught.value)
        assert "give a valid credsFile, userEnv and passwordEnv, " in str(caught.value)

    def test_a_failure_names_the_options(self, tmp_path):
        """A file that is not PEM is named by the option, and its path stays."""
        wrong = tmp_path / "tls_ca"
        wrong.write_text("no PEM")
        made = connecting(tlsCaFile=str(wrong))()

        with pytest.raises(JetStreamSparkError) as caught:
            clients.client_for(made)

        assert f"tlsCaFile '{wrong}' cannot be used" in str(caught.value)

    def test_a_failure_in_a_program_names_its_arguments(self, tmp_path):
        """A program has given ConnectOptions, whose names the text has."""
        wrong = tmp_path / "ca.pem"
        wrong.write_text("no PEM")
        options = jetsync.ConnectOptions(servers="nats://127.0.0.1:1", tls_ca=wrong)

        with pytest.raises(JetStreamSparkError, match="tls_ca"):
            clients.client_for(options)
