"""
Making the format ``jetstream`` known to a session.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pyspark
from pyspark.errors import AnalysisException

from jetsync_spark.common.errors import OptionError, require_pyarrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """
    Make ``format("jetstream")`` known to a session.

    Safe to repeat. Where the package is installed, Spark also finds it without this.

    Args:
        spark: The session.

    Raises:
        OptionError: pyarrow is missing, or this Spark has no Python data sources.
    """
    require_pyarrow()
    if importlib.util.find_spec("pyspark.sql.datasource") is None:
        raise OptionError(
            f"PySpark {pyspark.__version__} has no Python data sources",
            cure="use PySpark 4.0 or newer, or JetStreamSink and publish_arrow",
        )
    from jetsync_spark.source import JetStreamDataSource

    try:
        spark.dataSource.register(JetStreamDataSource)
    except AnalysisException as error:
        # Spark 4.0 has found it by itself, and does not let it be registered beside that.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
