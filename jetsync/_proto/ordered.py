"""
The position of an ordered consumer: which message is next, and where the next consumer begins.

The code here does no I/O and reads no clock.

The consumers of an ordered consumer acknowledge nothing, so the server never redelivers a message
that was lost. But each of them numbers its messages 1, 2, 3, ..., so a loss shows as a gap. After a
gap, and whenever the consumer is deleted or silent, a new consumer is created that begins right
after the last message in order.

Implements ADR-17 for pull consumers, see ADR-37.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from jetsync.errors import ProtocolError
from jetsync.values.ack_subject import parse_ack_reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync.values.ack_subject import Metadata

# Seconds without a pull after which servers delete a consumer, and the same in nanoseconds.
INACTIVE_THRESHOLD: Final = 300.0
INACTIVE_NS: Final = 300_000_000_000

# Seconds before the second attempt to create a consumer; doubled each time up to the limit.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0

# How many messages are checked at once, see `look_ahead`.
AHEAD: Final = 128


Position: TypeAlias = "int | bytes | None"

Order: TypeAlias = Literal["next", "duplicate", "gap"]
"""
How a message continues the sequence.

- ``next``: it is the next message.
- ``duplicate``: it was delivered before, or another consumer sent it. Drop it.
- ``gap``: messages before it are missing. Create another consumer.
"""


class OrderedCursor:
    """
    Keep the position of one ordered consumer.

    Args:
        wanted: What all its consumers have in common, as it is sent to servers; the deliver policy
            is that of the first one.
        prefix: How the names of the consumers begin.
        replicas: How many servers keep each consumer; None lets the server decide.
    """

    def __init__(self, wanted: Mapping[str, Any], prefix: str, replicas: int | None = 1) -> None:
        self._wanted = {
            **wanted,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "inactive_threshold": wanted.get("inactive_threshold") or INACTIVE_NS,
        }
        if replicas is not None:
            self._wanted["num_replicas"] = replicas
        self._prefix = prefix
        #: How many consumers there have been.
        self.number: int = 0
        #: The name of the newest consumer.
        self.name: str = ""
        #: How many attempts to create a consumer have failed in a row.
        self.failures: int = 0
        self._token = b""
        # The number that the next message of the current consumer must have, and how many messages
        # had arrived in order before the first one of this consumer.
        self._expected = 1
        self._before = 0
        self._pause = 0.0
        #: The position. Until the first message, it is a stream sequence. After that, it is the
        #: reply subject of a message, which contains the sequence. Reading that takes 0.2 us, and
        #: most are never needed.
        self.position: Position = None
        #: The reply subjects that `look_ahead` has checked, in reverse order.
        self.ahead: list[bytes] = []

    @property
    def last(self) -> int | None:
        """The stream sequence after which the next consumer begins; None if not known yet."""
        position = self.position
        return _read(position).stream_sequence if isinstance(position, bytes) else position

    @property
    def last_time(self) -> int | None:
        """When the last message was stored, in nanoseconds since 1970; None before the first."""
        position = self.position
        return _read(position).timestamp_ns if isinstance(position, bytes) else None

    @property
    def delivered(self) -> int:
        """How many messages have arrived in order."""
        return self._before + self._expected - 1

    @property
    def arrived(self) -> int:
        """How many messages of the newest consumer have arrived in order."""
        return self._expected - 1

    def next_config(self) -> dict[str, Any]:
        """
        Return the configuration of the next consumer, and expect its messages from now on.

        The configuration is as it is sent to servers.
        """
        self.number += 1
        self.name = f"{self._prefix}_{self.number}"
        # Every message is delivered once.
        self._token = f".{self.name}.1.".encode()
        self._before, self._expected = self.delivered, 1
        self.ahead.clear()
        config, last = {**self._wanted, "name": self.name}, self.last
        if last is not None:
            config.update(deliver_policy="by_start_sequence", opt_start_seq=last + 1)
            config.pop("opt_start_time", None)
        return config

    def made(self, position: int) -> None:
        """
        Record that the consumer was created.

        Args:
            position: The stream sequence right before its first message, as its server says.
        """
        self.failures = 0
        # With these policies, each consumer would begin elsewhere. The first one decides.
        if self.last is None and self._wanted.get("deliver_policy") in {"new", "last"}:
            self.position = position

    def failed(self) -> int:
        """Count an attempt that failed, and return how many have failed in a row."""
        self.failures += 1
        return self.failures

    def pause(self) -> float:
        """
        Return how many seconds to wait before the next attempt; call it once per attempt.

        The pause is 0 after a message, and grows as long as none arrives.
        """
        pause = self._pause
        self._pause = min(max(2.0 * pause, FIRST_PAUSE), LONGEST_PAUSE)
        return pause

    def take(self, reply: bytes) -> Order:
        """
        Take the next message by its reply subject, and return how it continues the sequence.

        Raises:
            ProtocolError: The reply subject is not that of a consumer's message.
        """
        ahead = self.ahead
        if ahead:
            if ahead[-1] is reply:
                self.position = reply
                self._expected += 1
                ahead.pop()
                return "next"
            ahead.clear()
        if self._token not in reply:
            return "duplicate"
        said, last = _read(reply), self.last
        if said.consumer_sequence != self._expected:
            return "gap"
        self._expected += 1
        if last is not None and said.stream_sequence <= last:
            self._before -= 1
            return "duplicate"
        self.position = reply
        self._pause = 0.0
        return "next"

    def look_ahead(self, replies: list[bytes]) -> None:
        """
        Check the next messages at once, given their reply subjects, for the next calls of `take`.

        If one of them does not seem to continue the sequence, only those before it are checked.
        """
        # Per message, this takes a tenth of the time of `take`. If the reply subjects increase from
        # the first to the last one, all are from the same consumer, and no message is repeated or
        # out of order. A missing message shows in the number of the last one, because the consumer
        # numbers them. Compared as bytes, the subjects do not increase where a number gets longer,
        # as from 99 to 100. So a run ends there, and the next one begins.
        rising = [*map(operator.lt, replies, replies[1:]), False]
        replies = replies[: rising.index(False) + 1]
        if len(replies) < 2:
            return
        first, newest = parse_ack_reply(replies[0]), parse_ack_reply(replies[-1])
        if first is None or newest is None:
            return
        numbers = first.consumer_sequence, newest.consumer_sequence
        if numbers != (self._expected, self._expected + len(replies) - 1):
            return
        head, token, _ = replies[0].partition(self._token)
        if not token or not replies[-1].startswith(head + token):
            return
        if first.stream_sequence > (self.last or 0):
            self.ahead = replies[::-1]
            self._pause = 0.0

    def go_back(self, position: Position) -> None:
        """
        Undo the last :meth:`take`, as the message was not handed out.

        After that, all later messages of its consumer count as gaps. If :meth:`take` has not
        changed the position, because it was interrupted, this does nothing.

        Args:
            position: The position before.
        """
        self.ahead.clear()
        if self.position is not position:
            self._expected -= 1
            self.position = position


def _read(reply: bytes) -> Metadata:
    """Return what the reply subject of a consumer's message says; raises ProtocolError."""
    said = parse_ack_reply(reply)
    if said is None:
        raise ProtocolError(f"not the reply subject of a message: {reply[:80]!r}")
    return said
