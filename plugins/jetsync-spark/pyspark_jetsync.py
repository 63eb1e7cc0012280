"""
Lets Spark find ``format("jetstream")`` without a call of ``jetsync_spark.register``.

If a format is not built in, Spark imports each top-level module named ``pyspark_*`` and takes the
class ``DefaultSource`` from it. A module that raises breaks the lookup of every Python data source
in the session. So this import never fails. If jetsync-spark cannot be imported, ``DefaultSource``
raises the reason when the format is used. Without Python data sources (PySpark 3.5), there is no
``DefaultSource``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__ = ["DefaultSource"]

try:
    from jetsync_spark.source import JetStreamDataSource as DefaultSource
except Exception as error:  # noqa: BLE001 - no error may break other data sources.
    _reason = f"{type(error).__name__}: {error}"
    try:
        from pyspark.sql.datasource import DataSource
    except Exception:  # noqa: BLE001 - as above.
        __all__ = []
    else:

        class DefaultSource(DataSource):  # type: ignore[no-redef]
            """
            Report why the data source cannot be imported.
            """

            def __init__(self, options: MutableMapping[str, str]) -> None:
                super().__init__(options)
                raise ImportError(
                    f'format("jetstream") cannot be imported by {sys.executable} ({_reason}):'
                    " install jetsync-spark in this Python: python -m pip install jetsync-spark"
                )

            @classmethod
            def name(cls) -> str:
                """
                Return the name of the format.
                """
                return "jetstream"
