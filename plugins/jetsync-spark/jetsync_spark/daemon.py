"""
Spark's daemon for Python workers, with jetsync imported before it starts any.

Set ``spark.python.daemon.module`` to the name of this module. Spark forks each worker from its
daemon, so jetsync is imported once on each node instead of once in each worker. jetsync starts no
thread when it is imported. pyarrow does, so the workers import it themselves.
"""

from __future__ import annotations

from pyspark.daemon import manager

from jetsync import connect  # noqa: F401 - the first name loads the client, for all workers.

__all__: list[str] = []

if __name__ == "__main__":
    manager()
