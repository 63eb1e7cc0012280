"""
Decide which messages become dead letters, and when. This engine has no I/O.

A worker decides about the messages that its handler could not handle. If a worker dies with a
message, only the server knows: after the last delivery it sends an advisory, once, and delivers the
message no more. :class:`DeadLetterEngine` decides for the process that listens to them.

What servers say about such messages (measured on 2.10.26, 2.11.11, 2.12.8, 2.14.6 and 2.15.1)
- An advisory names the message. It gets lost if no process listens and no stream stores it.
- A work queue keeps the message until it is acknowledged, also after a restart of the server. An
  acknowledgement that is made up for it removes it.
- No request tells which messages are *pending*, that is, delivered and not acknowledged. None is if
  the consumer's info says so, and none is at or below the ack floor. From 2.14 on, the floor stays
  below the first message that was given up, until no message is pending.
- ``num_redelivered`` also counts them. Acknowledgements lower it, but on 2.10 not beyond a restart.
  So it only hints at them on a stream that keeps acknowledged messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SCAN_EVERY: Final = 30.0
"""Seconds between two scans of a work queue."""

SETTLE: Final = 2.0
"""
Seconds after which a message that a scan has found must still be there. A message that is
acknowledged leaves the stream a moment after it has left the consumer.
"""

LONGEST_PAUSE: Final = 30.0
"""The longest pause before another attempt to store a dead letter, in seconds."""


def is_last(delivered: int, max_deliver: int) -> bool:
    """Return whether the server will not deliver a message again; 0 or less means no limit."""
    return 0 < max_deliver <= delivered


def last_settled(pending: int, delivered: int, floor: int) -> int:
    """
    Return the sequence up to which no message is pending.

    Args:
        pending: How many messages are delivered and not acknowledged.
        delivered: The stream sequence of the last delivery.
        floor: The stream sequence of the ack floor.
    """
    return floor if pending else delivered


class DeadLetterEngine:
    """
    Which messages to copy next, and when to look for others.

    Times are those of one monotonic clock. The caller tells what happened.
    """

    def __init__(self, now: float) -> None:
        # The messages to copy, with the time of the next attempt and the number of failed ones.
        self._due: dict[int, tuple[float, int]] = {}
        self._found: frozenset[int] = frozenset()
        self.next_scan: float = now
        """When to look for messages that no advisory told about."""

    def advised(self, sequence: int, now: float) -> None:
        """Take note that the server gave a message up."""
        self._due.setdefault(sequence, (now, 0))

    def look_again(self, now: float) -> None:
        """Scan soon, because advisories may have been lost."""
        self.next_scan = min(self.next_scan, now)

    def scanned(self, found: Iterable[int], now: float) -> None:
        """Take note of what a scan has found."""
        before, self._found = self._found, frozenset(found)
        for sequence in sorted(self._found & before):
            self.advised(sequence, now)
        self.next_scan = now + (SETTLE if self._found.difference(self._due) else SCAN_EVERY)

    def scan_failed(self, now: float) -> None:
        """Take note that a scan did not get its answers."""
        self.next_scan = now + SETTLE

    def next_due(self, now: float) -> int | None:
        """Return the message to copy now; None if there is none."""
        ready = [(at, sequence) for sequence, (at, _) in self._due.items() if at <= now]
        return min(ready)[1] if ready else None

    def ended(self, sequence: int) -> None:
        """Forget a message: it has a dead letter, or does not exist any more."""
        self._due.pop(sequence, None)
        self._found -= {sequence}

    def failed(self, sequence: int, now: float) -> None:
        """Take note that a dead letter is not stored, or not known to be."""
        failures = self._due[sequence][1] + 1
        self._due[sequence] = (now + min(2.0 ** (failures - 1), LONGEST_PAUSE), failures)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be done, apart from further attempts after a failure."""
        fresh = any(not failures for _, failures in self._due.values())
        return not fresh and self._found.issubset(self._due)

    def wakes_at(self) -> float:
        """Return when there is something to do, if no advisory comes before."""
        return min([self.next_scan, *(at for at, _ in self._due.values())])
