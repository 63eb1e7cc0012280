"""
Names of columns, which follow the case sensitivity of the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetsync_spark.common.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["find_name", "is_case_sensitive"]


def is_case_sensitive(session: Any = None) -> bool:
    """
    Tell whether a session distinguishes columns by case (``spark.sql.caseSensitive``).

    Spark does not tell data sources and workers. There, names match in any case.

    Args:
        session: The session. None means the active one, if there is one.
    """
    if session is None:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
    if session is None:
        return False
    # A program may have set it in upper case.
    setting: str = session.conf.get("spark.sql.caseSensitive", "false")
    return setting.lower() == "true"


def find_name(name: str, names: Iterable[str], *, case_sensitive: bool = False) -> str | None:
    """
    Return the name that is meant, or None if there is none. An exact match comes first.

    Raises:
        OptionError: Several names differ only in their case.
    """
    if name in names:
        return name
    if case_sensitive:
        return None
    found = [each for each in names if each.lower() == name.lower()]
    if len(found) > 1:
        raise OptionError(
            f"column {name} could be {' or '.join(found)}",
            option=name,
            cure="rename or drop one of them",
        )
    return found[0] if found else None
