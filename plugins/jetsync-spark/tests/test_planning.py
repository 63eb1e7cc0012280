import os

import pytest
from writing import plan_for

import jetsync
from jetsync_spark.common import retry
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.options import ConnectSettings, check_names, read_settings
from jetsync_spark.common.task import Task
from jetsync_spark.write import plan as planning
from jetsync_spark.write.columns import Columns, types_of
from jetsync_spark.write.options import WriteOptions
from jetsync_spark.write.plan import columns_of, make_plan

ROWS = {"subject": "string", "data": "binary"}


def plan(options, types=ROWS, *, all_used=True):
    """
    Plan a write as the data source does.
    """
    check_names(options, ConnectSettings, WriteOptions)
    write = read_settings(WriteOptions, options)
    return make_plan(
        read_settings(ConnectSettings, options),
        write,
        columns_of(write.subject, constant=True),
        types=types,
        all_used=all_used,
    )


@pytest.fixture
def good(nats_server, target):
    """
    Valid options of a write.
    """
    return {"servers": nats_server.url, "stream": target.name}


@pytest.mark.parametrize(
    ("options", "types", "said"),
    [
        ({"stream": "NONE"}, ROWS, r"NONE.* create the stream, or correct the option stream"),
        (
            {"servers": "nats://127.0.0.1:1", "retryTimeoutMs": "300"},
            ROWS,
            "driver and every executor can reach",
        ),
        ({"strem": "x"}, ROWS, "no option strem: did you mean stream"),
        ({"password": "s3cret"}, ROWS, "password would expose a secret"),
        (
            {"tokenEnv": "NO_SUCH"},
            ROWS,
            "tokenEnv: the environment variable that it names is not set",
        ),
        ({"credsFile": "/gone"}, ROWS, "credsFile: there is no file of that path"),
        ({"plugins": "gone"}, ROWS, "gone"),
        (
            {"subject": "elsewhere"},
            {"data": "string"},
            r"does not capture this subject .*elsewhere",
        ),
        ({"subject": "a..b"}, {"data": "string"}, "a token is empty"),
        ({"subject": "other.{data}"}, {"data": "string"}, r"does not capture this subject"),
        ({}, {"data": "string"}, "no column subject"),
        ({}, {"subject": "string"}, "no column data"),
        ({}, {**ROWS, "size": "int"}, "no use for column size"),
        ({}, {**ROWS, "data": "array<int>"}, r"column data has the type array<int>"),
        ({"mode": "atomic"}, {**ROWS, "msg_id": "string"}, "IDs of column msg_id.*atleastonce"),
        ({"mode": "exactlyonce", "ledgerSubject": "l"}, ROWS, r"add l\.> to the stream"),
        ({"mode": "exactlyonce", "writeId": "a.b"}, ROWS, "writeId 'a.b' is not a valid name"),
        ({"mode": "exactlyonce", "batchId": "3"}, ROWS, "batchId needs a writeId"),
        ({"mode": "exactlyonce", "batchId": "-1"}, ROWS, "batchId is '-1'"),
        ({"batchId": "3"}, ROWS, "batchId is for mode exactlyonce"),
    ],
)
def test_invalid_writes_are_refused(good, options, types, said):
    """
    One sentence names the cause and the advice, before a row is read.
    """
    with pytest.raises(JetStreamSparkError, match=said) as caught:
        plan({**good, **options}, types)

    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "options", "types", "said"),
    [
        ({}, {"mode": "atomic"}, ROWS, "10174.*set allow_atomic"),
        ({}, {"mode": "exactlyonce"}, ROWS, "10174.*set allow_atomic"),
        ({}, {"fastIngest": "true"}, ROWS, "set allow_batched"),
        ({}, {}, {**ROWS, "ttl": "int"}, "10166.*set allow_msg_ttl"),
        ({"no_ack": True}, {}, ROWS, "sends no acks"),
        (
            {"allow_atomic": True, "retention": "workqueue"},
            {"mode": "exactlyonce"},
            ROWS,
            "retention workqueue removes",
        ),
        (
            {
                "allow_atomic": True,
                "subject_transform": jetsync.SubjectTransform(src=">", dest="x.>"),
            },
            {"mode": "exactlyonce"},
            ROWS,
            "finds its ledger by its subject, but the stream transforms",
        ),
        (
            {
                "allow_atomic": True,
                "discard": "new",
                "discard_new_per_subject": True,
                "max_msgs_per_subject": 1,
            },
            {"mode": "exactlyonce"},
            ROWS,
            r"rejects more than 1 \(discard_new_per_subject\).*10077",
        ),
        (
            {"allow_atomic": True, "subjects": ["x.*"]},
            {"mode": "exactlyonce"},
            ROWS,
            "needs a subject for its ledger.*add a subject such as ledger",
        ),
    ],
)
def test_unsuitable_streams_are_refused(js, good, unique, config, options, types, said):
    """
    The error has the stream, the server's code and the setting to change.
    """
    name = f"{unique}-x"
    js.create_stream(**{"name": name, "subjects": [f"{name}.>"], **config})
    try:
        with pytest.raises(JetStreamSparkError, match=said) as caught:
            plan({**good, "stream": name, **options}, types)
    finally:
        js.delete_stream(name)

    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        ({}, False),
        ({"max_msgs": 10}, True),
        ({"max_msgs": 10, "discard": "new"}, False),
        ({"max_age": 3600}, True),
        ({"max_age": 3600, "discard": "new"}, True),
    ],
)
def test_a_ledger_that_may_be_removed(js, good, unique, caplog, config, warned):
    """
    A stream may remove the ledger by age, or by other limits if it discards old messages. This logs
    a warning.
    """
    name = f"{unique}-x"
    js.create_stream(name, subjects=[f"{name}.>"], allow_atomic=True, **config)
    try:
        plan({**good, "stream": name, "mode": "exactlyonce", "ledgerSubject": f"{name}.ledger"})
    finally:
        js.delete_stream(name)

    assert ("ledger_may_be_lost" in caplog.text) == warned


