"""
The code of the README and of the documentation's page runs.
"""

from pathlib import Path

import pytest
from doc_pages import run_page

from jetsync_spark.common.errors import java_missing

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

HERE = Path(__file__).parents[1]
PAGES = [HERE / "README.md", HERE.parents[1] / "docs" / "plugins" / "spark.md"]


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.skipif(java_missing() is not None, reason=str(java_missing()))
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(page, tmp_path):
    """
    The page's blocks run without an error.
    """
    run_page(page, tmp_path, seconds=280.0)
