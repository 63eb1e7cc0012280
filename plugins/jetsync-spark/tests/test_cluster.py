"""
Rows on a cluster of three hosts: workers that are cut off from all servers, and drivers that are
killed and start on another host. ``tox run -e spark-cluster`` builds what the jobs ship.
"""

import itertools
import json
import os
import random
import subprocess
import time
from pathlib import Path

import pytest
from waiting import eventually
from writing import lost_and_twice

import jetsync
from jetsync_spark.common.errors import java_missing

pytest.importorskip("helpers.namespaces", reason="only in the repository")
pytest.importorskip("pyspark", minversion="4.1", reason="Arrow writers need PySpark 4.1")

from three_hosts import HOSTS, LOST, MASTER, WORKERS, ThreeHosts, cut, heal, make_hosts

from helpers.namespaces import leave, missing

HERE = Path(__file__).parent
SHIPPED = os.environ.get("JETSYNC_SPARK_SHIPPED", "")
"""The folder of the archive, the libraries and the nodes' environment."""
MOST = 4000
"""Messages in a micro-batch."""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(java_missing() is not None, reason=str(java_missing())),
    pytest.mark.skipif(not SHIPPED, reason="needs what `tox run -e spark-cluster` builds"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """
    Spark and JetStream on three hosts.
    """
    lacking = missing("nft")
    if lacking:
        pytest.skip(f"needs {', '.join(lacking)}")
    try:
        leave()
        make_hosts()
    except OSError as error:
        pytest.skip(f"network namespaces cannot be made: {error}")
    with ThreeHosts(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def query(cluster, tmp_path, shipping):
    """
    A query with this kind of shipping.
    """
    with cluster.connect() as client:
        made = Query(cluster, client, tmp_path, shipping)
        yield made
        made.close()


def by_archive(folder):
    """
    Return the arguments and the environment of a job that brings its interpreter's environment.
    """
    archive = Path(SHIPPED) / "environment.tar.gz"
    target = folder / "environment"
    target.mkdir()
    subprocess.run(["tar", "-xzf", archive, "-C", target], check=True)
    python = "./environment/bin/python"
    return (
        ["--archives", f"{archive}#environment"],
        {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python},
    )


def by_py_files(folder):
    """
    Return the same for a job that brings modules, to nodes that have pyarrow and pandas.
    """
    python = str(Path(SHIPPED) / "nodes" / "bin" / "python")
    libraries = str(Path(SHIPPED) / "libraries.zip")
    return (
        ["--py-files", libraries],
        {
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            # Planning workers do not see what `--py-files` brings.
            "PYTHONPATH": libraries,
        },
    )


SHIPPING = {"archives": by_archive, "py-files": by_py_files}
ORIGIN = {"archives": "/environment/lib/", "py-files": "/libraries.zip/"}


class Query:
    """
    A query from one stream to another, and the host of its driver.
    """

    def __init__(self, cluster, client, folder, shipping):
        self.cluster = cluster
        self.host = MASTER
        self.driver = None
        self.rows = 0
        self._folder = folder / "driver"
        self._folder.mkdir()
        self._arguments, self._environment = SHIPPING[shipping](self._folder)
        self._js = client.jetstream()
        for name, subjects in {"IN": ["in.>"], "OUT": ["OUT.>", "ledger.OUT.>"]}.items():
            self._js.create_stream(
                name,
                subjects=subjects,
                num_replicas=len(HOSTS),
                allow_atomic=True,
                allow_direct=True,
            )
        self.target = self._js.stream("OUT")
        self.origins = folder / "origins"
        job = {
            "urls": cluster.urls,
            "source": "IN",
            "target": "OUT",
            "checkpoint": str(folder / "checkpoint"),
            "most": MOST,
            "origins": str(self.origins),
        }
        self._program = [str(HERE / "cluster_job.py"), json.dumps(job)]

    def grow(self, rows):
        """
        Add messages to the source.
        """
        first, self.rows = self.rows, self.rows + rows
        self._js.publish_many(
            (f"in.{number % 5}", b"%d" % number) for number in range(first, self.rows)
        )

    def start(self):
        """
        Start the driver on its host.
        """
        arguments = [*self._arguments, *self._program]
        self.driver = self.cluster.submit(self.host, self._folder, arguments, **self._environment)

    def ensure_running(self):
        """
        Start a driver, with more messages if the query has finished.
        """
        if self.driver is None:
            self.start()
        elif self.driver.poll() is not None:
            self.check_end()
            self.grow(10 * MOST)
            self.start()

    def check_end(self):
        """
        Wait for the end of the query, which must not have failed.
        """
        assert self.driver.wait(1800) == 0, self.log[-8000:]

    def kill(self):
        """
        Kill the driver. The next one starts on the next host.
        """
        self.cluster.end(self.driver)
        self.driver = None
        self.host = HOSTS[(self.host + 1) % len(HOSTS)]

    def close(self):
        """
        End the driver and delete the streams.
        """
        if self.driver is not None:
            self.kill()
        for name in ("IN", "OUT"):
            self._js.delete_stream(name)

    @property
    def log(self):
        """The log of all drivers."""
        return (self._folder / "driver.log").read_text(errors="replace")

    @property
    def stored(self):
        """The number of messages in the target."""
        return eventually(self._stored, 120)

    def _stored(self):
        """Return the number plus 1, or None while there is no leader."""
        try:
            return self.target.info().state.messages + 1
        except jetsync.JetSyncError:
            return None

    def wait_running(self, more):
        """
        Wait until a driver runs and that many more messages are stored.
        """
        start = self.stored

        def written():
            self.ensure_running()
            return self.stored >= start + more

        eventually(written, 1800)

    def lost_and_twice(self):
        """
        Return the numbers of rows that are missing from the target, and that are there more than
        once.
        """
        return lost_and_twice(self.target, self.rows)


@pytest.mark.parametrize("shipping", SHIPPING)
def test_each_row_is_stored_once(query, shipping):
    """
    Workers are cut off from all servers in one direction or both, and drivers are killed and start
    on another host from the shared checkpoint: no row is lost, and none is stored twice.
    """
    seed = int(os.environ.get("JETSYNC_SPARK_SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")  # noqa: T201 - shown with -s.
    chance = random.Random(seed)
    each = int(os.environ.get("JETSYNC_SPARK_FAULTS", "3"))
    faults = ["cut"] * each + ["kill"] * each
    chance.shuffle(faults)
    directions = itertools.cycle(LOST)
    dropped = []
    query.grow(10 * MOST)
    for fault in faults:
        query.wait_running(chance.randrange(1, MOST))
        if fault == "kill":
            query.kill()
        else:
            # Spark repeats tasks, but not the driver's part, so the driver's host stays connected.
            host = chance.choice([host for host in WORKERS if host != query.host])
            cut(host, next(directions))
            # Less and more than the tasks retry.
            time.sleep(chance.uniform(2, 15))
            dropped.append(heal(host))
    query.ensure_running()
    query.check_end()

    failed = query.log.count("Lost task ")
    figures = f"{query.rows} rows, packets dropped: {dropped}, {failed} failed tasks"
    print(f"{shipping}: {' '.join(faults)}; {figures}")  # noqa: T201 - as above.
    assert query.lost_and_twice() == (0, 0)
    assert any(dropped)
    assert all(ORIGIN[shipping] in line for line in query.origins.read_text().splitlines())
