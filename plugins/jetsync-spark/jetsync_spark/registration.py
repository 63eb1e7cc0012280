"""
Register the format ``jetstream``.
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
    Register ``format("jetstream")`` in a session.

    If the package is installed, Spark finds the format without this call. Repeated calls are
    allowed.

    Args:
        spark: The session.

    Raises:
        OptionError: pyarrow is missing, or this Spark version has no Python data sources.
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
        # Spark 4.0 has found the format itself and rejects a second registration.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
