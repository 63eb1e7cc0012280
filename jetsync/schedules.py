"""
The message schedules of a stream: list and cancel them (ADR-51).

``JetStream.schedule`` makes them (:mod:`jetsync.publish.schedules`).
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, Literal

import attrs

from jetsync import errors
from jetsync._base.deadline import SHORTEST
from jetsync._proto.open_pulls import GRACE
from jetsync.consume.ordered import open_ordered
from jetsync.values import headers as names
from jetsync.values.codec import parse_time
from jetsync.values.consumer_config import DeliverPolicy
from jetsync.values.ttl import parse_duration, parse_ttl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync.values.message import Message
    from jetsync.values.stream_info import StreamInfo

__all__ = ["Schedule"]

# Messages per pull.
PAGE: Final = 1000


@attrs.frozen
class Schedule:
    """
    A schedule in a stream. ``stream.get_message(schedule.sequence)`` returns its payload.
    """

    subject: str
    """The subject that stores the schedule."""

    target: str
    """The subject that the server publishes to."""

    pattern: str
    """When the server publishes: ``@at`` and a time, ``@every`` and a duration, or a cron text."""

    sequence: int
    """The stream sequence."""

    created: dt.datetime
    """When the schedule was stored, in UTC."""

    source: str | None = None
    """The subject whose last message the server publishes instead of the payload."""

    time_zone: str | None = None
    """The time zone of a cron pattern; None for UTC."""

    ttl: float | Literal["never"] | None = None
    """The time-to-live of the published messages."""

    rollup: bool = False
    """Whether each published message replaces all earlier ones on the target."""

    @property
    def at(self) -> dt.datetime | None:
        """The time of a schedule that publishes once; None for others."""
        return parse_time(self.pattern[4:]) if self.pattern.startswith("@at ") else None

    @property
    def every(self) -> float | None:
        """The interval in seconds of a schedule with an interval; None for others."""
        return parse_duration(self.pattern[7:]) if self.pattern.startswith("@every ") else None


def read_schedules(
    context: Context, name: str, info: StreamInfo, subjects: Sequence[str], deadline: Deadline
) -> list[Schedule]:
    """
    Return the schedules of a stream; see ``Stream.schedules``.
    """
    if not info.config.allow_msg_schedules:
        raise errors.SchedulesDisabledError(
            description="message schedules is disabled: the stream needs allow_msg_schedules=True",
            stream=name,
        )
    # With a consumer, because streams need not allow direct gets.
    ordered = open_ordered(
        context,
        name,
        info,
        deadline,
        subjects,
        deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
        headers_only=True,
    )
    try:
        found: list[Schedule] = []
        while True:
            # If the server is silent, a fetch waits GRACE seconds longer.
            expires = max(deadline.remaining() - GRACE, SHORTEST)
            messages = list(ordered.fetch(PAGE, expires=expires, no_wait=True))
            found += _schedules_in(messages)
            if deadline.expired():
                raise errors.RequestTimeoutError(
                    subjects[0],
                    deadline.total,
                    what=f"stream {name!r} did not send all schedules",
                )
            # Servers send nothing once if the next message was removed meanwhile.
            if not messages and not ordered.info(timeout=deadline.remaining()).num_pending:
                return found
    finally:
        # The default of the context may be longer than what is left of this call.
        ordered.close(timeout=deadline.remaining())


def _schedules_in(messages: Sequence[Message]) -> Iterator[Schedule]:
    """Yield the schedules among messages that may be others."""
    for message in messages:
        headers = message.headers
        pattern = headers.get(names.SCHEDULE)
        if pattern is not None:
            yield Schedule(
                message.subject,
                headers.get(names.SCHEDULE_TARGET) or "",
                pattern,
                message.sequence,
                message.metadata.timestamp,
                headers.get(names.SCHEDULE_SOURCE),
                headers.get(names.SCHEDULE_TIME_ZONE),
                parse_ttl(headers.get(names.SCHEDULE_TTL)),
                headers.get(names.SCHEDULE_ROLLUP) is not None,
            )
