"""
Names of other projects that our reference mentions, as inventories for `sphinx.ext.intersphinx`.

The build opens no connection, so the addresses are listed here. `$` stands for the name.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_ABC = ["Callable", "Iterable", "Iterator", "Mapping", "MutableMapping", "Sequence"]
_ERRORS = ["ConnectionError", "KeyboardInterrupt", "PermissionError", "RuntimeError", "SystemExit"]
_ERRORS += ["TimeoutError", "TypeError", "ValueError", "ResourceWarning"]
_TYPES = ["bytearray", "bytes", "dict", "frozenset", "list", "memoryview", "range", "set"]
_TYPES += ["str", "tuple"]
_SPARK = "reference/pyspark.sql/api/$.html#$"

PROJECTS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "python": (
        "https://docs.python.org/3/",
        {
            "library/array.html#$": ["array.array"],
            "library/collections.abc.html#$": [f"collections.abc.{name}" for name in _ABC],
            "library/concurrent.futures.html#$": ["concurrent.futures.Future"],
            "library/contextlib.html#$": ["contextlib.AbstractContextManager"],
            "library/datetime.html#$": ["datetime.date", "datetime.datetime", "datetime.timedelta"],
            "library/exceptions.html#$": _ERRORS,
            "library/functions.html#$": ["bool", "float", "int", "object"],
            "library/os.html#$": ["os.PathLike"],
            "library/pathlib.html#$": ["pathlib.Path"],
            "library/ssl.html#$": ["ssl.SSLContext"],
            "library/stdtypes.html#$": _TYPES,
        },
    ),
    "pyarrow": (
        "https://arrow.apache.org/docs/",
        {
            "python/generated/$.html#$": [
                "pyarrow.RecordBatch",
                "pyarrow.RecordBatchReader",
                "pyarrow.Schema",
                "pyarrow.Table",
            ]
        },
    ),
    "pyspark": (
        "https://spark.apache.org/docs/latest/api/python/",
        {
            _SPARK: [
                "pyspark.sql.DataFrame",
                "pyspark.sql.SparkSession",
                "pyspark.sql.datasource.DataSourceReader",
                "pyspark.sql.datasource.DataSourceStreamReader",
                "pyspark.sql.datasource.DataSourceStreamWriter",
                "pyspark.sql.datasource.DataSourceWriter",
                "pyspark.sql.types.StructType",
            ],
            "reference/pyspark.ss/api/$.html#$": ["pyspark.sql.streaming.StreamingQuery"],
        },
    ),
    "opentelemetry": (
        "https://opentelemetry-python.readthedocs.io/en/latest/",
        {"api/trace.span.html#$": ["opentelemetry.trace.span.Span"]},
    ),
}

ALIASES = {
    "datetime.datetime": ["dt.datetime"],
    "datetime.timedelta": ["dt.timedelta"],
    "pyarrow.RecordBatch": ["pa.RecordBatch"],
    "pyarrow.RecordBatchReader": ["pa.RecordBatchReader"],
    "pyarrow.Schema": ["pa.Schema"],
    "pyarrow.Table": ["pa.Table"],
}
"""Further names, as signatures of our modules have them."""


def write(folder: Path) -> dict[str, tuple[str, str]]:
    """
    Write an inventory for each project, and return the value of `intersphinx_mapping`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for project, (base, places) in PROJECTS.items():
        path = folder / f"{project}.inv"
        path.write_bytes(_inventory(project, places))
        mapping[project] = (base, str(path))
    return mapping


def _inventory(project: str, places: dict[str, list[str]]) -> bytes:
    """
    Return an inventory of version 2: four lines, and compressed lines with a name each.
    """
    lines = []
    for place, names in places.items():
        kind = "exception" if "exceptions" in place else "class"
        for name in names:
            known = {name, name.rpartition(".")[2], *ALIASES.get(name, ())}
            address = place.replace("$", name)
            lines += [f"{each} py:{kind} 1 {address} -\n" for each in sorted(known)]
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version:\n# zlib\n"
    return head.encode() + zlib.compress("".join(lines).encode())
