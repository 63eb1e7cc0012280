"""
Which frames are messages of one consumer, and what arrived that no pull had asked for.

Any client that may publish to an inbox or a deliver subject can send frames there. Those without an
ack subject of the consumer are *foreign*. Messages of the consumer that no pull had asked for are
*surplus*. jetsync hands out neither. Servers refuse publishes whose reply subject is an ack subject
(measured on 2.15.1), so only a server can send a message with one.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from jetsync._base.speedups import with_twin
from jetsync.values.ack_subject import ACK_PREFIX, SHORT_FORM, parse_ack_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync.values.frame import Frame

StrayReason: TypeAlias = Literal["foreign", "surplus"]

_REPLY: Final = operator.itemgetter(1)

REASONS: Final[tuple[StrayReason, ...]] = ("foreign", "surplus")


class Origin:
    """
    Recognises the messages of one consumer by their reply subjects; any thread.

    Args:
        stream: The stream's name.
        consumer: The consumer's name.
    """

    __slots__ = ("names", "prefix")

    def __init__(self, stream: str, consumer: str) -> None:
        # The names of the stream and of the consumer.
        self.names: tuple[str, str] = stream, consumer
        # How the reply subjects of the newest messages began, up to the name of the consumer.
        self.prefix: bytes = ACK_PREFIX + f"{stream}.{consumer}.".encode("utf-8", "surrogateescape")

    def sends(self, reply: bytes) -> bool:
        """Return whether a reply subject is that of a message of the consumer."""
        if reply.startswith(self.prefix):
            return True
        said = parse_ack_reply(reply)
        if said is None or (said.stream, said.consumer) != self.names:
            return False
        # The server has begun or ceased to add its domain and the account.
        tokens = reply.split(b".")
        length = 4 if len(tokens) == SHORT_FORM else 6
        self.prefix = b".".join(tokens[:length]) + b"."
        return True


@with_twin
def are_own(frames: Sequence[Frame], prefix: bytes) -> bool:
    """
    Return whether the reply subjects of all frames begin with *prefix*.
    """
    # All of them do if the first and the last in their order do. Sorting takes half the time of a
    # comparison in Python for each frame, because most subjects are in order.
    replies = sorted(map(_REPLY, frames))
    return not replies or (replies[0].startswith(prefix) and replies[-1].startswith(prefix))


class Strays:
    """
    How much arrived that is not handed out, for reports.

    Threads: one notes, and one reports.
    Locks: none; a field changes in one step.
    """

    __slots__ = ("_reported", "counts", "fresh", "samples")

    def __init__(self) -> None:
        # Whether there is something to report.
        self.fresh: bool = False
        # How many frames there were so far, and the subject and reply subject of the first one.
        self.counts: dict[StrayReason, int] = dict.fromkeys(REASONS, 0)
        self.samples: dict[StrayReason, tuple[bytes, bytes]] = {}
        self._reported = dict(self.counts)

    def note(self, reason: StrayReason, frames: Sequence[Frame]) -> None:
        """Count frames that are not handed out."""
        if frames:
            self.samples.setdefault(reason, frames[0][:2])
            self.counts[reason] += len(frames)
            self.fresh = True

    def report(self) -> dict[StrayReason, int]:
        """Return how many frames there were since the last call."""
        # First, so that what is noted meanwhile is reported later.
        self.fresh = False
        before, self._reported = self._reported, dict(self.counts)
        return {reason: count - before[reason] for reason, count in self._reported.items()}
