"""
The statuses that answer a pull request, as one table.

A server ends or accompanies a pull with messages that have a status line and no payload.
:data:`STATUS_RULES` says what they mean, and a table in the documentation is generated from it. The
first rule whose code and text match applies. A status without a rule is a fault if its code is 400
or above, and ignored otherwise.

A fetch is a *bounded* read, and a consumption an *endless* one. :func:`judge` says what a status
means for both, with all exceptions, and the readers act on its verdict.

What a new status needs: a class in ``errors/status.py``, and its line in the trees of
``errors/__init__.py`` and of the reference; a rule here, in front of the general rule of its code;
a decision about :attr:`StatusRule.turned_away` and :attr:`StatusRule.final`; ``GONE`` in
``consume/ordered_source.py`` if the consumer no longer exists; ``_learn_limit`` in ``consume.py``
if it names a limit; a line in ``tests/proto/test_status.py``, and a row in ``test_judge.py``.

Sources: ADR-37, section "Status handling". Servers 2.10 to 2.15 send more status lines than the ADR
lists; these were measured.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from jetsync import errors
from jetsync._base.integers import read_digits
from jetsync.values.headers import PENDING_BYTES, PENDING_MESSAGES, Headers

if TYPE_CHECKING:
    from jetsync._proto.pull_request import Pull


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
    # Whether a fault ends an endless read, too, because every pull would fail the same way. The ADR
    # treats the limits of a consumer as warnings: another pull follows after a pause.
    final: bool = False

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


HEARTBEAT_CODE: Final = 100

# The faults that also end an endless read.
_FINAL: Final = (
    (409, "consumer deleted", errors.ConsumerDeletedError, "the consumer or its stream is deleted"),
    (409, "consumer is push based", errors.NotPullConsumerError, "this is a push consumer"),
    (400, "bad request - priority group missing", errors.InvalidGroupError, "a group is required"),
    (400, "bad request - invalid priority group", errors.InvalidGroupError, "no such group"),
    (400, "bad request - not a ", errors.InvalidGroupError, "the consumer has another policy"),
    (400, "bad request - priority must", errors.InvalidGroupError, "a priority outside 0 to 9"),
    (400, "", errors.BadPullRequestError, "the server does not understand the pull"),
    (412, "", errors.RequiredApiLevelError, "the server's API level is too low for the pull"),
)

# The faults after which an endless read pulls again.
_LIMITS: Final = (
    (409, "exceeded maxrequestbatch", errors.MaxRequestBatchError, "more messages than max_batch"),
    (409, "exceeded maxrequestexpires", errors.MaxRequestExpiresError, "longer than max_expires"),
    (409, "exceeded maxrequestmaxbytes", errors.MaxRequestMaxBytesError, "more than max_bytes"),
    (409, "exceeded maxwaiting", errors.MaxWaitingError, "too many pulls wait at the consumer"),
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
    *(StatusRule(code, text, Effect.FAULT, kind, meaning) for code, text, kind, meaning in _LIMITS),
    *(
        StatusRule(code, text, Effect.FAULT, kind, meaning, final=True)
        for code, text, kind, meaning in _FINAL
    ),
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

# If a pull ends empty before this fraction of its `expires`, the next one waits. Otherwise a
# consumer that refuses pulls without saying so would be asked in a tight loop.
QUICK: Final = 0.5

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


class Verdict(enum.Enum):
    """What a read does after a status has ended one of its pulls."""

    END = "end"
    """The pull ended normally: a bounded read is over, an endless one pulls for what it lacks."""

    AGAIN = "again"
    """Pull again at once."""

    LATER = "later"
    """Pull again after a pause that grows."""

    PROBE = "probe"
    """Ask whether the consumer exists, and pull again after a pause that grows."""

    FAIL = "fail"
    """The read ends with the error of the status."""


class Bounded(NamedTuple):
    """What a bounded read wants when one of its pulls ends."""

    # Whether messages are missing, and there is time to ask for them.
    left: bool
    # Whether it has received any message.
    found: bool
    # Which pull of a read with `no_wait` has ended; the first is 1.
    attempt: int


class Endless(NamedTuple):
    """What an endless read wants when one of its pulls ends."""

    # The most bytes that a pull of it may ask for; None if it counts messages.
    max_bytes: int | None


_VERDICTS: Final = {
    Effect.ENDED: Verdict.END,
    Effect.TRANSIENT: Verdict.LATER,
    Effect.ABSENT: Verdict.PROBE,
    Effect.FAULT: Verdict.FAIL,
}


def judge(status: Status, asked: Pull, want: Bounded | Endless, now: float) -> Verdict:
    """
    Return what a read does after *status* has ended its pull *asked*.

    ``tests/proto/test_judge.py`` has all rows.
    """
    if isinstance(want, Bounded):
        return _judge_bounded(status, asked, want)
    return _judge_endless(status, asked, want, now)


def is_stale_pin(status: Status, asked: Pull) -> bool:
    """
    Return whether a pull was refused for its pin id, which the next pull is sent without.

    Another client is pinned, or this client was given a new id meanwhile.
    """
    return status.rule.error is errors.PinIdMismatchError and asked.request.pin_id is not None


def _judge_bounded(status: Status, asked: Pull, want: Bounded) -> Verdict:
    """
    Judge for a read that ends.

    A read with ``no_wait`` sends up to three pulls. The first one has no expiry, so it is never cut
    off. If it finds nothing, the second one waits for a moment. If that expires between messages,
    the third one fetches the rest.
    """
    verdict = _VERDICTS[status.effect]
    if verdict is Verdict.FAIL:
        return verdict
    if not want.left:
        return Verdict.END
    if is_stale_pin(status, asked):
        return Verdict.AGAIN
    if status.effect is Effect.ENDED and asked.request.no_wait and status.code != 409:
        nothing = want.attempt == 1 and not want.found
        cut_off = want.attempt == 2 and want.found and status.code == 408
        if nothing or cut_off:
            return Verdict.AGAIN
    return verdict


def _judge_endless(status: Status, asked: Pull, want: Endless, now: float) -> Verdict:
    """Judge for a read that only ends if every pull would fail."""
    kind, request = status.rule.error, asked.request
    if kind is errors.MessageSizeExceedsMaxBytesError:
        # A pull that asked for as many bytes as possible ended empty, so every pull will.
        most = want.max_bytes
        never = request.max_bytes == most and status.pending_bytes in {None, most}
        return Verdict.FAIL if never else Verdict.END
    if status.effect is Effect.ENDED:
        # If it ended early and empty, and the next one does too, this would be a tight loop.
        empty = status.pending_messages == request.max_messages
        early = now < asked.opened + QUICK * request.expires
        return Verdict.LATER if empty and early else Verdict.END
    if is_stale_pin(status, asked):
        return Verdict.AGAIN
    if status.effect is Effect.FAULT and not status.rule.final:
        return Verdict.LATER
    return _VERDICTS[status.effect]


def _count(text: str | None) -> int | None:
    # Servers send "-1" for what the pull did not limit.
    return None if text is None or text.startswith("-") else read_digits(text)
