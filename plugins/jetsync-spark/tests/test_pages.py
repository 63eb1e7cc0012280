"""
The code of the README and of the documentation's pages runs.
"""

import runpy
from pathlib import Path

import pytest

from jetsync_spark.common.errors import java_missing

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")
pytest.importorskip("helpers.doc_pages", reason="only in the repository")

from helpers.doc_pages import run_page, script_of

HERE = Path(__file__).parents[1]
FOLDER = HERE.parents[1] / "docs" / "plugins" / "spark"
EXAMPLE = HERE.parents[1] / "examples" / "spark_stateful.py"
PAGES = {page.stem: page for page in sorted(FOLDER.glob("*.md")) if script_of(page).strip()}
# It needs a server of Spark Connect, see `test_connect.py`.
del PAGES["connect"]
# Its files belong to a project, see `test_pipelines.py`.
del PAGES["pipelines"]

pytestmark = [pytest.mark.live, pytest.mark.spark]


@pytest.fixture
def empty(spark, js):
    """
    A session without queries, and a server without streams afterwards.
    """
    yield
    for query in spark.streams.active:
        query.stop()
    for stream in js.stream_names():
        js.delete_stream(stream)


@pytest.mark.skipif(java_missing() is not None, reason=str(java_missing()))
def test_readme_runs(tmp_path):
    """
    The README's blocks are a program that runs without an error.
    """
    run_page(HERE / "README.md", tmp_path, seconds=280.0)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_of_jetsync_spark_runs(name, empty, nats_server, monkeypatch):
    """
    The page's blocks run without an error, in a session that all pages share.
    """
    monkeypatch.setenv("NATS_URL", nats_server.url)
    # Spark sends functions of an unknown module as code.
    exec(compile(script_of(PAGES[name]), PAGES[name], "exec"), {"__name__": f"page_{name}"})


def test_stateful_example_runs(empty, nats_server, monkeypatch, tmp_path, capsys):
    """
    The example joins two streams, and stores the state of each order once.
    """
    monkeypatch.setenv("NATS_URL", nats_server.url)
    monkeypatch.chdir(tmp_path)

    runpy.run_path(EXAMPLE)

    assert "153 of 300 orders are paid" in capsys.readouterr().out
