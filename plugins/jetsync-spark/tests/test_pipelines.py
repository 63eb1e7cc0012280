"""
The page about Declarative Pipelines: its project runs with the command line of Spark.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.errors import java_missing

pytest.importorskip("pyspark.pipelines", reason="pipelines need PySpark 4.1")
pytest.importorskip("grpc_status", reason="pipelines run in a session of Spark Connect")
pytest.importorskip("yaml", reason="spark-pipelines needs pyyaml")

PAGE = Path(__file__).parents[3] / "docs" / "plugins" / "spark" / "pipelines.md"

pytestmark = [
    pytest.mark.live,
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.timeout(1200),
    # Spark gives a Python process ten seconds to start.
    pytest.mark.flaky(reruns=3, only_rerun=["failed to connect back"]),
    pytest.mark.skipif(java_missing() is not None, reason=str(java_missing())),
    pytest.mark.skipif(not PAGE.exists(), reason="only in the repository"),
]


@pytest.fixture
def server():
    """
    A server, because the streams of the page have fixed names.
    """
    with DevServer() as made:
        yield made


@pytest.fixture
def js(server):
    """
    A connection to it.
    """
    with jetsync.connect(server.url) as client:
        yield client.jetstream()


@pytest.fixture
def project(server, tmp_path):
    """
    A function that runs ``spark-pipelines`` in the project of the page, and returns what it prints.
    """
    blocks = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for path, text in blocks.findall(PAGE.read_text()):
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.replace("/srv/shop", str(tmp_path)))
    home = Path(pyspark.__file__).parent

    def run(*arguments):
        done = subprocess.run(
            [str(home / "bin" / "spark-pipelines"), *arguments],
            cwd=tmp_path,
            env={
                **os.environ,
                "NATS_URL": server.url,
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_pipeline_stores_each_row_once(js, project):
    """
    Runs read what is new into a table, and a flow writes rows of the table to a stream.
    """
    features = {"allow_direct": True, "allow_atomic": True}
    js.create_stream("ORDERS", subjects=["orders.>"], allow_direct=True)
    js.create_stream("LARGE", subjects=["large.>", "ledger.large.>"], **features)

    def publish(numbers):
        for number in numbers:
            order = {"id": number, "amount": number * 1.5}
            js.publish(f"orders.{'eu' if number % 2 else 'us'}", json.dumps(order))

    def stored():
        found = js.stream("LARGE").scan(subject="large.>")
        return sorted((message.subject, json.loads(message.data)["id"]) for message in found)

    def large(numbers):
        return sorted(
            (f"large.{'eu' if number % 2 else 'us'}", number)
            for number in numbers
            if number * 1.5 >= 100
        )

    publish(range(100))
    status, printed = project("run", "--conf", "spark.sql.catalogImplementation=hive")
    assert status == 0, printed
    assert stored() == large(range(100))

    publish(range(100, 120))
    status, printed = project("run", "--conf", "spark.sql.catalogImplementation=hive")
    assert status == 0, printed
    assert stored() == large(range(120))


def test_a_missing_stream_ends_a_run_with_the_text_of_the_error(project):
    """
    A dry run does not ask the servers, and a run prints the text.
    """
    status, printed = project("dry-run")
    assert status == 0, printed

    status, printed = project("run", "--conf", "spark.sql.catalogImplementation=hive")
    assert status != 0
    assert "create the stream, or correct the option stream" in printed
