"""
Rows when processes are killed: executors, workers and drivers of real Spark.
"""

import collections
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import late_commits
import pyspark
import pytest
from late_job import WAYS
from standalone import Standalone, kill, processes_of, runs_of, speculating
from waiting import eventually
from writing import lost_and_twice

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.errors import java_missing

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.spark,
    pytest.mark.skipif(java_missing() is not None, reason="needs Java"),
    pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Arrow writers need PySpark 4.1"),
]

LOCAL = "local[2,4]"
CLUSTER = "local-cluster[2,1,1024]"
KILLS = int(os.environ.get("JETSYNC_SPARK_KILLS", "20"))


class Pipeline:
    """
    A query from one stream to another, its driver, and the processes to kill.

    The configurations of the streams and the job may have more settings.
    """

    def __init__(self, server, folder, *, mode, rows, source=None, target=None, **job):
        self.server = server
        self.folder = folder
        self.job = {
            "master": LOCAL,
            "url": server.url,
            "source": "IN",
            "target": "OUT",
            "mode": mode,
            "checkpoint": str(folder / "checkpoint"),
            "partitions": 2,
            "most": 4000,
            "reading": {"startingOffsets": "earliest"},
            "writing": {},
            "subject": "'OUT.' || (sequence % 7)",
            "config": {"spark__executor__memory": "512m"},
            **job,
        }
        self.client = jetsync.connect(server.url)
        js = self.client.jetstream()
        self.source = js.create_stream("IN", subjects=["in.>"], allow_direct=True, **(source or {}))
        self.target = js.create_stream(
            "OUT",
            subjects=["OUT.>", "ledger.OUT.>"],
            allow_atomic=True,
            allow_direct=True,
            **(target or {}),
        )
        self.rows = 0
        self.driver = None
        self.grow(rows)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill_driver()
        self.client.close()

    def grow(self, rows):
        """
        Add messages to the source.
        """
        first, self.rows = self.rows, self.rows + rows
        self.client.jetstream().publish_many(
            (f"in.{number % 5}", b"%d" % number) for number in range(first, self.rows)
        )

    def start(self, program="pipeline_job.py", **changes):
        """
        Start the driver; *changes* are those of the job, or of its environment if upper-case.
        """
        environment = {name: value for name, value in changes.items() if name.isupper()}
        job = {**self.job, **{n: v for n, v in changes.items() if not n.isupper()}}
        self.log = (self.folder / "driver.log").open("ab")
        self.driver = subprocess.Popen(
            [sys.executable, str(HERE / program), json.dumps(job)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]]),
                **environment,
            },
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def run(self, **changes):
        """
        Start the driver, wait for its end and return its status.
        """
        self.start(**changes)
        return self.driver.wait(1200)

    def finish(self):
        """
        Run until all messages are written, and those of a work queue are acknowledged.
        """
        while self.run() != 0 or self.is_waiting:
            self.end()

    @property
    def error(self):
        """The error of the query."""
        return (self.folder / "checkpoint.error").read_text()

    def processes(self, *words):
        """
        Return the driver's processes whose command line contains all these words.
        """
        return processes_of(self.driver.pid, *words)

    def end(self):
        """
        Note the end of a driver. A query may fail after so many kills and is started again, but it
        must not fail because rows differ.
        """
        if self.driver.returncode == 3:
            assert "LayoutError" not in self.error, self.error
        self.kill_driver()

    def kill_driver(self):
        """
        Kill the driver's Python and JVM and everything that they started, and wait for it.
        """
        if self.driver is None:
            return
        for pid in self.processes():
            kill(pid)
        self.driver.wait(30)
        eventually(lambda: not self.processes(), 30)
        self.log.close()
        self.driver = None

    def kill_one(self, *words):
        """
        Kill one of the processes with these words; return whether there was one.
        """
        found = self.processes(*words)
        return bool(found) and kill(random.choice(found))

    @property
    def stored(self):
        """The number of messages in the target."""
        return self.target.info().state.messages

    @property
    def ledgers(self):
        """The numbers of ledger messages of the partitions that have begun to write."""
        return (self.target.info(subjects_filter="ledger.>").state.subjects or {}).values()

    @property
    def is_waiting(self):
        """Whether a work queue has messages that the server has yet to redeliver."""
        state = self.source.info()
        return state.config.retention == "workqueue" and state.state.messages > 0

    def wait_written(self, more):
        """
        Wait until that many more messages are stored, or the driver has ended.
        """
        start = self.stored
        eventually(lambda: self.has_ended(0.05) or self.stored >= start + more, 600)

    def has_ended(self, seconds):
        """
        Return whether the driver ends within some seconds. Meanwhile it has the processor.
        """
        try:
            self.driver.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def wait_for(self, check):
        """
        Wait until *check* is true, for as long as the driver runs.
        """

        def is_so():
            found = check()
            assert found or self.driver.poll() is None, "the driver has ended"
            return found

        eventually(is_so, 600)

    def lost_and_twice(self):
        """
        Return the numbers of rows that are missing from the target, and that are there more than
        once.
        """
        return lost_and_twice(self.target, self.rows)


