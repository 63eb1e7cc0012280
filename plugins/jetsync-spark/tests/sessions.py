"""
Spark sessions for tests.
"""

from __future__ import annotations


def session(master, **config):
    """
    Start a Spark session that needs few resources.

    Args:
        master: Where to run.
        config: More settings, with ``__`` for each dot.
    """
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master)
        .appName("jetsync-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in config.items():
        builder = builder.config(name.replace("__", "."), value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made
