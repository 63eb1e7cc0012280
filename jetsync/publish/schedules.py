"""
Message schedules: the server publishes a message later, or repeatedly (ADR-51).

A schedule is a message in a stream with ``allow_msg_schedules``. A later schedule on the same
subject replaces it. Servers before 2.12 store a schedule as an ordinary message and ignore it, and
2.12 ignores some of its parts. So the server of the stream is checked before anything is sent.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from jetsync import errors
from jetsync._base.deadline import Seconds, as_seconds
from jetsync._base.fields import wrong_type
from jetsync.publish.one import publish_one
from jetsync.values import headers as names
from jetsync.values.codec import format_time, time_ns
from jetsync.values.headers import Headers
from jetsync.values.outbound import OutboundMessage
from jetsync.values.server_versions import FULL_SCHEDULE_LEVEL, SCHEDULE_LEVEL
from jetsync.values.subjects import validate_subject
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import Payload
    from jetsync.values.pub_acks import PubAck

# Nanoseconds since 1970 at which the clock of servers overflows: 11 April 2262. Servers publish a
# message for a later time at once. If an interval ends later, they publish its message several
# times a second, without end (seen on 2.12.8 and 2.15.1).
END_OF_TIME: Final = 2**63

# The longest interval in seconds, well before the overflow.
LONGEST_INTERVAL: Final = 100 * 365 * 86_400.0

PREDEFINED: Final = frozenset(
    {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}
)
CRON_FIELDS: Final = 6


@attrs.frozen(kw_only=True)
class ScheduleOptions:
    """
    The options of one schedule.
    """

    target: str
    at: dt.datetime | int | None
    every: Seconds | None
    cron: str | None
    time_zone: str | None
    source: str | None
    ttl: Seconds | Literal["never"] | None
    rollup: bool

    @property
    def level(self) -> int:
        """The API level that the server needs."""
        more = (self.every, self.cron, self.time_zone, self.source)
        return FULL_SCHEDULE_LEVEL if self.rollup or more != (None,) * 4 else SCHEDULE_LEVEL

    def pairs(self, subject: str) -> list[tuple[str, str]]:
        """
        Return the headers that make a message a schedule.

        Raises:
            InvalidArgumentError, InvalidTypeError: Servers would refuse or misread the schedule.
        """
        target = validate_subject(self.target)
        if target == subject:
            raise errors.InvalidArgumentError(
                "target must not be the subject of the schedule", argument="target"
            )
        found = [(names.SCHEDULE, self._pattern()), (names.SCHEDULE_TARGET, target)]
        if self.source is not None:
            source = validate_subject(self.source)
            if source in {subject, target}:
                raise errors.InvalidArgumentError(
                    "source must not be the subject of the schedule or the target",
                    argument="source",
                )
            found.append((names.SCHEDULE_SOURCE, source))
        if self.time_zone is not None:
            if self.cron is None:
                raise errors.InvalidArgumentError("time_zone needs cron", argument="time_zone")
            found.append((names.SCHEDULE_TIME_ZONE, _line(self.time_zone, "time_zone")))
        if self.ttl is not None:
            found.append((names.SCHEDULE_TTL, ttl_header(self.ttl)))
        if self.rollup:
            found.append((names.SCHEDULE_ROLLUP, "sub"))
        return found

    def _pattern(self) -> str:
        given = ((self.at, _moment), (self.every, _interval), (self.cron, _cron))
        patterns = [(value, make) for value, make in given if value is not None]
        if len(patterns) != 1:
            raise errors.InvalidArgumentError(
                "give exactly one of at, every and cron", argument="at"
            )
        ((value, make),) = patterns
        return make(value)


def schedule(
    context: Context,
    subject: str,
    data: Payload,
    options: ScheduleOptions,
    deadline: Deadline,
    *,
    headers: HeadersInput | None,
    msg_id: str | None,
) -> PubAck:
    """
    Store a schedule; see :meth:`jetsync.JetStream.schedule` for the contract.
    """
    context.connection.check()
    validate_subject(subject)
    given = Headers(headers)
    spelled = {name.lower() for name in given}
    for name, value in options.pairs(subject):
        if name.lower() in spelled:
            raise errors.InvalidArgumentError(
                f"the arguments set header {name}: leave it out", argument="headers"
            )
        given.add(name, value)
    message = OutboundMessage(subject, data, given, msg_id)
    _check_stream(context, subject, options, deadline)
    return publish_one(context, message, deadline)


def _check_stream(
    context: Context, subject: str, options: ScheduleOptions, deadline: Deadline
) -> None:
    """Raise unless the stream of the subject supports this schedule."""
    known = context.streams.find(subject, deadline)
    if not known.config.allow_msg_schedules or known.level < options.level:
        known = context.streams.find(subject, deadline, fresh=True)
    server = known.version or context.server.version
    if known.level < SCHEDULE_LEVEL:
        raise errors.NotSupportedError(
            "a message schedule", needs="server 2.12 or later", server=server
        )
    if known.level < options.level:
        raise errors.NotSupportedError(
            "every, cron, time_zone, source or rollup of a schedule",
            needs="server 2.14 or later",
            server=server,
        )
    if not known.config.allow_msg_schedules:
        raise errors.SchedulesDisabledError(
            description="message schedules is disabled: the stream needs allow_msg_schedules=True",
            stream=known.name,
        )


def _moment(at: Any) -> str:
    """Return the pattern of a time."""
    if not 0 <= time_ns(at, "at") < END_OF_TIME:
        raise errors.InvalidArgumentError(
            "at must be from 1970 to April 2262, when the clock of servers overflows", argument="at"
        )
    return f"@at {format_time(at, 'at')}"


def _interval(every: Any) -> str:
    """Return the pattern of an interval."""
    seconds = as_seconds(every, "every")
    if seconds < 1.0:
        raise errors.InvalidArgumentError("every must be at least 1 second", argument="every")
    if seconds > LONGEST_INTERVAL:
        raise errors.InvalidArgumentError("every must be at most 100 years", argument="every")
    return f"@every {seconds:.9f}".rstrip("0").rstrip(".") + "s"


def _cron(pattern: Any) -> str:
    """Return a cron pattern of a valid form."""
    text = _line(pattern, "cron")
    if text.startswith("@"):
        if text not in PREDEFINED:
            raise errors.InvalidArgumentError(
                f"cron must be six fields or one of {', '.join(sorted(PREDEFINED))}, not {text!r}",
                argument="cron",
            )
    elif len(text.split()) != CRON_FIELDS:
        raise errors.InvalidArgumentError(
            "cron has six fields: second, minute, hour, day of the month, month, day of the week; "
            f"not {len(text.split())}, as in {text!r}",
            argument="cron",
        )
    return text


def _line(text: Any, name: str) -> str:
    """Return non-empty text of one line."""
    if not isinstance(text, str):
        raise wrong_type(name, "text", text)
    if not text.strip() or not text.isprintable():
        raise errors.InvalidArgumentError(f"{name} must be one line of text", argument=name)
    return text
