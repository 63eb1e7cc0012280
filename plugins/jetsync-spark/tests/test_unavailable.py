"""
Servers that are away, and servers that answer and refuse: who waits, and who fails at once.
"""

import logging
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest
from waiting import eventually
from writing import plan_for, rows_of, run

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark import JetStreamSink
from jetsync_spark.common import clients
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.options import ConnectSettings
from jetsync_spark.common.retry import Retry, is_temporary
from jetsync_spark.common.task import Task
from jetsync_spark.write import layout
from jetsync_spark.write import plan as planning
from jetsync_spark.write.columns import Columns
from jetsync_spark.write.commit_check import check_layout
from jetsync_spark.write.options import WriteOptions
from jetsync_spark.write.plan import columns_of, make_plan

SOON = 10.0
"""Seconds in which a call fails that does not wait for ``retryTimeoutMs``, also when it is slow."""


def caused(error, cause):
    """
    Return an error that was raised from another one.
    """
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (jetsync.ConnectError("connection refused"), True),
        (jetsync.ConnectError("name or service not known"), True),
        (jetsync.ConnectTimeoutError(5.0), True),
        (jetsync.AuthenticationError("Authorization Violation"), False),
        (caused(jetsync.ConnectError("TLS"), ssl.SSLCertVerificationError()), False),
        (caused(jetsync.ConnectError("TLS"), ssl.SSLEOFError()), True),
        (jetsync.RequestTimeoutError("$JS.API.STREAM.INFO.S", 5.0), True),
        (jetsync.WaitTimeoutError("a pong", 5.0), True),
        (jetsync.TemporarilyUnavailableError(), True),
        (jetsync.ApiError(err_code=10118, description="stream is offline"), True),
        (jetsync.ApiError(err_code=10119, description="consumer is offline"), True),
        (jetsync.ApiError(err_code=10060, description="another"), False),
        (jetsync.StreamNotFoundError(), False),
        (jetsync.JetStreamNotEnabledError(), False),
        (caused(jetsync.JetStreamNotEnabledError(), jetsync.NoRespondersError("x")), True),
        (caused(jetsync.ResetAttemptsExceededError("S", 5), jetsync.DisconnectedError()), True),
        (caused(jetsync.ResetAttemptsExceededError("S", 5), jetsync.StreamNotFoundError()), False),
        (jetsync.PermissionDeniedError("x", "publish"), False),
        (None, False),
    ],
    ids=repr,
)
def test_which_errors_are_temporary(error, expected):
    """
    Those of servers that are away, busy or without a leader.
    """
    assert is_temporary(error) is expected


class TestLog:
    def test_the_first_wait_is_said_at_once(self, caplog):
        """
        A warning has the limit and the reason; the attempts that follow are no warnings.
        """
        errors = [jetsync.ConnectError("connection refused")] * 3

        def connect():
            if errors:
                raise errors.pop()
            return "connected"

        with caplog.at_level(logging.INFO, "jetsync_spark"):
            assert Retry(7.0).call(connect, "connecting failed") == "connected"

        said = [(record.levelname, record.event) for record in caplog.records]
        assert said == [
            ("WARNING", "waiting_for_servers"),
            ("INFO", "trying_again"),
            ("INFO", "trying_again"),
        ]
        assert caplog.records[0].fields == {"at_most": 7.0, "error": "connection refused"}

    def test_it_is_seen_without_a_configuration_of_logging(self):
        """
        Spark's workers have none, and Spark keeps what they write to the standard error.
        """
        code = (
            "import jetsync\n"
            "from jetsync_spark.common.retry import Retry\n"
            "Retry(0.1).wait_after(jetsync.ConnectError('connection refused'))\n"
        )

        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )

        assert done.stderr.split() == [
            "waiting_for_servers", "at_most=0.1", "error='connection", "refused'",
        ]  # fmt: skip


def fails_at_once(settings, stream, said):
    """
    Plan a write that fails without a wait for servers.
    """
    began = time.monotonic()
    with pytest.raises(JetStreamSparkError, match=said):
        make_plan(settings, WriteOptions(stream=stream, retry_timeout=60.0), Columns())
    assert time.monotonic() - began < SOON


@pytest.mark.live
class TestRefusals:
    """
    A server answers, and would answer the same a minute later.
    """

    def test_a_missing_stream(self, nats_server):
        """The error of a missing stream is raised at once."""
        fails_at_once(ConnectSettings(servers=nats_server.url), "no_such", "create the stream")

    def test_no_tls(self, nats_server):
        """A server without TLS refuses a client that asks for it."""
        url = nats_server.url.replace("nats://", "tls://")
        fails_at_once(ConnectSettings(servers=url), "S", "offers no TLS")

    def test_a_wrong_password(self, monkeypatch):
        """A wrong password is not tried again."""
        monkeypatch.setenv("A_USER", "me")
        monkeypatch.setenv("A_PASSWORD", "wr0ng")
        config = 'authorization { user: "me", password: "right" }'
        with DevServer(config=config, jetstream=False) as server:
            host = server.url.rpartition("@")[2].removeprefix("nats://")
            settings = ConnectSettings(
                servers=f"nats://{host}", user_env="A_USER", password_env="A_PASSWORD"
            )
            fails_at_once(settings, "S", "userEnv and passwordEnv")

    def test_another_service(self):
        """The port belongs to a service that is no server of NATS."""
        with socket.create_server(("127.0.0.1", 0)) as service:

            def greet():
                connection, _ = service.accept()
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH\r\n")

            thread = threading.Thread(target=greet)
            thread.start()
            url = f"nats://127.0.0.1:{service.getsockname()[1]}"
            fails_at_once(ConnectSettings(servers=url), "S", "not a NATS server")
            thread.join(30)