@pytest.fixture
def pipeline(tmp_path):
    """
    A factory of pipelines, each on its own server.
    """
    made = []
    with DevServer() as server:

        def make(**settings):
            made.append(Pipeline(server, tmp_path, **settings))
            return made[-1]

        try:
            yield make
        finally:
            for each in made:
                each.__exit__()


def test_a_driver_dies_in_a_commit(pipeline, tmp_path):
    """
    The micro-batch is stored and Spark has not noted it: it is repeated, and nothing is stored
    twice.
    """
    pipe = pipeline(mode="exactlyonce", rows=20_000)
    marker = tmp_path / "die"
    marker.touch()

    assert pipe.run(JETSYNC_TEST_DIE_IN_COMMIT=str(marker)) != 0
    assert not marker.exists()
    before = pipe.stored
    pipe.kill_driver()
    assert pipe.run(JETSYNC_TEST_DIE_IN_COMMIT=str(marker)) == 0

    assert 0 < before < pipe.stored
    assert pipe.lost_and_twice() == (0, 0)


@pytest.mark.parametrize("mode", ["exactlyonce", "atleastonce", "atomic"])
def test_executors_die_in_mid_write(pipeline, mode):
    """
    Their tasks run again on another executor: no row is lost in any mode, and none is stored twice
    in the modes that promise it.
    """
    pipe = pipeline(mode=mode, rows=60_000, most=20_000, master=CLUSTER)
    pipe.start()
    killed = 0
    for _ in range(3):
        pipe.wait_written(random.randrange(500, 4000))
        killed += pipe.kill_one("CoarseGrainedExecutorBackend")

    assert pipe.driver.wait(1200) == 0
    assert killed
    lost, twice = pipe.lost_and_twice()
    assert lost == 0
    assert twice == 0 or mode != "exactlyonce"


def test_a_restart_with_other_partitions_repeats_the_recorded_ones(pipeline):
    """
    A micro-batch records its partitions. A restart with another minimum repeats them, so no row is
    lost, and none is stored twice.
    """
    pipe = pipeline(mode="exactlyonce", rows=60_000, most=60_000)
    pipe.start()
    eventually(lambda: len(pipe.ledgers) == 2, 600)
    pipe.kill_driver()

    assert pipe.run(partitions=5) == 0
    assert pipe.lost_and_twice() == (0, 0)


def kill_at_random(pipe, wanted):
    """
    Kill drivers, executors and workers at so many random moments of one run.
    """
    kills = collections.Counter()
    while sum(kills.values()) < wanted:
        if pipe.driver is None or pipe.driver.poll() is not None:
            if pipe.driver is not None:
                if pipe.driver.returncode == 0:
                    pipe.grow(30_000)
                pipe.end()
            pipe.start(master=random.choice([LOCAL, CLUSTER]))
        pipe.wait_written(random.randrange(1, 6000))
        time.sleep(random.random() * 0.3)
        if pipe.driver.poll() is not None:
            continue
        kind = random.choice(["driver", "executor", "worker"])
        if kind == "driver":
            pipe.kill_driver()
            kills[kind] += 1
        elif kind == "executor":
            kills[kind] += pipe.kill_one("CoarseGrainedExecutorBackend")
        else:
            kills[kind] += pipe.kill_one("pyspark.daemon")
    if pipe.driver is not None:
        pipe.driver.wait(1200)
        pipe.end()
    print(dict(kills), pipe.rows, "rows")  # noqa: T201 - shown with -s.


@pytest.fixture
def seed():
    """
    A seed for the random moments, which is shown with -s.
    """
    chosen = int(os.environ.get("JETSYNC_SPARK_SEED") or random.randrange(1 << 32))
    print(f"seed {chosen}")  # noqa: T201 - as above.
    random.seed(chosen)
    return chosen


