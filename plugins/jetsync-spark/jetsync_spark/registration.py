"""
Register the format ``jetstream``.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pyspark
from pyspark.errors import AnalysisException, PySparkException

from jetsync_spark.common.errors import OptionError, require_pyarrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jetsync_spark.source import JetStreamDataSource

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """
    Register ``format("jetstream")`` in a session.

    If the package is installed, Spark finds the format without this call. Repeated calls are
    allowed. The call also tells the planner how many tasks the session runs at the same time, if
    its settings contain this number. Micro-batches then have up to twice that number of partitions.

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
        spark.dataSource.register(_with_parallelism(JetStreamDataSource, _parallelism(spark)))
    except AnalysisException as error:
        # Spark 4.0 has found the format itself and rejects a second registration.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _with_parallelism(
    source: type[JetStreamDataSource], parallelism: int | None
) -> type[JetStreamDataSource]:
    """Return a data source that knows how many tasks run at once."""
    if parallelism is None:
        return source
    return type(source.__name__, (source,), {"parallelism": parallelism})


def _parallelism(spark: SparkSession) -> int | None:
    """
    Return how many tasks a session runs at once, or None if its settings do not say.

    The present number of executors does not count, because they may still be starting.
    """

    def setting(name: str) -> str:
        return spark.conf.get(f"spark.{name}", "") or ""

    try:
        given = setting("default.parallelism")
        if given.isdecimal():
            return int(given) or None
        if setting("master").startswith("local["):
            return int(spark.sparkContext.defaultParallelism)
        cores, instances = setting("executor.cores"), setting("executor.instances")
    except PySparkException:
        # Spark Connect has no context, and a server may refuse to show a setting.
        return None
    known = cores.isdecimal() and instances.isdecimal()
    return int(cores) * int(instances) or None if known else None
