"""
The order of an ordered consumer: which message is next, and where the next consumer begins.

The code here does no I/O and reads no clock.

The consumers of an ordered consumer acknowledge nothing, so the server never redelivers a message
that was lost. But each of them numbers its messages 1, 2, 3, ..., so a loss shows as a gap. After a
gap, and whenever the consumer is deleted or silent, a new consumer is created that begins right
after the last message that was handed out.

Implements ADR-17 for pull consumers, see ADR-37.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

from jetsync.errors import ProtocolError
from jetsync.values.ack_subject import parse_ack_reply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jetsync.values.ack_subject import Metadata
    from jetsync.values.frame import Frame

# Seconds without a pull after which servers delete a consumer, and the same in nanoseconds.
INACTIVE_THRESHOLD: Final = 300.0
INACTIVE_NS: Final = int(INACTIVE_THRESHOLD * 1e9)

# Seconds before the second attempt to create a consumer; doubled each time up to the limit.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0

CHECKED_AT_ONCE: Final = 128


class MissingMessages(Exception):  # noqa: N818 - not an error: the read continues.
    """Messages of the consumer are missing, so another one has to be created."""


class OrderedCursor:
    """
    Check the order of the messages of one ordered consumer, and say where its consumers begin.

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
        # The number that the next message of the current consumer must have.
        self._expected = 1
        # The stream sequence after which the current consumer begins, if known, and otherwise 0.
        self._begin: int | None = None
        self._after = 0
        self._pause = 0.0
        #: Whether messages of the current consumer are missing.
        self.has_gap: bool = False

    @property
    def arrived(self) -> int:
        """How many messages of the newest consumer have arrived in order."""
        return self._expected - 1

    def next_config(self, last: int | None) -> dict[str, Any]:
        """
        Return the configuration of the next consumer, and expect its messages from now on.

        The configuration is as it is sent to servers.

        Args:
            last: The stream sequence after which the consumer begins; None if not known yet.
        """
        self.number += 1
        self.name = f"{self._prefix}_{self.number}"
        # Every message is delivered once.
        self._token = f".{self.name}.1.".encode()
        self._expected, self.has_gap = 1, False
        config = {**self._wanted, "name": self.name}
        self._begin, self._after = last, last or 0
        if last is not None:
            config.update(deliver_policy="by_start_sequence", opt_start_seq=last + 1)
            config.pop("opt_start_time", None)
        return config

    def made(self, position: int) -> int | None:
        """
        Record that the consumer was created; return after which sequence the next one begins.

        This is None if that does not depend on this consumer.

        Args:
            position: The stream sequence right before its first message, as its server says.
        """
        self.failures = 0
        # With these policies, each consumer would begin elsewhere. The first one decides.
        if self._begin is None and self._wanted.get("deliver_policy") in {"new", "last"}:
            self._begin = self._after = position
            return position
        return None

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

    def admit(self, frames: Sequence[Frame]) -> Sequence[Frame]:
        """
        Return the messages that continue the sequence; after a gap, there are none.

        Those that were delivered before, or that another consumer sent, are dropped.

        Raises:
            ProtocolError: A reply subject is not that of a consumer's message.
        """
        if len(frames) <= CHECKED_AT_ONCE and self._continues(frames):
            return frames
        kept: list[Frame] = []
        for start in range(0, len(frames), CHECKED_AT_ONCE):
            run = frames[start : start + CHECKED_AT_ONCE]
            kept += run if self._continues(run) else filter(self._is_next, run)
        return kept

    def _continues(self, frames: Sequence[Frame]) -> bool:
        """
        Return whether all messages continue the sequence, and count them if they do.
        """
        # Per message, this takes a tenth of the time of `_is_next`. If the reply subjects increase
        # from the first to the last one, all are from the same consumer, and no message is repeated
        # or out of order. A missing message shows in the number of the last one, because the
        # consumer numbers them. Compared as bytes, the subjects do not increase where a number gets
        # longer, as from 99 to 100. There, `_is_next` checks each message by itself.
        replies = [frame[1] for frame in frames]
        if self.has_gap or not all(map(operator.lt, replies, replies[1:])):
            return False
        first = parse_ack_reply(replies[0])
        newest = first if len(replies) == 1 else parse_ack_reply(replies[-1])
        if first is None or newest is None:
            return False
        numbers = first.consumer_sequence, newest.consumer_sequence
        if numbers != (self._expected, self._expected + len(replies) - 1):
            return False
        head, token, _ = replies[0].partition(self._token)
        if not token or not replies[-1].startswith(head + token):
            return False
        if first.stream_sequence <= self._after:
            return False
        self._expected += len(replies)
        self._pause = 0.0
        return True

    def _is_next(self, frame: Frame) -> bool:
        """Return whether a message continues the sequence, and count it; note a gap."""
        reply = frame[1]
        if self.has_gap or self._token not in reply:
            return False
        said = read_reply(reply)
        if said.consumer_sequence != self._expected:
            self.has_gap = True
            return False
        self._expected += 1
        if said.stream_sequence <= self._after:
            return False
        self._pause = 0.0
        return True


def read_reply(reply: bytes) -> Metadata:
    """Return what the reply subject of a consumer's message says; raises ProtocolError."""
    said = parse_ack_reply(reply)
    if said is None:
        raise ProtocolError(f"not the reply subject of a message: {reply[:80]!r}")
    return said
