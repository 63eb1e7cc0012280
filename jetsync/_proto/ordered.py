"""
The position of an ordered consumer: what has come in order, and how the next consumer begins.

What lives here: which message is the next one, what a jump in the numbers means, the configuration
and the name of each consumer that is made, how long to wait before it. What may not: the socket,
the clock, threads.

Theory of operation. The consumers behind an ordered consumer acknowledge nothing, so a message that
was lost on its way never comes again. But each of them numbers what it sends 1, 2, 3, ..., so a
loss shows: the number jumps. Then, and whenever the consumer went away or was silent, another one
is made that begins right behind the last message that came in order.

Implements ADR-17 for pull consumers, see ADR-37.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from jetsync._base.integers import read_digits
from jetsync.errors import ProtocolError
from jetsync.values.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy

INACTIVE_THRESHOLD: Final = 300.0
"""Seconds after which servers forget a consumer that nobody pulls from."""

FIRST_PAUSE: Final = 0.1
"""Seconds before the second attempt; doubled each time."""

LONGEST_PAUSE: Final = 5.0

PINNED: Final = (DeliverPolicy.NEW, DeliverPolicy.LAST)
"""
Policies that mean another place each time: the place that the first consumer got stands.
"""


class Order(enum.Enum):
    """
    What a message is to the order.
    """

    NEXT = "next"
    """The next one: to be given out."""

    REPEAT = "repeat"
    """One that was given out before, or that another consumer sent: to be left out."""

    GAP = "gap"
    """Messages before it are missing: the consumer has to be made again."""


class OrderedCursor:
    """
    Keep the position of one ordered consumer.

    Args:
        wanted: What the user asked for, as far as it stays the same for each consumer; its deliver
            policy is that of the first one.
        prefix: What the names of the consumers start with.
    """

    def __init__(self, wanted: ConsumerConfig, prefix: str) -> None:
        self._wanted = attrs.evolve(
            wanted,
            ack_policy=AckPolicy.NONE,
            max_deliver=1,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=wanted.inactive_threshold or INACTIVE_THRESHOLD,
        )
        self._prefix = prefix
        self.number = 0
        """How many consumers there have been."""

        self.name = ""
        """The name of the newest one."""

        self.last: int | None = None
        """The stream sequence that all is known up to; None before there is one."""

        self.delivered = 0
        """How many messages have come in order."""

        self.failures = 0
        """How many attempts to make a consumer failed since the last one that did not."""

        self._token = b""
        self._expected = 1
        self._pause = 0.0
        self._before: tuple[int | None, int] = (self.last, self._expected)
        """Where it stood before the message that was taken last."""

    def __repr__(self) -> str:
        return f"<OrderedCursor {self.name} last={self.last} delivered={self.delivered}>"

    def next_config(self) -> ConsumerConfig:
        """Return the configuration of the next consumer, and expect its messages from now on."""
        self.number += 1
        self.name = f"{self._prefix}_{self.number}"
        self._token = self.name.encode()
        self._expected = 1
        named = attrs.evolve(self._wanted, name=self.name)
        if self.last is None:
            return named
        return attrs.evolve(
            named,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.last + 1,
            opt_start_time=None,
        )

    def made(self, position: int) -> None:
        """
        Note that the consumer exists.

        Args:
            position: The stream sequence right before its first message, as its server says.
        """
        self.failures = 0
        if self.last is None and self._wanted.deliver_policy in PINNED:
            self.last = position

    def failed(self) -> int:
        """Note that the consumer could not be made; return how often in a row that was so."""
        self.failures += 1
        return self.failures

    def pause(self) -> float:
        """
        Return how many seconds to wait before the next attempt; call once for each.

        None after a message; more and more as long as none comes.
        """
        pause = self._pause
        self._pause = min(max(2.0 * pause, FIRST_PAUSE), LONGEST_PAUSE)
        return pause

    def take(self, reply: bytes) -> Order:
        """
        Take the next message that came, by its reply subject, and say what it is to the order.

        Raises:
            ProtocolError: The reply subject is not one of a consumer.
        """
        tokens = reply.split(b".")
        # $JS.ACK.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>. ..., with
        # a domain and an account in front of the stream in the longer form.
        first = 3 if len(tokens) == 9 else 5
        if tokens[first : first + 1] != [self._token]:
            return Order.REPEAT
        if len(tokens) <= first + 3:
            raise ProtocolError(f"not the reply subject of a message: {reply[:80]!r}")
        if read_digits(tokens[first + 3]) != self._expected:
            return Order.GAP
        before = self.last, self._expected
        self._expected += 1
        sequence = read_digits(tokens[first + 2])
        if self.last is not None and sequence <= self.last:
            return Order.REPEAT
        self._before = before
        self.last = sequence
        self.delivered += 1
        self._pause = 0.0
        return Order.NEXT

    def put_back(self) -> None:
        """
        Undo the last :meth:`take` that returned ``NEXT``: the message was not given out after all.

        Whatever its consumer sends after it is a gap then.
        """
        self.last, self._expected = self._before
        self.delivered -= 1