def test_a_mirror_is_refused(js, good, target, unique):
    """
    The error names the stream to write to.
    """
    name = f"{unique}-mirror"
    js.create_stream(name, mirror=jetsync.StreamSource(name=target.name))
    try:
        with pytest.raises(JetStreamSparkError, match=f"write to its origin, {target.name}"):
            plan({**good, "stream": name})
    finally:
        js.delete_stream(name)


def test_an_error_names_the_bucket(js, good, unique):
    """
    Users know the bucket, and not its stream.
    """

    def plan_bucket(**given):
        settings = read_settings(ConnectSettings, {"servers": good["servers"]})
        options = read_settings(WriteOptions, {"bucket": unique, **given})
        make_plan(settings, options, columns_of(None, constant=True, bucket=unique))

    with pytest.raises(JetStreamSparkError, match=f"planning a write to bucket {unique} failed"):
        plan_bucket()
    js.create_key_value(unique)
    try:
        with pytest.raises(JetStreamSparkError, match="which the bucket does not allow") as caught:
            plan_bucket(mode="atomic")
    finally:
        js.delete_key_value(unique)

    assert f"(bucket {unique}, err_code 10174)" in str(caught.value)


def test_stream_info_is_cached(good, monkeypatch):
    """
    Information about the stream is kept for some seconds.
    """
    plan(good)
    asked = []
    monkeypatch.setattr(retry, "lend", lambda *_, **__: asked.append(1))
    plan(good)

    assert asked == []


def test_a_fork_while_a_plan_is_made():
    """
    A forked child can plan, because it does not inherit a held lock.
    """
    with planning._lock:
        child = os.fork()
        if not child:
            os._exit(0 if planning._lock.acquire(timeout=5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_plan_shows_no_secret(nats_server, target, monkeypatch):
    """
    Options that a program gave are hidden, too.
    """
    options = jetsync.ConnectOptions(servers=nats_server.url, user="me", password="s3cret")
    made = make_plan(options, WriteOptions(stream=target.name), Columns())

    assert "s3cret" not in repr(made)


def test_names_of_connections(nats_server, target):
    """
    The name of a connection has the query and the partition.
    """
    made = plan_for(nats_server, target.name)

    assert made.connection_name(Task(query="q", partition=3)) == "jetsync-spark-q-3"
    assert made.connection_name(Task()) == "jetsync-spark-spark-0"


def test_two_columns_of_one_name_are_refused():
    """
    It would be arbitrary which of them is stored.
    """
    types = pytest.importorskip("pyspark.sql.types")
    field = types.StructField("a", types.IntegerType())

    with pytest.raises(JetStreamSparkError, match="two columns are named a"):
        types_of(types.StructType([field, field]))
