"""
The jobs that a receiver has or had.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from jetsync_queue.delivery import Delivery

Place = tuple[int, dt.datetime]
"""The message of a job: its sequence, and when it was stored, as a stream may be made anew."""

MOST_SETTLED: Final = 10_000
"""Settled jobs that a receiver remembers, in some 2 MB."""


class Holder(Protocol):
    """
    The receiver of a delivery, which learns how it ends. Thread-safe.
    """

    def let_go(self, delivery: Delivery) -> None:
        """Expect that the job comes again: it is about to be given back."""

    def keep(self, delivery: Delivery) -> None:
        """Keep the job after all: it could not be given back."""

    def forget(self, delivery: Delivery) -> None:
        """Forget the job. The server delivers it again."""

    def settle(self, delivery: Delivery) -> None:
        """Note that the job was settled for good."""


class Jobs:
    """
    The jobs that were taken and not settled, and the last ones that were settled.

    A server that was killed, or whose ack wait ran out while it could not be reached, delivers jobs
    again that this process still has, or whose acknowledgement it did not get. These copies are
    recognised here.

    Threads: any. Locks: that of the intake.
    """

    def __init__(self) -> None:
        # When the progress of each was reported last.
        self.unsettled: dict[Delivery, float] = {}
        # Those that are being given back are missing.
        self._taken: dict[Place, Delivery] = {}
        # In the order in which they were settled.
        self._settled: dict[Place, None] = {}

    def is_taken(self, delivery: Delivery) -> bool:
        """Return whether the job was taken before, and neither settled nor given back."""
        return place_of(delivery) in self._taken

    def is_settled(self, delivery: Delivery) -> bool:
        """Return whether the job was settled for good before, or is being settled now."""
        place = place_of(delivery)
        taken = self._taken.get(place)
        return place in self._settled or (taken is not None and taken.is_settled)

    def take(self, delivery: Delivery, arrived: float) -> None:
        """Note that a job was taken."""
        self.unsettled[delivery] = arrived
        self._taken[place_of(delivery)] = delivery

    def let_go(self, delivery: Delivery) -> None:
        """Expect that a job comes again."""
        place = place_of(delivery)
        # It may have come again already.
        if self._taken.get(place) is delivery:
            del self._taken[place]

    def keep(self, delivery: Delivery) -> None:
        """Expect this no longer, if the job is still unsettled."""
        if delivery in self.unsettled:
            self._taken.setdefault(place_of(delivery), delivery)

    def forget(self, delivery: Delivery) -> None:
        """Forget a job."""
        self.unsettled.pop(delivery, None)
        self.let_go(delivery)

    def settle(self, delivery: Delivery) -> None:
        """Remember that a job was settled."""
        self.forget(delivery)
        self._settled[place_of(delivery)] = None
        if len(self._settled) > MOST_SETTLED:
            del self._settled[next(iter(self._settled))]


def place_of(delivery: Delivery) -> Place:
    """
    Return what identifies the message of a job.
    """
    metadata = delivery.message.metadata
    return metadata.stream_sequence, metadata.timestamp
