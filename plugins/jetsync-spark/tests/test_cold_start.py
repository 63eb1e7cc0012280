"""
What a task imports. Spark ends idle workers after a minute, so workers import often.
"""

import os
import subprocess
import sys

import pytest
from streams_to_read import numbered, part_of

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

pytestmark = pytest.mark.live

HEAVY = {
    "aiohttp",
    "click",
    "grpc",
    "matplotlib",
    "multidict",
    "nats.js",
    "opentelemetry",
    "pandas",
}
HEAVY |= {"jetsync.cli", "jetsync.devserver", "jetsync.testing", "jetsync_spark.monitor"}
"""Modules that no task needs. Some are installed with jetsync-spark. pandas alone takes 0.5 s."""

START = """
import sys

import pyarrow.compute
from pyspark.sql import types

url, stream, created, file = sys.argv[1:]
options = {"servers": url, "stream": stream}
schema = types.StructType().add("subject", "string").add("data", "binary")
"""

READ = """
from jetsync_spark.common.options import ConnectSettings, read_settings
from jetsync_spark.read.batch import read_ranges
from jetsync_spark.read.options import ReadOptions
from jetsync_spark.read.ranges import Range
from jetsync_spark.read.tables import STREAM_COLUMNS, Table

schema.add("headers", types.MapType(types.StringType(), types.ArrayType(types.StringType())))
schema.add("stream", "string").add("sequence", "long").add("timestamp", "timestamp")
settings, read = read_settings(ConnectSettings, options), read_settings(ReadOptions, options)
table, part = Table(schema, STREAM_COLUMNS), Range(stream, created, 1, 11)
assert sum(batch.num_rows for batch in read_ranges(settings, read, table, (part,))) == 10
"""

WRITE = """
from jetsync_spark.write.writers import BatchWriter

writer = BatchWriter(options, schema, overwrite=False)
with pyarrow.ipc.open_stream(file) as batches:
    writer.write(iter(batches))
"""

LOADED = "print(*sys.modules)"


@pytest.mark.parametrize(
    ("task", "other"), [(READ, "jetsync_spark.write"), (WRITE, "jetsync_spark.read")]
)
@pytest.mark.parametrize("speedups", ["", "0"], ids=["compiled", "pure"])
def test_a_task_imports_only_what_it_needs(nats_server, js, tmp_path, task, other, speedups):
    """
    A reading task and a writing task import no large package that they do without, and not the
    other direction.
    """
    file = str(tmp_path / "rows")
    with numbered(js, 10) as stream:
        rows = pa.record_batch({"subject": [f"{stream.name}.1"], "data": [b"11 "]})
        with pa.ipc.new_stream(file, rows.schema) as out:
            out.write(rows)
        done = subprocess.run(
            [
                *(sys.executable, "-c", START + task + LOADED),
                *(nats_server.url, stream.name, part_of(js, stream).created, file),
            ],
            env={"JETSYNC_SPEEDUPS": speedups},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        loaded = set(done.stdout.split())
        assert "jetsync.client" in loaded
        assert loaded & (HEAVY | {other}) == set()
        assert stream.info().state.messages == 10 + (task is WRITE)


DAEMON = """
import os
import sys
import threading

import jetsync_spark.daemon

assert threading.active_count() == 1
print(*sys.modules)
sys.stdout.flush()
if os.fork() == 0:
    import jetsync

    jetsync.connect(sys.argv[1]).close()
    os._exit(0)
_, status = os.wait()
assert status == 0, status
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Spark has no daemon on this system")
def test_workers_of_the_daemon_have_jetsync(nats_server):
    """
    The daemon imports jetsync without pyarrow and starts no thread, and processes that it forks can
    connect.
    """
    done = subprocess.run(
        [sys.executable, "-c", DAEMON, nats_server.url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "jetsync.client" in loaded
    assert loaded & (HEAVY | {"numpy", "pyarrow"}) == set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="as above")
def test_the_daemon_is_that_of_spark():
    """
    The module tells Spark the port on which it listens, and ends when Spark closes its input.
    """
    done = subprocess.run(
        [sys.executable, "-m", "jetsync_spark.daemon", "pyspark.worker"],
        input=b"",
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == b""
    assert 0 < int.from_bytes(done.stdout, "big") < 1 << 16