def test_no_server_is_waited_for_as_long_as_the_option_says():
    """
    An address at which no server ever was is like a server that is away.
    """
    began = time.monotonic()
    options = WriteOptions(stream="S", retry_timeout=1.0)

    with pytest.raises(JetStreamSparkError, match="is a server running there"):
        make_plan(ConnectSettings(servers="nats://127.0.0.1:1"), options, Columns())

    assert time.monotonic() - began >= 1.0


TASKS = {
    "atleastonce": {},
    "fast": {"fast_ingest": True},
    "atomic": {"mode": "atomic"},
    "exactlyonce": {"mode": "exactlyonce"},
}


def phases(server, given):
    """
    Return the calls of jobs that write, by their names, each with a connection of its own.
    """

    def planned(**options):
        return plan_for(server, "S", **options)

    def sink():
        return JetStreamSink(
            jetsync.ConnectOptions(servers=server.url), stream="S", retry_timeout=30.0
        )

    def writer(kind):
        pytest.importorskip("pyspark.sql.datasource")
        from pyspark.sql import types

        from jetsync_spark.write import writers

        schema = types.StructType(
            [types.StructField("subject", types.StringType()),
             types.StructField("data", types.StringType())]
        )  # fmt: skip
        options = {"servers": server.url, "stream": "S"}
        return lambda: getattr(writers, kind)(options, schema, overwrite=False)

    rows, of_bucket = rows_of("S", 10), given.startswith("bucket ")
    if of_bucket:
        rows = [(f"$KV.b.k{number}", data) for number, (_, data) in enumerate(rows)]

    def planned_of_bucket(**options):
        return make_plan(
            ConnectSettings(servers=server.url),
            WriteOptions(bucket="b", retry_timeout=20.0, **options),
            columns_of(None, constant=True, bucket="b"),
        )

    if of_bucket:
        planned = planned_of_bucket
    once = planned(mode="exactlyonce")
    run(once, rows)
    made = {
        "BatchWriter": writer("BatchWriter") if given == "BatchWriter" else None,
        "StreamWriter": writer("StreamWriter") if given == "StreamWriter" else None,
        "plan": planned,
        "sink": lambda: sink().write([]),
        "partitions": lambda: layout.record_partitions(once, Task(query="q", batch=1), 1),
        "commit": lambda: check_layout(once, Task(query="q", batch=0), 1, has_rows=True),
    }
    for name, options in TASKS.items():
        if not (of_bucket and name == "fast"):
            plan = planned(**options)
            made[name] = lambda plan=plan: run(plan, rows, batch=1)
    return made[given.removeprefix("bucket ")]


@pytest.mark.live
@pytest.mark.parametrize(
    "phase",
    [
        "BatchWriter",
        "StreamWriter",
        "plan",
        "sink",
        "partitions",
        "commit",
        *TASKS,
        *(f"bucket {name}" for name in ("plan", "partitions", "commit", *TASKS) if name != "fast"),
    ],
)
def test_a_write_waits_for_servers(monkeypatch, phase):
    """
    Each phase of a write waits until servers are back, although connections to them are refused.
    """
    with DevServer() as server, jetsync.connect(server.url) as client:
        client.jetstream().create_stream(
            "S",
            subjects=["S.>", "ledger.S.>"],
            allow_atomic=True,
            allow_batched=True,
            allow_direct=True,
        )
        client.jetstream().create_key_value("b", atomic=True)
        call = phases(server, phase)
        monkeypatch.setattr(clients, "PING_TIMEOUT", 0.1)
        server.kill()
        mine = {
            settings: kept.client
            for settings, kept in clients._pool.items()
            if server.url in str(settings.servers)
        }
        eventually(lambda: not any(client.is_connected for client in mine.values()))
        planning._configurations.clear()
        connect, tries = clients._connect, []

        def late(*args):
            tries.append(args)
            if len(tries) == 3:
                server.start()
            return connect(*args)

        monkeypatch.setattr(clients, "_connect", late)
        call()

        assert len(tries) >= 3
        for settings in [*clients._pool]:
            if server.url in str(settings.servers):
                clients.forget(settings)


@pytest.mark.live
def test_fast_ingest_begins_again_until_the_stream_has_a_leader(nats_server, target, monkeypatch):
    """
    Rows are stored once, although the first attempts to begin a batch fail.
    """
    begin, failures = jetsync.FastPublisher.add_many, [jetsync.NoStreamResponseError("x")] * 2

    def add_many(self, messages):
        if failures:
            raise failures.pop()
        return begin(self, messages)

    monkeypatch.setattr(jetsync.FastPublisher, "add_many", add_many)
    run(plan_for(nats_server, target.name, fast_ingest=True), rows_of(target.name, 20))

    assert target.info().state.messages == 20


@pytest.mark.live
def test_fast_ingest_that_has_begun_fails_the_task(nats_server, target, monkeypatch):
    """
    The rows that were sent are gone from the source, so only another run can repeat them.
    """
    add, calls = jetsync.FastPublisher.add_many, []

    def add_many(self, messages):
        calls.append(messages)
        if len(calls) > 1:
            raise jetsync.NoStreamResponseError("x")
        return add(self, messages)

    monkeypatch.setattr(jetsync.FastPublisher, "add_many", add_many)

    with pytest.raises(JetStreamSparkError, match="writing partition 0"):
        run(plan_for(nats_server, target.name, fast_ingest=True), rows_of(target.name, 20))
    assert len(calls) == 2
