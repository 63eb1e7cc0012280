"""
Readers and writers with the permissions that `jetsync permissions` prints for them, without Spark.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import attrs
import pytest
from writing import rows_of, run

import jetsync
from jetsync.devserver import DevServer

pytest.importorskip("pyspark.sql.streaming.datasource", reason="consumers need PySpark 4.2")

from queries import SCHEMA, Query
from queues_to_read import QueueQuery, be_impatient
from streams_to_read import extend
from waiting import eventually

from jetsync_spark.common.options import ConnectSettings, read_settings
from jetsync_spark.common.task import Task
from jetsync_spark.read import arrivals, idle
from jetsync_spark.source import JetStreamDataSource
from jetsync_spark.write.columns import Columns
from jetsync_spark.write.commit_check import check_layout
from jetsync_spark.write.options import WriteOptions
from jetsync_spark.write.plan import make_plan

pytestmark = pytest.mark.live

OPERATIONS = ("publish", "subscribe")


@attrs.frozen
class Use:
    """
    The user, the name of the stream, and a client that may do everything.
    """

    login: dict[str, str]
    name: str
    admin: jetsync.JetStream

    @property
    def url(self):
        """The address of the server."""
        return self.login["servers"]

    @property
    def stream(self):
        """The stream."""
        return self.admin.stream(self.name)


@attrs.frozen
class Program:
    """
    A job, and the arguments of `jetsync permissions` for its user. `ITS` is its stream.
    """

    arguments: str
    run: object
    needs: tuple[int, int] = (2, 10)
    streams: int = 1


def read(use, **options):
    """
    Run a batch query, and return how many rows it has read.
    """
    source = JetStreamDataSource({**use.login, "stream": use.name, **options})
    reader = source.reader(SCHEMA)
    return sum(each.num_rows for part in reader.partitions() for each in reader.read(part))


def read_batches(use):
    """
    Run batch queries with a filter and a start.
    """
    assert read(use) == 30
    assert read(use, subjectfilter=f"{use.name}.1") == 10
    assert read(use, startingtimestamp="2020-01-01T00:00:00Z") == 30


def read_pattern(use):
    """
    Also run a batch query of the streams that match a pattern.
    """
    read_batches(use)
    assert read(use, stream=f"{use.name}*") == 30


def read_many(use):
    """
    Run batch queries of several streams.
    """
    names = ",".join([use.name, *(f"{use.name}-{number}" for number in range(3))])
    assert read(use, stream=names) == 120
    assert read(use, stream=names, startingtimestamp="2020-01-01T00:00:00Z") == 120


def wait(use, **options):
    """
    Run a streaming query that waits for messages, and reads them.
    """
    options |= {"startingTimestamp": "2020-01-01T00:00:00Z"}
    query = Query(use, use.name, **use.login, **options)
    assert query.plan()
    query.read()
    assert not query.plan()
    assert not query.plan()
    extend(use.admin, use.stream, 6, subjects=3)
    assert query.plan()
    assert query.read()


def read_with_consumers(use):
    """
    Run a batch query, on a server without direct gets of many messages.
    """
    assert read(use) == 30


def wait_filtered(use):
    """
    Do so with a filter.
    """
    wait(use, subjectFilter=f"{use.name}.1")


def consume(use, **options):
    """
    Run a streaming query with a durable consumer until it has acknowledged all messages.
    """
    read_batches(use)
    query = QueueQuery(use, use.name, consumer="spark", **use.login, **options)
    try:
        query.begin()
        assert query.plan()
        assert query.read()
        assert not query.plan()
    finally:
        query.stop()
    assert use.stream.consumer("spark").cached_info.num_ack_pending == 0


def consume_existing(use):
    """
    Do so with a consumer that exists.
    """
    use.stream.create_consumer("spark")
    consume(use, createConsumer="false")


def consume_filtered(use):
    """
    Do so with a consumer that has a filter.
    """
    consume(use, subjectFilter=f"{use.name}.1")


def write(use, **options):
    """
    Run two micro-batches.
    """
    plan = make_plan(
        read_settings(ConnectSettings, use.login),
        WriteOptions(stream=use.name, retry_timeout=1.0, **options),
        Columns(),
    )
    for batch in range(2):
        for partition in range(2 - batch):
            assert run(plan, rows_of(use.name, 20), batch=batch, partition=partition).stored == 20
        if options.get("mode") == "exactlyonce":
            check_layout(plan, Task(query="q", batch=batch), 2 - batch, has_rows=True)


def write_fast(use):
    """
    Write with fast ingest.
    """
    write(use, fast_ingest=True)


def write_atomic(use):
    """
    Write atomic batches.
    """
    write(use, mode="atomic")


def write_exactly_once(use):
    """
    Write with a ledger.
    """
    write(use, mode="exactlyonce", ledger_subject=f"{use.name}._ledger")


OLD = "reader --wait, old server"
"""A program that needs the consumers of `--wait`, but not each other permission."""

PROGRAMS = {
    "reader": Program("spark-reader ITS", read_batches, (2, 11)),
    "reader --pattern": Program("spark-reader ITS --pattern", read_pattern, (2, 11)),
    "reader --many": Program("spark-reader ITS ITS-0 ITS-1 ITS-2 --many", read_many, (2, 11), 4),
    "reader --wait": Program("spark-reader ITS --wait", wait, (2, 11)),
    OLD: Program("spark-reader ITS --wait", read_with_consumers),
    "reader --wait --filter": Program(
        "spark-reader ITS --wait --filter ITS.1", wait_filtered, (2, 11)
    ),
    "reader --wait --delete": Program("spark-reader ITS --wait --delete", wait, (2, 11)),
    "reader --consumer": Program("spark-reader ITS --consumer spark", consume_existing, (2, 11)),
    "reader --consumer --create": Program(
        "spark-reader ITS --consumer spark --create", consume, (2, 11)
    ),
    "reader --consumer --create, filter": Program(
        "spark-reader ITS --consumer spark --create", consume_filtered, (2, 11)
    ),
    "writer": Program("spark-writer ITS ITS.>", write),
    "writer --fast": Program("spark-writer ITS ITS.> --fast", write_fast, (2, 14)),
    "writer --atomic": Program("spark-writer ITS ITS.> --atomic", write_atomic, (2, 12)),
    "writer --ledger": Program(
        "spark-writer ITS ITS.* --ledger ITS._ledger", write_exactly_once, (2, 12)
    ),
}


@functools.cache
def lines_of(arguments):
    """
    Return the permissions that `jetsync permissions` prints.
    """
    words = [sys.executable, "-m", "jetsync", "permissions", *arguments.split(), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["permissions"]
    return [(each, subject) for each in OPERATIONS for subject in found[each]["allow"]]


def name_of(title, number):
    """
    Return the name of a user and of its stream.
    """
    return f"P{[*PROGRAMS].index(title)}-{'all' if number is None else number}"


def users():
    """
    Yield a user for each program, and one for each program and each of its permissions.
    """
    yield {"user": "admin", "password": "x"}
    for title, program in PROGRAMS.items():
        lines = lines_of(program.arguments)
        for number in (None, *range(len(lines))):
            name = name_of(title, number)
            kept = [line for place, line in enumerate(lines) if place != number]
            allowed = {
                each: [subject.replace("ITS", name) for one, subject in kept if one == each]
                for each in OPERATIONS
            }
            # An empty list would allow everything.
            block = {
                each: {"allow": some} if some else {"deny": [">"]} for each, some in allowed.items()
            }
            yield {"user": name, "password": "x", "permissions": block}


@attrs.frozen
class Server:
    """
    A server with these users.
    """

    running: DevServer
    version: tuple[int, int]

    def use(self, title, number=None):
        """
        Run a program, without one of the permissions if *number* is given.

        Returns:
            The error of the program.
        """
        name = name_of(title, number)
        # Variables of its own, because jobs with the same settings share a client.
        variable = f"USER_{name}".replace("-", "_").upper()
        os.environ[variable], os.environ["PASSWORD_OF_ALL"] = name, "x"
        login = {"servers": self.running.url}
        login |= {"userenv": variable, "passwordenv": "PASSWORD_OF_ALL"}
        login["requesttimeoutms"] = "2000"
        with jetsync.connect(self.running.url, user="admin", password="x") as admin:
            js = admin.jetstream()
            features = {"allow_atomic": (2, 12), "allow_batched": (2, 14)}
            allowed = {each: True for each, first in features.items() if self.version >= first}
            for other in (name, *(f"{name}-{n}" for n in range(PROGRAMS[title].streams - 1))):
                stream = js.create_stream(
                    other, subjects=[f"{other}.>"], allow_direct=True, **allowed
                )
                extend(js, stream, 30, subjects=3)
            error = None
            try:
                PROGRAMS[title].run(Use(login, name, js))
            except Exception as raised:  # noqa: BLE001 - its kind depends on the program.
                error = raised
            return error

    def refused(self, title, number=None):
        """
        Return what the server has refused to a user, as its log says.
        """
        user = f'{name_of(title, number)}"'
        return [
            line.partition('Subject "')[2].partition('"')[0]
            for line in self.running.log().splitlines()
            if " Violation " in line and user in line
        ]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("2.10.26", False), id="2.10"),
        pytest.param((None, False), id="newest"),
        pytest.param((None, True), id="newer-acks"),
    ],
)
def server(request):
    """
    An old and a new server, and one that uses the newer form of the subjects of acknowledgements.
    """
    version, newer_acks = request.param
    config = {"authorization": {"timeout": 30, "users": [*users()]}}
    if newer_acks:
        config["feature_flags"] = {"js_ack_fc_v2": True}
    with DevServer(version, config=config) as running:
        with jetsync.connect(running.url, user="admin", password="x") as client:
            major, minor = map(int, client.server.version.split(".")[:2])
        yield Server(running, (major, minor))


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """
    Wait for messages with a consumer, but not long.
    """
    be_impatient(monkeypatch)
    monkeypatch.setattr(idle, "WAIT", 0.2)
    monkeypatch.setattr(idle, "AT_ONCE", 0.2)
    monkeypatch.setattr(idle, "CHECK", 1000.0)
    monkeypatch.setattr(arrivals, "PAUSE", 0.0)


DOES_WITHOUT = (".CONSUMER.CREATE.", ".CONSUMER.DELETE.")
"""What a job tries and can do without, so that its role does not allow it."""


@pytest.mark.parametrize("title", PROGRAMS)
def test_a_job_needs_nothing_else(server, title):
    """A job works with the permissions of its role."""
    if server.version < PROGRAMS[title].needs:
        pytest.skip("this server cannot do it")
    assert server.use(title) is None
    assert [
        each for each in server.refused(title) if not any(one in each for one in DOES_WITHOUT)
    ] == []


@pytest.mark.parametrize(
    ("title", "number"),
    [
        pytest.param(title, number, id=f"{title}: {subject}")
        for title, program in PROGRAMS.items()
        if title != OLD
        for number, (_, subject) in enumerate(lines_of(program.arguments))
    ],
)
def test_a_job_needs_each_line(server, title, number):
    """Without one of the permissions, a job fails, or the server refuses a request of it."""
    if server.version < PROGRAMS[title].needs:
        pytest.skip("this server cannot do it")
    _, subject = lines_of(PROGRAMS[title].arguments)[number]
    error = server.use(title, number)
    dropped = subject.replace("ITS", name_of(title, number))
    # The last request of a job may arrive after its end.
    assert error is not None or eventually(
        lambda: any(matches(each, dropped) for each in server.refused(title, number)), 5
    )


def matches(subject, pattern):
    """
    Return whether a subject matches a pattern, which may have wildcards.
    """
    parts, wanted = subject.split("."), pattern.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        parts, rest = parts[: len(wanted)], parts[len(wanted) :]
        if not rest:
            return False
    return len(parts) == len(wanted) and all(
        own in {"*", one} for one, own in zip(parts, wanted, strict=True)
    )
