"""
The statuses that answer a pull request, as one table.

A server ends or accompanies a pull with messages that have a status line and no payload. What each
of them means is decided here and nowhere else; tests and the documentation are made from
:data:`STATUS_RULES`. The first rule whose code and text fit applies. A status that no rule names is
a fault if its code is 400 or above, and of no consequence otherwise.

Sources: ADR-37, section "Status handling"; the lines that servers 2.10 to 2.15 really send were
measured, and are more than the ADR lists.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from jetsync import errors
from jetsync._base.integers import read_digits
from jetsync.values.headers import PENDING_BYTES, PENDING_MESSAGES, Headers


class Effect(enum.Enum):
    """What a status means for the pull that it answers."""

    ALIVE = "alive"
    """The pull goes on; this was a sign of life."""

    ENDED = "ended"
    """The pull is over, as pulls are: filled, expired, or nothing was there."""

    TRANSIENT = "transient"
    """The pull is over for a reason that passes: ask again."""

    ABSENT = "absent"
    """Nobody took the pull: the consumer has no leader at the moment, or does not exist."""

    FAULT = "fault"
    """The pull is over, and asking again would end the same way."""


@attrs.frozen
class StatusRule:
    """One row of the table."""

    code: int
    text: str
    """How the description starts, in lower case; empty fits every description."""

    effect: Effect
    error: type[errors.StatusError] | None
    """The error that a fault is raised as, or that a transient status becomes if it lasts."""

    pending: bool
    """Whether servers tell how many messages and bytes the pull still asked for."""

    meaning: str

    turned_away: bool = False
    """Whether the pull was refused before it could bring anything."""


@attrs.frozen
class Status:
    """A status line with what it means."""

    code: int
    description: str
    rule: StatusRule
    pending_messages: int | None = None
    pending_bytes: int | None = None

    @property
    def effect(self) -> Effect:
        """What it does to its pull."""
        return self.rule.effect

    def error(self, stream: str, consumer: str) -> errors.StatusError:
        """Make the exception that stands for this status."""
        kind = self.rule.error or errors.UnknownStatusError
        return kind(code=self.code, description=self.description, consumer=consumer, stream=stream)


def _row(
    code: int,
    text: str,
    effect: Effect,
    error: type[errors.StatusError] | None,
    *,
    pending: bool,
    meaning: str,
    turned_away: bool = False,
) -> StatusRule:
    return StatusRule(code, text, effect, error, pending, meaning, turned_away)


HEARTBEAT_CODE: Final = 100
"""The status of a sign of life."""

STATUS_RULES: Final = (
    _row(
        HEARTBEAT_CODE,
        "",
        Effect.ALIVE,
        None,
        pending=False,
        meaning="heartbeat: nothing to deliver",
    ),
    _row(404, "", Effect.ENDED, None, pending=False, meaning="no (more) messages are there"),
    _row(408, "", Effect.ENDED, None, pending=True, meaning="the pull's time is over"),
    _row(
        409,
        "message size exceeds maxbytes",
        Effect.ENDED,
        errors.MessageSizeExceedsMaxBytesError,
        pending=True,
        meaning="the next message does not fit into the bytes that are left",
    ),
    _row(
        409,
        "batch completed",
        Effect.ENDED,
        None,
        pending=True,
        meaning="all messages came, and bytes are left",
    ),
    _row(
        409,
        "server shutdown",
        Effect.TRANSIENT,
        errors.ServerShutdownError,
        pending=True,
        meaning="the consumer's server goes down; another one takes over",
    ),
    _row(
        409,
        "leadership change",
        Effect.TRANSIENT,
        errors.LeadershipChangeError,
        pending=False,
        meaning="the consumer has a new leader",
    ),
    _row(
        409,
        "consumer deleted",
        Effect.FAULT,
        errors.ConsumerDeletedError,
        pending=False,
        meaning="the consumer or its stream was deleted",
    ),
    _row(
        409,
        "consumer is push based",
        Effect.FAULT,
        errors.NotPullConsumerError,
        pending=False,
        meaning="push consumers cannot be pulled from",
        turned_away=True,
    ),
    _row(
        409,
        "exceeded maxrequestbatch",
        Effect.FAULT,
        errors.MaxRequestBatchError,
        pending=False,
        meaning="more messages asked for than the consumer's max_batch",
        turned_away=True,
    ),
    _row(
        409,
        "exceeded maxrequestexpires",
        Effect.FAULT,
        errors.MaxRequestExpiresError,
        pending=False,
        meaning="a longer time asked for than the consumer's max_expires",
        turned_away=True,
    ),
    _row(
        409,
        "exceeded maxrequestmaxbytes",
        Effect.FAULT,
        errors.MaxRequestMaxBytesError,
        pending=False,
        meaning="more bytes asked for than the consumer's max_bytes",
        turned_away=True,
    ),
    _row(
        409,
        "exceeded maxwaiting",
        Effect.FAULT,
        errors.MaxWaitingError,
        pending=False,
        meaning="too many pulls wait at the consumer already",
        turned_away=True,
    ),
    _row(
        400,
        "bad request - priority group missing",
        Effect.FAULT,
        errors.InvalidGroupError,
        pending=False,
        meaning="the consumer has priority groups and the pull names none",
        turned_away=True,
    ),
    _row(
        400,
        "bad request - invalid priority group",
        Effect.FAULT,
        errors.InvalidGroupError,
        pending=False,
        meaning="the consumer has no such priority group",
        turned_away=True,
    ),
    _row(
        400,
        "bad request - not a ",
        Effect.FAULT,
        errors.InvalidGroupError,
        pending=False,
        meaning="an option of another priority policy than the consumer's",
        turned_away=True,
    ),
    _row(
        400,
        "bad request - priority must",
        Effect.FAULT,
        errors.InvalidGroupError,
        pending=False,
        meaning="a priority outside 0 to 9",
        turned_away=True,
    ),
    _row(
        400,
        "",
        Effect.FAULT,
        errors.BadPullRequestError,
        pending=False,
        meaning="the server does not understand the pull",
        turned_away=True,
    ),
    _row(
        412,
        "",
        Effect.FAULT,
        errors.RequiredApiLevelError,
        pending=False,
        meaning="the server's API level is lower than the pull requires",
        turned_away=True,
    ),
    _row(
        423,
        "",
        Effect.TRANSIENT,
        errors.PinIdMismatchError,
        pending=False,
        meaning="another client is pinned now: forget the pin id and ask again",
    ),
    _row(
        503,
        "",
        Effect.ABSENT,
        errors.ConsumerUnavailableError,
        pending=False,
        meaning="nobody answers for the consumer: no leader at the moment, or it is gone",
        turned_away=True,
    ),
)
"""Every status that a pull may get; the first row that fits applies."""

_UNKNOWN_FAULT: Final = StatusRule(
    0, "", Effect.FAULT, errors.UnknownStatusError, pending=False, meaning="unknown"
)
_UNKNOWN_NOTE: Final = StatusRule(0, "", Effect.ALIVE, None, pending=False, meaning="unknown")
_FIRST_FAULT_CODE: Final = 400


def find_rule(code: int, description: str) -> StatusRule:
    """Return the rule for a status line."""
    text = description.lower()
    for rule in STATUS_RULES:
        if rule.code == code and text.startswith(rule.text):
            return rule
    return _UNKNOWN_FAULT if code >= _FIRST_FAULT_CODE else _UNKNOWN_NOTE


def read_status(block: bytes) -> Status | None:
    """Return the status of a header block, None if it is an ordinary message's."""
    code, description, headers = Headers.parse(block)
    if code is None:
        return None
    return Status(
        code,
        description,
        find_rule(code, description),
        _count(headers.get(PENDING_MESSAGES)),
        _count(headers.get(PENDING_BYTES)),
    )


def _count(text: str | None) -> int | None:
    # A pull without a batch gets "-1" here: servers do not count what was not asked for.
    return None if text is None or text.startswith("-") else read_digits(text)
