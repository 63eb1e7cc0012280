"""
Fixtures of the Spark plugin's tests.
"""

from __future__ import annotations

import os
import socket
import sys
import uuid

import pytest
from plans import Query, state
from sessions import session

import jetsync
from jetsync_spark.common.errors import java_missing

# Workers use the interpreter of these tests and its modules.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)


def pytest_sessionstart(session: pytest.Session) -> None:
    """
    Let pytest-rerunfailures ask without a pause, as in the tests of jetsync.
    """
    connection = getattr(getattr(session.config, "failures_db", None), "sock", None)
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.fixture
def unique() -> str:
    """
    A name that no other test has.
    """
    return f"S{uuid.uuid4().hex[:10]}"


@pytest.fixture
def target(js, unique):
    """
    A stream that allows all features a writer may need, over ``<its name>.>`` and a ledger; removed
    afterwards.
    """
    yield js.create_stream(
        jetsync.StreamConfig(
            name=unique,
            subjects=[f"{unique}.>", f"ledger.{unique}.>"],
            storage="memory",
            allow_atomic=True,
            allow_batched=True,
            allow_direct=True,
            allow_msg_ttl=True,
        )
    )
    js.delete_stream(unique)


@pytest.fixture
def plan(nats_server, target):
    """
    A factory of plans of writes to `target`, with policies for invalid rows.
    """
    # It needs PySpark.
    from invalid_rows import plan_maker

    return plan_maker(nats_server, target)


@pytest.fixture
def reads(nats_server, monkeypatch):
    """
    A factory of queries with durable consumers, which are stopped afterwards.
    """
    # They need PySpark 4.2.
    from queues_to_read import be_impatient, queries_on

    be_impatient(monkeypatch)
    with queries_on(nats_server) as start:
        yield start


@pytest.fixture
def options(nats_server):
    """
    The connection options of a program.
    """
    return jetsync.ConnectOptions(servers=nats_server.url)


@pytest.fixture(scope="module")
def spark():
    """
    A Spark session on two threads, one for each test file.
    """
    missing = java_missing()
    if missing:
        pytest.skip(missing)
    # A failed task is run once more.
    made = session("local[2,2]")
    yield made
    made.stop()


@pytest.fixture
def client(nats_server):
    """
    A client that sees the requests of others.
    """
    with jetsync.connect(nats_server.url) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch):
    """
    Wait for nothing that does not come.
    """
    from jetsync_spark.read import idle, planner

    monkeypatch.setattr(idle, "WAIT", 0.0)
    monkeypatch.setattr(idle, "CHECK", 0.0)
    monkeypatch.setattr(idle, "POLLING", 0.0)
    monkeypatch.setattr(planner, "CATCHING_UP", 0.2)


@pytest.fixture
def earliest(nats_server):
    """
    A factory of queries that start at the beginning.
    """
    # They need PySpark 4.0.
    from queries import Query

    return lambda stream, **options: Query(
        nats_server, stream, **{"startingOffsets": "earliest", **options}
    )


@pytest.fixture
def query():
    """
    A query of a stream with 10 messages, without a server.
    """
    made = Query()
    made.begin(state())
    return made
