"""
The last part: reads at a past time, key-value transactions and keys that expire.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    import jetsync

__all__ = ["KEPT", "Status", "at_six", "change_together", "expire", "statuses_of_day"]

SIX: Final = 18 * 60
"""The time whose statuses are read back, in minutes of the day."""

KEPT: Final = 1
"""Lifetime of the key that expires, in seconds."""

MARKER_WAIT: Final = 15.0
"""Seconds to wait for the marker that replaces it; the server may set it some seconds late."""


class Status(NamedTuple):
    """
    A departure or arrival of an aircraft, and its time.
    """

    minute: int
    """Of the day, in the airport's local time. Arrivals after midnight count on from 24 h."""
    aircraft: str
    text: str


def statuses_of_day(stream: jetsync.Stream, day: str) -> list[Status]:
    """
    Read the flights of the day, and return departures and arrivals in the order of time.
    """
    found: list[Status] = []
    for message in stream.scan():
        row = json.loads(message.data)
        if f"{row['year']}-{row['month']}-{row['day']}" != day:
            break
        found += _statuses(row)
    return sorted(found)


def _statuses(row: dict[str, str | int | None]) -> Iterator[Status]:
    """
    Yield the events of one flight, or nothing if it was cancelled.
    """
    aircraft, left, landed = row["tailnum"], row["dep_time"], row["arr_time"]
    if isinstance(aircraft, str) and isinstance(left, int):
        yield Status(_minute(left), aircraft, f"in the air to {row['dest']}")
        if isinstance(landed, int):
            after_midnight = 0 if landed > left else 24 * 60
            yield Status(_minute(landed) + after_midnight, aircraft, f"landed in {row['dest']}")


def _minute(clock: int) -> int:
    """
    Return the minute of the day of a time such as 1755, which is 17:55.
    """
    return clock // 100 * 60 + clock % 100


def at_six(
    js: jetsync.JetStream, stream: jetsync.Stream, statuses: list[Status]
) -> tuple[dict[str, str], dict[str, str]]:
    """
    Publish the whole day, then read the state as of 18:00.

    Returns:
        The status of each aircraft, from the server and as expected.
    """
    js.publish_many((f"status.{status.aircraft}", status.text) for status in statuses)
    before = [status for status in statuses if status.minute <= SIX]
    if not before:
        return {}, {}
    # The first message after 18:00 gives the time: messages stored before it count.
    too_late = len(before) + 1
    if too_late <= len(statuses):
        snapshot = stream.get_last_for(
            "status.*", up_to_time=stream.get_message(too_late).timestamp_ns
        )
    else:
        snapshot = stream.get_last_for("status.*")
    found = {message.subject.removeprefix("status."): message.data.decode() for message in snapshot}
    return found, {status.aircraft: status.text for status in before}


def change_together(bucket: jetsync.KeyValue, aircraft: list[str]) -> bool:
    """
    Set the status of several aircraft in one transaction. Return whether all were set.
    """
    with bucket.atomic() as transaction:
        for key in aircraft:
            transaction.put(key, b"boarding")
    entries = bucket.get_many(aircraft)
    return {key: entry.value for key, entry in entries.items()} == dict.fromkeys(
        aircraft, b"boarding"
    )


def expire(bucket: jetsync.KeyValue) -> list[str]:
    """
    Set a key that expires, and return the entries that a watch gets.
    """
    seen = []
    with bucket.watch("gate", updates_only=True) as watch:
        bucket.create("gate", b"closes soon", ttl=KEPT)
        for _ in range(2):
            entry = watch.next(timeout=MARKER_WAIT)
            if entry is None:
                break
            seen.append(entry.marker.value if entry.marker is not None else entry.operation.value)
    return seen
