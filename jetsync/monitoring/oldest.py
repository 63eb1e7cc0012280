"""
When the oldest message was stored that a consumer has not acknowledged.

A consumer's info has the position of that message and not its time. Without a request, the stream's
info gives the time if the message is the first or the last one of the stream. For all others one
message is read, and remembered for as long as it is the answer. So a consumer whose workers are
dead costs one read, and a busy one costs a read each time.
"""

from __future__ import annotations

import bisect
import datetime as dt
import time
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from jetsync.errors import JetSyncError, MessageNotFoundError
from jetsync.values.consumer_config import DeliverPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync._base.deadline import Deadline
    from jetsync.stream import Stream
    from jetsync.values.consumer_info import ConsumerInfo
    from jetsync.values.stream_info import StreamInfo

MAX_BYTES: Final = 8 * 1024 * 1024
"""
Payload bytes after which a reading looks up no further message. The server sends a message as a
whole, and only its time is needed.
"""

_RECHECK: Final = 300.0
"""
Seconds for which a message that was found is the answer without another look. It may be deleted
meanwhile, which the info of a stream shows only for its first message.
"""

_ALL: Final = ">"

Source: TypeAlias = "tuple[str, dt.datetime | None, str]"
"""A stream, when it was created, and a filter."""


@attrs.frozen
class Found:
    """
    The first message at or after a position.
    """

    position: int
    sequence: int
    stored: dt.datetime
    checked: float
    """When it was read, on the monotonic clock."""


class KnownMessages:
    """
    The messages of one filter that were found, by sequence.

    Each is the answer for all positions from the one that was looked up to its sequence.
    """

    def __init__(self) -> None:
        self._found: dict[int, Found] = {}
        self._sequences: list[int] = []

    def get(self, position: int) -> Found | None:
        """
        Return the first message at or after *position*, if it is known.
        """
        place = bisect.bisect_left(self._sequences, position)
        if place == len(self._sequences):
            return None
        found = self._found[self._sequences[place]]
        return found if found.position <= position else None

    def add(self, found: Found) -> None:
        """
        Remember a message.
        """
        known = self._found.get(found.sequence)
        if known is None:
            bisect.insort(self._sequences, found.sequence)
        else:
            found = attrs.evolve(found, position=min(known.position, found.position))
        self._found[found.sequence] = found

    def keep(self, first_sequence: int, since: float) -> None:
        """
        Forget messages before the first one of the stream, and those that were read before *since*.
        """
        self._found = {
            sequence: found
            for sequence, found in self._found.items()
            if sequence >= first_sequence and found.checked >= since
        }
        self._sequences = sorted(self._found)


class OldestMessages:
    """
    Finds the oldest unacknowledged messages. One thread at a time uses it.

    Args:
        limit: How many messages to read at most for one reading.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[Source, KnownMessages] = {}
        self._left = limit
        self._bytes = 0

    @property
    def lookups(self) -> int:
        """
        How many messages the last search read.
        """
        return self._limit - self._left

    def find(
        self, waiting: Iterable[tuple[Stream, ConsumerInfo]], deadline: Deadline
    ) -> dict[tuple[str, str], dt.datetime]:
        """
        Return when the oldest unacknowledged message of each consumer was stored.

        Consumers are left out if the limit or the deadline does not allow to look. Those whose last
        acknowledgement is the longest ago come first, because their workers may be dead.

        Args:
            waiting: Consumers with messages that wait, and their streams.
            deadline: When to end.
        """
        self._left, self._bytes = self._limit, MAX_BYTES
        self._forget()
        refused: set[str] = set()
        used: set[Source] = set()
        times: dict[tuple[str, str], dt.datetime] = {}
        for stream, info in sorted(waiting, key=_last_ack):
            position = _position(info)
            stored = _of_stream(stream.cached_info, info, position)
            if stored is None:
                filters = _filters(stream.cached_info, info) or (_ALL,)
                used.update((stream.name, stream.cached_info.created, each) for each in filters)
                stored = self._first(stream, filters, position, deadline, refused)
            if stored is not None:
                times[info.stream_name, info.name] = _not_before_start(stored, info)
        self._known = {source: known for source, known in self._known.items() if source in used}
        return times

    def _forget(self) -> None:
        since = time.monotonic() - _RECHECK
        for known in self._known.values():
            known.keep(0, since)

    def _may_look(self, deadline: Deadline) -> bool:
        return self._left > 0 and self._bytes > 0 and not deadline.expired()

    def _first(
        self,
        stream: Stream,
        filters: tuple[str, ...],
        position: int,
        deadline: Deadline,
        refused: set[str],
    ) -> dt.datetime | None:
        """Return when the first message of some filters was stored, None if that is not known."""
        oldest: Found | None = None
        state = stream.cached_info.state
        for subject in filters:
            source = (stream.name, stream.cached_info.created, subject)
            known = self._known.setdefault(source, KnownMessages())
            found = known.get(position)
            if found is None or found.sequence < state.first_seq:
                if stream.name in refused or not self._may_look(deadline):
                    return None
                self._left -= 1
                try:
                    message = stream.get_next(subject, position, timeout=deadline.remaining())
                except MessageNotFoundError:
                    continue
                except JetSyncError:
                    # Without permission, or without an answer, the age is not known.
                    refused.add(stream.name)
                    return None
                self._bytes -= len(message.data)
                found = Found(position, message.sequence, message.timestamp, time.monotonic())
                known.add(found)
            if oldest is None or found.sequence < oldest.sequence:
                oldest = found
        return None if oldest is None else oldest.stored


def _last_ack(pair: tuple[Stream, ConsumerInfo]) -> float:
    _, info = pair
    moment = info.ack_floor.last_active or info.created
    return 0.0 if moment is None else moment.timestamp()


def _position(info: ConsumerInfo) -> int:
    """Return the sequence from which the oldest unacknowledged message is the first one."""
    # If nothing is in flight, everything that was delivered is acknowledged, or needs no ack.
    after = info.ack_floor if info.num_ack_pending else info.delivered
    # The floor of a consumer without acks is 0 on server 2.10.
    return max(after.stream_seq + 1, info.config.opt_start_seq or 0)


def _filters(stream: StreamInfo, info: ConsumerInfo) -> tuple[str, ...]:
    """Return the filters of a consumer, nothing if they let all messages pass."""
    config = info.config
    filters = config.filter_subjects or ([config.filter_subject] if config.filter_subject else [])
    subjects = stream.config.subjects
    if _ALL in filters or (subjects and set(filters) >= set(subjects)):
        return ()
    return tuple(filters)


def _of_stream(stream: StreamInfo, info: ConsumerInfo, position: int) -> dt.datetime | None:
    """Return the time of the message if it is the stream's first or last one."""
    state = stream.state
    if not state.messages or _filters(stream, info):
        return None
    if position <= state.first_seq:
        return state.first_ts
    return state.last_ts if position == state.last_seq else None


def _not_before_start(stored: dt.datetime, info: ConsumerInfo) -> dt.datetime:
    """Return the time, but not one before the first message that the consumer may deliver."""
    # On server 2.10, a consumer that starts later than the stream has the floor 0 before the first
    # ack. So the message that was found may be older than its first one.
    config = info.config
    start = info.created if config.deliver_policy is DeliverPolicy.NEW else config.opt_start_time
    return stored if start is None else max(stored, start)
