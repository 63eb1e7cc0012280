"""
The statuses that answer a pull request, as one table.

A server ends or accompanies a pull with messages that have a status line and no payload.
:data:`STATUS_RULES` says what they mean, and a table in the documentation is generated from it. The
first rule whose code and text match applies. A status without a rule is a fault if its code is 400
or above, and ignored otherwise.

A fault ends a fetch. It ends a consumption only if ``CONCLUDING`` in ``consume.py`` has its error.
``_judge`` in ``consume/fetch.py`` and in ``consume.py`` act on a rule, and have the exceptions.

What a new status needs: a class in ``errors/status.py``, and its line in the trees of
``errors/__init__.py`` and of the reference; a rule here, in front of the general rule of its code;
a decision about :attr:`StatusRule.turned_away`; ``CONCLUDING`` if it ends consumptions; ``GONE`` in
``consume/ordered_reads.py`` if the consumer no longer exists; ``_learn_limit`` in ``consume.py`` if
it names a limit; and a line in ``tests/proto/test_status.py``.

Sources: ADR-37, section "Status handling". Servers 2.10 to 2.15 send more status lines than the ADR
lists; these were measured.
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
    """The pull continues, and the server is alive."""

    ENDED = "ended"
    """The pull has ended normally: it is complete, has expired, or there were no messages."""

    TRANSIENT = "transient"
    """The pull has ended for a temporary reason: pull again."""

    ABSENT = "absent"
    """No server answers: the consumer has no leader at the moment, or does not exist."""

    FAULT = "fault"
    """The pull has ended: a fetch raises the error, and a consumption may pull again later."""


@attrs.frozen
class StatusRule:
    """One row of the table."""

    code: int
    # How the description starts, in lower case. An empty text matches every description.
    text: str
    effect: Effect
    # The error for a fault. jetsync raises none for a temporary status, because it pulls again.
    error: type[errors.StatusError] | None
    meaning: str

    @property
    def turned_away(self) -> bool:
        """
        Whether the server refused the pull before it delivered anything.

        True for each fault with an error of its own. A fault that may come after messages belongs
        to the exceptions here.
        """
        after = (errors.ConsumerDeletedError, errors.UnknownStatusError)
        return self.effect is Effect.ABSENT or (
            self.effect is Effect.FAULT and self.error not in after
        )


@attrs.frozen
class Status:
    """A status line with its rule."""

    code: int
    description: str
    rule: StatusRule
    pending_messages: int | None = None
    pending_bytes: int | None = None

    @property
    def effect(self) -> Effect:
        """The effect of the status on its pull."""
        return self.rule.effect

    def error(self, stream: str, consumer: str) -> errors.StatusError:
        """Return the exception for this status."""
        kind = self.rule.error or errors.UnknownStatusError
        return kind(code=self.code, description=self.description, consumer=consumer, stream=stream)


# The status of a heartbeat.
HEARTBEAT_CODE: Final = 100

_FAULTS: Final = (
    (409, "consumer deleted", errors.ConsumerDeletedError, "the consumer or its stream is deleted"),
    (409, "consumer is push based", errors.NotPullConsumerError, "this is a push consumer"),
    (409, "exceeded maxrequestbatch", errors.MaxRequestBatchError, "more messages than max_batch"),
    (409, "exceeded maxrequestexpires", errors.MaxRequestExpiresError, "longer than max_expires"),
    (409, "exceeded maxrequestmaxbytes", errors.MaxRequestMaxBytesError, "more than max_bytes"),
    (409, "exceeded maxwaiting", errors.MaxWaitingError, "too many pulls wait at the consumer"),
    (400, "bad request - priority group missing", errors.InvalidGroupError, "a group is required"),
    (400, "bad request - invalid priority group", errors.InvalidGroupError, "no such group"),
    (400, "bad request - not a ", errors.InvalidGroupError, "the consumer has another policy"),
    (400, "bad request - priority must", errors.InvalidGroupError, "a priority outside 0 to 9"),
    (400, "", errors.BadPullRequestError, "the server does not understand the pull"),
    (412, "", errors.RequiredApiLevelError, "the server's API level is too low for the pull"),
)

STATUS_RULES: Final = (
    StatusRule(HEARTBEAT_CODE, "", Effect.ALIVE, None, "heartbeat: there is nothing to deliver"),
    StatusRule(404, "", Effect.ENDED, None, "there are no (more) messages"),
    StatusRule(408, "", Effect.ENDED, None, "the pull has expired"),
    StatusRule(
        409,
        "message size exceeds maxbytes",
        Effect.ENDED,
        errors.MessageSizeExceedsMaxBytesError,
        "the next message is larger than the rest of max_bytes",
    ),
    StatusRule(409, "batch completed", Effect.ENDED, None, "max_messages came before max_bytes"),
    StatusRule(
        409,
        "server shutdown",
        Effect.TRANSIENT,
        errors.ServerShutdownError,
        "the server shuts down; another one takes over",
    ),
    StatusRule(
        409,
        "leadership change",
        Effect.TRANSIENT,
        errors.LeadershipChangeError,
        "the consumer has a new leader",
    ),
    *(StatusRule(code, text, Effect.FAULT, kind, meaning) for code, text, kind, meaning in _FAULTS),
    StatusRule(423, "", Effect.TRANSIENT, errors.PinIdMismatchError, "another client is pinned"),
    StatusRule(
        503,
        "",
        Effect.ABSENT,
        errors.ConsumerUnavailableError,
        "the consumer has no leader at the moment, or is gone",
    ),
)
"""All known statuses of pulls. The first row whose code and text match applies."""

_UNKNOWN_FAULT: Final = StatusRule(0, "", Effect.FAULT, errors.UnknownStatusError, "unknown")
_UNKNOWN_NOTE: Final = StatusRule(0, "", Effect.ALIVE, None, "unknown")


def find_rule(code: int, description: str) -> StatusRule:
    """Return the rule for a status line."""
    text = description.lower()
    for rule in STATUS_RULES:
        if rule.code == code and text.startswith(rule.text):
            return rule
    return _UNKNOWN_FAULT if code >= 400 else _UNKNOWN_NOTE


def read_status(block: bytes) -> Status | None:
    """
    Return the status in a header block; None for the headers of an ordinary message.

    Raises:
        ProtocolError: The first line is neither that of a message nor a status with a number, or a
            count is not a number.
    """
    code, description, headers = Headers.parse(block)
    if code is None:
        if description:
            raise errors.ProtocolError(f"{description[:40]!r} is not a status with a number")
        return None
    return Status(
        code,
        description,
        find_rule(code, description),
        _count(headers.get(PENDING_MESSAGES)),
        _count(headers.get(PENDING_BYTES)),
    )


def _count(text: str | None) -> int | None:
    # Servers send "-1" for what the pull did not limit.
    return None if text is None or text.startswith("-") else read_digits(text)