@pytest.mark.usefixtures("seed")
def test_twenty_random_kills(pipeline):
    """
    Drivers, executors and workers die at twenty random moments of one run: no row is lost, and none
    is stored twice.
    """
    pipe = pipeline(mode="exactlyonce", rows=30_000, most=6000)
    kill_at_random(pipe, KILLS)
    pipe.finish()

    assert pipe.lost_and_twice() == (0, 0)


SOURCES = {
    "stream": {},
    "work queue": {
        "source": {"retention": "workqueue"},
        "reading": {"consumer": "spark", "ackWait": "5s"},
    },
}


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize(
    "source",
    [
        "stream",
        pytest.param(
            "work queue",
            marks=pytest.mark.skipif(pyspark.__version__ < "4.2", reason="needs PySpark 4.2"),
        ),
    ],
)
def test_kills_with_dead_letters_and_an_old_ledger(pipeline, source):
    """
    Each valid row is stored once, and each invalid one is one dead letter. After half of the kills,
    the stream allows rollups: they replace the ledger of a micro-batch that is not committed.

    The messages of a work queue are acknowledged in the end.
    """
    pipe = pipeline(
        mode="exactlyonce",
        rows=30_000,
        most=6000,
        subject="if(sequence % 11 = 0, null, 'OUT.' || (sequence % 7))",
        writing={"onInvalidRow": "deadLetter", "deadLetterSubject": "OUT.dead"},
        **SOURCES[source],
    )
    kill_at_random(pipe, KILLS // 4)
    most = 0
    while most < 2:
        pipe.grow(30_000)
        pipe.start()
        # At least three chunks of two partitions, unless a worker starts too late.
        pipe.wait_written(3000)
        pipe.end()
        most = max(pipe.ledgers, default=0)
    pipe.target.update(allow_rollup_hdrs=True)
    kill_at_random(pipe, KILLS // 4)
    pipe.grow(6000)
    pipe.finish()

    assert pipe.lost_and_twice() == (0, 0)
    letters = [int(letter.data) for letter in pipe.target.scan(subject="OUT.dead")]
    assert sorted(letters) == [*range(10, pipe.rows, 11)]
    assert [*pipe.ledgers] == [1, 1]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory):
    """
    A cluster of two hosts.
    """
    with Standalone(tmp_path_factory.mktemp("standalone")) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_a_task_that_spark_runs_twice_wakes_up_late(pipeline, standalone, tmp_path, way):
    """
    Spark's speculation has run a copy of the task on another host, which has stored all rows. The
    original then sends its second chunk, which the server refuses (10071), and each row is stored
    once.
    """
    notes, plugin, events = (tmp_path / name for name in ("notes", "plugin", "events"))
    for folder in (notes, plugin, events):
        folder.mkdir()
    late_commits.install(plugin)
    path = os.pathsep.join([str(plugin), str(HERE), os.environ["PYTHONPATH"]])
    pipe = pipeline(mode="exactlyonce", rows=16_000, most=8000, master=standalone.url)
    config = {
        **pipe.job["config"],
        **speculating(events),
        "spark__executorEnv__PYTHONPATH": path,
        f"spark__executorEnv__{late_commits.FOLDER}": str(notes),
    }

    pipe.start("late_job.py", way=way, config=config, notes=str(notes), PYTHONPATH=path)
    pipe.wait_for((notes / "written").exists)
    (held,) = late_commits.noted(notes, "held")
    before = pipe.stored
    assert pipe.lost_and_twice() == (0, 0)

    def ends():
        ended = late_commits.noted(notes, "ended")
        return [run for run in ended if run["task_attempt"] == held["task_attempt"]]

    assert len(ends()) == 1
    (notes / "wake").touch()
    pipe.wait_for(lambda: len(ends()) == 2)
    assert pipe.lost_and_twice() == (0, 0)
    (notes / "end").touch()

    assert pipe.driver.wait(600) == 0
    late, copy = runs_of(events, held["task_attempt"])
    print(way, ends(), late, copy, sep="\n")  # noqa: T201 - shown with -s.
    assert (late["Attempt"], copy["Attempt"]) == (0, 1)
    assert copy["Speculative"]
    assert late["Host"] != copy["Host"]
    assert [run["pid"] for run in ends()] == [held["pid"]] * 2
    assert [run["err_code"] for run in ends()] == [None, 10071]
    assert pipe.stored == before
    assert pipe.lost_and_twice() == (0, 0)
