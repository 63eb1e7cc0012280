"""
The stateful example with a driver that is killed, on a cluster, and over Spark Connect.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from standalone import Standalone, kill, processes_of
from waiting import eventually

import jetsync
import jetsync_spark
from jetsync_spark.common.errors import java_missing

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

EXAMPLE = Path(__file__).parents[3] / "examples" / "spark_stateful.py"
RESULT = "153 of 300 orders are paid"

pytestmark = [
    pytest.mark.live,
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(java_missing() is not None, reason=str(java_missing())),
]


@pytest.fixture
def start(js, nats_server, tmp_path):
    """
    A function that starts the example, with more environment variables.
    """
    started = []

    def start(**environment):
        started.append(
            subprocess.Popen(
                [sys.executable, str(EXAMPLE)],
                cwd=tmp_path,
                env={**os.environ, "NATS_URL": nats_server.url, **environment},
                stdout=subprocess.PIPE,
                stderr=(tmp_path / "err").open("wb"),
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        for pid in processes_of(process.pid):
            kill(pid)
        process.communicate()
    for name in js.stream_names():
        js.delete_stream(name)


def finish(process, folder):
    """
    Wait for the example, which checks its own result, and return its output.
    """
    said, _ = process.communicate(timeout=1500)
    assert process.returncode == 0, (folder / "err").read_text()[-4000:]
    return said


def test_a_killed_driver(start, js, tmp_path):
    """
    The driver dies after it has stored states. The next one continues, and stores no state twice.
    """
    first = start()

    def stored():
        assert first.poll() is None, (tmp_path / "err").read_text()[-4000:]
        try:
            return js.stream("KV_order-states").info().state.messages > 10
        except jetsync.StreamNotFoundError:
            return False

    eventually(stored, 900)
    for pid in processes_of(first.pid):
        kill(pid)
    first.wait(60)

    assert RESULT in finish(start(), tmp_path)


def test_the_stateful_example_runs_on_a_cluster(start, tmp_path):
    """
    The example runs on a master and two workers that are processes of their own.
    """
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Standalone(folder) as cluster:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
            "spark.ui.enabled": "false",
        }
        chosen = " ".join(f"--conf {name}={value}" for name, value in settings.items())
        process = start(PYSPARK_SUBMIT_ARGS=f"--master {cluster.url} {chosen} pyspark-shell")

        assert RESULT in finish(process, tmp_path)


def test_the_stateful_example_runs_over_spark_connect(start, js, nats_server, tmp_path):
    """
    The example runs over Spark Connect, where the progress of a query is known as well.
    """
    from connect_server import ConnectServer, connected

    folder = tmp_path / "server"
    folder.mkdir()
    reports = []
    options = jetsync.ConnectOptions(servers=nats_server.url)
    with ConnectServer(folder) as server:
        assert RESULT in finish(start(SPARK_REMOTE=server.url), tmp_path)

        with connected(server) as spark:
            spark.streams.addListener(jetsync_spark.ProgressListener(reports.append))
            query = (
                spark.readStream.format("jetstream")
                .options(servers=nats_server.url, stream="ORDERS", startingOffsets="earliest")
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path / "other"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            js.publish("orders.later", b"{}")

            assert jetsync_spark.progress(query, options).backlog == 1
            eventually(lambda: reports, 120)
            assert reports[0].rows == 301
            assert reports[0].streams[0].stream == "ORDERS"
